package execd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/execd"
	"github.com/astrabox/astrabox/internal/execd/confine"
	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/test/machine"
)

// The account of most sessions here.
const sessionUID = 4321

// place is a daemon with sessions, as a provider sees it.
type place struct {
	*daemon
	client.Isolation
}

func startIsolated(t testing.TB) place {
	t.Helper()
	return startIsolatedWith(t, execd.Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Files: files.New(files.Config{})})
}

func startIsolatedWith(t testing.TB, cfg execd.Config) place {
	t.Helper()
	machine.NeedRoot(t)
	if have, err := confine.Effective(); err != nil || have&confine.Mounting != confine.Mounting {
		machine.Missing(t, "it needs the capabilities that mounts and namespaces take: %x, %v", have, err)
	}
	d := startWith(t, cfg)
	return place{d, client.Isolated(func(context.Context, string) (*client.Conn, error) { return d.conn, nil })}
}

// workspace makes a directory of the session's account.
func (p place) workspace(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ws")
	if err := p.PrepareIsolatedWorkspace(t.Context(), "s", dir, sessionUID, sessionUID); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (p place) open(t testing.TB, s sandbox.IsolatedSessionSpec) sandbox.IsolatedSession {
	t.Helper()
	session, err := p.OpenIsolatedSession(t.Context(), "s", s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.CloseIsolatedSession(context.WithoutCancel(t.Context()), "s", session.SessionID()); err != nil {
			t.Error(err)
		}
	})
	return session
}

// session opens one with a workspace of its own.
func (p place) session(t testing.TB) sandbox.IsolatedSession {
	t.Helper()
	return p.open(t, sandbox.IsolatedSessionSpec{Workspace: p.workspace(t), UID: sessionUID, GID: sessionUID})
}

// says gives the output and exit code of a run.
func says(t testing.TB, s sandbox.IsolatedSession, c sandbox.Command) string {
	t.Helper()
	c.Timeout = max(c.Timeout, patience)
	res, err := s.Commands().Run(t.Context(), c)
	if err != nil {
		t.Fatalf("%s: %v", c.Line, err)
	}
	return fmt.Sprintf("%s|%s|%d", res.Stdout, res.Stderr, res.ExitCode)
}

func TestIsolatedRuns(t *testing.T) {
	p := startIsolated(t)
	dir := p.workspace(t)
	s := p.open(t, sandbox.IsolatedSessionSpec{Workspace: "/tmp/seen/here", Source: dir, UID: sessionUID, GID: sessionUID})
	for _, c := range []struct {
		cmd  sandbox.Command
		want string
	}{
		{sandbox.Command{Line: "pwd; id -u; id -g; id -G"}, "/tmp/seen/here\n4321\n4321\n4321\n||0"},
		{sandbox.Command{Line: `printf 'a\0b\r\nc\n\n\xff'; printf e >&2; exit 7`}, "a\x00b\r\nc\n\n\xff|e|7"},
		// What a user expects to last does.
		{sandbox.Command{Line: "export A='x\n\ty'; B=1; cd /usr"}, "||0"},
		{sandbox.Command{Line: `pwd; echo "$A"; echo "[$B]"`}, "/usr\nx\n\ty\n[]\n||0"},
		// A run with its own directory or variables leaves it alone.
		{sandbox.Command{Line: `pwd; echo $A; export A=2; cd /`, Dir: "/tmp"}, "/tmp\nx y\n||0"},
		{sandbox.Command{Line: `pwd; echo $A $C; export A=2; cd /`, Env: map[string]string{"C": "it's $HOME\n", "A": "mine"}}, "/usr\nmine it's $HOME\n||0"},
		{sandbox.Command{Line: `pwd; echo "$A$C"`}, "/usr\nx\n\ty\n||0"},
		// No run eats another, hangs on a quote, or ends the session.
		{sandbox.Command{Line: "cat; read x; echo \"got $x\""}, "got \n||0"},
		{sandbox.Command{Line: "exit 3"}, "||3"},
		{sandbox.Command{Line: "exec false"}, "||1"},
		{sandbox.Command{Line: "kill -9 $$"}, "||137"},
		{sandbox.Command{Line: "kill -9 -1 2>/dev/null; kill -9 1 2>/dev/null; echo alive"}, "alive\n||0"},
		{sandbox.Command{Line: "set -e; false; echo no"}, "||1"},
		{sandbox.Command{Line: "echo execution_complete; echo '{\"type\":\"error\"}'"}, "execution_complete\n{\"type\":\"error\"}\n||0"},
		{sandbox.Command{Line: "cd ~- 2>/dev/null; mkdir /tmp/gone && cd /tmp/gone && rmdir /tmp/gone"}, "||0"},
		{sandbox.Command{Line: "pwd"}, "/tmp/seen/here\n||0"}, // what it stood in is gone
	} {
		if got := says(t, s, c.cmd); got != c.want {
			t.Errorf("%+v: %q, want %q", c.cmd, got, c.want)
		}
	}
	for _, line := range []string{"echo 'unclosed", "echo \"$(", "if true", "cat <<X", "`"} {
		res, err := s.Commands().Run(ctx(t), sandbox.Command{Line: line, Timeout: patience})
		if err != nil || res.ExitCode == 0 && line != "cat <<X" {
			t.Errorf("%q: %+v, %v", line, res, err)
		}
	}
	big := says(t, s, sandbox.Command{Line: "head -c 17000000 /dev/zero | tr '\\0' x | wc -c; head -c 3000000 /dev/zero | tr '\\0' y"})
	if want := "17000000\n" + strings.Repeat("y", 3000000) + "||0"; big != want {
		t.Errorf("much output: %d bytes, want %d", len(big), len(want))
	}
	if err := os.WriteFile(dir+"/x", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := says(t, s, sandbox.Command{Line: "ls", Dir: "/tmp/seen/here"}); got != "x\n||0" {
		t.Errorf("ls: %q", got)
	}
	for what, c := range map[string]sandbox.Command{
		"no line": {}, "a relative directory": {Line: "true", Dir: "x"}, "a missing directory": {Line: "true", Dir: "/none"},
		"a bad name": {Line: "true", Env: map[string]string{"A B": "1"}}, "a NUL": {Line: "a\x00b"},
	} {
		if _, err := s.Commands().Run(ctx(t), c); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A deadline and a client that goes away end the run with all that it started,
// and not the session, nor what earlier runs left behind.
func TestIsolatedRunEndsNotTheSession(t *testing.T) {
	p := startIsolated(t)
	s := p.session(t)
	if got := says(t, s, sandbox.Command{Line: "export KEPT=1; (setsid sleep 1000 >/dev/null 2>&1 & echo $! >left)"}); got != "||0" {
		t.Fatal(got)
	}
	const hard = "trap '' INT TERM HUP; (setsid sh -c 'trap \"\" TERM; echo $$ >deep; sleep 1001') & echo on; wait; sleep 1001"
	begun := time.Now()
	_, err := s.Commands().Run(ctx(t), sandbox.Command{Line: hard, Timeout: 300 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) > patience/2 {
		t.Errorf("a timeout: %v after %v", err, time.Since(begun))
	}
	giveUp, cancel := context.WithCancel(t.Context())
	saw := writer(func([]byte) { cancel() })
	if _, err := s.Commands().Stream(giveUp, sandbox.Command{Line: hard}, saw, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run: %v", err)
	}
	got := says(t, s, sandbox.Command{Line: "echo $KEPT; kill -0 $(cat left) && echo left; for i in $(seq 500); do pgrep -x -f 'sleep 1001' >/dev/null || break; sleep 0.02; done; pgrep -cx sleep"})
	if got != "1\nleft\n1\n||0" {
		t.Errorf("afterwards: %q", got)
	}
	// And the session's end ends that too.
	left := outside(t, "sleep 1000")
	if len(left) != 1 {
		t.Fatalf("%d such processes", len(left))
	}
	if err := p.CloseIsolatedSession(t.Context(), "s", s.SessionID()); err != nil {
		t.Fatal(err)
	}
	if left := outside(t, "sleep 1000"); len(left) > 0 {
		t.Errorf("it lives on: %v", left)
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

// outside gives the pids, as this process sees them, of the processes of
// sessions with these arguments.
func outside(t testing.TB, args string) (pids []string) {
	t.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		b, _ := os.ReadFile(file)
		if strings.Join(strings.FieldsFunc(string(b), func(r rune) bool { return r == 0 }), " ") != args {
			continue
		}
		if st, err := os.ReadFile(filepath.Dir(file) + "/status"); err == nil && strings.Contains(string(st), fmt.Sprintf("\nUid:\t%d\t", sessionUID)) {
			pids = append(pids, filepath.Base(filepath.Dir(file)))
		}
	}
	return pids
}

func TestIsolatedRunsAreSerial(t *testing.T) {
	p := startIsolated(t)
	s := p.session(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := s.Commands().Run(ctx(t), sandbox.Command{Line: "mkdir busy || exit 9; export N=$((N+1)); sleep 0.02; rmdir busy"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if got := says(t, s, sandbox.Command{Line: "echo $N"}); got != "8\n||0" {
		t.Errorf("runs were beside each other: %q", got)
	}
	// One that waits for its turn can be given up.
	first, cancel := context.WithCancel(t.Context())
	begun := make(chan struct{})
	var once sync.Once
	all.Go(func() {
		_, _ = s.Commands().Stream(first, sandbox.Command{Line: "echo on; sleep 1000"}, writer(func([]byte) { once.Do(func() { close(begun) }) }), nil)
	})
	<-begun
	short, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if _, err := s.Commands().Run(short, sandbox.Command{Line: "true"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one that waits: %v", err)
	}
	cancel()
	all.Wait()
	if got := says(t, s, sandbox.Command{Line: "echo on"}); got != "on\n||0" {
		t.Errorf("afterwards: %q", got)
	}
}

// Sessions come, go, and are found, and nothing is left of any.
func TestIsolatedSessionsComeAndGo(t *testing.T) {
	p := startIsolated(t)
	before := machineState(t)
	c, err := p.ReadIsolationCapability(t.Context(), "s")
	if err != nil || !c.Available || c.Isolator == "" || !c.SwitchAccount || c.UserNamespaces || c.Commit || c.Diff {
		t.Errorf("capability %+v, %v", c, err)
	}
	count := func(want int) {
		t.Helper()
		if n, err := p.CountActiveIsolatedSessions(t.Context(), "s"); err != nil || n != want {
			t.Errorf("%d open sessions, %v, want %d", n, err, want)
		}
	}
	count(0)
	one, two := p.workspace(t), p.workspace(t)
	var ids []string
	for i, spec := range []sandbox.IsolatedSessionSpec{
		{Workspace: one}, {Workspace: one, ShareNet: true}, {Workspace: "/tmp/w", Source: two}, {Workspace: two, UID: 0, GID: 0},
	} {
		if i < 3 {
			spec.UID, spec.GID = sessionUID, sessionUID
		}
		s, err := p.OpenIsolatedSession(t.Context(), "s", spec)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, s.SessionID())
		if got := says(t, s, sandbox.Command{Line: "(setsid sleep 1002 &) >/dev/null 2>&1; echo hi"}); got != "hi\n||0" {
			t.Errorf("%+v: %q", spec, got)
		}
	}
	count(4)
	for source, want := range map[string][]string{one: ids[:2], two: ids[2:], "/tmp/w": {}} {
		got, err := p.FindIsolatedSessionsByWorkspace(t.Context(), "s", source)
		if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("of %s: %s", source, d)
		}
	}
	// The id alone is enough.
	again, err := p.ConnectIsolatedSession(t.Context(), "s", ids[2])
	if err != nil {
		t.Fatal(err)
	}
	if got := says(t, again, sandbox.Command{Line: "pwd"}); got != "/tmp/w\n||0" {
		t.Errorf("connected: %q", got)
	}
	if res, err := p.RunInIsolatedSession(t.Context(), "s", ids[2], sandbox.Command{Line: "pwd"}); err != nil || string(res.Stdout) != "/tmp/w\n" {
		t.Errorf("by its id: %+v, %v", res, err)
	}
	// One whose first process is killed from outside is dead, and nothing of it lives.
	victim, err := p.ConnectIsolatedSession(t.Context(), "s", ids[0])
	if err != nil {
		t.Fatal(err)
	}
	pid := firstProcess(t, victim)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the dead session is told apart", func() bool {
		_, err := p.RunInIsolatedSession(t.Context(), "s", ids[0], sandbox.Command{Line: "true"})
		return errors.Is(err, sandbox.ErrIsolatedSessionNotFound)
	})
	eventually(t, "it isn't counted", func() bool {
		n, err := p.CountActiveIsolatedSessions(t.Context(), "s")
		return n == 3 && err == nil
	})
	for range 2 { // closing is idempotent
		for _, id := range append(ids, "no-such-session", "not an id/..") {
			if err := p.CloseIsolatedSession(t.Context(), "s", id); err != nil {
				t.Errorf("close %s: %v", id, err)
			}
		}
	}
	count(0)
	for what, f := range map[string]func() error{
		"run": func() error {
			_, err := p.RunInIsolatedSession(t.Context(), "s", ids[1], sandbox.Command{Line: "true"})
			return err
		},
		"connect": func() error { _, err := p.ConnectIsolatedSession(t.Context(), "s", ids[1]); return err },
		"strange": func() error { _, err := p.ConnectIsolatedSession(t.Context(), "s", "../x"); return err },
		"files":   func() error { _, err := again.Files().Stat(t.Context(), "/tmp/w/x"); return err },
		"process": func() error {
			_, err := again.Processes().Start(t.Context(), sandbox.ProcessSpec{Key: "k"})
			return err
		},
		"attach": func() error {
			_, err := again.Processes().Attach(t.Context(), "x", sandbox.AttachOptions{})
			return err
		},
	} {
		if err := f(); !errors.Is(err, sandbox.ErrIsolatedSessionNotFound) {
			t.Errorf("%s in a closed session: %v", what, err)
		}
	}
	if d := cmp.Diff(before, machineState(t)); d != "" {
		t.Errorf("left behind: %s", d)
	}
}

// firstProcess gives the pid of a session's first process.
func firstProcess(t testing.TB, s sandbox.IsolatedSession) int {
	t.Helper()
	ns, _, _ := strings.Cut(says(t, s, sandbox.Command{Line: "readlink /proc/self/ns/pid", Dir: "/"}), "\n")
	all, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, link := range all {
		dir := filepath.Dir(filepath.Dir(link))
		if got, err := os.Readlink(link); err == nil && got == ns && parent(dir) == os.Getpid() {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			return pid
		}
	}
	t.Fatalf("no process is the first of %s", ns)
	return 0
}

// machineState is what sessions might leave behind.
func machineState(t testing.TB) map[string]string {
	t.Helper()
	state := map[string]string{}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	state["mounts"] = string(mounts)
	for _, dir := range []string{os.TempDir(), "/run", "/dev/shm"} {
		names, _ := filepath.Glob(dir + "/*")
		names = slices.DeleteFunc(names, func(name string) bool { // of other tests
			return strings.HasPrefix(filepath.Base(name), "Test") || strings.HasPrefix(filepath.Base(name), "go-build") || strings.HasPrefix(filepath.Base(name), "astrabox")
		})
		state[dir] = strings.Join(names, " ")
	}
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		if b, _ := os.ReadFile(file); strings.HasPrefix(string(b), "execd-session") && parent(filepath.Dir(file)) == os.Getpid() {
			state["processes"] += filepath.Dir(file) + " "
		}
	}
	return state
}

func parent(dir string) (pid int) {
	b, _ := os.ReadFile(dir + "/stat")
	if i := strings.LastIndexByte(string(b), ')'); i > 0 {
		var state string
		_, _ = fmt.Sscan(string(b[i+1:]), &state, &pid)
	}
	return pid
}
