package sandbox_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func TestConfirmDestroyed(t *testing.T) {
	ok := sandbox.Observation{Status: sandbox.ObservedOK, State: "running"}
	gone := sandbox.Observation{Status: sandbox.ObservedGone}
	always := func(o sandbox.Observation, err error) func(int) (sandbox.Observation, error) {
		return func(int) (sandbox.Observation, error) { return o, err }
	}
	accepted := func() (bool, error) { return false, nil }
	failed := func() (bool, error) { return false, errors.New("refused") }

	tests := []struct {
		name   string
		id     string
		kill   func() (bool, error)
		probe  func(int) (sandbox.Observation, error)
		want   sandbox.Outcome
		probes int
		wait   time.Duration
	}{
		{"nothing named", "", accepted, always(gone, nil), sandbox.NothingNamed, 0, 0},
		{"bad id is never sent", "../x", accepted, always(gone, nil), sandbox.Unconfirmed, 0, 0},
		{"gone at once", "a", accepted, always(gone, nil), sandbox.Gone, 1, 0},
		{"gone although the delete failed", "a", failed, always(gone, nil), sandbox.Gone, 1, 0},
		{"kill's own word is no proof", "a", func() (bool, error) { return true, nil }, always(ok, nil), sandbox.Unconfirmed, 21, 20 * time.Second},
		{"asynchronous delete", "a", accepted, func(n int) (sandbox.Observation, error) {
			if n < 4 {
				return ok, nil
			}
			return gone, nil
		}, sandbox.Gone, 4, 3 * time.Second},
		{"still there after a failed delete", "a", failed, always(ok, nil), sandbox.Unconfirmed, 1, 0},
		{"probe failed", "a", accepted, always(sandbox.Observation{}, errors.New("no route")), sandbox.Unconfirmed, 1, 0},
		{"unknown is not gone", "a", accepted, always(sandbox.Observation{}, nil), sandbox.Unconfirmed, 1, 0},
		{"an empty state is no state", "a", accepted, always(sandbox.Observation{Status: sandbox.ObservedOK}, nil), sandbox.Unconfirmed, 1, 0},
		{"can't probe, kill said gone", "a", func() (bool, error) { return true, nil }, always(sandbox.Observation{}, sandbox.ErrProbeUnsupported), sandbox.Gone, 1, 0},
		{"can't probe, kill only accepted", "a", accepted, always(sandbox.Observation{}, sandbox.ErrProbeUnsupported), sandbox.Unconfirmed, 1, 0},
		{"a panic is a failed probe", "a", accepted, func(int) (sandbox.Observation, error) { panic("boom") }, sandbox.Unconfirmed, 1, 0},
		{"a panicking kill is detail, not a verdict", "a", func() (bool, error) { panic("boom") }, always(gone, nil), sandbox.Gone, 1, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &scripted{kill: tt.kill, probe: tt.probe}
				start := time.Now()
				d := sandbox.ConfirmDestroyed(t.Context(), p, tt.id)
				if d.Outcome != tt.want || p.probes != tt.probes || time.Since(start) != tt.wait {
					t.Errorf("outcome %s after %d probes and %v (%s), want %s after %d and %v",
						d.Outcome, p.probes, time.Since(start), d.Detail, tt.want, tt.probes, tt.wait)
				}
				if got, want := d.ConfirmsGone(tt.id), tt.want == sandbox.Gone; got != want {
					t.Errorf("ConfirmsGone = %v, want %v", got, want)
				}
				if d.ConfirmsGone("another") {
					t.Error("it confirms another sandbox's end")
				}
			})
		})
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
