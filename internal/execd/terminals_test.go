package execd_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
)

// What a terminal still held when its program ended isn't lost, however long
// nobody took it.
func TestTerminalKeepsWhatItHolds(t *testing.T) {
	d := start(t)
	done := t.TempDir() + "/done"
	const total = 16000 // more than the buffer, and as much as the kernel keeps besides
	s := process(t, d, sandbox.ProcessSpec{
		Line: fmt.Sprintf(`stty raw; head -c %d /dev/zero | tr '\0' x; touch %s`, total, done),
		TTY:  &sandbox.Size{Cols: 80, Rows: 24}, Buffer: 4 << 10, Full: sandbox.Block,
	})
	s.attach(sandbox.AttachOptions{}).Close()
	eventually(t, "the end of the program", func() bool { _, err := os.Stat(done); return err == nil })
	<-time.After(time.Second) // longer than what others write is waited for
	a := s.attach(sandbox.AttachOptions{NoStart: true})
	var got int64
	for {
		f, err := a.Recv(ctx(t))
		if err != nil {
			t.Fatalf("after %d bytes: %v", got, err)
		}
		if f.Exit != nil {
			break
		}
		got += int64(len(f.Data))
		if err := a.Ack(ctx(t), got); err != nil {
			t.Fatal(err)
		}
	}
	if got != total {
		t.Errorf("%d bytes of %d", got, total)
	}
}

// A program that closes its terminal and opens it again is still heard, and one
// that closes its output and goes on isn't taken for ended.
func TestClosedOutput(t *testing.T) {
	d := start(t)
	size := &sandbox.Size{Cols: 80, Rows: 24}
	for name, c := range map[string]struct {
		line string
		tty  *sandbox.Size
		want string
	}{
		"terminal opened again": {"echo one; exec <&- >&- 2>&-; sleep 0.3; exec >/dev/tty; echo two; exec >&-; sleep 0.1; exec >/dev/tty; printf three; exit 3", size, "one\r\ntwo\r\nthree"},
		"terminal closed":       {"echo one; exec <&- >&- 2>&-; sleep 0.3; exit 3", size, "one\r\n"},
		"pipes closed":          {"echo one; exec <&- >&- 2>&-; sleep 0.3; exit 3", nil, "one\n"},
	} {
		s := process(t, d, sandbox.ProcessSpec{Key: name, Line: c.line, TTY: c.tty})
		got := collect(t, s.attach(sandbox.AttachOptions{}), 0)
		if got.out != c.want || !cmp.Equal(got.exits, []sandbox.Exit{{Code: 3}}) {
			t.Errorf("%s: %q, exits %v", name, got.out, got.exits)
		}
	}
	if res := run(t, d, "echo one; exec >&- 2>&-; sleep 0.2; exit 3"); string(res.Stdout) != "one\n" || res.ExitCode != 3 {
		t.Errorf("a command that closes its output: %+v", res)
	}
}
