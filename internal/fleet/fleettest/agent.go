package fleettest

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// runTerminal echoes its input.
func runTerminal(ctx context.Context, p *process) int {
	for {
		line, err := p.readLine(ctx)
		if err != nil {
			return 0
		}
		if err := p.write(ctx, []byte("$ "+line+"\r\n")); err != nil {
			return 0
		}
	}
}

type rpc struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
}

// agent is the scripted program. A prompt is a verb and its argument:
//
//	echo TEXT     one tool call that prints TEXT
//	chunks N      N pieces of text at once
//	drip N        N pieces of text, one a second
//	silent N      N seconds of nothing
//	line N        one tool call whose output line has N bytes
//	hang          until it is cancelled
//	stubborn      until it is killed
//	die           the process ends
//	lastwords X   it says X and ends
type agent struct {
	p         *process
	lines     chan string
	cancelled bool
}

// runAgent is the program: one reader, so that a cancel is seen during a turn.
func runAgent(ctx context.Context, p *process) int {
	ctx, stop := context.WithCancel(ctx)
	a := &agent{p: p, lines: make(chan string)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for {
			line, err := p.readLine(ctx)
			if err != nil {
				return
			}
			select {
			case a.lines <- line:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() { stop(); <-read }()
	for {
		select {
		case <-ctx.Done():
			return 0
		case line := <-a.lines:
			var m rpc
			if json.Unmarshal([]byte(line), &m) != nil {
				return 2
			}
			if code, ended := a.handle(ctx, m); ended {
				return code
			}
		}
	}
}

func (a *agent) handle(ctx context.Context, m rpc) (code int, ended bool) {
	switch m.Method {
	case "initialize":
		a.reply(ctx, m.ID, map[string]any{"protocolVersion": 1, "agentCapabilities": map[string]any{"loadSession": true}})
	case "session/new":
		a.reply(ctx, m.ID, map[string]any{"sessionId": "session-" + a.p.id})
	case "session/load":
		a.reply(ctx, m.ID, map[string]any{})
	case "session/prompt":
		var p struct {
			Prompt []struct{ Text string }
		}
		if json.Unmarshal(m.Params, &p) != nil || len(p.Prompt) == 0 {
			return 2, true
		}
		text := p.Prompt[0].Text
		a.p.box.b.mu.Lock()
		a.p.box.b.executed = append(a.p.box.b.executed, text)
		a.p.box.b.mu.Unlock()
		a.cancelled = false
		verb, arg, _ := strings.Cut(text, " ")
		switch verb {
		case "lastwords":
			// In two pieces, so that the second still waits to be stored at the end.
			a.text(ctx, arg[:len(arg)/2])
			a.sleep(ctx, time.Millisecond)
			a.text(ctx, arg[len(arg)/2:])
			return 1, true
		case "die":
			return 1, true
		}
		a.perform(ctx, verb, arg)
		reason := "end_turn"
		if a.cancelled {
			reason = "cancelled"
		}
		a.reply(ctx, m.ID, map[string]any{"stopReason": reason})
	}
	return 0, false
}

func (a *agent) perform(ctx context.Context, verb, arg string) {
	n, _ := strconv.Atoi(arg)
	a.p.box.b.mu.Lock()
	gap := a.p.box.b.ChunkGap
	a.p.box.b.mu.Unlock()
	switch verb {
	case "chunks":
		for i := range n {
			a.text(ctx, fmt.Sprintf("<%d>", i))
			if gap > 0 && a.sleep(ctx, gap) {
				return
			}
		}
	case "drip":
		for i := range n {
			a.text(ctx, fmt.Sprintf("<%d>", i))
			if a.sleep(ctx, time.Second) {
				return
			}
		}
	case "silent":
		a.sleep(ctx, time.Duration(n)*time.Second)
	case "line":
		a.tool(ctx, strings.Repeat("x", n))
	case "hang":
		a.sleep(ctx, 1000*time.Hour)
	case "stubborn":
		a.p.mu.Lock()
		a.p.ignores = true
		a.p.mu.Unlock()
		<-ctx.Done()
	default:
		a.tool(ctx, arg)
	}
}

// sleep waits and reports whether the turn was cancelled meanwhile.
func (a *agent) sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return true
		case <-t.C:
			return false
		case line := <-a.lines:
			if strings.Contains(line, "session/cancel") {
				a.cancelled = true
				return true
			}
		}
	}
}

func (a *agent) tool(ctx context.Context, output string) {
	a.update(ctx, map[string]any{"sessionUpdate": "tool_call", "toolCallId": "call-1", "title": "run", "kind": "execute", "status": "in_progress"})
	a.update(ctx, map[string]any{"sessionUpdate": "tool_call_update", "toolCallId": "call-1",
		"_meta": map[string]any{"terminal_output": map[string]any{"data": output}}})
	a.update(ctx, map[string]any{"sessionUpdate": "tool_call_update", "toolCallId": "call-1", "status": "completed",
		"rawOutput": map[string]any{"exit_code": 0}})
}

func (a *agent) text(ctx context.Context, s string) {
	a.update(ctx, map[string]any{"sessionUpdate": "agent_message_chunk", "content": map[string]any{"type": "text", "text": s}})
}

func (a *agent) update(ctx context.Context, u map[string]any) {
	raw, _ := json.Marshal(map[string]any{"update": u})
	a.send(ctx, rpc{Method: "session/update", Params: raw})
}

func (a *agent) reply(ctx context.Context, id json.RawMessage, result any) {
	a.send(ctx, rpc{ID: id, Result: result})
}

func (a *agent) send(ctx context.Context, m rpc) {
	m.JSONRPC = "2.0"
	raw, _ := json.Marshal(m)
	_ = a.p.write(ctx, append(raw, '\n')) // a process that ended says nothing more
}
