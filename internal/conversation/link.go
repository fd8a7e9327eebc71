package conversation

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/killpoint"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
	"github.com/astrabox/astrabox/sandbox"
)

var (
	killRegistered    = killpoint.New("program.registered")
	killProgramStored = killpoint.New("program.stored")
	killAttached      = killpoint.New("program.attached")
	killFlushing      = killpoint.New("output.flushing")
	killFlushed       = killpoint.New("output.stored")
	killDelivering    = killpoint.New("turn.delivering")
	killSent          = killpoint.New("turn.sent")
	killEnded         = killpoint.New("program.ended")
)

// Bounds of a link.
const (
	programBuffer = 4 << 20                // output that the sandbox keeps for us
	flushEvery    = 50 * time.Millisecond  // at most 20 stores a second
	flushBytes    = 256 << 10              // this much output is stored at once
	maxOutbox     = 16 * MaxText           // stdin that may wait for its proof of arrival
	firstEvidence = 200 * time.Millisecond // after this a silent program is asked for its stdin
	lastEvidence  = 5 * time.Second        // at most so long between two questions
	sendTimeout   = 15 * time.Second       // of one write to the program
	callTimeout   = 10 * time.Second       // of a question about a process
)

// errProgramGone: the sandbox doesn't know the process.
var errProgramGone = errors.New("the Agent program's process is gone")

// link is the keeper's side of one process of the Agent program. Its stored
// twin is the row of programs: whatever a link has done beyond the row is done
// again, in the same way, by the link that follows it. So after any error a link
// is thrown away.
type link struct {
	p    model.Program // as stored
	m    agentprogram.Machine
	h    sandbox.Handle
	att  sandbox.Attachment
	recv chan received
	stop context.CancelFunc
	done chan struct{} // the reader has ended

	next      int64  // offset of the next byte of output
	line      []byte // the current line so far
	lineAt    int64  // offset of its first byte
	stored    int    // bytes of it that are stored as pieces
	pieces    bool   // pieces are stored, of this line or one that ended
	skipping  bool   // the current line is too long and dropped
	acked     int64
	events    []agentprogram.Event
	size      int // bytes of output behind events
	out       []byte
	end       *agentprogram.TurnEnd
	broken    *agentprogram.Failure
	dirty     bool // there is something to store
	urgent    bool // and it doesn't wait
	flushed   time.Time
	opened    bool          // the handshake is over
	promptEnd int64         // stdin offset after the newest prompt; 0: not known
	evidence  bool          // the program has it
	asks      time.Duration // pause before the next question whether it has
	askAt     time.Time
	termed    bool // it was sent SIGTERM
}

type received struct {
	frame sandbox.Frame
	err   error
}

// attach attaches to the process of the row, starting it if nobody has, and
// sends what of the outbox didn't arrive.
func (k *keeper) attach(ctx context.Context, h sandbox.Handle, p *model.Program) (err error) {
	k.unlink()
	defer func() {
		if err != nil {
			k.unlink()
		}
	}()
	m, err := agentprogram.Restore(p.Program, p.Machine)
	if err != nil {
		k.log.Error("the stored state of the Agent program can't be read", "err", err)
		if err := h.Processes().Delete(ctx, p.ProcessID); err != nil {
			return err
		}
		return errProgramGone
	}
	pieces, err := k.s.store.LinePieces(ctx, k.id)
	if err != nil {
		return err
	}
	status, err := processStatus(ctx, h, p.ProcessID)
	if err != nil {
		return err
	}
	started := status.State != sandbox.ProcessRegistered
	att, err := h.Processes().Attach(ctx, p.ProcessID, sandbox.AttachOptions{From: p.OutputAt, Takeover: true, NoStart: started})
	if err != nil {
		if errors.Is(err, sandbox.ErrProcessNotFound) {
			return errProgramGone
		}
		return fmt.Errorf("attach to the Agent program: %w", err)
	}
	killAttached.Hit()
	l := &link{p: *p, m: m, h: h, att: att, recv: make(chan received), done: make(chan struct{}),
		next: p.OutputAt, line: pieces, lineAt: p.OutputAt - int64(len(pieces)), stored: len(pieces), pieces: len(pieces) > 0, acked: p.OutputAt,
		opened: m.Ready() || m.Turn() != "", asks: firstEvidence, askAt: time.Now().Add(firstEvidence)}
	readCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	l.stop = stop
	go l.read(readCtx)
	k.link = l
	arrived := int64(0)
	if started {
		// Asked after the takeover: nobody else writes any more.
		if status, err = processStatus(ctx, h, p.ProcessID); err != nil {
			return err
		}
		arrived = status.Stdin
	}
	return l.resend(ctx, arrived)
}

func processStatus(ctx context.Context, h sandbox.Handle, id string) (sandbox.ProcessStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	st, err := h.Processes().Status(ctx, id)
	if errors.Is(err, sandbox.ErrProcessNotFound) {
		return st, errProgramGone
	}
	return st, err
}

// resend sends the bytes of the outbox that the process hasn't accepted.
func (l *link) resend(ctx context.Context, arrived int64) error {
	end := l.p.StdinAt + int64(len(l.p.Outbox))
	l.promptEnd = end // whatever prompt there is ends before this
	if arrived < 0 || arrived >= end {
		// Arrived, or it can't be told: then nothing is sent, since twice is worse.
		l.evidence = arrived >= end
		return nil
	}
	rest := l.p.Outbox[max(0, arrived-l.p.StdinAt):]
	return l.send(ctx, rest)
}

func (l *link) send(ctx context.Context, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return unlessEnded(l.att.Send(ctx, b))
}

// unlessEnded passes over that the process has ended: the attachment is sound,
// and what it gives next says how the process ended. Attaching anew would only
// meet the same.
func unlessEnded(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// close detaches; the process goes on.
func (l *link) close() {
	l.stop()
	_ = l.att.Close() // the connection is given up either way
	<-l.done
}

// read hands over what the attachment gives, until it ends.
func (l *link) read(ctx context.Context) {
	defer close(l.done)
	for {
		f, err := l.att.Recv(ctx)
		if err == nil {
			f.Data = bytes.Clone(f.Data)
		}
		select {
		case l.recv <- received{f, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// take works on a frame of output: lines become events.
func (l *link) take(f sandbox.Frame) error {
	d, at := f.Data, f.Offset
	if at > l.next {
		return fmt.Errorf("the output jumps from byte %d to %d", l.next, at)
	}
	if skip := l.next - at; skip >= int64(len(d)) {
		return nil
	} else {
		d, at = d[skip:], l.next
	}
	l.next = at + int64(len(d))
	l.dirty = true
	if f.Channel == sandbox.Stderr {
		return nil // the program's stderr goes to a file; what else comes is no protocol
	}
	for len(d) > 0 {
		if len(l.line) == 0 && !l.skipping {
			l.lineAt = at
		}
		i := bytes.IndexByte(d, '\n')
		part := d
		if i >= 0 {
			part = d[:i]
		}
		if l.skipping = l.skipping || len(l.line)+len(part) > agentprogram.MaxLine; l.skipping {
			l.line, l.stored = nil, 0
		} else {
			l.line = append(l.line, part...)
		}
		if i < 0 {
			break
		}
		if err := l.feed(); err != nil {
			return err
		}
		at += int64(i + 1)
		d = d[i+1:]
		l.lineAt = at
	}
	if len(l.line)-l.stored > flushBytes || l.next-l.acked > flushBytes {
		l.urgent = true
	}
	return nil
}

// feed gives the complete line to the machine.
func (l *link) feed() error {
	if l.skipping {
		l.skipping = false
		l.events = append(l.events, agentprogram.Event{Type: agentprogram.EventNotice, Data: agentprogram.Notice{
			Level: agentprogram.LevelWarning, Text: "The Agent program wrote a line that is too long to be read; it is left out."}})
	} else {
		l.size += len(l.line)
		res, err := l.m.Feed(l.line)
		if err != nil {
			return err
		}
		l.absorb(res)
	}
	if cap(l.line) > flushBytes {
		l.line = nil // a huge line's memory isn't kept
	}
	l.line, l.stored = l.line[:0], 0
	return nil
}

func (l *link) absorb(res agentprogram.Result) {
	l.events = append(l.events, res.Events...)
	l.out = append(l.out, res.Out...)
	l.dirty = true
	if res.NativeSession != "" {
		l.p.NativeSession = res.NativeSession
	}
	if res.TurnEnded != nil {
		l.end = res.TurnEnded
	}
	if res.Broken != nil {
		l.broken = res.Broken
	}
	if res.Ready {
		if !l.opened {
			// The handshake was answered, so it arrived.
			l.promptEnd = l.p.StdinAt + int64(len(l.p.Outbox))
			l.opened = true
			l.p.Failures, l.p.ReadyBy = 0, time.Time{}
		}
		l.trim()
	}
	if res.Ready || res.TurnEnded != nil || res.Broken != nil || len(res.Out) > 0 || l.size > flushBytes {
		l.urgent = true
	}
}

// trim drops what is known to have arrived from the outbox: a prompt that was
// answered, and everything before it.
func (l *link) trim() {
	if n := l.promptEnd - l.p.StdinAt; l.promptEnd > 0 && n > 0 && n <= int64(len(l.p.Outbox)) {
		l.p.Outbox = bytes.Clone(l.p.Outbox[n:])
		l.p.StdinAt = l.promptEnd
	}
}

// flush saves, and only then sends what is to be written and acknowledges what
// was read.
func (k *keeper) flush(ctx context.Context) error {
	l := k.link
	out := l.out
	if err := k.save(ctx, fate{}); err != nil {
		return err
	}
	if err := l.send(ctx, out); err != nil {
		return err
	}
	if l.p.OutputAt <= l.acked {
		return nil
	}
	l.acked = l.p.OutputAt
	ctx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	return unlessEnded(l.att.Ack(ctx, l.acked))
}

// save stores, in one transaction, the events of the lines so far, the state
// that the machine has after them, what is to be written, and the offset from
// which the next link reads on. end overrules what the machine says about the
// end of a turn.
func (k *keeper) save(ctx context.Context, end fate) error {
	l := k.link
	killFlushing.Hit()
	p := l.p
	if len(l.out) > 0 && len(l.p.Outbox)+len(l.out) > maxOutbox {
		return fmt.Errorf("the Agent program doesn't read its stdin: more than %d bytes wait", maxOutbox)
	}
	p.Outbox = append(bytes.Clone(p.Outbox), l.out...)
	var err error
	if p.Machine, err = l.m.State(); err != nil {
		return err
	}
	var piece []byte
	switch {
	case len(l.line)-l.stored > flushBytes:
		piece, p.OutputAt = l.line[l.stored:], l.next
	case l.stored > 0:
		// What follows the stored pieces is read again from where they end.
	case len(l.line) > 0:
		p.OutputAt = l.lineAt
	default:
		p.OutputAt = l.next
	}
	events := agentprogram.Coalesce(l.events)
	err = k.s.store.Update(ctx, func(t *store.Tx) error {
		r, err := t.LoadFenced(k.id, k.fence)
		if err != nil {
			return err
		}
		if err := k.record(t, r, events, end); err != nil {
			return err
		}
		if l.pieces && l.stored == 0 {
			if err := t.DropLinePieces(k.id); err != nil {
				return err
			}
		}
		if piece != nil {
			if err := t.AddLinePiece(k.id, l.next-int64(len(piece)), piece); err != nil {
				return err
			}
		}
		return t.SaveProgram(&p)
	})
	if err != nil {
		return err
	}
	killFlushed.Hit()
	l.p = p
	l.stored += len(piece)
	l.pieces = l.stored > 0
	l.events, l.out, l.end, l.size, l.dirty, l.urgent = nil, nil, nil, 0, false, false
	l.flushed = time.Now()
	return nil
}

// record writes the events of a flush, and the steps of the turn that they
// mean, into the journal.
func (k *keeper) record(t *store.Tx, r *model.Record, events []agentprogram.Event, end fate) error {
	l := k.link
	if l.end != nil && end.to == "" {
		end.to = turnStates[l.end.Reason]
		if e := l.end.Error; e != nil {
			end.why = &model.TurnError{Code: e.Code, Message: e.Message}
		}
	}
	turnID := ""
	changed := len(events) > 0
	if r.Turn != nil {
		turnID = r.Turn.ID
		seen := l.evidence || len(events) > 0 || (end.to != "" && end.to != model.TurnUndelivered && end.to != model.TurnUnknown)
		if r.Turn.State == model.TurnDelivering && seen {
			if err := t.SetTurn(turnID, model.TurnDelivering, model.TurnRunning, nil); err != nil {
				return err
			}
			if err := t.Event(r, turnID, model.EventTurnStarted, nil); err != nil {
				return err
			}
			r.Turn.State, changed = model.TurnRunning, true
		}
	}
	for _, e := range events {
		if err := t.Event(r, turnID, e.Type, e.Data); err != nil {
			return err
		}
	}
	if r.Turn != nil && end.to != "" {
		to := end.to
		switch {
		case r.Turn.State == model.TurnInterrupting:
			to, end.why = model.TurnInterrupted, nil
		case r.Turn.State == model.TurnRunning && (to == model.TurnUndelivered || to == model.TurnUnknown):
			to = model.TurnFailed
		}
		if err := endTurn(t, r, turnID, r.Turn.State, to, end.why); err != nil {
			return err
		}
		changed = true
	}
	if !changed {
		return nil
	}
	r.ActiveAt = t.Now()
	return t.Save(r)
}

// deliver gives the next message to the program: the bytes are stored in the
// outbox in the transaction that takes the turn from the queue, and sent after.
func (k *keeper) deliver(ctx context.Context) error {
	l := k.link
	if l.dirty {
		// The machine's state must not be stored ahead of the output behind it.
		if err := k.flush(ctx); err != nil {
			return err
		}
	}
	p := l.p
	var out []byte
	err := k.change(ctx, func(t *store.Tx, r *model.Record) error {
		queue, err := t.Queue(k.id, 1)
		if err != nil {
			return err
		}
		if r.State != model.Active || r.Runtime.State != model.RuntimeReady || r.Turn != nil || len(queue) == 0 {
			return errStale
		}
		if out, err = l.m.Prompt(queue[0].ID, queue[0].Text); err != nil {
			return err
		}
		if err := t.SetTurn(queue[0].ID, model.TurnQueued, model.TurnDelivering, nil); err != nil {
			return err
		}
		p.Outbox = append(bytes.Clone(p.Outbox), out...)
		if p.Machine, err = l.m.State(); err != nil {
			return err
		}
		r.ActiveAt = t.Now()
		return t.SaveProgram(&p)
	})
	if err != nil {
		return err
	}
	l.p = p
	l.flushed = time.Time{} // the first output of a turn is stored at once
	l.promptEnd = p.StdinAt + int64(len(p.Outbox))
	l.evidence, l.asks, l.askAt = false, firstEvidence, time.Now().Add(firstEvidence)
	killDelivering.Hit()
	if err := l.send(ctx, out); err != nil {
		return err
	}
	killSent.Hit()
	return nil
}
