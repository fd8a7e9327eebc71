package execd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// base hides what a Files has beside its methods, so that the functions of
// package sandbox make do with those.
type base struct{ sandbox.Files }

// has reports whether the daemon is ours with a feature. Without it the base
// operations have to do.
func (f *files) has(ctx context.Context, feature string) (bool, error) {
	ours, err := f.c.speaks(ctx, feature)
	if sandbox.CodeOf(err) == sandbox.CodeUnsupported {
		return false, nil
	}
	return ours, err
}

// Archive implements sandbox.Archiver.
func (f *files) Archive(ctx context.Context, dir string, format sandbox.ArchiveFormat) (io.ReadCloser, error) {
	ours, err := f.has(ctx, wire.FeatureArchive)
	if err == nil && !ours {
		return sandbox.Archive(ctx, base{f}, dir, format)
	}
	if err == nil {
		err = f.check(dir)
	}
	var resp *http.Response
	if err == nil {
		resp, err = f.ask(ctx, request{method: http.MethodGet, path: wire.PathArchive, query: f.query(dir, "format", string(format))}) //nolint:bodyclose // by who reads it
	}
	if err != nil {
		return nil, pathError(ctx, "archive", dir, err)
	}
	// An archive that is cut off ends in an error of the transport, not in io.EOF.
	return &content{ctx: ctx, path: dir, body: resp.Body, left: -1}, nil
}

// Extract implements sandbox.Extractor.
func (f *files) Extract(ctx context.Context, dir string, r io.Reader, o sandbox.ExtractOptions) (sandbox.Extracted, error) {
	ours, err := f.has(ctx, wire.FeatureArchive)
	if err == nil && !ours {
		return sandbox.Extract(ctx, base{f}, dir, r, o)
	}
	if err == nil {
		err = f.check(dir)
	}
	if err != nil {
		return sandbox.Extracted{}, pathError(ctx, "extract", dir, err)
	}
	done, path, err := f.extract(ctx, dir, r, o)
	return sandbox.Extracted(done), pathError(ctx, "extract", path, err)
}

// extract gives the path that an error is about.
func (f *files) extract(ctx context.Context, dir string, r io.Reader, o sandbox.ExtractOptions) (done wire.Extracted, path string, err error) {
	req := request{
		method: http.MethodPost, path: wire.PathExtract,
		query: f.query(dir, "owner", o.Owner, "group", o.Group, "no_replace", one(o.NoReplace),
			"max_bytes", positive(o.MaxBytes), "max_entries", positive(o.MaxEntries)),
		header: http.Header{"Content-Type": {"application/x-tar"}},
	}
	c := contentOf(r)
	req.once, req.body = c.once, c.body
	resp, err := f.ask(ctx, req)
	if failed := c.stop(); err != nil && failed != nil && ctx.Err() == nil {
		return done, dir, fmt.Errorf("%w: the archive can't be read: %w", sandbox.ErrPathRejected, failed)
	}
	var no *refusal
	if errors.As(err, &no) {
		var e wire.ExtractRefusal
		if json.Unmarshal(no.body, &e) == nil {
			done = e.Extracted
		}
		if e.Code == wire.CodeIncompleteBody {
			if named := wire.JoinText(e.Path, e.PathB64); named != "" {
				dir = named
			}
			return done, dir, fmt.Errorf("%w: %s: %w", sandbox.ErrPathRejected, e.Message, io.ErrUnexpectedEOF)
		}
	}
	if err != nil {
		return done, dir, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxLine)).Decode(&done); err != nil {
		return done, dir, unreachable(ctx, fmt.Errorf("the daemon's answer can't be read: %w", err))
	}
	return done, dir, nil
}

// one writes a flag.
func one(set bool) string {
	if set {
		return "1"
	}
	return ""
}

// positive writes a number that 0 leaves to the daemon.
func positive(n int64) string {
	if n <= 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// SearchContent implements sandbox.ContentSearcher.
func (f *files) SearchContent(ctx context.Context, root string, q sandbox.ContentQuery) (iter.Seq2[sandbox.ContentMatch, error], error) {
	ours, err := f.has(ctx, wire.FeatureSearch)
	if err == nil && !ours {
		return sandbox.SearchContent(ctx, base{f}, root, q)
	}
	if err == nil {
		err = f.check(root)
	}
	var resp *http.Response
	if err == nil {
		resp, err = f.ask(ctx, request{ //nolint:bodyclose // by the range
			method: http.MethodGet, path: wire.PathGrep,
			query: f.query(root, "text", q.Text, "regexp", one(q.Regexp), "ignore_case", one(q.IgnoreCase), "name", q.Name,
				"max", positive(int64(q.Max)), "max_size", positive(q.MaxSize)),
		})
	}
	if err != nil {
		return nil, pathError(ctx, "search", root, err)
	}
	return func(yield func(sandbox.ContentMatch, error) bool) {
		defer resp.Body.Close()
		if err := matches(ctx, resp.Body, yield); err != nil {
			yield(sandbox.ContentMatch{}, pathError(ctx, "search", root, err))
		}
	}, nil
}

// matches yields the lines of a search up to its end, which must be there.
func matches(ctx context.Context, body io.Reader, yield func(sandbox.ContentMatch, error) bool) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 32<<10), maxLine)
	for lines.Scan() {
		var m wire.Match
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return unreachable(ctx, fmt.Errorf("the daemon's answer can't be read: %w", err))
		}
		switch {
		case m.End:
			return nil
		case m.Error != nil:
			return causeOf(m.Error)
		}
		c := sandbox.ContentMatch{
			Path: wire.JoinText(m.Path, m.PathB64), Line: m.Line, Offset: m.Offset,
			Text: wire.JoinText(m.Text, m.TextB64), Start: m.Start, End: m.Stop,
		}
		if c.Start < 0 || c.End < c.Start || c.End > len(c.Text) {
			return fmt.Errorf("%w: the daemon's answer has a match outside of its line", sandbox.ErrUnreachable)
		}
		if !yield(c, nil) {
			return nil
		}
	}
	err := lines.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return unreachable(ctx, fmt.Errorf("the search was cut off: %w", err))
}
