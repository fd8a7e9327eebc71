package conversation

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/fleet"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
	"github.com/astrabox/astrabox/sandbox"
)

// keeper does what one conversation needs. There is at most one for each, and
// everything in it belongs to its goroutine, wake apart.
type keeper struct {
	s     *Service
	id    string
	log   *slog.Logger
	wake  chan struct{} // capacity 1
	fence int64         // rows are changed under this token only
	env   model.Environment
	// handle is set while the sandbox is ready and was reached.
	handle sandbox.Handle
	link   *link  // to the Agent program's process; nil: none
	broken string // why the newest process of the program was of no use
}

func (k *keeper) kick() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// After a failed step the next try comes within these times, at once when the
// keeper is woken.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 15 * time.Second
)

// errStale: the row isn't any more what the step was decided on. Decide again.
var errStale = errors.New("the conversation was changed meanwhile")

// run takes steps until there is nothing to do or ctx ends.
func (k *keeper) run(ctx context.Context) {
	retired := false
	defer func() {
		k.unlink()
		if !retired {
			k.s.failWaiters(k.id, fault.New(fault.Stopping, ""))
			k.s.retire(k, true)
		}
	}()
	retry := time.Duration(0)
	for ctx.Err() == nil {
		more, err := k.step(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, store.ErrFenced):
			k.log.Warn("another worker took the conversation over")
			return
		case fault.Is(err, fault.ConversationNotFound):
			k.s.failWaiters(k.id, err)
			return
		case errors.Is(err, errStale), errors.Is(err, store.ErrConflict):
			retry = 0
		case err != nil:
			retry = min(max(2*retry, retryFirst), retryLast)
			k.log.Warn("a step failed and is tried again", "err", err, "in", retry)
			k.pause(ctx, retry)
		case more:
			retry = 0
		default:
			if retired = k.s.retire(k, false); retired {
				return
			}
		}
	}
}

// pause waits, or until woken.
func (k *keeper) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	case <-k.wake:
	}
}

// step decides on the rows and does one thing; more says to decide again.
func (k *keeper) step(ctx context.Context) (more bool, err error) {
	// A kick that comes from here on means to look again.
	select {
	case <-k.wake:
	default:
	}
	if k.fence == 0 {
		if k.fence, err = k.s.store.Hold(ctx, k.id); err != nil {
			return false, err
		}
	}
	r, err := k.s.store.Record(ctx, k.id)
	if err != nil {
		return false, err
	}
	if r.Fence != k.fence {
		return false, store.ErrFenced
	}
	if k.env.Name == "" {
		if k.env, err = k.s.store.Environment(ctx, r.Environment); err != nil {
			return false, err
		}
	}
	action, due := model.Decide(*r, k.facts())
	switch action {
	case model.ActStart:
		return true, k.start(ctx, r)
	case model.ActServe:
		return true, k.serve(ctx, r)
	case model.ActRenew:
		return true, k.renew(ctx, r)
	case model.ActPause:
		return true, k.pauseSandbox(ctx, r)
	case model.ActResume:
		return true, k.resume(ctx, r)
	case model.ActTerminate:
		return k.terminate(ctx, r)
	case model.ActExpire:
		return true, k.expire(ctx, r)
	case model.ActFinish:
		return true, k.finish(ctx)
	}
	if r.State == model.Deleted || r.State == model.Deleting {
		k.s.failWaiters(k.id, fault.New(fault.ConversationDeleted, ""))
	}
	if !r.DueAt.Equal(due) {
		err = k.change(ctx, func(_ *store.Tx, r *model.Record) error { r.DueAt = due; return nil })
	}
	return false, err
}

// facts are what the row doesn't know.
func (k *keeper) facts() model.Facts {
	f := model.Facts{Now: time.Now(), IdleAfter: k.s.cfg.IdleAfter, Idle: k.env.Idle, RenewBelow: k.s.cfg.Lease / 4}
	if k.env.IdleSeconds != 0 {
		f.IdleAfter = time.Duration(k.env.IdleSeconds) * time.Second
	}
	if !k.s.fleet.Caps(k.env.Backend).Pause {
		f.Idle = model.IdleTerminate
	}
	k.s.mu.Lock()
	defer k.s.mu.Unlock()
	r := k.s.room(k.id)
	f.Wanted, f.Busy, f.ActiveAt = len(r.waiters) > 0, r.uses > 0, r.active
	if k.s.suspended {
		f.IdleAfter, f.Stopping = 0, true
	}
	return f
}

// change changes the conversation's row under the keeper's fence.
func (k *keeper) change(ctx context.Context, f func(*store.Tx, *model.Record) error) error {
	return k.s.store.Update(ctx, func(t *store.Tx) error {
		r, err := t.LoadFenced(k.id, k.fence)
		if err != nil {
			return err
		}
		if err := f(t, r); err != nil {
			return err
		}
		return t.Save(r)
	})
}

// advance is change for a step that was decided on one runtime state.
func (k *keeper) advance(ctx context.Context, from model.RuntimeState, f func(*store.Tx, *model.Record) error) error {
	return k.change(ctx, func(t *store.Tx, r *model.Record) error {
		if r.Runtime.State != from {
			return errStale
		}
		return f(t, r)
	})
}

func ref(r *model.Record) fleet.Ref { return fleet.Ref{Backend: r.Backend, ID: r.Runtime.SandboxID} }

// unlink leaves the program's process alone and forgets it.
func (k *keeper) unlink() {
	if k.link != nil {
		k.link.close()
		k.link = nil
	}
}

// reached publishes the sandbox to those who wait for it.
func (k *keeper) reached(h sandbox.Handle) {
	k.handle = h
	k.s.setHandle(k.id, h)
}

// release is unlink for a sandbox that is about to stop: nobody gets its
// handle any more.
func (k *keeper) release() {
	k.handle = nil
	k.s.setHandle(k.id, nil)
	k.unlink()
}

// dropProgram forgets the process of a sandbox that stopped. With session the
// program's session is kept, for a process in the same sandbox.
func dropProgram(t *store.Tx, id string, session bool) error {
	p, err := t.Program(id)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	p.ProcessID, p.Machine, p.Outbox, p.Failures, p.ReadyBy = "", nil, nil, 0, time.Time{}
	if !session {
		p.NativeSession = ""
	}
	if err := t.DropLinePieces(id); err != nil {
		return err
	}
	return t.SaveProgram(p)
}
