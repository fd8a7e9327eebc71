package lifecycle_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/lifecycle"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// truth checks that every sandbox is claimed by a row and every row says how
// its sandbox is, once everything has settled.
func truth(t *testing.T, in *installation, s *service) {
	t.Helper()
	boxes := in.machine.Boxes()
	rows, _, err := s.List(t.Context(), state.Filter{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		pid, exists := boxes[r.ID]
		delete(boxes, r.ID)
		ok := false
		switch r.State {
		case wire.Running:
			ok = exists && pid != 0 && pid == r.Run.PID && r.Run.Token != ""
		case wire.Paused:
			ok = exists && pid == 0
		case wire.Terminated, wire.Failed:
			ok = pid == 0
		}
		if !ok {
			t.Errorf("the row says %s (%s, pid %d), on the machine: exists %v, pid %d", r.State, r.Reason, r.Run.PID, exists, pid)
		}
	}
	for id := range boxes {
		t.Errorf("nobody claims sandbox %s", id)
	}
}

// A service that is killed around any effect leaves a state from which the
// next one finds the truth.
func TestKillAtEveryStep(t *testing.T) {
	ops := map[string]struct {
		prepare, run func(context.Context, *service, string)
		want         map[bool]string // state afterwards, by whether the effect had happened; empty: gone
	}{
		"create": {nil, nil, map[bool]string{false: "", true: ""}},
		"stop": {nil, func(ctx context.Context, s *service, id string) { s.Pause(ctx, id) },
			map[bool]string{false: wire.Paused, true: wire.Paused}},
		"resume": {func(ctx context.Context, s *service, id string) { s.Pause(ctx, id) }, func(ctx context.Context, s *service, id string) { s.Resume(ctx, id) },
			map[bool]string{false: wire.Paused, true: wire.Paused}},
		"destroy": {nil, func(ctx context.Context, s *service, id string) { s.Delete(ctx, id) },
			map[bool]string{false: "", true: ""}},
	}
	for op, tc := range ops {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/after=%v", op, after), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					in := newInstallation(t)
					s := in.start()
					other := s.mustCreate(t, req())
					var id string
					if tc.run != nil {
						id = s.mustCreate(t, keyed("k")).ID
					}
					if tc.prepare != nil {
						tc.prepare(t.Context(), s, id)
					}
					s.rt.KillAt(op, after, 1)
					run := tc.run
					if run == nil {
						run = func(ctx context.Context, s *service, _ string) { s.Create(ctx, keyed("k")) }
					}
					go run(t.Context(), s, id)
					<-s.rt.Killed()
					synctest.Wait()
					collect := s.kill()
					defer collect()

					s = in.start()
					defer s.stop()
					synctest.Wait()
					truth(t, in, s)
					s.wantState(t, other.ID, wire.Running)
					if tc.run == nil { // an interrupted create: its key makes a new sandbox
						s.mustCreate(t, keyed("k"))
						truth(t, in, s)
						return
					}
					want := tc.want[after]
					if want == "" {
						_, err := s.Get(t.Context(), id)
						wantCode(t, err, lifecycle.CodeNotFound)
						return
					}
					s.wantState(t, id, want)
					if err := s.Resume(t.Context(), id); err != nil {
						t.Error(err)
					}
					truth(t, in, s)
				})
			})
		}
	}
}

// What happened while no service ran is found out.
func TestRestartIntoTruth(t *testing.T) {
	for _, tc := range []struct {
		name    string
		between func(in *installation, id string)
		state   string
		reason  string
	}{
		{"nothing", func(*installation, string) {}, wire.Running, "running"},
		{"its process ended", func(in *installation, id string) { in.machine.Exit(id, runtime.Exit{Known: true}) }, wire.Failed, "entrypoint_exited"},
		{"the machine restarted", func(in *installation, id string) { in.machine.Reboot(); in.boot = "boot-2" }, wire.Paused, "machine_restarted"},
		{"its files went", func(in *installation, id string) { in.machine.Lose(id) }, wire.Failed, "sandbox_lost"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in := newInstallation(t)
				s := in.start()
				r := s.mustCreate(t, req())
				s.stop()
				tc.between(in, r.ID)
				in.machine.Stray("stray")
				s = in.start()
				defer s.stop()
				synctest.Wait()
				got := s.wantState(t, r.ID, tc.state)
				if got.Reason != tc.reason {
					t.Errorf("reason %q, want %q", got.Reason, tc.reason)
				}
				truth(t, in, s)
				if tc.state == wire.Running { // still watched
					in.machine.Exit(r.ID, runtime.Exit{Known: true, Code: 1})
					synctest.Wait()
					s.wantState(t, r.ID, wire.Failed)
				}
			})
		})
	}
}

// An end that came while the service was down is caught up with.
func TestExpiryWhileDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := newInstallation(t)
		s := in.start()
		q := req()
		q.TTL = time.Minute
		r := s.mustCreate(t, q)
		s.stop()
		time.Sleep(time.Hour)
		s = in.start()
		defer s.stop()
		synctest.Wait()
		_, err := s.Get(t.Context(), r.ID)
		wantCode(t, err, lifecycle.CodeNotFound)
		truth(t, in, s)
	})
}

// Random operations, failures, ends and kills: after each restart the rows and
// the machine agree. A failing seed is named by the subtest.
func TestRandomSchedules(t *testing.T) {
	n := 24
	if testing.Short() {
		n = 10
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { schedule(t, rand.New(rand.NewPCG(uint64(seed), 1))) })
		})
	}
}

func schedule(t *testing.T, rng *rand.Rand) {
	in := newInstallation(t)
	pick := func(s *service) string {
		rows, _, err := s.List(t.Context(), state.Filter{Limit: 100})
		if err != nil || len(rows) == 0 {
			return "none"
		}
		return rows[rng.IntN(len(rows))].ID
	}
	for range 4 {
		s := in.start()
		for range 3 + rng.IntN(6) {
			id := pick(s)
			switch rng.IntN(10) {
			case 0, 1, 2:
				q := keyed(fmt.Sprintf("k%d", rng.IntN(4)))
				q.TTL = time.Duration(1+rng.IntN(5)) * time.Minute
				go s.Create(t.Context(), q)
			case 3, 4:
				go s.Pause(t.Context(), id)
			case 5, 6:
				go s.Resume(t.Context(), id)
			case 7:
				go s.Delete(t.Context(), id)
			case 8:
				in.machine.Exit(id, runtime.Exit{Known: true, Code: rng.IntN(2)})
			case 9:
				go s.Renew(t.Context(), id, time.Now().Add(time.Duration(1+rng.IntN(5))*time.Minute))
			}
			if rng.IntN(3) == 0 {
				time.Sleep(time.Duration(rng.IntN(60)) * time.Second)
			}
		}
		ops := []string{"create", "stop", "resume", "destroy", "inspect"}
		s.rt.KillAt(ops[rng.IntN(len(ops))], rng.IntN(2) == 0, 1+rng.IntN(3))
		go s.Create(t.Context(), req())
		go s.Delete(t.Context(), pick(s))
		synctest.Wait()
		defer s.kill()()
		if rng.IntN(4) == 0 {
			in.machine.Reboot()
			in.boot = fmt.Sprint(rng.Int())
		}
	}
	s := in.start()
	defer s.stop()
	time.Sleep(time.Minute)
	synctest.Wait()
	truth(t, in, s)
}
