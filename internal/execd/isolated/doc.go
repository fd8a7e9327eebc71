// Package isolated makes sandboxes within the sandbox: sessions with their own
// processes, account, view of the files and, if wanted, network. The daemon's
// /v1/isolated handlers call it.
//
// A session is a copy of the daemon's own program that is process 1 of new
// namespaces (mounts, processes, IPC, host name, optionally network). It puts
// its view of the files together, gives up its privileges and then serves what
// the daemon hands on, over connections whose ends it gets passed: there is no
// address that anybody else could reach. Everything that runs in the session
// is started by it, so that a program of the session that interferes with a
// start holds up its own session only. When process 1 ends, and it does as soon
// as the daemon's end of its control socket is closed, the kernel ends
// everything else in the session and forgets its mounts.
//
// [Manager] is the daemon's side; [Inside], [Enter] and [Listener] are the
// session's. Everything of the Manager is safe for concurrent use. Failures that are the
// request's fault are *Error with a code and status of the wire.
package isolated

import "fmt"

// Error is a refusal, as the wire has it.
type Error struct {
	Status  int
	Code    string
	Message string
}

func (e *Error) Error() string { return e.Message }

func refuse(status int, code, format string, args ...any) error {
	return &Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

// Codes of refusals, besides those that the whole wire has.
const (
	CodeNotFound    = "SESSION_NOT_FOUND"
	CodeUnavailable = "SERVICE_UNAVAILABLE"
	CodeUnsupported = "NOT_SUPPORTED"
)
