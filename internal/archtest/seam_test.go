package archtest_test

import (
	"go/ast"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const seam = "sandbox"

// operationTypes gives the interfaces that Bound's fields have: what a provider
// may implement beside Provider.
func operationTypes(t *testing.T, all []pkg) (names []string) {
	t.Helper()
	at := slices.IndexFunc(all, func(p pkg) bool { return p.name() == seam })
	if at < 0 {
		t.Fatal("package sandbox isn't there")
	}
	for _, f := range files(t, all[at]) {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != "Bound" {
				return true
			}
			for _, field := range spec.Type.(*ast.StructType).Fields.List {
				if id, ok := field.Type.(*ast.Ident); ok && len(field.Names) > 0 && field.Names[0].IsExported() && id.IsExported() && id.Name != "Capabilities" {
					names = append(names, id.Name)
				}
			}
			return false
		})
	}
	if len(names) < 10 {
		t.Fatalf("only %v were found in Bound", names)
	}
	return names
}

// What a provider can do beside the Provider interface is resolved in one
// table, by Bind: whoever asks a provider's type elsewhere sees neither masks
// nor decorators, and uses what isn't declared.
func TestOnlyTheRulesAskAProvidersType(t *testing.T) {
	all := packages(t)
	names := operationTypes(t, all)
	asks := func(p pkg, e ast.Expr) string {
		switch e := e.(type) {
		case *ast.SelectorExpr:
			if x, ok := e.X.(*ast.Ident); ok && x.Name == seam && slices.Contains(names, e.Sel.Name) {
				return e.Sel.Name
			}
		case *ast.Ident:
			if p.name() == seam && slices.Contains(names, e.Name) {
				return e.Name
			}
		}
		return ""
	}
	found := 0
	for _, p := range all {
		for path, f := range files(t, p) {
			table := p.name() == seam && filepath.Base(path) == "rules.go"
			report := func(what string) {
				if table {
					found++
					return
				}
				t.Errorf("%s of %s asks whether a value is a %s: use the field of sandbox.Bound, or Implemented of the rule", filepath.Base(path), p.name(), what)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.TypeAssertExpr:
					if n.Type == nil {
						break // the head of a type switch
					}
					if what := asks(p, n.Type); what != "" {
						report(what)
					} else if x, ok := n.X.(*ast.SelectorExpr); ok && x.Sel.Name == "Provider" {
						report("certain provider")
					}
				case *ast.CaseClause:
					for _, e := range n.List {
						if what := asks(p, e); what != "" {
							report(what)
						}
					}
				}
				return true
			})
		}
	}
	if found < len(names) {
		t.Errorf("the table asks for %d types, Bound has %d operations: the search finds nothing", found, len(names))
	}
}

// A verdict on a destruction is made in one place, so nobody else asks a
// provider to kill. The clauses that try a provider's Kill itself are in
// sandbox/conform, and the providers that break it on purpose in sandboxfake.
func TestOnlyConfirmDestroyedKills(t *testing.T) {
	found := 0
	for _, p := range packages(t) {
		uses := slices.ContainsFunc(p.Imports, func(i string) bool { return i == module+seam })
		if !uses && p.name() != seam || within(p.name(), "sandbox/conform", "sandbox/sandboxfake") {
			continue
		}
		for path, f := range files(t, p) {
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				allowed := ok && p.name() == seam && fn.Name.Name == "ConfirmDestroyed"
				// A decorator's own Kill passes the call on.
				allowed = allowed || ok && fn.Name.Name == "Kill" && fn.Recv != nil
				ast.Inspect(d, func(n ast.Node) bool {
					call, ok := n.(*ast.CallExpr)
					if !ok || len(call.Args) != 2 {
						return true
					}
					sel, ok := call.Fun.(*ast.SelectorExpr)
					if !ok || sel.Sel.Name != "Kill" {
						return true
					}
					if x, ok := sel.X.(*ast.Ident); ok && (x.Name == "syscall" || x.Name == "unix") {
						return true
					}
					if allowed {
						found++
						return true
					}
					t.Errorf("%s of %s calls Kill: only sandbox.ConfirmDestroyed may", filepath.Base(path), p.name())
					return true
				})
			}
		}
	}
	if found == 0 {
		t.Error("ConfirmDestroyed doesn't call Kill: the search finds nothing")
	}
}

// A provider author's packages import the standard library and each other.
func TestSeamImportsTheStandardLibraryOnly(t *testing.T) {
	for _, p := range packages(t) {
		if !within(p.name(), "sandbox", "sandbox/conform", "sandbox/sandboxtest", "sandbox/sandboxfake") || within(p.name(), "sandbox/execd") {
			continue
		}
		for _, imp := range p.Imports {
			to := strings.TrimPrefix(imp, module)
			if !stdlib(imp) && !within(to, "sandbox") || within(to, "sandbox/execd") {
				t.Errorf("%s imports %s: a provider author's package takes the standard library and its sisters only", p.name(), imp)
			}
		}
	}
}
