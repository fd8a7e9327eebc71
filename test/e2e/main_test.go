package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/ownnet"
	"github.com/astrabox/astrabox/test/machine"
)

// bin is where the built programs lie, exe the one that a person calls.
var bin, exe string

// missing says why nothing can be tested here; empty: all is there.
var missing string

func TestMain(m *testing.M) {
	if missing = lookForPrograms(); missing != "" {
		os.Exit(m.Run()) // each test says why it doesn't run
	}
	// Links, firewall rules and ports of the tests must not meet the host's.
	err := ownnet.Run(context.Background(), os.Stdout, func(context.Context) error {
		os.Exit(m.Run())
		return nil
	})
	if err != nil && !errors.Is(err, ownnet.ErrFailed) {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil {
		os.Exit(1)
	}
}

func lookForPrograms() string {
	if os.Geteuid() != 0 {
		return "sandboxes need root: run the tests as root"
	}
	dir := "../../bin"
	if execd := os.Getenv("ASTRABOX_EXECD_PATH"); execd != "" {
		dir = filepath.Dir(execd)
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err.Error()
	}
	bin, exe = dir, filepath.Join(dir, "astrabox")
	for _, name := range []string{"astrabox", "execd", "shellagent", "runc"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil {
			return fmt.Sprintf("the built programs are missing (%v): run \"make build\"", err)
		}
	}
	return ""
}

// need skips the test where it can't run, or fails it where it must run.
func need(t *testing.T) {
	t.Helper()
	if missing != "" {
		machine.Missing(t, "%s", missing)
	}
}

// patience bounds every wait for a condition: far longer than anything takes
// on a busy machine, so that running out of it is a failure.
const patience = 45 * time.Second

// until waits until f says that it is so; what f saw last stands in the failure.
func until(t *testing.T, what string, f func() (ok bool, seen any)) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, seen := f()
		if ok {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("expected %s, saw %v", what, seen)
		case <-tick.C:
		}
	}
}

// timeout gives a context that ends before the test run does.
func timeout(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	return ctx
}
