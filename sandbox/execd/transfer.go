package execd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Open reads from offset; one at or past the end gives nothing.
func (f *files) Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error) {
	r, err := f.open(ctx, path, offset, length)
	if err != nil {
		return nil, pathError(ctx, "open", path, err)
	}
	return r, nil
}

func (f *files) open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error) {
	if offset < 0 {
		return nil, rejected(wire.CodePathInvalid, "an offset isn't negative")
	}
	if err := f.check(path); err != nil {
		return nil, err
	}
	r := request{method: http.MethodGet, path: wire.PathContent, query: f.query(path)}
	switch last := offset + length - 1; {
	case length == 0: // only asks whether the file could be read
		r.header = http.Header{"Range": {"bytes=0-0"}}
	case length > 0 && last >= offset:
		r.header = http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", offset, last)}}
	case offset > 0:
		r.header = http.Header{"Range": {fmt.Sprintf("bytes=%d-", offset)}}
	}
	resp, err := f.do(ctx, r)
	var no *refusal
	if errors.As(err, &no) && no.status == http.StatusRequestedRangeNotSatisfiable {
		return io.NopCloser(strings.NewReader("")), nil
	}
	if err != nil {
		return nil, err
	}
	if length == 0 {
		resp.Body.Close()
		return io.NopCloser(strings.NewReader("")), nil
	}
	c := &content{ctx: ctx, path: path, body: resp.Body, left: length}
	if resp.StatusCode == http.StatusPartialContent {
		if start := contentStart(resp.Header.Get("Content-Range")); start != offset {
			resp.Body.Close()
			return nil, fmt.Errorf("%w: the daemon sent another range than was asked for", sandbox.ErrUnreachable)
		}
		return c, nil
	}
	// A file without a size, such as those of /proc, comes whole.
	if _, err := io.CopyN(io.Discard, resp.Body, offset); err != nil && !errors.Is(err, io.EOF) {
		resp.Body.Close()
		return nil, unreachable(ctx, err)
	}
	return c, nil
}

// contentStart reads the start of "bytes 5-9/20"; -1 when it can't be read.
func contentStart(header string) int64 {
	span, _ := strings.CutPrefix(header, "bytes ")
	first, _, _ := strings.Cut(span, "-")
	if n, err := strconv.ParseInt(first, 10, 64); err == nil {
		return n
	}
	return -1
}

// content is the body of a download. ctx is the one that the request runs under.
type content struct {
	ctx  context.Context
	path string
	body io.ReadCloser
	left int64 // negative: to the end
}

func (c *content) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	if c.left > 0 && int64(len(p)) > c.left {
		p = p[:c.left]
	}
	n, err := c.body.Read(p)
	if c.left > 0 {
		c.left -= int64(n)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = pathError(c.ctx, "read", c.path, unreachable(c.ctx, err))
	}
	return n, err
}

func (c *content) Close() error { return c.body.Close() }

func (f *files) Write(ctx context.Context, path string, r io.Reader, o sandbox.WriteOptions) error {
	return pathError(ctx, "write", path, f.write(ctx, path, r, o))
}

func (f *files) write(ctx context.Context, path string, r io.Reader, o sandbox.WriteOptions) error {
	a, err := attrOf(o.Attr)
	if err = errors.Join(err, f.check(path)); err != nil {
		return err
	}
	noReplace := ""
	if o.NoReplace {
		noReplace = "1"
	}
	req := request{
		method: http.MethodPut, path: wire.PathContent,
		query: f.query(path, "mode", a.Mode, "owner", a.Owner, "group", a.Group,
			"no_replace", noReplace, "if_unchanged", o.IfUnchanged),
		header: http.Header{"Content-Type": {"application/octet-stream"}},
	}
	var src *source
	switch r := r.(type) {
	case nil:
	case *bytes.Reader: // what is in memory is sent with its length, and can be sent again
		req.body = func() (io.Reader, error) { c := *r; return &c, nil }
	case *strings.Reader:
		req.body = func() (io.Reader, error) { c := *r; return &c, nil }
	case *bytes.Buffer:
		req.body = func() (io.Reader, error) { return bytes.NewReader(r.Bytes()), nil }
	default:
		start := int64(-1)
		seeker, _ := r.(io.Seeker)
		if seeker != nil {
			if start, err = seeker.Seek(0, io.SeekCurrent); err != nil {
				start = -1
			}
		}
		req.once = start < 0
		req.body = func() (io.Reader, error) {
			if src != nil {
				src.stop()
				if _, err := seeker.Seek(start, io.SeekStart); err != nil {
					return nil, fmt.Errorf("%w: the content can't be read again: %w", sandbox.ErrPathRejected, err)
				}
			}
			src = &source{r: r}
			return src, nil
		}
	}
	resp, err := f.do(ctx, req)
	if src != nil {
		src.stop()
		if failed := src.failed.Load(); err != nil && failed != nil && ctx.Err() == nil {
			return fmt.Errorf("%w: the content can't be read: %w", sandbox.ErrPathRejected, *failed)
		}
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxLine))
	return unreachable(ctx, err)
}

// source is the content of a Write. It hides the reader's other methods (the
// transport would close it), remembers its failure, and starts no Read once
// Write has returned.
type source struct {
	r       io.Reader
	stopped atomic.Bool
	failed  atomic.Pointer[error]
}

func (s *source) stop() { s.stopped.Store(true) }

func (s *source) Read(p []byte) (int, error) {
	if s.stopped.Load() {
		return 0, errors.New("the write is over")
	}
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.failed.Store(&err)
	}
	return n, err
}
