package sandboxfake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func init() {
	mutantTables = append(mutantTables, identityMutants, driverMutants, capabilityMutants, idMutants)
}

func identityMutants() []Mutant {
	return []Mutant{
		{"no-provider", "provider.present", "New forgot to return what it made.",
			func(*Provider, *sandbox.Driver) sandbox.Provider { return nil }},
		{"nil-pointer", "provider.present", "A failed constructor's nil pointer passes every comparison with nil.",
			func(*Provider, *sandbox.Driver) sandbox.Provider { return (*Provider)(nil) }},
		{"nil-embedded", "provider.complete", "The compiler is content with methods of an embedded nil interface.",
			func(p *Provider, _ *sandbox.Driver) sandbox.Provider { return nilEmbedded{honest: p} }},
		{"panics-on-no-id", "provider.complete", "A blank id reaches every operation one day.",
			twisting(func(t *twisted, p *Provider) {
				t.probe = func(ctx context.Context, id string) (sandbox.Observation, error) {
					_ = id[0]
					return p.Probe(ctx, id)
				}
			})},
		{"another-name", "provider.name", "Records name the driver and would be looked for under another name.",
			twisting(func(t *twisted, p *Provider) { t.name = func() string { return p.Name() + "2" } })},
		{"name-with-capitals", "provider.name.form", "Settings are compared in lower case.",
			func(p *Provider, d *sandbox.Driver) sandbox.Provider {
				d.Name, p.options.Name = "Fake-Boxes", "Fake-Boxes"
				return p
			}},
		{"name-changes", "provider.name.constant", "A record made yesterday isn't found today.",
			twisting(func(t *twisted, p *Provider) {
				var n atomic.Int64
				t.name = func() string { return fmt.Sprintf("%s%d", p.Name(), n.Add(1)) }
			})},
		{"declares-more-than-its-driver", "capabilities.declared", "The console believes the driver before the provider is made.",
			func(p *Provider, d *sandbox.Driver) sandbox.Provider {
				d.Declares.Pause = false
				return p
			}},
		{"capabilities-change", "capabilities.constant", "They are read once; what is saved by them is kept.",
			twisting(func(t *twisted, p *Provider) {
				var n atomic.Int64
				t.caps = func() sandbox.Capabilities {
					c := p.Capabilities()
					c.Pause = n.Add(1)%2 == 0
					return c
				}
			})},
		{"route-without-a-route", "provider.route", "A deployment with a workspace volume would start and lose every workspace.",
			twisting(func(t *twisted, _ *Provider) {
				t.route = func() (sandbox.WorkspaceRoute, bool) { return nil, true }
			})},
		{"names-any-first-label", "endpoint.anonymous", "A stored address of a stranger's host would be used for a sandbox.",
			twisting(func(t *twisted, _ *Provider) {
				t.names = func(e string) (string, bool) {
					u, err := url.Parse(e)
					if err != nil {
						return "", false
					}
					id, _, _ := strings.Cut(u.Hostname(), ".")
					return id, sandbox.ValidID(id)
				}
			})},
		{"names-by-path-alone", "endpoint.foreign", "Who controls a stored endpoint would have the platform's headers sent to him.",
			twisting(func(t *twisted, p *Provider) {
				t.names = func(e string) (string, bool) {
					if _, after, ok := strings.Cut(e, "/sandboxes/"); ok {
						id, _, _ := strings.Cut(after, "/")
						return id, sandbox.ValidID(id)
					}
					return p.EndpointNamesSandbox(e)
				}
			})},
	}
}

// nilEmbedded has the methods of a Provider, and most of them panic.
type nilEmbedded struct {
	sandbox.Provider
	honest *Provider
}

func (n nilEmbedded) Name() string                       { return n.honest.Name() }
func (n nilEmbedded) Capabilities() sandbox.Capabilities { return n.honest.Capabilities() }

// settings gives a driver two settings, of which one is secret, and a New.
func settings(d *sandbox.Driver, make func(getenv func(string) string) (sandbox.Provider, error)) {
	d.Settings = []sandbox.Setting{{Name: "FAKE_URL", Doc: "where it is"}, {Name: "FAKE_KEY", Secret: true, Doc: "its key"}}
	d.New = func(_ context.Context, h sandbox.Host) (sandbox.Provider, error) { return make(h.Getenv) }
}

// keyed is a provider that keeps its key where printing finds it.
type keyed struct {
	*Provider
	key string
}

func driverMutants() []Mutant {
	constructing := func(f func(p *Provider, getenv func(string) string) (sandbox.Provider, error)) func(*Provider, *sandbox.Driver) sandbox.Provider {
		return func(p *Provider, d *sandbox.Driver) sandbox.Provider {
			settings(d, func(getenv func(string) string) (sandbox.Provider, error) { return f(p, getenv) })
			return p
		}
	}
	listing := func(s ...sandbox.Setting) func(*Provider, *sandbox.Driver) sandbox.Provider {
		return func(p *Provider, d *sandbox.Driver) sandbox.Provider {
			d.Settings = s
			return p
		}
	}
	return []Mutant{
		{"another-seam", "driver.seam", "What it promises was written for another contract.",
			func(p *Provider, d *sandbox.Driver) sandbox.Provider {
				d.SeamVersion = "2.0"
				return p
			}},
		{"setting-in-lower-case", "driver.settings", "Nobody can set what isn't the name of a variable.", listing(sandbox.Setting{Name: "fake-url", Doc: "where it is"})},
		{"setting-twice", "driver.settings", "Which of the two texts holds?", listing(sandbox.Setting{Name: "FAKE_URL", Doc: "a"}, sandbox.Setting{Name: "FAKE_URL", Doc: "b"})},
		{"setting-without-a-text", "driver.settings", "The reference page would say nothing.", listing(sandbox.Setting{Name: "FAKE_URL"})},
		{"reads-a-setting-it-does-not-list", "driver.settings.owned", "A setting without effect can't be warned of when nobody knows whose it is.",
			constructing(func(p *Provider, getenv func(string) string) (sandbox.Provider, error) {
				_ = getenv("FAKE_SECRET_SWITCH")
				return p, nil
			})},
		{"new-panics-without-settings", "driver.new.bare", "The server would die instead of saying what is missing.",
			constructing(func(p *Provider, getenv func(string) string) (sandbox.Provider, error) {
				if getenv("FAKE_URL") == "" {
					panic("FAKE_URL")
				}
				return p, nil
			})},
		{"new-gives-neither", "driver.new.bare", "No error and no provider: it fails at the first conversation.",
			constructing(func(*Provider, func(string) string) (sandbox.Provider, error) { return nil, nil })},
		{"new-refuses-without-a-code", "driver.new.bare", "People get an error of the server instead of what to do.",
			constructing(func(*Provider, func(string) string) (sandbox.Provider, error) { return nil, errors.New("no URL") })},
		{"new-does-not-name-the-setting", "driver.new.garbage", "Which of ten settings is wrong?",
			constructing(func(p *Provider, getenv func(string) string) (sandbox.Provider, error) {
				if _, err := url.Parse(getenv("FAKE_URL")); err != nil {
					return nil, sandbox.Errorf(sandbox.CodeInvalid, "a setting is wrong")
				}
				return p, nil
			})},
		{"new-quotes-the-key", "secrets.new", "The key stands in the log of every failed start.",
			constructing(func(_ *Provider, getenv func(string) string) (sandbox.Provider, error) {
				return nil, sandbox.Errorf(sandbox.CodeInvalid, "FAKE_KEY: %q is no key", getenv("FAKE_KEY"))
			})},
		{"new-wraps-the-key", "secrets.new", "The message is clean, and the cause that is logged isn't.",
			constructing(func(_ *Provider, getenv func(string) string) (sandbox.Provider, error) {
				return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Status: 400, Message: "FAKE_KEY is no key", Cause: errors.New(getenv("FAKE_KEY"))}
			})},
		{"prints-its-key", "secrets.print", "A debug line with the provider in it shows the key.",
			constructing(func(p *Provider, getenv func(string) string) (sandbox.Provider, error) {
				return &keyed{p, getenv("FAKE_KEY")}, nil
			})},
	}
}

// declaring makes provider and driver declare what change says.
func declaring(change func(*sandbox.Capabilities)) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return func(p *Provider, d *sandbox.Driver) sandbox.Provider {
		caps := p.Capabilities()
		change(&caps)
		p.options.Capabilities, d.Declares = &caps, caps
		return p
	}
}

// bare has the operations of a Provider and no optional one.
type bare struct{ sandbox.Provider }

func capabilityMutants() (out []Mutant) {
	set := map[string]func(*sandbox.Capabilities){
		"create-network-policy":       func(c *sandbox.Capabilities) { c.CreateNetworkPolicy = true },
		"isolated-sessions":           func(c *sandbox.Capabilities) { c.IsolatedSessions = true },
		"isolated-session-recovery":   func(c *sandbox.Capabilities) { c.IsolatedSessionRecovery = true },
		"pause":                       func(c *sandbox.Capabilities) { c.Pause = true },
		"client-pool":                 func(c *sandbox.Capabilities) { c.ClientPool = true },
		"correlated-create":           func(c *sandbox.Capabilities) { c.CorrelatedCreate = true },
		"egress-credential-injection": func(c *sandbox.Capabilities) { c.EgressCredentialInjection = true },
		"inventory-listing":           func(c *sandbox.Capabilities) { c.InventoryListing = true },
	}
	for _, flag := range slices.Sorted(maps.Keys(set)) {
		change := set[flag]
		out = append(out, Mutant{"declares-" + flag + "-without-it", "capability." + flag, "A half-declared capability fails at the first conversation that needs it.",
			func(p *Provider, d *sandbox.Driver) sandbox.Provider { return bare{declaring(change)(p, d)} }})
	}
	levels := func(l ...sandbox.PermissionLevel) func(*Provider, *sandbox.Driver) sandbox.Provider {
		return declaring(func(c *sandbox.Capabilities) { c.PermissionLevels = l })
	}
	return append(out,
		Mutant{"no-level-at-all", "capability.levels", "No Environment could be saved.", levels([]sandbox.PermissionLevel{}...)},
		Mutant{"unknown-level", "capability.levels", "Nobody knows what it allows.", levels("default", "almighty")},
		Mutant{"level-twice", "capability.levels", "A list for people with the same choice twice.", levels("default", "default")},
		Mutant{"privileged-level", "capability.levels", "Nothing can attest it.", levels("default", sandbox.PermissionPrivileged)},
		Mutant{"advanced-that-nobody-attests", "capability.levels", "Every start under it would fail.",
			func(p *Provider, d *sandbox.Driver) sandbox.Provider {
				return bare{levels("default", sandbox.PermissionAdvanced)(p, d)}
			}},
	)
}

func idMutants() []Mutant {
	const why = "An id with a slash in it changes the path of a request, or the target of a command."
	unknown := func(id string, code sandbox.Code) error {
		if sandbox.ValidID(id) {
			return nil
		}
		return sandbox.Errorf(code, "there is no sandbox %q", id)
	}
	return []Mutant{
		{"connect-asks-for-any-id", "ids.connect", why, twisting(func(t *twisted, p *Provider) {
			t.connect = func(ctx context.Context, id string) (sandbox.Handle, error) {
				if err := unknown(id, sandbox.CodeGone); err != nil {
					return nil, err
				}
				return p.Connect(ctx, id)
			}
		})},
		{"kill-says-gone-of-any-id", "ids.kill", why, twisting(func(t *twisted, p *Provider) {
			t.kill = func(ctx context.Context, id string) (bool, error) {
				if !sandbox.ValidID(id) {
					return true, nil
				}
				return p.Kill(ctx, id)
			}
		})},
		{"probe-asks-for-any-id", "ids.probe", why, twisting(func(t *twisted, p *Provider) {
			t.probe = func(ctx context.Context, id string) (sandbox.Observation, error) {
				if !sandbox.ValidID(id) {
					return sandbox.Observation{Status: sandbox.ObservedGone}, nil
				}
				return p.Probe(ctx, id)
			}
		})},
		{"renew-asks-for-any-id", "ids.renew", why, twisting(func(t *twisted, p *Provider) {
			t.renew = func(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
				if err := unknown(id, sandbox.CodeNotFound); err != nil {
					return time.Time{}, err
				}
				return p.Renew(ctx, id, ttl)
			}
		})},
		{"expires-asks-for-any-id", "ids.expires", why, twisting(func(t *twisted, p *Provider) {
			t.expires = func(ctx context.Context, id string) (time.Time, error) {
				if err := unknown(id, sandbox.CodeNotFound); err != nil {
					return time.Time{}, err
				}
				return p.ExpiresAt(ctx, id)
			}
		})},
		{"pause-asks-for-any-id", "ids.pause", why, twisting(func(t *twisted, p *Provider) {
			t.pause = func(ctx context.Context, id string) (bool, error) {
				if err := unknown(id, sandbox.CodeNotFound); err != nil {
					return false, err
				}
				return p.Pause(ctx, id)
			}
		})},
		{"resume-refuses-an-id-without-a-code", "ids.resume", "What isn't coded reaches people as a fault of the server.", twisting(func(t *twisted, p *Provider) {
			t.resume = func(ctx context.Context, id string) (bool, error) {
				if !sandbox.ValidID(id) {
					return false, errors.New("bad id")
				}
				return p.Resume(ctx, id)
			}
		})},
		{"describe-asks-for-any-id", "ids.describe", why, twisting(func(t *twisted, p *Provider) {
			t.describe = func(ctx context.Context, id string) (sandbox.Info, error) {
				if !sandbox.ValidID(id) {
					return sandbox.Info{}, nil
				}
				return p.DescribeSandbox(ctx, id)
			}
		})},
		{"takes-an-id-with-a-newline", "ids.connect", "A pattern with $ at its end lets one newline through.", twisting(func(t *twisted, p *Provider) {
			t.connect = func(ctx context.Context, id string) (sandbox.Handle, error) {
				return p.Connect(ctx, strings.TrimSuffix(id, "\n"))
			}
		})},
		{"kill-of-a-cancelled-caller-says-gone", "context.ended", "The request was never sent, and the pointer to a living sandbox is dropped.", twisting(func(t *twisted, p *Provider) {
			t.kill = func(ctx context.Context, id string) (bool, error) {
				gone, err := p.Kill(ctx, id)
				if errors.Is(err, context.Canceled) {
					gone, err = true, nil
				}
				return gone, err
			}
		})},
		{"probe-of-a-cancelled-caller-says-gone", "context.ended", "A probe that couldn't ask saw nothing.", twisting(func(t *twisted, p *Provider) {
			t.probe = func(ctx context.Context, id string) (sandbox.Observation, error) {
				return p.Probe(context.WithoutCancel(ctx), id)
			}
		})},
		{"renew-does-not-look-at-its-context", "context.ended", "A stopping server waits for it.", twisting(func(t *twisted, p *Provider) {
			t.renew = func(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
				time.Sleep(5 * time.Second)
				return p.Renew(ctx, id, ttl)
			}
		})},
		{"create-takes-a-relative-dir", "spec.refused", "Relative to what?", twisting(func(t *twisted, p *Provider) {
			t.create = func(ctx context.Context, s sandbox.CreateSpec) (sandbox.Handle, error) {
				if s.Dir != "" && !strings.HasPrefix(s.Dir, "/") {
					s.Dir = "/" + s.Dir
				}
				return p.Create(ctx, s)
			}
		})},
		{"create-takes-ownership-from-callers", "spec.refused", "Whoever sets the labels owns another's sandbox.", twisting(func(t *twisted, p *Provider) {
			t.create = func(ctx context.Context, s sandbox.CreateSpec) (sandbox.Handle, error) {
				s.Metadata = nil
				return p.Create(ctx, s)
			}
		})},
		{"create-does-not-say-which-field", "spec.refused", "Twenty fields, one of them is wrong.", twisting(func(t *twisted, p *Provider) {
			t.create = func(ctx context.Context, s sandbox.CreateSpec) (sandbox.Handle, error) {
				if s.Validate() != nil {
					return nil, sandbox.Errorf(sandbox.CodeInvalid, "the spec is wrong")
				}
				return p.Create(ctx, s)
			}
		})},
		{"negative-ttl-is-for-ever", "spec.refused", "A sandbox that nothing ends.", twisting(func(t *twisted, p *Provider) {
			t.create = func(ctx context.Context, s sandbox.CreateSpec) (sandbox.Handle, error) {
				s.TTL = max(s.TTL, 0)
				return p.Create(ctx, s)
			}
		})},
	}
}
