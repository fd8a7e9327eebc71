package sandbox

import (
	"context"
	"time"
)

// EnvironmentValidator is for combinations that only this backend knows can't
// work. AstraBox asks it when an Environment is saved, after its own checks.
type EnvironmentValidator interface {
	// ValidateEnvironment refuses with an [*Error] whose message names the field
	// and what to do, without I/O. What it doesn't know, it lets pass.
	ValidateEnvironment(c EnvironmentConfig) error
}

// Diagnoser gives the backend's own reports on a sandbox, for people to read.
// Nobody parses them.
type Diagnoser interface {
	// ReadDiagnostics gives one report. Unknown sandbox: SANDBOX_NOT_FOUND; an
	// unknown scope: SANDBOX_DIAGNOSTIC_SCOPE_INVALID; a scope that the backend
	// lacks: SANDBOX_DIAGNOSTICS_UNSUPPORTED. What Bound gives is redacted and
	// capped by [RedactDiagnostics], whatever the provider did.
	ReadDiagnostics(ctx context.Context, sandboxID string, scope DiagnosticScope) (Diagnostics, error)
}

// DiagnosticScope chooses a report.
type DiagnosticScope string

// The scopes.
const (
	DiagnosticSummary DiagnosticScope = "summary"
	DiagnosticInspect DiagnosticScope = "inspect"
	DiagnosticEvents  DiagnosticScope = "events"
	DiagnosticLogs    DiagnosticScope = "logs"
)

// Diagnostics is a report in plain text.
type Diagnostics struct {
	SandboxID string
	Scope     DiagnosticScope
	Text      string
	Truncated bool // only the newest part (events, logs) or the beginning (others) is there
}

// SecurityPosture lets a sandbox report what contains it.
type SecurityPosture interface {
	// ReadSecurityPosture asks the sandbox itself, not the configuration that it
	// was made from. That it can't be asked is an answer: Available false, and
	// why in Detail.
	ReadSecurityPosture(ctx context.Context, sandboxID string) (Posture, error)
}

// Posture is what a sandbox reported about its containment. It names
// credentials and never holds one.
type Posture struct {
	SandboxID     string
	Available     bool
	DefaultAction EgressAction // for destinations that no rule names
	Rules         []EgressRule // in the order in which they are tried
	Credentials   []string     // names in the vault
	Bindings      []string     // names of what they are bound to
	Detail        string       // plain text for people
}

// EgressAction is what happens to traffic that leaves a sandbox.
type EgressAction string

// The actions.
const (
	EgressAllow EgressAction = "allow"
	EgressDeny  EgressAction = "deny"
)

// EgressRule is one rule for a host, wildcard, IP or CIDR.
type EgressRule struct {
	Action EgressAction
	Target string
}

// Metrics measures one sandbox.
type Metrics interface {
	ReadMetrics(ctx context.Context, sandboxID string) (Usage, error)
}

// Usage is what a sandbox uses. A negative number means that it can't be told;
// a limit of zero means that there is none.
type Usage struct {
	At          time.Time
	CPUTime     time.Duration // since the sandbox started
	CPULimit    float64       // cores
	MemoryUsed  int64         // bytes
	MemoryLimit int64
	DiskUsed    int64 // bytes
	DiskLimit   int64
}
