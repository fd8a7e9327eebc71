package sandboxfake

import (
	"context"

	"github.com/astrabox/astrabox/sandbox"
)

// Mutant is a variant of the fake that breaks one promise of the contract. A
// conformance suite is worth something when it catches every one of them.
type Mutant struct {
	// Name says in a few words, joined by hyphens, what the variant does.
	Name string
	// Clause is the id of the clause of package conform that has to catch it.
	Clause string
	// Why is who would suffer, or which fault of a real system it is.
	Why string

	// apply bends p, and may change the driver or wrap the provider.
	apply func(p *Provider, d *sandbox.Driver) sandbox.Provider
}

// New makes the variant as a provider with its driver. end is [Provider.Close]
// of the fake behind it.
func (m Mutant) New(o Options) (d sandbox.Driver, p sandbox.Provider, end func() error) {
	fake := New(o)
	d = fake.Driver()
	var made sandbox.Provider
	d.New = func(context.Context, sandbox.Host) (sandbox.Provider, error) { return made, nil }
	made = m.apply(fake, &d) // which may give it another New
	return d, made, fake.Close
}

// Mutants lists all variants; their names are unique.
func Mutants() []Mutant {
	var all []Mutant
	for _, table := range mutantTables {
		all = append(all, table()...)
	}
	return all
}

// mutantTables are the tables of the files mutants_*.go.
var mutantTables = []func() []Mutant{
	readingMutants, writingMutants, changingMutants, commandMutants,
	processMutants, inputMutants, replayMutants, attachMutants,
}

// bending is the apply of a variant that differs inside only.
func bending(bend func(b *bent)) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return func(p *Provider, _ *sandbox.Driver) sandbox.Provider {
		bend(&p.bent)
		return p
	}
}
