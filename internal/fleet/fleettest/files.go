package fleettest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"strings"

	"github.com/astrabox/astrabox/sandbox"
)

// files holds regular files by path; it has no directories, bits or owners.
type files struct {
	h    *handle
	root string
}

func (f *files) do(op, path string, fn func(box *Box) error) error {
	f.h.c.b.mu.Lock()
	defer f.h.c.b.mu.Unlock()
	box, err := f.h.running()
	if err == nil && f.root != "" && path != f.root && !strings.HasPrefix(path, f.root+"/") {
		err = sandbox.ErrPathRejected
	}
	if err == nil {
		err = fn(box)
	}
	if err != nil {
		return &sandbox.PathError{Op: op, Path: path, Err: err}
	}
	return nil
}

func (f *files) Stat(_ context.Context, path string) (info sandbox.FileInfo, err error) {
	err = f.do("stat", path, func(box *Box) error {
		body, ok := box.files[path]
		if !ok {
			return sandbox.ErrPathNotFound
		}
		info = sandbox.FileInfo{Path: path, Size: int64(len(body)), Mode: 0o640}
		return nil
	})
	return info, err
}

func (f *files) Open(_ context.Context, path string, _, _ int64) (r io.ReadCloser, err error) {
	err = f.do("open", path, func(box *Box) error {
		body, ok := box.files[path]
		if !ok {
			return sandbox.ErrPathNotFound
		}
		r = io.NopCloser(bytes.NewReader(bytes.Clone(body)))
		return nil
	})
	return r, err
}

func (f *files) Write(_ context.Context, path string, r io.Reader, _ sandbox.WriteOptions) error {
	body, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return f.do("write", path, func(box *Box) error {
		if f.h.c.b.NoBinary != nil {
			return f.h.c.b.NoBinary
		}
		box.files[path] = body
		return nil
	})
}

func (f *files) Remove(_ context.Context, paths ...string) error {
	for _, p := range paths {
		if err := f.do("remove", p, func(box *Box) error { delete(box.files, p); return nil }); err != nil {
			return err
		}
	}
	return nil
}

func (f *files) Beneath(root string) sandbox.Files { return &files{f.h, root} }

var errNotHere = fmt.Errorf("%w: the fake has no directories", sandbox.ErrPathRejected)

func (f *files) List(context.Context, string, int) (iter.Seq2[sandbox.FileInfo, error], error) {
	return nil, errNotHere
}
func (f *files) MakeDir(context.Context, string, sandbox.DirOptions) error { return errNotHere }
func (f *files) Rename(context.Context, string, string) error              { return errNotHere }
func (f *files) RemoveAll(context.Context, string) error                   { return errNotHere }
func (f *files) SetAttr(context.Context, string, sandbox.Attr) error       { return errNotHere }
func (f *files) Search(context.Context, string, string) (iter.Seq2[sandbox.FileInfo, error], error) {
	return nil, errNotHere
}
