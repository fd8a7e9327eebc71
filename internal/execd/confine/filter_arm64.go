package confine

import "golang.org/x/sys/unix"

const (
	arch         = unix.AUDIT_ARCH_AARCH64
	firstForeign = 0xffffffff // there is none
)

var ofArch []uint32
