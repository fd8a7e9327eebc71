package e2e

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/inventory"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/sandboxd"
)

// TestStopWhileACommandRuns: Ctrl-C of the server pauses what runs, in order.
// The turn ends truthfully, nothing runs on, and the next start goes on where
// this one was.
func TestStopWhileACommandRuns(t *testing.T) {
	s := newServer(t, options{})
	id, quiet := s.conversation(), s.conversation()
	s.say(id, "mkdir deep && cd deep && echo kept > note.txt")
	s.say(quiet, "echo quiet > note.txt")
	sandbox := s.look(id).Runtime.SandboxID
	turnID := s.send(id, "trap '' INT TERM HUP; echo begun; sleep 4321; echo never")
	s.waitOutput(id, turnID, "begun\n")
	next := s.send(id, "pwd; cat note.txt")

	s.stop()
	if left, err := s.place.Processes(); err != nil || len(left) != 0 {
		t.Errorf("after the stop there run %v, %v", left, err)
	}

	s.start()
	v := s.wait(id, turnID)
	if v.end.Reason != agentprogram.ReasonInterrupted || strings.Contains(v.output, "never") {
		t.Errorf("expected the turn to be interrupted, saw %+v %+v after %q", v.end, v.end.Error, v.output)
	}
	if !strings.Contains(string(one(s, s.journal(id), model.EventNotice).Data), "The server is stopping") {
		t.Error("the journal doesn't say why")
	}
	// The message that waited is delivered now.
	if v := s.wait(id, next); v.output != "/workspace/deep\nkept\n" || v.end.Reason != agentprogram.ReasonDone {
		t.Errorf("the message that waited: %+v", v)
	}
	if c := s.look(id); c.Runtime.SandboxID != sandbox {
		t.Errorf("expected the same sandbox %s, saw %s", sandbox, c.Runtime.SandboxID)
	}
	if c := s.look(quiet); c.Runtime.State != model.RuntimePaused {
		t.Errorf("expected the unused sandbox to be paused, saw %+v", c.Runtime)
	}
	if got := s.say(quiet, "cat note.txt"); got != "quiet\n" {
		t.Errorf("in the other conversation: %q", got)
	}
}

// TestStopWhileStarting: Ctrl-C at any moment of a start ends it in order.
func TestStopWhileStarting(t *testing.T) {
	for range 6 {
		state := stateDir(t)
		place := inventory.Place{ExeDir: bin}
		before, err := place.Take()
		if err != nil {
			t.Fatal(err)
		}
		cmd, out, errOut := command(t, nil, "serve", "--state-dir", state, "--listen", freeAddress(t))
		begin(t, cmd)
		after := time.Duration(rand.IntN(600)) * time.Millisecond
		<-time.After(after) // the moment is what is tested
		if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		err = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != 0 && code != 130 && !signalled(cmd) {
			t.Errorf("interrupted after %v: %v\n%s%s", after, err, out, errOut)
		}
		until(t, "nothing to be left of a start that was interrupted", func() (bool, any) {
			if id, err := os.ReadFile(filepath.Join(sandboxd.Dir(state), "installation")); err == nil {
				place.Installation = strings.TrimSpace(string(id))
			}
			now, err := place.Take()
			left := inventory.Added(before, now)
			return err == nil && len(left) == 0, left
		})
	}
}

// signalled: the interrupt came before the program had begun to take any.
func signalled(cmd *exec.Cmd) bool {
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGINT
}
