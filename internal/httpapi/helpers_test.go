package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/conversation"
	"github.com/astrabox/astrabox/internal/httpapi"
	"github.com/astrabox/astrabox/internal/httpapi/httpapitest"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/test/machine"
)

// Some paths of these tests are hostile, and they may run as root.
func TestMain(m *testing.M) {
	machine.ReadOnly()
	goleak.VerifyTestMain(m)
}

var _ httpapi.Service = (*conversation.Service)(nil)

// rig is a server over the test platform, on a real listener.
type rig struct {
	*testing.T
	svc *httpapitest.Service
	api *httpapi.Server
	url string
}

func newRig(t *testing.T, change ...func(*httpapi.Config)) *rig {
	t.Helper()
	svc := httpapitest.New(t.TempDir())
	config := httpapi.Config{Service: svc, Version: "1.2.3", Hosts: []string{"box.example"}, Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
		Console: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "the console") }),
		Doctor: func(context.Context) []wire.Finding {
			return []wire.Finding{{ID: "kernel", OK: true, Severity: "info", Summary: "fine"}}
		}}
	for _, c := range change {
		c(&config)
	}
	api, err := httpapi.New(config)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(api)
	t.Cleanup(func() {
		api.Drain()
		srv.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := api.Wait(ctx); err != nil {
			t.Errorf("streams are left: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return &rig{t, svc, api, srv.URL}
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// conversation makes one.
func (r *rig) conversation() string {
	r.Helper()
	c, err := r.svc.CreateConversation(context.Background(), conversation.CreateRequest{})
	if err != nil {
		r.Fatal(err)
	}
	return c.ID
}

// answer is a response that was read to its end.
type answer struct {
	*http.Response
	body string
	err  error // of reading the body
}

func (a answer) problem(t *testing.T) wire.Problem {
	t.Helper()
	if ct := a.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("%s %s: %d with Content-Type %q: %s", a.Request.Method, a.Request.URL, a.StatusCode, ct, a.body)
	}
	return decode[wire.Problem](t, a.body)
}

func decode[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return v
}

// do sends a request. Headers are "Name: value".
func (r *rig) do(method, path, body string, headers ...string) answer {
	r.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	return r.send(method, path, in, headers...)
}

func (r *rig) send(method, path string, in io.Reader, headers ...string) answer {
	r.Helper()
	req, err := http.NewRequest(method, r.url+path, in)
	if err != nil {
		r.Fatal(err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return answer{resp, string(b), err}
}

const unknown = "conv_00000000000000000000000000"

func mustWrite(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

var errLost = errors.New("dial tcp 10.88.0.7:44772: token=hunter2")

func turnEnded(s *httpapitest.Service, t model.Turn) {
	s.Emit(t.ConversationID, model.EventTurnEnded, t.ID, map[string]any{"reason": "done"})
}
