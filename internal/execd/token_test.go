package execd_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	syntax "go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// misuses gives every place at which the daemon's token, or the one that a
// request carries, is used in a way that this law doesn't know. It knows being
// handed on, being missing, being hashed, and the comparison of two hashes by
// crypto/subtle: anything else could take a time that tells something about it.
func misuses(name string, source []byte) (found []string, compared int, _ error) {
	files := syntax.NewFileSet()
	f, err := parser.ParseFile(files, name, source, 0)
	if err != nil {
		return nil, 0, err
	}
	hashes := map[string]bool{} // variables with the hash of a token
	var path []ast.Node
	ast.Inspect(f, func(n ast.Node) bool {
		if n == nil {
			path = path[:len(path)-1]
			return true
		}
		path = append(path, n)
		secret := false
		switch n := n.(type) {
		case *ast.SelectorExpr:
			secret = n.Sel.Name == "token" || n.Sel.Name == "Token" || n.Sel.Name == "HeaderToken"
		case *ast.Ident:
			secret = hashes[n.Name]
		}
		if !secret {
			return true
		}
		ok, kind := allowed(path)
		switch {
		case !ok:
			found = append(found, fmt.Sprintf("%s: %s", files.Position(n.Pos()), kind))
		case kind == "hashed":
			if v := hashIn(path); v != "" {
				hashes[v] = true
			}
		case kind == "compared":
			compared++
		}
		return true
	})
	return found, compared, nil
}

// hashIn gives the variable that the hash which a path goes through is assigned to.
func hashIn(path []ast.Node) string {
	for i, n := range path {
		if a, is := n.(*ast.AssignStmt); is && len(a.Lhs) == 1 && i+1 < len(path) && path[i+1] == a.Rhs[0] {
			call, called := a.Rhs[0].(*ast.CallExpr)
			v, named := a.Lhs[0].(*ast.Ident)
			if called && named && nameOf(call.Fun) == "sha256.Sum256" {
				return v.Name
			}
		}
	}
	return ""
}

// allowed says what becomes of the expression at the end of a path.
func allowed(path []ast.Node) (bool, string) {
	self := path[len(path)-1]
	for i := len(path) - 2; i >= 0; i-- {
		switch p := path[i].(type) {
		case *ast.SliceExpr, *ast.ParenExpr:
		case *ast.CallExpr:
			switch name := nameOf(p.Fun); {
			case name == "[]byte", strings.HasSuffix(name, ".Header.Get"): // and then?
			case name == "sha256.Sum256":
				return true, "hashed"
			case name == "subtle.ConstantTimeCompare":
				return true, "compared"
			case name == "execd.Token", strings.HasSuffix(name, ".Del"), p.Fun == self:
				return true, "made or removed"
			default:
				return false, "given to " + name
			}
		case *ast.BinaryExpr:
			for _, side := range []ast.Expr{p.X, p.Y} {
				if l, is := side.(*ast.BasicLit); is && l.Kind == syntax.STRING && (l.Value == `""` || p.Op == syntax.ADD) {
					return true, "missing, or its header's name in a text"
				}
			}
			return false, "used with " + p.Op.String()
		case *ast.KeyValueExpr:
			return p.Value == path[i+1], "handed on, or a key"
		case *ast.AssignStmt:
			return slices.Contains(p.Lhs, self.(ast.Expr)), "assigned"
		case *ast.SelectorExpr: // the name of a field of something
		default:
			return false, fmt.Sprintf("in %T", p)
		}
	}
	return false, "somewhere"
}

// nameOf gives a function's name.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return nameOf(e.X) + "." + e.Sel.Name
	case *ast.ArrayType:
		return "[]" + nameOf(e.Elt)
	case *ast.CallExpr:
		return nameOf(e.Fun) + "()"
	}
	return "?"
}

// The token is compared once, as a hash, in a time that is the same whatever was
// given. How long a comparison takes can't be tested reliably, so its source is.
func TestTokenIsComparedInConstantTime(t *testing.T) {
	total := 0
	var server []byte
	for _, pattern := range []string{"*.go", "proxy/*.go", "isolated/*.go", "gate/*.go", "../../cmd/execd/*.go"} {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			t.Fatal(pattern, err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if name == "server.go" {
				server = b
			}
			found, compared, err := misuses(name, b)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				t.Errorf("%s: the token may be hashed, and hashes compared by crypto/subtle, and nothing else", f)
			}
			total += compared
		}
	}
	if total != 2 { // both sides of one comparison
		t.Errorf("%d sides of comparisons", total)
	}
	// What the law is for is found.
	const right = "subtle.ConstantTimeCompare(given[:], s.token[:]) == 1"
	if strings.Count(string(server), right) != 1 {
		t.Fatalf("server.go doesn't have %s", right)
	}
	for _, wrong := range []string{
		"given == s.token", "bytes.Equal(given[:], s.token[:])", "string(given[:]) == string(s.token[:])", "slices.Equal(given[:], s.token[:])",
		"r.Header.Get(wire.HeaderToken) == s.cfg.Token", "strings.EqualFold(s.cfg.Token, x)", "strings.HasPrefix(x, s.cfg.Token)", "reflect.DeepEqual(given, s.token)", "given[0] == s.token[0]",
		"map[string]bool{s.cfg.Token: true}[x]", "x == s.cfg.Token",
	} {
		found, _, err := misuses("server.go", []byte(strings.Replace(string(server), right, wrong, 1)))
		if err != nil || len(found) == 0 {
			t.Errorf("%s is not found: %v", wrong, err)
		}
	}
}
