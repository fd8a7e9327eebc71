package isolated

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Serve hands a request on to the session, as a request for path (with its
// escapes).
func (o *Open) Serve(w http.ResponseWriter, r *http.Request, path string) {
	if err := o.begin(); err != nil {
		writeError(w, err)
		return
	}
	defer o.done()
	// Otherwise net/http closes the request's body when the answer begins, and the
	// transport, which may still be reading its end, gives up the whole exchange.
	// Failing means HTTP/2, which has no such rule.
	_ = http.NewResponseController(w).EnableFullDuplex()
	out := r.Clone(r.Context())
	u, err := r.URL.Parse("http://session" + path)
	if err != nil {
		writeError(w, invalid("the path can't be read"))
		return
	}
	u.RawQuery = r.URL.RawQuery
	out.URL, out.Host, out.RequestURI = u, "session", ""
	if out.ContentLength != 0 {
		out.Body = &heard{ReadCloser: r.Body}
	}
	out.Header.Del(wire.HeaderToken)
	if out.Header.Get("Upgrade") != "" {
		o.proxy.ServeHTTP(w, out)
		return
	}
	o.pass(w, out)
}

// pass hands on a request that stays one, with the fewest wake-ups: what the
// session sends in one piece is passed on in one.
func (o *Open) pass(w http.ResponseWriter, out *http.Request) {
	resp, err := o.transport.RoundTrip(out)
	if err != nil {
		o.failed(w, out, err)
		return
	}
	defer resp.Body.Close()
	h := w.Header()
	for name, values := range resp.Header {
		if name != wire.HeaderServer && name != "Connection" { // the daemon says these itself
			h[name] = values
		}
	}
	w.WriteHeader(resp.StatusCode)
	flush := http.NewResponseController(w).Flush
	// The client learns that a stream has begun; runs answered in frames say so
	// by themselves before long.
	if resp.ContentLength < 0 && resp.Header.Get("Content-Type") != wire.OutputType && flush() != nil {
		return
	}
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for {
		n, err := resp.Body.Read(buf[:])
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return // the client has gone, and with it the request to the session
			}
		}
		if err == io.EOF {
			return
		}
		if err != nil || flush() != nil {
			panic(http.ErrAbortHandler) // so that the client sees that it isn't all
		}
	}
}

const bufferSize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// failed answers when the session didn't.
func (o *Open) failed(w http.ResponseWriter, r *http.Request, err error) {
	if b, ok := r.Body.(*heard); ok && b.failed() != nil {
		code := wire.CodeInvalidBody
		if strings.HasPrefix(r.URL.Path, "/v1/fs/") {
			code = wire.CodeIncompleteBody
		}
		w.Header().Set("Connection", "close") // nobody knows where the next request begins
		if errors.Is(b.failed(), os.ErrDeadlineExceeded) {
			writeError(w, refuse(http.StatusRequestTimeout, code, "the body didn't come in time"))
			return
		}
		writeError(w, refuse(http.StatusBadRequest, code, "the body can't be read: send all of it, as its length or its encoding says"))
		return
	}
	if r.Context().Err() != nil {
		return // the client has gone
	}
	o.m.cfg.Log.Debug("a session didn't answer", "session", o.ID, "error", err)
	writeError(w, refuse(http.StatusNotFound, CodeNotFound, "the isolated session has ended"))
}

// heard is a request's body that remembers how it couldn't be read, which isn't
// the session's failure.
type heard struct {
	io.ReadCloser

	mu  sync.Mutex
	err error
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		h.mu.Lock()
		h.err = err
		h.mu.Unlock()
	}
	return n, err
}

func (h *heard) failed() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func writeError(w http.ResponseWriter, err error) {
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{http.StatusInternalServerError, wire.CodeRuntime, err.Error()}
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(e.Status)
	_ = json.NewEncoder(w).Encode(wire.Error{Code: e.Code, Message: e.Message}) // failing is the client's going away
}
