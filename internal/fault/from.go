package fault

import (
	"context"
	"errors"
	"io/fs"
	"syscall"

	"github.com/astrabox/astrabox/sandbox"
)

// From turns any error into an *Error and gives nil for nil. It knows the
// errors of the sandbox seam, file errors and context errors; everything else
// is [Internal], whose text tells nothing and whose cause is err. An *Error in
// the chain wins: the text around it is kept for logs.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	var own *Error
	if errors.As(err, &own) {
		if err == error(own) { //nolint:errorlint // is it err itself, with nothing around it?
			return own
		}
		outer := *own
		outer.Cause = err
		return &outer
	}
	var pathErr *sandbox.PathError
	if errors.As(err, &pathErr) {
		return fromPath(err, pathErr)
	}
	var seamErr *sandbox.Error
	if errors.As(err, &seamErr) {
		return fromSeam(err, seamErr)
	}
	var gap *sandbox.ReplayGapError
	if errors.As(err, &gap) {
		return Wrap(TerminalReplayGap, err, "The output from byte %d is no longer held; the oldest held byte is %d.", gap.From, gap.Oldest)
	}
	for _, m := range sentinels {
		if errors.Is(err, m.is) {
			return Wrap(m.code, err, "")
		}
	}
	return Wrap(Internal, err, "")
}

var sentinels = []struct {
	is   error
	code Code
}{
	{sandbox.ErrProcessNotFound, TerminalNotFound},
	{sandbox.ErrProcessHeld, TerminalHeld},
	{sandbox.ErrDisplaced, TerminalHeld},
	{sandbox.ErrGone, Code(sandbox.CodeGone)},
	{sandbox.ErrNotFound, Code(sandbox.CodeNotFound)},
	{sandbox.ErrNotRunning, Code(sandbox.CodeNotRunning)},
	{sandbox.ErrUnsupported, Code(sandbox.CodeUnsupported)},
	{context.Canceled, Cancelled},
	{context.DeadlineExceeded, Timeout},
	{sandbox.ErrUnreachable, SandboxUnreachable},
}

// fromSeam keeps the seam's own message: the contract says that it is safe to
// show. A code that isn't in the catalogue (a provider's own) keeps the status
// that came with it.
func fromSeam(err error, s *sandbox.Error) *Error {
	e := &Error{Code: Code(s.Code), Status: s.Status, Retryable: s.Retryable, Public: s.Message, Cause: err}
	entry, known := byCode[e.Code]
	if e.Public == "" {
		e.Public = entry.Public
		if !known {
			e.Public = byCode[Internal].Public
		}
	}
	if e.Status < 400 || e.Status > 599 {
		e.Status = Lookup(e.Code).Status
	}
	return e
}

// fromPath classifies a failed file call. The path is the caller's own, so it
// may be shown.
func fromPath(err error, p *sandbox.PathError) *Error {
	code := pathCode(p.Err)
	text := Lookup(code).Public
	if p.Path == "" {
		return Wrap(code, err, "")
	}
	return Wrap(code, err, "%s: %s", text[:len(text)-1], printable(p.Path))
}

func pathCode(err error) Code {
	for _, m := range pathCodes {
		if errors.Is(err, m.is) {
			return m.code
		}
	}
	switch {
	case errors.Is(err, sandbox.ErrPathRejected):
		return FileRejected
	case errors.Is(err, sandbox.ErrUnreachable):
		return SandboxUnreachable
	case errors.Is(err, fs.ErrNotExist):
		return FileNotFound
	}
	return FileRejected
}

// The order matters: a more exact cause stands before the class that wraps it.
var pathCodes = []struct {
	is   error
	code Code
}{
	{context.Canceled, Cancelled},
	{context.DeadlineExceeded, Timeout},
	{sandbox.ErrPathNotFound, FileNotFound},
	{sandbox.ErrChanged, FileChanged},
	{sandbox.ErrLimit, FileLimit},
	{syscall.ENOTEMPTY, NotEmpty},
	{fs.ErrExist, FileExists},
	{syscall.ENOSPC, NoSpace},
	{syscall.EDQUOT, NoSpace},
	{syscall.ENOTDIR, NotADirectory},
	{syscall.EISDIR, IsADirectory},
	{syscall.ENODEV, NotRegular},
	{syscall.EIO, FileFailed},
	{syscall.EPERM, PathEscapes}, // what the files client says of a path that leads out
	{fs.ErrPermission, PermissionDenied},
	{fs.ErrInvalid, PathInvalid},
	{syscall.ENAMETOOLONG, PathInvalid},
}

// printable keeps a path readable in one line: control characters become "?"
// and a very long path is cut.
func printable(path string) string {
	const limit = 200
	out := make([]rune, 0, min(len(path), limit))
	for _, r := range path {
		if len(out) == limit {
			return string(out) + "…"
		}
		if r < ' ' || r == 0x7f {
			r = '?'
		}
		out = append(out, r)
	}
	return string(out)
}
