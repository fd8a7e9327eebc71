package files

import (
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
)

// half is the first part of a move, whose second part may follow.
type half struct {
	cookie uint32
	from   *watched // the directory that it left
	name   string
	dir    bool
	hidden bool // no name that is told
	told   int  // place of the removal that stands for it until then
	path   string
}

// event is one event of inotify.
type event struct {
	wd     int32
	mask   uint32
	cookie uint32
	name   string
}

// parseEvent reads one event; ok is false for one that isn't whole.
func parseEvent(b []byte) (e event, rest []byte, ok bool) {
	if len(b) < unix.SizeofInotifyEvent {
		return event{}, nil, false
	}
	e.wd = int32(binary.NativeEndian.Uint32(b))
	e.mask = binary.NativeEndian.Uint32(b[4:])
	e.cookie = binary.NativeEndian.Uint32(b[8:])
	size := uint64(binary.NativeEndian.Uint32(b[12:]))
	b = b[unix.SizeofInotifyEvent:]
	if size > uint64(len(b)) {
		return event{}, nil, false
	}
	e.name, _, _ = strings.Cut(string(b[:size]), "\x00")
	return e, b[size:], true
}

// event takes one event and gathers what it tells.
func (t *watchTree) event(e event, out *gathered) error {
	n := t.byWD[e.wd]
	if n == nil {
		return nil // of a watch that has ended
	}
	dir := e.mask&unix.IN_ISDIR != 0
	switch {
	case e.mask&(unix.IN_IGNORED|unix.IN_UNMOUNT|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
		if n == t.root {
			return errWatchGone
		}
		t.forget(n)
	case e.name == "": // something about the directory itself, which its parent's event tells
	case e.mask&unix.IN_MOVED_FROM != 0:
		t.movedFrom(n, e, dir, out)
	case e.mask&unix.IN_MOVED_TO != 0:
		return t.movedTo(n, e, dir, out)
	case hiddenName(e.name):
	case e.mask&unix.IN_CREATE != 0:
		return t.created(n, e.name, dir, out)
	case e.mask&unix.IN_DELETE != 0:
		out.add(string(sandbox.ChangeRemoved), t.path(n, e.name), dir)
		if c := n.children[e.name]; c != nil && dir {
			t.forget(c)
		}
	case strings.HasPrefix(e.name, "#") && t.nameless(n, e.name):
	case e.mask&(unix.IN_MODIFY|unix.IN_ATTRIB) != 0:
		out.add(string(sandbox.ChangeModified), t.path(n, e.name), dir)
	}
	return nil
}

// nameless reports a file that never had that name: the kernel calls one that
// was opened without a name by its number.
func (t *watchTree) nameless(n *watched, name string) bool {
	fd, err := t.open(n)
	if err != nil {
		return true
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	var st unix.Stat_t
	return fstatat(fd, name, &st) != nil
}

// created tells of a new name, and follows a directory.
func (t *watchTree) created(n *watched, name string, dir bool, out *gathered) error {
	out.add(string(sandbox.ChangeCreated), t.path(n, name), dir)
	if !dir {
		return nil
	}
	fd, err := t.open(n)
	if err != nil {
		return nil //nolint:nilerr // its parent is gone already, or moved, which an event will tell
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	level := 1
	for p := n; p.parent != nil; p = p.parent {
		level++
	}
	return t.descend(fd, n, name, 0, out, level+1)
}

// movedFrom tells of a removal, which becomes a move if the other half comes.
func (t *watchTree) movedFrom(n *watched, e event, dir bool, out *gathered) {
	h := half{cookie: e.cookie, from: n, name: e.name, dir: dir, hidden: hiddenName(e.name), told: -1, path: t.path(n, e.name)}
	if !h.hidden {
		h.told = out.add(string(sandbox.ChangeRemoved), h.path, dir)
	}
	if len(t.halves) == maxHalves {
		t.leave(t.halves[0])
		t.halves = t.halves[1:]
	}
	t.halves = append(t.halves, h)
}

// settle takes the moves whose other half didn't come for removals.
func (t *watchTree) settle() {
	for _, h := range t.halves {
		t.leave(h)
	}
	t.halves = nil
}

// leave ends the watches of a directory that has left the tree.
func (t *watchTree) leave(h half) {
	if c := h.from.children[h.name]; c != nil && h.dir {
		t.forget(c)
	}
}

func (t *watchTree) movedTo(n *watched, e event, dir bool, out *gathered) error {
	var h half
	found := false
	for i := len(t.halves) - 1; i >= 0 && !found; i-- {
		if t.halves[i].cookie == e.cookie {
			h, found = t.halves[i], true
			t.halves = append(t.halves[:i], t.halves[i+1:]...)
		}
	}
	to := t.path(n, e.name)
	switch {
	case hiddenName(e.name):
		if found {
			t.leave(h)
		}
		return nil
	case !found:
		return t.created(n, e.name, dir, out)
	case h.hidden:
		t.leave(h)
		return t.created(n, e.name, dir, out)
	}
	out.drop(h.told)
	out.move(h.path, to, dir)
	if !dir {
		return nil
	}
	if old := n.children[e.name]; old != nil { // an empty directory that was replaced
		t.forget(old)
	}
	c := h.from.children[h.name]
	if c == nil { // it wasn't watched yet
		return t.created(n, e.name, dir, out)
	}
	delete(h.from.children, h.name)
	c.name, c.parent = e.name, n
	if n.children == nil {
		n.children = map[string]*watched{}
	}
	n.children[e.name] = c
	return t.confirm(c)
}

// confirm makes sure that a directory which moved is the one that was watched:
// several moves may have happened before the first was told.
func (t *watchTree) confirm(c *watched) error {
	fd, err := t.open(c)
	if err != nil {
		return nil //nolint:nilerr // it has moved on, which an event will tell
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	wd, err := unix.InotifyAddWatch(t.fd, fdPath(fd), watchMask)
	if err == nil && int32(wd) == c.wd {
		return nil
	}
	if err == nil && t.byWD[int32(wd)] == nil {
		unix.InotifyRmWatch(t.fd, uint32(wd)) //nolint:errcheck // ours just now
	}
	return errConfused
}
