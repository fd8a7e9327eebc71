package sandboxfake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// commands is the Commands face.
type commands struct {
	m  *machine
	as *session // nil: root, with all of the sandbox
	// carries: the session goes on where the command ends.
	carries bool
}

func (c commands) Run(ctx context.Context, cmd sandbox.Command) (sandbox.CommandResult, error) {
	return operation(ctx, c.m.p, "Commands.Run", c.m.id, sandbox.CommandResult{}, func() (sandbox.CommandResult, error) {
		var stdout, stderr capped
		r, err := c.Stream(ctx, cmd, &stdout, &stderr)
		r.Stdout, r.Stderr = stdout.b, stderr.b
		r.Truncated = stdout.truncated || stderr.truncated
		return r, err
	})
}

// capped keeps the first sandbox.RunOutputLimit bytes.
type capped struct {
	b         []byte
	truncated bool
}

func (c *capped) Write(p []byte) (int, error) {
	keep := min(len(p), sandbox.RunOutputLimit-len(c.b))
	c.b = append(c.b, p[:keep]...)
	c.truncated = c.truncated || keep < len(p)
	return len(p), nil
}

func (c commands) Stream(ctx context.Context, cmd sandbox.Command, stdout, stderr io.Writer) (sandbox.CommandResult, error) {
	return operation(ctx, c.m.p, "Commands.Stream", c.m.id, sandbox.CommandResult{}, func() (sandbox.CommandResult, error) {
		if err := ctx.Err(); err != nil {
			return sandbox.CommandResult{}, err
		}
		if cmd.Line == "" || cmd.Timeout < 0 {
			return sandbox.CommandResult{}, sandbox.Errorf(sandbox.CodeInvalid, "the command line is empty or the timeout negative")
		}
		if cmd.Dir == "" {
			cmd.Dir = "/"
		}
		if err := c.m.checkLaunch(cmd.Line, cmd.Dir, cmd.Env); err != nil {
			return sandbox.CommandResult{}, err
		}
		done, err := c.m.begin()
		if err != nil {
			return sandbox.CommandResult{}, err
		}
		defer done()
		return c.run(ctx, cmd, stdout, stderr)
	})
}

// checkLaunch refuses what can't be started.
func (m *machine) checkLaunch(line, dir string, env map[string]string) error {
	if strings.ContainsRune(line, 0) {
		return sandbox.Errorf(sandbox.CodeInvalid, "the line contains a NUL")
	}
	for k, v := range env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return sandbox.Errorf(sandbox.CodeInvalid, "%q is not the name and value of a variable", k)
		}
	}
	m.tree.mu.Lock()
	defer m.tree.mu.Unlock()
	at, err := m.tree.existing(nil, dir, true)
	if err == nil && !at.n.mode.IsDir() {
		err = errors.New("it is not a directory")
	}
	if err != nil {
		return sandbox.Errorf(sandbox.CodeInvalid, "the directory %q can't be entered: %w", dir, err)
	}
	return nil
}

// environ is what a program of an account finds in its environment.
func (m *machine) environ(account string, more map[string]string) map[string]string {
	env := map[string]string{"HOME": home(account), "USER": account, "LOGNAME": account, "PATH": "/usr/bin:/bin"}
	maps.Copy(env, m.env)
	maps.Copy(env, more)
	return env
}

func (c commands) run(ctx context.Context, cmd sandbox.Command, stdout, stderr io.Writer) (sandbox.CommandResult, error) {
	j := &job{}
	t := c.m.kernel.shell(j)
	kill := func() { c.m.kernel.kill(j, c.m.p.bent.spare) }
	defer context.AfterFunc(ctx, kill)()
	var timedOut atomic.Bool
	if cmd.Timeout > 0 {
		timer := time.AfterFunc(cmd.Timeout, func() {
			timedOut.Store(true)
			kill()
		})
		defer timer.Stop()
	}
	var broken error // of a writer; the shell is the only one that writes
	user := "root"
	if c.as != nil {
		user = c.as.account
		c.as.mu.Lock()
		c.as.jobs = append(c.as.jobs, j)
		late := c.as.endedAlready
		c.as.mu.Unlock()
		if late {
			kill()
		}
	}
	s := &shell{
		m: c.m, t: t, user: user, dir: cmd.Dir, env: c.m.environ(user, cmd.Env), sess: c.as,
		size: func() (sandbox.Size, bool) { return sandbox.Size{}, false },
		write: func(ch sandbox.Channel, b []byte, _ <-chan struct{}) bool {
			to := stdout
			if ch == sandbox.Stderr {
				to = stderr
			}
			if to == nil || broken != nil {
				return broken == nil
			}
			if _, broken = to.Write(b); broken != nil {
				kill()
			}
			return broken == nil
		},
	}
	if c.carries {
		s.exports = maps.Clone(c.as.exports)
	}
	exit := s.run(cmd.Line)
	if c.carries && ctx.Err() == nil && !timedOut.Load() {
		c.as.now, c.as.exports = s.dir, s.exports
	}
	switch {
	case ctx.Err() != nil:
		return sandbox.CommandResult{}, ctx.Err()
	case timedOut.Load():
		return sandbox.CommandResult{ExitCode: exit.Code}, fmt.Errorf("the command ran out of time and was killed: %w", context.DeadlineExceeded)
	case broken != nil:
		return sandbox.CommandResult{}, fmt.Errorf("the command's output can't be passed on: %w", broken)
	}
	if err := c.m.reachable(); err != nil { // it ended with the sandbox
		return sandbox.CommandResult{}, err
	}
	return sandbox.CommandResult{ExitCode: exit.Code}, nil
}
