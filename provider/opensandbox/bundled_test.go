package opensandbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/sandbox"
)

func TestLife(t *testing.T) {
	for _, proxy := range []string{"false", "true"} {
		t.Run("proxy="+proxy, func(t *testing.T) {
			s := newService(t)
			p := s.provider("ASTRABOX_SANDBOX_SERVER_PROXY", proxy)
			sp := spec("asg_1")
			sp.Metadata = map[string]string{"team": "a team with spaces"}
			h := create(t, p, sp)
			id := h.SandboxID()
			if got := s.machine.Spec(id); fmt.Sprint(got.Entrypoint) != "[tail -f /dev/null]" || got.CPUs != 1 || got.MemoryBytes != 512<<20 {
				t.Errorf("spec %+v", got)
			}
			if _, err := h.Files().Stat(t.Context(), "/"); err != nil {
				t.Error(err)
			}
			_, err := p.Connect(t.Context(), id)
			if err != nil {
				t.Error(err)
			}
			info, err := p.Inventory.DescribeSandbox(t.Context(), id)
			if err != nil || info.State != "running" || info.Image != "astrabox:host" || sandbox.ClaimOf(info.Metadata, installation, "conv_1") != sandbox.ClaimMine {
				t.Errorf("described %+v, %v", info, err)
			}
			if team := info.Metadata["team"]; !strings.HasPrefix(team, "v-") || len(team) > 63 {
				t.Errorf("the value that is no label became %q", team)
			}
			listed, next, err := p.Inventory.ListSandboxes(t.Context(), map[string]string{"team": "a team with spaces", sandbox.KeyInstallation: installation}, "")
			if err != nil || next != "" || len(listed) != 1 || listed[0].ID != id || listed[0].Metadata["team"] != "a team with spaces" {
				t.Errorf("listed %+v, %q, %v", listed, next, err)
			}
			if other, _, err := p.Inventory.ListSandboxes(t.Context(), map[string]string{"team": "b"}, ""); err != nil || len(other) != 0 {
				t.Errorf("listed %+v, %v", other, err)
			}

			paused, err := p.Pauser.Pause(t.Context(), id)
			if err != nil || !paused {
				t.Errorf("pause: %v, %v", paused, err)
			}
			if paused, err = p.Pauser.Pause(t.Context(), id); err != nil || !paused {
				t.Errorf("pause of a paused one: %v, %v", paused, err)
			}
			_, err = p.Connect(t.Context(), id)
			wantCode(t, err, sandbox.CodeNotRunning)
			if o, err := p.Probe(t.Context(), id); err != nil || o.Status != sandbox.ObservedOK || o.State != "paused" || o.Lost() {
				t.Errorf("probe %+v, %v", o, err)
			}
			running, err := p.Pauser.Resume(t.Context(), id)
			if err != nil || !running {
				t.Errorf("resume: %v, %v", running, err)
			}
			// The old handle finds the new address and token.
			if _, err := h.Files().Stat(t.Context(), "/"); err != nil {
				t.Error(err)
			}

			before, err := p.ExpiresAt(t.Context(), id)
			if err != nil || time.Until(before) > time.Hour || time.Until(before) < 50*time.Minute {
				t.Errorf("expires at %v, %v", before, err)
			}
			if at, err := p.Renew(t.Context(), id, time.Minute); err != nil || !at.Equal(before) {
				t.Errorf("a short renewal gave %v, %v; want %v kept", at, err, before)
			}
			if at, err := p.Renew(t.Context(), id, 2*time.Hour); err != nil || time.Until(at) < 119*time.Minute {
				t.Errorf("renewed to %v, %v", at, err)
			}

			if d := sandbox.ConfirmDestroyed(t.Context(), p, id); !d.ConfirmsGone(id) {
				t.Errorf("destruction %+v", d)
			}
			if gone, err := p.Kill(t.Context(), id); err != nil || !gone {
				t.Errorf("kill of one that is gone: %v, %v", gone, err)
			}
			_, err = p.Connect(t.Context(), id)
			wantCode(t, err, sandbox.CodeGone)
			_, err = p.ExpiresAt(t.Context(), id)
			wantCode(t, err, sandbox.CodeNotFound)
			_, err = p.Renew(t.Context(), id, time.Hour)
			wantCode(t, err, sandbox.CodeNotFound)
			_, err = p.Pauser.Pause(t.Context(), id)
			wantCode(t, err, sandbox.CodeNotFound)
			_, err = p.Inventory.DescribeSandbox(t.Context(), id)
			wantCode(t, err, sandbox.CodeNotFound)
			if len(s.machine.Boxes()) != 0 {
				t.Errorf("left: %v", s.machine.Boxes())
			}
		})
	}
}

func TestNoScheduledEnd(t *testing.T) {
	s := newService(t)
	p := s.provider()
	sp := spec("asg_1")
	sp.TTL = 0
	id := create(t, p, sp).SandboxID()
	if at, err := p.ExpiresAt(t.Context(), id); err != nil || !at.IsZero() {
		t.Errorf("expires at %v, %v", at, err)
	}
	if at, err := p.Renew(t.Context(), id, time.Hour); err != nil || !at.IsZero() {
		t.Errorf("renewed to %v, %v: that shortens", at, err)
	}
	sp = spec("asg_2")
	sp.TTL = time.Second // less than the service gives: refused rather than changed
	_, err := p.Create(t.Context(), sp)
	wantCode(t, err, sandbox.CodeInvalid)
}

func TestSameAssignment(t *testing.T) {
	s := newService(t)
	p := s.provider()
	ids := make(chan string, 8)
	var wg sync.WaitGroup
	for range cap(ids) {
		wg.Go(func() {
			h, err := p.Create(t.Context(), spec("asg_1"))
			if err != nil {
				t.Error(err)
				ids <- ""
				return
			}
			ids <- h.SandboxID()
		})
	}
	wg.Wait()
	first := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != first {
			t.Errorf("one assignment has %s and %s", first, id)
		}
	}
	if again := create(t, p, spec("asg_1")).SandboxID(); again != first {
		t.Errorf("created again it is %s, was %s", again, first)
	}
	info, found, err := p.Finder.FindSandboxByAssignment(t.Context(), installation, "asg_1")
	if err != nil || !found || info.ID != first || info.Metadata[sandbox.KeyAssignmentID] != "asg_1" {
		t.Errorf("found %+v, %v, %v", info, found, err)
	}
	if _, found, err := p.Finder.FindSandboxByAssignment(t.Context(), installation, "asg_2"); err != nil || found {
		t.Errorf("found %v, %v", found, err)
	}
	if _, found, err := p.Finder.FindSandboxByAssignment(t.Context(), "inst_2", "asg_1"); err != nil || found {
		t.Errorf("another installation found it: %v, %v", found, err)
	}
	other := spec("asg_1")
	other.OwnerID = "conv_2"
	_, err = p.Create(t.Context(), other)
	wantCode(t, err, sandbox.CodeAssignmentConflict)

	if _, err := p.Pauser.Pause(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	_, err = p.Create(t.Context(), spec("asg_1"))
	if e := wantCode(t, err, sandbox.CodeNotRunning); e.SandboxID != first {
		t.Errorf("the error names %q", e.SandboxID)
	}
	if _, err := p.Pauser.Resume(t.Context(), first); err != nil {
		t.Fatal(err)
	}

	// A sandbox that ended is replaced, and so is one that is gone.
	s.machine.Exit(first, runtime.Exit{Known: true, Code: 1})
	until(t, func() bool { o, err := p.Probe(t.Context(), first); return err == nil && o.Lost() })
	second := create(t, p, spec("asg_1")).SandboxID()
	if second == first {
		t.Error("a sandbox that ended was given again")
	}
	if d := sandbox.ConfirmDestroyed(t.Context(), p, second); !d.ConfirmsGone(second) {
		t.Errorf("%+v", d)
	}
	if third := create(t, p, spec("asg_1")).SandboxID(); third == first || third == second {
		t.Error("a sandbox that is gone was given again")
	}
}

func until(t *testing.T, f func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for !f() {
		select {
		case <-deadline:
			t.Fatal("it didn't become true")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// The service may restart on another port in the middle of anything.
func TestServiceRestarts(t *testing.T) {
	s := newService(t)
	p := s.provider()
	h := create(t, p, spec("asg_1"))
	s.stop()
	if o, err := p.Probe(quick(t), h.SandboxID()); err != nil || o.Status != sandbox.ObservedError {
		t.Errorf("while the service is away: %+v, %v; it can't know", o, err)
	}
	_, err := p.Connect(quick(t), h.SandboxID())
	wantCode(t, err, sandbox.CodeUnavailable)
	if _, err := h.Files().Stat(t.Context(), "/"); err != nil {
		t.Errorf("the sandbox needs the service: %v", err)
	}
	s.start()
	if o, err := p.Probe(t.Context(), h.SandboxID()); err != nil || o.State != "running" {
		t.Errorf("after the restart: %+v, %v", o, err)
	}
	if again := create(t, p, spec("asg_1")); again.SandboxID() != h.SandboxID() {
		t.Error("the assignment was forgotten")
	}

	// A request that finds nobody waits for the restart.
	s.stop()
	done := make(chan error, 1)
	go func() { _, err := p.Connect(t.Context(), h.SandboxID()); done <- err }()
	s.start()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func quick(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// A create that fails after the sandbox exists destroys it, whatever failed.
func TestFailedCreateLeavesNothing(t *testing.T) {
	t.Run("command channel", func(t *testing.T) {
		s := newService(t)
		p := s.provider()
		s.broken = true
		_, err := p.Create(t.Context(), spec("asg_1"))
		if err == nil || len(s.machine.Boxes()) != 0 {
			t.Errorf("error %v, left %v", err, s.machine.Boxes())
		}
		s.mu.Lock()
		s.broken = false
		s.mu.Unlock()
		create(t, p, spec("asg_1")) // the assignment isn't spoilt
	})
	t.Run("cancelled while it is made", func(t *testing.T) {
		s := newService(t)
		p := s.provider()
		gate, entered := make(chan struct{}), make(chan struct{}, 1)
		s.rt.Hook(func(op, _ string, after bool) error {
			if op == "create" && after {
				entered <- struct{}{}
				<-gate
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := p.Create(ctx, spec("asg_1")); done <- err }()
		<-entered
		cancel()
		close(gate)
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		until(t, func() bool { return len(s.machine.Boxes()) == 0 })
	})
	t.Run("unconfirmed", func(t *testing.T) {
		s := newService(t)
		p := s.provider()
		s.broken = true
		s.rt.Hook(func(op, _ string, _ bool) error {
			if op == "destroy" {
				return errors.New("busy")
			}
			return nil
		})
		_, err := p.Create(t.Context(), spec("asg_1"))
		e := wantCode(t, err, sandbox.CodeCleanupUnconfirmed)
		if _, exists := s.machine.Boxes()[e.SandboxID]; !exists {
			t.Errorf("the error names %q, left is %v", e.SandboxID, s.machine.Boxes())
		}
		s.rt.Hook(nil)
	})
}

func TestCreateRefusals(t *testing.T) {
	s := newService(t)
	p := s.provider()
	for name, tc := range map[string]struct {
		edit func(*sandbox.CreateSpec)
		want sandbox.Code
	}{
		"no image":       {func(s *sandbox.CreateSpec) { s.Image = "" }, sandbox.CodeInvalid},
		"unknown image":  {func(s *sandbox.CreateSpec) { s.Image = "python:3.11" }, sandbox.CodeInvalid},
		"env of service": {func(s *sandbox.CreateSpec) { s.Env = map[string]string{"OPENSANDBOX_EGRESS_X": "1"} }, sandbox.CodeInvalid},
		"metadata key":   {func(s *sandbox.CreateSpec) { s.Metadata = map[string]string{"no label": "1"} }, sandbox.CodeInvalid},
		"ownership key":  {func(s *sandbox.CreateSpec) { s.Metadata = map[string]string{sandbox.KeySessionID: "x"} }, sandbox.CodeInvalid},
		"zero cpu":       {func(s *sandbox.CreateSpec) { s.ResourceLimits = map[string]string{"cpu": "0"} }, sandbox.CodeInvalid},
		"mounts":         {func(s *sandbox.CreateSpec) { s.WorkspaceMounts = []sandbox.Mount{{Source: "x", Path: "/x"}} }, sandbox.CodeUnsupported},
		"network":        {func(s *sandbox.CreateSpec) { s.NetworkPolicy = &sandbox.NetworkPolicy{} }, sandbox.CodeNetworkUnsupported},
		"credentials":    {func(s *sandbox.CreateSpec) { s.CredentialProxy = true }, sandbox.CodeInjectionUnsupported},
		"level":          {func(s *sandbox.CreateSpec) { s.PermissionLevel = sandbox.PermissionAdvanced }, sandbox.CodeLevelUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			sp := spec("asg_" + strings.ReplaceAll(name, " ", "-"))
			tc.edit(&sp)
			_, err := p.Create(t.Context(), sp)
			wantCode(t, err, tc.want)
			_, err = p.Provider.Create(t.Context(), sp) // the provider itself, too
			wantCode(t, err, tc.want)
		})
	}
	if len(s.machine.Boxes()) != 0 {
		t.Errorf("left: %v", s.machine.Boxes())
	}
}

// Values that are no labels still tell owners and assignments apart.
func TestLongIds(t *testing.T) {
	s := newService(t)
	p := s.provider()
	sp := spec("assignment with spaces " + strings.Repeat("x", 100))
	sp.OwnerID = "owner/with/slashes"
	id := create(t, p, sp).SandboxID()
	if again := create(t, p, sp).SandboxID(); again != id {
		t.Error("the assignment wasn't found again")
	}
	other := sp
	other.OwnerID = "owner/with/slashes/2"
	_, err := p.Create(t.Context(), other)
	wantCode(t, err, sandbox.CodeAssignmentConflict)
	info, found, err := p.Finder.FindSandboxByAssignment(t.Context(), installation, sp.AssignmentID)
	if err != nil || !found || info.ID != id {
		t.Fatalf("found %v, %v", found, err)
	}
	if diff := cmp.Diff(sp.AssignmentID, info.Metadata[sandbox.KeyAssignmentID]); diff != "" {
		t.Error(diff)
	}
}

func TestEndpoints(t *testing.T) {
	s := newService(t)
	p := s.provider()
	h := create(t, p, spec("asg_1"))
	for port, want := range map[int]sandbox.Code{
		0: sandbox.CodeInvalid, 65536: sandbox.CodeInvalid, 44772: sandbox.CodePortReserved, 18080: sandbox.CodePortReserved,
	} {
		_, err := h.Endpoint(t.Context(), port)
		wantCode(t, err, want)
		_, err = h.SignedEndpoint(t.Context(), port, time.Now().Add(time.Hour))
		wantCode(t, err, want)
	}
	e, err := h.Endpoint(t.Context(), 8080)
	if err != nil || e.URL.Path != "/proxy/8080" || len(e.Headers) == 0 {
		t.Errorf("port 8080 is at %v with %d headers, %v", e, len(e.Headers), err)
	}
	_, err = h.SignedEndpoint(t.Context(), 8080, time.Now().Add(time.Hour))
	wantCode(t, err, sandbox.CodeSignedUnsupported)
	_, err = h.SignedEndpoint(t.Context(), 8080, time.Now().Add(-time.Hour))
	wantCode(t, err, sandbox.CodeInvalid)
}

// Every operation refuses an id that isn't one before it asks anybody.
func TestBadIds(t *testing.T) {
	s := newScript(t)
	p := s.provider()
	for _, id := range []string{"", ".", "..", "a/b", "a..b", "-a", "a b", "a\x00", strings.Repeat("a", 300)} {
		_, err := p.Connect(t.Context(), id)
		wantCode(t, err, sandbox.CodeNameInvalid)
		_, err = p.Kill(t.Context(), id)
		wantCode(t, err, sandbox.CodeNameInvalid)
		_, err = p.Probe(t.Context(), id)
		wantCode(t, err, sandbox.CodeNameInvalid)
		_, err = p.Renew(t.Context(), id, time.Hour)
		wantCode(t, err, sandbox.CodeNameInvalid)
		_, err = p.ExpiresAt(t.Context(), id)
		wantCode(t, err, sandbox.CodeNameInvalid)
		_, err = p.Pauser.Pause(t.Context(), id)
		wantCode(t, err, sandbox.CodeNameInvalid)
		_, err = p.Pauser.Resume(t.Context(), id)
		wantCode(t, err, sandbox.CodeNameInvalid)
		_, err = p.Inventory.DescribeSandbox(t.Context(), id)
		wantCode(t, err, sandbox.CodeNameInvalid)
	}
	if seen := s.seen(); len(seen) != 0 {
		t.Errorf("it was asked: %v", seen)
	}
	_, _, err := p.Inventory.ListSandboxes(t.Context(), nil, "x")
	wantCode(t, err, sandbox.CodeInvalid)
}
