package execd_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/internal/quirk"
)

// isolation reaches the sessions of a box, as a provider does: over a new Conn,
// which knows nothing of the daemon, for each operation.
func (b *box) isolation() execd.Isolation {
	return execd.Isolated(func(context.Context, string) (*execd.Conn, error) { return b.dial(quirk.Token), nil })
}

func (b *box) openIsolated() sandbox.IsolatedSession {
	b.t.Helper()
	s, err := b.isolation().OpenIsolatedSession(ctx(b.t), "s", sandbox.IsolatedSessionSpec{Workspace: b.tmp})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// Runs in a session of a foreign execd: what its own clients stumble over
// doesn't happen, and what its wire can't carry is as documented.
func TestForeignIsolatedRuns(t *testing.T) {
	for _, faults := range [][]quirk.Fault{nil, {quirk.RunEndsSession, quirk.OddDelete, quirk.DataLines, quirk.OddErrors}} {
		t.Run(fmt.Sprint(faults), func(t *testing.T) {
			b := foreign(t, faults...)
			s := b.openIsolated()
			for _, c := range []struct {
				cmd  sandbox.Command
				want string
			}{
				{sandbox.Command{Line: "pwd"}, b.tmp + "\n|0"},
				{sandbox.Command{Line: "echo out; echo err >&2; (exit 3)"}, "out\nerr\n|3"},
				{sandbox.Command{Line: "read x; echo \"[$x]\"; cat"}, "[]\n|0"}, // the next line isn't eaten
				{sandbox.Command{Line: "cd /usr; export A=\"it's\""}, "|0"},
				{sandbox.Command{Line: "pwd; echo $A"}, "/usr\nit's\n|0"},
				{sandbox.Command{Line: "pwd; cd /; export A=2", Dir: "/tmp"}, "/tmp\n|0"},
				{sandbox.Command{Line: "echo $A $B; cd /", Env: map[string]string{"B": "q'$x"}}, "it's q'$x\n|0"},
				{sandbox.Command{Line: "pwd; echo $A$B"}, "/usr\nit's\n|0"},
				{sandbox.Command{Line: "printf unterminated; exit 4", Dir: "/"}, "unterminated\n|4"},
				{sandbox.Command{Line: "cd /none", Dir: "/none"}, "*|1"},
			} {
				c.cmd.Timeout = patience
				res, err := s.Commands().Run(t.Context(), c.cmd)
				if err != nil {
					t.Fatalf("%+v: %v", c.cmd, err)
				}
				got := fmt.Sprintf("%s|%d", res.Stdout, res.ExitCode)
				if strings.HasPrefix(c.want, "*") {
					got = fmt.Sprintf("*|%d", res.ExitCode)
				}
				if d := cmp.Diff(c.want, got); d != "" {
					t.Errorf("%+v: %s", c.cmd, d)
				}
			}
			for _, line := range []string{"echo 'open", "echo \"$(", "if true"} { // would wait for ever
				if res, err := s.Commands().Run(ctx(t), sandbox.Command{Line: line}); err != nil || res.ExitCode == 0 {
					t.Errorf("%q: %+v, %v", line, res, err)
				}
			}
			for what, c := range map[string]sandbox.Command{
				"nothing": {}, "a NUL": {Line: "a\x00"}, "a time": {Line: "x", Timeout: -1},
				"another line": {Line: "echo \xff"}, "another directory": {Line: "pwd", Dir: "/tmp/\xff"}, "another value": {Line: "env", Env: map[string]string{"A": "\xff"}},
			} {
				if _, err := s.Commands().Run(ctx(t), c); sandbox.CodeOf(err) != sandbox.CodeInvalid {
					t.Errorf("%s: %v", what, err)
				}
			}
			if _, err := s.Processes().Start(ctx(t), sandbox.ProcessSpec{Key: "k", Line: "true"}); !errors.Is(err, sandbox.ErrUnsupported) {
				t.Errorf("processes: %v", err)
			}
			if err := s.Files().Write(ctx(t), b.tmp+"/file", strings.NewReader("x"), sandbox.WriteOptions{}); err != nil {
				t.Errorf("files: %v", err)
			}
			if _, err := s.Files().Stat(ctx(t), "/etc/passwd"); !errors.Is(err, sandbox.ErrPathRejected) {
				t.Errorf("files elsewhere: %v", err)
			}
		})
	}
}

// A path that JSON can't carry would become another one, so nothing is asked for.
func TestIsolatedPathsAreText(t *testing.T) {
	i := execd.Isolated(func(context.Context, string) (*execd.Conn, error) {
		t.Error("the sandbox was asked")
		return nil, sandbox.ErrUnreachable
	})
	for _, s := range []sandbox.IsolatedSessionSpec{
		{Workspace: "/w\xff"},
		{Workspace: "/w", Source: "/\xff"},
		{Workspace: "/w", Writable: []string{"/a", "/\xff"}},
		{Workspace: "/w", Binds: []sandbox.IsolatedBind{{Source: "/\xff"}}},
		{Workspace: "/w", Binds: []sandbox.IsolatedBind{{Source: "/a", Path: "/\xff"}}},
	} {
		if _, err := i.OpenIsolatedSession(ctx(t), "s", s); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%+q: %v", fmt.Sprintf("%+v", s), err)
		}
	}
}

// A session that ends with a run is reported as such, and with the deadline.
func TestForeignIsolatedSessionEnds(t *testing.T) {
	b := foreign(t, quirk.RunEndsSession, quirk.OddDelete)
	iso := b.isolation()
	s := b.openIsolated()
	begun := time.Now()
	_, err := s.Commands().Run(t.Context(), sandbox.Command{Line: "sleep 100", Timeout: 200 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, sandbox.ErrIsolatedSessionNotFound) || time.Since(begun) > patience/2 {
		t.Errorf("a timeout: %v after %v", err, time.Since(begun))
	}
	if _, err := iso.RunInIsolatedSession(ctx(t), "s", s.SessionID(), sandbox.Command{Line: "true"}); !errors.Is(err, sandbox.ErrIsolatedSessionNotFound) {
		t.Errorf("the next run: %v", err)
	}
	if _, err := iso.ConnectIsolatedSession(ctx(t), "s", s.SessionID()); !errors.Is(err, sandbox.ErrIsolatedSessionNotFound) {
		t.Errorf("connect: %v", err)
	}
	for range 2 {
		if err := iso.CloseIsolatedSession(ctx(t), "s", s.SessionID()); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	s = b.openIsolated()
	if _, err := s.Commands().Run(ctx(t), sandbox.Command{Line: "exit 3"}); !errors.Is(err, sandbox.ErrIsolatedSessionNotFound) {
		t.Errorf("exit: %v", err)
	}
	s = b.openIsolated()
	giveUp, cancel := context.WithCancel(t.Context())
	if _, err := s.Commands().Stream(giveUp, sandbox.Command{Line: "echo on; sleep 100"}, writer(func([]byte) { cancel() }), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run: %v", err)
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

func TestForeignIsolatedSessions(t *testing.T) {
	b := foreign(t)
	iso := b.isolation()
	if c, err := iso.ReadIsolationCapability(ctx(t), "s"); err != nil || !c.Available || c.Isolator != "bwrap" || !c.UserNamespaces {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := iso.OpenIsolatedSession(ctx(t), "s", sandbox.IsolatedSessionSpec{Workspace: "/tmp/x", Source: b.tmp}); sandbox.CodeOf(err) != sandbox.CodeIsolationUnsupported {
		t.Errorf("another source: %v", err)
	}
	one, two := b.openIsolated(), b.openIsolated()
	if n, err := iso.CountActiveIsolatedSessions(ctx(t), "s"); n != 2 || err != nil {
		t.Errorf("%d sessions, %v", n, err)
	}
	found, err := iso.FindIsolatedSessionsByWorkspace(ctx(t), "s", b.tmp+"/")
	if d := cmp.Diff([]string{one.SessionID(), two.SessionID()}, found); d != "" || err != nil {
		t.Errorf("found: %s %v", d, err)
	}
	if found, err := iso.FindIsolatedSessionsByWorkspace(ctx(t), "s", "/elsewhere"); len(found) != 0 || err != nil {
		t.Errorf("found elsewhere: %v %v", found, err)
	}
	if err := iso.CloseIsolatedSession(ctx(t), "s", one.SessionID()); err != nil {
		t.Error(err)
	}
	if n, err := iso.CountActiveIsolatedSessions(ctx(t), "s"); n != 1 || err != nil {
		t.Errorf("%d sessions, %v", n, err)
	}
	work := b.tmp + "/made/deep"
	if err := iso.PrepareIsolatedWorkspace(ctx(t), "s", work, 1234, 2345); err != nil {
		t.Error(err)
	}
	if got := b.run("stat -c %u:%g:%a " + work); string(got.Stdout) != "1234:2345:700\n" {
		t.Errorf("prepared: %s", got.Stdout)
	}
}

// What can't be known is an error, and "no" is an answer.
func TestForeignIsolatedFaults(t *testing.T) {
	spec := sandbox.IsolatedSessionSpec{Workspace: "/tmp"}
	open := func(i execd.Isolation) error {
		_, err := i.OpenIsolatedSession(context.Background(), "s", spec)
		return err
	}
	count := func(i execd.Isolation) error {
		n, err := i.CountActiveIsolatedSessions(context.Background(), "s")
		if err == nil {
			err = fmt.Errorf("it counted %d", n)
		}
		return err
	}
	find := func(i execd.Isolation) error {
		ids, err := i.FindIsolatedSessionsByWorkspace(context.Background(), "s", "/tmp")
		if err == nil {
			err = fmt.Errorf("it found %v", ids)
		}
		return err
	}
	for _, c := range []struct {
		name  string
		fault quirk.Fault
		first bool // a session is open
		do    func(execd.Isolation) error
		is    error
		code  sandbox.Code
	}{
		{"open without an id", quirk.NoSessionID, false, open, nil, sandbox.CodeUnavailable},
		{"open where there are none", quirk.NoIsolation, false, open, sandbox.ErrUnsupported, sandbox.CodeIsolationUnsupported},
		{"open over an old daemon", quirk.NoIsolatedCalls, false, open, sandbox.ErrUnsupported, sandbox.CodeIsolationUnsupported},
		{"count where there are none", quirk.NoIsolation, false, count, sandbox.ErrUnsupported, sandbox.CodeIsolationUnsupported},
		{"count over an old daemon", quirk.NoIsolatedCalls, false, count, sandbox.ErrUnsupported, sandbox.CodeIsolationUnsupported},
		{"count without a list", quirk.BareListing, false, count, sandbox.ErrUnreachable, ""},
		{"find without a list", quirk.BareListing, false, find, sandbox.ErrUnreachable, ""},
		{"find an unnamed workspace", quirk.UnnamedWorks, true, find, sandbox.ErrUnsupported, sandbox.CodeUnsupported},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := foreign(t, c.fault)
			if c.first {
				b.openIsolated()
			}
			err := c.do(b.isolation())
			if err == nil || c.is != nil && !errors.Is(err, c.is) || sandbox.CodeOf(err) != c.code {
				t.Errorf("%v, want %v and %s", err, c.is, c.code)
			}
		})
	}
	for name, fault := range map[string]quirk.Fault{"none": quirk.NoIsolation, "an old daemon": quirk.NoIsolatedCalls} {
		b := foreign(t, fault)
		if c, err := b.isolation().ReadIsolationCapability(ctx(t), "s"); err != nil || c.Available || c.Detail == "" {
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}

// A sandbox that is gone has no session left; one that can't be asked may.
func TestIsolatedSandboxes(t *testing.T) {
	u, _ := url.Parse("http://127.0.0.1:1")
	dead := execd.Dial(execd.Fixed(sandbox.Endpoint{URL: u}), nil)
	for _, c := range []struct {
		name   string
		err    error
		closed bool
	}{
		{"gone", sandbox.Errorf(sandbox.CodeGone, "gone"), true},
		{"not found", sandbox.Errorf(sandbox.CodeNotFound, "not found"), true},
		{"paused", sandbox.Errorf(sandbox.CodeNotRunning, "paused"), true},
		{"unreachable", fmt.Errorf("%w: no", sandbox.ErrUnreachable), false},
		{"silent", nil, false},
	} {
		i := execd.Isolated(func(context.Context, string) (*execd.Conn, error) { return dead, c.err })
		err := i.CloseIsolatedSession(t.Context(), "s", "id")
		if (err == nil) != c.closed || !c.closed && !errors.Is(err, sandbox.ErrUnreachable) {
			t.Errorf("%s: close: %v", c.name, err)
		}
		n, err := i.CountActiveIsolatedSessions(t.Context(), "s")
		if err == nil || c.err != nil && !errors.Is(err, c.err) {
			t.Errorf("%s: count: %d, %v", c.name, n, err)
		}
		if _, err := i.ReadIsolationCapability(t.Context(), "s"); err == nil {
			t.Errorf("%s: a capability", c.name)
		}
	}
	asked := false
	i := execd.Isolated(func(context.Context, string) (*execd.Conn, error) { asked = true; return dead, nil })
	for what, f := range map[string]func() error{
		"a bad id": func() error { _, err := i.CountActiveIsolatedSessions(t.Context(), "../x"); return err },
		"a bad spec": func() error {
			_, err := i.OpenIsolatedSession(t.Context(), "s", sandbox.IsolatedSessionSpec{Workspace: "x"})
			return err
		},
		"a bad source": func() error { _, err := i.FindIsolatedSessionsByWorkspace(t.Context(), "s", "x"); return err },
		"a bad path":   func() error { return i.PrepareIsolatedWorkspace(t.Context(), "s", "/../x", 1, 1) },
		"a bad uid":    func() error { return i.PrepareIsolatedWorkspace(t.Context(), "s", "/x", 1<<32-1, 1) },
	} {
		if err := f(); err == nil || asked {
			t.Errorf("%s: %v, and the sandbox was asked: %v", what, err, asked)
		}
	}
}
