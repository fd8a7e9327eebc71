package execd_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/internal/execd/command"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Each limit has an answer that names it.
func TestBodyLimit(t *testing.T) {
	d := start(t)
	big := `{"command":"` + strings.Repeat("x", 9<<20) + `"}`
	id := newSession(t, d, "")
	for _, path := range []string{"/command", "/session", "/session/" + id + "/run", "/pty", "/code"} {
		resp := post(t, d, path, big, nil)
		b, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != http.StatusRequestEntityTooLarge || !strings.Contains(string(b), "8 MiB") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, b)
		}
	}
	_, got := events(t, d, wire.CommandRequest{Command: "echo $#" + strings.Repeat(" ", 300<<10)})
	if out := brief(got); len(out) != 2 || out[0] != "stdout 0" {
		t.Errorf("a command line of 300 KiB: %q", out)
	}
	_, got = events(t, d, wire.CommandRequest{Command: "true", Envs: map[string]string{"A": strings.Repeat("x", 200<<10)}})
	if out := brief(got); len(out) != 1 || !strings.HasPrefix(out[0], "error the arguments or the environment are too large") {
		t.Errorf("a variable of 200 KiB: %q", out)
	}
}

func TestCommandLimits(t *testing.T) {
	d := start(t)
	first, _ := events(t, d, wire.CommandRequest{Argv: wire.Argv{"true"}})
	for range command.MaxCommands {
		events(t, d, wire.CommandRequest{Argv: wire.Argv{"sleep", "1000"}, Background: true})
	}
	for _, body := range []string{`{"command":"true"}`, `{"command":"true","background":true}`} {
		resp := post(t, d, "/command", body, nil)
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(b), `"code":"LIMIT_EXCEEDED"`) {
			t.Errorf("%s: %d %s", body, resp.StatusCode, b)
		}
	}
	if resp, _ := get(t, d, "GET", "/command/status/"+first); resp.StatusCode != http.StatusOK {
		t.Errorf("the first command's record: %d", resp.StatusCode)
	}
	// Only the newest 1024 records are kept, those of running commands always.
	d2 := start(t)
	running, _ := events(t, d2, wire.CommandRequest{Argv: wire.Argv{"sleep", "1000"}, Background: true})
	oldest, _ := events(t, d2, wire.CommandRequest{Argv: wire.Argv{"true"}})
	for range 1024 {
		events(t, d2, wire.CommandRequest{Argv: wire.Argv{"true"}})
	}
	for id, want := range map[string]int{oldest: 404, running: 200} {
		if resp, _ := get(t, d2, "GET", "/command/status/"+id); resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", id, resp.StatusCode, want)
		}
	}
}

// A background log stops growing, and its pages are bounded.
func TestLogLimits(t *testing.T) {
	d := start(t)
	id, _ := events(t, d, wire.CommandRequest{Command: "head -c 70000000 /dev/zero", Background: true})
	eventually(t, "the end", func() bool {
		_, state := get(t, d, "GET", "/command/status/"+id)
		return strings.Contains(state, `"exit_code":0`)
	})
	total, cursor := 0, "0"
	for {
		resp, page := get(t, d, "GET", "/command/"+id+"/logs?cursor="+cursor)
		if len(page) > 16<<20 {
			t.Fatalf("a page of %d bytes", len(page))
		}
		cursor = resp.Header.Get("EXECD-COMMANDS-TAIL-CURSOR")
		if len(page) == 0 {
			break
		}
		if total += len(page); strconv.Itoa(total) != cursor {
			t.Fatalf("cursor %s after %d bytes", cursor, total)
		}
	}
	if total != 64<<20 {
		t.Errorf("%d bytes are kept, want %d", total, 64<<20)
	}
}

func TestFrameLimit(t *testing.T) {
	d := start(t)
	id := oldSession(t, d, `{"command":"cat"}`)
	conn := oldAttach(t, d, id, "pty=0")
	if _, err := oldRead(t, conn); err != nil {
		t.Fatal(err)
	}
	_ = conn.Write(ctx(t), websocket.MessageBinary, make([]byte, wire.MaxClientMessage+1))
	_, code := oldAll(t, conn)
	if code != websocket.StatusMessageTooBig {
		t.Errorf("closed with %d", code)
	}
	eventually(t, "a place for the next client", func() bool {
		next, _, err := websocket.Dial(ctx(t), d.base+"/pty/"+id+"/ws?pty=0", &websocket.DialOptions{HTTPHeader: http.Header{wire.HeaderToken: {token}}})
		if err != nil {
			return false
		}
		next.CloseNow()
		return true
	})
}

// A client that doesn't read doesn't freeze what it watches for long.
func TestStalledReaders(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	exists := func(name string) bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil }
	open := func(request string) net.Conn {
		t.Helper()
		var dial net.Dialer
		conn, err := dial.DialContext(ctx(t), "tcp", strings.TrimPrefix(d.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, request)
		return conn
	}
	line := fmt.Sprintf("cd %s; head -c 50000000 /dev/zero | tr '\\\\0' '\\\\n'; touch ", dir)
	body := `{"command":"` + line + `command"}`
	begun := time.Now()
	open(fmt.Sprintf("POST /command HTTP/1.1\r\nHost: x\r\n%s: %s\r\nContent-Length: %d\r\n\r\n%s", wire.HeaderToken, token, len(body), body))
	id := oldSession(t, d, `{"command":"`+line+`process"}`)
	open(fmt.Sprintf("GET /pty/%s/ws?pty=0 HTTP/1.1\r\nHost: x\r\n%s: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n", id, wire.HeaderToken, token))
	frames := `{"command":"yes","timeout":1000}`
	open(fmt.Sprintf("POST /command HTTP/1.1\r\nHost: x\r\n%s: %s\r\nAccept: %s\r\nContent-Length: %d\r\n\r\n%s", wire.HeaderToken, token, wire.OutputType, len(frames), frames))
	eventually(t, "the end of both", func() bool { return exists("command") && exists("process") })
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("they were held up for %v", took)
	}
	conn := oldAttach(t, d, id, "pty=0&since=999999999") // free for the next client
	if got, err := oldRead(t, conn); err != nil || !strings.Contains(got, "connected") {
		t.Errorf("the next client: %q %v", got, err)
	}
	conn.CloseNow()
	if resp, body := get(t, d, "DELETE", "/pty/"+id); resp.StatusCode != http.StatusOK {
		t.Errorf("DELETE: %d %s", resp.StatusCode, body)
	}
	// A command whose time is over goes, though its client takes nothing of it.
	wait, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if d.Quiet(wait); wait.Err() != nil {
		t.Error("a command of a second still counts as running")
	}
}

// Without the token nothing is told, not even which paths there are.
func TestTokenEverywhere(t *testing.T) {
	d := start(t)
	for _, path := range []string{"/ping", "/ping/", "/files/info/", "/nothing", "/proxy/80/", "/session", "//ping", "/metrics/watch", "/execution/instance", "/v1/isolated/sessions"} {
		for _, given := range []string{"", "wrong", token + "x", token[:len(token)-1]} {
			req, _ := http.NewRequestWithContext(ctx(t), http.MethodGet, d.base+path, nil)
			req.Header.Set("Authorization", "Bearer "+token)
			if given != "" {
				req.Header.Set(wire.HeaderToken, given)
			}
			req.Close = true
			resp, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != 401 || !strings.Contains(string(b), `"error":"Unauthorized: invalid or missing header X-EXECD-ACCESS-TOKEN"`) {
				t.Errorf("%s with %q: %d %s", path, given, resp.StatusCode, b)
			}
		}
	}
}

// Connections without the token, however many and whatever they send or don't,
// keep nobody out who has it, and aren't kept themselves.
func TestStrangersKeepNobodyOut(t *testing.T) {
	d := start(t)
	address := strings.TrimPrefix(d.base, "http://")
	requests := []string{
		"", // nothing at all
		"GET /ping HTTP/1.1\r\n",
		"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /command HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
		"POST /v1/fs/content HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
	}
	const more = 1024 + 100 // than there are places
	for i := range more {
		var dial net.Dialer
		conn, err := dial.DialContext(ctx(t), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, requests[i%len(requests)])
	}
	begun := time.Now()
	if res := run(t, d, "echo still here"); string(res.Stdout) != "still here\n" {
		t.Errorf("%+v", res)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("a client with the token waited for %v", took)
	}

	for _, request := range requests[2:] {
		var dial net.Dialer
		conn, err := dial.DialContext(ctx(t), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		io.WriteString(conn, request)
		if b, err := io.ReadAll(conn); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 401") {
			t.Errorf("%q: %q, %v; want a refusal and the end", request, b, err)
		}
	}
}
