package execd_test

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/test/machine"
)

// account has a group of its own name on every Debian.
const account = "daemon"

// keeps runs the data-plane clauses and fails the test for each promise that
// isn't kept.
func keeps(t *testing.T, conn *execd.Conn, o conform.Options) {
	t.Helper()
	o.Observe = func(r conform.Result) {
		if r.Ms > 1000 {
			t.Logf("%s took %d ms", r.ID, r.Ms)
		}
	}
	r := conform.Check(t.Context(), conform.DataPlane(conform.Box{
		Files: execd.Files(conn), Commands: execd.Commands(conn), Processes: execd.Processes(conn),
		Scratch: fmt.Sprintf("%s/astrabox-conform-%d", os.TempDir(), os.Getpid()), Account: account,
	}), o)
	var text strings.Builder
	if err := r.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	if !r.OK() || r.Summary.Skipped > 0 {
		t.Error(text.String())
	}
	t.Log(r.Summary)
}

// AstraBox's daemon and its client keep every promise of the data plane.
func TestContract(t *testing.T) {
	machine.NeedRoot(t)
	p := runProgram(t)
	t.Cleanup(execd.CloseIdleConnections)
	keeps(t, execd.Dial(execd.Fixed(p.endpoint), nil), conform.Options{Provider: "execd"})
}

// What JSON would change on the way is refused instead.
func TestOnlyTextIsSent(t *testing.T) {
	const bad = "x\xffy"
	c := serve(t, map[string]http.HandlerFunc{"/": func(http.ResponseWriter, *http.Request) { t.Error("something was sent") }})
	for what, cmd := range map[string]sandbox.Command{
		"line": {Line: bad}, "dir": {Line: "true", Dir: "/" + bad}, "value": {Line: "true", Env: map[string]string{"A": bad}}, "name": {Line: "true", Env: map[string]string{bad: "a"}},
	} {
		_, err := execd.Commands(c).Run(t.Context(), cmd)
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("command, %s: %v", what, err)
		}
		_, err = execd.Processes(c).Start(t.Context(), sandbox.ProcessSpec{Key: "k", Line: cmd.Line, Dir: cmd.Dir, Env: cmd.Env})
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("process, %s: %v", what, err)
		}
	}
	if _, err := execd.Processes(c).Start(t.Context(), sandbox.ProcessSpec{Key: bad, Line: "true"}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("key: %v", err)
	}
}
