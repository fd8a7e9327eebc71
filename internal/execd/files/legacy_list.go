package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// array streams a JSON array. While all of it is in memory a failure is still
// a plain refusal; later it cuts the connection.
type array struct {
	w    http.ResponseWriter
	buf  bytes.Buffer
	sent bool
}

func (a *array) add(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	sep := byte(',')
	if !a.sent && a.buf.Len() == 0 {
		sep = '['
	}
	a.buf.WriteByte(sep)
	a.buf.Write(b)
	if a.buf.Len() < 64<<10 {
		return nil
	}
	return a.flush()
}

func (a *array) flush() error {
	if !a.sent {
		a.w.Header().Set("Content-Type", "application/json; charset=utf-8")
		a.sent = true
	}
	_, err := a.w.Write(a.buf.Bytes())
	a.buf.Reset()
	return err
}

func (a *array) end(err error) error {
	if err != nil {
		if a.sent {
			panic(http.ErrAbortHandler)
		}
		return err
	}
	if !a.sent && a.buf.Len() == 0 {
		a.buf.WriteByte('[')
	}
	a.buf.WriteByte(']')
	a.flush() //nolint:errcheck // the client is gone: nothing is left to do
	return nil
}

func (s *service) oldList(w http.ResponseWriter, r *http.Request) error {
	q, err := oldQuery(r)
	if err != nil {
		return err
	}
	p, err := s.oldPath(q)
	if err != nil {
		return err
	}
	depth := 1
	if text := q.Get("depth"); text != "" {
		if depth, err = strconv.Atoi(text); err != nil || depth < 0 {
			return badRequest(wire.CodeInvalidBody, "depth %s isn't a number from 0", strconv.QuoteToASCII(text))
		}
	}
	st, err := s.statPath(p)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return badRequest(wire.CodeInvalidBody, "the path is not a directory")
	}
	return s.oldTree(w, r, p, depth, func(string, *unix.Stat_t) bool { return true })
}

func (s *service) oldSearch(w http.ResponseWriter, r *http.Request) error {
	q, err := oldQuery(r)
	if err != nil {
		return err
	}
	p, err := s.oldPath(q)
	if err != nil {
		return err
	}
	pattern := q.Get("pattern")
	if pattern == "" {
		pattern = "**"
	}
	match, err := matcher(pattern)
	if err != nil {
		return err
	}
	st, err := s.statPath(p)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR { // a file, or a link that isn't followed
		a := &array{w: w}
		f := oldFileOf(p, st, newNamer(s.accounts))
		if _, base := split(f.Path); match(base) {
			err = a.add(f)
		}
		return a.end(err)
	}
	return s.oldTree(w, r, p, maxDepth+1, func(base string, st *unix.Stat_t) bool {
		return st.Mode&unix.S_IFMT != unix.S_IFDIR && match(base)
	})
}

func (s *service) oldTree(w http.ResponseWriter, r *http.Request, p string, depth int, keep func(string, *unix.Stat_t) bool) error {
	dir, err := s.openDir(p)
	if errors.Is(err, unix.ENOTDIR) {
		return badRequest(wire.CodeInvalidBody, "the path is not a directory")
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	a, n := &array{w: w}, newNamer(s.accounts)
	t := &tree{s: s, emit: func(_ int, path, base, _ string, st *unix.Stat_t) error {
		if !keep(base, st) {
			return nil
		}
		return a.add(oldFileOf(path, st, n))
	}}
	return a.end(t.walk(r.Context(), dir, p, depth, 1))
}
