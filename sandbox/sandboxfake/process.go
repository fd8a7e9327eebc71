package sandboxfake

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

const (
	defaultBuffer = 1 << 20
	minBuffer     = 4 << 10
	maxBuffer     = 64 << 20
	maxStdin      = 1 << 20
	maxProcesses  = 256
	stall         = 10 * time.Second // what a reader may keep a process of kind DropOldest waiting
)

// processes is the Processes face.
type processes struct{ m *machine }

// process is one long-lived process.
type process struct {
	m    *machine
	id   string
	spec sandbox.ProcessSpec
	job  *job

	mu           sync.Mutex
	changed      chan struct{} // closed and replaced when anything below changes
	log          []piece
	oldest, next int64
	ends         []runEnd
	acked        int64
	run          int
	task         *task // nil: not running
	group        int   // of the last run
	exit         *sandbox.Exit
	stdin        []byte
	eof          bool // stdin ends after what is in it
	line         []byte
	accepted     int64 // stdin of this run, or the last
	holder       *attachment
	watchers     map[*attachment]bool
	size         *sandbox.Size
	deleted      bool
	over         chan struct{} // closed when the last run is over
}

// piece is output of one run and channel.
type piece struct {
	at      int64
	run     int
	channel sandbox.Channel
	b       []byte
}

// runEnd is the end of a run after the byte before at.
type runEnd struct {
	at   int64
	run  int
	exit sandbox.Exit
}

func (ps processes) Start(ctx context.Context, spec sandbox.ProcessSpec) (string, error) {
	return operation(ctx, ps.m.p, "Processes.Start", ps.m.id, "nothing", func() (string, error) {
		if err := ps.m.askable(ctx); err != nil {
			return "", err
		}
		if err := ps.m.checkProcess(&spec); err != nil {
			return "", err
		}
		m := ps.m
		m.mu.Lock()
		defer m.mu.Unlock()
		if p := m.byKey[spec.Key]; p != nil {
			return p.id, nil
		}
		if len(m.processes) >= maxProcesses {
			return "", sandbox.Errorf(sandbox.CodeCapacity, "the sandbox has %d processes", maxProcesses)
		}
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		p := &process{
			m: m, id: hex.EncodeToString(b[:]), spec: spec, job: &job{},
			changed: make(chan struct{}), watchers: map[*attachment]bool{}, size: spec.TTY,
		}
		m.processes[p.id], m.byKey[spec.Key] = p, p
		return p.id, nil
	})
}

// checkProcess refuses what can't be started and fills in what is left open.
func (m *machine) checkProcess(spec *sandbox.ProcessSpec) error {
	if spec.Buffer == 0 {
		spec.Buffer = defaultBuffer
	}
	if spec.User == "" {
		spec.User = "root"
	}
	if spec.TTY != nil {
		size := *spec.TTY
		if size.Cols == 0 || size.Rows == 0 {
			size = sandbox.Size{Cols: 80, Rows: 24}
		}
		spec.TTY = &size
	}
	m.tree.mu.Lock()
	known := m.tree.knows(spec.User)
	m.tree.mu.Unlock()
	switch {
	case spec.Key == "" || len(spec.Key) > 256:
		return sandbox.Errorf(sandbox.CodeInvalid, "a key has 1 to 256 bytes")
	case spec.Buffer < minBuffer || spec.Buffer > maxBuffer:
		return sandbox.Errorf(sandbox.CodeInvalid, "a buffer has 4 KiB to 64 MiB")
	case spec.Full != sandbox.DropOldest && spec.Full != sandbox.Block:
		return sandbox.Errorf(sandbox.CodeInvalid, "Full is neither DropOldest nor Block")
	case !known:
		return sandbox.Errorf(sandbox.CodeInvalid, "the sandbox has no account %q", spec.User)
	}
	if spec.Dir == "" {
		spec.Dir = home(spec.User)
	}
	return m.checkLaunch(spec.Line, spec.Dir, spec.Env)
}

func (ps processes) find(ctx context.Context, id string) (*process, error) {
	if err := ps.m.askable(ctx); err != nil {
		return nil, err
	}
	ps.m.mu.Lock()
	defer ps.m.mu.Unlock()
	if p := ps.m.processes[id]; p != nil {
		return p, nil
	}
	return nil, sandbox.ErrProcessNotFound
}

func (ps processes) Status(ctx context.Context, id string) (sandbox.ProcessStatus, error) {
	return operation(ctx, ps.m.p, "Processes.Status", ps.m.id, sandbox.ProcessStatus{State: sandbox.ProcessRegistered}, func() (sandbox.ProcessStatus, error) {
		p, err := ps.find(ctx, id)
		if err != nil {
			return sandbox.ProcessStatus{}, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.status(), nil
	})
}

// status describes the process. The lock is held, as in all that follows
// unless it says otherwise.
func (p *process) status() sandbox.ProcessStatus {
	s := sandbox.ProcessStatus{Run: p.run, State: sandbox.ProcessRegistered, Oldest: p.oldest, Next: p.next, Stdin: p.accepted}
	switch {
	case p.task != nil:
		s.State = sandbox.ProcessRunning
	case p.run > 0:
		s.State = sandbox.ProcessExited
		exit := *p.exit
		s.Exit = &exit
	}
	return s
}

func (ps processes) Delete(ctx context.Context, id string) error {
	return step(ctx, ps.m.p, "Processes.Delete", ps.m.id, func() error {
		p, err := ps.find(ctx, id)
		if errors.Is(err, sandbox.ErrProcessNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		ps.m.mu.Lock()
		delete(ps.m.processes, p.id)
		if ps.m.byKey[p.spec.Key] == p {
			delete(ps.m.byKey, p.spec.Key)
		}
		ps.m.mu.Unlock()
		p.mu.Lock()
		p.deleted = true
		over := p.over
		p.notify()
		p.mu.Unlock()
		ps.m.kernel.kill(p.job, ps.m.p.bent.spare)
		if over == nil {
			return nil
		}
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// cut ends the process because its sandbox ends; who is attached loses the
// connection. The lock isn't held.
func (p *process) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deleted = true
	lost := fmt.Errorf("%w: the sandbox has stopped", sandbox.ErrUnreachable)
	if p.holder != nil {
		p.holder.end(lost)
	}
	for a := range p.watchers {
		a.end(lost)
	}
	p.notify()
}

func (p *process) notify() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// start begins the next run.
func (p *process) start() error {
	if err := p.m.checkLaunch(p.spec.Line, p.spec.Dir, p.spec.Env); err != nil {
		return err
	}
	done, err := p.m.begin()
	if err != nil {
		return err
	}
	t := p.m.kernel.shell(p.job)
	p.run++
	p.task, p.group, p.exit = t, t.group, nil
	p.stdin, p.line, p.eof, p.accepted = nil, nil, false, 0
	over := make(chan struct{})
	p.over = over
	run := p.run
	s := &shell{
		m: p.m, t: t, user: p.spec.User, dir: p.spec.Dir, env: p.m.environ(p.spec.User, p.spec.Env),
		read: p.read, size: p.terminal,
		write: func(c sandbox.Channel, b []byte, stop <-chan struct{}) bool { return p.write(run, c, b, stop) },
	}
	go func() {
		defer done()
		defer close(over)
		exit := s.run(p.spec.Line)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.task, p.exit = nil, &exit
		p.ends = append(p.ends, runEnd{p.next, run, exit})
		p.notify()
	}()
	p.notify()
	return nil
}

// terminal gives the size of the terminal. The lock isn't held.
func (p *process) terminal() (sandbox.Size, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.size == nil {
		return sandbox.Size{}, false
	}
	return *p.size, true
}

// wait gives up the lock until something changes; false: stop was closed.
func (p *process) wait(stop <-chan struct{}) bool {
	changed := p.changed
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-changed:
		return true
	case <-stop:
		return false
	}
}

// read gives stdin to the program. The lock isn't held.
func (p *process) read(n int, stop <-chan struct{}) ([]byte, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case len(p.stdin) > 0:
			b := p.stdin[:min(n, len(p.stdin))]
			p.stdin = p.stdin[len(b):]
			p.notify()
			return b, true
		case p.eof && p.size != nil:
			p.eof = false // a terminal's reader may go on
			return nil, false
		case p.eof:
			return nil, false
		}
		if !p.wait(stop) {
			return nil, false
		}
	}
}

// write takes output of the program. The lock isn't held.
func (p *process) write(run int, c sandbox.Channel, b []byte, stop <-chan struct{}) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.size != nil {
		c, b = sandbox.Stdout, cooked(b)
	}
	for len(b) > 0 {
		if p.deleted {
			return false
		}
		room := int64(p.spec.Buffer) - (p.next - max(p.floor(), p.oldest))
		if room <= 0 {
			if !p.waitForReader(stop) {
				return false
			}
			continue
		}
		n := int(min(room, int64(len(b))))
		p.append(run, c, b[:n])
		b = b[n:]
	}
	return true
}

// floor is the offset from which on nothing may be dropped.
func (p *process) floor() int64 {
	switch {
	case p.spec.Full == sandbox.Block:
		return p.acked
	case p.holder != nil:
		return p.holder.cursor
	default:
		return p.next
	}
}

// waitForReader waits for room. A reader that keeps a process of kind
// DropOldest waiting for too long loses it.
func (p *process) waitForReader(stop <-chan struct{}) bool {
	if p.spec.Full == sandbox.Block || p.holder == nil {
		return p.wait(stop)
	}
	slow, at := p.holder, p.holder.cursor
	changed := p.changed
	p.mu.Unlock()
	t := time.NewTimer(stall)
	defer t.Stop()
	defer p.mu.Lock()
	select {
	case <-changed:
	case <-stop:
		return false
	case <-t.C:
		p.mu.Lock()
		if p.holder == slow && slow.cursor == at {
			slow.end(fmt.Errorf("%w: too slow, output would have been dropped", sandbox.ErrUnreachable))
		}
		p.mu.Unlock()
	}
	return true
}

func (p *process) append(run int, c sandbox.Channel, b []byte) {
	p.log = append(p.log, piece{p.next, run, c, append([]byte(nil), b...)})
	p.next += int64(len(b))
	p.forget(p.next - int64(p.spec.Buffer))
	p.notify()
}

// forget drops output before an offset.
func (p *process) forget(before int64) {
	p.oldest = max(p.oldest, before)
	for len(p.log) > 0 && p.log[0].at+int64(len(p.log[0].b)) <= p.oldest {
		p.log = p.log[1:]
	}
	if len(p.log) > 0 && p.log[0].at < p.oldest {
		cut := p.oldest - p.log[0].at
		p.log[0].at, p.log[0].b = p.oldest, p.log[0].b[cut:]
	}
	for len(p.ends) > 0 && p.ends[0].at < p.oldest {
		p.ends = p.ends[1:]
	}
}

// cooked is what a terminal makes of output.
func cooked(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for _, c := range b {
		if c == '\n' {
			out = append(out, '\r')
		}
		out = append(out, c)
	}
	return out
}
