package model

import "time"

// Action is what a conversation needs next.
type Action string

// The actions.
const (
	ActNothing   Action = "nothing"   // until asked, or until the due time
	ActStart     Action = "start"     // begin or go on with obtaining a sandbox
	ActServe     Action = "serve"     // run the Agent program's side of things
	ActRenew     Action = "renew"     // the lease runs out
	ActPause     Action = "pause"     // begin or go on
	ActResume    Action = "resume"    // begin or go on
	ActTerminate Action = "terminate" // begin or go on with destroying the sandbox
	ActExpire    Action = "expire"    // a paused sandbox's time is over: look whether it is gone
	ActFinish    Action = "finish"    // nothing is left of a conversation that is being deleted
)

// Facts are what the row of a conversation doesn't know.
type Facts struct {
	Now time.Time
	// Wanted: somebody waits for the sandbox. Busy: somebody uses it.
	Wanted, Busy bool
	// ActiveAt is the newest activity known in memory; the row's may be older.
	ActiveAt time.Time
	// IdleAfter is how long an unused sandbox keeps running; negative: for ever.
	IdleAfter time.Duration
	Idle      IdleAction
	// Stopping: the platform stops; what waits is for its next start.
	Stopping bool
	// RenewBelow is the rest of the lease at which it is renewed.
	RenewBelow time.Duration
}

// Decide says what a conversation needs now, and when to look again if nobody
// asks before (zero: never).
func Decide(r Record, f Facts) (Action, time.Time) {
	if r.State == Deleted {
		return ActNothing, time.Time{}
	}
	if r.State == Deleting {
		if r.Runtime.SandboxID == "" && r.Runtime.State != RuntimeStarting {
			return ActFinish, time.Time{}
		}
		return ActTerminate, time.Time{}
	}
	work := f.Wanted || r.Queued > 0 && !f.Stopping
	switch r.Runtime.State {
	case RuntimeStarting:
		return ActStart, time.Time{}
	case RuntimePausing:
		return ActPause, time.Time{}
	case RuntimeResuming:
		return ActResume, time.Time{}
	case RuntimeTerminating:
		return ActTerminate, time.Time{}
	case RuntimeNone, RuntimeLost:
		if work {
			return ActStart, time.Time{}
		}
		return ActNothing, time.Time{}
	case RuntimePaused:
		switch {
		case work:
			return ActResume, time.Time{}
		case !r.ExpiresAt.IsZero() && !f.Now.Before(r.ExpiresAt):
			return ActExpire, time.Time{}
		}
		return ActNothing, r.ExpiresAt
	}
	return decideReady(r, f, work)
}

func decideReady(r Record, f Facts, work bool) (Action, time.Time) {
	var due time.Time
	if !r.ExpiresAt.IsZero() {
		due = r.ExpiresAt.Add(-f.RenewBelow)
		if !f.Now.Before(due) {
			return ActRenew, time.Time{}
		}
	}
	if f.IdleAfter < 0 || work || f.Busy || r.Turn != nil {
		return ActServe, due
	}
	idle := later(r.ActiveAt, f.ActiveAt).Add(f.IdleAfter)
	if !f.Now.Before(idle) {
		if f.Idle == IdleTerminate {
			return ActTerminate, time.Time{}
		}
		return ActPause, time.Time{}
	}
	if due.IsZero() || idle.Before(due) {
		due = idle
	}
	return ActServe, due
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
