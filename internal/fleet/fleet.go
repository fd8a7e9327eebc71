// Package fleet is the platform's side of the sandbox seam: it obtains,
// reaches, pauses and destroys sandboxes for whoever owns them, and keeps the
// rows that make every step survive a crash.
//
// Package conversation decides what a sandbox should do and calls it. An
// assignment is stored before the backend is asked for anything, a ledger entry
// before anything is destroyed; [Fleet.Run] retries the ledger for ever and
// sweeps sandboxes of this installation that no row names. All methods are safe
// for concurrent use. Errors are the seam's, or *fault.Error.
package fleet

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
	"github.com/astrabox/astrabox/sandbox"
)

// Config is what a Fleet is made of. Zero durations take the defaults named.
type Config struct {
	InstallationID string
	Backends       []*sandbox.Bound
	Installed      []string // names of all backends of this program, enabled or not
	Store          *store.Store
	Log            *slog.Logger

	Lease         time.Duration // of a sandbox that is used: 4 h
	CreateTimeout time.Duration // 3 min
	CallTimeout   time.Duration // of every other call: 60 s
	SweepEvery    time.Duration // 5 min
	SweepGrace    time.Duration // younger sandboxes are left alone: 10 min
	// OnDestroyed is called after a destruction that belongs to a conversation
	// was proven by the ledger's loop. It must not block.
	OnDestroyed func(conversationID string)
}

// Fleet reaches the sandboxes of the enabled backends.
type Fleet struct {
	cfg      Config
	backends map[string]*sandbox.Bound
	log      *slog.Logger
	kick     chan struct{} // the ledger has a new entry

	mu       sync.Mutex
	verdicts map[string]*verdict // destructions under way, by backend and id
}

// New makes a Fleet.
func New(c Config) *Fleet {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Lease, 4*time.Hour)
	def(&c.CreateTimeout, 3*time.Minute)
	def(&c.CallTimeout, time.Minute)
	def(&c.SweepEvery, 5*time.Minute)
	def(&c.SweepGrace, 10*time.Minute)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	f := &Fleet{cfg: c, backends: map[string]*sandbox.Bound{}, log: c.Log,
		kick: make(chan struct{}, 1), verdicts: map[string]*verdict{}}
	for _, b := range c.Backends {
		f.backends[b.Name()] = b
	}
	return f
}

// Ref names a sandbox.
type Ref struct{ Backend, ID string }

// Caps gives the backend's capabilities; the zero value for an unknown one.
func (f *Fleet) Caps(backend string) sandbox.Capabilities {
	if b, ok := f.backends[backend]; ok {
		return b.Caps
	}
	return sandbox.Capabilities{}
}

func (f *Fleet) backend(name string) (*sandbox.Bound, error) {
	if b, ok := f.backends[name]; ok {
		return b, nil
	}
	if slices.Contains(f.cfg.Installed, name) {
		return nil, sandbox.Errorf(sandbox.CodeBackendDisabled, "The sandbox backend %q is installed but not enabled; add it to ASTRABOX_SANDBOX_BACKENDS.", name)
	}
	return nil, sandbox.Errorf(sandbox.CodeBackendUnknown, "The sandbox backend %q is not installed. Installed: %s.", name, strings.Join(f.cfg.Installed, ", "))
}

// Plan makes the assignment of a new sandbox for a conversation. It asks
// nobody; the caller stores it before Create.
func (f *Fleet) Plan(conversationID string, e model.Environment) (*model.Assignment, error) {
	if _, err := f.backend(e.Backend); err != nil {
		return nil, err
	}
	a := &model.Assignment{ID: model.NewID(model.PrefixAssignment), ConversationID: conversationID, Backend: e.Backend}
	spec := sandbox.CreateSpec{
		InstallationID: f.cfg.InstallationID, OwnerID: conversationID, AssignmentID: a.ID,
		Image: e.Image, Env: e.Env, ResourceLimits: e.Limits, ResourceRequests: e.Requests,
		TTL: f.cfg.Lease, RequireCommandChannel: true,
	}
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	var err error
	if a.Spec, err = json.Marshal(spec); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(a.Spec)
	a.Digest = hex.EncodeToString(sum[:])
	return a, nil
}

// Create obtains the sandbox of a stored assignment. resumed says that an
// earlier process may have asked for it already: then the backend is asked
// what became of that, and where it can't say the answer is
// SANDBOX_CREATE_INTERRUPTED and nothing is created.
func (f *Fleet) Create(ctx context.Context, a *model.Assignment, resumed bool) (sandbox.Handle, error) {
	b, err := f.backend(a.Backend)
	if err != nil {
		return nil, err
	}
	var spec sandbox.CreateSpec
	if err := json.Unmarshal(a.Spec, &spec); err != nil {
		return nil, fmt.Errorf("read the specification of %s: %w", a.ID, err)
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CreateTimeout)
	defer cancel()
	if resumed {
		if b.Finder == nil {
			return nil, sandbox.Errorf(sandbox.CodeCreateInterrupted, "the start of the sandbox was interrupted, and the backend %s can't say what became of it", b.Name())
		}
		info, found, err := b.Finder.FindSandboxByAssignment(ctx, spec.InstallationID, a.ID)
		if err != nil {
			return nil, err
		}
		if found {
			h, err := b.Connect(ctx, info.ID)
			if err == nil {
				return h, nil
			}
			if !isGone(err) {
				return nil, err
			}
		}
	}
	h, err := b.Create(ctx, spec)
	if err == nil {
		return h, nil
	}
	f.noteLeftover(ctx, a, err)
	return nil, err
}

// noteLeftover puts a sandbox into the ledger that a failed create couldn't
// clean up.
func (f *Fleet) noteLeftover(ctx context.Context, a *model.Assignment, cause error) {
	var e *sandbox.Error
	if !errors.As(cause, &e) || e.SandboxID == "" || e.Code != sandbox.CodeCleanupUnconfirmed {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := f.cfg.Store.Update(ctx, func(t *store.Tx) error {
		return t.AddToLedger(model.LedgerEntry{Backend: a.Backend, SandboxID: e.SandboxID, Reason: "a failed create left it"})
	})
	if err != nil {
		// The sweep finds it: its assignment will be closed.
		f.log.Error("a sandbox that a failed create left could not be noted", "sandbox", e.SandboxID, "err", err)
		return
	}
	f.Kick()
}

// FindAssigned gives the sandbox that an interrupted assignment made. found
// false without an error: there is none. A backend that can't be asked:
// SANDBOX_CREATE_INTERRUPTED.
func (f *Fleet) FindAssigned(ctx context.Context, a *model.Assignment) (sandboxID string, found bool, err error) {
	b, err := f.backend(a.Backend)
	if err != nil {
		return "", false, err
	}
	if b.Finder == nil {
		return "", false, sandbox.Errorf(sandbox.CodeCreateInterrupted, "the backend %s can't say what became of an interrupted create", b.Name())
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
	defer cancel()
	info, found, err := b.Finder.FindSandboxByAssignment(ctx, f.cfg.InstallationID, a.ID)
	return info.ID, found, err
}

// Connect reaches a running sandbox.
func (f *Fleet) Connect(ctx context.Context, r Ref) (sandbox.Handle, error) {
	b, err := f.backend(r.Backend)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
	defer cancel()
	return b.Connect(ctx, r.ID)
}

// Sight is what a look at a sandbox established.
type Sight int

// The sights. SeenUnknown changes nothing.
const (
	SeenUnknown Sight = iota
	SeenRunning
	SeenPaused
	SeenGone // the backend says that it doesn't exist
	SeenDead // it exists, but won't come back by itself
)

// Look asks the backend about a sandbox. reason is for people.
func (f *Fleet) Look(ctx context.Context, r Ref) (s Sight, reason string) {
	b, err := f.backend(r.Backend)
	if err != nil {
		return SeenUnknown, fault.From(err).Public
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
	defer cancel()
	o, err := b.Probe(ctx, r.ID)
	switch {
	case err != nil:
		return SeenUnknown, "the backend could not be asked"
	case o.Status == sandbox.ObservedGone:
		return SeenGone, "the backend says that it no longer exists"
	case o.Lost():
		return SeenDead, "the backend says that it is " + o.State
	case o.Status != sandbox.ObservedOK:
		return SeenUnknown, "the backend gave no readable state"
	case strings.HasPrefix(o.State, "paus") && o.State != "pausing":
		return SeenPaused, "it is paused"
	case o.State == "running" || o.State == "ready":
		return SeenRunning, ""
	}
	return SeenUnknown, "the backend says that it is " + o.State
}

// Renew extends a sandbox's lease to at least ttl from now, and gives the end
// that holds afterwards.
func (f *Fleet) Renew(ctx context.Context, r Ref, ttl time.Duration) (time.Time, error) {
	b, err := f.backend(r.Backend)
	if err != nil {
		return time.Time{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
	defer cancel()
	return b.Renew(ctx, r.ID, ttl)
}

// Pause pauses a sandbox and reports whether that is established. A first
// answer that leaves it open is followed by one look.
func (f *Fleet) Pause(ctx context.Context, r Ref) (paused bool, err error) {
	b, err := f.backend(r.Backend)
	if err != nil {
		return false, err
	}
	if b.Pauser == nil {
		return false, sandbox.Missing("Pause", b.Name())
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
	defer cancel()
	paused, err = b.Pauser.Pause(ctx, r.ID)
	if paused && err == nil {
		return true, nil
	}
	if seen, _ := f.Look(context.WithoutCancel(ctx), r); seen == SeenPaused {
		return true, nil
	}
	return false, err
}

// Resume resumes a sandbox and connects to it. An error says nothing about the
// sandbox: the caller looks.
func (f *Fleet) Resume(ctx context.Context, r Ref) (sandbox.Handle, error) {
	b, err := f.backend(r.Backend)
	if err != nil {
		return nil, err
	}
	if b.Pauser == nil {
		return nil, sandbox.Missing("Pause", b.Name())
	}
	ctx, cancel := context.WithTimeout(ctx, f.cfg.CallTimeout)
	defer cancel()
	running, err := b.Pauser.Resume(ctx, r.ID)
	if err != nil || !running {
		if seen, reason := f.Look(ctx, r); seen != SeenRunning {
			if err == nil {
				err = sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox did not resume in time: %s", reason)
			}
			return nil, err
		}
	}
	return b.Connect(ctx, r.ID)
}

// isGone reports whether an error says that the sandbox doesn't exist. It is
// read from the code only.
func isGone(err error) bool {
	return errors.Is(err, sandbox.ErrGone) || errors.Is(err, sandbox.ErrNotFound)
}

// Retryable reports whether the identical call may succeed soon.
func Retryable(err error) bool {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return e.Retryable && e.Code != sandbox.CodeCleanupUnconfirmed
	}
	return errors.Is(err, sandbox.ErrUnreachable)
}
