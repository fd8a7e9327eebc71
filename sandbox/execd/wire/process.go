package wire

import "encoding/binary"

// ProcessProtocol is the WebSocket subprotocol of GET /pty/{id}/ws for
// processes with numbered output.
//
// The query of the request: since (the first byte wanted; default 0),
// takeover=1 (displace the holder), mode=viewer (watch only), nostart=1 (never
// start the process). A refusal comes before the upgrade, as an Error or GapError.
//
// Afterwards the server sends: text ServerMessage "connected" first; binary
// messages of output, each a channel byte (1 stdout, 2 stderr), the run (four
// bytes, big endian), the offset of its first byte (eight bytes) and at most
// MaxFrame bytes; text "exit" after all output of a run; text "stdin" when
// stdin was passed on to the process. The server closes with CloseEnd when
// there is nothing more to come.
//
// The client sends: binary messages of a zero byte and stdin; text ClientMessage.
const ProcessProtocol = "astrabox.process.v1"

// OutputHeaderSize is the size of the header of an output message.
const OutputHeaderSize = 13

// MaxStdinInFlight bounds the bytes of stdin that the run has accepted (see
// Connected) and been sent since, and that the server hasn't yet reported as
// written. A client that exceeds it is closed with ClosePolicy, so that waiting
// for the process never holds up other messages.
const MaxStdinInFlight = 1 << 20

// MaxClientMessage bounds one message of the client.
const MaxClientMessage = 256 << 10

// Status codes of the closing of a process's WebSocket.
const (
	CloseEnd       = 1000 // nothing more to come
	CloseStopping  = 1001 // the daemon is on its way out
	ClosePolicy    = 1008 // the client broke a rule
	CloseTakenOver = 4001 // another attachment took the process
	CloseLagging   = 4002 // a viewer was too slow and output was dropped
)

// PutOutputHeader writes the header of an output message to b, which has room
// for OutputHeaderSize bytes.
func PutOutputHeader(b []byte, channel byte, run int, offset int64) {
	b[0] = channel
	binary.BigEndian.PutUint32(b[1:], uint32(run))
	binary.BigEndian.PutUint64(b[5:], uint64(offset))
}

// OutputHeader reads what PutOutputHeader wrote.
func OutputHeader(b []byte) (channel byte, run int, offset int64) {
	return b[0], int(binary.BigEndian.Uint32(b[1:])), int64(binary.BigEndian.Uint64(b[5:]))
}

// Size is a terminal's size in characters.
type Size struct {
	Cols uint16 `json:"cols"`
	Rows uint16 `json:"rows"`
}

// ProcessRequest is the body of POST /pty. With a Key it registers a process
// (201, or 200 when the key is known); without one it is the older protocol's.
type ProcessRequest struct {
	Key     string            `json:"key,omitempty"`
	Command string            `json:"command,omitempty"` // empty: the account's login shell
	Cwd     string            `json:"cwd,omitempty"`     // empty: the account's home
	Env     map[string]string `json:"env,omitempty"`
	User    string            `json:"user,omitempty"`
	TTY     *Size             `json:"tty,omitempty"` // nil: pipes
	Buffer  int               `json:"buffer,omitempty"`
	Full    string            `json:"full,omitempty"`
}

// Values of ProcessRequest.Full.
const (
	FullDropOldest = "drop_oldest"
	FullBlock      = "block"
)

// Sizes of a process's replay buffer in bytes.
const (
	DefaultBuffer = 1 << 20
	MinBuffer     = 4 << 10
	MaxBuffer     = 64 << 20
)

// ProcessCreated is the answer of POST /pty.
type ProcessCreated struct {
	SessionID string `json:"session_id"`
}

// States of a process.
const (
	StateRegistered = "registered"
	StateRunning    = "running"
	StateExited     = "exited"
)

// ProcessStatus is the answer of GET /pty/{id}.
type ProcessStatus struct {
	SessionID    string       `json:"session_id"`
	Running      bool         `json:"running"`
	OutputOffset int64        `json:"output_offset"` // same as Next
	Run          int          `json:"run"`
	State        string       `json:"state"`
	Oldest       int64        `json:"oldest"`
	Next         int64        `json:"next"`
	Stdin        int64        `json:"stdin"` // accepted in this run
	Exit         *ProcessExit `json:"exit"`
	// LaunchAttempted and LaunchFailed are of the newest attempt to start it.
	LaunchAttempted bool `json:"launch_attempted"`
	LaunchFailed    bool `json:"launch_failed"`
}

// ProcessExit is how a run ended.
type ProcessExit struct {
	Code   int    `json:"code"` // 128+n for a signal
	Signal string `json:"signal"`
}

// Connected is the server's first message.
type Connected struct {
	Type   string `json:"type"`
	Run    int    `json:"run"`
	State  string `json:"state"`
	Oldest int64  `json:"oldest"`
	Next   int64  `json:"next"`
	Stdin  int64  `json:"stdin"` // accepted in this run
	// Written is how much of that was passed on to the process.
	Written int64 `json:"written"`
}

// Exited says how a run ended; all of the run's output came before it.
type Exited struct {
	Type   string `json:"type"`
	Run    int    `json:"run"`
	Code   int    `json:"code"`
	Signal string `json:"signal"`
}

// StdinWritten counts the bytes of this run's stdin, from its start and from
// whichever attachment, that were passed on to the process (or dropped because
// it had closed its stdin).
type StdinWritten struct {
	Type    string `json:"type"`
	Run     int    `json:"run"`
	Written int64  `json:"written"`
}

// ServerMessage is any text message of the server, for reading.
type ServerMessage struct {
	Type    string `json:"type"`
	Run     int    `json:"run"`
	State   string `json:"state"`
	Oldest  int64  `json:"oldest"`
	Next    int64  `json:"next"`
	Stdin   int64  `json:"stdin"`
	Code    int    `json:"code"`
	Signal  string `json:"signal"`
	Written int64  `json:"written"`
}

// Types of ServerMessage.
const (
	TypeConnected = "connected"
	TypeExit      = "exit"
	TypeStdin     = "stdin"
)

// ClientMessage is a text message of the client.
type ClientMessage struct {
	Type   string `json:"type"`
	Cols   uint16 `json:"cols,omitempty"`
	Rows   uint16 `json:"rows,omitempty"`
	Signal string `json:"signal,omitempty"`
	Offset int64  `json:"offset,omitempty"`
}

// Types of ClientMessage.
const (
	TypeResize     = "resize"
	TypeSignal     = "signal"
	TypeStdinClose = "stdin_close"
	TypeAck        = "ack"
	// TypeDetach gives the process up. The server closes once it is free for
	// the next attachment, which a mere disconnect doesn't tell the client.
	TypeDetach = "detach"
)

// GapError refuses an attachment from an offset that is no longer held.
type GapError struct {
	Error
	Oldest int64 `json:"oldest"`
}

// Codes of process refusals.
const (
	CodeHeld          = "ALREADY_CONNECTED" // 409
	CodeReplayGap     = "REPLAY_GAP"        // 409, a GapError
	CodeInvalidOffset = "INVALID_OFFSET"    // 400
)
