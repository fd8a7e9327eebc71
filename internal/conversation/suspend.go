package conversation

import (
	"context"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
)

// Suspend pauses the sandboxes that nobody uses at this moment, for a clean stop
// of the platform, and waits for it as long as ctx allows. A sandbox in which a
// turn runs, or which is just being used, is left running: the next start finds
// it. No sandbox is started meanwhile. Call it while Run runs; a service that
// was suspended is of no more use.
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

// suspendable: the conversation's keeper is about to pause its sandbox.
func (s *Service) suspendable(r *model.Record) bool {
	switch r.Runtime.State {
	case model.RuntimePausing, model.RuntimeTerminating:
		return r.State == model.Active
	case model.RuntimeReady:
	default:
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	room := s.rooms[r.ID]
	return r.State == model.Active && r.Turn == nil && r.Queued == 0 && (room == nil || room.uses == 0 && len(room.waiters) == 0)
}
