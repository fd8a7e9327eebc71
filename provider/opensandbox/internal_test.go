package opensandbox

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/astrabox/astrabox/provider/opensandbox/wire"
	"github.com/astrabox/astrabox/sandbox"
)

type roundTripper func(*http.Request) (int, string)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := f(r)
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

// A pause that doesn't settle is a false in the end, and is asked about at a
// pace that does no harm.
func TestPauseThatNeverSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(sandbox.Host{Getenv: func(k string) string {
			return map[string]string{settingBaseURL: "http://127.0.0.1/v1"}[k]
		}})
		if err != nil {
			t.Fatal(err)
		}
		asked := 0
		p.api.http.Transport = roundTripper(func(r *http.Request) (int, string) {
			if r.Method == http.MethodPost {
				return 202, ""
			}
			asked++
			return 200, `{"id":"a","status":{"state":"Pausing"}}`
		})
		start := time.Now()
		ok, err := p.Pause(t.Context(), "a")
		if took := time.Since(start); ok || err != nil || took < pollBudget || took > pollBudget+2*pollMax || asked > 200 {
			t.Errorf("paused %v, %v after %v and %d questions", ok, err, took, asked)
		}
	})
}

func TestProject(t *testing.T) {
	for _, tc := range []struct{ key, value, want string }{
		{sandbox.KeySessionID, "conv_01h455vb4pex5vsknk084sn02q", "conv_01h455vb4pex5vsknk084sn02q"},
		{sandbox.KeyAssignmentID, "a b", "a-"},
		{sandbox.KeySessionID, "a b", "s-"},
		{"team", "a b", "v-"},
		{"team", "", "v-"},
		{"team", strings.Repeat("x", 64), "v-"},
	} {
		got := project(tc.key, tc.value)
		if !strings.HasPrefix(got, tc.want) || !wire.ValidLabelValue(got) || got == "" {
			t.Errorf("project(%q, %q) = %q", tc.key, tc.value, got)
		}
		if got != project(tc.key, tc.value) || got == project(tc.key, tc.value+"x") {
			t.Errorf("project(%q, %q) isn't a function of the value", tc.key, tc.value)
		}
	}
}
