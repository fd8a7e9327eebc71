// Package confine takes privileges away: capabilities, and system calls by a
// seccomp filter. The daemon uses it for what it starts (which must not make
// mounts and namespaces, though the daemon may), and the first process of an
// isolated session for itself and for what runs in the session.
//
// Capabilities, bounding sets and filters belong to threads, and a child
// inherits them from the thread that forks it. [Thread] changes the calling
// thread only: its caller locks the goroutine to the thread, forks from there,
// and never unlocks it, so that the thread ends with the goroutine.
//
// Nothing given up comes back. Errors are the kernel's.
package confine

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Caps is a set of capabilities, one bit each.
type Caps uint64

// CapsOf makes a set of capability numbers (unix.CAP_…).
func CapsOf(numbers ...int) (c Caps) {
	for _, n := range numbers {
		c |= 1 << n
	}
	return c
}

// Mounting is what making mounts, namespaces and a session's loopback takes.
var Mounting = CapsOf(unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN)

// Effective gives the capabilities that the calling thread has now.
func Effective() (Caps, error) {
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0, fmt.Errorf("confine: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, err := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return Caps(n), err
		}
	}
	return 0, fmt.Errorf("confine: the kernel doesn't tell capabilities")
}

// Thread makes the calling thread give up every capability outside keep, also
// for programs that it executes as root, and what f refuses.
func Thread(keep Caps, f Filter) error {
	for n := range 64 {
		if keep&(1<<n) != 0 {
			continue
		}
		_, _, e := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(n), 0, 0, 0, 0)
		if e == unix.EINVAL && n > unix.CAP_AUDIT_READ {
			break // the kernel has no more of them
		}
		if e != 0 {
			return fmt.Errorf("confine: drop capability %d: %w", n, e)
		}
	}
	if err := capset(keep, func(header, data unsafe.Pointer) unix.Errno {
		_, _, e := unix.RawSyscall(unix.SYS_CAPSET, uintptr(header), uintptr(data), 0)
		return e
	}); err != nil {
		return err
	}
	return f.install()
}

// Process makes all threads of the process give up every capability outside
// keep. Its bounding set stays, so a program executed later may have more. A
// binary with cgo can't do this: the error is ENOTSUP.
func Process(keep Caps) error {
	return capset(keep, func(header, data unsafe.Pointer) unix.Errno {
		_, _, e := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(header), uintptr(data), 0)
		return e
	})
}

// capset makes keep the most that is permitted and effective, and nothing inheritable.
func capset(keep Caps, call func(header, data unsafe.Pointer) unix.Errno) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("confine: capget: %w", err)
	}
	for i := range data {
		most := data[i].Permitted & uint32(keep>>(32*i))
		data[i] = unix.CapUserData{Permitted: most, Effective: most}
	}
	if e := call(unsafe.Pointer(&header), unsafe.Pointer(&data[0])); e != 0 {
		return fmt.Errorf("confine: capset: %w", e)
	}
	return nil
}
