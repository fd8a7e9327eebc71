package execd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/command"
	"github.com/astrabox/astrabox/internal/execd/confine"
	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/internal/execd/isolated"
	"github.com/astrabox/astrabox/internal/execd/launch"
	"github.com/astrabox/astrabox/internal/execd/process"
	"github.com/astrabox/astrabox/internal/execd/shell"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// SessionMain is the program of the first process of an isolated session, which
// [isolated.Inside] tells. It ends when the daemon lets the session go, and
// gives the exit code. cgo is as in [isolated.Enter].
func SessionMain(cgo bool) int {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	session, err := isolated.Enter(cgo)
	if err != nil {
		return exitFailed // the daemon was told
	}
	reaper := child.NewReaper(true)
	err = reaper.Restrict(func() error { return confine.Thread(isolated.Caps, confine.Session()) })
	var in *inside
	if err == nil {
		in, err = newInside(session, reaper, log)
	}
	if err == nil {
		err = in.try()
	}
	if err == nil {
		err = session.Ready()
	} else if err = session.Fail(err); err == nil {
		return exitFailed // the daemon was told
	}
	if err != nil {
		log.Error("an isolated session can't start", "error", err)
		return exitFailed
	}
	err = in.server.http.Serve(session.Listener())
	if !errors.Is(err, isolated.ErrLetGo) {
		log.Error("an isolated session doesn't answer any more", "error", err)
	}
	return 0 // and the kernel ends the rest
}

// inside serves one isolated session: runs in one shell session, processes and
// files, all as the session's account. The daemon hands its requests on.
type inside struct {
	server    *Server
	id        string
	uid, gid  uint32
	workspace string
	shell     string // the shell session
	runs      runs
	busy      sync.WaitGroup // runs that have somebody to tell
}

func newInside(session *isolated.Session, reaper *child.Reaper, log *slog.Logger) (*inside, error) {
	root, err := os.OpenFile(session.Workspace, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	in := &inside{id: session.ID, uid: session.UID, gid: session.GID, workspace: session.Workspace}
	in.server, err = New(Config{
		Version: session.Version, Accounts: account.System, Reaper: reaper, Log: log,
		Files: files.New(files.Config{
			Root: root, UID: session.UID, GID: session.GID, Notes: files.NotesIn(session.Notes, session.Outside),
		}),
		inside: in,
	})
	if err != nil {
		return nil, err
	}
	in.server.sessions.As(session.UID, session.GID)
	in.shell, err = in.server.sessions.Create(session.Workspace, nil)
	return in, err
}

// try runs a shell that does nothing. Whatever would keep each run of the session
// from working (an account that can't enter the workspace, or isn't one of the
// sandbox's, or something that covers what programs need) is a mistake of the
// request, and shows at once. Where there is no shell at all, processes can still run.
func (in *inside) try() error {
	ctx, cancel := context.WithTimeout(context.Background(), tryTime)
	defer cancel()
	result, err := in.server.commands.Run(ctx, command.Run{
		Launch: launch.Request{
			Argv: []string{launch.Shell(), "-c", ":"}, Dir: in.workspace, Environ: []string{}, UID: &in.uid, GID: &in.gid,
		},
		Output: func(byte, []byte) bool { return true },
	})
	var none *launch.LookupError
	if errors.As(err, &none) {
		return nil
	}
	if err == nil && result.Code == 0 {
		return nil
	}
	why := "the account may not enter the workspace"
	switch {
	case err == nil:
		_, trace := exitText(result, 0)
		why = "a shell ends with " + trace[0]
	case errors.Is(err, syscall.EINVAL):
		why = "the sandbox has no account or group of that number"
	case !errors.Is(err, syscall.EACCES):
		status, e, _ := startFailure(err)
		if status != http.StatusBadRequest && status != http.StatusInternalServerError {
			return &isolated.Error{Status: status, Code: e.Code, Message: e.Message}
		}
		why = e.Message
	}
	return &isolated.Error{
		Status: http.StatusBadRequest, Code: wire.CodeRuntime,
		Message: fmt.Sprintf("nothing can run in such a session: %s (uid %d, gid %d, in %s)", why, in.uid, in.gid, in.workspace),
	}
}

// tryTime bounds a trial.
const tryTime = 10 * time.Second

// routes are what a session is asked for. All of it comes through the daemon,
// which has looked at the token.
func (in *inside) routes() http.Handler {
	s := in.server
	mux := http.NewServeMux()
	mux.HandleFunc("POST /run", noStore(in.run))
	mux.HandleFunc("GET /runs/{id}", in.runState)
	mux.HandleFunc("GET /runs/{id}/logs", in.runLog)
	mux.HandleFunc("POST /pty", noStore(s.postProcess))
	mux.HandleFunc("GET /pty/{id}", s.getProcess)
	mux.HandleFunc("DELETE /pty/{id}", s.deleteProcess)
	mux.HandleFunc("GET /pty/{id}/ws", s.attachProcess)
	for _, path := range []string{"/v1/fs/", "/files", "/files/", "/directories", "/directories/"} {
		mux.Handle(path, s.cfg.Files)
	}
	mux.HandleFunc("GET "+isolated.PathActivity, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, isolated.Activity{Running: s.processes.Active() + s.commands.Active()})
	})
	mux.HandleFunc("POST "+isolated.PathStop, in.stop)
	mux.HandleFunc("POST "+isolated.PathEnd, func(http.ResponseWriter, *http.Request) {
		s.commands.Kill()
		in.busy.Wait()
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusNotFound, "NOT_FOUND", "no such operation")
	})
	return mux
}

// stop asks all that runs in the session to end, what runs left in the
// background too, and answers when nothing is left, or nobody waits any more.
func (in *inside) stop(_ http.ResponseWriter, r *http.Request) {
	s := in.server
	s.commands.Refuse()
	s.processes.Stop()
	others := func(sig syscall.Signal) bool { return !errors.Is(syscall.Kill(-1, sig), syscall.ESRCH) }
	others(syscall.SIGTERM) // once, to each
	s.processes.HangUp()
	poll(r.Context(), func() bool { return s.commands.Active() == 0 && s.processes.Active() == 0 && !others(0) })
}

// own makes a process the session's: of its account, and beginning in the workspace.
func (in *inside) own(spec *process.Spec) (problem string) {
	switch {
	case spec.Key == "":
		return "key is empty"
	case spec.Launch.User != "":
		return "a process in an isolated session runs as the session's account"
	}
	spec.Launch.UID, spec.Launch.GID = &in.uid, &in.gid
	if spec.Launch.Dir == "" {
		spec.Launch.Dir = in.workspace
	}
	return ""
}

// run runs code in the session's shell and answers with its output, in frames
// or as the older protocol does.
func (in *inside) run(w http.ResponseWriter, r *http.Request) {
	var req wire.IsolatedRun
	if !decode(w, r, &req) {
		return
	}
	problem := ""
	const maxSeconds = maxTimeout / 1000
	switch {
	case req.Code == "":
		problem = "code is empty"
	case strings.ContainsRune(req.Code, 0):
		problem = "code contains a NUL"
	case req.TimeoutSeconds < 0 || req.TimeoutSeconds > maxSeconds || req.TimeoutMillis < 0 || req.TimeoutMillis > maxTimeout:
		problem = "the timeout is negative or too large"
	case req.TimeoutSeconds != 0 && req.TimeoutMillis != 0:
		problem = "timeout_seconds and timeout_ms exclude each other"
	case req.Cwd != "" && !strings.HasPrefix(req.Cwd, "/"):
		problem = "cwd is not an absolute path"
	}
	if problem != "" {
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, problem)
		return
	}
	run := shell.Run{
		Line: req.Code, Dir: req.Cwd, Env: req.Envs, Leave: req.Cwd != "" || req.Envs != nil,
		Timeout: time.Duration(req.TimeoutSeconds)*time.Second + time.Duration(req.TimeoutMillis)*time.Millisecond,
		Started: func() {},
	}
	if req.Background {
		in.runAside(w, run)
		return
	}
	in.busy.Add(1)
	defer in.busy.Done()
	if strings.Contains(r.Header.Get("Accept"), wire.OutputType) {
		in.frames(w, r, run)
	} else {
		in.events(w, r, run)
	}
}

func (in *inside) frames(w http.ResponseWriter, r *http.Request, run shell.Run) {
	f := newFrameWriter(w)
	defer f.finish()
	run.Split = true
	run.Started = f.beginSoon
	run.Output = func(channel byte, b []byte) bool { return f.send(wire.FrameType(channel), b) }
	run.Stopping = f.hurry
	f.wait()
	result, err := in.server.sessions.Run(r.Context(), in.shell, run)
	if errors.Is(err, shell.ErrState) {
		f.send(wire.FrameStderr, []byte("execd: "+err.Error()+"\n"))
		err = nil
	}
	if err != nil {
		f.fail(runFailure(err))
		return
	}
	f.last(wire.FrameExit, wire.CommandExit{Code: result.Code, Signal: result.Signal, TimedOut: result.TimedOut})
}

// runFailure is startFailure for runs in a session.
func runFailure(err error) (int, wire.Error, bool) {
	switch {
	case errors.Is(err, shell.ErrVariable):
		return http.StatusBadRequest, wire.Error{Code: wire.CodeInvalidBody, Message: err.Error()}, false
	case errors.Is(err, shell.ErrNotFound):
		return http.StatusNotFound, wire.Error{Code: wire.CodeSessionNotFound, Message: err.Error()}, false
	}
	return startFailure(err)
}

func (in *inside) events(w http.ResponseWriter, r *http.Request, run shell.Run) {
	e := newEventWriter(w)
	e.merged()
	defer e.finish()
	run.Started = e.beginIsolated
	run.Output = e.output
	run.Stopping = e.hurry
	result, err := in.server.sessions.Run(r.Context(), in.shell, run)
	switch {
	case err == nil:
	case errors.Is(err, shell.ErrState):
		e.note("execd: " + err.Error())
	case errors.Is(err, context.Canceled):
		return // while waiting for its turn
	default:
		status, body, tried := runFailure(err)
		if !tried {
			reply(w, status, body)
			return
		}
		e.beginIsolated()
		e.endIsolated("RuntimeError", body.Message, body.Message)
		return
	}
	switch {
	case result.TimedOut:
		e.endIsolated("RuntimeError", "command timed out after "+run.Timeout.String(), "timeout after "+run.Timeout.String())
	case result.Code != 0:
		code := strconv.Itoa(result.Code)
		e.endIsolated("ExitError", "command exited with code "+code, code)
	default:
		e.endIsolated("", "", "")
	}
}

// Events of a run in an isolated session: without init, ping and time taken,
// and with another form of the failure.

func (e *eventWriter) beginIsolated() {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	e.w.WriteHeader(http.StatusOK)
	e.failed = e.rc.Flush() != nil // so that the client knows that the run has begun
}

// endIsolated sends the last event; an empty name says that all went well.
func (e *eventWriter) endIsolated(name, text, value string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now().UnixMilli()
	e.lines[command.Stdout].finish(func(line []byte) { e.text(channelName(command.Stdout), line, now) })
	if name == "" {
		e.buf = append(e.buf, `{"type":"execution_complete"`...)
		e.stamp(now)
		e.buf = append(e.buf, "}\n\n"...)
	} else {
		e.buf = append(e.buf, `{"type":"error","text":`...)
		e.buf = appendString(e.buf, []byte(text))
		e.stamp(now)
		e.buf = append(e.buf, `,"error":{"ename":`...)
		e.buf = appendString(e.buf, []byte(name))
		e.buf = append(e.buf, `,"evalue":`...)
		e.buf = appendString(e.buf, []byte(value))
		e.buf = append(e.buf, `,"traceback":[`...)
		e.buf = appendString(e.buf, []byte(text))
		e.buf = append(e.buf, "]}}\n\n"...)
	}
	e.write()
}
