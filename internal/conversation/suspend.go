package conversation

import (
	"context"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
)

// Suspend pauses all sandboxes for a clean stop of the platform, so that nothing
// of it runs on unwatched, and waits for it as long as ctx allows. A turn that
// runs is interrupted first, as if a person had, with a notice that says why;
// messages that wait are delivered after the next start. A sandbox that is just
// starting is waited for; none is started for messages meanwhile. Call it while
// Run runs; a service that was suspended is of no more use.
func (s *Service) Suspend(ctx context.Context) error {
	s.mu.Lock()
	s.suspended = true
	s.mu.Unlock()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	woken := map[string]bool{}
	for {
		ids, err := s.store.Unsettled(ctx)
		if err != nil {
			return err
		}
		waits := false
		for _, id := range ids {
			r, err := s.store.Record(ctx, id)
			if err != nil {
				return err
			}
			if !s.suspendable(r) {
				continue
			}
			waits = true
			if r.Turn != nil && r.Turn.State != model.TurnInterrupting {
				if err := s.interruptForStop(ctx, id); err != nil {
					return err
				}
			}
			if !woken[id] {
				woken[id] = true
				s.wake(id)
			}
		}
		if !waits {
			return nil
		}
		select {
		case <-ctx.Done():
			return fault.From(ctx.Err())
		case <-tick.C:
		}
	}
}

// interruptForStop begins the interrupt of the turn in progress.
func (s *Service) interruptForStop(ctx context.Context, id string) error {
	_, err := s.change(ctx, id, func(t *store.Tx, r *model.Record) error {
		if r.Turn == nil || r.Turn.State == model.TurnInterrupting {
			return nil
		}
		if err := t.SetTurn(r.Turn.ID, r.Turn.State, model.TurnInterrupting, nil); err != nil {
			return err
		}
		return t.Event(r, r.Turn.ID, model.EventNotice, agentprogram.Notice{Level: agentprogram.LevelWarning, Text: "The server is stopping, which interrupts this turn."})
	})
	s.wake(id)
	return err
}

// suspendable: the conversation's keeper is about to pause its sandbox, or gets
// to it.
func (s *Service) suspendable(r *model.Record) bool {
	switch r.Runtime.State {
	case model.RuntimeStarting, model.RuntimeResuming, model.RuntimePausing, model.RuntimeTerminating:
		return r.State == model.Active
	case model.RuntimeReady:
	default:
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	room := s.rooms[r.ID]
	return r.State == model.Active && (room == nil || room.uses == 0 && len(room.waiters) == 0)
}
