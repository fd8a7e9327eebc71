package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// StopWhen stops a process, all of it, at a moment at which holds does, and
// leaves it stopped. The moment is looked for while the process runs, which gets
// nowhere on a busy machine if it is stopped all the time. After 40 s without
// one the test fails.
func StopWhen(t testing.TB, pid int, holds func() bool) {
	t.Helper()
	end := time.Now().Add(40 * time.Second)
	for {
		for !holds() {
			if time.Now().After(end) {
				t.Fatal("there is no such moment")
			}
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for !stopped(pid) {
			if time.Now().After(end) {
				t.Fatalf("process %d doesn't stop", pid)
			}
		}
		if holds() {
			return
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
}

// stopped reports whether all of a process's threads are.
func stopped(pid int) bool {
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, stat := range threads {
		b, _ := os.ReadFile(stat)
		if _, state, _ := strings.Cut(string(b), ") "); !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return true
}
