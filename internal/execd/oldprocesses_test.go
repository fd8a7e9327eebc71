package execd_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// oldSession makes a session of the older protocol.
func oldSession(t *testing.T, d *daemon, body string) string {
	t.Helper()
	resp := post(t, d, "/pty", body, nil)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	var made wire.ProcessCreated
	if err != nil || resp.StatusCode != http.StatusCreated || json.Unmarshal(b, &made) != nil {
		t.Fatalf("%d %s %v", resp.StatusCode, b, err)
	}
	return made.SessionID
}

func oldAttach(t *testing.T, d *daemon, id, query string) *websocket.Conn {
	t.Helper()
	conn, _, err := websocket.Dial(ctx(t), d.base+"/pty/"+id+"/ws?"+query, &websocket.DialOptions{HTTPHeader: http.Header{wire.HeaderToken: {token}}})
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { conn.CloseNow() })
	return conn
}

// oldRead gives a message in words: "1 text", "replay@5 text" or the JSON.
func oldRead(t *testing.T, conn *websocket.Conn) (string, error) {
	kind, b, err := conn.Read(ctx(t))
	switch {
	case err != nil:
		return "", err
	case kind == websocket.MessageText:
		return strings.TrimSuffix(string(b), "\n"), nil
	case b[0] == 3:
		return "replay@" + string('0'+rune(binary.BigEndian.Uint64(b[1:]))) + " " + string(b[9:]), nil
	default:
		return string('0'+rune(b[0])) + " " + string(b[1:]), nil
	}
}

// oldAll reads to the end.
func oldAll(t *testing.T, conn *websocket.Conn) (all []string, code websocket.StatusCode) {
	t.Helper()
	for {
		m, err := oldRead(t, conn)
		if err != nil {
			return all, websocket.CloseStatus(err)
		}
		all = append(all, m)
	}
}

func TestOldSession(t *testing.T) {
	d := start(t)
	id := oldSession(t, d, `{"command":"read x; echo $x; exit 3","cwd":"`+t.TempDir()+`/made"}`)
	hello := `{"type":"connected","session_id":"` + id + `","mode":"pipe","role":"holder"}`
	send := func(conn *websocket.Conn, s string) {
		t.Helper()
		if err := conn.Write(ctx(t), websocket.MessageBinary, append([]byte{0}, s...)); err != nil {
			t.Fatal(err)
		}
	}
	conn := oldAttach(t, d, id, "pty=0")
	send(conn, "hey\n")
	got, code := oldAll(t, conn)
	if diff := cmp.Diff([]string{hello, "1 hey\n", `{"type":"exit","exit_code":3}`}, got); diff != "" || code != 1000 {
		t.Errorf("first run, closed with %d (-want +got):\n%s", code, diff)
	}
	conn = oldAttach(t, d, id, "pty=0&since=1")
	send(conn, "you\n")
	got, _ = oldAll(t, conn)
	if diff := cmp.Diff([]string{"replay@1 ey\n", hello, "1 you\n", `{"type":"exit","exit_code":3}`}, got); diff != "" {
		t.Errorf("second run (-want +got):\n%s", diff)
	}
	if _, state := get(t, d, "GET", "/pty/"+id); !strings.Contains(state, `"running":false,"output_offset":8`) {
		t.Errorf("%s", state)
	}
	for _, since := range []string{"99", "abc", "-1", ""} {
		conn := oldAttach(t, d, id, "pty=0&takeover=1&since="+since)
		m, err := oldRead(t, conn)
		want := "replay@0 hey\n" // and the second run's in a message of its own
		if since == "99" {
			want = hello
		}
		if m != want || err != nil {
			t.Errorf("since=%s: %q %v", since, m, err)
		}
		conn.CloseNow()
	}
}

func TestOldTerminal(t *testing.T) {
	d := start(t)
	id := oldSession(t, d, `{}`)
	conn := oldAttach(t, d, id, "")
	text := func(s string) {
		t.Helper()
		if err := conn.Write(ctx(t), websocket.MessageText, []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	await := func(want string) {
		t.Helper()
		var all string
		for !strings.Contains(all, want) {
			m, err := oldRead(t, conn)
			if err != nil {
				t.Fatalf("after %q: %v, want %q", all, err, want)
			}
			all += strings.TrimPrefix(m, "1 ")
		}
	}
	await(`"mode":"pty","role":"holder"}`)
	await("# ")
	text(`{"type":"resize","cols":70000,"rows":40}`)
	text(`not JSON`)
	text(`{"type":"ping"}`)
	await(`{"type":"pong"}`)
	text(`{"type":"what"}`)
	await(`"code":"INVALID_FRAME"`)
	text(`{"type":"stdin","data":"stty size; echo do''ne\n"}`)
	await("40 65535\r\ndone\r\n")
	if _, _, err := websocket.Dial(ctx(t), d.base+"/pty/"+id+"/ws", &websocket.DialOptions{HTTPHeader: http.Header{wire.HeaderToken: {token}}}); err == nil || !strings.Contains(err.Error(), "409") {
		t.Errorf("a second client: %v", err)
	}
	second := oldAttach(t, d, id, "takeover=1")
	for {
		_, err := oldRead(t, conn)
		if err == nil {
			continue
		}
		var closed websocket.CloseError
		if !errors.As(err, &closed) || closed.Code != 4001 || closed.Reason != "TAKEN_OVER" {
			t.Errorf("the displaced client: %v", err)
		}
		break
	}
	if resp, _ := get(t, d, "DELETE", "/pty/"+id); resp.StatusCode != http.StatusOK {
		t.Errorf("DELETE: %d", resp.StatusCode)
	}
	got, code := oldAll(t, second)
	if n := len(got); n == 0 || got[n-1] != `{"type":"exit","exit_code":-1}` || code != 1000 {
		t.Errorf("after DELETE: %q, %d", got, code)
	}
	if resp, _ := get(t, d, "DELETE", "/pty/"+id); resp.StatusCode != http.StatusNotFound {
		t.Errorf("DELETE again: %d", resp.StatusCode)
	}
}

// Output is complete before the exit, in both modes, run after run.
func TestOldShortRuns(t *testing.T) {
	d := start(t)
	const workers, each = 4, 25
	for _, query := range []string{"pty=0", "pty=1"} {
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				for range each {
					id := oldSession(t, d, `{"command":"echo hi"}`)
					conn := oldAttach(t, d, id, query)
					got, _ := oldAll(t, conn)
					conn.CloseNow()
					out := ""
					for _, m := range got[1 : len(got)-1] {
						out += strings.TrimPrefix(m, "1 ")
					}
					if strings.TrimRight(out, "\r\n") != "hi" || got[len(got)-1] != `{"type":"exit","exit_code":0}` {
						t.Errorf("%s: %q", query, got)
						return
					}
					get(t, d, "DELETE", "/pty/"+id)
				}
			})
		}
		wg.Wait()
	}
}

// A request that can't become a WebSocket starts nothing and takes nothing from
// anybody; the subprotocol may be one of several.
func TestHandshakes(t *testing.T) {
	d := start(t)
	id := oldSession(t, d, `{"command":"cat"}`)
	good := map[string]string{
		"Connection": "keep-alive, Upgrade", "Upgrade": "WebSocket",
		"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
	}
	ask := func(change map[string]string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx(t), http.MethodGet, d.base+"/pty/"+id+"/ws?pty=0&takeover=1", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(wire.HeaderToken, token)
		for _, set := range []map[string]string{good, change} {
			for k, v := range set {
				if req.Header.Set(k, v); v == "" {
					req.Header.Del(k)
				}
			}
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode, resp.Header.Get("Sec-WebSocket-Protocol")
	}
	broken := []map[string]string{
		{"Connection": "close"}, {"Connection": ""}, {"Upgrade": "h2c"}, {"Upgrade": ""},
		{"Sec-WebSocket-Version": "8"}, {"Sec-WebSocket-Version": ""},
		{"Sec-WebSocket-Key": "short"}, {"Sec-WebSocket-Key": "AAAA"}, {"Sec-WebSocket-Key": ""},
	}
	for _, protocol := range []string{"", wire.ProcessProtocol} {
		for _, change := range broken {
			change["Sec-WebSocket-Protocol"] = protocol
			if status, _ := ask(change); status != http.StatusBadRequest {
				t.Errorf("%v: %d, want a refusal", change, status)
			}
		}
	}
	if _, state := get(t, d, "GET", "/pty/"+id); !strings.Contains(state, `"state":"registered"`) {
		t.Errorf("something was started: %s", state)
	}
	holder := oldAttach(t, d, id, "pty=0")
	for _, change := range broken {
		ask(change)
	}
	if err := holder.Write(ctx(t), websocket.MessageBinary, []byte("\x00still\n")); err != nil {
		t.Fatal(err)
	}
	for want := range strings.SplitSeq("connected|1 still", "|") {
		if got, err := oldRead(t, holder); err != nil || !strings.Contains(got, want) {
			t.Errorf("the holder got %q, %v, want %q", got, err, want)
		}
	}
	holder.CloseNow()
	for given, want := range map[string]string{
		"other": "", "other, " + wire.ProcessProtocol: wire.ProcessProtocol, wire.ProcessProtocol: wire.ProcessProtocol,
	} {
		if status, got := ask(map[string]string{"Sec-WebSocket-Protocol": given}); status != http.StatusSwitchingProtocols || got != want {
			t.Errorf("of the protocols %q: %d, %q", given, status, got)
		}
	}
}
