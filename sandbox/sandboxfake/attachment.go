package sandboxfake

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/astrabox/astrabox/sandbox"
)

// attachment is one reader of a process, and unless it is read-only the only
// writer. Its fields belong to the process's lock.
type attachment struct {
	p        *process
	readOnly bool
	cursor   int64
	seen     int   // the last run whose end was given
	run      int   // that runs while it is attached
	closed   error // why it has ended
}

var (
	errClosed   = errors.New("sandboxfake: the attachment is closed")
	errReadOnly = errors.New("sandboxfake: a read-only attachment can't send")
)

func (ps processes) Attach(ctx context.Context, id string, o sandbox.AttachOptions) (sandbox.Attachment, error) {
	over := &attachment{p: &process{m: ps.m, changed: make(chan struct{})}, closed: io.EOF}
	a, err := operation(ctx, ps.m.p, "Processes.Attach", ps.m.id, over, func() (*attachment, error) {
		p, err := ps.find(ctx, id)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.attach(o)
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

func (p *process) attach(o sandbox.AttachOptions) (*attachment, error) {
	switch {
	case p.deleted:
		return nil, sandbox.ErrProcessNotFound
	case o.From < 0 || o.From > p.next:
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the offset %d lies outside of the output, which ends at %d", o.From, p.next)
	case p.holder != nil && !o.ReadOnly && !o.Takeover:
		return nil, sandbox.ErrProcessHeld
	case o.From < p.oldest:
		return nil, &sandbox.ReplayGapError{From: o.From, Oldest: p.oldest}
	}
	if p.task == nil && !o.ReadOnly && !o.NoStart {
		if err := p.start(); err != nil {
			return nil, err
		}
	}
	a := &attachment{p: p, readOnly: o.ReadOnly, cursor: o.From}
	if p.task != nil {
		a.run = p.run
	}
	if o.ReadOnly {
		p.watchers[a] = true
	} else {
		if p.holder != nil {
			p.holder.closed = sandbox.ErrDisplaced
		}
		p.holder = a
		p.acked = max(p.acked, o.From)
	}
	p.notify()
	return a, nil
}

// end detaches with a reason. The lock is held.
func (a *attachment) end(why error) {
	if a.closed == nil {
		a.closed = why
	}
	if a.p.holder == a {
		a.p.holder = nil
	}
	delete(a.p.watchers, a)
	a.p.notify()
}

func (a *attachment) Recv(ctx context.Context) (sandbox.Frame, error) {
	return operation(ctx, a.p.m.p, "Attachment.Recv", a.p.m.id, sandbox.Frame{}, func() (sandbox.Frame, error) {
		p := a.p
		p.mu.Lock()
		defer p.mu.Unlock()
		for {
			if err := ctx.Err(); err != nil {
				return sandbox.Frame{}, err
			}
			if f, err := a.next(); f != nil || err != nil {
				if f == nil {
					return sandbox.Frame{}, err
				}
				return *f, nil
			}
			p.wait(ctx.Done())
		}
	})
}

// next gives what comes next; nil: nothing yet.
func (a *attachment) next() (*sandbox.Frame, error) {
	const most = 32 << 10
	p := a.p
	if a.closed != nil {
		return nil, a.closed
	}
	if a.cursor < p.oldest { // a watcher that was too slow
		a.end(errors.Join(sandbox.ErrUnreachable, &sandbox.ReplayGapError{From: a.cursor, Oldest: p.oldest}))
		return nil, a.closed
	}
	for _, e := range p.ends {
		if e.at == a.cursor && e.run > a.seen {
			a.seen = e.run
			exit := e.exit
			return &sandbox.Frame{Run: e.run, Offset: e.at, Exit: &exit}, nil
		}
	}
	if a.cursor < p.next {
		i, ok := slices.BinarySearchFunc(p.log, a.cursor, func(pc piece, at int64) int { return int(pc.at - at) })
		if !ok {
			i--
		}
		pc := p.log[i]
		b := pc.b[a.cursor-pc.at:]
		f := &sandbox.Frame{Run: pc.run, Offset: a.cursor, Channel: pc.channel, Data: slices.Clone(b[:min(len(b), most)])}
		a.cursor += int64(len(f.Data))
		p.notify() // there may be room
		return f, nil
	}
	if p.task == nil {
		a.end(io.EOF)
		return nil, io.EOF
	}
	return nil, nil
}

// sending says whether something can be sent to the run.
func (a *attachment) sending() error {
	switch p := a.p; {
	case a.readOnly:
		return errReadOnly
	case a.closed != nil:
		return a.closed
	case p.task == nil || p.run != a.run:
		return io.EOF
	}
	return nil
}

// act does something for the holder under the process's lock.
func (a *attachment) act(ctx context.Context, op string, do func(p *process) error) error {
	return step(ctx, a.p.m.p, "Attachment."+op, a.p.m.id, func() error {
		a.p.mu.Lock()
		defer a.p.mu.Unlock()
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := a.sending(); err != nil {
			return err
		}
		return do(a.p)
	})
}

func (a *attachment) Send(ctx context.Context, stdin []byte) error {
	return a.act(ctx, "Send", func(p *process) error {
		for len(stdin) > 0 {
			if p.eof && p.size == nil {
				return nil // after the end of input
			}
			n := min(len(stdin), maxStdin-len(p.stdin))
			if n <= 0 {
				if p.wait(ctx.Done()); ctx.Err() != nil {
					return ctx.Err()
				}
				if err := a.sending(); err != nil {
					return err
				}
				continue
			}
			p.accepted += int64(n)
			if p.size != nil {
				p.typed(stdin[:n])
			} else {
				p.stdin = append(p.stdin, stdin[:n]...)
			}
			stdin = stdin[n:]
			p.notify()
		}
		return nil
	})
}

// typed is what a terminal does with input: it echoes, gathers lines, and makes
// signals of keys.
func (p *process) typed(b []byte) {
	for _, c := range b {
		switch c {
		case 3:
			p.echo("^C")
			p.line = nil
			p.m.kernel.signalGroup(p.group, "INT")
		case 4:
			p.stdin, p.eof, p.line = append(p.stdin, p.line...), len(p.line) == 0, nil
		case '\r', '\n':
			p.stdin, p.line = append(append(p.stdin, p.line...), '\n'), nil
			p.echo("\r\n")
		default:
			p.line = append(p.line, c)
			p.echo(string(rune(c)))
		}
	}
}

func (p *process) echo(s string) { p.append(p.run, sandbox.Stdout, []byte(s)) }

func (a *attachment) CloseStdin(ctx context.Context) error {
	return a.act(ctx, "CloseStdin", func(p *process) error {
		if p.size != nil {
			p.typed([]byte{4})
		} else {
			p.eof = true
		}
		p.notify()
		return nil
	})
}

func (a *attachment) Ack(ctx context.Context, offset int64) error {
	if a.readOnly {
		return nil // a watcher holds nothing back
	}
	err := a.act(ctx, "Ack", func(p *process) error {
		if offset <= a.cursor && offset > p.acked {
			p.acked = offset
			p.notify()
		}
		return nil
	})
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (a *attachment) Resize(ctx context.Context, s sandbox.Size) error {
	if s.Cols == 0 || s.Rows == 0 {
		return sandbox.Errorf(sandbox.CodeInvalid, "a terminal of %d by %d characters", s.Cols, s.Rows)
	}
	return a.act(ctx, "Resize", func(p *process) error {
		if p.size != nil {
			p.size = &s
		}
		return nil
	})
}

func (a *attachment) Signal(ctx context.Context, name string) error {
	switch name {
	case "SIGINT", "SIGTERM", "SIGKILL", "SIGQUIT", "SIGHUP":
	default:
		return sandbox.Errorf(sandbox.CodeInvalid, "%q is not a signal that can be sent", name)
	}
	return a.act(ctx, "Signal", func(p *process) error {
		p.m.kernel.signalGroup(p.group, name[len("SIG"):])
		return nil
	})
}

func (a *attachment) Close() error {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	a.end(errClosed)
	return nil
}
