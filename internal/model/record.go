package model

import "time"

// Record is a conversation as it is stored: what the API shows, and what the
// platform needs to go on after a restart.
type Record struct {
	Conversation
	// Version counts the changes of the row. Fence is the token of the worker
	// that holds the conversation; it only grows, and a worker with an older
	// one can't change anything any more.
	Version, Fence int64
	Backend        string    // of the sandbox or the open assignment
	AssignmentID   string    // the open assignment, or the one that made the sandbox
	ExpiresAt      time.Time // when the backend ends the sandbox; zero: not known
	ActiveAt       time.Time // last event, file or terminal activity
	DueAt          time.Time // when to look again without being asked; zero: never
}

// Program is the stored state of a conversation's Agent program.
type Program struct {
	ConversationID string
	Program        string // id of the program
	Generation     int64  // counts the processes that the conversation has had
	ProcessID      string // empty: none runs
	OutputAt       int64  // output before this offset is stored, as events or as line pieces
	Machine        []byte // state of the protocol machine, JSON
	StdinAt        int64  // offset in stdin of Outbox's first byte
	Outbox         []byte // stdin that may not have arrived yet
	NativeSession  string // the program's name of the session, to continue it in a new process
	ReadyBy        time.Time
	Failures       int64 // processes in a row that ended before they were ready
}

// The states of an assignment: one attempt to obtain a sandbox.
const (
	AssignmentPlanned = "planned" // the create may have been sent
	AssignmentCreated = "created" // the sandbox's id is known
	AssignmentDone    = "done"    // the conversation uses it
	AssignmentFailed  = "failed"
)

// Assignment is one attempt to obtain a sandbox. Spec is the full create
// specification as JSON, stored before the backend is asked, so that a restart
// asks for the same thing again.
type Assignment struct {
	ID             string
	ConversationID string
	Backend        string
	Spec           []byte
	Digest         string // sha256 of Spec, hex
	State          string
	SandboxID      string
	Error          string
	CreatedAt      time.Time
}

// LedgerEntry is a sandbox that is to be destroyed. It is open until a proof
// that it is gone ended it, and is kept as the record of that.
type LedgerEntry struct {
	Backend        string
	SandboxID      string
	ConversationID string // empty: swept, nobody named it
	Reason         string
	Outcome        string // of the newest try; empty before the first
	Detail         string
	Attempts       int64
	DueAt          time.Time
	CreatedAt      time.Time
	EndedAt        time.Time // zero: open
}

// TerminalRecord is a terminal as it is stored.
type TerminalRecord struct {
	Terminal
	SandboxID string
	ProcessID string
}

// TurnRecord is a turn as it is stored.
type TurnRecord struct {
	Turn
	AcceptedSeq   int64     // seq of its message.accepted: the order of the queue
	InterruptedAt time.Time // when a person asked to stop it
}
