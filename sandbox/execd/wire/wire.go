// Package wire holds the types and constants of the protocol between AstraBox
// and execd, the daemon inside each sandbox. The client (package
// sandbox/execd) and the daemon both use it, so that a name is written once.
//
// The protocol is HTTP/1.1 with JSON, plus framed streams where bytes have to
// arrive exactly as they were written. It has no state; everything here is
// plain data and safe for concurrent use.
package wire

// Port is the port that execd listens on in a sandbox.
const Port = 44772

// What the daemon writes into the descriptor of --ready-fd: ReadyLine when it
// answers requests, or FailedPrefix and why it never will.
const (
	ReadyLine    = "ready\n"
	FailedPrefix = "failed: "
)

// Headers of requests and responses.
const (
	// HeaderToken carries the sandbox's token in every request.
	HeaderToken = "X-EXECD-ACCESS-TOKEN"
	// HeaderServer names the daemon in every response: "astrabox-execd/<version>".
	// An answer without it came from another daemon or from something between.
	HeaderServer = "X-Execd-Server"
	// ServerName is the part of HeaderServer before the slash.
	ServerName = "astrabox-execd"
)

// Protocol is the version of the protocol that Version reports.
const Protocol = "1.1.0"

// Features that a daemon may have.
const (
	FeatureOutput  = "output.v1"  // framed command output
	FeatureProcess = "process.v1" // long-lived processes with replay
	FeatureFiles   = "files.v1"   // files below /v1/fs
	// FeatureIsolated is said by a daemon that has the routes; whether sessions
	// can be made where it runs is for /v1/isolated/capabilities to say.
	FeatureIsolated = "isolated.v1"
)

// Version is the answer of GET /version.
type Version struct {
	Server   string   `json:"server"`
	Version  string   `json:"version"`
	Wire     string   `json:"wire"`
	Features []string `json:"features"`
}

// Error is the body of every refusal, apart from a refused token.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Codes of Error that any request may meet. Those of one feature stand with its types.
const (
	CodeInvalidBody  = "INVALID_REQUEST_BODY"
	CodeMissingQuery = "MISSING_QUERY"
	CodeRuntime      = "RUNTIME_ERROR"
	CodeNotFound     = "CONTEXT_NOT_FOUND"
	// CodeUnknownAccount: the sandbox has no account or group of that name (400).
	CodeUnknownAccount = "UNKNOWN_ACCOUNT"
	CodeTooMany        = "LIMIT_EXCEEDED" // 429: as many as the daemon allows are running
	CodeStopping       = "STOPPING"       // 503: the daemon is on its way out
)
