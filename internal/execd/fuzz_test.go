package execd_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/internal/execd"
	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

func quiet(f *testing.F) *daemon {
	return startWith(f, execd.Config{Log: slog.New(slog.DiscardHandler)})
}

// dialProcess attaches by hand. A refusal gives its answer.
func dialProcess(ctx context.Context, d *daemon, id, query string, protocols ...string) (*websocket.Conn, *http.Response, error) {
	return websocket.Dial(ctx, d.base+"/pty/"+id+"/ws?"+query, &websocket.DialOptions{
		Subprotocols: protocols,
		HTTPHeader:   http.Header{wire.HeaderToken: {token}},
	})
}

// Whatever a client sends, the attachment ends with it or goes on, and the
// process is free for the next one.
func FuzzClientFrames(f *testing.F) {
	d := quiet(f)
	id, err := client.Processes(d.conn).Start(f.Context(), sandbox.ProcessSpec{Key: "fuzz", Line: "exec cat >/dev/null", Dir: "/"})
	if err != nil {
		f.Fatal(err)
	}
	for _, old := range []bool{false, true} {
		for _, s := range []string{"", "\x00", "\x00data", "\x01data", "\xff",
			`t{"type":"resize","cols":1,"rows":1}`, `t{"type":"resize","cols":-1,"rows":99999999}`, `t{"type":"resize","cols":"x"}`,
			`t{"type":"signal","signal":"SIGKILL"}`, `t{"type":"signal","signal":"SIGSTOP"}`, `t{"type":"stdin_close"}`,
			`t{"type":"stdin","data":"x"}`, `t{"type":"ack","offset":-1}`, `t{"type":"ack","offset":9223372036854775807}`,
			`t{"type":"ping"}`, `t{"type":"?"}`, `t{`, `tnull`, `t[1]`, "t\xff\xfe"} {
			f.Add(old, []byte(s), []byte(`t{"type":"resize","cols":80,"rows":24}`))
		}
	}
	f.Fuzz(func(t *testing.T, old bool, first, second []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		protocols := []string{wire.ProcessProtocol}
		if old {
			protocols = nil
		}
		// With the older protocol the place may be held until the goodbye is said.
		conn, answer, err := dialProcess(ctx, d, id, "takeover=1&since=0&pty=0", protocols...)
		if err != nil {
			t.Fatalf("the next attachment: %v, %+v", err, answer)
		}
		defer conn.CloseNow()
		for _, b := range [][]byte{first, second} {
			kind := websocket.MessageBinary
			if len(b) > 0 && b[0] == 't' {
				kind, b = websocket.MessageText, b[1:]
			}
			if conn.Write(ctx, kind, b) != nil {
				break // closed already
			}
		}
		// The goodbye comes to an end, so nothing of the daemon hangs.
		if err := conn.Close(websocket.StatusNormalClosure, ""); errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the daemon doesn't answer the goodbye: %v", err)
		}
	})
}

// An offset gives exactly the bytes from there, or a refusal that says why.
func FuzzCursors(f *testing.F) {
	d := quiet(f)
	const written = 20000
	line := "head -c " + strconv.Itoa(written) + " /dev/zero | tr '\\0' x"
	id, err := client.Processes(d.conn).Start(f.Context(), sandbox.ProcessSpec{Key: "fuzz", Line: line, Dir: "/", Buffer: wire.MinBuffer})
	if err != nil {
		f.Fatal(err)
	}
	conn, _, err := dialProcess(f.Context(), d, id, "", wire.ProcessProtocol)
	if err != nil {
		f.Fatal(err)
	}
	for err == nil {
		_, _, err = conn.Read(f.Context())
	}
	st, err := client.Processes(d.conn).Status(f.Context(), id)
	if err != nil || st.Next != written || st.Oldest == 0 || st.State != sandbox.ProcessExited {
		f.Fatalf("%+v %v", st, err)
	}
	for _, s := range []string{"", "0", "1", "-1", "19999", "20000", "20001", strconv.FormatInt(st.Oldest, 10), strconv.FormatInt(st.Oldest-1, 10),
		"1e3", "3x", "+4", "0x10", "9223372036854775807", "9223372036854775808", "\x00", "%", "１"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, since string) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		conn, answer, err := dialProcess(ctx, d, id, "nostart=1&since="+url.QueryEscape(since), wire.ProcessProtocol)
		n, parseErr := strconv.ParseInt(since, 10, 64)
		if since == "" {
			n, parseErr = 0, nil
		}
		want := http.StatusSwitchingProtocols
		switch {
		case parseErr != nil || n > written || n < 0:
			want = http.StatusBadRequest
		case n < st.Oldest:
			want = http.StatusConflict
		}
		if answer == nil || answer.StatusCode != want {
			t.Fatalf("since %q: %+v %v, want status %d", since, answer, err, want)
		}
		if err != nil {
			return
		}
		defer conn.CloseNow()
		var got int64
		for {
			kind, b, err := conn.Read(ctx)
			if err != nil {
				if websocket.CloseStatus(err) != wire.CloseEnd {
					t.Errorf("since %q: ended with %v", since, err)
				}
				break
			}
			if kind == websocket.MessageBinary {
				got += int64(len(b) - wire.OutputHeaderSize)
			}
		}
		if got != written-n {
			t.Errorf("since %q: %d bytes, want %d", since, got, written-n)
		}
	})
}

// A page of a log begins at the cursor, and the next cursor is where it ends.
func FuzzLogCursor(f *testing.F) {
	d := quiet(f)
	const text = "0123456789"
	body := strings.NewReader(`{"command":"printf ` + text + `","background":true}`)
	events, err := io.ReadAll(request(f, d, http.MethodPost, "/command", body).Body)
	if err != nil {
		f.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(events), `"text":"`)
	id, _, _ := strings.Cut(rest, `"`)
	eventually(f, "the whole log", func() bool {
		b, _ := io.ReadAll(request(f, d, http.MethodGet, "/command/"+id+"/logs?cursor=0", nil).Body)
		return string(b) == text
	})
	for _, s := range []string{"", "0", "5", "10", "11", "-1", "x", "1.5", "99999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, cursor string) {
		res := request(t, d, http.MethodGet, "/command/"+id+"/logs?cursor="+url.QueryEscape(cursor), nil)
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		from, _ := strconv.ParseInt(cursor, 10, 64)
		next, nextErr := strconv.ParseInt(res.Header.Get("EXECD-COMMANDS-TAIL-CURSOR"), 10, 64)
		switch {
		case res.StatusCode == http.StatusBadRequest:
		case res.StatusCode != http.StatusOK || nextErr != nil:
			t.Errorf("cursor %q: status %d, next cursor %q", cursor, res.StatusCode, res.Header.Get("EXECD-COMMANDS-TAIL-CURSOR"))
		case !strings.HasSuffix(text, string(b)), next > int64(len(text)), from >= 0 && from <= int64(len(text)) && string(b) != text[from:]:
			t.Errorf("cursor %q: %q, next %d", cursor, b, next)
		}
	})
}

func request(t testing.TB, d *daemon, method, path string, body io.Reader) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, d.base+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(wire.HeaderToken, token)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}
