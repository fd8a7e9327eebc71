package agentprogram

import (
	"errors"
	"fmt"

	"github.com/astrabox/astrabox/sandbox"
)

// MaxLine is the longest output line, in bytes without the LF, that a machine
// accepts. The caller should stop collecting a line there.
const MaxLine = 64 << 20

// The errors of a machine: each is a mistake of the caller, and leaves the
// machine as it was.
var (
	ErrNotReady       = errors.New("agentprogram: the program isn't ready for a prompt")
	ErrOpened         = errors.New("agentprogram: the machine was opened before")
	ErrLineTooLong    = fmt.Errorf("agentprogram: a line has more than %d bytes", MaxLine)
	ErrUnknownProgram = errors.New("agentprogram: unknown Agent program")
	ErrUnknownMode    = errors.New("agentprogram: unknown mode")
)

// ModeRun is the mode in which the program does what it wants to do without
// asking: requests for permission are answered with the option that allows.
const ModeRun = "run"

// OpenOptions are what a machine needs to open a session.
type OpenOptions struct {
	Cwd           string // absolute directory in the sandbox where the program works
	NativeSession string // session id of an earlier Result; empty: a new session
	Mode          string // ModeRun; empty means ModeRun
}

// Result is what one line (or the process's end) meant. The zero value is
// "nothing happened".
type Result struct {
	// Events for the journal, in order.
	Events []Event
	// Out is what must be written to stdin next, whole lines; store it before
	// it is sent.
	Out []byte
	// Ready says that the program waits for a prompt now.
	Ready bool
	// TurnEnded is set when the running turn ended with this line.
	TurnEnded *TurnEnd
	// NativeSession is set when the program named its session: store it, and
	// give it to Open for the next process of this conversation.
	NativeSession string
	// Broken is set when the process is of no more use: the handshake failed,
	// or it ended. Only a new process with a new machine helps.
	Broken *Failure
	// Skipped says that the line wasn't understood and changed nothing.
	Skipped bool
}

// Machine is the platform's side of the protocol with one process of an Agent
// program: from Open to Exited. See the package comment for who may call it.
type Machine interface {
	// Open gives the first bytes for stdin; the handshake goes on in Feed until
	// a Result is Ready or Broken. It is called once, before anything else.
	Open(o OpenOptions) (out []byte, err error)
	// Prompt starts a turn and gives the bytes for stdin; ErrNotReady before
	// the handshake is over and while a turn runs.
	Prompt(turnID, text string) (out []byte, err error)
	// Cancel asks the program to stop the running turn and gives the bytes for
	// stdin; nil when no turn runs or it was asked before. The turn ends when a
	// Result says so, and then always as interrupted.
	Cancel() (out []byte)
	// Feed takes one line of output, without its LF. The error is
	// ErrLineTooLong or nil; the line isn't kept.
	Feed(line []byte) (Result, error)
	// Exited says that the process ended. A running turn fails with it (or is
	// interrupted, after Cancel). Output without a final LF is not a line.
	Exited(exit sandbox.Exit) Result
	// Ready says that Prompt may be called.
	Ready() bool
	// Turn is the id of the running turn, or empty.
	Turn() string
	// State is the machine as JSON, usually below 4 KiB, for Restore.
	State() ([]byte, error)
}

// New returns a machine for a fresh process of the program, or ErrUnknownProgram.
func New(programID string) (Machine, error) {
	p, ok := ByID(programID)
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrUnknownProgram, programID)
	}
	return p.newMachine(), nil
}

// Restore returns the machine that State described. A state that this version
// can't read is an error.
func Restore(programID string, state []byte) (Machine, error) {
	p, ok := ByID(programID)
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrUnknownProgram, programID)
	}
	return p.restore(state)
}
