package execd_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

func TestProcessLife(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: `read x; echo "got $x"; echo oops >&2; exit 3`, Dir: "/"})
	want := sandbox.ProcessStatus{State: sandbox.ProcessRegistered}
	if diff := cmp.Diff(want, s.status()); diff != "" {
		t.Errorf("before (-want +got):\n%s", diff)
	}
	again := process(t, d, sandbox.ProcessSpec{Line: "something else"})
	if again.id != s.id {
		t.Error("the same key gave another process")
	}
	a := s.attach(sandbox.AttachOptions{})
	want = sandbox.ProcessStatus{Run: 1, State: sandbox.ProcessRunning}
	if diff := cmp.Diff(want, s.status()); diff != "" {
		t.Errorf("running (-want +got):\n%s", diff)
	}
	if err := a.Send(ctx(t), []byte("this\n")); err != nil {
		t.Fatal(err)
	}
	got := collect(t, a, 0)
	if got.out != "got this\n" || got.err != "oops\n" || !cmp.Equal(got.exits, []sandbox.Exit{{Code: 3}}) {
		t.Errorf("%+v", got)
	}
	want = sandbox.ProcessStatus{Run: 1, State: sandbox.ProcessExited, Exit: &sandbox.Exit{Code: 3}, Next: got.next, Stdin: int64(len("this\n"))}
	if diff := cmp.Diff(want, s.status()); diff != "" {
		t.Errorf("after (-want +got):\n%s", diff)
	}
	for range 2 {
		if err := s.p.Delete(ctx(t), s.id); err != nil {
			t.Errorf("Delete: %v", err)
		}
	}
	if _, err := s.p.Status(ctx(t), s.id); !errors.Is(err, sandbox.ErrProcessNotFound) {
		t.Errorf("Status after Delete: %v", err)
	}
	if _, err := s.p.Attach(ctx(t), s.id, sandbox.AttachOptions{}); !errors.Is(err, sandbox.ErrProcessNotFound) {
		t.Errorf("Attach after Delete: %v", err)
	}
}

// Runs that are over before anybody could look lose nothing, in pipes and in a
// terminal, and start anew with each attachment.
func TestShortRunsAreComplete(t *testing.T) {
	d := start(t)
	const runs = 150
	for name, tty := range map[string]*sandbox.Size{"pipes": nil, "terminal": {Cols: 80, Rows: 24}} {
		t.Run(name, func(t *testing.T) {
			s := process(t, d, sandbox.ProcessSpec{Line: "echo hi", TTY: tty})
			line := "hi\n"
			if tty != nil {
				line = "hi\r\n"
			}
			from := int64(0)
			for i := range runs {
				a := s.attach(sandbox.AttachOptions{From: from})
				got := collect(t, a, from)
				a.Close()
				if i > 0 { // the end of the run before is told again
					got.exits = got.exits[1:]
				}
				if got.out != line || !cmp.Equal(got.exits, []sandbox.Exit{{}}) {
					t.Fatalf("run %d: %+v", i+1, got)
				}
				from = got.next
			}
			if st := s.status(); st.Run != runs {
				t.Errorf("%d runs, want %d", st.Run, runs)
			}
		})
	}
}

// The bytes of every run, and its end, come exactly once and in order from any offset.
func TestReplay(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: `printf out; sleep 0.05; printf err >&2; exit 4`})
	first := collect(t, s.attach(sandbox.AttachOptions{}), 0)
	second := s.attach(sandbox.AttachOptions{From: first.next})
	got := collect(t, second, first.next)
	if got.out != "out" || got.err != "err" || !cmp.Equal(got.exits, []sandbox.Exit{{Code: 4}, {Code: 4}}) {
		t.Errorf("second run: %+v", got)
	}
	all := "outerrouterr"
	for from := range int64(len(all)) {
		a := s.attach(sandbox.AttachOptions{From: from, NoStart: true})
		var b bytes.Buffer
		var order []string
		for {
			f, err := a.Recv(ctx(t))
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			b.Write(f.Data)
			if f.Exit != nil {
				order = append(order, fmt.Sprintf("exit %d of %d at %d", f.Exit.Code, f.Run, f.Offset))
			}
		}
		a.Close()
		want := []string{"exit 4 of 1 at 6", "exit 4 of 2 at 12"}
		if from > 6 {
			want = want[1:]
		}
		if b.String() != all[from:] || !cmp.Equal(order, want) {
			t.Errorf("from %d: %q, %v", from, b.String(), order)
		}
	}
	if st := s.status(); st.Run != 2 {
		t.Errorf("NoStart started run %d", st.Run)
	}
	end := collect(t, s.attach(sandbox.AttachOptions{From: 12, NoStart: true}), 12)
	if end.out != "" || len(end.exits) != 1 {
		t.Errorf("from the end: %+v", end)
	}
	if _, err := s.p.Attach(ctx(t), s.id, sandbox.AttachOptions{From: 13, NoStart: true}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("past the end: %v", err)
	}
}

func TestNoStart(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: "echo never"})
	for _, o := range []sandbox.AttachOptions{{NoStart: true}, {ReadOnly: true}} {
		if got := collect(t, s.attach(o), 0); got.next != 0 || len(got.exits) != 0 {
			t.Errorf("%+v: %+v", o, got)
		}
	}
	if st := s.status(); st.Run != 0 {
		t.Errorf("started: %+v", st)
	}
}

func TestReplayGap(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: "head -c 100000 /dev/zero", Buffer: 4096})
	a := s.attach(sandbox.AttachOptions{})
	if got := collect(t, a, 0); got.next != 100000 {
		t.Errorf("the holder got %d bytes", got.next)
	}
	a.Close()
	var gap *sandbox.ReplayGapError
	_, err := s.p.Attach(ctx(t), s.id, sandbox.AttachOptions{From: 10, NoStart: true})
	if !errors.As(err, &gap) || gap.From != 10 || gap.Oldest != 100000-4096 {
		t.Fatalf("%v", err)
	}
	if got := collect(t, s.attach(sandbox.AttachOptions{From: gap.Oldest, NoStart: true}), gap.Oldest); got.next != 100000 {
		t.Errorf("%d", got.next)
	}
}

// A detached terminal isn't held up: its oldest output goes.
func TestDropOldestWhenDetached(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: "read x; head -c 5000000 /dev/zero; echo END", Buffer: 8192})
	a := s.attach(sandbox.AttachOptions{})
	if err := a.Send(ctx(t), []byte("\n")); err != nil {
		t.Fatal(err)
	}
	a.Close()
	eventually(t, "the end", func() bool { return s.status().State == sandbox.ProcessExited })
	if st := s.status(); st.Next != 5000004 || st.Oldest != st.Next-8192 {
		t.Errorf("%+v", st)
	}
}

// A program of kind Block waits for Ack and loses nothing, attached or not.
func TestBlock(t *testing.T) {
	d := start(t)
	const total = 300000
	s := process(t, d, sandbox.ProcessSpec{Line: fmt.Sprintf("head -c %d /dev/zero", total), Buffer: 64 << 10, Full: sandbox.Block})
	s.attach(sandbox.AttachOptions{}).Close()
	eventually(t, "a full buffer", func() bool { return s.status().Next == 64<<10 })
	var got int64
	for got < total { // read some, lose the connection, go on from what was acknowledged
		a := s.attach(sandbox.AttachOptions{From: got, NoStart: true})
		f, err := a.Recv(ctx(t))
		if err != nil || f.Offset != got {
			t.Fatalf("%+v %v, want offset %d", f, err, got)
		}
		got += int64(len(f.Data))
		if err := a.Ack(ctx(t), got); err != nil {
			t.Fatal(err)
		}
		a.Close()
		want := min(total, got+64<<10)
		eventually(t, "a full buffer again", func() bool { return s.status().Next == want })
		if st := s.status(); st.Oldest > got {
			t.Fatalf("dropped unacknowledged output: %+v", st)
		}
	}
}

func TestTakeover(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: "cat"})
	first := s.attach(sandbox.AttachOptions{})
	if _, err := s.p.Attach(ctx(t), s.id, sandbox.AttachOptions{}); !errors.Is(err, sandbox.ErrProcessHeld) {
		t.Errorf("a second attachment: %v", err)
	}
	if err := first.Send(ctx(t), []byte("one\n")); err != nil {
		t.Fatal(err)
	}
	until(t, first, "one\n")
	second := s.attach(sandbox.AttachOptions{Takeover: true, From: 4})
	if _, err := first.Recv(ctx(t)); !errors.Is(err, sandbox.ErrDisplaced) {
		t.Errorf("the displaced one: %v", err)
	}
	if err := first.Send(ctx(t), []byte("x")); !errors.Is(err, sandbox.ErrDisplaced) {
		t.Errorf("Send of the displaced one: %v", err)
	}
	if err := second.Send(ctx(t), []byte("two\n")); err != nil {
		t.Fatal(err)
	}
	until(t, second, "two\n")
	second.Close()
	third := s.attach(sandbox.AttachOptions{From: 8}) // free at once
	if err := third.CloseStdin(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, third, 8); got.next != 8 || len(got.exits) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestWatchers(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: "cat"})
	holder := s.attach(sandbox.AttachOptions{})
	var wg sync.WaitGroup
	for range 3 {
		w := s.attach(sandbox.AttachOptions{ReadOnly: true})
		if err := w.Send(ctx(t), []byte("no")); err == nil {
			t.Error("a watcher can send")
		}
		wg.Go(func() {
			if got := collect(t, w, 0); got.out != "hello\n" || len(got.exits) != 1 {
				t.Errorf("%+v", got)
			}
		})
	}
	if err := holder.Send(ctx(t), []byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if err := holder.CloseStdin(ctx(t)); err != nil {
		t.Fatal(err)
	}
	collect(t, holder, 0)
	wg.Wait()
}

// A watcher changes nothing, whatever it sends.
func TestWatchersAreDeaf(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: "cat; stty size", TTY: &sandbox.Size{Cols: 80, Rows: 24}})
	holder := s.attach(sandbox.AttachOptions{})
	for _, message := range []string{
		"\x00from the watcher\n", `t{"type":"stdin_close"}`, `t{"type":"resize","cols":10,"rows":10}`,
		`t{"type":"signal","signal":"SIGKILL"}`, `t{"type":"ack","offset":1000}`,
	} {
		conn, _, err := dialProcess(ctx(t), d, s.id, "mode=viewer", wire.ProcessProtocol) //nolint:bodyclose // read by Dial
		if err != nil {
			t.Fatal(err)
		}
		kind, b := websocket.MessageBinary, []byte(message)
		if text, ok := strings.CutPrefix(message, "t"); ok {
			kind, b = websocket.MessageText, []byte(text)
		}
		if err := conn.Write(ctx(t), kind, b); err != nil {
			t.Fatal(err)
		}
		// What came before the goodbye was carried out.
		if err := conn.Write(ctx(t), websocket.MessageText, []byte(`{"type":"detach"}`)); err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, _, err = conn.Read(ctx(t))
		}
		conn.CloseNow()
	}
	if err := holder.Send(ctx(t), []byte("from the holder\n\x04")); err != nil {
		t.Fatal(err)
	}
	const echo = "from the holder\r\n"
	if got := collect(t, holder, 0); got.out != echo+echo+"24 80\r\n" || !cmp.Equal(got.exits, []sandbox.Exit{{}}) {
		t.Errorf("%+v", got)
	}
}

// What was accepted is counted, outlives the attachment, and arrives once.
func TestStdinIsCounted(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	s := process(t, d, sandbox.ProcessSpec{Line: "while [ ! -e go ]; do sleep 0.01; done; md5sum; wc -c < /dev/null", Dir: dir})
	a := s.attach(sandbox.AttachOptions{})
	data := bytes.Repeat([]byte("0123456789abcdef"), 32<<10) // half of the window, more than a pipe
	if err := a.Send(ctx(t), data); err != nil {
		t.Fatal(err)
	}
	eventually(t, "acceptance", func() bool { return s.status().Stdin == int64(len(data)) })
	a.Close()

	b := s.attach(sandbox.AttachOptions{Takeover: true})
	sent := make(chan error, 1)
	go func() { // past the window: waits until the process reads
		if err := b.Send(ctx(t), bytes.Repeat(data, 3)); err != nil {
			sent <- err
			return
		}
		sent <- b.CloseStdin(ctx(t))
	}()
	eventually(t, "a full window", func() bool { return s.status().Stdin > 900<<10 })
	if got := s.status().Stdin; got > 1<<20+128<<10 {
		t.Errorf("%d bytes were accepted", got)
	}
	// Neither is a signal held up behind stdin that nobody reads, nor the rest.
	if err := b.Signal(ctx(t), "SIGCONT"); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("an unknown signal: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	got := collect(t, b, 0)
	if err := <-sent; err != nil {
		t.Error(err)
	}
	// Whether a message had arrived is asked after the end, too.
	if st := s.status(); st.State != sandbox.ProcessExited || st.Stdin != int64(4*len(data)) {
		t.Errorf("after the end: %+v", st)
	}
	want := run(t, d, `for i in $(seq 131072); do printf 0123456789abcdef; done | md5sum`)
	if !strings.HasPrefix(got.out, string(want.Stdout)) {
		t.Errorf("%q, want %q", got.out, want.Stdout)
	}
}

// Input that isn't read holds nothing else up.
func TestSignalBesideUnreadStdin(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: `trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.01; done`})
	a := s.attach(sandbox.AttachOptions{})
	until(t, a, "ready\n")
	if err := a.Send(ctx(t), make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	if err := a.Signal(ctx(t), "SIGTERM"); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, a, 6); got.out != "caught\n" || !cmp.Equal(got.exits, []sandbox.Exit{{Code: 9}}) {
		t.Errorf("%+v", got)
	}
}

func TestSignalsEndRuns(t *testing.T) {
	d := start(t)
	for name, n := range map[string]int{"SIGINT": 2, "SIGQUIT": 3, "SIGKILL": 9, "SIGTERM": 15, "SIGHUP": 1} {
		t.Run(name, func(t *testing.T) {
			// bash itself ignores SIGQUIT
			s := process(t, d, sandbox.ProcessSpec{Line: "exec sh -c 'echo ready; exec sleep 1000'"})
			a := s.attach(sandbox.AttachOptions{})
			until(t, a, "ready\n")
			if err := a.Signal(ctx(t), name); err != nil {
				t.Fatal(err)
			}
			got := collect(t, a, 6)
			if !cmp.Equal(got.exits, []sandbox.Exit{{Code: 128 + n, Signal: name}}) {
				t.Errorf("%+v", got)
			}
		})
	}
}

func TestTerminal(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: "exec bash --norc --noprofile --noediting -i", TTY: &sandbox.Size{Cols: 100, Rows: 30}})
	a := s.attach(sandbox.AttachOptions{})
	// Each step waits for the prompt: keys that come before it may be flushed.
	send := func(keys string) {
		t.Helper()
		if err := a.Send(ctx(t), []byte(keys)); err != nil {
			t.Fatal(err)
		}
	}
	say := func(line, want string) {
		t.Helper()
		send(line + "\n")
		if got := until(t, a, "ready> "); !strings.Contains(got, want) {
			t.Fatalf("%s: %q, want %q", line, got, want)
		}
	}
	say("PS1='rea''dy> '", "")
	say("stty size; echo $TERM", "30 100\r\nxterm-256color\r\n")
	if err := a.Resize(ctx(t), sandbox.Size{Cols: 200, Rows: 50}); err != nil {
		t.Fatal(err)
	}
	say("stty size", "50 200\r\n")
	send("sh -c 'echo up; exec cat'\n")
	until(t, a, "up\r\n")
	send("line\n")
	until(t, a, "line\r\nline\r\n")
	send("\x03")
	until(t, a, "ready> ")
	say("echo status $?", "status 130\r\n")
	send("sh -c 'echo up; exec sleep 1000'\n")
	until(t, a, "up\r\n")
	if err := a.Signal(ctx(t), "SIGINT"); err != nil { // reaches the foreground job
		t.Fatal(err)
	}
	until(t, a, "ready> ")
	say("echo status $?", "status 130\r\n")
	say("test -t 0 && test -t 2 && echo bo''th", "both\r\n")
	if err := a.CloseStdin(ctx(t)); err != nil { // as Ctrl-D
		t.Fatal(err)
	}
	if got := collectExits(t, a); !cmp.Equal(got, []sandbox.Exit{{}}) {
		t.Errorf("%v", got)
	}
}

func collectExits(t *testing.T, a sandbox.Attachment) (exits []sandbox.Exit) {
	for {
		f, err := a.Recv(ctx(t))
		if errors.Is(err, io.EOF) {
			return exits
		}
		if err != nil {
			t.Fatal(err)
		}
		if f.Exit != nil {
			exits = append(exits, *f.Exit)
		}
	}
}

// Terminal output of a short program with much to say is complete.
func TestTerminalOutputIsDrained(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: "seq 1 60000", TTY: &sandbox.Size{Cols: 80, Rows: 24}, Buffer: 4 << 20})
	got := collect(t, s.attach(sandbox.AttachOptions{}), 0)
	if n := strings.Count(got.out, "\r\n"); n != 60000 || !strings.HasSuffix(got.out, "60000\r\n") {
		t.Errorf("%d lines", n)
	}
}
