package fleet_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/fleet"
	"github.com/astrabox/astrabox/internal/fleet/fleettest"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
	"github.com/astrabox/astrabox/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counted counts the deletes that reach the backend.
type counted struct {
	sandbox.Provider
	kills atomic.Int64
	gate  atomic.Pointer[gate]
}

// gate holds deletes up until it is opened.
type gate struct {
	open  <-chan struct{}
	begun chan struct{} // closed at the first delete
	once  sync.Once
}

// hold has deletes wait until open is closed; begun says when one waits.
func (c *counted) hold(open <-chan struct{}) (begun <-chan struct{}) {
	g := &gate{open: open, begun: make(chan struct{})}
	c.gate.Store(g)
	return g.begun
}

func (c *counted) Kill(ctx context.Context, id string) (bool, error) {
	c.kills.Add(1)
	if g := c.gate.Load(); g != nil {
		g.once.Do(func() { close(g.begun) })
		select {
		case <-g.open:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return c.Provider.Kill(ctx, id)
}

// rig is a fleet over an in-memory backend, in a synctest bubble.
type rig struct {
	*testing.T
	backend *fleettest.Backend
	count   *counted
	bound   *sandbox.Bound
	store   *store.Store
	config  fleet.Config

	mu        sync.Mutex
	destroyed []string
}

func inRig(t *testing.T, f func(*rig)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := &rig{T: t, backend: fleettest.New()}
		bound, _ := r.backend.Bound(fleettest.Caps)
		r.bound = bound.Clone()
		r.count = &counted{Provider: r.bound.Provider}
		r.bound.Provider = r.count
		s, err := store.Open(t.Context(), filepath.Join(dir, "x.db"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			r.backend.Close()
		}()
		r.store = s
		r.config = fleet.Config{InstallationID: "inst", Backends: []*sandbox.Bound{r.bound}, Installed: []string{"fake", "other"}, Store: s,
			OnDestroyed: func(id string) {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.destroyed = append(r.destroyed, id)
			}}
		f(r)
	})
}

// run lets the fleet work for a time.
func (r *rig) run(d time.Duration) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), d)
	defer cancel()
	if err := fleet.New(r.config).Run(ctx); err != nil {
		r.Error(err)
	}
}

// ours is the metadata of a sandbox of this installation.
func ours(owner string) map[string]string {
	return map[string]string{sandbox.KeyManagedBy: sandbox.ManagedBy, sandbox.KeyInstallation: "inst", sandbox.KeySessionID: owner, sandbox.KeyAssignmentID: "asg_x"}
}

func (r *rig) condemn(e model.LedgerEntry) {
	r.Helper()
	if e.Backend == "" {
		e.Backend = "fake"
	}
	if err := r.store.Update(r.Context(), func(t *store.Tx) error { return t.AddToLedger(e) }); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) entry(id string) *model.LedgerEntry {
	r.Helper()
	e, err := r.store.LedgerEntry(r.Context(), "fake", id)
	if err != nil {
		r.Fatal(err)
	}
	return e
}

func (r *rig) open() int64 {
	r.Helper()
	n, err := r.store.OpenLedgerCount(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// An unconfirmed sandbox is in the ledger once, is tried for ever, and leaves it
// on the proof and not before.
func TestUnconfirmedIsRetriedUntilProven(t *testing.T) {
	inRig(t, func(r *rig) {
		id := r.backend.Plant(ours("conv_1"), time.Hour)
		r.backend.Set(func(b *fleettest.Backend) { b.KillKeeps = true })
		for range 5 {
			r.condemn(model.LedgerEntry{SandboxID: id, ConversationID: "conv_1", Reason: "deleted"})
		}
		r.run(24 * time.Hour)
		e := r.entry(id)
		told := strings.Contains(e.Detail, "running") || strings.Contains(e.Detail, "cancelled") // by the end of the day
		if r.open() != 1 || e.Outcome != string(sandbox.Unconfirmed) || !told || !e.EndedAt.IsZero() || len(r.destroyed) != 0 {
			t.Fatalf("%d open, %+v, said to be destroyed: %v", r.open(), e, r.destroyed)
		}
		if e.Attempts < 24*60/15 || r.count.kills.Load() != e.Attempts {
			t.Errorf("%d attempts with %d deletes in a day", e.Attempts, r.count.kills.Load())
		}
		// A restart changes nothing; the proof ends it.
		r.backend.Set(func(b *fleettest.Backend) { b.KillKeeps = false })
		r.run(20 * time.Minute)
		e = r.entry(id)
		if r.open() != 0 || e.Outcome != string(sandbox.Gone) || e.EndedAt.IsZero() || len(r.backend.Boxes()) != 0 {
			t.Errorf("%d open, %+v, left %v", r.open(), e, r.backend.Boxes())
		}
		if diff := cmp.Diff([]string{"conv_1"}, r.destroyed); diff != "" {
			t.Errorf("said to be destroyed:\n%s", diff)
		}
		before := r.count.kills.Load()
		r.run(time.Hour)
		if r.count.kills.Load() != before {
			t.Error("what is proven gone was destroyed again")
		}
		// Condemned again, it is looked at again: ids are never used twice.
		r.condemn(model.LedgerEntry{SandboxID: id, Reason: "again"})
		r.run(time.Minute)
		if r.open() != 0 || r.count.kills.Load() != before+1 {
			t.Errorf("%d open after %d deletes", r.open(), r.count.kills.Load()-before)
		}
	})
}

// A clean stop waits for a destruction that is under way, and tries what isn't
// due yet once more; with an end of its own.
func TestFinish(t *testing.T) {
	inRig(t, func(r *rig) {
		waits := r.backend.Plant(ours("conv_1"), time.Hour)
		r.backend.Set(func(b *fleettest.Backend) { b.KillKeeps = true })
		r.condemn(model.LedgerEntry{SandboxID: waits, ConversationID: "conv_1", Reason: "deleted"})
		r.run(time.Hour)
		tried := r.entry(waits).Attempts
		r.backend.Set(func(b *fleettest.Backend) { b.KillKeeps = false })
		running := r.backend.Plant(ours("conv_2"), time.Hour)
		r.condemn(model.LedgerEntry{SandboxID: running, ConversationID: "conv_2", Reason: "deleted"})
		hold := make(chan struct{})
		begun := r.count.hold(hold)

		f := fleet.New(r.config)
		ctx, stop := context.WithCancel(r.Context())
		defer stop()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := f.Run(ctx); err != nil {
				r.Error(err)
			}
		})
		<-begun // the loop destroys the one that is due
		wg.Go(func() {
			if err := f.Finish(r.Context()); err != nil {
				r.Error(err)
			}
			stop()
		})
		synctest.Wait()
		if r.open() == 0 || ctx.Err() != nil {
			t.Error("Finish didn't wait for the destruction that is under way")
		}
		close(hold)
		wg.Wait()
		if r.open() != 0 || len(r.backend.Boxes()) != 0 || r.entry(waits).Attempts != tried+1 || r.entry(running).Attempts != 1 {
			t.Errorf("%d open, left %v, %d and %d attempts", r.open(), r.backend.Boxes(), r.entry(waits).Attempts-tried, r.entry(running).Attempts)
		}

		// One that can't be destroyed doesn't hold the stop up for ever.
		r.condemn(model.LedgerEntry{SandboxID: r.backend.Plant(ours("conv_3"), time.Hour), Reason: "deleted"})
		r.count.hold(make(chan struct{}))
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
		defer cancel()
		began := time.Now()
		_ = f.Finish(ctx) // the store may have been read in time or not
		if took := time.Since(began); took > 11*time.Second || r.open() != 1 {
			t.Errorf("Finish took %s, %d open", took, r.open())
		}
	})
}

func TestAProbeThatFailsProvesNothing(t *testing.T) {
	inRig(t, func(r *rig) {
		id := r.backend.Plant(ours("conv_1"), time.Hour)
		r.backend.Set(func(b *fleettest.Backend) { b.ProbeErr = errors.New("no route") })
		r.condemn(model.LedgerEntry{SandboxID: id, Reason: "deleted"})
		r.run(time.Hour)
		if e := r.entry(id); r.open() != 1 || e.Outcome != string(sandbox.Unconfirmed) {
			t.Errorf("%d open, %+v", r.open(), e)
		}
		r.backend.Set(func(b *fleettest.Backend) { b.ProbeErr = nil })
		r.run(20 * time.Minute)
		if r.open() != 0 {
			t.Error("it isn't proven although the backend can be asked again")
		}
	})
}

// Only what is ours is destroyed, and what is refused keeps its entry.
func TestRefused(t *testing.T) {
	with := func(k, v string) map[string]string {
		m := ours("conv_1")
		m[k] = v
		return m
	}
	for name, meta := range map[string]map[string]string{
		"another installation": with(sandbox.KeyInstallation, "other"),
		"another manager":      with(sandbox.KeyManagedBy, "somebody"),
		"another owner":        with(sandbox.KeySessionID, "conv_2"),
		"no owner":             with(sandbox.KeySessionID, ""),
		"no metadata":          nil,
	} {
		t.Run(name, func(t *testing.T) {
			inRig(t, func(r *rig) {
				id := r.backend.Plant(meta, time.Hour)
				r.condemn(model.LedgerEntry{SandboxID: id, ConversationID: "conv_1", Reason: "deleted"})
				r.run(time.Hour)
				e := r.entry(id)
				if e.Outcome != string(sandbox.Refused) || r.open() != 1 || r.count.kills.Load() != 0 || r.backend.Boxes()[id] != "running" || len(r.destroyed) != 0 {
					t.Errorf("%+v, %d open, %d deletes, %v", e, r.open(), r.count.kills.Load(), r.backend.Boxes())
				}
				r.backend.Lose(id)
				r.run(20 * time.Minute)
				if e := r.entry(id); e.Outcome != string(sandbox.Gone) || r.open() != 0 {
					t.Errorf("once it is gone: %+v", e)
				}
			})
		})
	}
}

// inventory answers in the backend's place.
type inventory struct {
	sandbox.Inventory
	describe func(id string) (sandbox.Info, error)
}

func (i inventory) DescribeSandbox(_ context.Context, id string) (sandbox.Info, error) {
	return i.describe(id)
}

func TestWhoseItIsCantBeAsked(t *testing.T) {
	inRig(t, func(r *rig) {
		id := r.backend.Plant(ours("conv_1"), time.Hour)
		plain := r.bound.Inventory
		r.bound.Inventory = inventory{plain, func(string) (sandbox.Info, error) {
			return sandbox.Info{}, sandbox.Errorf(sandbox.CodeUnavailable, "no route")
		}}
		r.condemn(model.LedgerEntry{SandboxID: id, Reason: "deleted"})
		r.run(time.Hour)
		if e := r.entry(id); e.Outcome != string(sandbox.Unconfirmed) || r.open() != 1 || r.count.kills.Load() != 0 || !strings.Contains(e.Detail, "no route") {
			t.Errorf("%+v after %d deletes", e, r.count.kills.Load())
		}
		// A backend that lists nothing destroys what the row names.
		r.bound.Inventory = nil
		r.run(20 * time.Minute)
		if r.open() != 0 || r.count.kills.Load() != 1 {
			t.Errorf("%d open after %d deletes", r.open(), r.count.kills.Load())
		}
	})
}

func TestSettles(t *testing.T) {
	for _, tt := range []struct {
		outcome sandbox.Outcome
		in, id  string
		want    bool
	}{
		{sandbox.Gone, "a", "a", true}, {sandbox.Gone, "b", "a", false},
		{sandbox.Retained, "a", "a", true}, {sandbox.Retained, "b", "a", false},
		{sandbox.Unconfirmed, "a", "a", false}, {sandbox.Refused, "a", "a", false},
		{sandbox.NothingNamed, "", "", true}, {sandbox.NothingNamed, "", "a", false},
		{"", "a", "a", false}, {"sure", "a", "a", false},
	} {
		if got := fleet.Settles(sandbox.Destruction{SandboxID: tt.in, Outcome: tt.outcome}, tt.id); got != tt.want {
			t.Errorf("%q of %q settles %q: %v", tt.outcome, tt.in, tt.id, got)
		}
	}
}

// A row that names nothing isn't tried for ever.
func TestNothingNamed(t *testing.T) {
	inRig(t, func(r *rig) {
		r.condemn(model.LedgerEntry{SandboxID: "", Reason: "a row without a name"})
		r.run(time.Hour)
		if e := r.entry(""); e.Outcome != string(sandbox.NothingNamed) || e.Attempts != 1 || r.open() != 0 || r.count.kills.Load() != 0 {
			t.Errorf("%+v after %d deletes", e, r.count.kills.Load())
		}
	})
}

// What a backend holds that isn't enabled any more stays in the ledger until it is.
func TestBackendThatIsNotEnabled(t *testing.T) {
	inRig(t, func(r *rig) {
		id := r.backend.Plant(ours("conv_1"), time.Hour)
		r.condemn(model.LedgerEntry{SandboxID: id, Reason: "deleted"})
		enabled := r.config.Backends
		for installed, code := range map[string]string{"fake": "not enabled", "other": "not installed"} {
			r.config.Backends, r.config.Installed = nil, []string{installed}
			r.run(time.Hour)
			if e := r.entry(id); r.open() != 1 || !strings.Contains(e.Detail, code) {
				t.Errorf("%d open, %+v", r.open(), e)
			}
		}
		r.config.Backends = enabled
		r.run(20 * time.Minute)
		if r.open() != 0 || len(r.backend.Boxes()) != 0 {
			t.Errorf("%d open, left %v", r.open(), r.backend.Boxes())
		}
	})
}

func TestUnknownAndDisabledBackends(t *testing.T) {
	inRig(t, func(r *rig) {
		f := fleet.New(r.config)
		for name, code := range map[string]sandbox.Code{"other": sandbox.CodeBackendDisabled, "k8s": sandbox.CodeBackendUnknown, "": sandbox.CodeBackendUnknown} {
			_, err := f.Connect(r.Context(), fleet.Ref{Backend: name, ID: "a"})
			_, plan := f.Plan("conv_1", model.Environment{Backend: name})
			for _, err := range []error{err, plan} {
				if sandbox.CodeOf(err) != code || !strings.Contains(err.Error(), name) {
					t.Errorf("%q: %v, want %s", name, err, code)
				}
			}
		}
	})
}

// Two callers share one destruction.
func TestOneDestructionAtATime(t *testing.T) {
	inRig(t, func(r *rig) {
		id := r.backend.Plant(ours("conv_1"), time.Hour)
		r.backend.Set(func(b *fleettest.Backend) { b.KillKeeps = true })
		r.condemn(model.LedgerEntry{SandboxID: id, Reason: "deleted"})
		f := fleet.New(r.config)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if d, err := f.Destroy(r.Context(), fleet.Ref{Backend: "fake", ID: id}); err != nil || d.Outcome != sandbox.Unconfirmed {
					t.Errorf("%+v %v", d, err)
				}
			})
		}
		wg.Wait()
		if r.count.kills.Load() != 1 || r.entry(id).Attempts != 1 {
			t.Errorf("%d deletes, %d attempts", r.count.kills.Load(), r.entry(id).Attempts)
		}
	})
}

// pool claims one sandbox as its own.
type pool struct {
	sandbox.ClientPool
	member string
}

func (p pool) OwnsUnclaimedSandbox(i sandbox.Info) bool { return i.ID == p.member }

// isolated counts sessions.
type isolated struct {
	sandbox.IsolatedSessions
	count func(id string) (int, error)
}

func (i isolated) CountActiveIsolatedSessions(_ context.Context, id string) (int, error) {
	return i.count(id)
}

// The sweep leaves alone what the pool prepares, what holds sessions, and what
// can't be asked.
func TestSweepLeavesAlone(t *testing.T) {
	inRig(t, func(r *rig) {
		plant := func() string { return r.backend.Plant(ours("conv_1"), time.Hour) }
		plain, member, busy, mute, asleep := plant(), plant(), plant(), plant(), plant()
		r.bound.Pool = pool{member: member}
		r.bound.Isolated = isolated{count: func(id string) (int, error) {
			switch id {
			case busy:
				return 2, nil
			case mute:
				return 0, sandbox.ErrUnreachable
			case asleep:
				return 0, sandbox.Errorf(sandbox.CodeNotRunning, "it is paused")
			}
			return 0, nil
		}}
		r.run(6 * time.Minute)
		want := map[string]string{member: "running", busy: "running", mute: "running"}
		if diff := cmp.Diff(want, r.backend.Boxes()); diff != "" {
			t.Errorf("of %s and %s, which nobody names:\n%s", plain, asleep, diff)
		}
	})
}
