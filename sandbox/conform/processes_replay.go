package conform

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func replayClauses() []Clause[Box] {
	return []Clause[Box]{
		{ID: "processes.replay", Check: try(replay),
			Doc: "Attaching from an offset that is held replays every byte from there exactly once, then what comes."},
		{ID: "processes.replay.ended", Check: try(replayEnded),
			Doc: "What a process wrote and how it ended can be had after its end, from every offset."},
		{ID: "processes.replay.channels", Check: try(replayChannels),
			Doc: "Stdout and stderr share one numbering, and are told apart in a replay too."},
		{ID: "processes.replay.gap", Check: try(replayGap),
			Doc: "Attaching from an offset that isn't held any more fails with a ReplayGapError that names the oldest that is; from there it works."},
		{ID: "processes.replay.beyond", Check: try(replayBeyond),
			Doc: "Attaching from before 0 or beyond the end is refused with SANDBOX_CONFIG_INVALID."},
		{ID: "processes.replay.live", Check: try(replayLive),
			Doc: "Output comes while the process runs, not at its end."},
		{ID: "processes.outlives", Check: try(outlives),
			Doc: "A process outlives its attachments: it goes on, and what it writes meanwhile is kept."},
		{ID: "processes.rerun", Check: try(rerun),
			Doc: "A process that ended runs again when the next attachment arrives: the earlier run's bytes first, then its Exit, then the next run."},
		{ID: "processes.rerun.offsets", Check: try(rerunOffsets),
			Doc: "The offsets go on counting from run to run, and attaching from the end of a run gives the next one only."},
		{ID: "processes.nostart", Check: try(noStart),
			Doc: "An attachment with NoStart starts nothing: it gives what is left, the Exit and io.EOF."},
		{ID: "processes.nostart.running", Check: try(noStartRunning),
			Doc: "An attachment with NoStart to a process that runs is one like any other."},
		{ID: "processes.buffer.drop", Check: try(dropsOldest),
			Doc: "With DropOldest a process that nobody reads isn't held up, and the newest bytes are kept."},
		{ID: "processes.buffer.block", Check: try(blocks),
			Doc: "With Block a process waits when its buffer is full, and no byte is lost."},
		{ID: "processes.buffer.ack", Check: try(keepsUnacked),
			Doc: "With Block what wasn't acknowledged is still there for the next attachment; what was makes room."},
	}
}

func replay(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Lines(400), script.ReadLine(), script.Emit("end"))
	lines := string(script.LinesOutput(400))
	a.has(lines)
	a.close()
	for _, from := range []int64{0, 1, 2, 700, int64(len(lines)) - 1, int64(len(lines))} {
		b := t.attach(id, sandbox.AttachOptions{From: from})
		b.has(lines[from:])
		t.same(fmt.Sprintf("the replay from %d", from), b.all.String(), lines[from:])
		b.close()
	}
	b := t.attach(id, sandbox.AttachOptions{From: 3}).send("go on\n").toEOF()
	t.same("replay and what came after", b.all.String(), lines[3:]+"<go on>\nend")
	t.want(len(b.exits) == 1 && b.exit(0).Code == 0, "one Exit with status 0", "%d", len(b.exits))
}

func replayEnded(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("0123456789"), script.Exit(4))
	a.toEOF()
	t.exited(id)
	for _, from := range []int64{0, 4, 9, 10} {
		for range 2 {
			b := t.attach(id, sandbox.AttachOptions{From: from, NoStart: true}).toEOF()
			t.same(fmt.Sprintf("the replay from %d", from), b.all.String(), "0123456789"[from:])
			t.want(len(b.exits) == 1 && b.exit(0).Code == 4, "one Exit with status 4", "%d of them", len(b.exits))
			b.close()
		}
	}
	t.want(t.status(id).Run == 1, "one run", "%d", t.status(id).Run)
}

func replayChannels(t *trial) {
	steps := []script.Step{}
	var out, errs strings.Builder
	for i := range 20 {
		o, e := fmt.Sprintf("o%d ", i), fmt.Sprintf("e%d ", i)
		steps = append(steps, script.Emit(o), script.EmitErr(e))
		out.WriteString(o)
		errs.WriteString(e)
	}
	id, a := t.launch(sandbox.ProcessSpec{}, steps...)
	a.toEOF()
	t.exited(id)
	b := t.attach(id, sandbox.AttachOptions{NoStart: true}).toEOF()
	t.same("stdout in the replay", b.out.String(), out.String())
	t.same("stderr in the replay", b.err.String(), errs.String())
	t.same("the order of the replay", b.all.String(), a.all.String())
}

const smallBuffer = 4 << 10

func replayGap(t *trial) {
	const size = 10 * smallBuffer
	id, a := t.launch(sandbox.ProcessSpec{Buffer: smallBuffer}, script.Emit("start"), script.ReadLine(), script.Big(size), script.Emit("end"), script.Cat())
	a.has("start").send("go\n")
	a.close()
	var s sandbox.ProcessStatus
	const total = 5 + 5 + size + 3
	t.eventually(soon, "a process that nobody reads to write all", func() (bool, string) {
		s = t.status(id)
		return s.Next == total, fmt.Sprintf("%d of %d bytes", s.Next, total)
	})
	t.want(s.Oldest > 10 && s.Oldest >= total-smallBuffer && s.Oldest < total, "the oldest bytes to be dropped, and not more", "Oldest is %d of %d", s.Oldest, total)
	for _, from := range []int64{0, 7, s.Oldest - 1} {
		_, err := t.Processes.Attach(t.ctx, id, sandbox.AttachOptions{From: from})
		var gap *sandbox.ReplayGapError
		t.want(errors.As(err, &gap), fmt.Sprintf("a ReplayGapError from %d", from), "%v", err)
		t.want(gap.From == from && gap.Oldest == s.Oldest, fmt.Sprintf("From %d and Oldest %d", from, s.Oldest), "From %d and Oldest %d", gap.From, gap.Oldest)
	}
	b := t.attach(id, sandbox.AttachOptions{From: s.Oldest})
	b.has("end")
	want := "start<go>\n" + string(script.BigOutput(0, size)) + "end"
	t.same("the replay from the oldest byte", b.all.String(), want[s.Oldest:])
}

func replayBeyond(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("12345"), script.Cat())
	a.has("12345")
	a.close()
	for _, from := range []int64{6, 1 << 40, -1} {
		b, err := t.Processes.Attach(t.ctx, id, sandbox.AttachOptions{From: from})
		if err == nil {
			b.Close()
		}
		t.give(Refused(fmt.Sprintf("attaching from %d of 5 bytes", from), err, sandbox.CodeInvalid))
	}
	t.attach(id, sandbox.AttachOptions{From: 5})
}

func replayLive(t *trial) {
	_, a := t.launch(sandbox.ProcessSpec{}, script.Emit("early"), script.ReadLine(), script.Emit("late"))
	a.has("early")
	t.same("the output before the process goes on", a.all.String(), "early")
	a.send("x\n").has("late")
}

func outlives(t *trial) {
	stop := t.path("stop")
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("before "), script.WaitFor(stop), script.Emit("meanwhile "), script.Sleep(20*time.Millisecond), script.Emit("after"))
	a.has("before ")
	a.close()
	t.want(t.status(id).State == sandbox.ProcessRunning, "the process to go on without an attachment", "%s", t.status(id).State)
	t.put("stop", "")
	s := t.exited(id)
	t.want(s.Run == 1, "one run", "%+v", s)
	b := t.attach(id, sandbox.AttachOptions{From: 7, NoStart: true}).toEOF()
	t.same("what it wrote meanwhile", b.all.String(), "meanwhile after")
}

func rerun(t *trial) {
	mark := t.path("mark")
	id, a := t.launch(sandbox.ProcessSpec{}, script.Append(mark, "x"), script.Emit("out"), script.Exit(5))
	a.toEOF()
	t.want(a.run == 1 && len(a.exits) == 1, "one run and then io.EOF for the first attachment", "%d runs, %d ends", a.run, len(a.exits))
	t.exited(id)
	a.close()
	b := t.attach(id, sandbox.AttachOptions{}).toEOF()
	t.same("the output of both runs", b.all.String(), "outout")
	t.want(len(b.exits) == 2 && b.exits[0].Run == 1 && b.exits[1].Run == 2, "the ends of runs 1 and 2", "%d ends", len(b.exits))
	t.want(b.before[0] == 3 && b.before[1] == 6, "each Exit after its run's 3 bytes", "after %v", b.before)
	t.want(t.exited(id).Run == 2, "run 2", "%d", t.status(id).Run)
	t.holds(mark, "xx")
}

func rerunOffsets(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("0123456789"))
	a.toEOF()
	for run := int64(1); run < 4; run++ {
		s := t.exited(id)
		t.want(s.Next == 10*run && s.Run == int(run), fmt.Sprintf("output to %d after run %d", 10*run, run), "%+v", s)
		b := t.attach(id, sandbox.AttachOptions{From: s.Next}).toEOF()
		t.same("the output from the end of the run before", b.all.String(), "0123456789")
		b.close()
	}
}

func noStart(t *trial) {
	mark := t.path("mark")
	id := t.start(sandbox.ProcessSpec{}, script.Append(mark, "x"), script.Emit("out"), script.Exit(3))
	a := t.attach(id, sandbox.AttachOptions{NoStart: true}).toEOF()
	t.want(len(a.exits) == 0 && a.all.Len() == 0, "io.EOF at once for a process that never ran", "%q, %d ends", a.all.String(), len(a.exits))
	a.close()
	t.absent(mark)
	t.want(t.status(id).State == sandbox.ProcessRegistered, "the process to stay registered", "%s", t.status(id).State)
	b := t.attach(id, sandbox.AttachOptions{}).toEOF()
	b.close()
	t.exited(id)
	for range 2 {
		c := t.attach(id, sandbox.AttachOptions{NoStart: true}).toEOF()
		t.want(c.all.String() == "out" && len(c.exits) == 1 && c.exit(0).Code == 3, "the output and the Exit of the one run", "%q, %d ends", c.all.String(), len(c.exits))
		c.close()
	}
	t.pause(50 * time.Millisecond)
	t.want(t.status(id).Run == 1 && t.status(id).State == sandbox.ProcessExited, "one run", "%+v", t.status(id))
	t.holds(mark, "x")
}

func noStartRunning(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("out"), script.ReadLine(), script.Exit(3))
	a.has("out")
	a.close()
	b := t.attach(id, sandbox.AttachOptions{NoStart: true})
	b.has("out").send("hello\n").toEOF()
	t.same("the output", b.all.String(), "out<hello>\n")
	t.want(b.exit(0).Code == 3, "status 3", "%+v", b.exit(0))
}

func dropsOldest(t *trial) {
	const size = 20 * smallBuffer
	id, a := t.launch(sandbox.ProcessSpec{Buffer: smallBuffer}, script.WaitFor(t.path("go")), script.Big(size), script.Emit("end"))
	a.close()
	t.put("go", "")
	s := t.exited(id)
	t.want(s.Next == size+3, fmt.Sprintf("%d bytes written", size+3), "%d", s.Next)
	t.want(s.Next-s.Oldest <= smallBuffer && s.Next-s.Oldest >= smallBuffer/2, "about the newest 4 KiB to be kept", "%d bytes", s.Next-s.Oldest)
	b := t.attach(id, sandbox.AttachOptions{From: s.Oldest, NoStart: true}).toEOF()
	want := string(script.BigOutput(0, size)) + "end"
	t.same("the newest bytes", b.all.String(), want[s.Oldest:])
	t.want(len(b.exits) == 1, "the Exit", "%d", len(b.exits))
}

func blocks(t *trial) {
	const size = 40 * smallBuffer
	spec := sandbox.ProcessSpec{Buffer: smallBuffer, Full: sandbox.Block}
	id, a := t.launch(spec, script.Big(size), script.Emit("end"))
	a.close()
	// It fills its buffer and waits.
	t.eventually(soon, "the process to fill its buffer", func() (bool, string) {
		s := t.status(id)
		return s.Next >= smallBuffer/2, fmt.Sprint(s.Next)
	})
	t.pause(100 * time.Millisecond)
	s := t.status(id)
	t.want(s.State == sandbox.ProcessRunning && s.Next <= smallBuffer && s.Oldest == 0,
		"a process that waits with nothing dropped and at most its buffer written", "%+v", s)
	b := t.attach(id, sandbox.AttachOptions{})
	want := string(script.BigOutput(0, size)) + "end"
	for b.recv() {
		t.must("acknowledging", b.Ack(t.ctx, b.next))
	}
	b.toEOF()
	t.want(b.all.String() == want, "every byte, once", "%d bytes of %d, %s", b.all.Len(), len(want), short(b.all.String()))
	t.want(b.exit(0).Code == 0, "status 0", "%+v", b.exit(0))
}

func keepsUnacked(t *trial) {
	const size = 8 * smallBuffer
	spec := sandbox.ProcessSpec{Buffer: smallBuffer, Full: sandbox.Block}
	id, a := t.launch(spec, script.Big(size), script.Emit("end"))
	a.until("some output", func(all string) bool { return len(all) >= smallBuffer/2 })
	a.close()
	b := t.attach(id, sandbox.AttachOptions{NoStart: true}) // nothing was acknowledged
	b.until("the same output again", func(all string) bool { return len(all) >= smallBuffer/2 })
	t.must("acknowledging", b.Ack(t.ctx, smallBuffer/2))
	b.until("more than the buffer holds", func(all string) bool { return len(all) > smallBuffer })
	b.close()
	c := t.attach(id, sandbox.AttachOptions{From: smallBuffer / 2, NoStart: true})
	for c.recv() {
		t.must("acknowledging", c.Ack(t.ctx, c.next))
	}
	c.toEOF()
	want := string(script.BigOutput(0, size)) + "end"
	t.want(c.all.String() == want[smallBuffer/2:], "every byte from the acknowledged one on", "%d bytes of %d", c.all.Len(), len(want)-smallBuffer/2)
	t.must("acknowledging after the end", c.Ack(t.ctx, c.next))
}

// withoutWaiting bounds a call that must not wait.
func (t *trial) withoutWaiting(doing string, f func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(t.ctx, soon)
	defer cancel()
	t.must(doing, f(ctx))
}
