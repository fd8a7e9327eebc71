package httpapi

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
)

const (
	// writeTimeout is how long a client may take to read one piece of an
	// answer. It is renewed with every write, so a slow download goes on and a
	// client that stopped reading lets go of its goroutine and sandbox.
	writeTimeout = 30 * time.Second
	// readTimeout is the same for an upload's pieces.
	readTimeout = 60 * time.Second
	// bodyTimeout bounds reading a whole JSON body.
	bodyTimeout = 30 * time.Second
	// leaveTimeout bounds reading the rest of a body that nobody wants.
	leaveTimeout = 2 * time.Second
)

type requestKey struct{}

func requestID(ctx context.Context) string {
	id, _ := ctx.Value(requestKey{}).(string)
	return id
}

// newRequestID takes the client's X-Request-Id when it is short and plain.
func newRequestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_."
	if len(id) > 0 && len(id) <= 64 && strings.Trim(id, plain) == "" {
		return id
	}
	return "req_" + strings.ToLower(rand.Text())
}

// ServeHTTP gives the request its id, keeps strangers out, turns panics into
// answers, and hands on to the routes.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := newRequestID(r)
	r = r.WithContext(context.WithValue(r.Context(), requestKey{}, id))
	rw := &responseWriter{ResponseWriter: w, control: http.NewResponseController(w)}
	h := rw.Header()
	h.Set("X-Request-Id", id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), microphone=(), geolocation=()")
	if isAPI(r.URL.Path) {
		h.Set("Cache-Control", "no-store")
		// Nothing that the API answers is a page. The content of a workspace
		// file in particular must not run in this origin.
		h.Set("Content-Security-Policy", "default-src 'none'; sandbox; frame-ancestors 'none'")
	}
	start := time.Now()
	defer func() {
		if v := recover(); v != nil {
			s.recovered(rw, r, v)
		}
		rw.extend() // for what net/http still has to flush
		rw.leave()
		s.log.LogAttrs(r.Context(), slog.LevelDebug, "request", slog.String("request_id", id), slog.String("method", r.Method),
			slog.String("path", r.URL.Path), slog.Int("status", rw.status), slog.Duration("took", time.Since(start)))
	}()
	if refusal := s.guard.check(r); refusal != nil {
		s.fail(rw, r, refusal)
		return
	}
	s.mux.ServeHTTP(rw, r)
}

// recovered answers a panic with a 500. When a part of the answer is out
// already the connection is cut, so that the client can't take it for whole.
func (s *Server) recovered(w *responseWriter, r *http.Request, v any) {
	if v == http.ErrAbortHandler { //nolint:errorlint // a panic value is compared, as net/http does
		panic(v)
	}
	s.log.Error("a request handler panicked", "request_id", requestID(r.Context()), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
	if w.status != 0 {
		panic(http.ErrAbortHandler)
	}
	s.fail(w, r, fault.Wrap(fault.Internal, fmt.Errorf("panic: %v", v), ""))
}

// responseWriter notes the status and renews the write deadline.
type responseWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	status  int
}

// Unwrap is for http.ResponseController.
func (w *responseWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *responseWriter) WriteHeader(status int) {
	if w.status == 0 || w.status < 200 {
		w.status = status
	}
	w.extend()
	w.ResponseWriter.WriteHeader(status)
}

func (w *responseWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.extend()
	return w.ResponseWriter.Write(p)
}

func (w *responseWriter) extend() {
	// A hijacked connection has deadlines of its own: the error is of no use.
	_ = w.control.SetWriteDeadline(time.Now().Add(writeTimeout))
}

// leave bounds what net/http does with a request that was answered before its
// body was read: it reads a part of the rest, so that the connection can be used
// again, and a client that sends nothing more would hold it for ever.
func (w *responseWriter) leave() {
	_ = w.control.SetReadDeadline(time.Now().Add(leaveTimeout)) // the next request has its own
}

// json reads the body of a JSON route before its handler runs: at most
// wire.JSONLimit bytes within bodyTimeout, and valid UTF-8, because a decoder
// would replace broken bytes silently. The read deadline is lifted again: it
// would end the request's context in a handler that waits for a sandbox.
func (s *Server) json(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			body, err := readJSON(w, r)
			if err != nil {
				s.fail(w, r, err)
				return
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
		}
		next.ServeHTTP(w, r)
	})
}

func readJSON(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > wire.JSONLimit {
		return nil, tooLarge()
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTimeout)) // unsupported by test recorders only
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, wire.JSONLimit))
	_ = control.SetReadDeadline(time.Time{})
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		return nil, tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded) || isTimeout(err):
		return nil, fault.Wrap(fault.Timeout, err, "The request body didn't arrive within %v.", bodyTimeout)
	case err != nil:
		return nil, fault.Wrap(fault.RequestInvalid, err, "The request body could not be read to its end.")
	case !utf8.Valid(body):
		return nil, fault.New(fault.RequestInvalid, "The request body is not valid UTF-8.")
	}
	return body, nil
}

func tooLarge() error {
	return fault.New(fault.BodyTooLarge, "The request body is longer than %d bytes.", wire.JSONLimit)
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

// uploadBody is a request's body whose read deadline is renewed with every
// read, so that an upload of any size goes on and one that stalls ends.
type uploadBody struct {
	io.Reader
	control *http.ResponseController
}

func (b *uploadBody) Read(p []byte) (int, error) {
	_ = b.control.SetReadDeadline(time.Now().Add(readTimeout)) // unsupported by test recorders only
	return b.Reader.Read(p)
}

func (b *uploadBody) done() { _ = b.control.SetReadDeadline(time.Time{}) }
