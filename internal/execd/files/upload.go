package files

import (
	"crypto/rand"
	"errors"
	"hash/maphash"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// publishing serialises the last step of writes to one name, so that of two
// writers with the same if_unchanged exactly one wins. Programs of the sandbox
// that write the file themselves take no part in it.
type publishing struct {
	seed    maphash.Seed
	stripes [64]sync.Mutex
}

func (p *publishing) of(dir *unix.Stat_t, base string) *sync.Mutex {
	var h maphash.Hash
	h.SetSeed(p.seed)
	maphash.WriteComparable(&h, dir.Dev)
	maphash.WriteComparable(&h, dir.Ino)
	h.WriteString(base) //nolint:errcheck // never fails
	return &p.stripes[h.Sum64()%uint64(len(p.stripes))]
}

// target says what an upload becomes.
type target struct {
	attr
	newMode     uint32 // of a file that doesn't exist yet
	noReplace   bool
	ifUnchanged string
}

// upload is a new content of one file, unseen until commit.
type upload struct {
	s      *service
	at     *place
	want   target
	f      *os.File
	lock   *sync.Mutex
	hidden string // name beside the target, while it has one
	done   func() // ends the note of it
}

// begin opens an upload to path and refuses at once what commit would refuse.
// With noReplace a final link counts as existing; else it is followed. The
// caller calls abort in the end, whatever happened.
func (s *service) begin(sc *scope, path string, want target) (_ *upload, err error) {
	at, err := sc.place(path, !want.noReplace)
	if err != nil {
		return nil, err
	}
	u := &upload{s: s, at: at, want: want}
	defer func() {
		if err != nil {
			u.abort()
		}
	}()
	if at.slash {
		return nil, unix.EISDIR
	}
	o, _, err := u.check()
	if err != nil {
		return nil, err
	}
	var dir unix.Stat_t
	if err := unix.Fstat(at.dir, &dir); err != nil {
		return nil, err
	}
	u.lock = s.publishing.of(&dir, at.base)
	if err := u.create(o); err != nil {
		return nil, err
	}
	return u, nil
}

// create makes the file that takes the content: without a name where the file
// system can, else under a hidden one. One that nobody can open and that keeps
// its owner gets its bits, o's, at once: a change costs a file system as much
// as a small file's content.
func (u *upload) create(o owned) error {
	mode := uint32(0o600)
	if int(o.uid) == unix.Geteuid() && int(o.gid) == unix.Getegid() {
		mode = o.mode & 0o777
	}
	fd, err := unix.Openat(u.at.dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, mode)
	switch {
	case err == nil:
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.EINVAL):
		return u.createHidden()
	default:
		return err
	}
	u.f = os.NewFile(uintptr(fd), "upload")
	return nil
}

func (u *upload) createHidden() error {
	u.name()
	fd, err := unix.Openat(u.at.dir, u.hidden, unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		u.unname()
		return err
	}
	u.f = os.NewFile(uintptr(fd), "upload")
	return nil
}

// name says which name the file gets beside the target; unname, that it has
// none any more.
func (u *upload) name() {
	u.hidden = u.s.hide()
	u.done = u.s.notes.add(u.at.dir, u.hidden)
}

func (u *upload) unname() {
	u.s.names().Delete(u.hidden)
	u.hidden = ""
	u.done()
}

// hide invents a name beside a target; listings leave it out while it is in use.
func (s *service) hide() string {
	name := ".astrabox-" + rand.Text() + ".tmp"
	s.names().Store(name, struct{}{})
	return name
}

// abort releases what the upload holds. After commit it changes nothing that
// can be seen.
func (u *upload) abort() {
	if u.hidden != "" {
		unix.Unlinkat(u.at.dir, u.hidden, 0) //nolint:errcheck // nothing more can be done
		u.unname()
	}
	if u.f != nil {
		u.f.Close() //nolint:errcheck // synced, or given up
		u.f = nil
	}
	u.at.close()
}

// fill copies the content. An error of r is a body that ended early.
func (u *upload) fill(r io.Reader) error {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for {
		n, err := r.Read(buf[:])
		if n > 0 {
			if _, err := u.f.Write(buf[:n]); err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return &failure{code: wire.CodeIncompleteBody, message: "the content ended early; nothing was written", cause: err}
		}
	}
}

const bufferSize = 128 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// check looks at what has the target's name now and gives the bits and owner
// that the new file gets.
func (u *upload) check() (_ owned, exists bool, err error) {
	var st unix.Stat_t
	err = fstatat(u.at.dir, u.at.base, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		if u.want.ifUnchanged != "" {
			return owned{}, false, failf(wire.CodeFileChanged, "the file is gone")
		}
		return u.want.over(u.want.newMode, u.s.uid, u.s.gid), false, nil
	case err != nil:
		return owned{}, false, err
	case u.want.noReplace:
		return owned{}, true, unix.EEXIST
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return owned{}, true, unix.EISDIR
	case unix.S_IFLNK: // put there after the path was resolved: it is replaced, not followed
		if u.want.ifUnchanged != "" {
			return owned{}, true, failf(wire.CodeFileChanged, "the file has changed")
		}
		return u.want.over(u.want.newMode, u.s.uid, u.s.gid), true, nil
	default:
		return owned{}, true, failf(wire.CodeNotRegular, "the path names a %s, which content can't replace", typeNames[st.Mode&unix.S_IFMT])
	}
	if u.want.ifUnchanged != "" && u.want.ifUnchanged != versionOf(&st) {
		return owned{}, true, failf(wire.CodeFileChanged, "the file has changed")
	}
	return u.want.over(st.Mode, st.Uid, st.Gid), true, nil
}

// commit gives the new file its bits and owner, syncs it and puts it in place
// in one step. The entry describes it.
func (u *upload) commit(path string) (*wire.Entry, error) {
	fd := int(u.f.Fd())
	o, _, err := u.check()
	if err != nil {
		return nil, err
	}
	if err := o.give(fd); err != nil {
		return nil, err
	}
	if err := u.f.Sync(); err != nil {
		return nil, err
	}
	u.lock.Lock()
	defer u.lock.Unlock()
	o, exists, err := u.check()
	if err != nil {
		return nil, err
	}
	if err := o.give(fd); err != nil { // kept bits may have changed meanwhile
		return nil, err
	}
	if err := u.publish(fd, exists); err != nil {
		return nil, err
	}
	return entryFd(fd, path, newNamer(u.s.accounts))
}

func (u *upload) publish(fd int, exists bool) error {
	dir, base := u.at.dir, u.at.base
	if u.hidden == "" {
		if !exists {
			err := unix.Linkat(unix.AT_FDCWD, fdPath(fd), dir, base, unix.AT_SYMLINK_FOLLOW)
			if err == nil || u.want.noReplace || !errors.Is(err, unix.EEXIST) {
				return err
			}
		}
		u.name() // abort removes it
		if err := unix.Linkat(unix.AT_FDCWD, fdPath(fd), dir, u.hidden, unix.AT_SYMLINK_FOLLOW); err != nil {
			return err
		}
	}
	var err error
	if u.want.noReplace {
		if err = unix.Renameat2(dir, u.hidden, dir, base, unix.RENAME_NOREPLACE); errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
			// A file system without the flag: a link can't replace either, and
			// abort removes the hidden name.
			return unix.Linkat(dir, u.hidden, dir, base, 0)
		}
	} else {
		err = unix.Renameat(dir, u.hidden, dir, base)
	}
	if err == nil {
		u.unname()
	}
	return err
}
