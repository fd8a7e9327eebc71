package sandbox

import (
	"context"
	"fmt"
	"io"
)

// Uploader is what a Files may have beside its methods; use the function [Upload].
type Uploader interface {
	// Upload has the contract of the function Upload.
	Upload(ctx context.Context, path string, content io.ReaderAt, size int64, o WriteOptions) error
}

// Upload is [Files].Write for content that is large or goes over a connection
// that may break: what has arrived stays (unseen, for some time) and the rest
// follows, and the file appears, in one step, only after the SHA-256 of what was
// stored has been found to be that of what was read. Parts of content may be
// read twice; content that changes meanwhile is ErrPathRejected, and so is one
// shorter than size. ErrUnreachable says that the connection could not be had
// again for some time, or that it was lost at the very end and the outcome is
// not known.
//
// Where f isn't an [Uploader] it is one Write.
func Upload(ctx context.Context, f Files, path string, content io.ReaderAt, size int64, o WriteOptions) error {
	if size < 0 {
		return &PathError{Op: "upload", Path: path, Err: fmt.Errorf("%w: a size isn't negative", ErrPathRejected)}
	}
	if u, ok := f.(Uploader); ok {
		return u.Upload(ctx, path, content, size, o)
	}
	return f.Write(ctx, path, &exactly{r: io.NewSectionReader(content, 0, size), left: size}, o)
}

// exactly fails when r ends before left bytes were read.
type exactly struct {
	r    io.Reader
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	e.left -= int64(n)
	if err == io.EOF && e.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}
