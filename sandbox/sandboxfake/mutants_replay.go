package sandboxfake

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// replayMutants break promises on replay, reruns and buffers.
func replayMutants() []Mutant {
	attach := func(name, clause, why string, f func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error)) Mutant {
		return processMutant(name, clause, why, processHooks{attach: f})
	}
	return []Mutant{
		frameMutant("replay-doubles-a-byte", "processes.replay", "a protocol's message is garbled after a reconnect", func(a *bentAttachment, f *frame) bool {
			if a.seen == 1 && a.o.From > 0 && len(f.Data) > 1 {
				f.Data = append(f.Data[:1:1], f.Data...)
			}
			return true
		}),
		frameMutant("replay-skips-a-byte", "processes.replay", "off by one", func(a *bentAttachment, f *frame) bool {
			if a.seen == 1 && a.o.From > 0 && len(f.Data) > 1 {
				f.Data = f.Data[1:]
			}
			return true
		}),
		attach("replay-is-left-out", "processes.replay", "scrollback is blank after coming back", func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			if s := state(ctx, p, id); s.State == sandbox.ProcessRunning && o.From <= s.Next {
				o.From = s.Next
			}
			return p.Processes.Attach(ctx, id, o)
		}),
		attach("replay-always-begins-at-0", "processes.replay", "everything is shown twice", func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			if s := state(ctx, p, id); o.From > 0 && o.From <= s.Next && s.Oldest == 0 {
				o.From = 0
			}
			return p.Processes.Attach(ctx, id, o)
		}),
		optsMutant("output-is-gone-after-the-end", "processes.replay.ended", "a fast program's output can't be had", func(ctx context.Context, p *bentProcesses, id string, o *opts) {
			if s := state(ctx, p, id); s.State == sandbox.ProcessExited && o.NoStart {
				o.From = s.Next
			}
		}),
		processMutant("exit-is-given-once", "processes.replay.ended", "the second to ask never learns the end", processHooks{recv: exitOnce()}),
		frameMutant("replay-is-all-stdout", "processes.replay.channels", "the replay doesn't say what was stderr", func(a *bentAttachment, f *frame) bool {
			if a.o.NoStart && f.Channel == sandbox.Stderr {
				f.Channel = sandbox.Stdout
			}
			return true
		}),
		processMutant("replay-sorts-channels", "processes.replay.channels", "all of stdout comes before stderr", processHooks{recv: sortedChannels}),
		attach("gap-is-skipped", "processes.replay.gap", "a part of the output is missing without a word", func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			a, err := p.Processes.Attach(ctx, id, o)
			var gap *sandbox.ReplayGapError
			if errors.As(err, &gap) {
				o.From = gap.Oldest
				return p.Processes.Attach(ctx, id, o)
			}
			return a, err
		}),
		attach("gap-names-no-oldest", "processes.replay.gap", "nobody knows from where it works", func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			a, err := p.Processes.Attach(ctx, id, o)
			var gap *sandbox.ReplayGapError
			if errors.As(err, &gap) {
				gap.Oldest = 0
			}
			return a, err
		}),
		attach("gap-is-not-found", "processes.replay.gap", "a process with much output counts as dead", func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			a, err := p.Processes.Attach(ctx, id, o)
			var gap *sandbox.ReplayGapError
			if errors.As(err, &gap) {
				err = sandbox.ErrProcessNotFound
			}
			return a, err
		}),
		attach("beyond-the-end-is-the-end", "processes.replay.beyond", "a client of another process's offsets isn't noticed", func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			o.From = max(min(o.From, state(ctx, p, id).Next), 0)
			return p.Processes.Attach(ctx, id, o)
		}),
		processMutant("output-waits-for-the-end", "processes.replay.live", "a terminal shows nothing until its shell ends", processHooks{recv: atTheEnd}),
		processMutant("process-dies-with-its-attachment", "processes.outlives", "closing the laptop kills the work", processHooks{
			close: func(a *bentAttachment) error {
				_ = a.Attachment.Signal(context.Background(), "SIGKILL")
				return a.Attachment.Close()
			}}),
		processMutant("detached-output-is-dropped", "processes.outlives", "what happened meanwhile is lost", processHooks{
			attach: func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
				if s := state(ctx, p, id); o.NoStart && s.State == sandbox.ProcessExited && o.From > 0 && o.From < s.Next {
					o.From = s.Next
				}
				return p.Processes.Attach(ctx, id, o)
			}}),
		optsMutant("ended-never-runs-again", "processes.rerun", "a terminal whose shell ended is dead for ever", func(ctx context.Context, p *bentProcesses, id string, o *opts) {
			o.NoStart = o.NoStart || state(ctx, p, id).State == sandbox.ProcessExited
		}),
		frameMutant("rerun-hides-the-earlier-exit", "processes.rerun", "two runs look like one", func(a *bentAttachment, f *frame) bool {
			return f.Exit == nil || a.o.NoStart || a.p.runs() == f.Run
		}),
		processMutant("rerun-counts-as-the-same-run", "processes.rerun", "input for the first run reaches the second", processHooks{
			recv: func(ctx context.Context, a *bentAttachment) (frame, error) {
				f, err := a.Attachment.Recv(ctx)
				f.Run = min(f.Run, 1)
				return f, err
			}}),
		statusMutant("offsets-begin-anew", "processes.rerun.offsets", "the replay of two runs is mixed up", func(s *status) {
			if s.Run > 1 {
				s.Next /= int64(s.Run)
			}
		}),
		optsMutant("nostart-is-ignored", "processes.nostart", "recovering a turn runs it twice", func(_ context.Context, _ *bentProcesses, _ string, o *opts) { o.NoStart = false }),
		optsMutant("nostart-runs-the-ended-again", "processes.nostart", "only what never ran is left alone", func(ctx context.Context, p *bentProcesses, id string, o *opts) {
			o.NoStart = o.NoStart && state(ctx, p, id).State != sandbox.ProcessExited
		}),
		processMutant("nostart-only-watches", "processes.nostart.running", "a recovered program gets no input", processHooks{
			send: func(ctx context.Context, a *bentAttachment, b []byte) error {
				if a.o.NoStart {
					return errReadOnly
				}
				return a.Attachment.Send(ctx, b)
			}}),
		attach("nostart-is-over-at-once", "processes.nostart.running", "a program that runs counts as ended", func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			a, err := p.Processes.Attach(ctx, id, o)
			if err == nil && o.NoStart && state(ctx, p, id).State == sandbox.ProcessRunning {
				a.Close()
				return &attachment{p: p.process(id), closed: io.EOF}, nil
			}
			return a, err
		}),
		specMutant("unread-output-blocks", "processes.buffer.drop", "a detached terminal freezes its program", func(s *spec) { s.Full = sandbox.Block }),
		statusMutant("unread-output-is-all-dropped", "processes.buffer.drop", "nothing is left to look at", func(s *status) {
			if s.State == sandbox.ProcessExited {
				s.Oldest = s.Next
			}
		}),
		specMutant("block-drops", "processes.buffer.block", "messages of a program are lost", func(s *spec) { s.Full = sandbox.DropOldest }),
		specMutant("block-has-no-bound", "processes.buffer.block", "a program fills the memory", func(s *spec) {
			if s.Full == sandbox.Block {
				s.Buffer = maxBuffer
			}
		}),
		processMutant("reading-acknowledges", "processes.buffer.ack", "what was read and not yet stored is lost", processHooks{
			recv: func(ctx context.Context, a *bentAttachment) (frame, error) {
				f, err := a.Attachment.Recv(ctx)
				if err == nil {
					_ = a.Attachment.Ack(ctx, f.Offset+int64(len(f.Data)))
				}
				return f, err
			}}),
		processMutant("acknowledging-is-ignored", "processes.buffer.ack", "the program waits for ever", processHooks{
			ack: func(context.Context, *bentAttachment, int64) error { return nil }}),
	}
}

func (p *process) runs() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// exitOnce tells the end of each run of a process to one attachment only.
func exitOnce() func(ctx context.Context, a *bentAttachment) (frame, error) {
	var mu sync.Mutex
	told := map[*process]int{}
	return func(ctx context.Context, a *bentAttachment) (frame, error) {
		f, err := a.Attachment.Recv(ctx)
		if err != nil || f.Exit == nil {
			return f, err
		}
		mu.Lock()
		again := told[a.p] >= f.Run
		told[a.p] = max(told[a.p], f.Run)
		mu.Unlock()
		if again {
			return a.Attachment.Recv(ctx)
		}
		return f, nil
	}
}

// sortedChannels gives a replay with stdout first, under offsets that fit.
func sortedChannels(ctx context.Context, a *bentAttachment) (frame, error) {
	if !a.o.NoStart {
		return a.Attachment.Recv(ctx)
	}
	if a.seen == 0 {
		a.seen = 1
		for {
			f, err := a.Attachment.Recv(ctx)
			if err != nil {
				break
			}
			a.queue = append(a.queue, f)
		}
		slices.SortStableFunc(a.queue, func(x, y frame) int {
			if (x.Exit == nil) != (y.Exit == nil) {
				if x.Exit == nil {
					return -1
				}
				return 1
			}
			return int(x.Channel) - int(y.Channel)
		})
		at := a.o.From
		for i := range a.queue {
			a.queue[i].Offset = at
			at += int64(len(a.queue[i].Data))
		}
	}
	if len(a.queue) == 0 {
		return frame{}, io.EOF
	}
	f := a.queue[0]
	a.queue = a.queue[1:]
	return f, nil
}

// atTheEnd holds output back until its run has ended.
func atTheEnd(ctx context.Context, a *bentAttachment) (frame, error) {
	for len(a.queue) == 0 || a.queue[len(a.queue)-1].Exit == nil && !a.lost {
		f, err := a.Attachment.Recv(ctx)
		if err != nil && len(a.queue) == 0 {
			return f, err
		}
		if err != nil {
			a.lost = true
			break
		}
		a.queue = append(a.queue, f)
	}
	f := a.queue[0]
	a.queue = a.queue[1:]
	return f, nil
}

// attachMutants break promises on who holds a process.
func attachMutants() []Mutant {
	attach := func(name, clause, why string, f func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error)) Mutant {
		return processMutant(name, clause, why, processHooks{attach: f})
	}
	return []Mutant{
		optsMutant("second-takes-over", "processes.held", "two browsers throw each other out", func(_ context.Context, _ *bentProcesses, _ string, o *opts) {
			o.Takeover = !o.ReadOnly
		}),
		attach("second-is-not-found", "processes.held", "a process that is held counts as dead", func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			a, err := p.Processes.Attach(ctx, id, o)
			if errors.Is(err, sandbox.ErrProcessHeld) {
				err = sandbox.ErrProcessNotFound
			}
			return a, err
		}),
		processMutant("closed-holds-on", "processes.held.released", "a reconnect is refused for a minute", processHooks{
			close: func(a *bentAttachment) error {
				time.AfterFunc(time.Second, func() { a.Attachment.Close() })
				return nil
			}}),
		processMutant("displaced-sees-an-end", "processes.takeover", "the first browser believes that the shell ended", processHooks{
			recv: func(ctx context.Context, a *bentAttachment) (frame, error) {
				f, err := a.Attachment.Recv(ctx)
				if errors.Is(err, sandbox.ErrDisplaced) {
					err = io.EOF
				}
				return f, err
			}}),
		processMutant("displaced-waits-for-ever", "processes.takeover", "the first browser hangs", processHooks{
			recv: func(ctx context.Context, a *bentAttachment) (frame, error) {
				f, err := a.Attachment.Recv(ctx)
				if errors.Is(err, sandbox.ErrDisplaced) {
					<-ctx.Done()
					err = ctx.Err()
				}
				return f, err
			}}),
		optsMutant("takeover-is-ignored", "processes.takeover", "a lost browser keeps its terminal", func(_ context.Context, _ *bentProcesses, _ string, o *opts) { o.Takeover = false }),
		processMutant("displaced-sends-on", "processes.takeover.send", "two people type into one shell", processHooks{
			send: func(ctx context.Context, a *bentAttachment, b []byte) error {
				err := a.Attachment.Send(ctx, b)
				if errors.Is(err, sandbox.ErrDisplaced) {
					a.p.typeIn(b)
					return nil
				}
				return err
			}}),
		optsMutant("watching-takes-over", "processes.watch", "looking on throws the other out", func(_ context.Context, _ *bentProcesses, _ string, o *opts) {
			if o.ReadOnly {
				o.ReadOnly, o.Takeover, o.NoStart = false, true, true
			}
		}),
		attach("watching-is-refused", "processes.watch", "nobody can look on", func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			if o.ReadOnly {
				o.ReadOnly = false
			}
			return p.Processes.Attach(ctx, id, o)
		}),
		processMutant("watchers-send", "processes.watch.sends", "whoever looks on can type", processHooks{
			send: func(ctx context.Context, a *bentAttachment, b []byte) error {
				if a.o.ReadOnly {
					a.p.typeIn(b)
					return nil
				}
				return a.Attachment.Send(ctx, b)
			}}),
		processMutant("watchers-signal", "processes.watch.sends", "whoever looks on can kill", processHooks{
			signal: func(ctx context.Context, a *bentAttachment, name string) error {
				if a.o.ReadOnly {
					return nil
				}
				return a.Attachment.Signal(ctx, name)
			}}),
		attach("watching-starts", "processes.watch.starts", "looking at a list of terminals starts them", func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			if o.ReadOnly && state(ctx, p, id).State != sandbox.ProcessRunning {
				if a, err := p.Processes.Attach(ctx, id, opts{}); err == nil {
					a.Close()
				}
			}
			return p.Processes.Attach(ctx, id, o)
		}),
		processMutant("interrupted-recv-loses-a-frame", "processes.recv.context", "a reader with a deadline misses output", processHooks{
			recv: func(ctx context.Context, a *bentAttachment) (frame, error) {
				f, err := a.Attachment.Recv(ctx)
				if err == nil && a.lost {
					a.lost = false
					return a.Attachment.Recv(ctx)
				}
				a.lost = a.lost || ctx.Err() != nil
				return f, err
			}}),
		processMutant("recv-ignores-its-context", "processes.recv.context", "a reader can't stop", processHooks{
			recv: func(ctx context.Context, a *bentAttachment) (frame, error) {
				free, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
				defer cancel()
				return a.Attachment.Recv(free)
			}}),
		attach("attachment-ends-with-its-context", "processes.attach.context", "a terminal dies when the request that opened it ends", func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			a, err := p.Processes.Attach(ctx, id, o)
			if err != nil {
				return nil, err
			}
			return dependent{a, ctx}, nil
		}),
		attach("attach-forgets-its-context", "processes.attach.context", "a caller that gave up still starts the program", func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			return p.Processes.Attach(context.WithoutCancel(ctx), id, o)
		}),
		processMutant("processes-share-their-input", "processes.beside", "what is typed into one terminal reaches another", processHooks{send: toTheFirst()}),
	}
}

// dependent is an attachment that is over when a context is.
type dependent struct {
	sandbox.Attachment
	on context.Context
}

func (d dependent) Recv(ctx context.Context) (frame, error) {
	if d.on.Err() != nil {
		return frame{}, io.EOF
	}
	return d.Attachment.Recv(ctx)
}

// toTheFirst sends all input to the process that was sent to first.
func toTheFirst() func(ctx context.Context, a *bentAttachment, b []byte) error {
	var mu sync.Mutex
	var first *process
	return func(_ context.Context, a *bentAttachment, b []byte) error {
		mu.Lock()
		defer mu.Unlock()
		if first == nil {
			first = a.p
		}
		first.typeIn(b)
		return nil
	}
}
