package wire_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

func TestLabels(t *testing.T) {
	long := strings.Repeat("x", 63)
	for _, tc := range []struct {
		s          string
		value, key bool
	}{
		{"", true, false},
		{"a", true, true},
		{"conv_01h455vb4pex5vsknk084sn02q", true, true},
		{"1.2-3_4", true, true},
		{long, true, true},
		{long + "x", false, false},
		{"-a", false, false},
		{"a-", false, false},
		{"a b", false, false},
		{"ä", false, false},
		{"a\x00b", false, false},
		{"example.com/name", false, true},
		{"Example.com/name", false, false},
		{"example..com/name", false, false},
		{"/name", false, false},
		{"example.com/", false, false},
		{"a/b/c", false, false},
	} {
		if got := wire.ValidLabelValue(tc.s); got != tc.value {
			t.Errorf("ValidLabelValue(%q) = %v", tc.s, got)
		}
		if got := wire.ValidLabelKey(tc.s); got != tc.key {
			t.Errorf("ValidLabelKey(%q) = %v", tc.s, got)
		}
	}
}

// A create without a scheduled end leaves timeout out, and an absent or null
// timeout reads as none.
func TestTimeout(t *testing.T) {
	b, err := json.Marshal(wire.CreateRequest{})
	if err != nil || strings.Contains(string(b), "timeout") {
		t.Errorf("marshalled %s, %v", b, err)
	}
	for _, body := range []string{`{}`, `{"timeout":null}`} {
		var r wire.CreateRequest
		if err := json.Unmarshal([]byte(body), &r); err != nil || r.Timeout != nil {
			t.Errorf("%s: timeout %v, %v", body, r.Timeout, err)
		}
	}
}
