package fault

import (
	"net/http"
	"slices"

	"github.com/astrabox/astrabox/sandbox"
)

// Code is the stable wire name of a refusal or a failure, in UPPER_SNAKE.
// Clients decide by it; its meaning never changes once released.
type Code string

// The codes of requests.
const (
	RequestInvalid       Code = "REQUEST_INVALID"
	CursorInvalid        Code = "CURSOR_INVALID"
	BodyTooLarge         Code = "BODY_TOO_LARGE"
	MessageTooLarge      Code = "MESSAGE_TOO_LARGE"
	MediaTypeUnsupported Code = "MEDIA_TYPE_UNSUPPORTED"
	NotAcceptable        Code = "NOT_ACCEPTABLE"
	RouteNotFound        Code = "ROUTE_NOT_FOUND"
	MethodNotAllowed     Code = "METHOD_NOT_ALLOWED"
	UpgradeRequired      Code = "UPGRADE_REQUIRED"
	HostRefused          Code = "HOST_REFUSED"
	OriginRefused        Code = "ORIGIN_REFUSED"
	RangeInvalid         Code = "RANGE_NOT_SATISFIABLE"
	IdempotencyConflict  Code = "IDEMPOTENCY_CONFLICT"
	TooManyRequests      Code = "TOO_MANY_REQUESTS"
	Timeout              Code = "TIMEOUT"
	Cancelled            Code = "CANCELLED"
	Stopping             Code = "SERVER_STOPPING"
	Internal             Code = "INTERNAL_ERROR"
)

// The codes of conversations, turns, terminals and what they run on.
const (
	ConversationNotFound Code = "CONVERSATION_NOT_FOUND"
	ConversationDeleted  Code = "CONVERSATION_DELETED"
	ConversationArchived Code = "CONVERSATION_ARCHIVED"
	ConversationConflict Code = "CONVERSATION_CONFLICT"
	EnvironmentNotFound  Code = "ENVIRONMENT_NOT_FOUND"
	AgentNotFound        Code = "AGENT_NOT_FOUND"
	QueueFull            Code = "QUEUE_FULL"
	TurnNotFound         Code = "TURN_NOT_FOUND"
	TurnNotRunning       Code = "TURN_NOT_RUNNING"
	InputNotDelivered    Code = "INPUT_NOT_DELIVERED"
	DeliveryUnknown      Code = "INPUT_DELIVERY_UNKNOWN"
	ProgramFailed        Code = "AGENT_PROGRAM_FAILED"
	ProgramMissing       Code = "AGENT_PROGRAM_MISSING"
	SandboxStartFailed   Code = "SANDBOX_START_FAILED"
	SandboxLost          Code = "SANDBOX_LOST"
	SandboxUnreachable   Code = "SANDBOX_UNREACHABLE"
	TerminalNotFound     Code = "TERMINAL_NOT_FOUND"
	TerminalHeld         Code = "ALREADY_CONNECTED"
	TerminalLimit        Code = "TERMINAL_LIMIT"
	TerminalReplayGap    Code = "TERMINAL_REPLAY_GAP"
	TerminalOffset       Code = "TERMINAL_OFFSET_INVALID"
	TerminalReadOnly     Code = "TERMINAL_READ_ONLY"
)

// The codes of files in a workspace.
const (
	FileNotFound     Code = "FILE_NOT_FOUND"
	FileExists       Code = "FILE_EXISTS"
	FileChanged      Code = "FILE_CHANGED"
	FileRejected     Code = "FILE_REJECTED"
	FileLimit        Code = "FILE_LIMIT"
	FileFailed       Code = "FILE_ERROR"
	PathInvalid      Code = "PATH_INVALID"
	PathEscapes      Code = "PATH_ESCAPES"
	NotADirectory    Code = "NOT_A_DIRECTORY"
	IsADirectory     Code = "IS_A_DIRECTORY"
	NotRegular       Code = "NOT_REGULAR"
	NotEmpty         Code = "NOT_EMPTY"
	PermissionDenied Code = "PERMISSION_DENIED"
	NoSpace          Code = "NO_SPACE"
)

// The codes of a server's own state.
const (
	SettingInvalid     Code = "SETTING_INVALID"
	StateInUse         Code = "STATE_IN_USE"
	StateInvalid       Code = "STATE_INVALID"
	StateTooNew        Code = "STATE_TOO_NEW"
	StorageUnavailable Code = "STORAGE_UNAVAILABLE"
	StorageFull        Code = "STORAGE_FULL"
	AddressInUse       Code = "ADDRESS_IN_USE"
	AuthRequired       Code = "AUTHENTICATION_NOT_CONFIGURED"
	HostUnfit          Code = "HOST_UNFIT"
	RuntimeUnavailable Code = "RUNTIME_UNAVAILABLE"
)

// Entry is a line of the catalogue.
type Entry struct {
	Code      Code
	Status    int
	Retryable bool
	Public    string // a sentence that may be shown to anybody
}

// Catalogue gives every code, by name.
func Catalogue() []Entry { return slices.Clone(catalogue) }

var catalogue = []Entry{
	{RequestInvalid, http.StatusBadRequest, false, "The request is not valid."},
	{CursorInvalid, http.StatusBadRequest, false, "The cursor is not one that this server gave."},
	{BodyTooLarge, http.StatusRequestEntityTooLarge, false, "The request body is too large."},
	{MessageTooLarge, http.StatusRequestEntityTooLarge, false, "The message is too long."},
	{MediaTypeUnsupported, http.StatusUnsupportedMediaType, false, "The request body must be JSON."},
	{NotAcceptable, http.StatusNotAcceptable, false, "The answer is not available in a form that the request accepts."},
	{RouteNotFound, http.StatusNotFound, false, "There is nothing at this address."},
	{MethodNotAllowed, http.StatusMethodNotAllowed, false, "This address doesn't take that method."},
	{UpgradeRequired, http.StatusUpgradeRequired, false, "This address takes WebSocket connections only."},
	{HostRefused, http.StatusMisdirectedRequest, false, "This server doesn't answer to that host name."},
	{OriginRefused, http.StatusForbidden, false, "Requests from that origin are refused."},
	{RangeInvalid, http.StatusRequestedRangeNotSatisfiable, false, "The file doesn't have the range that was asked for."},
	{IdempotencyConflict, http.StatusConflict, false, "The same key was used before with other content."},
	{TooManyRequests, http.StatusTooManyRequests, true, "Too much at once; try again shortly."},
	{Timeout, http.StatusGatewayTimeout, true, "It took too long."},
	{Cancelled, StatusClientClosed, true, "The request was cancelled."},
	{Stopping, http.StatusServiceUnavailable, true, "The server is stopping."},
	{Internal, http.StatusInternalServerError, false, "Something went wrong inside AstraBox; the server's log says more under this request id."},

	{ConversationNotFound, http.StatusNotFound, false, "There is no such conversation."},
	{ConversationDeleted, http.StatusGone, false, "The conversation was deleted."},
	{ConversationArchived, http.StatusConflict, false, "The conversation is archived."},
	{ConversationConflict, http.StatusConflict, true, "The conversation was changed by another request meanwhile."},
	{EnvironmentNotFound, http.StatusNotFound, false, "There is no such Environment."},
	{AgentNotFound, http.StatusNotFound, false, "There is no such Agent."},
	{QueueFull, http.StatusTooManyRequests, true, "Too many messages wait in this conversation already."},
	{TurnNotFound, http.StatusNotFound, false, "There is no such turn."},
	{TurnNotRunning, http.StatusConflict, false, "No turn is running."},
	{InputNotDelivered, http.StatusConflict, false, "The message could not be delivered."},
	{DeliveryUnknown, http.StatusConflict, false, "It can't be told whether the message was delivered."},
	{ProgramFailed, http.StatusBadGateway, false, "The Agent program failed."},
	{ProgramMissing, http.StatusConflict, false, "The Agent program is not installed in the sandbox."},
	{SandboxStartFailed, http.StatusBadGateway, true, "The sandbox could not be started."},
	{SandboxLost, http.StatusConflict, true, "The sandbox was lost."},
	{SandboxUnreachable, http.StatusBadGateway, true, "The sandbox can't be reached."},
	{TerminalNotFound, http.StatusNotFound, false, "There is no such terminal; a pause of the sandbox ends all of them."},
	{TerminalHeld, http.StatusConflict, false, "The terminal is used from elsewhere; take it over or watch it."},
	{TerminalLimit, http.StatusConflict, false, "The conversation has as many terminals as it may have."},
	{TerminalReplayGap, http.StatusConflict, false, "The terminal's output from there is no longer held."},
	{TerminalOffset, http.StatusBadRequest, false, "The terminal hasn't written that much yet."},
	{TerminalReadOnly, http.StatusConflict, false, "The terminal is only watched; nothing can be sent to it."},

	{FileNotFound, http.StatusNotFound, false, "There is no such file."},
	{FileExists, http.StatusConflict, false, "A file of that name exists."},
	{FileChanged, http.StatusPreconditionFailed, false, "The file was changed meanwhile."},
	{FileRejected, http.StatusBadRequest, false, "The sandbox refused the file operation."},
	{FileLimit, http.StatusRequestEntityTooLarge, false, "There are more or larger files than the operation takes."},
	{FileFailed, http.StatusBadGateway, false, "The sandbox could not do the file operation."},
	{PathInvalid, http.StatusBadRequest, false, "The path is not valid."},
	{PathEscapes, http.StatusForbidden, false, "The path leads out of the workspace."},
	{NotADirectory, http.StatusBadRequest, false, "It is not a folder."},
	{IsADirectory, http.StatusBadRequest, false, "It is a folder."},
	{NotRegular, http.StatusBadRequest, false, "It is not a regular file."},
	{NotEmpty, http.StatusConflict, false, "The folder is not empty."},
	{PermissionDenied, http.StatusForbidden, false, "The sandbox doesn't permit it."},
	{NoSpace, http.StatusInsufficientStorage, false, "The sandbox's disk is full."},

	{SettingInvalid, http.StatusInternalServerError, false, "A setting is not valid."},
	{StateInUse, http.StatusConflict, false, "The state directory is in use by another server."},
	{StateInvalid, http.StatusInternalServerError, false, "The state directory can't be used."},
	{StateTooNew, http.StatusInternalServerError, false, "The state directory belongs to a newer version of AstraBox."},
	{StorageUnavailable, http.StatusServiceUnavailable, true, "The database can't be reached."},
	{StorageFull, http.StatusInsufficientStorage, true, "The disk that AstraBox keeps its data on is full; nothing was changed. Make some room and try again."},
	{AddressInUse, http.StatusConflict, false, "The address is in use."},
	{AuthRequired, http.StatusInternalServerError, false, "An address that others can reach needs authentication."},
	{HostUnfit, http.StatusInternalServerError, false, "This machine can't run sandboxes as it is."},
	{RuntimeUnavailable, http.StatusServiceUnavailable, true, "The sandbox service doesn't answer."},

	seam(sandbox.CodeInvalid, "The sandbox configuration is not valid."),
	seam(sandbox.CodeNameInvalid, "That is not a sandbox id."),
	seam(sandbox.CodeGone, "The sandbox is gone."),
	seam(sandbox.CodeNotFound, "There is no such sandbox."),
	seam(sandbox.CodeNotRunning, "The sandbox is not running."),
	seam(sandbox.CodeUnavailable, "The sandbox backend failed or can't be reached."),
	seam(sandbox.CodeCapacity, "The sandbox backend has no room at the moment."),
	seam(sandbox.CodeCleanupUnconfirmed, "It can't be confirmed that the sandbox is gone."),
	seam(sandbox.CodeAssignmentConflict, "The sandbox of this start belongs to somebody else."),
	seam(sandbox.CodeAssignmentAmbiguous, "Two sandboxes claim to be the one of this start."),
	seam(sandbox.CodeCreateInterrupted, "The start of the sandbox was interrupted; start it again."),
	seam(sandbox.CodeProcessUnsupported, "This backend has no long-lived processes."),
	seam(sandbox.CodePauseUnsupported, "This backend can't pause sandboxes."),
	seam(sandbox.CodeListingUnsupported, "This backend can't list its sandboxes."),
	seam(sandbox.CodeSignedUnsupported, "This backend can't sign addresses."),
	seam(sandbox.CodeUnsupported, "This backend can't do that."),
	seam(sandbox.CodePortReserved, "The port is reserved."),
	seam(sandbox.CodeLinkNeedsHeaders, "The backend's address needs headers, so it can't be opened in a browser."),
	seam(sandbox.CodeDiagnosticScope, "There is no such report."),
	seam(sandbox.CodeIsolatedSessionNotFound, "There is no such isolated session."),
	seam(sandbox.CodePoolUnavailable, "The pool of prepared sandboxes can't be used at the moment."),
	seam(sandbox.CodeConfigUnsupported, "The configuration needs what its backend doesn't have."),
	seam(sandbox.CodeLevelUnsupported, "This backend doesn't offer that permission level."),
	seam(sandbox.CodeIsolationUnsupported, "This backend, or this sandbox, has no isolated sessions."),
	seam(sandbox.CodeCorrelatedUnsupported, "This backend can't find the sandbox of an interrupted start."),
	seam(sandbox.CodeNetworkUnsupported, "This backend can't hold sandboxes to network rules."),
	seam(sandbox.CodeInjectionUnsupported, "This backend can't keep credentials outside its sandboxes."),
	seam(sandbox.CodePoolUnsupported, "This backend can't prepare sandboxes ahead."),
	seam(sandbox.CodeDiagnosticsUnsupported, "This backend has no such report."),
	seam(sandbox.CodeBackendUnknown, "The sandbox backend is not installed."),
	seam(sandbox.CodeBackendDisabled, "The sandbox backend is not enabled."),
}

// seam makes the entry of a code of the sandbox seam, whose status and
// retryability the seam itself decides.
func seam(code sandbox.Code, public string) Entry {
	e := sandbox.Errorf(code, "")
	return Entry{Code: Code(code), Status: e.Status, Retryable: e.Retryable, Public: public}
}

var byCode = func() map[Code]Entry {
	m := make(map[Code]Entry, len(catalogue))
	for _, e := range catalogue {
		m[e.Code] = e
	}
	return m
}()
