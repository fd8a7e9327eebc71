package conform

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
)

var idForm = regexp.MustCompile(`^[a-z0-9-]+(\.[a-z0-9-]+)+$`)

// checkTable holds the clauses of a table to their form.
func checkTable[H any](t *testing.T, clauses []Clause[H]) {
	t.Helper()
	for _, c := range clauses {
		_, flag := sandbox.RuleOf(c.Capability)
		switch {
		case !idForm.MatchString(c.ID):
			t.Errorf("%q isn't the id of a clause", c.ID)
		case c.Check == nil:
			t.Errorf("%s checks nothing", c.ID)
		case c.Doc == "" || !strings.HasSuffix(c.Doc, ".") || strings.Contains(c.Doc, "\n"):
			t.Errorf("%s: %q is no sentence", c.ID, c.Doc)
		case c.Capability != "" && !flag:
			t.Errorf("%s: there is no flag %s", c.ID, c.Capability)
		case (c.Refusal != nil) != (c.Capability != ""):
			t.Errorf("%s: a refusal goes with a flag", c.ID)
		}
	}
}

func TestTables(t *testing.T) {
	checkTable(t, StructuralContract())
	checkTable(t, LifecycleContract())
	checkTable(t, DataContract())
	checkTable(t, ProcessesContract())
	all := Clauses()
	seen := map[string]bool{}
	for _, c := range all {
		if seen[c.ID] {
			t.Errorf("%s is there twice", c.ID)
		}
		seen[c.ID] = true
	}
	if len(all) < 80 {
		t.Errorf("only %d clauses", len(all))
	}
}

// Every row of the capability table has clauses.
func TestEveryFlagHasClauses(t *testing.T) {
	all := Clauses()
	for _, r := range sandbox.Rules() {
		if !slices.ContainsFunc(all, func(i Info) bool { return i.Capability == r.Flag }) {
			t.Errorf("no clause belongs to %s", r.Flag)
		}
	}
}
