package conversation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
	"github.com/astrabox/astrabox/sandbox"
)

// The interrupt ladder, counted from the person's request: the protocol's
// cancel at once, SIGTERM, then the end of the process and of everything that
// it started.
const (
	ladderTerm = 10 * time.Second
	ladderKill = 15 * time.Second
)

// openTries is the number of processes of the program in a row that may end
// before they are ready; then what waits is told.
const openTries = 3

// serve works with a sandbox that is ready, until something else is needed: it
// delivers messages, stores what the program says, and stops turns.
func (k *keeper) serve(ctx context.Context, r *model.Record) error {
	if k.handle == nil {
		h, err := k.s.fleet.Connect(ctx, ref(r))
		if err != nil {
			return k.trouble(ctx, r, err)
		}
		k.reached(h)
	}
	if k.link == nil {
		if err := k.adopt(ctx, r); err != nil {
			return err
		}
	}
	for {
		r, err := k.s.store.Record(ctx, k.id)
		if err != nil {
			return err
		}
		if r.Fence != k.fence {
			return store.ErrFenced
		}
		facts := k.facts()
		action, due := model.Decide(*r, facts)
		if action != model.ActServe {
			return nil
		}
		if facts.ActiveAt.Sub(r.ActiveAt) > activityGrain {
			if err := k.change(ctx, func(_ *store.Tx, r *model.Record) error { r.ActiveAt = facts.ActiveAt; return nil }); err != nil {
				return err
			}
		}
		again, ladder, err := k.act(ctx, r)
		if err == nil && !again {
			err = k.await(ctx, r, due, ladder)
		}
		if err != nil {
			return k.linkFailed(ctx, r, err)
		}
	}
}

// adopt attaches to the process that the rows name.
func (k *keeper) adopt(ctx context.Context, r *model.Record) error {
	p, err := k.s.store.Program(ctx, k.id)
	if errors.Is(err, store.ErrNotFound) || err == nil && p.ProcessID == "" {
		if r.Turn != nil {
			return k.programGone(ctx, "The Agent program's process is gone.")
		}
		return nil // opened when a message waits
	}
	if err != nil {
		return err
	}
	if err := k.attach(ctx, k.handle, p); err != nil {
		return k.linkFailed(ctx, r, err)
	}
	return nil
}

// linkFailed throws the link away and finds out what the error means.
func (k *keeper) linkFailed(ctx context.Context, r *model.Record, err error) error {
	k.unlink()
	var gap *sandbox.ReplayGapError
	switch {
	case ctx.Err() != nil, errors.Is(err, errStale), errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrFenced), errors.Is(err, store.ErrClosed):
		return err
	case errors.Is(err, errProgramGone):
		return k.programGone(ctx, "The Agent program's process is gone.")
	case errors.As(err, &gap):
		return k.programGone(ctx, "Output of the Agent program was lost.")
	}
	// The handle may be an old one: it is made anew.
	k.release()
	return k.trouble(ctx, r, err)
}

// programGone settles the turn of a process that can't be found or followed any
// more. What may be left of it ends first: two programs must not work at once.
func (k *keeper) programGone(ctx context.Context, why string) error {
	k.unlink()
	p, err := k.s.store.Program(ctx, k.id)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err == nil && p.ProcessID != "" && k.handle != nil {
		callCtx, cancel := context.WithTimeout(ctx, sendTimeout)
		defer cancel()
		if err := k.handle.Processes().Delete(callCtx, p.ProcessID); err != nil {
			return fmt.Errorf("end the Agent program: %w", err)
		}
	}
	return k.change(ctx, func(t *store.Tx, r *model.Record) error {
		if err := settleTurns(t, r, brokenTurns(fault.ProgramFailed, why)); err != nil {
			return err
		}
		return dropProgram(t, k.id, true)
	})
}

// act does what the rows ask for now. again says to look at the rows again;
// ladder is when the next step of an interrupt is due.
func (k *keeper) act(ctx context.Context, r *model.Record) (again bool, ladder time.Time, err error) {
	l := k.link
	switch {
	case r.Turn != nil && l == nil:
		return true, ladder, k.programGone(ctx, "The Agent program's process is gone.")
	case r.Turn != nil && r.Turn.State == model.TurnInterrupting:
		return k.interrupt(ctx, r)
	case r.Turn != nil && r.Turn.State == model.TurnDelivering && l.evidence:
		return true, ladder, k.flush(ctx)
	case r.Turn == nil && r.Queued > 0 && l == nil:
		return true, ladder, k.reopen(ctx, r)
	case r.Turn == nil && r.Queued > 0 && l.m.Ready():
		return true, ladder, k.deliver(ctx)
	}
	return false, ladder, nil
}

// await waits for the next thing to decide on, and works on output meanwhile.
func (k *keeper) await(ctx context.Context, r *model.Record, due, ladder time.Time) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(k.untilNext(r, due, ladder))
		var recv chan received
		if k.link != nil {
			recv = k.link.recv
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-k.wake:
			return nil
		case <-timer.C:
			now := time.Now()
			if reached(now, due) || reached(now, ladder) {
				return nil
			}
			if k.link == nil {
				continue
			}
			if again, err := k.onTime(ctx, r, now); again || err != nil {
				return err
			}
		case got := <-recv:
			if again, err := k.onReceived(ctx, r, got); again || err != nil {
				return err
			}
		}
	}
}

func reached(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

// untilNext is how long nothing is due.
func (k *keeper) untilNext(r *model.Record, due, ladder time.Time) time.Duration {
	const longest = time.Hour
	now := time.Now()
	wait := longest
	until := func(t time.Time) {
		if !t.IsZero() {
			wait = min(wait, max(0, t.Sub(now)))
		}
	}
	until(due)
	until(ladder)
	if l := k.link; l != nil {
		if l.dirty {
			until(l.flushed.Add(flushEvery))
		}
		if k.asking(r) {
			until(l.askAt)
		}
		if !l.opened {
			until(l.p.ReadyBy)
		}
	}
	return wait
}

// asking: a message was sent and the program has shown no sign of it yet.
func (k *keeper) asking(r *model.Record) bool {
	return !k.link.evidence && r.Turn != nil && r.Turn.State == model.TurnDelivering
}

// onTime does what the link's clock asks for.
func (k *keeper) onTime(ctx context.Context, r *model.Record, now time.Time) (again bool, err error) {
	l := k.link
	if l.dirty && reached(now, l.flushed.Add(flushEvery)) {
		if err := k.flush(ctx); err != nil {
			return false, err
		}
	}
	if !l.opened && reached(now, l.p.ReadyBy) {
		k.broken = fmt.Sprintf("It did not answer within %v.", readyTimeout)
		return true, k.programEnded(ctx, r, sandbox.Exit{Code: 137, Signal: "SIGKILL"})
	}
	if k.asking(r) && reached(now, l.askAt) {
		st, err := processStatus(ctx, l.h, l.p.ProcessID)
		if err != nil {
			return false, err
		}
		l.asks = min(2*l.asks, lastEvidence)
		l.askAt = now.Add(l.asks)
		if st.Stdin < 0 || st.Stdin >= l.promptEnd {
			l.evidence = true
			return true, k.flush(ctx)
		}
	}
	return false, nil
}

// onReceived works on what the attachment gave.
func (k *keeper) onReceived(ctx context.Context, r *model.Record, got received) (again bool, err error) {
	l := k.link
	if got.err != nil {
		return false, fmt.Errorf("the attachment to the Agent program ended: %w", got.err)
	}
	if got.frame.Exit != nil {
		return true, k.programEnded(ctx, r, *got.frame.Exit)
	}
	if err := l.take(got.frame); err != nil {
		return false, err
	}
	if l.broken != nil {
		k.broken = l.broken.Message
		return true, k.programEnded(ctx, r, sandbox.Exit{})
	}
	again = l.end != nil || l.m.Ready()
	if len(l.events) > 0 {
		// Output is the best sign that the message arrived.
		l.evidence = true
	}
	if l.urgent || l.dirty && time.Since(l.flushed) >= flushEvery {
		err = k.flush(ctx)
	}
	return again, err
}

// interrupt takes the next step of the ladder.
func (k *keeper) interrupt(ctx context.Context, r *model.Record) (again bool, next time.Time, err error) {
	l := k.link
	turn, err := k.s.store.Turn(ctx, k.id, r.Turn.ID)
	if err != nil {
		return false, next, err
	}
	if out := l.m.Cancel(); out != nil {
		l.out = append(l.out, out...)
		l.dirty = true
		if err := k.flush(ctx); err != nil {
			return false, next, err
		}
	}
	now, term, kill := time.Now(), turn.InterruptedAt.Add(ladderTerm), turn.InterruptedAt.Add(ladderKill)
	switch {
	case reached(now, kill):
		k.log.Warn("the Agent program did not stop and is ended", "turn", turn.ID)
		return true, next, k.programEnded(ctx, r, sandbox.Exit{Code: 137, Signal: "SIGKILL"})
	case reached(now, term):
		if !l.termed {
			l.termed = true
			callCtx, cancel := context.WithTimeout(ctx, sendTimeout)
			defer cancel()
			if err := unlessEnded(l.att.Signal(callCtx, "SIGTERM")); err != nil {
				return false, next, err
			}
		}
		return false, kill, nil
	}
	return false, term, nil
}

// programEnded settles the turn of a process that ended or is of no more use,
// and ends what is left of it. Its files and its session stay.
func (k *keeper) programEnded(ctx context.Context, r *model.Record, exit sandbox.Exit) error {
	killEnded.Hit()
	l := k.link
	id, opened := l.p.ProcessID, l.opened
	var end fate
	if r.Turn != nil && r.Turn.State == model.TurnDelivering && !l.evidence {
		// The process is gone, and nothing has shown that it got the message.
		st, err := processStatus(ctx, l.h, id)
		switch {
		case err != nil || st.Stdin < 0:
			end = fate{model.TurnUnknown, turnError(fault.DeliveryUnknown, "")}
		case st.Stdin < l.promptEnd:
			end = fate{model.TurnUndelivered, turnError(fault.InputNotDelivered, "The message was not delivered: the Agent program ended before it.")}
		}
	}
	if len(l.events) > 0 {
		// What it said is stored first: after Delete nobody can read it again.
		if err := k.save(ctx, fate{}); err != nil {
			return err
		}
	}
	// Its leftovers end before the turn does: who sees the turn's end may rely on
	// nothing of it running any more.
	callCtx, cancel := context.WithTimeout(ctx, sendTimeout)
	defer cancel()
	if err := l.h.Processes().Delete(callCtx, id); err != nil {
		return fmt.Errorf("end the Agent program: %w", err)
	}
	l.absorb(l.m.Exited(exit))
	l.p.ProcessID, l.p.Outbox, l.p.StdinAt, l.p.ReadyBy = "", nil, 0, time.Time{}
	l.out, l.line, l.stored = nil, nil, 0
	if opened {
		l.p.Failures = 0
	} else {
		l.p.Failures++
		if k.broken == "" && l.broken != nil {
			k.broken = l.broken.Message
		}
	}
	k.log.Warn("the Agent program ended", "exit", exit.Code, "signal", exit.Signal, "opened", opened, "reason", k.broken)
	err := k.save(ctx, end)
	k.unlink()
	return err
}

// reopen opens a process of the program for the messages that wait, or tells
// them that it can't be.
func (k *keeper) reopen(ctx context.Context, r *model.Record) error {
	p, err := k.s.store.Program(ctx, k.id)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	if err == nil && p.Failures >= openTries {
		return k.giveUp(ctx, fault.New(fault.ProgramFailed, "The Agent program could not be started. %s", k.broken))
	}
	err = k.bringUp(ctx, k.handle, false)
	if errors.Is(err, sandbox.ErrPathRejected) || errors.Is(err, sandbox.ErrPathNotFound) {
		// Asking again gets the same answer: a full disk, say.
		err = fault.Wrap(fault.SandboxStartFailed, err, "The Agent program could not be written into the sandbox.")
	}
	var refused *fault.Error
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.As(err, &refused) && !refused.Retryable:
		return k.giveUp(ctx, err)
	case errors.As(err, &refused):
		// The sandbox answered and said no: counted like a process that ended.
		k.broken = refused.Public
		k.unlink()
		return k.change(ctx, func(t *store.Tx, _ *model.Record) error {
			p, err := t.Program(k.id)
			if errors.Is(err, store.ErrNotFound) {
				p, err = &model.Program{ConversationID: k.id}, nil
			}
			if err != nil {
				return err
			}
			p.Failures++
			return t.SaveProgram(p)
		})
	}
	return err
}

// giveUp tells what waits that the program can't be opened; the next message
// tries again.
func (k *keeper) giveUp(ctx context.Context, cause error) error {
	k.log.Error("the Agent program can't be opened", "program", k.env.Program, "err", cause)
	k.unlink()
	k.broken = ""
	return k.change(ctx, func(t *store.Tx, r *model.Record) error {
		f := fault.From(cause)
		if err := settleTurns(t, r, waitingTurns(turnError(f.Code, "The message was not delivered: "+f.Public))); err != nil {
			return err
		}
		return dropProgram(t, k.id, true)
	})
}
