package sandboxfake

import (
	"context"
	"errors"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func init() { mutantTables = append(mutantTables, endpointMutants, leaseMutants, destroyMutants) }

// addressing replaces Endpoint by what f makes of the honest one.
func addressing(f func(h *twistedHandle, port int, e sandbox.Endpoint) sandbox.Endpoint) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return twistingHandle(func(h *twistedHandle) {
		h.endpoint = func(ctx context.Context, port int) (sandbox.Endpoint, error) {
			e, err := h.handle.Endpoint(ctx, port)
			if err != nil {
				return e, err
			}
			return f(h, port, e), nil
		}
	})
}

// signing replaces SignedEndpoint.
func signing(f func(h *twistedHandle, ctx context.Context, port int, until time.Time) (sandbox.Endpoint, error)) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return twistingHandle(func(h *twistedHandle) {
		h.signed = func(ctx context.Context, port int, until time.Time) (sandbox.Endpoint, error) {
			return f(h, ctx, port, until)
		}
	})
}

func at(text string) sandbox.Endpoint {
	u, err := url.Parse(text)
	if err != nil {
		return sandbox.Endpoint{}
	}
	return sandbox.Endpoint{URL: u}
}

func endpointMutants() []Mutant {
	return []Mutant{
		{"endpoint-without-a-scheme", "endpoint.absolute", "Every client guesses another scheme.",
			addressing(func(h *twistedHandle, _ int, _ sandbox.Endpoint) sandbox.Endpoint { return at("//" + h.m.id + domain) })},
		{"endpoint-with-a-password", "endpoint.absolute", "It is logged wherever URLs are.",
			addressing(func(_ *twistedHandle, _ int, e sandbox.Endpoint) sandbox.Endpoint {
				e.URL.User = url.UserPassword("sandbox", "key")
				return e
			})},
		{"port-0-is-the-default-one", "endpoint.range", "A missing port reaches a service that nobody asked for.",
			twistingHandle(func(h *twistedHandle) {
				h.endpoint = func(ctx context.Context, port int) (sandbox.Endpoint, error) {
					if port == 0 {
						port = 80
					}
					return h.handle.Endpoint(ctx, port)
				}
			})},
		{"one-address-for-all", "endpoint.own", "A proxy in front that looks at nothing but its own configuration.",
			addressing(func(_ *twistedHandle, _ int, _ sandbox.Endpoint) sandbox.Endpoint {
				return at("http://gateway.invalid/")
			})},
		{"port-is-left-out", "endpoint.own", "Two previews show the same program.",
			addressing(func(h *twistedHandle, _ int, _ sandbox.Endpoint) sandbox.Endpoint {
				return at("http://" + h.m.id + domain + "/")
			})},
		{"endpoint-names-another", "endpoint.named", "A stored endpoint is believed for the wrong sandbox.",
			addressing(func(h *twistedHandle, _ int, _ sandbox.Endpoint) sandbox.Endpoint {
				return at("http://x" + h.m.id + domain + "/")
			})},
		{"signed-without-a-signature", "endpoint.signed", "A link that needs a header is handed to a browser.",
			signing(func(h *twistedHandle, ctx context.Context, port int, _ time.Time) (sandbox.Endpoint, error) {
				return h.Endpoint(ctx, port)
			})},
		{"signed-by-a-header", "endpoint.signed", "The browser can't send it.",
			signing(func(h *twistedHandle, ctx context.Context, port int, _ time.Time) (sandbox.Endpoint, error) {
				e, err := h.Endpoint(ctx, port)
				e.Headers = map[string]string{"X-Signature": "s"}
				return e, err
			})},
		{"signing-just-fails", "endpoint.signed", "An error that may pass is tried again; one that won't has a code.",
			signing(func(*twistedHandle, context.Context, int, time.Time) (sandbox.Endpoint, error) {
				return sandbox.Endpoint{}, errors.ErrUnsupported
			})},
		{"signs-the-past", "endpoint.signed.past", "A link that never worked is sent to somebody.",
			signing(func(h *twistedHandle, ctx context.Context, port int, _ time.Time) (sandbox.Endpoint, error) {
				e, err := h.Endpoint(ctx, port)
				if err == nil {
					e.URL.RawQuery = "signature=s"
				}
				return e, err
			})},
		{"signs-the-daemon", "endpoint.signed.reserved", "A link to the port that runs anything as root.",
			signing(func(h *twistedHandle, ctx context.Context, port int, _ time.Time) (sandbox.Endpoint, error) {
				return at("http://" + h.m.id + domain + "/?signature=s"), nil
			})},
	}
}

// renewing replaces Renew.
func renewing(f func(p *Provider, m *machine, ttl time.Duration) time.Time) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return twisting(func(t *twisted, p *Provider) {
		t.renew = func(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
			m, err := p.find(id, sandbox.CodeNotFound)
			if err != nil {
				return time.Time{}, err
			}
			return f(p, m, ttl), nil
		}
	})
}

// set sets the end of a sandbox, whatever it was.
func (p *Provider) set(m *machine, ttl time.Duration) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	m.schedule(ttl)
	return m.expires
}

func (p *Provider) endOf(m *machine) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return m.expires
}

func leaseMutants() []Mutant {
	return []Mutant{
		{"ttl-of-the-backend", "lease.ttl", "A sandbox ends in the middle of a turn, or hours after it was forgotten.", forgetting(func(s *sandbox.CreateSpec) { s.TTL = time.Hour })},
		{"ttl-in-other-units", "lease.ttl", "Minutes are taken for seconds.", forgetting(func(s *sandbox.CreateSpec) { s.TTL /= 60 })},
		{"ttl-is-dropped", "lease.ttl", "Nothing ends what AstraBox forgot.", forgetting(func(s *sandbox.CreateSpec) { s.TTL = 0 })},
		{"short-ttl-is-lengthened", "lease.short", "It is neither honoured nor refused.",
			forgetting(func(s *sandbox.CreateSpec) {
				if s.TTL > 0 {
					s.TTL = max(s.TTL, time.Minute)
				}
			})},
		{"no-ttl-is-a-default", "lease.none", "Manual clean-up was asked for.",
			forgetting(func(s *sandbox.CreateSpec) {
				if s.TTL == 0 {
					s.TTL = time.Hour
				}
			})},
		{"renewal-ends-the-endless", "lease.none", "A renewal shortens for ever to an hour.",
			renewing(func(p *Provider, m *machine, ttl time.Duration) time.Time { return p.set(m, ttl) })},
		{"renew-forgets", "renew.extends", "The keep-alive isn't stored: the sandbox ends at its first end.",
			renewing(func(_ *Provider, _ *machine, ttl time.Duration) time.Time { return time.Now().Add(ttl) })},
		{"renew-does-nothing", "renew.extends", "It gives the end that holds, which is the old one.",
			renewing(func(p *Provider, m *machine, _ time.Duration) time.Time { return p.endOf(m) })},
		{"renew-adds", "renew.extends", "It gives the end plus the ttl, and another end holds.",
			renewing(func(p *Provider, m *machine, ttl time.Duration) time.Time { return p.endOf(m).Add(ttl) })},
		{"renew-shortens", "renew.longer", "A quick look by one replica ends the sandbox of another's long turn.",
			renewing(func(p *Provider, m *machine, ttl time.Duration) time.Time { return p.set(m, ttl) })},
		{"renewal-by-nothing-ends-it", "renew.nothing", "A zero or negative time kills at once.",
			renewing(func(p *Provider, m *machine, ttl time.Duration) time.Time {
				if ttl <= 0 {
					p.vanish(m.id)
					return time.Now()
				}
				return p.set(m, ttl)
			})},
		{"last-renewal-wins", "renew.together", "Read, compare and write without a lock: two replicas renew, and the shorter one holds.",
			renewing(func(p *Provider, m *machine, ttl time.Duration) time.Time {
				before := p.endOf(m)
				time.Sleep(10*time.Millisecond - ttl/time.Hour*time.Millisecond) // the longest is first
				if end := time.Now().Add(ttl); end.After(before) {
					return p.set(m, ttl)
				}
				return before
			})},
		{"never-expires", "expiry.ends", "A sandbox that isn't in the index of ends is never reaped.", bending(func(b *bent) { b.deathless = true })},
		{"expiry-says-not-running", "expiry.ends", "A conversation waits for a sandbox that won't come back.",
			twisting(func(t *twisted, p *Provider) {
				t.connect = func(ctx context.Context, id string) (sandbox.Handle, error) {
					h, err := p.Connect(ctx, id)
					if sandbox.CodeOf(err) == sandbox.CodeGone {
						return nil, sandbox.Errorf(sandbox.CodeNotRunning, "it ended")
					}
					return h, err
				}
			})},
		{"renewed-and-reaped", "expiry.renewed", "The reaper decides by an old end: a just renewed sandbox is deleted.",
			twisting(func(t *twisted, p *Provider) {
				t.renew = func(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
					old, err := p.ExpiresAt(ctx, id)
					if err != nil {
						return old, err
					}
					at, err := p.Renew(ctx, id, ttl)
					if err == nil && !old.IsZero() {
						time.AfterFunc(time.Until(old), func() { p.vanish(id) })
					}
					return at, err
				}
			})},
	}
}

// seeing replaces Probe by what f makes of the honest one.
func seeing(f func(p *Provider, id string, o sandbox.Observation) sandbox.Observation) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return twisting(func(t *twisted, p *Provider) {
		t.probe = func(ctx context.Context, id string) (sandbox.Observation, error) {
			o, err := p.Probe(ctx, id)
			if err != nil {
				return o, err
			}
			return f(p, id, o), nil
		}
	})
}

// killing replaces Kill.
func killing(f func(p *Provider, id string) (bool, error)) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return twisting(func(t *twisted, p *Provider) {
		t.kill = func(ctx context.Context, id string) (bool, error) {
			if err := errors.Join(sandbox.CheckID(id), ctx.Err()); err != nil {
				return false, err
			}
			return f(p, id)
		}
	})
}

func destroyMutants() []Mutant {
	return []Mutant{
		{"state-with-a-capital", "probe.running", "Running isn't running.",
			seeing(func(_ *Provider, _ string, o sandbox.Observation) sandbox.Observation {
				if o.State == stateRunning {
					o.State = "Running"
				}
				return o
			})},
		{"no-state", "probe.running", "A blank state reads as a probe that failed, and no idle sandbox is ever paused.",
			seeing(func(_ *Provider, _ string, o sandbox.Observation) sandbox.Observation {
				return sandbox.Observation{Status: o.Status}
			})},
		{"running-is-an-error", "probe.running", "A stale cache says error while the sandbox works.",
			seeing(func(_ *Provider, _ string, o sandbox.Observation) sandbox.Observation {
				if o.Status == sandbox.ObservedOK {
					o.State = "error"
				}
				return o
			})},
		{"kill-only-accepts", "destroy.proven", "The delete is accepted, and nothing is ever deleted.", killing(func(*Provider, string) (bool, error) { return false, nil })},
		{"kill-takes-a-minute", "destroy.proven", "Slower than the proof waits: every sandbox goes through the ledger.",
			killing(func(p *Provider, id string) (bool, error) {
				time.AfterFunc(time.Minute, func() { p.vanish(id) })
				return false, nil
			})},
		{"kill-fails-after-doing-it-and-probe-lies", "destroy.proven", "Nothing can be proven with a probe that answers from a cache.",
			twisting(func(t *twisted, p *Provider) {
				var seen sync.Map
				t.probe = func(ctx context.Context, id string) (sandbox.Observation, error) {
					o, err := p.Probe(ctx, id)
					if err == nil && o.Status == sandbox.ObservedOK {
						seen.Store(id, o)
					}
					if old, ok := seen.Load(id); ok {
						return old.(sandbox.Observation), nil
					}
					return o, err
				}
				t.kill = func(ctx context.Context, id string) (bool, error) {
					seen.Store(id, sandbox.Observation{Status: sandbox.ObservedOK, State: stateRunning})
					return p.Kill(ctx, id)
				}
			})},
		{"kill-lies", "kill.honest", "Gone is said when the request was sent.",
			killing(func(p *Provider, id string) (bool, error) {
				time.AfterFunc(5*time.Second, func() { p.vanish(id) })
				return true, nil
			})},
		{"killed-can-be-connected-to", "kill.honest", "The record is deleted before the sandbox is.",
			twisting(func(t *twisted, p *Provider) {
				var dead sync.Map
				t.kill = func(ctx context.Context, id string) (bool, error) {
					dead.Store(id, true)
					time.AfterFunc(5*time.Second, func() { p.vanish(id) })
					return true, nil
				}
				t.probe = func(ctx context.Context, id string) (sandbox.Observation, error) {
					if _, ok := dead.Load(id); ok {
						return sandbox.Observation{Status: sandbox.ObservedGone}, nil
					}
					return p.Probe(ctx, id)
				}
			})},
		{"second-kill-fails", "kill.again", "No such container, for ever.",
			killing(func(p *Provider, id string) (bool, error) {
				if !p.vanish(id) {
					return false, sandbox.Errorf(sandbox.CodeUnavailable, "No such container: %s", id)
				}
				return true, nil
			})},
		{"busy-while-it-deletes", "kill.together", "Two replicas destroy one sandbox, and one of them puts it into the ledger for good.",
			twisting(func(t *twisted, p *Provider) {
				var deleting, turn atomic.Int64
				t.kill = func(ctx context.Context, id string) (bool, error) {
					deleting.Add(1)
					defer deleting.Add(-1)
					time.Sleep(time.Duration(turn.Add(1)) * 100 * time.Millisecond)
					return p.Kill(ctx, id)
				}
				t.probe = func(ctx context.Context, id string) (sandbox.Observation, error) {
					if deleting.Load() > 0 {
						return sandbox.Observation{Status: sandbox.ObservedError, Detail: "locked"}, nil
					}
					return p.Probe(ctx, id)
				}
			})},
		{"kill-takes-the-neighbours", "kill.own", "Deleting a volume deletes the root of volumes.",
			killing(func(p *Provider, id string) (bool, error) {
				p.mu.Lock()
				var all []string
				if p.machines[id] != nil {
					for other := range p.machines {
						all = append(all, other)
					}
				}
				p.mu.Unlock()
				for _, other := range all {
					p.vanish(other)
				}
				return true, nil
			})},
		{"kill-empties-the-neighbours", "kill.own", "Files of another sandbox are cleaned up by a pattern that fits too much.",
			killing(func(p *Provider, id string) (bool, error) {
				p.vanish(id)
				p.mu.Lock()
				defer p.mu.Unlock()
				for _, m := range p.machines {
					m.tree = newTree(append([]string{"root"}, p.options.Accounts...))
				}
				return true, nil
			})},
		{"killed-commands-exit", "kill.running", "A turn that was cut off is taken for one that failed by itself.",
			bending(func(b *bent) {
				b.commands = func(_ *machine, c sandbox.Commands) sandbox.Commands { return exitWhenGone{c} }
			})},
	}
}
