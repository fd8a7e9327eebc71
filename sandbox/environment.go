package sandbox

import (
	"fmt"
	"strings"
)

// EnvironmentConfig is what saved configuration asks of a backend: an
// Environment, and what the Agents on it add. Fields are named in refusals as
// people see them in that configuration (see [Refusal]).
type EnvironmentConfig struct {
	Image            string
	Network          NetworkPolicy
	PermissionLevel  PermissionLevel
	Limits, Requests map[string]string
	Env              map[string]string

	// Sharing: the conversations of an Agent share one sandbox, each in an
	// isolated session.
	Sharing bool
	// PauseIdle: an idle sandbox is paused, not terminated.
	PauseIdle bool
	// Prepared is how many sandboxes wait ready for a conversation.
	Prepared int
	// Program names the Agent program when it runs as a long-lived process; empty
	// for one that needs commands only.
	Program string
	// Terminal: an Agent offers a terminal panel.
	Terminal bool
}

// Refusal is one reason why configuration can't be saved on a backend.
type Refusal struct {
	Backend    string
	Capability string // the flag, or "PermissionLevels"; empty: the backend's own objection
	Field      string // of the configuration: network, sandbox_sharing, idle, prepared, program, terminal_panel, permission_level
	Message    string // a sentence for people
	Code       Code
}

// ConfigError is the refusal of configuration, whole: everything that is
// wrong, in one error of code SANDBOX_CONFIG_UNSUPPORTED (409).
type ConfigError struct {
	Err      *Error
	Refusals []Refusal
}

func (e *ConfigError) Error() string { return e.Err.Error() }

// Unwrap gives the error with its code.
func (e *ConfigError) Unwrap() error { return e.Err }

// CheckEnvironment says whether configuration can be saved on a backend with
// these capabilities: nil, or a *[ConfigError] that names the backend,
// the capability and the field of each fault. It is a pure function of what it
// is given, for who saves an Environment or an Agent. poolReady is what
// ClientPoolReadiness said; it isn't looked at without the flag.
//
// A backend that can't enforce network rules can have no Environment, not even
// an unrestricted one: metadata addresses have to be denied in any case.
func CheckEnvironment(backend string, caps Capabilities, poolReady error, c EnvironmentConfig) error {
	var out []Refusal
	need := func(flag, field, why string) {
		if r, ok := RuleOf(flag); ok && !r.Declared(caps) {
			out = append(out, Refusal{Backend: backend, Capability: flag, Field: field, Code: r.Code,
				Message: fmt.Sprintf("%s: %s The backend %s doesn't have the capability %s. %s", field, why, backend, flag, r.Without)})
		}
	}
	need("CreateNetworkPolicy", "network", "every Environment has network rules.")
	if c.Sharing {
		need("IsolatedSessions", "sandbox_sharing", "conversations that share a sandbox run in isolated sessions.")
	}
	if c.PauseIdle {
		need("Pause", "idle", "idle sandboxes are to be paused.")
	}
	if c.Prepared > 0 {
		need("ClientPool", "prepared", "sandboxes are to be prepared ahead.")
		if caps.ClientPool && poolReady != nil {
			out = append(out, Refusal{Backend: backend, Capability: "ClientPool", Field: "prepared", Code: CodePoolUnavailable,
				Message: fmt.Sprintf("prepared: the backend %s can't prepare sandboxes as it is set up: %s", backend, publicText(poolReady))})
		}
	}
	if !c.Sharing {
		if c.Program != "" {
			need("ProcessSessions", "program", fmt.Sprintf("the Agent program %s runs as a long-lived process.", c.Program))
		}
		if c.Terminal {
			need("ProcessSessions", "terminal_panel", "a terminal is a long-lived process.")
		}
	}
	if err := caps.CheckLevel(backend, c.PermissionLevel); err != nil {
		out = append(out, Refusal{Backend: backend, Capability: "PermissionLevels", Field: "permission_level", Code: CodeLevelUnsupported,
			Message: "permission_level: " + publicText(err)})
	}
	if _, err := c.Network.Normalize(); err != nil {
		out = append(out, Refusal{Backend: backend, Field: "network", Code: CodeInvalid, Message: "network: " + publicText(err)})
	}
	return configError(backend, out, poolReady)
}

func configError(backend string, list []Refusal, cause error) error {
	if len(list) == 0 {
		return nil
	}
	var text []string
	for _, r := range list {
		text = append(text, r.Message)
	}
	e := Errorf(CodeConfigUnsupported, "This can't be saved on the backend %s. %s", backend, strings.Join(text, " "))
	e.Cause = cause
	return &ConfigError{Err: e, Refusals: list}
}

// CheckEnvironment is the function of that name for this backend, with what
// the backend's own EnvironmentValidator has to say.
func (b *Bound) CheckEnvironment(c EnvironmentConfig) error {
	var ready error
	if b.Pool != nil {
		ready = b.Pool.ClientPoolReadiness()
	}
	err := CheckEnvironment(b.Name(), b.Caps, ready, c)
	if err != nil || b.Validator == nil {
		return err
	}
	if err := b.Validator.ValidateEnvironment(c); err != nil {
		err = configError(b.Name(), []Refusal{{Backend: b.Name(), Code: CodeInvalid, Message: publicText(err)}}, err)
		return err
	}
	return nil
}
