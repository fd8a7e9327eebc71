package conversation

import (
	"context"
	"errors"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/fleet"
	"github.com/astrabox/astrabox/internal/killpoint"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
	"github.com/astrabox/astrabox/sandbox"
)

var (
	killPausing   = killpoint.New("pause.intent")
	killPaused    = killpoint.New("pause.done")
	killCondemned = killpoint.New("terminate.intent")
	killProven    = killpoint.New("terminate.proven")
)

// renew extends the lease of a sandbox that is ready.
func (k *keeper) renew(ctx context.Context, r *model.Record) error {
	expires, err := k.s.fleet.Renew(ctx, ref(r), k.s.cfg.Lease)
	if err != nil {
		return k.trouble(ctx, r, err)
	}
	return k.advance(ctx, model.RuntimeReady, func(t *store.Tx, r *model.Record) error {
		// A backend that gives less than was asked for must not be asked in a loop.
		r.ExpiresAt = expires
		if least := t.Now().Add(k.s.cfg.Lease/4 + time.Minute); !expires.IsZero() && expires.Before(least) {
			r.ExpiresAt = least
		}
		return nil
	})
}

// pauseSandbox pauses an unused sandbox, or goes on with a pause: the end moves to the
// retention time first, so that a sandbox can't expire as soon as it sleeps. A
// pause that isn't confirmed leaves it ready.
func (k *keeper) pauseSandbox(ctx context.Context, r *model.Record) error {
	if r.Runtime.State == model.RuntimeReady {
		retention := k.s.cfg.Retention
		if k.env.RetentionSeconds > 0 {
			retention = time.Duration(k.env.RetentionSeconds) * time.Second
		}
		expires, err := k.s.fleet.Renew(ctx, ref(r), retention)
		if err != nil {
			return k.trouble(ctx, r, err)
		}
		k.release()
		err = k.advance(ctx, model.RuntimeReady, func(t *store.Tx, r *model.Record) error {
			if action, _ := model.Decide(*r, k.facts()); action != model.ActPause {
				return errStale // a message came
			}
			if err := t.SetRuntime(r, model.RuntimePausing, ""); err != nil {
				return err
			}
			r.ExpiresAt = expires
			return t.Event(r, "", model.EventPausing, nil)
		})
		if err != nil {
			return err
		}
		killPausing.Hit()
	}
	paused, err := k.s.fleet.Pause(ctx, ref(r))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	killPaused.Hit()
	if paused {
		return k.paused(ctx, model.RuntimePausing)
	}
	if seen, reason := k.s.fleet.Look(ctx, ref(r)); seen == fleet.SeenGone || seen == fleet.SeenDead {
		return k.lost(ctx, seen, reason)
	}
	k.log.Warn("a pause was not confirmed; the sandbox stays ready", "sandbox", r.Runtime.SandboxID, "err", err)
	return k.advance(ctx, model.RuntimePausing, func(t *store.Tx, r *model.Record) error {
		r.ActiveAt = t.Now() // tried again after another idle time
		return t.SetRuntime(r, model.RuntimeReady, "the pause could not be confirmed")
	})
}

// paused stores that the sandbox is paused: its processes ended. From ready it
// means that somebody else paused it, also in the middle of a turn.
func (k *keeper) paused(ctx context.Context, from model.RuntimeState) error {
	k.release()
	return k.advance(ctx, from, func(t *store.Tx, r *model.Record) error {
		reason := ""
		if from == model.RuntimeReady {
			reason = "it was paused from outside"
			if err := settleTurns(t, r, brokenTurns(fault.SandboxLost, "The sandbox was paused from outside while the turn ran.")); err != nil {
				return err
			}
		}
		if err := t.SetRuntime(r, model.RuntimePaused, reason); err != nil {
			return err
		}
		r.DueAt = r.ExpiresAt
		if err := t.EndTerminals(k.id, "The sandbox was paused, which ends its terminals."); err != nil {
			return err
		}
		if err := dropProgram(t, k.id, true); err != nil {
			return err
		}
		return t.Event(r, "", model.EventPaused, nil)
	})
}

// expire looks whether a paused sandbox whose time is over is gone.
func (k *keeper) expire(ctx context.Context, r *model.Record) error {
	seen, _ := k.s.fleet.Look(ctx, ref(r))
	return k.advance(ctx, model.RuntimePaused, func(t *store.Tx, r *model.Record) error {
		switch seen {
		case fleet.SeenGone:
			if err := t.Event(r, "", model.EventTerminated, terminatedData{r.Runtime.SandboxID, "expired", "its retention time is over"}); err != nil {
				return err
			}
			r.Runtime.SandboxID, r.AssignmentID, r.ExpiresAt, r.DueAt = "", "", time.Time{}, time.Time{}
			if err := dropProgram(t, k.id, false); err != nil {
				return err
			}
			return t.SetRuntime(r, model.RuntimeNone, "its retention time was over")
		case fleet.SeenUnknown:
			r.ExpiresAt = t.Now().Add(time.Minute) // nothing established: ask again
			r.DueAt = r.ExpiresAt
			return nil
		}
		return k.condemn(t, r, "its retention time was over")
	})
}

type terminatedData struct {
	SandboxID string `json:"sandbox_id"`
	Outcome   string `json:"outcome"`
	Detail    string `json:"detail,omitempty"`
}

// condemn stores, in the transaction that ends the sandbox's use, that it is to
// be destroyed: from here on the ledger owns it.
func (k *keeper) condemn(t *store.Tx, r *model.Record, reason string) error {
	if err := t.SetRuntime(r, model.RuntimeTerminating, reason); err != nil {
		return err
	}
	r.DueAt = time.Time{}
	if err := t.EndTerminals(k.id, "The sandbox was ended."); err != nil {
		return err
	}
	if err := dropProgram(t, k.id, false); err != nil {
		return err
	}
	return t.AddToLedger(model.LedgerEntry{Backend: r.Backend, SandboxID: r.Runtime.SandboxID, ConversationID: k.id, Reason: reason})
}

// terminate destroys the conversation's sandbox, or goes on with it. more is
// false when the proof is left to the ledger.
func (k *keeper) terminate(ctx context.Context, r *model.Record) (more bool, err error) {
	k.release()
	if r.Runtime.SandboxID == "" {
		return true, k.abandonStart(ctx, r)
	}
	if r.Runtime.State != model.RuntimeTerminating {
		reason := "nobody used it"
		if r.State == model.Deleting {
			reason = "the conversation was deleted"
		}
		err := k.advance(ctx, r.Runtime.State, func(t *store.Tx, r *model.Record) error {
			if action, _ := model.Decide(*r, k.facts()); action != model.ActTerminate {
				return errStale
			}
			if r.Runtime.State == model.RuntimeStarting {
				if err := t.SetAssignment(r.AssignmentID, model.AssignmentFailed, "", reason); err != nil {
					return err
				}
			}
			return k.condemn(t, r, reason)
		})
		if err != nil {
			return false, err
		}
		killCondemned.Hit()
	}
	d, err := k.s.fleet.Destroy(ctx, ref(r))
	if err != nil {
		return false, err
	}
	if ctx.Err() != nil {
		return false, ctx.Err() // a check that our own end cut off is no verdict
	}
	killProven.Hit()
	more = true
	err = k.advance(ctx, model.RuntimeTerminating, func(t *store.Tx, r *model.Record) error {
		r.Destruction = &model.Destruction{SandboxID: d.SandboxID, Outcome: string(d.Outcome), Detail: d.Detail}
		if !fleet.Settles(d, r.Runtime.SandboxID) && r.State == model.Deleting {
			more = false // the ledger wakes us when it has the proof
			return t.Event(r, "", model.EventNotice, agentprogram.Notice{Level: agentprogram.LevelWarning,
				Text: "It is not proven yet that the sandbox is gone: " + d.Detail})
		}
		// Without the proof the ledger goes on; the conversation doesn't wait for it.
		if err := t.Event(r, "", model.EventTerminated, terminatedData{d.SandboxID, string(d.Outcome), d.Detail}); err != nil {
			return err
		}
		r.Runtime.SandboxID, r.AssignmentID, r.ExpiresAt = "", "", time.Time{}
		return t.SetRuntime(r, model.RuntimeNone, r.Runtime.Reason)
	})
	k.s.fleet.Kick()
	return more, err
}

// abandonStart ends the start of a conversation that is being deleted and whose
// sandbox isn't known: the backend is asked what the assignment made.
func (k *keeper) abandonStart(ctx context.Context, r *model.Record) error {
	a, err := k.s.store.Assignment(ctx, r.AssignmentID)
	if err != nil {
		return err
	}
	id, found, err := k.s.fleet.FindAssigned(ctx, a)
	unknowable := sandbox.CodeOf(err) == sandbox.CodeCreateInterrupted
	if err != nil && !unknowable {
		return err
	}
	return k.advance(ctx, model.RuntimeStarting, func(t *store.Tx, r *model.Record) error {
		if found {
			r.Runtime.SandboxID = id
			return t.SetAssignment(a.ID, model.AssignmentCreated, id, "")
		}
		reason := "the conversation was deleted"
		if unknowable {
			reason += "; the backend can't say whether the interrupted start made a sandbox, and its expiry ends it"
		}
		if err := t.SetAssignment(a.ID, model.AssignmentFailed, "", reason); err != nil {
			return err
		}
		r.AssignmentID = ""
		return t.SetRuntime(r, model.RuntimeNone, reason)
	})
}

// finish ends a conversation of which nothing is left.
func (k *keeper) finish(ctx context.Context) error {
	err := k.change(ctx, func(t *store.Tx, r *model.Record) error {
		if r.State != model.Deleting || r.Runtime.SandboxID != "" {
			return errStale
		}
		if err := settleTurns(t, r, deletedTurns); err != nil {
			return err
		}
		if err := t.SetState(r, model.Deleted); err != nil {
			return err
		}
		r.DueAt = time.Time{}
		return t.Event(r, "", model.EventDeleted, nil)
	})
	if err == nil {
		k.s.failWaiters(k.id, fault.New(fault.ConversationDeleted, ""))
	}
	return err
}

// lost stores that the sandbox died. The turn in it ends truthfully; what waits
// gets a new sandbox.
func (k *keeper) lost(ctx context.Context, seen fleet.Sight, reason string) error {
	k.release()
	k.log.Warn("the sandbox is lost", "reason", reason)
	return k.change(ctx, func(t *store.Tx, r *model.Record) error {
		if r.Runtime.SandboxID == "" {
			return errStale
		}
		text := "The sandbox was lost: " + reason + "."
		if err := settleTurns(t, r, brokenTurns(fault.SandboxLost, text)); err != nil {
			return err
		}
		if err := t.EndTerminals(k.id, text); err != nil {
			return err
		}
		if err := dropProgram(t, k.id, false); err != nil {
			return err
		}
		if r.Runtime.State == model.RuntimeStarting {
			if err := t.SetAssignment(r.AssignmentID, model.AssignmentFailed, "", reason); err != nil {
				return err
			}
		}
		if seen == fleet.SeenDead {
			if err := t.AddToLedger(model.LedgerEntry{Backend: r.Backend, SandboxID: r.Runtime.SandboxID, ConversationID: k.id, Reason: reason}); err != nil {
				return err
			}
			defer k.s.fleet.Kick()
		}
		if err := t.SetRuntime(r, model.RuntimeLost, reason); err != nil {
			return err
		}
		r.Runtime.SandboxID, r.AssignmentID, r.ExpiresAt, r.DueAt = "", "", time.Time{}, time.Time{}
		return t.Event(r, "", model.EventLost, map[string]string{"reason": reason})
	})
}

// trouble finds out what an error of a ready sandbox means: it may be gone,
// paused by somebody else, or only unreachable, which changes nothing.
func (k *keeper) trouble(ctx context.Context, r *model.Record, cause error) error {
	if ctx.Err() != nil || errors.Is(cause, store.ErrFenced) || errors.Is(cause, errStale) {
		return cause
	}
	seen, reason := k.s.fleet.Look(ctx, ref(r))
	switch seen {
	case fleet.SeenGone, fleet.SeenDead:
		return k.lost(ctx, seen, reason)
	case fleet.SeenPaused:
		return k.paused(ctx, r.Runtime.State)
	}
	return cause
}
