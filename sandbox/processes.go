package sandbox

import "context"

// Processes are the long-lived processes of one sandbox: a terminal's shell,
// an Agent program. A process outlives its attachments, the request and a
// restart of AstraBox; any replica attaches to it by id. Pause ends all of them.
//
// Output is numbered in bytes, stdout and stderr together, across runs.
// Attaching from an offset that is still held replays every byte from there
// exactly once; from one no longer held it fails with a [*ReplayGapError], and
// from beyond the end with SANDBOX_CONFIG_INVALID.
type Processes interface {
	// Start registers a process; the first attachment without NoStart starts
	// it. The same Key returns the same process.
	Start(ctx context.Context, s ProcessSpec) (processID string, err error)
	// Status reports without attaching. Unknown: ErrProcessNotFound.
	Status(ctx context.Context, processID string) (ProcessStatus, error)
	// Attach takes the process; ctx bounds the handshake only. Held by another
	// and no Takeover: ErrProcessHeld. A process that exited runs again, unless
	// NoStart is set; bytes of the earlier run come first, then its Exit.
	Attach(ctx context.Context, processID string, o AttachOptions) (Attachment, error)
	// Delete kills every process it started and forgets it; missing is success.
	Delete(ctx context.Context, processID string) error
}

// Full says what happens when a process has written more than its buffer holds.
type Full int

// DropOldest keeps the newest bytes (terminals). Block makes the process wait
// until an attachment has read (programs): nothing is lost.
const (
	DropOldest Full = iota
	Block
)

// ProcessSpec describes a process.
type ProcessSpec struct {
	Key    string // idempotency key within the sandbox; required
	Line   string // POSIX sh command line
	Dir    string // absolute; empty: the account's home
	Env    map[string]string
	User   string // account name; empty: root
	TTY    *Size  // nil: pipes
	Buffer int    // bytes of output kept for replay; 0: 1 MiB
	Full   Full
}

// Size of a terminal in characters.
type Size struct{ Cols, Rows uint16 }

// ProcessState is where a process is in its life.
type ProcessState string

// The states of a process.
const (
	ProcessRegistered ProcessState = "registered" // never started
	ProcessRunning    ProcessState = "running"
	ProcessExited     ProcessState = "exited"
)

// ProcessStatus is what Status reports.
type ProcessStatus struct {
	Run    int // 0 before the first run, then counting from 1
	State  ProcessState
	Exit   *Exit // of the last run, when State is ProcessExited
	Oldest int64 // offset of the oldest byte held
	Next   int64 // offset that the next byte will have
	Stdin  int64 // bytes of stdin that this run has accepted; -1: can't be told
}

// Exit is how a run ended.
type Exit struct {
	Code   int    // 128+n for a signal
	Signal string // "SIGKILL", or empty
}

// AttachOptions are the options of Processes.Attach.
type AttachOptions struct {
	From     int64 // offset of the first byte wanted
	Takeover bool  // displace the attachment that holds the process
	ReadOnly bool  // watch: doesn't hold the process, can't send; never starts it
	NoStart  bool  // never start it: replay what is left, then Exit, then io.EOF
}

// ReplayFrom says whether an attachment can begin at from when the bytes from
// oldest to next (exclusive) are held: nil; a *[ReplayGapError] for bytes that
// were held once; SANDBOX_CONFIG_INVALID for an offset that there never was.
func ReplayFrom(from, oldest, next int64) error {
	switch {
	case oldest < 0 || next < oldest:
		return Errorf(CodeUnavailable, "the bytes from %d to %d can't be what is held", oldest, next)
	case from < 0 || from > next:
		return Errorf(CodeInvalid, "the offset %d isn't from 0 to %d, where the output ends", from, next)
	case from < oldest:
		return &ReplayGapError{From: from, Oldest: oldest}
	}
	return nil
}

// Frame is a piece of output (Data) or the end of a run (Exit).
type Frame struct {
	Run     int
	Offset  int64 // of Data's first byte
	Channel Channel
	Data    []byte // valid until the next Recv
	Exit    *Exit
}

// Channel says where output came from.
type Channel uint8

// The channels. A terminal has Stdout only.
const (
	Stdout Channel = 1
	Stderr Channel = 2
)

// Attachment is one connection to a process. Recv is for one goroutine, the
// rest for any. After Close, or the loss of the connection, the process goes on.
type Attachment interface {
	// Recv gives the next frame; io.EOF after the last, ErrDisplaced after a
	// takeover, ErrUnreachable when the connection was lost.
	Recv(ctx context.Context) (Frame, error)
	// Send queues bytes for stdin, in order. It doesn't wait for the process to
	// read them unless 1 MiB is waiting already. What arrived is counted in
	// ProcessStatus.Stdin, so that a caller that lost the connection can send
	// exactly the rest. io.EOF, as from the methods below, when the process has
	// ended: what is left of its output and its Exit still come from Recv.
	Send(ctx context.Context, stdin []byte) error
	CloseStdin(ctx context.Context) error
	// Ack says that the caller has stored everything before offset. A process
	// of kind Block keeps what isn't acknowledged and waits when its buffer is
	// full of it; for other processes Ack does nothing. Attaching as the holder
	// acknowledges what is before From. After the end it is nil.
	Ack(ctx context.Context, offset int64) error
	Resize(ctx context.Context, s Size) error
	// Signal sends SIGINT, SIGTERM, SIGKILL, SIGQUIT or SIGHUP to the process group.
	Signal(ctx context.Context, name string) error
	Close() error
}

// UnsupportedProcesses is the Processes of a provider without long-lived processes.
func UnsupportedProcesses(provider string) Processes { return unsupportedProcesses{provider} }

// IsUnsupportedProcesses reports whether p came from UnsupportedProcesses.
func IsUnsupportedProcesses(p Processes) bool {
	_, ok := p.(unsupportedProcesses)
	return ok
}

type unsupportedProcesses struct{ provider string }

func (u unsupportedProcesses) err() error {
	return Errorf(CodeProcessUnsupported, "the backend %s has no long-lived processes", u.provider)
}

func (u unsupportedProcesses) Start(context.Context, ProcessSpec) (string, error) {
	return "", u.err()
}

func (u unsupportedProcesses) Status(context.Context, string) (ProcessStatus, error) {
	return ProcessStatus{}, u.err()
}

func (u unsupportedProcesses) Attach(context.Context, string, AttachOptions) (Attachment, error) {
	return nil, u.err()
}

func (u unsupportedProcesses) Delete(context.Context, string) error { return u.err() }
