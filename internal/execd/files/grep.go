package files

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// grep sends the lines that match, file by file. It ends when the client goes.
func (s *service) grep(w http.ResponseWriter, r *http.Request) error {
	q, err := s.query(r, "text", "regexp", "ignore_case", "name", "max", "max_size")
	if err != nil {
		return err
	}
	c := sandbox.ContentQuery{Text: q.Get("text"), Name: q.Get("name")}
	if c.Regexp, err = flag(q.Get("regexp"), "regexp"); err != nil {
		return err
	}
	if c.IgnoreCase, err = flag(q.Get("ignore_case"), "ignore_case"); err != nil {
		return err
	}
	if c.MaxSize, err = limit(q.Get("max_size")); err != nil {
		return err
	}
	if text := q.Get("max"); text != "" {
		if c.Max, err = strconv.Atoi(text); err != nil || c.Max < 1 {
			return failf(wire.CodePathInvalid, "max %s isn't a number from 1", strconv.QuoteToASCII(text))
		}
	}
	m, err := c.Compile()
	if err != nil {
		return failf(wire.CodePathInvalid, "%s", strings.TrimPrefix(err.Error(), string(sandbox.CodeInvalid)+": "))
	}
	match, err := matcher(m.Name)
	if err != nil {
		return err
	}
	path := q.Get("path")
	dir, err := openDir(q["root"], path)
	if err != nil {
		return err
	}
	defer dir.Close()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	rc.Flush() //nolint:errcheck // so that a long search without a match isn't taken for a dead one
	g := &searcher{ctx: r.Context(), m: m, out: bufio.NewWriterSize(w, 32<<10), flush: rc.Flush, left: m.Max}
	g.enc = json.NewEncoder(g.out)
	g.enc.SetEscapeHTML(false)
	t := &tree{s: s, emit: func(dir int, path, base, _ string, st *unix.Stat_t) error {
		if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > m.MaxSize || !match(base) {
			return nil
		}
		return g.file(dir, path, base)
	}}
	last := wire.LastLine{End: true}
	if err := t.walk(r.Context(), dir, strings.TrimRight(path, "/"), maxDepth+1, 1); err != nil && g.left > 0 {
		last = wire.LastLine{Error: failureOf(err).wire()}
	}
	if err := g.enc.Encode(last); err == nil {
		g.out.Flush() //nolint:errcheck // the client is gone: nothing is left to do
	}
	return nil
}

// searcher is one search by content.
type searcher struct {
	ctx     context.Context // of the request that this value serves
	m       *sandbox.ContentMatcher
	out     *bufio.Writer
	enc     *json.Encoder
	flush   func() error
	flushed time.Time
	left    int
	err     error
}

// matchWait is how long a match waits for others before it is sent.
const matchWait = 50 * time.Millisecond

func (g *searcher) file(dir int, path, base string) error {
	fd, err := openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil //nolint:nilerr // it vanished or is closed to the daemon
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil //nolint:nilerr // as above
	}
	in := io.LimitReader(cancelReader{g.ctx, rawReader(fd)}, g.m.MaxSize)
	_, err = g.m.Scan(in, func(c sandbox.ContentMatch) bool {
		e := wire.Match{Line: c.Line, Offset: c.Offset, Start: c.Start, Stop: c.End}
		e.Path, e.PathB64 = wire.SplitText(path)
		e.Text, e.TextB64 = wire.SplitText(c.Text)
		g.left--
		g.err = g.enc.Encode(e)
		return g.err == nil && g.left > 0
	})
	switch {
	case g.err != nil:
		return g.err
	case g.ctx.Err() != nil:
		return g.ctx.Err()
	case g.left <= 0:
		return errEnough
	case err != nil:
		return nil // it can't be read
	}
	if now := time.Now(); g.out.Buffered() > 0 && now.Sub(g.flushed) > matchWait {
		g.flushed = now
		if g.err = g.out.Flush(); g.err == nil {
			g.err = g.flush()
		}
	}
	return g.err
}

// errEnough ends a walk that has found as much as was asked for.
var errEnough = failf(wire.CodeFileLimit, "enough")

type cancelReader struct {
	ctx context.Context
	r   io.Reader
}

func (c cancelReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}
