package files

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

func (s *service) stat(w http.ResponseWriter, r *http.Request) error {
	q, err := s.query(r)
	if err != nil {
		return err
	}
	sc, err := newScope(q["root"])
	if err != nil {
		return err
	}
	defer sc.close() //nolint:errcheck // an O_PATH descriptor
	path := q.Get("path")
	fd, err := sc.open(path, unix.O_NOFOLLOW)
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

func (s *service) read(w http.ResponseWriter, r *http.Request) error {
	q, err := s.query(r)
	if err != nil {
		return err
	}
	sc, err := newScope(q["root"])
	if err != nil {
		return err
	}
	defer sc.close() //nolint:errcheck // an O_PATH descriptor
	f, st, err := openContent(sc, q.Get("path"))
	if err != nil {
		return err
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("X-Content-Type-Options", "nosniff")
	return serveContent(w, r, f, st)
}

// openContent opens what path names for reading, without touching anything
// that isn't a regular file: opening a FIFO or a device has effects.
func openContent(sc *scope, path string) (*os.File, *unix.Stat_t, error) {
	fd, err := sc.open(path, 0)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, nil, err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFDIR:
		return nil, nil, unix.EISDIR
	default:
		return nil, nil, failf(wire.CodeNotRegular, "the path names a %s, which has no content to read", typeNames[st.Mode&unix.S_IFMT])
	}
	flags := unix.O_RDONLY | unix.O_CLOEXEC
	if unsized(fd, &st) {
		flags |= unix.O_NONBLOCK // such as /proc/kmsg
	}
	rfd, err := openat(unix.AT_FDCWD, fdPath(fd), flags)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(rfd), "content"), &st, nil
}

// pseudo are the file systems whose sizes don't say how much can be read.
var pseudo = map[int64]bool{
	unix.PROC_SUPER_MAGIC: true, unix.SYSFS_MAGIC: true, unix.CGROUP_SUPER_MAGIC: true, unix.CGROUP2_SUPER_MAGIC: true,
	unix.DEBUGFS_MAGIC: true, unix.TRACEFS_MAGIC: true, unix.SECURITYFS_MAGIC: true,
}

func unsized(fd int, st *unix.Stat_t) bool {
	if st.Size == 0 {
		return true
	}
	var fs unix.Statfs_t
	return unix.Fstatfs(fd, &fs) == nil && pseudo[fs.Type]
}

// serveContent sends a file. One whose size isn't known is read to its end and
// sent whole, whatever the Range. A file that becomes shorter meanwhile cuts
// the connection, so that it isn't taken for complete.
func serveContent(w http.ResponseWriter, r *http.Request, f *os.File, st *unix.Stat_t) error {
	if !unsized(int(f.Fd()), st) {
		w.Header().Set("ETag", strconv.Quote(versionOf(st)))
		http.ServeContent(w, r, "", time.Unix(st.Mtim.Unix()), f)
		return nil
	}
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	n, err := readFull(f, buf[:])
	ended := errors.Is(err, io.EOF)
	if err != nil && !ended {
		return err
	}
	h := w.Header()
	h.Set("Accept-Ranges", "none")
	if ended { // all of it is here
		h.Set("Content-Length", strconv.Itoa(n))
		if st.Size == 0 && n == 0 {
			h.Set("ETag", strconv.Quote(versionOf(st)))
		}
	}
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return nil
	}
	for {
		if _, gone := w.Write(buf[:n]); gone != nil || ended {
			return nil //nolint:nilerr // nobody is left to tell
		}
		n, err = readFull(f, buf[:])
		if ended = errors.Is(err, io.EOF); err != nil && !ended {
			panic(http.ErrAbortHandler) // cuts the connection: the headers are out
		}
	}
}

// readFull fills buf up to the end of the file. What would block has ended.
func readFull(f *os.File, buf []byte) (n int, err error) {
	for n < len(buf) {
		m, err := unix.Read(int(f.Fd()), buf[n:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN), err == nil && m == 0:
			return n, io.EOF
		case err != nil:
			return n, err
		}
		n += m
	}
	return n, nil
}

func (s *service) write(w http.ResponseWriter, r *http.Request) error {
	q, err := s.query(r, "mode", "owner", "group", "no_replace", "if_unchanged")
	if err != nil {
		return err
	}
	a, err := s.attr(wire.FileAttr{Mode: q.Get("mode"), Owner: q.Get("owner"), Group: q.Get("group")})
	if err != nil {
		return err
	}
	want := target{attr: a, newMode: 0o644, ifUnchanged: q.Get("if_unchanged")}
	switch q.Get("no_replace") {
	case "":
	case "1":
		want.noReplace = true
	default:
		return failf(wire.CodePathInvalid, "no_replace is 1 or left out")
	}
	if want.noReplace && want.ifUnchanged != "" {
		return failf(wire.CodePathInvalid, "no_replace and if_unchanged exclude each other")
	}
	sc, err := newScope(q["root"])
	if err != nil {
		return err
	}
	defer sc.close() //nolint:errcheck // an O_PATH descriptor
	u, err := s.begin(sc, q.Get("path"), want)
	if err != nil {
		return err
	}
	defer u.abort()
	if err := u.fill(r.Body); err != nil {
		return err
	}
	e, err := u.commit(q.Get("path"))
	if err != nil {
		return err
	}
	respond(w, http.StatusOK, e)
	return nil
}
