package oci

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/google/go-cmp/cmp"
)

var killpoints = []string{"intent", "mounted", "created", "plugged", "started", "up"}

// killed waits for the victim and says whether it died as planned.
func killed(cmd *exec.Cmd) bool {
	_ = cmd.Wait()
	ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == syscall.SIGKILL
}

// checkSwept wants a machine on which the new instance left nothing but its own.
func (p place) checkSwept(r *Runtime, want []string) {
	p.t.Helper()
	ids, err := r.List(p.t.Context())
	if d := cmp.Diff(want, ids); d != "" || err != nil {
		p.t.Errorf("after the sweep: %s, %v", d, err)
	}
	m := p.machine()
	if len(m["processes"])+len(m["mounts"]) > 0 || len(m["links"]) != 1 || len(r.groups.IDs()) > 0 || len(r.net.Used()) > 0 || len(r.ranges.taken) != len(want) {
		p.t.Errorf("after the sweep: %v, groups %v, addresses %v, ranges %v", m, r.groups.IDs(), r.net.Used(), r.ranges.taken)
	}
}

func TestKilledInCreate(t *testing.T) {
	p := newPlace(t, "tkilla")
	for _, point := range killpoints {
		t.Run(point, func(t *testing.T) {
			p := place{t, p.cfg}
			v := p.startVictim(point, "create", "victim")
			if err := v.Start(); err != nil {
				t.Fatal(err)
			}
			if !killed(v) {
				t.Fatalf("the victim wasn't killed at %s: %v", point, v.ProcessState)
			}
			r := p.open()
			p.checkSwept(r, nil)
			p.create(r, spec("victim")) // the id works again
		})
	}
}

// TestKilledAnywhere kills at times rather than points, so also while the OCI
// runtime is at work.
func TestKilledAnywhere(t *testing.T) {
	p := newPlace(t, "tkillb")
	for ms := 1; ms <= 76; ms += 5 {
		t.Run(fmt.Sprintf("%dms", ms), func(t *testing.T) {
			p := place{t, p.cfg}
			v := p.startVictim("nowhere", "create", "victim")
			out, err := v.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := v.Start(); err != nil {
				t.Fatal(err)
			}
			if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Duration(ms) * time.Millisecond)
			_ = v.Process.Signal(syscall.SIGKILL)
			_ = v.Wait()
			r := p.open()
			ids, err := r.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(ids) > 0 { // it was complete by then
				if st, err := r.Inspect(t.Context(), "victim"); err != nil || st.Status != runtime.StatusRunning {
					t.Errorf("a complete sandbox is %+v, %v", st, err)
				}
				return
			}
			p.checkSwept(r, nil)
		})
	}
}

func TestKilledInResumeKeepsTheFiles(t *testing.T) {
	p := newPlace(t, "tkillc")
	r := p.open()
	p.create(r, spec("victim"))
	p.mustInside("victim", "1000", "echo precious >/workspace/f")
	for _, point := range killpoints[:len(killpoints)-1] { // after the last one the resume is complete
		t.Run(point, func(t *testing.T) {
			p := place{t, p.cfg}
			if err := r.Stop(t.Context(), "victim"); err != nil {
				t.Fatal(err)
			}
			if err := r.Close(false); err != nil {
				t.Fatal(err)
			}
			v := p.startVictim(point, "resume", "victim")
			if err := v.Start(); err != nil {
				t.Fatal(err)
			}
			if !killed(v) {
				t.Fatalf("the victim wasn't killed at %s: %v", point, v.ProcessState)
			}
			var err error
			if r, err = New(t.Context(), p.cfg); err != nil {
				t.Fatal(err)
			}
			p.checkSwept(r, []string{"victim"})
			if _, err := r.Resume(t.Context(), spec("victim")); err != nil {
				t.Fatal(err)
			}
			if got := p.mustInside("victim", "1000", "cat /workspace/f"); got != "precious" {
				t.Errorf("the file holds %q", got)
			}
		})
	}
	if _, err := r.Destroy(t.Context(), "victim"); err != nil {
		t.Error(err)
	}
	if err := r.Close(true); err != nil {
		t.Error(err)
	}
}

// TestKilledInRemoval kills while a sandbox is stopped or destroyed. Doing it
// again finishes the work.
func TestKilledInRemoval(t *testing.T) {
	p := newPlace(t, "tkilld")
	for _, c := range []struct{ verb, point string }{
		{"stop", "killed"}, {"stop", "emptied"}, {"destroy", "killed"}, {"destroy", "emptied"}, {"destroy", "halted"},
	} {
		t.Run(c.verb+" "+c.point, func(t *testing.T) {
			p := place{t, p.cfg}
			r, err := New(t.Context(), p.cfg)
			if err != nil {
				t.Fatal(err)
			}
			run := p.create(r, spec("victim"))
			p.mustInside("victim", "1000", "echo precious >/workspace/f")
			if err := r.Close(false); err != nil {
				t.Fatal(err)
			}
			v := p.startVictim(c.point, c.verb, "victim")
			if err := v.Start(); err != nil {
				t.Fatal(err)
			}
			if !killed(v) {
				t.Fatalf("the victim wasn't killed at %s: %v", c.point, v.ProcessState)
			}
			// It's this process's child, which the instance that made it would wait for.
			if first, err := os.FindProcess(run.PID); err == nil {
				_, _ = first.Wait()
			}
			r = p.open()
			if st, err := r.Inspect(t.Context(), "victim"); err != nil || st.Status != runtime.StatusStopped {
				t.Errorf("half stopped, it's %+v, %v", st, err)
			}
			if c.verb == "stop" {
				if err := r.Stop(t.Context(), "victim"); err != nil {
					t.Error(err)
				}
				p.checkSwept(r, []string{"victim"})
				if _, err := r.Resume(t.Context(), spec("victim")); err != nil {
					t.Fatal(err)
				}
				if got := p.mustInside("victim", "1000", "cat /workspace/f"); got != "precious" {
					t.Errorf("the file holds %q", got)
				}
			}
			if _, err := r.Destroy(t.Context(), "victim"); err != nil {
				t.Error(err)
			}
			p.checkSwept(r, nil)
		})
	}
}

// TestForeignThingsStay puts things where the sweep looks that aren't the
// installation's, or not in a shape that it made.
func TestForeignThingsStay(t *testing.T) {
	p := newPlace(t, "tforei")
	r := p.open()
	for _, f := range []string{p.cfg.RunDir + "/box/Not-An-Id", p.cfg.StateDir + "/sandboxes/..x"} {
		if err := os.Mkdir(f, 0o700); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(f)
	}
	if err := r.Close(false); err != nil {
		t.Fatal(err)
	}
	r = p.open()
	if ids, err := r.List(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("list: %v, %v", ids, err)
	}
	for _, f := range []string{p.cfg.RunDir + "/box/Not-An-Id", p.cfg.StateDir + "/sandboxes/..x"} {
		if err := os.Remove(f); err != nil {
			t.Error(err)
		}
	}
}
