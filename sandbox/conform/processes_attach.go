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

func attachClauses() []Clause[Box] {
	return []Clause[Box]{
		{ID: "processes.held", Check: try(held),
			Doc: "A second attachment without Takeover is ErrProcessHeld, and the first one isn't disturbed."},
		{ID: "processes.held.released", Check: try(heldReleased),
			Doc: "Closing an attachment leaves the process free for the next one at once."},
		{ID: "processes.takeover", Check: try(takeover),
			Doc: "With Takeover an attachment takes the process over, with its output and its input; the first one gets ErrDisplaced."},
		{ID: "processes.takeover.send", Check: try(takeoverSend),
			Doc: "An attachment that was displaced can't send any more."},
		{ID: "processes.watch", Check: try(watch),
			Doc: "A ReadOnly attachment sees the output beside the one that holds the process, and displaces nobody."},
		{ID: "processes.watch.sends", Check: try(watchSends),
			Doc: "A ReadOnly attachment can't send, signal or end the input."},
		{ID: "processes.watch.starts", Check: try(watchStarts),
			Doc: "A ReadOnly attachment starts nothing."},
		{ID: "processes.recv.context", Check: try(recvContext),
			Doc: "Recv ends with its context, and no frame is lost by that."},
		{ID: "processes.attach.context", Check: try(attachContext),
			Doc: "The context of Attach bounds the handshake only."},
		{ID: "processes.beside", Check: try(processesBeside),
			Doc: "Processes run beside each other, each with its own output."},
	}
}

func held(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("out"), script.ReadLine())
	a.has("out")
	for _, o := range []sandbox.AttachOptions{{}, {From: 3}, {NoStart: true}} {
		b, err := t.Processes.Attach(t.ctx, id, o)
		if err == nil {
			b.Close()
		}
		t.want(errors.Is(err, sandbox.ErrProcessHeld), "ErrProcessHeld", "%v", err)
	}
	a.send("x\n").toEOF()
	t.same("the output of the first attachment", a.all.String(), "out<x>\n")
}

func heldReleased(t *trial) {
	id := t.start(sandbox.ProcessSpec{}, script.Emit("out"), script.Cat())
	for range 10 {
		a := t.attach(id, sandbox.AttachOptions{})
		a.has("out")
		a.close()
	}
	t.want(t.status(id).Run == 1, "one run", "%d", t.status(id).Run)
}

func takeover(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("out"), script.ReadLine(), script.ReadLine())
	a.has("out").send("one\n").has("<one>\n")
	b := t.attach(id, sandbox.AttachOptions{Takeover: true})
	for a.recv() {
	}
	t.want(errors.Is(a.end, sandbox.ErrDisplaced), "ErrDisplaced for the attachment that was displaced", "%v", a.end)
	b.send("two\n").toEOF()
	t.same("the output of the one that took over", b.all.String(), "out<one>\n<two>\n")
	t.want(t.exited(id).Run == 1, "one run", "%d", t.status(id).Run)
	c := t.start(sandbox.ProcessSpec{Key: "free"}, script.Emit("x"))
	t.same("a takeover where nobody holds it", t.attach(c, sandbox.AttachOptions{Takeover: true}).toEOF().all.String(), "x")
}

func takeoverSend(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("out"), script.ReadLine())
	a.has("out")
	b := t.attach(id, sandbox.AttachOptions{Takeover: true})
	for a.recv() {
	}
	t.want(errors.Is(a.end, sandbox.ErrDisplaced), "ErrDisplaced", "%v", a.end)
	err := a.Send(t.ctx, []byte("from the first\n"))
	t.want(err != nil, "an error from Send of the displaced attachment", "none")
	b.send("from the second\n").toEOF()
	t.same("the output", b.all.String(), "out<from the second>\n")
}

func watch(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("out"), script.ReadLine(), script.Exit(3))
	a.has("out")
	v := t.attach(id, sandbox.AttachOptions{ReadOnly: true})
	w := t.attach(id, sandbox.AttachOptions{ReadOnly: true, From: 2})
	v.has("out")
	a.send("x\n").toEOF()
	t.same("the output of the holder", a.all.String(), "out<x>\n")
	t.same("the output of a watcher", v.toEOF().all.String(), "out<x>\n")
	t.same("the output of a watcher from byte 2 on", w.toEOF().all.String(), "t<x>\n")
	t.want(v.exit(0).Code == 3, "the Exit for a watcher", "%+v", v.exit(0))
}

func watchSends(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("out"), script.ReadLine())
	a.has("out")
	v := t.attach(id, sandbox.AttachOptions{ReadOnly: true})
	v.has("out")
	t.want(v.Send(t.ctx, []byte("from the watcher\n")) != nil, "an error from Send of a watcher", "none")
	t.want(v.CloseStdin(t.ctx) != nil, "an error from CloseStdin of a watcher", "none")
	t.want(v.Signal(t.ctx, "SIGKILL") != nil, "an error from Signal of a watcher", "none")
	a.send("x\n").toEOF()
	t.same("the output", a.all.String(), "out<x>\n")
}

func watchStarts(t *trial) {
	id := t.start(sandbox.ProcessSpec{}, script.Emit("out"))
	v := t.attach(id, sandbox.AttachOptions{ReadOnly: true}).toEOF()
	t.want(v.all.Len() == 0 && len(v.exits) == 0, "nothing of a process that never ran", "%q", v.all.String())
	v.close()
	t.want(t.status(id).Run == 0, "no run", "%d", t.status(id).Run)
	t.attach(id, sandbox.AttachOptions{}).toEOF().close()
	t.exited(id)
	v = t.attach(id, sandbox.AttachOptions{ReadOnly: true}).toEOF()
	t.same("the output of the one run", v.all.String(), "out")
	t.want(t.status(id).Run == 1, "one run", "%d", t.status(id).Run)
}

func recvContext(t *trial) {
	_, a := t.launch(sandbox.ProcessSpec{}, script.ReadLine(), script.Lines(300))
	for range 3 {
		ctx, cancel := context.WithTimeout(t.ctx, 30*time.Millisecond)
		_, err := a.Recv(ctx)
		cancel()
		t.want(errors.Is(err, context.DeadlineExceeded), "context.DeadlineExceeded from Recv when nothing comes", "%v", err)
	}
	a.send("x\n").toEOF()
	t.same("the output", a.all.String(), "<x>\n"+string(script.LinesOutput(300)))
}

func attachContext(t *trial) {
	id := t.start(sandbox.ProcessSpec{}, script.ReadLine())
	ctx, cancel := context.WithCancel(t.ctx)
	b, err := t.Processes.Attach(ctx, id, sandbox.AttachOptions{})
	cancel()
	t.must("attaching", err)
	t.later(func(context.Context) { _ = b.Close() })
	a := &heard{t: t, Attachment: b}
	a.send("x\n").toEOF()
	t.same("the output after the context of Attach has ended", a.all.String(), "<x>\n")
	_, err = t.Processes.Attach(ctx, id, sandbox.AttachOptions{})
	t.want(errors.Is(err, context.Canceled), "context.Canceled from Attach under a context that has ended", "%v", err)
	t.want(t.status(id).Run == 1, "one run", "%d", t.status(id).Run)
}

func processesBeside(t *trial) {
	var all []*heard
	for i := range 5 {
		_, a := t.launch(sandbox.ProcessSpec{Key: fmt.Sprint(i)}, script.ReadLine(), script.Cat())
		all = append(all, a)
	}
	for i := range all {
		all[len(all)-1-i].send(fmt.Sprintln(len(all) - 1 - i))
	}
	for i, a := range all {
		a.has(fmt.Sprintf("<%d>\n", i))
		t.same("the output of one process", a.all.String(), fmt.Sprintf("<%d>\n", i))
	}
}

func inputClauses() []Clause[Box] {
	return []Clause[Box]{
		{ID: "processes.stdin", Check: try(stdinBytes),
			Doc: "Input arrives byte for byte and in order, however much it is."},
		{ID: "processes.stdin.end", Check: try(stdinEnd),
			Doc: "CloseStdin ends the input after what was sent."},
		{ID: "processes.stdin.count", Check: try(stdinCount),
			Doc: "Status counts the input that the run has accepted, from 0 in each run."},
		{ID: "processes.stdin.full", Check: try(stdinFull), Timeout: 40 * time.Second,
			Doc: "Send doesn't wait for the process to read before 1 MiB is unread, then it waits no longer than its context."},
		{ID: "processes.stdin.control", Check: try(stdinControl),
			Doc: "A signal gets through to a process that reads none of the input that waits for it."},
		{ID: "processes.stdin.over", Check: try(stdinOver),
			Doc: "Sending after the process has ended is io.EOF."},
		{ID: "processes.resize", Check: try(resize),
			Doc: "Resize changes the size of the terminal, and an impossible size is refused."},
		{ID: "processes.tty.input", Check: try(ttyInput),
			Doc: "What is typed into a terminal reaches its program by the line, and ^C interrupts it."},
		{ID: "processes.signal", Check: try(signals),
			Doc: "A signal reaches the process and what it runs in its group."},
		{ID: "processes.signal.caught", Check: try(signalCaught),
			Doc: "A process can catch the signal that it is sent."},
		{ID: "processes.signal.refused", Check: try(signalRefused),
			Doc: "A signal of another name than SIGINT, SIGTERM, SIGKILL, SIGQUIT and SIGHUP is refused."},
	}
}

func stdinBytes(t *trial) {
	_, a := t.launch(sandbox.ProcessSpec{}, script.Cat())
	text := everyByte(300_000)
	for rest := text; len(rest) > 0; {
		n := min(len(rest), 70_001)
		a.send(rest[:n])
		rest = rest[n:]
	}
	a.until("all of the input to come back", func(all string) bool { return len(all) >= len(text) })
	t.want(a.all.String() == text, "the very bytes that were sent", "others")
}

func stdinEnd(t *trial) {
	_, a := t.launch(sandbox.ProcessSpec{}, script.Count(), script.Emit("end"))
	a.send(strings.Repeat("x", 100_000))
	t.must("ending the input", a.CloseStdin(t.ctx))
	a.toEOF()
	t.same("what the process counted", strings.TrimSpace(a.all.String()), "100000\nend")
	t.want(a.exit(0).Code == 0, "status 0", "%+v", a.exit(0))
	_, a = t.launch(sandbox.ProcessSpec{Key: "empty"}, script.Count())
	t.must("ending an empty input", a.CloseStdin(t.ctx))
	t.same("what the process counted", strings.TrimSpace(a.toEOF().all.String()), "0")
}

func stdinCount(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.ReadLine())
	t.want(t.status(id).Stdin == 0, "no input at first", "%d", t.status(id).Stdin)
	a.send("123")
	t.eventually(soon, "3 bytes of input to be counted", func() (bool, string) {
		n := t.status(id).Stdin
		return n == 3, fmt.Sprint(n)
	})
	a.send("45\n").toEOF()
	t.want(t.exited(id).Stdin == 6, "6 bytes of input after the end", "%d", t.status(id).Stdin)
	a.close()
	b := t.attach(id, sandbox.AttachOptions{From: t.status(id).Next})
	t.want(t.status(id).Stdin == 0, "no input at first in the next run", "%d", t.status(id).Stdin)
	b.send("x\n").toEOF()
}

func stdinFull(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("ready"), script.WaitFor(t.path("go")), script.Count())
	a.has("ready")
	piece := make([]byte, 64<<10)
	sent := 0
	for sent < 1<<20-len(piece) {
		t.withoutWaiting("sending what nobody reads", func(ctx context.Context) error { return a.Send(ctx, piece) })
		sent += len(piece)
	}
	ctx, cancel := context.WithTimeout(t.ctx, time.Second)
	defer cancel()
	var err error
	for err == nil && sent < 8<<20 {
		if err = a.Send(ctx, piece); err == nil {
			sent += len(piece)
		}
	}
	t.want(errors.Is(err, context.DeadlineExceeded), "Send to wait until its context ends when much is unread", "%v after %d bytes", err, sent)
	var accepted int64
	t.put("go", "")
	t.eventually(soon, "the input to be taken", func() (bool, string) {
		accepted = t.status(id).Stdin
		return accepted >= int64(sent), fmt.Sprintf("%d of %d", accepted, sent)
	})
	t.must("ending the input", a.CloseStdin(t.ctx))
	a.toEOF()
	counted := strings.TrimSpace(strings.TrimPrefix(a.all.String(), "ready"))
	t.same("what the process counted", counted, fmt.Sprint(t.exited(id).Stdin))
}

func stdinControl(t *trial) {
	_, a := t.launch(sandbox.ProcessSpec{}, script.Emit("ready"), script.Sleep(long))
	a.has("ready")
	for range 12 { // 768 KiB, much more than a pipe holds
		t.withoutWaiting("sending what nobody reads", func(ctx context.Context) error { return a.Send(ctx, make([]byte, 64<<10)) })
	}
	t.withoutWaiting("signalling", func(ctx context.Context) error { return a.Signal(ctx, "SIGKILL") })
	t.want(a.toEOF().exit(0).Signal == "SIGKILL", "the process to be killed", "%+v", a.exit(0))
}

func stdinOver(t *trial) {
	_, a := t.launch(sandbox.ProcessSpec{}, script.Emit("x"))
	a.toEOF()
	for what, err := range map[string]error{
		"Send": a.Send(t.ctx, []byte("late")), "CloseStdin": a.CloseStdin(t.ctx), "Signal": a.Signal(t.ctx, "SIGTERM"),
	} {
		t.want(errors.Is(err, io.EOF), "io.EOF from "+what+" after the end", "%v", err)
	}
	t.must("acknowledging after the end", a.Ack(t.ctx, a.next))
}

func resize(t *trial) {
	_, a := t.launch(sandbox.ProcessSpec{TTY: &sandbox.Size{Cols: 80, Rows: 24}}, script.TTYSize(), script.ReadLine(), script.TTYSize())
	a.has("24 80\r\n")
	t.must("resizing", a.Resize(t.ctx, sandbox.Size{Cols: 132, Rows: 50}))
	a.send("x\n").has("50 132\r\n")
	t.give(Refused("a terminal without rows", a.Resize(t.ctx, sandbox.Size{Cols: 80}), sandbox.CodeInvalid))
}

func ttyInput(t *trial) {
	_, a := t.launch(sandbox.ProcessSpec{TTY: &sandbox.Size{Cols: 80, Rows: 24}}, script.ReadLine(), script.Emit("ready"), script.Sleep(long))
	a.send("hello").send("\r").has("<hello>\r\n").has("ready")
	a.send("\x03").toEOF()
	t.want(a.exit(0).Code == 130, "an end by SIGINT", "%+v", a.exit(0))
}

func signals(t *trial) {
	// Not SIGQUIT, which bash ignores.
	for signal, number := range map[string]int{"SIGINT": 2, "SIGTERM": 15, "SIGKILL": 9, "SIGHUP": 1} {
		pid := t.path("pid." + signal)
		_, a := t.launch(sandbox.ProcessSpec{Key: signal}, script.Spawn(script.Plain, long, pid), script.Emit("ready"), script.Sleep(long))
		t.later(func(ctx context.Context) {
			_, _ = t.Commands.Run(ctx, sandbox.Command{Line: script.Line(script.Kill("KILL", pid))})
		})
		a.has("ready")
		t.must("signalling", a.Signal(t.ctx, signal))
		e := a.toEOF().exit(0)
		t.want(e.Code == 128+number, fmt.Sprintf("status %d", 128+number), "%+v", e)
		if signal != "SIGINT" { // which children in the background ignore
			t.gone(pid)
		}
	}
}

func signalCaught(t *trial) {
	// A shell runs its trap when the command that it waits for has ended, and one
	// that it starts just after the signal knows nothing of it: so, short ones.
	_, a := t.launch(sandbox.ProcessSpec{}, script.Catch("TERM", 7), script.Ignore("HUP"), script.Emit("ready"), script.WaitFor(t.path("never")))
	a.has("ready")
	t.must("sending a signal that is ignored", a.Signal(t.ctx, "SIGHUP"))
	t.must("sending a signal that is caught", a.Signal(t.ctx, "SIGTERM"))
	e := a.toEOF().exit(0)
	t.want(e.Code == 7 && e.Signal == "", "status 7", "%+v", e)
	t.same("stdout", a.out.String(), "readycaught\n")
}

func signalRefused(t *trial) {
	_, a := t.launch(sandbox.ProcessSpec{}, script.Emit("ready"), script.ReadLine())
	a.has("ready")
	for _, name := range []string{"", "TERM", "SIGSTOP", "SIGUSR1", "15", "sigterm"} {
		t.give(Refused(fmt.Sprintf("the signal %q", name), a.Signal(t.ctx, name), sandbox.CodeInvalid))
	}
	a.send("x\n").toEOF()
	t.same("the output", a.all.String(), "ready<x>\n")
}
