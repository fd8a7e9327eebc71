package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
)

// Code is the stable wire name of a refusal or a failure, in UPPER_SNAKE.
type Code string

// The codes of the seam.
const (
	CodeInvalid                 Code = "SANDBOX_CONFIG_INVALID"
	CodeNameInvalid             Code = "SANDBOX_NAME_INVALID"
	CodeGone                    Code = "SANDBOX_GONE"
	CodeNotFound                Code = "SANDBOX_NOT_FOUND"
	CodeNotRunning              Code = "SANDBOX_NOT_RUNNING"
	CodeUnavailable             Code = "SANDBOX_NOT_AVAILABLE"
	CodeCapacity                Code = "SANDBOX_CAPACITY_UNAVAILABLE"
	CodeCleanupUnconfirmed      Code = "SANDBOX_CLEANUP_UNCONFIRMED"
	CodeAssignmentConflict      Code = "SANDBOX_ASSIGNMENT_CONFLICT"
	CodeAssignmentAmbiguous     Code = "SANDBOX_ASSIGNMENT_AMBIGUOUS"
	CodeCreateInterrupted       Code = "SANDBOX_CREATE_INTERRUPTED"
	CodeIsolatedSessionNotFound Code = "SANDBOX_ISOLATED_SESSION_NOT_FOUND"
	CodePoolUnavailable         Code = "SANDBOX_CLIENT_POOL_UNAVAILABLE"
	CodePortReserved            Code = "EXPOSE_PORT_RESERVED"
	CodeLinkNeedsHeaders        Code = "SANDBOX_BROWSER_ENDPOINT_REQUIRES_HEADERS"
	CodeDiagnosticScope         Code = "SANDBOX_DIAGNOSTIC_SCOPE_INVALID"
	// CodeConfigUnsupported: configuration needs what its backend lacks.
	CodeConfigUnsupported Code = "SANDBOX_CONFIG_UNSUPPORTED"
	CodeLevelUnsupported  Code = "UNSUPPORTED_SANDBOX_PERMISSION_LEVEL"

	// What a backend lacks.
	CodeUnsupported            Code = "SANDBOX_UNSUPPORTED"
	CodeIsolationUnsupported   Code = "SANDBOX_ISOLATION_UNSUPPORTED"
	CodeProcessUnsupported     Code = "SANDBOX_PROCESS_SESSIONS_UNSUPPORTED"
	CodePauseUnsupported       Code = "SANDBOX_PAUSE_UNSUPPORTED"
	CodeListingUnsupported     Code = "SANDBOX_LISTING_UNSUPPORTED"
	CodeCorrelatedUnsupported  Code = "SANDBOX_CORRELATED_CREATE_UNSUPPORTED"
	CodeSignedUnsupported      Code = "SANDBOX_SIGNED_ENDPOINT_UNSUPPORTED"
	CodeNetworkUnsupported     Code = "SANDBOX_NETWORK_POLICY_UNSUPPORTED"
	CodeInjectionUnsupported   Code = "SANDBOX_CREDENTIAL_INJECTION_UNSUPPORTED"
	CodePoolUnsupported        Code = "SANDBOX_CLIENT_POOL_UNSUPPORTED"
	CodeDiagnosticsUnsupported Code = "SANDBOX_DIAGNOSTICS_UNSUPPORTED"

	// The choice of backends.
	CodeBackendUnknown  Code = "SANDBOX_BACKEND_UNKNOWN"
	CodeBackendDisabled Code = "SANDBOX_BACKEND_DISABLED"
)

// Sentinels for [errors.Is]. An [*Error] matches the sentinel of its code, so
// the test holds for an error that crossed a process boundary as a code.
var (
	// ErrGone: the sandbox is not there, said by Connect.
	ErrGone = errors.New("sandbox: gone")
	// ErrNotFound: no such sandbox, said by every other operation.
	ErrNotFound = errors.New("sandbox: not found")
	// ErrNotRunning: the sandbox exists and is paused or stopped.
	ErrNotRunning = errors.New("sandbox: not running")
	// ErrIsolatedSessionNotFound: the sandbox has no such isolated session.
	ErrIsolatedSessionNotFound = errors.New("sandbox: no such isolated session")
	// ErrUnsupported: the backend lacks the operation.
	ErrUnsupported = errors.New("sandbox: unsupported by this backend")
	// ErrProbeUnsupported: the backend can't say whether a sandbox exists.
	// ConfirmDestroyed reads it differently from a probe that failed.
	ErrProbeUnsupported = errors.New("sandbox: the backend can't probe")

	// ErrPathNotFound: no file of that path. errors.Is(err, fs.ErrNotExist) holds too.
	ErrPathNotFound error = &sentinel{"sandbox: no such file", fs.ErrNotExist}
	// ErrPathRejected: the sandbox was asked and said no, or the path can't be
	// asked for at all; the cause is wrapped.
	ErrPathRejected = errors.New("sandbox: path rejected")
	// ErrUnreachable: the sandbox couldn't be asked, or the connection was lost
	// before it answered. It says nothing about the file or the command.
	ErrUnreachable = errors.New("sandbox: unreachable")

	// ErrProcessNotFound: no such process in this sandbox (a pause ends all).
	ErrProcessNotFound = errors.New("sandbox: no such process")
	// ErrProcessHeld: another attachment holds the process.
	ErrProcessHeld = errors.New("sandbox: the process is held by another attachment")
	// ErrDisplaced: another attachment took the process over.
	ErrDisplaced = errors.New("sandbox: displaced by another attachment")
)

type sentinel struct {
	text  string
	cause error
}

func (s *sentinel) Error() string { return s.text }
func (s *sentinel) Unwrap() error { return s.cause }

// Error is a refusal or failure of the seam. Message is safe to show to users
// and never carries a secret; the wrapped cause is for logs.
type Error struct {
	Code      Code
	Status    int  // HTTP status that fits the code
	Retryable bool // the identical request may succeed later without a change
	Message   string
	SandboxID string // the sandbox concerned, where one is
	Cause     error
}

// Errorf makes an Error with the status and retryability usual for its code.
// The last argument may be an error wrapped with %w; it becomes the cause.
func Errorf(code Code, format string, args ...any) *Error {
	e := fmt.Errorf(format, args...)
	status, retry := codeDefaults(code)
	return &Error{Code: code, Status: status, Retryable: retry, Message: e.Error(), Cause: errors.Unwrap(e)}
}

func codeDefaults(c Code) (status int, retryable bool) {
	switch c {
	case CodeInvalid, CodeNameInvalid, CodePortReserved, CodeDiagnosticScope:
		return http.StatusBadRequest, false
	case CodeGone, CodeNotFound, CodeBackendUnknown:
		return http.StatusNotFound, false
	case CodeNotRunning, CodeIsolatedSessionNotFound, CodeAssignmentConflict, CodeAssignmentAmbiguous, CodeCreateInterrupted, CodeBackendDisabled,
		CodeConfigUnsupported, CodeLevelUnsupported:
		return http.StatusConflict, false
	case CodeCapacity, CodePoolUnavailable:
		return http.StatusServiceUnavailable, true
	case CodeCleanupUnconfirmed:
		return http.StatusBadGateway, true
	case CodeUnsupported, CodeIsolationUnsupported, CodeProcessUnsupported, CodePauseUnsupported, CodeListingUnsupported, CodeCorrelatedUnsupported, CodeSignedUnsupported,
		CodeNetworkUnsupported, CodeInjectionUnsupported, CodePoolUnsupported, CodeDiagnosticsUnsupported:
		return http.StatusNotImplemented, false
	case CodeLinkNeedsHeaders:
		return http.StatusBadGateway, false
	default:
		return http.StatusBadGateway, true
	}
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is matches the sentinel of the code.
func (e *Error) Is(target error) bool {
	switch target {
	case ErrGone:
		return e.Code == CodeGone
	case ErrNotFound:
		return e.Code == CodeNotFound
	case ErrNotRunning:
		return e.Code == CodeNotRunning
	case ErrIsolatedSessionNotFound:
		return e.Code == CodeIsolatedSessionNotFound
	case ErrUnsupported:
		return e.Status == http.StatusNotImplemented
	}
	return false
}

// publicText is what of an error may be shown: the message of an [*Error], and
// of any other only that there was one.
func publicText(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Message
	}
	return "the backend gave a reason that is in the server's log only"
}

func pathRejected(why string) error { return fmt.Errorf("%w: %s", ErrPathRejected, why) }

// CodeOf gives the code of the first [*Error] in err's chain, or "".
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// ReplayGapError: the bytes from the asked offset are no longer held.
type ReplayGapError struct {
	From   int64 // what was asked for
	Oldest int64 // the oldest byte still held; attaching from here works
}

func (e *ReplayGapError) Error() string {
	return fmt.Sprintf("sandbox: output from byte %d is no longer held, the oldest held byte is %d", e.From, e.Oldest)
}

// PathError names the operation and path of a failed file call. Err is (or
// wraps) one of ErrPathNotFound, ErrPathRejected, ErrUnreachable or a context error.
type PathError struct {
	Op, Path string
	Err      error
}

func (e *PathError) Error() string { return e.Op + " " + e.Path + ": " + e.Err.Error() }

// Unwrap gives the classified error.
func (e *PathError) Unwrap() error { return e.Err }
