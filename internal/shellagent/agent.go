package shellagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/version"
)

// stateDir is below the account's home.
const stateDir = ".local/state/astrabox-shell"

const (
	idleAfter = time.Second // then memory is given back
	lastWords = time.Second // how long a signal waits for a reader that doesn't read
)

// Agent serves one client. All fields belong to the goroutine of Run, a running
// turn apart, which uses the session until it is done.
type Agent struct {
	self    string   // this program's file
	dir     string   // of the sessions' files
	env     []string // what commands get besides their session's variables
	streams bool     // the client shows terminal_output
	out     *sender
	reaper  *reaper
	left    leftovers
	session *session
	turn    *turn // running, or nil
}

// turn is a prompt being answered.
type turn struct {
	cancel    chan struct{} // closed to stop it
	cancelled bool
	id        json.RawMessage
	done      chan string // the stop reason, once
}

// Run serves the client on in and out until in ends (a running command then
// runs to its end) or ctx is done (a running command is stopped with everything
// it started). It must run once in a process: it takes over the collecting of
// child processes.
func Run(ctx context.Context, in io.Reader, out io.Writer) error {
	home, err := os.UserHomeDir()
	if err != nil {
		return fmt.Errorf("where to keep the sessions: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("the path of this program: %w", err)
	}
	a := &Agent{self: self, dir: filepath.Join(home, stateDir), env: os.Environ(), out: startSender(out)}
	if _, ok := os.LookupEnv("TERM"); !ok {
		a.env = append(a.env, "TERM=dumb") // the output is no terminal
	}
	if a.reaper, err = startReaper(); err != nil {
		return err
	}
	err = a.serve(ctx, in)
	a.left.close()
	a.reaper.stop()
	a.out.close()
	select {
	case <-a.out.done:
	case <-ctx.Done():
		select {
		case <-a.out.done:
		case <-time.After(lastWords):
			return errors.Join(err, errors.New("nobody reads what was still to be told"))
		}
	}
	return errors.Join(err, a.out.failed())
}

// serve handles lines until there is nothing more to do. When ctx ends first,
// the reading goroutine stays in its read: the process is about to end.
func (a *Agent) serve(ctx context.Context, in io.Reader) error {
	lines := make(chan []byte)
	var readErr error
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		defer close(lines)
		readErr = readLines(in, func(l []byte) {
			a.out.wait()
			select {
			case lines <- l:
			case <-stop:
			}
		}, func() { warn("a line of more than %d bytes was skipped", maxLine) })
	}()
	// The agent is idle for most of its life, in every sandbox: what a long
	// output took is given back when nothing has happened for a while.
	idle := time.NewTimer(idleAfter)
	defer idle.Stop()
	for input := lines; input != nil || a.turn != nil; {
		var done chan string
		if a.turn != nil {
			done = a.turn.done
		}
		select {
		case l, ok := <-input:
			if !ok {
				input = nil
				break
			}
			a.handle(l)
		case reason := <-done:
			a.endTurn(reason)
			idle.Reset(idleAfter)
		case <-idle.C:
			if a.turn == nil {
				debug.FreeOSMemory()
				debug.FreeOSMemory() // what pools kept over the first
			}
		case <-a.out.done: // a write failed: the client is gone
			a.stopTurn()
			return nil
		case <-ctx.Done():
			a.stopTurn()
			return nil
		}
	}
	return readErr
}

func (a *Agent) handle(l []byte) {
	var m message
	if err := json.Unmarshal(l, &m); err != nil {
		a.out.send(message{JSONRPC: "2.0", ID: json.RawMessage("null"), Error: &rpcError{codeParse, "not a JSON-RPC message"}})
		return
	}
	switch {
	case m.Method == "session/cancel":
		a.onCancel(m.Params)
	case m.Method == "" || m.ID == nil:
		// An answer, though nothing was asked, or a notification that says
		// nothing to this program.
	default:
		result, err := a.request(m)
		var rpc *rpcError
		switch {
		case errors.As(err, &rpc):
			a.out.send(message{JSONRPC: "2.0", ID: m.ID, Error: rpc})
		case err != nil:
			warn("%s: %v", m.Method, err)
			a.out.send(message{JSONRPC: "2.0", ID: m.ID, Error: &rpcError{codeInternal, err.Error()}})
		case result != nil:
			a.out.send(message{JSONRPC: "2.0", ID: m.ID, Result: result})
		}
	}
}

// request answers a request; a nil result without an error means that the
// answer comes later.
func (a *Agent) request(m message) (any, error) {
	var p struct {
		SessionID          string `json:"sessionId"`
		Cwd                string `json:"cwd"`
		ClientCapabilities struct {
			Meta struct {
				TerminalOutput bool `json:"terminal_output"`
			} `json:"_meta"`
		} `json:"clientCapabilities"`
		Prompt []struct {
			Type string `json:"type"`
			Text string `json:"text"`
		} `json:"prompt"`
	}
	if m.Params != nil {
		if err := json.Unmarshal(m.Params, &p); err != nil {
			return nil, &rpcError{codeParams, "the params are not what the method takes"}
		}
	}
	switch m.Method {
	case "initialize":
		a.streams = p.ClientCapabilities.Meta.TerminalOutput
		return initialized(), nil
	case "session/new", "session/load", "session/resume":
		if a.turn != nil {
			return nil, &rpcError{codeRequest, "a command is running"}
		}
		if !filepath.IsAbs(p.Cwd) {
			return nil, &rpcError{codeParams, "cwd must be an absolute path"}
		}
		if m.Method == "session/new" {
			return a.newSession(p.Cwd), nil
		}
		return a.openSession(p.SessionID, p.Cwd, m.Method == "session/load")
	case "session/prompt":
		if a.session == nil || p.SessionID != a.session.id {
			return nil, &rpcError{codeNotFound, "no such session"}
		}
		if a.turn != nil {
			return nil, &rpcError{codeRequest, "a command is running"}
		}
		var text strings.Builder
		for _, block := range p.Prompt {
			if block.Type != "text" {
				return nil, &rpcError{codeParams, "a command is text; this prompt holds something of type " + clip(block.Type, 64)}
			}
			text.WriteString(block.Text)
		}
		if strings.ContainsRune(text.String(), 0) {
			return nil, &rpcError{codeParams, "a command can't hold a NUL character"}
		}
		a.startTurn(m.ID, text.String())
		return nil, nil
	}
	return nil, &rpcError{codeMethod, "method not found: " + clip(m.Method, 64)}
}

func initialized() any {
	type object = map[string]any
	return object{
		"protocolVersion": protocolV1,
		"agentCapabilities": object{
			"loadSession":         true,
			"promptCapabilities":  object{"image": false, "audio": false, "embeddedContext": false},
			"sessionCapabilities": object{"resume": object{}},
		},
		"agentInfo":   object{"name": "astrabox-shell", "title": "Shell", "version": version.Version},
		"authMethods": []any{},
	}
}

// newSession opens a session. One that can't be stored still works, for as long
// as this process lives; each command then says so.
func (a *Agent) newSession(cwd string) any {
	s, err := newSession(a.dir, cwd)
	if err != nil {
		warn("store a new session: %v", err)
	}
	a.session = s
	return map[string]any{"sessionId": s.id}
}

func (a *Agent) openSession(id, cwd string, replay bool) (any, error) {
	s, entries, err := openSession(a.dir, id, cwd, a.env)
	if errors.Is(err, errNoSession) {
		return nil, &rpcError{codeNotFound, "no such session"}
	}
	if err != nil {
		return nil, err
	}
	a.session = s
	if replay {
		a.replay(entries)
	}
	return struct{}{}, nil
}

// replay tells a client what the session remembers of its commands.
func (a *Agent) replay(entries []entry) {
	ended := map[int]entry{}
	for _, e := range entries {
		if e.Ended {
			ended[e.N] = e
		}
	}
	for _, e := range entries {
		if e.Ended || e.N == 0 {
			continue
		}
		a.update(chunk{"user_message_chunk", content{"text", e.Cmd}})
		end := ended[e.N]
		status := "completed"
		if !end.Ended || end.Exit != 0 {
			status = "failed"
		}
		a.update(toolUpdate{
			SessionUpdate: "tool_call", ToolCallID: a.session.call(e.N), Name: "shell", Kind: "execute", Status: status,
			Title:     clip(e.Cmd, maxTitle),
			Content:   []toolContent{{"content", content{"text", end.Output}}},
			RawInput:  commandInput{Command: e.Cmd},
			RawOutput: commandOutput{end.Exit, end.Cwd, end.MS},
		})
	}
}

func (a *Agent) update(u any) {
	a.out.send(notification{"2.0", updatesMethod, updateParams{a.session.id, u}})
}

// call is the id of a command's tool call: unique in the session, whatever
// process ran it.
func (s *session) call(n int) string { return fmt.Sprintf("%s-%d", s.id, n) }

func (a *Agent) startTurn(id json.RawMessage, cmd string) {
	t := &turn{id: id, cancel: make(chan struct{}), done: make(chan string, 1)}
	a.turn = t
	streams := a.streams
	go func() { t.done <- a.answer(cmd, streams, t.cancel) }()
}

// endTurn answers the prompt. It is done by the goroutine that takes requests,
// so that the next prompt can't come too early.
func (a *Agent) endTurn(reason string) {
	a.out.send(message{JSONRPC: "2.0", ID: a.turn.id, Result: map[string]string{"stopReason": reason}})
	a.turn = nil
}

func (a *Agent) onCancel(params json.RawMessage) {
	var p struct {
		SessionID string `json:"sessionId"`
	}
	if json.Unmarshal(params, &p) != nil || a.session == nil || p.SessionID != a.session.id {
		return
	}
	a.cancelTurn()
}

func (a *Agent) cancelTurn() {
	if a.turn != nil && !a.turn.cancelled {
		a.turn.cancelled = true
		close(a.turn.cancel)
	}
}

// stopTurn cancels the running command and waits until nothing is left of it.
func (a *Agent) stopTurn() {
	a.cancelTurn()
	if a.turn != nil {
		a.endTurn(<-a.turn.done)
	}
}

// warn writes to stderr, which is a file.
func warn(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "shellagent: "+format+"\n", args...)
}
