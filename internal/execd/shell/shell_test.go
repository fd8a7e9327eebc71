package shell

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/command"
	"github.com/astrabox/astrabox/test/machine"
)

func TestMain(m *testing.M) {
	machine.ReadOnly() // runs of sessions, as root
	if err := child.Prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func manager(t *testing.T, shell string) *Manager {
	t.Helper()
	if _, err := os.Stat(shell); err != nil {
		machine.Missing(t, "there is no %s", shell)
	}
	reaper := child.NewReaper(false)
	runner, err := command.NewRunner(account.System, reaper)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runner.Close(t.Context()); reaper.Close() })
	m := NewManager(runner)
	m.shell = func() string { return shell }
	return m
}

// run gives what a line prints and its exit code.
func run(t *testing.T, m *Manager, id, line string) string {
	t.Helper()
	var out bytes.Buffer
	r, err := m.Run(t.Context(), id, Run{
		Line: line, Timeout: 20 * time.Second, Started: func() {},
		Output: func(_ byte, b []byte) bool { out.Write(b); return true },
	})
	if err != nil {
		return fmt.Sprintf("%s%v", &out, err)
	}
	return fmt.Sprintf("%s=%d", &out, r.Code)
}

// Every shell that a sandbox may have carries the same.
func TestShells(t *testing.T) {
	for _, path := range []string{"/bin/bash", "/bin/dash", "/bin/sh"} {
		t.Run(path, func(t *testing.T) {
			m := manager(t, path)
			dir := t.TempDir()
			id, err := m.Create(dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range [][2]string{
				{"pwd", dir + "\n=0"},
				{"A='l1\nl2\t\"x\" $HOME \\ end\n'; export A; cd /usr; exit 3", "=3"},
				{`printf '[%s]' "$A"; pwd`, "[l1\nl2\t\"x\" $HOME \\ end\n]/usr\n=0"},
				{"unset A; false", "=1"},
				{`echo "${A-unset}"; env | grep -c ^A=`, "unset\n0\n=1"},
				{"export B='it'\\''s'; (exit 4)", "=4"},
				{`echo "$B"`, "it's\n=0"},
				{"set -e; export C=1; false; echo never", "=1"},
				{`echo "$C"; exec true`, "1\n=0"},
				{"trap 'echo bye' EXIT; export D=1", "bye\n=0"},
				{`echo "$D"; kill -9 $$`, "1\n=137"},
				{"export E='a\"b\\c\\\\$d`e!' F= G='é'; export _H=$SHLVL", "=0"},
				{`printf '%s\n' "$E$F$G"; [ "$_H" = "$SHLVL" ] && echo level; env | grep -c -E '^(F|PWD|OLDPWD)='`, "a\"b\\c\\\\$d`e!é\nlevel\n3\n=0"},
				{"unset E F G _H", "=0"},
				{"read x; echo \"[$x]\"; cat", "[]\n=0"},
				{"echo \"$#\"", "0\n=0"},
			} {
				if diff := cmp.Diff(c[1], run(t, m, id, c[0])); diff != "" {
					t.Errorf("%s (-want +got):\n%s", c[0], diff)
				}
			}
			if got := run(t, m, id, "echo 'unclosed"); strings.HasSuffix(got, "=0") {
				t.Errorf("an unclosed quote: %q", got)
			}
			if got := run(t, m, id, `echo "$B$C$D"`); got != "it's11\n=0" {
				t.Errorf("after it: %q", got)
			}
		})
	}
}

// What a shell takes for its own when it is in its environment is carried too.
func TestSpecialVariables(t *testing.T) {
	m := manager(t, "/bin/bash")
	dir := t.TempDir()
	id, _ := m.Create(dir, nil)
	for _, c := range [][2]string{
		{"echo 'echo from BASH_ENV' >rc; export BASH_ENV=$PWD/rc", "=0"},
		{"echo $BASH_ENV; unset BASH_ENV", dir + "/rc\n=0"},
		{"export IFS=x; declare -ix N=5; declare -x NOVALUE; f() { echo f $1; }; export -f f; export Z=$'\\xff\\t'", "=0"},
		{`N=N+1; A=1x2; printf '%s|' $A $N "${NOVALUE-unset}" $(f 1); printf %s "$Z" | od -An -tx1; unset IFS`, "1|2|6|unset|f 1| ff 09\n=0"},
		{"unset -f f; unset N NOVALUE Z; export LAST=$(head -c 100000 /dev/zero | tr '\\0' x)", "=0"},
		{"echo ${#LAST}", "100000\n=0"},
	} {
		if diff := cmp.Diff(c[1], run(t, m, id, c[0])); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c[0], diff)
		}
	}
}

// Programs of a run see no descriptor besides the one for the state.
func TestDescriptors(t *testing.T) {
	m := manager(t, "/bin/bash")
	id, _ := m.Create("/", nil)
	if got := run(t, m, id, "exec ls /proc/self/fd"); got != "0\n1\n2\n250\n3\n=0" { // 3 is the directory
		t.Errorf("%q", got)
	}
}

// A state that is too large isn't kept, and says so.
func TestStateLimit(t *testing.T) {
	m := manager(t, "/bin/bash")
	id, _ := m.Create("/", nil)
	if got := run(t, m, id, "export A=1"); got != "=0" {
		t.Fatal(got)
	}
	if got := run(t, m, id, "export A=$(head -c 9000000 /dev/zero | tr '\\0' x)"); got != ErrState.Error() {
		t.Errorf("%.200q", got)
	}
	if got := run(t, m, id, "echo $A"); got != "1\n=0" {
		t.Errorf("%.200q", got)
	}
}

// A session that couldn't be ended is there to be deleted again: who is told that
// there is none takes it for gone.
func TestDeleteAgainAfterAFailure(t *testing.T) {
	m := manager(t, "/bin/sh")
	id, err := m.Create("/", nil)
	if err != nil {
		t.Fatal(err)
	}
	s := m.byID[id]
	<-s.turn // a run that can't be killed
	tooLate, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Delete(tooLate, id); !errors.Is(err, context.Canceled) {
		t.Errorf("while a run goes on: %v", err)
	}
	if got := run(t, m, id, "true"); !strings.HasSuffix(got, ErrNotFound.Error()) {
		t.Errorf("a run: %s", got)
	}
	s.turn <- struct{}{}
	for _, want := range []error{nil, ErrNotFound} {
		if err := m.Delete(t.Context(), id); !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
	}
}
