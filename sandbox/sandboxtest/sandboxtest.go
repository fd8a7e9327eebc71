// Package sandboxtest runs the clauses of package sandbox/conform as subtests,
// each named by its id, so that go test -run reaches every one of them.
//
// A provider's test is short:
//
//	func TestProvider(t *testing.T) {
//		p, err := New(t.Context(), host)
//		…
//		sandboxtest.Provider(t, conform.Subject{Driver: driver, Provider: p, Host: host}, conform.Options{})
//		sandboxtest.Live(t, &conform.Live{Provider: bound, Spec: spec}, conform.Options{})
//	}
//
// [Provider] needs no sandbox, [DataPlane] the faces of one, [Live] a backend.
// A clause whose capability isn't declared passes when what it would give is
// refused; one that can't be tried here, one that wasn't run because no sandbox
// can be made, and a listed deviation are skipped tests with their reason.
package sandboxtest

import (
	"context"
	"testing"

	"github.com/astrabox/astrabox/sandbox/conform"
)

// Provider runs the structural clauses on a driver and the provider that its
// New made.
func Provider(t *testing.T, s conform.Subject, o conform.Options) {
	t.Helper()
	run(t, conform.Structural(s), o)
}

// Live runs the lifecycle clauses and, on one sandbox, those of the data plane.
// It destroys everything that it made, and fails where it can't.
func Live(t *testing.T, l *conform.Live, o conform.Options) {
	t.Helper()
	defer func() {
		if err := l.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	run(t, l.Cases(), o)
}

// DataPlane runs the data-plane and process clauses on one sandbox.
func DataPlane(t *testing.T, b conform.Box, o conform.Options) {
	t.Helper()
	run(t, conform.DataPlane(b), o)
}

func run(t *testing.T, cases []conform.Case, o conform.Options) {
	t.Helper()
	notRun := ""
	for _, c := range cases {
		if o.Run != nil && !o.Run.MatchString(c.ID) {
			continue
		}
		t.Run(c.ID, func(t *testing.T) {
			r := c.Run(t.Context(), o)
			if o.Observe != nil {
				o.Observe(r)
			}
			if r.Status == conform.NotRun {
				notRun = r.Reason
			}
			report(t, r)
		})
	}
	if notRun != "" && !t.Failed() {
		t.Error(notRun)
	}
	for _, r := range conform.UnknownDeviations(cases, o) {
		report(t, r)
	}
}

func report(t *testing.T, r conform.Result) {
	t.Helper()
	switch r.Status {
	case conform.Passed:
	case conform.NotDeclared:
		t.Log(r.Reason)
	case conform.Skipped, conform.NotRun:
		t.Skip(r.Reason)
	case conform.Deviation:
		t.Skipf("a known deviation: %s (expected %s; seen: %s)", r.Reason, r.Expected, r.Seen)
	default:
		t.Errorf("%s: %s\n  expected  %s\n  seen      %s", r.ID, r.Reason, r.Expected, r.Seen)
	}
}
