package sandboxfake

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func init() { mutantTables = append(mutantTables, isolatedMutants) }

// loose is the fake with some operations on sessions replaced.
type loose struct {
	*Provider

	ask     func(context.Context, string) (sandbox.IsolationCapability, error)
	prepare func(ctx context.Context, id, dir string, uid, gid uint32) error
	open    func(context.Context, string, sandbox.IsolatedSessionSpec) (sandbox.IsolatedSession, error)
	connect func(ctx context.Context, id, session string) (sandbox.IsolatedSession, error)
	close   func(ctx context.Context, id, session string) error
	count   func(context.Context, string) (int, error)
	find    func(ctx context.Context, id, source string) ([]string, error)
}

func loosening(f func(l *loose, honest *Provider)) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return func(p *Provider, _ *sandbox.Driver) sandbox.Provider {
		l := &loose{Provider: p}
		f(l, p)
		return l
	}
}

func (l *loose) ReadIsolationCapability(ctx context.Context, id string) (sandbox.IsolationCapability, error) {
	if l.ask != nil {
		return l.ask(ctx, id)
	}
	return l.Provider.ReadIsolationCapability(ctx, id)
}

func (l *loose) PrepareIsolatedWorkspace(ctx context.Context, id, dir string, uid, gid uint32) error {
	if l.prepare != nil {
		return l.prepare(ctx, id, dir, uid, gid)
	}
	return l.Provider.PrepareIsolatedWorkspace(ctx, id, dir, uid, gid)
}

func (l *loose) OpenIsolatedSession(ctx context.Context, id string, s sandbox.IsolatedSessionSpec) (sandbox.IsolatedSession, error) {
	if l.open != nil {
		return l.open(ctx, id, s)
	}
	return l.Provider.OpenIsolatedSession(ctx, id, s)
}

func (l *loose) ConnectIsolatedSession(ctx context.Context, id, session string) (sandbox.IsolatedSession, error) {
	if l.connect != nil {
		return l.connect(ctx, id, session)
	}
	return l.Provider.ConnectIsolatedSession(ctx, id, session)
}

func (l *loose) CloseIsolatedSession(ctx context.Context, id, session string) error {
	if l.close != nil {
		return l.close(ctx, id, session)
	}
	return l.Provider.CloseIsolatedSession(ctx, id, session)
}

func (l *loose) CountActiveIsolatedSessions(ctx context.Context, id string) (int, error) {
	if l.count != nil {
		return l.count(ctx, id)
	}
	return l.Provider.CountActiveIsolatedSessions(ctx, id)
}

func (l *loose) FindIsolatedSessionsByWorkspace(ctx context.Context, id, source string) ([]string, error) {
	if l.find != nil {
		return l.find(ctx, id, source)
	}
	return l.Provider.FindIsolatedSessionsByWorkspace(ctx, id, source)
}

// opening replaces the session that Open gives by what f makes of it.
func opening(f func(s *session) sandbox.IsolatedSession) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return loosening(func(l *loose, p *Provider) {
		l.open = func(ctx context.Context, id string, spec sandbox.IsolatedSessionSpec) (sandbox.IsolatedSession, error) {
			a, err := p.OpenIsolatedSession(ctx, id, spec)
			if err != nil {
				return nil, err
			}
			return f(a.(*session)), nil
		}
	})
}

// bentSession is a session with some of it replaced.
type bentSession struct {
	*session
	id       string
	files    sandbox.Files
	commands sandbox.Commands
	ps       sandbox.Processes
}

func (b bentSession) SessionID() string {
	if b.id != "" {
		return b.id
	}
	return b.session.SessionID()
}

func (b bentSession) Files() sandbox.Files {
	if b.files != nil {
		return b.files
	}
	return b.session.Files()
}

func (b bentSession) Commands() sandbox.Commands {
	if b.commands != nil {
		return b.commands
	}
	return b.session.Commands()
}

func (b bentSession) Processes() sandbox.Processes {
	if b.ps != nil {
		return b.ps
	}
	return b.session.Processes()
}

// inDir runs commands in a directory when they name none.
type inDir struct {
	sandbox.Commands
	dir string
}

func (c inDir) Run(ctx context.Context, cmd sandbox.Command) (sandbox.CommandResult, error) {
	if cmd.Dir == "" {
		cmd.Dir = c.dir
	}
	return c.Commands.Run(ctx, cmd)
}

func (c inDir) Stream(ctx context.Context, cmd sandbox.Command, stdout, stderr io.Writer) (sandbox.CommandResult, error) {
	if cmd.Dir == "" {
		cmd.Dir = c.dir
	}
	return c.Commands.Stream(ctx, cmd, stdout, stderr)
}

// exitZero takes an end that it can't explain for a good one.
type exitZero struct{ sandbox.Commands }

func (c exitZero) Stream(ctx context.Context, cmd sandbox.Command, stdout, stderr io.Writer) (sandbox.CommandResult, error) {
	r, err := c.Commands.Stream(ctx, cmd, stdout, stderr)
	if sandbox.CodeOf(err) != "" {
		return sandbox.CommandResult{}, nil
	}
	return r, err
}

// before changes a session or a command before it is run.
type before struct {
	sandbox.Commands
	change func(*sandbox.Command)
}

func (c before) Run(ctx context.Context, cmd sandbox.Command) (sandbox.CommandResult, error) {
	c.change(&cmd)
	return c.Commands.Run(ctx, cmd)
}

// fatal ends the session with a command that ends with an error.
type fatal struct {
	sandbox.Commands
	s   *session
	end error
}

func (c fatal) Run(ctx context.Context, cmd sandbox.Command) (sandbox.CommandResult, error) {
	r, err := c.Commands.Run(ctx, cmd)
	if errors.Is(err, c.end) {
		c.s.end()
	}
	return r, err
}

// tidy kills what a command left behind.
type tidy struct {
	sandbox.Commands
	s *session
}

func (c tidy) Run(ctx context.Context, cmd sandbox.Command) (sandbox.CommandResult, error) {
	r, err := c.Commands.Run(ctx, cmd)
	c.s.mu.Lock()
	jobs := slices.Clone(c.s.jobs)
	c.s.mu.Unlock()
	for _, j := range jobs {
		c.s.m.kernel.kill(j, nil)
	}
	return r, err
}

func isolatedMutants() []Mutant {
	preparing := func(f func(ctx context.Context, p *Provider, id, dir string, uid, gid uint32) error) func(*Provider, *sandbox.Driver) sandbox.Provider {
		return loosening(func(l *loose, p *Provider) {
			l.prepare = func(ctx context.Context, id, dir string, uid, gid uint32) error { return f(ctx, p, id, dir, uid, gid) }
		})
	}
	after := func(ctx context.Context, p *Provider, id string, f func(sandbox.Files) error) error {
		h, err := p.Connect(ctx, id)
		if err != nil {
			return err
		}
		return f(h.Files())
	}
	return []Mutant{
		{"no-without-a-reason", "isolated.capability", "Who set the machine up wrong has nothing to go by.", loosening(func(l *loose, _ *Provider) {
			l.ask = func(context.Context, string) (sandbox.IsolationCapability, error) {
				return sandbox.IsolationCapability{}, nil
			}
		})},
		{"no-is-an-error", "isolated.capability", "A backend without sessions looks broken.", loosening(func(l *loose, _ *Provider) {
			l.ask = func(context.Context, string) (sandbox.IsolationCapability, error) {
				return sandbox.IsolationCapability{}, sandbox.Errorf(sandbox.CodeIsolationUnsupported, "no user namespaces")
			}
		})},
		{"cannot-ask-means-no", "isolated.capability.unknown", "A sandbox that is being replaced changes what an Environment may do.", loosening(func(l *loose, p *Provider) {
			l.ask = func(ctx context.Context, id string) (sandbox.IsolationCapability, error) {
				c, err := p.ReadIsolationCapability(ctx, id)
				if err != nil {
					c, err = sandbox.IsolationCapability{Detail: "it can't"}, nil
				}
				return c, err
			}
		})},
		{"close-asks-for-any-id", "ids.isolated", "An id with a slash in it changes the path of a request.", loosening(func(l *loose, p *Provider) {
			l.close = func(ctx context.Context, id, name string) error {
				if !sandbox.ValidID(id) {
					return nil
				}
				return p.CloseIsolatedSession(ctx, id, name)
			}
		})},
		{"workspace-for-everybody", "isolated.workspace", "Conversations that share a sandbox read each other.", preparing(func(ctx context.Context, p *Provider, id, dir string, uid, gid uint32) error {
			return errors.Join(p.PrepareIsolatedWorkspace(ctx, id, dir, uid, gid),
				after(ctx, p, id, func(f sandbox.Files) error { return f.SetAttr(ctx, dir, sandbox.Attr{Mode: sandbox.Mode(0o755)}) }))
		})},
		{"workspace-of-root", "isolated.workspace", "The session can't write into it.", preparing(func(ctx context.Context, p *Provider, id, dir string, _, _ uint32) error {
			return p.PrepareIsolatedWorkspace(ctx, id, dir, 0, 0)
		})},
		{"existing-workspace-is-left-as-it-is", "isolated.workspace", "After a restore it is somebody else's.", preparing(func(ctx context.Context, p *Provider, id, dir string, uid, gid uint32) error {
			err := after(ctx, p, id, func(f sandbox.Files) error { _, err := f.Stat(ctx, dir); return err })
			if err == nil {
				return nil
			}
			return p.PrepareIsolatedWorkspace(ctx, id, dir, uid, gid)
		})},
		{"prepare-empties-the-workspace", "isolated.workspace", "Every restart loses the work.", preparing(func(ctx context.Context, p *Provider, id, dir string, uid, gid uint32) error {
			return errors.Join(after(ctx, p, id, func(f sandbox.Files) error { return f.RemoveAll(ctx, dir) }), p.PrepareIsolatedWorkspace(ctx, id, dir, uid, gid))
		})},
		{"session-under-an-alias", "isolated.open", "The id in the record leads nowhere.", loosening(func(l *loose, p *Provider) {
			l.connect = func(ctx context.Context, id, name string) (sandbox.IsolatedSession, error) {
				a, err := p.ConnectIsolatedSession(ctx, id, name)
				if err != nil {
					return nil, err
				}
				return bentSession{session: a.(*session), id: "alias"}, nil
			}
		})},
		{"opens-what-is-not-valid", "isolated.refused", "A workspace of / is the whole sandbox.", loosening(func(l *loose, p *Provider) {
			l.open = func(ctx context.Context, id string, spec sandbox.IsolatedSessionSpec) (sandbox.IsolatedSession, error) {
				if !strings.HasPrefix(spec.Workspace, "/") {
					spec.Workspace = "/" + spec.Workspace
				}
				if spec.Check() != nil {
					spec = sandbox.IsolatedSessionSpec{Workspace: "/tmp", UID: spec.UID, GID: spec.GID}
				}
				return p.OpenIsolatedSession(ctx, id, spec)
			}
		})},
		{"session-runs-as-root", "isolated.account", "Root of a shared sandbox is root over all conversations in it.", loosening(func(l *loose, p *Provider) {
			l.open = func(ctx context.Context, id string, spec sandbox.IsolatedSessionSpec) (sandbox.IsolatedSession, error) {
				spec.UID, spec.GID = 0, 0
				return p.OpenIsolatedSession(ctx, id, spec)
			}
		})},
		{"session-begins-at-the-root", "isolated.account", "A relative path is another file.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, commands: inDir{s.Commands(), "/"}}
		})},
		{"session-files-are-all-files", "isolated.files", "A conversation's Files panel shows its neighbours.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, files: &sessionFiles{handle{s.m}.Files(), s}}
		})},
		{"session-files-are-of-root", "isolated.files", "The program can't change what a person uploaded.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, files: handle{s.m}.Files().Beneath(s.dir)}
		})},
		{"session-writes-anywhere", "isolated.view", "One conversation changes the tools of all.", opening(func(s *session) sandbox.IsolatedSession {
			s.writable = []string{""}
			return s
		})},
		{"session-reads-its-neighbours", "isolated.apart", "Source of one customer in the answers to another.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, commands: inDir{commands{m: s.m}, s.dir}}
		})},
		{"session-commands-overlap", "isolated.serial", "Two turns change one checkout.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, commands: inDir{commands{m: s.m, as: s}, s.dir}}
		})},
		{"detached-children-die", "isolated.detached", "A dev server ends with the command that started it.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, commands: tidy{s.Commands(), s}}
		})},
		{"session-forgets-where-it-was", "isolated.carried", "A terminal's cd has no effect.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, commands: before{s.Commands(), func(*sandbox.Command) { s.now = s.dir }}}
		})},
		{"session-forgets-variables", "isolated.carried", "An activated environment is gone with the next command.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, commands: before{s.Commands(), func(*sandbox.Command) { s.exports = map[string]string{} }}}
		})},
		{"dir-of-a-command-stays", "isolated.carried", "What AstraBox runs itself moves the person's terminal.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, commands: before{s.Commands(), func(c *sandbox.Command) {
				if c.Dir != "" {
					s.now, c.Dir = c.Dir, ""
				}
			}}}
		})},
		{"deadline-ends-the-session", "isolated.stopped", "A command that takes too long takes the person's other programs with it.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, commands: fatal{s.Commands(), s, context.DeadlineExceeded}}
		})},
		{"cancel-ends-the-session", "isolated.stopped", "Stopping a command closes the terminal.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, commands: fatal{s.Commands(), s, context.Canceled}}
		})},
		{"stopped-command-leaves-children", "isolated.stopped", "A server that was stopped keeps its port.", opening(func(s *session) sandbox.IsolatedSession {
			s.m.p.bent.spare = func(t *task) bool { return t.kind == script.Setsid }
			return s
		})},
		{"session-signals-the-sandbox", "isolated.unseen", "One conversation kills the programs of all.", opening(func(s *session) sandbox.IsolatedSession {
			s.shares = true
			return s
		})},
		{"idle-session-stays", "isolated.idle", "A shared sandbox fills up with sessions that nobody uses.", loosening(func(l *loose, p *Provider) {
			l.open = func(ctx context.Context, id string, spec sandbox.IsolatedSessionSpec) (sandbox.IsolatedSession, error) {
				spec.IdleTimeout = 0
				return p.OpenIsolatedSession(ctx, id, spec)
			}
		})},
		{"busy-session-is-idle", "isolated.idle", "A long build ends in the middle.", opening(func(s *session) sandbox.IsolatedSession {
			if s.idle != nil {
				s.idle.Stop()
				time.AfterFunc(s.idleFor, s.end)
				s.idle = nil
			}
			return s
		})},
		{"session-processes-run-as-root", "isolated.processes", "A terminal is a way out of the session.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, ps: processes{s.m}}
		})},
		{"closed-session-comes-back", "isolated.unknown", "An old id runs in a session that nobody opened.", loosening(func(l *loose, p *Provider) {
			l.connect = func(ctx context.Context, id, name string) (sandbox.IsolatedSession, error) {
				a, err := p.ConnectIsolatedSession(ctx, id, name)
				if sandbox.CodeOf(err) == sandbox.CodeIsolatedSessionNotFound {
					return p.OpenIsolatedSession(ctx, id, sandbox.IsolatedSessionSpec{Workspace: "/tmp"})
				}
				return a, err
			}
		})},
		{"unknown-session-is-gone-sandbox", "isolated.unknown", "A lost session has the whole sandbox replaced.", loosening(func(l *loose, p *Provider) {
			l.connect = func(ctx context.Context, id, name string) (sandbox.IsolatedSession, error) {
				a, err := p.ConnectIsolatedSession(ctx, id, name)
				if sandbox.CodeOf(err) == sandbox.CodeIsolatedSessionNotFound {
					return nil, sandbox.Errorf(sandbox.CodeGone, "gone")
				}
				return a, err
			}
		})},
		{"second-close-fails", "isolated.close", "A clean-up that is repeated never ends.", loosening(func(l *loose, p *Provider) {
			l.close = func(ctx context.Context, id, name string) error {
				if _, err := p.ConnectIsolatedSession(ctx, id, name); err != nil {
					return err
				}
				return p.CloseIsolatedSession(ctx, id, name)
			}
		})},
		{"close-fails-without-a-sandbox", "isolated.close", "What ended with its sandbox stays in the ledger.", loosening(func(l *loose, p *Provider) {
			l.close = func(ctx context.Context, id, name string) error {
				if _, err := p.CountActiveIsolatedSessions(ctx, id); err != nil {
					return err
				}
				return p.CloseIsolatedSession(ctx, id, name)
			}
		})},
		{"close-removes-the-workspace", "isolated.close", "A conversation that is closed and opened again has lost its files.", loosening(func(l *loose, p *Provider) {
			l.close = func(ctx context.Context, id, name string) error {
				dir := ""
				if a, err := p.ConnectIsolatedSession(ctx, id, name); err == nil {
					dir = a.(*session).dir
				}
				err := p.CloseIsolatedSession(ctx, id, name)
				if dir != "" {
					err = errors.Join(err, after(ctx, p, id, func(f sandbox.Files) error { return f.RemoveAll(ctx, dir) }))
				}
				return err
			}
		})},
		{"closed-commands-succeed", "isolated.close", "A turn that was cut off is taken for one that was done.", opening(func(s *session) sandbox.IsolatedSession {
			return bentSession{session: s, commands: exitZero{s.Commands()}}
		})},
		{"count-of-the-unreachable-is-0", "isolated.count", "A full sandbox that doesn't answer takes another conversation.", loosening(func(l *loose, p *Provider) {
			l.count = func(ctx context.Context, id string) (int, error) {
				n, err := p.CountActiveIsolatedSessions(ctx, id)
				if err != nil {
					n, err = 0, nil
				}
				return n, err
			}
		})},
		{"count-never-goes-down", "isolated.count", "A shared sandbox fills up with conversations that ended.", loosening(func(l *loose, p *Provider) {
			var opened atomic.Int64
			l.open = func(ctx context.Context, id string, spec sandbox.IsolatedSessionSpec) (sandbox.IsolatedSession, error) {
				a, err := p.OpenIsolatedSession(ctx, id, spec)
				if err == nil {
					opened.Add(1)
				}
				return a, err
			}
			l.count = func(ctx context.Context, id string) (int, error) {
				_, err := p.CountActiveIsolatedSessions(ctx, id)
				return int(opened.Load()), err
			}
		})},
		{"sessions-outlive-a-pause", "isolated.pause", "A record of a session that has no processes any more.", loosening(func(l *loose, p *Provider) {
			seen := map[string]sandbox.IsolatedSession{}
			l.open = func(ctx context.Context, id string, spec sandbox.IsolatedSessionSpec) (sandbox.IsolatedSession, error) {
				a, err := p.OpenIsolatedSession(ctx, id, spec)
				if err == nil {
					seen[a.SessionID()] = a
				}
				return a, err
			}
			l.connect = func(_ context.Context, _, name string) (sandbox.IsolatedSession, error) {
				if a := seen[name]; a != nil {
					return a, nil
				}
				return nil, noSession(name)
			}
		})},
		{"finds-every-session", "isolated.found", "The recovery of one conversation closes another's session.", loosening(func(l *loose, p *Provider) {
			l.find = func(ctx context.Context, id, _ string) ([]string, error) {
				return withMachine(ctx, p, "FindIsolatedSessionsByWorkspace", id, nil, func(m *machine) (ids []string, err error) {
					m.mu.Lock()
					defer m.mu.Unlock()
					for id := range m.sessions {
						ids = append(ids, id)
					}
					return ids, nil
				})
			}
		})},
		{"finds-no-session", "isolated.found", "One whose id was lost runs until its sandbox ends.", loosening(func(l *loose, _ *Provider) {
			l.find = func(context.Context, string, string) ([]string, error) { return nil, nil }
		})},
	}
}
