package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/sandboxd"
	"github.com/astrabox/astrabox/internal/sandboxd/launch"
)

// The settings of the open_sandbox provider that name a lifecycle service of
// the operator's own. With one of them set the bundled service isn't used.
var externalSettings = []string{"ASTRABOX_SANDBOX_OPENAPI_BASE_URL", "ASTRABOX_SANDBOX_OPENAPI_LISTEN_FILE"}

func needsBundled(getenv func(string) string, b backends) bool {
	return b.has(defaultBackend) && !slices.ContainsFunc(externalSettings, func(s string) bool { return getenv(s) != "" })
}

// bundled is the lifecycle service that comes with this program. It is a
// process of its own: it outlives a crash of this one, and is found again. A
// nil *bundled is one that isn't used.
type bundled struct {
	cfg launch.Config
	url string
}

// newBundled describes the service of the state directory, without any I/O.
func newBundled(c Config, stateDir string, b backends) *bundled {
	if !needsBundled(c.Getenv, b) {
		return nil
	}
	return &bundled{cfg: launch.Config{StateDir: stateDir, Executable: c.Executable, Log: c.Log}}
}

// start adopts the service that runs, or starts it.
func (b *bundled) start(ctx context.Context) (err error) {
	if b == nil {
		return nil
	}
	// A Ctrl-C meanwhile must not leave a service that is half started and that
	// nobody would stop: the start is ended, and then it is stopped in order.
	if b.url, _, err = launch.Ensure(context.WithoutCancel(ctx), b.cfg); err != nil {
		return fault.Wrap(fault.RuntimeUnavailable, err, "The sandbox service doesn't start: %v", err)
	}
	return nil
}

// keep starts the service again when it dies, until ctx ends.
func (b *bundled) keep(ctx context.Context) error {
	if b == nil {
		return nil
	}
	return launch.Keep(ctx, b.cfg)
}

// getenv points the provider at the service, whose address changes when it
// restarts: the provider reads the files anew for each request.
func (b *bundled) getenv(getenv func(string) string) func(string) string {
	if b == nil {
		return getenv
	}
	return func(name string) string {
		switch name {
		case "ASTRABOX_SANDBOX_OPENAPI_LISTEN_FILE":
			return sandboxd.ListenFile(b.cfg.StateDir)
		case "ASTRABOX_SANDBOX_OPENAPI_KEY_FILE":
			return sandboxd.KeyFile(b.cfg.StateDir)
		case "ASTRABOX_SANDBOX_OPENAPI_KEY":
			return "" // of a service that isn't used
		}
		return getenv(name)
	}
}

// end stops the service at a clean stop, so that nothing of this installation
// runs on. It isn't told to when sandboxes are to be kept.
func (b *bundled) end(ctx context.Context, c Config) error {
	if b == nil || c.KeepSandboxes {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	switch err := terminate(ctx, b.cfg.StateDir); {
	case errors.Is(err, errNotOurs):
		c.Log.Info("the sandbox service was not started by this program and goes on")
		return nil
	case err != nil:
		return fmt.Errorf("stop sandboxd: %w", err)
	}
	return nil
}

// errNotOurs: a service runs, and this program didn't start it.
var errNotOurs = errors.New("it was not started by this program")

// terminate sends SIGTERM to the service of a state directory and waits until
// it has let go of the directory. One that somebody else started, a system
// service for example, is left alone: errNotOurs.
func terminate(ctx context.Context, stateDir string) error {
	var l sandboxd.Listening
	for {
		locked, err := sandboxd.Locked(stateDir)
		if err != nil || !locked {
			return err
		}
		if l, err = sandboxd.ReadListening(stateDir); err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select { // it is just starting, or ending
		case <-ctx.Done():
			return err
		case <-time.After(10 * time.Millisecond):
		}
	}
	// The number may be another process's by now. A pidfd names one process
	// for ever, so it is opened first, then looked at, then signalled.
	fd, err := unix.PidfdOpen(l.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !launched(l.PID, stateDir) {
		return errNotOurs
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGTERM, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for {
		locked, err := sandboxd.Locked(stateDir)
		if err != nil || !locked {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d doesn't end", l.PID)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// launched reports whether a process is a service that package launch started
// for stateDir: it has that command, and its log as its standard error.
func launched(pid int, stateDir string) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !slices.Contains(strings.Split(string(line), "\x00"), "sandboxd") {
		return false
	}
	log, err := os.Stat(sandboxd.LogFile(stateDir))
	if err != nil {
		return false
	}
	own, err := os.Stat(fmt.Sprintf("/proc/%d/fd/2", pid)) // follows to the file itself
	return err == nil && os.SameFile(log, own)
}

// path finds a program of ours: as the setting says, else beside this one.
func (c Config) path(setting, name string) string {
	if p := strings.TrimSpace(c.Getenv(setting)); p != "" {
		return p
	}
	return filepath.Join(filepath.Dir(c.Executable), name)
}
