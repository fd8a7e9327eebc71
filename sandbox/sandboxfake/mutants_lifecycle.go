package sandboxfake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func init() {
	mutantTables = append(mutantTables, createMutants, connectMutants, unknownMutants)
}

// create replaces Create by f, which gets the honest one.
func creating(f func(ctx context.Context, s sandbox.CreateSpec, p *Provider) (sandbox.Handle, error)) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return twisting(func(t *twisted, p *Provider) {
		t.create = func(ctx context.Context, s sandbox.CreateSpec) (sandbox.Handle, error) { return f(ctx, s, p) }
	})
}

// forgetting is a Create that doesn't look at some of its spec.
func forgetting(forget func(*sandbox.CreateSpec)) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return creating(func(ctx context.Context, s sandbox.CreateSpec, p *Provider) (sandbox.Handle, error) {
		if err := s.Validate(); err != nil {
			return nil, err
		}
		forget(&s)
		return p.Create(ctx, s)
	})
}

func createMutants() []Mutant {
	return []Mutant{
		{"id-with-a-slash", "create.id", "It can't be put into a URL, and every operation refuses it.",
			twistingHandle(func(h *twistedHandle) { h.id = func() string { return "fake/" + h.m.id } })},
		{"handle-changes-its-id", "create.id", "The id in the record is another than the one that is destroyed.",
			twistingHandle(func(h *twistedHandle) {
				var n atomic.Int64
				h.id = func() string { return fmt.Sprintf("%s-%d", h.m.id, n.Add(1)) }
			})},
		{"one-sandbox-for-all", "create.distinct", "Two conversations in one sandbox.",
			func() func(*Provider, *sandbox.Driver) sandbox.Provider {
				return twisting(func(t *twisted, p *Provider) {
					var mu sync.Mutex
					var first sandbox.Handle
					t.create = func(ctx context.Context, s sandbox.CreateSpec) (h sandbox.Handle, err error) {
						mu.Lock()
						defer mu.Unlock()
						if first == nil {
							first, err = p.Create(ctx, s)
						}
						return first, err
					}
				})
			}()},
		{"one-tree-for-all", "create.distinct", "A volume that is meant to be private is shared.",
			twisting(func(t *twisted, _ *Provider) {
				var mu sync.Mutex
				var first *machine
				t.handle = func(h handle) sandbox.Handle {
					mu.Lock()
					defer mu.Unlock()
					if first == nil {
						first = h.m
					}
					return &twistedHandle{handle: h, files: handle{first}.Files}
				}
			})},
		{"one-create-at-a-time", "create.together", "The second of two people who start at once gets an error.",
			twisting(func(t *twisted, p *Provider) {
				var busy sync.Mutex
				t.create = func(ctx context.Context, s sandbox.CreateSpec) (sandbox.Handle, error) {
					if !busy.TryLock() {
						return nil, sandbox.Errorf(sandbox.CodeCapacity, "busy")
					}
					defer busy.Unlock()
					time.Sleep(10 * time.Millisecond)
					return p.Create(ctx, s)
				}
			})},
		{"channel-comes-later", "create.channel", "The first command of a conversation fails now and then.",
			twistingHandle(func(h *twistedHandle) {
				var asked atomic.Bool
				h.commands = func() sandbox.Commands {
					if asked.Swap(true) {
						return h.handle.Commands()
					}
					return deafCommands{}
				}
			})},
		{"dir-is-not-made", "create.dir", "The first command says that there is no such directory.", forgetting(func(s *sandbox.CreateSpec) { s.Dir = "" })},
		{"dir-through-a-shell", "create.dir", "An unquoted directory with a space in it becomes two.",
			forgetting(func(s *sandbox.CreateSpec) { s.Dir, _, _ = strings.Cut(s.Dir, " ") })},
		{"env-is-dropped", "create.env", "The program starts without its configuration.", forgetting(func(s *sandbox.CreateSpec) { s.Env = nil })},
		{"env-is-expanded", "create.env", "A password with a dollar in it isn't the password any more.",
			forgetting(func(s *sandbox.CreateSpec) {
				env := maps.Clone(s.Env)
				for k, v := range env {
					env[k] = strings.ReplaceAll(v, "$HOME", "/root")
				}
				s.Env = env
			})},
		{"create-writes-into-the-spec", "create.spec", "The next attempt is made with what the last one added.",
			creating(func(ctx context.Context, s sandbox.CreateSpec, p *Provider) (sandbox.Handle, error) {
				h, err := p.Create(ctx, s)
				if s.Metadata != nil {
					s.Metadata["astrabox.session-id"] = s.OwnerID
				}
				return h, err
			})},
		{"another-image-instead", "create.image", "The wrong image runs, and nobody is told.", forgetting(func(s *sandbox.CreateSpec) { s.Image = "standard" })},
		{"failed-create-leaves-a-sandbox", "create.image", "A create that timed out leaves a half-made sandbox that nobody names.",
			creating(func(ctx context.Context, s sandbox.CreateSpec, p *Provider) (sandbox.Handle, error) {
				h, err := p.Create(ctx, s)
				if err != nil && s.Validate() == nil {
					_, twin := p.Twin(ctx, s)
					return nil, errors.Join(err, twin)
				}
				return h, err
			})},
		{"limit-that-is-no-limit", "create.quantities", "A zero or misspelt limit means no limit: one sandbox takes the machine.",
			creating(func(ctx context.Context, s sandbox.CreateSpec, p *Provider) (sandbox.Handle, error) {
				s.ResourceLimits = map[string]string{"memory": "1Gi"}
				return p.Create(ctx, s)
			})},
		{"network-rules-left-out", "create.unsupported", "An Environment that promises no network has all of it.", forgetting(func(s *sandbox.CreateSpec) { s.NetworkPolicy = nil })},
		{"credentials-left-out", "create.unsupported", "The program gets a placeholder, and sends it.", forgetting(func(s *sandbox.CreateSpec) { s.CredentialProxy = false })},
		{"level-left-out", "create.unsupported", "Privileged means something else than what was asked for.", forgetting(func(s *sandbox.CreateSpec) { s.PermissionLevel = "" })},
		{"port-is-not-waited-for", "create.port", "The first request finds nobody.", forgetting(func(s *sandbox.CreateSpec) { s.WaitForPort = 0 })},
		{"port-timeout-leaves-the-sandbox", "create.port", "It runs on, and nobody knows its id.",
			creating(func(ctx context.Context, s sandbox.CreateSpec, p *Provider) (sandbox.Handle, error) {
				port := s.WaitForPort
				s.WaitForPort = 0
				h, err := p.Create(ctx, s)
				if err == nil && port != 0 {
					return nil, awaitPort(ctx, port)
				}
				return h, err
			})},
		{"given-up-create-goes-on", "create.cancelled", "Every aborted start costs a sandbox until its lease ends.",
			creating(func(ctx context.Context, s sandbox.CreateSpec, p *Provider) (sandbox.Handle, error) {
				h, err := p.Create(context.WithoutCancel(ctx), s)
				if err == nil && ctx.Err() != nil {
					return nil, ctx.Err()
				}
				return h, err
			})},
		{"declares-processes-without-them", "create.processes", "Terminals and Agent programs fail at their first start.",
			twistingHandle(func(h *twistedHandle) {
				h.processes = func() sandbox.Processes { return sandbox.UnsupportedProcesses("fake") }
			})},
	}
}

// deafCommands can't be reached.
type deafCommands struct{}

func (deafCommands) Run(context.Context, sandbox.Command) (sandbox.CommandResult, error) {
	return sandbox.CommandResult{}, sandbox.ErrUnreachable
}

func (deafCommands) Stream(context.Context, sandbox.Command, io.Writer, io.Writer) (sandbox.CommandResult, error) {
	return sandbox.CommandResult{}, sandbox.ErrUnreachable
}

func connectMutants() []Mutant {
	return []Mutant{
		{"connect-makes-a-new-one", "connect.same", "The first handle is orphaned, and the work in its sandbox with it.",
			twisting(func(t *twisted, p *Provider) {
				t.connect = func(ctx context.Context, id string) (sandbox.Handle, error) {
					h, err := p.Connect(ctx, id)
					if err != nil {
						return nil, err
					}
					fresh := p.machine(sandbox.CreateSpec{})
					fresh.id = h.SandboxID()
					return handle{fresh}, nil
				}
			})},
		{"connect-gives-another-id", "connect.same", "An alias isn't the id that every operation takes.",
			twisting(func(t *twisted, p *Provider) {
				t.connect = func(ctx context.Context, id string) (sandbox.Handle, error) {
					h, err := p.Connect(ctx, id)
					if err != nil {
						return nil, err
					}
					return &twistedHandle{handle: h.(handle), id: func() string { return "alias-" + id }}, nil
				}
			})},
		{"connect-does-not-ask", "connect.gone", "A handle to nothing: the loss shows at the first command, as something else.",
			twisting(func(t *twisted, p *Provider) {
				t.connect = func(ctx context.Context, id string) (sandbox.Handle, error) {
					h, err := p.Connect(ctx, id)
					if sandbox.CodeOf(err) != sandbox.CodeGone {
						return h, err
					}
					m := p.machine(sandbox.CreateSpec{})
					m.id, m.ended = id, true
					return handle{m}, nil
				}
			})},
		{"connect-says-not-available", "connect.gone", "What is gone is asked for again and again.",
			twisting(func(t *twisted, p *Provider) {
				t.connect = func(ctx context.Context, id string) (sandbox.Handle, error) {
					h, err := p.Connect(ctx, id)
					if sandbox.CodeOf(err) == sandbox.CodeGone {
						return nil, sandbox.Errorf(sandbox.CodeUnavailable, "sandbox not found")
					}
					return h, err
				}
			})},
		{"no-processes-face", "handle.faces", "A nil interface is called.", twistingHandle(func(h *twistedHandle) { h.processes = func() sandbox.Processes { return nil } })},
		{"files-that-are-a-nil-pointer", "handle.faces", "It passes the comparison with nil and panics at the first call.",
			twistingHandle(func(h *twistedHandle) { h.files = func() sandbox.Files { return (*files)(nil) } })},
		{"close-destroys", "handle.close", "A replica that stops takes the sandboxes with it.",
			twistingHandle(func(h *twistedHandle) {
				h.close = func() error {
					h.m.p.vanish(h.m.id)
					return nil
				}
			})},
		{"one-caller-at-a-time", "handle.together", "The Files panel and a turn use one handle.",
			twisting(func(t *twisted, _ *Provider) {
				var busy sync.Mutex
				t.handle = func(h handle) sandbox.Handle {
					return &twistedHandle{handle: h, commands: func() sandbox.Commands { return singleCommands{handle{h.m}.Commands(), &busy} }}
				}
			})},
		{"gone-means-no-such-file", "handle.gone", "A lost sandbox reads as a workspace without files, and is saved as such.",
			bending(func(b *bent) {
				b.files = func(_ *machine, f sandbox.Files) sandbox.Files { return emptyWhenGone{f} }
			})},
		{"gone-means-exit-status-1", "handle.gone", "A command that never ran is believed to have failed.",
			bending(func(b *bent) {
				b.commands = func(_ *machine, c sandbox.Commands) sandbox.Commands { return exitWhenGone{c} }
			})},
	}
}

// singleCommands refuses a second caller.
type singleCommands struct {
	sandbox.Commands
	busy *sync.Mutex
}

func (c singleCommands) Run(ctx context.Context, cmd sandbox.Command) (sandbox.CommandResult, error) {
	if !c.busy.TryLock() {
		return sandbox.CommandResult{}, sandbox.ErrUnreachable
	}
	defer c.busy.Unlock()
	time.Sleep(time.Millisecond)
	return c.Commands.Run(ctx, cmd)
}

// emptyWhenGone takes a sandbox that can't be reached for one without the file.
type emptyWhenGone struct{ sandbox.Files }

func (f emptyWhenGone) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	i, err := f.Files.Stat(ctx, path)
	if errors.Is(err, sandbox.ErrUnreachable) {
		return i, &fs.PathError{Op: "stat", Path: path, Err: sandbox.ErrPathNotFound}
	}
	return i, err
}

// exitWhenGone makes an exit status of a lost connection.
type exitWhenGone struct{ sandbox.Commands }

func (c exitWhenGone) Run(ctx context.Context, cmd sandbox.Command) (sandbox.CommandResult, error) {
	return exitOf(c.Commands.Run(ctx, cmd))
}

func (c exitWhenGone) Stream(ctx context.Context, cmd sandbox.Command, stdout, stderr io.Writer) (sandbox.CommandResult, error) {
	return exitOf(c.Commands.Stream(ctx, cmd, stdout, stderr))
}

func exitOf(r sandbox.CommandResult, err error) (sandbox.CommandResult, error) {
	if errors.Is(err, sandbox.ErrUnreachable) {
		return sandbox.CommandResult{ExitCode: 137}, nil
	}
	return r, err
}

func unknownMutants() []Mutant {
	is := func(err error) bool {
		c := sandbox.CodeOf(err)
		return c == sandbox.CodeGone || c == sandbox.CodeNotFound
	}
	return []Mutant{
		{"connect-says-not-found", "unknown.connect", "Only SANDBOX_GONE lets a conversation get a new sandbox.", twisting(func(t *twisted, p *Provider) {
			t.connect = func(ctx context.Context, id string) (sandbox.Handle, error) {
				h, err := p.Connect(ctx, id)
				if is(err) {
					return nil, sandbox.Errorf(sandbox.CodeNotFound, "there is no sandbox %s", id)
				}
				return h, err
			}
		})},
		{"kill-fails-for-what-is-not-there", "unknown.kill", "The ledger tries for ever.", twisting(func(t *twisted, p *Provider) {
			t.kill = func(ctx context.Context, id string) (bool, error) {
				if o, err := p.Probe(ctx, id); err == nil && o.Status == sandbox.ObservedGone {
					return false, sandbox.Errorf(sandbox.CodeUnavailable, "No such container: %s", id)
				}
				return p.Kill(ctx, id)
			}
		})},
		{"probe-fails-for-what-is-not-there", "unknown.probe", "No destruction can ever be proven.", twisting(func(t *twisted, p *Provider) {
			t.probe = func(ctx context.Context, id string) (sandbox.Observation, error) {
				o, err := p.Probe(ctx, id)
				if o.Status == sandbox.ObservedGone {
					return sandbox.Observation{}, sandbox.Errorf(sandbox.CodeNotFound, "there is no sandbox %s", id)
				}
				return o, err
			}
		})},
		{"probe-says-terminated-of-anything", "unknown.probe", "A record that never was is seen as a lost sandbox.", twisting(func(t *twisted, p *Provider) {
			t.probe = func(ctx context.Context, id string) (sandbox.Observation, error) {
				o, err := p.Probe(ctx, id)
				if o.Status == sandbox.ObservedGone {
					return sandbox.Observation{Status: sandbox.ObservedOK, State: "terminated"}, nil
				}
				return o, err
			}
		})},
		{"renew-of-nothing-succeeds", "unknown.renew", "The keeper believes for hours that a lost sandbox lives.", twisting(func(t *twisted, p *Provider) {
			t.renew = func(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
				at, err := p.Renew(ctx, id, ttl)
				if is(err) {
					return time.Now().Add(ttl), nil
				}
				return at, err
			}
		})},
		{"nothing-never-expires", "unknown.expires", "Zero means no scheduled end.", twisting(func(t *twisted, p *Provider) {
			t.expires = func(ctx context.Context, id string) (time.Time, error) {
				at, err := p.ExpiresAt(ctx, id)
				if is(err) {
					return time.Time{}, nil
				}
				return at, err
			}
		})},
		{"pause-of-nothing-is-just-false", "unknown.pause", "False without an error means: look again.", twisting(func(t *twisted, p *Provider) {
			t.pause = func(ctx context.Context, id string) (bool, error) {
				ok, err := p.Pause(ctx, id)
				if is(err) {
					return false, nil
				}
				return ok, err
			}
		})},
		{"resume-of-nothing-says-gone", "unknown.resume", "SANDBOX_GONE is Connect's word, and makes a platform replace the sandbox.", twisting(func(t *twisted, p *Provider) {
			t.resume = func(ctx context.Context, id string) (bool, error) {
				ok, err := p.Resume(ctx, id)
				if is(err) {
					return false, sandbox.Errorf(sandbox.CodeGone, "there is no sandbox %s", id)
				}
				return ok, err
			}
		})},
		{"describes-what-is-not-there", "unknown.describe", "An empty description claims nothing, and is taken for unclaimed.", twisting(func(t *twisted, p *Provider) {
			t.describe = func(ctx context.Context, id string) (sandbox.Info, error) {
				i, err := p.DescribeSandbox(ctx, id)
				if is(err) {
					return sandbox.Info{ID: id}, nil
				}
				return i, err
			}
		})},
		{"describes-the-dead", "unknown.destroyed", "A directory of what was reaped is never given up.", twisting(func(t *twisted, p *Provider) {
			var mu sync.Mutex
			known := map[string]sandbox.Info{}
			t.kill = func(ctx context.Context, id string) (bool, error) {
				i, err := p.DescribeSandbox(ctx, id)
				if err == nil {
					mu.Lock()
					i.State = "terminated"
					known[id] = i
					mu.Unlock()
				}
				return p.Kill(ctx, id)
			}
			t.describe = func(ctx context.Context, id string) (sandbox.Info, error) {
				mu.Lock()
				i, ok := known[id]
				mu.Unlock()
				if ok {
					return i, nil
				}
				return p.DescribeSandbox(ctx, id)
			}
		})},
	}
}
