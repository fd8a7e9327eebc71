package quirk

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"
)

type command struct {
	id  string
	cmd *exec.Cmd

	mu      sync.Mutex
	running bool
	code    int
}

func (c *command) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running {
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
	}
}

// environment is that of every child: the token is in it, as the real one's.
func environment() []string { return append(os.Environ(), "EXECD_ACCESS_TOKEN="+Token) }

// stream writes events.
type stream struct {
	s  *Server
	w  http.ResponseWriter
	mu sync.Mutex
}

func (e *stream) send(v any, last bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b, _ := json.Marshal(v)
	switch {
	case e.s.faults[DataLines] && last:
		_, _ = e.w.Write(append([]byte("event: x\ndata: "), b...))
	case e.s.faults[DataLines]:
		_, _ = e.w.Write(append(append([]byte("data: "), b...), "\n\n"...))
	default:
		_, _ = e.w.Write(append(b, "\n\n"...))
	}
	_ = http.NewResponseController(e.w).Flush()
}

func (e *stream) event(kind, text string) {
	e.send(map[string]any{"type": kind, "text": text, "timestamp": time.Now().UnixMilli()}, false)
}

func (s *Server) postCommand(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Command string  `json:"command"`
		Timeout int64   `json:"timeout"`
		UID     *uint32 `json:"uid"`
		GID     *uint32 `json:"gid"`
	}
	if err := s.body(r, &req); err != nil || req.Command == "" {
		refuse(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", "no command")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	e := &stream{s: s, w: w}
	if s.faults[BareCode] {
		e.event("init", rand.Text())
		b, _ := json.Marshal(map[string]string{"code": "RUNTIME_ERROR", "message": "it can't be started"})
		_, _ = w.Write(b)
		return
	}
	c := &command{id: rand.Text(), running: true}
	shell := s.Shell
	if shell == "" {
		shell = "bash"
	}
	s.between("command", req.Command)
	c.cmd = exec.Command(shell, "-c", req.Command)
	c.cmd.Env = environment()
	if s.Path != "" {
		c.cmd.Env = append(c.cmd.Env, "PATH="+s.Path)
	}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if req.UID != nil {
		cred := &syscall.Credential{Uid: *req.UID}
		if req.GID != nil {
			cred.Gid = *req.GID
		} else if !s.faults[RootGroup] {
			cred.Gid = *req.UID
		}
		c.cmd.SysProcAttr.Credential = cred
	}
	var stdout, stderr bytes.Buffer
	c.cmd.Stdout, c.cmd.Stderr = &stdout, &stderr
	c.cmd.WaitDelay = drainTime
	if err := c.cmd.Start(); err != nil {
		e.send(failed(err.Error()), true)
		return
	}
	s.mu.Lock()
	s.commands[c.id] = c
	s.mu.Unlock()
	over := make(chan struct{})
	s.wg.Go(func() {
		defer close(over)
		_ = c.cmd.Wait()
		c.mu.Lock()
		c.running, c.code = false, c.cmd.ProcessState.ExitCode()
		c.mu.Unlock()
	})
	if !s.faults[NoInit] {
		e.event("init", c.id)
	}
	e.event("ping", "pong")
	var timeout <-chan time.Time
	if req.Timeout > 0 {
		timeout = time.After(time.Duration(req.Timeout) * time.Millisecond)
	}
	if s.faults[CutStream] {
		select {
		case <-over:
		case <-time.After(drainTime):
		}
		panic(http.ErrAbortHandler)
	}
	gone := r.Context().Done()
	for running := true; running; {
		select {
		case <-over:
			running = false
		case <-timeout:
			c.kill()
			timeout = nil
		case <-gone:
			if gone = nil; !s.faults[KeepRunning] {
				c.kill()
			}
		}
	}
	if r.Context().Err() != nil {
		return
	}
	s.lines(e, "stdout", stdout.Bytes())
	s.lines(e, "stderr", stderr.Bytes())
	if c.code == 0 {
		done := map[string]any{"type": "execution_complete", "timestamp": time.Now().UnixMilli()}
		if !s.faults[NoInit] {
			done["execution_time"] = 1
		}
		e.send(done, true)
	} else {
		e.send(failed(strconv.Itoa(c.code)), true)
	}
	if s.faults[NoInit] {
		e.event("ping", "pong")
	}
	if s.faults[LateEnd] {
		e.event("stdout", "what comes too late")
		ctx, cancel := context.WithTimeout(r.Context(), lateEnd)
		<-ctx.Done()
		cancel()
		e.send(failed("77"), true)
	}
}

func failed(value string) map[string]any {
	return map[string]any{"type": "error", "error": map[string]any{"ename": "CommandExecError", "evalue": value, "traceback": []string{"exit status " + value}}}
}

// lines sends output as the events of its lines.
func (s *Server) lines(e *stream, kind string, b []byte) {
	text := string(b)
	if s.faults[LossyLines] {
		text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\r", "\n")
		if !utf8.ValidString(text) {
			text = strings.ToValidUTF8(text, "\uFFFD")
		}
	}
	if text == "" {
		return
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		if line == "" {
			line = "\n"
		}
		e.event(kind, line)
	}
}

func (s *Server) command(id string) *command {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.commands[id]
}

func (s *Server) commandStatus(w http.ResponseWriter, id string) {
	c := s.command(id)
	if c == nil {
		refuse(w, http.StatusNotFound, "INVALID_REQUEST_BODY", "no such command")
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	st := map[string]any{"id": c.id, "running": c.running}
	if !c.running {
		st["exit_code"] = c.code
	}
	answer(w, http.StatusOK, st)
}

// deleteCommand is SIGTERM to the group, and SIGKILL after a while.
func (s *Server) deleteCommand(w http.ResponseWriter, r *http.Request) {
	c := s.command(r.URL.Query().Get("id"))
	if c == nil {
		refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", "context not found")
		return
	}
	c.mu.Lock()
	running := c.running
	if running {
		_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGTERM)
	}
	c.mu.Unlock()
	if !running {
		refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", "it isn't running")
		return
	}
	end := time.NewTimer(commandEnd)
	defer end.Stop()
	select {
	case <-end.C:
		c.kill()
	case <-s.done:
	case <-s.ended(c):
	}
}

// ended is closed when the command has ended or the server closes.
func (s *Server) ended(c *command) <-chan struct{} {
	over := make(chan struct{})
	s.wg.Go(func() {
		defer close(over)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			c.mu.Lock()
			running := c.running
			c.mu.Unlock()
			if !running {
				return
			}
			select {
			case <-tick.C:
			case <-s.done:
				return
			}
		}
	})
	return over
}

func (s *Server) commandLogs(w http.ResponseWriter, r *http.Request) {
	cursor := r.URL.Query().Get("cursor")
	if !s.faults[EchoCursor] {
		cursor = "0"
	}
	w.Header().Set("EXECD-COMMANDS-TAIL-CURSOR", cursor)
}
