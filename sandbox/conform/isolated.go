package conform

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

// Accounts of sessions: numbers that no image has a name for.
const (
	oneUID   = 31001
	otherUID = 31002
)

func isolatedClauses() []Clause[*Stage] {
	const flag = "IsolatedSessions"
	clauses := []Clause[*Stage]{
		{ID: "isolated.capability", Doc: "A sandbox says whether it can hold sessions; no is an answer, with a reason, and not an error.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				c, err := s.Isolated.ReadIsolationCapability(ctx, h.SandboxID())
				if err != nil {
					return NoError("asking whether the sandbox can hold sessions", err)
				}
				if !c.Available && c.Detail == "" {
					return Unmet("a reason why there are no sessions", "none")
				}
				return nil
			})},
		{ID: "isolated.capability.unknown", Doc: "A sandbox that isn't there can't be asked, which is an error and not a no.",
			Check: func(ctx context.Context, s *Stage) error {
				c, err := s.Isolated.ReadIsolationCapability(ctx, nobody)
				if err == nil {
					return Unmet("the question to be refused with SANDBOX_NOT_FOUND", "available %v", c.Available)
				}
				return Refused("asking a sandbox that isn't there", err, sandbox.CodeNotFound)
			}},
		{ID: "isolated.workspace", Doc: "A prepared workspace belongs to the session's account with 0700, also where it exists, and keeps what lies in it.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				dir := r.base + "/prepared"
				for again := range 2 {
					if err := s.Isolated.PrepareIsolatedWorkspace(ctx, r.h.SandboxID(), dir, oneUID, oneUID); err != nil {
						return NoError("preparing a workspace", err)
					}
					i, err := r.h.Files().Stat(ctx, dir)
					if err != nil {
						return NoError("looking at a prepared workspace", err)
					}
					if i.Mode != fs.ModeDir|0o700 || i.Owner != fmt.Sprint(oneUID) || i.Group != fmt.Sprint(oneUID) {
						return Unmet(fmt.Sprintf("directory 0700 %d:%d", oneUID, oneUID), "%v %s:%s", i.Mode, i.Owner, i.Group)
					}
					if again == 1 {
						break
					}
					if err := r.h.Files().Write(ctx, dir+"/kept", strings.NewReader("kept"), sandbox.WriteOptions{}); err != nil {
						return NoError("writing into a prepared workspace", err)
					}
					if err := r.h.Files().SetAttr(ctx, dir, sandbox.Attr{Mode: sandbox.Mode(0o755), Owner: "root", Group: "root"}); err != nil {
						return NoError("giving a workspace away", err)
					}
				}
				if _, err := r.h.Files().Stat(ctx, dir+"/kept"); err != nil {
					return NoError("looking at what lay in the workspace", err)
				}
				return nil
			})},
		{ID: "isolated.open", Doc: "An open session has an id, with which it can be reached again.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				a, err := r.open(ctx, "a", oneUID)
				if err != nil {
					return err
				}
				again, err := s.Isolated.ConnectIsolatedSession(ctx, r.h.SandboxID(), a.SessionID())
				if err != nil {
					return NoError("connecting to a session", err)
				}
				if a.SessionID() == "" || again.SessionID() != a.SessionID() {
					return Unmet("the same id, which isn't empty", "%q and %q", a.SessionID(), again.SessionID())
				}
				if missing(again.Files()) || missing(again.Commands()) || missing(again.Processes()) {
					return Unmet("three faces", "Files %s, Commands %s, Processes %s",
						typeName(again.Files()), typeName(again.Commands()), typeName(again.Processes()))
				}
				return nil
			})},
		{ID: "isolated.refused", Doc: "A spec that isn't valid is refused with SANDBOX_CONFIG_INVALID, and makes no session.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				for what, spec := range map[string]sandbox.IsolatedSessionSpec{
					"a relative workspace": {Workspace: "work"},
					"the root":             {Workspace: "/"},
					"a way up":             {Workspace: r.base + "/../etc"},
					"a relative source":    {Workspace: r.base, Source: "work"},
					"a relative bind":      {Workspace: r.base, Binds: []sandbox.IsolatedBind{{Source: "etc"}}},
					"half a second":        {Workspace: r.base, IdleTimeout: time.Second / 2},
				} {
					_, err := s.Isolated.OpenIsolatedSession(ctx, r.h.SandboxID(), spec)
					if err := Refused("a session with "+what, err, sandbox.CodeInvalid); err != nil {
						return err
					}
				}
				return r.counts(ctx, 0)
			})},
		{ID: "isolated.account", Doc: "Commands run as the session's account and begin in its workspace.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				a, err := r.open(ctx, "a", oneUID)
				if err != nil {
					return err
				}
				out, err := r.run(ctx, a, script.Pwd(), script.WriteFile("made", "x"))
				if err != nil {
					return err
				}
				if strings.TrimSpace(out) != r.base+"/a" {
					return Unmet("the working directory "+r.base+"/a", "%q", out)
				}
				i, err := r.h.Files().Stat(ctx, r.base+"/a/made")
				if err != nil {
					return NoError("looking at what a session made", err)
				}
				if i.Owner != fmt.Sprint(oneUID) {
					return Unmet(fmt.Sprintf("a file of the account %d", oneUID), "one of %s", i.Owner)
				}
				return nil
			})},
		{ID: "isolated.files", Doc: "A session's Files are its workspace, whose files belong to its account; what lies elsewhere is rejected.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				a, err := r.open(ctx, "a", oneUID)
				if err != nil {
					return err
				}
				if err := a.Files().Write(ctx, r.base+"/a/f", strings.NewReader("text"), sandbox.WriteOptions{}); err != nil {
					return NoError("writing a file of a session", err)
				}
				i, err := r.h.Files().Stat(ctx, r.base+"/a/f")
				if err != nil {
					return NoError("looking at a session's file from the sandbox", err)
				}
				if i.Owner != fmt.Sprint(oneUID) || i.Size != 4 {
					return Unmet(fmt.Sprintf("4 bytes of the account %d", oneUID), "%d of %s", i.Size, i.Owner)
				}
				for _, outside := range []string{"/etc/passwd", r.base + "/b", r.base + "/a/../b", "/"} {
					if _, err := a.Files().Stat(ctx, outside); !errors.Is(err, sandbox.ErrPathRejected) {
						return Unmet(outside+", which isn't in the workspace, to be rejected", "%v", err)
					}
				}
				return nil
			})},
		{ID: "isolated.view", Doc: "Everything but its workspace is read-only for a session.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				a, err := r.open(ctx, "a", 0) // root: so it isn't the bits that forbid it
				if err != nil {
					return err
				}
				outside := r.base + "/outside"
				res, err := a.Commands().Run(ctx, sandbox.Command{Line: script.Line(script.WriteFile(outside, "x")), Timeout: 20 * time.Second})
				if err != nil {
					return NoError("running a command in a session", err)
				}
				_, err = r.h.Files().Stat(ctx, outside)
				if res.ExitCode == 0 || !errors.Is(err, fs.ErrNotExist) {
					return Unmet("a write outside the workspace to fail", "exit status %d, and the file: %v", res.ExitCode, err)
				}
				return nil
			})},
		{ID: "isolated.apart", Doc: "A session can't read the workspace of another account's session.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				a, err := r.open(ctx, "a", oneUID)
				if err != nil {
					return err
				}
				b, err := r.open(ctx, "b", otherUID)
				if err != nil {
					return err
				}
				if err := a.Files().Write(ctx, r.base+"/a/private", strings.NewReader("private"), sandbox.WriteOptions{}); err != nil {
					return NoError("writing a file of a session", err)
				}
				res, err := b.Commands().Run(ctx, sandbox.Command{Line: script.Line(script.CatFile(r.base + "/a/private")), Timeout: 20 * time.Second})
				if err != nil {
					return NoError("running a command in a session", err)
				}
				if len(res.Stdout) > 0 || res.ExitCode == 0 {
					return Unmet("another account's file to stay unread", "%q, exit status %d", res.Stdout, res.ExitCode)
				}
				return nil
			})},
		{ID: "isolated.serial", Doc: "Commands of one session run one after another, in the order in which they came.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				a, err := r.open(ctx, "a", oneUID)
				if err != nil {
					return err
				}
				began := make(chan struct{})
				first := make(chan error, 1)
				go func() {
					_, err := a.Commands().Stream(ctx, sandbox.Command{Line: script.Line(script.Emit("began"), script.Sleep(300*time.Millisecond), script.Append("order", "a"))},
						&signalWriter{c: began}, nil)
					first <- err
				}()
				select {
				case <-began:
				case err := <-first:
					return Unmet("a command of a session to run", "%v", err)
				}
				_, second := r.run(ctx, a, script.Append("order", "b"))
				if err := errors.Join(<-first, second); err != nil {
					return NoError("running two commands in a session", err)
				}
				out, err := r.run(ctx, a, script.CatFile("order"))
				if err == nil && out != "ab" {
					return Unmet("the second command to wait for the first", "the order %q", out)
				}
				return err
			})},
		{ID: "isolated.detached", Doc: "A child that a command leaves behind outlives the command.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				a, err := r.open(ctx, "a", oneUID)
				if err != nil {
					return err
				}
				if _, err := r.run(ctx, a, script.Spawn(script.Setsid, time.Minute, r.base+"/a/pid")); err != nil {
					return err
				}
				out, err := r.run(ctx, a, script.Alive(r.base+"/a/pid"))
				if err == nil && strings.TrimSpace(out) != "alive" {
					return Unmet("the child to be alive after the command", "%q", out)
				}
				return err
			})},
		{ID: "isolated.processes", Doc: "Long-lived processes run in a session as its account, and are attached to as others are.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				if !s.Caps.ProcessSessions {
					return Skip("the backend has no long-lived processes")
				}
				a, err := r.open(ctx, "a", oneUID)
				if err != nil {
					return err
				}
				id, err := a.Processes().Start(ctx, sandbox.ProcessSpec{Key: "conform", Line: script.Line(script.WriteFile(r.base+"/a/by", "x"), script.Emit("began"), script.Cat())})
				if err != nil {
					return NoError("starting a process in a session", err)
				}
				at, err := a.Processes().Attach(ctx, id, sandbox.AttachOptions{})
				if err != nil {
					return NoError("attaching to a process of a session", err)
				}
				defer at.Close()
				f, err := at.Recv(ctx)
				if err != nil || string(f.Data) != "began" {
					return Unmet(`the process's output "began"`, "%q, %v", f.Data, err)
				}
				i, err := r.h.Files().Stat(ctx, r.base+"/a/by")
				if err != nil {
					return NoError("looking at what a session's process made", err)
				}
				if i.Owner != fmt.Sprint(oneUID) {
					return Unmet(fmt.Sprintf("a file of the account %d", oneUID), "one of %s", i.Owner)
				}
				return nil
			})},
		{ID: "isolated.unknown", Doc: "A session that never was or has ended is SANDBOX_ISOLATED_SESSION_NOT_FOUND.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				a, err := r.open(ctx, "a", oneUID)
				if err != nil {
					return err
				}
				if err := s.Isolated.CloseIsolatedSession(ctx, r.h.SandboxID(), a.SessionID()); err != nil {
					return NoError("closing a session", err)
				}
				for _, id := range []string{a.SessionID(), "conform-nobody"} {
					_, err := s.Isolated.ConnectIsolatedSession(ctx, r.h.SandboxID(), id)
					if err := Refused("connecting to a session that isn't there", err, sandbox.CodeIsolatedSessionNotFound); err != nil {
						return err
					}
					_, err = s.Isolated.RunInIsolatedSession(ctx, r.h.SandboxID(), id, sandbox.Command{Line: script.Line(script.Emit("x"))})
					if err := Refused("a command in a session that isn't there", err, sandbox.CodeIsolatedSessionNotFound); err != nil {
						return err
					}
				}
				return nil
			})},
		{ID: "isolated.close", Doc: "Closing ends what runs, is a success each time, also when the sandbox is gone, and leaves the workspace.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				a, err := r.open(ctx, "a", oneUID)
				if err != nil {
					return err
				}
				if _, err := r.run(ctx, a, script.WriteFile(r.base+"/a/kept", "x")); err != nil {
					return err
				}
				began := make(chan struct{})
				ended := make(chan error, 1)
				go func() {
					res, err := a.Commands().Stream(ctx, sandbox.Command{Line: script.Line(script.Emit("began"), script.Sleep(5*time.Minute))}, &signalWriter{c: began}, nil)
					if err != nil || res.ExitCode > 128 {
						err = nil // its session is gone, or a signal killed it
					} else {
						err = fmt.Errorf("exit status %d", res.ExitCode)
					}
					ended <- err
				}()
				select {
				case <-began:
				case err := <-ended:
					return Unmet("a command of a session to run", "%v", err)
				}
				for range 2 {
					if err := s.Isolated.CloseIsolatedSession(ctx, r.h.SandboxID(), a.SessionID()); err != nil {
						return NoError("closing a session", err)
					}
				}
				if err := <-ended; err != nil {
					return Unmet("a command that the close ended to be an error or killed by a signal", "%v", err)
				}
				if _, err := r.h.Files().Stat(ctx, r.base+"/a/kept"); err != nil {
					return NoError("looking at the workspace of a closed session", err)
				}
				if err := s.destroyed(ctx, r.h.SandboxID()); err != nil {
					return err
				}
				return NoError("closing a session of a sandbox that is gone", s.Isolated.CloseIsolatedSession(ctx, r.h.SandboxID(), a.SessionID()))
			})},
		{ID: "isolated.count", Doc: "The open sessions are counted; a sandbox that can't be asked is an error, never 0.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				if err := r.counts(ctx, 0); err != nil {
					return err
				}
				a, err := r.open(ctx, "a", oneUID)
				if err != nil {
					return err
				}
				if _, err := r.open(ctx, "b", otherUID); err != nil {
					return err
				}
				if err := r.counts(ctx, 2); err != nil {
					return err
				}
				if err := s.Isolated.CloseIsolatedSession(ctx, r.h.SandboxID(), a.SessionID()); err != nil {
					return NoError("closing a session", err)
				}
				if err := r.counts(ctx, 1); err != nil {
					return err
				}
				if err := s.destroyed(ctx, r.h.SandboxID()); err != nil {
					return err
				}
				if n, err := s.Isolated.CountActiveIsolatedSessions(ctx, r.h.SandboxID()); err == nil {
					return Unmet("an error for a sandbox that is gone", "%d sessions", n)
				}
				return nil
			})},
		{ID: "isolated.pause", Doc: "A pause ends every session; workspaces stay.",
			Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
				if s.Pauser == nil {
					return Skip("the backend can't pause")
				}
				a, err := r.open(ctx, "a", oneUID)
				if err != nil {
					return err
				}
				if _, err := r.run(ctx, a, script.WriteFile(r.base+"/a/kept", "x")); err != nil {
					return err
				}
				if err := s.pause(ctx, r.h.SandboxID()); err != nil {
					return err
				}
				if r.h, err = s.resume(ctx, r.h.SandboxID()); err != nil {
					return err
				}
				_, err = s.Isolated.ConnectIsolatedSession(ctx, r.h.SandboxID(), a.SessionID())
				if err := Refused("connecting to a session from before the pause", err, sandbox.CodeIsolatedSessionNotFound); err != nil {
					return err
				}
				if _, err := r.h.Files().Stat(ctx, r.base+"/a/kept"); err != nil {
					return NoError("looking at a workspace after the pause", err)
				}
				return r.counts(ctx, 0)
			})},
	}
	clauses = append(clauses, isolatedRunClauses()...)
	for i := range clauses {
		clauses[i].Capability, clauses[i].Refusal, clauses[i].Timeout = flag, stageUnbound(flag), time.Minute
	}
	const recovery = "IsolatedSessionRecovery"
	return append(clauses, Clause[*Stage]{
		ID: "isolated.found", Doc: "The open sessions of a workspace are found, and only those.",
		Capability: recovery, Refusal: stageUnbound(recovery), Timeout: time.Minute,
		Check: withSessions(func(ctx context.Context, s *Stage, r *room) error {
			a, err := r.open(ctx, "a", oneUID)
			if err != nil {
				return err
			}
			if _, err := r.open(ctx, "b", otherUID); err != nil {
				return err
			}
			if err := r.finds(ctx, "a", a.SessionID()); err != nil {
				return err
			}
			if err := r.finds(ctx, "c", ""); err != nil {
				return err
			}
			if err := s.Isolated.CloseIsolatedSession(ctx, r.h.SandboxID(), a.SessionID()); err != nil {
				return NoError("closing a session", err)
			}
			return r.finds(ctx, "a", "")
		}),
	})
}

// room is a sandbox for sessions, whose workspaces are below base.
type room struct {
	s    *Stage
	h    sandbox.Handle
	base string
}

// withSessions makes a sandbox that can hold sessions; one that can't skips.
func withSessions(check func(context.Context, *Stage, *room) error) func(context.Context, *Stage) error {
	return withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
		c, err := s.Isolated.ReadIsolationCapability(ctx, h.SandboxID())
		if err != nil {
			return NoError("asking whether the sandbox can hold sessions", err)
		}
		if !c.Available || !c.SwitchAccount {
			return Skip("the sandbox can't hold sessions of other accounts: %s", c.Detail)
		}
		// Not below /tmp, of which a session has its own.
		r := &room{s, h, "/astrabox-conform-" + strings.ToLower(rand.Text()[:8])}
		if err := h.Files().MakeDir(ctx, r.base, sandbox.DirOptions{}); err != nil {
			return NoError("making a directory in the sandbox", err)
		}
		return check(ctx, s, r)
	})
}

// open prepares a workspace and opens a session on it.
func (r *room) open(ctx context.Context, name string, uid uint32) (sandbox.IsolatedSession, error) {
	dir := r.base + "/" + name
	if err := r.s.Isolated.PrepareIsolatedWorkspace(ctx, r.h.SandboxID(), dir, uid, uid); err != nil {
		return nil, NoError("preparing a workspace", err)
	}
	a, err := r.s.Isolated.OpenIsolatedSession(ctx, r.h.SandboxID(), sandbox.IsolatedSessionSpec{Workspace: dir, UID: uid, GID: uid})
	if err == nil && missing(a) {
		return nil, Unmet("a session or an error", "neither")
	}
	return a, NoError("opening a session", err)
}

// run runs a command that should succeed.
func (r *room) run(ctx context.Context, a sandbox.IsolatedSession, steps ...script.Step) (stdout string, err error) {
	res, err := a.Commands().Run(ctx, sandbox.Command{Line: script.Line(steps...), Timeout: 20 * time.Second})
	if err != nil {
		return "", NoError("running a command in a session", err)
	}
	if res.ExitCode != 0 {
		return "", Unmet("a command of a session to succeed", "exit status %d, %q", res.ExitCode, res.Stderr)
	}
	return string(res.Stdout), nil
}

func (r *room) counts(ctx context.Context, want int) error {
	n, err := r.s.Isolated.CountActiveIsolatedSessions(ctx, r.h.SandboxID())
	if err != nil {
		return NoError("counting sessions", err)
	}
	if n != want {
		return Unmet(fmt.Sprintf("%d open sessions", want), "%d", n)
	}
	return nil
}

func (r *room) finds(ctx context.Context, name, want string) error {
	ids, err := r.s.Recovery.FindIsolatedSessionsByWorkspace(ctx, r.h.SandboxID(), r.base+"/"+name)
	if err != nil {
		return NoError("looking for the sessions of a workspace", err)
	}
	if got := strings.Join(ids, " "); got != want {
		return Unmet(fmt.Sprintf("the sessions %q of the workspace %s", want, name), "%q", got)
	}
	return nil
}
