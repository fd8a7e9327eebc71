package sandbox

import (
	"fmt"
	"slices"
)

// PermissionLevel says how much the workload of a sandbox may do inside it. It
// is a contract and not a hint: a provider makes the sandbox under that level
// and has it attested by the sandbox before Create returns, or refuses. A
// sandbox that doesn't attest its level fails the start.
type PermissionLevel string

// The levels.
const (
	// PermissionDefault is what every backend gives.
	PermissionDefault PermissionLevel = "default"
	// PermissionAdvanced lets the sandbox make isolated sessions. Its
	// attestation is ReadIsolationCapability, so only a provider with
	// [IsolatedSessions] may list it.
	PermissionAdvanced PermissionLevel = "advanced"
	// PermissionPrivileged is known so that it can be refused by name: nothing
	// can attest it, and no provider may list it.
	PermissionPrivileged PermissionLevel = "privileged"
)

// Known reports whether l is a level at all; the empty one is the default.
func (l PermissionLevel) Known() bool {
	return slices.Contains([]PermissionLevel{"", PermissionDefault, PermissionAdvanced, PermissionPrivileged}, l)
}

func (l PermissionLevel) orDefault() PermissionLevel {
	if l == "" {
		return PermissionDefault
	}
	return l
}

// Allows reports whether sandboxes may be made under l; the empty level is the default.
func (c Capabilities) Allows(l PermissionLevel) bool {
	return slices.Contains(c.Levels(), l.orDefault())
}

// CheckLevel refuses a level that the backend doesn't list
// (UNSUPPORTED_SANDBOX_PERMISSION_LEVEL).
func (c Capabilities) CheckLevel(backend string, l PermissionLevel) error {
	if c.Allows(l) {
		return nil
	}
	return Errorf(CodeLevelUnsupported, "The backend %s doesn't offer the permission level %q; it offers %s.", backend, l, joined(c.Levels()))
}

func joined[S ~string](list []S) string {
	var out string
	for i, s := range list {
		if i > 0 {
			out += ", "
		}
		out += string(s)
	}
	return out
}

// wrongLevels names what is wrong with a declared list. That advanced can be
// attested is checked against the provider.
func wrongLevels(levels []PermissionLevel) (wrong []string) {
	if levels != nil && len(levels) == 0 {
		return []string{"its list of permission levels is empty; leave it unset for default only"}
	}
	seen := map[PermissionLevel]bool{}
	for _, l := range levels {
		switch {
		case l == "" || !l.Known():
			wrong = append(wrong, fmt.Sprintf("%q is no permission level", string(l)))
		case l == PermissionPrivileged:
			wrong = append(wrong, "no provider may list the permission level privileged: nothing can attest it")
		}
		if seen[l] {
			wrong = append(wrong, fmt.Sprintf("it lists the permission level %q twice", string(l)))
		}
		seen[l] = true
	}
	return wrong
}
