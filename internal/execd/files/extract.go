package files

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// extract unpacks a tar below a directory. See sandbox.Extract for its rules.
func (s *service) extract(w http.ResponseWriter, r *http.Request) error {
	q, err := s.query(r, "owner", "group", "no_replace", "max_bytes", "max_entries")
	if err != nil {
		return err
	}
	var o sandbox.ExtractOptions
	if o.MaxBytes, err = limit(q.Get("max_bytes")); err != nil {
		return err
	}
	if o.MaxEntries, err = limit(q.Get("max_entries")); err != nil {
		return err
	}
	if o.NoReplace, err = flag(q.Get("no_replace"), "no_replace"); err != nil {
		return err
	}
	a, err := s.attr(wire.FileAttr{Owner: q.Get("owner"), Group: q.Get("group")})
	if err != nil {
		return err
	}
	path := q.Get("path")
	dir, err := openDir(q["root"], path)
	if err != nil {
		return err
	}
	defer dir.Close()
	x := &extractor{s: s, root: int(dir.Fd()), owner: a, noReplace: o.NoReplace, dir: -1}
	defer x.leave()
	name, err := x.run(r.Context(), sandbox.NewArchiveReader(r.Body, o))
	if err != nil {
		f := *archiveFailure(err)
		if name != "" {
			f.path = strings.TrimRight(path, "/") + "/" + name
		}
		respond(w, statusFor(f.code), wire.ExtractRefusal{FileError: *f.wire(), Extracted: x.done})
		return nil
	}
	respond(w, http.StatusOK, x.done)
	return nil
}

// limit reads a number from 1; "" is 0.
func limit(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, failf(wire.CodePathInvalid, "a limit is a number from 1, not %s", strconv.QuoteToASCII(text))
	}
	return n, nil
}

// flag reads "1" or "".
func flag(text, name string) (bool, error) {
	if text != "" && text != "1" {
		return false, failf(wire.CodePathInvalid, "%s is 1 or left out", name)
	}
	return text == "1", nil
}

// archiveFailure classifies what can go wrong with an archive.
func archiveFailure(err error) *failure {
	var errno unix.Errno
	var known *failure
	code := wire.CodePathInvalid
	switch {
	case errors.As(err, &known), errors.As(err, &errno):
		return failureOf(err)
	case errors.Is(err, sandbox.ErrLimit):
		code = wire.CodeFileLimit
	case errors.Is(err, io.ErrUnexpectedEOF):
		code = wire.CodeIncompleteBody
	}
	text := strings.TrimPrefix(err.Error(), sandbox.ErrPathRejected.Error()+": ")
	text = strings.TrimPrefix(text, sandbox.ErrLimit.Error()+": ")
	return &failure{code: code, message: "the archive: " + text, cause: err}
}

// extractor writes entries below root. No link is followed: directories are
// opened name by name, and a name that is replaced is replaced itself.
type extractor struct {
	s         *service
	root      int
	owner     attr
	noReplace bool
	parent    string // name of the directory that dir is
	dir       int    // open, or -1
	done      wire.Extracted
}

func (x *extractor) leave() {
	if x.dir >= 0 {
		unix.Close(x.dir) //nolint:errcheck // an O_PATH descriptor
		x.dir = -1
	}
}

// run gives the name of the entry that an error is about.
func (x *extractor) run(ctx context.Context, a *sandbox.ArchiveReader) (name string, err error) {
	for {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return a.Name(), err
		}
		if err := ctx.Err(); err != nil {
			return "", err
		}
		if err := x.entry(h, a); err != nil {
			return h.Name, err
		}
	}
}

func (x *extractor) attrs(bits int64) attr {
	mode := uint32(bits) & 0o777
	a := x.owner
	a.mode = &mode
	if a.uid == nil {
		a.uid = &x.s.uid
	}
	if a.gid == nil {
		a.gid = &x.s.gid
	}
	return a
}

func (x *extractor) entry(h *tar.Header, content *sandbox.ArchiveReader) error {
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeDir, tar.TypeLink, tar.TypeSymlink:
	default:
		x.done.Skipped++
		return nil
	}
	parent, base := "", h.Name
	if i := strings.LastIndexByte(h.Name, '/'); i >= 0 {
		parent, base = h.Name[:i], h.Name[i+1:]
	}
	err := x.enter(parent)
	if err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		err = x.mkdir(base, x.attrs(h.Mode))
	case tar.TypeReg:
		var n int64
		n, err = x.file(base, h, content)
		x.done.Bytes += n
	case tar.TypeLink:
		err = x.link(h.Linkname, base)
	case tar.TypeSymlink:
		err = x.symlink(h.Linkname, base)
	}
	if err == nil {
		x.done.Entries++
	}
	return err
}

// enter makes name the current directory, with what is missing of it.
func (x *extractor) enter(name string) error {
	if x.dir >= 0 && x.parent == name {
		return nil
	}
	fd, err := x.open(name, true)
	if err != nil {
		return err
	}
	x.leave()
	x.dir, x.parent = fd, name
	return nil
}

// open gives a directory below root, which no link leads to.
func (x *extractor) open(name string, create bool) (int, error) {
	fd, err := openat(x.root, ".", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil || name == "" {
		return fd, err
	}
	for part := range strings.SplitSeq(name, "/") {
		const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
		next, err := openat(fd, part, flags)
		if errors.Is(err, unix.ENOENT) && create {
			if err = x.s.mkdirAt(fd, part, x.attrs(0o755)); err == nil || errors.Is(err, unix.EEXIST) {
				next, err = openat(fd, part, flags)
			}
		}
		if errors.Is(err, unix.ENOTDIR) && isLink(fd, part) {
			err = failf(wire.CodePathEscapes, "a link stands where the archive has the directory %s", strconv.QuoteToASCII(part))
		}
		unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// mkdir makes a directory, unless it is there.
func (x *extractor) mkdir(base string, a attr) error {
	if base == "" { // the top itself
		return nil
	}
	err := x.s.mkdirAt(x.dir, base, a)
	if !errors.Is(err, unix.EEXIST) {
		return err
	}
	var st unix.Stat_t
	switch err := fstatat(x.dir, base, &st); {
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return failf(wire.CodePathEscapes, "a link stands where the archive has a directory")
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return unix.ENOTDIR
	}
	return nil
}

// file writes a file, unseen until it is whole.
func (x *extractor) file(base string, h *tar.Header, content io.Reader) (int64, error) {
	fd, err := openat(x.dir, ".", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return 0, err
	}
	u := &upload{s: x.s, at: &place{dir: fd, base: base}, want: target{attr: x.attrs(h.Mode), noReplace: x.noReplace}}
	defer u.abort()
	o, _, err := u.check()
	if err != nil {
		return 0, err
	}
	if err := u.create(o); err != nil {
		return 0, err
	}
	n, err := u.copy(content)
	if err != nil {
		return 0, err
	}
	o, exists, err := u.check()
	if err != nil {
		return 0, err
	}
	tmp := int(u.f.Fd())
	if err := o.give(tmp); err != nil {
		return 0, err
	}
	times := []unix.Timespec{unix.NsecToTimespec(h.ModTime.UnixNano()), unix.NsecToTimespec(h.ModTime.UnixNano())}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, fdPath(tmp), times, 0); err != nil {
		return 0, err
	}
	return n, u.publish(tmp, exists)
}

// copy is fill, but an error is the reader's own.
func (u *upload) copy(r io.Reader) (int64, error) {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	return io.CopyBuffer(struct{ io.Writer }{u.f}, struct{ io.Reader }{r}, buf[:])
}

// link gives a file of the tree another name.
func (x *extractor) link(from, base string) error {
	parent, name := "", from
	if i := strings.LastIndexByte(from, '/'); i >= 0 {
		parent, name = from[:i], from[i+1:]
	}
	dir, err := x.open(parent, false)
	if err != nil {
		return err
	}
	defer unix.Close(dir) //nolint:errcheck // an O_PATH descriptor
	fd, err := openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return failf(wire.CodeNotRegular, "a hard link to what is no file")
	}
	hidden := x.s.hide()
	defer x.s.names().Delete(hidden)
	defer x.s.notes.add(x.dir, hidden)()
	if err := unix.Linkat(unix.AT_FDCWD, fdPath(fd), x.dir, hidden, unix.AT_SYMLINK_FOLLOW); err != nil {
		return err
	}
	// A rename between two names of one file does nothing, so the hidden one may stay.
	defer unix.Unlinkat(x.dir, hidden, 0) //nolint:errcheck // usually renamed
	return x.replace(x.dir, hidden, base)
}

// replace moves a finished name of dir to base. A directory is never replaced.
func (x *extractor) replace(dir int, name, base string) error {
	if !x.noReplace {
		return unix.Renameat(dir, name, x.dir, base)
	}
	err := unix.Renameat2(dir, name, x.dir, base, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		err = unix.Linkat(dir, name, x.dir, base, 0)
	}
	return err
}

func (x *extractor) symlink(target, base string) error {
	stage, done, err := x.s.stage(x.dir)
	if err != nil {
		return err
	}
	defer done()
	const name = "link"
	if err := unix.Symlinkat(target, stage, name); err != nil {
		return err
	}
	defer unix.Unlinkat(stage, name, 0) //nolint:errcheck // usually renamed
	a := x.attrs(0)
	if err := unix.Fchownat(stage, name, int(*a.uid), int(*a.gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return x.replace(stage, name, base)
}
