package state

import (
	"encoding/json"
	"slices"
	"time"

	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// Record is one row: a sandbox as the service knows it.
type Record struct {
	ID        string
	State     string // one of wire's
	Reason    string // short, for programs
	Message   string // for people; never a secret
	ChangedAt time.Time
	CreatedAt time.Time
	ExpiresAt time.Time // zero: no scheduled end
	Spec      Spec
	Metadata  map[string]string

	Key    string // Idempotency-Key of the create; empty: none
	Digest string // of the request, to tell a repetition from another request

	Run Run

	GoneAt   time.Time       // set: proven gone
	Evidence json.RawMessage // what the runtime removed and checked
}

// Gone reports whether the sandbox is proven gone.
func (r Record) Gone() bool { return !r.GoneAt.IsZero() }

// Spec is what was asked for, in the form that a resume needs. Env may hold
// secrets: it is dropped from the row when the sandbox is gone.
type Spec struct {
	Image       string            `json:"image"`
	Entrypoint  []string          `json:"entrypoint"`
	Env         map[string]string `json:"env,omitempty"`
	CPUs        float64           `json:"cpus"`
	MemoryBytes int64             `json:"memory_bytes"`
	PIDs        int64             `json:"pids"`
	DiskBytes   int64             `json:"disk_bytes"`

	// Answered as they were given.
	Platform   *wire.Platform    `json:"platform,omitempty"`
	Extensions map[string]string `json:"extensions,omitempty"`
}

// String leaves the environment out.
func (s Spec) String() string { return s.Image }

// GoString leaves the environment out.
func (s Spec) GoString() string { return s.Image }

// Run is one run of a sandbox's processes, from a create or a resume until
// they end. Its zero value means that none runs.
type Run struct {
	PID     int    // of the sandbox's PID 1, on the host
	Address string // host:port of execd
	Token   string // secret
	BootID  string // the machine's, when the run began
}

// String leaves the token out.
func (r Run) String() string { return r.Address }

// GoString leaves the token out.
func (r Run) GoString() string { return r.Address }

// transitions is the whole state machine: from each state the states that may
// follow it. A sandbox leaves Stopping only by being proven gone.
var transitions = map[string][]string{
	wire.Pending:    {wire.Running, wire.Stopping},
	wire.Running:    {wire.Pausing, wire.Paused, wire.Terminated, wire.Failed, wire.Stopping},
	wire.Pausing:    {wire.Paused, wire.Failed, wire.Stopping},
	wire.Paused:     {wire.Resuming, wire.Failed, wire.Stopping},
	wire.Resuming:   {wire.Running, wire.Paused, wire.Failed, wire.Stopping},
	wire.Terminated: {wire.Stopping},
	wire.Failed:     {wire.Stopping},
	wire.Stopping:   {},
}

// sources gives the states from which to may follow.
func sources(to string) (from []string) {
	for state, next := range transitions {
		if slices.Contains(next, to) {
			from = append(from, state)
		}
	}
	slices.Sort(from)
	return from
}
