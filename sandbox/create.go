package sandbox

import (
	"fmt"
	"path"
	"strings"
	"time"
)

// Metadata keys that say whose a sandbox is. Callers of Create can't set them;
// [CreateSpec.OwnershipMetadata] stamps them.
const (
	KeyManagedBy     = "astrabox.managed-by"
	KeyInstallation  = "astrabox.installation"
	KeySessionID     = "astrabox.session-id"
	KeyAssignmentID  = "astrabox.assignment-id"
	KeyNetworkWiring = "astrabox.network-wiring"

	// ManagedBy is the value of KeyManagedBy.
	ManagedBy = "astrabox"
)

// CreateSpec describes a sandbox to create, in no backend's words.
type CreateSpec struct {
	InstallationID string // of the AstraBox installation
	OwnerID        string // the conversation or pool that the sandbox is for
	AssignmentID   string // identity of this one attempt; never the conversation's id

	Image      string
	Entrypoint []string // nil: the provider's normal one; empty is invalid
	Dir        string   // absolute; made if missing
	Env        map[string]string
	Metadata   map[string]string // the ownership keys are refused

	// Kubernetes quantities as strings: cpu, memory, pids, disk. Both non-empty.
	ResourceLimits, ResourceRequests map[string]string

	// TTL is the lease. Zero: no scheduled end. Negative is invalid.
	TTL time.Duration

	WorkspaceMounts []Mount
	// RequireCommandChannel: Create returns only when a command ran.
	RequireCommandChannel bool
}

// Validate names the first bad field in an error of code SANDBOX_CONFIG_INVALID.
func (s CreateSpec) Validate() error {
	bad := func(field, format string, args ...any) error {
		return Errorf(CodeInvalid, "%s: %s", field, fmt.Sprintf(format, args...))
	}
	switch {
	case s.InstallationID == "":
		return bad("InstallationID", "is empty")
	case s.OwnerID == "":
		return bad("OwnerID", "is empty")
	case s.AssignmentID == "":
		return bad("AssignmentID", "is empty")
	case s.AssignmentID == s.OwnerID:
		return bad("AssignmentID", "must differ from OwnerID: one owner may need several attempts")
	case strings.TrimSpace(s.Image) == "":
		return bad("Image", "is empty")
	case s.Entrypoint != nil && len(s.Entrypoint) == 0:
		return bad("Entrypoint", "is an empty list; nil means the provider's normal one")
	case s.Dir != "" && !path.IsAbs(s.Dir):
		return bad("Dir", "%q is not absolute", s.Dir)
	case len(s.ResourceLimits) == 0:
		return bad("ResourceLimits", "is empty")
	case len(s.ResourceRequests) == 0:
		return bad("ResourceRequests", "is empty")
	case s.TTL < 0:
		return bad("TTL", "%v is negative", s.TTL)
	}
	for k, v := range s.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return bad("Env", "%q is not the name and value of a variable", k)
		}
	}
	for k := range s.Metadata {
		switch k {
		case KeyManagedBy, KeyInstallation, KeySessionID, KeyAssignmentID, KeyNetworkWiring:
			return bad("Metadata", "%s is set by AstraBox and can't be given", k)
		}
	}
	return nil
}

// OwnershipMetadata gives the metadata to send: the caller's and the stamps.
func (s CreateSpec) OwnershipMetadata() map[string]string {
	m := make(map[string]string, len(s.Metadata)+4)
	for k, v := range s.Metadata {
		m[k] = v
	}
	m[KeyManagedBy] = ManagedBy
	m[KeyInstallation] = s.InstallationID
	m[KeySessionID] = s.OwnerID
	m[KeyAssignmentID] = s.AssignmentID
	return m
}

// Claim is the relation of a sandbox to an installation and owner.
type Claim int

// The relations. Only a sandbox that is Mine may be destroyed.
const (
	ClaimUnknown Claim = iota // no metadata, or none that names an installation
	ClaimForeign              // another manager, installation or owner
	ClaimMine
)

// ClaimOf reads a sandbox's metadata. An empty owner accepts any owner of the installation.
func ClaimOf(metadata map[string]string, installation, owner string) Claim {
	if metadata[KeyInstallation] == "" {
		return ClaimUnknown
	}
	if metadata[KeyManagedBy] != ManagedBy || metadata[KeyInstallation] != installation {
		return ClaimForeign
	}
	if owner != "" && metadata[KeySessionID] != owner {
		return ClaimForeign
	}
	return ClaimMine
}
