package whole_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func containsPath(mountinfo, path string) bool {
	return strings.Contains(mountinfo, " "+path+"/") || strings.Contains(mountinfo, " "+path+" ")
}

func spec(assignment string) sandbox.CreateSpec {
	return sandbox.CreateSpec{
		InstallationID: "inst", OwnerID: "conv", AssignmentID: assignment, Image: "astrabox:host",
		ResourceLimits: map[string]string{"cpu": "1", "memory": "512Mi"}, ResourceRequests: map[string]string{"cpu": "200m"},
		TTL: time.Hour, Dir: "/workspace", RequireCommandChannel: true, Env: map[string]string{"GREETING": "hello"},
	}
}

func (m *machine) create(s sandbox.CreateSpec) sandbox.Handle {
	m.t.Helper()
	h, err := m.p.Create(m.t.Context(), s)
	if err != nil {
		m.t.Fatal(err)
	}
	return h
}

func (m *machine) run1(h sandbox.Handle, line string) string {
	m.t.Helper()
	r, err := h.Commands().Run(m.t.Context(), sandbox.Command{Line: line})
	if err != nil || r.ExitCode != 0 {
		m.t.Errorf("%s: %+v, %v", line, r, err)
	}
	return string(r.Stdout)
}

func TestLife(t *testing.T) {
	m := newMachine(t)
	defer m.cleanStop()
	start := time.Now()
	h := m.create(spec("asg_1"))
	id := h.SandboxID()
	t.Logf("create with its first command: %v", time.Since(start).Round(100*time.Microsecond))
	if out := m.run1(h, "id -u; cat /proc/1/comm; tr '\\0' '\\n' < $(dirname $(grep -lsx tail /proc/[0-9]*/comm))/environ | grep GREETING"); out != "0\nexecd\nGREETING=hello\n" {
		t.Errorf("inside: %q", out)
	}
	if err := h.Files().Write(t.Context(), "/workspace/note", strings.NewReader("kept"), sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o640)}}); err != nil {
		t.Fatal(err)
	}

	start = time.Now()
	if ok, err := m.p.Pauser.Pause(t.Context(), id); err != nil || !ok {
		t.Fatalf("pause: %v, %v", ok, err)
	}
	t.Logf("pause: %v", time.Since(start).Round(100*time.Microsecond))
	start = time.Now()
	if ok, err := m.p.Pauser.Resume(t.Context(), id); err != nil || !ok {
		t.Fatalf("resume: %v, %v", ok, err)
	}
	t.Logf("resume: %v", time.Since(start).Round(100*time.Microsecond))
	again, err := m.p.Connect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, handle := range []sandbox.Handle{again, h} { // the old handle works too
		rc, err := handle.Files().Open(t.Context(), "/workspace/note", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(rc)
		rc.Close()
		if err != nil || string(b) != "kept" {
			t.Errorf("after the pause: %q, %v", b, err)
		}
	}
	if info, err := again.Files().Stat(t.Context(), "/workspace/note"); err != nil || info.Mode != fs.FileMode(0o640) {
		t.Errorf("%+v, %v", info, err)
	}

	start = time.Now()
	d := sandbox.ConfirmDestroyed(t.Context(), m.p, id)
	t.Logf("destroyed, with proof: %v", time.Since(start).Round(100*time.Microsecond))
	if !d.ConfirmsGone(id) {
		t.Errorf("%+v", d)
	}
	_, err = m.p.Connect(t.Context(), id)
	if sandbox.CodeOf(err) != sandbox.CodeGone {
		t.Errorf("connect afterwards: %v", err)
	}
}

// The service dies; sandboxes and what runs in them don't notice.
func TestServiceIsKilled(t *testing.T) {
	m := newMachine(t)
	defer m.cleanStop()
	running, paused := m.create(spec("asg_1")), m.create(spec("asg_2"))
	if ok, err := m.p.Pauser.Pause(t.Context(), paused.SandboxID()); err != nil || !ok {
		t.Fatalf("pause: %v, %v", ok, err)
	}
	pid, err := running.Processes().Start(t.Context(), sandbox.ProcessSpec{Key: "k", Line: "read x; echo got $x"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := running.Processes().Attach(t.Context(), pid, sandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	m.end(syscall.SIGKILL)
	if err := a.Send(t.Context(), []byte("line\n")); err != nil {
		t.Fatal(err)
	}
	if out := m.run1(running, "echo still here"); out != "still here\n" {
		t.Errorf("without a service: %q", out)
	}
	m.start()
	for h, want := range map[sandbox.Handle]string{running: "running", paused: "paused"} {
		if o, err := m.p.Probe(t.Context(), h.SandboxID()); err != nil || o.State != want {
			t.Errorf("after the restart: %+v, %v; want %s", o, err, want)
		}
	}
	var out bytes.Buffer
	for {
		f, err := a.Recv(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		out.Write(f.Data)
	}
	if out.String() != "got line\n" {
		t.Errorf("the process wrote %q", out.String())
	}
	if ok, err := m.p.Pauser.Resume(t.Context(), paused.SandboxID()); err != nil || !ok {
		t.Errorf("resume: %v, %v", ok, err)
	}
	if h := m.create(spec("asg_1")); h.SandboxID() != running.SandboxID() {
		t.Error("the assignment was forgotten")
	}
}

// A create that dies with the service leaves nothing, wherever it was.
func TestServiceIsKilledDuringCreates(t *testing.T) {
	m := newMachine(t)
	defer m.cleanStop()
	for i, delay := range []time.Duration{5, 20, 40, 60, 90} {
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for n := range 3 {
			wg.Go(func() {
				_, _ = m.p.Create(ctx, spec(fmt.Sprintf("asg_%d_%d", i, n))) // most fail
			})
		}
		<-time.After(delay * time.Millisecond)
		m.end(syscall.SIGKILL)
		m.start()
		cancel()
		wg.Wait()
		infos, _, err := m.p.Inventory.ListSandboxes(t.Context(), nil, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range infos {
			switch info.State {
			case "running":
				h, err := m.p.Connect(t.Context(), info.ID)
				if err != nil {
					t.Error(err)
					continue
				}
				m.run1(h, "true")
			case "stopping", "pending":
			default:
				t.Errorf("%s is %s (%s)", info.ID, info.State, info.Reason)
			}
		}
	}
}

func TestEntrypointEnds(t *testing.T) {
	m := newMachine(t)
	defer m.cleanStop()
	for status, want := range map[int]string{0: "terminated", 7: "failed"} {
		s := spec(fmt.Sprintf("asg_%d", status))
		s.Entrypoint = []string{"sh", "-c", fmt.Sprintf("while [ ! -e /workspace/end ]; do sleep 0.05; done; exit %d", status)}
		h := m.create(s)
		if err := h.Files().Write(t.Context(), "/workspace/end", strings.NewReader(""), sandbox.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		deadline := time.After(20 * time.Second)
		for {
			o, err := m.p.Probe(t.Context(), h.SandboxID())
			if err == nil && o.State == want {
				if status != 0 && !strings.Contains(o.Detail, fmt.Sprint(status)) {
					t.Errorf("the status isn't told: %+v", o)
				}
				break
			}
			select {
			case <-deadline:
				t.Fatalf("%+v, %v; want %s", o, err, want)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
}

func TestManyAtOnce(t *testing.T) {
	m := newMachine(t)
	defer m.cleanStop()
	start := time.Now()
	var wg sync.WaitGroup
	for n := range 12 {
		wg.Go(func() {
			h, err := m.p.Create(t.Context(), spec(fmt.Sprintf("asg_%d", n)))
			if err != nil {
				t.Error(err)
				return
			}
			m.run1(h, "true")
		})
	}
	wg.Wait()
	t.Logf("12 sandboxes: %v", time.Since(start).Round(time.Millisecond))
}
