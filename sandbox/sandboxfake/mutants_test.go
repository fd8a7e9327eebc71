package sandboxfake_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
	"github.com/astrabox/astrabox/sandbox/sandboxfake"
)

// Every mutant is caught by the clause that names its promise.
func TestMutantsAreCaught(t *testing.T) {
	mutants := sandboxfake.Mutants()
	caught := 0
	names := map[string]bool{}
	for _, m := range mutants {
		if names[m.Name] || m.Why == "" {
			t.Errorf("%s: its name isn't unique, or it says no reason", m.Name)
		}
		names[m.Name] = true
		t.Run(m.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := escaped(t, m); err != nil {
					t.Error(err)
				} else {
					caught++
				}
			})
		})
	}
	fmt.Printf("mutants: %d, caught: %d\n", len(mutants), caught)
	if len(mutants) < 100 {
		t.Errorf("only %d mutants", len(mutants))
	}
}

// A clause that no mutant breaks may check nothing.
func TestEveryClauseHasAMutant(t *testing.T) {
	broken := map[string]bool{}
	for _, m := range sandboxfake.Mutants() {
		broken[m.Clause] = true
	}
	var ids []string
	for _, c := range conform.StructuralContract() {
		ids = append(ids, c.ID)
	}
	for _, c := range conform.LifecycleContract() {
		ids = append(ids, c.ID)
	}
	for _, c := range slices.Concat(conform.DataContract(), conform.ProcessesContract()) {
		ids = append(ids, c.ID)
	}
	for _, id := range ids {
		if !broken[id] {
			t.Errorf("no mutant breaks %s", id)
		}
	}
}

// escaped says why a mutant wasn't caught; nil: it was.
func escaped(t *testing.T, m sandboxfake.Mutant) error {
	d, p, end := m.New(sandboxfake.Options{})
	defer end()
	subject := conform.Subject{Driver: d, Provider: p}
	cases := conform.Structural(subject)
	if i := find(cases, m.Clause); i < 0 {
		b, err := sandbox.Bind(d, p)
		if err != nil {
			return fmt.Errorf("it can't be bound: %w", err)
		}
		live := &conform.Live{Provider: b, Spec: spec, Account: sandboxfake.Account, ShortTTL: time.Second}
		if twin, ok := p.(interface {
			Twin(context.Context, sandbox.CreateSpec) (string, error)
		}); ok {
			live.Twin = twin.Twin
		}
		defer live.Close(t.Context())
		cases = live.Cases()
	}
	i := find(cases, m.Clause)
	if i < 0 {
		return fmt.Errorf("there is no clause %s", m.Clause)
	}
	r := cases[i].Run(t.Context(), conform.Options{})
	t.Logf("expected %s\nseen %s", r.Expected, r.Seen)
	if r.Status != conform.Failed {
		return fmt.Errorf("%s: %s %s", m.Clause, r.Status, r.Reason)
	}
	for _, text := range []string{r.Reason, r.Expected, r.Seen} {
		if m.Clause == "secrets.print" {
			break // which shows how a provider is printed
		}
		if odd := unreadable.FindString(text); odd != "" || text == "" {
			return fmt.Errorf("%s: %q has %q, which nobody can read", m.Clause, text, odd)
		}
	}
	return nil
}

// unreadable is how Go prints values for programmers: nil, addresses, structs,
// lists, bytes as numbers, clocks, fractions of a microsecond, bad formats, and
// modes in hexadecimal.
var unreadable = regexp.MustCompile(`<nil>|0x[0-9a-f]{4,}|\{[A-Z]\w*:|map\[|\[\]|\[\d+( \d+)+\]|m=[+-]|\+0000|\d\.\d{4,}|%!|\b[48][1-9a-f][0-9a-f]{2}\b \d|[-d][-r][-w][-x][-r][-w][-x]`)

func find(cases []conform.Case, id string) int {
	for i, c := range cases {
		if c.ID == id {
			return i
		}
	}
	return -1
}
