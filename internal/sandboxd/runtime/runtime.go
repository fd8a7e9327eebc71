// Package runtime answers "make, stop, bring back and remove the sandboxes of
// one machine". The lifecycle service in internal/sandboxd calls it; package
// oci implements it with an OCI runtime.
//
// Nothing here keeps a database: what exists is read from the kernel and from
// the state directory, so an instance that replaces a killed one sees the
// truth. The caller keeps what the kernel can't tell: the token of a running
// sandbox, its Spec, its lease.
//
// All methods may be called concurrently. Calls for one id wait for each
// other (a wait ends with its context); calls for different ids don't.
// Errors carry no token and no environment value.
package runtime

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// ExecdPort is the TCP port on a sandbox's own address where its execd listens.
const ExecdPort = wire.Port

// HostImage is the name of the image that is this machine's own /usr under a
// synthesized root. It is the only image that every Runtime knows.
const HostImage = "astrabox:host"

var (
	// ErrInvalid marks a Spec or id that can't be used; nothing was made.
	ErrInvalid = errors.New("invalid")
	// ErrImageUnknown marks an image that this runtime can't provide.
	ErrImageUnknown = errors.New("unknown image")
	// ErrExists marks a Create of an id that already exists.
	ErrExists = errors.New("already exists")
	// ErrNotFound marks a Stop, Resume or Wait of an id that doesn't exist.
	ErrNotFound = errors.New("not found")
	// ErrExhausted marks a machine that has no address or id range left.
	ErrExhausted = errors.New("exhausted")
	// ErrClosed marks a call after Close.
	ErrClosed = errors.New("runtime is closed")
)

// Spec says what a sandbox is. Resume takes it again: limits, environment and
// entrypoint may differ from those of Create, the image may not.
type Spec struct {
	// ID is 1 to 64 characters of [a-z0-9-], starting with a letter or digit.
	ID string
	// Image is HostImage or what the implementation documents.
	Image string
	// Entrypoint is the program under execd and its arguments. Empty: one that
	// only waits.
	Entrypoint []string
	// Env is the environment of the entrypoint. It stands in files that only
	// root can read, and the sandbox sees it. PATH and HOME have defaults.
	Env map[string]string
	// CPUs is the share of processors, 1.5 for one and a half. Zero: no limit.
	CPUs float64
	// MemoryBytes limits memory and swap together. Zero: no limit.
	MemoryBytes int64
	// PIDs limits processes and threads. Zero: no limit.
	PIDs int64
	// DiskBytes is what the sandbox's own files may take. Zero: no limit. It is
	// watched rather than enforced: past it, processes that go on writing are
	// killed within seconds.
	DiskBytes int64
}

// Running is a sandbox whose execd answers.
type Running struct {
	// PID is that of the sandbox's process 1, as this machine counts.
	PID int
	// Addr is execd's address. Only this machine reaches it.
	Addr netip.AddrPort
	// Token is what execd asks for. It changes with every Create and Resume and
	// can't be read back later.
	Token string
}

// Status is what a sandbox is, seen from the kernel.
type Status string

// The states of a sandbox.
const (
	// StatusAbsent: nothing of it exists.
	StatusAbsent Status = "absent"
	// StatusStopped: its files exist, no process does. A sandbox whose process 1
	// ended by itself is stopped too.
	StatusStopped Status = "stopped"
	// StatusRunning: its process 1 lives.
	StatusRunning Status = "running"
)

// State is the answer of Inspect.
type State struct {
	Status Status
	// PID and Addr are set while running.
	PID  int
	Addr netip.AddrPort
	// MemoryBytes and PIDs are what the sandbox uses now, zero unless running.
	MemoryBytes, PIDs int64
	// DiskBytes is what its files took when last measured, zero before and where
	// DiskBytes isn't limited.
	DiskBytes int64
	// OOMKills counts processes that the memory limit killed since the start.
	OOMKills int64
}

// Exit says how process 1 ended.
type Exit struct {
	// Known is false where the kernel can't tell (before 6.15, or when the
	// process had ended before Wait was called).
	Known bool
	// Code is the exit status, 128+n for signal n.
	Code int
	// Signal is "SIGKILL" and the like, empty for an ordinary exit.
	Signal string
}

// Evidence is the record of a Destroy: what was there, what was done, and what
// was seen afterwards.
type Evidence struct {
	ID string `json:"id"`
	// Found lists what existed when Destroy began; empty when nothing did.
	Found []string `json:"found"`
	// Killed are the processes that were sent SIGKILL, as this machine counts.
	Killed []int `json:"killed,omitempty"`
	// Checks are made after everything was removed.
	Checks []Check `json:"checks"`
	// Trash is the renamed directory whose deletion goes on in the background.
	Trash     string        `json:"trash,omitempty"`
	StartedAt time.Time     `json:"started_at"`
	Took      time.Duration `json:"took_ns"`
}

// Check is one thing that was looked for after a Destroy. Gone is always true
// in the Evidence of a Destroy without an error.
type Check struct {
	What   string `json:"what"`
	Gone   bool   `json:"gone"`
	Detail string `json:"detail,omitempty"`
}

// Runtime makes sandboxes on this machine.
type Runtime interface {
	// Create makes and starts a sandbox and returns when its execd answered
	// GET /ping. Whatever step fails or is cancelled, nothing is left behind.
	// ErrInvalid, ErrImageUnknown, ErrExists, ErrExhausted.
	Create(ctx context.Context, s Spec) (Running, error)
	// Stop ends every process of the sandbox, gives its memory and its address
	// back, and keeps its files. Stopping a stopped one does nothing.
	Stop(ctx context.Context, id string) error
	// Resume starts a stopped sandbox on its files, with a new token. A running
	// one gives ErrExists: its token isn't known here. After a failure the
	// sandbox is stopped, as before.
	Resume(ctx context.Context, s Spec) (Running, error)
	// Destroy removes a sandbox, running or not, made completely or not. It
	// returns without an error only when no process, mount, link, cgroup,
	// firewall entry or directory is left; the files wait under another name
	// for their deletion. Destroying what doesn't exist succeeds. After an
	// error it may be called again.
	Destroy(ctx context.Context, id string) (Evidence, error)
	// Inspect reads the state from the kernel. StatusAbsent is no error.
	Inspect(ctx context.Context, id string) (State, error)
	// List gives the ids of which anything exists on this machine for this
	// installation, sorted.
	List(ctx context.Context) ([]string, error)
	// Wait returns when the process pid, process 1 of sandbox id, has ended.
	// It works for sandboxes that an earlier instance started. A pid that isn't
	// the sandbox's process 1 any more counts as ended, with an unknown status.
	// What a process that ended by itself leaves (mounts, link, cgroup) goes
	// with Stop or Destroy.
	Wait(ctx context.Context, id string, pid int) (Exit, error)
	// Close ends background work. Sandboxes stay as they are. With removeAll
	// the firewall table, the cgroup parent, the address lease and the run
	// directory go too; that is refused while any sandbox runs.
	Close(removeAll bool) error
}
