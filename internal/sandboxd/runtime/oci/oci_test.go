package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/google/go-cmp/cmp"
)

func TestCreateStopResumeDestroy(t *testing.T) {
	p := newPlace(t, "tcrea1")
	r := p.open()
	s := spec("first")
	s.Env = map[string]string{"GREETING": "good day"}
	run := p.create(r, s)
	if got := p.mustInside("first", "0", "hostname; id -u; cat /proc/1/comm"); got != "sandbox\n0\nexecd" {
		t.Errorf("inside: %q", got)
	}
	st, err := r.Inspect(t.Context(), "first")
	if err != nil || st.Status != runtime.StatusRunning || st.PID != run.PID || st.Addr != run.Addr || st.MemoryBytes == 0 || st.PIDs == 0 {
		t.Errorf("inspect: %+v, %v; created %d %v", st, err, run.PID, run.Addr)
	}
	if _, err := r.Create(t.Context(), s); !errors.Is(err, runtime.ErrExists) {
		t.Errorf("second create: %v", err)
	}
	if _, err := r.Resume(t.Context(), s); !errors.Is(err, runtime.ErrExists) {
		t.Errorf("resume of a running sandbox: %v", err)
	}
	p.mustInside("first", "1000:1000", "echo kept >/workspace/a && echo $HOME")
	p.mustInside("first", "0", "echo k >/etc/k && echo k >/usr/k && rm -rf /usr/share/doc && mkdir /usr/share/doc")

	if err := r.Stop(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	if err := r.Stop(t.Context(), "first"); err != nil {
		t.Errorf("second stop: %v", err)
	}
	if st, err := r.Inspect(t.Context(), "first"); err != nil || st.Status != runtime.StatusStopped {
		t.Errorf("inspect after stop: %+v, %v", st, err)
	}
	// Given back: no process, no group, no mount, no link.
	m := p.machine()
	if len(m["processes"])+len(m["mounts"]) > 0 || len(m["links"]) != 1 || len(r.groups.Dirs("first")) > 0 {
		t.Errorf("after stop: %v, groups %v", m, r.groups.Dirs("first"))
	}
	again, err := r.Resume(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if again.Token == run.Token {
		t.Error("the token didn't change")
	}
	if got := p.mustInside("first", "1000:1000", "cat /workspace/a /etc/k /usr/k; ls /usr/share/doc; stat -c %U:%G:%a /workspace/a /workspace /home/agent"); got != "kept\nk\nk\nagent:agent:644\nagent:agent:750\nagent:agent:750" {
		t.Errorf("after resume: %q", got)
	}
	ids, err := r.List(t.Context())
	if d := cmp.Diff([]string{"first"}, ids); d != "" || err != nil {
		t.Errorf("list: %s, %v", d, err)
	}

	start := time.Now()
	e, err := r.Destroy(t.Context(), "first")
	took := time.Since(start)
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Killed) == 0 || e.Killed[0] != again.PID || len(e.Found) < 5 || len(e.Checks) < 8 || e.Trash == "" || e.Took <= 0 {
		t.Errorf("evidence: %+v", e)
	}
	for _, c := range e.Checks {
		if !c.Gone {
			t.Errorf("evidence: %+v", c)
		}
	}
	if limit := 100 * time.Millisecond; took > limit {
		t.Logf("destroy took %v, more than %v", took, limit) // the benchmark judges; a loaded machine is no failure
	}
	e, err = r.Destroy(t.Context(), "first")
	if err != nil || len(e.Found) != 0 || len(e.Killed) != 0 {
		t.Errorf("second destroy: %+v, %v", e, err)
	}
	if st, err := r.Inspect(t.Context(), "first"); err != nil || st.Status != runtime.StatusAbsent {
		t.Errorf("inspect after destroy: %+v, %v", st, err)
	}
	if err := r.Stop(t.Context(), "first"); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("stop after destroy: %v", err)
	}
	if _, err := r.Resume(t.Context(), s); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("resume after destroy: %v", err)
	}
}

func TestRefusedSpecs(t *testing.T) {
	p := newPlace(t, "tspec1")
	r := p.open()
	for name, c := range map[string]struct {
		change func(*runtime.Spec)
		want   error
	}{
		"empty id":          {func(s *runtime.Spec) { s.ID = "" }, runtime.ErrInvalid},
		"path as id":        {func(s *runtime.Spec) { s.ID = "../x" }, runtime.ErrInvalid},
		"long id":           {func(s *runtime.Spec) { s.ID = strings.Repeat("a", 65) }, runtime.ErrInvalid},
		"foreign image":     {func(s *runtime.Spec) { s.Image = "debian:12" }, runtime.ErrImageUnknown},
		"empty program":     {func(s *runtime.Spec) { s.Entrypoint = []string{""} }, runtime.ErrInvalid},
		"variable with =":   {func(s *runtime.Spec) { s.Env = map[string]string{"A=B": ""} }, runtime.ErrInvalid},
		"variable with 0":   {func(s *runtime.Spec) { s.Env = map[string]string{"A": "\x00"} }, runtime.ErrInvalid},
		"negative cpus":     {func(s *runtime.Spec) { s.CPUs = -1 }, runtime.ErrInvalid},
		"tiny memory":       {func(s *runtime.Spec) { s.MemoryBytes = 1 }, runtime.ErrInvalid},
		"negative pids":     {func(s *runtime.Spec) { s.PIDs = -1 }, runtime.ErrInvalid},
		"negative disk":     {func(s *runtime.Spec) { s.DiskBytes = -1 }, runtime.ErrInvalid},
		"unknown to runc":   {func(s *runtime.Spec) { s.Entrypoint = []string{"/no/such/program"} }, runtime.ErrInvalid},
		"no program":        {func(s *runtime.Spec) { s.Entrypoint = []string{"/usr"} }, runtime.ErrInvalid},
		"program that ends": {func(s *runtime.Spec) { s.Entrypoint = []string{"/bin/false"} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := spec("refused")
			c.change(&s)
			run, err := r.Create(t.Context(), s)
			if err != nil && c.want == nil && !errors.Is(err, runtime.ErrInvalid) || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %+v, %v; want %v", run, err, c.want)
			}
			if err == nil { // a program that ends at once may end after the first ping
				if _, err := r.Wait(t.Context(), "refused", run.PID); err != nil {
					t.Error(err)
				}
				if _, err := r.Destroy(t.Context(), "refused"); err != nil {
					t.Error(err)
				}
			}
			if ids, err := r.List(t.Context()); err != nil || len(ids) > 0 {
				t.Errorf("left: %v, %v", ids, err)
			}
		})
	}
}

func TestWaitTellsTheExit(t *testing.T) {
	p := newPlace(t, "twait1")
	r := p.open()
	s := spec("ends")
	s.Entrypoint = []string{"/bin/sh", "-c", "while [ ! -e /tmp/go ]; do sleep 0.01; done; exit 7"}
	run := p.create(r, s)
	var killed *exec.ExitError // by the end that it brings about, maybe
	if out, err := p.inside("ends", "0", "touch /tmp/go"); err != nil && (!errors.As(err, &killed) || killed.ExitCode() != 137) {
		t.Fatalf("touch: %v: %s", err, out)
	}
	exit, err := r.Wait(t.Context(), "ends", run.PID)
	if err != nil || exit.Known && exit.Code != 7 {
		t.Errorf("wait: %+v, %v", exit, err)
	}
	t.Logf("exit: %+v", exit)
	if st, err := r.Inspect(t.Context(), "ends"); err != nil || st.Status != runtime.StatusStopped {
		t.Errorf("inspect: %+v, %v", st, err)
	}
	if exit, err := r.Wait(t.Context(), "ends", run.PID); err != nil || exit.Known {
		t.Errorf("wait for what has ended: %+v, %v", exit, err)
	}
	// A cancelled wait ends, the sandbox doesn't.
	if run, err = r.Resume(t.Context(), spec("ends")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Wait(ctx, "ends", run.PID); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled wait: %v", err)
	}
	if st, err := r.Inspect(t.Context(), "ends"); err != nil || st.Status != runtime.StatusRunning {
		t.Errorf("inspect: %+v, %v", st, err)
	}
}

func TestAnotherInstanceFindsTheTruth(t *testing.T) {
	p := newPlace(t, "tagain")
	r := p.open()
	run := p.create(r, spec("runs"))
	p.create(r, spec("stopped"))
	if err := r.Stop(t.Context(), "stopped"); err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.Context(), p.cfg); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("second instance beside the first: %v", err)
	}
	if err := r.Close(false); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(t.Context(), spec("late")); !errors.Is(err, runtime.ErrClosed) {
		t.Errorf("create after close: %v", err)
	}
	r = p.open()
	if err := r.Close(true); err == nil {
		t.Error("everything was removed under a running sandbox")
	}
	st, err := r.Inspect(t.Context(), "runs")
	if err != nil || st.PID != run.PID || st.Addr != run.Addr {
		t.Errorf("inspect: %+v, %v; created %+v", st, err, run.PID)
	}
	if err := ping(t.Context(), run.Addr, run.Token); err != nil {
		t.Error(err)
	}
	ids, err := r.List(t.Context())
	if d := cmp.Diff([]string{"runs", "stopped"}, ids); d != "" || err != nil {
		t.Errorf("list: %s %v", d, err)
	}
	// The new instance must not give the address or the ids away again.
	other := p.create(r, spec("other"))
	if other.Addr == run.Addr {
		t.Error("two sandboxes have one address")
	}
	owners := map[string]bool{}
	for _, id := range []string{"runs", "stopped", "other"} {
		o, err := os.Stat(filepath.Join(p.cfg.StateDir, "sandboxes", id, "root"))
		if err != nil {
			t.Fatal(err)
		}
		owners[fmt.Sprint(o.Sys())] = true
	}
	if len(owners) != 3 {
		t.Errorf("sandboxes share ids")
	}
	if _, err := r.Resume(t.Context(), spec("stopped")); err != nil {
		t.Error(err)
	}
}

func TestCancelledCreateLeavesNothing(t *testing.T) {
	p := newPlace(t, "tcanc1")
	r := p.open()
	before := p.machine()
	for i, d := range []time.Duration{0, 2, 5, 10, 15, 20, 30, 40, 50, 60} {
		ctx, cancel := context.WithTimeout(t.Context(), d*time.Millisecond)
		id := fmt.Sprintf("c%d", i)
		_, err := r.Create(ctx, spec(id))
		cancel()
		if err == nil {
			if _, err := r.Destroy(t.Context(), id); err != nil {
				t.Error(err)
			}
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", d, err)
		}
		if ids, err := r.List(t.Context()); err != nil || len(ids) > 0 {
			t.Errorf("after %v: left %v, %v", d, ids, err)
		}
	}
	after := p.machine()
	delete(before, "files") // the trash is emptied in the background
	delete(after, "files")
	delete(after, "cgroups")
	delete(before, "cgroups")
	if d := cmp.Diff(before, after); d != "" {
		t.Errorf("left (-before +after):\n%s", d)
	}
	if len(r.ranges.taken) != 0 || len(r.net.Used()) != 0 {
		t.Errorf("ranges %v and addresses %v are still taken", r.ranges.taken, r.net.Used())
	}
}

func TestTwoInstallations(t *testing.T) {
	p := newPlace(t, "twina1")
	q := placeIn(t, filepath.Dir(p.cfg.RunDir), ofThisRun("twina2")) // the same first four characters
	r, s := p.open(), q.open()
	a, b := p.create(r, spec("same")), q.create(s, spec("same"))
	if r.net.Subnet() == s.net.Subnet() || a.Addr == b.Addr {
		t.Errorf("shared addresses: %v %v", a.Addr, b.Addr)
	}
	for _, x := range []runtime.Running{a, b} {
		if err := ping(t.Context(), x.Addr, x.Token); err != nil {
			t.Error(err)
		}
	}
	// Sweeping is about one's own.
	if err := r.Close(false); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(p.cfg.RunDir, "box", "same", "up")); err != nil {
		t.Fatal(err)
	}
	r = p.open()
	if st, _ := r.Inspect(t.Context(), "same"); st.Status != runtime.StatusStopped {
		t.Errorf("the cut-off start is %s", st.Status)
	}
	if err := ping(t.Context(), b.Addr, b.Token); err != nil {
		t.Errorf("the other installation's sandbox: %v", err)
	}
	if _, err := r.Destroy(t.Context(), "same"); err != nil {
		t.Error(err)
	}
	if err := r.Close(true); err != nil {
		t.Error(err)
	}
	if err := ping(t.Context(), b.Addr, b.Token); err != nil {
		t.Errorf("after the first installation is gone: %v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	p := newPlace(t, "tmany1")
	r := p.open()
	const n = 20
	errs := make(chan error, n)
	slots := make(chan struct{}, 4) // as the service admits them
	start := time.Now()
	for i := range n {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			_, err := r.Create(t.Context(), spec(fmt.Sprintf("many-%d", i)))
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d created in %v", n, time.Since(start).Round(time.Millisecond))
	ids, err := r.List(t.Context())
	if err != nil || len(ids) != n {
		t.Errorf("%d sandboxes, %v", len(ids), err)
	}
	start = time.Now()
	for _, id := range ids {
		go func() {
			_, err := r.Destroy(t.Context(), id)
			errs <- err
		}()
	}
	for range ids {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	t.Logf("destroyed in %v", time.Since(start).Round(time.Millisecond))
}

func TestRefusesToStart(t *testing.T) {
	p := newPlace(t, "tmiss1")
	for name, c := range map[string]struct {
		change func(*Config)
		want   []string
	}{
		"no runc":        {func(c *Config) { c.RuncPath = "/nonexistent/runc" }, []string{"runc:", "/nonexistent/runc", "ASTRABOX_RUNC_PATH"}},
		"no execd":       {func(c *Config) { c.ExecdPath = "/nonexistent/execd" }, []string{"execd:", "ASTRABOX_EXECD_PATH"}},
		"dynamic execd":  {func(c *Config) { c.ExecdPath = "/usr/bin/env" }, []string{"execd:", "shared libraries"}},
		"not runc":       {func(c *Config) { c.RuncPath = "/usr/bin/env" }, []string{"runc:", "can't filter"}},
		"relative state": {func(c *Config) { c.StateDir = "state" }, []string{"absolute"}},
		"bad name":       {func(c *Config) { c.Inst6 = "../../" }, []string{"six characters"}},
		"proc as state":  {func(c *Config) { c.StateDir = "/proc" }, []string{"/proc"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := p.cfg
			c.change(&cfg)
			r, err := New(t.Context(), cfg)
			if err == nil {
				r.Close(true)
				t.Fatal("it started")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q isn't in: %v", w, err)
				}
			}
		})
	}
	os.RemoveAll(p.cfg.RunDir)
}

func TestStateDirOnOverlayIsRefused(t *testing.T) {
	p := newPlace(t, "tover1")
	r := p.open()
	p.create(r, spec("lower"))
	cfg := p.cfg
	cfg.Inst6, cfg.RunDir = ofThisRun("tover2"), filepath.Join(filepath.Dir(p.cfg.RunDir), "over2")
	cfg.StateDir = filepath.Join(r.box("lower").root, "srv") // the sandbox's root is an overlay
	if s, err := New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "volume") {
		t.Errorf("got %v", err)
		if err == nil {
			s.Close(true)
		}
	}
	os.RemoveAll(cfg.RunDir)
}

func TestValidIDs(t *testing.T) {
	ok := []string{"a", "0", "a-b", strings.Repeat("a", 64)}
	bad := []string{"", "-", "-a", "A", "a.b", "a/b", "..", ".", "a\n", "ä"}
	for _, id := range slices.Concat(ok, bad) {
		if got := validID.MatchString(id); got != slices.Contains(ok, id) {
			t.Errorf("%q: %v", id, got)
		}
	}
}
