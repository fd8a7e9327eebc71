// Package model holds the platform's resources, their state machines and the
// decisions over them.
//
// It is pure: no I/O, no clock (times come in), no randomness apart from
// [NewID]. The three state machines are tables ([Conversations], [Runtimes],
// [Turns]); the store applies a transition only when its table allows it. The
// JSON forms of the types are the ones of the HTTP API.
package model

import (
	"time"

	"go.jetify.com/typeid"
)

// Prefixes of ids.
const (
	PrefixConversation = "conv"
	PrefixTurn         = "turn"
	PrefixEnvironment  = "env"
	PrefixAgent        = "agent"
	PrefixAssignment   = "asg"
	PrefixTerminal     = "term"
)

// NewID makes a new id of that prefix. Ids of one process sort by the time
// they were made.
func NewID(prefix string) string {
	id, err := typeid.WithPrefix(prefix)
	if err != nil {
		panic("model: no id of prefix " + prefix + ": " + err.Error()) // a constant of this package is wrong
	}
	return id.String()
}

// IsID reports whether s has the form of an id of that prefix.
func IsID(prefix, s string) bool {
	id, err := typeid.FromString(s)
	return err == nil && id.Prefix() == prefix
}

// Millis gives a time as the store keeps it: milliseconds since 1970, and 0
// for the zero time.
func Millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// Time is the inverse of Millis, in UTC.
func Time(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
