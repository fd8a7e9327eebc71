package lifecycle

import (
	"context"
	"errors"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// settle is how long Pause and Resume wait for the outcome before they answer
// that the operation was accepted. Both normally take a small part of it.
const settle = 5 * time.Second

// Pause ends a running sandbox's processes and keeps its files. It returns nil
// when the sandbox is paused, or when it is pausing and takes its time.
func (s *Service) Pause(ctx context.Context, id string) error {
	return s.operate(ctx, id, s.cfg.StopTimeout, state.Move{To: wire.Pausing, Reason: "user_pause"}, func(ctx context.Context, r state.Record) error {
		if err := s.rt.Stop(ctx, id); err != nil {
			// Half a stop can't be undone, so it is tried again until it works.
			s.log.Error("pause", "sandbox", id, "error", err)
			s.repair(id, time.Second)
			return nil
		}
		_, err := s.move(ctx, state.Move{ID: id, To: wire.Paused, Reason: "user_pause", From: []string{wire.Pausing}})
		return ignoreState(err)
	})
}

// Resume starts a paused sandbox again, with its files and a new token. It
// returns nil when the sandbox runs, or when it is resuming and takes its time.
func (s *Service) Resume(ctx context.Context, id string) error {
	return s.operate(ctx, id, s.cfg.QueueTimeout+s.cfg.CreateTimeout, state.Move{To: wire.Resuming, Reason: "user_resume"}, func(ctx context.Context, r state.Record) error {
		running, err := s.startAgain(ctx, r)
		if err == nil {
			_, err = s.move(ctx, state.Move{ID: id, To: wire.Running, Reason: "resumed", From: []string{wire.Resuming}, Run: s.run(running)})
			if err == nil {
				s.watch(id, running.PID)
			}
			return ignoreState(err)
		}
		s.log.Error("resume", "sandbox", id, "error", err)
		e := createError(err)
		if e.Code == CodeCreateFailed || e.Code == CodeInvalid {
			e = Errorf(CodeResumeFailed, "the sandbox couldn't be started again: %s", e.Message)
		}
		if repairErr := s.reconcileLocked(context.WithoutCancel(ctx), id, "resume_failed", e.Message); repairErr != nil {
			s.log.Error("after a failed resume", "sandbox", id, "error", repairErr)
			s.repair(id, time.Second)
		}
		return e
	})
}

// startAgain resumes a sandbox's processes when its turn has come. A delete or
// an expiry ends the waiting.
func (s *Service) startAgain(ctx context.Context, r state.Record) (runtime.Running, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.resuming[r.ID] = cancel
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.resuming, r.ID)
		s.mu.Unlock()
	}()
	release, err := s.admission(ctx)
	if err != nil {
		return runtime.Running{}, err
	}
	defer release()
	ctx, cancelStart := context.WithTimeout(ctx, s.cfg.CreateTimeout)
	defer cancelStart()
	if have, err := s.store.Get(ctx, r.ID); err != nil || have.State != wire.Resuming {
		return runtime.Running{}, errors.Join(err, context.Canceled) // deleted while it waited
	}
	return s.rt.Resume(ctx, s.spec(r))
}

// ignoreState drops the report that the sandbox was deleted meanwhile: whoever
// deleted it also takes care of it.
func ignoreState(err error) error {
	var st *state.StateError
	if errors.As(err, &st) || errors.Is(err, state.ErrNotFound) {
		return nil
	}
	return err
}

// operate stores the intent and runs the effect in a task, which outlives the
// request. It returns when the effect has ended, or after settle once the
// intent is stored.
func (s *Service) operate(ctx context.Context, id string, timeout time.Duration, intent state.Move, effect func(context.Context, state.Record) error) error {
	intent.ID = id
	// A refusal needn't wait for an operation that is under way.
	if r, err := s.store.Get(ctx, id); err != nil {
		return fail(err)
	} else if !state.Allowed(r.State, intent.To) {
		return Errorf(CodeState, "the sandbox is %s", r.State)
	}
	accepted, done := make(chan struct{}), make(chan error, 1)
	_, ok := s.tasks.start(timeout, true, func(ctx context.Context) {
		unlock, err := s.locks.lock(ctx, id)
		if err != nil {
			done <- err
			return
		}
		defer unlock()
		r, err := s.move(ctx, intent)
		if err != nil {
			done <- err
			return
		}
		close(accepted)
		done <- effect(ctx, r)
	})
	if !ok {
		return Errorf(CodeStopping, "the service is stopping")
	}
	select {
	case err := <-done:
		return fail(err)
	case <-accepted:
	case <-ctx.Done():
		return fail(ctx.Err())
	}
	timer := time.NewTimer(settle)
	defer timer.Stop()
	select {
	case err := <-done:
		return fail(err)
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fail(ctx.Err())
	}
}

// Delete destroys a sandbox and returns when it is proven gone, so that Get
// fails from then on. When the caller gives up first, or the destruction
// fails, the service goes on trying.
func (s *Service) Delete(ctx context.Context, id string) error {
	_, err := s.move(ctx, state.Move{ID: id, To: wire.Stopping, Reason: "user_delete"})
	var st *state.StateError
	stopping := errors.As(err, &st) && st.Have == wire.Stopping // somebody else's delete, which is helped along
	if err != nil && !stopping {
		return fail(err)
	}
	s.cancelStart(id)
	done := make(chan error, 1)
	if _, ok := s.tasks.start(s.cfg.StopTimeout, true, func(ctx context.Context) { done <- s.destroy(ctx, id) }); !ok {
		return Errorf(CodeStopping, "the service is stopping; the sandbox will be removed when it starts again")
	}
	select {
	case err := <-done:
		return fail(err)
	case <-ctx.Done():
		return fail(ctx.Err())
	}
}

// destroy removes a sandbox whose row is Stopping, or that has none.
func (s *Service) destroy(ctx context.Context, id string) error {
	unlock, err := s.locks.lock(ctx, id)
	if err != nil {
		s.repair(id, time.Second)
		return err
	}
	defer unlock()
	if r, err := s.store.Get(ctx, id); err == nil && r.State != wire.Stopping {
		return Errorf(CodeState, "the sandbox is %s", r.State)
	} else if errors.Is(err, state.ErrNotFound) {
		if _, err := s.store.Past(ctx, id); err == nil {
			return nil // somebody else has just done it
		}
	} else if err != nil {
		s.repair(id, time.Second)
		return err
	}
	return s.destroyLocked(ctx, id)
}

// destroyLocked is destroy for a caller that holds the lock. What fails is
// tried again later.
func (s *Service) destroyLocked(ctx context.Context, id string) error {
	if err := s.stops.Acquire(ctx, 1); err != nil {
		s.repair(id, time.Second)
		return err
	}
	evidence, err := s.rt.Destroy(ctx, id)
	s.stops.Release(1)
	if err != nil {
		s.log.Error("destroy", "sandbox", id, "error", err)
		s.repair(id, 0)
		return &Error{Code: CodeDestroyFailed, Message: "the sandbox isn't completely removed yet; the service goes on trying", cause: err}
	}
	if err := s.store.Bury(context.WithoutCancel(ctx), id, time.Now(), evidence); err != nil {
		s.repair(id, time.Second)
		return err
	}
	s.log.Info("sandbox destroyed", "sandbox", id, "took", evidence.Took, "checks", len(evidence.Checks))
	return nil
}
