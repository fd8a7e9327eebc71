package sandbox

import (
	"context"
	"errors"
	"strings"
	"time"
)

// ClientPool goes with Capabilities.ClientPool: sandboxes that are made and
// prepared before anybody needs them. The backend keeps them; AstraBox says how
// many, makes and prepares each through the two functions that it gives, and
// claims one when a conversation starts.
//
// A member is published, that is, may be acquired, only after its preparer
// returned nil. One that was made and never published is reclaimed before the
// next is made. Several AstraBox processes share a pool by its name. Sweeps
// leave alone what OwnsUnclaimedSandbox claims.
type ClientPool interface {
	// EnsureClientPool starts the pool of that name, or joins it, and returns
	// without waiting for members. The functions are called while the pool is
	// kept filled, from other goroutines, until RetireClientPool or the
	// provider's Close; a process that only joins may never be asked to fill it.
	// A retired name stays fenced for a while: SANDBOX_CLIENT_POOL_UNAVAILABLE.
	EnsureClientPool(ctx context.Context, s PoolSpec, create PoolCreator, prepare PoolPreparer) error
	// AcquireFromClientPool takes one published member, to which nobody else
	// gets. nil without an error means that the pool is honestly empty; a pool
	// that is broken or can't be asked is an error (SANDBOX_CLIENT_POOL_UNAVAILABLE).
	AcquireFromClientPool(ctx context.Context, s PoolSpec) (Handle, error)
	// AdoptSandbox writes a claimed member's new owner and assignment into its
	// metadata, before AstraBox stores that the sandbox is used. Afterwards
	// OwnsUnclaimedSandbox is false for it.
	AdoptSandbox(ctx context.Context, sandboxID, ownerID, assignmentID string) error
	// DescribeClientPool reads the inventory and starts nothing. An unknown
	// pool has State PoolNotStarted.
	DescribeClientPool(ctx context.Context, name string) (PoolStatus, error)
	// RetireClientPool fences the name and destroys the members that nobody
	// acquired, with proof, and never one that was just acquired. The verdicts
	// that aren't Gone name what is left; the caller keeps their ids in its
	// ledger and starts no cold sandbox in the place of one of them.
	RetireClientPool(ctx context.Context, name string) ([]Destruction, error)
	// OwnsUnclaimedSandbox reports whether a sandbox of the inventory is a
	// member, published or being prepared, that nobody has claimed. No I/O: the
	// metadata says it.
	OwnsUnclaimedSandbox(i Info) bool
	// ClientPoolReadiness is nil when pools can be kept in this deployment, or
	// says what is missing. Configuration that asks for prepared sandboxes is
	// refused with that text. No I/O.
	ClientPoolReadiness() error
}

// PoolCreator makes one member. The provider calls it with a spec that carries
// the identity of the member (owner and assignment of the pool's own), and gets
// the rest of it filled in.
type PoolCreator func(ctx context.Context, m PoolMember) (CreateSpec, error)

// PoolPreparer prepares a member that was made. An error, and ctx's end, mean
// that the member is destroyed and never published.
type PoolPreparer func(ctx context.Context, m PoolMember, h Handle) error

// PoolMember is the identity of a member that nobody has claimed. The same
// member of the same pool has the same identity in every process, so that one
// that a crash left can be found again.
type PoolMember struct {
	Pool         string
	Index        int // from 0; a capacity whose members can't be told apart is refused
	OwnerID      string
	AssignmentID string
}

// PoolSpec describes a pool.
type PoolSpec struct {
	Name           string
	Image          string
	MaxIdle        int           // members that wait, at most; above 0
	IdleTimeout    time.Duration // lease of a member that waits; above 0
	PrepareTimeout time.Duration // above 0
}

// Validate names the first bad field (SANDBOX_CONFIG_INVALID).
func (s PoolSpec) Validate() error {
	switch {
	case s.Name == "" || s.Name != strings.TrimSpace(s.Name) || hasControl(s.Name) || len(s.Name) > 253:
		return Errorf(CodeInvalid, "Name: a pool's name has 1 to 253 characters and no space around it")
	case s.Image == "" || s.Image != strings.TrimSpace(s.Image):
		return Errorf(CodeInvalid, "Image: is empty or has space around it")
	case s.MaxIdle < 1:
		return Errorf(CodeInvalid, "MaxIdle: %d is not above zero", s.MaxIdle)
	case s.IdleTimeout <= 0:
		return Errorf(CodeInvalid, "IdleTimeout: %v is not above zero", s.IdleTimeout)
	case s.PrepareTimeout <= 0:
		return Errorf(CodeInvalid, "PrepareTimeout: %v is not above zero", s.PrepareTimeout)
	}
	return nil
}

// PoolState is where a pool is in its life.
type PoolState string

// The states of a pool.
const (
	PoolNotStarted PoolState = "not_started"
	PoolRunning    PoolState = "running"
	PoolRetired    PoolState = "retired"
)

// PoolStatus is what DescribeClientPool reads.
type PoolStatus struct {
	Name      string
	State     PoolState
	Ready     bool     // a member can be acquired now
	Idle      []string // ids of the published members
	MaxIdle   int
	Filling   int // members that are being made or prepared
	Failures  int // in a row
	Backoff   bool
	LastError string // plain text for people, without secrets
}

// PoolStore keeps small records for the pools of a provider, shared by every
// AstraBox process of the installation and kept across restarts. A provider
// gets it in its Host, which is nil in that field where the deployment has none;
// ClientPoolReadiness then says so. A provider whose backend keeps pools itself
// doesn't need it.
type PoolStore interface {
	// Load reads a record. version counts its changes; 0: there is none, which
	// is no error.
	Load(ctx context.Context, key string) (value []byte, version int64, err error)
	// Save writes a record if its version is still the one given (0: if there is
	// none) and gives the new version; otherwise ErrPoolConflict. A value has at
	// most 64 KiB, a key 200 bytes.
	Save(ctx context.Context, key string, value []byte, version int64) (newVersion int64, err error)
	// Delete removes a record of that version; a missing one is success.
	Delete(ctx context.Context, key string, version int64) error
	// Keys lists the keys with a prefix in order, at most 1000.
	Keys(ctx context.Context, prefix string) ([]string, error)
}

// ErrPoolConflict: another process changed the record first.
var ErrPoolConflict = errors.New("sandbox: the pool's record was changed meanwhile")
