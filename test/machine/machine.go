// Package machine is what tests agree on with the machine that they run on: what
// they need of it, and what they may do to it. Tests call it, nothing else.
//
// A test that lacks something is skipped on a developer's machine and fails in
// CI (where the variable CI is set), so that nothing is left out there unseen.
//
// Tests that give the code under test hostile paths call [ReadOnly] first: the
// code's faults then meet a read-only machine, also when they run as root.
package machine

import (
	"os"
	"testing"
)

// Missing skips the test for a reason, or fails it in CI.
func Missing(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("missing, and CI leaves nothing out: "+format, args...)
	}
	t.Skipf(format, args...)
}

// NeedRoot skips the test, or fails it in CI, unless it runs as root.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Missing(t, "it needs root")
	}
}

// NeedReadOnly skips the test, or fails it in CI, unless [ReadOnly] has worked.
func NeedReadOnly(t testing.TB) {
	t.Helper()
	if !readOnly() {
		Missing(t, "it needs a mount namespace in which the machine is read-only, which takes root and CAP_SYS_ADMIN")
	}
}
