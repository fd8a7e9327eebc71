package sandboxfake

import (
	"context"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

type (
	frame  = sandbox.Frame
	status = sandbox.ProcessStatus
	spec   = sandbox.ProcessSpec
	opts   = sandbox.AttachOptions
)

// processHooks are what a variant of Processes does otherwise; a nil hook is
// honest. Each gets the honest one.
type processHooks struct {
	start  func(ctx context.Context, p *bentProcesses, s spec) (string, error)
	status func(ctx context.Context, p *bentProcesses, id string) (status, error)
	attach func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error)
	delete func(ctx context.Context, p *bentProcesses, id string) error

	recv       func(ctx context.Context, a *bentAttachment) (frame, error)
	send       func(ctx context.Context, a *bentAttachment, b []byte) error
	closeStdin func(ctx context.Context, a *bentAttachment) error
	ack        func(ctx context.Context, a *bentAttachment, offset int64) error
	resize     func(ctx context.Context, a *bentAttachment, s sandbox.Size) error
	signal     func(ctx context.Context, a *bentAttachment, name string) error
	close      func(a *bentAttachment) error
}

// bentProcesses is a Processes with hooks.
type bentProcesses struct {
	sandbox.Processes // honest
	m                 *machine
	h                 processHooks
}

// bentAttachment is an attachment of one.
type bentAttachment struct {
	sandbox.Attachment // honest
	m                  *machine
	h                  processHooks
	o                  opts
	p                  *process

	queue []frame // for recv
	seen  int     // frames given
	lost  bool
	late  heldInput
}

// heldInput passes input on a moment after it was sent.
type heldInput struct {
	mu   sync.Mutex
	held []byte
}

func (l *heldInput) hold(b []byte, pass func([]byte)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = append(l.held, b...)
	time.AfterFunc(time.Millisecond, func() { pass(l.drop()) })
}

// drop takes out what is held.
func (l *heldInput) drop() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.held
	l.held = nil
	return b
}

func bendProcesses(h processHooks) func(*bent) {
	return func(b *bent) {
		b.processes = func(m *machine, p sandbox.Processes) sandbox.Processes { return &bentProcesses{p, m, h} }
	}
}

// process gives the process behind an id; nil: none.
func (p *bentProcesses) process(id string) *process {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	return p.m.processes[id]
}

func (p *bentProcesses) Start(ctx context.Context, s spec) (string, error) {
	if p.h.start != nil {
		return p.h.start(ctx, p, s)
	}
	return p.Processes.Start(ctx, s)
}

func (p *bentProcesses) Status(ctx context.Context, id string) (status, error) {
	if p.h.status != nil {
		return p.h.status(ctx, p, id)
	}
	return p.Processes.Status(ctx, id)
}

func (p *bentProcesses) Attach(ctx context.Context, id string, o opts) (sandbox.Attachment, error) {
	attach := p.h.attach
	if attach == nil {
		attach = func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			return p.Processes.Attach(ctx, id, o)
		}
	}
	a, err := attach(ctx, p, id, o)
	if err != nil {
		return nil, err
	}
	if wrapped, ok := a.(*bentAttachment); ok {
		return wrapped, nil
	}
	return &bentAttachment{Attachment: a, m: p.m, h: p.h, o: o, p: p.process(id)}, nil
}

func (p *bentProcesses) Delete(ctx context.Context, id string) error {
	if p.h.delete != nil {
		return p.h.delete(ctx, p, id)
	}
	return p.Processes.Delete(ctx, id)
}

func (a *bentAttachment) Recv(ctx context.Context) (frame, error) {
	if a.h.recv != nil {
		return a.h.recv(ctx, a)
	}
	return a.Attachment.Recv(ctx)
}

func (a *bentAttachment) Send(ctx context.Context, b []byte) error {
	if a.h.send != nil {
		return a.h.send(ctx, a, b)
	}
	return a.Attachment.Send(ctx, b)
}

func (a *bentAttachment) CloseStdin(ctx context.Context) error {
	if a.h.closeStdin != nil {
		return a.h.closeStdin(ctx, a)
	}
	return a.Attachment.CloseStdin(ctx)
}

func (a *bentAttachment) Ack(ctx context.Context, offset int64) error {
	if a.h.ack != nil {
		return a.h.ack(ctx, a, offset)
	}
	return a.Attachment.Ack(ctx, offset)
}

func (a *bentAttachment) Resize(ctx context.Context, s sandbox.Size) error {
	if a.h.resize != nil {
		return a.h.resize(ctx, a, s)
	}
	return a.Attachment.Resize(ctx, s)
}

func (a *bentAttachment) Signal(ctx context.Context, name string) error {
	if a.h.signal != nil {
		return a.h.signal(ctx, a, name)
	}
	return a.Attachment.Signal(ctx, name)
}

func (a *bentAttachment) Close() error {
	if a.h.close != nil {
		return a.h.close(a)
	}
	return a.Attachment.Close()
}

// typeIn puts input into a process as its holder would.
func (p *process) typeIn(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stdin = append(p.stdin, b...)
	p.accepted += int64(len(b))
	p.notify()
}

// unread is how much input waits.
func (p *process) unread() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.stdin)
}
