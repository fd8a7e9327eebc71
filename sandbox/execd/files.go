package execd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Files gives the files face of c's sandbox. The daemon must have files.v1.
//
// Names are byte strings: what isn't UTF-8 is carried unchanged. A sequence of
// List or Search holds a connection until it was ranged over or ctx ended.
// Write may still be inside one Read of its reader when it returns early; an
// error of the reader is ErrPathRejected with that error as the cause.
//
// It is also a sandbox.Mover, Archiver, Extractor, Watcher, ContentSearcher and
// Uploader. Over a daemon that lacks one of these features it does the work with
// the operations that the daemon has.
func Files(c *Conn) sandbox.Files { return &files{c: c} }

type files struct {
	c     *Conn
	roots []string
}

// Beneath keeps the roots so far: the daemon looks each up below the one
// before, so a second root can't lead out of the first.
func (f *files) Beneath(root string) sandbox.Files {
	return &files{f.c, append(f.roots[:len(f.roots):len(f.roots)], root)}
}

// check refuses what can't be asked for, before any request.
func (f *files) check(paths ...string) error {
	for _, path := range append(paths, f.roots...) {
		if sandbox.CheckPath("", path) != nil {
			return rejected(wire.CodePathInvalid, "a path is absolute, at most 4095 bytes long and has no NUL byte")
		}
	}
	return nil
}

func (f *files) query(path string, more ...string) string {
	q := url.Values{"path": {path}}
	if len(f.roots) > 0 {
		q["root"] = f.roots
	}
	for i := 0; i < len(more); i += 2 {
		if more[i+1] != "" {
			q.Set(more[i], more[i+1])
		}
	}
	return q.Encode()
}

func (f *files) scope(path string) wire.Scope {
	var s wire.Scope
	s.Path, s.PathB64 = wire.SplitText(path)
	s.Roots, s.RootsB64 = wire.SplitTexts(f.roots)
	return s
}

// do sends a request to files.v1 and makes sure that the answer is the daemon's.
func (f *files) do(ctx context.Context, r request) (*http.Response, error) {
	if err := f.c.require(ctx, wire.FeatureFiles); err != nil {
		return nil, err
	}
	return f.ask(ctx, r)
}

// ask is do for a daemon that is known to have what is asked for.
func (f *files) ask(ctx context.Context, r request) (*http.Response, error) {
	resp, err := f.c.do(ctx, r)
	if err != nil {
		return nil, err
	}
	if name, _, _ := strings.Cut(resp.Header.Get(wire.HeaderServer), "/"); name != wire.ServerName {
		resp.Body.Close()
		return nil, fmt.Errorf("%w: answered by something that isn't AstraBox's execd", sandbox.ErrUnreachable)
	}
	return resp, nil
}

func (f *files) post(ctx context.Context, path string, in any) error {
	b, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("execd: %w", err)
	}
	resp, err := f.do(ctx, request{
		method: http.MethodPost, path: path,
		header: http.Header{"Content-Type": {"application/json"}},
		body:   func() (io.Reader, error) { return bytes.NewReader(b), nil },
	})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, errorBodyLimit))
	return unreachable(ctx, err)
}

func (f *files) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	if o := f.elsewhere(ctx); o != nil {
		return o.Stat(ctx, path)
	}
	info, err := f.stat(ctx, path)
	return info, pathError(ctx, "stat", path, err)
}

func (f *files) stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	if err := f.check(path); err != nil {
		return sandbox.FileInfo{}, err
	}
	resp, err := f.do(ctx, request{method: http.MethodGet, path: wire.PathStat, query: f.query(path)})
	if err != nil {
		return sandbox.FileInfo{}, err
	}
	defer resp.Body.Close()
	var e wire.Entry
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxLine)).Decode(&e); err != nil {
		return sandbox.FileInfo{}, unreachable(ctx, fmt.Errorf("the daemon's answer can't be read: %w", err))
	}
	return infoOf(&e)
}

func (f *files) List(ctx context.Context, dir string, depth int) (iter.Seq2[sandbox.FileInfo, error], error) {
	if o := f.elsewhere(ctx); o != nil {
		return o.List(ctx, dir, depth)
	}
	if depth < 0 {
		return nil, pathError(ctx, "list", dir, rejected(wire.CodePathInvalid, "a depth isn't negative"))
	}
	return f.sequence(ctx, "list", dir, wire.PathList, "depth", strconv.Itoa(depth))
}

func (f *files) Search(ctx context.Context, root, pattern string) (iter.Seq2[sandbox.FileInfo, error], error) {
	if o := f.elsewhere(ctx); o != nil {
		return o.Search(ctx, root, pattern)
	}
	return f.sequence(ctx, "search", root, wire.PathSearch, "pattern", pattern)
}

// maxLine bounds one entry: a path and a target, each escaped.
const maxLine = 256 << 10

// sequence opens a listing. Its first range reads the answer that said that
// the directory can be listed; a later one asks again.
func (f *files) sequence(ctx context.Context, op, path, endpoint, key, value string) (iter.Seq2[sandbox.FileInfo, error], error) {
	open := func() (*http.Response, error) {
		if err := f.check(path); err != nil {
			return nil, err
		}
		return f.do(ctx, request{method: http.MethodGet, path: endpoint, query: f.query(path, key, value)})
	}
	first, err := open() //nolint:bodyclose // by the range, see Files
	if err != nil {
		return nil, pathError(ctx, op, path, err)
	}
	return func(yield func(sandbox.FileInfo, error) bool) {
		resp := first
		if first = nil; resp == nil {
			var err error
			if resp, err = open(); err != nil {
				yield(sandbox.FileInfo{}, pathError(ctx, op, path, err))
				return
			}
		}
		defer resp.Body.Close()
		if err := entries(ctx, resp.Body, yield); err != nil {
			yield(sandbox.FileInfo{}, pathError(ctx, op, path, err))
		}
	}, nil
}

// entries yields the lines of a listing up to its end, which must be there.
func entries(ctx context.Context, body io.Reader, yield func(sandbox.FileInfo, error) bool) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 32<<10), maxLine)
	for lines.Scan() {
		var line wire.Line
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return unreachable(ctx, fmt.Errorf("the daemon's answer can't be read: %w", err))
		}
		switch {
		case line.End:
			return nil
		case line.Error != nil:
			return causeOf(line.Error)
		}
		info, err := infoOf(&line.Entry)
		if err != nil {
			return err
		}
		if !yield(info, nil) {
			return nil
		}
	}
	err := lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return unreachable(ctx, fmt.Errorf("the listing was cut off: %w", err))
}

func (f *files) MakeDir(ctx context.Context, path string, o sandbox.DirOptions) error {
	if other := f.elsewhere(ctx); other != nil {
		return other.MakeDir(ctx, path, o)
	}
	a, err := attrOf(o.Attr)
	if err = errors.Join(err, f.check(path)); err == nil {
		err = f.post(ctx, wire.PathMakeDir, wire.MakeDir{Scope: f.scope(path), FileAttr: a, Parents: o.Parents})
	}
	return pathError(ctx, "mkdir", path, err)
}

func (f *files) SetAttr(ctx context.Context, path string, a sandbox.Attr) error {
	if o := f.elsewhere(ctx); o != nil {
		return o.SetAttr(ctx, path, a)
	}
	w, err := attrOf(a)
	if err = errors.Join(err, f.check(path)); err == nil {
		err = f.post(ctx, wire.PathAttr, wire.SetAttr{Scope: f.scope(path), FileAttr: w})
	}
	return pathError(ctx, "setattr", path, err)
}

func (f *files) Rename(ctx context.Context, from, to string) error {
	if o := f.elsewhere(ctx); o != nil {
		return o.Rename(ctx, from, to)
	}
	return f.rename(ctx, "rename", from, to, false)
}

// Move implements sandbox.Mover.
func (f *files) Move(ctx context.Context, from, to string) error {
	if o := f.elsewhere(ctx); o != nil {
		return o.Move(ctx, from, to)
	}
	return f.rename(ctx, "move", from, to, true)
}

func (f *files) rename(ctx context.Context, op, from, to string, noReplace bool) error {
	if err := f.check(from, to); err != nil {
		return pathError(ctx, op, from, err)
	}
	in := wire.Rename{Scope: f.scope(from), NoReplace: noReplace}
	in.To, in.ToB64 = wire.SplitText(to)
	return pathError(ctx, op, from, f.post(ctx, wire.PathRename, in))
}

func (f *files) Remove(ctx context.Context, paths ...string) error {
	if o := f.elsewhere(ctx); o != nil {
		return o.Remove(ctx, paths...)
	}
	return f.remove(ctx, "remove", paths, false)
}

func (f *files) RemoveAll(ctx context.Context, path string) error {
	if o := f.elsewhere(ctx); o != nil {
		return o.RemoveAll(ctx, path)
	}
	return f.remove(ctx, "removeall", []string{path}, true)
}

// batchBytes bounds the paths of one request; with escapes it stays well below
// the daemon's limit of 4 MiB.
const batchBytes = 256 << 10

func (f *files) remove(ctx context.Context, op string, paths []string, recursive bool) error {
	for _, path := range paths { // nothing is removed when one can't be asked for
		if err := f.check(path); err != nil {
			return pathError(ctx, op, path, err)
		}
	}
	for len(paths) > 0 {
		n, size := 1, len(paths[0])
		for n < len(paths) && size < batchBytes {
			size += len(paths[n])
			n++
		}
		in := wire.RemoveAll{Scope: f.scope(""), Recursive: recursive}
		in.Paths, in.PathsB64 = wire.SplitTexts(paths[:n])
		if err := f.post(ctx, wire.PathRemove, in); err != nil {
			return pathError(ctx, op, paths[0], err)
		}
		paths = paths[n:]
	}
	return nil
}

// attrOf translates bits and owners.
func attrOf(a sandbox.Attr) (wire.FileAttr, error) {
	if err := a.CheckMode(); err != nil {
		return wire.FileAttr{}, fmt.Errorf("%w: %w", sandbox.ErrPathRejected, err)
	}
	w := wire.FileAttr{Owner: a.Owner, Group: a.Group}
	if a.Mode != nil {
		mode := uint64(a.Mode.Perm())
		for _, b := range specialBits {
			if *a.Mode&b.mode != 0 {
				mode |= b.bit
			}
		}
		w.Mode = strconv.FormatUint(mode, 8)
	}
	return w, nil
}

var specialBits = [...]struct {
	mode fs.FileMode
	bit  uint64
}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}}

var typeBits = map[string]fs.FileMode{
	wire.TypeFile:      0,
	wire.TypeDirectory: fs.ModeDir,
	wire.TypeSymlink:   fs.ModeSymlink,
	wire.TypeFIFO:      fs.ModeNamedPipe,
	wire.TypeSocket:    fs.ModeSocket,
	wire.TypeDevice:    fs.ModeDevice,
	wire.TypeCharDev:   fs.ModeDevice | fs.ModeCharDevice,
}

func infoOf(e *wire.Entry) (sandbox.FileInfo, error) {
	kind, known := typeBits[e.Type]
	bits, err := strconv.ParseUint(e.Mode, 8, 32)
	if err != nil || bits > 0o7777 {
		return sandbox.FileInfo{}, fmt.Errorf("%w: the daemon's answer has no usable mode", sandbox.ErrUnreachable)
	}
	if !known {
		kind = fs.ModeIrregular
	}
	mode := kind | fs.FileMode(bits)&fs.ModePerm
	for _, b := range specialBits {
		if bits&b.bit != 0 {
			mode |= b.mode
		}
	}
	return sandbox.FileInfo{
		Path:    wire.JoinText(e.Path, e.PathB64),
		Size:    e.Size,
		Mode:    mode,
		Owner:   e.Owner,
		Group:   e.Group,
		ModTime: e.ModTime,
		Target:  wire.JoinText(e.Target, e.TargetB64),
		Version: e.Version,
	}, nil
}
