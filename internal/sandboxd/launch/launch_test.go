package launch_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/sandboxd"
	"github.com/astrabox/astrabox/internal/sandboxd/fakeruntime"
	"github.com/astrabox/astrabox/internal/sandboxd/launch"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
)

// The test binary is the program that is launched, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "sandboxd" {
		os.Exit(service(os.Args[3]))
	}
	goleak.VerifyTestMain(m)
}

func service(dir string) int {
	if _, err := os.Stat(filepath.Join(dir, "broken")); err == nil {
		fmt.Fprintln(os.Stderr, "runc is missing")
		return 1
	}
	for _, v := range os.Environ() {
		if strings.Contains(v, "SECRET") {
			fmt.Fprintln(os.Stderr, "a secret reached the environment")
			return 1
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	err := sandboxd.Run(ctx, sandboxd.Config{StateDir: dir, OpenRuntime: func(context.Context, string, *slog.Logger) (runtime.Runtime, error) {
		return fakeruntime.NewMachine().Runtime(), nil
	}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// end stops the service that listens, which is a child of this process or of nobody.
func end(t *testing.T, dir string, sig syscall.Signal) {
	t.Helper()
	l, err := sandboxd.ReadListening(dir)
	if err != nil {
		t.Fatal(err)
	}
	if l.PID == os.Getpid() || l.PID <= 1 {
		t.Fatalf("pid %d", l.PID)
	}
	if err := syscall.Kill(l.PID, sig); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { locked, err := sandboxd.Locked(dir); return err == nil && !locked })
	_, _ = syscall.Wait4(l.PID, nil, 0, nil) // Keep may have done it
}

func until(t *testing.T, f func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !f() {
		select {
		case <-deadline:
			t.Fatal("it didn't become true")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestEnsure(t *testing.T) {
	t.Setenv("ASTRABOX_SANDBOX_OPENAPI_KEY", "SECRET")
	cfg := launch.Config{StateDir: t.TempDir()}
	url, key, err := launch.Ensure(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	l, err := sandboxd.ReadListening(cfg.StateDir)
	if err != nil || l.URL != url || l.PID == os.Getpid() || key == "" {
		t.Errorf("started %s, listening %+v, %v", url, l, err)
	}
	if sid, err := getsid(l.PID); err != nil || sid != l.PID {
		t.Errorf("its session is %d, %v; want its own, %d", sid, err, l.PID)
	}
	again, key2, err := launch.Ensure(t.Context(), cfg)
	if err != nil || again != url || key2 != key {
		t.Errorf("the second time: %s, %v; want %s adopted", again, err, url)
	}
	end(t, cfg.StateDir, syscall.SIGKILL)
	next, _, err := launch.Ensure(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if l2, _ := sandboxd.ReadListening(cfg.StateDir); l2.URL != next || l2.PID == l.PID {
		t.Errorf("after a kill: %+v", l2)
	}
	end(t, cfg.StateDir, syscall.SIGTERM)
}

func getsid(pid int) (int, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	var state string
	var ppid, pgrp, sid int
	_, rest, _ := strings.Cut(string(b), ") ")
	_, err = fmt.Sscan(rest, &state, &ppid, &pgrp, &sid)
	return sid, err
}

func TestEnsureAtTheSameTime(t *testing.T) {
	cfg := launch.Config{StateDir: t.TempDir()}
	urls := make(chan string, 4)
	for range cap(urls) {
		go func() {
			url, _, err := launch.Ensure(t.Context(), cfg)
			if err != nil {
				t.Error(err)
			}
			urls <- url
		}()
	}
	first := <-urls
	for range cap(urls) - 1 {
		if url := <-urls; url != first {
			t.Errorf("two services: %s and %s", first, url)
		}
	}
	end(t, cfg.StateDir, syscall.SIGTERM)
}

func TestServiceThatDoesNotStart(t *testing.T) {
	cfg := launch.Config{StateDir: t.TempDir()}
	if err := os.WriteFile(filepath.Join(cfg.StateDir, "broken"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err := launch.Ensure(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "runc is missing") {
		t.Errorf("error %v; want the reason from the log", err)
	}
	cfg.Executable = "/no/such/program"
	if _, _, err := launch.Ensure(t.Context(), cfg); err == nil {
		t.Error("a program that isn't there was started")
	}
}

func TestKeep(t *testing.T) {
	cfg := launch.Config{StateDir: t.TempDir()}
	if _, _, err := launch.Ensure(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan error, 1)
	go func() { kept <- launch.Keep(ctx, cfg) }()
	for range 2 {
		l, err := sandboxd.ReadListening(cfg.StateDir)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(l.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		until(t, func() bool {
			now, err := sandboxd.ReadListening(cfg.StateDir)
			return err == nil && now.PID != l.PID
		})
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", l.PID)); err == nil {
			t.Errorf("process %d is still there: nobody took its exit status", l.PID)
		}
	}
	cancel()
	if err := <-kept; err != nil {
		t.Error(err)
	}
	if locked, err := sandboxd.Locked(cfg.StateDir); err != nil || !locked {
		t.Errorf("the service didn't outlive its keeper: %v, %v", locked, err)
	}
	end(t, cfg.StateDir, syscall.SIGTERM)
}
