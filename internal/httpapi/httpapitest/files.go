package httpapitest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/astrabox/astrabox/sandbox"
)

const workspace = "/workspace"

// Files is a workspace in a directory of the machine. os.Root keeps it there.
// Owners are noted, not set.
type Files struct {
	root *os.Root
	// OnStat is called before each Stat.
	OnStat func(path string)

	mu     sync.Mutex
	owners map[string]sandbox.Attr
}

func newFiles(parent string) (*Files, error) {
	dir, err := os.MkdirTemp(parent, "workspace")
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	return &Files{root: root, owners: map[string]sandbox.Attr{}}, nil
}

// Root is the directory as the machine sees it.
func (f *Files) Root() string { return f.root.Name() }

func (f *Files) rel(p string) string {
	if p == workspace {
		return "."
	}
	return strings.TrimPrefix(p, workspace+"/")
}

func wrap(op, p string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		err = sandbox.ErrPathNotFound
	default:
		err = fmt.Errorf("%w: %w", sandbox.ErrPathRejected, err)
	}
	return &sandbox.PathError{Op: op, Path: p, Err: err}
}

func (f *Files) info(p string, i fs.FileInfo) sandbox.FileInfo {
	out := sandbox.FileInfo{Path: p, Size: i.Size(), Mode: i.Mode(), Owner: "root", Group: "root", ModTime: i.ModTime(), Version: version(i)}
	f.mu.Lock()
	if a, ok := f.owners[p]; ok {
		out.Owner, out.Group = a.Owner, a.Group
	}
	f.mu.Unlock()
	if i.Mode()&fs.ModeSymlink != 0 {
		out.Target, _ = f.root.Readlink(f.rel(p))
	}
	return out
}

// version has the inode because two writes may share one tick of the clock.
func version(i fs.FileInfo) string {
	var inode uint64
	if st, ok := i.Sys().(*syscall.Stat_t); ok {
		inode = st.Ino
	}
	return fmt.Sprintf("%x-%x-%x", i.ModTime().UnixNano(), i.Size(), inode)
}

// Stat doesn't follow a final link.
func (f *Files) Stat(_ context.Context, p string) (sandbox.FileInfo, error) {
	if f.OnStat != nil {
		f.OnStat(p)
	}
	i, err := f.root.Lstat(f.rel(p))
	if err != nil {
		return sandbox.FileInfo{}, wrap("stat", p, err)
	}
	return f.info(p, i), nil
}

// List reads the whole folder first.
func (f *Files) List(_ context.Context, dir string, depth int) (iter.Seq2[sandbox.FileInfo, error], error) {
	var all []sandbox.FileInfo
	var read func(dir string, depth int) error
	read = func(dir string, depth int) error {
		h, err := f.root.Open(f.rel(dir))
		if err != nil {
			return wrap("list", dir, err)
		}
		entries, err := h.ReadDir(-1)
		h.Close()
		if err != nil {
			return wrap("list", dir, err)
		}
		slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		for _, e := range entries {
			i, err := e.Info()
			if err != nil {
				continue
			}
			p := path.Join(dir, e.Name())
			all = append(all, f.info(p, i))
			if e.IsDir() && depth > 1 {
				if err := read(p, depth-1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := read(dir, depth); err != nil {
		return nil, err
	}
	return func(yield func(sandbox.FileInfo, error) bool) {
		for _, i := range all {
			if !yield(i, nil) {
				return
			}
		}
	}, nil
}

// Open reads a part of a file.
func (f *Files) Open(_ context.Context, p string, offset, length int64) (io.ReadCloser, error) {
	h, err := f.root.Open(f.rel(p))
	if err != nil {
		return nil, wrap("open", p, err)
	}
	if length < 0 {
		length = 1 << 62
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(h, offset, length), h}, nil
}

// Write goes through a temporary file.
func (f *Files) Write(ctx context.Context, p string, r io.Reader, o sandbox.WriteOptions) error {
	rel := f.rel(p)
	old, err := f.root.Lstat(rel)
	exists := err == nil
	switch {
	case exists && o.NoReplace:
		return wrap("write", p, fs.ErrExist)
	case o.IfUnchanged != "" && (!exists || f.info(p, old).Version != o.IfUnchanged):
		return &sandbox.PathError{Op: "write", Path: p, Err: sandbox.ErrChanged}
	}
	h, err := f.root.OpenFile(rel+".tmp", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return wrap("write", p, err)
	}
	_, err = io.Copy(h, r)
	if err == nil && o.Mode != nil {
		err = h.Chmod(*o.Mode)
	}
	if err = errors.Join(err, h.Close()); err == nil {
		err = f.root.Rename(rel+".tmp", rel)
	}
	if err != nil {
		_ = f.root.Remove(rel + ".tmp")
		return wrap("write", p, err)
	}
	f.note(p, o.Attr)
	return nil
}

func (f *Files) note(p string, a sandbox.Attr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.Owner != "" {
		f.owners[p] = a
	}
}

// MakeDir makes a folder.
func (f *Files) MakeDir(_ context.Context, p string, o sandbox.DirOptions) error {
	mode := fs.FileMode(0o755)
	if o.Mode != nil {
		mode = *o.Mode
	}
	rel := f.rel(p)
	err := f.root.Mkdir(rel, mode)
	if o.Parents {
		err = f.root.MkdirAll(rel, mode)
	}
	if err == nil {
		f.note(p, o.Attr)
	}
	return wrap("mkdir", p, err)
}

// Rename moves.
func (f *Files) Rename(_ context.Context, from, to string) error {
	return wrap("rename", from, f.root.Rename(f.rel(from), f.rel(to)))
}

// Remove removes single files.
func (f *Files) Remove(_ context.Context, paths ...string) error {
	for _, p := range paths {
		if err := f.root.Remove(f.rel(p)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return wrap("remove", p, err)
		}
	}
	return nil
}

// RemoveAll removes a tree.
func (f *Files) RemoveAll(_ context.Context, p string) error {
	return wrap("remove", p, f.root.RemoveAll(f.rel(p)))
}

// SetAttr sets the mode.
func (f *Files) SetAttr(_ context.Context, p string, a sandbox.Attr) error {
	if a.Mode == nil {
		return nil
	}
	return wrap("attr", p, f.root.Chmod(f.rel(p), *a.Mode))
}

// Search isn't used by what this package tests.
func (f *Files) Search(context.Context, string, string) (iter.Seq2[sandbox.FileInfo, error], error) {
	return nil, sandbox.Errorf(sandbox.CodeUnsupported, "no search here")
}

// Beneath is already so.
func (f *Files) Beneath(string) sandbox.Files { return f }
