package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd"
	"github.com/astrabox/astrabox/internal/sandboxd/launch"
	_ "github.com/astrabox/astrabox/provider/all"
	"github.com/astrabox/astrabox/sandbox"
)

// service is a bundled lifecycle service on a fresh state directory, reached
// through the provider that a server would use.
type service struct {
	*sandbox.Bound
	state string
	pid   int
}

func newService(ctx context.Context, exe string) (_ *service, err error) {
	state, err := os.MkdirTemp("", "astrabox-bench-")
	if err != nil {
		return nil, err
	}
	s := &service{state: state}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if _, _, err := launch.Ensure(ctx, launch.Config{StateDir: state, Executable: exe}); err != nil {
		return nil, err
	}
	listening, err := sandboxd.ReadListening(state)
	if err != nil {
		return nil, err
	}
	s.pid = listening.PID
	drivers, err := sandbox.Installed()
	if err != nil {
		return nil, err
	}
	for _, d := range drivers {
		if d.Name != "open_sandbox" {
			continue
		}
		settings := map[string]string{
			"ASTRABOX_SANDBOX_OPENAPI_LISTEN_FILE": sandboxd.ListenFile(state),
			"ASTRABOX_SANDBOX_OPENAPI_KEY_FILE":    sandboxd.KeyFile(state),
		}
		s.Bound, err = d.Open(ctx, sandbox.Host{Getenv: func(name string) string { return settings[name] }, InstallationID: "bench"})
		return s, err
	}
	return nil, errors.New("bench: open_sandbox isn't installed")
}

// close destroys what sandboxes are left, ends the service and removes its state.
func (s *service) close() error {
	if s.Bound != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.destroyAll(ctx); err != nil {
			return err
		}
		if err := s.Close(); err != nil {
			return err
		}
	}
	if s.pid != 0 {
		if err := endProcess(s.pid); err != nil {
			return err
		}
	}
	return os.RemoveAll(s.state)
}

// endProcess asks a process to end and waits until it did.
func endProcess(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return err
	}
	for range 200 {
		_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // reaps it, if it's a child of ours
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("bench: process %d didn't end within 10 s", pid)
}

func spec() sandbox.CreateSpec {
	return sandbox.CreateSpec{
		InstallationID: "bench", OwnerID: "conv_" + rand.Text(), AssignmentID: "asg_" + rand.Text(), Image: "astrabox:host",
		ResourceLimits:   map[string]string{"cpu": "2", "memory": "4Gi", "pids": "4096"},
		ResourceRequests: map[string]string{"cpu": "200m", "memory": "768Mi"},
		TTL:              time.Hour,
	}
}

// box finds the OCI bundle of a running sandbox.
func (s *service) box(id string) (string, error) {
	found, err := filepath.Glob("/run/astrabox/*/box/" + id)
	if err != nil || len(found) != 1 {
		return "", fmt.Errorf("bench: bundle of sandbox %s: found %v: %w", id, found, err)
	}
	return found[0], nil
}
