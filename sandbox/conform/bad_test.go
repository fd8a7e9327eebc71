package conform_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
	"github.com/astrabox/astrabox/sandbox/sandboxfake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wreck is a provider whose every operation does the same bad thing.
type wreck struct{ do func() }

func (w *wreck) Name() string { w.do(); return "wreck" }
func (w *wreck) Capabilities() sandbox.Capabilities {
	w.do()
	return sandbox.Capabilities{Pause: true, CorrelatedCreate: true, InventoryListing: true}
}

func (w *wreck) Create(context.Context, sandbox.CreateSpec) (sandbox.Handle, error) {
	w.do()
	return nil, nil
}

func (w *wreck) Connect(context.Context, string) (sandbox.Handle, error) {
	w.do()
	return nil, nil
}
func (w *wreck) Kill(context.Context, string) (bool, error) { w.do(); return true, nil }
func (w *wreck) Probe(context.Context, string) (sandbox.Observation, error) {
	w.do()
	return sandbox.Observation{}, nil
}

func (w *wreck) Renew(context.Context, string, time.Duration) (time.Time, error) {
	w.do()
	return time.Time{}, nil
}

func (w *wreck) ExpiresAt(context.Context, string) (time.Time, error) {
	w.do()
	return time.Time{}, nil
}
func (w *wreck) EndpointNamesSandbox(string) (string, bool)     { w.do(); return "", true }
func (w *wreck) WorkspaceRoute() (sandbox.WorkspaceRoute, bool) { w.do(); return nil, true }
func (w *wreck) Pause(context.Context, string) (bool, error)    { w.do(); return true, nil }
func (w *wreck) Resume(context.Context, string) (bool, error)   { w.do(); return true, nil }
func (w *wreck) DescribeSandbox(context.Context, string) (sandbox.Info, error) {
	w.do()
	return sandbox.Info{}, nil
}

func (w *wreck) FindSandboxByAssignment(context.Context, string, string) (sandbox.Info, bool, error) {
	w.do()
	return sandbox.Info{}, true, nil
}

func (w *wreck) ListSandboxes(context.Context, map[string]string, string) ([]sandbox.Info, string, error) {
	w.do()
	return nil, "again", nil
}

// allCases are all cases of a provider that nobody could bind.
func allCases(p sandbox.Provider) []conform.Case {
	caps := sandbox.Capabilities{Pause: true, CorrelatedCreate: true, InventoryListing: true}
	d := sandbox.Driver{Name: "wreck", SeamVersion: sandbox.SeamVersion, Declares: caps,
		New: func(context.Context, sandbox.Host) (sandbox.Provider, error) { return p, nil }}
	cases := conform.Structural(conform.Subject{Driver: d, Provider: p})
	live := &conform.Live{Provider: &sandbox.Bound{Provider: p, Caps: caps}, Spec: spec, ShortTTL: time.Millisecond}
	return append(cases, live.Cases()...)
}

func spec() sandbox.CreateSpec {
	return sandbox.CreateSpec{Image: "image", ResourceLimits: map[string]string{"memory": "1Gi"}, ResourceRequests: map[string]string{"memory": "1Gi"}}
}

// Whatever a provider does, every clause ends, most as failures that say what
// was seen, and the host lives. What hangs is named.
func TestBadProvidersAreReported(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(release <-chan struct{})
		says string // in at least one failure
	}{
		"answers nonsense": {func(<-chan struct{}) {}, "neither"},
		"panics":           {func(<-chan struct{}) { panic("wrecked") }, "a panic: wrecked, in conform_test."},
		"blocks for ever":  {func(release <-chan struct{}) { <-release }, "left behind in goroutine"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				release := make(chan struct{})
				defer synctest.Wait()
				defer close(release)
				cases := allCases(&wreck{func() { tt.do(release) }})
				r := conform.Check(t.Context(), cases, conform.Options{})
				if len(r.Clauses) != len(cases) {
					t.Errorf("%d of %d clauses were reported", len(r.Clauses), len(cases))
				}
				says := false
				for _, c := range r.Clauses {
					says = says || c.Status == conform.Failed && strings.Contains(c.Seen, tt.says)
				}
				if !says || r.Summary.Failed+r.Summary.NotRun < len(cases)/2 {
					t.Errorf("%+v, of which none says %q", r.Summary, tt.says)
				}
			})
		})
	}
}

func TestNoProvider(t *testing.T) {
	for name, p := range map[string]sandbox.Provider{"nil": nil, "a nil pointer": (*wreck)(nil)} {
		r := conform.Check(t.Context(), conform.Structural(conform.Subject{Provider: p}), conform.Options{})
		if got, _ := r.Find("provider.present"); got.Status != conform.Failed || r.Summary.Failed != 1 || r.Summary.Passed != 0 {
			t.Errorf("%s: %+v, %+v", name, got, r.Summary)
		}
	}
}

// A provider whose sandboxes are another's: everything it hands out names one
// that somebody else uses, which must survive the suite.
func TestIDsThatLie(t *testing.T) { synctest.Test(t, idsThatLie) }

func idsThatLie(t *testing.T) {
	p := sandboxfake.New(sandboxfake.Options{})
	defer p.Close()
	others, err := p.Create(t.Context(), func() sandbox.CreateSpec {
		s := spec()
		s.InstallationID, s.OwnerID, s.AssignmentID = "another", "o", "a"
		return s
	}())
	if err != nil {
		t.Fatal(err)
	}
	liar := &renaming{Provider: p, to: others.SandboxID()}
	b, err := sandbox.Bind(p.Driver(), liar)
	if err != nil {
		t.Fatal(err)
	}
	live := &conform.Live{Provider: b, Spec: spec}
	r := conform.Check(t.Context(), live.Cases(), conform.Options{})
	if err := live.Close(t.Context()); err != nil {
		t.Log(err)
	}
	if r.Summary.Failed == 0 {
		t.Errorf("%+v", r.Summary)
	}
	if got, err := p.Probe(t.Context(), others.SandboxID()); err != nil || got.Status != sandbox.ObservedOK {
		t.Errorf("the suite destroyed a sandbox that it didn't make: %+v, %v", got, err)
	}
}

// renaming gives handles that say they are another sandbox.
type renaming struct {
	*sandboxfake.Provider
	to string
}

func (r *renaming) Create(ctx context.Context, s sandbox.CreateSpec) (sandbox.Handle, error) {
	h, err := r.Provider.Create(ctx, s)
	if err != nil {
		return nil, err
	}
	return renamed{h, r.to}, nil
}

type renamed struct {
	sandbox.Handle
	id string
}

func (r renamed) SandboxID() string { return r.id }
