package files

import (
	"errors"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// errConfused: what is known of the tree doesn't fit an event; it has to be
// read again.
var errConfused = errors.New("the tree has to be read again")

const (
	watchMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MODIFY | unix.IN_ATTRIB |
		unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	rootMask = watchMask | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF
)

// watchTree knows the directories that are watched. Each has a watch on its
// inode; names are kept here, since the kernel's events have none of them.
type watchTree struct {
	s      *service
	roots  []string
	prefix string   // path of the root, as spelled
	events *os.File // of inotify
	fd     int      // of inotify
	dir    int      // O_PATH descriptor of the root
	self   inodeID
	root   *watched
	parent int32 // watch on the directory above the root, or -1
	byWD   map[int32]*watched
	halves []half
}

// watched is one directory.
type watched struct {
	wd       int32
	name     string
	parent   *watched // nil: the root
	children map[string]*watched
}

func (s *service) newWatchTree(roots []string, path string) (*watchTree, error) {
	sc, err := newScope(roots)
	if err != nil {
		return nil, err
	}
	defer sc.close() //nolint:errcheck // an O_PATH descriptor
	dir, err := sc.open(path, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(dir, &st); err != nil {
		unix.Close(dir) //nolint:errcheck // an O_PATH descriptor
		return nil, err
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		unix.Close(dir) //nolint:errcheck // an O_PATH descriptor
		if errors.Is(err, unix.EMFILE) {
			return nil, failf(wire.CodeFileLimit, "the sandbox has as many inotify instances as its kernel allows (fs.inotify.max_user_instances)")
		}
		return nil, err
	}
	prefix := strings.TrimRight(path, "/")
	return &watchTree{
		s: s, roots: roots, prefix: prefix, events: os.NewFile(uintptr(fd), "inotify"), fd: fd, dir: dir,
		self: inodeID{uint64(st.Dev), st.Ino}, //nolint:unconvert // the width differs between architectures
	}, nil
}

func (t *watchTree) close() {
	t.events.Close()
	unix.Close(t.dir) //nolint:errcheck // an O_PATH descriptor
}

func (t *watchTree) rootWD() int32 {
	if t.root == nil {
		return -1
	}
	return t.root.wd
}

// rootStays reports whether the path still names the root.
func (t *watchTree) rootStays() bool {
	sc, err := newScope(t.roots)
	if err != nil {
		return false
	}
	defer sc.close() //nolint:errcheck // an O_PATH descriptor
	fd, err := sc.open(t.path(nil, ""), unix.O_DIRECTORY)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	return stands(fd, t.self)
}

// stands reports whether a descriptor stands for an inode.
func stands(fd int, id inodeID) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && inodeID{uint64(st.Dev), st.Ino} == id //nolint:unconvert // as above
}

// build reads the whole tree and watches all of its directories.
func (t *watchTree) build() error {
	for wd := range t.byWD {
		unix.InotifyRmWatch(t.fd, uint32(wd)) //nolint:errcheck // gone already
	}
	t.byWD, t.root, t.halves = map[int32]*watched{}, nil, nil
	if !t.rootStays() {
		return errWatchGone
	}
	fd, err := openat(t.dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	wd, err := t.add(fd, rootMask)
	if err != nil {
		return err
	}
	t.root = &watched{wd: wd}
	t.byWD[wd] = t.root
	t.watchParent()
	return t.scan(fd, t.root, t.self.dev, nil, 1)
}

// watchParent asks for the removal of the root: as long as dir is open, the
// kernel doesn't tell it of the root itself. Names of the parent are told to
// nobody. Without that watch a removal is seen when the next sign of life is due.
func (t *watchTree) watchParent() {
	t.parent = -1
	fd, err := openat(t.dir, "..", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	if stands(fd, t.self) {
		return // the top of all
	}
	if wd, err := unix.InotifyAddWatch(t.fd, fdPath(fd), unix.IN_DELETE|unix.IN_ONLYDIR); err == nil {
		t.parent = int32(wd)
	}
}

// removed reports whether the root has no name any more.
func (t *watchTree) removed() bool {
	var st unix.Stat_t
	return unix.Fstat(t.dir, &st) != nil || st.Nlink == 0
}

// add watches what a descriptor stands for.
func (t *watchTree) add(fd int, mask uint32) (int32, error) {
	if len(t.byWD) >= maxWatchDirs {
		return 0, failf(wire.CodeFileLimit, "the tree has more than %d directories", maxWatchDirs)
	}
	wd, err := unix.InotifyAddWatch(t.fd, fdPath(fd), mask)
	if errors.Is(err, unix.ENOSPC) {
		return 0, failf(wire.CodeFileLimit, "the sandbox watches as many directories as its kernel allows (fs.inotify.max_user_watches)")
	}
	return int32(wd), err
}

// scan watches the directories below n, which is open as fd and watched: what
// appears in it meanwhile makes an event. With out, what is there is told.
func (t *watchTree) scan(fd int, n *watched, dev uint64, out *gathered, level int) error {
	if level > maxWatchLevels {
		return failf(wire.CodeFileLimit, "the tree has more than %d levels", maxWatchLevels)
	}
	dup, err := openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return err
	}
	dir := os.NewFile(uintptr(dup), "dir")
	defer dir.Close()
	for {
		list, err := dir.ReadDir(512)
		for _, e := range list {
			if hiddenName(e.Name()) {
				continue
			}
			if out != nil {
				out.add(string(sandbox.ChangeCreated), t.path(n, e.Name()), e.IsDir())
			}
			if e.IsDir() {
				if err := t.descend(fd, n, e.Name(), dev, out, level+1); err != nil {
					return err
				}
			}
		}
		if errors.Is(err, io.EOF) || len(list) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// descend watches the directory name of n, open as parent, with all below it.
func (t *watchTree) descend(parent int, n *watched, name string, dev uint64, out *gathered, level int) error {
	fd, err := openat(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if passable(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if here := uint64(st.Dev); here != dev { //nolint:unconvert // the width differs between architectures
		dev = here
		var fs unix.Statfs_t
		if unix.Fstatfs(fd, &fs) == nil && pseudo[fs.Type] {
			return nil // nothing there makes events
		}
	}
	wd, err := t.add(fd, watchMask)
	if passable(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if known := t.byWD[wd]; known != nil {
		if known == n.children[name] {
			return nil // an event told of it after it had been found
		}
		// Either a second mount of a directory, which has its events under the
		// first name, or a move that wasn't told yet.
		if t.stays(known, inodeID{dev, st.Ino}) {
			return nil
		}
		return errConfused
	}
	child := &watched{wd: wd, name: name, parent: n}
	if n.children == nil {
		n.children = map[string]*watched{}
	}
	if old := n.children[name]; old != nil {
		t.forget(old)
	}
	n.children[name] = child
	t.byWD[wd] = child
	err = t.scan(fd, child, dev, out, level)
	if passable(err) {
		return nil
	}
	return err
}

// stays reports whether n is still where it is thought to be.
func (t *watchTree) stays(n *watched, id inodeID) bool {
	fd, err := t.open(n)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	return stands(fd, id)
}

// open gives a descriptor of what n's path names; no link is followed.
func (t *watchTree) open(n *watched) (int, error) {
	var names []string
	for ; n.parent != nil; n = n.parent {
		names = append(names, n.name)
	}
	fd, err := openat(t.dir, ".", unix.O_PATH|unix.O_DIRECTORY)
	for i := len(names) - 1; i >= 0 && err == nil; i-- {
		var next int
		next, err = openat(fd, names[i], unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
		unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
		fd = next
	}
	return fd, err
}

// path spells the path of a name in n, or with no n that of the root.
func (t *watchTree) path(n *watched, name string) string {
	if n == nil {
		return t.prefix + "/"[:max(0, 1-len(t.prefix))]
	}
	parts := []string{name}
	for ; n.parent != nil; n = n.parent {
		parts = append(parts, n.name)
	}
	var b strings.Builder
	b.WriteString(t.prefix)
	for i := len(parts) - 1; i >= 0; i-- {
		b.WriteByte('/')
		b.WriteString(parts[i])
	}
	return b.String()
}

// forget ends the watches of n and of all below it.
func (t *watchTree) forget(n *watched) {
	for _, c := range n.children {
		t.forget(c)
	}
	if t.byWD[n.wd] == n {
		delete(t.byWD, n.wd)
		unix.InotifyRmWatch(t.fd, uint32(n.wd)) //nolint:errcheck // gone already
	}
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
}
