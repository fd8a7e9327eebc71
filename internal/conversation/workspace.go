package conversation

import (
	"context"
	"io"
	"iter"

	"github.com/astrabox/astrabox/sandbox"
)

// Workspace gives the conversation's files, confined to /workspace, and the
// account that what is written should belong to. It starts or resumes the
// sandbox, waiting as long as ctx allows; using the files counts as activity,
// and while a transfer runs the sandbox isn't paused.
func (s *Service) Workspace(ctx context.Context, id string) (files sandbox.Files, account string, err error) {
	h, err := s.sandboxOf(ctx, id)
	if err != nil {
		return nil, "", err
	}
	rec, err := s.store.Record(ctx, id)
	if err != nil {
		return nil, "", err
	}
	env, err := s.store.Environment(ctx, rec.Environment)
	if err != nil {
		return nil, "", err
	}
	return usedFiles{h.Files().Beneath(Workspace), func() func() { return s.use(id) }}, env.Account, nil
}

// usedFiles has all that a Files may have beside its methods: without one of
// them the base operations would do its work, slowly.
var _ interface {
	sandbox.Mover
	sandbox.Archiver
	sandbox.Extractor
	sandbox.Uploader
	sandbox.ContentSearcher
	sandbox.Watcher
} = usedFiles{}

// usedFiles notes the use of the files under it.
type usedFiles struct {
	files sandbox.Files
	use   func() (done func())
}

func (u usedFiles) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	defer u.use()()
	return u.files.Stat(ctx, path)
}

func (u usedFiles) List(ctx context.Context, dir string, depth int) (iter.Seq2[sandbox.FileInfo, error], error) {
	defer u.use()()
	seq, err := u.files.List(ctx, dir, depth)
	return u.seq(seq), err
}

func (u usedFiles) Search(ctx context.Context, root, pattern string) (iter.Seq2[sandbox.FileInfo, error], error) {
	defer u.use()()
	seq, err := u.files.Search(ctx, root, pattern)
	return u.seq(seq), err
}

func (u usedFiles) seq(seq iter.Seq2[sandbox.FileInfo, error]) iter.Seq2[sandbox.FileInfo, error] {
	if seq == nil {
		return nil
	}
	return func(yield func(sandbox.FileInfo, error) bool) {
		defer u.use()()
		seq(yield)
	}
}

func (u usedFiles) Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error) {
	done := u.use()
	r, err := u.files.Open(ctx, path, offset, length)
	if err != nil {
		done()
		return nil, err
	}
	return &usedReader{r, done}, nil
}

// usedReader is in use until it is closed.
type usedReader struct {
	io.ReadCloser
	done func()
}

func (r *usedReader) Close() error {
	if r.done != nil {
		r.done()
		r.done = nil
	}
	return r.ReadCloser.Close()
}

func (u usedFiles) Write(ctx context.Context, path string, r io.Reader, o sandbox.WriteOptions) error {
	defer u.use()()
	return u.files.Write(ctx, path, r, o)
}

func (u usedFiles) MakeDir(ctx context.Context, path string, o sandbox.DirOptions) error {
	defer u.use()()
	return u.files.MakeDir(ctx, path, o)
}

func (u usedFiles) Rename(ctx context.Context, from, to string) error {
	defer u.use()()
	return u.files.Rename(ctx, from, to)
}

// Move implements sandbox.Mover.
func (u usedFiles) Move(ctx context.Context, from, to string) error {
	defer u.use()()
	return sandbox.Move(ctx, u.files, from, to)
}

// Archive implements sandbox.Archiver.
func (u usedFiles) Archive(ctx context.Context, dir string, format sandbox.ArchiveFormat) (io.ReadCloser, error) {
	done := u.use()
	r, err := sandbox.Archive(ctx, u.files, dir, format)
	if err != nil {
		done()
		return nil, err
	}
	return &usedReader{r, done}, nil
}

// Extract implements sandbox.Extractor.
func (u usedFiles) Extract(ctx context.Context, dir string, r io.Reader, o sandbox.ExtractOptions) (sandbox.Extracted, error) {
	defer u.use()()
	return sandbox.Extract(ctx, u.files, dir, r, o)
}

// Upload implements sandbox.Uploader.
func (u usedFiles) Upload(ctx context.Context, path string, content io.ReaderAt, size int64, o sandbox.WriteOptions) error {
	defer u.use()()
	return sandbox.Upload(ctx, u.files, path, content, size, o)
}

// SearchContent implements sandbox.ContentSearcher.
func (u usedFiles) SearchContent(ctx context.Context, root string, q sandbox.ContentQuery) (iter.Seq2[sandbox.ContentMatch, error], error) {
	defer u.use()()
	seq, err := sandbox.SearchContent(ctx, u.files, root, q)
	if seq == nil {
		return nil, err
	}
	return func(yield func(sandbox.ContentMatch, error) bool) {
		defer u.use()()
		seq(yield)
	}, err
}

// Watch implements sandbox.Watcher. To watch is no use: a folder that is looked
// at and left alone doesn't keep its sandbox from being paused.
func (u usedFiles) Watch(ctx context.Context, dir string, o sandbox.WatchOptions) (iter.Seq2[sandbox.Change, error], error) {
	return sandbox.Watch(ctx, u.files, dir, o)
}

func (u usedFiles) Remove(ctx context.Context, paths ...string) error {
	defer u.use()()
	return u.files.Remove(ctx, paths...)
}

func (u usedFiles) RemoveAll(ctx context.Context, path string) error {
	defer u.use()()
	return u.files.RemoveAll(ctx, path)
}

func (u usedFiles) SetAttr(ctx context.Context, path string, a sandbox.Attr) error {
	defer u.use()()
	return u.files.SetAttr(ctx, path, a)
}

func (u usedFiles) Beneath(root string) sandbox.Files {
	return usedFiles{u.files.Beneath(root), u.use}
}
