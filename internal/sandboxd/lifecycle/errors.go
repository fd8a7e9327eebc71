package lifecycle

import (
	"context"
	"errors"
	"fmt"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/state"
)

// Code is the wire name of a refusal or failure.
type Code string

// The codes.
const (
	CodeInvalid       Code = "INVALID_REQUEST"
	CodeImage         Code = "IMAGE_UNKNOWN"
	CodeNotFound      Code = "SANDBOX_NOT_FOUND"
	CodeState         Code = "INVALID_STATE"
	CodeKeyReused     Code = "IDEMPOTENCY_KEY_REUSED" // another request under the same key
	CodeKeySpent      Code = "IDEMPOTENCY_KEY_SPENT"  // the key's sandbox is gone
	CodeCapacity      Code = "CAPACITY_EXHAUSTED"
	CodeCreateFailed  Code = "CREATE_FAILED"
	CodeResumeFailed  Code = "RESUME_FAILED"
	CodeDestroyFailed Code = "DESTROY_FAILED" // the service goes on trying
	CodeStopping      Code = "SERVICE_STOPPING"
	CodeInternal      Code = "INTERNAL_ERROR"
)

// Error is a refusal or failure. Message is for the client and holds no
// secret; the cause is for the log.
type Error struct {
	Code    Code
	Message string
	cause   error
}

// Errorf makes an Error; a %w argument becomes the cause.
func Errorf(code Code, format string, args ...any) *Error {
	e := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: e.Error(), cause: errors.Unwrap(e)}
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.cause }

// fail makes err an *Error. Causes whose text may name paths of the host are
// kept for the log only.
func fail(err error) error {
	var known *Error
	var st *state.StateError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &known):
		return known
	case errors.Is(err, state.ErrNotFound):
		return &Error{Code: CodeNotFound, Message: "there is no such sandbox", cause: err}
	case errors.As(err, &st):
		return &Error{Code: CodeState, Message: fmt.Sprintf("the sandbox is %s", st.Have), cause: err}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: CodeInternal, Message: "the request ended before the operation did", cause: err}
	}
	return &Error{Code: CodeInternal, Message: "the service failed; its log says more", cause: err}
}

// createError says why a create failed.
func createError(err error) *Error {
	var known *Error
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, runtime.ErrImageUnknown):
		return &Error{Code: CodeImage, Message: "this service can't provide the image", cause: err}
	case errors.Is(err, runtime.ErrInvalid):
		return &Error{Code: CodeInvalid, Message: err.Error(), cause: err}
	case errors.Is(err, runtime.ErrExhausted):
		return &Error{Code: CodeCapacity, Message: "this machine has no room for another sandbox", cause: err}
	case errors.Is(err, context.DeadlineExceeded):
		return &Error{Code: CodeCreateFailed, Message: "the sandbox didn't answer in time", cause: err}
	case errors.Is(err, context.Canceled):
		return &Error{Code: CodeCreateFailed, Message: "the start was cancelled", cause: err}
	}
	return &Error{Code: CodeCreateFailed, Message: "the sandbox didn't start; the log of the service says why", cause: err}
}
