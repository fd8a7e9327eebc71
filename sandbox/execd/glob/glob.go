// Package glob matches names of files as Files.Search does: * ? [a-z] {a,b},
// case and hidden names as they are, and bytes that aren't UTF-8 only by
// themselves. execd searches with it, and its client where the daemon doesn't.
//
// A matcher is safe for concurrent use. Patterns that could take long are refused.
package glob

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/bmatcuk/doublestar/v4"
)

// MaxPattern is the length of a pattern in bytes; MaxAlternatives bounds how
// many plain patterns its braces may stand for.
const (
	MaxPattern      = 1024
	MaxAlternatives = 4096
)

// Compile gives a matcher of base names.
func Compile(pattern string) (func(name string) bool, error) {
	if pattern == "" || len(pattern) > MaxPattern {
		return nil, fmt.Errorf("the pattern is empty or longer than %d bytes", MaxPattern)
	}
	pattern = widen(pattern)
	if !doublestar.ValidatePattern(pattern) {
		return nil, errors.New("the pattern is malformed")
	}
	product, each := 1, 1+strings.Count(pattern, ",")
	for range strings.Count(pattern, "{") {
		if product *= each; product > MaxAlternatives {
			return nil, errors.New("the pattern has too many alternatives")
		}
	}
	return func(name string) bool { return doublestar.MatchUnvalidated(pattern, widen(name)) }, nil
}

// widen turns bytes that aren't UTF-8 into private characters, one for each
// value: doublestar would take all of them for the same one.
func widen(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		c, n := utf8.DecodeRuneInString(s[i:])
		if c == utf8.RuneError && n == 1 {
			c = 0x10FF00 + rune(s[i])
		}
		b.WriteRune(c)
		i += n
	}
	return b.String()
}
