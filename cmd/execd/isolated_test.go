package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
			res, err := s.Commands().Run(t.Context(), sandbox.Command{Line: "(setsid sleep 3000 >/dev/null 2>&1 &); readlink /proc/self/ns/pid"})
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
