package opensandbox

import (
	"crypto/sha256"
	"encoding/base32"
	"maps"
	"strings"

	"github.com/astrabox/astrabox/provider/opensandbox/wire"
	"github.com/astrabox/astrabox/sandbox"
)

// Metadata travels as labels, whose values are short and of few characters. A
// value that is a label's stays as it is; any other is replaced by a digest,
// which still tells equal from different. Who compares a value with what the
// service gave compares its projection.

// project gives the label of one metadata value.
func project(key, value string) string {
	if value != "" && wire.ValidLabelValue(value) {
		return value
	}
	prefix := "v"
	switch key {
	case sandbox.KeyAssignmentID:
		prefix = "a"
	case sandbox.KeySessionID:
		prefix = "s"
	case sandbox.KeyInstallation:
		prefix = "i"
	}
	sum := sha256.Sum256([]byte(value))
	return prefix + "-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))
}

// labels projects metadata, and refuses keys that can't be a label's.
func labels(metadata map[string]string) (map[string]string, error) {
	out := make(map[string]string, len(metadata))
	for k, v := range metadata {
		if !wire.ValidLabelKey(k) || strings.HasPrefix(k, wire.ReservedPrefix) {
			return nil, sandbox.Errorf(sandbox.CodeInvalid, "Metadata: %q can't be the key of a label", k)
		}
		out[k] = project(k, v)
	}
	return out, nil
}

// carries reports whether what the service gave has all of the wanted metadata.
func carries(given, wanted map[string]string) bool {
	for k, v := range wanted {
		if have, ok := given[k]; !ok || have != project(k, v) {
			return false
		}
	}
	return true
}

// restore puts known real values in the place of their projections.
func restore(given, known map[string]string) map[string]string {
	out := maps.Clone(given)
	for k, v := range known {
		if have, ok := out[k]; ok && have == project(k, v) {
			out[k] = v
		}
	}
	return out
}
