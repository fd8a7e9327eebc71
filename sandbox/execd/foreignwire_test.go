package execd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/internal/quirk"
)

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
	// The daemon may be reading what marks the run's end still, which moves the oldest byte.
	from := int64(1000)
	var again sandbox.Attachment
	for tries := 0; again == nil; tries++ {
		var gap *sandbox.ReplayGapError
		var err error
		again, err = b.proc.Attach(ctx(t), long, sandbox.AttachOptions{From: from, NoStart: true})
		switch {
		case err == nil && tries == 0, err != nil && tries == 4:
			t.Fatalf("from %d: %v", from, err)
		case err == nil:
		case !errors.As(err, &gap) || gap.From != from || gap.Oldest < 3000000-1<<20:
			t.Fatalf("%v", err)
		default:
			from = gap.Oldest
		}
	}
	defer again.Close()
	got := collect(t, again, from)
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
