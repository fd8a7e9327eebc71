package opensandbox

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
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

// What became of a create is looked for unless the service itself said that
// nothing was made: an answer of a proxy, or none, says nothing about it, and
// the sandbox may be seen only later.
func TestCreateWithoutAnAnswer(t *testing.T) {
	const none = `{"items":[],"pagination":{"page":1,"pageSize":2}}`
	for name, c := range map[string]struct {
		status int
		answer string
		late   time.Duration // when a sandbox is seen; 0: never
		blind  time.Duration // for how long looks fail after the create
		cancel bool
		code   sandbox.Code
		atMost time.Duration
		gone   bool // a sandbox was there and was destroyed
	}{
		"refused":                     {status: 400, answer: `{"code":"INVALID","message":"no"}`, late: time.Nanosecond, code: sandbox.CodeInvalid},
		"refused by a proxy":          {status: 413, answer: "<html>", late: time.Nanosecond, code: sandbox.CodeInvalid},
		"the service failed":          {status: 500, answer: `{"code":"INTERNAL","message":"no"}`, code: sandbox.CodeUnavailable},
		"the service left one":        {status: 500, answer: `{"code":"INTERNAL","message":"no"}`, late: time.Nanosecond, code: sandbox.CodeUnavailable, gone: true},
		"a proxy didn't wait":         {status: 504, answer: "<html>", late: 5 * time.Second, code: sandbox.CodeUnavailable, atMost: 10 * time.Second, gone: true},
		"a proxy, and nothing":        {status: 502, answer: "<html>", code: sandbox.CodeUnavailable, atMost: lostSearch + pollMax},
		"a proxy, for all":            {status: 502, answer: "<html>", late: time.Nanosecond, blind: 5 * time.Second, code: sandbox.CodeUnavailable, atMost: 10 * time.Second, gone: true},
		"a proxy, and nothing seen":   {status: 502, answer: "<html>", blind: time.Hour, code: sandbox.CodeUnavailable, atMost: lostSearch + pollMax},
		"given up, a proxy for all":   {status: 502, answer: "<html>", late: time.Nanosecond, blind: 5 * time.Second, cancel: true, atMost: 15 * time.Second, gone: true},
		"no name":                     {status: 201, answer: `{}`, late: time.Nanosecond, code: sandbox.CodeUnavailable, gone: true},
		"given up, a proxy":           {status: 504, answer: "<html>", late: 5 * time.Second, cancel: true, atMost: 15 * time.Second, gone: true},
		"given up, the service":       {status: 500, answer: `{"code":"INTERNAL","message":"no"}`, cancel: true, atMost: 5 * time.Second},
		"given up, and never refused": {status: 400, answer: `{"code":"INVALID","message":"no"}`, cancel: true, atMost: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, err := New(sandbox.Host{Getenv: func(k string) string {
					return map[string]string{settingBaseURL: "http://127.0.0.1/v1"}[k]
				}})
				if err != nil {
					t.Fatal(err)
				}
				spec := sandbox.CreateSpec{
					InstallationID: "i", OwnerID: "o", AssignmentID: "a", Image: "x", TTL: time.Hour,
					ResourceLimits: map[string]string{"cpu": "1"}, ResourceRequests: map[string]string{"cpu": "1"},
				}
				const failed = `"id":"s","status":{"state":"Failed"},"metadata":{"astrabox.managed-by":"astrabox","astrabox.installation":"i","astrabox.session-id":"o","astrabox.assignment-id":"a"}`
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var asked time.Time
				destroyed, creates := false, 0
				there := func() bool {
					return !asked.IsZero() && c.late > 0 && !destroyed && time.Since(asked) >= c.late
				}
				var mu sync.Mutex
				p.api.http.Transport = roundTripper(func(r *http.Request) (int, string) {
					if r.Method == http.MethodPost && c.cancel {
						cancel()
						time.Sleep(2 * time.Second)
					}
					mu.Lock()
					defer mu.Unlock()
					switch {
					case r.Method == http.MethodPost:
						creates++
						asked = time.Now()
						time.Sleep(time.Millisecond)
						return c.status, c.answer
					case !asked.IsZero() && time.Since(asked) < c.blind:
						return 502, "<html>"
					case r.Method == http.MethodDelete:
						destroyed = true
						return 204, ""
					case r.URL.Path == "/v1/sandboxes" && there():
						return 200, `{"items":[{` + failed + `}],"pagination":{"totalItems":1}}`
					case r.URL.Path == "/v1/sandboxes":
						return 200, none
					case there():
						return 200, "{" + failed + "}"
					}
					return 404, `{"code":"NOT_FOUND","message":"no such sandbox"}`
				})
				begun := time.Now()
				_, err = p.Create(ctx, spec)
				if c.cancel != errors.Is(err, context.Canceled) || !c.cancel && sandbox.CodeOf(err) != c.code {
					t.Errorf("error %v, want %s", err, c.code)
				}
				if destroyed != c.gone || creates != 1 { // asked again, some services would make two
					t.Errorf("destroyed: %v, want %v; %d creates", destroyed, c.gone, creates)
				}
				if took := time.Since(begun); took > c.atMost+time.Second {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// A create that is given up while its sandbox comes up destroys it.
func TestCreateGivenUpLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := New(sandbox.Host{Getenv: func(k string) string {
			return map[string]string{settingBaseURL: "http://127.0.0.1/v1"}[k]
		}})
		if err != nil {
			t.Fatal(err)
		}
		destroyed := false
		p.api.http.Transport = roundTripper(func(r *http.Request) (int, string) {
			switch {
			case r.Context().Err() != nil:
				t.Errorf("%s %s was sent for a context that has ended", r.Method, r.URL.Path)
			case r.Method == http.MethodPost:
				return 201, `{"id":"s","status":{"state":"Pending"}}`
			case r.Method == http.MethodDelete:
				destroyed = true
				return 204, ""
			case r.URL.Path == "/v1/sandboxes":
				return 200, `{"items":[],"pagination":{}}`
			case !destroyed:
				return 200, `{"id":"s","status":{"state":"Pending"}}`
			}
			return 404, `{"code":"NOT_FOUND","message":"no such sandbox"}`
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err = p.Create(ctx, sandbox.CreateSpec{
			InstallationID: "i", OwnerID: "o", AssignmentID: "a", Image: "x", TTL: time.Hour,
			ResourceLimits: map[string]string{"cpu": "1"}, ResourceRequests: map[string]string{"cpu": "1"},
		})
		if !errors.Is(err, context.DeadlineExceeded) || sandbox.CodeOf(err) == sandbox.CodeCleanupUnconfirmed || !destroyed {
			t.Errorf("%v, destroyed %v", err, destroyed)
		}
	})
}

// failing is a transport that every request fails in.
type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

// A pause that was never sent fails at once, and one whose answer was lost when
// nothing can be seen for as long as a change is watched.
func TestPauseOfAServiceOutOfReach(t *testing.T) {
	for name, c := range map[string]struct {
		err    error
		atMost time.Duration
	}{
		"no route": {&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}, time.Second},
		"no name":  {&net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}}, time.Second},
		"refused":  {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, restart + time.Second},
		"no key":   {errNoKey, time.Second},
		"cut off":  {io.ErrUnexpectedEOF, pollBudget + pollMax + time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, err := New(sandbox.Host{Getenv: func(k string) string {
					return map[string]string{settingBaseURL: "http://127.0.0.1/v1"}[k]
				}})
				if err != nil {
					t.Fatal(err)
				}
				p.api.http.Transport = failing{c.err}
				begun := time.Now()
				done, err := p.Pause(t.Context(), "a")
				if took := time.Since(begun); done || sandbox.CodeOf(err) != sandbox.CodeUnavailable || took > c.atMost {
					t.Errorf("%v, %v after %v", done, err, took)
				}
			})
		})
	}
}
