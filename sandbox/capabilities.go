package sandbox

import (
	"context"
	"time"
)

// Capabilities says what a backend supports. A flag declared true without what
// its row of [Rules] names is refused at registration; an interface implemented
// while its flag is false is not used.
type Capabilities struct {
	Pause            bool
	CorrelatedCreate bool
	InventoryListing bool
	ProcessSessions  bool
}

// Pauser goes with Capabilities.Pause. The boolean is evidence that the
// sandbox is now paused (running), not an acknowledgement; false without an
// error means that this couldn't be established in time. The id stays; files
// stay; processes end.
type Pauser interface {
	Pause(ctx context.Context, sandboxID string) (paused bool, err error)
	Resume(ctx context.Context, sandboxID string) (running bool, err error)
}

// AssignmentFinder goes with Capabilities.CorrelatedCreate. It finds the
// sandbox that one create attempt made: found false means that there is none.
// Two matches: SANDBOX_ASSIGNMENT_AMBIGUOUS.
type AssignmentFinder interface {
	FindSandboxByAssignment(ctx context.Context, installationID, assignmentID string) (info Info, found bool, err error)
}

// Inventory goes with Capabilities.InventoryListing.
type Inventory interface {
	// ListSandboxes gives one page of the sandboxes that carry all of the
	// metadata. next is empty on the last page. A listing that failed is an
	// error, never an empty page.
	ListSandboxes(ctx context.Context, metadata map[string]string, page string) (infos []Info, next string, err error)
	// DescribeSandbox describes one; unknown: SANDBOX_NOT_FOUND.
	DescribeSandbox(ctx context.Context, sandboxID string) (Info, error)
}

// Info describes a sandbox from the outside.
type Info struct {
	ID        string
	State     string // the backend's own word, lower case
	Reason    string
	Image     string
	Metadata  map[string]string
	CreatedAt time.Time
	ExpiresAt time.Time // zero: none
}

// Rule ties a capability flag to what a provider that declares it must implement.
type Rule struct {
	Flag  string // the name of the Capabilities field
	Needs string // what must be implemented, for messages and docs
	Doc   string // what the flag gives, in a sentence
	get   func(Capabilities) bool
	bind  func(Provider, *Bound) bool // resolves the interface; false: not implemented
}

// Declared reports the flag in c.
func (r Rule) Declared(c Capabilities) bool { return r.get(c) }

// Rules is the single source for registration, conformance, texts and docs.
func Rules() []Rule {
	return []Rule{
		{"Pause", "Pause and Resume (sandbox.Pauser)", "A sandbox can be paused and resumed under the same id; its files stay.",
			func(c Capabilities) bool { return c.Pause },
			func(p Provider, b *Bound) (ok bool) { b.Pauser, ok = p.(Pauser); return ok }},
		{"CorrelatedCreate", "FindSandboxByAssignment (sandbox.AssignmentFinder)", "A create that a restart interrupted can be found and continued.",
			func(c Capabilities) bool { return c.CorrelatedCreate },
			func(p Provider, b *Bound) (ok bool) { b.Finder, ok = p.(AssignmentFinder); return ok }},
		{"InventoryListing", "ListSandboxes and DescribeSandbox (sandbox.Inventory)", "The backend's sandboxes can be listed by their metadata.",
			func(c Capabilities) bool { return c.InventoryListing },
			func(p Provider, b *Bound) (ok bool) { b.Inventory, ok = p.(Inventory); return ok }},
		{"ProcessSessions", "the handle's Processes (checked at Create and Connect)", "Long-lived processes with replay: terminals and Agent programs.",
			func(c Capabilities) bool { return c.ProcessSessions },
			func(Provider, *Bound) bool { return true }},
	}
}
