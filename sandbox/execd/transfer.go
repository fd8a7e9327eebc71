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
	if o := f.elsewhere(ctx); o != nil {
		return o.Open(ctx, path, offset, length)
	}
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
		if !isRange(resp.Header.Get("Content-Range"), offset, length) {
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

// isRange reports whether a header such as "bytes 5-9/20" is about what was asked
// for: length bytes (negative: all) from offset, as far as the file has them.
func isRange(header string, offset, length int64) bool {
	span, ok := strings.CutPrefix(header, "bytes ")
	span, size, sized := strings.Cut(span, "/")
	from, to, two := strings.Cut(span, "-")
	var n [3]int64
	for i, text := range []string{from, to, size} {
		var err error
		if n[i], err = strconv.ParseInt(text, 10, 64); err != nil {
			return false
		}
	}
	end := n[2]
	if want := offset + length; length >= 0 && want >= offset && want < end {
		end = want
	}
	return ok && sized && two && n[0] == offset && n[1] == end-1
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
	if other := f.elsewhere(ctx); other != nil {
		return other.Write(ctx, path, r, o)
	}
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
	c := contentOf(r)
	req.once, req.body = c.once, c.body
	resp, err := f.do(ctx, req)
	if failed := c.stop(); err != nil && failed != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: the content can't be read: %w", sandbox.ErrPathRejected, failed)
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxLine))
	return unreachable(ctx, err)
}

// contents is the content of a Write, which may have to be sent again. What is
// in memory is sent with its length.
type contents struct {
	memory func() io.Reader // nil: the content is read from r
	r      io.Reader
	seeker io.Seeker // nil: it can't be read again
	start  int64
	once   bool
	src    *source // the latest
}

func contentOf(r io.Reader) *contents {
	switch r := r.(type) {
	case nil:
		return &contents{memory: func() io.Reader { return http.NoBody }}
	case *bytes.Reader:
		return &contents{memory: func() io.Reader { c := *r; return &c }}
	case *strings.Reader:
		return &contents{memory: func() io.Reader { c := *r; return &c }}
	case *bytes.Buffer:
		return &contents{memory: func() io.Reader { return bytes.NewReader(r.Bytes()) }}
	}
	c := &contents{r: r, once: true}
	if seeker, ok := r.(io.Seeker); ok {
		if start, err := seeker.Seek(0, io.SeekCurrent); err == nil {
			c.seeker, c.start, c.once = seeker, start, false
		}
	}
	return c
}

// body gives the content from its beginning.
func (c *contents) body() (io.Reader, error) {
	if c.memory != nil {
		return c.memory(), nil
	}
	if c.src != nil {
		c.src.stop()
		if _, err := c.seeker.Seek(c.start, io.SeekStart); err != nil {
			return nil, fmt.Errorf("%w: the content can't be read again: %w", sandbox.ErrPathRejected, err)
		}
	}
	c.src = &source{r: c.r}
	return c.src, nil
}

// counted is body, which also counts what is in memory.
func (c *contents) counted() (io.Reader, error) {
	r, err := c.body()
	if c.memory != nil {
		c.src = &source{r: r}
		return c.src, nil
	}
	return r, err
}

// stop ends the reading and gives the failure of the reader itself.
func (c *contents) stop() error {
	if c.src == nil {
		return nil
	}
	c.src.stop()
	if failed := c.src.failed.Load(); failed != nil {
		return *failed
	}
	return nil
}

// source is the content of one attempt. It hides the reader's other methods
// (the transport would close it), counts, remembers its failure, and starts no
// Read once Write has returned.
type source struct {
	r       io.Reader
	n       atomic.Int64
	ended   atomic.Bool
	stopped atomic.Bool
	failed  atomic.Pointer[error]
}

func (s *source) stop() { s.stopped.Store(true) }

func (s *source) Read(p []byte) (int, error) {
	if s.stopped.Load() {
		return 0, errors.New("the write is over")
	}
	n, err := s.r.Read(p)
	s.n.Add(int64(n))
	switch {
	case errors.Is(err, io.EOF):
		s.ended.Store(true)
	case err != nil:
		s.failed.Store(&err)
	}
	return n, err
}
