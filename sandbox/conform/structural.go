package conform

import (
	"context"

	"github.com/astrabox/astrabox/sandbox"
)

// Subject is a driver with a provider that its New made.
type Subject struct {
	Driver   sandbox.Driver
	Provider sandbox.Provider
}

// Structural gives the cases of StructuralContract. They need no sandbox and,
// for a provider that keeps the contract, no backend: nothing here asks one.
func Structural(s Subject) (out []Case) {
	for _, c := range StructuralContract() {
		declared, _ := declares(s.Driver.Declares, c.Capability)
		out = append(out, Case{Info: c.info(), timeout: c.Timeout, declared: declared,
			check: func(ctx context.Context) error { return c.Check(ctx, s) }, refusal: bindTo(c.Refusal, s)})
	}
	return out
}

func bindTo[H any](f func(context.Context, H) error, h H) func(context.Context) error {
	if f == nil {
		return nil
	}
	return func(ctx context.Context) error { return f(ctx, h) }
}

// StructuralContract are the clauses that need a driver and its provider only.
func StructuralContract() []Clause[Subject] {
	return []Clause[Subject]{
		{ID: "provider.name", Doc: "The provider's name is that of its driver.",
			Check: func(_ context.Context, s Subject) error {
				if n := s.Provider.Name(); n != s.Driver.Name {
					return Unmet("the driver's name "+s.Driver.Name, "%q", n)
				}
				return nil
			}},
	}
}
