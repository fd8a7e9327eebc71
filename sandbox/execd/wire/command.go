package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
)

// OutputType is the media type of framed command output: what POST /command
// answers with when the request accepts it.
//
// The response is a sequence of frames, each a type byte, a length of four
// bytes (big endian) and the payload. It ends right after a FrameExit or
// FrameFailed; a response that ends without one was cut off. Closing the
// request kills the command with every process that it started.
const OutputType = "application/vnd.astrabox.output.v1"

// FrameType is the first byte of a frame.
type FrameType byte

// The frames of a command's output.
const (
	FrameStdout    FrameType = 1
	FrameStderr    FrameType = 2
	FrameExit      FrameType = 3 // CommandExit as JSON
	FrameFailed    FrameType = 4 // Error as JSON: the command couldn't be started
	FrameKeepAlive FrameType = 5 // empty; sent when nothing else was for 15 s
)

// Sizes of frames.
const (
	FrameHeaderSize = 5
	// MaxFrame bounds a frame's payload.
	MaxFrame = 64 << 10
)

// PutFrameHeader writes the header of a frame with n bytes of payload to b,
// which has room for FrameHeaderSize bytes.
func PutFrameHeader(b []byte, t FrameType, n int) {
	b[0] = byte(t)
	binary.BigEndian.PutUint32(b[1:], uint32(n))
}

// FrameHeader reads what PutFrameHeader wrote.
func FrameHeader(b []byte) (t FrameType, n uint32) {
	return FrameType(b[0]), binary.BigEndian.Uint32(b[1:])
}

// CommandRequest is the body of POST /command.
type CommandRequest struct {
	Command    string            `json:"command,omitempty"`
	Argv       Argv              `json:"argv,omitempty"` // instead of Command: a program and its arguments, without a shell
	Cwd        string            `json:"cwd,omitempty"`
	Envs       map[string]string `json:"envs,omitempty"`
	Timeout    int64             `json:"timeout,omitempty"` // milliseconds; 0: none
	User       string            `json:"user,omitempty"`    // account name; empty: the daemon's own
	Background bool              `json:"background,omitempty"`
	UID        *uint32           `json:"uid,omitempty"`
	GID        *uint32           `json:"gid,omitempty"`
}

// Argv is a program and its arguments. Reading one refuses elements that are
// null, which would silently become empty arguments.
type Argv []string

// UnmarshalJSON implements [json.Unmarshaler].
func (a *Argv) UnmarshalJSON(b []byte) error {
	var list []*string
	if err := json.Unmarshal(b, &list); err != nil || list == nil {
		return err
	}
	*a = make(Argv, len(list))
	for i, s := range list {
		if s == nil {
			return errors.New("an element of argv is null")
		}
		(*a)[i] = *s
	}
	return nil
}

// CommandExit is the payload of FrameExit.
type CommandExit struct {
	Code     int    `json:"code"`   // 128+n for a signal
	Signal   string `json:"signal"` // "SIGKILL", or empty
	TimedOut bool   `json:"timed_out"`
}

// Codes of a command or process that couldn't be started, besides
// CodeUnknownAccount. CodeStartFailed comes in a FrameFailed; the others are
// refusals (400), since nothing was tried.
const (
	CodeStartFailed  = "START_FAILED"
	CodeBadDirectory = "INVALID_DIRECTORY"
)
