package sandbox

import "maps"

// Metadata keys that say whose a sandbox is. Callers of Create can't set them;
// [CreateSpec.OwnershipMetadata] stamps the first four, and the provider the
// last where the addresses that a sandbox was made against can change: another
// value than today's means that the sandbox can't be reached any more.
const (
	KeyManagedBy     = "astrabox.managed-by"
	KeyInstallation  = "astrabox.installation"
	KeySessionID     = "astrabox.session-id"    // the owner
	KeyAssignmentID  = "astrabox.assignment-id" // the create attempt
	KeyNetworkWiring = "astrabox.network-wiring"

	// ManagedBy is the value of KeyManagedBy.
	ManagedBy = "astrabox"
)

var ownershipKeys = []string{KeyManagedBy, KeyInstallation, KeySessionID, KeyAssignmentID, KeyNetworkWiring}

// OwnershipMetadata gives the metadata to send: the caller's and the stamps.
func (s CreateSpec) OwnershipMetadata() map[string]string {
	m := make(map[string]string, len(s.Metadata)+4)
	maps.Copy(m, s.Metadata)
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
	// ClaimUnknown: no metadata, or none that names an installation. It may be
	// anybody's.
	ClaimUnknown Claim = iota
	// ClaimForeign: another manager, installation or owner.
	ClaimForeign
	// ClaimMine: this installation's, and the owner's where one was asked for.
	ClaimMine
	// ClaimUnclaimed: this installation's, without an owner. It is reported and
	// never destroyed: a sandbox that is being made looks like that too.
	ClaimUnclaimed
)

// MayDestroy reports whether the relation permits to destroy the sandbox.
func (c Claim) MayDestroy() bool { return c == ClaimMine }

// String gives the relation in a word.
func (c Claim) String() string {
	switch c {
	case ClaimUnknown:
		return "unknown"
	case ClaimForeign:
		return "foreign"
	case ClaimMine:
		return "mine"
	case ClaimUnclaimed:
		return "unclaimed"
	}
	return "no such claim"
}

// ClaimOf reads a sandbox's metadata. An empty owner accepts any owner of the
// installation; an empty installation is nobody's.
func ClaimOf(metadata map[string]string, installation, owner string) Claim {
	switch {
	case metadata[KeyInstallation] == "" || installation == "":
		return ClaimUnknown
	case metadata[KeyManagedBy] != ManagedBy || metadata[KeyInstallation] != installation:
		return ClaimForeign
	case metadata[KeySessionID] == "":
		return ClaimUnclaimed
	case owner != "" && metadata[KeySessionID] != owner:
		return ClaimForeign
	}
	return ClaimMine
}
