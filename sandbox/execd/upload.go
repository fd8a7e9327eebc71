package execd

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	// uploadPatience is how long an upload goes on without any progress.
	uploadPatience = time.Minute
	// uploadDrop bounds the request that gives an upload up.
	uploadDrop = 5 * time.Second
	// uploadStarts is how often an upload begins anew after the daemon forgot it.
	uploadStarts = 3
)

// Upload implements sandbox.Uploader. An upload whose daemon was started anew
// begins again.
func (f *files) Upload(ctx context.Context, path string, content io.ReaderAt, size int64, o sandbox.WriteOptions) error {
	ours, err := f.has(ctx, wire.FeatureUpload)
	if err == nil && !ours {
		return sandbox.Upload(ctx, base{f}, path, content, size, o)
	}
	a, wrong := attrOf(o.Attr)
	if err = errors.Join(err, wrong, f.check(path)); err == nil {
		u := &uploading{f: f, content: content, size: size, sum: sha256.New()}
		err = u.run(ctx, wire.UploadStart{Scope: f.scope(path), FileAttr: a, Size: size, NoReplace: o.NoReplace, IfUnchanged: o.IfUnchanged})
	}
	return pathError(ctx, "upload", path, err)
}

// uploading is one upload.
type uploading struct {
	f       *files
	content io.ReaderAt
	size    int64
	id      string

	progress time.Time // when the last byte went on
	wait     time.Duration

	mu     sync.Mutex // a Read of a request that has ended may be under way still
	part   *uploadPart
	sum    hash.Hash
	summed int64 // bytes that sum holds
	failed error // what reading the content met
}

func (u *uploading) run(ctx context.Context, start wire.UploadStart) error {
	u.moved()
	for starts := 1; ; starts++ {
		err := u.once(ctx, start)
		var no *refusal
		if errors.As(err, &no) && no.code == wire.CodeUploadNotFound {
			if starts < uploadStarts {
				continue
			}
			err = fmt.Errorf("%w: the daemon forgot the upload %d times", sandbox.ErrUnreachable, starts)
		}
		if errors.As(err, &no) && no.code == wire.CodeHashMismatch {
			err = fmt.Errorf("%w: the content that arrived isn't the one that was read", sandbox.ErrPathRejected)
		}
		if err != nil && u.id != "" {
			u.drop(ctx)
		}
		return err
	}
}

// moved notes progress.
func (u *uploading) moved() { u.progress, u.wait = time.Now(), watchBackoff }

// again waits after a failure. It gives the failure back when it isn't one of
// the connection, or when there was no progress for too long.
func (u *uploading) again(ctx context.Context, err error) error {
	if ctx.Err() != nil || !errors.Is(err, sandbox.ErrUnreachable) || time.Since(u.progress) > uploadPatience {
		return err
	}
	wait := u.wait
	u.wait = min(2*wait, maxBackoff)
	return pause(ctx, wait)
}

func (u *uploading) once(ctx context.Context, start wire.UploadStart) error {
	var st wire.UploadStatus
	for {
		err := u.ask(ctx, http.MethodPost, wire.PathUploads, "", start, &st)
		if err == nil {
			break
		}
		if err := u.again(ctx, err); err != nil {
			return err
		}
	}
	u.id = st.ID
	for offsets := 0; st.Offset < u.size; {
		if st.Offset < 0 {
			return fmt.Errorf("%w: the daemon's answer makes no sense", sandbox.ErrUnreachable)
		}
		before := st.Offset
		err := u.send(ctx, before, &st)
		if err == nil && st.Offset <= before {
			return fmt.Errorf("%w: the daemon takes nothing", sandbox.ErrUnreachable)
		}
		if err != nil {
			var no *refusal
			if errors.As(err, &no) && no.code == wire.CodeUploadOffset && offsets < 100 {
				offsets++ // an earlier request had more effect than was known
			} else if err := u.again(ctx, err); err != nil {
				return err
			}
			if err := u.status(ctx, &st); err != nil {
				return err
			}
		}
		if st.Offset > before {
			u.moved()
		}
	}
	if st.Offset > u.size {
		return fmt.Errorf("%w: the daemon has more than was sent", sandbox.ErrUnreachable)
	}
	u.mu.Lock()
	in := wire.UploadFinish{ID: u.id, SHA256: hex.EncodeToString(u.sum.Sum(nil))}
	u.mu.Unlock()
	for lost := false; ; lost = true {
		err := u.ask(ctx, http.MethodPost, wire.PathUploadFinish, "", in, nil)
		var no *refusal
		if lost && errors.As(err, &no) && no.code == wire.CodeUploadNotFound {
			return fmt.Errorf("%w: the daemon was lost while it put the file in place", sandbox.ErrUnreachable)
		}
		if err == nil {
			return nil
		}
		if err := u.again(ctx, err); err != nil {
			return err
		}
	}
}

func (u *uploading) status(ctx context.Context, st *wire.UploadStatus) error {
	for {
		err := u.ask(ctx, http.MethodGet, wire.PathUploads, url.Values{"id": {u.id}}.Encode(), nil, st)
		if err == nil {
			return nil
		}
		if err := u.again(ctx, err); err != nil {
			return err
		}
	}
}

func (u *uploading) ask(ctx context.Context, method, path, query string, in, out any) error {
	r := request{method: method, path: path, query: query}
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("execd: %w", err)
		}
		r.header = http.Header{"Content-Type": {"application/json"}}
		r.body = func() (io.Reader, error) { return bytes.NewReader(b), nil }
	}
	resp, err := u.f.ask(ctx, r)
	if err != nil {
		return err
	}
	return answer(ctx, resp, out)
}

// answer reads a small JSON answer.
func answer(ctx context.Context, resp *http.Response, out any) error {
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxLine))
	if err == nil && out != nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil {
		return unreachable(ctx, fmt.Errorf("the daemon's answer can't be read: %w", err))
	}
	return nil
}

// send sends what follows offset.
func (u *uploading) send(ctx context.Context, offset int64, st *wire.UploadStatus) error {
	q := url.Values{"id": {u.id}, "offset": {strconv.FormatInt(offset, 10)}}
	resp, err := u.f.ask(ctx, request{
		method: http.MethodPatch, path: wire.PathUploads, query: q.Encode(),
		header: http.Header{"Content-Type": {"application/octet-stream"}},
		body: func() (io.Reader, error) {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.part = &uploadPart{u: u, at: offset}
			return u.part, nil
		},
	})
	u.mu.Lock()
	u.part = nil
	failed := u.failed
	u.mu.Unlock()
	if failed != nil {
		if err == nil {
			resp.Body.Close()
		}
		return fmt.Errorf("%w: the content can't be read: %w", sandbox.ErrPathRejected, failed)
	}
	if err != nil {
		return err
	}
	return answer(ctx, resp, st)
}

// uploadPart is the body of one request. Once another took its place it reads
// nothing any more.
type uploadPart struct {
	u  *uploading
	at int64
}

func (p *uploadPart) Read(b []byte) (int, error) {
	u := p.u
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.part != p {
		return 0, errors.New("the request is over")
	}
	if p.at >= u.size {
		return 0, io.EOF
	}
	b = b[:min(int64(len(b)), u.size-p.at)]
	n, err := u.content.ReadAt(b, p.at)
	if n < len(b) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		u.failed = err
		return 0, err
	}
	if end := p.at + int64(n); end > u.summed && p.at <= u.summed {
		u.sum.Write(b[u.summed-p.at : n])
		u.summed = end
	}
	p.at += int64(n)
	return n, nil
}

// drop tells the daemon that the upload is given up. It forgets it by itself
// after some time.
func (u *uploading) drop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uploadDrop)
	defer cancel()
	resp, err := u.f.ask(ctx, request{method: http.MethodDelete, path: wire.PathUploads, query: url.Values{"id": {u.id}}.Encode()})
	if err == nil {
		resp.Body.Close()
	}
}
