package archtest_test

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/astrabox/astrabox/"

type pkg struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Imports    []string

	TestGoFiles, XTestGoFiles []string
}

func (p pkg) name() string { return strings.TrimPrefix(p.ImportPath, module) }

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports,TestGoFiles,XTestGoFiles", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if len(all) < 10 {
		t.Fatalf("only %d packages were found", len(all))
	}
	return all
}

func within(name string, trees ...string) bool {
	return slices.ContainsFunc(trees, func(tree string) bool {
		return name == tree || strings.HasPrefix(name, tree+"/")
	})
}

func stdlib(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// levels orders the platform: a package imports lower levels only, so that
// data flows one way and every layer can be tested without those above it.
var levels = []struct {
	tree  string
	level int
}{
	{"sandbox/execd", 1},
	{"sandbox", 0},
	{"provider", 2},
	{"internal/version", 3}, {"internal/ownnet", 3}, {"internal/inventory", 3}, {"internal/fault", 3}, {"internal/killpoint", 3}, {"internal/sqldb", 3},
	{"internal/model", 4},
	{"internal/store", 5},
	{"internal/agentprogram", 6}, {"internal/fleet", 6},
	{"internal/conversation", 7},
	{"internal/httpapi", 8}, {"internal/console", 8},
	{"internal/app", 9},
	{"internal/instance", 9}, {"internal/cli", 11}, {"internal/demo", 10}, {"internal/bench", 10}, {"internal/verify", 10},
}

func levelOf(name string) (tree string, level int, ok bool) {
	for _, l := range levels {
		if within(name, l.tree) {
			return l.tree, l.level, true
		}
	}
	return "", 0, false
}

func TestImportLaw(t *testing.T) {
	laws := []struct {
		reason string
		broken func(from, to string) bool // to without the module's prefix when it is ours
	}{
		{"package sandbox is what a provider author imports: the standard library only", func(from, to string) bool {
			return from == "sandbox" && !stdlib(to)
		}},
		{"a provider has a stranger's rights: nothing internal", func(from, to string) bool {
			return within(from, "provider", "sandbox") && within(to, "internal")
		}},
		{"the in-sandbox programs know nothing of the platform", func(from, to string) bool {
			return within(from, "internal/execd", "internal/shellagent") && (within(to, "internal", "provider") && !within(to, "internal/execd", "internal/shellagent", "internal/version"))
		}},
		{"the bundled service could be somebody else's: of ours only leaves and wire types", func(from, to string) bool {
			ours := within(to, "internal", "provider", "sandbox")
			return within(from, "internal/sandboxd") && ours &&
				!within(to, "internal/sandboxd", "internal/version", "internal/sqldb", "internal/fault", "internal/killpoint", "provider/opensandbox/wire", "sandbox/execd/wire")
		}},
		{"the platform knows the bundled service through its API only; app and cli start it", func(from, to string) bool {
			return within(to, "internal/sandboxd") && !within(from, "internal/sandboxd", "internal/app", "internal/cli", "internal/bench", "internal/instance", "internal/verify")
		}},
		{"SQL drivers live in sqldb, so that one place decides pragmas and migrations", func(from, to string) bool {
			return within(to, "modernc.org/sqlite", "github.com/jackc/pgx/v5", "github.com/pressly/goose/v3") && from != "internal/sqldb"
		}},
		{"the platform's core speaks to sandboxes through the seam, not over HTTP", func(from, to string) bool {
			return to == "net/http" && within(from, "internal/model", "internal/store", "internal/fleet", "internal/conversation", "internal/agentprogram")
		}},
		{"a level imports lower levels only", func(from, to string) bool {
			fromTree, fl, ok1 := levelOf(from)
			toTree, tl, ok2 := levelOf(to)
			return ok1 && ok2 && fromTree != toTree && tl >= fl
		}},
		{"commands hold no logic: main calls one package of ours", func(from, to string) bool {
			return within(to, "cmd")
		}},
	}
	for _, p := range packages(t) {
		for _, imp := range p.Imports {
			to := strings.TrimPrefix(imp, module)
			for _, law := range laws {
				if law.broken(p.name(), to) {
					t.Errorf("%s imports %s: %s", p.name(), to, law.reason)
				}
			}
		}
	}
}

// Every package of the platform has its place in the order.
func TestEveryPackageHasALevel(t *testing.T) {
	for _, p := range packages(t) {
		n := p.name()
		if within(n, "internal/execd", "internal/shellagent", "internal/sandboxd", "internal/archtest", "cmd", "web", "test") {
			continue
		}
		if _, _, ok := levelOf(n); !ok {
			t.Errorf("%s has no level in the import law", n)
		}
	}
}

// A test that skips itself would be left out of CI unseen.
func TestOnlyOnePlaceSkipsTests(t *testing.T) {
	for _, p := range packages(t) {
		for _, name := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			path := filepath.Join(p.Dir, name)
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			if name == "contract_test.go" && within(p.name(), "internal/sandboxd/api", "internal/execd") {
				continue // checks against a description that isn't ours to keep here
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if sel, ok := n.(*ast.SelectorExpr); ok && slices.Contains([]string{"Skip", "Skipf", "SkipNow"}, sel.Sel.Name) {
					t.Errorf("%s of %s calls %s: call machine.Missing of test/machine, which fails in CI", name, p.name(), sel.Sel.Name)
				}
				return true
			})
		}
	}
}

func files(t *testing.T, p pkg) map[string]*ast.File {
	t.Helper()
	out := map[string]*ast.File{}
	for _, f := range p.GoFiles {
		path := filepath.Join(p.Dir, f)
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		out[path] = parsed
	}
	return out
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		said := len(p.GoFiles) == 0
		for _, f := range files(t, p) {
			said = said || f.Doc != nil
		}
		if !said {
			t.Errorf("%s has no package comment", p.name())
		}
	}
}
