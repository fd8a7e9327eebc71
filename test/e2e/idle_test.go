package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

// TestIdleTerminal: a terminal that is only open doesn't keep a sandbox awake,
// one that shows something does. What is attached when the pause comes is told.
func TestIdleTerminal(t *testing.T) {
	const idleAfter = 1500 * time.Millisecond // output is noted once a second at most
	s := newServer(t, options{idleAfter: idleAfter})
	id := s.conversation()
	term := s.terminal(id)
	sandbox := s.look(id).Runtime.SandboxID

	// Output counts: the sandbox is awake all the time that there is some.
	began := time.Now()
	term.keys("i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo tick $i; sleep 0.1; done; echo do''ne\r")
	term.shows("done\r\n")
	if took := time.Since(began); took < 2*idleAfter {
		t.Fatalf("the output took %v only", took)
	}
	if c := s.look(id); c.Runtime.State != model.RuntimeReady || strings.Contains(types(s.journal(id)), model.EventPausing) {
		t.Fatalf("expected the sandbox to stay awake while the terminal is used, saw %+v", c.Runtime)
	}
	// Silence doesn't.
	s.untilState(id, model.RuntimePaused)
	if got := term.untilClosed(); got.code == -1 || got.message == "" {
		t.Errorf("expected the terminal to be told, saw %+v", got)
	}
	if left := s.pids("execd"); len(left) != 0 {
		t.Errorf("the paused sandbox runs %v", left)
	}
	// Its terminal is gone and says so, without waking the sandbox.
	if got := s.attach(id, term.id, 0).untilClosed(); got.code != wire.CloseNotFound || !strings.Contains(got.message, "paused") {
		t.Errorf("expected a new attachment to be told why the terminal is gone, saw %+v", got)
	}
	if c := s.look(id); c.Runtime.State != model.RuntimePaused {
		t.Errorf("a dead terminal woke the sandbox: %+v", c.Runtime)
	}
	// A file wakes the same sandbox, and keeps it awake for another while.
	if err := s.write(id, "/workspace/note.txt", "woken\n"); err != nil {
		t.Fatal(err)
	}
	if got := s.say(id, "cat note.txt"); got != "woken\n" {
		t.Errorf("after the wake: %q", got)
	}
	if c := s.look(id); c.Runtime.SandboxID != sandbox {
		t.Errorf("expected the same sandbox %s, saw %s", sandbox, c.Runtime.SandboxID)
	}
}
