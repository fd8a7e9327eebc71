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
}

const (
	noteSlots = 128 // what more is under way isn't noted
	noteSize  = 8 << 10

	sweepTime = 5 * time.Second // for what one note names
)

// OpenNotes takes the file at path and removes what it names. The directory is
// made if it is missing. nil, when somebody else could have written the file,
// another daemon has it, or the place can't be written to.
func OpenNotes(path string) *Notes {
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil
	}
	var dir, st unix.Stat_t
	if unix.Lstat(filepath.Dir(path), &dir) != nil || unix.Fstat(fd, &st) != nil ||
		!alone(&dir, unix.S_IFDIR) || !alone(&st, unix.S_IFREG) || unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) != nil {
		unix.Close(fd) //nolint:errcheck // nothing was written
		return nil
	}
	n := &Notes{f: os.NewFile(uintptr(fd), path), free: make(chan int64, noteSlots)}
	for i := range int64(noteSlots) {
		n.sweep(i * noteSize)
		n.free <- i * noteSize
	}
	return n
}

// Close ends the notes. Without anything unfinished the file goes too, and its
// directory when nothing else is in it.
func (n *Notes) Close() {
	if n == nil {
		return
	}
	if len(n.free) == noteSlots {
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
	text := path + "\x00" + name
	if err != nil || len(text) > noteSize-2 {
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
