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
	if os.Geteuid() != 0 {
		t.Skip("a foreign execd runs as root")
	}
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

// everything is a tour of both faces, for servers with which all of it works.
func (b *box) everything() {
	b.t.Helper()
	res, err := b.cmds.Run(ctx(b.t), sandbox.Command{
		Line: `printf %s "$A"; pwd >&2; exit 3`, Dir: b.tmp, Env: map[string]string{"A": "it's \"$x\"\n"},
	})
	want := sandbox.CommandResult{ExitCode: 3, Stdout: []byte("it's \"$x\"\n"), Stderr: []byte(b.tmp + "\n")}
	if err != nil || !cmp.Equal(res, want) {
		b.t.Errorf("Run: %q %q %d, %v", res.Stdout, res.Stderr, res.ExitCode, err)
	}
	id := b.start(sandbox.ProcessSpec{Line: "read x; echo got $x; echo err >&2; exit 5"})
	if again := b.start(sandbox.ProcessSpec{Line: "false"}); again != id {
		b.t.Errorf("the same key gave %s and %s", id, again)
	}
	if st := b.status(id); st.State != sandbox.ProcessRegistered || st.Run != 0 {
		b.t.Errorf("before it starts: %+v", st)
	}
	a := b.attach(id, sandbox.AttachOptions{})
	if err := a.Send(ctx(b.t), []byte("it\n")); err != nil {
		b.t.Fatal(err)
	}
	got := collect(b.t, a, 0)
	if want := (rest{"got it\n", "err\n", []string{"1: 5"}, 11}); !cmp.Equal(got, want, cmp.AllowUnexported(rest{})) {
		b.t.Errorf("the process gave %+v", got)
	}
	a.Close()
	b.exited(id)
	if st := b.status(id); st.Run != 1 || !cmp.Equal(st.Exit, &sandbox.Exit{Code: 5}) || st.Stdin != -1 {
		b.t.Errorf("after its end: %+v", st)
	}
	if err := b.proc.Delete(ctx(b.t), id); err != nil {
		b.t.Errorf("Delete: %v", err)
	}
	if err := b.proc.Delete(ctx(b.t), id); err != nil {
		b.t.Errorf("Delete again: %v", err)
	}
	if _, err := b.proc.Status(ctx(b.t), id); !errors.Is(err, sandbox.ErrProcessNotFound) {
		b.t.Errorf("Status after Delete: %v", err)
	}
}

// With each fault alone, and with all that leave a way, both faces work.
func TestEveryFaultAlone(t *testing.T) {
	for _, f := range quirk.Harmless {
		t.Run(quirk.Faults[f], func(t *testing.T) { foreign(t, f).everything() })
	}
	t.Run("none", func(t *testing.T) { foreign(t).everything() })
	t.Run("all", func(t *testing.T) { foreign(t, quirk.Harmless...).everything() })
}

func TestWire01ReadsBothKindsOfStream(t *testing.T) {
	for _, faults := range [][]quirk.Fault{nil, {quirk.DataLines}} {
		b := foreign(t, faults...)
		if id := b.start(sandbox.ProcessSpec{Line: "true"}); id == "" {
			t.Errorf("%v: no process", faults)
		}
	}
}

func TestWire02ReturnsAtTheTerminalEvent(t *testing.T) {
	b := foreign(t, quirk.LateEnd)
	begin := time.Now()
	b.start(sandbox.ProcessSpec{Line: "true"})
	if took := time.Since(begin); took > 4*time.Second {
		t.Errorf("Start took %v: it waited for the response's end", took)
	}
}

func TestWire03AnObjectWithACodeIsAFailure(t *testing.T) {
	b := foreign(t, quirk.BareCode)
	_, err := b.proc.Start(ctx(t), sandbox.ProcessSpec{Key: "k", Line: "true"})
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable || !strings.Contains(err.Error(), "it can't be started") {
		t.Errorf("%v", err)
	}
	if len(b.s.Requests("DELETE /pty/")) < len(b.s.Requests("POST /pty")) {
		t.Error("the session was left behind")
	}
}

func TestWire04AsksHowACutRunEnded(t *testing.T) {
	b := foreign(t, quirk.CutStream)
	if _, err := b.proc.Start(ctx(t), sandbox.ProcessSpec{Key: "k", Line: "true"}); !errors.Is(err, sandbox.ErrUnreachable) {
		t.Errorf("output that may be incomplete was taken: %v", err)
	}
	_, err := b.cmds.Run(ctx(t), sandbox.Command{Line: "exec sleep 60", Timeout: 300 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if len(b.s.Requests("GET /command/status/")) == 0 {
		t.Error("nobody asked how it ended")
	}
}

func TestWire05NeedsNoInit(t *testing.T) {
	foreign(t, quirk.NoInit).everything()
}

func TestWire06TellsATimeoutByItsOwnClock(t *testing.T) {
	b := foreign(t, quirk.SameKill)
	if res := b.run("kill -9 $$"); res.ExitCode != 137 {
		t.Errorf("a killed command: %d", res.ExitCode)
	}
	line := fmt.Sprintf("echo $$ >%[1]s/pid; setsid sh -c 'echo $$ >%[1]s/child; exec sleep 60' & sleep 60", b.tmp)
	_, err := b.cmds.Run(t.Context(), sandbox.Command{Line: line, Timeout: time.Second})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Timeout: %v", err)
	}
	b.dead(b.pidIn("pid"), b.pidIn("child"))
	short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := b.cmds.Run(short, sandbox.Command{Line: "sleep 60"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %v", err)
	}
}

func TestWire07KillsOnCancel(t *testing.T) {
	b := foreign(t, quirk.KeepRunning)
	c, cancel := context.WithCancel(t.Context())
	line := fmt.Sprintf("echo $$ >%[1]s/pid; setsid sh -c 'echo $$ >%[1]s/child; exec sleep 60' & sleep 60", b.tmp)
	done := make(chan error, 1)
	go func() { _, err := b.cmds.Run(c, sandbox.Command{Line: line}); done <- err }()
	pids := []int{b.pidIn("pid"), b.pidIn("child")}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d still runs when the command is said to be stopped", pid)
		}
	}
	b.dead(pids...)
	if len(b.s.Requests("DELETE /pty/")) == 0 {
		t.Error("no DELETE was sent")
	}
}

// A lost connection is unreachable, and what the command started is stopped.
func TestWire07KillsAfterALostConnection(t *testing.T) {
	b := foreign(t, quirk.KeepRunning)
	done := make(chan error, 1)
	go func() {
		_, err := b.cmds.Run(t.Context(), sandbox.Command{Line: "echo $$ >" + b.tmp + "/pid; exec sleep 60"})
		done <- err
	}()
	pid := b.pidIn("pid")
	b.s.Cut()
	isLost(t, "Run", <-done)
	b.dead(pid)
}

func TestWire08OutputIsExact(t *testing.T) {
	b := foreign(t, quirk.LossyLines)
	var all []byte
	for i := range 256 {
		all = append(all, byte(i), '\r', byte(255-i), '\r', '\n', '\n', 0x1e)
	}
	if err := os.WriteFile(filepath.Join(b.tmp, "all"), all, 0o600); err != nil {
		t.Fatal(err)
	}
	res := b.run("cat " + b.tmp + "/all; cat " + b.tmp + "/all >&2; printf end")
	if !bytes.Equal(res.Stdout, append(slices.Clone(all), "end"...)) || !bytes.Equal(res.Stderr, all) {
		t.Errorf("%d and %d bytes, want %d", len(res.Stdout), len(res.Stderr), len(all))
	}
	if res = b.run("head -c 9000000 /dev/zero"); len(res.Stdout) != sandbox.RunOutputLimit || !res.Truncated {
		t.Errorf("%d bytes, truncated %v", len(res.Stdout), res.Truncated)
	}
	if n := len(b.s.Requests("POST /command")); n > 0 {
		t.Errorf("%d commands went through /command", n)
	}
}

func TestWire09LosesNoOutputAtTheEnd(t *testing.T) {
	b := foreign(t, quirk.EarlyExit)
	for i := range 20 {
		if res := b.run("echo hi; echo ho >&2"); string(res.Stdout) != "hi\n" || string(res.Stderr) != "ho\n" {
			t.Fatalf("command %d: %q %q", i, res.Stdout, res.Stderr)
		}
	}
	for i, tty := range []*sandbox.Size{nil, {Cols: 80, Rows: 24}} {
		line := fmt.Sprintf("echo run >>%s/runs%d; head -c 300000 /dev/zero; echo hi", b.tmp, i)
		id := b.start(sandbox.ProcessSpec{Key: fmt.Sprint(i), Line: line, TTY: tty})
		a := b.attach(id, sandbox.AttachOptions{})
		got := collect(t, a, 0)
		a.Close()
		if text := strings.TrimRight(got.out, "\r\n"); len(text) != 300002 || !strings.HasSuffix(text, "hi") || !cmp.Equal(got.exits, []string{"1: 0"}) {
			t.Errorf("terminal %v: %d bytes, exits %v", tty != nil, len(text), got.exits)
		}
		b.exited(id)
		again := collect(t, b.attach(id, sandbox.AttachOptions{NoStart: true}), 0)
		if again.out != got.out || !cmp.Equal(again.exits, got.exits) {
			t.Errorf("terminal %v: then %d bytes, exits %v", tty != nil, len(again.out), again.exits)
		}
		if runs, _ := os.ReadFile(fmt.Sprintf("%s/runs%d", b.tmp, i)); string(runs) != "run\n" {
			t.Errorf("terminal %v: it ran %q", tty != nil, runs)
		}
	}
}

func TestWire10ReplayComesOnceAndGapsAreSeen(t *testing.T) {
	b := foreign(t, quirk.OldReplay)
	id := b.start(sandbox.ProcessSpec{Line: "printf out; sleep 0.05; printf err >&2; exit 4"})
	first := collect(t, b.attach(id, sandbox.AttachOptions{}), 0)
	if first.out != "out" || first.err != "err" || !cmp.Equal(first.exits, []string{"1: 4"}) {
		t.Fatalf("first run: %+v", first)
	}
	b.exited(id)
	for from := range int64(7) { // what was stderr isn't known any more
		got := collect(t, b.attach(id, sandbox.AttachOptions{From: from, NoStart: true, Takeover: true}), from)
		if got.out+got.err != "outerr"[from:] || !cmp.Equal(got.exits, first.exits) {
			t.Errorf("from %d: %+v", from, got)
		}
	}
	end := b.status(id).Next
	if got := collect(t, b.attach(id, sandbox.AttachOptions{From: end, NoStart: true, Takeover: true}), end); got.out != "" || !cmp.Equal(got.exits, first.exits) {
		t.Errorf("from the end: %+v", got)
	}
	if _, err := b.proc.Attach(ctx(t), id, sandbox.AttachOptions{From: end + 1, NoStart: true}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("past the end: %v", err)
	}

	long := b.start(sandbox.ProcessSpec{Key: "long", Line: "read x; head -c 3000000 /dev/zero"})
	a := b.attach(long, sandbox.AttachOptions{})
	if err := a.Send(ctx(t), []byte("go\n")); err != nil {
		t.Fatal(err)
	}
	a.Close()
	b.exited(long)
	var gap *sandbox.ReplayGapError
	_, err := b.proc.Attach(ctx(t), long, sandbox.AttachOptions{From: 1000, NoStart: true})
	if !errors.As(err, &gap) || gap.From != 1000 || gap.Oldest < 3000000-1<<20 {
		t.Fatalf("%v", err)
	}
	got := collect(t, b.attach(long, sandbox.AttachOptions{From: gap.Oldest, NoStart: true}), gap.Oldest)
	if got.next != 3000000 || !cmp.Equal(got.exits, []string{"1: 0"}) {
		t.Errorf("from the oldest: next %d, exits %v", got.next, got.exits)
	}
}

func TestWire11AskAgainWhenASessionIsHeldForAMoment(t *testing.T) {
	b := foreign(t, quirk.BusyAfter)
	id := b.start(sandbox.ProcessSpec{Line: "sleep 60"})
	for range 3 {
		b.attach(id, sandbox.AttachOptions{}).Close()
	}
	holder := b.attach(id, sandbox.AttachOptions{})
	if _, err := b.proc.Attach(ctx(t), id, sandbox.AttachOptions{}); !errors.Is(err, sandbox.ErrProcessHeld) {
		t.Errorf("held by another: %v", err)
	}
	b.attach(id, sandbox.AttachOptions{Takeover: true})
	if _, err := holder.Recv(ctx(t)); !errors.Is(err, sandbox.ErrDisplaced) {
		t.Errorf("the displaced: %v", err)
	}
}

func TestWire12SignalsPassUnreadStdin(t *testing.T) {
	for _, signal := range []string{"SIGTERM", "SIGKILL", ""} {
		b := foreign(t, quirk.StdinBlocks)
		id := b.start(sandbox.ProcessSpec{Line: "echo $$ >" + b.tmp + "/pid; echo up; exec sleep 60"})
		a := b.attach(id, sandbox.AttachOptions{})
		until(t, a, "up")
		sent := make(chan error, 1)
		go func() { sent <- a.Send(ctx(t), make([]byte, 1<<20)) }()
		select {
		case err := <-sent:
			t.Fatalf("a megabyte was sent to a process that reads nothing: %v", err)
		case <-time.After(300 * time.Millisecond):
		}
		pid := b.pidIn("pid")
		if signal == "" {
			if err := b.proc.Delete(ctx(t), id); err != nil {
				t.Fatal(err)
			}
			b.dead(pid)
		} else {
			if err := a.Signal(ctx(t), signal); err != nil {
				t.Fatalf("%s: %v", signal, err)
			}
			want := map[string]string{"SIGTERM": "1: 143SIGTERM", "SIGKILL": "1: 137SIGKILL"}[signal]
			if got := collect(t, a, 3); !cmp.Equal(got.exits, []string{want}) {
				t.Errorf("%s: %+v", signal, got)
			}
		}
		if err := <-sent; err == nil {
			t.Error("all of it was sent")
		}
	}
}

// A process that reads gets all of what is sent, however much.
func TestWire12StdinArrives(t *testing.T) {
	b := foreign(t, quirk.StdinBlocks)
	id := b.start(sandbox.ProcessSpec{Line: "head -c 3000000 | sha256sum"})
	a := b.attach(id, sandbox.AttachOptions{})
	if err := a.Send(ctx(t), bytes.Repeat([]byte("abc"), 1000000)); err != nil {
		t.Fatal(err)
	}
	want := string(b.run("head -c 3000000 <(yes abc | tr -d '\\n') | sha256sum").Stdout)
	if got := collect(t, a, 0); got.out != want {
		t.Errorf("%q, want %q", got.out, want)
	}
}

func TestWire13AnswersPingsAndLetsGoWhenStalled(t *testing.T) {
	b := foreign(t, quirk.StallHolds)
	b.conn.SetStall(300 * time.Millisecond)
	id := b.start(sandbox.ProcessSpec{Line: "sleep 0.6; echo quiet; yes | head -c 20000000; echo over >&2"})
	a := b.attach(id, sandbox.AttachOptions{})
	until(t, a, "quiet") // pinged six times meanwhile
	// Nobody reads on: the process isn't to hang on that.
	b.exited(id)
	var err error
	for err == nil {
		_, err = a.Recv(ctx(t))
	}
	isLost(t, "a stalled reader", err)
	oldest := b.status(id).Oldest
	if got := collect(t, b.attach(id, sandbox.AttachOptions{From: oldest, NoStart: true}), oldest); len(got.exits) != 1 {
		t.Errorf("afterwards: exits %v", got.exits)
	}
}

func TestWire20ReadsEveryFormOfRefusal(t *testing.T) {
	for _, faults := range [][]quirk.Fault{nil, {quirk.OddErrors}} {
		b := foreign(t, faults...)
		id := b.start(sandbox.ProcessSpec{Line: "true"})
		unknown := "00000000-0000-0000" + id[strings.LastIndex(id, "-"):]
		for _, id := range []string{unknown, "x"} {
			if _, err := b.proc.Status(ctx(t), id); !errors.Is(err, sandbox.ErrProcessNotFound) {
				t.Errorf("Status: %v", err)
			}
			if _, err := b.proc.Attach(ctx(t), id, sandbox.AttachOptions{}); !errors.Is(err, sandbox.ErrProcessNotFound) {
				t.Errorf("Attach: %v", err)
			}
			if err := b.proc.Delete(ctx(t), id); err != nil {
				t.Errorf("Delete: %v", err)
			}
		}
		for _, err := range []error{
			func() error {
				_, err := execd.Commands(b.dial("another")).Run(ctx(t), sandbox.Command{Line: "true"})
				return err
			}(),
			func() error { _, err := execd.Processes(b.dial("another")).Status(ctx(t), id); return err }(),
		} {
			isLost(t, "a refused token", err)
		}
	}
}

func TestWire21AnAccountHasItsGroup(t *testing.T) {
	b := foreign(t, quirk.RootGroup)
	id := b.start(sandbox.ProcessSpec{User: "nobody", Line: `id -u; id -g; id -G; echo "$HOME $USER $LOGNAME"`})
	want := b.run("id -u nobody; id -g nobody; id -G nobody; echo $(getent passwd nobody | cut -d: -f6) nobody nobody")
	got := collect(t, b.attach(id, sandbox.AttachOptions{}), 0)
	if got.out != string(want.Stdout) && got.exits[0] != "1: 126" { // whose home may not be there
		t.Errorf("%q %v, want %q", got.out, got.exits, want.Stdout)
	}
	id = b.start(sandbox.ProcessSpec{Key: "d", User: "nobody", Dir: "/", Line: `id -u; id -g; id -G; echo "$HOME $USER $LOGNAME"`})
	if got := collect(t, b.attach(id, sandbox.AttachOptions{}), 0); got.out != string(want.Stdout) {
		t.Errorf("%q, want %q", got.out, want.Stdout)
	}
	for _, user := range []string{"no-such-account", "a;b", "-x"} {
		if _, err := b.proc.Start(ctx(t), sandbox.ProcessSpec{Key: "u", User: user, Line: "true"}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", user, err)
		}
	}
}

func TestWire22TakesASessionByItsStatusAlone(t *testing.T) {
	b := foreign(t, quirk.TwoValues)
	if _, err := b.proc.Start(ctx(t), sandbox.ProcessSpec{Key: "k", Line: "true"}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("Start: %v", err)
	}
	if _, err := b.cmds.Run(ctx(t), sandbox.Command{Line: "true"}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("Run: %v", err)
	}
	if got := b.s.Requests("GET /pty/"); len(got) > 0 {
		t.Errorf("it was used: %v", got)
	}
	if left, err := os.ReadDir(b.dir); err == nil && len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	// A directory that isn't there is refused before the daemon would make it.
	missing := filepath.Join(b.tmp, "missing")
	if _, err := b.cmds.Run(ctx(t), sandbox.Command{Line: "true", Dir: missing}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("Run in a missing directory: %v", err)
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("the directory was made")
	}
}

// No cursor is ever stored: output comes by offsets that are counted here.
func TestWire23StoresNoLogCursor(t *testing.T) {
	b := foreign(t, quirk.EchoCursor)
	b.everything()
	for _, r := range b.s.Requests("GET /command/") {
		if strings.HasSuffix(r, "/logs") {
			t.Errorf("logs were asked for: %s", r)
		}
	}
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
	if _, err := execd.Files(b.conn).Stat(ctx(t), "/"); !errors.Is(err, sandbox.ErrUnsupported) {
		t.Errorf("Files: %v", err)
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
