package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Outcome is what became of a sandbox that was to be destroyed.
type Outcome string

// The outcomes.
const (
	Gone         Outcome = "gone"          // proven
	Unconfirmed  Outcome = "unconfirmed"   // goes to the ledger and is tried again
	Refused      Outcome = "refused"       // not ours
	Retained     Outcome = "retained"      // a part was released, the sandbox stays for another owner
	NothingNamed Outcome = "nothing_named" // no id was given
)

// Destruction is the verdict on one sandbox.
type Destruction struct {
	SandboxID string
	Outcome   Outcome
	Detail    string // for people: what was done and seen
}

// ConfirmsGone reports whether this verdict proves that the sandbox id is gone.
func (d Destruction) ConfirmsGone(id string) bool {
	return id != "" && d.SandboxID == id && d.Outcome == Gone
}

const (
	confirmEvery  = time.Second
	confirmBudget = 20 * time.Second
)

// ConfirmDestroyed destroys a sandbox and is the only place where a verdict is
// made: Kill asks, and a separate observation proves. It takes up to 20 s when
// the backend destroys asynchronously.
func ConfirmDestroyed(ctx context.Context, p Provider, id string) Destruction {
	d := Destruction{SandboxID: id}
	say := func(o Outcome, format string, args ...any) Destruction {
		d.Outcome, d.Detail = o, fmt.Sprintf(format, args...)
		return d
	}
	if id == "" {
		return say(NothingNamed, "no sandbox was named")
	}
	if err := CheckID(id); err != nil {
		return say(Unconfirmed, "%v", err)
	}
	killed, killErr := safely(func() (bool, error) { return p.Kill(ctx, id) })
	killText := "the delete was accepted"
	if killErr != nil {
		killText = fmt.Sprintf("the delete failed (%v)", killErr)
	}
	start := time.Now()
	for {
		if ctx.Err() != nil {
			return say(Unconfirmed, "%s; the check was cancelled", killText)
		}
		seen, err := safely(func() (Observation, error) { return p.Probe(ctx, id) })
		waited := time.Since(start).Round(time.Second)
		switch {
		case errors.Is(err, ErrProbeUnsupported) && killed && killErr == nil:
			return say(Gone, "the backend can't be asked; this rests on its answer to the delete alone")
		case errors.Is(err, ErrProbeUnsupported):
			return say(Unconfirmed, "%s and the backend can't be asked", killText)
		case err != nil:
			return say(Unconfirmed, "%s; the check failed (%v)", killText, err)
		case seen.Status == ObservedGone:
			return say(Gone, "%s; a separate check found no such sandbox", killText)
		case seen.Status != ObservedOK || seen.State == "":
			return say(Unconfirmed, "%s; the check gave no readable state (%s)", killText, seen.Detail)
		case killErr != nil:
			return say(Unconfirmed, "%s; the sandbox is still %s", killText, seen.State)
		case waited >= confirmBudget:
			return say(Unconfirmed, "%s; after %v the sandbox is still %s", killText, waited, seen.State)
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
			err = fmt.Errorf("the provider panicked: %v", r)
		}
	}()
	return f()
}
