package api

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	goruntime "runtime"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/lifecycle"
	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// Limits of a create.
const (
	ttlMin        = 60 * time.Second
	ttlMax        = 10 * 365 * 24 * time.Hour
	metadataMax   = 64
	extensionsMax = 64
	argsMax       = 1024
	argMax        = 128<<10 - 1 // bytes of an argument, or of a variable with its name: the kernel's
	envMax        = 4096
	keyMax        = 255

	memoryMin = 16 << 20 // less doesn't start
	pidsMin   = 16
	diskMin   = 1 << 20
)

// Limits of a sandbox that asks for none.
const (
	defaultMemory = 4 << 30
	defaultPIDs   = 4096
	defaultDisk   = 10 << 30
)

// request checks a create and translates it.
func request(b wire.CreateRequest, key string) (lifecycle.Request, error) {
	q := lifecycle.Request{Metadata: b.Metadata, Key: key}
	if len(key) > keyMax || strings.IndexFunc(key, func(c rune) bool { return c < ' ' || c > '~' }) >= 0 {
		return q, invalid("Idempotency-Key must be at most %d printable characters", keyMax)
	}
	if err := checkFeatures(b); err != nil {
		return q, err
	}
	if b.Image == nil || strings.TrimSpace(b.Image.URI) == "" {
		return q, invalid("image is missing")
	}
	if len(b.Entrypoint) == 0 {
		return q, invalid("entrypoint is missing")
	}
	if len(b.Entrypoint) > argsMax {
		return q, invalid("entrypoint has more than %d elements", argsMax)
	}
	for _, a := range b.Entrypoint {
		if strings.ContainsRune(a, 0) {
			return q, invalid("entrypoint: an element has a NUL")
		}
		if len(a) > argMax {
			return q, invalid("entrypoint: an element is longer than %d bytes", argMax)
		}
	}
	if b.Entrypoint[0] == "" {
		return q, invalid("entrypoint: the program is empty")
	}
	if len(b.Env) > envMax {
		return q, invalid("env has more than %d variables", envMax)
	}
	for k, v := range b.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return q, invalid("env: %q is not the name and value of a variable", k)
		}
		if len(k)+1+len(v) > argMax {
			return q, invalid("env: %.64q with its value is longer than %d bytes", k, argMax)
		}
		if !daemonTakes(k, v) {
			return q, invalid("env: %q is a setting of the daemon in the sandbox, which doesn't start with this value", k)
		}
	}
	if b.Timeout != nil {
		// Compared as seconds: a large number must not wrap around.
		if s := *b.Timeout; s < int64(ttlMin/time.Second) || s > int64(ttlMax/time.Second) {
			return q, invalid("timeout must be from %d to %d seconds, or null for none", int64(ttlMin/time.Second), int64(ttlMax/time.Second))
		}
		q.TTL = time.Duration(*b.Timeout) * time.Second
	}
	for k := range b.Metadata {
		if strings.HasPrefix(k, wire.ReservedPrefix) {
			return q, invalid("metadata: keys that start with %s are reserved", wire.ReservedPrefix)
		}
	}
	if err := checkMetadata(b.Metadata); err != nil {
		return q, err
	}
	if len(b.Extensions) > extensionsMax {
		return q, invalid("extensions has more than %d entries", extensionsMax)
	}
	spec, err := limits(b.ResourceLimits)
	if err != nil {
		return q, err
	}
	if _, err := limits(b.ResourceRequests); err != nil { // not used on one machine, but still checked
		return q, err
	}
	spec.Image, spec.Entrypoint, spec.Env = strings.TrimSpace(b.Image.URI), b.Entrypoint, b.Env
	spec.Platform, spec.Extensions = b.Platform, b.Extensions
	q.Spec = spec

	canonical, err := json.Marshal(b) // maps in the order of their keys
	if err != nil {
		return q, fmt.Errorf("api: %w", err)
	}
	sum := sha256.Sum256(canonical)
	q.Digest = hex.EncodeToString(sum[:])
	return q, nil
}

// daemonTakes reports whether the daemon in the sandbox, which has the variables
// of the sandbox, starts with one.
func daemonTakes(name, value string) bool {
	switch name {
	case "EXECD_API_GRACE_SHUTDOWN":
		d, err := time.ParseDuration(value)
		return value == "" || err == nil && d >= 0
	case "EXECD_OPERATION_CAPACITY":
		n, err := strconv.Atoi(value)
		return value == "" || err == nil && n > 0
	case "GOMEMLIMIT": // ends any program in Go that finds it malformed
		return memoryLimit.MatchString(value)
	}
	return true
}

// memoryLimit is narrower than what Go takes, and never beyond 64 bits.
var memoryLimit = regexp.MustCompile(`^(off|[0-9]{1,18}B?|[0-9]{1,9}[KMG]iB|[0-9]{1,6}TiB)?$`)

// checkFeatures refuses what this service can't do. What it can't do must not
// be ignored: the client would believe that it holds.
func checkFeatures(b wire.CreateRequest) error {
	switch {
	case b.SnapshotID != "":
		return unsupported("SNAPSHOTS_NOT_SUPPORTED", "this service has no snapshots")
	case b.TemplateID != "":
		return unsupported("TEMPLATES_NOT_SUPPORTED", "this service has no templates")
	case len(b.Lifecycle) > 0:
		return unsupported("LIFECYCLE_HOOKS_NOT_SUPPORTED", "this service runs no commands by itself but the entrypoint")
	case b.CredentialProxy != nil && b.CredentialProxy.Enabled:
		return unsupported("CREDENTIAL_PROXY_NOT_SUPPORTED", "this service injects no credentials")
	case len(b.Volumes) > 0:
		return unsupported("VOLUMES_NOT_SUPPORTED", "this service mounts no volumes")
	case b.Image != nil && b.Image.Auth != nil:
		return unsupported("REGISTRY_AUTH_NOT_SUPPORTED", "this service pulls no images")
	}
	if p := b.NetworkPolicy; p != nil && (p.DefaultAction == "allow" || len(p.Egress) > 0) {
		return unsupported("NETWORK_POLICY_NOT_SUPPORTED", "sandboxes of this service have no way out; only the policy that denies everything can be asked for")
	}
	if p := b.Platform; p != nil && (p.OS != "linux" || p.Arch != goruntime.GOARCH) {
		return invalid("platform: this machine is linux/%s", goruntime.GOARCH)
	}
	for k, v := range b.Extensions {
		switch k {
		case "poolRef":
			return unsupported("POOLS_NOT_SUPPORTED", "this service has no pools")
		case "access.renew.extend.seconds":
			if n, err := strconv.Atoi(v); err != nil || n < 300 || n > 86400 {
				return invalid("extensions: %s must be a number from 300 to 86400", k)
			}
			return unsupported("RENEW_ON_ACCESS_NOT_SUPPORTED", "this service doesn't renew on access")
		case "bootstrap.execd.isolation":
			if v != "" && v != "disable" {
				return unsupported("ISOLATION_NOT_SUPPORTED", "this service has no isolated sessions")
			}
		case "astrabox.runtime":
			if v != "" && v != "oci" {
				return unsupported("RUNTIME_NOT_SUPPORTED", "this service has no runtime %q", v)
			}
		}
	}
	return nil
}

func checkMetadata(m map[string]string) error {
	if len(m) > metadataMax {
		return invalid("metadata has more than %d entries", metadataMax)
	}
	for k, v := range m {
		if !wire.ValidLabelKey(k) {
			return invalid("metadata: %q is not the key of a label", k)
		}
		if !wire.ValidLabelValue(v) {
			return invalid("metadata: the value of %s is not that of a label (at most %d letters, digits, '-', '_' and '.')", k, wire.LabelMax)
		}
	}
	return nil
}

// limits reads Kubernetes quantities. A limit of zero is refused: to the
// kernel it would mean none.
func limits(m map[string]string) (state.Spec, error) {
	s := state.Spec{CPUs: float64(min(4, goruntime.NumCPU())), MemoryBytes: defaultMemory, PIDs: defaultPIDs, DiskBytes: defaultDisk}
	for name, text := range m {
		v, err := quantity(text)
		if err != nil {
			return s, invalid("resource %s: %v", name, err)
		}
		var least float64
		switch name {
		case "cpu":
			s.CPUs = v
			least = 0.01 // the kernel's smallest share
			if v > 4096 {
				return s, invalid("resource cpu: %s is too much", text)
			}
		case "memory":
			s.MemoryBytes, least = int64(v), memoryMin
		case "pids":
			s.PIDs, least = int64(v), pidsMin
			if v > 1<<22 {
				return s, invalid("resource pids: %s is more than the kernel knows", text)
			}
		case "disk", "ephemeral-storage":
			s.DiskBytes, least = int64(v), diskMin
		default:
			return s, invalid("resource %q: this service knows cpu, memory, pids and disk", name)
		}
		if v < least {
			return s, invalid("resource %s: %s is too little", name, text)
		}
	}
	return s, nil
}
