package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/astrabox/astrabox/internal/httpapi/wire"
)

// Files lists what is below a folder of a conversation's workspace.
func (c *Client) Files(ctx context.Context, id, path string, depth int) (out wire.FileList, err error) {
	return out, c.call(ctx, http.MethodGet, one(id)+"/files", url.Values{"path": {path}, "depth": {strconv.Itoa(depth)}}, nil, &out)
}

// Download gives a file's content; its size is -1 when the server didn't say.
// The caller closes it. Reading ends with an *Unreachable when it breaks off.
func (c *Client) Download(ctx context.Context, id, path string) (content io.ReadCloser, size int64, err error) {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: one(id) + "/files/content", query: url.Values{"path": {path}}}) //nolint:bodyclose // download closes it
	if err != nil {
		return nil, 0, err
	}
	return &download{c, ctx, resp.Body}, resp.ContentLength, nil
}

// Archive gives a folder as one file in format zip, tar or tar.gz. The caller
// closes it. Reading ends with an *Unreachable when it breaks off.
func (c *Client) Archive(ctx context.Context, id, path, format string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, request{method: http.MethodGet, path: one(id) + "/files/archive", query: url.Values{"path": {path}, "format": {format}}}) //nolint:bodyclose // download closes it
	if err != nil {
		return nil, err
	}
	return &download{c, ctx, resp.Body}, nil
}

// download turns an error of the connection into Unreachable. It keeps the
// context of the call that it belongs to, and lives no longer.
type download struct {
	c   *Client
	ctx context.Context //nolint:containedctx // of the same call: see above
	io.ReadCloser
}

func (d *download) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = d.c.lost(d.ctx, err)
	}
	return n, err
}

// Upload writes a file. ifMatch is a version that must still hold; noReplace
// writes a new file only.
func (c *Client) Upload(ctx context.Context, id, path string, content io.Reader, ifMatch string, noReplace bool) (out wire.FileEntry, err error) {
	h := http.Header{"Content-Type": {"application/octet-stream"}}
	if ifMatch != "" {
		h.Set("If-Match", `"`+ifMatch+`"`)
	}
	if noReplace {
		h.Set("If-None-Match", "*")
	}
	resp, err := c.do(ctx, request{method: http.MethodPut, path: one(id) + "/files/content", query: url.Values{"path": {path}}, header: h, body: content})
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return out, c.lost(ctx, fmt.Errorf("its answer can't be read: %w", err))
	}
	return out, nil
}
