package conversation

import (
	"context"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/model"
)

func TestTurns(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		one := w.settled(id, w.send(id, "m1", "echo hello"))
		two := w.settled(id, w.send(id, "m2", "chunks 30"))
		for _, turn := range []model.Turn{one, two} {
			if turn.State != model.TurnDone || turn.EndedAt == nil {
				t.Errorf("turn %q: %s %+v", turn.Text, turn.State, turn.Error)
			}
		}
		events := w.events(id)
		checkJournal(t, events, one, two)
		if got := said(events, one.ID); got != "hello" {
			t.Errorf("the first turn said %q", got)
		}
		if got := said(events, two.ID); got != chunks(30) {
			t.Errorf("the second turn said %q", got)
		}
		c, err := w.s.Get(context.Background(), id)
		if err != nil || c.Runtime.State != model.RuntimeReady || c.Runtime.SandboxID == "" || c.Turn != nil || c.Queued != 0 {
			t.Errorf("conversation: %+v, %v", c, err)
		}
	})
}

func TestPauseAndResume(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		one := w.settled(id, w.send(id, "m1", "echo hello"))
		before, _ := w.s.Get(context.Background(), id)
		paused := w.runtimeIs(id, model.RuntimePaused)
		if idle := paused.Runtime.Since.Sub(*one.EndedAt); idle < 30*time.Minute || idle > 30*time.Minute+time.Second {
			t.Errorf("paused after %v of idling", idle)
		}
		if paused.Runtime.SandboxID != before.Runtime.SandboxID {
			t.Errorf("the sandbox was %s and is %s", before.Runtime.SandboxID, paused.Runtime.SandboxID)
		}
		two := w.settled(id, w.send(id, "m2", "echo again"))
		if two.State != model.TurnDone {
			t.Errorf("after the pause: %s %+v", two.State, two.Error)
		}
		after := w.runtimeIs(id, model.RuntimeReady)
		if after.Runtime.SandboxID != before.Runtime.SandboxID {
			t.Errorf("resumed as %s instead of %s", after.Runtime.SandboxID, before.Runtime.SandboxID)
		}
		checkJournal(t, w.events(id), one, two)
	})
}
