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

// capabilityClauses are one for each flag whose operations are the provider's:
// what is declared is there.
func capabilityClauses() (out []Clause[Subject]) {
	for _, r := range sandbox.Rules() {
		if r.Field == "" {
			continue // on the handle: create.processes
		}
		out = append(out, Clause[Subject]{
			ID:         "capability." + flagWord(r.Flag),
			Doc:        "Who declares " + r.Flag + " implements " + r.Needs + ".",
			Capability: r.Flag,
			Check: func(_ context.Context, s Subject) error {
				if !r.Implemented(s.Provider) {
					return Unmet(r.Flag+" to come with "+r.Needs, "%T has it not", s.Provider)
				}
				if d, _ := declares(s.Provider.Capabilities(), r.Requires); r.Requires != "" && !d {
					return Unmet(r.Flag+" to be declared with "+r.Requires+", which it needs", "without")
				}
				return nil
			},
			Refusal: notBound(r.Flag),
		})
	}
	return append(out, Clause[Subject]{
		ID: "capability.levels", Doc: "The permission levels are known ones, each once, that the provider can have attested.",
		Check: func(_ context.Context, s Subject) error {
			seen := map[sandbox.PermissionLevel]bool{}
			levels := s.Provider.Capabilities().PermissionLevels
			if levels != nil && len(levels) == 0 {
				return Unmet("a level, or nil for default only", "an empty list")
			}
			isolates, _ := sandbox.RuleOf("IsolatedSessions")
			for _, l := range levels {
				switch {
				case l != sandbox.PermissionDefault && l != sandbox.PermissionAdvanced:
					return Unmet("the levels default or advanced, which can be attested", "%q", string(l))
				case seen[l]:
					return Unmet("each level once", "%q twice", string(l))
				case l == sandbox.PermissionAdvanced && !isolates.Implemented(s.Provider):
					return Unmet("who lists advanced to attest it with ReadIsolationCapability", "%T has it not", s.Provider)
				}
				seen[l] = true
			}
			return nil
		},
	})
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
		Clause[Subject]{ID: "ids.isolated", Doc: "The operations on isolated sessions refuse a sandbox id of another form with SANDBOX_NAME_INVALID, before any request.",
			Capability: "IsolatedSessions", Refusal: notBound("IsolatedSessions"),
			Check: func(ctx context.Context, s Subject) error {
				b := s.backend()
				if b.Isolated == nil {
					return Unmet("IsolatedSessions to come with its operations", "no such methods")
				}
				for _, id := range badIDs {
					for doing, ask := range map[string]func() error{
						"ReadIsolationCapability":  func() error { _, err := b.Isolated.ReadIsolationCapability(ctx, id); return err },
						"PrepareIsolatedWorkspace": func() error { return b.Isolated.PrepareIsolatedWorkspace(ctx, id, "/w", 1, 1) },
						"OpenIsolatedSession": func() error {
							_, err := b.Isolated.OpenIsolatedSession(ctx, id, sandbox.IsolatedSessionSpec{Workspace: "/w"})
							return err
						},
						"ConnectIsolatedSession":      func() error { _, err := b.Isolated.ConnectIsolatedSession(ctx, id, nobody); return err },
						"CloseIsolatedSession":        func() error { return b.Isolated.CloseIsolatedSession(ctx, id, nobody) },
						"CountActiveIsolatedSessions": func() error { _, err := b.Isolated.CountActiveIsolatedSessions(ctx, id); return err },
					} {
						if err := Refused(fmt.Sprintf("%s of the id %q", doing, id), ask(), sandbox.CodeNameInvalid); err != nil {
							return err
						}
					}
				}
				return nil
			}},
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

// notBound is the refusal of a flag's clauses: nothing of it is there to be
// called. A provider that can't be bound fails another clause for that.
func notBound(flag string) func(context.Context, Subject) error {
	return func(_ context.Context, s Subject) error {
		if b, err := s.bound(); err == nil {
			return unbound(b, flag)
		}
		return nil
	}
}

// unbound is nil when the bound provider has neither the flag nor its operations.
func unbound(b *sandbox.Bound, flag string) error {
	r, ok := sandbox.RuleOf(flag)
	switch {
	case !ok:
		return Unmet("a flag of the table", "%q", flag)
	case r.Declared(b.Caps):
		return Unmet(flag+" to stay undeclared", "it is declared")
	case r.Field != "" && !reflect.ValueOf(b).Elem().FieldByName(r.Field).IsNil():
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
	bad("Entrypoint", func(s *sandbox.CreateSpec) { s.Entrypoint = []string{""} })
	bad("Dir", func(s *sandbox.CreateSpec) { s.Dir = "/a/../etc" })
	bad("WaitForPort", func(s *sandbox.CreateSpec) { s.WaitForPort = execdPort })
	bad("PublishPorts", func(s *sandbox.CreateSpec) { s.PublishPorts = []int{80, 80} })
	bad("PermissionLevel", func(s *sandbox.CreateSpec) { s.PermissionLevel = "almighty" })
	bad("WorkspaceMounts", func(s *sandbox.CreateSpec) { s.WorkspaceMounts = []sandbox.Mount{{Source: "w", Path: "/"}} })
	bad("DeathCallbackURL", func(s *sandbox.CreateSpec) { s.DeathCallbackURL = "ftp://host/" })
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
					if id, ok := s.Provider.EndpointNamesSandbox(a); ok {
						return Unmet(fmt.Sprintf("%q to name no sandbox", a), "%q", id)
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
