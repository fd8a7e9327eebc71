package files

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Notes remember which names unfinished work has, in a file: a daemon that is
// killed can't remove them, and the next one does. Only the moments count in
// which something has a name that isn't its own; an upload has none for most of
// its time. The file isn't synced: it is for a daemon that dies, and where the
// machine does, /run is empty with it.
//
// A slot is the length of a text and the text: a directory, a NUL and a name.
// nil notes are of no use and do no harm. They are safe for concurrent use.
type Notes struct {
	f    *os.File
	free chan int64 // offsets of the slots
	// outside translates directories to what the daemon calls them; nil: it is
	// the daemon itself that takes the notes.
	outside func(dir string) string
}

const (
	noteSlots    = 128 // what more is under way isn't noted
	sessionSlots = 32  // the same, in an isolated session
	noteSize     = 8 << 10

	sweepTime = 5 * time.Second // for what one note names
	// endTime bounds the wait, in all, for the sessions of a daemon that was killed.
	endTime = 2 * time.Second
)

// OpenNotes takes the file at path and removes what it names, and the same with
// those of sessions beside it, which a killed daemon leaves. The directory is
// made if it is missing. nil, when somebody else could have written the file,
// another daemon has it, or the place can't be written to.
func OpenNotes(path string) *Notes {
	n := openNotes(path, noteSlots, time.Now())
	if n == nil {
		return nil
	}
	of, err := filepath.Glob(path + "-*") // the pattern is well-formed, or there are none
	if err != nil {
		return n
	}
	end := time.Now().Add(endTime)
	for _, session := range of {
		openNotes(session, sessionSlots, end).Sweep()
	}
	return n
}

// ForSession gives the notes of an isolated session, to which its own process
// writes, through [Notes.File]. nil, where they can't be made.
func (n *Notes) ForSession(id string) *Notes {
	if n == nil || id == "" {
		return nil
	}
	return openNotes(n.f.Name()+"-"+id, sessionSlots, time.Now())
}

// File is what the notes are written to; nil: there are none.
func (n *Notes) File() *os.File {
	if n == nil {
		return nil
	}
	return n.f
}

// NotesIn gives the notes that an isolated session takes in the file that it got.
// outside gives the daemon's name for a directory, or "" where a file would vanish
// with the session anyway.
func NotesIn(f *os.File, outside func(dir string) string) *Notes {
	if f == nil {
		return nil
	}
	n := &Notes{f: f, free: make(chan int64, sessionSlots), outside: outside}
	for i := range int64(sessionSlots) {
		n.free <- i * noteSize
	}
	return n
}

// Sweep removes what the notes of a session name, now that it has ended, and
// the notes.
func (n *Notes) Sweep() {
	if n == nil {
		return
	}
	for i := range int64(cap(n.free)) {
		n.sweep(i * noteSize)
	}
	os.Remove(n.f.Name()) //nolint:errcheck // it does no harm
	n.f.Close()           //nolint:errcheck // nothing is lost with it
}

// openNotes is OpenNotes for one file. Whoever has it may let go of it until end.
func openNotes(path string, slots int, end time.Time) *Notes {
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil
	}
	var dir, st unix.Stat_t
	if unix.Lstat(filepath.Dir(path), &dir) != nil || unix.Fstat(fd, &st) != nil ||
		!alone(&dir, unix.S_IFDIR) || !alone(&st, unix.S_IFREG) || lock(fd, end) != nil {
		unix.Close(fd) //nolint:errcheck // nothing was written
		return nil
	}
	n := &Notes{f: os.NewFile(uintptr(fd), path), free: make(chan int64, slots)}
	for i := range int64(slots) {
		n.sweep(i * noteSize)
		n.free <- i * noteSize
	}
	return n
}

// lock takes the lock of a file. It belongs to the open file, so it lasts until
// everybody who inherited that has ended.
func lock(fd int, end time.Time) error {
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(end) {
			return err
		}
		<-time.After(lockRound)
	}
}

const lockRound = 5 * time.Millisecond

// Close ends the notes. Without anything unfinished the file goes too, and its
// directory when nothing else is in it.
func (n *Notes) Close() {
	if n == nil {
		return
	}
	if len(n.free) == cap(n.free) {
		os.Remove(n.f.Name())               //nolint:errcheck // it does no harm
		os.Remove(filepath.Dir(n.f.Name())) //nolint:errcheck // others may use it
	}
	n.f.Close() //nolint:errcheck // nothing is lost with it
}

// alone reports whether only this account may change it.
func alone(st *unix.Stat_t, kind uint32) bool {
	return st.Mode&unix.S_IFMT == kind && int(st.Uid) == unix.Geteuid() && st.Mode&0o022 == 0
}

// add notes a name in an open directory, before it is made. The caller calls
// done when it is gone.
func (n *Notes) add(dir int, name string) (done func()) {
	nothing := func() {}
	if n == nil {
		return nothing
	}
	path, err := os.Readlink(fdPath(dir))
	if n.outside != nil {
		path = n.outside(path)
	}
	text := path + "\x00" + name
	if err != nil || path == "" || len(text) > noteSize-2 {
		return nothing
	}
	select {
	case at := <-n.free:
		if _, err := n.f.WriteAt([]byte(text), at+2); err == nil {
			n.length(at, len(text))
		}
		return func() {
			n.length(at, 0)
			n.free <- at
		}
	default:
		return nothing
	}
}

// length makes a note valid, or with 0 invalid.
func (n *Notes) length(at int64, length int) {
	n.f.WriteAt(binary.BigEndian.AppendUint16(nil, uint16(length)), at) //nolint:errcheck // without it a name may stay
}

// sweep removes what a slot names, and clears it.
func (n *Notes) sweep(at int64) {
	head := make([]byte, 2)
	if _, err := n.f.ReadAt(head, at); err != nil {
		return // never written
	}
	text := make([]byte, min(int(binary.BigEndian.Uint16(head)), noteSize-2))
	if _, err := n.f.ReadAt(text, at+2); err == nil {
		dir, name, _ := strings.Cut(string(text), "\x00")
		removeUnfinished(dir, name)
	}
	n.length(at, 0)
}

// unfinishedName is the form of what hide gives. With 130 random bits nobody
// else has used it.
var unfinishedName = regexp.MustCompile(`^\.astrabox-[A-Z2-7]{26}\.tmp$`)

// removeUnfinished removes a file that had its name for a moment, or a directory
// in which something was made.
func removeUnfinished(dir, name string) {
	if checkPath(dir) != nil || !unfinishedName.MatchString(name) {
		return
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, dir, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOSYS) {
		fd, err = openat(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	}
	if err != nil {
		return
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	ctx, cancel := context.WithTimeout(context.Background(), sweepTime)
	defer cancel()
	removeTree(ctx, fd, name) //nolint:errcheck // nothing more can be done
}
