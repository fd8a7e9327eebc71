package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// Secret is a value that no text form shows: not String, any verb of fmt, JSON,
// slog, or an error that was made of it, nor the printing of a struct that
// holds it in an unexported field. Only Reveal gives it. The zero value is no
// secret at all.
type Secret struct{ value *string } // a pointer, because fmt prints unexported fields without asking

// NewSecret makes a secret of a value.
func NewSecret(value string) Secret { return Secret{&value} }

// Reveal gives the value, for the one request that needs it.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether there is no value.
func (s Secret) IsZero() bool { return s.Reveal() == "" }

// Equal compares the values.
func (s Secret) Equal(o Secret) bool { return s.Reveal() == o.Reveal() }

const hidden = "[secret]"

// String tells only whether there is a value.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return hidden
}

// GoString is String.
func (s Secret) GoString() string { return s.String() }

// Format is String, for every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue is String.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText gives String.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// MarshalJSON gives String.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// UnmarshalJSON reads what MarshalJSON wrote, as no value: a stored plan
// doesn't carry its secrets, and whoever reads it fetches them anew. Any other
// text is refused, so that no secret is kept in JSON by mistake.
func (s *Secret) UnmarshalJSON(b []byte) error {
	var text string
	if err := json.Unmarshal(b, &text); err != nil || text != "" && text != hidden {
		return errors.New("a secret isn't read from JSON")
	}
	*s = Secret{}
	return nil
}
