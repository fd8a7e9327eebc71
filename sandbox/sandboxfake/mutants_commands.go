package sandboxfake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

type (
	command = sandbox.Command
	result  = sandbox.CommandResult
)

// runner is Stream of a variant; c is honest. Run goes through it too.
type runner func(ctx context.Context, m *machine, c sandbox.Commands, cmd command, stdout, stderr io.Writer) (result, error)

// bentCommands is a Commands with another Stream. What run does to the result
// of Run comes on top.
type bentCommands struct {
	m      *machine
	honest sandbox.Commands
	stream runner
	run    func(r result, err error) (result, error)
}

func (c *bentCommands) Run(ctx context.Context, cmd command) (result, error) {
	var stdout, stderr capped
	r, err := c.Stream(ctx, cmd, &stdout, &stderr)
	r.Stdout, r.Stderr = stdout.b, stderr.b
	r.Truncated = stdout.truncated || stderr.truncated
	if c.run != nil {
		return c.run(r, err)
	}
	return r, err
}

func (c *bentCommands) Stream(ctx context.Context, cmd command, stdout, stderr io.Writer) (result, error) {
	if c.stream == nil {
		return c.honest.Stream(ctx, cmd, stdout, stderr)
	}
	return c.stream(ctx, c.m, c.honest, cmd, stdout, stderr)
}

func bendCommands(stream runner, run func(result, error) (result, error)) func(*bent) {
	return func(b *bent) {
		b.commands = func(m *machine, c sandbox.Commands) sandbox.Commands { return &bentCommands{m, c, stream, run} }
	}
}

func streamMutant(name, clause, why string, s runner) Mutant {
	return Mutant{Name: name, Clause: clause, Why: why, apply: bending(bendCommands(s, nil))}
}

func runMutant(name, clause, why string, f func(result, error) (result, error)) Mutant {
	return Mutant{Name: name, Clause: clause, Why: why, apply: bending(bendCommands(nil, f))}
}

// outputMutant changes what Run gives as output.
func outputMutant(name, clause, why string, change func([]byte) []byte) Mutant {
	return runMutant(name, clause, why, func(r result, err error) (result, error) {
		r.Stdout, r.Stderr = change(r.Stdout), change(r.Stderr)
		return r, err
	})
}

// commandMutant runs another command.
func commandMutant(name, clause, why string, change func(*command)) Mutant {
	return streamMutant(name, clause, why, func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
		change(&cmd)
		return c.Stream(ctx, cmd, o, e)
	})
}

// spareMutant leaves some of the processes of what is killed alive.
func spareMutant(name, clause, why string, kinds ...string) Mutant {
	return Mutant{Name: name, Clause: clause, Why: why, apply: bending(func(b *bent) {
		b.spare = func(t *task) bool {
			for _, k := range kinds {
				if t.kind == k {
					return true
				}
			}
			return false
		}
	})}
}

func runsStep(cmd command, name string) bool {
	steps, _ := script.Parse(cmd.Line)
	for _, s := range steps {
		if s.Name() == name {
			return true
		}
	}
	return false
}

// commandMutants break promises on Commands.
func commandMutants() []Mutant {
	return append(stopMutants(),
		runMutant("exit-status-is-dropped", "commands.exit", "a failed command counts as a success", func(r result, err error) (result, error) {
			r.ExitCode = 0
			return r, err
		}),
		runMutant("exit-status-is-an-error", "commands.exit", "a test that fails looks like a broken sandbox", func(r result, err error) (result, error) {
			if err == nil && r.ExitCode != 0 {
				err = fmt.Errorf("exit status %d", r.ExitCode)
			}
			return r, err
		}),
		runMutant("exit-status-has-seven-bits", "commands.exit", "255 arrives as 127", func(r result, err error) (result, error) {
			r.ExitCode &= 0x7f
			return r, err
		}),
		runMutant("failed-output-is-dropped", "commands.exit", "what went wrong can't be read", func(r result, err error) (result, error) {
			if r.ExitCode != 0 {
				r.Stdout, r.Stderr = nil, nil
			}
			return r, err
		}),
		runMutant("signals-are-minus-one", "commands.signal", "as os/exec has it", func(r result, err error) (result, error) {
			if r.ExitCode > 128 && r.ExitCode < 160 {
				r.ExitCode = -1
			}
			return r, err
		}),
		commandMutant("signals-are-ignored", "commands.signal", "SIGPIPE and SIGINT are inherited as ignored", func(c *command) {
			c.Line = script.Line(script.Ignore("INT"), script.Ignore("PIPE")) + "\n" + c.Line
		}),
		streamMutant("stdin-never-ends", "commands.stdin", "a program that reads stdin hangs the session", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			if runsStep(cmd, "cat") || runsStep(cmd, "count") {
				<-ctx.Done()
			}
			return c.Stream(ctx, cmd, o, e)
		}),
		commandMutant("command-env-is-expanded", "commands.env", "$HOME in a value is replaced", func(c *command) {
			c.Env = mapped(c.Env, func(v string) string { return os.Expand(v, func(string) string { return "" }) })
		}),
		commandMutant("env-stops-at-a-newline", "commands.env", "a key of several lines is cut", func(c *command) {
			c.Env = mapped(c.Env, func(v string) string { before, _, _ := strings.Cut(v, "\n"); return before })
		}),
		commandMutant("env-drops-empty-values", "commands.env", "set and unset aren't the same", func(c *command) {
			out := map[string]string{}
			for k, v := range c.Env {
				if v != "" {
					out[k] = v
				}
			}
			c.Env = out
		}),
		commandMutant("dir-is-ignored", "commands.dir", "the command works on other files", func(c *command) { c.Dir = "" }),
		commandMutant("dir-defaults-to-home", "commands.dir", "relative paths mean something else", func(c *command) {
			if c.Dir == "" {
				c.Dir = "/root"
			}
		}),
		streamMutant("missing-dir-is-passed-over", "commands.dir.missing", "rm -rf * runs in the wrong place", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			r, err := c.Stream(ctx, cmd, o, e)
			if sandbox.CodeOf(err) == sandbox.CodeInvalid {
				cmd.Dir = ""
				return c.Stream(ctx, cmd, o, e)
			}
			return r, err
		}),
		streamMutant("missing-dir-is-a-failed-command", "commands.dir.missing", "nobody can tell it from a program's status", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			r, err := c.Stream(ctx, cmd, o, e)
			if sandbox.CodeOf(err) == sandbox.CodeInvalid {
				return result{ExitCode: 1}, nil
			}
			return r, err
		}),
		outputMutant("runs-as-the-account", "commands.root", "packages can't be installed", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("root\n"), []byte(Account+"\n")) }),
		outputMutant("output-is-trimmed", "commands.bytes", "a file's last newline is lost", bytes.TrimSpace),
		outputMutant("output-becomes-utf8", "commands.bytes", "binary output is spoilt", func(b []byte) []byte { return bytes.ToValidUTF8(b, []byte("\ufffd")) }),
		outputMutant("output-ends-in-a-newline", "commands.bytes", "the line model adds one", func(b []byte) []byte {
			if len(b) > 0 && b[len(b)-1] != '\n' {
				return append(b, '\n')
			}
			return b
		}),
		outputMutant("output-loses-empty-lines", "commands.bytes", "an event of no text isn't sent", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\n\n"), []byte("\n")) }),
		outputMutant("output-loses-carriage-returns", "commands.bytes", "progress output is garbled", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\r"), nil) }),
		streamMutant("streams-are-merged", "commands.streams", "warnings get into parsed output", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, _ io.Writer) (result, error) {
			return c.Stream(ctx, cmd, o, o)
		}),
		streamMutant("fast-output-is-lost", "commands.complete", "echo hi prints nothing, once in twenty times", everyNth(20, func(ctx context.Context, c sandbox.Commands, cmd command, _, e io.Writer) (result, error) {
			return c.Stream(ctx, cmd, nil, e)
		})),
		streamMutant("output-is-cut-at-5-MiB", "commands.large", "a build's log lacks its end", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			return c.Stream(ctx, cmd, &limited{w: o, left: 5 << 20}, e)
		}),
		runMutant("truncation-is-silent", "commands.limit", "a caller parses half a document", func(r result, err error) (result, error) {
			r.Truncated = false
			return r, err
		}),
		runMutant("output-is-kept-to-64-KiB", "commands.limit", "a very long line is cut", func(r result, err error) (result, error) {
			r.Truncated = r.Truncated || len(r.Stdout) > 64<<10
			r.Stdout = r.Stdout[:min(len(r.Stdout), 64<<10)]
			return r, err
		}),
		runMutant("truncation-keeps-the-end", "commands.limit", "a parser gets the tail of a document", func(r result, err error) (result, error) {
			if r.Truncated && len(r.Stdout) == sandbox.RunOutputLimit {
				r.Stdout = append(r.Stdout[5:], r.Stdout[:5]...)
			}
			return r, err
		}),
		streamMutant("output-comes-at-the-end", "commands.live", "a proxy buffers the stream", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			var ob, eb bytes.Buffer
			r, err := c.Stream(ctx, cmd, &ob, &eb)
			if o != nil {
				_, _ = o.Write(ob.Bytes())
			}
			if e != nil {
				_, _ = e.Write(eb.Bytes())
			}
			return r, err
		}),
		streamMutant("nil-writer-panics", "commands.stream.result", "discarding output crashes the caller", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			if e == nil {
				var none *bytes.Buffer
				e = none
			}
			return c.Stream(ctx, cmd, o, e)
		}),
		streamMutant("stream-forgets-the-status", "commands.stream.result", "a failed build looks fine", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			_, err := c.Stream(ctx, cmd, o, e)
			return result{}, err
		}),
		streamMutant("line-is-one-argument", "commands.line.large", "128 KiB is the system's limit", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			if len(cmd.Line) >= 128<<10 {
				return result{ExitCode: 126}, nil
			}
			return c.Stream(ctx, cmd, o, e)
		}),
		streamMutant("commands-wait-for-each-other", "commands.beside", "one slow command blocks the panel", oneByOne()),
		streamMutant("background-holds-the-result", "commands.background", "starting a server never returns", func(ctx context.Context, m *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			r, err := c.Stream(ctx, cmd, o, e)
			if runsStep(cmd, script.Holding) {
				t := time.NewTimer(time.Minute)
				defer t.Stop()
				select {
				case <-t.C:
				case <-ctx.Done():
				}
			}
			return r, err
		}),
		streamMutant("commands-share-a-shell", "commands.fresh", "a command's variables are the next one's", remembering()),
	)
}

func mapped(env map[string]string, change func(string) string) map[string]string {
	out := map[string]string{}
	for k, v := range env {
		out[k] = change(v)
	}
	return out
}

// everyNth does something else on every nth call.
func everyNth(n int64, other func(ctx context.Context, c sandbox.Commands, cmd command, o, e io.Writer) (result, error)) runner {
	var calls atomic.Int64
	return func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
		if calls.Add(1)%n == 0 {
			return other(ctx, c, cmd, o, e)
		}
		return c.Stream(ctx, cmd, o, e)
	}
}

// limited swallows what comes after the first bytes.
type limited struct {
	w    io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.left -= n
	if l.w != nil && n > 0 {
		if _, err := l.w.Write(p[:n]); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// oneByOne lets one command run at a time.
func oneByOne() runner {
	// Made where it is used, so that it belongs to that synctest bubble.
	made := sync.OnceValue(func() chan struct{} { return make(chan struct{}, 1) })
	return func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
		turn := made()
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return result{}, ctx.Err()
		}
		return c.Stream(ctx, cmd, o, e)
	}
}

// remembering gives each command the variables of those before.
func remembering() runner {
	var mu sync.Mutex
	known := map[string]string{}
	return func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
		mu.Lock()
		for k, v := range cmd.Env {
			known[k] = v
		}
		cmd.Env = mapped(known, func(v string) string { return v })
		mu.Unlock()
		return c.Stream(ctx, cmd, o, e)
	}
}

// stopMutants leave running what has to be stopped, or say the wrong thing.
func stopMutants() []Mutant {
	return []Mutant{
		commandMutant("timeout-is-ignored", "commands.timeout", "a command that hangs is never given up", func(c *command) { c.Timeout = 0 }),
		streamMutant("timeout-is-a-status", "commands.timeout", "nobody can tell it from a kill", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			r, err := c.Stream(ctx, cmd, o, e)
			if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				return result{ExitCode: 137}, nil
			}
			return r, err
		}),
		streamMutant("timeout-is-unreachable", "commands.timeout", "the sandbox is taken for broken and replaced", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			r, err := c.Stream(ctx, cmd, o, e)
			if errors.Is(err, context.DeadlineExceeded) {
				err = sandbox.ErrUnreachable
			}
			return r, err
		}),
		commandMutant("timeout-counts-in-milliseconds-of-a-minute", "commands.timeout", "a unit is mistaken and the command ends too late", func(c *command) { c.Timeout *= 60 }),
		streamMutant("timeout-hits-failed-commands", "commands.timeout.unused", "a status that isn't 0 counts as a timeout", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			r, err := c.Stream(ctx, cmd, o, e)
			if err == nil && cmd.Timeout > 0 && r.ExitCode != 0 {
				err = context.DeadlineExceeded
			}
			return r, err
		}),
		spareMutant("timeout-leaves-children", "commands.timeout.stops", "only the shell is killed", script.Plain, script.Orphan),
		streamMutant("timeout-kills-everything", "commands.timeout.stops", "one command that is slow ends all that run", func(ctx context.Context, m *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			r, err := c.Stream(ctx, cmd, o, e)
			if errors.Is(err, context.DeadlineExceeded) {
				m.kernel.kill(nil, nil)
			}
			return r, err
		}),
		spareMutant("timeout-leaves-orphans", "commands.timeout.stops", "only the shell's own children are found", script.Orphan),
		spareMutant("timeout-only-asks", "commands.timeout.deaf", "SIGTERM isn't followed by SIGKILL", script.Deaf),
		spareMutant("timeout-kills-the-group-only", "commands.timeout.setsid", "setsid escapes a process group", script.Setsid, script.Bare),
		spareMutant("timeout-finds-by-environment", "commands.timeout.bare", "a process without environment isn't found", script.Bare),
		streamMutant("deadline-stays-here", "commands.deadline", "the command goes on when the platform gives up", leaving(context.DeadlineExceeded)),
		streamMutant("deadline-gives-way-to-timeout", "commands.deadline", "the earlier of the two has to hold", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			if cmd.Timeout > 0 && ctx.Err() == nil {
				ctx = context.WithoutCancel(ctx)
			}
			return c.Stream(ctx, cmd, o, e)
		}),
		streamMutant("cancel-leaves-the-command", "commands.cancel.stops", "dropping the connection stops nothing", leaving(context.Canceled)),
		spareMutant("cancel-leaves-children", "commands.cancel.stops", "only the shell is killed", script.Plain),
		spareMutant("cancel-kills-the-group-only", "commands.cancel.setsid", "setsid escapes a process group", script.Setsid),
		streamMutant("cancel-waits-for-the-end", "commands.cancel", "stop does nothing for as long as it runs", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			r, err := c.Stream(context.WithoutCancel(ctx), cmd, o, e)
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return r, err
		}),
		streamMutant("cancelled-before-runs-anyway", "commands.cancel", "what nobody wants any more is done", func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
			if ctx.Err() != nil {
				_, _ = c.Stream(context.WithoutCancel(ctx), cmd, o, e)
			}
			return c.Stream(ctx, cmd, o, e)
		}),
	}
}

// leaving returns when ctx ends for that reason and leaves the command running,
// until its sandbox ends.
func leaving(reason error) runner {
	return func(ctx context.Context, _ *machine, c sandbox.Commands, cmd command, o, e io.Writer) (result, error) {
		type outcome struct {
			r   result
			err error
		}
		free, stop := context.WithCancel(context.WithoutCancel(ctx))
		done := make(chan outcome, 1)
		go func() {
			defer stop()
			r, err := c.Stream(free, cmd, o, e)
			done <- outcome{r, err}
		}()
		select {
		case out := <-done:
			return out.r, out.err
		case <-ctx.Done():
		}
		if errors.Is(ctx.Err(), reason) {
			return result{}, ctx.Err()
		}
		stop()
		out := <-done
		return out.r, errors.Join(ctx.Err(), out.err)
	}
}
