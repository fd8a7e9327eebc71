// Package fault holds the errors that AstraBox shows to people and programs:
// one type, and one catalogue of codes with their HTTP status, whether the
// identical request may succeed later, and a sentence that is safe to show.
//
// Every package of the platform returns *[Error] where a caller outside may
// see the failure. The HTTP API and the command line turn any error into one
// with [From] and print [Error.Public]; logs print [Error.Error], which has
// the cause too. The package does no I/O and everything in it is safe for
// concurrent use.
package fault

import (
	"errors"
	"fmt"
	"net/http"
)

// Error is a refusal or a failure with two texts: Public for whoever asked,
// and the cause for logs. Public never holds a secret, an address inside the
// host, or the text of a foreign error.
type Error struct {
	Code      Code
	Status    int  // HTTP status
	Retryable bool // the identical request may succeed later without a change
	Public    string
	Cause     error // for logs; may be nil
}

// New makes an Error of the code with the catalogue's status and
// retryability. The formatted text becomes Public; an empty format takes the
// catalogue's sentence. Don't put a foreign error's text in it: use [Wrap].
func New(code Code, format string, args ...any) *Error {
	return Wrap(code, nil, format, args...)
}

// Wrap is [New] with a cause, which is logged and never shown.
func Wrap(code Code, cause error, format string, args ...any) *Error {
	entry := Lookup(code)
	e := &Error{Code: code, Status: entry.Status, Retryable: entry.Retryable, Public: entry.Public, Cause: cause}
	if format != "" {
		e.Public = fmt.Sprintf(format, args...)
	}
	return e
}

// Error is the text for logs: code, public sentence and cause.
func (e *Error) Error() string {
	s := string(e.Code) + ": " + e.Public
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is matches another *Error of the same code, so that
// errors.Is(err, fault.New(fault.TurnNotRunning, "")) works.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Is reports whether err is, or wraps, an Error of the code.
func Is(err error, code Code) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == code
}

// StatusClientClosed is the status noted for a request whose client went away.
// Nobody receives it; it keeps such requests apart in logs.
const StatusClientClosed = 499

// Lookup gives the catalogue's entry of a code. An unknown code is treated as
// [Internal], so that a mistake is loud in status and silent in text.
func Lookup(code Code) Entry {
	if e, ok := byCode[code]; ok {
		return e
	}
	return Entry{Code: code, Status: http.StatusInternalServerError, Public: byCode[Internal].Public}
}
