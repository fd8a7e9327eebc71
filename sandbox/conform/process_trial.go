package conform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

// refusesProcesses is the refusal of every clause on processes: a provider
// without them says so in all operations.
func refusesProcesses(ctx context.Context, b Box) error {
	if b.Processes == nil {
		return Unmet("Processes that refuse (sandbox.UnsupportedProcesses)", "nil")
	}
	_, err := b.Processes.Start(ctx, sandbox.ProcessSpec{Key: "k", Line: script.Line(script.Cat())})
	if err := Refused("Start", err, sandbox.CodeProcessUnsupported); err != nil {
		return err
	}
	_, err = b.Processes.Status(ctx, "1")
	if err := Refused("Status", err, sandbox.CodeProcessUnsupported); err != nil {
		return err
	}
	_, err = b.Processes.Attach(ctx, "1", sandbox.AttachOptions{})
	if err := Refused("Attach", err, sandbox.CodeProcessUnsupported); err != nil {
		return err
	}
	return Refused("Delete", b.Processes.Delete(ctx, "1"), sandbox.CodeProcessUnsupported)
}

// start registers a process under a key of the clause's own. It is deleted
// after the clause.
func (t *trial) start(s sandbox.ProcessSpec, steps ...script.Step) (id string) {
	if s.Key == "" {
		s.Key = "p"
	}
	s.Key = t.Scratch + " " + s.Key
	if len(steps) > 0 {
		s.Line = script.Line(steps...)
	}
	id, err := t.Processes.Start(t.ctx, s)
	t.must("registering a process", err)
	t.want(id != "", "an id", "none")
	t.later(func(ctx context.Context) { _ = t.Processes.Delete(ctx, id) })
	return id
}

// attach attaches; the attachment is closed after the clause.
func (t *trial) attach(id string, o sandbox.AttachOptions) *heard {
	a, err := t.Processes.Attach(t.ctx, id, o)
	t.must(fmt.Sprintf("attaching from %d", o.From), err)
	t.later(func(context.Context) { _ = a.Close() })
	return &heard{t: t, Attachment: a, from: o.From, next: o.From}
}

// launch starts a process and attaches to it.
func (t *trial) launch(s sandbox.ProcessSpec, steps ...script.Step) (id string, a *heard) {
	id = t.start(s, steps...)
	return id, t.attach(id, sandbox.AttachOptions{})
}

func (t *trial) status(id string) sandbox.ProcessStatus {
	s, err := t.Processes.Status(t.ctx, id)
	t.must("asking for a process's status", err)
	return s
}

// exited waits until a process has ended.
func (t *trial) exited(id string) (s sandbox.ProcessStatus) {
	t.eventually(15*time.Second, "the process to end", func() (bool, string) {
		s = t.status(id)
		return s.State == sandbox.ProcessExited, string(s.State)
	})
	return s
}

// heard is an attachment with what it gave so far. Every frame is checked: its
// offset is where the one before ended, and runs don't go back.
type heard struct {
	sandbox.Attachment
	t          *trial
	from, next int64
	run        int
	all        strings.Builder // all output
	out, err   strings.Builder // by channel
	exits      []sandbox.Frame
	before     []int // bytes of output before each exit
	end        error // of Recv
}

// recv takes one frame; false: Recv gave an error, which is in end.
func (h *heard) recv() bool {
	if h.end != nil {
		return false
	}
	f, err := h.Recv(h.t.ctx)
	if err != nil {
		h.end = err
		h.t.want(h.t.ctx.Err() == nil, "frames, or the end of the attachment", "none came; %s so far", short(h.all.String()))
		return false
	}
	h.t.want(f.Offset == h.next, fmt.Sprintf("the next frame to begin at byte %d", h.next), "byte %d", f.Offset)
	h.t.want(f.Run >= h.run && f.Run > 0, fmt.Sprintf("a frame of run %d or a later one", max(h.run, 1)), "run %d", f.Run)
	h.run = f.Run
	if f.Exit != nil {
		h.t.want(len(f.Data) == 0, "an Exit without data", "%q", f.Data)
		h.exits = append(h.exits, f)
		h.before = append(h.before, h.all.Len())
		return true
	}
	h.t.want(len(f.Data) > 0, "a frame with output or an Exit", "an empty frame")
	h.t.want(f.Channel == sandbox.Stdout || f.Channel == sandbox.Stderr, "a channel", "%d", f.Channel)
	h.next += int64(len(f.Data))
	h.all.Write(f.Data)
	if f.Channel == sandbox.Stdout {
		h.out.Write(f.Data)
	} else {
		h.err.Write(f.Data)
	}
	return true
}

// until takes frames until all of the output so far satisfies f.
func (h *heard) until(expected string, f func(all string) bool) *heard {
	for !f(h.all.String()) {
		h.t.want(h.recv(), expected, "%s, then %v", short(h.all.String()), h.end)
	}
	return h
}

// has takes frames until the output contains text.
func (h *heard) has(text string) *heard {
	return h.until(fmt.Sprintf("output with %s", short(text)), func(all string) bool { return strings.Contains(all, text) })
}

// toEOF takes frames until the last.
func (h *heard) toEOF() *heard {
	for h.recv() {
	}
	h.t.want(errors.Is(h.end, io.EOF), "io.EOF after the last frame", "%v", h.end)
	return h
}

// exit gives how the run with this index, from 0, ended.
func (h *heard) exit(i int) sandbox.Exit {
	h.t.want(i < len(h.exits), fmt.Sprintf("the end of %d runs", i+1), "%d", len(h.exits))
	return *h.exits[i].Exit
}

func (h *heard) send(text string) *heard {
	h.t.must("sending input", h.Send(h.t.ctx, []byte(text)))
	return h
}

func (h *heard) close() {
	h.t.must("closing an attachment", h.Close())
}
