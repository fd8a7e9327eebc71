package execd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/internal/quirk"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
	"github.com/astrabox/astrabox/test/machine"
)

const patience = 40 * time.Second

// box is a sandbox with a foreign execd.
type box struct {
	t    testing.TB
	s    *quirk.Server
	conn *execd.Conn
	dir  string // of what the client keeps there
	tmp  string // of the test
	cmds sandbox.Commands
	proc sandbox.Processes
}

func foreign(t testing.TB, faults ...quirk.Fault) *box {
	t.Helper()
	machine.NeedRoot(t)
	before := goleak.IgnoreCurrent()
	b := &box{t: t, s: quirk.New(faults...), tmp: t.TempDir()}
	b.dir = filepath.Join(b.tmp, "state")
	t.Cleanup(func() {
		b.s.Close()
		execd.CloseIdleConnections()
		if err := goleak.Find(before); err != nil {
			t.Error(err)
		}
	})
	b.conn = b.dial(quirk.Token)
	b.cmds, b.proc = execd.Commands(b.conn), execd.Processes(b.conn)
	return b
}

func (b *box) dial(token string) *execd.Conn {
	c := execd.Dial(execd.Fixed(sandbox.Endpoint{URL: b.s.URL(), Headers: map[string]string{wire.HeaderToken: token}}), nil)
	c.SetDir(b.dir)
	return c
}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return c
}

func (b *box) run(line string) sandbox.CommandResult {
	b.t.Helper()
	res, err := b.cmds.Run(b.t.Context(), sandbox.Command{Line: line})
	if err != nil {
		b.t.Fatalf("%s: %v", line, err)
	}
	return res
}

func (b *box) start(s sandbox.ProcessSpec) string {
	b.t.Helper()
	if s.Key == "" {
		s.Key = "a key"
	}
	id, err := b.proc.Start(ctx(b.t), s)
	if err != nil {
		b.t.Fatalf("Start: %v", err)
	}
	return id
}

func (b *box) attach(id string, o sandbox.AttachOptions) sandbox.Attachment {
	b.t.Helper()
	a, err := b.proc.Attach(ctx(b.t), id, o)
	if err != nil {
		b.t.Fatalf("Attach(%+v): %v", o, err)
	}
	b.t.Cleanup(func() { a.Close() })
	return a
}

func (b *box) status(id string) sandbox.ProcessStatus {
	b.t.Helper()
	st, err := b.proc.Status(ctx(b.t), id)
	if err != nil {
		b.t.Fatalf("Status: %v", err)
	}
	return st
}

// eventually waits until f holds.
func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	end := time.Now().Add(patience)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		<-tick.C
	}
}

func (b *box) exited(id string) {
	b.t.Helper()
	eventually(b.t, "the process exits", func() bool { return b.status(id).State == sandbox.ProcessExited })
}

// pidIn waits for a process id in a file of the test.
func (b *box) pidIn(name string) (pid int) {
	b.t.Helper()
	eventually(b.t, "a process id in "+name, func() bool {
		text, _ := os.ReadFile(filepath.Join(b.tmp, name))
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return pid > 0 && bytes.HasSuffix(text, []byte("\n"))
	})
	return pid
}

func alive(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	return f[0] != "Z" && f[0] != "X"
}

func (b *box) dead(pids ...int) {
	b.t.Helper()
	for _, pid := range pids {
		b.t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
		eventually(b.t, "the end of a process", func() bool { return !alive(pid) })
	}
}

// rest is all that an attachment gives.
type rest struct {
	out, err string
	exits    []string
	next     int64
}

// collect reads to the end. Offsets have no gap but after the end of a run.
func collect(t testing.TB, a sandbox.Attachment, from int64) (r rest) {
	t.Helper()
	r.next = from
	jump := false
	for {
		f, err := a.Recv(ctx(t))
		if errors.Is(err, io.EOF) {
			return r
		}
		if err != nil {
			t.Fatalf("Recv after %+v: %v", r, err)
		}
		if f.Offset != r.next && (!jump || f.Offset < r.next) {
			t.Fatalf("a frame at %d, want %d", f.Offset, r.next)
		}
		jump = f.Exit != nil
		r.next = f.Offset + int64(len(f.Data))
		switch {
		case f.Exit != nil:
			r.exits = append(r.exits, fmt.Sprintf("%d: %d%s", f.Run, f.Exit.Code, f.Exit.Signal))
		case f.Channel == sandbox.Stderr:
			r.err += string(f.Data)
		default:
			r.out += string(f.Data)
		}
	}
}

// until reads until the output contains want.
func until(t testing.TB, a sandbox.Attachment, want string) string {
	t.Helper()
	var out strings.Builder
	for !strings.Contains(out.String(), want) {
		f, err := a.Recv(ctx(t))
		if err != nil || f.Exit != nil {
			t.Fatalf("after %q: %+v, %v, while waiting for %q", out.String(), f.Exit, err, want)
		}
		out.Write(f.Data)
	}
	return out.String()
}

// Secrets are in no argument and no file once the script was read, and a child
// doesn't get the daemon's token.
func TestEnvironmentStaysPrivate(t *testing.T) {
	b := foreign(t)
	const secret = "a-very-secret-value"
	env := map[string]string{"SECRET": secret}
	look := `printenv SECRET; printenv EXECD_ACCESS_TOKEN; ! grep -lsF "$SECRET" /proc/[0-9]*/cmdline; ! grep -rlF "$SECRET" ` + b.dir
	res, err := b.cmds.Run(ctx(t), sandbox.Command{Line: look, Env: env})
	if err != nil || string(res.Stdout) != secret+"\n" {
		t.Errorf("command: %q %q, %v", res.Stdout, res.Stderr, err)
	}
	id := b.start(sandbox.ProcessSpec{Line: look, Env: env})
	scripts, err := filepath.Glob(b.dir + "/*/run")
	if err != nil || len(scripts) != 1 {
		t.Fatalf("scripts: %v, %v", scripts, err)
	}
	for path, want := range map[string]os.FileMode{scripts[0]: 0o600, filepath.Dir(scripts[0]): 0o700} {
		if i, err := os.Stat(path); err != nil || i.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", path, i.Mode(), err)
		}
	}
	for run := range 2 {
		if got := collect(t, b.attach(id, sandbox.AttachOptions{From: b.status(id).Next, Takeover: true}), b.status(id).Next); got.out != secret+"\n" {
			t.Errorf("run %d: %+v", run+1, got)
		}
		b.exited(id)
	}
	if strings.Contains(b.s.Bodies(), secret) {
		t.Error("the secret was sent as part of a command")
	}
}

// An attachment runs an exited process again; what came before comes first.
func TestForeignRunsAgain(t *testing.T) {
	for _, tty := range []*sandbox.Size{nil, {Cols: 80, Rows: 24}} {
		b := foreign(t, quirk.Harmless...)
		id := b.start(sandbox.ProcessSpec{Line: "echo one; read x; exit 7", TTY: tty})
		a := b.attach(id, sandbox.AttachOptions{})
		until(t, a, "one")
		if err := a.Signal(ctx(t), "SIGKILL"); err != nil {
			t.Fatal(err)
		}
		if got := collect(t, a, int64(len("one\n"))+map[bool]int64{true: 1}[tty != nil]); !cmp.Equal(got.exits, []string{"1: 137SIGKILL"}) {
			t.Fatalf("%+v", got)
		}
		a.Close()
		b.exited(id)
		a = b.attach(id, sandbox.AttachOptions{})
		if err := a.Send(ctx(t), []byte("x\n")); err != nil {
			t.Fatal(err)
		}
		got := collect(t, a, 0)
		if strings.Count(got.out, "one") != 2 || !cmp.Equal(got.exits, []string{"1: 137SIGKILL", "2: 7"}) {
			t.Errorf("terminal %v: %+v", tty != nil, got)
		}
	}
}

func TestForeignTerminal(t *testing.T) {
	b := foreign(t, quirk.Harmless...)
	id := b.start(sandbox.ProcessSpec{Line: "trap 'stty size' WINCH; stty size; while :; do sleep 0.02; done", TTY: &sandbox.Size{Cols: 101, Rows: 33}})
	a := b.attach(id, sandbox.AttachOptions{})
	until(t, a, "33 101\r\n")
	if err := a.Resize(ctx(t), sandbox.Size{Cols: 90, Rows: 20}); err != nil {
		t.Fatal(err)
	}
	until(t, a, "20 90\r\n")
	// An interrupt reaches the foreground of the terminal.
	id = b.start(sandbox.ProcessSpec{Key: "sleep", Line: "echo up; exec sleep 60", TTY: &sandbox.Size{Cols: 80, Rows: 24}})
	a = b.attach(id, sandbox.AttachOptions{})
	until(t, a, "up\r\n")
	if err := a.Signal(ctx(t), "SIGINT"); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, a, 4); !cmp.Equal(got.exits, []string{"1: 130SIGINT"}) {
		t.Errorf("interrupted: %+v", got)
	}
	// The account's own shell.
	shell := b.start(sandbox.ProcessSpec{Key: "shell", TTY: &sandbox.Size{Cols: 80, Rows: 24}})
	a = b.attach(shell, sandbox.AttachOptions{})
	if err := a.Send(ctx(t), []byte("echo ho''me $TERM; exit 9\n")); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, a, 0); !strings.Contains(got.out, "home xterm-256color") || !cmp.Equal(got.exits, []string{"1: 9"}) {
		t.Errorf("the shell: %+v", got)
	}
	// The end of input.
	id = b.start(sandbox.ProcessSpec{Key: "cat", Line: "echo up; cat", TTY: &sandbox.Size{Cols: 80, Rows: 24}})
	a = b.attach(id, sandbox.AttachOptions{})
	until(t, a, "up\r\n")
	if err := a.CloseStdin(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, a, 4); !cmp.Equal(got.exits, []string{"1: 0"}) {
		t.Errorf("cat: %+v", got)
	}
}

// Delete reaches what left the process group.
func TestForeignDeleteKillsEverything(t *testing.T) {
	b := foreign(t)
	line := fmt.Sprintf("echo $$ >%[1]s/pid; setsid sh -c 'echo $$ >%[1]s/child; exec sleep 60' & wait", b.tmp)
	id := b.start(sandbox.ProcessSpec{Line: line, User: "root"})
	b.attach(id, sandbox.AttachOptions{}).Close()
	pids := []int{b.pidIn("pid"), b.pidIn("child")}
	if err := b.proc.Delete(ctx(t), id); err != nil {
		t.Fatal(err)
	}
	b.dead(pids...)
	if left, _ := filepath.Glob(b.dir + "/[A-Z2-7]*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if again := b.start(sandbox.ProcessSpec{Line: "true"}); again == id {
		t.Error("the key still names the deleted process")
	}
}

// What a command leaves in the background goes on, and doesn't hold it up.
func TestForeignBackground(t *testing.T) {
	b := foreign(t, quirk.Harmless...)
	res := b.run("sleep 60 & echo $! >" + b.tmp + "/pid; echo done")
	if string(res.Stdout) != "done\n" {
		t.Errorf("%q", res.Stdout)
	}
	pid := b.pidIn("pid")
	if !alive(pid) {
		t.Error("the background process is gone")
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	b.dead(pid)
}

func TestOneProcessOfAKey(t *testing.T) {
	b := foreign(t)
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wg.Go(func() {
			var err error
			if ids[i], err = b.proc.Start(ctx(t), sandbox.ProcessSpec{Key: "one", Line: "true"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if slices.Sort(ids); ids[0] != ids[len(ids)-1] {
		t.Errorf("several processes: %v", ids)
	}
	if left, _ := filepath.Glob(b.dir + "/[A-Z2-7]*"); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

// What the wire can't carry is refused or as documented.
func TestDeviations(t *testing.T) {
	seen := map[string]bool{}
	page, err := os.ReadFile("../../docs/reference/foreign-execd.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range execd.Deviations() {
		if seen[d.ID] || d.Face == "" || d.Says == "" || d.Reason == "" {
			t.Errorf("%+v", d)
		}
		seen[d.ID] = true
		if row := fmt.Sprintf("| `%s` | %s | %s | %s |", d.ID, d.Face, d.Says, d.Reason); !bytes.Contains(page, []byte(row)) {
			t.Errorf("the reference lacks %s", row)
		}
	}
	b := foreign(t)
	id := b.start(sandbox.ProcessSpec{Line: "sleep 60"})
	if _, err := b.proc.Attach(ctx(t), id, sandbox.AttachOptions{ReadOnly: true}); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("ReadOnly: %v", err)
	}
	if _, err := b.proc.Attach(ctx(t), id, sandbox.AttachOptions{NoStart: true}); err != nil || b.status(id).Run != 0 {
		t.Errorf("NoStart of a process that never ran: %v", err)
	}
	a := b.attach(id, sandbox.AttachOptions{})
	if err := a.CloseStdin(ctx(t)); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("CloseStdin: %v", err)
	}
	if err := a.Ack(ctx(t), 0); err != nil {
		t.Errorf("Ack: %v", err)
	}
	for name, c := range map[string]sandbox.Command{
		"a variable": {Line: "true", Env: map[string]string{"a.b": "x"}},
		"a NUL":      {Line: "a\x00b"},
		"a place":    {Line: "true", Dir: "relative"},
	} {
		if _, err := b.cmds.Run(ctx(t), c); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}
