package child

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxEnviron bounds how much of an environment is searched for the mark; the
// kernel's own bound on arguments and environment is a quarter of the stack limit.
const maxEnviron = 4 << 20

// environ reads the environment that a process was started with, reusing buf.
func environ(pid int, buf []byte) ([]byte, error) {
	path := fmt.Sprintf("/proc/%d/environ", pid)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) {
		f, err = openAsOwner(path)
	}
	if err != nil {
		return buf, err
	}
	defer f.Close()
	buf = buf[:0]
	for len(buf) < maxEnviron {
		if len(buf) == cap(buf) {
			buf = append(buf, make([]byte, 32<<10)...)[:len(buf)]
		}
		n, err := f.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			break
		}
		if err != nil {
			return buf, err
		}
	}
	return buf, nil
}

// openAsOwner opens a file below /proc with the ids of its owner. Without
// CAP_SYS_PTRACE root may not look into the processes of other accounts, but an
// account may look into its own, and the ids that count for this belong to the
// thread.
func openAsOwner(path string) (f *os.File, err error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fs.ErrPermission
	}
	done := make(chan struct{})
	go func() { // a goroutine of its own: if the ids can't be put back, its thread ends with it
		defer close(done)
		runtime.LockOSThread()
		uid, gid := os.Geteuid(), os.Getegid()
		setFSID(unix.SYS_SETFSGID, int(st.Gid))
		setFSID(unix.SYS_SETFSUID, int(st.Uid))
		f, err = os.Open(path)
		setFSID(unix.SYS_SETFSUID, uid)
		setFSID(unix.SYS_SETFSGID, gid)
		// The call reports the ids from before; -1 changes nothing.
		if setFSID(unix.SYS_SETFSUID, -1) == uid && setFSID(unix.SYS_SETFSGID, -1) == gid {
			runtime.UnlockOSThread()
		}
	}()
	<-done
	return f, err
}

func setFSID(call uintptr, id int) int {
	was, _, _ := unix.RawSyscall(call, uintptr(id), 0, 0)
	return int(was)
}
