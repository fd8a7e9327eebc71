package files

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/glob"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// maxDepth is how many levels a listing or search goes down; it holds one
// descriptor per level.
const maxDepth = 512

func (s *service) list(w http.ResponseWriter, r *http.Request) error {
	q, err := s.query(r, "depth")
	if err != nil {
		return err
	}
	depth := 1
	if text := q.Get("depth"); text != "" {
		if depth, err = strconv.Atoi(text); err != nil || depth < 0 {
			return failf(wire.CodePathInvalid, "depth %s isn't a number from 0", strconv.QuoteToASCII(text))
		}
	}
	return s.stream(w, r, q["root"], q.Get("path"), depth, func(string) bool { return true })
}

func (s *service) search(w http.ResponseWriter, r *http.Request) error {
	q, err := s.query(r, "pattern")
	if err != nil {
		return err
	}
	match, err := matcher(q.Get("pattern"))
	if err != nil {
		return err
	}
	return s.stream(w, r, q["root"], q.Get("path"), maxDepth+1, match)
}

// matcher compiles a glob for base names.
func matcher(pattern string) (func(name string) bool, error) {
	match, err := glob.Compile(pattern)
	if err != nil {
		return nil, failf(wire.CodePathInvalid, "%s", err)
	}
	return match, nil
}

// stream sends what lies below path as NDJSON. A directory that can't be
// opened is a plain refusal; what fails later is the last line.
func (s *service) stream(w http.ResponseWriter, r *http.Request, roots []string, path string, depth int, match func(string) bool) error {
	dir, err := openDir(roots, path)
	if err != nil {
		return err
	}
	defer dir.Close()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if depth > maxDepth { // a search, which may find nothing for long
		http.NewResponseController(w).Flush() //nolint:errcheck // the writes tell
	}
	out := bufio.NewWriterSize(w, 64<<10)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	namer := newNamer(s.accounts)
	t := &tree{s: s, emit: func(_ int, path, base, target string, st *unix.Stat_t) error {
		if !match(base) {
			return nil
		}
		return enc.Encode(entryOf(path, target, st, namer))
	}}
	last := wire.LastLine{End: true}
	if err := t.walk(r.Context(), dir, strings.TrimRight(path, "/"), depth, 1); err != nil {
		last = wire.LastLine{Error: failureOf(err).wire()}
	}
	if err := enc.Encode(last); err == nil {
		out.Flush() //nolint:errcheck // the client is gone: nothing is left to do
	}
	return nil
}

// openDir opens a directory for reading; a final link is followed.
func openDir(roots []string, path string) (*os.File, error) {
	sc, err := newScope(roots)
	if err != nil {
		return nil, err
	}
	defer sc.close() //nolint:errcheck // an O_PATH descriptor
	return sc.openDir(path)
}

func (s *service) openDir(path string) (*os.File, error) { return s.all.openDir(path) }

func (s *scope) openDir(path string) (*os.File, error) {
	fd, err := s.open(path, unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	rfd, err := openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(rfd), "dir"), nil
}

// tree walks directories in lexical order, children after their parent.
type tree struct {
	s *service
	// emit gets each entry, with the open directory that holds it.
	emit func(dir int, path, base, target string, st *unix.Stat_t) error
}

// walk lists dir, which is open, down to depth levels. What vanishes meanwhile
// is left out, and so is what lies in a directory that the daemon may not
// read (a FUSE mount of another account, say).
func (t *tree) walk(ctx context.Context, dir *os.File, prefix string, depth, level int) error {
	if depth < 1 {
		return nil
	}
	if level > maxDepth {
		return failf(wire.CodePathInvalid, "the tree has more than %d levels", maxDepth)
	}
	names, err := dir.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	slices.Sort(names)
	fd := int(dir.Fd())
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, ours := t.s.names().Load(name); ours {
			continue
		}
		path := prefix + "/" + name
		st, target, err := lstat(fd, name)
		if passable(err) {
			continue
		}
		if err != nil {
			return err
		}
		if err := t.emit(fd, path, name, target, st); err != nil {
			return err
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR || depth == 1 {
			continue
		}
		cfd, err := openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
		if passable(err) {
			continue
		}
		if err != nil {
			return err
		}
		child := os.NewFile(uintptr(cfd), "dir")
		err = t.walk(ctx, child, path, depth-1, level+1)
		child.Close() //nolint:errcheck // read only
		if err != nil && !passable(err) {
			return err
		}
	}
	return nil
}

// passable errors leave out one entry: it vanished, became something else, or
// is closed to the daemon. EINVAL is readlink's of what is no link any more.
func passable(err error) bool {
	for _, pass := range []error{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.ESRCH, unix.ESTALE, unix.EACCES, unix.EPERM, unix.EINVAL} {
		if errors.Is(err, pass) {
			return true
		}
	}
	return false
}
