package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/test/machine"
)

// A daemon that is killed, or ends, takes its isolated sessions with it, with
// all that runs in them, and what it starts can't make what they are made of.
func TestIsolatedSessionsEndWithTheDaemon(t *testing.T) {
	machine.NeedRoot(t)
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "asked": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			d := start(t, setup{args: []string{"--reserve-mounts"}})
			iso := client.Isolated(func(context.Context, string) (*client.Conn, error) { return d.conn, nil })
			dir := filepath.Join(t.TempDir(), "ws")
			if err := iso.PrepareIsolatedWorkspace(t.Context(), "s", dir, 4321, 4321); err != nil {
				t.Fatal(err)
			}
			s, err := iso.OpenIsolatedSession(t.Context(), "s", sandbox.IsolatedSessionSpec{Workspace: dir, UID: 4321, GID: 4321})
			if err != nil {
				t.Fatal(err)
			}
			res, err := s.Commands().Run(t.Context(), sandbox.Command{Line: "(setsid sleep 3000 >/dev/null 2>&1 &); " +
				"(setsid bash -c \"trap 'sleep 0.2; touch bye; exit' TERM; touch up; while :; do sleep 0.02; done\" >/dev/null 2>&1 &); " +
				"until test -e up; do sleep 0.02; done; readlink /proc/self/ns/pid"})
			if err != nil {
				t.Fatal(err)
			}
			ns := strings.TrimSpace(string(res.Stdout))
			if n := inNamespace(ns); n < 2 {
				t.Fatalf("%d processes of the session", n)
			}
			for _, line := range []string{"mount -t tmpfs none /mnt", "unshare -m true", "unshare -r true", "unshare -n true"} {
				if res, err := client.Commands(d.conn).Run(t.Context(), sandbox.Command{Line: line}); err != nil || res.ExitCode == 0 || res.ExitCode == 127 {
					t.Errorf("%s: %+v, %v", line, res, err)
				}
			}
			if err := d.cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			_ = d.cmd.Wait() // it was killed
			if _, err := os.Lstat(dir + "/bye"); (err == nil) != (sig == syscall.SIGTERM) {
				t.Errorf("what was asked to end, or wasn't: %v", err)
			}
			end := time.Now().Add(patience)
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for inNamespace(ns) > 0 {
				if time.Now().After(end) {
					t.Fatalf("%d processes of the session live on", inNamespace(ns))
				}
				<-tick.C
			}
		})
	}
}

// inNamespace counts the processes of a PID namespace.
func inNamespace(ns string) (n int) {
	links, _ := filepath.Glob("/proc/[0-9]*/ns/pid")
	for _, link := range links {
		if got, err := os.Readlink(link); err == nil && got == ns {
			n++
		}
	}
	return n
}

// Without its capabilities a daemon says that it makes no sessions, and why.
func TestNoIsolatedSessions(t *testing.T) {
	machine.NeedRoot(t)
	d := start(t, setup{env: []string{runMain + "=bare"}})
	iso := client.Isolated(func(context.Context, string) (*client.Conn, error) { return d.conn, nil })
	c, err := iso.ReadIsolationCapability(t.Context(), "s")
	if err != nil || c.Available || c.SwitchAccount || !strings.Contains(c.Detail, "capabilities") {
		t.Errorf("%+v, %v", c, err)
	}
	dir := t.TempDir()
	if _, err := iso.OpenIsolatedSession(t.Context(), "s", sandbox.IsolatedSessionSpec{Workspace: dir}); sandbox.CodeOf(err) != sandbox.CodeIsolationUnsupported || !strings.Contains(fmt.Sprint(err), "capabilities") {
		t.Errorf("open: %v", err)
	}
	if n, err := iso.CountActiveIsolatedSessions(t.Context(), "s"); n != 0 || err != nil {
		t.Errorf("count: %d, %v", n, err)
	}
}

// What an isolated session was writing when the daemon was killed, and the
// session with it, is gone once the next daemon has started.
func TestKilledSessionsLeaveNoNames(t *testing.T) {
	machine.NeedRoot(t)
	dir, run := filepath.Join(t.TempDir(), "ws"), t.TempDir()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	names := func() (all []string) {
		all, _ = filepath.Glob(dir + "/.astrabox-*")
		return all
	}
	for kills := range 2 {
		d := start(t, setup{args: []string{"--reserve-mounts"}, run: run})
		if left := names(); len(left) > 0 {
			t.Fatalf("left behind by kill %d: %v", kills, left)
		}
		iso := client.Isolated(func(context.Context, string) (*client.Conn, error) { return d.conn, nil })
		s, err := iso.OpenIsolatedSession(ctx(t), "s", sandbox.IsolatedSessionSpec{Workspace: "/tmp/seen", Source: dir})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			all.Go(func() {
				for s.Files().Write(ctx(t), "/tmp/seen/"+name, strings.NewReader(strings.Repeat(name, 5000)), sandbox.WriteOptions{}) == nil {
				}
			})
		}
		session := sessionOf(t, d.cmd.Process.Pid)
		machine.StopWhen(t, session, func() bool { return len(names()) > 0 })
		if err := d.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(session, syscall.SIGKILL); err != nil { // it would still finish the file
			t.Fatal(err)
		}
		_ = d.cmd.Wait() // it was killed
		all.Wait()
	}
	d := start(t, setup{run: run})
	if left := names(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := d.cmd.Wait(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(run); len(left) > 0 || err != nil {
		t.Errorf("an orderly end leaves %v, %v", left, err)
	}
}

// sessionOf gives the first process of the session that a daemon has.
func sessionOf(t *testing.T, daemon int) int {
	t.Helper()
	all, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, file := range all {
		b, _ := os.ReadFile(file)
		if strings.Contains(string(b), fmt.Sprintf("\nPPid:\t%d\n", daemon)) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	t.Fatalf("%d has no child", daemon)
	return 0
}
