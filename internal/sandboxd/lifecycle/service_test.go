package lifecycle_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/sandboxd/fakeruntime"
	"github.com/astrabox/astrabox/internal/sandboxd/lifecycle"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// installation is a machine and a database, and the services that run on them
// one after another.
type installation struct {
	t       *testing.T
	machine *fakeruntime.Machine
	path    string
	boot    string
	config  func(*lifecycle.Config)
}

type service struct {
	*lifecycle.Service
	rt    *fakeruntime.Runtime
	store *state.Store
}

func newInstallation(t *testing.T) *installation {
	return &installation{t: t, machine: fakeruntime.NewMachine(), path: filepath.Join(t.TempDir(), "db"), boot: "boot-1"}
}

func (i *installation) start() *service {
	i.t.Helper()
	store, err := state.Open(i.t.Context(), i.path)
	if err != nil {
		i.t.Fatal(err)
	}
	rt := i.machine.Runtime()
	cfg := lifecycle.Config{Store: store, Runtime: rt, BootID: i.boot, Log: slog.New(slog.NewTextHandler(testWriter{i.t}, nil))}
	if i.config != nil {
		i.config(&cfg)
	}
	s := &service{lifecycle.New(cfg), rt, store}
	if err := s.Start(i.t.Context()); err != nil {
		i.t.Fatal(err)
	}
	return s
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// stop ends a service in good order.
func (s *service) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s.Close(ctx)
	s.store.Close()
}

// kill ends a service as kill -9 would: no call has an effect from now on.
// The goroutines are collected by the returned function.
func (s *service) kill() (collect func()) {
	s.rt.Kill()
	s.store.Close()
	return func() {
		s.rt.Release()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		s.Close(ctx)
	}
}

func req() lifecycle.Request {
	return lifecycle.Request{
		Spec:     state.Spec{Image: runtime.HostImage, Entrypoint: []string{"tail", "-f", "/dev/null"}, Env: map[string]string{"A": "b"}, CPUs: 1, MemoryBytes: 1 << 30, PIDs: 100, DiskBytes: 1 << 30},
		Metadata: map[string]string{"k": "v"},
	}
}

func keyed(key string) lifecycle.Request {
	q := req()
	q.Key, q.Digest = key, "digest"
	return q
}

func (s *service) mustCreate(t *testing.T, q lifecycle.Request) state.Record {
	t.Helper()
	r, err := s.Create(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func codeOf(err error) lifecycle.Code {
	var e *lifecycle.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func wantCode(t *testing.T, err error, want lifecycle.Code) {
	t.Helper()
	if got := codeOf(err); got != want {
		t.Errorf("error %v, want code %s", err, want)
	}
}

func (s *service) wantState(t *testing.T, id, want string) state.Record {
	t.Helper()
	r, err := s.Get(t.Context(), id)
	if err != nil || r.State != want {
		t.Errorf("sandbox %s is %s (%s), %v; want %s", id, r.State, r.Reason, err, want)
	}
	return r
}

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInstallation(t)
		s := in.start()
		defer s.stop()
		r := s.mustCreate(t, req())
		if r.State != wire.Running || r.Run.Token == "" || len(r.ID) != 20 || strings.Trim(r.ID, "abcdefghijklmnopqrstuvwxyz234567") != "" {
			t.Fatalf("created %+v", r)
		}
		if strings.Contains(r.Run.String(), r.Run.Token) {
			t.Error("a printed run shows its token")
		}
		want := runtime.Spec{ID: r.ID, Image: runtime.HostImage, Entrypoint: []string{"tail", "-f", "/dev/null"}, Env: map[string]string{"A": "b"}, CPUs: 1, MemoryBytes: 1 << 30, PIDs: 100, DiskBytes: 1 << 30}
		if diff := cmp.Diff(want, in.machine.Spec(r.ID)); diff != "" {
			t.Error(diff)
		}
		wantCode(t, s.Resume(t.Context(), r.ID), lifecycle.CodeState)
		if err := s.Pause(t.Context(), r.ID); err != nil {
			t.Fatal(err)
		}
		if p := s.wantState(t, r.ID, wire.Paused); p.Run != (state.Run{}) {
			t.Errorf("a paused sandbox has the run %#v", p.Run)
		}
		wantCode(t, s.Pause(t.Context(), r.ID), lifecycle.CodeState)
		if err := s.Resume(t.Context(), r.ID); err != nil {
			t.Fatal(err)
		}
		again := s.wantState(t, r.ID, wire.Running)
		if again.Run.Token == r.Run.Token {
			t.Error("the token didn't change with the run")
		}
		if diff := cmp.Diff(want, in.machine.Spec(r.ID)); diff != "" {
			t.Error("resumed with another spec:", diff)
		}
		if err := s.Delete(t.Context(), r.ID); err != nil {
			t.Fatal(err)
		}
		_, err := s.Get(t.Context(), r.ID)
		wantCode(t, err, lifecycle.CodeNotFound)
		wantCode(t, s.Delete(t.Context(), r.ID), lifecycle.CodeNotFound)
		past, ok := s.Past(t.Context(), r.ID)
		if !ok || past.Reason != "user_delete" || past.Run.Token != "" || past.Spec.Env != nil || !strings.Contains(string(past.Evidence), `"gone":true`) {
			t.Errorf("what stays of it: %v %+v evidence %s", ok, past, past.Evidence)
		}
		if n := len(in.machine.Boxes()); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
	})
}

func TestEndOfEntrypoint(t *testing.T) {
	for _, tc := range []struct {
		exit          runtime.Exit
		state, reason string
	}{
		{runtime.Exit{Known: true}, wire.Terminated, "entrypoint_exited"},
		{runtime.Exit{Known: true, Code: 3}, wire.Failed, "entrypoint_exited"},
		{runtime.Exit{Known: true, Code: 137, Signal: "SIGKILL"}, wire.Failed, "entrypoint_killed"},
		{runtime.Exit{}, wire.Failed, "entrypoint_exited"},
	} {
		synctest.Test(t, func(t *testing.T) {
			in := newInstallation(t)
			s := in.start()
			defer s.stop()
			r := s.mustCreate(t, req())
			in.machine.Exit(r.ID, tc.exit)
			synctest.Wait()
			got := s.wantState(t, r.ID, tc.state)
			if got.Reason != tc.reason || got.Message == "" {
				t.Errorf("%+v: reason %q, message %q", tc.exit, got.Reason, got.Message)
			}
			if calls := s.rt.Calls(); calls[len(calls)-1] != "stop "+r.ID {
				t.Errorf("what it left wasn't removed: %v", calls)
			}
			wantCode(t, s.Pause(t.Context(), r.ID), lifecycle.CodeState)
			if err := s.Delete(t.Context(), r.ID); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInstallation(t)
		s := in.start()
		defer s.stop()
		q := req()
		q.TTL = time.Minute
		short, paused := s.mustCreate(t, q), s.mustCreate(t, q)
		forever := s.mustCreate(t, req())
		if err := s.Pause(t.Context(), paused.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute - time.Millisecond)
		synctest.Wait()
		s.wantState(t, short.ID, wire.Running)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		for _, id := range []string{short.ID, paused.ID} {
			if past, ok := s.Past(t.Context(), id); !ok || past.Reason != "ttl_expiry" {
				t.Errorf("%s after its end: %v %+v", id, ok, past)
			}
		}
		time.Sleep(2 * time.Hour)
		s.wantState(t, forever.ID, wire.Running)
		_, err := s.Renew(t.Context(), forever.ID, time.Now().Add(time.Hour))
		wantCode(t, err, lifecycle.CodeState) // any end would shorten it
	})
}

func TestRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInstallation(t)
		s := in.start()
		defer s.stop()
		q := req()
		q.TTL = time.Minute
		r := s.mustCreate(t, q)
		for _, d := range []time.Duration{-time.Second, 0} {
			_, err := s.Renew(t.Context(), r.ID, time.Now().Add(d))
			wantCode(t, err, lifecycle.CodeInvalid)
		}
		_, err := s.Renew(t.Context(), r.ID, time.Now().Add(30*time.Second))
		wantCode(t, err, lifecycle.CodeInvalid)
		want := time.Now().Add(time.Hour)
		for range 2 { // a repetition is no error
			at, err := s.Renew(t.Context(), r.ID, want)
			if err != nil || at.Before(want) {
				t.Errorf("renewed to %v, %v; want %v", at, err, want)
			}
		}
		time.Sleep(time.Hour - time.Millisecond)
		synctest.Wait()
		s.wantState(t, r.ID, wire.Running)
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		_, err = s.Get(t.Context(), r.ID)
		wantCode(t, err, lifecycle.CodeNotFound)
		_, err = s.Renew(t.Context(), r.ID, time.Now().Add(time.Hour))
		wantCode(t, err, lifecycle.CodeNotFound)
	})
}

// A renewal that the service accepted, at whatever moment, keeps the sandbox.
func TestRenewRacesExpiry(t *testing.T) {
	for i := range 16 {
		synctest.Test(t, func(t *testing.T) {
			in := newInstallation(t)
			s := in.start()
			defer s.stop()
			q := req()
			q.TTL = time.Minute
			r := s.mustCreate(t, q)
			// From just before the end to just after it.
			time.Sleep(time.Minute + time.Duration(i-10)*200*time.Microsecond)
			_, renewed := s.Renew(t.Context(), r.ID, time.Now().Add(time.Hour))
			synctest.Wait()
			time.Sleep(time.Minute)
			synctest.Wait()
			_, err := s.Get(t.Context(), r.ID)
			if (renewed == nil) != (err == nil) {
				t.Errorf("renewal: %v, afterwards: %v", renewed, err)
			}
		})
	}
}

// What fails is tried again until it works, and the row tells the truth meanwhile.
func TestStubbornDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInstallation(t)
		s := in.start()
		defer s.stop()
		r := s.mustCreate(t, req())
		broken := true
		s.rt.Hook(func(op, _ string, after bool) error {
			if op == "destroy" && broken {
				return errors.New("device or resource busy")
			}
			return nil
		})
		wantCode(t, s.Delete(t.Context(), r.ID), lifecycle.CodeDestroyFailed)
		s.wantState(t, r.ID, wire.Stopping)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		s.wantState(t, r.ID, wire.Stopping)
		tries := len(s.rt.Calls())
		s.rt.Hook(nil)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		_, err := s.Get(t.Context(), r.ID)
		wantCode(t, err, lifecycle.CodeNotFound)
		if tries > 40 {
			t.Errorf("%d calls in five minutes: no backoff", tries)
		}
	})
}

// A clean stop tries what waits for its next try once more.
func TestCloseTriesOnceMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInstallation(t)
		s := in.start()
		r := s.mustCreate(t, req())
		s.rt.Hook(func(op, _ string, after bool) error {
			if op == "destroy" {
				return errors.New("device or resource busy")
			}
			return nil
		})
		wantCode(t, s.Delete(t.Context(), r.ID), lifecycle.CodeDestroyFailed)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		s.rt.Hook(nil)
		s.stop()
		if left := in.machine.Boxes(); len(left) != 0 {
			t.Errorf("left on the machine: %v", left)
		}
	})
}

func TestFailedPauseAndResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInstallation(t)
		s := in.start()
		defer s.stop()
		r := s.mustCreate(t, req())
		fail := func(what string) {
			s.rt.Hook(func(op, _ string, after bool) error {
				if op == what && !after {
					return errors.New("no")
				}
				return nil
			})
		}
		fail("stop")
		if err := s.Pause(t.Context(), r.ID); err != nil {
			t.Fatal(err)
		}
		s.wantState(t, r.ID, wire.Pausing)
		s.rt.Hook(nil)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		s.wantState(t, r.ID, wire.Paused)

		fail("resume")
		wantCode(t, s.Resume(t.Context(), r.ID), lifecycle.CodeResumeFailed)
		if p := s.wantState(t, r.ID, wire.Paused); p.Reason != "resume_failed" || p.Message == "" {
			t.Errorf("reason %q, message %q", p.Reason, p.Message)
		}
		s.rt.Hook(nil)
		if err := s.Resume(t.Context(), r.ID); err != nil {
			t.Fatal(err)
		}
		s.wantState(t, r.ID, wire.Running)

		if err := s.Pause(t.Context(), r.ID); err != nil {
			t.Fatal(err)
		}
		in.machine.Lose(r.ID)
		wantCode(t, s.Resume(t.Context(), r.ID), lifecycle.CodeResumeFailed)
		if p := s.wantState(t, r.ID, wire.Failed); p.Reason != "sandbox_lost" {
			t.Errorf("reason %q", p.Reason)
		}
	})
}

// A delete doesn't wait for a resume that waits for its turn.
func TestDeleteDuringResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInstallation(t)
		in.config = func(c *lifecycle.Config) { c.Parallel = 1 }
		s := in.start()
		defer s.stop()
		r := s.mustCreate(t, req())
		if err := s.Pause(t.Context(), r.ID); err != nil {
			t.Fatal(err)
		}
		gate, entered := make(chan struct{}), make(chan string, 1)
		slow := lifecycle.New(lifecycle.Config{Store: s.store, Runtime: &blockingRuntime{s.rt, gate, entered}, Parallel: 1})
		defer slow.Close(t.Context())
		go slow.Create(t.Context(), req())
		<-entered // the only place is taken
		resumed := make(chan error, 1)
		go func() { resumed <- slow.Resume(t.Context(), r.ID) }()
		time.Sleep(time.Millisecond)
		s.wantState(t, r.ID, wire.Resuming)
		start := time.Now()
		if err := slow.Delete(t.Context(), r.ID); err != nil || time.Since(start) > time.Second {
			t.Errorf("deleted after %v: %v", time.Since(start), err)
		}
		wantCode(t, <-resumed, lifecycle.CodeResumeFailed)
		close(gate)
	})
}
