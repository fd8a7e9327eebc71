package sandbox

import (
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// CreateSpec describes a sandbox to create, in no backend's words.
//
// What a provider can't do with a field it refuses; it leaves none out. Inside
// Create the order is: make the sandbox, have the permission level attested,
// prove the command channel, write the vault before anything uses the sandbox,
// make Dir, wait for the port. A create that fails after the sandbox exists
// destroys it.
//
// String and slog show ids and the image only. As JSON a spec is whole but for
// the vault's secret values.
type CreateSpec struct {
	InstallationID string // of the AstraBox installation
	OwnerID        string // the conversation or pool that the sandbox is for
	AssignmentID   string // identity of this one attempt; never the conversation's id

	Image      string
	Entrypoint []string // nil: the provider's normal one; empty is invalid
	Dir        string   // absolute; made if missing
	Env        map[string]string
	Metadata   map[string]string // the ownership keys are refused

	// Kubernetes quantities as strings: cpu, memory, pids, disk. Both non-empty,
	// and kept apart all the way down: a limit is a ceiling, a request is room
	// that is reserved.
	ResourceLimits, ResourceRequests map[string]string

	// TTL is the lease, which the backend holds to when AstraBox is gone. Zero:
	// no scheduled end. Negative is invalid. AstraBox and the conformance suites
	// always give one; a backend that can't hold to it refuses the create.
	TTL time.Duration

	WorkspaceMounts []Mount
	// PublishPorts are ports that AstraBox will reach through Endpoint. A
	// backend that reaches any port without being told may ignore them.
	PublishPorts []int `json:",omitempty"`
	// WaitForPort: Create returns only when something listens there, as seen by a
	// loop inside the sandbox. In time or not at all: a timeout destroys the
	// sandbox. 0: nothing to wait for.
	WaitForPort int `json:",omitempty"`
	// RequireCommandChannel: Create returns only when a command ran.
	RequireCommandChannel bool

	// NetworkPolicy is set for backends with CreateNetworkPolicy only; [Bound]
	// makes nil the zero policy there (nothing is reachable), and refuses a
	// policy elsewhere.
	NetworkPolicy *NetworkPolicy `json:",omitempty"`
	// PermissionLevel: empty is default.
	PermissionLevel PermissionLevel `json:",omitempty"`
	// CredentialProxy prepares the injection of credentials without writing one.
	CredentialProxy bool `json:",omitempty"`
	// Vault is what the vault holds from the start; it implies CredentialProxy.
	Vault VaultPlan `json:",omitzero"`
	// DeathCallbackURL is told, at best effort, that the sandbox ended: POST
	// {"status": "terminated"}. A backend without such a hook ignores it. Its path
	// may hold a token.
	DeathCallbackURL string `json:",omitempty"`
}

// Limits of a spec.
const (
	maxSpecEntries = 1000
	maxSpecText    = 64 << 10
)

// Validate names the first bad field in an error of code
// SANDBOX_CONFIG_INVALID. Text has to be UTF-8, since it travels as JSON, which
// would change anything else. It shows no value of Env, Vault or DeathCallbackURL.
func (s CreateSpec) Validate() error {
	bad := func(field, format string, args ...any) error {
		return Errorf(CodeInvalid, "%s: %s", field, fmt.Sprintf(format, args...))
	}
	for _, id := range []struct{ field, value string }{
		{"InstallationID", s.InstallationID}, {"OwnerID", s.OwnerID}, {"AssignmentID", s.AssignmentID}, {"Image", s.Image},
	} {
		switch {
		case strings.TrimSpace(id.value) == "":
			return bad(id.field, "is empty")
		case hasControl(id.value) || !utf8.ValidString(id.value) || len(id.value) > 1024:
			return bad(id.field, "has control characters, isn't UTF-8 or has more than 1024 bytes")
		}
	}
	switch {
	case s.AssignmentID == s.OwnerID:
		return bad("AssignmentID", "must differ from OwnerID: one owner may need several attempts")
	case s.Entrypoint != nil && len(s.Entrypoint) == 0:
		return bad("Entrypoint", "is an empty list; nil means the provider's normal one")
	case len(s.Entrypoint) > 0 && s.Entrypoint[0] == "":
		return bad("Entrypoint", "names no program")
	case slices.ContainsFunc(s.Entrypoint, func(a string) bool { return strings.ContainsRune(a, 0) || !utf8.ValidString(a) }):
		return bad("Entrypoint", "holds a NUL, or isn't UTF-8")
	case s.TTL < 0:
		return bad("TTL", "%v is negative", s.TTL)
	case s.WaitForPort != 0 && CheckPort(s.WaitForPort) != nil:
		return bad("WaitForPort", "%s", publicText(CheckPort(s.WaitForPort)))
	case !s.PermissionLevel.Known():
		return bad("PermissionLevel", "%q is no permission level", string(s.PermissionLevel))
	}
	if s.Dir != "" {
		if why := badDir(s.Dir); why != "" {
			return bad("Dir", "%q %s", shorten(s.Dir, 200), why)
		}
	}
	for i, p := range s.PublishPorts {
		if err := CheckPort(p); err != nil {
			return bad("PublishPorts", "%s", publicText(err))
		}
		if slices.Contains(s.PublishPorts[:i], p) {
			return bad("PublishPorts", "%d is there twice", p)
		}
	}
	if s.NetworkPolicy != nil {
		if _, err := s.NetworkPolicy.Normalize(); err != nil {
			return err
		}
	}
	if s.DeathCallbackURL != "" {
		u, err := url.Parse(s.DeathCallbackURL)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
			return bad("DeathCallbackURL", "is not an absolute http or https URL")
		}
	}
	if err := s.checkMaps(bad); err != nil {
		return err
	}
	if err := s.checkMounts(bad); err != nil {
		return err
	}
	return s.Vault.Validate()
}

type refuseField func(field, format string, args ...any) error

func (s CreateSpec) checkMaps(bad refuseField) error {
	for _, m := range []struct {
		field string
		m     map[string]string
	}{{"ResourceLimits", s.ResourceLimits}, {"ResourceRequests", s.ResourceRequests}} {
		if len(m.m) == 0 {
			return bad(m.field, "is empty")
		}
		for _, k := range sortedKeys(m.m) {
			if strings.TrimSpace(k) == "" || hasControl(k) {
				return bad(m.field, "a quantity has no name")
			}
			if !isQuantity(m.m[k]) {
				return bad(m.field, "%q of %s is no quantity above zero, such as 2, 500m or 4Gi", shorten(m.m[k], 40), shorten(k, 100))
			}
		}
	}
	if len(s.Env) > maxSpecEntries || len(s.Metadata) > maxSpecEntries {
		return bad("Env", "or Metadata has more than %d entries", maxSpecEntries)
	}
	for _, k := range sortedKeys(s.Env) {
		switch {
		case k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(s.Env[k], 0):
			return bad("Env", "%q is not the name and value of a variable", shorten(k, 100))
		case !utf8.ValidString(k) || !utf8.ValidString(s.Env[k]):
			return bad("Env", "%q or its value isn't UTF-8", shorten(k, 100))
		case len(k)+len(s.Env[k]) > maxSpecText:
			return bad("Env", "%q is longer than %d bytes", shorten(k, 100), maxSpecText)
		}
	}
	for _, k := range sortedKeys(s.Metadata) {
		switch {
		case slices.Contains(ownershipKeys, k):
			return bad("Metadata", "%s is set by AstraBox and can't be given", k)
		case strings.TrimSpace(k) == "" || s.Metadata[k] == "":
			return bad("Metadata", "%q has no name or no value", shorten(k, 100))
		case !utf8.ValidString(k) || !utf8.ValidString(s.Metadata[k]):
			return bad("Metadata", "%q or its value isn't UTF-8", shorten(k, 100))
		case hasControl(k) || hasControl(s.Metadata[k]) || len(k)+len(s.Metadata[k]) > maxSpecText:
			return bad("Metadata", "%q has control characters or is too long", shorten(k, 100))
		}
	}
	return nil
}

// quantity is a Kubernetes quantity without its sign.
var quantity = regexp.MustCompile(`^([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,2})?$`)

// isQuantity reports whether s is a quantity above zero. What a backend can't
// give it refuses itself.
func isQuantity(s string) bool {
	m := quantity.FindStringSubmatch(s)
	return m != nil && len(s) <= 64 && strings.Trim(m[1], "0.") != ""
}

func (s CreateSpec) checkMounts(bad refuseField) error {
	for i, m := range s.WorkspaceMounts {
		if why := badDir(m.Path); why != "" {
			return bad("WorkspaceMounts", "the path %q %s", shorten(m.Path, 200), why)
		}
		if strings.Trim(m.Path, "/") == "" {
			return bad("WorkspaceMounts", "nothing can be mounted over the root")
		}
		if m.Source == "" || strings.ContainsRune(m.Source, 0) || !utf8.ValidString(m.Source) {
			return bad("WorkspaceMounts", "%s has no source, or one with a NUL or what isn't UTF-8", m.Path)
		}
		if slices.ContainsFunc(s.WorkspaceMounts[:i], func(o Mount) bool { return o.Path == m.Path }) {
			return bad("WorkspaceMounts", "%s is there twice", m.Path)
		}
	}
	return nil
}

// badDir says why a path can't be one of a spec; empty: it can.
func badDir(p string) string {
	if !utf8.ValidString(p) {
		return "isn't UTF-8"
	}
	if CheckPath("", p) != nil {
		return "is not absolute, or too long"
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == "." || part == ".." {
			return "has . or .. in it"
		}
	}
	return ""
}

// String shows what identifies the create, and no value that may be secret.
func (s CreateSpec) String() string {
	return fmt.Sprintf("create %s for %s (installation %s, image %s)", s.AssignmentID, s.OwnerID, s.InstallationID, s.Image)
}

// GoString is String.
func (s CreateSpec) GoString() string { return s.String() }

// Format is String, for every verb.
func (s CreateSpec) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue gives what String shows.
func (s CreateSpec) LogValue() slog.Value {
	return slog.GroupValue(slog.String("assignment", s.AssignmentID), slog.String("owner", s.OwnerID),
		slog.String("installation", s.InstallationID), slog.String("image", s.Image))
}
