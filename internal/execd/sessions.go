package execd

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"time"

	"github.com/astrabox/astrabox/internal/execd/launch"
	"github.com/astrabox/astrabox/internal/execd/shell"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// postSession makes a shell session, and its directory where that is missing.
func (s *Server) postSession(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Cwd string `json:"cwd"`
	}
	if !decodeOptional(w, r, &req) {
		return
	}
	dir, err := sessionDir(req.Cwd)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, err.Error())
		return
	}
	id, err := s.sessions.Create(dir, s.envFile(r.Context()))
	if err != nil {
		refuse(w, http.StatusTooManyRequests, wire.CodeTooMany, err.Error())
		return
	}
	reply(w, http.StatusOK, wire.ProcessCreated{SessionID: id})
}

// sessionDir gives a directory as an absolute path.
func sessionDir(dir string) (string, error) {
	dir, err := launch.ExpandDir(dir, nil)
	if err != nil {
		return "", err
	}
	return absoluteDir(dir)
}

// runInSession runs a line in a session and answers with its events. The run
// is killed when the client goes away.
func (s *Server) runInSession(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Command string `json:"command"`
		Cwd     string `json:"cwd"`
		Timeout int64  `json:"timeout"` // milliseconds; 0: none
	}
	if !decode(w, r, &req) {
		return
	}
	id := r.PathValue("id")
	var err error
	if req.Cwd != "" {
		req.Cwd, err = sessionDir(req.Cwd)
	}
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, err.Error())
		return
	case req.Command == "":
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, "command is empty")
		return
	case bytes.ContainsRune([]byte(req.Command), 0):
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, "the command contains a NUL")
		return
	case req.Timeout < 0 || req.Timeout > maxTimeout:
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, "timeout is negative or too large")
		return
	}
	timeout := time.Duration(req.Timeout) * time.Millisecond
	e := newEventWriter(w)
	e.merged()
	defer e.finish()
	result, err := s.sessions.Run(r.Context(), id, shell.Run{
		Line: req.Command, Dir: req.Cwd, Timeout: timeout,
		Started:  func() { e.begin(id) },
		Output:   e.output,
		Stopping: e.hurry,
	})
	switch {
	case err == nil:
	case errors.Is(err, shell.ErrState):
		e.note("execd: " + err.Error())
	case errors.Is(err, shell.ErrNotFound):
		refuse(w, http.StatusNotFound, wire.CodeNotFound, err.Error())
		return
	case errors.Is(err, context.Canceled):
		return // while waiting for its turn
	default:
		status, body, tried := oldStartFailure(err)
		if !tried {
			reply(w, status, body)
			return
		}
		e.begin(id)
		e.fail(body.Message)
		return
	}
	e.end(result, timeout)
}

func (s *Server) deleteSession(w http.ResponseWriter, r *http.Request) {
	s.endSession(w, r, r.PathValue("id"))
}

// endSession deletes a session with all that it started.
func (s *Server) endSession(w http.ResponseWriter, r *http.Request, id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), deleteTime)
	defer cancel()
	err := s.sessions.Delete(ctx, id)
	switch {
	case errors.Is(err, shell.ErrNotFound):
		refuse(w, http.StatusNotFound, wire.CodeNotFound, err.Error())
	case err != nil:
		refuse(w, http.StatusInternalServerError, wire.CodeRuntime, err.Error())
	}
}
