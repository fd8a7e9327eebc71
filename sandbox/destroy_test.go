package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func TestConfirmDestroyed(t *testing.T) {
	ok := sandbox.Observation{Status: sandbox.ObservedOK, State: "running"}
	gone := sandbox.Observation{Status: sandbox.ObservedGone}
	type seen struct {
		o   sandbox.Observation
		err error
	}
	// in turn gives one answer after the other, and the last for ever.
	inTurn := func(answers ...seen) func(int) (sandbox.Observation, error) {
		return func(n int) (sandbox.Observation, error) {
			a := answers[min(n, len(answers))-1]
			return a.o, a.err
		}
	}
	always := func(o sandbox.Observation, err error) func(int) (sandbox.Observation, error) {
		return inTurn(seen{o, err})
	}
	after := func(n int, o sandbox.Observation, err error) func(int) (sandbox.Observation, error) {
		answers := make([]seen, n)
		for i := range answers {
			answers[i] = seen{ok, nil}
		}
		return inTurn(append(answers, seen{o, err})...)
	}
	slow := func(took time.Duration, f func(int) (sandbox.Observation, error)) func(int) (sandbox.Observation, error) {
		return func(n int) (sandbox.Observation, error) { time.Sleep(took); return f(n) }
	}
	accepted := func() (bool, error) { return false, nil }
	proven := func() (bool, error) { return true, nil }
	failed := func() (bool, error) { return false, errors.New("refused") }
	boom := func() (bool, error) { panic("boom") }
	cantAsk := fmt.Errorf("acme: %w", sandbox.ErrProbeUnsupported)

	tests := []struct {
		name   string
		id     string
		kill   func() (bool, error)
		probe  func(int) (sandbox.Observation, error)
		want   sandbox.Outcome
		kills  int
		probes int
		wait   time.Duration
		says   []string
	}{
		{"nothing named", "", accepted, always(gone, nil), sandbox.NothingNamed, 0, 0, 0, nil},
		{"blank", " \t", accepted, always(gone, nil), sandbox.NothingNamed, 0, 0, 0, nil},
		{"bad id is never sent", "../x", accepted, always(gone, nil), sandbox.Unconfirmed, 0, 0, 0, nil},
		{"gone at once", "a", accepted, always(gone, nil), sandbox.Gone, 1, 1, 0, []string{"accepted", "no such sandbox"}},
		{"gone although the delete failed", "a", failed, always(gone, nil), sandbox.Gone, 1, 1, 0, []string{"failed (refused)"}},
		{"gone although the delete panicked", "a", boom, always(gone, nil), sandbox.Gone, 1, 1, 0, []string{"panicked: boom"}},
		{"true with an error is a failed delete", "a", func() (bool, error) { return true, errors.New("refused") }, always(ok, nil), sandbox.Unconfirmed, 1, 1, 0, []string{"failed", "still running"}},
		{"kill's own word is no proof", "a", proven, always(ok, nil), sandbox.Unconfirmed, 1, 21, 20 * time.Second, []string{"after 20s", "running"}},
		{"accepted and still there", "a", accepted, always(ok, nil), sandbox.Unconfirmed, 1, 21, 20 * time.Second, []string{"after 20s", "running"}},
		{"asynchronous delete", "a", accepted, after(3, gone, nil), sandbox.Gone, 1, 4, 3 * time.Second, nil},
		{"gone at the last look", "a", accepted, after(20, gone, nil), sandbox.Gone, 1, 21, 20 * time.Second, nil},
		{"too late", "a", accepted, after(21, gone, nil), sandbox.Unconfirmed, 1, 21, 20 * time.Second, nil},
		{"slow probes use up the time", "a", accepted, slow(4500*time.Millisecond, always(ok, nil)), sandbox.Unconfirmed, 1, 4, 21 * time.Second, []string{"after 21s"}},
		{"half a second isn't rounded away", "a", accepted, slow(1600*time.Millisecond, always(ok, nil)), sandbox.Unconfirmed, 1, 9, 22400 * time.Millisecond, nil},
		{"a state in capitals is read", "a", accepted, inTurn(seen{sandbox.Observation{Status: sandbox.ObservedOK, State: " Terminating "}, nil}, seen{gone, nil}), sandbox.Gone, 1, 2, time.Second, nil},
		{"states are told in lower case", "a", failed, always(sandbox.Observation{Status: sandbox.ObservedOK, State: "RUNNING"}, nil), sandbox.Unconfirmed, 1, 1, 0, []string{"still running"}},
		{"paused is still there", "a", failed, always(sandbox.Observation{Status: sandbox.ObservedOK, State: "paused"}, nil), sandbox.Unconfirmed, 1, 1, 0, []string{"paused"}},
		{"terminated is still there", "a", accepted, always(sandbox.Observation{Status: sandbox.ObservedOK, State: "terminated"}, nil), sandbox.Unconfirmed, 1, 21, 20 * time.Second, []string{"terminated"}},
		{"still there after a failed delete", "a", failed, always(ok, nil), sandbox.Unconfirmed, 1, 1, 0, nil},
		{"probe failed", "a", accepted, always(sandbox.Observation{}, errors.New("no route")), sandbox.Unconfirmed, 1, 1, 0, []string{"no route"}},
		{"probe failed with the answer gone", "a", accepted, always(gone, errors.New("no route")), sandbox.Unconfirmed, 1, 1, 0, nil},
		{"probe says not found as an error", "a", accepted, always(sandbox.Observation{}, sandbox.Errorf(sandbox.CodeNotFound, "no")), sandbox.Unconfirmed, 1, 1, 0, nil},
		{"probe failed later", "a", accepted, after(2, sandbox.Observation{}, errors.New("no route")), sandbox.Unconfirmed, 1, 3, 2 * time.Second, nil},
		{"the backend failed to look", "a", accepted, always(sandbox.Observation{Status: sandbox.ObservedError, Detail: "500"}, nil), sandbox.Unconfirmed, 1, 1, 0, []string{"500"}},
		{"unknown is not gone", "a", accepted, always(sandbox.Observation{}, nil), sandbox.Unconfirmed, 1, 1, 0, nil},
		{"a status that there isn't", "a", accepted, always(sandbox.Observation{Status: 9, State: "gone"}, nil), sandbox.Unconfirmed, 1, 1, 0, nil},
		{"a negative status", "a", accepted, always(sandbox.Observation{Status: -1}, nil), sandbox.Unconfirmed, 1, 1, 0, nil},
		{"an empty state is no state", "a", accepted, always(sandbox.Observation{Status: sandbox.ObservedOK, State: " "}, nil), sandbox.Unconfirmed, 1, 1, 0, nil},
		{"can't probe, kill said gone", "a", proven, always(sandbox.Observation{}, cantAsk), sandbox.Gone, 1, 1, 0, []string{"rests on", "delete alone"}},
		{"can't probe, kill only accepted", "a", accepted, always(sandbox.Observation{}, cantAsk), sandbox.Unconfirmed, 1, 1, 0, nil},
		{"can't probe, kill said gone and failed", "a", func() (bool, error) { return true, errors.New("x") }, always(sandbox.Observation{}, cantAsk), sandbox.Unconfirmed, 1, 1, 0, nil},
		{"a panic is a failed probe", "a", accepted, func(int) (sandbox.Observation, error) { panic("boom") }, sandbox.Unconfirmed, 1, 1, 0, []string{"panicked: boom"}},
		{"endless texts are cut", "a", func() (bool, error) { return false, errors.New(strings.Repeat("x", 1<<20)) }, always(ok, nil), sandbox.Unconfirmed, 1, 1, 0, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &scripted{kill: tt.kill, probe: tt.probe}
				start := time.Now()
				d := sandbox.ConfirmDestroyed(t.Context(), p, tt.id)
				took := time.Since(start)
				if d.Outcome != tt.want || p.kills != tt.kills || p.probes != tt.probes || took != tt.wait {
					t.Errorf("outcome %s after %d kills, %d probes and %v (%s), want %s after %d, %d and %v",
						d.Outcome, p.kills, p.probes, took, d.Detail, tt.want, tt.kills, tt.probes, tt.wait)
				}
				for _, text := range tt.says {
					if !strings.Contains(d.Detail, text) {
						t.Errorf("the detail %q doesn't say %q", d.Detail, text)
					}
				}
				if d.Detail == "" || len(d.Detail) > 5000 {
					t.Errorf("the detail has %d bytes", len(d.Detail))
				}
				if got, want := d.ConfirmsGone(tt.id), tt.want == sandbox.Gone; got != want {
					t.Errorf("ConfirmsGone = %v, want %v", got, want)
				}
				if d.ConfirmsGone("another") || d.ConfirmsGone("") {
					t.Error("it confirms another sandbox's end")
				}
				leaves := ""
				if tt.want == sandbox.Unconfirmed {
					leaves = tt.id
				}
				if d.Leaves() != leaves {
					t.Errorf("it leaves %q, want %q", d.Leaves(), leaves)
				}
			})
		})
	}
}

func TestVerdicts(t *testing.T) {
	for o, leaves := range map[sandbox.Outcome]string{
		sandbox.Gone: "", sandbox.Retained: "", sandbox.NothingNamed: "", sandbox.Unconfirmed: "a", sandbox.Refused: "a", "": "a", "sure": "a",
	} {
		d := sandbox.Destruction{SandboxID: "a", Outcome: o}
		if d.Leaves() != leaves || d.ConfirmsGone("a") != (o == sandbox.Gone) {
			t.Errorf("%q leaves %q, confirms %v", o, d.Leaves(), d.ConfirmsGone("a"))
		}
	}
}

// A nil provider, in an interface or as one, is a provider that fails.
func TestConfirmDestroyedWithoutAProvider(t *testing.T) {
	var none *scripted
	for _, p := range []sandbox.Provider{nil, none} {
		if d := sandbox.ConfirmDestroyed(t.Context(), p, "a"); d.Outcome != sandbox.Unconfirmed {
			t.Errorf("%+v", d)
		}
	}
}

func TestConfirmDestroyedStopsWhenCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := &scripted{
			kill: func() (bool, error) { return false, nil },
			probe: func(int) (sandbox.Observation, error) {
				return sandbox.Observation{Status: sandbox.ObservedOK, State: "running"}, nil
			},
		}
		go func() { time.Sleep(2500 * time.Millisecond); cancel() }()
		start := time.Now()
		if d := sandbox.ConfirmDestroyed(ctx, p, "a"); d.Outcome != sandbox.Unconfirmed {
			t.Errorf("outcome %s, want unconfirmed", d.Outcome)
		}
		if got := time.Since(start); got != 2500*time.Millisecond {
			t.Errorf("it took %v after a cancel at 2.5s", got)
		}
	})
}

// A check whose ctx had ended before is no verdict, although the delete is sent
// all the same: it can only help.
func TestConfirmDestroyedAfterCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := &scripted{
		kill:  func() (bool, error) { return true, nil },
		probe: func(int) (sandbox.Observation, error) { return sandbox.Observation{}, sandbox.ErrProbeUnsupported },
	}
	if d := sandbox.ConfirmDestroyed(ctx, p, "a"); d.Outcome != sandbox.Unconfirmed || p.kills != 1 || p.probes != 0 {
		t.Errorf("%+v after %d kills and %d probes", d, p.kills, p.probes)
	}
}
