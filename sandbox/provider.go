package sandbox

import (
	"context"
	"regexp"
	"strings"
	"time"
)

// Provider gives AstraBox sandboxes of one backend.
//
// A sandbox id has the form of [ValidID] and is constant for the sandbox's
// whole life, pause and resume included; an id of another form is refused with
// SANDBOX_NAME_INVALID before any request is made.
type Provider interface {
	// Name is the registry key, [a-z][a-z0-9_]*, the same for ever.
	Name() string
	// Capabilities states facts: no I/O, read once at registration, constant.
	Capabilities() Capabilities
	// Create makes a sandbox and returns when its handle answers. A create
	// that fails after the sandbox exists destroys it, also when ctx was
	// cancelled; if that can't be confirmed the error carries the id
	// (SANDBOX_CLEANUP_UNCONFIRMED). With CorrelatedCreate, creating again
	// under an assignment that already has a sandbox returns that sandbox.
	Create(ctx context.Context, spec CreateSpec) (Handle, error)
	// Connect reaches a running sandbox. It wakes nothing and doesn't wait for
	// health. Not there: SANDBOX_GONE. Paused: SANDBOX_NOT_RUNNING.
	Connect(ctx context.Context, sandboxID string) (Handle, error)
	// Kill asks for the sandbox's destruction. gone is true only when the
	// backend itself established that this sandbox is gone. Only
	// [ConfirmDestroyed] calls it.
	Kill(ctx context.Context, sandboxID string) (gone bool, err error)
	// Probe observes whether the sandbox exists. ErrProbeUnsupported: can't be asked.
	Probe(ctx context.Context, sandboxID string) (Observation, error)
	// Renew sets the sandbox's scheduled end to at least now+ttl and returns
	// the end that holds afterwards. It never shortens.
	Renew(ctx context.Context, sandboxID string, ttl time.Duration) (expiresAt time.Time, err error)
	// ExpiresAt gives the scheduled end; the zero time means none.
	ExpiresAt(ctx context.Context, sandboxID string) (time.Time, error)
	// EndpointNamesSandbox reports the sandbox that an endpoint URL names by
	// itself. An address that doesn't say, such as host:port, names nothing.
	EndpointNamesSandbox(endpoint string) (sandboxID string, ok bool)
	// WorkspaceRoute gives the backend's persistent storage, where it has one.
	WorkspaceRoute() (WorkspaceRoute, bool)
}

// Base gives the honest defaults of the operations that a backend may lack.
// Embed it; it has no Name, Capabilities, Create, Connect or Kill, and none of
// the optional operations.
type Base struct{}

// Probe says that the backend can't be asked.
func (Base) Probe(context.Context, string) (Observation, error) {
	return Observation{}, ErrProbeUnsupported
}

// Renew refuses.
func (Base) Renew(context.Context, string, time.Duration) (time.Time, error) {
	return time.Time{}, Errorf(CodeUnsupported, "this backend can't renew a sandbox")
}

// ExpiresAt refuses: the backend doesn't know.
func (Base) ExpiresAt(context.Context, string) (time.Time, error) {
	return time.Time{}, Errorf(CodeUnsupported, "this backend can't say when a sandbox expires")
}

// EndpointNamesSandbox says that no endpoint names a sandbox.
func (Base) EndpointNamesSandbox(string) (string, bool) { return "", false }

// WorkspaceRoute says that there is none.
func (Base) WorkspaceRoute() (WorkspaceRoute, bool) { return nil, false }

// WorkspaceRoute is a backend's persistent storage for workspaces.
type WorkspaceRoute interface {
	// Plan gives the mounts that put the workspace of that key into a sandbox.
	Plan(ctx context.Context, workspaceKey string) ([]Mount, error)
	// Remove destroys the stored workspace.
	Remove(ctx context.Context, workspaceKey string) (Destruction, error)
	// Shared reports whether several hosts reach the storage.
	Shared() bool
}

// Mount puts backend storage at an absolute path of the sandbox.
type Mount struct {
	Source, Path string
	ReadOnly     bool
}

// ObservedStatus is what a probe saw.
type ObservedStatus int

// What a probe can see. The zero value is Unknown. Any other number is read as
// ObservedError.
const (
	Unknown       ObservedStatus = iota
	ObservedOK                   // it exists; State says how it is
	ObservedGone                 // the backend says that it doesn't exist
	ObservedError                // the backend answered, but not with a readable state
)

// Observation is the answer of a probe.
type Observation struct {
	Status ObservedStatus
	State  string // the backend's own word, lower case; never empty with ObservedOK
	Detail string // plain text for people, without secrets
}

// Normal gives the observation as it is read: the state in lower case without
// space around it; ObservedOK without a state, and a status that there isn't,
// are ObservedError.
func (o Observation) Normal() Observation {
	o.State = strings.ToLower(strings.TrimSpace(o.State))
	switch {
	case o.Status == ObservedOK && o.State == "":
		return Observation{Status: ObservedError, Detail: "the backend gave no state"}
	case o.Status < Unknown || o.Status > ObservedError:
		return Observation{Status: ObservedError, Detail: "the backend gave a status that there isn't"}
	}
	return o
}

// Lost reports whether an existing sandbox will not come back by itself.
// A paused one is not lost.
func (o Observation) Lost() bool {
	switch o.State {
	case "failed", "error", "terminated":
		return o.Status == ObservedOK
	}
	return false
}

var idForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$`)

// ValidID reports whether id may be sent to a backend.
func ValidID(id string) bool {
	if !idForm.MatchString(id) {
		return false
	}
	for i := 0; i+1 < len(id); i++ {
		if id[i] == '.' && id[i+1] == '.' {
			return false
		}
	}
	return true
}

// CheckID refuses an id that must not be sent to a backend.
func CheckID(id string) error {
	if !ValidID(id) {
		return Errorf(CodeNameInvalid, "%q is not a sandbox id", id)
	}
	return nil
}

// Handle reaches one sandbox. It is cheap, safe for concurrent use, and can be
// rebuilt by Connect in another process. It may also be an io.Closer; Close
// releases local resources only.
type Handle interface {
	// SandboxID is never empty, constant across pause and resume, and the id
	// that every operation takes.
	SandboxID() string
	Files() Files
	Commands() Commands
	// Processes is [UnsupportedProcesses] where the backend has none.
	Processes() Processes
	// Endpoint gives an address of the in-sandbox port, and the headers that
	// every request to it must carry. It is for AstraBox itself, which hands it
	// to nobody. A port that isn't from 1 to 65535: SANDBOX_CONFIG_INVALID. A
	// provider may refuse its reserved ports (EXPOSE_PORT_RESERVED).
	Endpoint(ctx context.Context, port int) (Endpoint, error)
	// SignedEndpoint gives an address that itself carries a credential until
	// expiresAt, for a client that can't send headers. It is never cached. A
	// backend that can't sign: SANDBOX_SIGNED_ENDPOINT_UNSUPPORTED, never an
	// address without a credential. Reserved ports ([CheckPort]):
	// EXPOSE_PORT_RESERVED. See [BrowserLink].
	SignedEndpoint(ctx context.Context, port int, expiresAt time.Time) (Endpoint, error)
}
