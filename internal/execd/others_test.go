package execd_test

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Code for the shell runs; an interpreter is said not to be there, at once.
func TestCode(t *testing.T) {
	d := start(t)
	for _, body := range []string{`{"code":"echo hi; exit 3"}`, `{"code":"echo hi; exit 3","context":{"language":"command"}}`} {
		resp := post(t, d, "/code", body, nil)
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		_, all := parseEvents(t, string(b))
		if diff := cmp.Diff([]string{"stdout hi", "error 3 [exit status 3]"}, brief(all)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", body, diff)
		}
	}
	resp := post(t, d, "/code", `{"code":"echo hi; sleep 1000","context":{"language":"background-command"}}`, nil)
	b, _ := io.ReadAll(resp.Body)
	id, all := parseEvents(t, string(b))
	if diff := cmp.Diff([]string{"execution_complete"}, brief(all)); diff != "" {
		t.Errorf("in the background (-want +got):\n%s", diff)
	}
	if resp, body := get(t, d, "DELETE", "/code?id="+id); resp.StatusCode != http.StatusOK {
		t.Errorf("interrupt: %d %s", resp.StatusCode, body)
	}
	if _, state := get(t, d, "GET", "/command/status/"+id); !strings.Contains(state, `"running":false`) {
		t.Errorf("%s", state)
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/code", `{"code":"1","context":{"language":"python"}}`, 500, `no interpreter configured for language \"python\"`},
		{"POST", "/code", `{"code":"1","context":{"language":"sql"}}`, 500, "no interpreter configured"},
		{"POST", "/code", `{"code":"1","context":{"id":"x"}}`, 500, "no interpreter configured"},
		{"POST", "/code", `{"code":""}`, 400, "code is empty"},
		{"POST", "/code/context", `{"language":"python"}`, 500, "no interpreter configured"},
		{"POST", "/code/context", ``, 500, "no interpreter configured"},
		{"GET", "/code/contexts?language=python", ``, 200, "[]"},
		{"DELETE", "/code/contexts?language=python", ``, 200, ""},
		{"DELETE", "/code/contexts", ``, 400, "MISSING_QUERY"},
		{"GET", "/code/contexts/x", ``, 404, "CONTEXT_NOT_FOUND"},
		{"DELETE", "/code/contexts/x", ``, 404, "CONTEXT_NOT_FOUND"},
		{"DELETE", "/code", ``, 400, "MISSING_QUERY"},
		{"HEAD", "/ping", ``, 404, ""},
		{"PUT", "/command", ``, 404, "NOT_FOUND"},
		{"GET", "/nothing", ``, 404, "NOT_FOUND"},
	} {
		req, _ := http.NewRequestWithContext(ctx(t), c.method, d.base+c.path, strings.NewReader(c.body))
		req.Header.Set(wire.HeaderToken, token)
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != c.status || !strings.Contains(string(b), c.want) {
			t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, resp.StatusCode, b)
		}
	}
}

type sample struct {
	CPUs  float64 `json:"cpu_count"`
	CPU   float64 `json:"cpu_used_pct"`
	Total float64 `json:"mem_total_mib"`
	Used  float64 `json:"mem_used_mib"`
	At    int64   `json:"timestamp"`
}

func (s sample) sane() bool {
	return s.CPUs > 0 && s.CPU >= 0 && s.CPU <= 100 && s.Total > 1 && s.Used > 0 && s.Used <= s.Total &&
		time.Since(time.UnixMilli(s.At)).Abs() < time.Minute
}

func TestMetrics(t *testing.T) {
	d := start(t)
	for range 2 {
		_, body := get(t, d, "GET", "/metrics")
		var s sample
		if err := json.Unmarshal([]byte(body), &s); err != nil || !s.sane() {
			t.Errorf("%s: %v", body, err)
		}
	}
	req, _ := http.NewRequestWithContext(ctx(t), "GET", d.base+"/metrics/watch", nil)
	req.Header.Set(wire.HeaderToken, token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	var last int64
	for range 2 {
		if !lines.Scan() {
			t.Fatal("the stream ended")
		}
		var s sample
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil || !s.sane() || s.At <= last {
			t.Errorf("%s: %v", lines.Text(), err)
		}
		last = s.At
	}
	// The stream has no end of its own, and still doesn't hold the daemon's up.
	stopped := make(chan error, 1)
	go func() { stopped <- d.Shutdown(ctx(t)) }()
	for lines.Scan() {
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
