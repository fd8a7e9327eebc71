// Package launch finds the bundled lifecycle service of a state directory, or
// starts it, and starts it again when it dies. The platform calls [Ensure]
// before it serves and [Keep] while it does.
//
// The service runs in a session of its own and outlives its launcher: a
// launcher that comes back adopts it. Programs of the service's kind run
// `<executable> sandboxd --state-dir DIR`; that one of them at a time uses a
// directory is the service's own business (it holds a lock), so several
// launchers do no harm.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/sandboxd"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// Config says which service is wanted.
type Config struct {
	StateDir   string
	Executable string        // the program with the sandboxd command; empty: this one
	Args       []string      // nil: sandboxd --state-dir StateDir
	Timeout    time.Duration // for a start; zero: 60 s
	Log        *slog.Logger  // nil: nowhere
}

func (c *Config) defaults() error {
	var err error
	if c.StateDir, err = filepath.Abs(c.StateDir); err != nil {
		return err
	}
	if c.Executable == "" {
		if c.Executable, err = os.Executable(); err != nil {
			return err
		}
	}
	if c.Args == nil {
		c.Args = []string{"sandboxd", "--state-dir", c.StateDir}
	}
	if c.Timeout <= 0 {
		c.Timeout = 60 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Ensure gives the base URL of the API and its key, of a service that answers
// now: one that runs already, else one that it starts. The URL changes when
// the service restarts; sandboxd.ListenFile always has the current one. The
// error of a service that doesn't start has the end of its log.
func Ensure(ctx context.Context, cfg Config) (baseURL, key string, err error) {
	if err := cfg.defaults(); err != nil {
		return "", "", fmt.Errorf("start sandboxd: %w", err)
	}
	if err := sandboxd.MakeDir(cfg.StateDir); err != nil {
		return "", "", fmt.Errorf("start sandboxd: %w", err)
	}
	if key, err = sandboxd.ReadKey(cfg.StateDir); err != nil {
		return "", "", fmt.Errorf("start sandboxd: %w", err)
	}
	if l, err := answering(ctx, cfg.StateDir, key); err == nil {
		cfg.Log.Info("adopted the running sandboxd", "url", l.URL, "pid", l.PID, "version", l.Version)
		return l.URL, key, nil
	}
	l, err := start(ctx, cfg, key)
	if err != nil {
		return "", "", fmt.Errorf("start sandboxd: %w", err)
	}
	cfg.Log.Info("started sandboxd", "url", l.URL, "pid", l.PID)
	return l.URL, key, nil
}

var client = &http.Client{
	Timeout:       2 * time.Second,
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport:     &http.Transport{DisableKeepAlives: true},
}

// answering gives the service that listens where the file says and takes the
// key. The key isn't sent where no service holds the lock: the file may be a
// dead one's, and its port somebody else's by now.
func answering(ctx context.Context, stateDir, key string) (sandboxd.Listening, error) {
	locked, err := sandboxd.Locked(stateDir)
	if err != nil || !locked {
		return sandboxd.Listening{}, errors.Join(err, errors.New("no service holds the lock"))
	}
	l, err := sandboxd.ReadListening(stateDir)
	if err != nil {
		return l, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, l.URL+"/version", nil)
	if err != nil {
		return l, err
	}
	req.Header.Set(wire.HeaderKey, key)
	resp, err := client.Do(req)
	if err != nil {
		return l, err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // the status says all
	if resp.StatusCode != http.StatusOK {
		return l, fmt.Errorf("%s answered %s", l.URL, resp.Status)
	}
	return l, nil
}

// start starts the program and waits until it, or another one that was
// quicker, answers.
func start(ctx context.Context, cfg Config, key string) (sandboxd.Listening, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	pid, err := spawn(cfg)
	if err != nil {
		return sandboxd.Listening{}, err
	}
	ended := false
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, 200*time.Millisecond) {
		l, err := answering(ctx, cfg.StateDir, key)
		if !ended {
			ended = reap(pid)
		}
		// One that found another in its place ends in a moment.
		if err == nil && (ended || l.PID == pid) {
			return l, nil
		}
		if locked, lockErr := sandboxd.Locked(cfg.StateDir); ended && (lockErr != nil || !locked) {
			return sandboxd.Listening{}, fmt.Errorf("it ended at once; the end of %s: %s", sandboxd.LogFile(cfg.StateDir), logTail(cfg.StateDir))
		}
		select {
		case <-ctx.Done():
			return sandboxd.Listening{}, fmt.Errorf("it doesn't answer (%w); the end of %s: %s", errors.Join(ctx.Err(), err), sandboxd.LogFile(cfg.StateDir), logTail(cfg.StateDir))
		case <-time.After(wait):
		}
	}
}

// kept are the environment variables that the service may see. The platform's
// other settings hold secrets that are no business of it.
var kept = []string{"PATH", "HOME", "TMPDIR", "LANG", "TZ", "GOTRACEBACK", "ASTRABOX_RUNC_PATH", "ASTRABOX_EXECD_PATH"}

// spawn starts the program in a session of its own, with its log as output.
func spawn(cfg Config) (pid int, err error) {
	log, err := os.OpenFile(sandboxd.LogFile(cfg.StateDir), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd := exec.Command(cfg.Executable, cfg.Args...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Env = []string{}
	for _, name := range kept {
		if v, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	pid = cmd.Process.Pid
	return pid, cmd.Process.Release() // nobody waits for it: it may outlive us
}

// reap takes the exit status of a child that has ended, so that no zombie
// stays, and reports whether it has. A process that isn't our child: false.
func reap(pid int) bool {
	if pid <= 1 {
		return false
	}
	got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
	return err == nil && got == pid
}

// logTail gives the last lines of the service's log, at most 2 KiB.
func logTail(stateDir string) string {
	f, err := os.Open(sandboxd.LogFile(stateDir))
	if err != nil {
		return "(not readable)"
	}
	defer f.Close()
	const most = 2 << 10
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return "(not readable)"
		}
	}
	b, _ := io.ReadAll(io.LimitReader(f, most)) // a part is as good
	return strings.TrimSpace(string(b))
}

const (
	keepEvery  = 300 * time.Millisecond
	backoffMin = 200 * time.Millisecond
	backoffMax = 30 * time.Second
	// steady is how long a service must have run for its next death not to
	// count as one of a series.
	steady = time.Minute
)

// Keep starts the service again whenever it has died, with a growing delay
// while it dies at once, until ctx ends. The service itself goes on then.
func Keep(ctx context.Context, cfg Config) error {
	if err := cfg.defaults(); err != nil {
		return fmt.Errorf("keep sandboxd: %w", err)
	}
	ticker := time.NewTicker(keepEvery)
	defer ticker.Stop()
	pid, delay, since := 0, backoffMin, time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if l, err := sandboxd.ReadListening(cfg.StateDir); err == nil {
			pid = l.PID
		}
		locked, err := sandboxd.Locked(cfg.StateDir)
		if err != nil {
			cfg.Log.Error("the state of sandboxd can't be read", "error", err)
			continue
		}
		if locked {
			continue
		}
		reap(pid)
		if time.Since(since) > steady {
			delay = backoffMin
		}
		cfg.Log.Warn("sandboxd is gone; starting it again", "in", delay)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(delay):
		}
		delay = min(2*delay, backoffMax)
		if _, _, err := Ensure(ctx, cfg); err != nil && ctx.Err() == nil {
			cfg.Log.Error("sandboxd doesn't start", "error", err)
		}
		since = time.Now()
	}
}
