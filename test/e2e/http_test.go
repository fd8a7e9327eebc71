package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/client"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
)

// request is one that no client of ours would send.
type request struct {
	method, path string
	query        url.Values
	header       map[string]string
	host         string
	body         string
	chunked      bool // without a Content-Length
}

// answer is a response that was read to its end.
type answer struct {
	status  int
	header  http.Header
	body    string
	problem wire.Problem // of a failure
}

// ask sends a request. A failure must be a problem document.
func (s *server) ask(t *testing.T, r request) answer {
	t.Helper()
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
	}
	if r.chunked {
		body = io.MultiReader(body)
	}
	target := s.url() + r.path
	if r.query != nil {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(timeout(t), r.method, target, body)
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range r.header {
		req.Header.Set(k, v)
	}
	if r.host != "" {
		req.Host = r.host
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", r.method, r.path, err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, body: string(b)}
	if a.status < 300 || a.status == http.StatusSwitchingProtocols {
		return a
	}
	if err := json.Unmarshal(b, &a.problem); err != nil || resp.Header.Get("Content-Type") != "application/problem+json" ||
		a.problem.Status != a.status || a.problem.Detail == "" || a.problem.RequestID == "" {
		t.Fatalf("%s %s: expected a problem document, saw %s %q", r.method, r.path, resp.Status, b)
	}
	return a
}

// refused checks that a request is refused with a code and its status, in a
// sentence that holds says.
func (s *server) refused(t *testing.T, r request, code fault.Code, says string) {
	t.Helper()
	a := s.ask(t, r)
	if want := fault.Lookup(code).Status; a.status != want || a.problem.Code != string(code) || !strings.Contains(a.problem.Detail, says) {
		t.Errorf("%s %s %v %.60q: expected %d %s with %q, saw %d %s %q", r.method, r.path, r.query, r.body, want, code, says, a.status, a.problem.Code, a.problem.Detail)
	}
}

// isProblem checks the code of a client's error.
func isProblem(t *testing.T, err error, code fault.Code) {
	t.Helper()
	var p *client.Problem
	if !errors.As(err, &p) || p.Code != string(code) {
		t.Errorf("expected %s, saw %v", code, err)
	}
}

func toJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
