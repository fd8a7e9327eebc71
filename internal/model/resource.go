package model

import (
	"encoding/json"
	"time"
)

// Conversation is one stateful exchange with an Agent program. It survives its
// sandbox.
type Conversation struct {
	ID          string            `json:"id"`
	Title       string            `json:"title"`
	Agent       string            `json:"agent"`       // name of the Agent
	Environment string            `json:"environment"` // name of the Agent's Environment
	State       ConversationState `json:"state"`
	Runtime     Runtime           `json:"runtime"`
	Turn        *TurnRef          `json:"turn"`     // the turn in progress, if one is
	Queued      int               `json:"queued"`   // messages that wait behind it
	LastSeq     int64             `json:"last_seq"` // number of the newest event
	CreatedAt   time.Time         `json:"created_at"`
	UpdatedAt   time.Time         `json:"updated_at"`
	// Destruction is the newest verdict on the conversation's sandbox, once a
	// destruction was tried.
	Destruction *Destruction `json:"destruction,omitempty"`
}

// Runtime is the conversation's sandbox as it is now.
type Runtime struct {
	State     RuntimeState `json:"state"`
	SandboxID string       `json:"sandbox_id"` // empty: none
	Reason    string       `json:"reason"`     // why it is in this state, where that needs saying
	Since     time.Time    `json:"since"`
}

// Destruction is the verdict on a sandbox that was to be destroyed. Outcome is
// one of the seam's: gone, unconfirmed, refused, retained, nothing_named.
type Destruction struct {
	SandboxID string `json:"sandbox_id"`
	Outcome   string `json:"outcome"`
	Detail    string `json:"detail"`
}

// TurnRef names a turn.
type TurnRef struct {
	ID    string    `json:"id"`
	State TurnState `json:"state"`
}

// Turn is one message and what it caused. ClientMessageID is the sender's
// idempotency key within the conversation.
type Turn struct {
	ID              string     `json:"id"`
	ConversationID  string     `json:"conversation_id"`
	ClientMessageID string     `json:"client_message_id"`
	Text            string     `json:"text"`
	State           TurnState  `json:"state"`
	Error           *TurnError `json:"error,omitempty"`
	CreatedAt       time.Time  `json:"created_at"`
	EndedAt         *time.Time `json:"ended_at,omitempty"`
}

// TurnError says why a turn ended otherwise than done. Message is safe for users.
type TurnError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Event is one entry of a conversation's journal. Seq counts from 1 without
// gaps within the conversation. Data is a JSON object whose members depend on
// Type.
type Event struct {
	Seq    int64           `json:"seq"`
	Type   string          `json:"type"`
	TurnID string          `json:"turn_id,omitempty"`
	At     time.Time       `json:"at"`
	Data   json.RawMessage `json:"data"`
}

// Types of events that the platform itself writes. Agent programs add
// text.delta, text.done, thinking.delta, tool.started, tool.output, tool.ended
// and notice.
const (
	EventCreated     = "conversation.created"
	EventAccepted    = "message.accepted" // {text, client_message_id}
	EventStarting    = "sandbox.starting" // {step}: create, workspace, program
	EventReady       = "sandbox.ready"    // {sandbox_id, ms}
	EventStartFailed = "sandbox.failed"   // {reason}
	EventPausing     = "sandbox.pausing"
	EventPaused      = "sandbox.paused"
	EventResuming    = "sandbox.resuming"
	EventResumed     = "sandbox.resumed"    // {sandbox_id, ms}
	EventLost        = "sandbox.lost"       // {reason}
	EventTerminated  = "sandbox.terminated" // {sandbox_id, outcome, detail}
	EventTurnStarted = "turn.started"
	EventNotice      = "notice"               // {level, text}
	EventTurnEnded   = "turn.ended"           // {reason, error?}
	EventDeleted     = "conversation.deleted" // the last of a journal
)

// IdleAction is what happens to a sandbox that nobody uses.
type IdleAction string

// The idle actions.
const (
	IdlePause     IdleAction = "pause"
	IdleTerminate IdleAction = "terminate"
)

// Environment says how sandboxes are made for a group of Agents. Its name is
// unique and never changes.
type Environment struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Program string `json:"program"` // id of the Agent program
	Backend string `json:"backend"` // name of the sandbox provider
	Image   string `json:"image"`
	Account string `json:"account"` // that the workload runs as
	// Limits and Requests are Kubernetes quantities as strings: cpu, memory,
	// pids, disk.
	Limits   map[string]string `json:"limits"`
	Requests map[string]string `json:"requests"`
	Env      map[string]string `json:"env,omitempty"`
	// Idle is what happens after IdleSeconds without use (0: the deployment's
	// setting); RetentionSeconds is how long a paused sandbox is kept.
	Idle             IdleAction `json:"idle"`
	IdleSeconds      int64      `json:"idle_seconds"`
	RetentionSeconds int64      `json:"retention_seconds"`
	CreatedAt        time.Time  `json:"created_at"`
}

// Agent is a reusable configuration on one Environment. Its name is unique.
type Agent struct {
	ID          string    `json:"id"`
	Name        string    `json:"name"`
	Environment string    `json:"environment"` // name
	Description string    `json:"description"`
	CreatedAt   time.Time `json:"created_at"`
}

// TerminalState says whether a terminal can still be attached to.
type TerminalState string

// The states of a terminal. A gone one ended with its sandbox or by a pause.
const (
	TerminalLive TerminalState = "live"
	TerminalGone TerminalState = "gone"
)

// Terminal is a shell on a TTY in a conversation's sandbox.
type Terminal struct {
	ID             string        `json:"id"`
	ConversationID string        `json:"conversation_id"`
	State          TerminalState `json:"state"`
	Reason         string        `json:"reason,omitempty"` // why it is gone
	CreatedAt      time.Time     `json:"created_at"`
}
