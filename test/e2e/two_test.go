package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/inventory"
	"github.com/astrabox/astrabox/internal/model"
)

// TestTwoInstallations: two servers on one machine don't meet. What happens to
// one, up to its end, is not noticed by the other.
func TestTwoInstallations(t *testing.T) {
	a, b := newServer(t, options{}), newServer(t, options{})
	inA, inB := a.conversation(), b.conversation()
	for _, v := range []struct {
		s        *server
		id, name string
	}{{a, inA, "a"}, {b, inB, "b"}} {
		if got := v.s.say(v.id, "echo "+v.name+" > note.txt; cat note.txt"); got != v.name+"\n" {
			t.Errorf("in %s: %q", v.name, got)
		}
	}
	if a.place.Installation == b.place.Installation || len(a.pids("execd")) != 1 || len(b.pids("execd")) != 1 {
		t.Fatalf("installations %q and %q with sandboxes %v and %v", a.place.Installation, b.place.Installation, a.pids("execd"), b.pids("execd"))
	}
	// Neither finds the other's conversations, and their sandboxes don't find each other.
	if _, err := a.api.Conversation(timeout(t), inB); err == nil {
		t.Error("one server knows the other's conversation")
	}
	peer := strings.Fields(b.say(inB, "hostname -I"))
	if len(peer) == 0 {
		t.Fatal("the sandbox has no address")
	}
	if got := a.say(inA, "timeout 1 bash -c '</dev/tcp/"+peer[0]+"/44772' 2>/dev/null && echo open || echo closed"); got != "closed\n" {
		t.Errorf("one sandbox reached the other at %s: %q", peer[0], got)
	}

	term := b.terminal(inB)
	term.keys("echo te''rm\r")
	term.shows("term\r\n")
	turnID := b.send(inB, "until [ -e now ]; do sleep 0.02; done; cat note.txt")
	b.untilRunning(inB, turnID)
	ofB := b.own()
	for _, kind := range []string{"process", "link", "nft table", "cgroup", "directory"} {
		if !slices.ContainsFunc(ofB, func(l string) bool { return strings.HasPrefix(l, kind+": ") }) {
			t.Fatalf("no %s carries the installation's name: %v", kind, ofB)
		}
	}

	// One ends in every way that there is.
	if c, err := a.api.Delete(timeout(t), inA); err != nil || c.State != model.Deleted {
		t.Errorf("deleting: %+v, %v", c, err)
	}
	second := a.conversation()
	a.say(second, "true")
	a.kill()
	a.start()
	a.say(second, "true")
	if c, err := a.api.Delete(timeout(t), second); err != nil || c.State != model.Deleted {
		t.Errorf("deleting: %+v, %v", c, err)
	}
	a.stop()
	until(t, "nothing of the first installation to be left", func() (bool, any) { left := a.own(); return len(left) == 0, left })

	// The other has everything that it had, and works.
	if diff := cmp.Diff(ofB, b.own()); diff != "" {
		t.Errorf("the end of one installation changed the other:\n%s", diff)
	}
	touch(b, inB, "/workspace/now")
	if v := b.wait(inB, turnID); v.output != "b\n" {
		t.Errorf("the turn that ran meanwhile: %+v", v)
	}
	term.keys("echo st''ill\r")
	term.shows("still\r\n")
	third := b.conversation()
	if got := b.say(third, "echo new"); got != "new\n" {
		t.Errorf("a new conversation: %q", got)
	}
}

// own lists what the names on the host say is this installation's.
func (s *server) own() (out []string) {
	s.t.Helper()
	now, err := inventory.Place{Installation: s.place.Installation}.Take()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, l := range inventory.Added(nil, now) {
		kind, name, _ := strings.Cut(l, ": ")
		switch kind {
		case "port":
			continue
		case "process":
			if strings.HasSuffix(name, " sleep") {
				continue // of the loop that runs
			}
		case "link":
			if !strings.HasPrefix(name, "ab"+s.place.Installation[:4]) {
				continue
			}
		case "nft table":
			if !strings.Contains(name, s.place.Installation) {
				continue
			}
		}
		out = append(out, l)
	}
	return out
}
