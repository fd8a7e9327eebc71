package e2e

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/httpapi/client"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/instance"
	"github.com/astrabox/astrabox/internal/inventory"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/sandboxd"
)

// server is an `astrabox serve` on a state directory of its own. When the test
// ends its conversations are deleted, it is stopped, and the host must be as
// it was before.
type server struct {
	*instance.Instance
	t       *testing.T
	api     *client.Client
	address string
	state   string
	place   inventory.Place
	before  inventory.Inventory
}

type options struct {
	idleAfter time.Duration
	state     string // a directory that is there; empty: a fresh one
}

// newServer starts a server.
func newServer(t *testing.T, o options) *server {
	t.Helper()
	need(t)
	s := &server{t: t, address: freeAddress(t), state: o.state, place: inventory.Place{ExeDir: bin}}
	if s.state == "" {
		s.state = stateDir(t)
	}
	var err error
	if s.before, err = s.place.Take(); err != nil {
		t.Fatal(err)
	}
	s.Instance = instance.New(instance.Config{Exe: exe, StateDir: s.state, Address: s.address, IdleAfter: o.idleAfter})
	if s.api, err = s.Client(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	s.start()
	return s
}

// stateDir makes a directory that a server takes.
func stateDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// freeAddress gives a loopback address that nobody listens on; the network
// namespace is the tests' own, so it stays free.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (s *server) url() string { return "http://" + s.address }

func (s *server) start() {
	s.t.Helper()
	if err := s.Start(timeout(s.t)); err != nil {
		s.t.Fatal(err)
	}
	var err error
	if s.place.Installation, err = s.Installation(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) kill() {
	s.t.Helper()
	if err := s.Kill(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) stop() {
	s.t.Helper()
	if err := s.Stop(timeout(s.t)); err != nil {
		s.t.Fatal(err)
	}
}

// end deletes what the test made, stops the server and looks at the host.
func (s *server) end() {
	defer s.api.Close()
	defer s.Abandon()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the server's log ends:\n%s", tail(filepath.Join(s.state, "serve.log")))
			s.t.Logf("the service's log ends:\n%s", tail(sandboxd.LogFile(s.state)))
		}
	}()
	ctx := timeout(s.t)
	if s.PID() == 0 {
		if err := s.Start(ctx); err != nil {
			s.t.Error(err)
			return
		}
	}
	for {
		page, err := s.api.Conversations(ctx, "", 200)
		if err != nil {
			s.t.Error(err)
			return
		}
		if len(page.Items) == 0 {
			break
		}
		for _, c := range page.Items {
			if d, err := s.api.Delete(ctx, c.ID); err != nil || d.State != model.Deleted {
				s.t.Errorf("deleting %s: state %s, destruction %+v, %v", c.ID, d.State, d.Destruction, err)
				return
			}
		}
	}
	if err := s.Stop(ctx); err != nil {
		s.t.Error(err)
		return
	}
	s.nothingLeft()
}

// nothingLeft waits until the host has nothing more than before the start, and
// the state directory no files of a sandbox.
func (s *server) nothingLeft() {
	s.t.Helper()
	until(s.t, "nothing of the installation to be left on the host", func() (bool, any) {
		now, err := s.place.Take()
		left := inventory.Added(s.before, now)
		for _, kind := range []string{"making", "sandboxes"} {
			found, _ := filepath.Glob(filepath.Join(sandboxd.Dir(s.state), "*", kind, "*"))
			left = append(left, found...)
		}
		return err == nil && len(left) == 0, left
	})
}

// pids gives the installation's processes of a name, those in sandboxes too.
func (s *server) pids(name string) []string {
	s.t.Helper()
	all, err := s.place.Processes()
	if err != nil {
		s.t.Fatal(err)
	}
	var out []string
	for _, p := range all {
		if pid, comm, _ := strings.Cut(p, " "); comm == name {
			out = append(out, pid)
		}
	}
	return out
}

// conversation makes one.
func (s *server) conversation() string {
	s.t.Helper()
	c, err := s.api.CreateConversation(timeout(s.t), wire.CreateConversation{Title: s.t.Name()}, "")
	if err != nil {
		s.t.Fatal(err)
	}
	return c.ID
}

func (s *server) look(id string) model.Conversation {
	s.t.Helper()
	c, err := s.api.Conversation(timeout(s.t), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func tail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}

// result is what a run of the command line gave.
type result struct {
	code        int
	out, errOut string
}

// command prepares a run of the command line in an empty environment, apart
// from what programs need to be found.
func command(t *testing.T, env []string, args ...string) (cmd *exec.Cmd, out, errOut *bytes.Buffer) {
	t.Helper()
	need(t)
	out, errOut = &bytes.Buffer{}, &bytes.Buffer{}
	cmd = exec.CommandContext(timeout(t), exe, args...)
	cmd.Stdout, cmd.Stderr = out, errOut
	cmd.Dir = t.TempDir()
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + cmd.Dir}, env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, out, errOut
}

// run runs a command to its end.
func run(t *testing.T, env []string, args ...string) result {
	t.Helper()
	cmd, out, errOut := command(t, env, args...)
	return result{exitCode(t, cmd.Run()), out.String(), errOut.String()}
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	}
	t.Fatalf("the program didn't exit by itself: %v", err)
	return -1
}
