package agentprogram

import "encoding/json"

// The types of events that a machine emits. The start and the end of a turn
// belong to the platform, which writes them together with the turn's row; it
// takes the end from [Result.TurnEnded].
const (
	EventTextDelta     = "text.delta"     // Text: more of the answer
	EventTextDone      = "text.done"      // no data: the message that the deltas made is complete
	EventThinkingDelta = "thinking.delta" // Text
	EventToolStarted   = "tool.started"   // ToolStarted
	EventToolOutput    = "tool.output"    // ToolOutput
	EventToolEnded     = "tool.ended"     // ToolEnded
	EventNotice        = "notice"         // Notice
)

// Event is one entry for the journal. Data is one of this package's data
// structs, or [None], and encodes to a JSON object.
type Event struct {
	Type string `json:"type"`
	Data any    `json:"data"`
}

// None is the data of an event that has none.
type None struct{}

// Text is the data of text.delta and thinking.delta.
type Text struct {
	Text string `json:"text"`
}

// ToolStarted shows a tool call. It may come again for the same call, with a
// better title or the complete input, and then replaces the earlier one.
type ToolStarted struct {
	Call  string          `json:"call"` // unique within the turn
	Name  string          `json:"name"` // the program's name for the tool; never empty
	Kind  string          `json:"kind"` // read, edit, delete, move, search, execute, think, fetch, other
	Title string          `json:"title"`
	Input json.RawMessage `json:"input,omitempty"` // any JSON value; at most 256 KiB
}

// The modes of ToolOutput.
const (
	OutputAppend  = "append"  // Text goes after what was shown before
	OutputReplace = "replace" // Text is all there is to show now
)

// ToolOutput is output of a running tool call.
type ToolOutput struct {
	Call string `json:"call"`
	Mode string `json:"mode"` // OutputAppend or OutputReplace
	Text string `json:"text"`
}

// The statuses of ToolEnded.
const (
	ToolCompleted = "completed"
	ToolFailed    = "failed"
)

// ToolEnded ends a tool call. A command that exited non-zero has failed.
type ToolEnded struct {
	Call       string `json:"call"`
	Status     string `json:"status"`              // ToolCompleted or ToolFailed
	ExitCode   *int   `json:"exit_code,omitempty"` // of a command; 128+n for a signal
	Cwd        string `json:"cwd,omitempty"`       // working directory after a command
	DurationMS *int64 `json:"duration_ms,omitempty"`
}

// LevelWarning is the level of a Notice that something isn't as it should be.
const LevelWarning = "warning"

// Notice is something a person should know that isn't part of the answer.
type Notice struct {
	Level string `json:"level"`
	Text  string `json:"text"`
}

// The reasons why a turn ended, as far as a machine can tell.
const (
	ReasonDone        = "done"
	ReasonInterrupted = "interrupted"
	ReasonFailed      = "failed"
	ReasonLimit       = "limit"   // a token or step limit of the program
	ReasonRefused     = "refused" // the model declined
)

// TurnEnd is how a turn ended, and the data of turn.ended.
type TurnEnd struct {
	Reason string   `json:"reason"`
	Error  *Failure `json:"error,omitempty"` // set when Reason is ReasonFailed
}

// The codes of Failure.
const (
	CodeAgentError    = "AGENT_ERROR"          // the program answered with an error
	CodeAgentExited   = "AGENT_EXITED"         // its process ended
	CodeAgentProtocol = "AGENT_PROTOCOL_ERROR" // it speaks something else than it should
)

// Failure says what went wrong in words for a person: Message is at most 2 KiB
// and may quote the program.
type Failure struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Coalesce joins neighbouring pieces of the same text: deltas, and appended
// output of one call. It is for a caller that stores the events of several
// lines together. The slice is not changed.
func Coalesce(events []Event) []Event {
	var out []Event
	for _, e := range events {
		if n := len(out); n > 0 {
			if joined, ok := join(out[n-1], e); ok {
				out[n-1] = joined
				continue
			}
		}
		out = append(out, e)
	}
	return out
}

func join(a, b Event) (Event, bool) {
	if a.Type != b.Type {
		return Event{}, false
	}
	switch x := a.Data.(type) {
	case Text:
		if y, ok := b.Data.(Text); ok {
			return Event{a.Type, Text{x.Text + y.Text}}, true
		}
	case ToolOutput:
		if y, ok := b.Data.(ToolOutput); ok && x.Call == y.Call && y.Mode == OutputAppend {
			return Event{a.Type, ToolOutput{x.Call, x.Mode, x.Text + y.Text}}, true
		}
	}
	return Event{}, false
}
