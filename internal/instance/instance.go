// Package instance runs an `astrabox serve` as a child process: for the demo,
// for benchmarks, and for tests that need to kill a server. An Instance is for
// one goroutine.
package instance

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/astrabox/astrabox/internal/httpapi/client"
	"github.com/astrabox/astrabox/internal/sandboxd"
)

// Config says which server is wanted.
type Config struct {
	Exe       string // the astrabox program
	StateDir  string
	Address   string        // to listen on, such as 127.0.0.1:8088
	IdleAfter time.Duration // zero: the default
	Backend   string        // the only one to enable; empty: the default
}

// Instance is a server that can be started, killed and started again on the
// same state. Its output goes to serve.log in the state directory.
type Instance struct {
	cfg    Config
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended
}

// New gives an instance that isn't started yet.
func New(cfg Config) *Instance { return &Instance{cfg: cfg} }

// Start starts the server and returns when it is ready. The error of a server
// that doesn't become ready has the end of its log.
func (i *Instance) Start(ctx context.Context) error {
	log, err := os.OpenFile(i.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(i.cfg.Exe, "serve", "--state-dir", i.cfg.StateDir, "--listen", i.cfg.Address)
	if i.cfg.IdleAfter != 0 {
		cmd.Args = append(cmd.Args, "--idle-after", i.cfg.IdleAfter.String())
	}
	cmd.Env = os.Environ()
	if b := i.cfg.Backend; b != "" {
		cmd.Env = append(cmd.Env, "ASTRABOX_SANDBOX_BACKENDS="+b, "ASTRABOX_SANDBOX_BACKEND="+b)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt is for the caller, who then stops the server
	if err := cmd.Start(); err != nil {
		return err
	}
	i.cmd, i.exited = cmd, make(chan struct{})
	go func(exited chan<- struct{}) {
		defer close(exited)
		_ = cmd.Wait() // the process state says how it ended
	}(i.exited)

	for {
		if i.ready(ctx) {
			return nil
		}
		select {
		case <-i.exited:
			i.cmd = nil
			return fmt.Errorf("the server ended while it started (%s); its log ends:\n%s", cmd.ProcessState, i.logTail())
		case <-ctx.Done():
			return fmt.Errorf("expected the server to become ready, it didn't; its log ends:\n%s", i.logTail())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (i *Instance) ready(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+i.cfg.Address+"/readyz", nil)
	if err != nil {
		return false
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Refused reports whether the server ended before it began anything: no
// service was started in its state directory.
func (i *Instance) Refused() bool {
	_, err := os.Stat(sandboxd.LogFile(i.cfg.StateDir))
	return i.cmd == nil && errors.Is(err, os.ErrNotExist)
}

// Client gives a client of the server.
func (i *Instance) Client() (*client.Client, error) { return client.New("http://" + i.cfg.Address) }

// PID is the server's process; 0: it isn't running.
func (i *Instance) PID() int {
	if i.cmd == nil {
		return 0
	}
	return i.cmd.Process.Pid
}

// Kill is kill -9, without any chance to clean up.
func (i *Instance) Kill() error {
	if err := i.cmd.Process.Kill(); err != nil {
		return err
	}
	<-i.exited
	i.cmd = nil
	return nil
}

// Stop is what Ctrl-C does, and waits for an end with status 0.
func (i *Instance) Stop(ctx context.Context) error {
	if err := i.cmd.Process.Signal(syscall.SIGINT); err != nil {
		return err
	}
	select {
	case <-i.exited:
		state := i.cmd.ProcessState
		i.cmd = nil
		if !state.Success() {
			return fmt.Errorf("expected the server to end with status 0, saw: %s; its log ends:\n%s", state, i.logTail())
		}
		return nil
	case <-ctx.Done():
		return errors.New("expected the server to end after an interrupt, it didn't")
	}
}

// Abandon ends a server that was left running, in order where that is possible.
func (i *Instance) Abandon() {
	if i.cmd == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := i.Stop(ctx); err != nil && i.cmd != nil {
		_ = i.Kill() // it has ended already otherwise
	}
}

// Service says where the bundled lifecycle service listens.
func (i *Instance) Service() (sandboxd.Listening, error) {
	return sandboxd.ReadListening(i.cfg.StateDir)
}

// AskService asks the bundled lifecycle service itself, past the platform, and
// gives the status of its answer.
func (i *Instance) AskService(ctx context.Context, path string) (status int, err error) {
	s, err := i.Service()
	if err != nil {
		return 0, err
	}
	key, err := os.ReadFile(sandboxd.KeyFile(i.cfg.StateDir))
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("OPEN-SANDBOX-API-KEY", strings.TrimSpace(string(key)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	resp.Body.Close()
	return resp.StatusCode, nil
}

// Installation is what the service's names on the host carry.
func (i *Instance) Installation() (string, error) {
	b, err := os.ReadFile(filepath.Join(sandboxd.Dir(i.cfg.StateDir), "installation"))
	return strings.TrimSpace(string(b)), err
}

func (i *Instance) logFile() string { return filepath.Join(i.cfg.StateDir, "serve.log") }

func (i *Instance) logTail() string {
	b, err := os.ReadFile(i.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}
