package whole_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
)

// Isolated sessions through the provider, in a sandbox of the bundled service:
// opened, lost, found again, ended by a pause, and gone with the sandbox.
func TestIsolatedSessions(t *testing.T) {
	m := newMachine(t)
	defer m.cleanStop()
	p := m.p
	if p.Isolated == nil || p.Recovery == nil {
		t.Fatal("the provider doesn't declare isolated sessions")
	}
	id := m.create(spec("isolated")).SandboxID()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if c, err := p.Isolated.ReadIsolationCapability(ctx, id); err != nil || !c.Available {
		t.Fatalf("capability %+v, %v", c, err)
	}
	const source = "/home/conv_one"
	open := func() sandbox.IsolatedSession {
		t.Helper()
		if err := p.Isolated.PrepareIsolatedWorkspace(ctx, id, source, 5001, 5001); err != nil {
			t.Fatal(err)
		}
		s, err := p.Isolated.OpenIsolatedSession(ctx, id, sandbox.IsolatedSessionSpec{Workspace: "/workspace", Source: source, UID: 5001, GID: 5001})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	res, err := p.Isolated.RunInIsolatedSession(ctx, id, s.SessionID(), sandbox.Command{Line: "pwd; id -u; echo kept >file"})
	if err != nil || string(res.Stdout) != "/workspace\n5001\n" {
		t.Errorf("%+v, %v", res, err)
	}
	var out strings.Builder
	if res, err := p.Isolated.StreamInIsolatedSession(ctx, id, s.SessionID(), sandbox.Command{Line: "echo out; exit 3"}, &out, nil); err != nil || res.ExitCode != 3 || out.String() != "out\n" {
		t.Errorf("%q %+v, %v", &out, res, err)
	}
	if info, err := s.Files().Stat(ctx, "/workspace/file"); err != nil || info.Size != 5 || info.Owner != "5001" {
		t.Errorf("%+v, %v", info, err)
	}
	pid, err := s.Processes().Start(ctx, sandbox.ProcessSpec{Key: "k", Line: "echo here; sleep 1000", TTY: &sandbox.Size{Cols: 80, Rows: 24}})
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Processes().Attach(ctx, pid, sandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if f, err := a.Recv(ctx); err != nil || !strings.HasPrefix(string(f.Data), "here") {
		t.Errorf("%+v, %v", f, err)
	}
	a.Close()

	found, err := p.Recovery.FindIsolatedSessionsByWorkspace(ctx, id, source)
	if d := cmp.Diff([]string{s.SessionID()}, found); d != "" || err != nil {
		t.Errorf("found: %s %v", d, err)
	}
	if n, err := p.Isolated.CountActiveIsolatedSessions(ctx, id); n != 1 || err != nil {
		t.Errorf("%d sessions, %v", n, err)
	}
	// A pause ends the sessions, and closing is success all the same; the
	// workspace stays.
	if paused, err := p.Pauser.Pause(ctx, id); !paused || err != nil {
		t.Fatal(paused, err)
	}
	if n, err := p.Isolated.CountActiveIsolatedSessions(ctx, id); !errors.Is(err, sandbox.ErrNotRunning) {
		t.Errorf("of a paused sandbox: %d, %v", n, err)
	}
	if err := p.Isolated.CloseIsolatedSession(ctx, id, s.SessionID()); err != nil {
		t.Errorf("close in a paused sandbox: %v", err)
	}
	if running, err := p.Pauser.Resume(ctx, id); !running || err != nil {
		t.Fatal(running, err)
	}
	if _, err := p.Isolated.ConnectIsolatedSession(ctx, id, s.SessionID()); !errors.Is(err, sandbox.ErrIsolatedSessionNotFound) {
		t.Errorf("after a resume: %v", err)
	}
	s = open()
	if res, err := s.Commands().Run(ctx, sandbox.Command{Line: "cat file"}); err != nil || string(res.Stdout) != "kept\n" {
		t.Errorf("after a resume: %+v, %v", res, err)
	}
	// Gone with the sandbox.
	if d := sandbox.ConfirmDestroyed(ctx, p, id); !d.ConfirmsGone(id) {
		t.Fatalf("%+v", d)
	}
	if err := p.Isolated.CloseIsolatedSession(ctx, id, s.SessionID()); err != nil {
		t.Errorf("close in a sandbox that is gone: %v", err)
	}
	for what, f := range map[string]func() error{
		"count": func() error { _, err := p.Isolated.CountActiveIsolatedSessions(ctx, id); return err },
		"find":  func() error { _, err := p.Recovery.FindIsolatedSessionsByWorkspace(ctx, id, source); return err },
		"read":  func() error { _, err := p.Isolated.ReadIsolationCapability(ctx, id); return err },
		"run": func() error {
			_, err := p.Isolated.RunInIsolatedSession(ctx, id, "x", sandbox.Command{Line: "true"})
			return err
		},
		"prepare": func() error { return p.Isolated.PrepareIsolatedWorkspace(ctx, id, source, 1, 1) },
	} {
		if err := f(); !errors.Is(err, sandbox.ErrNotFound) {
			t.Errorf("%s in a sandbox that is gone: %v", what, err)
		}
	}
}
