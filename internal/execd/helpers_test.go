package execd_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/execd"
	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const token = "a-token-for-tests"

// patience bounds what a test waits for; nothing should come near it.
const patience = 20 * time.Second

// daemon is a server in this process and how to reach it.
type daemon struct {
	*execd.Server
	base string
	conn *client.Conn
}

func (d *daemon) endpoint(token string) sandbox.Endpoint {
	u, _ := url.Parse(d.base)
	return sandbox.Endpoint{URL: u, Headers: map[string]string{wire.HeaderToken: token}}
}

// start serves on a loopback port until the test ends, and checks that nothing
// of it is left then.
func start(t testing.TB) *daemon {
	t.Helper()
	return startWith(t, execd.Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
}

// startWith is start with what the test sets of the configuration.
func startWith(t testing.TB, cfg execd.Config) *daemon {
	t.Helper()
	before := goleak.IgnoreCurrent()
	reaper := child.NewReaper(false)
	cfg.Token, cfg.Version, cfg.Accounts, cfg.Reaper = token, "test", account.System, reaper
	s, err := execd.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		reaper.Close()
		client.CloseIdleConnections()
		if err := goleak.Find(before); err != nil {
			t.Error(err)
		}
	})
	d := &daemon{Server: s, base: "http://" + l.Addr().String()}
	d.conn = client.Dial(client.Fixed(d.endpoint(token)), nil)
	return d
}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return c
}

// run is for commands without a deadline of their own.
func run(t testing.TB, d *daemon, line string) sandbox.CommandResult {
	t.Helper()
	res, err := client.Commands(d.conn).Run(t.Context(), sandbox.Command{Line: line})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return res
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

// pidIn waits for a process id in a file.
func pidIn(t testing.TB, path string) int {
	t.Helper()
	var pid int
	eventually(t, "a process id in "+filepath.Base(path), func() bool {
		b, _ := os.ReadFile(path)
		if !bytes.HasSuffix(b, []byte("\n")) {
			return false
		}
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return pid > 0
	})
	return pid
}

// alive reports whether a process runs; a zombie that someone else has to reap doesn't.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	return f[0] != "Z" && f[0] != "X"
}

// killAtEnd is for a process that a test leaves behind on purpose.
func killAtEnd(t testing.TB, pid int) {
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
}

// session is a process under test.
type session struct {
	t  testing.TB
	p  sandbox.Processes
	id string
}

func process(t testing.TB, d *daemon, s sandbox.ProcessSpec) session {
	t.Helper()
	p := client.Processes(d.conn)
	if s.Key == "" {
		s.Key = t.Name()
	}
	id, err := p.Start(ctx(t), s)
	if err != nil {
		t.Fatalf("Start: %v", err)
	}
	return session{t, p, id}
}

func (s session) attach(o sandbox.AttachOptions) sandbox.Attachment {
	s.t.Helper()
	a, err := s.p.Attach(ctx(s.t), s.id, o)
	if err != nil {
		s.t.Fatalf("Attach(%+v): %v", o, err)
	}
	s.t.Cleanup(func() { a.Close() })
	return a
}

func (s session) status() sandbox.ProcessStatus {
	s.t.Helper()
	st, err := s.p.Status(ctx(s.t), s.id)
	if err != nil {
		s.t.Fatalf("Status: %v", err)
	}
	return st
}

// until collects output until it contains want.
func until(t testing.TB, a sandbox.Attachment, want string) string {
	t.Helper()
	var out bytes.Buffer
	for !strings.Contains(out.String(), want) {
		f, err := a.Recv(ctx(t))
		if err != nil {
			t.Fatalf("after %q: %v, while waiting for %q", out.String(), err, want)
		}
		out.Write(f.Data)
	}
	return out.String()
}

// rest is all that an attachment gives.
type rest struct {
	out, err string
	exits    []sandbox.Exit
	next     int64
}

// collect reads an attachment to its end and checks that offsets have no gaps.
func collect(t testing.TB, a sandbox.Attachment, from int64) rest {
	t.Helper()
	r := rest{next: from}
	var out, errs bytes.Buffer
	for {
		f, err := a.Recv(ctx(t))
		if errors.Is(err, io.EOF) {
			r.out, r.err = out.String(), errs.String()
			return r
		}
		if err != nil {
			t.Fatalf("Recv after %q: %v", out.String(), err)
		}
		if f.Offset != r.next {
			t.Fatalf("a frame at %d, want %d", f.Offset, r.next)
		}
		r.next += int64(len(f.Data))
		switch {
		case f.Exit != nil:
			r.exits = append(r.exits, *f.Exit)
		case f.Channel == sandbox.Stderr:
			errs.Write(f.Data)
		default:
			out.Write(f.Data)
		}
	}
}
