package execd

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/astrabox/astrabox/internal/execd/launch"
	"github.com/astrabox/astrabox/internal/execd/process"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// deleteTime bounds how long a deletion waits for killed processes to be gone.
const deleteTime = 10 * time.Second

func (s *Server) postProcess(w http.ResponseWriter, r *http.Request) {
	var req wire.ProcessRequest
	if !decode(w, r, &req) {
		return
	}
	in := s.cfg.inside
	if req.Key == "" && in == nil {
		s.postOldProcess(w, r, req)
		return
	}
	spec, problem := specOf(req)
	if in != nil && problem == "" {
		problem = in.own(&spec)
	}
	if problem != "" {
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, problem)
		return
	}
	// Checked now as well as at each start, so that a mistake shows at once.
	plan, err := launch.Prepare(r.Context(), s.cfg.Accounts, spec.Launch)
	if err != nil {
		status, e, _ := startFailure(err)
		reply(w, status, e)
		return
	}
	plan.Close()
	p, isNew, err := s.processes.Register(spec)
	if err != nil {
		status, e, _ := startFailure(err)
		reply(w, status, e)
		return
	}
	status := http.StatusOK
	if isNew {
		status = http.StatusCreated
	}
	reply(w, status, wire.ProcessCreated{SessionID: p.ID})
}

func specOf(req wire.ProcessRequest) (s process.Spec, problem string) {
	s = process.Spec{
		Key:    req.Key,
		Launch: launch.Request{Line: req.Command, Dir: req.Cwd, Home: true, Env: req.Env, User: req.User},
		Buffer: req.Buffer,
		Block:  req.Full == wire.FullBlock,
	}
	if s.Buffer == 0 {
		s.Buffer = wire.DefaultBuffer
	}
	if req.TTY != nil {
		s.TTY = &process.Size{Cols: req.TTY.Cols, Rows: req.TTY.Rows}
		if s.TTY.Cols == 0 || s.TTY.Rows == 0 {
			s.TTY = &process.Size{Cols: 80, Rows: 24}
		}
	}
	switch {
	case len(req.Key) > 256:
		problem = "key is longer than 256 bytes"
	case s.Buffer < wire.MinBuffer || s.Buffer > wire.MaxBuffer:
		problem = "buffer is not between 4 KiB and 64 MiB"
	case req.Full != "" && req.Full != wire.FullBlock && req.Full != wire.FullDropOldest:
		problem = "full is neither drop_oldest nor block"
	}
	return s, problem
}

// process finds the process that the path names, or refuses the request.
func (s *Server) process(w http.ResponseWriter, r *http.Request) *process.Process {
	p, err := s.processes.Get(r.PathValue("id"))
	if err != nil {
		refuse(w, http.StatusNotFound, wire.CodeNotFound, err.Error())
		return nil
	}
	return p
}

func (s *Server) getProcess(w http.ResponseWriter, r *http.Request) {
	p := s.process(w, r)
	if p == nil {
		return
	}
	st := p.Status()
	answer := wire.ProcessStatus{
		SessionID: p.ID, Running: st.State == process.Running, OutputOffset: st.Next,
		Run: st.Run, State: string(st.State), Oldest: st.Oldest, Next: st.Next, Stdin: st.Stdin,
		LaunchAttempted: st.Attempted, LaunchFailed: st.Failed,
	}
	if st.Exit != nil {
		answer.Exit = &wire.ProcessExit{Code: st.Exit.Code, Signal: st.Exit.Signal}
	}
	reply(w, http.StatusOK, answer)
}

func (s *Server) deleteProcess(w http.ResponseWriter, r *http.Request) {
	// A client that goes away has still asked for the deletion.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), deleteTime)
	defer cancel()
	err := s.processes.Delete(ctx, r.PathValue("id"))
	switch {
	case errors.Is(err, process.ErrNotFound):
		refuse(w, http.StatusNotFound, wire.CodeNotFound, err.Error())
	case err != nil:
		refuse(w, http.StatusInternalServerError, wire.CodeRuntime, err.Error())
	}
}

// attachOptions reads the query of an attachment of process.v1.
func attachOptions(r *http.Request) (o process.Options, ok bool) {
	q := r.URL.Query()
	if since := q.Get("since"); since != "" {
		n, err := strconv.ParseInt(since, 10, 64)
		if err != nil {
			return o, false
		}
		o.Since = n
	}
	o.Takeover = q.Get("takeover") == "1"
	o.Viewer = q.Get("mode") == "viewer"
	o.NoStart = q.Get("nostart") == "1"
	return o, true
}

// refuseAttach answers for an attachment that didn't come about.
func refuseAttach(w http.ResponseWriter, err error) {
	var gap *process.GapError
	switch {
	case errors.As(err, &gap):
		reply(w, http.StatusConflict, wire.GapError{
			Error:  wire.Error{Code: wire.CodeReplayGap, Message: err.Error()},
			Oldest: gap.Oldest,
		})
	case errors.Is(err, process.ErrNotRunning):
		refuse(w, http.StatusConflict, "VIEWER_REQUIRES_RUNNING_SESSION", err.Error())
	case errors.Is(err, process.ErrHeld):
		refuse(w, http.StatusConflict, wire.CodeHeld, err.Error())
	case errors.Is(err, process.ErrNotFound):
		refuse(w, http.StatusNotFound, wire.CodeNotFound, err.Error())
	case errors.Is(err, process.ErrInvalidOffset):
		refuse(w, http.StatusBadRequest, wire.CodeInvalidOffset, err.Error())
	default:
		status, e, _ := startFailure(err)
		reply(w, status, e)
	}
}

func encode(v any) []byte {
	b, _ := json.Marshal(v) // plain structs
	return b
}
