package pump

import (
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// terminalDepth is more than a terminal holds: what the kernel tells of one is
// only what lies ready to be read, behind which there is some 8 KiB more.
const terminalDepth = 64 << 10

// waiting is how much is in the pipe, or more.
func (p *Pump) waiting() (n int) {
	rc, err := p.f.SyscallConn()
	if err != nil {
		return 0
	}
	_ = rc.Control(func(fd uintptr) {
		if _, err := unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err == nil {
			n = terminalDepth
		} else if n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ); err != nil {
			n = 0
		}
	})
	return n
}

const (
	// firstLook and lastLook are the pauses between looks at a terminal that
	// nobody holds.
	firstLook = 2 * time.Millisecond
	lastLook  = 250 * time.Millisecond
)

// reopened waits at a terminal that nobody holds for somebody who does, as long
// as the child lives: a program that has closed it can open it again by its
// name, and the kernel tells nobody of that. EIO: nobody did.
func (p *Pump) reopened(buf []byte) (n int, err error) {
	for pause := firstLook; ; pause = min(2*pause, lastLook) {
		select {
		case <-p.over:
			return p.look(buf) // once more, since it may have come just before
		case <-time.After(pause):
		}
		if n, err = p.look(buf); !errors.Is(err, syscall.EIO) {
			return n, err
		}
	}
}
