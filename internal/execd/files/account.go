package files

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	maxAccountFile = 16 << 20 // bytes read of /etc/passwd or /etc/group
	maxID          = 1<<32 - 2
)

// names is one account file, read again when the file was changed.
type names struct {
	path, what string

	mu      sync.Mutex
	version string
	byName  map[string]uint32
	byID    map[uint32]string
}

// tables gives the file's content as two maps that nobody changes any more. A
// file that isn't there or can't be read has no names.
func (n *names) tables() (byName map[string]uint32, byID map[uint32]string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f, st, err := openRegular(n.path)
	if err != nil {
		n.version, n.byName, n.byID = "", nil, nil
		return nil, nil
	}
	defer f.Close()
	if v := versionOf(st); v != n.version {
		b, err := io.ReadAll(io.LimitReader(f, maxAccountFile))
		if err != nil {
			return nil, nil
		}
		n.byName, n.byID = parseAccounts(b)
		n.version = v
	}
	return n.byName, n.byID
}

// parseAccounts reads name:x:id:… lines. The first line of a name or an id
// holds, as in the C library.
func parseAccounts(b []byte) (byName map[string]uint32, byID map[uint32]string) {
	byName, byID = map[string]uint32{}, map[uint32]string{}
	for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
		fields := strings.SplitN(sc.Text(), ":", 4)
		if len(fields) < 3 || fields[0] == "" || fields[0][0] == '#' || fields[0][0] == '+' || fields[0][0] == '-' {
			continue
		}
		id, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil || id > maxID {
			continue
		}
		if _, ok := byName[fields[0]]; !ok {
			byName[fields[0]] = uint32(id)
		}
		if _, ok := byID[uint32(id)]; !ok {
			byID[uint32(id)] = fields[0]
		}
	}
	return byName, byID
}

// id resolves a name. Digits are taken as a number when nothing has that name,
// so that what a listing says of a nameless owner can be given back.
func (n *names) id(name string) (uint32, error) {
	byName, _ := n.tables()
	if id, ok := byName[name]; ok {
		return id, nil
	}
	if id, err := strconv.ParseUint(name, 10, 32); err == nil && id <= maxID && name[0] != '+' {
		return uint32(id), nil
	}
	return 0, failf(wire.CodeUnknownAccount, "the sandbox has no %s named %s", n.what, strconv.QuoteToASCII(name))
}

// accounts resolves the owners and groups of the sandbox.
type accounts struct{ users, groups names }

func newAccounts(passwd, group string) *accounts {
	return &accounts{users: names{path: passwd, what: "account"}, groups: names{path: group, what: "group"}}
}

// namer names owners by one state of the account files.
type namer struct{ users, groups map[uint32]string }

func (a *accounts) namer() namer {
	_, users := a.users.tables()
	_, groups := a.groups.tables()
	return namer{users, groups}
}

func (n namer) owner(id uint32) string { return nameOr(n.users, id) }

func (n namer) group(id uint32) string { return nameOr(n.groups, id) }

func nameOr(byID map[uint32]string, id uint32) string {
	if name, ok := byID[id]; ok {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

// attr is what a file is to be given; nil leaves a part as it is.
type attr struct {
	mode     *uint32 // permission and special bits
	uid, gid *uint32
}

// attr resolves what a request asks for, before anything is touched.
func (a *accounts) attr(w wire.FileAttr) (attr, error) {
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
		id, err := a.users.id(w.Owner)
		if err != nil {
			return attr{}, err
		}
		out.uid = &id
	}
	if w.Group != "" {
		id, err := a.groups.id(w.Group)
		if err != nil {
			return attr{}, err
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
