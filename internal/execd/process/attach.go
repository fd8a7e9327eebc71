package process

import (
	"syscall"

	"github.com/astrabox/astrabox/internal/execd/child"
)

// Options of an attachment.
type Options struct {
	Since    int64 // offset of the first byte wanted
	Takeover bool  // displace the holder
	Viewer   bool  // watch: doesn't hold, can't send, never starts a run
	NoStart  bool  // never start a run
	NeedsRun bool  // refuse when no run is going on
	// Clamp moves a Since that isn't held to the nearest one that is, instead
	// of refusing it.
	Clamp bool
	// Terminal, where Choose is set, replaces the process's own: the run that
	// this attachment starts has it (nil: pipes).
	Choose   bool
	Terminal *Size
}

// Attachment is one reader, and unless it is a viewer the only writer, of a process.
type Attachment struct {
	p      *Process
	viewer bool
	since  int64

	// The rest belongs to the process's lock.
	cursor   int64
	seenEnd  int // highest run whose end was given
	run      int // the run that stdin was reported of
	reported int64
	closed   error // why Next ends
	waiting  bool  // WaitStdin waits for room
	status   Status
}

// Event is what Next gives: output, the end of a run, or how much stdin was
// passed on.
type Event struct {
	Kind    Kind
	Run     int
	Offset  int64
	Channel byte
	N       int // bytes of output in the caller's buffer
	Exit    child.Exit
	Written int64 // of this run's stdin, passed on so far
}

// Kind tells events apart.
type Kind int

// The kinds of events.
const (
	Output Kind = iota + 1
	End         // of a run: all its output was given
	Written
	Over // nothing more will come; the process is free again
)

// Attach attaches, and starts the next run where the options allow it and none
// is running. Attaching as the holder says that output before Since isn't needed.
func (p *Process) Attach(o Options) (*Attachment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o.Clamp {
		o.Since = min(max(o.Since, p.buf.oldest), p.buf.next)
	}
	switch {
	case p.deleted:
		return nil, ErrNotFound
	case p.m.isStopping():
		return nil, ErrStopping
	case o.NeedsRun && p.now == nil:
		return nil, ErrNotRunning
	case p.holder != nil && !o.Viewer && !o.Takeover:
		return nil, ErrHeld
	case o.Since > p.buf.next || o.Since < 0:
		return nil, ErrInvalidOffset
	case o.Since < p.buf.oldest:
		return nil, &GapError{From: o.Since, Oldest: p.buf.oldest}
	}
	if p.spec.Once && p.failure != nil {
		return nil, p.failure
	}
	if p.now == nil && !o.Viewer && !o.NoStart && (!p.spec.Once || !p.tried) {
		if o.Choose {
			if p.spec.TTY = o.Terminal; o.Terminal != nil {
				p.size = *o.Terminal
			}
		}
		p.tried = true
		if p.failure = p.start(); p.failure != nil {
			return nil, p.failure
		}
	}
	a := &Attachment{p: p, viewer: o.Viewer, since: o.Since, cursor: o.Since, status: p.status()}
	if p.now != nil {
		a.run, a.reported = p.now.n, p.now.written
	}
	if !o.Viewer {
		if p.holder != nil {
			p.holder.closed = ErrTakenOver
		}
		p.holder = a
		p.acked = max(p.acked, o.Since)
	}
	p.m.attached(a)
	p.wake()
	return a, nil
}

// Status is what the process was like when the attachment began.
func (a *Attachment) Status() Status { return a.status }

// Next waits for the next event and copies output into buf. The error says why
// there is none: ErrTakenOver, ErrLagging, ErrStopping or ErrClosed.
func (a *Attachment) Next(buf []byte) (Event, error) {
	p := a.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if a.closed != nil {
			return Event{}, a.closed
		}
		if a.cursor < p.buf.oldest {
			a.detach(ErrLagging)
			return Event{}, ErrLagging
		}
		if r := p.now; r != nil && !a.viewer && r.n == a.run && r.written > a.reported {
			a.reported = r.written
			return Event{Kind: Written, Run: r.n, Written: r.written}, nil
		}
		if e, ok := p.buf.endAt(a.cursor, a.seenEnd); ok {
			a.seenEnd = e.run
			return Event{Kind: End, Run: e.run, Offset: e.at, Exit: e.exit}, nil
		}
		if a.cursor < p.buf.next {
			e := Event{Kind: Output, Offset: a.cursor}
			e.N, e.Run, e.Channel = p.buf.read(a.cursor, buf)
			a.cursor += int64(e.N)
			if p.holder == a && !p.spec.Block && p.buf.next-a.cursor <= int64(p.buf.max/2) {
				p.room.Broadcast() // enough for more than one turn each
			}
			return e, nil
		}
		if p.now == nil {
			a.detach(ErrClosed)
			return Event{Kind: Over}, nil
		}
		p.output.Wait()
	}
}

// Stdin queues input for the current run. Input of a viewer, of an attachment
// that lost the process, and after the run's end is dropped.
func (a *Attachment) Stdin(b []byte) error {
	p := a.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holder != a || p.now == nil || p.now.n != a.run {
		return nil
	}
	return p.now.accept(b)
}

// WaitStdin is Stdin for a sender that doesn't know the window: it waits until
// there is room, or the attachment has ended.
func (a *Attachment) WaitStdin(b []byte) {
	p := a.p
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 && p.holder == a && p.now != nil && p.now.n == a.run {
		n := min(len(b), maxStdin-len(p.now.queue))
		if n == 0 {
			a.waiting = true
			p.input.Wait()
			a.waiting = false
			continue
		}
		if p.now.accept(b[:n]) != nil {
			return
		}
		b = b[n:]
	}
}

// Waiting reports whether a WaitStdin waits for room.
func (a *Attachment) Waiting() bool {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	return a.waiting
}

// CloseStdin ends the input after what is queued.
func (a *Attachment) CloseStdin() {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if r := a.p.now; a.p.holder == a && r != nil && r.n == a.run {
		r.eof = true
		a.p.input.Broadcast()
	}
}

// Ack lets the process drop output before offset.
func (a *Attachment) Ack(offset int64) {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if a.p.holder == a && offset <= a.cursor && offset > a.p.acked {
		a.p.acked = offset
		a.p.room.Broadcast()
	}
}

// Resize sets the terminal's size, for this run and later ones.
func (a *Attachment) Resize(s Size) {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if a.p.holder == a && s.Cols > 0 && s.Rows > 0 {
		a.p.size = s
		if a.p.now != nil {
			a.p.now.resize(s)
		}
	}
}

// Signal sends a signal to the process group, or for SIGINT and SIGQUIT to the
// foreground of its terminal.
func (a *Attachment) Signal(sig syscall.Signal) {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	if a.p.holder == a && a.p.now != nil {
		a.p.now.signal(sig)
	}
}

// Close gives the process up. Next then ends with ErrClosed.
func (a *Attachment) Close() {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	a.detach(ErrClosed)
}

// detach is called with the process's lock.
func (a *Attachment) detach(why error) {
	if a.closed == nil {
		a.closed = why
	}
	if a.p.holder == a {
		a.p.holder = nil
	}
	a.p.m.detached(a)
	a.p.wake()
}

// Since is the offset that the attachment began at.
func (a *Attachment) Since() int64 { return a.since }

// Cursor is the offset of the next byte that Next gives. It is for the
// goroutine that calls Next.
func (a *Attachment) Cursor() int64 {
	a.p.mu.Lock()
	defer a.p.mu.Unlock()
	return a.cursor
}
