package conform

import (
	"context"
	"errors"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func aCase(id, capability string, declared bool, check, refusal func(context.Context) error) Case {
	return Case{Info: Info{ID: id, Doc: "It holds.", Capability: capability}, declared: declared, check: check, refusal: refusal}
}

func good(context.Context) error { return nil }
func bad(context.Context) error  { return Unmet("one", "two of %d", 3) }

func TestStatuses(t *testing.T) {
	cases := []Case{
		aCase("a.good", "", false, good, nil),
		aCase("a.bad", "", false, bad, nil),
		aCase("a.plain", "", false, func(context.Context) error { return errors.New("broke s3cret") }, nil),
		aCase("a.skip", "", false, func(context.Context) error { return Skip("no %s", "net") }, nil),
		aCase("b.declared", "Pause", true, good, bad),
		aCase("b.refused", "Pause", false, bad, good),
		aCase("b.notrefused", "Pause", false, good, bad),
		aCase("c.known", "", false, bad, nil),
		aCase("c.passes", "", false, good, nil),
		{Info: Info{ID: "d.left"}, left: "nothing there", check: bad},
	}
	rep := Check(t.Context(), cases, Options{Provider: "p", Secrets: []string{"s3cret", ""},
		Deviations: map[string]string{"c.known": "known", "c.passes": "was broken", "c.none": "?"}})
	got := map[string][2]string{}
	for _, r := range rep.Clauses {
		got[r.ID] = [2]string{string(r.Status), r.Seen}
	}
	want := map[string][2]string{
		"a.good":       {"passed", ""},
		"a.bad":        {"failed", "two of 3"},
		"a.plain":      {"failed", "broke [secret]"},
		"a.skip":       {"skipped", ""},
		"b.declared":   {"passed", ""},
		"b.refused":    {"not-declared", ""},
		"b.notrefused": {"failed", "two of 3"},
		"c.known":      {"deviation", "two of 3"},
		"c.passes":     {"failed", "the promise is kept"},
		"c.none":       {"failed", "?"},
		"d.left":       {"not-run", ""},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(Summary{Passed: 2, Failed: 5, Deviations: 1, NotDeclared: 1, Skipped: 1, NotRun: 1}, rep.Summary); d != "" {
		t.Error(d)
	}
	if rep.OK() {
		t.Error("a run with failures is OK")
	}
	only := Check(t.Context(), cases, Options{Run: regexp.MustCompile(`^b\.`)})
	if len(only.Clauses) != 3 {
		t.Errorf("-run ^b kept %d", len(only.Clauses))
	}
}

func TestPanicAndGoexitAreFailures(t *testing.T) {
	for name, f := range map[string]func(context.Context) error{
		"panic: kaput": func(context.Context) error { panic("kaput") },
		"Goexit":       func(context.Context) error { runtime.Goexit(); return nil },
	} {
		r := aCase("x", "", false, f, nil).Run(t.Context(), Options{})
		if r.Status != Failed || !strings.Contains(r.Seen, name) {
			t.Errorf("%s: %+v", name, r)
		}
	}
	r := aCase("x", "", false, func(context.Context) error { explode(nil); return nil }, nil).Run(t.Context(), Options{})
	if !strings.Contains(r.Seen, "conform.explode (run_test.go:") {
		t.Errorf("the place isn't named: %q", r.Seen)
	}
}

//go:noinline
func explode(m map[string]int) { m["a"] = 1 }

func TestBlockedClauseIsLeftBehindAndNamed(t *testing.T) {
	release := make(chan struct{})
	ended := make(chan struct{})
	cleaned := false
	c := aCase("x", "", false, func(context.Context) error { defer close(ended); hangAround(release); return nil }, nil)
	c.after = func(context.Context) error { cleaned = true; return nil }
	r := c.Run(t.Context(), Options{Timeout: 20 * time.Millisecond, Grace: 20 * time.Millisecond})
	close(release)
	<-ended
	if r.Status != Failed || !strings.Contains(r.Seen, "conform.hangAround (run_test.go:") {
		t.Errorf("%+v", r)
	}
	if !cleaned {
		t.Error("no clean-up")
	}
}

//go:noinline
func hangAround(c chan struct{}) { <-c }

func TestClauseThatHeedsItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := aCase("x", "", false, func(ctx context.Context) error { <-ctx.Done(); return NoError("asking", ctx.Err()) }, nil).
			Run(t.Context(), Options{Timeout: time.Hour})
		if r.Status != Failed || !strings.Contains(r.Seen, "1h0m0s were over") || time.Since(start) != time.Hour {
			t.Errorf("%+v after %v", r, time.Since(start))
		}
	})
}

func TestCleanUpThatFailsIsAFailure(t *testing.T) {
	c := aCase("x", "", false, good, nil)
	c.after = bad
	if r := c.Run(t.Context(), Options{}); r.Status != Failed {
		t.Errorf("%+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := c.Run(ctx, Options{}); r.Status != NotRun {
		t.Errorf("after the end of the run: %+v", r)
	}
}

func TestReportForms(t *testing.T) {
	rep := Check(t.Context(), []Case{aCase("a.good", "", false, good, nil), aCase("a.bad", "", false, bad, nil),
		aCase("b.refused", "Pause", false, bad, good)}, Options{Provider: "p<"})
	for i := range rep.Clauses {
		rep.Clauses[i].Ms = 1234
	}
	var text, junit strings.Builder
	if err := errors.Join(rep.WriteText(&text), rep.WriteJUnit(&junit)); err != nil {
		t.Fatal(err)
	}
	wantText := `FAILED: a.bad
  promise   It holds.
  expected  one
  seen      two of 3

not-declared: Pause isn't declared, and what it would give is refused
  b.refused

p<: 1 passed, 1 failed, 0 deviations, 1 not declared, 0 skipped
`
	if d := cmp.Diff(wantText, text.String()); d != "" {
		t.Error(d)
	}
	for _, want := range []string{`<testsuite name="provider p&lt;" tests="3" failures="1" skipped="1" time="3.702">`,
		`<testcase name="a.good" classname="p&lt;" time="1.234"></testcase>`, "expected: one&#xA;seen: two of 3"} {
		if !strings.Contains(junit.String(), want) {
			t.Errorf("no %s in %s", want, junit.String())
		}
	}
}
