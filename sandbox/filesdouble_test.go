package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/astrabox/astrabox/sandbox"
)

// plainFiles has the base operations of Files and none of the optional ones,
// over a real directory. Beneath confines by os.Root.
type plainFiles struct {
	sandbox.Files // what isn't used here is nil
	root          string
	broken        error // what every listing fails with
}

func classify(op, p string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = sandbox.ErrPathNotFound
	} else {
		err = fmt.Errorf("%w: %w", sandbox.ErrPathRejected, err)
	}
	return &sandbox.PathError{Op: op, Path: p, Err: err}
}

func describe(p string, st fs.FileInfo) sandbox.FileInfo {
	info := sandbox.FileInfo{Path: p, Size: st.Size(), Mode: st.Mode(), Owner: "root", Group: "root", ModTime: st.ModTime()}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		info.Version = fmt.Sprint(sys.Ino, st.Size(), st.ModTime().UnixNano())
	}
	if st.Mode().Type() == fs.ModeSymlink {
		info.Target, _ = os.Readlink(p)
	}
	return info
}

func (f plainFiles) Beneath(root string) sandbox.Files { f.root = root; return f }

// in runs do on the path as seen from the root.
func (f plainFiles) in(p string, do func(r *os.Root, rel string) error) error {
	base := "/"
	if f.root != "" {
		base = f.root
	}
	r, err := os.OpenRoot(base)
	if err != nil {
		return err
	}
	defer r.Close()
	rel, err := filepath.Rel(base, p)
	if err != nil {
		return err
	}
	return do(r, rel)
}

func (f plainFiles) Stat(_ context.Context, p string) (info sandbox.FileInfo, err error) {
	err = f.in(p, func(r *os.Root, rel string) error {
		st, err := r.Lstat(rel)
		if err == nil {
			info = describe(p, st)
		}
		return err
	})
	return info, classify("stat", p, err)
}

func (f plainFiles) List(ctx context.Context, dir string, depth int) (iter.Seq2[sandbox.FileInfo, error], error) {
	if f.broken != nil {
		return nil, &sandbox.PathError{Op: "list", Path: dir, Err: f.broken}
	}
	if _, err := os.ReadDir(dir); err != nil {
		return nil, classify("list", dir, err)
	}
	return func(yield func(sandbox.FileInfo, error) bool) {
		_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || p == dir {
				return nil //nolint:nilerr // the directory itself, or what vanished
			}
			if st, err := d.Info(); err == nil && !yield(describe(p, st), ctx.Err()) {
				return fs.SkipAll
			}
			if d.IsDir() && strings.Count(p[len(dir):], "/") >= depth {
				return fs.SkipDir
			}
			return nil
		})
	}, nil
}

func (f plainFiles) Search(ctx context.Context, root, pattern string) (iter.Seq2[sandbox.FileInfo, error], error) {
	all, err := f.List(ctx, root, 1000)
	return func(yield func(sandbox.FileInfo, error) bool) {
		for info, err := range all {
			if ok, _ := path.Match(pattern, info.Name()); ok && !yield(info, err) {
				return
			}
		}
	}, err
}

func (f plainFiles) Open(_ context.Context, p string, offset, length int64) (rc io.ReadCloser, err error) {
	err = f.in(p, func(r *os.Root, rel string) error {
		file, err := r.Open(rel)
		if err != nil {
			return err
		}
		if length < 0 {
			length = 1 << 62
		}
		rc = struct {
			io.Reader
			io.Closer
		}{io.NewSectionReader(file, offset, length), file}
		return nil
	})
	return rc, classify("open", p, err)
}

func (f plainFiles) Write(_ context.Context, p string, content io.Reader, o sandbox.WriteOptions) error {
	return classify("write", p, f.in(p, func(r *os.Root, rel string) error {
		b, err := io.ReadAll(content)
		if err != nil {
			return err
		}
		flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
		if o.NoReplace {
			flags |= os.O_EXCL
		}
		mode := fs.FileMode(0o644)
		if o.Mode != nil {
			mode = *o.Mode
		}
		file, err := r.OpenFile(rel, flags, mode)
		if err != nil {
			return err
		}
		_, err = file.Write(b)
		return errors.Join(err, file.Chmod(mode), file.Close())
	}))
}

func (f plainFiles) MakeDir(_ context.Context, p string, o sandbox.DirOptions) error {
	return classify("mkdir", p, f.in(p, func(r *os.Root, rel string) error {
		if err := r.Mkdir(rel, 0o700); err != nil {
			return err
		}
		return r.Chmod(rel, *o.Mode)
	}))
}

func (f plainFiles) Remove(_ context.Context, paths ...string) error {
	return classify("remove", paths[0], f.in(paths[0], func(r *os.Root, rel string) error { return r.Remove(rel) }))
}
