package confine

import "golang.org/x/sys/unix"

const (
	arch         = unix.AUDIT_ARCH_X86_64
	firstForeign = 0x40000000 // of x32
)

var ofArch = []uint32{
	unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_IOPERM, unix.SYS_IOPL, unix.SYS_MODIFY_LDT,
	unix.SYS_QUERY_MODULE, unix.SYS__SYSCTL, unix.SYS_USELIB,
}
