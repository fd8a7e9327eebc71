package conform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func commandClauses() []Clause[Box] {
	return []Clause[Box]{
		{ID: "commands.exit", Check: try(commandExit),
			Doc: "A command's exit status is data in the result, and not an error."},
		{ID: "commands.signal", Check: try(commandSignal),
			Doc: "A command that a signal killed has the status 128 plus its number; signals are at their defaults."},
		{ID: "commands.stdin", Check: try(commandStdin), Timeout: 15 * time.Second,
			Doc: "A command's stdin is empty."},
		{ID: "commands.env", Check: try(commandEnv),
			Doc: "A command finds the variables of Env, with their values unchanged."},
		{ID: "commands.dir", Check: try(commandDir),
			Doc: "A command runs in Dir, and in the root directory where none is given."},
		{ID: "commands.dir.missing", Check: try(commandDirMissing),
			Doc: "A directory that isn't there is an error, and nothing is run."},
		{ID: "commands.root", Check: try(commandRoot),
			Doc: "Commands run as root."},
		{ID: "commands.bytes", Check: try(commandBytes),
			Doc: "Output is byte-exact: no byte is changed, added or left out."},
		{ID: "commands.streams", Check: try(commandStreams),
			Doc: "What a command writes to stdout and to stderr is told apart."},
		{ID: "commands.complete", Check: try(commandComplete),
			Doc: "The output of a short command is complete, each time of many."},
		{ID: "commands.large", Check: try(commandLarge),
			Doc: "Output of many megabytes on both streams arrives whole."},
		{ID: "commands.limit", Check: try(commandLimit),
			Doc: "Run keeps the first RunOutputLimit bytes of each stream, and says Truncated just when there were more."},
		{ID: "commands.live", Check: try(commandLive),
			Doc: "Stream hands output on as it comes, not at the end."},
		{ID: "commands.stream.result", Check: try(commandStreamResult),
			Doc: "The result of Stream has the exit status and no output; a nil writer discards."},
		{ID: "commands.line.large", Check: try(commandLargeLine),
			Doc: "A command line may be longer than the system takes as one argument."},
		{ID: "commands.beside", Check: try(commandBeside),
			Doc: "Commands run beside each other: one that waits holds up no other."},
		{ID: "commands.background", Check: try(commandBackground), Timeout: 20 * time.Second,
			Doc: "A command has ended when its shell has, whatever it leaves in the background."},
		{ID: "commands.fresh", Check: try(commandFresh),
			Doc: "Nothing of a command's shell is left for the next one."},
	}
}

func (t *trial) exits(want int, steps ...script.Step) {
	r := t.run(steps...)
	t.want(r.ExitCode == want, fmt.Sprintf("status %d of %s", want, script.Line(steps...)), "status %d", r.ExitCode)
}

func commandExit(t *trial) {
	for _, status := range []int{0, 1, 2, 7, 127, 128, 255} {
		t.exits(status, script.Exit(status))
	}
	t.exits(1, script.Env("NO_SUCH_VARIABLE_AT_ALL"))
	r := t.run(script.Emit("out"), script.EmitErr("err"), script.Exit(3))
	t.want(r.ExitCode == 3 && string(r.Stdout) == "out" && string(r.Stderr) == "err",
		"status 3 with out and err", "status %d with %q and %q", r.ExitCode, r.Stdout, r.Stderr)
}

func commandSignal(t *trial) {
	// Not SIGQUIT, which bash ignores.
	for signal, number := range map[string]int{"SIGHUP": 1, "SIGINT": 2, "SIGKILL": 9, "SIGPIPE": 13, "SIGTERM": 15} {
		r := t.run(script.Emit("before"), script.Die(signal), script.Emit("after"))
		t.want(r.ExitCode == 128+number && string(r.Stdout) == "before",
			fmt.Sprintf("status %d and the output before %s", 128+number, signal), "status %d and %q", r.ExitCode, r.Stdout)
	}
}

func commandStdin(t *trial) {
	t.says("", script.Cat())
	r := t.run(script.Count())
	t.same("the count of bytes", strings.TrimSpace(string(r.Stdout)), "0")
}

func commandEnv(t *trial) {
	for _, v := range append([]string{"", "plain", "a=b", "two\nlines", " blanks ", strings.Repeat("long", 4000)}, oddNames...) {
		r, err := t.Commands.Run(t.ctx, sandbox.Command{Line: script.Line(script.Env("A_VARIABLE")), Env: map[string]string{"A_VARIABLE": v, "OTHER": "x"}})
		t.must("running a command with a variable", err)
		t.same("the variable", string(r.Stdout), v+"\n")
	}
}

func commandDir(t *trial) {
	for _, name := range []string{"plain", "$HOME", "a b", "it's"} {
		dir := t.mkdir(name)
		r, err := t.Commands.Run(t.ctx, sandbox.Command{Line: script.Line(script.Pwd()), Dir: dir})
		t.must("running a command in a directory", err)
		t.same("the working directory", string(r.Stdout), dir+"\n")
	}
	t.says("/\n", script.Pwd())
}

func commandDirMissing(t *trial) {
	mark := t.path("ran")
	for _, dir := range []string{t.path("none"), t.put("file", "x"), t.path("$HOME")} {
		r, err := t.Commands.Run(t.ctx, sandbox.Command{Line: script.Line(script.WriteFile(mark, "")), Dir: dir})
		t.want(err != nil, fmt.Sprintf("an error for the directory %q", dir), "status %d", r.ExitCode)
		t.want(!errors.Is(err, sandbox.ErrUnreachable) && !errors.Is(err, context.DeadlineExceeded),
			"an error about the directory", "%v", err)
	}
	t.absent(mark)
}

func commandRoot(t *trial) {
	t.says("root\nroot\n", script.User(), script.Group())
}

func commandBytes(t *trial) {
	for _, text := range []string{everyByte(512), "no newline", "\n", "\n\n\n", "a\r\nb\rc\n", "\x00", "data: x\n\n", "{\"code\":0}\n", "\x1b[31mred\x1b[0m", "\xff\xfe"} {
		r := t.run(script.Emit(text), script.EmitErr(text+"!"))
		t.same("stdout", string(r.Stdout), text)
		t.same("stderr", string(r.Stderr), text+"!")
	}
	t.says("", script.Step{})
}

func commandStreams(t *trial) {
	var steps []script.Step
	var out, errs string
	for i := range 50 {
		o, e := fmt.Sprintf("o%d\n", i), fmt.Sprintf("e%d\n", i)
		steps = append(steps, script.Emit(o), script.EmitErr(e))
		out, errs = out+o, errs+e
	}
	r := t.run(steps...)
	t.same("stdout", string(r.Stdout), out)
	t.same("stderr", string(r.Stderr), errs)
}

func commandComplete(t *trial) {
	const workers, each = 4, 15
	var mu sync.Mutex
	var wrong error
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				text := fmt.Sprintf("hi %d %d", w, i)
				r, err := t.Commands.Run(t.ctx, sandbox.Command{Line: script.Line(script.Emit(text))})
				if err == nil && (string(r.Stdout) != text || r.ExitCode != 0 || len(r.Stderr) > 0) {
					err = Unmet(fmt.Sprintf("%q and status 0", text), "%q, %q and status %d", r.Stdout, r.Stderr, r.ExitCode)
				}
				if err != nil {
					mu.Lock()
					wrong = err
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	t.must("many short commands", wrong)
}

// pattern checks that what is written to it is what script.Big writes.
type pattern struct {
	mu    sync.Mutex
	n     int64
	wrong int64 // offset of the first byte that is wrong, plus one
}

func (p *pattern) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wrong == 0 && !bytes.Equal(b, script.BigOutput(p.n, p.n+int64(len(b)))) {
		p.wrong = p.n + 1
	}
	p.n += int64(len(b))
	return len(b), nil
}

func commandLarge(t *trial) {
	const size = 6<<20 + 5
	var out, errs pattern
	r, err := t.Commands.Stream(t.ctx, sandbox.Command{Line: script.Line(script.Big(size), script.BigErr(size), script.Big(0))}, &out, &errs)
	t.must("a command with much output", err)
	t.want(r.ExitCode == 0 && out.n == size && errs.n == size && out.wrong == 0 && errs.wrong == 0,
		fmt.Sprintf("%d exact bytes on each stream and status 0", size), "%d and %d bytes, wrong after %d and %d, status %d",
		out.n, errs.n, out.wrong, errs.wrong, r.ExitCode)
}

func commandLimit(t *trial) {
	const limit = sandbox.RunOutputLimit
	for _, c := range []struct {
		out, err  int
		truncated bool
	}{{limit, 10, false}, {limit + 1, 0, true}, {10, limit + 100, true}} {
		r := t.run(script.Big(c.out), script.BigErr(c.err), script.Exit(4))
		what := fmt.Sprintf("of %d and %d bytes", c.out, c.err)
		t.want(len(r.Stdout) == min(c.out, limit) && len(r.Stderr) == min(c.err, limit),
			"the first RunOutputLimit bytes "+what, "%d and %d", len(r.Stdout), len(r.Stderr))
		t.want(r.Truncated == c.truncated, fmt.Sprintf("Truncated %v %s", c.truncated, what), "%v", r.Truncated)
		t.want(r.ExitCode == 4, "the exit status", "%d", r.ExitCode)
		t.want(bytes.Equal(r.Stdout, script.BigOutput(0, int64(len(r.Stdout)))), "the first bytes", "others")
	}
}

func commandLive(t *trial) {
	out, errs := &output{}, &output{}
	var failed error
	stop := t.path("stop")
	wait := t.behind(func(ctx context.Context) {
		_, failed = t.Commands.Stream(ctx, sandbox.Command{Line: script.Line(
			script.Emit("early"), script.EmitErr("warning"), script.WaitFor(stop), script.Emit(" late"))}, out, errs)
	})
	t.eventually(10*time.Second, "what was written to be handed on while the command runs", func() (bool, string) {
		return out.String() == "early" && errs.String() == "warning", fmt.Sprintf("%q and %q", out, errs)
	})
	t.put("stop", "")
	wait()
	t.must("the command", failed)
	t.same("all of the output", out.String(), "early late")
}

func commandStreamResult(t *trial) {
	var out output
	r, err := t.Commands.Stream(t.ctx, sandbox.Command{Line: script.Line(script.Emit("a"), script.EmitErr("b"), script.Exit(9))}, &out, nil)
	t.must("a command without a writer for stderr", err)
	t.want(r.ExitCode == 9 && r.Stdout == nil && r.Stderr == nil, "status 9 and no output in the result", "%+v", r)
	t.same("stdout", out.String(), "a")
	r, err = t.Commands.Stream(t.ctx, sandbox.Command{Line: script.Line(script.Emit("a"), script.Exit(2))}, nil, nil)
	t.must("a command without writers", err)
	t.want(r.ExitCode == 2, "status 2", "%d", r.ExitCode)
}

func commandLargeLine(t *trial) {
	var steps []script.Step
	var want strings.Builder
	for range 40 {
		text := everyByte(2000) // four characters for each byte
		steps = append(steps, script.Emit(text))
		want.WriteString(text)
	}
	t.says(want.String(), steps...)
}

func commandBeside(t *trial) {
	var failed [4]error
	var waits []func()
	var begun []string
	stop := t.path("stop")
	for i := range failed {
		mark := t.path(fmt.Sprint("begun", i))
		begun = append(begun, mark)
		waits = append(waits, t.behind(func(ctx context.Context) {
			_, failed[i] = t.Commands.Run(ctx, sandbox.Command{Line: script.Line(script.WriteFile(mark, ""), script.WaitFor(stop))})
		}))
	}
	t.exists(begun...)
	t.says("meanwhile", script.Emit("meanwhile"), script.WriteFile(stop, ""))
	for i, wait := range waits {
		wait()
		t.must("a command that waited", failed[i])
	}
}

func commandBackground(t *trial) {
	pid := t.path("pid")
	t.later(func(ctx context.Context) {
		_, _ = t.Commands.Run(ctx, sandbox.Command{Line: script.Line(script.Kill("KILL", pid))})
	})
	start := time.Now()
	t.says("out", script.Spawn(script.Holding, time.Minute, pid), script.Emit("out"))
	t.want(time.Since(start) < 10*time.Second, "the result at once", "it came after %v", time.Since(start))
}

func commandFresh(t *trial) {
	dir := t.mkdir("d")
	_, err := t.Commands.Run(t.ctx, sandbox.Command{
		Line: script.Line(script.Ignore("TERM"), script.Exit(5)), Dir: dir, Env: map[string]string{"LEFT_OVER": "x"},
	})
	t.must("running a command", err)
	t.exits(1, script.Env("LEFT_OVER"))
	t.says("/\n", script.Pwd())
	t.exits(143, script.Die("TERM"))
}
