package sandbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Outcome is what became of a sandbox that was to be destroyed.
type Outcome string

// The outcomes.
const (
	Gone         Outcome = "gone"          // proven
	Unconfirmed  Outcome = "unconfirmed"   // goes to the ledger and is tried again
	Refused      Outcome = "refused"       // not ours; its name is kept, and nothing was done to it
	Retained     Outcome = "retained"      // a part was released, the sandbox stays for another owner
	NothingNamed Outcome = "nothing_named" // no id was given
)

// Destruction is the verdict on one sandbox. It is no boolean: what isn't known
// must not turn into "no".
type Destruction struct {
	SandboxID string
	Outcome   Outcome
	Detail    string // for people: what was done and seen
}

// ConfirmsGone reports whether this verdict proves that the sandbox id is gone.
// It asks for the id because a pointer may have moved to another sandbox while
// the verdict was made.
func (d Destruction) ConfirmsGone(id string) bool {
	return id != "" && d.SandboxID == id && d.Outcome == Gone
}

// Leaves gives the id of a sandbox that may still be there and whose name must
// not be lost; "" when there is none. A retained sandbox has its own owner.
func (d Destruction) Leaves() string {
	switch d.Outcome {
	case Gone, Retained, NothingNamed:
		return ""
	default:
		return d.SandboxID
	}
}

const (
	confirmEvery  = time.Second
	confirmBudget = 20 * time.Second
	detailLimit   = 1000 // bytes of another's text in a verdict
)

// ConfirmDestroyed destroys a sandbox and is the only place where a verdict is
// made: Kill asks, and a separate observation proves. Nothing else calls Kill.
//
//   - A blank id: NothingNamed. An id that no backend may be sent: Unconfirmed.
//   - Kill is accepted when it returns no error, whatever its boolean says. An
//     error, or a panic, becomes detail and is no verdict.
//   - A probe that finds no such sandbox: Gone, also when the delete failed.
//   - ErrProbeUnsupported: Gone when Kill said true, and the detail says that
//     this rests on the delete alone; else Unconfirmed.
//   - A probe that failed in any other way, a status that can't be read, a
//     panic, or the end of ctx: Unconfirmed at once. A service that can't be
//     reached is not a sandbox that is gone.
//   - A sandbox that is still there after an accepted delete is looked at again
//     every second for 20 s, for backends that destroy asynchronously; after a
//     failed delete it is Unconfirmed at once.
//
// It takes 20 s and one probe at most, when the provider holds to ctx and to
// bounds of its own.
func ConfirmDestroyed(ctx context.Context, p Provider, id string) Destruction {
	d := Destruction{SandboxID: id}
	say := func(o Outcome, format string, args ...any) Destruction {
		d.Outcome, d.Detail = o, fmt.Sprintf(format, args...)
		return d
	}
	if strings.TrimSpace(id) == "" {
		d.SandboxID = ""
		return say(NothingNamed, "no sandbox was named")
	}
	if err := CheckID(id); err != nil {
		return say(Unconfirmed, "%s", shorten(err.Error(), detailLimit))
	}
	killed, killErr := safely(func() (bool, error) { return p.Kill(ctx, id) })
	killText := "the delete was accepted"
	if killErr != nil {
		killText = fmt.Sprintf("the delete failed (%s)", shorten(killErr.Error(), detailLimit))
	}
	for start := time.Now(); ; {
		if ctx.Err() != nil {
			return say(Unconfirmed, "%s; the check was cancelled", killText)
		}
		seen, err := safely(func() (Observation, error) { return p.Probe(ctx, id) })
		seen = seen.Normal()
		waited := time.Since(start)
		switch {
		case errors.Is(err, ErrProbeUnsupported) && killed && killErr == nil:
			return say(Gone, "the backend can't be asked; this rests on its answer to the delete alone")
		case errors.Is(err, ErrProbeUnsupported):
			return say(Unconfirmed, "%s and the backend can't be asked", killText)
		case err != nil:
			return say(Unconfirmed, "%s; the check failed (%s)", killText, shorten(err.Error(), detailLimit))
		case seen.Status == ObservedGone:
			return say(Gone, "%s; a separate check found no such sandbox", killText)
		case seen.Status != ObservedOK:
			return say(Unconfirmed, "%s; the check gave no readable state (%s)", killText, shorten(seen.Detail, detailLimit))
		case killErr != nil:
			return say(Unconfirmed, "%s; the sandbox is still %s", killText, shorten(seen.State, detailLimit))
		case waited >= confirmBudget:
			return say(Unconfirmed, "%s; after %v the sandbox is still %s", killText, waited.Round(time.Second), shorten(seen.State, detailLimit))
		}
		select {
		case <-ctx.Done():
		case <-time.After(confirmEvery):
		}
	}
}

// safely turns a panic of a provider into an error.
func safely[T any](f func() (T, error)) (v T, err error) {
	defer func() {
		if r := recover(); r != nil {
			v, err = *new(T), fmt.Errorf("the provider panicked: %v", r)
		}
	}()
	return f()
}
