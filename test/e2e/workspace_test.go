package e2e

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

// TestLinksOutOfTheWorkspace: what runs in a sandbox may lay links to anywhere;
// the files API follows none out of the workspace, in any part of a path.
func TestLinksOutOfTheWorkspace(t *testing.T) {
	s := newServer(t, options{})
	id := s.conversation()
	s.say(id, `mkdir -p in /tmp/outside && echo secret > /tmp/outside/file && cp -r /tmp/outside /tmp/before
		ln -s /tmp/outside dir; ln -s ../tmp/outside relative; ln -s /tmp/outside/file file; ln -s /tmp/outside/new dangling
		ln -s / root; ln -s .. up; ln -s dir through; ln -s /proc/1/root/tmp/outside proc; ln -s loop loop; ln -s /workspace/in inside; echo mine > in/file`)
	one := conversations + "/" + id
	ask := func(code fault.Code, r request) {
		t.Helper()
		r.path = one + r.path
		s.refused(t, r, code, "")
	}
	at := func(path string) url.Values { return url.Values{"path": {"/workspace/" + path}} }

	for _, p := range []string{"dir/file", "relative/file", "file", "root/tmp/outside/file", "up/tmp/outside/file", "through/file", "proc/file"} {
		ask(fault.PathEscapes, request{method: "GET", path: "/files/content", query: at(p)})
		ask(fault.PathEscapes, request{method: "PUT", path: "/files/content", query: at(p), body: "overwritten"})
	}
	ask(fault.PathEscapes, request{method: "PUT", path: "/files/content", query: at("dangling"), body: "made"})
	for _, p := range []string{"dir/new", "relative/new", "root/tmp/outside/new", "up/tmp/outside/new", "through/new", "proc/new"} {
		ask(fault.PathEscapes, request{method: "PUT", path: "/files/content", query: at(p), body: "made"})
		ask(fault.PathEscapes, request{method: "POST", path: "/files/mkdir", body: toJSON(t, wire.MakeDir{Path: "/workspace/" + p})})
		ask(fault.PathEscapes, request{method: "POST", path: "/files/mkdir", body: toJSON(t, wire.MakeDir{Path: "/workspace/" + p + "/deep", Parents: true})})
		ask(fault.PathEscapes, request{method: "POST", path: "/files/move", body: toJSON(t, wire.MoveFile{From: "/workspace/in/file", To: "/workspace/" + p, Replace: true})})
	}
	for _, p := range []string{"dir/file", "root/tmp/outside/file", "up/tmp/outside", "through/file", "proc/file"} {
		ask(fault.PathEscapes, request{method: "POST", path: "/files/move", body: toJSON(t, wire.MoveFile{From: "/workspace/" + p, To: "/workspace/stolen"})})
		ask(fault.PathEscapes, request{method: "POST", path: "/files/delete", body: toJSON(t, wire.DeleteFiles{Paths: []string{"/workspace/" + p}})})
		ask(fault.PathEscapes, request{method: "GET", path: "/files", query: at(p)})
	}
	for _, p := range []string{"dir", "relative", "root", "up", "through", "proc"} {
		ask(fault.PathEscapes, request{method: "GET", path: "/files", query: at(p)})
	}
	// A circle of links leads nowhere.
	for _, p := range []string{"loop", "loop/file"} {
		ask(fault.FileRejected, request{method: "GET", path: "/files/content", query: at(p)})
		ask(fault.FileRejected, request{method: "PUT", path: "/files/content", query: at(p), body: "x"})
	}
	ask(fault.IsADirectory, request{method: "PUT", path: "/files/content", query: url.Values{"path": {"/workspace"}}, body: "x"})
	// A recursive listing doesn't go through a link.
	list, err := s.api.Files(timeout(t), id, "/workspace", 8)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Entries {
		switch e.Path {
		case "/workspace/in", "/workspace/in/file":
		default:
			if e.Type != wire.TypeSymlink || e.Target == "" {
				t.Errorf("the listing shows %+v", e)
			}
		}
	}
	// A link that stays inside is followed; deleting one that leads out takes the link only.
	if got, err := s.read(id, "/workspace/inside/file"); err != nil || got != "mine\n" {
		t.Errorf("through a link that stays inside: %q, %v", got, err)
	}
	if a := s.ask(t, request{method: "POST", path: one + "/files/delete", body: `{"paths":["/workspace/dir","/workspace/file","/workspace/up"]}`}); a.status != 200 && a.status != 204 {
		t.Errorf("deleting links: %d %s", a.status, a.body)
	}
	// Nothing outside was read, written, made or removed.
	if got := s.say(id, `diff -r /tmp/before /tmp/outside && ls /tmp/outside && ls stolen 2>&1`); got != "file\nls: cannot access 'stolen': No such file or directory\n" {
		t.Errorf("outside of the workspace, expected the one file as before, saw:\n%s", got)
	}
}

// TestDeletedConversation: what is deleted takes nothing more, and says so.
func TestDeletedConversation(t *testing.T) {
	s := newServer(t, options{})
	id := s.conversation()
	first := wire.SendMessage{ClientMessageID: "first", Text: "echo one"}
	sent, err := s.api.Send(timeout(t), id, first)
	if err != nil {
		t.Fatal(err)
	}
	s.wait(id, sent.ID)
	deleted, err := s.api.Delete(timeout(t), id)
	if err != nil || deleted.State != model.Deleted || deleted.Destruction == nil || deleted.Destruction.Outcome != "gone" {
		t.Fatalf("expected a proven deletion, saw %+v, %v", deleted, err)
	}
	one := conversations + "/" + id
	for _, r := range []request{
		{method: "POST", path: "/messages", body: `{"client_message_id":"second","text":"echo two"}`},
		{method: "PATCH", body: `{"title":"x"}`},
		{method: "GET", path: "/files", query: url.Values{"path": {"/workspace"}}},
		{method: "GET", path: "/files/content", query: url.Values{"path": {"/workspace/a"}}},
		{method: "PUT", path: "/files/content", query: url.Values{"path": {"/workspace/a"}}, body: "x"},
		{method: "POST", path: "/files/mkdir", body: `{"path":"/workspace/a"}`},
		{method: "POST", path: "/terminals", body: `{"cols":80,"rows":24}`},
	} {
		r.path = one + r.path
		s.refused(t, r, fault.ConversationDeleted, "")
	}
	// A repeated message is answered with its turn, whatever became of the rest.
	again, err := s.api.Send(timeout(t), id, first)
	if err != nil || again.ID != sent.ID || again.State != model.TurnDone {
		t.Errorf("the first message again: %+v, %v", again, err)
	}
	// So is a repeated delete, and the journal can still be read.
	again2, err := s.api.Delete(timeout(t), id)
	if err != nil || again2.State != model.Deleted || again2.Destruction == nil || *again2.Destruction != *deleted.Destruction {
		t.Errorf("deleted again: %+v, %v", again2, err)
	}
	if a := s.ask(t, request{method: "GET", path: one + "/events/stream"}); a.status != 200 {
		t.Errorf("the stream of a deleted conversation: %d", a.status)
	}
	if r := run(t, nil, "chat", "--server", s.url(), "-c", id, "echo two"); r.code != 4 {
		t.Errorf("chat in a deleted conversation: %+v", r)
	}
	if left := s.pids("execd"); len(left) != 0 {
		t.Errorf("a deleted conversation has sandboxes: %v", left)
	}
}

// TestDeleteAtAnyMoment: a delete wins over whatever goes on, and is proven.
func TestDeleteAtAnyMoment(t *testing.T) {
	s := newServer(t, options{idleAfter: time.Second})
	for name, prepare := range map[string]func(id string){
		"before anything": func(string) {},
		"just sent":       func(id string) { s.send(id, "echo never mind") },
		"while starting": func(id string) {
			s.send(id, "echo never mind")
			s.follow(id, func(e model.Event) bool { return e.Type == model.EventStarting })
		},
		"as it gets ready": func(id string) {
			s.send(id, "echo never mind")
			s.follow(id, func(e model.Event) bool { return e.Type == model.EventReady })
		},
		"in a turn": func(id string) { s.waitOutput(id, s.send(id, "trap '' TERM; echo begun; sleep 4321"), "begun\n") },
		"with a terminal": func(id string) {
			term := s.terminal(id)
			term.keys("sleep 4321 # now\r")
			term.shows("# now")
		},
		"while pausing": func(id string) {
			s.say(id, "true")
			s.follow(id, func(e model.Event) bool { return e.Type == model.EventPausing })
		},
		"paused": func(id string) { s.say(id, "true"); s.untilState(id, model.RuntimePaused) },
		"while resuming": func(id string) {
			s.say(id, "true")
			s.untilState(id, model.RuntimePaused)
			s.send(id, "echo never mind")
		},
	} {
		t.Run(name, func(t *testing.T) {
			id := s.conversation()
			prepare(id)
			c, err := s.api.Delete(timeout(t), id)
			if err != nil || c.State != model.Deleted || c.Runtime.SandboxID != "" || c.Turn != nil || c.Queued != 0 {
				t.Fatalf("%+v %+v, %v", c, c.Destruction, err)
			}
			if d := c.Destruction; d != nil && d.Outcome != "gone" {
				t.Errorf("%+v", d)
			}
			// Every message was settled, and nothing of the sandbox is there.
			events := s.journal(id)
			if accepted, ended := count(events, model.EventAccepted), count(events, model.EventTurnEnded); accepted != ended {
				t.Errorf("%d messages and %d ends: %s", accepted, ended, types(events))
			}
			if left := append(s.pids("execd"), s.pids("sleep")...); len(left) != 0 {
				t.Errorf("there still run %v", left)
			}
		})
	}
}

func count(events []model.Event, eventType string) (n int) {
	for _, e := range events {
		if e.Type == eventType {
			n++
		}
	}
	return n
}

// TestUploadThatBreaksOff: a file is written whole or not at all.
func TestUploadThatBreaksOff(t *testing.T) {
	s := newServer(t, options{})
	id := s.conversation()
	if err := s.write(id, "/workspace/note.txt", "old\n"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"note.txt", "new.txt"} {
		for _, framing := range []string{"Content-Length: 9000000", "Transfer-Encoding: chunked"} {
			conn, err := net.Dial("tcp", s.address)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "PUT %s/%s/files/content?path=/workspace/%s HTTP/1.1\r\nHost: %s\r\n%s\r\n\r\n", conversations, id, name, s.address, framing)
			fmt.Fprintf(conn, "%x\r\n%s\r\n", 1<<20, strings.Repeat("x", 1<<20))
			conn.Close()
		}
	}
	until(t, "the old file and no other", func() (bool, any) {
		got := s.say(id, "cat note.txt; ls -A")
		return got == "old\nnote.txt\n", got
	})
}
