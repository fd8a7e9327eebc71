package httpapi_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/httpapi/httpapitest"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

func decodeTerminal(t *testing.T, a answer) string {
	t.Helper()
	if a.StatusCode != 201 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	return decode[model.Terminal](t, a.body).ID
}

// shell is a terminal of a conversation and its path.
type shell struct {
	*rig
	ctx  context.Context
	term *httpapitest.Terminal
	path string
}

func newShell(t *testing.T) *shell {
	r := newRig(t)
	id := r.conversation()
	tid := decodeTerminal(t, r.do("POST", "/api/v1/conversations/"+id+"/terminals", `{"cols":80,"rows":24}`))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	return &shell{r, ctx, r.svc.Terminal(id, tid), "/api/v1/conversations/" + id + "/terminals/" + tid + "/attach"}
}

func (s *shell) attach(query string) *websocket.Conn {
	s.Helper()
	ws, _, err := websocket.Dial(s.ctx, s.url+s.path+query, &websocket.DialOptions{Subprotocols: []string{wire.TerminalProtocol}})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { ws.CloseNow() })
	if ws.Subprotocol() != wire.TerminalProtocol {
		s.Errorf("subprotocol %q", ws.Subprotocol())
	}
	return ws
}

// next gives a frame as text: "0:output" or the JSON.
func (s *shell) next(ws *websocket.Conn) string {
	s.Helper()
	kind, data, err := ws.Read(s.ctx)
	switch {
	case err != nil:
		return fmt.Sprintf("close %d", websocket.CloseStatus(err))
	case kind == websocket.MessageBinary:
		return fmt.Sprintf("%d:%s", binary.BigEndian.Uint64(data), data[8:])
	}
	var f wire.ServerFrame
	if err := json.Unmarshal(data, &f); err != nil {
		s.Fatal(err)
	}
	f.Message = ""
	short, _ := json.Marshal(f)
	return string(short)
}

func (s *shell) expect(ws *websocket.Conn, want ...string) {
	s.Helper()
	for _, w := range want {
		if got := s.next(ws); got != w {
			s.Fatalf("got %s, want %s", got, w)
		}
	}
}

func (s *shell) write(ws *websocket.Conn, kind websocket.MessageType, data string) {
	s.Helper()
	if err := ws.Write(s.ctx, kind, []byte(data)); err != nil {
		s.Fatal(err)
	}
}

const ready0 = `{"type":"ready","mode":"write","offset":0}`

func TestTerminalTalk(t *testing.T) {
	s := newShell(t)
	s.term.Emit("$ ")
	ws := s.attach("")
	s.expect(ws, ready0, "0:$ ")
	s.write(ws, websocket.MessageBinary, "ls\xff\r")
	s.write(ws, websocket.MessageText, `{"type":"resize","cols":100,"rows":30}`)
	s.write(ws, websocket.MessageText, `{"type":"signal","name":"SIGINT"}`)
	err := s.term.Wait(s.ctx, func(stdin string, sizes []sandbox.Size, signals []string, _ int) bool {
		return stdin == "ls\xff\r" && cmp.Equal(sizes, []sandbox.Size{{Cols: 80, Rows: 24}, {Cols: 100, Rows: 30}}) && cmp.Equal(signals, []string{"SIGINT"})
	})
	if err != nil {
		t.Fatal(err)
	}
	s.write(ws, websocket.MessageText, `{"type":"ping"}`)
	s.expect(ws, `{"type":"pong"}`)
	s.term.Emit("\xf0\x9f")
	s.expect(ws, "2:\xf0\x9f")
	s.term.Emit("\x98\x80")
	s.expect(ws, "4:\x98\x80")
	s.term.End(sandbox.Exit{Code: 130, Signal: "SIGINT"})
	s.expect(ws, `{"type":"exit","code":130,"signal":"SIGINT"}`, "close 1000")
}

func TestTerminalResumes(t *testing.T) {
	s := newShell(t)
	s.term.Emit("0123456789")
	s.expect(s.attach("?since=4"), `{"type":"ready","mode":"write","offset":4}`, "4:456789")
	s.term.Forget(6)
	watch := s.attach("?mode=watch&since=4")
	s.expect(watch, `{"type":"gap","oldest":6}`, `{"type":"ready","mode":"watch","offset":6}`, "6:6789")
	fresh := s.attach("?mode=watch") // what was dropped isn't missed by one that never saw it
	s.expect(fresh, `{"type":"ready","mode":"watch","offset":6}`, "6:6789")
}

func TestTerminalTakeover(t *testing.T) {
	s := newShell(t)
	first := s.attach("")
	s.expect(first, ready0)
	held := s.attach("")
	s.expect(held, `{"type":"error","code":"ALREADY_CONNECTED"}`, "close 4009")
	watch := s.attach("?mode=watch")
	s.expect(watch, `{"type":"ready","mode":"watch","offset":0}`)
	second := s.attach("?mode=takeover")
	s.expect(second, ready0)
	s.expect(first, `{"type":"displaced"}`, "close 4001")
	s.term.Emit("x")
	s.expect(second, "0:x")
	s.expect(watch, "0:x")
	s.write(watch, websocket.MessageBinary, "typed\r")
	s.expect(watch, `{"type":"error","code":"TERMINAL_READ_ONLY"}`)
	s.write(watch, websocket.MessageText, `{"type":"signal","name":"SIGKILL"}`)
	s.expect(watch, `{"type":"error","code":"TERMINAL_READ_ONLY"}`)
	s.write(second, websocket.MessageBinary, "ok")
	if err := s.term.Wait(s.ctx, func(stdin string, _ []sandbox.Size, signals []string, _ int) bool {
		return stdin == "ok" && len(signals) == 0
	}); err != nil {
		t.Error(err)
	}
}

func TestTerminalRefusals(t *testing.T) {
	s := newShell(t)
	good := s.path
	for path, want := range map[string][]string{
		strings.Replace(good, "term_", "term_0", 1):                     {`{"type":"error","code":"TERMINAL_NOT_FOUND"}`, "close 4004"},
		"/api/v1/conversations/" + unknown + "/terminals/term_x/attach": {`{"type":"error","code":"CONVERSATION_NOT_FOUND"}`, "close 4004"},
	} {
		s.path = path
		s.expect(s.attach(""), want...)
	}
	s.path = good
	s.svc.Fail = func(string) error { return errLost }
	s.expect(s.attach(""), `{"type":"error","code":"INTERNAL_ERROR"}`, "close 4000")
	s.svc.Fail = nil
	for _, query := range []string{"?since=-1", "?since=x", "?mode=root", "?mode=write&mode=watch", "?takeover=1"} {
		_, resp, err := websocket.Dial(s.ctx, s.url+good+query, &websocket.DialOptions{Subprotocols: []string{wire.TerminalProtocol}})
		if err == nil || resp.StatusCode != 400 {
			t.Errorf("%s: %v %v", query, resp, err)
		}
	}
	for _, protocols := range [][]string{nil, {"chat"}} {
		_, resp, err := websocket.Dial(s.ctx, s.url+good, &websocket.DialOptions{Subprotocols: protocols})
		if err == nil || resp.StatusCode != 400 {
			t.Errorf("subprotocols %v: %v %v", protocols, resp, err)
		}
	}
}

func TestTerminalFramesThatMakeNoSense(t *testing.T) {
	s := newShell(t)
	ws := s.attach("")
	s.expect(ws, ready0)
	for _, f := range []string{`{`, `[]`, `{"type":"exec"}`, `{"type":"resize"}`, `{"type":"resize","cols":0,"rows":5}`, `{"type":"resize","cols":1001,"rows":5}`,
		`{"type":"resize","cols":70000,"rows":5}`, `{"type":"signal","name":"SIGSTOP"}`, `{"type":"signal"}`, ``} {
		s.write(ws, websocket.MessageText, f)
		s.expect(ws, `{"type":"error","code":"REQUEST_INVALID"}`)
	}
	s.write(ws, websocket.MessageBinary, "")
	s.write(ws, websocket.MessageBinary, "still here")
	if err := s.term.Wait(s.ctx, func(stdin string, sizes []sandbox.Size, _ []string, _ int) bool {
		return stdin == "still here" && len(sizes) == 1
	}); err != nil {
		t.Error(err)
	}
	s.write(ws, websocket.MessageBinary, strings.Repeat("x", 1<<20+1))
	s.expect(ws, "close 1009")
}

// The shell is let go when its client leaves, and told apart from its end.
func TestTerminalClientLeaves(t *testing.T) {
	s := newShell(t)
	for i := range 3 {
		ws := s.attach("")
		s.expect(ws, ready0)
		if i == 0 {
			ws.CloseNow()
		} else {
			ws.Close(websocket.StatusNormalClosure, "")
		}
		if err := s.term.Wait(s.ctx, func(_ string, _ []sandbox.Size, _ []string, closed int) bool { return closed == i+1 }); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTerminalEndsWithTheServer(t *testing.T) {
	s := newShell(t)
	ws := s.attach("")
	s.expect(ws, ready0)
	s.api.Drain()
	s.expect(ws, "close 1001")
	if err := s.api.Wait(s.ctx); err != nil {
		t.Error(err)
	}
}

func TestTerminalList(t *testing.T) {
	s := newShell(t)
	list := s.path[:strings.LastIndex(strings.TrimSuffix(s.path, "/attach"), "/")]
	if body := s.do("GET", list, "").body; !strings.Contains(body, s.term.ID) {
		t.Error(body)
	}
	if a := s.do("DELETE", list+"/"+s.term.ID, ""); a.StatusCode != 204 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
}
