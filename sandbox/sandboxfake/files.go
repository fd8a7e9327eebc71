package sandboxfake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"syscall"

	"github.com/astrabox/astrabox/sandbox"
)

// files is the Files face, over a machine that may be gone by now.
type files struct {
	m     *machine
	roots []string
}

func (f *files) Beneath(root string) sandbox.Files {
	return &files{f.m, append(slices.Clip(f.roots), root)}
}

// fail names operation and path.
func fail(op, path string, err error) error {
	var named *sandbox.PathError
	if err == nil || errors.As(err, &named) {
		return err
	}
	return &sandbox.PathError{Op: op, Path: path, Err: err}
}

// locked does something with the tree, under its lock.
func locked[T any](ctx context.Context, f *files, do func(t *tree) (T, error)) (T, error) {
	var none T
	if err := f.m.askable(ctx); err != nil {
		return none, err
	}
	f.m.tree.mu.Lock()
	defer f.m.tree.mu.Unlock()
	return do(f.m.tree)
}

// on is locked as an operation of the face.
func on[T any](ctx context.Context, f *files, op, method, path string, lie T, do func(t *tree) (T, error)) (T, error) {
	v, err := operation(ctx, f.m.p, "Files."+method, f.m.id, lie, func() (T, error) { return locked(ctx, f, do) })
	return v, fail(op, path, err)
}

// change is on for what gives only an error.
func change(ctx context.Context, f *files, op, method, path string, do func(t *tree) error) error {
	_, err := on(ctx, f, op, method, path, struct{}{}, func(t *tree) (struct{}, error) { return struct{}{}, do(t) })
	return err
}

func (f *files) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	return on(ctx, f, "stat", "Stat", path, sandbox.FileInfo{Path: path, Mode: 0o644, Owner: "root", Group: "root"},
		func(t *tree) (sandbox.FileInfo, error) {
			at, err := t.existing(f.roots, path, false)
			if err != nil {
				return sandbox.FileInfo{}, err
			}
			return at.n.info(path), nil
		})
}

func (f *files) List(ctx context.Context, dir string, depth int) (iter.Seq2[sandbox.FileInfo, error], error) {
	if depth < 0 {
		return nil, fail("list", dir, rejected(syscall.EINVAL, "a depth isn't negative"))
	}
	return f.sequence(ctx, "list", "List", dir, depth, func(string) bool { return true })
}

func (f *files) Search(ctx context.Context, root, pattern string) (iter.Seq2[sandbox.FileInfo, error], error) {
	match, err := matcher(pattern)
	if err != nil {
		return nil, fail("search", root, err)
	}
	return f.sequence(ctx, "search", "Search", root, maxPath, match)
}

func (f *files) sequence(ctx context.Context, op, method, dir string, depth int, match func(string) bool) (iter.Seq2[sandbox.FileInfo, error], error) {
	nothing := &node{mode: fs.ModeDir}
	top, err := on(ctx, f, op, method, dir, nothing, func(t *tree) (*node, error) {
		at, err := t.existing(f.roots, dir, true)
		if err == nil && !at.n.mode.IsDir() {
			err = errno(syscall.ENOTDIR)
		}
		return at.n, err
	})
	if err != nil {
		return nil, err
	}
	return func(yield func(sandbox.FileInfo, error) bool) {
		f.walk(ctx, top, strings.TrimRight(dir, "/"), depth, func(i sandbox.FileInfo, err error) bool {
			if err != nil {
				return yield(i, fail(op, dir, err))
			}
			return !match(i.Name()) || yield(i, nil)
		})
	}, nil
}

// walk yields what is below dir; the lock is held only while it looks.
func (f *files) walk(ctx context.Context, dir *node, path string, depth int, yield func(sandbox.FileInfo, error) bool) bool {
	if depth < 1 {
		return true
	}
	t := f.m.tree
	t.mu.Lock()
	names := dir.sorted()
	t.mu.Unlock()
	for _, name := range names {
		if err := f.m.askable(ctx); err != nil {
			yield(sandbox.FileInfo{}, err)
			return false
		}
		t.mu.Lock()
		n := dir.names[name]
		if n == nil { // it vanished
			t.mu.Unlock()
			continue
		}
		info := n.info(path + "/" + name)
		t.mu.Unlock()
		if !yield(info, nil) {
			return false
		}
		if info.IsDir() && !f.walk(ctx, n, info.Path, depth-1, yield) {
			return false
		}
	}
	return true
}

func (f *files) Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error) {
	c, err := on(ctx, f, "open", "Open", path, &content{m: f.m, ctx: ctx, path: path}, func(t *tree) (*content, error) {
		if offset < 0 {
			return nil, rejected(syscall.EINVAL, "an offset isn't negative")
		}
		at, err := t.existing(f.roots, path, true)
		switch {
		case err != nil:
			return nil, err
		case at.n.mode.IsDir():
			return nil, errno(syscall.EISDIR)
		case !at.n.mode.IsRegular():
			return nil, rejected(syscall.ENODEV, "the path names what has no content to read")
		}
		b := at.n.content[min(offset, int64(len(at.n.content))):]
		if length >= 0 && length < int64(len(b)) {
			b = b[:length]
		}
		return &content{m: f.m, ctx: ctx, path: path, b: b}, nil
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// content is an open file; ctx is the one that it was opened under.
type content struct {
	m    *machine
	ctx  context.Context
	path string
	b    []byte
}

func (c *content) Read(p []byte) (int, error) {
	if err := c.m.askable(c.ctx); err != nil {
		return 0, fail("read", c.path, err)
	}
	if len(c.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.b)
	c.b = c.b[n:]
	return n, nil
}

func (c *content) Close() error { return nil }

func (f *files) Write(ctx context.Context, path string, r io.Reader, o sandbox.WriteOptions) error {
	return fail("write", path, step(ctx, f.m.p, "Files.Write", f.m.id, func() error {
		// What would be refused at the end is refused before anything is read.
		if _, err := locked(ctx, f, func(t *tree) (place, error) {
			at, _, err := t.writable(f.roots, path, o)
			return at, err
		}); err != nil {
			return err
		}
		b, err := read(ctx, r)
		if err != nil {
			return err
		}
		_, err = locked(ctx, f, func(t *tree) (place, error) {
			at, n, err := t.writable(f.roots, path, o)
			if err == nil {
				n.content = b
				t.add(at.dir, at.name, n)
			}
			return at, err
		})
		return err
	}))
}

func read(ctx context.Context, r io.Reader) ([]byte, error) {
	if r == nil {
		return nil, nil
	}
	var out []byte
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		out = append(out, buf[:n]...)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == io.EOF:
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("%w: the content can't be read: %w", sandbox.ErrPathRejected, err)
		}
	}
}
