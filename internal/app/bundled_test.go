package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/sandboxd"
)

func TestNeedsBundled(t *testing.T) {
	for _, tt := range []struct {
		backends string
		env      string
		want     bool
	}{
		{"", "", true},
		{"", "ASTRABOX_SANDBOX_OPENAPI_BASE_URL", false},
		{"", "ASTRABOX_SANDBOX_OPENAPI_LISTEN_FILE", false},
		{"", "ASTRABOX_SANDBOX_OPENAPI_KEY", true},
	} {
		getenv := func(k string) string {
			switch k {
			case settingBackends:
				return tt.backends
			case tt.env:
				return "x"
			}
			return ""
		}
		c, _ := external(t, nil)
		b, err := chooseBackends(getenv, c.Log)
		if err != nil {
			t.Fatal(err)
		}
		if got := needsBundled(getenv, b); got != tt.want {
			t.Errorf("%+v: %v", tt, got)
		}
	}
}

func TestBundledSettings(t *testing.T) {
	b := newBundled(Config{Getenv: func(string) string { return "" }}, "/state", mustChoose(t))
	get := b.getenv(func(k string) string { return "own:" + k })
	for k, want := range map[string]string{
		"ASTRABOX_SANDBOX_OPENAPI_LISTEN_FILE": sandboxd.ListenFile("/state"),
		"ASTRABOX_SANDBOX_OPENAPI_KEY_FILE":    sandboxd.KeyFile("/state"),
		"ASTRABOX_SANDBOX_OPENAPI_KEY":         "",
		"ASTRABOX_SANDBOX_OPENAPI_TIMEOUT":     "own:ASTRABOX_SANDBOX_OPENAPI_TIMEOUT",
	} {
		if got := get(k); got != want {
			t.Errorf("%s = %q", k, got)
		}
	}
}

func mustChoose(t *testing.T) backends {
	t.Helper()
	c, _ := external(t, nil)
	b, err := chooseBackends(c.Getenv, c.Log)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// service is a program that holds the lock of a state directory until it gets
// SIGTERM, with the command line of the real one or of something else, and the
// log of a directory as its standard error.
func service(t *testing.T, stateDir, logOf string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"-test.run=^TestServiceProcess$", "--"}, args...)...)
	cmd.Env = append(os.Environ(), "ASTRABOX_TEST_SERVICE="+stateDir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if args[0] == "sandboxd" {
		log, err := os.Create(sandboxd.LogFile(logOf))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		cmd.Stderr = log
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "holding\n" {
		t.Fatalf("%q %v", line, err)
	}
	return cmd
}

// TestServiceProcess is that program.
func TestServiceProcess(t *testing.T) {
	dir := os.Getenv("ASTRABOX_TEST_SERVICE")
	if dir == "" {
		return // it is run by other tests
	}
	f, err := os.OpenFile(filepath.Join(sandboxd.Dir(dir), "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		t.Fatal(err)
	}
	listening := fmt.Sprintf(`{"url":"http://127.0.0.1:1/v1","pid":%d,"version":"x"}`, os.Getpid())
	if err := os.WriteFile(sandboxd.ListenFile(dir), []byte(listening), 0o600); err != nil {
		t.Fatal(err)
	}
	fmt.Println("holding")
	select {} // SIGTERM ends it
}

func TestTerminate(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	dir := t.TempDir()
	mkdir(t, sandboxd.Dir(dir), 0o700)
	if err := terminate(ctx, dir); err != nil {
		t.Errorf("nothing runs: %v", err)
	}
	cmd := service(t, dir, dir, "sandboxd", "--state-dir", dir)
	if err := terminate(ctx, dir); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("it ended with %v", err)
	}
}

// A number that belongs to another process by now, and a service that somebody
// else runs, are not signalled.
func TestTerminateSparesOthers(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	mkdir(t, sandboxd.Dir(dir), 0o700)
	mkdir(t, sandboxd.Dir(other), 0o700)
	write(t, sandboxd.LogFile(dir), "")
	for _, args := range [][]string{{"editor", dir}, {"sandboxd", "--state-dir", dir}} {
		cmd := service(t, dir, other, args...)
		if err := terminate(t.Context(), dir); !errors.Is(err, errNotOurs) {
			t.Errorf("%v: %v", args, err)
		}
		if err := cmd.Process.Signal(unix.Signal(0)); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
}
