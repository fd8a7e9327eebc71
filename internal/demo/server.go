package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// address is free: the network namespace is the demo's own.
const address = "127.0.0.1:8088"

// server is the `astrabox serve` that the demo walks with.
type server struct {
	exe, state, backend string
	cmd                 *exec.Cmd
	exited              chan error
}

// idleAfter is short, so that the demo sees a pause; long enough for a step's
// own gaps.
const idleAfter = 4 * time.Second

func (s *server) start(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(s.state, "serve.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(s.exe, "serve", "--state-dir", s.state, "--listen", address, "--idle-after", idleAfter.String())
	cmd.Env = os.Environ()
	if s.backend != "" {
		cmd.Env = append(cmd.Env, "ASTRABOX_SANDBOX_BACKENDS="+s.backend, "ASTRABOX_SANDBOX_BACKEND="+s.backend)
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt is for the demo, which then stops the server
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd, s.exited = cmd, make(chan error, 1)
	go func(exited chan<- error) { exited <- cmd.Wait() }(s.exited)

	for {
		if s.ready(ctx) {
			return nil
		}
		select {
		case err := <-s.exited:
			s.cmd = nil
			return fmt.Errorf("the server ended while it started (%w); its log ends:\n%s", err, s.logTail())
		case <-ctx.Done():
			return fmt.Errorf("expected the server to become ready, it didn't; its log ends:\n%s", s.logTail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (s *server) ready(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// kill is kill -9, without any chance to clean up.
func (s *server) kill() error {
	if err := s.cmd.Process.Kill(); err != nil {
		return err
	}
	<-s.exited
	s.cmd = nil
	http.DefaultClient.CloseIdleConnections()
	return nil
}

// stop is what Ctrl-C does, and waits for the end.
func (s *server) stop(ctx context.Context) error {
	if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil {
		return err
	}
	select {
	case err := <-s.exited:
		s.cmd = nil
		if err != nil {
			return fmt.Errorf("expected the server to end with status 0, saw: %w; its log ends:\n%s", err, s.logTail())
		}
		return nil
	case <-ctx.Done():
		return errors.New("expected the server to end after an interrupt, it didn't")
	}
}

// abandon ends a server that a failed walk left, so that it cleans up.
func (s *server) abandon() {
	if s.cmd == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := s.stop(ctx); err != nil && s.cmd != nil {
		s.cmd.Process.Kill() //nolint:errcheck // it is gone already otherwise
		<-s.exited
	}
}

func (s *server) logTail() string {
	b, err := os.ReadFile(filepath.Join(s.state, "serve.log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}
