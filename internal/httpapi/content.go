package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/sandbox"
)

// maxLinks is how many symlinks are followed to a file's content.
const maxLinks = 16

// openTries is how often a read starts over when the file was replaced between
// asking for its version and opening it.
const openTries = 4

func parseQuery(r *http.Request) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fault.Wrap(fault.RequestInvalid, err, "The query of the address can't be read.")
	}
	return values, nil
}

// workspaceFile gives what both directions of a transfer need.
func (s *Server) workspaceFile(r *http.Request) (files sandbox.Files, account, p string, err error) {
	q, err := query(r, "path")
	if err != nil {
		return nil, "", "", err
	}
	if p, err = cleanPath(q["path"]); err != nil {
		return nil, "", "", err
	}
	files, account, err = s.service.Workspace(r.Context(), r.PathValue("id"))
	return files, account, p, err
}

// getContent sends a file, whole or one range of it. Several ranges at once
// get the whole file, as HTTP allows. The answer can't run as a page: it has
// the type of its name only where that is a picture or plain data, it is an
// attachment, and the policy of all API answers puts it into a sandbox.
func (s *Server) getContent(w http.ResponseWriter, r *http.Request) {
	files, _, p, err := s.workspaceFile(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if p, err = followLinks(r.Context(), files, p); err != nil {
		s.fail(w, r, err)
		return
	}
	for range openTries {
		changed, err := s.sendContent(w, r, files, p)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		if !changed {
			return
		}
	}
	s.fail(w, r, fault.New(fault.FileChanged, "The file is replaced faster than it can be read."))
}

// sendContent answers, unless the file changed while it was opened: then
// nothing was sent and changed is true. An error also means that nothing was sent.
func (s *Server) sendContent(w http.ResponseWriter, r *http.Request, files sandbox.Files, p string) (changed bool, err error) {
	ctx := r.Context()
	info, err := files.Stat(ctx, p)
	if err != nil {
		return false, err
	}
	if err := regular(info); err != nil {
		return false, err
	}
	etag := etagOf(info.Version)
	if done, err := s.preconditions(w, r, etag); done || err != nil {
		return false, err
	}
	span, err := rangeOf(r, info.Size, etag)
	if err != nil {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", info.Size))
		return false, err
	}
	var content io.ReadCloser
	if r.Method != http.MethodHead {
		if content, err = files.Open(ctx, p, span.start, span.length); err != nil {
			return false, err
		}
		defer content.Close()
		again, err := files.Stat(ctx, p)
		if err != nil {
			return false, err
		}
		if again.Version != info.Version || again.Size != info.Size {
			return true, nil
		}
	}
	h := w.Header()
	h.Set("Content-Type", contentType(p))
	h.Set("Content-Disposition", disposition(info.Name()))
	h.Set("Content-Length", strconv.FormatInt(span.length, 10))
	h.Set("Accept-Ranges", "bytes")
	h.Set("Last-Modified", info.ModTime.UTC().Format(http.TimeFormat))
	h.Set("Cache-Control", "private, no-cache")
	if etag != "" {
		h.Set("ETag", etag)
	}
	status := http.StatusOK
	if span.partial {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", span.start, span.start+span.length-1, info.Size))
		status = http.StatusPartialContent
	}
	w.WriteHeader(status)
	if content == nil {
		return false, nil
	}
	n, err := io.CopyBuffer(onlyWriter{w}, content, make([]byte, 128<<10))
	if err != nil || n != span.length {
		// The length was promised: a short answer must be seen as cut off.
		if ctx.Err() == nil {
			s.log.Warn("a download was cut off", "request_id", requestID(ctx), "sent", n, "of", span.length, "error", err)
		}
		panic(http.ErrAbortHandler)
	}
	return false, nil
}

// onlyWriter hides other methods, so that the copy goes through Write, which
// renews the deadline.
type onlyWriter struct{ io.Writer }

func regular(info sandbox.FileInfo) error {
	switch {
	case info.Mode.IsRegular():
		return nil
	case info.IsDir():
		return fault.New(fault.IsADirectory, "It is a folder: %s", info.Path)
	}
	return fault.New(fault.NotRegular, "It is not a regular file: %s", info.Path)
}

// followLinks gives the path of the file that p names at last. Every step is
// asked of the confined sandbox, which refuses a link that leads out. A path
// that names nothing is returned as it is.
func followLinks(ctx context.Context, files sandbox.Files, p string) (string, error) {
	for range maxLinks {
		info, err := files.Stat(ctx, p)
		if errors.Is(err, fs.ErrNotExist) {
			return p, nil
		}
		if err != nil {
			return "", err
		}
		if info.Mode&fs.ModeSymlink == 0 {
			return p, nil
		}
		target := info.Target
		if !path.IsAbs(target) {
			target = path.Dir(p) + "/" + target
		}
		// Cleaning ".." away is exact only when the parts before it are no
		// links; the sandbox judges the result in any case.
		target = path.Clean(target)
		if target != workspace && !strings.HasPrefix(target, workspace+"/") {
			return "", fault.New(fault.PathEscapes, "The link %s leads out of the workspace.", p)
		}
		p = target
	}
	return "", fault.New(fault.FileRejected, "The path has more than %d links in a row.", maxLinks)
}

// etagOf quotes a version. One that can't stand in a header gives none.
func etagOf(version string) string {
	if version == "" || strings.ContainsFunc(version, func(r rune) bool { return r <= ' ' || r == '"' || r >= 0x7f }) {
		return ""
	}
	return `"` + version + `"`
}

// preconditions answers 304 itself; a condition that doesn't hold is an error.
func (s *Server) preconditions(w http.ResponseWriter, r *http.Request, etag string) (done bool, err error) {
	if v := r.Header.Get("If-Match"); v != "" && !matches(v, etag, false) {
		return false, fault.New(fault.FileChanged, "")
	}
	if v := r.Header.Get("If-None-Match"); v != "" && matches(v, etag, true) {
		if etag != "" {
			w.Header().Set("ETag", etag)
		}
		w.Header().Set("Cache-Control", "private, no-cache")
		w.WriteHeader(http.StatusNotModified)
		return true, nil
	}
	return false, nil
}

// matches reports whether a list of entity tags holds etag. weak compares as
// If-None-Match does.
func matches(list, etag string, weak bool) bool {
	if strings.TrimSpace(list) == "*" {
		return true
	}
	for tag := range strings.SplitSeq(list, ",") {
		tag = strings.TrimSpace(tag)
		if weak {
			tag = strings.TrimPrefix(tag, "W/")
		}
		if tag != "" && tag == etag {
			return true
		}
	}
	return false
}

// span is the part of a file that is sent.
type span struct {
	start, length int64
	partial       bool
}

// rangeOf reads a Range header. What it doesn't understand, and several
// ranges, mean the whole file; a range beyond the end is an error.
func rangeOf(r *http.Request, size int64, etag string) (span, error) {
	whole := span{0, size, false}
	spec, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	if !ok || strings.Contains(spec, ",") {
		return whole, nil
	}
	if cond := r.Header.Get("If-Range"); cond != "" && (etag == "" || cond != etag) {
		return whole, nil
	}
	first, last, ok := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok {
		return whole, nil
	}
	unsatisfiable := fault.New(fault.RangeInvalid, "The file has %d bytes.", size)
	if first == "" { // the last n bytes
		n, ok := digits(last)
		if !ok {
			return whole, nil
		}
		if n == 0 || size == 0 {
			return span{}, unsatisfiable
		}
		n = min(n, size)
		return span{size - n, n, true}, nil
	}
	start, ok := digits(first)
	if !ok {
		return whole, nil
	}
	end := size - 1
	if last != "" {
		if end, ok = digits(last); !ok || end < start {
			return whole, nil
		}
		end = min(end, size-1)
	}
	if start >= size {
		return span{}, unsatisfiable
	}
	return span{start, end - start + 1, true}, nil
}

func digits(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}

// disposition names the file for a download. The name may hold any character:
// RFC 5987 carries it, and an ASCII form stands beside it for old clients.
func disposition(name string) string {
	ascii := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '_'
		}
		return r
	}, name)
	v := `attachment; filename="` + ascii + `"`
	if ascii != name {
		v += "; filename*=UTF-8''" + strings.ReplaceAll(url.QueryEscape(name), "+", "%20")
	}
	return v
}

// contentType knows the types that a page may show safely as data. Everything
// else is bytes: whether a file is text is the reader's to find out.
func contentType(p string) string {
	switch ext := strings.ToLower(path.Ext(p)); ext {
	case ".png", ".gif", ".webp", ".pdf", ".jpg", ".jpeg", ".mp4", ".mp3", ".wav":
		if t := mime.TypeByExtension(ext); t != "" {
			return t
		}
	case ".svg": // shown as a picture only: the policy keeps its scripts from running
		return "image/svg+xml"
	case ".txt", ".md", ".log", ".csv":
		return "text/plain; charset=utf-8"
	}
	return "application/octet-stream"
}

// putContent writes a file in one step. If-None-Match: * writes a new file
// only; If-Match writes only over the version that the client saw. A new file
// gets 0640; one that is there keeps its bits, so that saving a script in an
// editor doesn't make it unexecutable. Both belong to the conversation's
// account. An upload that breaks off changes nothing.
func (s *Server) putContent(w http.ResponseWriter, r *http.Request) {
	files, account, p, err := s.workspaceFile(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	created, err := s.write(w, r, files, account, &p)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	e, err := stat(r.Context(), files, p)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	if tag := etagOf(e.Version); tag != "" {
		w.Header().Set("ETag", tag)
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	s.writeJSON(w, status, e)
}

func (s *Server) write(w http.ResponseWriter, r *http.Request, files sandbox.Files, account string, p *string) (created bool, err error) {
	if strings.HasSuffix(r.URL.Query().Get("path"), "/") || *p == workspace {
		return false, fault.New(fault.IsADirectory, "")
	}
	options := sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(fileMode), Owner: account, Group: account}}
	switch v := strings.TrimSpace(r.Header.Get("If-None-Match")); v {
	case "":
	case "*":
		options.NoReplace = true
	default:
		return false, fault.New(fault.RequestInvalid, "If-None-Match takes * only when a file is written.")
	}
	if v := strings.TrimSpace(r.Header.Get("If-Match")); v != "" {
		version := strings.TrimSuffix(strings.TrimPrefix(v, `"`), `"`)
		if version == "" || v != `"`+version+`"` || strings.ContainsRune(version, '"') || options.NoReplace {
			return false, fault.New(fault.RequestInvalid, "If-Match takes one quoted version, and not together with If-None-Match.")
		}
		options.IfUnchanged = version
	}
	if *p, err = followLinks(r.Context(), files, *p); err != nil {
		return false, err
	}
	switch info, err := files.Stat(r.Context(), *p); {
	case errors.Is(err, fs.ErrNotExist):
		created = true
		if options.IfUnchanged != "" {
			return false, fault.Wrap(fault.FileChanged, err, "The file is not there any more.")
		}
	case err != nil:
		return false, err
	case options.NoReplace:
		return false, fault.New(fault.FileExists, "A file of that name exists: %s", *p)
	default:
		if err := regular(info); err != nil {
			return false, err
		}
		options.Mode = sandbox.Mode(info.Mode.Perm())
	}
	body := &uploadBody{r.Body, http.NewResponseController(w)}
	defer body.done()
	return created, files.Write(r.Context(), *p, body, options)
}
