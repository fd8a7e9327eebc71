package conversation

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/fleet"
	"github.com/astrabox/astrabox/internal/killpoint"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
	"github.com/astrabox/astrabox/sandbox"
)

var (
	killPlanned  = killpoint.New("start.planned")
	killCreated  = killpoint.New("start.created")
	killStored   = killpoint.New("start.stored")
	killPrepared = killpoint.New("start.prepared")
	killOpened   = killpoint.New("start.opened")
	killReady    = killpoint.New("start.ready")
	killResuming = killpoint.New("resume.intent")
	killResumed  = killpoint.New("resume.done")
)

// start obtains a sandbox, or goes on where an earlier keeper stopped: plan →
// create → store the id → prepare → open the program → ready.
func (k *keeper) start(ctx context.Context, r *model.Record) error {
	select {
	case k.s.starts <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-k.s.starts }()

	var a *model.Assignment
	resumed := r.Runtime.State == model.RuntimeStarting
	if resumed {
		var err error
		if a, err = k.s.store.Assignment(ctx, r.AssignmentID); err != nil {
			return err
		}
	} else {
		var err error
		if a, err = k.plan(ctx); err != nil {
			return err
		}
		killPlanned.Hit()
	}
	h, err := k.obtain(ctx, a, resumed)
	if err != nil {
		return k.startFailed(ctx, err)
	}
	if a.SandboxID == "" {
		killCreated.Hit()
		err := k.advance(ctx, model.RuntimeStarting, func(t *store.Tx, r *model.Record) error {
			r.Runtime.SandboxID, r.ExpiresAt = h.SandboxID(), t.Now().Add(k.s.cfg.Lease)
			if err := t.SetAssignment(a.ID, model.AssignmentCreated, h.SandboxID(), ""); err != nil {
				return err
			}
			return t.Event(r, "", model.EventStarting, map[string]string{"step": "workspace"})
		})
		if err != nil {
			return err
		}
		killStored.Hit()
	}
	if err := k.watched(ctx, func(ctx context.Context) error { return k.bringUp(ctx, h, true) }); err != nil {
		return k.startFailed(ctx, err)
	}
	killOpened.Hit()
	err = k.advance(ctx, model.RuntimeStarting, func(t *store.Tx, r *model.Record) error {
		if r.State != model.Active {
			return errStale // deleted meanwhile
		}
		took := t.Now().Sub(r.Runtime.Since)
		if err := t.SetRuntime(r, model.RuntimeReady, ""); err != nil {
			return err
		}
		r.ActiveAt = t.Now()
		if err := t.SetAssignment(a.ID, model.AssignmentDone, "", ""); err != nil {
			return err
		}
		return t.Event(r, "", model.EventReady, readyData{h.SandboxID(), took.Milliseconds()})
	})
	if err != nil {
		k.release()
		return err
	}
	killReady.Hit()
	k.reached(h)
	return nil
}

type readyData struct {
	SandboxID string `json:"sandbox_id"`
	MS        int64  `json:"ms"`
}

// plan stores what will be asked for, before it is.
func (k *keeper) plan(ctx context.Context) (*model.Assignment, error) {
	a, err := k.s.fleet.Plan(k.id, k.env)
	if err != nil {
		// Nothing can be asked for: what waits is told, and no sandbox starts.
		k.s.failWaiters(k.id, err)
		changeErr := k.change(ctx, func(t *store.Tx, r *model.Record) error {
			r.Runtime.Reason = fault.From(err).Public
			return settleTurns(t, r, waitingTurns(startError(err)))
		})
		return nil, cmp.Or(changeErr, errStale)
	}
	return a, k.change(ctx, func(t *store.Tx, r *model.Record) error {
		if r.State != model.Active || r.Runtime.State != model.RuntimeNone && r.Runtime.State != model.RuntimeLost {
			return errStale
		}
		if err := t.SetRuntime(r, model.RuntimeStarting, ""); err != nil {
			return err
		}
		r.Backend, r.AssignmentID, r.Runtime.SandboxID, r.ExpiresAt, r.DueAt = a.Backend, a.ID, "", time.Time{}, time.Time{}
		r.Destruction = nil
		if err := t.AddAssignment(a); err != nil {
			return err
		}
		return t.Event(r, "", model.EventStarting, map[string]string{"step": "create"})
	})
}

// createTries bounds how often a create is asked for under one assignment. Only
// a backend that finds assignments is asked again: another one might make two.
const createTries = 3

// obtain gives the handle of the assignment's sandbox.
func (k *keeper) obtain(ctx context.Context, a *model.Assignment, resumed bool) (h sandbox.Handle, err error) {
	err = k.watched(ctx, func(ctx context.Context) error {
		if a.SandboxID != "" {
			h, err = k.s.fleet.Connect(ctx, fleet.Ref{Backend: a.Backend, ID: a.SandboxID})
			return err
		}
		for try := 1; ; try++ {
			h, err = k.s.fleet.Create(ctx, a, resumed || try > 1)
			if err == nil || try == createTries || ctx.Err() != nil ||
				!fleet.Retryable(err) || !k.s.fleet.Caps(a.Backend).CorrelatedCreate {
				return err
			}
			k.log.Warn("a create failed and is tried again", "assignment", a.ID, "err", err)
			sleep(ctx, time.Duration(try)*time.Second)
		}
	})
	return h, err
}

// watched runs f, and cancels it when the conversation is deleted meanwhile.
func (k *keeper) watched(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	// A goroutine of its own, so that the keeper sees a deletion; a crash test
	// may end it without an answer, hence the closed channel.
	go func() { defer close(done); done <- f(ctx) }()
	defer k.kick() // what woke the keeper meanwhile is looked at afterwards
	for {
		select {
		case err, answered := <-done:
			if !answered {
				return context.Canceled
			}
			return err
		case <-k.wake:
			if r, err := k.s.store.Record(ctx, k.id); err == nil && r.State == model.Deleting {
				cancel()
			}
		}
	}
}

// startError says why a message couldn't be delivered.
func startError(cause error) *model.TurnError {
	f := fault.From(cause)
	code := fault.InputNotDelivered
	if f.Code == fault.Code(sandbox.CodeCreateInterrupted) {
		code = f.Code
	}
	return turnError(code, "The message was not delivered: "+f.Public)
}

// startFailed settles a start that can't go on: what waits is told, and a
// sandbox that exists is destroyed, since nothing of anybody is in it.
func (k *keeper) startFailed(ctx context.Context, cause error) error {
	if ctx.Err() != nil {
		return ctx.Err() // the service stops: the next one goes on from the rows
	}
	if errors.Is(cause, store.ErrFenced) || errors.Is(cause, store.ErrClosed) {
		return cause
	}
	r, err := k.s.store.Record(ctx, k.id)
	if err != nil {
		return err
	}
	if r.State != model.Active {
		return errStale // deletion cancelled it, and destroys what there is
	}
	k.log.Error("the sandbox could not be started", "assignment", r.AssignmentID, "err", cause)
	k.release()
	reason := fault.From(cause).Public
	err = k.advance(ctx, model.RuntimeStarting, func(t *store.Tx, r *model.Record) error {
		if err := settleTurns(t, r, waitingTurns(startError(cause))); err != nil {
			return err
		}
		if err := t.SetAssignment(r.AssignmentID, model.AssignmentFailed, "", cause.Error()); err != nil {
			return err
		}
		if err := t.Event(r, "", model.EventStartFailed, map[string]string{"reason": reason}); err != nil {
			return err
		}
		if err := dropProgram(t, k.id, false); err != nil {
			return err
		}
		if r.Runtime.SandboxID == "" {
			return t.SetRuntime(r, model.RuntimeNone, reason)
		}
		return k.condemn(t, r, reason)
	})
	if err == nil {
		k.s.failWaiters(k.id, cause)
	}
	return err
}

// resumeTries bounds how often a resume is asked for before what waits is told.
const resumeTries = 3

// resume wakes the paused sandbox and opens the program in it again.
func (k *keeper) resume(ctx context.Context, r *model.Record) error {
	if r.Runtime.State == model.RuntimePaused {
		err := k.advance(ctx, model.RuntimePaused, func(t *store.Tx, r *model.Record) error {
			if r.State != model.Active {
				return errStale
			}
			if err := t.SetRuntime(r, model.RuntimeResuming, ""); err != nil {
				return err
			}
			r.DueAt = time.Time{}
			return t.Event(r, "", model.EventResuming, nil)
		})
		if err != nil {
			return err
		}
		killResuming.Hit()
	}
	var h sandbox.Handle
	var err error
	for try := 1; ; try++ {
		if h, err = k.s.fleet.Resume(ctx, ref(r)); err == nil || try == resumeTries || !fleet.Retryable(err) || ctx.Err() != nil {
			break
		}
		sleep(ctx, time.Duration(try)*time.Second)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return k.resumeFailed(ctx, r, err)
	}
	killResumed.Hit()
	expires, err := k.s.fleet.Renew(ctx, ref(r), k.s.cfg.Lease)
	if err != nil {
		k.log.Warn("the lease of a resumed sandbox could not be renewed", "sandbox", r.Runtime.SandboxID, "err", err)
		expires = r.ExpiresAt // renewed again when it comes near
	}
	upErr := k.watched(ctx, func(ctx context.Context) error { return k.bringUp(ctx, h, false) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	err = k.advance(ctx, model.RuntimeResuming, func(t *store.Tx, r *model.Record) error {
		if r.State != model.Active {
			return errStale
		}
		took := t.Now().Sub(r.Runtime.Since)
		if err := t.SetRuntime(r, model.RuntimeReady, ""); err != nil {
			return err
		}
		r.ActiveAt, r.ExpiresAt = t.Now(), expires
		return t.Event(r, "", model.EventResumed, readyData{r.Runtime.SandboxID, took.Milliseconds()})
	})
	if err != nil {
		k.release()
		return err
	}
	if upErr != nil {
		// The files are fine. Serving opens the program again when a message waits.
		k.log.Warn("the Agent program could not be opened after a resume", "err", upErr)
		k.unlink()
	}
	k.reached(h)
	return nil
}

// resumeFailed finds out what became of a sandbox that didn't resume.
func (k *keeper) resumeFailed(ctx context.Context, r *model.Record, cause error) error {
	seen, reason := k.s.fleet.Look(ctx, ref(r))
	if seen == fleet.SeenGone || seen == fleet.SeenDead {
		return k.lost(ctx, seen, reason)
	}
	k.log.Error("the sandbox did not resume", "sandbox", r.Runtime.SandboxID, "err", cause)
	err := k.advance(ctx, model.RuntimeResuming, func(t *store.Tx, r *model.Record) error {
		if err := t.SetRuntime(r, model.RuntimePaused, fault.From(cause).Public); err != nil {
			return err
		}
		r.DueAt = r.ExpiresAt
		return settleTurns(t, r, waitingTurns(startError(cause)))
	})
	if err == nil {
		k.s.failWaiters(k.id, cause)
	}
	return err
}
