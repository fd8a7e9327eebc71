package e2e

import (
	"encoding/json"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/model"
)

// TestChatExitCodes: what a script can rely on.
func TestChatExitCodes(t *testing.T) {
	s := newServer(t, options{})
	id := s.conversation()
	here := []string{"ASTRABOX_URL=" + s.url()}
	deleted := s.conversation()
	if _, err := s.api.Delete(timeout(t), deleted); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		env    []string
		args   []string
		code   int
		out    string // the whole of it, where not empty
		errOut string // a part of it
	}{
		"done":                     {here, []string{"chat", "-c", id, "echo hello"}, 0, "hello\n", ""},
		"in a new conversation":    {here, []string{"chat", "echo hello"}, 0, "hello\n", "conversation conv_"},
		"several words":            {here, []string{"chat", "-c", id, "echo", "a", "b"}, 0, "a b\n", ""},
		"unknown conversation":     {here, []string{"chat", "-c", unknownConversation, "true"}, 4, "", "CONVERSATION_NOT_FOUND"},
		"deleted conversation":     {here, []string{"chat", "-c", deleted, "true"}, 4, "", "CONVERSATION_DELETED"},
		"unknown agent":            {here, []string{"chat", "--agent", "nobody", "true"}, 4, "", "AGENT_NOT_FOUND"},
		"no server":                {[]string{"ASTRABOX_URL=http://127.0.0.1:9"}, []string{"chat", "true"}, 3, "", "astrabox serve"},
		"a server that isn't one":  {here, []string{"chat", "--server", "ftp://x", "true"}, 2, "", "http://127.0.0.1:8088"},
		"an unknown flag":          {here, []string{"chat", "--color", "true"}, 2, "", "--color"},
		"an unknown command":       {here, []string{"caht"}, 2, "", "caht"},
		"an unknown file":          {here, []string{"files", "get", id, "nothing.txt", "-"}, 4, "", "FILE_NOT_FOUND"},
		"a file outside":           {here, []string{"files", "get", id, "../etc/passwd", "-"}, 1, "", "PATH_ESCAPES"},
		"deleting an unknown one":  {here, []string{"conversation", "delete", unknownConversation}, 4, "", "CONVERSATION_NOT_FOUND"},
		"showing what was deleted": {here, []string{"conversation", "show", deleted}, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := run(t, test.env, test.args...)
			if r.code != test.code || test.out != "" && r.out != test.out || !strings.Contains(r.errOut, test.errOut) {
				t.Errorf("expected %d %q %q, saw %d %q %q", test.code, test.out, test.errOut, r.code, r.out, r.errOut)
			}
		})
	}
	t.Run("a turn that fails", func(t *testing.T) {
		cmd, out, errOut := command(t, here, "chat", "-c", id, "echo begun; until [ -e die ]; do sleep 0.02; done; kill -9 $PPID")
		begin(t, cmd)
		s.untilOutput(id, "begun\n")
		touch(s, id, "/workspace/die")
		if code := exitCode(t, cmd.Wait()); code != 5 || out.String() != "begun\n" || !strings.Contains(errOut.String(), agentprogram.CodeAgentExited) {
			t.Errorf("%d %q %q", code, out, errOut)
		}
	})
	t.Run("a turn that fails at once", func(t *testing.T) {
		// It was delivered: to say otherwise would make people send it again.
		r := run(t, here, "chat", "-c", id, "kill -9 $PPID")
		if r.code != 5 || !strings.Contains(r.errOut, agentprogram.CodeAgentExited) {
			t.Errorf("%+v", r)
		}
	})
	t.Run("lines of standard input", func(t *testing.T) {
		cmd, out, errOut := command(t, here, "chat", "-c", id)
		cmd.Stdin = strings.NewReader("cd /tmp\n\npwd\necho last")
		if code := exitCode(t, cmd.Run()); code != 0 || out.String() != "/tmp\nlast\n" {
			t.Errorf("%d %q %q", code, out, errOut)
		}
	})
	t.Run("JSON", func(t *testing.T) {
		r := run(t, here, "chat", "--json", "-c", id, "echo hello")
		var events []model.Event
		for d := json.NewDecoder(strings.NewReader(r.out)); d.More(); {
			var e model.Event
			if err := d.Decode(&e); err != nil {
				t.Fatalf("%v in %q", err, r.out)
			}
			events = append(events, e)
		}
		if r.code != 0 || one(s, events, agentprogram.EventToolOutput).TurnID == "" || events[len(events)-1].Type != model.EventTurnEnded {
			t.Errorf("%d %s", r.code, types(events))
		}
	})
	t.Run("Ctrl-C", func(t *testing.T) { s.interruptChat(t, id, here) })
	t.Run("the server restarts", func(t *testing.T) {
		cmd, out, errOut := command(t, here, "chat", "-c", id, "cd /workspace; echo begun; until [ -e now ]; do sleep 0.02; done; echo ended")
		begin(t, cmd)
		s.untilOutput(id, "begun\n")
		s.kill()
		s.start()
		touch(s, id, "/workspace/now")
		if code := exitCode(t, cmd.Wait()); code != 0 || out.String() != "begun\nended\n" {
			t.Errorf("%d %q %q", code, out, errOut)
		}
	})
}

// interruptChat presses Ctrl-C once: the turn is stopped, which the exit code
// says.
func (s *server) interruptChat(t *testing.T, id string, env []string) {
	cmd, out, errOut := command(t, env, "chat", "-c", id, "echo sleeping; sleep 4321")
	begin(t, cmd)
	s.untilOutput(id, "sleeping\n")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := exitCode(t, cmd.Wait()); code != 130 || !strings.Contains(errOut.String(), "interrupted") {
		t.Errorf("%d %q %q", code, out, errOut)
	}
	if c := s.look(id); c.Turn != nil || len(s.sleepers()) != 0 {
		t.Errorf("afterwards the turn is %+v and there run %v", c.Turn, s.sleepers())
	}
	if got := s.say(id, "echo alive"); got != "alive\n" {
		t.Errorf("the next message: %q", got)
	}
}

func begin(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

// untilOutput waits for a text in the output of the turn in progress.
func (s *server) untilOutput(id, text string) {
	s.t.Helper()
	until(s.t, "a turn", func() (bool, any) { c := s.look(id); return c.Turn != nil, c })
	s.waitOutput(id, s.look(id).Turn.ID, text)
}
