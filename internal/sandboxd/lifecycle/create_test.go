package lifecycle_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/lifecycle"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

func TestIdempotencyKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInstallation(t)
		s := in.start()
		gate := make(chan struct{})
		s.rt.Hook(func(op, _ string, after bool) error {
			if op == "create" && !after {
				<-gate
			}
			return nil
		})
		ids := make(chan string, 10)
		for range cap(ids) {
			go func() {
				r, err := s.Create(t.Context(), keyed("k"))
				if err != nil {
					t.Error(err)
				}
				ids <- r.ID
			}()
		}
		synctest.Wait()
		close(gate)
		first := <-ids
		for range cap(ids) - 1 {
			if id := <-ids; id != first {
				t.Errorf("the same key gave %s and %s", first, id)
			}
		}
		other := keyed("k")
		other.Digest = "other"
		_, err := s.Create(t.Context(), other)
		wantCode(t, err, lifecycle.CodeKeyReused)
		s.stop()

		s = in.start()
		defer s.stop()
		if r := s.mustCreate(t, keyed("k")); r.ID != first {
			t.Errorf("after a restart the key gave %s, before %s", r.ID, first)
		}
		if err := s.Delete(t.Context(), first); err != nil {
			t.Fatal(err)
		}
		_, err = s.Create(t.Context(), keyed("k"))
		wantCode(t, err, lifecycle.CodeKeySpent)
	})
}

func TestFailedCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInstallation(t)
		s := in.start()
		defer s.stop()
		boom := errors.New("/secret/path: boom")
		for _, after := range []bool{false, true} {
			s.rt.Hook(func(op, _ string, isAfter bool) error {
				if op == "create" && isAfter == after {
					return boom
				}
				return nil
			})
			_, err := s.Create(t.Context(), keyed("k"))
			wantCode(t, err, lifecycle.CodeCreateFailed)
			if strings.Contains(err.Error(), "secret") || !errors.Is(err, boom) {
				t.Errorf("error %q: the cause belongs into the chain, not into the text", err)
			}
			if n := len(in.machine.Boxes()); n != 0 {
				t.Errorf("%d sandboxes are left", n)
			}
		}
		s.rt.Hook(nil)
		q := req()
		q.Spec.Image = "other:1"
		_, err := s.Create(t.Context(), q)
		wantCode(t, err, lifecycle.CodeImage)
		s.mustCreate(t, keyed("k")) // the key is free again
	})
}

// A create that nobody waits for any more leaves nothing; with a key it goes
// on, because the client will ask again.
func TestCancelledCreate(t *testing.T) {
	for _, key := range []string{"", "k"} {
		synctest.Test(t, func(t *testing.T) {
			in := newInstallation(t)
			s := in.start()
			defer s.stop()
			gate := make(chan struct{})
			s.rt.Hook(func(op, _ string, after bool) error {
				if op == "create" && !after {
					<-gate
				}
				return nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { _, err := s.Create(ctx, keyed(key)); done <- err }()
			synctest.Wait()
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("error %v", err)
			}
			close(gate)
			synctest.Wait()
			want := 0
			if key != "" {
				want = 1
			}
			if n := len(in.machine.Boxes()); n != want {
				t.Errorf("key %q: %d sandboxes, want %d", key, n, want)
			}
		})
	}
}

func TestDeleteDuringCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInstallation(t)
		s := in.start()
		defer s.stop()
		gate := make(chan struct{})
		s.rt.Hook(func(op, _ string, after bool) error {
			if op == "create" && after {
				<-gate
			}
			return nil
		})
		created := make(chan error, 1)
		go func() { _, err := s.Create(t.Context(), req()); created <- err }()
		synctest.Wait()
		rows, _, err := s.List(t.Context(), state.Filter{Limit: 10})
		if err != nil || len(rows) != 1 || rows[0].State != wire.Pending {
			t.Fatalf("rows %+v, %v", rows, err)
		}
		deleted := make(chan error, 1)
		go func() { deleted <- s.Delete(t.Context(), rows[0].ID) }()
		synctest.Wait()
		close(gate)
		if err := <-deleted; err != nil {
			t.Error(err)
		}
		wantCode(t, <-created, lifecycle.CodeCreateFailed)
		if n := len(in.machine.Boxes()); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
	})
}

// Some starts run at a time, some wait, and past that they are refused.
func TestAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInstallation(t)
		s := in.start()
		defer s.stop()
		gate, entered := make(chan struct{}), make(chan string, 10)
		limited := lifecycle.New(lifecycle.Config{
			Store: s.store, Runtime: &blockingRuntime{s.rt, gate, entered}, Parallel: 2, Queue: 3,
		})
		defer limited.Close(t.Context())
		done := make(chan error, 6)
		for range 6 {
			go func() { _, err := limited.Create(t.Context(), req()); done <- err }()
			time.Sleep(time.Millisecond)
		}
		if len(entered) != 2 {
			t.Errorf("%d creates run at a time, want 2", len(entered))
		}
		wantCode(t, <-done, lifecycle.CodeCapacity)
		rows, _, err := s.List(t.Context(), state.Filter{Limit: 10})
		if err != nil || len(rows) != 5 {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		for range 5 {
			gate <- struct{}{}
			if err := <-done; err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		for _, r := range rows { // oldest first
			if id := <-entered; id != r.ID {
				t.Errorf("%s started before %s, which came first", id, r.ID)
			}
		}
	})
}

type blockingRuntime struct {
	runtime.Runtime
	gate    chan struct{}
	entered chan string
}

func (b *blockingRuntime) Create(ctx context.Context, s runtime.Spec) (runtime.Running, error) {
	b.entered <- s.ID
	<-b.gate
	return b.Runtime.Create(ctx, s)
}
