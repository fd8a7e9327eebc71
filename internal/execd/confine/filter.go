package confine

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Filter is a program of the kernel's seccomp. The zero value filters nothing.
type Filter struct{ program []unix.SockFilter }

// namespaces are the flags of clone(2) that make one.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

// mounting are the system calls that make and change mounts and namespaces.
var mounting = []uint32{
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT, unix.SYS_MOUNT_SETATTR,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_UNSHARE, unix.SYS_SETNS,
}

// reaching are further system calls that no program of a session needs and that
// concern the machine, or parts of the kernel with a long history of faults.
var reaching = append([]uint32{
	unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_ADJTIMEX, unix.SYS_BPF, unix.SYS_CLOCK_ADJTIME, unix.SYS_CLOCK_SETTIME,
	unix.SYS_DELETE_MODULE, unix.SYS_FANOTIFY_INIT, unix.SYS_FINIT_MODULE, unix.SYS_INIT_MODULE, unix.SYS_IO_URING_ENTER,
	unix.SYS_IO_URING_REGISTER, unix.SYS_IO_URING_SETUP, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_KEXEC_LOAD, unix.SYS_KEYCTL,
	unix.SYS_LOOKUP_DCOOKIE, unix.SYS_NFSSERVCTL, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_PERF_EVENT_OPEN, unix.SYS_QUOTACTL,
	unix.SYS_QUOTACTL_FD, unix.SYS_REBOOT, unix.SYS_REQUEST_KEY, unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME,
	unix.SYS_SETTIMEOFDAY, unix.SYS_SWAPOFF, unix.SYS_SWAPON, unix.SYS_SYSLOG, unix.SYS_USERFAULTFD, unix.SYS_VHANGUP,
}, ofArch...)

// NoMounting refuses the system calls that make mounts and namespaces.
func NoMounting() Filter { return refusing(mounting) }

// Session refuses them and what else no program of a session needs.
func Session() Filter { return refusing(append(append([]uint32(nil), mounting...), reaching...)) }

// Offsets in the kernel's struct seccomp_data, little endian.
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArg0   = 16
)

func refuse(e unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(e) }

// refusing makes a filter: EPERM for the calls of numbers, for those of other
// architectures, and for a clone that makes a namespace. The arguments of
// clone3 can't be seen, so it doesn't exist, which C libraries expect.
func refusing(numbers []uint32) Filter {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	jump := func(code uint16, k uint32, yes, no int) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | code, K: k, Jt: uint8(yes), Jf: uint8(no)}
	}
	p := []unix.SockFilter{
		load(offsetArch),
		jump(unix.BPF_JEQ, arch, 1, 0),
		ret(refuse(unix.EPERM)),
		load(offsetNumber),
		jump(unix.BPF_JGE, firstForeign, 0, 1), // numbers of another ABI of the same architecture
		ret(refuse(unix.EPERM)),
		jump(unix.BPF_JEQ, unix.SYS_CLONE, 0, 4),
		load(offsetArg0),
		jump(unix.BPF_JSET, namespaces, 0, 1),
		ret(refuse(unix.EPERM)),
		ret(unix.SECCOMP_RET_ALLOW),
		jump(unix.BPF_JEQ, unix.SYS_CLONE3, 0, 1),
		ret(refuse(unix.ENOSYS)),
	}
	for i, n := range numbers {
		p = append(p, jump(unix.BPF_JEQ, n, len(numbers)-i, 0))
	}
	return Filter{append(p, ret(unix.SECCOMP_RET_ALLOW), ret(refuse(unix.EPERM)))}
}

// install puts the filter on the calling thread, which can't gain privileges by
// executing programs from then on.
func (f Filter) install() error {
	if f.program == nil {
		return nil
	}
	if _, _, e := unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); e != 0 {
		return fmt.Errorf("confine: no new privileges: %w", e)
	}
	prog := unix.SockFprog{Len: uint16(len(f.program)), Filter: &f.program[0]}
	if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return fmt.Errorf("confine: seccomp: %w", e)
	}
	return nil
}
