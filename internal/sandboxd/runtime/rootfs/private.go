package rootfs

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// maxPrivate bounds how many names are kept from sandboxes.
const maxPrivate = 100_000

// cover is a name that the layer above the machine's /usr has: either a
// whiteout, or a directory on the way to one, which looks as the machine's does.
type cover struct {
	rel      string // below the directory that is covered
	hidden   bool
	mode     uint32 // of a directory, with its special bits
	uid, gid uint32
}

// privateUsr looks at /usr once in the life of the process, which opens one
// runtime: the look costs some 2 to 4 microseconds a file. What becomes private
// later is hidden from the next start on.
var privateUsr = sync.OnceValues(func() ([]cover, error) { return scanPrivate("/usr") })

// scanPrivate finds what below dir is not for everybody to read. Root in a
// sandbox sees root's files there as its own, whatever their bits, so a key that
// an administrator keeps below /usr/local with mode 0600 must not be there at
// all. A directory that isn't open to all counts with everything in it, and so do
// etc and local/etc: the machine's configuration, of which a sandbox gets what is
// on the list of its own /etc. What is
// mounted below dir isn't looked at: sandboxes don't see it.
//
// The result is in lexical order, parents first.
func scanPrivate(dir string) ([]cover, error) {
	root, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return nil, err
	}
	s := privateScan{dev: st.Dev, covers: map[string]cover{}}
	s.group.SetLimit(max(2, runtime.NumCPU())) // as fast as the kernel answers
	err = s.walk(root, "", nil)
	if err = errors.Join(err, s.group.Wait()); err != nil {
		return nil, fmt.Errorf("look for private files in %s: %w", dir, err)
	}
	list := make([]cover, 0, len(s.covers))
	for _, c := range s.covers {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b cover) int { return cmp.Compare(a.rel, b.rel) })
	return list, nil
}

type privateScan struct {
	dev   uint64
	group errgroup.Group

	mu     sync.Mutex
	covers map[string]cover
}

// walk looks at what is in dir, whose name is rel and whose parents, itself
// included, are way.
func (s *privateScan) walk(dir *os.File, rel string, way []cover) error {
	for {
		es, err := dir.ReadDir(512)
		for _, e := range es {
			if e.Type() == fs.ModeSymlink {
				continue
			}
			if err := s.look(dir, e.Name(), path.Join(rel, e.Name()), way); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (s *privateScan) look(dir *os.File, name, rel string, way []cover) error {
	var st unix.Stat_t
	err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) { // removed meanwhile
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", rel, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if st.Mode&0o004 == 0 {
			return s.hide(rel, way)
		}
		return nil
	}
	if st.Mode&0o005 != 0o005 || rel == "etc" || rel == "local/etc" {
		return s.hide(rel, way)
	}
	if st.Dev != s.dev {
		return nil
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", rel, err)
	}
	sub := os.NewFile(uintptr(fd), rel)
	way = append(way[:len(way):len(way)], cover{rel: rel, mode: st.Mode & 0o7777, uid: st.Uid, gid: st.Gid})
	work := func() error {
		defer sub.Close()
		return s.walk(sub, rel, way)
	}
	if s.group.TryGo(work) {
		return nil
	}
	return work()
}

func (s *privateScan) hide(rel string, way []cover) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range way {
		s.covers[c.rel] = c
	}
	s.covers[rel] = cover{rel: rel, hidden: true}
	if len(s.covers) > maxPrivate {
		return fmt.Errorf("more than %d names are not for everybody to read; keep such data elsewhere", maxPrivate)
	}
	return nil
}

// build makes the layer's name below root.
func (c cover) build(root string) error {
	name := filepath.Join(root, c.rel)
	if c.hidden { // overlayfs's mark for "not there"
		if err := unix.Mknod(name, unix.S_IFCHR, 0); err != nil {
			return fmt.Errorf("hide %s: %w", c.rel, err)
		}
		return nil
	}
	if err := os.Mkdir(name, 0o700); err != nil {
		return err
	}
	if err := os.Lchown(name, int(c.uid), int(c.gid)); err != nil {
		return err
	}
	return unix.Chmod(name, c.mode)
}
