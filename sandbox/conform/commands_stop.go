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

// long is how long what is to be stopped would go on.
const long = 5 * time.Minute

func stopClauses() []Clause[Box] {
	return []Clause[Box]{
		{ID: "commands.timeout", Check: try(commandTimeout),
			Doc: "A command past its Timeout gives an error for which context.DeadlineExceeded holds, soon after."},
		{ID: "commands.timeout.unused", Check: try(commandTimeoutUnused),
			Doc: "A Timeout that a command doesn't need changes nothing."},
		{ID: "commands.timeout.stops", Check: try(func(t *trial) { stopped(t, byTimeout, script.Plain, script.Orphan) }),
			Doc: "A Timeout stops the command with the processes that it started, also those whose parent has ended."},
		{ID: "commands.timeout.deaf", Check: try(func(t *trial) { stopped(t, byTimeout, script.Deaf) }),
			Doc: "A Timeout stops processes that ignore the signals that ask."},
		{ID: "commands.timeout.setsid", Check: try(func(t *trial) { stopped(t, byTimeout, script.Setsid) }),
			Doc: "A Timeout stops processes that have left for a session of their own."},
		{ID: "commands.timeout.bare", Check: try(func(t *trial) { stopped(t, byTimeout, script.Bare) }),
			Doc: "A Timeout stops processes that have left for a session of their own and have no environment."},
		{ID: "commands.deadline", Check: try(commandDeadline),
			Doc: "A deadline of the context does what a Timeout does."},
		{ID: "commands.cancel", Check: try(commandCancel),
			Doc: "Cancelling the context ends the call with its error, soon after."},
		{ID: "commands.cancel.stops", Check: try(func(t *trial) { stopped(t, byCancel, script.Plain, script.Orphan, script.Deaf) }),
			Doc: "Cancelling the context stops the command with the processes that it started."},
		{ID: "commands.cancel.setsid", Check: try(func(t *trial) { stopped(t, byCancel, script.Setsid) }),
			Doc: "Cancelling the context stops processes that have left for a session of their own."},
	}
}

// soon is how long an end may take that is to come at once.
const soon = 10 * time.Second

func commandTimeout(t *trial) {
	start := time.Now()
	_, err := t.Commands.Run(t.ctx, sandbox.Command{Line: script.Line(script.Emit("x"), script.Sleep(long)), Timeout: 300 * time.Millisecond})
	took := time.Since(start)
	t.want(errors.Is(err, context.DeadlineExceeded), "context.DeadlineExceeded", "%v", err)
	t.want(!errors.Is(err, sandbox.ErrUnreachable), "not ErrUnreachable", "%v", err)
	t.want(took >= 300*time.Millisecond && took < soon, "the end soon after 300 ms", "%v", took)
}

func commandTimeoutUnused(t *trial) {
	r, err := t.Commands.Run(t.ctx, sandbox.Command{Line: script.Line(script.Emit("x"), script.Exit(3)), Timeout: 25 * time.Second})
	t.must("a command within its time", err)
	t.want(r.ExitCode == 3 && string(r.Stdout) == "x", "status 3 and the output", "%d and %q", r.ExitCode, r.Stdout)
}

func commandDeadline(t *trial) {
	ctx, cancel := context.WithTimeout(t.ctx, 300*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := t.Commands.Run(ctx, sandbox.Command{Line: script.Line(script.Sleep(long)), Timeout: long})
	t.want(errors.Is(err, context.DeadlineExceeded), "context.DeadlineExceeded", "%v", err)
	t.want(time.Since(start) < soon, "the end soon after 300 ms", "%v", time.Since(start))
	stopped(t, byDeadline, script.Plain, script.Setsid)
}

func commandCancel(t *trial) {
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	var err error
	out := &output{}
	wait := t.behind(func(context.Context) {
		_, err = t.Commands.Stream(ctx, sandbox.Command{Line: script.Line(script.WriteFile(t.path("runs"), ""), script.Sleep(long))}, out, nil)
	})
	t.exists(t.path("runs"))
	cancel()
	start := time.Now()
	wait()
	t.want(errors.Is(err, context.Canceled), "context.Canceled", "%v", err)
	t.want(time.Since(start) < soon, "the end soon after the cancellation", "%v", time.Since(start))
	cancelled, cancel := context.WithCancel(t.ctx)
	cancel()
	_, err = t.Commands.Run(cancelled, sandbox.Command{Line: script.Line(script.WriteFile(t.path("late"), ""))})
	t.want(errors.Is(err, context.Canceled), "context.Canceled of a context that has ended before", "%v", err)
	t.absent(t.path("late"))
}

// exists waits until a path is there.
func (t *trial) exists(paths ...string) {
	for _, p := range paths {
		t.eventually(soon, fmt.Sprintf("%q to be made", p), func() (bool, string) {
			_, err := t.Files.Stat(t.ctx, p)
			return err == nil, fmt.Sprint(err)
		})
	}
}

// ways in which a command is stopped. Each is given how long to wait before.
type way func(t *trial, c sandbox.Command, begun func(), after time.Duration) error

func byTimeout(t *trial, c sandbox.Command, _ func(), after time.Duration) error {
	c.Timeout = after
	_, err := t.Commands.Run(t.ctx, c)
	return err
}

func byDeadline(t *trial, c sandbox.Command, _ func(), after time.Duration) error {
	ctx, cancel := context.WithTimeout(t.ctx, after)
	defer cancel()
	_, err := t.Commands.Run(ctx, c)
	return err
}

func byCancel(t *trial, c sandbox.Command, begun func(), _ time.Duration) (err error) {
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	wait := t.behind(func(context.Context) { _, err = t.Commands.Run(ctx, c) })
	begun()
	cancel()
	wait()
	return err
}

// stopped runs a command that starts children of some kinds, has it stopped and
// checks that nothing of it runs any more, and that what isn't of it does.
func stopped(t *trial, by way, kinds ...string) {
	livesOn := t.bystander()
	// Where the sandbox is slow, the command needs more time to get ready.
	for _, after := range []time.Duration{500 * time.Millisecond, 2 * time.Second, 8 * time.Second} {
		files := []string{t.path("pid.shell")}
		steps := []script.Step{script.Self(files[0])}
		for _, kind := range kinds {
			pid := t.path("pid." + kind)
			files = append(files, pid)
			steps = append(steps, script.Spawn(kind, long, pid))
		}
		ready := t.path("ready")
		steps = append(steps, script.WriteFile(ready, ""), script.Sleep(long))
		t.later(func(ctx context.Context) {
			for _, f := range files {
				_, _ = t.Commands.Run(ctx, sandbox.Command{Line: script.Line(script.Kill("KILL", f))})
			}
		})
		err := by(t, sandbox.Command{Line: script.Line(steps...)}, func() { t.exists(ready) }, after)
		t.want(err != nil, "an error", "none")
		if _, err := t.Files.Stat(t.ctx, ready); err != nil {
			continue
		}
		for _, f := range files {
			t.gone(f)
		}
		livesOn()
		return
	}
	t.want(false, "a command to start its children within 8 s", "it didn't")
}

// bystander starts a child of another command; livesOn checks that it is alive.
func (t *trial) bystander() (livesOn func()) {
	pid := t.path("pid.bystander")
	t.does(script.Spawn(script.Setsid, long, pid))
	t.later(func(ctx context.Context) {
		_, _ = t.Commands.Run(ctx, sandbox.Command{Line: script.Line(script.Kill("KILL", pid))})
	})
	return func() {
		state := string(t.run(script.Alive(pid)).Stdout)
		t.want(state == "alive\n", "what another command started to live on", "it is %q", strings.TrimSpace(state))
	}
}

// gone waits until a process has ended; a killed one needs a moment.
func (t *trial) gone(pidFile string) {
	name := pidFile[strings.LastIndexByte(pidFile, '/')+1:]
	t.eventually(3*time.Second, "no process to be left ("+name+")", func() (bool, string) {
		r := t.run(script.Alive(pidFile))
		return string(r.Stdout) == "dead\n", fmt.Sprintf("it is %q", strings.TrimSpace(string(r.Stdout)))
	})
}
