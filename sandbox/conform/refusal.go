package conform

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// capabilityClauses are one for each flag: what is declared is there.
func capabilityClauses() (out []Clause[Subject]) {
	for _, r := range sandbox.Rules() {
		out = append(out, Clause[Subject]{
			ID:         "capability." + flagWord(r.Flag),
			Doc:        "Who declares " + r.Flag + " implements " + r.Needs + ".",
			Capability: r.Flag,
			Check: func(_ context.Context, s Subject) error {
				if _, err := s.bound(others(r.Flag)...); err != nil {
					return Unmet(r.Flag+" to come with "+r.Needs, "%v", err)
				}
				return nil
			},
			Refusal: func(_ context.Context, s Subject) error {
				if !reflect.DeepEqual(s.Provider.Capabilities(), s.Driver.Declares) {
					return nil // capabilities.declared says so
				}
				b, err := s.bound(others(r.Flag)...)
				if err != nil {
					return NoError("binding the provider", err)
				}
				if declared := r.Declared(b.Caps); declared {
					return Unmet(r.Flag+" to stay undeclared once bound", "declared")
				}
				return nil
			},
		})
	}
	return out
}

// flagWord turns ProcessSessions into process-sessions.
func flagWord(flag string) string {
	var b strings.Builder
	for i, r := range flag {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('-')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

// others are all flags but one.
func others(flag string) (out []string) {
	for _, r := range sandbox.Rules() {
		if r.Flag != flag {
			out = append(out, r.Flag)
		}
	}
	return out
}

// badIDs may not reach a backend: they change a URL's path, a command line or a log.
var badIDs = []string{
	"", ".", "..", "../other", "a/b", "a/../b", "a..b", "-rf", ".hidden", "_a", "a b", " a", "a ", "a\n", "a\tb", "a\x00b",
	"a%2fb", "a?b", "a#b", "a:b", "a@b", "a\\b", "a;b", "$(a)", "ä", "😀", "a\xff", strings.Repeat("a", 254),
}

// nobody is the id of no sandbox.
const nobody = "astrabox-conform-nobody"

func refusalClauses() []Clause[Subject] {
	var out []Clause[Subject]
	for _, o := range operations {
		c := Clause[Subject]{
			ID:         "ids." + o.id,
			Doc:        o.method + " refuses an id of another form with SANDBOX_NAME_INVALID, before any request.",
			Capability: o.flag,
			Check: func(ctx context.Context, s Subject) error {
				b := s.backend()
				if !b.has(o.flag) {
					return Unmet(o.flag+" to come with "+o.method, "no such method")
				}
				for _, id := range badIDs {
					answer, err := o.ask(ctx, b, id)
					if o.unsupported(err) {
						return nil // whatever the id
					}
					if err == nil {
						return Unmet(fmt.Sprintf("%s of the id %q to be refused with %s", o.method, id, sandbox.CodeNameInvalid), "%s", answer)
					}
					if err := Refused(fmt.Sprintf("%s of the id %q", o.method, id), err, sandbox.CodeNameInvalid); err != nil {
						return err
					}
				}
				return nil
			},
		}
		if o.flag != "" {
			c.Refusal = notBound(o.flag)
		}
		out = append(out, c)
	}
	return append(out,
		Clause[Subject]{ID: "context.ended", Doc: "With a context that has ended no operation gives a verdict, and each returns at once.",
			Timeout: 10 * time.Second,
			Check: func(ctx context.Context, s Subject) error {
				ended, cancel := context.WithCancel(ctx)
				cancel()
				b := s.backend()
				for _, o := range operations {
					if !b.has(o.flag) {
						continue
					}
					start := time.Now()
					answer, err := o.ask(ended, b, nobody)
					if took := time.Since(start); took > time.Second {
						return Unmet(o.method+" to return at once when its context has ended", "an answer after %v", took.Round(time.Millisecond))
					}
					if err == nil && (o.id != "kill" || answer != "gone false") && (o.id != "probe" || !strings.HasPrefix(answer, "error") && !strings.HasPrefix(answer, "unknown")) {
						return Unmet(o.method+" to say nothing about a sandbox when its context has ended", "%s", answer)
					}
				}
				if h, err := s.Provider.Create(ended, plainSpec()); err == nil {
					return errors.Join(Unmet("Create to fail when its context has ended", "the sandbox %s", h.SandboxID()), destroy(ctx, s.Provider, h.SandboxID()))
				}
				return nil
			}},
		Clause[Subject]{ID: "spec.refused", Doc: "Create refuses a spec that isn't valid with SANDBOX_CONFIG_INVALID, naming the field.",
			Check: func(ctx context.Context, s Subject) error {
				for _, bad := range badSpecs() {
					h, err := s.Provider.Create(ctx, bad.spec)
					if err == nil && !missing(h) {
						return errors.Join(Unmet("a spec with a bad "+bad.field+" to be refused", "the sandbox %s", h.SandboxID()), destroy(ctx, s.Provider, h.SandboxID()))
					}
					if err := Refused("a spec with a bad "+bad.field, err, sandbox.CodeInvalid); err != nil {
						return err
					}
					if !strings.Contains(err.Error(), bad.field) {
						return Unmet("the refusal to name "+bad.field, "%v", err)
					}
				}
				return nil
			}},
	)
}

// notBound is the refusal of a flag whose operations a Bound has not.
func notBound(flag string) func(context.Context, Subject) error {
	return func(_ context.Context, s Subject) error {
		b, err := s.bound()
		if err != nil {
			return NoError("binding the provider", err)
		}
		return unbound(b, flag)
	}
}

// unbound is nil when the bound provider has no operation of the flag.
func unbound(b *sandbox.Bound, flag string) error {
	there := backend{Pauser: b.Pauser, Finder: b.Finder, Inventory: b.Inventory}.has(flag)
	if there {
		return Unmet("no operation of "+flag+", which isn't declared", "it is bound")
	}
	return nil
}

// destroy removes what a clause should not have been able to make.
func destroy(ctx context.Context, p sandbox.Provider, id string) error {
	if d := sandbox.ConfirmDestroyed(ctx, p, id); !d.ConfirmsGone(id) {
		return fmt.Errorf("the sandbox %s is left over: %s", id, d.Detail)
	}
	return nil
}

// plainSpec is valid, and names an image that there isn't.
func plainSpec() sandbox.CreateSpec {
	return sandbox.CreateSpec{
		InstallationID: Installation, OwnerID: "owner", AssignmentID: "try", Image: "astrabox-conform.invalid/none:none",
		ResourceLimits: map[string]string{"cpu": "1", "memory": "128Mi"}, ResourceRequests: map[string]string{"cpu": "100m"}, TTL: time.Hour,
	}
}

type badSpec struct {
	field string
	spec  sandbox.CreateSpec
}

func badSpecs() (out []badSpec) {
	bad := func(field string, change func(*sandbox.CreateSpec)) {
		s := plainSpec()
		change(&s)
		out = append(out, badSpec{field, s})
	}
	bad("InstallationID", func(s *sandbox.CreateSpec) { s.InstallationID = "" })
	bad("OwnerID", func(s *sandbox.CreateSpec) { s.OwnerID = "" })
	bad("AssignmentID", func(s *sandbox.CreateSpec) { s.AssignmentID = "" })
	bad("AssignmentID", func(s *sandbox.CreateSpec) { s.AssignmentID = s.OwnerID })
	bad("Image", func(s *sandbox.CreateSpec) { s.Image = " " })
	bad("Entrypoint", func(s *sandbox.CreateSpec) { s.Entrypoint = []string{} })
	bad("Dir", func(s *sandbox.CreateSpec) { s.Dir = "relative" })
	bad("Env", func(s *sandbox.CreateSpec) { s.Env = map[string]string{"A=B": "c"} })
	bad("Metadata", func(s *sandbox.CreateSpec) { s.Metadata = map[string]string{sandbox.KeySessionID: "another's"} })
	bad("ResourceLimits", func(s *sandbox.CreateSpec) { s.ResourceLimits = nil })
	bad("ResourceRequests", func(s *sandbox.CreateSpec) { s.ResourceRequests = map[string]string{} })
	bad("TTL", func(s *sandbox.CreateSpec) { s.TTL = -time.Second })
	return out
}

// addresses name no sandbox: they don't say which one they reach.
var addresses = []string{
	"", " ", "127.0.0.1:8080", "localhost:44772", "http://127.0.0.1:8080", "https://10.0.0.7:44772/", "http://[::1]:44772/files",
	"http://", "://", "http://%zz", "\x00", "not a url", "http://user:pass@host/", "mailto:a@b", "file:///etc/passwd",
}

func endpointNameClauses() []Clause[Subject] {
	return []Clause[Subject]{
		{ID: "endpoint.anonymous", Doc: "An address that doesn't say which sandbox it reaches, such as host:port, names none.",
			Check: func(_ context.Context, s Subject) error {
				for _, a := range addresses {
					if id, ok := s.Provider.EndpointNamesSandbox(a); ok || id != "" {
						return Unmet(fmt.Sprintf("%q to name no sandbox", a), "%q, %v", id, ok)
					}
				}
				return nil
			}},
		{ID: "endpoint.foreign", Doc: "An address of somebody else's host names no sandbox, whatever its path says.",
			Check: func(_ context.Context, s Subject) error {
				for _, a := range []string{
					"http://conform.invalid/sandboxes/" + nobody + "/proxy/80/", "https://conform.invalid/v1/sandboxes/" + nobody + "/endpoints/80",
					"http://" + nobody + ".conform.invalid/", "http://conform.invalid/" + nobody + "/", "http://conform.invalid/?sandbox=" + nobody,
				} {
					if id, ok := s.Provider.EndpointNamesSandbox(a); ok {
						return Unmet(fmt.Sprintf("%q to name no sandbox", a), "%q", id)
					}
				}
				return nil
			}},
	}
}
