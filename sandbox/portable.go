package sandbox

import (
	"context"
	"errors"
	"io"
)

// PortableError is an error of the seam in a form that crosses a process
// boundary as JSON, for providers that run elsewhere. What [Portable] made of an
// error, Err turns back into one for which errors.Is and errors.As hold as for
// the original: the code, the sentinels of this package, a context's errors and
// io.EOF. Causes stay where they were: they may hold what must not travel.
type PortableError struct {
	Code      Code   `json:"code,omitempty"`
	Status    int    `json:"status,omitempty"`
	Retryable bool   `json:"retryable,omitempty"`
	Message   string `json:"message"`
	SandboxID string `json:"sandbox_id,omitempty"`
	// Is names the sentinels that match, from the outside to the inside.
	Is []string `json:"is,omitempty"`
	// Op and Path are a PathError's.
	Op   string `json:"op,omitempty"`
	Path string `json:"path,omitempty"`
	// From and Oldest are a ReplayGapError's.
	Gap          bool  `json:"gap,omitempty"`
	From, Oldest int64 `json:",omitempty"`
}

// sentinelNames are stable: they travel.
var sentinelNames = []struct {
	name string
	err  error
}{
	{"probe_unsupported", ErrProbeUnsupported},
	{"changed", ErrChanged},
	{"path_not_found", ErrPathNotFound},
	{"path_rejected", ErrPathRejected},
	{"unreachable", ErrUnreachable},
	{"process_not_found", ErrProcessNotFound},
	{"process_held", ErrProcessHeld},
	{"displaced", ErrDisplaced},
	{"pool_conflict", ErrPoolConflict},
	{"out_of_reach", ErrOutOfReach},
	{"gone", ErrGone},
	{"not_found", ErrNotFound},
	{"not_running", ErrNotRunning},
	{"isolated_session_not_found", ErrIsolatedSessionNotFound},
	{"unsupported", ErrUnsupported},
	{"deadline", context.DeadlineExceeded},
	{"cancelled", context.Canceled},
	{"eof", io.EOF},
}

// Portable gives the portable form of an error, and nil for nil. The message
// is that of the first *[Error] in the chain; of any other error only the
// sentinels' own texts travel.
func Portable(err error) *PortableError {
	if err == nil {
		return nil
	}
	p := &PortableError{}
	for _, s := range sentinelNames {
		if errors.Is(err, s.err) {
			p.Is = append(p.Is, s.name)
			if p.Message == "" {
				p.Message = s.err.Error()
			}
		}
	}
	var e *Error
	if errors.As(err, &e) {
		p.Code, p.Status, p.Retryable, p.Message, p.SandboxID = e.Code, e.Status, e.Retryable, e.Message, e.SandboxID
	}
	var path *PathError
	if errors.As(err, &path) {
		p.Op, p.Path = path.Op, path.Path
	}
	var gap *ReplayGapError
	if errors.As(err, &gap) {
		p.Gap, p.From, p.Oldest, p.Message = true, gap.From, gap.Oldest, gap.Error()
	}
	if p.Message == "" {
		p.Message = "the provider failed without saying how"
	}
	return p
}

// Err gives the error that p stands for, and nil for nil.
func (p *PortableError) Err() error {
	if p == nil {
		return nil
	}
	a := &arrived{text: p.Message}
	for _, name := range p.Is {
		for _, s := range sentinelNames {
			if s.name == name {
				a.is = append(a.is, s.err)
			}
		}
	}
	var err error = a
	switch {
	case p.Gap:
		err = &ReplayGapError{From: p.From, Oldest: p.Oldest}
	case p.Code != "":
		err = &Error{Code: p.Code, Status: p.Status, Retryable: p.Retryable, Message: p.Message, SandboxID: p.SandboxID, Cause: a}
	}
	if p.Op != "" || p.Path != "" {
		err = &PathError{Op: p.Op, Path: p.Path, Err: err}
	}
	return err
}

// arrived is an error from elsewhere: its text and what it matches.
type arrived struct {
	text string
	is   []error
}

func (a *arrived) Error() string   { return a.text }
func (a *arrived) Unwrap() []error { return a.is }
