package sandboxfake

import (
	"context"
	"io"
	"iter"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// fileHooks are what a variant of Files does otherwise; a nil hook is honest.
// Each gets the honest Files.
type fileHooks struct {
	path      func(path string) string
	info      func(i sandbox.FileInfo) sandbox.FileInfo
	fail      func(err error) error
	stat      func(ctx context.Context, f sandbox.Files, path string) (sandbox.FileInfo, error)
	list      func(ctx context.Context, f sandbox.Files, dir string, depth int) (iter.Seq2[sandbox.FileInfo, error], error)
	search    func(ctx context.Context, f sandbox.Files, root, pattern string) (iter.Seq2[sandbox.FileInfo, error], error)
	open      func(ctx context.Context, f sandbox.Files, path string, offset, length int64) (io.ReadCloser, error)
	write     func(ctx context.Context, f sandbox.Files, path string, r io.Reader, o sandbox.WriteOptions) error
	mkdir     func(ctx context.Context, f sandbox.Files, path string, o sandbox.DirOptions) error
	rename    func(ctx context.Context, f sandbox.Files, from, to string) error
	move      func(ctx context.Context, f sandbox.Files, from, to string) error
	remove    func(ctx context.Context, f sandbox.Files, path string) error
	removeAll func(ctx context.Context, f sandbox.Files, path string) error
	setAttr   func(ctx context.Context, f sandbox.Files, path string, a sandbox.Attr) error
	// beneath gives the Files for a path beneath roots, of which there are some.
	beneath func(ctx context.Context, free, confined sandbox.Files, roots []string, path string) sandbox.Files
}

// bentFiles is a Files with hooks.
type bentFiles struct {
	free  sandbox.Files // of the whole tree
	h     fileHooks
	roots []string
}

func bendFiles(h fileHooks) func(*bent) {
	return func(b *bent) {
		b.files = func(_ *machine, f sandbox.Files) sandbox.Files { return &bentFiles{free: f, h: h} }
	}
}

func (f *bentFiles) Beneath(root string) sandbox.Files {
	return &bentFiles{f.free, f.h, append(append([]string(nil), f.roots...), root)}
}

// on gives the honest Files for a path, and the path.
func (f *bentFiles) on(ctx context.Context, path string) (sandbox.Files, string) {
	if f.h.path != nil {
		path = f.h.path(path)
	}
	honest := f.free
	for _, r := range f.roots {
		honest = honest.Beneath(r)
	}
	if len(f.roots) > 0 && f.h.beneath != nil {
		honest = f.h.beneath(ctx, f.free, honest, f.roots, path)
	}
	return honest, path
}

func (f *bentFiles) error(err error) error {
	if err != nil && f.h.fail != nil {
		return f.h.fail(err)
	}
	return err
}

func (f *bentFiles) bend(i sandbox.FileInfo) sandbox.FileInfo {
	if f.h.info != nil {
		return f.h.info(i)
	}
	return i
}

func (f *bentFiles) sequence(seq iter.Seq2[sandbox.FileInfo, error], err error) (iter.Seq2[sandbox.FileInfo, error], error) {
	if err != nil {
		return nil, f.error(err)
	}
	return func(yield func(sandbox.FileInfo, error) bool) {
		for i, err := range seq {
			if !yield(f.bend(i), f.error(err)) {
				return
			}
		}
	}, nil
}

func (f *bentFiles) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	honest, path := f.on(ctx, path)
	stat := f.h.stat
	if stat == nil {
		stat = func(ctx context.Context, f sandbox.Files, path string) (sandbox.FileInfo, error) {
			return f.Stat(ctx, path)
		}
	}
	i, err := stat(ctx, honest, path)
	return f.bend(i), f.error(err)
}

func (f *bentFiles) List(ctx context.Context, dir string, depth int) (iter.Seq2[sandbox.FileInfo, error], error) {
	honest, dir := f.on(ctx, dir)
	if f.h.list != nil {
		return f.sequence(f.h.list(ctx, honest, dir, depth))
	}
	return f.sequence(honest.List(ctx, dir, depth))
}

func (f *bentFiles) Search(ctx context.Context, root, pattern string) (iter.Seq2[sandbox.FileInfo, error], error) {
	honest, root := f.on(ctx, root)
	if f.h.search != nil {
		return f.sequence(f.h.search(ctx, honest, root, pattern))
	}
	return f.sequence(honest.Search(ctx, root, pattern))
}

func (f *bentFiles) Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error) {
	honest, path := f.on(ctx, path)
	open := f.h.open
	if open == nil {
		open = func(ctx context.Context, f sandbox.Files, path string, offset, length int64) (io.ReadCloser, error) {
			return f.Open(ctx, path, offset, length)
		}
	}
	r, err := open(ctx, honest, path, offset, length)
	return r, f.error(err)
}

func (f *bentFiles) Write(ctx context.Context, path string, r io.Reader, o sandbox.WriteOptions) error {
	honest, path := f.on(ctx, path)
	if f.h.write != nil {
		return f.error(f.h.write(ctx, honest, path, r, o))
	}
	return f.error(honest.Write(ctx, path, r, o))
}

func (f *bentFiles) MakeDir(ctx context.Context, path string, o sandbox.DirOptions) error {
	honest, path := f.on(ctx, path)
	if f.h.mkdir != nil {
		return f.error(f.h.mkdir(ctx, honest, path, o))
	}
	return f.error(honest.MakeDir(ctx, path, o))
}

func (f *bentFiles) Rename(ctx context.Context, from, to string) error {
	honest, from := f.on(ctx, from)
	_, to = f.on(ctx, to)
	if f.h.rename != nil {
		return f.error(f.h.rename(ctx, honest, from, to))
	}
	return f.error(honest.Rename(ctx, from, to))
}

// Move implements sandbox.Mover.
func (f *bentFiles) Move(ctx context.Context, from, to string) error {
	honest, from := f.on(ctx, from)
	_, to = f.on(ctx, to)
	if f.h.move != nil {
		return f.error(f.h.move(ctx, honest, from, to))
	}
	return f.error(sandbox.Move(ctx, honest, from, to))
}

func (f *bentFiles) Remove(ctx context.Context, paths ...string) error {
	for _, path := range paths {
		if checkPath(path) != nil && f.h.path == nil { // as the honest one does, before anything is removed
			honest, _ := f.on(ctx, path)
			return f.error(honest.Remove(ctx, path))
		}
	}
	for _, path := range paths {
		honest, path := f.on(ctx, path)
		remove := f.h.remove
		if remove == nil {
			remove = func(ctx context.Context, f sandbox.Files, path string) error { return f.Remove(ctx, path) }
		}
		if err := remove(ctx, honest, path); err != nil {
			return f.error(err)
		}
	}
	return nil
}

func (f *bentFiles) RemoveAll(ctx context.Context, path string) error {
	honest, path := f.on(ctx, path)
	if f.h.removeAll != nil {
		return f.error(f.h.removeAll(ctx, honest, path))
	}
	return f.error(honest.RemoveAll(ctx, path))
}

func (f *bentFiles) SetAttr(ctx context.Context, path string, a sandbox.Attr) error {
	honest, path := f.on(ctx, path)
	if f.h.setAttr != nil {
		return f.error(f.h.setAttr(ctx, honest, path, a))
	}
	return f.error(honest.SetAttr(ctx, path, a))
}

// gap is how long a variant leaves things half done.
const gap = 3 * time.Millisecond

// linger waits for the gap, or for the end of ctx.
func linger(ctx context.Context) {
	t := time.NewTimer(gap)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}
