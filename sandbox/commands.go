package sandbox

import (
	"context"
	"io"
	"time"
)

// RunOutputLimit is how many bytes of each stream Commands.Run keeps.
const RunOutputLimit = 4 << 20

// Commands runs shell command lines in one sandbox, as root, with an empty stdin.
//
// A non-zero exit status is data, not an error; death by a signal is 128+n. A
// deadline passed (Timeout, or ctx's own, both sent to the sandbox so that
// they hold when AstraBox dies) gives an error for which
// errors.Is(err, context.DeadlineExceeded) holds. A deadline or a cancelled ctx
// stops the command with every process that it started. A lost connection is
// ErrUnreachable, never an exit code. Output is byte-exact.
type Commands interface {
	// Run keeps RunOutputLimit bytes of each stream and says Truncated past it.
	Run(ctx context.Context, c Command) (CommandResult, error)
	// Stream writes output as it comes; the result's Stdout and Stderr are nil.
	// Nil writers discard.
	Stream(ctx context.Context, c Command, stdout, stderr io.Writer) (CommandResult, error)
}

// Command is one POSIX sh command line (bash where the image has it).
type Command struct {
	Line    string
	Dir     string // absolute; empty: the image's root directory
	Env     map[string]string
	Timeout time.Duration // zero: none
}

// CommandResult is how a command ended.
type CommandResult struct {
	ExitCode       int
	Stdout, Stderr []byte
	Truncated      bool
}
