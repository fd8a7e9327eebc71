package agentprogram

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/astrabox/astrabox/sandbox"
)

// acpVersion is the one protocol version spoken here. The next draft changes
// what the end of a turn is, so another number is refused.
const acpVersion = 1

// The phases of an ACP machine. At most one request of ours is open in each;
// its id is acpState.Waiting.
const (
	phaseNew          = "new"
	phaseInitializing = "initializing" // initialize is open
	phaseOpening      = "opening"      // session/new, load or resume is open
	phaseReady        = "ready"        // nothing is open
	phaseTurn         = "turn"         // session/prompt is open
	phaseClosed       = "closed"       // broken or exited; terminal
)

// The methods that open a session.
const (
	methodNew    = "session/new"
	methodLoad   = "session/load"
	methodResume = "session/resume"
)

// acpState is the whole of an ACP machine, and its stored form.
type acpState struct {
	V       int    `json:"v"`
	Phase   string `json:"phase"`
	LastID  int64  `json:"last_id,omitempty"` // of our requests
	Waiting int64  `json:"waiting,omitempty"`
	Cwd     string `json:"cwd,omitempty"`
	Session string `json:"session,omitempty"` // wanted until the session is open, then ours
	Opening string `json:"opening,omitempty"` // the method of phaseOpening
	CanLoad bool   `json:"can_load,omitempty"`

	Turn       string `json:"turn,omitempty"`
	Cancelled  bool   `json:"cancelled,omitempty"`
	Said       bool   `json:"said,omitempty"`      // the turn has shown something
	TextOpen   bool   `json:"text_open,omitempty"` // a text.done is owed
	TextID     string `json:"text_id,omitempty"`
	Tools      []tool `json:"tools,omitempty"`       // running, in order of appearance
	EndedTools []call `json:"ended_tools,omitempty"` // of this turn, the newest maxEndedTools
}

// acp is the machine for programs that speak the Agent Client Protocol,
// version 1: JSON-RPC 2.0, one object a line.
type acp struct{ s acpState }

func newACP() Machine { return &acp{acpState{V: 1, Phase: phaseNew}} }

func restoreACP(state []byte) (Machine, error) {
	var s acpState
	if err := json.Unmarshal(state, &s); err != nil {
		return nil, fmt.Errorf("agentprogram: restore: %w", err)
	}
	if s.V != 1 {
		return nil, fmt.Errorf("agentprogram: restore: state version %d isn't known", s.V)
	}
	switch s.Phase {
	case phaseNew, phaseInitializing, phaseOpening, phaseReady, phaseTurn, phaseClosed:
	default:
		return nil, fmt.Errorf("agentprogram: restore: phase %q isn't known", s.Phase)
	}
	return &acp{s}, nil
}

func (m *acp) State() ([]byte, error) { return json.Marshal(m.s) }
func (m *acp) Ready() bool            { return m.s.Phase == phaseReady }
func (m *acp) Turn() string           { return m.s.Turn }

func (m *acp) Open(o OpenOptions) ([]byte, error) {
	if m.s.Phase != phaseNew {
		return nil, ErrOpened
	}
	if o.Mode != "" && o.Mode != ModeRun {
		return nil, fmt.Errorf("%w: %q", ErrUnknownMode, o.Mode)
	}
	m.s.Cwd, m.s.Session, m.s.Phase = o.Cwd, o.NativeSession, phaseInitializing
	return m.request("initialize", initializeParams{
		ProtocolVersion: acpVersion,
		ClientCapabilities: clientCapabilities{
			// Asks for a command's output as it comes, each piece once.
			Meta: map[string]bool{"terminal_output": true},
		},
		ClientInfo: clientInfo{Name: "astrabox", Title: "AstraBox", Version: "1"},
	}), nil
}

func (m *acp) Prompt(turnID, text string) ([]byte, error) {
	if m.s.Phase != phaseReady {
		return nil, ErrNotReady
	}
	m.s.Phase, m.s.Turn = phaseTurn, turnID
	return m.request("session/prompt", promptParams{m.s.Session, []contentBlock{{Type: "text", Text: text}}}), nil
}

func (m *acp) Cancel() []byte {
	if m.s.Phase != phaseTurn || m.s.Cancelled {
		return nil
	}
	m.s.Cancelled = true
	return line(message{Method: "session/cancel", Params: raw(sessionParams{SessionID: m.s.Session})})
}

func (m *acp) Exited(exit sandbox.Exit) Result {
	if m.s.Phase == phaseClosed {
		return Result{}
	}
	text := fmt.Sprintf("The Agent program ended with exit status %d.", exit.Code)
	if exit.Signal != "" {
		text = fmt.Sprintf("The Agent program was ended by %s.", clip(exit.Signal, 32))
	}
	r := Result{Broken: &Failure{CodeAgentExited, text}}
	if m.s.Phase == phaseTurn {
		m.endTurn(&r, TurnEnd{ReasonFailed, r.Broken})
	}
	m.s.Phase = phaseClosed
	return r
}

func (m *acp) Feed(l []byte) (Result, error) {
	if len(l) > MaxLine {
		return Result{}, ErrLineTooLong
	}
	if m.s.Phase == phaseClosed {
		return Result{Skipped: true}, nil
	}
	msg, ok := parse(l)
	if !ok {
		return Result{Skipped: true}, nil
	}
	var r Result
	switch {
	case msg.Method != "" && msg.ID != nil:
		m.onRequest(&r, msg)
	case msg.Method != "":
		m.onNotification(&r, msg)
	default:
		m.onResponse(&r, msg)
	}
	return r, nil
}

// request renders a request of ours and remembers that its answer is awaited.
func (m *acp) request(method string, params any) []byte {
	m.s.LastID++
	m.s.Waiting = m.s.LastID
	return line(message{ID: raw(m.s.LastID), Method: method, Params: raw(params)})
}

func (m *acp) onResponse(r *Result, msg message) {
	var id int64
	if json.Unmarshal(msg.ID, &id) != nil || m.s.Waiting == 0 || id != m.s.Waiting {
		r.Skipped = true
		return
	}
	m.s.Waiting = 0
	switch m.s.Phase {
	case phaseInitializing:
		m.onInitialized(r, msg)
	case phaseOpening:
		m.onOpened(r, msg)
	case phaseTurn:
		m.onPromptAnswered(r, msg)
	}
}

func (m *acp) onInitialized(r *Result, msg message) {
	if msg.Error != nil {
		m.fail(r, msg.Error.failure())
		return
	}
	var res initializeResult
	if !decode(msg.Result, &res) {
		m.fail(r, Failure{CodeAgentProtocol, "The Agent program's first answer isn't one of the Agent Client Protocol."})
		return
	}
	if res.ProtocolVersion != acpVersion {
		m.fail(r, Failure{CodeAgentProtocol, fmt.Sprintf("The Agent program speaks version %d of the Agent Client Protocol; AstraBox needs version %d.", res.ProtocolVersion, acpVersion)})
		return
	}
	m.s.CanLoad = res.AgentCapabilities.LoadSession
	switch {
	case m.s.Session == "":
		m.openSession(r, methodNew)
	case present(res.AgentCapabilities.SessionCapabilities.Resume):
		m.openSession(r, methodResume)
	case m.s.CanLoad:
		m.openSession(r, methodLoad)
	default:
		m.startFresh(r, "The Agent program can't continue an earlier session, so it starts without what came before.")
	}
}

func (m *acp) openSession(r *Result, method string) {
	m.s.Phase, m.s.Opening = phaseOpening, method
	p := sessionParams{SessionID: m.s.Session, Cwd: m.s.Cwd, McpServers: &[]struct{}{}}
	if method == methodNew {
		p.SessionID = ""
	}
	r.Out = append(r.Out, m.request(method, p)...)
}

// startFresh opens a new session in place of the wanted one, and says so: a
// program that has forgotten must not look as if it remembered.
func (m *acp) startFresh(r *Result, why string) {
	r.add(EventNotice, Notice{LevelWarning, why})
	m.s.Session = ""
	m.openSession(r, methodNew)
}

func (m *acp) onOpened(r *Result, msg message) {
	var res struct {
		SessionID string `json:"sessionId"`
	}
	failure := Failure{CodeAgentProtocol, "The Agent program opened a session without an id."}
	switch {
	case msg.Error != nil:
		failure = msg.Error.failure()
	case m.s.Opening != methodNew:
		res.SessionID = m.s.Session // the answers to load and resume needn't name it
	default:
		decode(msg.Result, &res) // a result of another shape leaves the id empty
	}
	switch {
	case res.SessionID != "":
		m.s.Session, m.s.Opening, m.s.Phase = res.SessionID, "", phaseReady
		r.Ready, r.NativeSession = true, res.SessionID
	case m.s.Opening == methodResume && m.s.CanLoad:
		m.openSession(r, methodLoad)
	case m.s.Opening != methodNew:
		m.startFresh(r, "The Agent program couldn't continue its earlier session, so it starts without what came before: "+failure.Message)
	default:
		m.fail(r, failure)
	}
}

func (m *acp) onPromptAnswered(r *Result, msg message) {
	var res struct {
		StopReason string `json:"stopReason"`
	}
	end := TurnEnd{Reason: ReasonFailed}
	if msg.Error != nil {
		f := msg.Error.failure()
		end.Error = &f
	} else {
		decode(msg.Result, &res) // a result of another shape leaves the reason empty
		switch res.StopReason {
		case "end_turn":
			end.Reason = ReasonDone
		case "max_tokens", "max_turn_requests":
			end.Reason = ReasonLimit
		case "refusal":
			end.Reason = ReasonRefused
		case "cancelled":
			end.Reason = ReasonInterrupted
		default:
			end.Error = &Failure{CodeAgentProtocol, fmt.Sprintf("The Agent program ended the turn for a reason that isn't known: %q.", clip(res.StopReason, 64))}
		}
	}
	m.endTurn(r, end)
	m.s.Phase, r.Ready = phaseReady, true
}

// endTurn closes what is open, and clears what belonged to the turn.
func (m *acp) endTurn(r *Result, end TurnEnd) {
	if m.s.Cancelled {
		// An answer that was on its way when the person stopped the turn
		// doesn't change what the person did.
		end = TurnEnd{Reason: ReasonInterrupted}
	}
	m.endText(r)
	for _, t := range m.s.Tools {
		r.add(EventToolEnded, ToolEnded{Call: t.Call, Status: ToolFailed})
	}
	if end.Reason == ReasonDone && !m.s.Said {
		r.add(EventNotice, Notice{LevelWarning, "The Agent program ended the turn without an answer."})
	}
	r.TurnEnded = &end
	m.s.Turn, m.s.Cancelled, m.s.Said, m.s.Waiting = "", false, false, 0
	m.s.Tools, m.s.EndedTools = nil, nil
}

func (m *acp) fail(r *Result, f Failure) {
	m.s.Phase = phaseClosed
	r.Broken = &f
}

// onRequest answers a request of the program. Its id is given back as it came:
// 0 and strings are ids like any other.
func (m *acp) onRequest(r *Result, msg message) {
	if msg.Method != "session/request_permission" {
		r.Out = line(message{ID: msg.ID, Error: &rpcError{Code: -32601, Message: "Method not found"}})
		return
	}
	var p permissionParams
	if !decode(msg.Params, &p) {
		r.Out = line(message{ID: msg.ID, Error: &rpcError{Code: -32602, Message: "Invalid params"}})
		return
	}
	if m.s.Phase == phaseTurn && m.ours(p.SessionID) {
		// Some programs show a tool first when they ask for it.
		m.onTool(r, p.ToolCall)
	}
	var answer permissionAnswer
	if answer.Outcome.OptionID = m.choose(p.Options); answer.Outcome.OptionID == "" {
		answer.Outcome.Outcome = "cancelled"
	} else {
		answer.Outcome.Outcome = "selected"
	}
	r.Out = line(message{ID: msg.ID, Result: raw(answer)})
}

// choose picks the option that allows, and the narrowest one; empty when there
// is none, or when the turn is being stopped.
func (m *acp) choose(options []permissionOption) string {
	if m.s.Phase != phaseTurn || m.s.Cancelled {
		return ""
	}
	for _, kind := range []string{"allow_once", "allow_always"} {
		for _, o := range options {
			if o.Kind == kind && o.OptionID != "" {
				return o.OptionID
			}
		}
	}
	return ""
}

func (m *acp) ours(session string) bool { return session == "" || session == m.s.Session }

// parse reads one line as a JSON-RPC message. An id is a number or a string
// (null counts as one in a request, since its sender awaits an answer).
func parse(l []byte) (message, bool) {
	l = bytes.TrimSpace(l)
	if len(l) == 0 || l[0] != '{' {
		return message{}, false
	}
	var msg message
	if !decode(l, &msg) {
		return message{}, false
	}
	if msg.ID != nil && (msg.ID[0] == '{' || msg.ID[0] == '[' || msg.ID[0] == 't' || msg.ID[0] == 'f') {
		return message{}, false
	}
	return msg, msg.ID != nil || msg.Method != ""
}

func (r *Result) add(kind string, data any) { r.Events = append(r.Events, Event{kind, data}) }
