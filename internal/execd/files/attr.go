package files

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const maxID = 1<<32 - 2

// namer names owners for one request. It asks about each id once, since a
// listing meets the same few again and again.
type namer struct {
	db            *account.DB
	users, groups map[uint32]string
}

func newNamer(db *account.DB) namer { return namer{db, map[uint32]string{}, map[uint32]string{}} }

func (n namer) owner(id uint32) string {
	name, ok := n.users[id]
	if !ok {
		name = n.db.UserName(id)
		n.users[id] = name
	}
	return name
}

func (n namer) group(id uint32) string {
	name, ok := n.groups[id]
	if !ok {
		name = n.db.GroupName(id)
		n.groups[id] = name
	}
	return name
}

// number reads an id in digits. It stands in where nothing has that name, so
// that what a listing says of a nameless owner can be given back.
func number(name string) (uint32, bool) {
	id, err := strconv.ParseUint(name, 10, 32)
	return uint32(id), err == nil && id <= maxID && name[0] != '+'
}

// attr is what a file is to be given; nil leaves a part as it is.
type attr struct {
	mode     *uint32 // permission and special bits
	uid, gid *uint32
}

// attr resolves what a request asks for, before anything is touched.
func (s *service) attr(w wire.FileAttr) (attr, error) {
	var out attr
	if w.Mode != "" {
		mode, err := strconv.ParseUint(w.Mode, 8, 32)
		if err != nil || mode > 0o7777 || w.Mode[0] == '+' {
			return attr{}, failf(wire.CodePathInvalid, "mode %s isn't an octal number of at most 7777", strconv.QuoteToASCII(w.Mode))
		}
		m := uint32(mode)
		out.mode = &m
	}
	if w.Owner != "" {
		id, ok := number(w.Owner)
		if u, err := s.accounts.User(w.Owner); err == nil {
			id, ok = u.UID, true
		}
		if !ok {
			return attr{}, failf(wire.CodeUnknownAccount, "the sandbox has no account named %s", strconv.QuoteToASCII(w.Owner))
		}
		out.uid = &id
	}
	if w.Group != "" {
		id, ok := number(w.Group)
		if gid, err := s.accounts.Group(w.Group); err == nil {
			id, ok = gid, true
		}
		if !ok {
			return attr{}, failf(wire.CodeUnknownAccount, "the sandbox has no group named %s", strconv.QuoteToASCII(w.Group))
		}
		out.gid = &id
	}
	return out, nil
}

// over fills the parts that a leaves open from what the file had. A change of
// owner alone drops setuid and setgid, as chown(2) does: a program must not
// become another account's by accident.
func (a attr) over(mode, uid, gid uint32) owned {
	o := owned{mode & 0o7777, uid, gid}
	if a.uid != nil {
		o.uid = *a.uid
	}
	if a.gid != nil {
		o.gid = *a.gid
	}
	switch {
	case a.mode != nil:
		o.mode = *a.mode
	case o.uid != uid || o.gid != gid:
		o.mode &^= unix.S_ISUID | unix.S_ISGID
	}
	return o
}

// owned is the full set of a file's bits and owners.
type owned struct{ mode, uid, gid uint32 }

func ownedOf(st *unix.Stat_t) owned { return owned{st.Mode & 0o7777, st.Uid, st.Gid} }

// give sets bits and owner on a descriptor that may be O_PATH. On the way the
// file is never open to more than both the old and the new bits allow. A bit
// that the kernel dropped silently is an error.
func (o owned) give(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	had := ownedOf(&st)
	if had == o {
		return nil
	}
	link := fdPath(fd)
	if had.uid != o.uid || had.gid != o.gid {
		if narrow := had.mode & o.mode & 0o777; narrow != had.mode {
			if err := unix.Fchmodat(unix.AT_FDCWD, link, narrow, 0); err != nil {
				return fmt.Errorf("chmod: %w", err)
			}
		}
		if err := unix.Fchownat(unix.AT_FDCWD, link, int(o.uid), int(o.gid), 0); err != nil {
			return fmt.Errorf("chown: %w", err)
		}
	}
	if err := unix.Fchmodat(unix.AT_FDCWD, link, o.mode, 0); err != nil {
		return fmt.Errorf("chmod: %w", err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if ownedOf(&st) != o {
		return failf(wire.CodePermissionDenied, "the sandbox's kernel refused mode %o for this owner and group", o.mode)
	}
	return nil
}
