package sandboxfake

import (
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// tree is the file system of one sandbox. Its lock guards all nodes.
type tree struct {
	mu       sync.Mutex
	root     *node
	last     int64 // version given last
	accounts []string
}

// node is a file. Content is replaced as a whole and never changed, so that who
// has a file open goes on reading what it opened.
type node struct {
	mode         fs.FileMode // type, permission and special bits
	owner, group string
	content      []byte
	unsized      bool             // as the files of /proc: size 0, whatever they hold
	target       string           // of a symlink
	names        map[string]*node // of a directory
	parent       *node            // of a directory; the root's is itself
	modified     time.Time
	version      int64
}

const (
	maxPath  = 4095
	maxLinks = 40
	settable = fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
)

func newTree(accounts []string) *tree {
	t := &tree{accounts: accounts}
	t.root = t.node(fs.ModeDir|0o755, "root")
	t.root.parent = t.root
	t.add(t.root, "tmp", t.node(fs.ModeDir|fs.ModeSticky|0o777, "root"))
	t.add(t.root, "home", t.node(fs.ModeDir|0o755, "root"))
	t.add(t.root, "proc", t.node(fs.ModeDir|0o555, "root"))
	version := t.node(0o444, "root")
	version.content, version.unsized = []byte("in memory\n"), true
	t.add(t.root.names["proc"], "version", version)
	for _, a := range accounts {
		if a == "root" {
			t.add(t.root, "root", t.node(fs.ModeDir|0o700, a))
		} else {
			t.add(t.root.names["home"], a, t.node(fs.ModeDir|0o700, a))
		}
	}
	return t
}

func home(account string) string {
	if account == "root" {
		return "/root"
	}
	return "/home/" + account
}

func (t *tree) node(mode fs.FileMode, owner string) *node {
	t.last++
	n := &node{mode: mode, owner: owner, group: owner, modified: time.Now(), version: t.last}
	if mode.IsDir() {
		n.names = map[string]*node{}
	}
	return n
}

func (t *tree) add(dir *node, name string, n *node) {
	dir.names[name] = n
	if n.mode.IsDir() {
		n.parent = dir
	}
	t.touch(dir)
}

func (t *tree) drop(dir *node, name string) {
	delete(dir.names, name)
	t.touch(dir)
}

func (t *tree) touch(n *node) {
	t.last++
	n.version, n.modified = t.last, time.Now()
}

// knows reports whether the sandbox has an account of that name; digits stand
// for themselves.
func (t *tree) knows(account string) bool {
	_, err := strconv.ParseUint(account, 10, 31)
	return err == nil || slices.Contains(t.accounts, account)
}

func (n *node) info(path string) sandbox.FileInfo {
	i := sandbox.FileInfo{
		Path: path, Mode: n.mode, Owner: n.owner, Group: n.group, ModTime: n.modified,
		Size: int64(len(n.content)), Target: n.target, Version: strconv.FormatInt(n.version, 10),
	}
	if n.mode.Type() == fs.ModeSymlink {
		i.Size = int64(len(n.target))
	}
	if n.unsized {
		i.Size = 0
	}
	return i
}

// size, mode in the numbers of stat(1).
func (n *node) stat() string {
	bits := uint32(n.mode.Perm())
	for mode, bit := range map[fs.FileMode]uint32{
		fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000,
		fs.ModeDir: 0o040000, fs.ModeSymlink: 0o120000, fs.ModeNamedPipe: 0o010000,
	} {
		if n.mode&mode != 0 {
			bits |= bit
		}
	}
	if n.mode.IsRegular() {
		bits |= 0o100000
	}
	return fmt.Sprintf("%x %d %s %s\n", bits, n.info("").Size, n.owner, n.group)
}

// sorted gives the names of a directory in lexical order.
func (n *node) sorted() []string { return slices.Sorted(maps.Keys(n.names)) }

// failure is a refusal of the file system. errors.Is finds the system's error.
type failure struct {
	errno syscall.Errno
	text  string
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.errno }

func rejected(errno syscall.Errno, format string, args ...any) error {
	return fmt.Errorf("%w: %w", sandbox.ErrPathRejected, &failure{errno, fmt.Sprintf(format, args...)})
}

func errno(e syscall.Errno) error {
	if e == syscall.ENOENT {
		return sandbox.ErrPathNotFound
	}
	return rejected(e, "%s", e.Error())
}

var errEscapes = rejected(syscall.EPERM, "the path leads out of its root")

func checkPath(path string) error {
	if path == "" || path[0] != '/' || strings.IndexByte(path, 0) >= 0 || len(path) > maxPath {
		return rejected(syscall.EINVAL, "a path is absolute, at most %d bytes long and has no NUL byte", maxPath)
	}
	return nil
}

// place is a name in a directory, and what has it.
type place struct {
	dir   *node
	name  string
	n     *node // nil: nothing
	slash bool  // the path ended with a slash
}

// find resolves a path below roots, of which each lies below the one before.
// A final symlink is followed when follow is set. What doesn't exist is no
// error when only the last name is missing. A path that ends in the root, "."
// or ".." has no name. The tree's lock is held.
func (t *tree) find(roots []string, path string, follow bool) (place, error) {
	base, spelled := t.root, ""
	for i, root := range roots {
		if err := checkPath(root); err != nil {
			return place{}, err
		}
		rel, ok := cutRoot(spelled, root)
		if !ok {
			return place{}, errEscapes
		}
		at, err := t.walk(base, spelled, rel, true, i > 0)
		switch {
		case err != nil:
			return place{}, err
		case at.n == nil:
			return place{}, errno(syscall.ENOENT)
		case !at.n.mode.IsDir():
			return place{}, errno(syscall.ENOTDIR)
		}
		base, spelled = at.n, strings.TrimRight(root, "/")
	}
	if err := checkPath(path); err != nil {
		return place{}, err
	}
	rel, ok := cutRoot(spelled, path)
	if !ok {
		return place{}, errEscapes
	}
	return t.walk(base, spelled, rel, follow, len(roots) > 0)
}

func cutRoot(root, path string) (rel string, ok bool) {
	rest, ok := strings.CutPrefix(path, root)
	return rest, ok && (rest == "" || rest[0] == '/')
}

// walk resolves rel from base, which is spelled as a path. Confined, nothing
// leads above base.
func (t *tree) walk(base *node, spelled, rel string, follow, confined bool) (place, error) {
	at := place{dir: base, n: base}
	todo := strings.Split(rel, "/")
	slash := strings.HasSuffix(rel, "/")
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		if name == "" {
			continue
		}
		if at.n == nil {
			return place{}, errno(syscall.ENOENT)
		}
		if !at.n.mode.IsDir() {
			return place{}, errno(syscall.ENOTDIR)
		}
		if len(name) > 255 {
			return place{}, errno(syscall.ENAMETOOLONG)
		}
		dir := at.n
		switch name {
		case ".":
			at = place{dir: dir, n: dir}
			continue
		case "..":
			if confined && dir == base {
				return place{}, errEscapes
			}
			at = place{dir: dir.parent, n: dir.parent}
			continue
		}
		at = place{dir: dir, name: name, n: dir.names[name]}
		last := strings.Trim(strings.Join(todo, "/"), "/") == ""
		if at.n == nil || at.n.mode.Type() != fs.ModeSymlink || last && !follow && !slash {
			continue
		}
		if links++; links > maxLinks {
			return place{}, errno(syscall.ELOOP)
		}
		target := at.n.target
		at = place{dir: dir, n: dir}
		if strings.HasPrefix(target, "/") {
			if confined {
				inside, ok := cutRoot(spelled, target)
				if !ok {
					return place{}, errEscapes
				}
				target = inside
			}
			at = place{dir: base, n: base}
			if !confined {
				at = place{dir: t.root, n: t.root}
			}
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	at.slash = slash
	return at, nil
}

// existing is find for what must exist.
func (t *tree) existing(roots []string, path string, follow bool) (place, error) {
	at, err := t.find(roots, path, follow)
	switch {
	case err != nil:
		return at, err
	case at.n == nil:
		return at, errno(syscall.ENOENT)
	case at.slash && !at.n.mode.IsDir():
		return at, errno(syscall.ENOTDIR)
	}
	return at, nil
}

// named is find for a name that is to be made, replaced or removed.
func (t *tree) named(roots []string, path string, follow bool) (place, error) {
	at, err := t.find(roots, path, follow)
	if err == nil && at.name == "" {
		return at, rejected(syscall.EINVAL, "the path doesn't end with a name that can be made, replaced or removed")
	}
	return at, err
}
