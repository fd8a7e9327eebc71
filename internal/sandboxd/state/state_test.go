package state_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T) (*state.Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	s, err := state.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, path
}

var day = time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC)

func record(id, st string) state.Record {
	return state.Record{
		ID: id, State: st, Reason: "r", Message: "m", ChangedAt: day, CreatedAt: day, ExpiresAt: day.Add(time.Hour),
		Spec: state.Spec{Image: "i", Entrypoint: []string{"a"}, Env: map[string]string{"SECRET": "s"}, CPUs: 1.5, MemoryBytes: 2, PIDs: 3, DiskBytes: 4,
			Platform: &wire.Platform{OS: "linux", Arch: "amd64"}, Extensions: map[string]string{"e": "f"}},
		Metadata: map[string]string{"k": "v"}, Digest: "d",
	}
}

func insert(t *testing.T, s *state.Store, r state.Record) {
	t.Helper()
	if err := s.Insert(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

// What was stored comes back, also from another Store on the same file.
func TestRoundTrip(t *testing.T) {
	s, path := open(t)
	r := record("a", wire.Pending)
	r.Key = "key"
	insert(t, s, r)
	r.Run = state.Run{PID: 7, Address: "10.0.0.1:44772", Token: "t", BootID: "b"}
	r.State = wire.Running
	if _, err := s.Apply(t.Context(), state.Move{ID: "a", To: wire.Running, At: day, Reason: "r", Message: "m", Run: r.Run}); err != nil {
		t.Fatal(err)
	}
	other, err := state.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	for _, store := range []*state.Store{s, other} {
		got, err := store.Get(t.Context(), "a")
		if diff := cmp.Diff(r, got); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
	}
	if text := fmt.Sprintf("%v %+v %#v", r, r, r); strings.Contains(text, `"t"`) || strings.Contains(text, "Token:t") || strings.Contains(text, "SECRET") {
		t.Errorf("a printed record shows secrets: %s", text)
	}
}

// Only the transitions of the state machine are possible, whatever the caller asks.
func TestTransitions(t *testing.T) {
	states := []string{wire.Pending, wire.Running, wire.Pausing, wire.Paused, wire.Resuming, wire.Stopping, wire.Terminated, wire.Failed}
	next := map[string][]string{
		wire.Pending:    {wire.Running, wire.Stopping},
		wire.Running:    {wire.Pausing, wire.Paused, wire.Terminated, wire.Failed, wire.Stopping},
		wire.Pausing:    {wire.Paused, wire.Failed, wire.Stopping},
		wire.Paused:     {wire.Resuming, wire.Failed, wire.Stopping},
		wire.Resuming:   {wire.Running, wire.Paused, wire.Failed, wire.Stopping},
		wire.Terminated: {wire.Stopping},
		wire.Failed:     {wire.Stopping},
	}
	s, _ := open(t)
	for _, from := range states {
		for _, to := range states {
			if to == wire.Pending {
				continue
			}
			id := from + to
			insert(t, s, record(id, from))
			_, err := s.Apply(t.Context(), state.Move{ID: id, To: to, At: day})
			var st *state.StateError
			if want := slices.Contains(next[from], to); (err == nil) != want || err != nil && (!errors.As(err, &st) || st.Have != from) {
				t.Errorf("%s → %s: %v", from, to, err)
			}
			if _, err := s.Apply(t.Context(), state.Move{ID: id, To: to, From: []string{from}, At: day}); !slices.Contains(next[from], to) && err == nil {
				t.Errorf("%s → %s by its own list", from, to)
			}
		}
	}
	if _, err := s.Apply(t.Context(), state.Move{ID: "none", To: wire.Stopping, At: day}); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
}

// A report about one run doesn't change another.
func TestReportOfAnotherRun(t *testing.T) {
	s, _ := open(t)
	insert(t, s, record("a", wire.Pending))
	if _, err := s.Apply(t.Context(), state.Move{ID: "a", To: wire.Running, At: day, Run: state.Run{PID: 7, Token: "t"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(t.Context(), state.Move{ID: "a", To: wire.Failed, PID: 6, At: day}); err == nil {
		t.Error("pid 6 ended the run of pid 7")
	}
	r, err := s.Apply(t.Context(), state.Move{ID: "a", To: wire.Failed, PID: 7, At: day})
	if err != nil || r.Run != (state.Run{}) {
		t.Errorf("run %+v, %v", r.Run, err)
	}
}

// Of many who want the same change one gets it.
func TestCompareAndSet(t *testing.T) {
	s, _ := open(t)
	insert(t, s, record("a", wire.Running))
	won := make(chan bool, 16)
	var wg sync.WaitGroup
	for range cap(won) {
		wg.Go(func() {
			_, err := s.Apply(t.Context(), state.Move{ID: "a", To: wire.Pausing, At: day})
			won <- err == nil
		})
	}
	wg.Wait()
	close(won)
	n := 0
	for ok := range won {
		if ok {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d made the change", n)
	}
}

func TestExpireAndRenew(t *testing.T) {
	s, _ := open(t)
	ctx := t.Context()
	insert(t, s, record("a", wire.Running))
	end := day.Add(time.Hour)
	if ids, err := s.Due(ctx, end.Add(-time.Millisecond)); err != nil || len(ids) != 0 {
		t.Errorf("due early: %v, %v", ids, err)
	}
	if ids, err := s.Due(ctx, end); err != nil || len(ids) != 1 {
		t.Errorf("due at its very end: %v, %v", ids, err)
	}
	if r, err := s.Renew(ctx, "a", end.Add(-time.Minute)); err != nil || !r.ExpiresAt.Equal(end) {
		t.Errorf("renewed to earlier: %v, %v", r.ExpiresAt, err)
	}
	if r, err := s.Renew(ctx, "a", end.Add(time.Hour)); err != nil || !r.ExpiresAt.Equal(end.Add(time.Hour)) {
		t.Errorf("renewed: %v, %v", r.ExpiresAt, err)
	}
	if ok, err := s.Expire(ctx, "a", end); ok || err != nil { // decided by the old end
		t.Errorf("a renewed sandbox expired: %v, %v", ok, err)
	}
	if at, ok, err := s.NextExpiry(ctx); !ok || err != nil || !at.Equal(end.Add(time.Hour)) {
		t.Errorf("next %v, %v, %v", at, ok, err)
	}
	if ok, err := s.Expire(ctx, "a", end.Add(2*time.Hour)); !ok || err != nil {
		t.Errorf("expire: %v, %v", ok, err)
	}
	var st *state.StateError
	if _, err := s.Renew(ctx, "a", end.Add(3*time.Hour)); !errors.As(err, &st) {
		t.Errorf("an expired one was renewed: %v", err)
	}
	forever := record("b", wire.Running)
	forever.ExpiresAt = time.Time{}
	insert(t, s, forever)
	if r, err := s.Renew(ctx, "b", end); err != nil || !r.ExpiresAt.IsZero() {
		t.Errorf("one without an end got %v, %v", r.ExpiresAt, err)
	}
	if _, ok, err := s.NextExpiry(ctx); ok || err != nil {
		t.Errorf("next of none: %v, %v", ok, err)
	}
}

func TestKeys(t *testing.T) {
	s, _ := open(t)
	r := record("a", wire.Pending)
	r.Key = "k"
	insert(t, s, r)
	r.ID = "b"
	var taken *state.KeyError
	if err := s.Insert(t.Context(), r); !errors.As(err, &taken) || taken.Existing.ID != "a" {
		t.Errorf("the key twice: %v", err)
	}
	if err := s.ReleaseKey(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	insert(t, s, r)
}

func TestBuryAndPrune(t *testing.T) {
	s, _ := open(t)
	ctx := t.Context()
	bury := func(id string, at time.Time) {
		t.Helper()
		insert(t, s, record(id, wire.Stopping))
		if err := s.Bury(ctx, id, at, map[string]string{"seen": "nothing"}); err != nil {
			t.Fatal(err)
		}
	}
	bury("a", day)
	got, err := s.Past(ctx, "a")
	if err != nil || !got.Gone() || got.Reason != "r" || got.Spec.Env != nil || string(got.Evidence) != `{"seen":"nothing"}` {
		t.Errorf("buried: %+v, %v", got, err)
	}
	if _, err := s.Get(ctx, "a"); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("get: %v", err)
	}
	insert(t, s, record("live", wire.Running))
	if err := s.Bury(ctx, "live", day, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, "live"); err != nil {
		t.Errorf("one that isn't stopping was buried: %v", err)
	}
	for i := range 5 {
		bury(fmt.Sprint(i), day.Add(time.Duration(i)*time.Hour))
	}
	if err := s.Prune(ctx, day.Add(2*time.Hour), 2); err != nil {
		t.Fatal(err)
	}
	var kept []string
	for _, id := range []string{"a", "0", "1", "2", "3", "4"} {
		if _, err := s.Past(ctx, id); err == nil {
			kept = append(kept, id)
		}
	}
	if diff := cmp.Diff([]string{"3", "4"}, kept); diff != "" {
		t.Error(diff)
	}
	if _, err := s.Get(ctx, "live"); err != nil {
		t.Error("a live row was forgotten")
	}
}

// A cancelled request changes nothing.
func TestCancelled(t *testing.T) {
	s, _ := open(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Insert(ctx, record("a", wire.Pending)); err == nil {
		t.Error("inserted")
	}
	if _, err := s.Get(t.Context(), "a"); !errors.Is(err, state.ErrNotFound) {
		t.Error(err)
	}
}
