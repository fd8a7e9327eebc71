package execd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
)

func TestUser(t *testing.T) {
	d := start(t)
	want := run(t, d, `id -u nobody; id -g nobody; id -G nobody; sed -n 's/^nobody:.*:\([^:]*\):[^:]*$/\1/p' /etc/passwd`)
	f := strings.Split(string(want.Stdout), "\n")
	home := f[3]
	if _, err := os.Stat(home); err != nil {
		home = "/"
	}
	s := process(t, d, sandbox.ProcessSpec{User: "nobody", Line: "id -u; id -g; id -G; echo $HOME $USER $LOGNAME; pwd"})
	got := collect(t, s.attach(sandbox.AttachOptions{}), 0)
	if want := fmt.Sprintf("%s\n%s\n%s\n%s nobody nobody\n%s\n", f[0], f[1], f[2], f[3], home); got.out != want {
		t.Errorf("%q, want %q", got.out, want)
	}
	_, err := s.p.Start(ctx(t), sandbox.ProcessSpec{Key: "other", Line: "true", User: "no-such-account"})
	if sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("an unknown account: %v", err)
	}
	term := process(t, d, sandbox.ProcessSpec{Key: "term", User: "nobody", Line: "stat -c %U $(tty)", TTY: &sandbox.Size{Cols: 80, Rows: 24}})
	if got := collect(t, term.attach(sandbox.AttachOptions{}), 0); got.out != "nobody\r\n" {
		t.Errorf("the terminal belongs to %q", got.out)
	}
}

func TestStartFailureIsToldToTheOneWhoAttaches(t *testing.T) {
	d := start(t)
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := process(t, d, sandbox.ProcessSpec{Line: "true", Dir: dir})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := s.p.Attach(ctx(t), s.id, sandbox.AttachOptions{}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("%v", err)
	}
	if st := s.status(); st.State != sandbox.ProcessRegistered {
		t.Errorf("%+v", st)
	}
}

func TestDeleteKillsEverything(t *testing.T) {
	d := start(t)
	for name, c := range map[string]struct {
		end string
		tty *sandbox.Size
		how func(session, sandbox.Attachment)
	}{
		"attached":          {"echo started; exec sleep 1000", nil, func(session, sandbox.Attachment) {}},
		"terminal":          {"echo started; exec sleep 1000", &sandbox.Size{Cols: 80, Rows: 24}, func(session, sandbox.Attachment) {}},
		"detached":          {"echo started; exec sleep 1000", nil, func(_ session, a sandbox.Attachment) { a.Close() }},
		"leader has exited": {"echo started", nil, func(s session, a sandbox.Attachment) { collectExits(t, a) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := process(t, d, sandbox.ProcessSpec{Line: spread + c.end, Dir: dir, TTY: c.tty})
			a := s.attach(sandbox.AttachOptions{})
			pids := spreadPids(t, dir)
			c.how(s, a)
			if err := s.p.Delete(ctx(t), s.id); err != nil {
				t.Fatal(err)
			}
			for i, pid := range pids {
				if alive(pid) {
					t.Errorf("%s lives on", spreadFiles[i])
				}
			}
		})
	}
}

// A process that another account started is found too.
func TestDeleteKillsOtherAccounts(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	s := process(t, d, sandbox.ProcessSpec{User: "nobody", Line: spread + "sleep 1000", Dir: dir})
	s.attach(sandbox.AttachOptions{})
	pids := spreadPids(t, dir)
	if err := s.p.Delete(ctx(t), s.id); err != nil {
		t.Fatal(err)
	}
	for i, pid := range pids {
		if alive(pid) {
			t.Errorf("%s lives on", spreadFiles[i])
		}
	}
}

func TestDeleteIsToldToTheHolder(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: "echo ready; exec sleep 1000"})
	a := s.attach(sandbox.AttachOptions{})
	until(t, a, "ready\n")
	if err := s.p.Delete(ctx(t), s.id); err != nil {
		t.Fatal(err)
	}
	if got := collect(t, a, 6); !cmp.Equal(got.exits, []sandbox.Exit{{Code: 137, Signal: "SIGKILL"}}) {
		t.Errorf("%+v", got)
	}
}

func TestRecvGivesUpWithItsContext(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: "cat"})
	a := s.attach(sandbox.AttachOptions{})
	c, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Recv(c); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := a.Send(ctx(t), []byte("still here\n")); err != nil {
		t.Fatal(err)
	}
	until(t, a, "still here\n")
}

// Much output through a small buffer arrives in order, byte for byte, with
// stderr in between.
func TestBulk(t *testing.T) {
	d := start(t)
	s := process(t, d, sandbox.ProcessSpec{Line: `seq 1 300000 & seq 1 300000 >&2; wait`, Buffer: 128 << 10})
	got := collect(t, s.attach(sandbox.AttachOptions{}), 0)
	var want bytes.Buffer
	for i := range 300000 {
		fmt.Fprintln(&want, i+1)
	}
	if got.out != want.String() || got.err != want.String() {
		t.Errorf("%d and %d bytes of %d", len(got.out), len(got.err), want.Len())
	}
}

func TestTooManyProcesses(t *testing.T) {
	d := start(t)
	p := client.Processes(d.conn)
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		_, err = p.Start(ctx(t), sandbox.ProcessSpec{Key: fmt.Sprint(n), Line: "true"})
	}
	if sandbox.CodeOf(err) != sandbox.CodeCapacity || n != 257 {
		t.Errorf("after %d: %v", n, err)
	}
}

// A process that waits for somebody to take its output is deleted like any other.
func TestDeleteOfABlockedProcess(t *testing.T) {
	d := start(t)
	for _, tty := range []*sandbox.Size{nil, {Cols: 80, Rows: 24}} {
		s := process(t, d, sandbox.ProcessSpec{Line: "yes", Buffer: 4 << 10, Full: sandbox.Block, TTY: tty, Key: fmt.Sprint("tty ", tty != nil)})
		s.attach(sandbox.AttachOptions{}).Close()
		eventually(t, "a full buffer", func() bool { return s.status().Next == 4<<10 })
		begun := time.Now()
		if err := s.p.Delete(ctx(t), s.id); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 5*time.Second {
			t.Errorf("the deletion took %v", took)
		}
	}
}
