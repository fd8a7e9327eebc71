package execd

import (
	"io"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// maxLog bounds the output kept of a background command; what comes later is dropped.
	maxLog = 64 << 20
	// maxLogs bounds the output kept of all of them. From half of it on the
	// oldest that have ended make room.
	maxLogs = 1 << 30
	// maxLogPage bounds one answer of the log.
	maxLogPage = 16 << 20
)

// budget counts what all logs together hold.
type budget struct{ used atomic.Int64 }

// take gives as much of n as there is.
func (b *budget) take(n int64) int64 {
	if over := b.used.Add(n) - maxLogs; over > 0 {
		over = min(over, n)
		b.used.Add(-over)
		n -= over
	}
	return n
}

func (b *budget) give(n int64) { b.used.Add(-n) }

func (b *budget) crowded() bool { return b.used.Load() > maxLogs/2 }

// spool is a file without a name that holds the beginning of the output of a
// background command: all of it as long as there is room.
type spool struct {
	logs *budget
	max  int64 // of size

	mu   sync.Mutex
	f    *os.File // nil: closed
	size int64
	full bool // something was dropped, so nothing that comes later may follow
}

func newSpool(logs *budget) (*spool, error) {
	fd, err := unix.Open(os.TempDir(), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil { // no such directory, or a file system without unnamed files
		fd, err = unix.MemfdCreate("log", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return &spool{logs: logs, max: maxLog, f: os.NewFile(uintptr(fd), "log")}, nil
}

// write appends as much as fits; a full disk loses the rest, never the command.
func (s *spool) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f == nil || s.full {
		return
	}
	room := s.logs.take(min(int64(len(b)), s.max-s.size))
	n, err := s.f.WriteAt(b[:room], s.size)
	s.logs.give(room - int64(n))
	s.size += int64(n)
	s.full = err != nil || n < len(b)
}

// page copies what follows cursor, at most maxLogPage bytes. next is where the
// following page begins; it never lies past the end. ok says that the log is
// there. What breaks off within the page is shorter than head was told.
func (s *spool) page(w io.Writer, cursor int64, head func(next, length int64)) (ok bool) {
	s.mu.Lock()
	f, size := s.f, s.size
	s.mu.Unlock()
	if f == nil {
		return false
	}
	cursor = min(cursor, size)
	next := min(cursor+maxLogPage, size)
	head(next, next-cursor)
	_, _ = io.Copy(w, io.NewSectionReader(f, cursor, next-cursor))
	return true
}

// length is how much the log holds. A nil spool holds nothing.
func (s *spool) length() int64 {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.size
}

func (s *spool) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f != nil {
		s.f.Close()
		s.f = nil
		s.logs.give(s.size)
	}
}
