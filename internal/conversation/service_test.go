package conversation

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/fleet/fleettest"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
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

// The seeded Environment doesn't ask for what its backend can't do.
func TestSeededEnvironmentFitsItsBackend(t *testing.T) {
	for pause, want := range map[bool]model.IdleAction{true: model.IdlePause, false: model.IdleTerminate} {
		caps := fleettest.Caps
		caps.Pause = pause
		bound, _ := fleettest.New().Bound(caps)
		s, err := New(t.Context(), Config{InstallationID: "inst", DatabasePath: filepath.Join(t.TempDir(), "x.db"), Backends: []*sandbox.Bound{bound}})
		if err != nil {
			t.Fatal(err)
		}
		list, err := s.Environments(t.Context())
		if err != nil || len(list) != 1 || list[0].Idle != want {
			t.Errorf("with Pause %v: %+v, %v", pause, list, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
