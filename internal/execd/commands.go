package execd

import (
	"context"
	"encoding/json"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/command"
	"github.com/astrabox/astrabox/internal/execd/launch"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	keepAlive = 15 * time.Second
	// soon is how long the headers of a run that has begun may wait.
	soon = 5 * time.Millisecond
	// lastWrite is how long the end of a killed command may take to be sent.
	lastWrite = 10 * time.Second
	// maxTimeout is the longest timeout in milliseconds that a Duration holds.
	maxTimeout = int64(math.MaxInt64 / time.Millisecond)
)

func (s *Server) postCommand(w http.ResponseWriter, r *http.Request) {
	var req wire.CommandRequest
	if !decode(w, r, &req) {
		return
	}
	problem := invalidCommand(req)
	switch {
	case problem != "":
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, problem)
	case strings.Contains(r.Header.Get("Accept"), wire.OutputType):
		s.frameCommand(w, r, req)
	default:
		s.eventCommand(w, r, req)
	}
}

// invalidCommand says what is wrong with a request that can't be told from its
// JSON alone; "": nothing.
func invalidCommand(req wire.CommandRequest) string {
	switch {
	case req.Command != "" && req.Argv != nil:
		return "command and argv exclude each other"
	case req.Argv != nil && (len(req.Argv) == 0 || req.Argv[0] == ""):
		return "argv names no program"
	case req.Command == "" && req.Argv == nil:
		return "command is empty"
	case req.Timeout < 0:
		return "timeout is negative"
	case req.Timeout > maxTimeout:
		return "timeout is too large"
	case req.GID != nil && req.UID == nil:
		return "gid without uid"
	}
	return ""
}

// launchOf makes the part of a request that says what to launch.
func (s *Server) launchOf(ctx context.Context, req wire.CommandRequest) launch.Request {
	return launch.Request{
		Line: req.Command, Argv: req.Argv, Dir: req.Cwd, Env: req.Envs, User: req.User, UID: req.UID, GID: req.GID,
		File: s.envFile(ctx),
	}
}

// envFile reads the file of variables, where there is one.
func (s *Server) envFile(ctx context.Context) map[string]string {
	if s.cfg.EnvFile == "" {
		return nil
	}
	vars, err := launch.EnvFile(ctx, s.cfg.EnvFile)
	if err != nil {
		s.cfg.Log.Warn("the file of variables can't be used", "error", err)
	}
	return vars
}

// frameCommand runs a command and answers in frames.
func (s *Server) frameCommand(w http.ResponseWriter, r *http.Request, req wire.CommandRequest) {
	f := newFrameWriter(w)
	defer f.finish()
	result, err := s.commands.Run(r.Context(), command.Run{
		Launch:   s.launchOf(r.Context(), req),
		Timeout:  time.Duration(req.Timeout) * time.Millisecond,
		Started:  func(*child.Child) { f.begin() },
		Output:   func(channel byte, b []byte) bool { return f.send(wire.FrameType(channel), b) },
		Stopping: func() { f.hurry() },
	})
	if err != nil {
		f.fail(startFailure(err))
		return
	}
	f.last(wire.FrameExit, wire.CommandExit{Code: result.Code, Signal: result.Signal, TimedOut: result.TimedOut})
}

// frameWriter sends frames from several goroutines.
type frameWriter struct {
	rc *http.ResponseController
	w  http.ResponseWriter

	mu      sync.Mutex
	buf     []byte
	begun   bool // the headers were sent, or given to the response
	failed  bool
	over    bool
	sent    time.Time
	pending *time.Timer
}

func newFrameWriter(w http.ResponseWriter) *frameWriter {
	return &frameWriter{w: w, rc: http.NewResponseController(w)}
}

// begin sends the headers, so that the client knows that the command runs.
func (f *frameWriter) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun {
		return
	}
	f.headers()
	f.failed = f.rc.Flush() != nil
	f.sent = time.Now()
	f.pending = time.AfterFunc(keepAlive, f.keepAlive)
}

// wait keeps the client from taking a run that waits for its turn for lost: if
// neither begin nor fail was called before, the headers and signs of life are sent.
func (f *frameWriter) wait() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = time.AfterFunc(keepAlive, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.begun || f.over {
			return
		}
		f.headers()
		f.write(wire.FrameKeepAlive, nil)
		f.pending = time.AfterFunc(keepAlive, f.keepAlive)
	})
}

// beginSoon is begin for what usually ends at once: the headers wait a moment
// for something to go with.
func (f *frameWriter) beginSoon() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun {
		return
	}
	if f.pending != nil {
		f.pending.Stop()
	}
	f.headers()
	f.sent = time.Now().Add(soon - keepAlive)
	f.pending = time.AfterFunc(soon, f.keepAlive)
}

func (f *frameWriter) headers() {
	f.begun = true
	f.w.Header().Set("Content-Type", wire.OutputType)
	f.w.Header().Set("Cache-Control", "no-store")
	f.w.Header().Set("X-Accel-Buffering", "no")
	f.w.WriteHeader(http.StatusOK)
}

func (f *frameWriter) keepAlive() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return
	}
	wait := keepAlive - time.Since(f.sent)
	if wait <= 0 {
		f.write(wire.FrameKeepAlive, nil)
		wait = keepAlive
	}
	f.pending.Reset(wait)
}

func (f *frameWriter) send(t wire.FrameType, b []byte) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.write(t, b)
}

// fail says that nothing was run: in a frame when it was tried, and otherwise as
// a plain refusal, unless frames were sent already.
func (f *frameWriter) fail(status int, e wire.Error, tried bool) {
	f.mu.Lock()
	if !tried && !f.begun {
		f.over = true
		f.mu.Unlock()
		reply(f.w, status, e)
		return
	}
	f.mu.Unlock()
	f.begin()
	f.last(wire.FrameFailed, e)
}

// last writes the last frame. The end of the response sends it, in one piece
// with itself.
func (f *frameWriter) last(t wire.FrameType, v any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b, err := json.Marshal(v); err == nil {
		f.put(t, b)
	}
}

// write sends a frame.
func (f *frameWriter) write(t wire.FrameType, b []byte) bool {
	if !f.put(t, b) {
		return false
	}
	f.failed = f.rc.Flush() != nil
	f.sent = time.Now()
	return !f.failed
}

// put gives a frame to the response, header and payload in one piece.
func (f *frameWriter) put(t wire.FrameType, b []byte) bool {
	if f.failed || f.over {
		return false
	}
	f.buf = append(f.buf[:0], make([]byte, wire.FrameHeaderSize)...)
	wire.PutFrameHeader(f.buf, t, len(b))
	f.buf = append(f.buf, b...)
	_, err := f.w.Write(f.buf)
	f.failed = err != nil
	return !f.failed
}

// hurry bounds the time of what is still to be sent. It doesn't wait for a
// write that is stuck, since it is meant to end it.
func (f *frameWriter) hurry() { _ = f.rc.SetWriteDeadline(time.Now().Add(lastWrite)) }

// finish ends the use of the response by the keep-alive.
func (f *frameWriter) finish() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	if f.pending != nil {
		f.pending.Stop()
	}
}
