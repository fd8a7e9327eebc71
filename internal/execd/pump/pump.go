// Package pump reads the output of children. Commands and processes of the
// daemon use it.
//
// A pump delivers all that the child wrote before its end is told, also when
// something that it left behind keeps the pipe open, and doesn't wait for what
// was left behind. A pump is run by one goroutine; its other methods may be
// called by any.
package pump

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// silence ends a pump whose child has exited: so long nothing came from
	// those who still hold the pipe.
	silence = 50 * time.Millisecond
	// linger bounds how long output of those is still taken in.
	linger = 500 * time.Millisecond

	minBuffer = 4 << 10
	maxBuffer = 64 << 10
)

// Pump reads one pipe or terminal.
type Pump struct {
	f        *os.File
	linger   time.Duration
	collects bool

	exited  atomic.Bool
	endedAt atomic.Int64  // nanoseconds since start
	over    chan struct{} // closed by Exited
	start   time.Time
}

// New makes a pump for f, which is in non-blocking mode.
func New(f *os.File) *Pump {
	return &Pump{f: f, linger: linger, over: make(chan struct{}), start: time.Now()}
}

// NewCollecting makes a pump for a sink that takes hardly any time, because it
// only stores what it gets: fast output comes to it in larger pieces.
func NewCollecting(f *os.File) *Pump {
	p := New(f)
	p.collects = true
	return p
}

// Run hands what it reads to sink, whose argument is valid during the call. It
// returns at the end of the output: open says that somebody still holds the
// other end. A sink that returns false gets no more, but reading goes on.
func (p *Pump) Run(sink func([]byte) bool) (open bool) {
	buf := make([]byte, minBuffer)
	wanted := true
	left := -1 // bytes that the ended child may have in the pipe still; negative: not known
	var flow flow
	for {
		n, err := p.read(buf, &flow)
		if n > 0 {
			wanted = wanted && sink(buf[:n])
		}
		if err != nil {
			// A terminal gives EIO when its last holder is gone and the child too.
			return errors.Is(err, syscall.EAGAIN)
		}
		if p.exited.Load() {
			// Only the reader can tell what it has read, so it looks itself: told
			// from outside, a piece that was just read counted as one still to come.
			if left < 0 {
				left = p.waiting()
			} else {
				left = max(0, left-n)
			}
			if left == 0 && p.elapsed()-time.Duration(p.endedAt.Load()) > p.linger {
				return true
			}
			// The time that sink took doesn't count as silence.
			if p.f.SetReadDeadline(time.Now().Add(silence)) != nil {
				return false
			}
		}
		if n == len(buf) && n < maxBuffer {
			buf = make([]byte, min(4*n, maxBuffer))
		}
	}
}

// look reads what is there, without waiting: EAGAIN when there is nothing.
func (p *Pump) look(buf []byte) (n int, err error) {
	rc, err := p.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var readErr error
	err = rc.Control(func(fd uintptr) {
		for {
			n, readErr = syscall.Read(int(fd), buf)
			if !errors.Is(readErr, syscall.EINTR) {
				return
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case readErr != nil:
		return 0, readErr
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

func (p *Pump) elapsed() time.Duration { return time.Since(p.start) }

// Exited says, once, that the child has ended: what it wrote is in the pipe by now.
func (p *Pump) Exited() {
	p.endedAt.Store(int64(p.elapsed()))
	p.exited.Store(true)
	close(p.over)
	_ = p.f.SetReadDeadline(time.Now().Add(silence))
}

// Pipe makes a pipe: a file in non-blocking mode for the daemon, and a
// descriptor in blocking mode for the child. With toChild the child reads.
func Pipe(toChild bool) (ours *os.File, theirs int, err error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, -1, os.NewSyscallError("pipe2", err)
	}
	mine, theirs := fds[0], fds[1]
	if toChild {
		mine, theirs = fds[1], fds[0]
	}
	if err := syscall.SetNonblock(mine, true); err != nil {
		syscall.Close(mine)
		syscall.Close(theirs)
		return nil, -1, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(mine), "|"), theirs, nil
}

// maxDiscards bounds the pipes that are kept open for what commands left behind.
const maxDiscards = 1024

// Discarder keeps the pipes of commands that have ended open and empty, so
// that what they left running isn't killed by its next line of output. Past
// maxDiscards pipes further ones are closed at once.
type Discarder struct {
	mu     sync.Mutex
	files  map[*os.File]struct{}
	closed bool
	wg     sync.WaitGroup
}

// Take owns f from now on.
func (d *Discarder) Take(f *os.File) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.files) >= maxDiscards || f.SetReadDeadline(time.Time{}) != nil {
		f.Close()
		return
	}
	if d.files == nil {
		d.files = map[*os.File]struct{}{}
	}
	d.files[f] = struct{}{}
	d.wg.Go(func() {
		buf := make([]byte, minBuffer)
		for {
			if _, err := f.Read(buf); err != nil {
				break
			}
		}
		d.mu.Lock()
		delete(d.files, f)
		d.mu.Unlock()
		f.Close()
	})
}

// Close closes all pipes and waits.
func (d *Discarder) Close() {
	d.mu.Lock()
	d.closed = true
	for f := range d.files {
		f.Close()
	}
	d.mu.Unlock()
	d.wg.Wait()
}
