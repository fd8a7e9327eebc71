// Package whole tests the lifecycle service as it is used: the provider on one
// side, sandboxes made by runc on the other, the service a process of its own
// that is killed in between. It needs root, and runc and execd where
// $ASTRABOX_RUNC_PATH and $ASTRABOX_EXECD_PATH say or in bin/; without them
// its tests are skipped.
package whole_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/astrabox/astrabox/internal/sandboxd"
	"github.com/astrabox/astrabox/internal/sandboxd/launch"
	"github.com/astrabox/astrabox/provider/opensandbox"
	"github.com/astrabox/astrabox/sandbox"
	tests "github.com/astrabox/astrabox/test/machine"
)

// insideEnv marks the process that runs in a network namespace of its own,
// which stands for the machine's.
const insideEnv = "ASTRABOX_WHOLE_TEST"

func TestMain(m *testing.M) {
	if len(os.Args) == 6 && os.Args[1] == "sandboxd" {
		os.Exit(service(os.Args[3], os.Args[5]))
	}
	if os.Geteuid() == 0 && os.Getenv(insideEnv) == "" {
		os.Exit(inside())
	}
	os.Exit(m.Run())
}

func inside() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// service is the program that is launched.
func service(dir, runDir string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := sandboxd.Run(ctx, sandboxd.Config{StateDir: dir, RunDir: runDir, Version: "test"}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// machine is a state directory and the service that uses it.
type machine struct {
	t   *testing.T
	cfg launch.Config
	run string
	p   *sandbox.Bound
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	tests.NeedRoot(t)
	for variable, name := range map[string]string{"ASTRABOX_RUNC_PATH": "runc", "ASTRABOX_EXECD_PATH": "execd"} {
		path := os.Getenv(variable)
		if path == "" {
			path, _ = filepath.Abs(filepath.Join("..", "..", "..", "bin", name))
			t.Setenv(variable, path)
		}
		if _, err := os.Stat(path); err != nil {
			tests.Missing(t, "%s is missing: build it first (make build)", name)
		}
	}
	if lo, err := netlink.LinkByName("lo"); err != nil || netlink.LinkSetUp(lo) != nil {
		t.Fatalf("loopback: %v", err)
	}
	run, err := os.MkdirTemp("/run", "astrabox-whole-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(run); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(run, 0o755); err != nil { // sandboxes pass through it
		t.Fatal(err)
	}
	m := &machine{t: t, run: run, cfg: launch.Config{StateDir: t.TempDir()}}
	m.cfg.Args = []string{"sandboxd", "--state-dir", m.cfg.StateDir, "--run-dir", run}
	m.start()
	settings := map[string]string{
		"ASTRABOX_SANDBOX_OPENAPI_LISTEN_FILE": sandboxd.ListenFile(m.cfg.StateDir),
		"ASTRABOX_SANDBOX_OPENAPI_KEY_FILE":    sandboxd.KeyFile(m.cfg.StateDir),
	}
	provider, err := opensandbox.New(sandbox.Host{InstallationID: "inst", Getenv: func(k string) string { return settings[k] }})
	if err != nil {
		t.Fatal(err)
	}
	drivers, err := sandbox.Installed()
	if err != nil {
		t.Fatal(err)
	}
	if m.p, err = sandbox.Bind(drivers[0], provider); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		provider.Close()
		if t.Failed() {
			log, _ := os.ReadFile(sandboxd.LogFile(m.cfg.StateDir))
			t.Logf("the service's log:\n%s", log[max(0, len(log)-8000):])
		}
	})
	return m
}

func (m *machine) start() {
	m.t.Helper()
	if _, _, err := launch.Ensure(m.t.Context(), m.cfg); err != nil {
		m.t.Fatal(err)
	}
}

// end ends the service and takes its exit status.
func (m *machine) end(sig syscall.Signal) {
	m.t.Helper()
	l, err := sandboxd.ReadListening(m.cfg.StateDir)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := syscall.Kill(l.PID, sig); err != nil {
		m.t.Fatal(err)
	}
	if _, err := syscall.Wait4(l.PID, nil, 0, nil); err != nil {
		m.t.Fatal(err)
	}
}

// cleanStop destroys what is left, stops the service and checks that nothing
// of the installation is left on the machine.
func (m *machine) cleanStop() {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	infos, _, err := m.p.Inventory.ListSandboxes(ctx, nil, "")
	if err != nil {
		m.t.Error(err)
	}
	for _, i := range infos {
		if d := sandbox.ConfirmDestroyed(ctx, m.p, i.ID); !d.ConfirmsGone(i.ID) {
			m.t.Errorf("%+v", d)
		}
	}
	m.end(syscall.SIGTERM)
	left, err := filepath.Glob(m.run + "/*/*")
	if err != nil || len(left) > 0 {
		m.t.Errorf("left in the run directory: %v, %v", left, err)
	}
	links, err := netlink.LinkList()
	if err != nil || len(links) != 1 {
		m.t.Errorf("%d links are left, %v; want loopback alone", len(links), err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		m.t.Error(err)
	}
	for _, part := range []string{m.cfg.StateDir, m.run} {
		if containsPath(string(mounts), part) {
			m.t.Errorf("mounts are left below %s", part)
		}
	}
}
