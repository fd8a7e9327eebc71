package conform_test

import (
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
	"github.com/astrabox/astrabox/sandbox/sandboxfake"
)

// creating is a provider with another Create.
type creating struct {
	*sandboxfake.Provider
	create func(ctx context.Context, s sandbox.CreateSpec) (sandbox.Handle, error)
}

func (c creating) Create(ctx context.Context, s sandbox.CreateSpec) (sandbox.Handle, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return c.create(ctx, s)
}

// liveOf gives the live cases of a fake with another Create.
func liveOf(t *testing.T, create func(context.Context, *sandboxfake.Provider, sandbox.CreateSpec) (sandbox.Handle, error)) []conform.Case {
	t.Helper()
	p := sandboxfake.New(sandboxfake.Options{})
	t.Cleanup(func() { p.Close() })
	b, err := sandbox.Bind(p.Driver(), creating{p, func(ctx context.Context, s sandbox.CreateSpec) (sandbox.Handle, error) { return create(ctx, p, s) }})
	if err != nil {
		t.Fatal(err)
	}
	live := &conform.Live{Provider: b, Spec: spec, Account: sandboxfake.Account, ShortTTL: time.Second}
	t.Cleanup(func() {
		if err := live.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return live.Cases()
}

// While no sandbox can be made, the first clause that needs one says why, and
// the others aren't run: not one of them repeats it, or passes for nothing. What
// isn't declared is still told from what is.
func TestNoSandboxCanBeMade(t *testing.T) {
	nothing := func(context.Context, *sandboxfake.Provider, sandbox.CreateSpec) (sandbox.Handle, error) {
		return nil, nil
	}
	for name, tt := range map[string]struct {
		create func(context.Context, *sandboxfake.Provider, sandbox.CreateSpec) (sandbox.Handle, error)
		run    string
		first  string
		seen   string
	}{
		"refused": {func(context.Context, *sandboxfake.Provider, sandbox.CreateSpec) (sandbox.Handle, error) {
			return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the backend is down")
		}, "", "create.id", "SANDBOX_NOT_AVAILABLE: the backend is down"},
		"no handle": {nothing, "", "create.id", "neither"},
		"panics": {func(context.Context, *sandboxfake.Provider, sandbox.CreateSpec) (sandbox.Handle, error) {
			panic("boom")
		}, "", "create.id", "a panic: boom"},
		"hangs": {func(ctx context.Context, _ *sandboxfake.Provider, _ sandbox.CreateSpec) (sandbox.Handle, error) {
			time.Sleep(time.Hour)
			return nil, errors.New("in the end")
		}, "", "create.id", "it never returned"},
		"data plane only": {nothing, `^files\.`, "files.names.literal", "gave no handle"},
		"hangs, data plane only": {func(context.Context, *sandboxfake.Provider, sandbox.CreateSpec) (sandbox.Handle, error) {
			time.Sleep(time.Hour)
			return nil, errors.New("in the end")
		}, `^files\.`, "files.names.literal", "it never returned"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var only *regexp.Regexp
				if tt.run != "" {
					only = regexp.MustCompile(tt.run)
				}
				// That it is listed as a deviation makes it no success.
				r := conform.Check(t.Context(), liveOf(t, tt.create), conform.Options{Provider: "fake", Run: only, Deviations: map[string]string{tt.first: "it is down"}})
				if took := time.Since(start); took > 2*time.Minute {
					t.Errorf("it took %v", took)
				}
				first, _ := r.Find(tt.first)
				if first.Status != conform.Failed || !strings.Contains(first.Seen, tt.seen) || r.Summary.Failed != 1 || r.OK() {
					t.Errorf("%+v, %+v", first, r.Summary)
				}
				for _, c := range r.Clauses {
					if c.Status == conform.Passed || c.Status == conform.NotRun && c.Reason != "no sandbox could be made, see "+tt.first {
						t.Errorf("%s: %s %q", c.ID, c.Status, c.Reason)
					}
				}
				var text, junit strings.Builder
				if err := errors.Join(r.WriteText(&text), r.WriteJUnit(&junit)); err != nil {
					t.Fatal(err)
				}
				if n := strings.Count(text.String(), tt.seen); n != 1 {
					t.Errorf("%d times: %s", n, text.String())
				}
				if n := strings.Count(text.String(), "not-run: no sandbox could be made, see "+tt.first); n != 1 {
					t.Errorf("%d times: %s", n, text.String())
				}
				if n := strings.Count(junit.String(), "<failure"); n != 1 {
					t.Errorf("%d failures in JUnit", n)
				}
				var document struct {
					Summary map[string]int `json:"summary"`
				}
				b, err := json.Marshal(r)
				if err == nil {
					err = json.Unmarshal(b, &document)
				}
				if err != nil || document.Summary["not_run"] != r.Summary.NotRun || r.Summary.NotRun < 50 {
					t.Errorf("%v, %v", document, err)
				}
				time.Sleep(2 * time.Hour) // what hangs has ended
			})
		})
	}
}

// A create that fails later, or of a spec of its own, keeps no clause from running.
func TestSomeSandboxesCanBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int64
		r := conform.Check(t.Context(), liveOf(t, func(ctx context.Context, p *sandboxfake.Provider, s sandbox.CreateSpec) (sandbox.Handle, error) {
			if n.Add(1) == 2 || s.Dir != "" {
				return nil, sandbox.Errorf(sandbox.CodeCapacity, "busy")
			}
			return p.Create(ctx, s)
		}), conform.Options{})
		if r.Summary.NotRun != 0 || r.Summary.Failed < 2 || r.Summary.Failed > 4 {
			t.Errorf("%+v", r.Summary)
		}
	})
}

// unproven is a provider whose sandboxes nobody sees go.
type unproven struct{ *sandboxfake.Provider }

func (u unproven) Probe(ctx context.Context, id string) (sandbox.Observation, error) {
	o, err := u.Provider.Probe(ctx, id)
	if o.Status == sandbox.ObservedGone {
		return sandbox.Observation{}, sandbox.Errorf(sandbox.CodeUnavailable, "no sandbox %s", id)
	}
	return o, err
}

// spaced gives ids that can't be used.
type spaced struct{ *sandboxfake.Provider }

func (s spaced) Create(ctx context.Context, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	h, err := s.Provider.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	return renamed{h, "box " + h.SandboxID()}, nil
}

// Where a sandbox can't be destroyed with proof, no more are made, and what
// needs none says what is wrong.
func TestNoSandboxCanBeDestroyed(t *testing.T) {
	for name, tt := range map[string]struct {
		wrap   func(*sandboxfake.Provider) sandbox.Provider
		seen   []string // by create.id
		failed []string
	}{
		"an error for what is gone": {func(p *sandboxfake.Provider) sandbox.Provider { return unproven{p} },
			[]string{"is left over: the delete was accepted; the check failed (SANDBOX_NOT_AVAILABLE: no sandbox"}, []string{"create.id", "unknown.probe"}},
		"ids with a space": {func(p *sandboxfake.Provider) sandbox.Provider { return spaced{p} },
			[]string{`"box `, "afterwards the sandbox box ", "is left over: SANDBOX_NAME_INVALID"}, []string{"create.id"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := sandboxfake.New(sandboxfake.Options{})
				defer p.Close()
				b, err := sandbox.Bind(p.Driver(), tt.wrap(p))
				if err != nil {
					t.Fatal(err)
				}
				live := &conform.Live{Provider: b, Spec: spec, Account: sandboxfake.Account}
				r := conform.Check(t.Context(), live.Cases(), conform.Options{})
				if err := live.Close(t.Context()); err != nil {
					t.Error(err)
				}
				var failed []string
				for _, c := range r.Clauses {
					if c.Status == conform.Failed {
						failed = append(failed, c.ID)
					}
					if c.Status == conform.NotRun && c.Reason != "a sandbox couldn't be destroyed with proof, and no more are made, see create.id" {
						t.Errorf("%s: %s", c.ID, c.Reason)
					}
				}
				if diff := cmp.Diff(tt.failed, failed); diff != "" || r.OK() {
					t.Errorf("%+v, %s", r.Summary, diff)
				}
				first, _ := r.Find("create.id")
				for _, part := range tt.seen {
					if !strings.Contains(first.Seen, part) {
						t.Errorf("%q isn't in %q", part, first.Seen)
					}
				}
			})
		})
	}
}

// leaking leaves a sandbox behind where it refuses an image.
type leaking struct{ *sandboxfake.Provider }

func (l leaking) Create(ctx context.Context, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	h, err := l.Provider.Create(ctx, spec)
	if err != nil && spec.Image != "image" {
		spec.Image = "image"
		_, _ = l.Provider.Create(ctx, spec)
	}
	return h, err
}

// What a failed create leaves is found by a listing, too.
func TestLeftoversAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := sandboxfake.New(sandboxfake.Options{Capabilities: &sandbox.Capabilities{InventoryListing: true}})
		defer p.Close()
		b, err := sandbox.Bind(p.Driver(), leaking{p})
		if err != nil {
			t.Fatal(err)
		}
		live := &conform.Live{Provider: b, Spec: spec}
		r := conform.Check(t.Context(), live.Cases(), conform.Options{Run: regexp.MustCompile(`^create\.image$`)})
		if got, _ := r.Find("create.image"); got.Status != conform.Failed || got.Expected != "a create that failed to leave nothing" {
			t.Errorf("%+v", got)
		}
	})
}

// What is masked is never reported as kept: its clauses are not-declared, in
// the structural suite as in the live one, and what needs it goes with it.
func TestMask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := sandboxfake.New(sandboxfake.Options{})
		defer p.Close()
		for _, rule := range sandbox.Rules() {
			if !rule.Declared(p.Capabilities()) {
				continue
			}
			b, err := sandbox.Bind(p.Driver(), p, rule.Flag)
			if err != nil {
				t.Fatal(err)
			}
			live := &conform.Live{Provider: b, Spec: spec, Account: sandboxfake.Account}
			cases := append(conform.Structural(conform.Subject{Driver: p.Driver(), Provider: p, Mask: []string{rule.Flag}}), live.Cases()...)
			got, want := map[string]string{}, map[string]string{}
			for _, c := range cases {
				needs, _ := sandbox.RuleOf(c.Capability)
				if c.Capability == "" || c.Capability != rule.Flag && needs.Requires != rule.Flag {
					continue
				}
				r := c.Run(t.Context(), conform.Options{})
				got[c.ID] = string(r.Status) + ": " + r.Reason + r.Seen
				want[c.ID] = "not-declared: " + c.Capability + " is disabled here, and what it would give is refused"
			}
			if err := live.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
				t.Errorf("%s masked: %s", rule.Flag, diff)
			}
		}
	})
}
