package child

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The main goroutine keeps the first thread, and nothing else runs on it: the
// kernel gives it the signals that come from outside, and what orphans leave. For
// the daemon's own children see [Reaper.Restrict].
func init() { runtime.LockOSThread() }

// Prepare makes the calling process fit to start children: descriptors above 2
// that it inherited stay its own, and signals that it inherited as ignored
// (what a shell does to a program that it starts in the background) are at
// their default, in it and so in every child. It is called once, first thing.
func Prepare() error {
	if err := unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC); err != nil {
		if err := closeOnExecAll(); err != nil {
			return fmt.Errorf("child: inherited descriptors: %w", err)
		}
	}
	for n := syscall.Signal(1); n <= lastSignal; n++ {
		if !signal.Ignored(n) && !ignored(n) {
			continue
		}
		// The runtime keeps its own record, which Notify and Reset correct; a
		// signal that it has no handler for is set directly. That goes for 32 and
		// 33 as well: the C library, to which they belong, catches them and never
		// ignores them, so that an ignored one came from outside.
		c := make(chan os.Signal, 1)
		signal.Notify(c, n)
		signal.Stop(c)
		if ignored(n) {
			setDefault(n)
		}
	}
	return nil
}

// sigaction is the kernel's structure, large enough for every architecture;
// its first word is the handler everywhere but on MIPS. All zero is the default action.
type sigaction [4]uintptr

const (
	sigIgn     = 1
	lastSignal = 64
)

func ignored(n syscall.Signal) bool {
	var old sigaction
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), 0, uintptr(unsafe.Pointer(&old)), 8, 0, 0)
	return e == 0 && old[0] == sigIgn
}

func setDefault(n syscall.Signal) {
	var act sigaction
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
}

// closeOnExecAll does what CLOSE_RANGE_CLOEXEC does, for kernels before 5.11.
func closeOnExecAll() error {
	d, err := os.Open("/proc/self/fd")
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		var fd int
		if _, err := fmt.Sscan(name, &fd); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
