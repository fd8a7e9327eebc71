package files

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

func (s *service) oldDownload(w http.ResponseWriter, r *http.Request) error {
	q, err := oldQuery(r)
	if err != nil {
		return err
	}
	p, err := s.oldPath(q)
	if err != nil {
		return err
	}
	lines := q.Has("offset") || q.Has("limit")
	first, err := lineNumber(q, "offset", 1)
	if err != nil {
		return err
	}
	limit, err := lineNumber(q, "limit", -1)
	if err != nil {
		return err
	}
	if lines && r.Header.Get("Range") != "" {
		return badRequest(wire.CodeInvalidBody, "offset and limit exclude a Range")
	}
	f, st, err := openContent(s.all, p)
	switch failed := (*failure)(nil); {
	case errors.Is(err, unix.EISDIR):
		return badRequest(wire.CodeInvalidBody, "the path is a directory")
	case errors.As(err, &failed) && failed.code == wire.CodeNotRegular:
		return badRequest(wire.CodeInvalidBody, "%s", failed.message)
	case err != nil:
		return err
	}
	defer f.Close()
	h := w.Header()
	if lines {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		h.Set("X-Content-Type-Options", "nosniff")
		return sendLines(w, f, first, limit)
	}
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", disposition(path.Base(p)))
	if one, _, several := strings.Cut(r.Header.Get("Range"), ","); several {
		r.Header.Set("Range", one) // of several ranges the first is sent, as it always was
	}
	return serveContent(w, r, f, st)
}

func lineNumber(q url.Values, key string, unset int64) (int64, error) {
	if !q.Has(key) {
		return unset, nil
	}
	n, err := strconv.ParseInt(q.Get(key), 10, 64)
	if err != nil || n < 1 {
		return 0, badRequest(wire.CodeInvalidBody, "%s isn't a number from 1", key)
	}
	return n, nil
}

// sendLines sends limit lines (negative: all) from the one numbered first,
// each with the end that it has.
func sendLines(w http.ResponseWriter, f io.Reader, first, limit int64) error {
	in, out := bufio.NewReaderSize(f, 64<<10), bufio.NewWriterSize(w, 64<<10)
	for line := int64(1); limit < 0 || line < first || line-first < limit; {
		part, err := in.ReadSlice('\n')
		if line >= first {
			if _, err := out.Write(part); err != nil {
				return nil //nolint:nilerr // the client is gone
			}
		}
		switch {
		case err == nil:
			line++
		case errors.Is(err, bufio.ErrBufferFull): // a long line goes on
		case err == io.EOF, errors.Is(err, unix.EAGAIN):
			out.Flush() //nolint:errcheck // the client is gone: nothing is left to do
			return nil
		default:
			panic(http.ErrAbortHandler) // cuts the connection: the headers may be out
		}
	}
	out.Flush() //nolint:errcheck // the client is gone: nothing is left to do
	return nil
}

// disposition names a download; a name that isn't plain ASCII is given in
// both forms of RFC 6266.
func disposition(name string) string {
	plain := strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return '_'
		}
		return c
	}, name)
	out := `attachment; filename="` + plain + `"`
	if plain != name {
		out += "; filename*=UTF-8''" + strings.ReplaceAll(url.QueryEscape(name), "+", "%20")
	}
	return out
}

func (s *service) oldReplace(w http.ResponseWriter, r *http.Request) error {
	type edit struct{ Old, New string }
	type result struct {
		Count int `json:"replacedCount"`
	}
	var items map[string]edit
	q, err := oldQuery(r)
	if err != nil {
		return err
	}
	if err := oldBody(r, &items); err != nil {
		return err
	}
	for given, item := range items {
		if item.Old == "" {
			return badRequest(wire.CodeInvalidBody, "%s: old is empty", given)
		}
	}
	results := map[string]result{}
	for _, given := range slices.Sorted(maps.Keys(items)) {
		p, err := s.absolute(given)
		n := 0
		if err == nil {
			n, err = s.replaceIn(p, []byte(items[given].Old), []byte(items[given].New))
		}
		if err != nil {
			return named(err, given)
		}
		results[given] = result{n}
	}
	// Clients don't ask for the counts in an isolated session, and expect them.
	if q.Get("verbose") == "true" || s.root != nil {
		respond(w, http.StatusOK, results)
	}
	return nil
}

// replaceIn writes a file anew with every old replaced, unless there is none.
// A change by another meanwhile fails it.
func (s *service) replaceIn(p string, old, replacement []byte) (n int, err error) {
	f, st, err := openContent(s.all, p)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	u, err := s.begin(s.all, p, target{ifUnchanged: versionOf(st)})
	if err != nil {
		return 0, err
	}
	defer u.abort()
	if n, err = replaceAll(u.f, f, old, replacement); err != nil || n == 0 {
		return 0, err
	}
	_, err = u.commit(p)
	return n, err
}

// replaceAll copies src with every old replaced, from the left and without
// overlap, in memory of the order of old.
func replaceAll(dst io.Writer, src io.Reader, old, replacement []byte) (n int, err error) {
	out := bufio.NewWriterSize(dst, 64<<10)
	buf, have := make([]byte, 64<<10+2*len(old)), 0
	for {
		m, err := src.Read(buf[have:])
		have += m
		if err != nil && err != io.EOF {
			return n, err
		}
		rest := buf[:have]
		for {
			i := bytes.Index(rest, old)
			if i < 0 {
				break
			}
			out.Write(rest[:i])    //nolint:errcheck // Flush tells
			out.Write(replacement) //nolint:errcheck // Flush tells
			rest = rest[i+len(old):]
			n++
		}
		keep := min(len(rest), len(old)-1) // a match may go on in what comes next
		if err == io.EOF {
			keep = 0
		}
		if _, err := out.Write(rest[:len(rest)-keep]); err != nil {
			return n, err
		}
		if err == io.EOF {
			return n, out.Flush()
		}
		have = copy(buf, rest[len(rest)-keep:])
	}
}
