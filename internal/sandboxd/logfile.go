package sandboxd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// LogLimit is how large a log grows; the one before it is kept as <name>.1.
const LogLimit = 8 << 20

// logFile is a bounded log. It is an io.WriteCloser for any number of goroutines.
type logFile struct {
	path  string
	limit int64

	mu   sync.Mutex
	f    *os.File
	size int64
}

// openLog opens the log at path to append to it.
func openLog(path string, limit int64) (*logFile, error) {
	l := &logFile{path: path, limit: limit}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("open the log: %w", err)
	}
	l.f, l.size = f, info.Size()
	return nil
}

// Write appends p, after moving a full log away. A log that can't be moved
// stops growing: what comes after is dropped.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return 0, fs.ErrClosed
	}
	if l.size+int64(len(p)) > l.limit && l.size > 0 {
		if err := l.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := l.f.Write(p)
	l.size += int64(n)
	return n, err
}

func (l *logFile) rotate() error {
	// A process started with this log as its standard error writes panics
	// there: that descriptor has to follow.
	follow := sameFile(l.f, unix.Stderr)
	if err := os.Rename(l.path, l.path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	old := l.f
	if err := l.open(); err != nil {
		return err
	}
	old.Close()
	if follow {
		return unix.Dup3(int(l.f.Fd()), unix.Stderr, 0)
	}
	return nil
}

func sameFile(f *os.File, fd int) bool {
	var a, b unix.Stat_t
	return unix.Fstat(int(f.Fd()), &a) == nil && unix.Fstat(fd, &b) == nil && a.Dev == b.Dev && a.Ino == b.Ino
}

// Close closes the file.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	err := l.f.Close()
	l.f = nil
	return err
}
