package conform

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/astrabox/astrabox/sandbox"
)

// Subject is a driver with a provider that its New made.
type Subject struct {
	Driver   sandbox.Driver
	Provider sandbox.Provider
	// Host is what New was called with. Clauses on settings call New again with
	// variations of it; a zero Host has no settings.
	Host sandbox.Host
	// Mask names capabilities that count as not declared, as for sandbox.Bind:
	// instead of their clauses it is tried that the mask takes them away.
	Mask []string
}

// masks reports whether the mask takes away a flag that the driver declares.
func (s Subject) masks(flag string) bool {
	r, _ := sandbox.RuleOf(flag)
	declared, _ := declares(s.Driver.Declares, flag)
	return declared && (slices.Contains(s.Mask, flag) || r.Requires != "" && slices.Contains(s.Mask, r.Requires))
}

// Structural gives the cases of StructuralContract. They need no sandbox and,
// for a provider that keeps the contract, no backend: everything that is asked
// for is refused before a request would be made. Without a provider only its
// absence is reported.
func Structural(s Subject) (out []Case) {
	left := ""
	if missing(s.Provider) {
		left = "there is no provider"
	}
	for _, c := range StructuralContract() {
		declared, _ := declares(s.Driver.Declares, c.Capability)
		masked := s.masks(c.Capability)
		k := Case{Info: c.info(), timeout: c.Timeout, declared: declared && !masked, masked: masked,
			check: bindTo(c.Check, s), refusal: bindTo(c.Refusal, s)}
		if c.ID != "provider.present" {
			k.left = left
		}
		out = append(out, k)
	}
	return out
}

func bindTo[H any](f func(context.Context, H) error, h H) func(context.Context) error {
	if f == nil {
		return nil
	}
	return func(ctx context.Context) error { return f(ctx, h) }
}

// missing reports whether v is nil or holds a nil pointer, map, func, …
func missing(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Func, reflect.Slice, reflect.Chan, reflect.Interface:
		return r.IsNil()
	}
	return false
}

// StructuralContract are the clauses that need a driver and its provider only.
func StructuralContract() []Clause[Subject] {
	return slices.Concat(identityClauses(), driverClauses(), capabilityClauses(), refusalClauses(), endpointNameClauses())
}

// bound resolves the provider's optional interfaces by what the provider itself
// declares, whatever its driver says.
func (s Subject) bound() (*sandbox.Bound, error) {
	d := s.Driver
	d.Name, d.Declares = s.Provider.Name(), s.Provider.Capabilities()
	return sandbox.Bind(d, s.Provider, s.Mask...)
}

// backend resolves what the provider declares itself.
func (s Subject) backend() backend { return backendOf(s.Provider, s.Provider.Capabilities()) }

func identityClauses() []Clause[Subject] {
	return []Clause[Subject]{
		{ID: "provider.present", Doc: "New gives a provider, not nil and not a nil pointer in an interface.",
			Check: func(_ context.Context, s Subject) error {
				if missing(s.Provider) {
					return Unmet("a provider", "%s", typeName(s.Provider))
				}
				return nil
			}},
		{ID: "provider.complete", Doc: "Every operation can be called: none panics, as those of an embedded nil interface do.",
			Check: func(ctx context.Context, s Subject) error {
				var panics []string
				for _, o := range everyCall(s) {
					if p := panicOf(func() { o.call(ctx) }); p != "" {
						panics = append(panics, o.name+" ("+p+")")
					}
				}
				if len(panics) > 0 {
					return Unmet("no operation to panic", "a panic of %s", strings.Join(panics, ", "))
				}
				return nil
			}},
		{ID: "provider.name", Doc: "The provider's name is that of its driver.",
			Check: func(_ context.Context, s Subject) error {
				if n := s.Provider.Name(); n != s.Driver.Name {
					return Unmet(fmt.Sprintf("the driver's name, %q", s.Driver.Name), "%q", n)
				}
				return nil
			}},
		{ID: "provider.name.form", Doc: "A provider's name is a lower-case word: [a-z][a-z0-9_]*.",
			Check: func(_ context.Context, s Subject) error {
				if n := s.Provider.Name(); !providerNameForm.MatchString(n) {
					return Unmet("a name that matches "+providerNameForm.String(), "%q", n)
				}
				return nil
			}},
		{ID: "provider.name.constant", Doc: "The name never changes; records keep it.",
			Check: func(_ context.Context, s Subject) error {
				return constant(s.Provider.Name)
			}},
		{ID: "capabilities.declared", Doc: "The provider's capabilities are those that its driver declares.",
			Check: func(_ context.Context, s Subject) error {
				if got := s.Provider.Capabilities(); !got.Equal(s.Driver.Declares) {
					return Unmet(fmt.Sprintf("what the driver declares, %s", s.Driver.Declares), "%s", got)
				}
				return nil
			}},
		{ID: "capabilities.constant", Doc: "The capabilities are facts: they are read once and never change.",
			Check: func(_ context.Context, s Subject) error {
				return constant(s.Provider.Capabilities)
			}},
		{ID: "provider.route", Doc: "WorkspaceRoute gives a route exactly when it says that there is one.",
			Check: func(_ context.Context, s Subject) error {
				if r, ok := s.Provider.WorkspaceRoute(); ok == missing(r) {
					return Unmet("a route and true, or nil and false", "the route %s and %v", typeName(r), ok)
				}
				return nil
			}},
	}
}

// constant calls f a few times, also from several goroutines at once.
func constant[T any](f func() T) error {
	first := f()
	got := make(chan any, 8) // a value, or the text of a panic
	for range cap(got) {
		go func() {
			var v T
			if p := panicOf(func() { v = f() }); p != "" {
				got <- p
				return
			}
			got <- v
		}()
	}
	var other any
	for range cap(got) {
		if v := <-got; !reflect.DeepEqual(v, any(first)) {
			other = v
		}
	}
	if other != nil {
		return Unmet(say("the same answer each time, %+v", first), "%+v", other)
	}
	return nil
}

// panicOf calls f and gives the text of its panic, with the place; empty: none.
func panicOf(f func()) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = fmt.Sprintf("%v, %s", p, panicPlace())
		}
	}()
	f()
	return ""
}

// anyCall is an operation with arguments that are refused before a request.
type anyCall struct {
	name string
	call func(context.Context)
}

func everyCall(s Subject) []anyCall {
	calls := []anyCall{
		{"Name", func(context.Context) { s.Provider.Name() }},
		{"Capabilities", func(context.Context) { s.Provider.Capabilities() }},
		{"Create", func(ctx context.Context) { _, _ = s.Provider.Create(ctx, sandbox.CreateSpec{}) }},
		{"EndpointNamesSandbox", func(context.Context) { s.Provider.EndpointNamesSandbox("") }},
		{"WorkspaceRoute", func(context.Context) { s.Provider.WorkspaceRoute() }},
	}
	for _, o := range operations {
		calls = append(calls, anyCall{o.method, func(ctx context.Context) {
			if b := s.backend(); b.has(o.flag) { // what is declared and missing is another clause's matter
				_, _ = o.ask(ctx, b, "")
			}
		}})
	}
	return calls
}
