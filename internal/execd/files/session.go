package files

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	maxSessions     = 64
	maxSessionBytes = 256 << 30 // of all sessions together, as they were announced
	sessionIdle     = time.Hour
	sessionUnused   = time.Minute // of one without a byte, where room is wanted
)

// sessions are the uploads that may be resumed. They live in the daemon's
// memory, and their content in files without a name where the file system can:
// when the daemon ends, both are gone.
type sessions struct {
	mu    sync.Mutex
	byID  map[string]*session
	bytes int64
}

// session is one of them.
type session struct {
	id   string
	path string
	in   wire.Scope // of the path
	size int64
	sum  string // of the whole content in hexadecimal; "": said at the finish
	u    *upload
	hash hash.Hash
	idle *time.Timer

	began time.Time

	turn   chan struct{} // holds a value while nobody works on the session
	offset atomic.Int64
	done   atomic.Pointer[wire.Entry] // after the finish; u is gone then
	closed bool                       // dropped while somebody waited for the turn

	mu        sync.Mutex
	interrupt func() // ends the request that works on it
}

// add registers a session, or says which limit it meets. For want of room it
// forgets what is finished, and what nobody has sent a byte of for some time:
// a client whose answer was lost begins again and doesn't know of the first.
func (ss *sessions) add(x *session) error {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if len(ss.byID) >= maxSessions {
		ss.evict(1, func(x *session) bool { return x.done.Load() != nil })
	}
	if len(ss.byID) >= maxSessions || x.size > maxSessionBytes-ss.bytes {
		ss.evict(maxSessions, func(x *session) bool {
			return x.done.Load() == nil && x.offset.Load() == 0 && time.Since(x.began) > sessionUnused
		})
	}
	switch {
	case len(ss.byID) >= maxSessions:
		return failf(wire.CodeTooMany, "%d uploads are under way; finish or delete one", maxSessions)
	case x.size > maxSessionBytes-ss.bytes:
		return failf(wire.CodeFileLimit, "the uploads under way would have more than %d bytes", int64(maxSessionBytes))
	}
	if ss.byID == nil {
		ss.byID = map[string]*session{}
	}
	ss.byID[x.id] = x
	ss.bytes += x.size
	return nil
}

// evict forgets up to n sessions that nobody works on just now.
func (ss *sessions) evict(n int, which func(*session) bool) {
	for id, x := range ss.byID {
		if n == 0 {
			return
		}
		select {
		case <-x.turn:
			if which(x) {
				x.closed = true
				x.idle.Stop()
				delete(ss.byID, id)
				ss.release(x)
				n--
			}
			x.turn <- struct{}{}
		default:
		}
	}
}

// release lets go of what a session holds, once.
func (ss *sessions) release(x *session) {
	if x.u != nil {
		x.u.abort()
		x.u = nil
		ss.bytes -= x.size
	}
}

// free gives back the room of a session that is finished or dropped.
func (ss *sessions) free(x *session, forget bool) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	ss.release(x)
	if forget && ss.byID[x.id] == x {
		delete(ss.byID, x.id)
	}
}

var errNoUpload = failf(wire.CodeUploadNotFound, "there is no such upload; it may have expired or the daemon was started anew")

func (ss *sessions) find(id string) (*session, error) {
	ss.mu.Lock()
	defer ss.mu.Unlock()
	if x := ss.byID[id]; x != nil {
		return x, nil
	}
	return nil, errNoUpload
}

// take waits for the turn on a session; release ends it. A request that works
// on it already, perhaps for a client that has gone, is ended.
func (ss *sessions) take(r *http.Request, w http.ResponseWriter, id string) (x *session, release func(), err error) {
	if x, err = ss.find(id); err != nil {
		return nil, nil, err
	}
	if err := x.wait(r.Context()); err != nil {
		return nil, nil, err
	}
	if x.closed {
		x.turn <- struct{}{}
		return nil, nil, errNoUpload
	}
	x.idle.Stop()
	rc := http.NewResponseController(w)
	x.mu.Lock()
	x.interrupt = func() { rc.SetReadDeadline(time.Unix(1, 0)) } //nolint:errcheck // its client is gone then
	x.mu.Unlock()
	return x, func() {
		x.mu.Lock()
		x.interrupt = nil
		x.mu.Unlock()
		x.idle.Reset(sessionIdle)
		x.turn <- struct{}{}
	}, nil
}

// wait gets the turn. The interruption is repeated, because a request between
// two reads may just then have given itself more time.
func (x *session) wait(ctx context.Context) error {
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		x.mu.Lock()
		if x.interrupt != nil {
			x.interrupt()
		}
		x.mu.Unlock()
		select {
		case <-x.turn:
			return nil
		case <-again.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// drop ends a session. The caller has the turn.
func (ss *sessions) drop(x *session) {
	x.closed = true
	ss.free(x, true)
}

func (x *session) status() wire.UploadStatus {
	return wire.UploadStatus{ID: x.id, Size: x.size, Offset: x.offset.Load(), Done: x.done.Load() != nil}
}

func (s *service) startUpload(w http.ResponseWriter, r *http.Request) error {
	var in wire.UploadStart
	if err := body(r, &in); err != nil {
		return err
	}
	switch {
	case in.Size < 0:
		return failf(wire.CodePathInvalid, "a size isn't negative")
	case in.NoReplace && in.IfUnchanged != "":
		return failf(wire.CodePathInvalid, "no_replace and if_unchanged exclude each other")
	}
	if err := checkSum(in.SHA256); err != nil {
		return err
	}
	a, err := s.attr(in.FileAttr)
	if err != nil {
		return err
	}
	sc, path, err := s.scopeOf(in.Scope)
	if err != nil {
		return err
	}
	defer sc.close() //nolint:errcheck // an O_PATH descriptor
	u, err := s.begin(sc, path, target{attr: a, newMode: 0o644, noReplace: in.NoReplace, ifUnchanged: in.IfUnchanged})
	if err != nil {
		return err
	}
	var free unix.Statfs_t
	if unix.Fstatfs(u.at.dir, &free) == nil && in.Size > int64(free.Bavail)*int64(free.Bsize) { //nolint:unconvert // the types differ between architectures
		u.abort()
		return unix.ENOSPC
	}
	x := &session{id: rand.Text(), path: path, in: in.Scope, size: in.Size, sum: strings.ToLower(in.SHA256), u: u, hash: sha256.New(), began: time.Now(), turn: make(chan struct{}, 1)}
	x.turn <- struct{}{}
	x.idle = time.AfterFunc(sessionIdle, func() {
		select {
		case <-x.turn:
			s.sessions.drop(x)
			x.turn <- struct{}{}
		default: // somebody works on it, and sets the time anew
		}
	})
	if err := s.sessions.add(x); err != nil {
		x.idle.Stop()
		u.abort()
		return err
	}
	respond(w, http.StatusOK, x.status())
	return nil
}

func checkSum(text string) error {
	if b, err := hex.DecodeString(text); text != "" && (err != nil || len(b) != sha256.Size) {
		return failf(wire.CodePathInvalid, "sha256 is 64 hexadecimal digits")
	}
	return nil
}

func (s *service) uploadStatus(w http.ResponseWriter, r *http.Request) error {
	q, err := uploadQuery(r, "id")
	if err != nil {
		return err
	}
	x, err := s.sessions.find(q["id"])
	if err != nil {
		return err
	}
	respond(w, http.StatusOK, x.status())
	return nil
}

// uploadQuery reads parameters that name no path.
func uploadQuery(r *http.Request, known ...string) (map[string]string, error) {
	q, err := parameters(r, known...)
	if err != nil {
		return nil, err
	}
	if q.Has("path") || q.Has("root") {
		return nil, failf(wire.CodePathInvalid, "the path was given when the upload began")
	}
	out := map[string]string{}
	for _, name := range known {
		out[name] = q.Get(name)
	}
	return out, nil
}

// continueUpload appends the body. What has arrived stays, also when the body
// ends early.
func (s *service) continueUpload(w http.ResponseWriter, r *http.Request) error {
	q, err := uploadQuery(r, "id", "offset")
	if err != nil {
		return err
	}
	offset, err := strconv.ParseInt(q["offset"], 10, 64)
	if err != nil || offset < 0 {
		return failf(wire.CodePathInvalid, "offset %s isn't a number from 0", strconv.QuoteToASCII(q["offset"]))
	}
	x, release, err := s.sessions.take(r, w, q["id"])
	if err != nil {
		return err
	}
	defer release()
	switch at := x.offset.Load(); {
	case x.done.Load() != nil:
		return failf(wire.CodeUploadOffset, "the upload is finished")
	case offset != at:
		return failf(wire.CodeUploadOffset, "the content continues at byte %d, not %d", at, offset)
	}
	if err := x.append(r.Context(), r.Body); err != nil {
		return err
	}
	respond(w, http.StatusOK, x.status())
	return nil
}

func (x *session) append(ctx context.Context, r io.Reader) error {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	for {
		n, err := r.Read(buf[:])
		if left := x.size - x.offset.Load(); int64(n) > left {
			return failf(wire.CodePathInvalid, "there is more content than the %d bytes that were announced", x.size)
		}
		if n > 0 {
			wrote, err := x.u.f.Write(buf[:n])
			x.hash.Write(buf[:wrote])
			x.offset.Add(int64(wrote))
			if err != nil {
				return err
			}
		}
		switch {
		case err == io.EOF:
			return nil
		case err != nil:
			return &failure{code: wire.CodeIncompleteBody, message: "the content ended early; what has arrived is kept", cause: err}
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

// finishUpload checks the content and puts the file in place.
func (s *service) finishUpload(w http.ResponseWriter, r *http.Request) error {
	var in wire.UploadFinish
	if err := body(r, &in); err != nil {
		return err
	}
	if err := checkSum(in.SHA256); err != nil {
		return err
	}
	x, release, err := s.sessions.take(r, w, in.ID)
	if err != nil {
		return err
	}
	defer release()
	if e := x.done.Load(); e != nil {
		respond(w, http.StatusOK, e)
		return nil
	}
	if at := x.offset.Load(); at != x.size {
		return failf(wire.CodeIncompleteBody, "%d of %d bytes have arrived", at, x.size)
	}
	sum := hex.EncodeToString(x.hash.Sum(nil))
	given := strings.ToLower(in.SHA256)
	if given == "" && x.sum == "" {
		return failf(wire.CodePathInvalid, "sha256 is missing")
	}
	if given != "" && given != sum || x.sum != "" && x.sum != sum {
		s.sessions.drop(x)
		return failf(wire.CodeHashMismatch, "what has arrived has another SHA-256; the upload is dropped")
	}
	if err := x.stays(s); err != nil {
		return err
	}
	e, err := x.u.commit(x.path)
	if err != nil {
		return err
	}
	x.done.Store(e)
	s.sessions.free(x, false)
	respond(w, http.StatusOK, e)
	return nil
}

// stays makes sure that the path still leads where it led when the upload
// began: the directory may have been moved out of the root that the request is
// confined to since then.
func (x *session) stays(s *service) error {
	sc, path, err := s.scopeOf(x.in)
	if err != nil {
		return err
	}
	defer sc.close() //nolint:errcheck // an O_PATH descriptor
	at, err := sc.place(path, !x.u.want.noReplace)
	if err != nil {
		return err
	}
	defer at.close()
	var was, is unix.Stat_t
	if err := errors.Join(unix.Fstat(x.u.at.dir, &was), unix.Fstat(at.dir, &is)); err != nil {
		return err
	}
	if was.Dev != is.Dev || was.Ino != is.Ino || at.base != x.u.at.base {
		return failf(wire.CodeFileChanged, "the path leads elsewhere than when the upload began")
	}
	return nil
}

func (s *service) dropUpload(w http.ResponseWriter, r *http.Request) error {
	q, err := uploadQuery(r, "id")
	if err != nil {
		return err
	}
	x, release, err := s.sessions.take(r, w, q["id"])
	if errors.Is(err, errNoUpload) {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if err != nil {
		return err
	}
	s.sessions.drop(x)
	release()
	x.idle.Stop()
	w.WriteHeader(http.StatusNoContent)
	return nil
}
