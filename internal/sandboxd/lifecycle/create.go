package lifecycle

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// Request is a sandbox to create.
type Request struct {
	Spec     state.Spec
	Metadata map[string]string
	TTL      time.Duration // zero: no scheduled end
	// Key makes the create repeatable: the same key gives the same sandbox,
	// also after a restart of the service. Digest tells repetitions from other
	// requests. A create that failed frees its key.
	Key, Digest string
}

// create is one create under way. err is set before done is closed.
type create struct {
	done   chan struct{}
	cancel context.CancelFunc
	err    *Error
}

// newID gives 20 characters of [a-z2-7], 100 random bits.
func newID() string {
	return strings.ToLower(rand.Text()[:20])
}

// Create makes a sandbox and returns when it answers. Without a key the create
// ends with ctx, and whatever it made is removed; with one it goes on, because
// the client will ask again.
func (s *Service) Create(ctx context.Context, q Request) (state.Record, error) {
	now := time.Now()
	r := state.Record{
		ID: newID(), State: wire.Pending, Reason: "create_accepted", ChangedAt: now, CreatedAt: now,
		Spec: q.Spec, Metadata: q.Metadata, Key: q.Key, Digest: q.Digest,
	}
	if q.TTL > 0 {
		r.ExpiresAt = now.Add(q.TTL)
	}
	// Known before the row is visible, so that whoever finds the row pending
	// also finds the create.
	c := &create{done: make(chan struct{}), cancel: func() {}}
	s.mu.Lock()
	s.creating[r.ID] = c
	s.mu.Unlock()
	if err := s.store.Insert(ctx, r); err != nil {
		s.forget(r.ID)
		var taken *state.KeyError
		if errors.As(err, &taken) {
			return s.repeated(ctx, q, taken.Existing)
		}
		return state.Record{}, fail(err)
	}
	started := make(chan struct{})
	cancel, ok := s.tasks.start(s.cfg.QueueTimeout+s.cfg.CreateTimeout, false, func(opCtx context.Context) {
		<-started
		c.err = s.make(opCtx, r)
		s.forget(r.ID)
		close(c.done)
	})
	if !ok {
		// The row stays Pending: the next start finds that nothing was made.
		s.forget(r.ID)
		return state.Record{}, Errorf(CodeStopping, "the service is stopping")
	}
	s.mu.Lock()
	c.cancel = cancel
	s.mu.Unlock()
	close(started)
	return s.await(ctx, r.ID, c, q.Key == "")
}

func (s *Service) forget(id string) {
	s.mu.Lock()
	delete(s.creating, id)
	s.mu.Unlock()
}

// await waits for a create and gives the row as it then is.
func (s *Service) await(ctx context.Context, id string, c *create, owner bool) (state.Record, error) {
	select {
	case <-c.done:
	case <-ctx.Done():
		if owner {
			s.cancelStart(id)
		}
		return state.Record{}, fail(ctx.Err())
	}
	if c.err != nil {
		return state.Record{}, c.err
	}
	return s.Get(ctx, id)
}

// cancelStart stops the create or resume of a sandbox if one is under way.
func (s *Service) cancelStart(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.creating[id]; c != nil {
		c.cancel()
	}
	if cancel := s.resuming[id]; cancel != nil {
		cancel()
	}
}

// repeated answers a create whose key is known.
func (s *Service) repeated(ctx context.Context, q Request, r state.Record) (state.Record, error) {
	if r.Digest != q.Digest {
		return state.Record{}, Errorf(CodeKeyReused, "the Idempotency-Key belongs to another request")
	}
	s.mu.Lock()
	c := s.creating[r.ID]
	s.mu.Unlock()
	if c != nil {
		return s.await(ctx, r.ID, c, false)
	}
	r, err := s.store.Get(ctx, r.ID) // the create may have ended since the key was found
	if errors.Is(err, state.ErrNotFound) || err == nil && r.State == wire.Stopping {
		return state.Record{}, Errorf(CodeKeySpent, "the sandbox that this Idempotency-Key made is gone; use another key to make one more")
	}
	return r, fail(err)
}

// make does the work of one create. Every failure ends with the sandbox
// destroyed, or on the list of those that will be.
func (s *Service) make(ctx context.Context, r state.Record) *Error {
	unlock, err := s.locks.lock(ctx, r.ID)
	if err != nil {
		return s.unmake(ctx, r, err)
	}
	defer unlock()
	release, err := s.admission(ctx)
	if err != nil {
		return s.unmake(ctx, r, err)
	}
	defer release()
	startCtx, cancel := context.WithTimeout(ctx, s.cfg.CreateTimeout)
	defer cancel()
	if have, err := s.store.Get(startCtx, r.ID); err != nil || have.State != wire.Pending {
		return s.unmake(ctx, r, errors.Join(err, context.Canceled)) // deleted while it waited
	}
	running, err := s.rt.Create(startCtx, s.spec(r))
	if err != nil {
		return s.unmake(ctx, r, err)
	}
	if _, err := s.move(ctx, state.Move{ID: r.ID, To: wire.Running, Reason: "running", From: []string{wire.Pending}, Run: s.run(running)}); err != nil {
		return s.unmake(ctx, r, err)
	}
	s.watch(r.ID, running.PID)
	return nil
}

// unmake ends a create that failed; the caller holds the sandbox's lock, or
// nothing was begun. The key is free for another try, unless the service died
// before: then the restart frees it.
func (s *Service) unmake(ctx context.Context, r state.Record, cause error) *Error {
	e := createError(cause)
	var st *state.StateError
	if errors.As(cause, &st) || errors.Is(cause, state.ErrNotFound) {
		e = Errorf(CodeCreateFailed, "the sandbox was deleted while it was being made")
	}
	s.log.Warn("create failed", "sandbox", r.ID, "code", string(e.Code), "error", cause)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.StopTimeout)
	defer cancel()
	if err := s.store.ReleaseKey(ctx, r.ID); err != nil {
		s.log.Error("the key of a failed create stays taken", "sandbox", r.ID, "error", err)
	}
	_, err := s.move(ctx, state.Move{ID: r.ID, To: wire.Stopping, Reason: "create_failed", Message: e.Message})
	if err != nil && !errors.As(err, &st) {
		s.log.Error("a failed create couldn't be recorded", "sandbox", r.ID, "error", err)
	}
	if err := s.destroyLocked(ctx, r.ID); err != nil {
		s.log.Error("a failed create left something behind; it will be removed", "sandbox", r.ID, "error", err)
	}
	return e
}
