package quirk

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Faults of isolated sessions. The sessions themselves are one shell each that
// reads its code from its standard input, as the real daemon's are: a program
// that reads input eats code, an open quote waits for ever, exit ends the
// session, and both streams come as stdout without blank lines.
const (
	RunEndsSession  Fault = 101 // a timeout or a dropped connection ends the whole session
	UnnamedWorks    Fault = 102 // a session doesn't say which workspace it has
	OddDelete       Fault = 103 // deleting a session that died is answered with 500 once
	NoSessionID     Fault = 104 // a session is made, and its id isn't told
	NoIsolation     Fault = 105 // the place can't hold sessions
	BareListing     Fault = 106 // the list of sessions is an answer without a list
	NoIsolatedCalls Fault = 107 // a daemon from before there were sessions
)

// isolated is a session.
type isolated struct {
	id, workspace string
	cmd           *exec.Cmd
	stdin         io.WriteCloser
	lines         *bufio.Reader
	turn          sync.Mutex

	mu   sync.Mutex
	dead bool
	odd  bool // deleted once already
}

// isolatedRoutes adds /v1/isolated.
func (s *Server) isolatedRoutes(mux *http.ServeMux) {
	if s.faults[NoIsolatedCalls] {
		return
	}
	none := func(w http.ResponseWriter) bool {
		if s.faults[NoIsolation] {
			refuse(w, http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE", "isolation is not available")
		}
		return s.faults[NoIsolation]
	}
	mux.HandleFunc("GET /v1/isolated/capabilities", func(w http.ResponseWriter, _ *http.Request) {
		c := map[string]any{"available": !s.faults[NoIsolation], "isolator": "bwrap", "version": "0.8.0", "setpriv_available": true, "userns_available": true, "commit_supported": false, "diff_supported": false}
		if s.faults[NoIsolation] {
			c["message"] = "bwrap is missing"
		}
		answer(w, http.StatusOK, c)
	})
	mux.HandleFunc("POST /v1/isolated/session", func(w http.ResponseWriter, r *http.Request) {
		if !none(w) {
			s.openIsolated(w, r)
		}
	})
	mux.HandleFunc("GET /v1/isolated/sessions", func(w http.ResponseWriter, _ *http.Request) {
		if none(w) {
			return
		}
		if s.faults[BareListing] {
			answer(w, http.StatusOK, map[string]any{})
			return
		}
		list := []map[string]string{}
		s.mu.Lock()
		for _, i := range s.isolated {
			list = append(list, map[string]string{"session_id": i.id, "status": i.status()})
		}
		s.mu.Unlock()
		answer(w, http.StatusOK, map[string]any{"sessions": list})
	})
	with := func(do func(http.ResponseWriter, *http.Request, *isolated)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if none(w) {
				return
			}
			s.mu.Lock()
			n := slices.IndexFunc(s.isolated, func(i *isolated) bool { return i.id == r.PathValue("id") })
			if n < 0 {
				s.mu.Unlock()
				refuse(w, http.StatusNotFound, "SESSION_NOT_FOUND", "session not found")
				return
			}
			i := s.isolated[n]
			s.mu.Unlock()
			do(w, r, i)
		}
	}
	mux.HandleFunc("GET /v1/isolated/session/{id}", with(func(w http.ResponseWriter, _ *http.Request, i *isolated) {
		state := map[string]any{"status": i.status()}
		if !s.faults[UnnamedWorks] {
			state["workspace"] = map[string]string{"path": i.workspace, "mode": "rw"}
		}
		answer(w, http.StatusOK, state)
	}))
	mux.HandleFunc("DELETE /v1/isolated/session/{id}", with(s.deleteIsolated))
	mux.HandleFunc("POST /v1/isolated/session/{id}/run", with(s.runIsolated))
}

func (i *isolated) status() string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.dead {
		return "dead"
	}
	return "active"
}

func (i *isolated) kill() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.dead {
		i.dead = true
		_ = syscall.Kill(-i.cmd.Process.Pid, syscall.SIGKILL)
		i.stdin.Close()
	}
}

func (s *Server) openIsolated(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Workspace struct{ Path, Mode string }
		UID, GID  uint32
	}
	if err := s.body(r, &req); err != nil || req.Workspace.Path == "" {
		refuse(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", "bad body")
		return
	}
	if req.Workspace.Mode != "rw" { // overlay is its default, which doesn't start
		refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", "bwrap: unknown option --overlay")
		return
	}
	i := &isolated{id: rand.Text(), workspace: req.Workspace.Path, cmd: exec.Command("bash")}
	i.cmd.Dir = req.Workspace.Path
	i.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: &syscall.Credential{Uid: req.UID, Gid: req.GID}}
	out, err := i.cmd.StdoutPipe()
	if err == nil {
		i.cmd.Stderr = i.cmd.Stdout
		i.stdin, err = i.cmd.StdinPipe()
	}
	if err == nil {
		err = i.cmd.Start()
	}
	if err != nil {
		refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
		return
	}
	i.lines = bufio.NewReader(out)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		_, _ = i.cmd.Process.Wait() // not Cmd.Wait, which would take the output away from its reader
		i.kill()
	}()
	s.mu.Lock()
	s.isolated = append(s.isolated, i)
	s.mu.Unlock()
	made := map[string]string{"created_at": time.Now().Format(time.RFC3339)}
	if !s.faults[NoSessionID] {
		made["session_id"] = i.id
	}
	answer(w, http.StatusCreated, made)
}

func (s *Server) deleteIsolated(w http.ResponseWriter, _ *http.Request, i *isolated) {
	i.mu.Lock()
	odd := s.faults[OddDelete] && i.dead && !i.odd
	i.odd = true
	i.mu.Unlock()
	i.kill()
	s.mu.Lock()
	s.isolated = slices.DeleteFunc(s.isolated, func(o *isolated) bool { return o == i })
	s.mu.Unlock()
	if odd {
		refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", "signal: interrupt")
	}
}

// runIsolated types code into the shell and reads to the mark behind it.
func (s *Server) runIsolated(w http.ResponseWriter, r *http.Request, i *isolated) {
	var req struct {
		Code    string
		Envs    map[string]string
		Timeout int `json:"timeout_seconds"`
	}
	if err := s.body(r, &req); err != nil {
		refuse(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", "bad body")
		return
	}
	i.turn.Lock()
	defer i.turn.Unlock()
	mark := rand.Text()
	code := req.Code
	if req.Envs != nil {
		var set strings.Builder
		for name, value := range req.Envs {
			fmt.Fprintf(&set, "export %s='%s'; ", name, strings.ReplaceAll(value, "'", `'\''`))
		}
		code = "( " + set.String() + "\n" + code + "\n)"
	}
	ended := make(chan struct{})
	over := sync.OnceFunc(func() { close(ended) })
	defer over()
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		var late <-chan time.Time
		if req.Timeout > 0 {
			t := time.NewTimer(time.Duration(req.Timeout) * time.Second)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-late:
		case <-r.Context().Done():
		case <-s.done:
		case <-ended:
			return
		}
		select {
		case <-ended: // and the client went away behind the last event
			return
		default:
		}
		if s.faults[RunEndsSession] {
			i.kill()
		} else {
			_ = exec.Command("pkill", "-KILL", "-P", fmt.Sprint(i.cmd.Process.Pid)).Run() // nothing to kill is as well
		}
	}()
	send := func(v map[string]any) {
		v["timestamp"] = time.Now().UnixMilli()
		b, _ := json.Marshal(v)
		_, _ = w.Write(append(b, "\n\n"...))
		_ = http.NewResponseController(w).Flush()
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fail := func(text string) {
		send(map[string]any{"type": "error", "text": text, "error": map[string]any{"ename": "RuntimeError", "evalue": text, "traceback": nil}})
	}
	if i.status() == "dead" {
		fail("session process has exited")
		return
	}
	if _, err := io.WriteString(i.stdin, code+"\nprintf '%s %d\\n' "+mark+" $?\n"); err != nil {
		i.kill()
		fail("session process has exited")
		return
	}
	for {
		line, err := i.lines.ReadString('\n')
		if err != nil {
			i.kill()
			fail("session process exited without end marker")
			return
		}
		before, status, found := strings.Cut(strings.TrimSuffix(line, "\n"), mark+" ")
		if before != "" {
			send(map[string]any{"type": "stdout", "text": before})
		}
		switch {
		case found && status == "0":
			over()
			send(map[string]any{"type": "execution_complete"})
			return
		case found:
			over()
			send(map[string]any{"type": "error", "text": "command exited with code " + status, "error": map[string]any{"ename": "ExitError", "evalue": status, "traceback": nil}})
			return
		}
	}
}
