package cli

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/httpapi/httpapitest"
	"github.com/astrabox/astrabox/internal/model"
)

// shell answers each message as the shell program does.
func shell(reason string) func(*httpapitest.Service, model.Turn) {
	return func(s *httpapitest.Service, t model.Turn) {
		emit := func(kind string, data any) { s.Emit(t.ConversationID, kind, t.ID, data) }
		emit(model.EventTurnStarted, agentprogram.None{})
		emit(agentprogram.EventToolStarted, agentprogram.ToolStarted{Call: "c", Name: "shell", Kind: "execute", Title: t.Text})
		for _, piece := range []string{"out of ", t.Text, "\n"} {
			emit(agentprogram.EventToolOutput, agentprogram.ToolOutput{Call: "c", Mode: agentprogram.OutputAppend, Text: piece})
		}
		code := 3
		emit(agentprogram.EventToolEnded, agentprogram.ToolEnded{Call: "c", Status: agentprogram.ToolFailed, ExitCode: &code})
		end := agentprogram.TurnEnd{Reason: reason}
		if reason == "failed" {
			end.Error = &agentprogram.Failure{Code: "AGENT_EXITED", Message: "It \x1b[2Jended."}
		}
		emit(model.EventTurnEnded, end)
	}
}

func TestChat(t *testing.T) {
	r := newRig(t)
	r.svc.OnSend = shell("done")
	got := r.run("chat", "ls -l")
	if got.code != 0 || got.stdout != "out of ls -l\n" || !strings.Contains(got.stderr, "conversation conv_") || !strings.Contains(got.stderr, "[exit code 3]") {
		t.Errorf("%+v", got)
	}
	id := strings.Fields(got.stderr)[1]
	more := r.run("chat", "-c", id, "pwd")
	if more.code != 0 || more.stdout != "out of pwd\n" {
		t.Errorf("going on shows %+v", more)
	}
	many := r.with("one\n\n  \ntwo\nthree", nil, "chat", "-c", id)
	if many.code != 0 || many.stdout != "out of one\nout of two\nout of three\n" {
		t.Errorf("%+v", many)
	}
	if none := r.with("", nil, "chat"); none.code != 0 || none.stderr != "" {
		t.Errorf("nothing to say: %+v", none)
	}
	if long := r.with(strings.Repeat("x", 300<<10), nil, "chat"); long.code != 1 || !strings.Contains(long.stderr, "262144") {
		t.Errorf("%d %s", long.code, long.stderr)
	}
}

func TestChatJSON(t *testing.T) {
	r := newRig(t)
	r.svc.OnSend = shell("done")
	got := r.run("chat", "--json", "ls")
	var types []string
	for line := range strings.Lines(got.stdout) {
		var e model.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		types = append(types, e.Type)
	}
	want := []string{"message.accepted", "turn.started", "tool.started", "tool.output", "tool.output", "tool.output", "tool.ended", "turn.ended"}
	if diff := cmp.Diff(want, types); diff != "" {
		t.Error(diff)
	}
}

func TestChatOutcomes(t *testing.T) {
	for reason, want := range map[string]int{"done": 0, "failed": 5, "limit": 5, "refused": 5, "undelivered": 5, "unknown": 5, "interrupted": 130} {
		r := newRig(t)
		r.svc.OnSend = shell(reason)
		got := r.run("chat", "x")
		if got.code != want || want == 5 && !strings.Contains(got.stderr, reason) {
			t.Errorf("%s: %+v", reason, got)
		}
		if strings.Contains(got.stderr, "\x1b") {
			t.Errorf("%q", got.stderr)
		}
		// Lines after one that failed are not sent.
		lines := r.with("x\ny\n", nil, "chat")
		if n := strings.Count(lines.stdout, "out of"); lines.code != want || want != 0 && n != 1 {
			t.Errorf("%s, by lines: %+v", reason, lines)
		}
	}
}

func TestChatInterrupt(t *testing.T) {
	r := newRig(t)
	r.svc.OnSend = func(s *httpapitest.Service, t model.Turn) {
		s.Emit(t.ConversationID, agentprogram.EventTextDelta, t.ID, agentprogram.Text{Text: "working"})
	}
	got := r.with("", func(out string) {
		if out == "working" {
			r.interrupts <- os.Interrupt
		}
	}, "chat", "sleep")
	if got.code != 130 || got.stdout != "working\n" || !strings.Contains(got.stderr, "the turn was interrupted") {
		t.Errorf("%+v", got)
	}
}

// The output of a turn survives a restart of the server, each piece once.
func TestChatSurvivesARestart(t *testing.T) {
	r := newRig(t)
	var turn model.Turn
	r.svc.OnSend = func(s *httpapitest.Service, t model.Turn) {
		turn = t
		s.Emit(t.ConversationID, agentprogram.EventTextDelta, t.ID, agentprogram.Text{Text: "before "})
	}
	address := r.srv.Listener.Addr().String()
	done := make(chan struct{})
	got := r.with("", func(out string) {
		if out == "before " {
			go func() {
				defer close(done)
				r.down()
				r.svc.Emit(turn.ConversationID, agentprogram.EventTextDelta, turn.ID, agentprogram.Text{Text: "meanwhile "})
				r.serve(address)
				r.svc.Emit(turn.ConversationID, agentprogram.EventTextDelta, turn.ID, agentprogram.Text{Text: "after"})
				r.svc.Emit(turn.ConversationID, model.EventTurnEnded, turn.ID, agentprogram.TurnEnd{Reason: "done"})
			}()
		}
	}, "chat", "x")
	<-done
	if got.code != 0 || got.stdout != "before meanwhile after\n" {
		t.Errorf("%+v", got)
	}
}

func TestChatOfADeletedConversation(t *testing.T) {
	r := newRig(t)
	r.svc.OnSend = func(s *httpapitest.Service, t model.Turn) { go r.run("conversation", "delete", t.ConversationID) }
	if got := r.run("chat", "x"); got.code != 1 || !strings.Contains(got.stderr, "deleted") {
		t.Errorf("%+v", got)
	}
}

func TestView(t *testing.T) {
	event := func(kind string, data any) model.Event {
		raw, err := json.Marshal(data)
		if err != nil {
			t.Fatal(err)
		}
		return model.Event{Type: kind, Data: raw}
	}
	replace := func(text string) model.Event {
		return event(agentprogram.EventToolOutput, agentprogram.ToolOutput{Call: "c", Mode: agentprogram.OutputReplace, Text: text})
	}
	var out, errs strings.Builder
	v := &view{out: &out, err: &errs, person: true, tools: map[string]*tool{}}
	for _, e := range []model.Event{
		event(model.EventAccepted, map[string]string{"text": "build it"}),
		event(model.EventStarting, map[string]string{"step": "create"}),
		event(model.EventReady, map[string]any{"ms": 120}),
		event(agentprogram.EventTextDelta, agentprogram.Text{Text: "I will "}),
		event(agentprogram.EventTextDelta, agentprogram.Text{Text: "build."}),
		event(agentprogram.EventTextDone, agentprogram.None{}),
		event(agentprogram.EventToolStarted, agentprogram.ToolStarted{Call: "c", Name: "bash", Title: "make"}),
		event(agentprogram.EventToolStarted, agentprogram.ToolStarted{Call: "c", Name: "bash", Title: "make"}),
		replace("1%"), replace("1%\n2%"), replace("done"),
		event(agentprogram.EventToolEnded, agentprogram.ToolEnded{Call: "c", Status: agentprogram.ToolCompleted}),
		event(agentprogram.EventNotice, agentprogram.Notice{Level: "warning", Text: "low disk"}),
		event(model.EventLost, map[string]string{"reason": "it died"}),
		{Type: "something.new", Data: json.RawMessage(`{"a":[1]}`)},
		{Type: agentprogram.EventTextDelta, Data: json.RawMessage(`"broken"`)},
	} {
		if err := v.show(e); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff("I will build.\n1%\n2%\ndone\n", out.String()); diff != "" {
		t.Error(diff)
	}
	want := "[sandbox: create]\n[sandbox ready after 120 ms]\n[bash] make\nwarning: low disk\n[the sandbox was lost: it died]\n"
	if diff := cmp.Diff(want, errs.String()); diff != "" {
		t.Error(diff)
	}
}
