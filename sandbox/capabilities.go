package sandbox

import (
	"context"
	"slices"
	"time"
)

// Capabilities says what a backend supports. A flag declared true without what
// its row of [Rules] names is refused at registration, so that a half-declared
// capability fails when the provider is installed and not at the first
// conversation that needs it; an interface implemented while its flag is false
// is not used.
//
// Every boolean field is a flag with a rule. Compare with Equal.
type Capabilities struct {
	CreateNetworkPolicy       bool // [NetworkAdmitter]
	IsolatedSessions          bool // [IsolatedSessions]
	IsolatedSessionRecovery   bool // [IsolatedSessionRecovery]; needs IsolatedSessions
	Pause                     bool // [Pauser]
	ClientPool                bool // [ClientPool]
	CorrelatedCreate          bool // [AssignmentFinder]
	EgressCredentialInjection bool // [CredentialInjector]
	InventoryListing          bool // [Inventory]
	ProcessSessions           bool // the handle's Processes

	// PermissionLevels are the levels that sandboxes of the backend can be made
	// under and attest. Nil means default only; a list that isn't nil names each
	// of its levels once. See [PermissionLevel].
	PermissionLevels []PermissionLevel
}

// Equal reports whether both declare the same. The order of levels doesn't count.
func (c Capabilities) Equal(o Capabilities) bool {
	for _, r := range rules {
		if r.get(c) != r.get(o) {
			return false
		}
	}
	a, b := c.Levels(), o.Levels()
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

// Levels gives the permission levels, of which there is always one.
func (c Capabilities) Levels() []PermissionLevel {
	if c.PermissionLevels == nil {
		return []PermissionLevel{PermissionDefault}
	}
	return slices.Clone(c.PermissionLevels)
}

// Pauser goes with Capabilities.Pause.
//
// The boolean is evidence and not an acknowledgement: true only when the
// sandbox was seen to be paused (running); false without an error means that
// this couldn't be established in time, and the caller looks with Probe. The id
// stays. Files stay. Processes, isolated sessions and terminals end, and their
// ids are not found afterwards. Pausing what is paused, and resuming what
// runs, is success.
//
// After Resume addresses of ports may differ: the caller connects anew, and
// restores the credential vault, isolated sessions and what else lived in
// memory. A pause that failed leaves the sandbox running.
type Pauser interface {
	Pause(ctx context.Context, sandboxID string) (paused bool, err error)
	Resume(ctx context.Context, sandboxID string) (running bool, err error)
}

// AssignmentFinder goes with Capabilities.CorrelatedCreate, which decides what
// a restart in the middle of a create can recover. With it AstraBox asks for
// the sandbox that an interrupted start may have made, and continues with it.
// Without it each sandbox is created once and never asked for, and the
// interrupted start is refused (SANDBOX_CREATE_INTERRUPTED).
type AssignmentFinder interface {
	// FindSandboxByAssignment finds the sandbox that one create attempt made, by
	// its ownership metadata. found false means that there is none. Two matches:
	// SANDBOX_ASSIGNMENT_AMBIGUOUS, refusing to choose. What can't be asked is an
	// error, never "none".
	FindSandboxByAssignment(ctx context.Context, installationID, assignmentID string) (info Info, found bool, err error)
}

// Inventory goes with Capabilities.InventoryListing. AstraBox finds with it
// the sandboxes of its installation that nobody names any more.
type Inventory interface {
	// ListSandboxes gives one page of the sandboxes that carry all of the
	// metadata; the first page has the name "". next is empty on the last page.
	// A listing that failed is an error, never an empty page. Sandboxes come and
	// go meanwhile: one that exists from the first page to the last is in it.
	ListSandboxes(ctx context.Context, metadata map[string]string, page string) (infos []Info, next string, err error)
	// DescribeSandbox describes one; unknown: SANDBOX_NOT_FOUND.
	DescribeSandbox(ctx context.Context, sandboxID string) (Info, error)
}

// Info describes a sandbox from the outside, as the backend tells it; nothing
// in it is inferred.
type Info struct {
	ID        string
	State     string // the backend's own word, lower case
	Reason    string
	Image     string
	Metadata  map[string]string
	CreatedAt time.Time
	ExpiresAt time.Time // zero: none
}

// NetworkAdmitter goes with Capabilities.CreateNetworkPolicy: Create makes each
// sandbox under its spec's NetworkPolicy, from its first packet on. Denied
// ranges ([MetadataRange] and the backend's own) come before every allow, also
// when the policy is unrestricted.
type NetworkAdmitter interface {
	// AdmitRuntimeEgress opens a running sandbox's network for what it needs
	// now: the policy's hosts and each host that the plan's credentials are
	// bound to, as an exact allow. It adds what is missing and removes nothing,
	// and sends nothing when nothing is missing. It runs before
	// ApplyCredentialVault, because a binding to a host that isn't allowed would
	// be refused. [EgressRulesFor] computes the wanted rules.
	AdmitRuntimeEgress(ctx context.Context, sandboxID string, p NetworkPolicy, plan VaultPlan) error
}

// CredentialInjector goes with Capabilities.EgressCredentialInjection: real
// credentials are kept outside the sandbox, and put in the place of their
// placeholders when a request leaves it for a host that they are meant for.
type CredentialInjector interface {
	// ApplyCredentialVault makes the sandbox's vault what the plan says. See
	// [VaultPlan] for what is replaced, left alone and revoked. A revision lost
	// to another writer is read again and retried; the substitutions of others
	// that use the same vault are kept. No error holds a secret value.
	ApplyCredentialVault(ctx context.Context, sandboxID string, plan VaultPlan) error
}
