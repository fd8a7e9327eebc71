package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	maxPairs    = 4096     // files of one upload
	maxMetadata = 64 << 10 // bytes of one metadata part
)

// pair is one file of an upload: the n-th metadata part with the n-th file.
type pair struct {
	path  string
	want  target
	named bool     // its metadata was read
	up    *upload  // its content, beside the target
	spool *os.File // its content, when that came before the metadata
	err   error    // why it can't be stored; what comes after it isn't either
	made  []string // directories made for it
	done  bool
}

// batch is one multipart upload. Contents are staged as they arrive and put in
// place only once the whole body was read.
type batch struct {
	s           *service
	pairs       []*pair
	metas, data int
}

func (s *service) oldUpload(w http.ResponseWriter, r *http.Request) error {
	body := &tail{ReadCloser: r.Body}
	r.Body = body
	parts, err := r.MultipartReader()
	if err != nil {
		return badRequest(codeInvalidFile, "%s", err)
	}
	b := &batch{s: s}
	defer b.release()
	for {
		part, err := parts.NextRawPart()
		if err == io.EOF && body.ended(r) {
			break
		}
		if err != nil {
			return badRequest(codeInvalidFile, "the body can't be read: %s", err)
		}
		if err := b.part(part); err != nil {
			return err
		}
	}
	switch {
	case b.metas == 0:
		return badRequest(codeInvalidMetadata, "the metadata part is missing")
	case b.data == 0:
		return badRequest(codeInvalidContent, "the file part is missing")
	case b.metas != b.data:
		return badRequest(codeInvalidFile, "%d metadata parts and %d file parts", b.metas, b.data)
	}
	for _, p := range b.pairs {
		if err := b.store(p); err != nil {
			return named(err, p.path)
		}
	}
	return nil
}

// tail keeps the end of what was read. The multipart reader takes a body that
// stops within a part's header for a complete one; only the closing delimiter
// proves that it isn't cut off.
type tail struct {
	io.ReadCloser
	last []byte
}

// maxTail is more than any delimiter with a short epilogue.
const maxTail = 4 << 10

func (t *tail) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	end := p[max(0, n-maxTail):n]
	if over := len(t.last) + len(end) - maxTail; over > 0 {
		t.last = t.last[:copy(t.last, t.last[over:])]
	}
	t.last = append(t.last, end...)
	return n, err
}

func (t *tail) ended(r *http.Request) bool {
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && bytes.Contains(t.last, []byte("--"+params["boundary"]+"--"))
}

func (b *batch) pair(i int) (*pair, error) {
	if i == maxPairs {
		return nil, badRequest(codeInvalidFile, "more than %d files", maxPairs)
	}
	if i == len(b.pairs) {
		b.pairs = append(b.pairs, &pair{})
	}
	return b.pairs[i], nil
}

// part takes one part. Those without a file name are no parts of ours.
func (b *batch) part(part *multipart.Part) error {
	if part.FileName() == "" {
		return nil
	}
	switch part.FormName() {
	case "metadata":
		p, err := b.pair(b.metas)
		if err != nil {
			return err
		}
		b.metas++
		return b.metadata(p, part)
	case "file":
		p, err := b.pair(b.data)
		if err != nil {
			return err
		}
		b.data++
		return b.content(p, part)
	}
	return nil
}

func (b *batch) metadata(p *pair, part io.Reader) error {
	raw, err := io.ReadAll(io.LimitReader(part, maxMetadata+1))
	if err != nil {
		return badRequest(codeInvalidFile, "the body can't be read: %s", err)
	}
	if !utf8.Valid(raw) {
		return badRequest(codeInvalidMetadata, "the metadata isn't valid UTF-8")
	}
	if len(raw) > maxMetadata {
		return badRequest(codeInvalidMetadata, "the metadata is larger than %d bytes", maxMetadata)
	}
	var m struct {
		Path string `json:"path"`
		oldAttr
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		return badRequest(codeInvalidMetadata, "the metadata can't be read: %s", err)
	}
	if m.Path == "" {
		return badRequest(codeInvalidMetadata, "the metadata has no path")
	}
	p.named, p.want.newMode = true, 0o755
	if p.path, err = b.s.absolute(m.Path); err != nil {
		return err
	}
	p.want.attr, p.err = b.s.oldAttr(m.oldAttr)
	return nil
}

// content stages a file's content. Only a body that can't be read is an error;
// what is wrong with the target shows when its turn comes.
func (b *batch) content(p *pair, part io.Reader) error {
	to := io.Discard
	switch {
	case !p.named:
		f, err := os.CreateTemp("", "execd-upload-*")
		if err != nil {
			return err
		}
		p.spool, to = f, f
		if err := os.Remove(f.Name()); err != nil {
			return err
		}
	case p.err == nil:
		if p.err = b.begin(p); p.err == nil {
			to = p.up.f
		}
	}
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for {
		// A part comes in small pieces. Not io.ReadFull, whose error for a
		// short end is also that of a body that was cut off.
		n, err := 0, error(nil)
		for n < len(buf) && err == nil {
			var m int
			m, err = part.Read(buf[n:])
			n += m
		}
		if p.err == nil {
			_, p.err = to.Write(buf[:n])
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return badRequest(codeInvalidFile, "the body can't be read: %s", err)
		}
	}
}

// begin opens the upload, and makes the directories above it.
func (b *batch) begin(p *pair) (err error) {
	if strings.HasSuffix(p.path, "/") {
		return unix.EISDIR
	}
	p.up, err = b.s.begin(b.s.all, p.path, p.want)
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	owner := attr{uid: p.want.uid, gid: p.want.gid}
	parent, _ := split(p.path)
	if p.made, err = b.s.mkdirAll(b.s.all, parent, owner, owner); err != nil {
		return err
	}
	p.up, err = b.s.begin(b.s.all, p.path, p.want)
	return err
}

func (b *batch) store(p *pair) error {
	if p.err != nil {
		return p.err
	}
	if p.spool != nil {
		if err := b.begin(p); err != nil {
			return err
		}
		if _, err := p.spool.Seek(0, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.Copy(p.up.f, p.spool); err != nil {
			return err
		}
	}
	_, err := p.up.commit(p.path)
	p.done = err == nil
	return err
}

// release drops what wasn't stored, with the directories made for it as far
// as they are still empty.
func (b *batch) release() {
	for _, p := range b.pairs {
		if p.up != nil {
			p.up.abort()
		}
		if p.spool != nil {
			p.spool.Close() //nolint:errcheck // has no name any more
		}
		for i := len(p.made) - 1; i >= 0 && !p.done; i-- {
			if at, err := b.s.all.place(p.made[i], false); err == nil {
				unix.Unlinkat(at.dir, at.base, unix.AT_REMOVEDIR) //nolint:errcheck // others use it
				at.close()
			}
		}
	}
}
