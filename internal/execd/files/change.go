package files

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

func (s *service) makeDir(w http.ResponseWriter, r *http.Request) error {
	var in wire.MakeDir
	if err := body(r, &in); err != nil {
		return err
	}
	a, err := s.attr(in.FileAttr)
	if err != nil {
		return err
	}
	sc, path, err := s.scopeOf(in.Scope)
	if err != nil {
		return err
	}
	defer sc.close() //nolint:errcheck // an O_PATH descriptor
	if in.Parents {
		_, err = s.mkdirAll(sc, path, a, a)
	} else {
		err = s.mkdir(sc, path, a)
	}
	if err != nil {
		return err
	}
	fd, err := sc.open(path, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	e, err := entryFd(fd, path, newNamer(s.accounts))
	if err != nil {
		return err
	}
	respond(w, http.StatusOK, e)
	return nil
}

// mkdir makes one directory. It appears under its name with its bits and owner
// at once: it is made in a private directory and moved. Made in place, it could
// be swapped for another directory before its owner is set, by an account that
// may write to its parent.
func (s *service) mkdir(sc *scope, path string, a attr) error {
	at, err := sc.place(path, false)
	if err != nil {
		return err
	}
	defer at.close()
	return s.mkdirAt(at.dir, at.base, a)
}

func (s *service) mkdirAt(dir int, base string, a attr) error {
	var st unix.Stat_t
	if fstatat(dir, base, &st) == nil {
		return unix.EEXIST
	}
	fd, done, err := s.stage(dir)
	if err != nil {
		return err
	}
	defer done()
	const name = "new"
	if err := unix.Mkdirat(fd, name, 0o700); err != nil {
		return err
	}
	defer unix.Unlinkat(fd, name, unix.AT_REMOVEDIR) //nolint:errcheck // moved away, or given up
	made, err := openat(fd, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(made) //nolint:errcheck // an O_PATH descriptor
	if err := a.over(0o755, s.uid, s.gid).give(made); err != nil {
		return err
	}
	err = unix.Renameat2(fd, name, dir, base, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// Without the flag only an empty directory could be replaced.
		err = unix.Renameat(fd, name, dir, base)
	}
	return err
}

// stage makes a directory in dir that no other account can enter, for what is
// made before it gets its owner and name. done removes it.
func (s *service) stage(dir int) (fd int, done func(), err error) {
	name := s.hide()
	noted := s.notes.add(dir, name)
	release := func() {
		unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) //nolint:errcheck // nothing more can be done
		s.names().Delete(name)
		noted()
	}
	if err := unix.Mkdirat(dir, name, 0o700); err != nil {
		s.names().Delete(name)
		noted()
		return -1, nil, err
	}
	fd, err = openat(dir, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		release()
		return -1, nil, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (int(st.Uid) != s.self() || st.Mode&0o077 != 0) {
		err = failf(wire.CodePermissionDenied, "the directory was interfered with while it was made")
	}
	if err != nil {
		unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
		release()
		return -1, nil, err
	}
	return fd, func() { unix.Close(fd); release() }, nil //nolint:errcheck // an O_PATH descriptor
}

// mkdirAll makes what is missing of path: leaf holds for the last directory,
// parent for the others. A directory that exists stays as it is. made are the
// paths of those that this call made, also when it fails.
func (s *service) mkdirAll(sc *scope, path string, leaf, parent attr) (made []string, err error) {
	fd, err := sc.open(path, unix.O_DIRECTORY)
	if err == nil {
		return nil, unix.Close(fd)
	}
	if !errors.Is(err, unix.ENOENT) {
		return nil, err
	}
	path = strings.TrimRight(path, "/")
	for i := len(sc.root) + 1; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' || path[i-1] == '/' {
			continue
		}
		fd, err := sc.open(path[:i], unix.O_DIRECTORY)
		if err == nil {
			unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
			continue
		}
		if !errors.Is(err, unix.ENOENT) {
			return made, err
		}
		a := parent
		if i == len(path) {
			a = leaf
		}
		switch err := s.mkdir(sc, path[:i], a); {
		case err == nil:
			made = append(made, path[:i])
		case !errors.Is(err, unix.EEXIST):
			return made, err
		}
	}
	fd, err = sc.open(path, unix.O_DIRECTORY) // what another made meanwhile may be no directory
	if err != nil {
		return made, err
	}
	return made, unix.Close(fd)
}

func (s *service) setAttr(w http.ResponseWriter, r *http.Request) error {
	var in wire.SetAttr
	if err := body(r, &in); err != nil {
		return err
	}
	a, err := s.attr(in.FileAttr)
	if err != nil {
		return err
	}
	sc, path, err := s.scopeOf(in.Scope)
	if err != nil {
		return err
	}
	defer sc.close() //nolint:errcheck // an O_PATH descriptor
	fd, err := sc.open(path, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	if err := a.set(fd); err != nil {
		return err
	}
	e, err := entryFd(fd, path, newNamer(s.accounts))
	if err != nil {
		return err
	}
	respond(w, http.StatusOK, e)
	return nil
}

// set changes what a names, on a descriptor that may be O_PATH.
func (a attr) set(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	return a.over(st.Mode, st.Uid, st.Gid).give(fd)
}

func (s *service) rename(w http.ResponseWriter, r *http.Request) error {
	var in wire.Rename
	if err := body(r, &in); err != nil {
		return err
	}
	sc, path, err := s.scopeOf(in.Scope)
	if err != nil {
		return err
	}
	defer sc.close() //nolint:errcheck // an O_PATH descriptor
	flags := uint(0)
	if in.NoReplace {
		flags = unix.RENAME_NOREPLACE
	}
	if err := move(sc, path, wire.JoinText(in.To, in.ToB64), flags); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// move renames from to to. Flags are those of renameat2.
func move(sc *scope, from, to string, flags uint) error {
	src, err := sc.place(from, false)
	if err != nil {
		return named(err, from)
	}
	defer src.close()
	dst, err := sc.place(to, false)
	if err != nil {
		return named(err, to)
	}
	defer dst.close()
	if src.slash || dst.slash { // the kernel's rule: a slash asks for a directory
		var st unix.Stat_t
		if err := fstatat(src.dir, src.base, &st); err != nil {
			return named(err, from)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return named(unix.ENOTDIR, from)
		}
	}
	err = unix.Renameat2(src.dir, src.base, dst.dir, dst.base, flags)
	if errors.Is(err, unix.ENOENT) {
		return named(err, from)
	}
	return named(err, to)
}

// named says which path of several an error is about.
func named(err error, path string) error {
	if err == nil {
		return nil
	}
	f := *failureOf(err)
	f.path = path
	if f.cause == nil {
		f.cause = err
	}
	return &f
}

func (s *service) remove(w http.ResponseWriter, r *http.Request) error {
	var in wire.RemoveAll
	if err := body(r, &in); err != nil {
		return err
	}
	if in.Path != "" || in.PathB64 != nil {
		return failf(wire.CodePathInvalid, "remove takes paths, not path")
	}
	sc, _, err := s.scopeOf(in.Scope)
	if err != nil {
		return err
	}
	defer sc.close() //nolint:errcheck // an O_PATH descriptor
	for _, path := range wire.JoinTexts(in.Paths, in.PathsB64) {
		if err := removePath(r.Context(), sc, path, in.Recursive); err != nil {
			return named(err, path)
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// removePath removes what path names, or with recursive the tree below it. A
// missing one is success.
func removePath(ctx context.Context, sc *scope, path string, recursive bool) error {
	at, err := sc.place(path, false)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer at.close()
	if at.slash {
		var st unix.Stat_t
		switch err := fstatat(at.dir, at.base, &st); {
		case errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return err
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return unix.ENOTDIR
		}
	}
	if recursive {
		return removeTree(ctx, at.dir, at.base)
	}
	err = unlink(at.dir, at.base)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(at.dir, at.base, unix.AT_REMOVEDIR)
	}
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// unlink removes a name that is no directory, and fails with EISDIR for one.
func unlink(dir int, base string) error {
	err := unix.Unlinkat(dir, base, 0)
	if errors.Is(err, unix.EPERM) { // what POSIX says for a directory
		var st unix.Stat_t
		if fstatat(dir, base, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return unix.EISDIR
		}
	}
	return err
}
