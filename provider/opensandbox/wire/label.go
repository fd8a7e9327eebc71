package wire

import "strings"

// Metadata travels as Kubernetes labels, so keys and values have their form.

// LabelMax is how long a label's value and the name part of its key may be.
const LabelMax = 63

// ReservedPrefix starts the keys that only services set.
const ReservedPrefix = "opensandbox.io/"

// ValidLabelValue reports whether v may be a value: empty, or at most 63
// letters, digits, '-', '_' and '.' that start and end with a letter or digit.
func ValidLabelValue(v string) bool { return v == "" || labelName(v) }

// ValidLabelKey reports whether k may be a key: a name of the same form, with
// or without a DNS domain and a slash before it.
func ValidLabelKey(k string) bool {
	domain, name, prefixed := strings.Cut(k, "/")
	if !prefixed {
		return labelName(k)
	}
	return labelName(name) && dnsDomain(domain)
}

func labelName(s string) bool {
	if s == "" || len(s) > LabelMax || !alphanumeric(s[0]) || !alphanumeric(s[len(s)-1]) {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !alphanumeric(c) && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return true
}

func dnsDomain(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			if c := label[i]; c != '-' && (!alphanumeric(c) || 'A' <= c && c <= 'Z') {
				return false
			}
		}
	}
	return true
}

func alphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}
