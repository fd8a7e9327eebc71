package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

// TestKilledServer kills the server ten times while a command runs, at random
// moments of serving and of starting. The command runs on, and each of its
// lines arrives once.
func TestKilledServer(t *testing.T) {
	s := newServer(t, options{})
	id := s.conversation()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))

	turnID := s.send(id, `until [ -e stop ]; do i=$((i+1)); echo line $i; sleep 0.02; done; echo end $i`)
	for round := range 10 {
		s.waitOutput(id, turnID, fmt.Sprintf("line %d\n", lines(s, id)+1+dice.IntN(12)))
		s.kill()
		if round%2 == 1 {
			// And once more before or shortly after it is ready again.
			ctx, cancel := context.WithTimeout(context.Background(), time.Duration(dice.IntN(200))*time.Millisecond)
			_ = s.Start(ctx) // whether it became ready in that time is chance
			cancel()
			s.kill()
		}
		s.start()
	}
	if err := s.write(id, "/workspace/stop", ""); err != nil {
		t.Fatal(err)
	}
	v := s.wait(id, turnID)
	_, end, _ := strings.Cut(strings.TrimSuffix(v.output, "\n"), "end ")
	n, err := strconv.Atoi(end)
	if want := counted(n) + "end " + end + "\n"; err != nil || v.output != want || v.end.Reason != agentprogram.ReasonDone {
		t.Errorf("expected each line once and an end that is done, saw %+v and:\n%s", v.end, v.output)
	}
	events := s.journal(id)
	one(s, events, model.EventTurnStarted)
	one(s, events, model.EventTurnEnded)
	one(s, events, model.EventReady)
	if len(s.pids("execd")) != 1 || len(s.pids("shellagent")) != 1 {
		t.Errorf("expected one sandbox with one Agent program, saw %v and %v", s.pids("execd"), s.pids("shellagent"))
	}
}

// lines is how many lines the journal's tool output has.
func lines(s *server, id string) (n int) {
	s.t.Helper()
	for _, e := range s.journal(id) {
		n += strings.Count(output(s, e), "\n")
	}
	return n
}

func kill9(t *testing.T, pid string) {
	t.Helper()
	n, err := strconv.Atoi(pid)
	if err != nil || n <= 1 || n == os.Getpid() {
		t.Fatalf("pid %q", pid)
	}
	if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// TestKilledSandbox: the death of a sandbox's first process is the sandbox's. It is
// told at once, and the next message gets a new one.
func TestKilledSandbox(t *testing.T) {
	s := newServer(t, options{})
	id := s.conversation()
	s.say(id, "echo kept > note.txt")
	first := s.look(id).Runtime.SandboxID
	term := s.terminal(id)
	turnID := s.send(id, "echo begun; sleep 4321")
	s.waitOutput(id, turnID, "begun\n")

	kill9(t, s.pids("execd")[0])
	v := s.wait(id, turnID)
	if v.end.Reason != agentprogram.ReasonFailed || v.end.Error == nil || v.end.Error.Code != string(fault.SandboxLost) || !strings.Contains(v.end.Error.Message, "The sandbox was lost") {
		t.Errorf("expected the turn to fail with SANDBOX_LOST, saw %+v %+v", v.end, v.end.Error)
	}
	if v.output != "begun\n" {
		t.Errorf("the output before it: %q", v.output)
	}
	c := s.look(id)
	if c.Runtime.State != model.RuntimeLost || c.Runtime.SandboxID != "" || c.Runtime.Reason == "" || c.State != model.Active {
		t.Errorf("expected an active conversation without a sandbox, and why, saw %+v", c.Runtime)
	}
	one(s, s.journal(id), model.EventLost)
	if got := term.untilClosed(); got.frame != "error" || got.message == "" || got.code != wire.CloseNotFound && got.code != wire.CloseRefused {
		t.Errorf("expected the terminal to be told, saw %+v", got)
	}
	if got := s.attach(id, term.id, 0).untilClosed(); got.code != wire.CloseNotFound || !strings.Contains(got.message, "lost") {
		t.Errorf("expected a new attachment to be told why the terminal is gone, saw %+v", got)
	}
	until(t, "nothing to run of the lost sandbox", func() (bool, any) {
		left := append(s.pids("execd"), s.pids("sleep")...)
		return len(left) == 0, left
	})

	if got := s.say(id, "cat note.txt 2>/dev/null || echo gone"); got != "gone\n" {
		t.Errorf("in the new sandbox: %q", got)
	}
	if second := s.look(id).Runtime.SandboxID; second == first || second == "" {
		t.Errorf("expected another sandbox than %s, saw %q", first, second)
	}
	// One that dies while nothing runs is noticed too.
	kill9(t, s.pids("execd")[0])
	s.untilState(id, model.RuntimeLost)
	if got := s.say(id, "echo third"); got != "third\n" {
		t.Errorf("in the third sandbox: %q", got)
	}
}

// TestKilledEverything: what a power cut leaves. The next start says what became
// of the turn, cleans up, and goes on.
func TestKilledEverything(t *testing.T) {
	s := newServer(t, options{})
	id := s.conversation()
	s.say(id, "true")
	turnID := s.send(id, "echo begun; sleep 4321")
	s.waitOutput(id, turnID, "begun\n")
	waits := s.send(id, "echo after")
	service, err := s.Service()
	if err != nil {
		t.Fatal(err)
	}
	s.kill()
	kill9(t, strconv.Itoa(service.PID))
	kill9(t, s.pids("execd")[0])
	s.start()
	v := s.wait(id, turnID)
	if v.end.Reason != agentprogram.ReasonFailed || v.end.Error == nil || v.end.Error.Code != string(fault.SandboxLost) || v.output != "begun\n" {
		t.Errorf("expected the turn to fail with SANDBOX_LOST, saw %+v %+v", v, v.end.Error)
	}
	if v := s.wait(id, waits); v.output != "after\n" || v.end.Reason != agentprogram.ReasonDone {
		t.Errorf("the message that waited: %+v", v)
	}
	until(t, "one sandbox", func() (bool, any) { p := s.pids("execd"); return len(p) == 1, p })
}

// TestKilledProgram: the death of the Agent program ends the turn and everything
// that it started, not the sandbox.
func TestKilledProgram(t *testing.T) {
	for name, deed := range map[string]func(s *server, id, turnID string){
		"from outside":   func(s *server, _, _ string) { kill9(s.t, s.pids("shellagent")[0]) },
		"by its command": func(s *server, id, _ string) { touch(s, id, "/workspace/now") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, options{})
			id := s.conversation()
			s.say(id, "mkdir deep && cd deep && export KEPT=value && echo kept > note.txt")
			before := s.look(id).Runtime.SandboxID
			// In the turn: a child, one in a session of its own, one that was
			// disowned, and one that takes no notice of signals.
			turnID := s.send(id, `sleep 4321 & setsid sleep 4322 & (setsid sh -c 'sleep 4323 & disown 2>/dev/null; wait' &) ; (trap '' TERM INT HUP; setsid sleep 4324 &)
				echo begun; until [ -e /workspace/now ]; do sleep 0.01; done; kill -9 $PPID; sleep 4325`)
			s.waitOutput(id, turnID, "begun\n")
			until(t, "the command's processes to run", func() (bool, any) { n := s.sleepers(); return len(n) >= 4, n })

			deed(s, id, turnID)
			v := s.wait(id, turnID)
			// Who sees the end of the turn may rely on it.
			if left := s.sleepers(); len(left) != 0 {
				t.Errorf("the turn has ended, and of its command there run %v", left)
			}
			if v.end.Reason != agentprogram.ReasonFailed || v.end.Error == nil || v.end.Error.Code != agentprogram.CodeAgentExited || v.end.Error.Message == "" {
				t.Errorf("expected the turn to fail with %s, saw %+v %+v", agentprogram.CodeAgentExited, v.end, v.end.Error)
			}
			if v.output != "begun\n" {
				t.Errorf("the output before it: %q", v.output)
			}
			// The last good state of the shell is what the next message finds.
			if got := s.say(id, `pwd; echo "$KEPT"; cat note.txt`); got != "/workspace/deep\nvalue\nkept\n" {
				t.Errorf("the next message: %q", got)
			}
			if after := s.look(id).Runtime.SandboxID; after != before {
				t.Errorf("expected the same sandbox %s, saw %s", before, after)
			}
		})
	}
}

// sleepers are the command's processes that sleep 432x seconds.
func (s *server) sleepers() (out []string) {
	s.t.Helper()
	for _, pid := range s.pids("sleep") {
		line, err := os.ReadFile("/proc/" + pid + "/cmdline")
		if err == nil && strings.HasPrefix(string(line), "sleep\x00432") {
			out = append(out, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return out
}

func touch(s *server, id, path string) {
	s.t.Helper()
	if err := s.write(id, path, ""); err != nil {
		s.t.Fatal(err)
	}
}
