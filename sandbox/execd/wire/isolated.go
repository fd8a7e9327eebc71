package wire

// The isolated.v1 feature: isolated sessions beyond what the older protocol of
// /v1/isolated says.
//
// POST /v1/isolated/session takes workspace.source (the directory that is shown
// at workspace.path). Below /v1/isolated/session/{id} there are, besides the
// routes of the older protocol:
//
//	POST   …/run   IsolatedRun; answers in frames (OutputType) when the request accepts that
//	POST   …/pty   ProcessRequest with a Key → ProcessCreated: a process in the session
//	GET    …/pty/{id}, DELETE …/pty/{id}, GET …/pty/{id}/ws (ProcessProtocol)
//	*      …/fs/*  files.v1, as the session sees the files and with its account as the default owner
//
// A run answers a refusal (400, 404, 429) before it begins. Closing the request
// kills the run with what it started, and not the session.
const PathIsolated = "/v1/isolated"

// IsolatedRun is the body of a run in an isolated session.
type IsolatedRun struct {
	Code string `json:"code"`
	// Envs and Cwd are the run's own: with either, the session's directory and
	// variables stay as they were.
	Envs           map[string]string `json:"envs,omitempty"`
	Cwd            string            `json:"cwd,omitempty"`
	TimeoutSeconds int64             `json:"timeout_seconds,omitempty"`
	TimeoutMillis  int64             `json:"timeout_ms,omitempty"` // instead
	Background     bool              `json:"background,omitempty"`
}

// IsolatedCapabilities is the answer of GET /v1/isolated/capabilities.
type IsolatedCapabilities struct {
	Available bool   `json:"available"`
	Isolator  string `json:"isolator"`
	Version   string `json:"version"`
	Message   string `json:"message,omitempty"`
	SetPriv   bool   `json:"setpriv_available"`
	UserNS    bool   `json:"userns_available"`
	Commit    bool   `json:"commit_supported"`
	Diff      bool   `json:"diff_supported"`
}

// CodeSessionNotFound (404): there is no such isolated session, or it has ended.
const CodeSessionNotFound = "SESSION_NOT_FOUND"

// HeaderIsolatedCursor carries the cursor of the next page of a background
// run's log, in bytes.
const HeaderIsolatedCursor = "EXECD-ISOLATED-TAIL-CURSOR"
