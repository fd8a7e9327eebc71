package execd

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	maxBody  = 8 << 20
	bodyTime = 30 * time.Second
	// bodyStall ends a body of which nothing came for so long. Whoever sends a
	// file may be waiting for what it is made of.
	bodyStall = 5 * time.Minute
	// strangerTime is how long a body that nobody wants, because the token is
	// missing, may still come, so that its sender gets to read the refusal.
	strangerTime = 2 * time.Second
	// renewAfter keeps a fast body from setting a deadline with each piece.
	renewAfter = time.Second
)

// timedBody is the body of a request, which has to keep coming: a connection
// whose request never becomes whole would otherwise be held for ever, since the
// HTTP server wants to have read all of it before it answers.
type timedBody struct {
	io.ReadCloser
	rc *http.ResponseController

	mu      sync.Mutex
	over    bool      // the connection belongs to the next request
	whole   time.Time // when all of it has to be there; zero: as long as it keeps coming
	renewed time.Time
}

// timeBody puts a timedBody in the place of the request's body, where it has
// one. The function returned ends it.
func timeBody(rc *http.ResponseController, r *http.Request, first time.Duration) (done func()) {
	if r.ContentLength == 0 {
		return func() {}
	}
	b := &timedBody{ReadCloser: r.Body, rc: rc}
	b.set(time.Now().Add(first))
	r.Body = b
	return b.finish
}

// set does nothing about a failure: it means that the connection is gone,
// which reading tells.
func (b *timedBody) set(deadline time.Time) { _ = b.rc.SetReadDeadline(deadline) }

func (b *timedBody) Read(p []byte) (int, error) {
	b.renew()
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		// From now on the server waits for the client's going away, however long
		// the answer takes.
		b.mu.Lock()
		defer b.mu.Unlock()
		if !b.over {
			b.over = true
			b.set(time.Time{})
		}
	}
	return n, err
}

func (b *timedBody) renew() {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.over || now.Sub(b.renewed) < renewAfter {
		return
	}
	b.renewed = now
	end := now.Add(bodyStall)
	if !b.whole.IsZero() && b.whole.Before(end) {
		end = b.whole
	}
	b.set(end)
}

// within sets when all of the body has to be there.
func (b *timedBody) within(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.whole, b.renewed = time.Now().Add(d), time.Time{}
}

// unbounded lets the body take any time.
func (b *timedBody) unbounded() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		b.over = true
		b.set(time.Time{})
	}
}

// finish leaves the deadline as it is: what the handler hasn't read has to come
// by then, or the connection is closed.
func (b *timedBody) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
}

// readBody reads a body of at most limit bytes to its end within bodyTime.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if b, ok := r.Body.(*timedBody); ok {
		b.within(bodyTime)
	}
	return io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
}

// tooLate refuses a request whose body didn't come in time.
func tooLate(w http.ResponseWriter, err error) bool {
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	w.Header().Set("Connection", "close")
	refuse(w, http.StatusRequestTimeout, wire.CodeInvalidBody, "the body didn't come within "+bodyTime.String())
	return true
}
