// Package process keeps the long-lived processes of a sandbox: their runs,
// their numbered output, and who is attached to them. The daemon's WebSocket
// handlers sit on top of it; it knows nothing of HTTP.
//
// A process has at most one run at a time. Output goes through one buffer that
// numbers bytes across runs. At most one [Attachment] holds a process: it alone
// sends, and it decides how fast output flows; any number of others watch.
//
// Everything is safe for concurrent use, apart from Attachment.Next, which is
// for one goroutine. Errors are the Err values below, a [*GapError], or the
// errors of packages launch and child when a run can't be started.
package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"

	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/launch"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Refusals and ends of attachments.
var (
	ErrNotFound      = errors.New("no such process")
	ErrTooMany       = errors.New("too many processes")
	ErrHeld          = errors.New("another attachment holds the process")
	ErrInvalidOffset = errors.New("the offset lies past the end of the output")
	ErrNotRunning    = errors.New("the process is not running")
	ErrTakenOver     = errors.New("another attachment took the process over")
	ErrLagging       = errors.New("too slow: output was dropped")
	ErrStopping      = errors.New("the daemon is stopping")
	ErrStdinWindow   = errors.New("more stdin in flight than allowed")
	ErrClosed        = errors.New("the attachment is closed")
)

// GapError: output from the asked offset is no longer held.
type GapError struct{ From, Oldest int64 }

func (e *GapError) Error() string {
	return fmt.Sprintf("output from byte %d is no longer held, the oldest held byte is %d", e.From, e.Oldest)
}

// Channels of output.
const (
	Stdout byte = 1
	Stderr byte = 2
)

// Size of a terminal in characters.
type Size struct{ Cols, Rows uint16 }

// Spec describes a process.
type Spec struct {
	ID     string // of [Manager.NewID]; "": a new one
	Key    string // "": none
	Launch launch.Request
	TTY    *Size // nil: pipes
	Buffer int
	Block  bool // the process waits when the buffer is full of unacknowledged output
	Once   bool // at most one attempt to start it is made
}

// State is where a process is in its life.
type State string

// The states.
const (
	Registered State = wire.StateRegistered
	Running    State = wire.StateRunning
	Exited     State = wire.StateExited
)

// Status describes a process.
type Status struct {
	Run          int
	State        State
	Exit         *child.Exit // of the last run, when Exited
	Oldest, Next int64
	// Stdin is how much this run, or the last one when Exited, has accepted, and
	// Written how much of it is not in flight any more.
	Stdin, Written int64
	// Attempted and Failed are of the newest attempt to start a run.
	Attempted, Failed bool
}

// Process is one long-lived process.
type Process struct {
	ID string

	m    *Manager
	spec Spec
	mark string

	mu sync.Mutex
	// Who waits for one thing isn't woken by another: output alone may come
	// many thousand times a second.
	output sync.Cond // attachments: there is an event for them, or they have ended
	room   sync.Cond // a run's output: there is room in the buffer
	input  sync.Cond // stdin: the queue has something, or room

	buf     buffer
	acked   int64
	runs    int
	now     *run // nil: not running
	last    *child.Exit
	taken   int64 // stdin that the last run had accepted when it ended
	leader  int   // pid of the last run
	tried   bool  // a start was attempted
	failure error // of the newest attempt
	holder  *Attachment
	deleted bool
	size    Size
}

// Status describes the process now.
func (p *Process) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status()
}

func (p *Process) status() Status {
	s := Status{Run: p.runs, State: Registered, Exit: p.last, Oldest: p.buf.oldest, Next: p.buf.next, Attempted: p.tried, Failed: p.failure != nil}
	switch {
	case p.now != nil:
		s.State, s.Exit = Running, nil
		s.Stdin, s.Written = p.now.accepted, p.now.written
	case p.runs > 0:
		s.State = Exited
		s.Stdin, s.Written = p.taken, p.taken
	}
	return s
}

// TTY reports whether the process has a terminal.
func (p *Process) TTY() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spec.TTY != nil
}

// write is the sink of a run's output. It waits for room; false: not wanted any more.
func (p *Process) write(run int, channel byte, b []byte) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(b) > 0 {
		if p.deleted {
			return false
		}
		room := p.buf.room(p.floor(), run, channel)
		if room <= 0 {
			p.room.Wait()
			continue
		}
		n := min(room, len(b))
		p.buf.append(run, channel, b[:n])
		b = b[n:]
		p.output.Broadcast()
	}
	return true
}

// wake wakes everybody, after something that all of them look at has changed.
func (p *Process) wake() {
	p.output.Broadcast()
	p.room.Broadcast()
	p.input.Broadcast()
}

// floor is the offset from which on nothing may be dropped.
func (p *Process) floor() int64 {
	switch {
	case p.spec.Block:
		return p.acked
	case p.holder != nil:
		return p.holder.cursor // the holder sets the pace
	default:
		return p.buf.next
	}
}

// tree names all that the process started, in every run.
func (p *Process) tree() child.Tree {
	return child.Tree{Leader: p.leader, Reaped: p.now == nil, Mark: p.mark}
}

// delete kills everything and waits for the end of the run.
func (p *Process) delete(ctx context.Context) error {
	p.mu.Lock()
	p.deleted = true
	r, tree := p.now, p.tree()
	p.wake()
	p.mu.Unlock()
	if tree.Leader == 0 {
		return nil // it never ran, so there is nothing to look for among all processes
	}
	err := tree.Kill(ctx)
	if r != nil {
		if err != nil { // its group can be reached in any case
			_ = r.child.Signal(syscall.SIGKILL)
		}
		select {
		case <-r.over:
		case <-ctx.Done():
			err = errors.Join(err, context.Cause(ctx))
		}
	}
	return err
}

// signal sends sig to the process group, or, for what a terminal's keys send,
// to the group in the terminal's foreground.
func (p *Process) signal(sig syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		p.now.signal(sig)
	}
}

func (p *Process) log() *slog.Logger { return p.m.cfg.Log.With("process", p.ID) }
