package execd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/command"
)

const (
	// maxRecords and recordTime bound what is remembered of commands that have ended.
	maxRecords = 1024
	recordTime = 24 * time.Hour
	// maxLog bounds the output kept of a background command; what comes later is dropped.
	maxLog = 64 << 20
	// maxLogPage bounds one answer of the log.
	maxLogPage = 16 << 20
)

// record is what the older protocol remembers of a command.
type record struct {
	id      string
	content string
	started time.Time
	kill    context.CancelFunc
	log     *spool // nil: in the foreground

	mu       sync.Mutex
	child    *child.Child // nil: not started
	finished time.Time
	result   command.Result
	problem  string
	done     chan struct{}
}

func (r *record) setChild(c *child.Child) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.child = c
}

func (r *record) end(result command.Result, problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result, r.problem, r.finished = result, problem, time.Now()
	close(r.done)
}

// active reports whether the command hasn't ended.
func (r *record) active() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.finished.IsZero()
}

// notStarted ends the record of a command that couldn't be started.
func (r *record) notStarted(err error) {
	r.end(command.Result{Exit: child.Exit{Code: notStarted}}, err.Error())
}

// records keeps the newest records.
type records struct {
	mu    sync.Mutex
	byID  map[string]*record
	order []*record
}

func (rs *records) add(content string, kill context.CancelFunc, log *spool) *record {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	r := &record{id: hex.EncodeToString(b[:]), content: content, started: time.Now(), kill: kill, log: log, done: make(chan struct{})}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byID == nil {
		rs.byID = map[string]*record{}
	}
	rs.byID[r.id] = r
	rs.order = append(rs.order, r)
	rs.prune()
	return r
}

// prune forgets ended commands that are too old or too many, oldest first. It
// looks no further than the newest that it may have to forget.
func (rs *records) prune() {
	over := len(rs.order) - maxRecords
	kept := 0
	for i, r := range rs.order {
		if over <= 0 && time.Since(r.started) <= recordTime {
			kept += copy(rs.order[kept:], rs.order[i:])
			break
		}
		r.mu.Lock()
		ended := !r.finished.IsZero() && (over > 0 || time.Since(r.finished) > recordTime)
		r.mu.Unlock()
		if !ended {
			rs.order[kept] = r
			kept++
			continue
		}
		over--
		delete(rs.byID, r.id)
		r.log.close()
	}
	clear(rs.order[kept:])
	rs.order = rs.order[:kept]
}

// forget drops the record of a command that wasn't started.
func (rs *records) forget(r *record) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.byID, r.id)
	for i, o := range rs.order {
		if o == r {
			rs.order = append(rs.order[:i], rs.order[i+1:]...)
			break
		}
	}
	r.log.close()
}

func (rs *records) get(id string) *record {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.byID[id]
}

func (rs *records) close() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.order {
		r.log.close()
	}
	rs.byID, rs.order = nil, nil
}

// spool is a file without a name that holds the output of a background command.
type spool struct {
	mu   sync.Mutex
	f    *os.File
	size int64
}

func newSpool() (*spool, error) {
	fd, err := unix.Open(os.TempDir(), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil { // no such directory, or a file system without unnamed files
		fd, err = unix.MemfdCreate("log", unix.MFD_CLOEXEC)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return &spool{f: os.NewFile(uintptr(fd), "log")}, nil
}

// write appends as much as fits; a full disk loses the rest, never the command.
func (s *spool) write(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.f == nil {
		return
	}
	n, _ := s.f.WriteAt(b[:min(int64(len(b)), maxLog-s.size)], s.size)
	s.size += int64(n)
}

// page copies what follows cursor, at most maxLogPage bytes. next is where the
// following page begins; it never lies past the end.
func (s *spool) page(w io.Writer, cursor int64, head func(next int64)) error {
	s.mu.Lock()
	f, size := s.f, s.size
	s.mu.Unlock()
	if f == nil {
		return errors.New("the log is gone")
	}
	cursor = min(cursor, size)
	next := min(cursor+maxLogPage, size)
	head(next)
	_, err := io.Copy(w, io.NewSectionReader(f, cursor, next-cursor))
	return err
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
	}
}
