package opensandbox

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// Kill implements sandbox.Provider. A service says that it accepted a delete,
// not that the sandbox is gone, so one observation follows; a 404 may also
// come from something that isn't about this sandbox, so it is checked too.
func (p *Provider) Kill(ctx context.Context, id string) (gone bool, err error) {
	if err := sandbox.CheckID(id); err != nil {
		return false, err
	}
	err = p.api.do(ctx, call{method: http.MethodDelete, path: sandboxPath(id), timeout: max(p.api.timeout, killTimeout), twice: true}, nil)
	var r *refusal
	missing := errors.As(err, &r) && r.status == http.StatusNotFound
	if err != nil && !missing {
		return false, failed(err, id, sandbox.CodeNotFound)
	}
	seen, err := p.Probe(ctx, id)
	switch {
	case err != nil:
		return false, err
	case seen.Status == sandbox.ObservedGone:
		return true, nil
	case seen.Status == sandbox.ObservedOK && missing:
		p.log.Error("a delete was answered with 404, but the sandbox is there", "sandbox", id, "state", seen.State)
		return false, nil
	case seen.Status == sandbox.ObservedOK:
		return false, nil
	}
	return false, sandbox.Errorf(sandbox.CodeUnavailable, "whether sandbox %s is gone couldn't be seen: %s", id, seen.Detail)
}

// killTimeout is for services whose delete answers when everything is removed.
const killTimeout = 60 * time.Second

// How often and how long an asynchronous change is watched.
const (
	pollFirst  = 20 * time.Millisecond
	pollMax    = 3 * time.Second
	pollBudget = 300 * time.Second
)

// Pause implements sandbox.Pauser.
func (p *Provider) Pause(ctx context.Context, id string) (bool, error) {
	return p.change(ctx, id, "pause", isPaused, isRunning, statePausing)
}

// Resume implements sandbox.Pauser.
func (p *Provider) Resume(ctx context.Context, id string) (bool, error) {
	return p.change(ctx, id, "resume", isRunning, isPaused, stateResuming)
}

// mayHaveBegun reports whether a change may be under way though the request for
// it failed: it conflicts with one that is, or its answer was lost, perhaps in a
// proxy that didn't wait for it.
func mayHaveBegun(err error) bool {
	var r *refusal
	if errors.As(err, &r) {
		return r.status == http.StatusConflict || r.status >= 500 && r.code == ""
	}
	return !unsent(err)
}

// change asks for a pause or resume and watches until the sandbox is as wanted
// (true), lost or back where it was (false), or the time is up (false). A request
// that failed is no failure when the sandbox is, or becomes, as wanted all the
// same, and one when nothing was seen of a change.
func (p *Provider) change(ctx context.Context, id, operation string, wanted, before func(string) bool, during string) (bool, error) {
	if err := sandbox.CheckID(id); err != nil {
		return false, err
	}
	asked := p.api.do(ctx, call{method: http.MethodPost, path: sandboxPath(id, operation), timeout: p.ready}, nil)
	if asked != nil && !mayHaveBegun(asked) {
		return false, failed(asked, id, sandbox.CodeNotFound)
	}
	deadline, wait, begun := time.Now().Add(pollBudget), pollFirst, false
	for {
		seen, err := p.Probe(ctx, id)
		switch {
		case err != nil:
			return false, err
		case ctx.Err() != nil:
			return false, ctx.Err()
		case seen.Status == sandbox.ObservedGone:
			return false, sandbox.Errorf(sandbox.CodeNotFound, "sandbox %s is gone", id)
		case seen.Status != sandbox.ObservedOK: // a service that restarts; asked again
		case wanted(seen.State):
			return true, nil
		case isLost(seen.State), seen.State == stateStopping:
			return false, nil
		case seen.State == during:
			begun = true
		case asked != nil: // refused, and not on the way
			return false, failed(asked, id, sandbox.CodeNotFound)
		case begun && before(seen.State): // it didn't work
			return false, nil
		}
		if !time.Now().Before(deadline) {
			if begun {
				return false, nil
			}
			return false, failed(asked, id, sandbox.CodeNotFound)
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, pollMax)
	}
}
