package conform

import (
	"context"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

// isolatedRunClauses are about what a session's commands find, and what ends
// with them.
func isolatedRunClauses() []Clause[*Stage] {
	return []Clause[*Stage]{
		{ID: "isolated.carried", Check: withSessions(isolatedCarried),
			Doc: "A command begins where the one before stood, with the variables that it exported; one with Dir or Env of its own changes neither."},
		{ID: "isolated.stopped", Check: withSessions(isolatedStopped),
			Doc: "A deadline, and a cancelled context, stop a command with the processes that it started, and not its session."},
		{ID: "isolated.unseen", Check: withSessions(isolatedUnseen),
			Doc: "A session, even one of root, can't signal a process outside of it."},
		{ID: "isolated.idle", Check: withSessions(isolatedIdle),
			Doc: "A session ends when nothing ran in it for its IdleTimeout, and not while a command runs."},
	}
}

func isolatedCarried(ctx context.Context, _ *Stage, r *room) error {
	a, err := r.open(ctx, "a", oneUID)
	if err != nil {
		return err
	}
	top, below := r.base+"/a", r.base+"/a/be low"
	if err := a.Files().MakeDir(ctx, below, sandbox.DirOptions{}); err != nil {
		return NoError("making a directory in a workspace", err)
	}
	if _, err := r.run(ctx, a, script.Cd(below), script.Export("KEPT", "va lue\n$HOME'")); err != nil {
		return err
	}
	want := below + "\nva lue\n$HOME'\n"
	leave := script.Line(script.Cd("/"), script.Export("KEPT", "other"))
	for what, c := range map[string]sandbox.Command{
		"":                      {},
		", nor after one's Dir": {Line: leave, Dir: top},
		", nor after one's Env": {Line: leave, Env: map[string]string{"KEPT": "another"}},
	} {
		if c.Line != "" {
			c.Timeout = 20 * time.Second
			if _, err := a.Commands().Run(ctx, c); err != nil {
				return NoError("running a command in a session", err)
			}
		}
		got, err := r.run(ctx, a, script.Pwd(), script.Env("KEPT"))
		if err != nil {
			return err
		}
		if got != want {
			return Unmet("where a command stood, and what it exported, not to be lost"+what+": "+want, "%q", got)
		}
	}
	return nil
}

func isolatedStopped(ctx context.Context, _ *Stage, r *room) error {
	a, err := r.open(ctx, "a", oneUID)
	if err != nil {
		return err
	}
	box := Box{Files: a.Files(), Commands: a.Commands(), Scratch: r.base + "/a"}
	for _, by := range []way{byTimeout, byDeadline, byCancel} {
		if err := try(func(t *trial) { stopped(t, by, script.Plain, script.Setsid) })(ctx, box); err != nil {
			return err
		}
		if _, err := r.run(ctx, a, script.Pwd()); err != nil {
			return err
		}
	}
	return nil
}

func isolatedUnseen(ctx context.Context, _ *Stage, r *room) error {
	pid := r.base + "/outside"
	outside := func(steps ...script.Step) (string, error) {
		res, err := r.h.Commands().Run(ctx, sandbox.Command{Line: script.Line(steps...), Timeout: 20 * time.Second})
		return strings.TrimSpace(string(res.Stdout)), NoError("running a command in the sandbox", err)
	}
	if _, err := outside(script.Spawn(script.Setsid, long, pid)); err != nil {
		return err
	}
	a, err := r.open(ctx, "a", 0) // root: so it isn't the account that forbids it
	if err != nil {
		return err
	}
	// The number may be another process of the session's, even this shell.
	_, err = a.Commands().Run(ctx, sandbox.Command{Line: script.Line(script.Kill("KILL", pid)), Timeout: 20 * time.Second})
	if err != nil {
		return NoError("running a command in a session", err)
	}
	state, err := outside(script.Alive(pid))
	if err != nil {
		return err
	}
	if state != "alive" {
		return Unmet("a process outside of the session to live on", "%q", state)
	}
	_, err = outside(script.Kill("KILL", pid))
	return err
}

func isolatedIdle(ctx context.Context, s *Stage, r *room) error {
	dir := r.base + "/a"
	if err := s.Isolated.PrepareIsolatedWorkspace(ctx, r.h.SandboxID(), dir, oneUID, oneUID); err != nil {
		return NoError("preparing a workspace", err)
	}
	a, err := s.Isolated.OpenIsolatedSession(ctx, r.h.SandboxID(), sandbox.IsolatedSessionSpec{
		Workspace: dir, UID: oneUID, GID: oneUID, IdleTimeout: time.Second,
	})
	if err != nil {
		return NoError("opening a session", err)
	}
	if _, err := r.run(ctx, a, script.Sleep(1500*time.Millisecond), script.Emit("x")); err != nil {
		return err
	}
	ended, err := eventually(ctx, 20*time.Second, func() (bool, error) {
		n, err := s.Isolated.CountActiveIsolatedSessions(ctx, r.h.SandboxID())
		return n == 0, NoError("counting sessions", err)
	})
	if err == nil && !ended {
		return Unmet("a session that is idle for longer than its second to end", "it is open after 20 s")
	}
	return err
}
