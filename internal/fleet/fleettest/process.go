package fleettest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// process is a long-lived process: the scripted agent, or a terminal that
// echoes. Its fields are guarded by mu; changed is closed and replaced at each
// change.
type process struct {
	box  *Box
	id   string
	spec sandbox.ProcessSpec

	mu      sync.Mutex
	changed chan struct{}
	state   sandbox.ProcessState
	exit    sandbox.Exit
	out     []byte // all output from offset 0; Block forgets nothing here
	acked   int64
	stdin   []byte // all stdin of the run
	read    int    // of stdin by the program
	holder  *attachment
	gone    bool // deleted, or its sandbox stopped
	ignores bool // SIGTERM
	cancel  context.CancelFunc
	done    chan struct{}
}

func (p *process) signal() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// wait waits until cond holds, under mu.
func (p *process) wait(ctx context.Context, cond func() bool) error {
	p.mu.Lock()
	for !cond() {
		c := p.changed
		p.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c:
		}
		p.mu.Lock()
	}
	p.mu.Unlock()
	return nil
}

func (p *process) start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.state, p.cancel, p.done = sandbox.ProcessRunning, cancel, make(chan struct{})
	run := runAgent
	if p.spec.TTY != nil {
		run = runTerminal
	}
	go func() {
		defer close(p.done)
		code := run(ctx, p)
		p.end(sandbox.Exit{Code: code}, false)
	}()
}

// end ends the process; gone also forgets it.
func (p *process) end(exit sandbox.Exit, gone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state == sandbox.ProcessRunning {
		p.state, p.exit = sandbox.ProcessExited, exit
		p.cancel()
	}
	if gone {
		p.gone = true
		if p.holder != nil {
			p.holder.fail(errCut)
			p.holder = nil
		}
	}
	p.signal()
}

// readLine gives the next line of stdin.
func (p *process) readLine(ctx context.Context) (string, error) {
	end := -1
	err := p.wait(ctx, func() bool {
		end = bytes.IndexByte(p.stdin[p.read:], '\n')
		return end >= 0
	})
	if err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	line := string(p.stdin[p.read : p.read+end])
	p.read += end + 1
	return line, nil
}

// write adds output; a Block process waits while its buffer is full.
func (p *process) write(ctx context.Context, b []byte) error {
	for len(b) > 0 {
		room := len(b)
		if limit := p.spec.Buffer; p.spec.Full == sandbox.Block && limit > 0 {
			err := p.wait(ctx, func() bool {
				room = min(len(b), limit-(len(p.out)-int(p.acked)))
				return room > 0
			})
			if err != nil {
				return err
			}
		}
		p.mu.Lock()
		p.out = append(p.out, b[:room]...)
		p.signal()
		p.mu.Unlock()
		b = b[room:]
	}
	return ctx.Err()
}

type processes struct{ h *handle }

func (ps processes) Start(_ context.Context, s sandbox.ProcessSpec) (string, error) {
	ps.h.c.b.mu.Lock()
	defer ps.h.c.b.mu.Unlock()
	box, err := ps.h.running()
	if err != nil {
		return "", err
	}
	id := "p-" + s.Key
	if _, ok := box.procs[id]; !ok {
		box.procs[id] = &process{box: box, id: id, spec: s, state: sandbox.ProcessRegistered, changed: make(chan struct{})}
	}
	return id, nil
}

func (ps processes) find(id string) (*process, error) {
	ps.h.c.b.mu.Lock()
	defer ps.h.c.b.mu.Unlock()
	box, err := ps.h.running()
	if err != nil {
		return nil, err
	}
	if p, ok := box.procs[id]; ok {
		return p, nil
	}
	return nil, sandbox.ErrProcessNotFound
}

func (ps processes) Status(_ context.Context, id string) (sandbox.ProcessStatus, error) {
	p, err := ps.find(id)
	if err != nil {
		return sandbox.ProcessStatus{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	st := sandbox.ProcessStatus{Run: 1, State: p.state, Next: int64(len(p.out)), Stdin: int64(len(p.stdin))}
	if p.state == sandbox.ProcessExited {
		exit := p.exit
		st.Exit = &exit
	}
	if p.state == sandbox.ProcessRegistered {
		st.Run = 0
	}
	return st, nil
}

func (ps processes) Attach(_ context.Context, id string, o sandbox.AttachOptions) (sandbox.Attachment, error) {
	p, err := ps.find(id)
	if err != nil {
		return nil, err
	}
	a := &attachment{c: ps.h.c, p: p, at: o.From}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.gone:
		return nil, sandbox.ErrProcessNotFound
	case p.holder != nil && !o.Takeover:
		return nil, sandbox.ErrProcessHeld
	case p.spec.Full == sandbox.Block && o.From < p.acked:
		return nil, &sandbox.ReplayGapError{From: o.From, Oldest: p.acked}
	case o.From > int64(len(p.out)):
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the offset lies past the end of the output")
	}
	if p.holder != nil {
		p.holder.fail(sandbox.ErrDisplaced)
	}
	p.holder = a
	if p.state != sandbox.ProcessRunning && !o.NoStart {
		p.stdin, p.read = nil, 0 // a process that exited runs again
		p.start()
	}
	p.signal()
	ps.h.c.mu.Lock()
	ps.h.c.atts = append(ps.h.c.atts, a)
	ps.h.c.mu.Unlock()
	return a, nil
}

func (ps processes) Delete(_ context.Context, id string) error {
	p, err := ps.find(id)
	if errors.Is(err, sandbox.ErrProcessNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	p.end(sandbox.Exit{Code: 137, Signal: "SIGKILL"}, true)
	ps.h.c.b.mu.Lock()
	defer ps.h.c.b.mu.Unlock()
	delete(p.box.procs, id)
	return nil
}

type attachment struct {
	c      *Client
	p      *process
	at     int64
	err    error // why it ended; guarded by p.mu
	exited bool
}

// fail ends the attachment; p.mu is held.
func (a *attachment) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

// drop ends the attachment from outside.
func (a *attachment) drop(err error) {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	a.fail(err)
	if a.p.holder == a {
		a.p.holder = nil
	}
	a.p.signal()
}

func (a *attachment) Recv(ctx context.Context) (sandbox.Frame, error) {
	p := a.p
	err := p.wait(ctx, func() bool {
		return a.err != nil || int64(len(p.out)) > a.at || p.state == sandbox.ProcessExited
	})
	if err != nil {
		return sandbox.Frame{}, err
	}
	if gap := p.box.b.RecvGap; gap > 0 {
		select {
		case <-ctx.Done():
			return sandbox.Frame{}, ctx.Err()
		case <-time.After(gap):
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.err != nil {
		return sandbox.Frame{}, a.err
	}
	if n := int64(len(p.out)); n > a.at {
		end := n
		if chunk := int64(p.box.b.Chunk); chunk > 0 {
			end = min(n, a.at+chunk)
		}
		f := sandbox.Frame{Run: 1, Offset: a.at, Channel: sandbox.Stdout, Data: bytes.Clone(p.out[a.at:end])}
		a.at = end
		return f, nil
	}
	if a.exited {
		return sandbox.Frame{}, io.EOF
	}
	a.exited = true
	exit := p.exit
	return sandbox.Frame{Run: 1, Exit: &exit}, nil
}

func (a *attachment) Send(_ context.Context, b []byte) error {
	if err := a.c.gate(); err != nil {
		return err
	}
	backend := a.p.box.b
	backend.mu.Lock()
	limit, cut := len(b), false
	if backend.SendLimit > 0 {
		limit, cut = min(limit, backend.SendLimit), len(b) > backend.SendLimit
		if backend.SendLimit -= limit; cut {
			backend.SendLimit = 0
		}
	}
	mute := backend.Mute
	backend.mu.Unlock()
	if mute != nil && mute(a.p.box, string(b)) {
		return nil // queued for ever: the program doesn't read
	}
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if a.err != nil {
		return a.err
	}
	if a.p.state == sandbox.ProcessExited {
		return io.EOF
	}
	a.p.stdin = append(a.p.stdin, b[:limit]...)
	if cut {
		a.fail(errCut)
		if a.p.holder == a {
			a.p.holder = nil
		}
	}
	a.p.signal()
	return a.err
}

func (a *attachment) Ack(_ context.Context, offset int64) error {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if a.err != nil {
		return a.err
	}
	a.p.acked = max(a.p.acked, offset)
	a.p.signal()
	return nil
}

func (a *attachment) Signal(_ context.Context, name string) error {
	a.p.mu.Lock()
	ignores, exited := a.p.ignores, a.p.state == sandbox.ProcessExited
	a.p.mu.Unlock()
	if exited {
		return io.EOF
	}
	if name == "SIGTERM" && !ignores {
		a.p.end(sandbox.Exit{Code: 143, Signal: name}, false)
	}
	return nil
}

func (a *attachment) Close() error                               { a.drop(io.EOF); return nil }
func (a *attachment) CloseStdin(context.Context) error           { return nil }
func (a *attachment) Resize(context.Context, sandbox.Size) error { return nil }
