package pump

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// fastBytes within fastTime make a stream a fast one.
	fastBytes = 128 << 10
	fastTime  = 10 * time.Millisecond
	// moment is how long a fast stream collects, and patience how many moments
	// without a byte make it a slow one again.
	moment   = 30 * time.Microsecond // the kernel adds its timer slack of 50 µs
	patience = 100
	// deepPipe is the size of a fast stream's pipe: its child goes on meanwhile.
	deepPipe = 256 << 10
)

// flow tells a fast stream from others. It gets a deep pipe. Waiting for each
// piece of a fast one costs more than the piece, since the child, the daemon and
// the client wake each other for it; so where the sink only stores what it gets,
// and would wake somebody for the rest, it is let collect for a moment instead.
type flow struct {
	fast  bool
	never bool // not a pipe, or one that can't be made deep, or not to collect
	short bool // the last read took all that there was
	begun time.Time
	bytes int
}

// read is a Read that lets a fast stream collect, and for which a terminal that
// nobody holds has only ended when the child has.
func (p *Pump) read(buf []byte, f *flow) (n int, err error) {
	for {
		n, err = p.readOnce(buf, f)
		if errors.Is(err, syscall.EIO) {
			n, err = p.reopened(buf)
		}
		if n > 0 || !errors.Is(err, syscall.EAGAIN) || p.exited.Load() {
			break
		}
	}
	f.short = n < len(buf)
	if !f.fast && !f.never && f.reached(n) {
		f.fast = p.deepen() && p.collects
		f.never = !f.fast
	}
	return n, err
}

func (p *Pump) readOnce(buf []byte, f *flow) (n int, err error) {
	err = syscall.EAGAIN
	if f.fast && !p.exited.Load() {
		n, err = p.collect(buf, f)
	}
	if errors.Is(err, syscall.EAGAIN) {
		f.fast = false
		n, err = p.f.Read(buf)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		// A passed deadline makes Read fail without looking. On a busy
		// machine it passes before this goroutine has even run.
		n, err = p.look(buf)
	}
	return n, err
}

// reached counts n bytes and reports whether so many have come fast.
func (f *flow) reached(n int) bool {
	if f.bytes += n; f.bytes < fastBytes {
		return false
	}
	now := time.Now()
	fast := now.Sub(f.begun) < fastTime
	f.begun, f.bytes = now, 0
	return fast
}

// collect reads what has come a moment later. EAGAIN: nothing comes any more.
func (p *Pump) collect(buf []byte, f *flow) (n int, err error) {
	// Not time.Sleep, which takes a millisecond at least when nothing else runs.
	pause := syscall.NsecToTimespec(int64(moment))
	for range patience {
		if f.short {
			_ = syscall.Nanosleep(&pause, nil) // woken early: then so
		}
		if n, err = p.look(buf); !errors.Is(err, syscall.EAGAIN) {
			return n, err
		}
		f.short = true
		if p.exited.Load() {
			break
		}
	}
	return 0, err
}

// deepen makes the pipe deep; false: it isn't one, or no more is allowed.
func (p *Pump) deepen() bool {
	rc, err := p.f.SyscallConn()
	if err != nil {
		return false
	}
	var failed error
	err = rc.Control(func(fd uintptr) { _, failed = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, deepPipe) })
	return err == nil && failed == nil
}
