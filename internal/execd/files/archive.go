package files

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// maxLinked is how many files with several names an archive remembers; further
// ones are stored once per name.
const maxLinked = 16 << 10

var archiveTypes = map[sandbox.ArchiveFormat]string{
	sandbox.ArchiveTar:     "application/x-tar",
	sandbox.ArchiveTarGzip: "application/gzip",
	sandbox.ArchiveZip:     "application/zip",
}

// archive sends a directory as one stream. What fails after its beginning cuts
// the connection, so that the archive isn't taken for whole.
func (s *service) archive(w http.ResponseWriter, r *http.Request) error {
	q, err := s.query(r, "format")
	if err != nil {
		return err
	}
	format := sandbox.ArchiveFormat(q.Get("format"))
	kind, ok := archiveTypes[format]
	if !ok {
		return failf(wire.CodePathInvalid, "an archive's format is tar, tar.gz or zip, not %s", strconv.QuoteToASCII(string(format)))
	}
	path := q.Get("path")
	dir, err := openDir(q["root"], path)
	if err != nil {
		return err
	}
	defer dir.Close()
	prefix := strings.TrimRight(path, "/")
	if format == sandbox.ArchiveZip { // said before anything is sent, where it can be
		if err := s.countEntries(r.Context(), q["root"], path); err != nil {
			return err
		}
	}
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Trailer", wire.HeaderSkipped+", "+wire.HeaderChanged)
	w.WriteHeader(http.StatusOK)
	out := bufio.NewWriterSize(w, 256<<10)
	p, err := newPacker(out, format, len(prefix)+1, newNamer(s.accounts))
	if err == nil {
		t := &tree{s: s, emit: p.add}
		err = t.walk(r.Context(), dir, prefix, maxDepth+1, 1)
	}
	if err == nil {
		err = p.Close()
	}
	if err == nil {
		err = out.Flush()
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	h.Set(wire.HeaderSkipped, strconv.Itoa(p.skipped))
	h.Set(wire.HeaderChanged, strconv.Itoa(p.Changed))
	return nil
}

// countEntries refuses a tree that has too many files for a zip.
func (s *service) countEntries(ctx context.Context, roots []string, path string) error {
	dir, err := openDir(roots, path)
	if err != nil {
		return err
	}
	defer dir.Close()
	n := 0
	t := &tree{s: s, emit: func(int, string, string, string, *unix.Stat_t) error {
		if n++; n > sandbox.MaxZipEntries {
			return failf(wire.CodeFileLimit, "the directory has more than %d files; take a tar", sandbox.MaxZipEntries)
		}
		return nil
	}}
	return t.walk(ctx, dir, "", maxDepth+1, 1)
}

// packer adds the entries of a tree to an archive.
type packer struct {
	*sandbox.ArchiveWriter
	cut     int // bytes of an entry's path that its name in the archive lacks
	namer   namer
	links   map[inodeID]string
	skipped int
}

type inodeID struct{ dev, ino uint64 }

func newPacker(w io.Writer, format sandbox.ArchiveFormat, cut int, n namer) (*packer, error) {
	a, err := sandbox.NewArchiveWriter(w, format)
	return &packer{ArchiveWriter: a, cut: cut, namer: n, links: map[inodeID]string{}}, err
}

func (p *packer) add(dir int, path, base, target string, st *unix.Stat_t) error {
	e := sandbox.ArchiveEntry{Name: path[p.cut:]}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return p.addFile(dir, base, e)
	case unix.S_IFDIR, unix.S_IFLNK:
		p.describe(&e, target, st)
		return p.Add(e, nil)
	}
	p.skipped++
	return nil
}

func (p *packer) describe(e *sandbox.ArchiveEntry, target string, st *unix.Stat_t) {
	e.UID, e.GID = int(st.Uid), int(st.Gid)
	e.Info = sandbox.FileInfo{
		Size: st.Size, Mode: modeOf(st), Owner: p.namer.owner(st.Uid), Group: p.namer.group(st.Gid),
		ModTime: timeOf(st), Target: target,
	}
}

// addFile opens the file before it says anything about it. One that became
// something else meanwhile is left out, as is one that can't be read.
func (p *packer) addFile(dir int, base string, e sandbox.ArchiveEntry) error {
	fd, err := openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		p.skipped++
		return nil //nolint:nilerr // it vanished or is closed to the daemon
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		p.skipped++
		return nil //nolint:nilerr // as above
	}
	p.describe(&e, "", &st)
	if st.Nlink > 1 {
		id := inodeID{uint64(st.Dev), st.Ino} //nolint:unconvert // the width differs between architectures
		if first, ok := p.links[id]; ok {
			e.HardLink = first
		} else if len(p.links) < maxLinked {
			p.links[id] = e.Name
		}
	}
	return p.Add(e, rawReader(fd))
}

// rawReader reads a descriptor without the runtime's poller. Its errors are of
// the kind that an archive passes over before a file's content was begun.
type rawReader int

func (r rawReader) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(r), p)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, fmt.Errorf("%w: %w", sandbox.ErrPathRejected, err)
		case n == 0 && len(p) > 0:
			return 0, io.EOF
		}
		return n, nil
	}
}
