package shellagent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sync"
)

// The codes of JSON-RPC and of the protocol that are used here.
const (
	codeParse     = -32700
	codeRequest   = -32600 // not now
	codeMethod    = -32601
	codeParams    = -32602
	codeInternal  = -32603
	codeNotFound  = -32002
	maxLine       = 16 << 20 // of the client; a longer one is skipped
	maxQueue      = 8 << 20  // bytes waiting for a slow reader before requests are no longer read
	protocolV1    = 1
	updatesMethod = "session/update"
)

type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *rpcError) Error() string { return e.Message }

// notification is a message of ours that awaits no answer.
type notification struct {
	JSONRPC string `json:"jsonrpc"`
	Method  string `json:"method"`
	Params  any    `json:"params"`
}

type updateParams struct {
	SessionID string `json:"sessionId"`
	Update    any    `json:"update"`
}

type chunk struct {
	SessionUpdate string  `json:"sessionUpdate"`
	Content       content `json:"content"`
}

type content struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// toolUpdate is a tool_call or a tool_call_update.
type toolUpdate struct {
	SessionUpdate string        `json:"sessionUpdate"`
	ToolCallID    string        `json:"toolCallId"`
	Name          string        `json:"name,omitempty"`
	Title         string        `json:"title,omitempty"`
	Kind          string        `json:"kind,omitempty"`
	Status        string        `json:"status,omitempty"`
	Content       []toolContent `json:"content,omitempty"`
	RawInput      any           `json:"rawInput,omitempty"`
	RawOutput     any           `json:"rawOutput,omitempty"`
	Meta          *toolMeta     `json:"_meta,omitempty"`
}

type toolContent struct {
	Type    string  `json:"type"`
	Content content `json:"content"`
}

type commandInput struct {
	Command string `json:"command"`
	Cwd     string `json:"cwd"`
}

type commandOutput struct {
	ExitCode   int    `json:"exit_code"`
	Cwd        string `json:"cwd"`
	DurationMS int64  `json:"duration_ms"`
}

// toolMeta is how clients that know it show a command's output as it comes:
// each piece of terminal_output goes after the ones before, where content would
// replace them.
type toolMeta struct {
	TerminalInfo   *terminalInfo   `json:"terminal_info,omitempty"`
	TerminalOutput *terminalOutput `json:"terminal_output,omitempty"`
	TerminalExit   *terminalExit   `json:"terminal_exit,omitempty"`
}

type terminalInfo struct {
	TerminalID string `json:"terminal_id"`
	Cwd        string `json:"cwd"`
}

type terminalOutput struct {
	TerminalID string `json:"terminal_id"`
	Data       string `json:"data"`
}

type terminalExit struct {
	TerminalID string  `json:"terminal_id"`
	ExitCode   int     `json:"exit_code"`
	Signal     *string `json:"signal"`
}

// readLines calls handle for each line of in, which it may keep. A
// line over maxLine is skipped, and told to tooLong. It returns nil at EOF; what
// follows the last LF isn't a line.
func readLines(in io.Reader, handle func(line []byte), tooLong func()) error {
	r := bufio.NewReaderSize(in, 4<<10)
	var line []byte
	skip := false
	for {
		part, err := r.ReadSlice('\n')
		if !skip {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if len(line) > maxLine {
				skip, line = true, nil
			}
			continue
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if skip {
			tooLong()
		} else if l := bytes.TrimSpace(line); len(l) > 0 {
			handle(l)
		}
		skip, line = false, nil
	}
}

// sender writes messages in order, from a goroutine of its own: a reader that
// doesn't read must hold up neither a command nor its cancellation.
type sender struct {
	mu      sync.Mutex
	changed *sync.Cond
	queue   [][]byte
	size    int // bytes in queue and being written
	closed  bool
	err     error
	done    chan struct{}
}

func startSender(w io.Writer) *sender {
	s := &sender{done: make(chan struct{})}
	s.changed = sync.NewCond(&s.mu)
	go s.run(w)
	return s
}

func (s *sender) run(w io.Writer) {
	defer close(s.done)
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for len(s.queue) == 0 && !s.closed {
			s.changed.Wait()
		}
		if len(s.queue) == 0 {
			return
		}
		b := s.queue[0]
		s.queue[0] = nil
		if s.queue = s.queue[1:]; len(s.queue) == 0 {
			s.queue = nil
		}
		s.mu.Unlock()
		_, err := w.Write(b)
		s.mu.Lock()
		if s.size -= len(b); err != nil {
			s.err, s.queue, s.size, s.closed = err, nil, 0, true
		}
		s.changed.Broadcast()
	}
}

// send queues a message. After a failed write it does nothing: nobody is there.
func (s *sender) send(v any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return // not possible: our own types hold nothing that can't be encoded
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.queue = append(s.queue, b.Bytes())
	s.size += b.Len()
	s.changed.Broadcast()
}

// wait returns when the queue is short enough to go on reading requests.
func (s *sender) wait() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.size > maxQueue && !s.closed {
		s.changed.Wait()
	}
}

// close lets the goroutine end once all is written.
func (s *sender) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.changed.Broadcast()
}

// failed is the error of the write that failed, or nil. Call it after done.
func (s *sender) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
