package files

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	maxPath  = 4095 // bytes, what the kernel takes
	maxLinks = 40   // followed for one path, as the kernel does
	maxWalk  = 1024 // directories held open by one walk
)

// scope is where a request's paths are looked up: everywhere, or below a root.
type scope struct {
	fd   int    // O_PATH descriptor of the root, or AT_FDCWD
	root string // as spelled, without a final slash; "" is / (confined or not)
	held bool   // fd is ours, and everything is confined to it
}

// newScope opens the innermost of roots; each must lie below the one before.
// Without roots nothing is confined.
func newScope(roots []string) (*scope, error) {
	s := &scope{fd: unix.AT_FDCWD}
	for _, root := range roots {
		if err := checkPath(root); err != nil {
			return nil, errors.Join(err, s.close())
		}
		fd, err := s.open(root, unix.O_DIRECTORY)
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.close() //nolint:errcheck // an O_PATH descriptor
		s = &scope{fd: fd, root: strings.TrimRight(root, "/"), held: true}
	}
	return s, nil
}

func (s *scope) close() error {
	if s.held {
		return unix.Close(s.fd)
	}
	return nil
}

func checkPath(path string) error {
	switch {
	case path == "":
		return failf(wire.CodePathInvalid, "the path is empty")
	case path[0] != '/':
		return failf(wire.CodePathInvalid, "the path isn't absolute")
	case strings.IndexByte(path, 0) >= 0:
		return failf(wire.CodePathInvalid, "the path has a NUL byte")
	case len(path) > maxPath:
		return failf(wire.CodePathInvalid, "the path is longer than %d bytes", maxPath)
	}
	return nil
}

// below cuts root off path, both as they are spelled.
func below(root, path string) (rel string, ok bool) {
	rest, ok := strings.CutPrefix(path, root)
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	if rest = strings.TrimLeft(rest, "/"); rest == "" {
		return ".", true
	}
	return rest, true
}

// rel gives the path relative to the scope's descriptor. Unconfined it stays
// absolute.
func (s *scope) rel(path string) (string, error) {
	if err := checkPath(path); err != nil {
		return "", err
	}
	if !s.held {
		return path, nil
	}
	rel, ok := below(s.root, path)
	if !ok {
		return "", failf(wire.CodePathEscapes, "the path isn't below its root")
	}
	return rel, nil
}

// open gives an O_PATH descriptor of what path names. Flags are O_DIRECTORY
// and O_NOFOLLOW (of a final link); a path that ends with a slash names a
// directory.
func (s *scope) open(path string, flags int) (int, error) {
	rel, err := s.rel(path)
	if err != nil {
		return -1, err
	}
	flags |= unix.O_PATH | unix.O_CLOEXEC
	if !s.held {
		return openat(s.fd, rel, flags)
	}
	fd, err := openBeneath(s.fd, rel, flags)
	if !retryByWalk(err) {
		return fd, err
	}
	if strings.HasSuffix(rel, "/") {
		flags = flags&^unix.O_NOFOLLOW | unix.O_DIRECTORY
	}
	dir, base, err := s.walk(strings.TrimRight(rel, "/"), flags&unix.O_NOFOLLOW == 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir) //nolint:errcheck // an O_PATH descriptor
	return openat(dir, base, flags|unix.O_NOFOLLOW)
}

// place is a name in a directory that is held open: what an operation that
// makes, replaces or removes a name works on.
type place struct {
	dir   int
	base  string
	slash bool // the path ended with a slash, so it means a directory
}

func (p *place) close() { unix.Close(p.dir) } //nolint:errcheck // an O_PATH descriptor

// place resolves all of path but its last name, or with follow also the links
// that the last name leads through, to a name that is no link (or is missing).
func (s *scope) place(path string, follow bool) (*place, error) {
	rel, err := s.rel(path)
	if err != nil {
		return nil, err
	}
	trimmed := strings.TrimRight(rel, "/")
	slash := trimmed != rel
	parent, base := split(trimmed)
	switch base {
	case "", ".", "..":
		return nil, failf(wire.CodePathInvalid, "the path doesn't end with a name that can be made, replaced or removed")
	}
	if s.held {
		dir, err := openBeneath(s.fd, parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
		switch {
		case err == nil && follow && isLink(dir, base):
			unix.Close(dir) //nolint:errcheck // an O_PATH descriptor
		case err == nil:
			return &place{dir, base, slash}, nil
		case !retryByWalk(err):
			return nil, err
		}
		if dir, base, err = s.walk(trimmed, follow); err != nil {
			return nil, err
		}
		if base == "." {
			unix.Close(dir) //nolint:errcheck // an O_PATH descriptor
			return nil, unix.EISDIR
		}
		return &place{dir, base, slash}, nil
	}
	return placeAnywhere(parent, base, slash, follow)
}

func placeAnywhere(parent, base string, slash, follow bool) (*place, error) {
	dir, err := openat(unix.AT_FDCWD, parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
	if err != nil {
		return nil, err
	}
	for links := 0; follow; links++ {
		target, ok := linkAt(dir, base)
		if !ok {
			break // or missing: the operation itself will tell
		}
		if links == maxLinks {
			unix.Close(dir) //nolint:errcheck // an O_PATH descriptor
			return nil, unix.ELOOP
		}
		parent, name := split(strings.TrimRight(target, "/"))
		next, err := openat(dir, parent, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
		unix.Close(dir) //nolint:errcheck // an O_PATH descriptor
		if err != nil {
			return nil, err
		}
		if dir, base = next, name; base == "" || base == "." || base == ".." {
			unix.Close(dir) //nolint:errcheck // an O_PATH descriptor
			return nil, unix.EISDIR
		}
	}
	return &place{dir, base, slash}, nil
}

// split cuts the last name off a path without a final slash.
func split(path string) (parent, base string) {
	i := strings.LastIndexByte(path, '/')
	switch i {
	case -1:
		return ".", path
	case 0:
		return "/", path[1:]
	}
	return path[:i], path[i+1:]
}

// retryByWalk reports that openat2 couldn't decide: it lacks the call, or met
// an absolute link, a magic link or a rename under way.
func retryByWalk(err error) bool {
	return errors.Is(err, unix.EXDEV) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOSYS) ||
		errors.Is(err, unix.EPERM) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.E2BIG) || errors.Is(err, unix.EINVAL)
}

func openBeneath(dir int, rel string, flags int) (int, error) {
	how := &unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(dir, rel, how)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// walk resolves rel below the root name by name, holding every directory on
// the way, so that ".." goes back to where the walk came from whatever is
// renamed meanwhile. It gives the directory and last name, which is no link
// when followLast is set, or "." for the directory itself.
func (s *scope) walk(rel string, followLast bool) (dir int, base string, err error) {
	stack := []int{}
	defer func() {
		for _, fd := range stack {
			unix.Close(fd) //nolint:errcheck // O_PATH descriptors
		}
	}()
	top := func() int {
		if len(stack) == 0 {
			return s.fd
		}
		return stack[len(stack)-1]
	}
	give := func(base string) (int, string, error) {
		fd, err := openat(top(), ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC)
		return fd, base, err
	}
	names := strings.Split(rel, "/")
	for links := 0; len(names) > 0; {
		name := names[0]
		names = names[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if len(stack) == 0 {
				return -1, "", errEscapes
			}
			unix.Close(top()) //nolint:errcheck // an O_PATH descriptor
			stack = stack[:len(stack)-1]
			continue
		}
		last := len(names) == 0
		if last && !followLast {
			return give(name)
		}
		fd, err := openat(top(), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC)
		if err != nil {
			if last && errors.Is(err, unix.ENOENT) {
				return give(name)
			}
			return -1, "", err
		}
		target, err := readlink(fd, "")
		switch {
		case err == nil:
			unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
			if links++; links > maxLinks {
				return -1, "", unix.ELOOP
			}
			if strings.HasPrefix(target, "/") {
				inside, ok := below(s.root, target)
				if !ok {
					return -1, "", errEscapes
				}
				for _, fd := range stack {
					unix.Close(fd) //nolint:errcheck // O_PATH descriptors
				}
				stack, target = stack[:0], inside
			}
			names = append(strings.Split(target, "/"), names...)
		case last:
			unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
			return give(name)
		case len(stack) == maxWalk:
			unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
			return -1, "", unix.ENAMETOOLONG
		default:
			stack = append(stack, fd)
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil {
				return -1, "", err
			}
			if st.Mode&unix.S_IFMT != unix.S_IFDIR {
				return -1, "", unix.ENOTDIR
			}
		}
	}
	return give(".")
}

func openat(dir int, path string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, flags|unix.O_CLOEXEC, 0)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// readlink gives the target of a link; base "" means dir itself, an O_PATH
// descriptor. EINVAL (ENOENT for an empty base) says that it is no link.
func readlink(dir int, base string) (string, error) {
	var buf [maxPath + 1]byte
	n, err := unix.Readlinkat(dir, base, buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// linkAt gives the target of base in dir when it is a link.
func linkAt(dir int, base string) (target string, ok bool) {
	target, err := readlink(dir, base)
	return target, err == nil
}

func isLink(dir int, base string) bool {
	_, ok := linkAt(dir, base)
	return ok
}
