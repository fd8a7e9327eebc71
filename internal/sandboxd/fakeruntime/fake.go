// Package fakeruntime is a runtime.Runtime without a kernel, for tests of the
// lifecycle service and of its clients. Only tests import it.
//
// A [Machine] stands for the kernel and the disk: it outlives the services
// that use it. Each service gets a runtime of its own from [Machine.Runtime],
// which can be made to fail, and to die as a process killed at that point
// does: its calls then never return and have no further effect.
package fakeruntime

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
)

// Machine is what sandboxes exist on.
type Machine struct {
	// Serve, when set, answers for the execd of a run until stop is called.
	Serve func(id, token string) (addr netip.AddrPort, stop func())

	mu    sync.Mutex
	pids  int
	boxes map[string]*box
	exits map[int]runtime.Exit
}

type box struct {
	spec  runtime.Spec
	pid   int // 0: stopped
	addr  netip.AddrPort
	stop  func()
	ended chan struct{}
}

// NewMachine makes an empty machine.
func NewMachine() *Machine {
	return &Machine{pids: 1000, boxes: map[string]*box{}, exits: map[int]runtime.Exit{}}
}

// Boxes gives what exists, and the pid of what runs (0: stopped).
func (m *Machine) Boxes() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]int{}
	for id, b := range m.boxes {
		out[id] = b.pid
	}
	return out
}

// Spec gives what a sandbox was last started with.
func (m *Machine) Spec(id string) runtime.Spec {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[id]; b != nil {
		return b.spec
	}
	return runtime.Spec{}
}

// Exit ends a sandbox's PID 1.
func (m *Machine) Exit(id string, e runtime.Exit) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[id]; b != nil && b.pid != 0 {
		m.end(b, e)
	}
}

// Reboot ends everything that runs.
func (m *Machine) Reboot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.boxes {
		if b.pid != 0 {
			m.end(b, runtime.Exit{})
		}
	}
}

// Lose takes a sandbox away behind the service's back.
func (m *Machine) Lose(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.boxes[id]; b != nil {
		if b.pid != 0 {
			m.end(b, runtime.Exit{})
		}
		delete(m.boxes, id)
	}
}

// Stray makes a stopped sandbox that no service asked for.
func (m *Machine) Stray(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.boxes[id] = &box{}
}

func (m *Machine) end(b *box, e runtime.Exit) {
	m.exits[b.pid] = e
	b.pid = 0
	close(b.ended)
	if b.stop != nil {
		b.stop()
		b.stop = nil
	}
}

func (m *Machine) begin(b *box, s runtime.Spec) runtime.Running {
	m.pids++
	b.spec, b.pid, b.ended = s, m.pids, make(chan struct{})
	token := fmt.Sprintf("token-%s-%d", s.ID, b.pid)
	b.addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, byte(b.pid >> 8), byte(b.pid)}), runtime.ExecdPort)
	if m.Serve != nil {
		b.addr, b.stop = m.Serve(s.ID, token)
	}
	return runtime.Running{PID: b.pid, Addr: b.addr, Token: token}
}

// Close stops what Serve started.
func (m *Machine) Close() { m.Reboot() }

// Runtime is one service's way to the machine.
type Runtime struct {
	m *Machine

	mu      sync.Mutex
	hook    func(op, id string, after bool) error
	dead    chan struct{} // closed: the process was killed
	release chan struct{} // closed: blocked calls may go
	calls   []string
}

var _ runtime.Runtime = (*Runtime)(nil)

// Runtime makes a runtime for one service.
func (m *Machine) Runtime() *Runtime {
	return &Runtime{m: m, dead: make(chan struct{}), release: make(chan struct{})}
}

// Hook is called around the effect of each operation ("create", "stop",
// "resume", "destroy", "inspect", "list"). An error before makes the call
// fail without an effect, one after makes it fail with one.
func (r *Runtime) Hook(f func(op, id string, after bool) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hook = f
}

// KillAt kills the process at the n-th operation op from now on, before or
// after its effect.
func (r *Runtime) KillAt(op string, after bool, n int) {
	r.Hook(func(have, _ string, isAfter bool) error {
		if have == op && isAfter == after {
			if n--; n == 0 {
				r.killLocked()
			}
		}
		return nil
	})
}

// Kill kills the process now.
func (r *Runtime) Kill() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.killLocked()
}

func (r *Runtime) killLocked() {
	select {
	case <-r.dead:
	default:
		close(r.dead)
	}
}

// Killed is closed when the process was killed.
func (r *Runtime) Killed() <-chan struct{} { return r.dead }

// Release lets the calls of a killed process return an error, so that its
// goroutines can be waited for.
func (r *Runtime) Release() { close(r.release) }

// Calls gives "op id" of each call so far, reads apart.
func (r *Runtime) Calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

var errKilled = errors.New("fakeruntime: the process was killed")

// step runs the hook and blocks for ever in a killed process.
func (r *Runtime) step(op, id string, after bool) error {
	r.mu.Lock()
	var err error
	if r.hook != nil {
		err = r.hook(op, id, after)
	}
	dead := r.dead
	r.mu.Unlock()
	select {
	case <-dead:
		<-r.release
		return errKilled
	default:
		return err
	}
}

func (r *Runtime) do(ctx context.Context, op, id string, effect func() error) error {
	if err := r.step(op, id, false); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	r.calls = append(r.calls, op+" "+id)
	r.mu.Unlock()
	r.m.mu.Lock()
	err := effect()
	r.m.mu.Unlock()
	if stepErr := r.step(op, id, true); stepErr != nil {
		return stepErr
	}
	return err
}

// Create implements runtime.Runtime. Like the real one it leaves nothing when it fails.
func (r *Runtime) Create(ctx context.Context, s runtime.Spec) (run runtime.Running, err error) {
	err = r.do(ctx, "create", s.ID, func() error {
		if r.m.boxes[s.ID] != nil {
			return runtime.ErrExists
		}
		if s.Image != runtime.HostImage {
			return fmt.Errorf("%w: %s", runtime.ErrImageUnknown, s.Image)
		}
		b := &box{}
		r.m.boxes[s.ID] = b
		run = r.m.begin(b, s)
		return nil
	})
	if err != nil && !errors.Is(err, errKilled) && run.PID != 0 {
		r.m.Lose(s.ID)
	}
	return run, err
}

// Stop implements runtime.Runtime.
func (r *Runtime) Stop(ctx context.Context, id string) error {
	return r.do(ctx, "stop", id, func() error {
		b := r.m.boxes[id]
		if b == nil {
			return runtime.ErrNotFound
		}
		if b.pid != 0 {
			r.m.end(b, runtime.Exit{Known: true, Code: 137, Signal: "SIGKILL"})
		}
		return nil
	})
}

// Resume implements runtime.Runtime.
func (r *Runtime) Resume(ctx context.Context, s runtime.Spec) (run runtime.Running, err error) {
	err = r.do(ctx, "resume", s.ID, func() error {
		switch b := r.m.boxes[s.ID]; {
		case b == nil:
			return runtime.ErrNotFound
		case b.pid != 0:
			return runtime.ErrExists
		default:
			run = r.m.begin(b, s)
			return nil
		}
	})
	if err != nil && !errors.Is(err, errKilled) && run.PID != 0 {
		r.m.Exit(s.ID, runtime.Exit{})
	}
	return run, err
}

// Destroy implements runtime.Runtime.
func (r *Runtime) Destroy(ctx context.Context, id string) (ev runtime.Evidence, err error) {
	ev = runtime.Evidence{ID: id, Found: []string{}, Checks: []runtime.Check{{What: "everything", Gone: true}}, StartedAt: time.Now()}
	err = r.do(ctx, "destroy", id, func() error {
		if b := r.m.boxes[id]; b != nil {
			ev.Found = append(ev.Found, "files")
			if b.pid != 0 {
				ev.Killed = append(ev.Killed, b.pid)
				r.m.end(b, runtime.Exit{Known: true, Code: 137, Signal: "SIGKILL"})
			}
			delete(r.m.boxes, id)
		}
		return nil
	})
	return ev, err
}

// Inspect implements runtime.Runtime.
func (r *Runtime) Inspect(ctx context.Context, id string) (st runtime.State, err error) {
	err = r.do(ctx, "inspect", id, func() error {
		switch b := r.m.boxes[id]; {
		case b == nil:
			st.Status = runtime.StatusAbsent
		case b.pid == 0:
			st.Status = runtime.StatusStopped
		default:
			st = runtime.State{Status: runtime.StatusRunning, PID: b.pid, Addr: b.addr}
		}
		return nil
	})
	return st, err
}

// List implements runtime.Runtime.
func (r *Runtime) List(ctx context.Context) (ids []string, err error) {
	err = r.do(ctx, "list", "", func() error {
		ids = slices.Sorted(maps.Keys(r.m.boxes))
		return nil
	})
	return ids, err
}

// Wait implements runtime.Runtime.
func (r *Runtime) Wait(ctx context.Context, id string, pid int) (runtime.Exit, error) {
	r.m.mu.Lock()
	b := r.m.boxes[id]
	var ended chan struct{}
	if b != nil && b.pid == pid {
		ended = b.ended
	}
	r.m.mu.Unlock()
	if ended != nil {
		select {
		case <-ended:
		case <-ctx.Done():
			return runtime.Exit{}, ctx.Err()
		}
	}
	select {
	case <-r.dead:
		<-r.release
		return runtime.Exit{}, errKilled
	default:
	}
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	return r.m.exits[pid], nil
}

// Close implements runtime.Runtime.
func (r *Runtime) Close(bool) error { return nil }
