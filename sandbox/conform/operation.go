package conform

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

var providerNameForm = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// operation is a call that takes a sandbox id.
type operation struct {
	id      string // in the ids of clauses
	method  string
	flag    string       // the capability it belongs to
	missing sandbox.Code // of a sandbox that isn't there
	// ask calls it on the provider itself and describes what a success said.
	ask func(ctx context.Context, b backend, id string) (answer string, err error)
}

// operations are all that take an id. Base's defaults may refuse Renew and
// ExpiresAt as unsupported, and Probe as one that can't be asked.
var operations = []operation{
	{"connect", "Connect", "", sandbox.CodeGone, func(ctx context.Context, b backend, id string) (string, error) {
		h, err := b.Connect(ctx, id)
		if err == nil && missing(h) {
			return "no handle", nil
		}
		return "a handle", err
	}},
	{"kill", "Kill", "", sandbox.CodeNotFound, func(ctx context.Context, b backend, id string) (string, error) {
		gone, err := b.Kill(ctx, id)
		if err != nil && gone {
			return "", fmt.Errorf("gone beside an error: %w", err)
		}
		return fmt.Sprintf("gone %v", gone), err
	}},
	{"probe", "Probe", "", "", func(ctx context.Context, b backend, id string) (string, error) {
		o, err := b.Probe(ctx, id)
		return fmt.Sprintf("%s %q", statusWord(o.Status), o.State), err
	}},
	{"renew", "Renew", "", sandbox.CodeNotFound, func(ctx context.Context, b backend, id string) (string, error) {
		at, err := b.Renew(ctx, id, time.Hour)
		return endText(at), err
	}},
	{"expires", "ExpiresAt", "", sandbox.CodeNotFound, func(ctx context.Context, b backend, id string) (string, error) {
		at, err := b.ExpiresAt(ctx, id)
		return endText(at), err
	}},
	{"pause", "Pause", "Pause", sandbox.CodeNotFound, func(ctx context.Context, b backend, id string) (string, error) {
		ok, err := b.Pauser.Pause(ctx, id)
		return fmt.Sprintf("paused %v", ok), err
	}},
	{"resume", "Resume", "Pause", sandbox.CodeNotFound, func(ctx context.Context, b backend, id string) (string, error) {
		ok, err := b.Pauser.Resume(ctx, id)
		return fmt.Sprintf("running %v", ok), err
	}},
	{"describe", "DescribeSandbox", "InventoryListing", sandbox.CodeNotFound, func(ctx context.Context, b backend, id string) (string, error) {
		i, err := b.Inventory.DescribeSandbox(ctx, id)
		return fmt.Sprintf("sandbox %q, state %q", i.ID, i.State), err
	}},
}

func statusWord(s sandbox.ObservedStatus) string {
	switch s {
	case sandbox.Unknown:
		return "unknown"
	case sandbox.ObservedOK:
		return "ok"
	case sandbox.ObservedGone:
		return "gone"
	case sandbox.ObservedError:
		return "error"
	}
	return fmt.Sprintf("status %d", int(s))
}

// unsupported reports whether err says that the backend lacks operation o, as
// Base's defaults do for the three that a backend may lack.
func (o operation) unsupported(err error) bool {
	switch o.id {
	case "probe":
		return isErr(err, sandbox.ErrProbeUnsupported)
	case "renew", "expires":
		return isErr(err, sandbox.ErrUnsupported)
	}
	return false
}
