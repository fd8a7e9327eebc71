package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// action is what has to be done so that a row and a sandbox agree.
type action struct {
	destroy bool
	stop    bool   // end its processes and take away what they left
	to      string // then the row's state; empty: as it is
	reason  string
	message string
	watch   bool // its run is as the row says
}

// decide compares a row (nil: none) with what was seen of its sandbox, while
// no operation works on it: after a restart of the service, or after a failure.
func decide(r *state.Record, seen runtime.State, bootID string) action {
	lost := action{to: wire.Failed, reason: "sandbox_lost", message: "its files are no longer on this machine"}
	absent := seen.Status == runtime.StatusAbsent
	if r == nil || r.Gone() {
		return action{destroy: !absent}
	}
	switch r.State {
	case wire.Pending:
		// Its token was known to the interrupted create alone.
		return action{destroy: true, to: wire.Stopping, reason: "create_interrupted", message: "the service ended while the sandbox was being made"}
	case wire.Stopping:
		return action{destroy: true}
	case wire.Running:
		switch {
		case absent:
			return lost
		case seen.Status == runtime.StatusRunning && seen.PID == r.Run.PID:
			return action{watch: true}
		case r.Run.BootID != bootID:
			return action{stop: true, to: wire.Paused, reason: "machine_restarted", message: "the machine restarted; the files are kept"}
		case seen.Status == runtime.StatusRunning:
			return action{stop: true, to: wire.Paused, reason: "run_unknown", message: "its processes weren't the recorded ones and were ended; the files are kept"}
		}
		to, reason, message := verdict(runtime.Exit{})
		return action{stop: true, to: to, reason: reason, message: message}
	case wire.Pausing:
		if absent {
			return lost
		}
		return action{stop: true, to: wire.Paused, reason: r.Reason}
	case wire.Resuming:
		if absent {
			return lost
		}
		return action{stop: true, to: wire.Paused, reason: "resume_interrupted", message: "the service ended while the sandbox was being started again"}
	case wire.Paused:
		if absent {
			return lost
		}
		return action{stop: seen.Status == runtime.StatusRunning}
	}
	return action{stop: !absent} // Terminated, Failed: an end leaves mounts and links behind
}

// Start makes rows and sandboxes agree and begins to watch and to schedule.
// Sandboxes that nobody claims, and half-made ones, are removed in the
// background.
func (s *Service) Start(ctx context.Context) error {
	rows, err := s.store.Live(ctx)
	if err != nil {
		return err
	}
	present, err := s.rt.List(ctx)
	if err != nil {
		return fmt.Errorf("list this machine's sandboxes: %w", err)
	}
	ids := map[string]bool{}
	for _, id := range present {
		ids[id] = true
	}
	for _, r := range rows {
		ids[r.ID] = true
	}
	var wg sync.WaitGroup
	sem := semaphore.NewWeighted(8)
	for id := range ids {
		if err := sem.Acquire(ctx, 1); err != nil {
			break
		}
		wg.Go(func() {
			defer sem.Release(1)
			if err := s.reconcile(ctx, id, false); err != nil {
				s.log.Error("a sandbox couldn't be looked after at start", "sandbox", id, "error", err)
				s.repair(id, time.Second)
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	s.tasks.start(0, false, s.schedule)
	return nil
}

// reconcile looks at one sandbox and does what decide says. With wait false
// destructions are left to the background.
func (s *Service) reconcile(ctx context.Context, id string, wait bool) error {
	unlock, err := s.locks.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	r, a, err := s.look(ctx, id)
	if err != nil {
		return err
	}
	if a.destroy && !wait {
		if err := s.stopping(ctx, r, a); err != nil {
			return err
		}
		s.repair(id, 0)
		return nil
	}
	return s.act(ctx, id, r, a)
}

// reconcileLocked is reconcile for the end of a failed operation, whose reason
// is better than decide's.
func (s *Service) reconcileLocked(ctx context.Context, id, reason, message string) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StopTimeout)
	defer cancel()
	r, a, err := s.look(ctx, id)
	if err != nil {
		return err
	}
	if a.to == wire.Paused {
		a.reason, a.message = reason, message
	}
	return s.act(ctx, id, r, a)
}

func (s *Service) look(ctx context.Context, id string) (*state.Record, action, error) {
	var row *state.Record
	r, err := s.store.Get(ctx, id)
	switch {
	case err == nil:
		row = &r
	case !errors.Is(err, state.ErrNotFound):
		return nil, action{}, err
	}
	s.mu.Lock()
	busy := s.creating[id] != nil
	s.mu.Unlock()
	if busy && row != nil && row.State == wire.Pending {
		return row, action{}, nil // its create is waiting for the lock
	}
	seen, err := s.rt.Inspect(ctx, id)
	if err != nil {
		return nil, action{}, err
	}
	return row, decide(row, seen, s.cfg.BootID), nil
}

// stopping stores the intent of a destruction.
func (s *Service) stopping(ctx context.Context, r *state.Record, a action) error {
	if r == nil || a.to == "" {
		return nil
	}
	if err := s.store.ReleaseKey(ctx, r.ID); err != nil { // only creates that made nothing come here
		return err
	}
	_, err := s.move(ctx, state.Move{ID: r.ID, To: a.to, Reason: a.reason, Message: a.message, From: []string{r.State}})
	return ignoreState(err)
}

func (s *Service) act(ctx context.Context, id string, r *state.Record, a action) error {
	switch {
	case a.destroy:
		if err := s.stopping(ctx, r, a); err != nil {
			return err
		}
		return s.destroyLocked(ctx, id)
	case a.watch:
		s.watch(id, r.Run.PID)
		return nil
	}
	if a.stop {
		if err := s.rt.Stop(ctx, id); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			return err
		}
	}
	if a.to == "" {
		return nil
	}
	_, err := s.move(ctx, state.Move{ID: id, To: a.to, Reason: a.reason, Message: a.message, From: []string{r.State}})
	return ignoreState(err)
}
