package bench

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
)

// sessionAccount is the account of the sessions that are measured.
const sessionAccount = 4321

// isolatedSessions measures how long a session takes to be there, its network
// included, and a run in it. The floors are the kernel's namespaces alone, made
// by a program, and a shell.
func isolatedSessions(ctx context.Context, o Options, d *daemon) (_ []Result, err error) {
	iso := execd.Isolated(func(context.Context, string) (*execd.Conn, error) { return d.conn, nil })
	dir := filepath.Join(d.dir, "workspace")
	if err := iso.PrepareIsolatedWorkspace(ctx, "bench", dir, sessionAccount, sessionAccount); err != nil {
		return nil, err
	}
	if err := os.Chmod(d.dir, 0o755); err != nil {
		return nil, err
	}
	spec := sandbox.IsolatedSessionSpec{Workspace: dir, UID: sessionAccount, GID: sessionAccount}
	creates, unshares, err := inTurns(o.N, func() (time.Duration, error) {
		var s sandbox.IsolatedSession
		took, err := timeOf(func() (err error) {
			s, err = iso.OpenIsolatedSession(ctx, "bench", spec)
			return err
		})
		if err != nil {
			return 0, err
		}
		return took, iso.CloseIsolatedSession(ctx, "bench", s.SessionID())
	}, func() (time.Duration, error) {
		return timeOf(func() error {
			return exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--ipc", "--uts", "--net", "true").Run()
		})
	})
	if err != nil {
		return nil, err
	}
	s, err := iso.OpenIsolatedSession(ctx, "bench", spec)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, iso.CloseIsolatedSession(context.WithoutCancel(ctx), "bench", s.SessionID()))
	}()
	runs, shells, err := inTurns(10*o.N, func() (time.Duration, error) {
		return timeOf(func() error {
			_, err := s.Commands().Run(ctx, sandbox.Command{Line: "true"})
			return err
		})
	}, bash(ctx, "true"))
	if err != nil {
		return nil, err
	}
	return []Result{
		timed("isolated_create", "<= 15 ms", creates, "unshare … true", unshares),
		timed("isolated_run", "<= 2.0 x", runs, "bash -c true", shells),
	}, nil
}
