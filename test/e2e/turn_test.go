package e2e

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

// turn is what the journal says about one message.
type turn struct {
	id     string
	output string // of all tool calls, joined
	end    agentprogram.TurnEnd
}

// send sends a message and gives its turn's id.
func (s *server) send(id, text string) string {
	s.t.Helper()
	v, err := s.api.Send(timeout(s.t), id, wire.SendMessage{ClientMessageID: rand.Text(), Text: text})
	if err != nil {
		s.t.Fatal(err)
	}
	return v.ID
}

// say sends a message, waits for the end of its turn, which must be done, and
// gives its output.
func (s *server) say(id, text string) string {
	s.t.Helper()
	v := s.wait(id, s.send(id, text))
	if v.end.Reason != agentprogram.ReasonDone {
		s.t.Fatalf("%q: expected the turn to end done, saw %+v (%+v) after %q", text, v.end, v.end.Error, v.output)
	}
	return v.output
}

// wait follows the event stream until the turn has ended somehow.
func (s *server) wait(id, turnID string) turn {
	s.t.Helper()
	v := turn{id: turnID}
	s.follow(id, func(e model.Event) bool {
		if e.TurnID == turnID {
			v.output += output(s, e)
		}
		if e.TurnID != turnID || e.Type != model.EventTurnEnded {
			return false
		}
		v.end = data[agentprogram.TurnEnd](s, e)
		return true
	})
	return v
}

// waitOutput follows the event stream until the turn's output contains text.
func (s *server) waitOutput(id, turnID, text string) {
	s.t.Helper()
	var seen string
	s.follow(id, func(e model.Event) bool {
		if e.TurnID == turnID {
			seen += output(s, e)
		}
		if e.TurnID == turnID && e.Type == model.EventTurnEnded {
			s.t.Fatalf("expected the output %q, saw the turn end after %q: %s", text, seen, e.Data)
		}
		return strings.Contains(seen, text)
	})
}

// untilRunning waits until the program has begun with the turn.
func (s *server) untilRunning(id, turnID string) {
	s.t.Helper()
	s.follow(id, func(e model.Event) bool { return e.TurnID == turnID && e.Type == agentprogram.EventToolStarted })
}

// follow reads the journal and the live events after it until f is satisfied.
func (s *server) follow(id string, f func(model.Event) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(timeout(s.t), patience)
	defer cancel()
	for e, err := range s.api.Stream(ctx, id, 0) {
		if err != nil {
			s.t.Fatalf("the event stream: %v; %s", err, types(s.journal(id)))
		}
		if f(e) {
			return
		}
	}
	s.t.Fatal("the event stream ended early")
}

func output(s *server, e model.Event) string {
	s.t.Helper()
	if e.Type != agentprogram.EventToolOutput {
		return ""
	}
	return data[agentprogram.ToolOutput](s, e).Text
}

func data[T any](s *server, e model.Event) T {
	s.t.Helper()
	v, err := wire.Data[T](e)
	if err != nil {
		s.t.Fatalf("the data of %s can't be read: %v", e.Type, err)
	}
	return v
}

// journal reads all events and checks that they are numbered from 1 without gaps.
func (s *server) journal(id string) []model.Event {
	s.t.Helper()
	var all []model.Event
	for {
		page, err := s.api.Events(timeout(s.t), id, int64(len(all)), 500)
		if err != nil {
			s.t.Fatal(err)
		}
		if len(page.Items) == 0 {
			return all
		}
		for _, e := range page.Items {
			if e.Seq != int64(len(all)+1) {
				s.t.Fatalf("event %d stands where %d is due", e.Seq, len(all)+1)
			}
			all = append(all, e)
		}
	}
}

// types lists the types of events, in order.
func types(events []model.Event) string {
	var out []string
	for _, e := range events {
		out = append(out, e.Type)
	}
	return strings.Join(out, " ")
}

// one finds the only event of a type.
func one(s *server, events []model.Event, eventType string) model.Event {
	s.t.Helper()
	var found []model.Event
	for _, e := range events {
		if e.Type == eventType {
			found = append(found, e)
		}
	}
	if len(found) != 1 {
		s.t.Fatalf("expected one %s, saw %d of it in: %s", eventType, len(found), types(events))
	}
	return found[0]
}

// untilState waits until the conversation's sandbox is in a state.
func (s *server) untilState(id string, state model.RuntimeState) model.Conversation {
	s.t.Helper()
	var c model.Conversation
	until(s.t, "the sandbox to be "+string(state), func() (bool, any) {
		c = s.look(id)
		return c.Runtime.State == state, c.Runtime
	})
	return c
}

// counting is a command that prints "line 1" to "line n", one each pause.
func counting(n int, pause time.Duration) string {
	return fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); echo line $i; sleep %g; done", n, pause.Seconds())
}

func counted(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "line %d\n", i+1)
	}
	return b.String()
}

func (s *server) read(id, path string) (string, error) {
	s.t.Helper()
	r, _, err := s.api.Download(timeout(s.t), id, path)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), err
}

func (s *server) write(id, path, content string) error {
	s.t.Helper()
	_, err := s.api.Upload(timeout(s.t), id, path, strings.NewReader(content), "", false)
	return err
}
