package execd

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/command"
	"github.com/astrabox/astrabox/internal/execd/launch"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// interruptTime is how long an interrupted command gets to end by itself.
const interruptTime = 3 * time.Second

// notStarted is the exit code in the record of a command that wasn't started.
const notStarted = 255

// headerLogCursor carries the cursor of the next page of a log, in bytes.
const headerLogCursor = "EXECD-COMMANDS-TAIL-CURSOR"

// eventCommand runs a command as the older protocol does: the answer is a
// stream of events, and the command outlives the request.
func (s *Server) eventCommand(w http.ResponseWriter, r *http.Request, req wire.CommandRequest) {
	if err := oldDir(&req); err != nil {
		status, e, _ := oldStartFailure(err)
		reply(w, status, e)
		return
	}
	if req.Background {
		s.backgroundCommand(w, r, req)
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	timeout := time.Duration(req.Timeout) * time.Millisecond
	e := newEventWriter(w)
	defer e.finish()
	rec := s.records.add(contentOf(req), cancel, nil)
	result, err := s.commands.Run(ctx, command.Run{
		Launch: s.launchOf(r.Context(), req), Timeout: timeout,
		Started:  func(c *child.Child) { rec.setChild(c); e.begin(rec.id) },
		Output:   e.output,
		Stopping: e.hurry,
	})
	if err != nil {
		rec.end(result, err.Error())
		s.records.forget(rec)
		status, body, tried := oldStartFailure(err)
		if !tried {
			reply(w, status, body)
			return
		}
		e.begin(rec.id)
		e.fail(body.Message)
		return
	}
	rec.end(result, "")
	e.end(result, timeout)
}

// oldDir makes the working directory of a request absolute.
func oldDir(req *wire.CommandRequest) (err error) {
	if req.Cwd, err = launch.ExpandDir(req.Cwd, req.Envs); err == nil {
		req.Cwd, err = absoluteDir(req.Cwd)
	}
	return err
}

// absoluteDir takes a directory from the daemon's own. Where that is gone, an
// empty one is the root, and another can't be told.
func absoluteDir(dir string) (string, error) {
	if filepath.IsAbs(dir) {
		return dir, nil
	}
	wd, err := os.Getwd()
	switch {
	case err == nil:
		return filepath.Join(wd, dir), nil
	case dir == "":
		return "/", nil
	}
	return "", &launch.Error{Code: wire.CodeBadDirectory, Message: "the directory " + strconv.Quote(dir) + " is relative to the daemon's own, which is gone"}
}

// contentOf is what a record says that the command is.
func contentOf(req wire.CommandRequest) string {
	if req.Argv != nil {
		return string(encode(req.Argv))
	}
	return req.Command
}

// backgroundCommand answers as soon as the command was started.
func (s *Server) backgroundCommand(w http.ResponseWriter, r *http.Request, req wire.CommandRequest) {
	rec, run, err := s.detached(r.Context(), req)
	if err != nil {
		refuse(w, http.StatusInternalServerError, wire.CodeRuntime, err.Error())
		return
	}
	started := make(chan error, 1)
	s.background.Go(func() { run(func(err error) { started <- err }) })
	if err := <-started; err != nil {
		s.records.forget(rec)
		status, body, _ := oldStartFailure(err)
		reply(w, status, body)
		return
	}
	e := newEventWriter(w)
	defer e.finish()
	e.begin(rec.id)
	e.end(command.Result{}, 0)
}

// detached makes the record of a command that runs on its own, and what runs
// it. run tells once whether the command was started, and returns at its end.
// Output is kept of a command in the background only.
func (s *Server) detached(ctx context.Context, req wire.CommandRequest) (rec *record, run func(started func(error)), err error) {
	var log *spool
	if req.Background {
		if log, err = newSpool(&s.records.logs); err != nil {
			return nil, nil, err
		}
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	rec = s.records.add(contentOf(req), cancel, log)
	return rec, func(started func(error)) {
		defer cancel()
		result, err := s.commands.Run(ctx, command.Run{
			Launch: s.launchOf(ctx, req), Timeout: time.Duration(req.Timeout) * time.Millisecond, Merge: true,
			Started: func(c *child.Child) { rec.setChild(c); started(nil) },
			Output: func(_ byte, b []byte) bool {
				if log != nil {
					log.write(b)
				}
				return log != nil
			},
		})
		if err != nil {
			result.Code = notStarted
			rec.end(result, err.Error())
			started(err)
			return
		}
		rec.end(result, "")
	}, nil
}

// oldStartFailure is startFailure with the code that the older protocol has.
func oldStartFailure(err error) (int, wire.Error, bool) {
	status, e, tried := startFailure(err)
	if status == http.StatusBadRequest && !tried {
		e.Code = wire.CodeInvalidBody
	}
	return status, e, tried
}

// commandStatus is the answer of GET /command/status/{id}.
type commandStatus struct {
	ID       string     `json:"id"`
	Content  string     `json:"content"`
	Running  bool       `json:"running"`
	ExitCode *int       `json:"exit_code,omitempty"` // -1 for a signal
	Error    string     `json:"error,omitempty"`
	TimedOut bool       `json:"timed_out,omitempty"`
	Started  time.Time  `json:"started_at"`
	Finished *time.Time `json:"finished_at,omitempty"`
}

// commandByID tells /command/status/{id} and /command/{id}/logs apart, which
// the patterns of a mux can't.
func (s *Server) commandByID(w http.ResponseWriter, r *http.Request) {
	one, two := r.PathValue("one"), r.PathValue("two")
	switch {
	case one == "status":
		commandState(w, s.records.get(two))
	case two == "logs":
		commandLog(w, r, s.records.get(one))
	default:
		refuse(w, http.StatusNotFound, "NOT_FOUND", "no such operation")
	}
}

func commandState(w http.ResponseWriter, rec *record) {
	if rec == nil {
		refuse(w, http.StatusNotFound, wire.CodeInvalidBody, "no such command")
		return
	}
	rec.mu.Lock()
	st := commandStatus{ID: rec.id, Content: rec.content, Running: rec.finished.IsZero(), Started: rec.started, Error: rec.problem}
	if !st.Running {
		finished, code := rec.finished, rec.result.Code
		if rec.result.Signal != "" {
			code = -1
		}
		st.Finished, st.ExitCode, st.TimedOut = &finished, &code, rec.result.TimedOut
		if code != 0 && st.Error == "" {
			_, trace := exitText(rec.result, 0)
			st.Error = trace[0]
		}
	}
	rec.mu.Unlock()
	reply(w, http.StatusOK, st)
}

func commandLog(w http.ResponseWriter, r *http.Request, rec *record) {
	if rec == nil {
		refuse(w, http.StatusNotFound, wire.CodeInvalidBody, "no such command")
		return
	}
	if rec.log == nil {
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, "the command has no log, since it is not in the background")
		return
	}
	if !logPage(w, r, rec.log, headerLogCursor) {
		refuse(w, http.StatusNotFound, wire.CodeInvalidBody, "no such command")
	}
}

// interruptCommand asks a command to end, and kills it with all that it
// started when it doesn't.
func (s *Server) interruptCommand(w http.ResponseWriter, r *http.Request) {
	id := r.URL.Query().Get("id")
	if id == "" {
		refuse(w, http.StatusBadRequest, wire.CodeMissingQuery, "id is missing")
		return
	}
	if s.sessions.Has(id) {
		s.endSession(w, r, id)
		return
	}
	rec := s.records.get(id)
	if rec == nil {
		refuse(w, http.StatusNotFound, wire.CodeNotFound, "no such command")
		return
	}
	rec.mu.Lock()
	c := rec.child
	rec.mu.Unlock()
	if c != nil {
		_ = c.Signal(syscall.SIGTERM) // it may have ended just now
	}
	soft := time.NewTimer(interruptTime)
	defer soft.Stop()
	select {
	case <-rec.done:
	case <-soft.C:
		rec.kill()
		<-rec.done
	case <-r.Context().Done():
		rec.kill()
	}
}

// signalText is the name of the signal of exit code 128+n as the older
// protocol has it: "killed", "terminated".
func signalText(code int) string {
	n := syscall.Signal(code - 128)
	if text := n.String(); text != "" {
		return text
	}
	return unix.SignalName(n)
}

// logPage answers with what follows the request's cursor in a log; the header
// named says where the next page begins. false: the log is gone.
func logPage(w http.ResponseWriter, r *http.Request, log *spool, header string) bool {
	var cursor int64
	if c := r.URL.Query().Get("cursor"); c != "" {
		n, err := strconv.ParseInt(c, 10, 64)
		if err != nil || n < 0 {
			refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, "cursor is not a number of bytes")
			return true
		}
		cursor = n
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	return log.page(w, cursor, func(next, length int64) {
		w.Header().Set(header, strconv.FormatInt(next, 10))
		w.Header().Set("Content-Length", strconv.FormatInt(length, 10)) // so that a page that breaks off shows
	})
}
