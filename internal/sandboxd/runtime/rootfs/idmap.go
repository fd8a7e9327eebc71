package rootfs

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// RangeSize is how many user and group ids a sandbox has.
	RangeSize = 1 << 16
	// Ranges is how many ranges there are, thus how many sandboxes, stopped ones
	// included, one installation can hold.
	Ranges = 4096
	// firstID begins a stretch that no convention has given away: systemd's
	// containers end below it, and ids above 2^31 break programs that use
	// signed numbers.
	firstID = 0x70000000
)

// Range is the number of a range of ids, from 0 to Ranges-1.
type Range int

// Base is the id on this machine that root has inside.
func (r Range) Base() int { return firstID + int(r)*RangeSize }

// RangeOfOwner tells the range whose root owns dir, a sandbox's upper
// directory. The owner is the only record of it that there is, so the two
// can't disagree.
func RangeOfOwner(dir string) (Range, error) {
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return 0, fmt.Errorf("owner of %s: %w", dir, err)
	}
	n := int(st.Uid) - firstID
	if n < 0 || n%RangeSize != 0 || n/RangeSize >= Ranges || st.Uid != st.Gid {
		return 0, fmt.Errorf("%s belongs to %d:%d, which is no sandbox's root", dir, st.Uid, st.Gid)
	}
	return Range(n / RangeSize), nil
}

// userNamespacesKept bounds the descriptors that UserNamespaces keeps.
const userNamespacesKept = 64

// UserNamespaces hands out user namespaces that map a Range, for idmapped
// mounts. Making one takes a short-lived process, so a few are kept. The zero
// value is ready; Close when done.
type UserNamespaces struct {
	mu   sync.Mutex
	free map[Range]*os.File
}

// Take gives the namespace of r to the caller, who passes it to Give or closes it.
func (u *UserNamespaces) Take(r Range) (*os.File, error) {
	u.mu.Lock()
	f := u.free[r]
	delete(u.free, r)
	u.mu.Unlock()
	if f != nil {
		return f, nil
	}
	return newUserNamespace(r)
}

// Give returns a namespace from Take for later use.
func (u *UserNamespaces) Give(r Range, f *os.File) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.free == nil {
		u.free = make(map[Range]*os.File)
	}
	if len(u.free) >= userNamespacesKept || u.free[r] != nil {
		f.Close()
		return
	}
	u.free[r] = f
}

// Close closes what is kept.
func (u *UserNamespaces) Close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, f := range u.free {
		f.Close()
	}
	u.free = nil
}

// newUserNamespace starts a process in a new user namespace, takes hold of the
// namespace and kills the process. Being traced the process stops before its
// first instruction, so nothing of it ever runs.
func newUserNamespace(r Range) (*os.File, error) {
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: r.Base(), Size: RangeSize}}
	p, err := os.StartProcess("/proc/self/exe", []string{"userns"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER,
			UidMappings: ids,
			GidMappings: ids,
			Ptrace:      true,
			Pdeathsig:   syscall.SIGKILL,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("new user namespace: %w", err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.Pid))
	_ = p.Kill()
	_, _ = p.Wait()
	if err != nil {
		return nil, fmt.Errorf("new user namespace: %w", err)
	}
	return f, nil
}
