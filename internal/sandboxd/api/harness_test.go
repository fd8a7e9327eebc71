package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/sandboxd/api"
	"github.com/astrabox/astrabox/internal/sandboxd/fakeruntime"
	"github.com/astrabox/astrabox/internal/sandboxd/lifecycle"
	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const key = "the-key-of-the-service"

// harness is the API over real HTTP and a real database, on a machine without
// a kernel.
type harness struct {
	t       *testing.T
	machine *fakeruntime.Machine
	url     string // of the service, without /v1
	logs    *bytes.Buffer
	client  *http.Client
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	store, err := state.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	h := &harness{t: t, machine: fakeruntime.NewMachine(), logs: new(bytes.Buffer)}
	log := slog.New(slog.NewJSONHandler(h.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	service := lifecycle.New(lifecycle.Config{Store: store, Runtime: h.machine.Runtime(), Log: log, BootID: "boot"})
	if err := service.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	handler, err := api.New(service, key, "test", log)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	transport := &http.Transport{}
	h.url = server.URL
	h.client = &http.Client{Transport: transport, Timeout: 30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.CloseClientConnections()
		server.Close()
		handler.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		service.Close(ctx)
		store.Close()
		h.machine.Close()
	})
	return h
}

// serve answers for the execd of every sandbox.
func (h *harness) serve(handler func(id, token string) http.Handler) {
	h.machine.Serve = func(id, token string) (netip.AddrPort, func()) {
		s := httptest.NewServer(handler(id, token))
		return netip.MustParseAddrPort(strings.TrimPrefix(s.URL, "http://")), func() {
			s.CloseClientConnections()
			s.Close()
		}
	}
}

// request sends a request with the key; edit may change it.
func (h *harness) request(method, path string, body any, edit ...func(*http.Request)) *answer {
	h.t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		text, err := json.Marshal(b)
		if err != nil {
			h.t.Fatal(err)
		}
		r = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(h.t.Context(), method, h.url+path, r)
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set(wire.HeaderKey, key)
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, f := range edit {
		f(req)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	checkContract(h.t, req, resp, b)
	return &answer{h.t, req, resp, b}
}

type answer struct {
	t    *testing.T
	req  *http.Request
	resp *http.Response
	body []byte
}

// want checks the status and, for refusals, the code.
func (a *answer) want(status int, code ...string) *answer {
	a.t.Helper()
	if a.resp.StatusCode != status {
		a.t.Errorf("%s %s: %d %s, want %d", a.req.Method, a.req.URL.Path, a.resp.StatusCode, a.body, status)
		return a
	}
	if status >= 400 {
		var e wire.Error
		if err := json.Unmarshal(a.body, &e); err != nil || e.Code == "" || e.Message == "" || len(code) > 0 && e.Code != code[0] {
			a.t.Errorf("%s %s: error body %s, want code %v", a.req.Method, a.req.URL.Path, a.body, code)
		}
	}
	if a.resp.Header.Get(wire.HeaderRequestID) == "" {
		a.t.Errorf("%s %s: no %s", a.req.Method, a.req.URL.Path, wire.HeaderRequestID)
	}
	return a
}

func decode[T any](a *answer) T {
	a.t.Helper()
	var v T
	if err := json.Unmarshal(a.body, &v); err != nil {
		a.t.Errorf("%s %s: %s: %v", a.req.Method, a.req.URL.Path, a.body, err)
	}
	return v
}

func body(edit ...func(map[string]any)) map[string]any {
	b := map[string]any{
		"image": map[string]any{"uri": "astrabox:host"}, "entrypoint": []string{"tail", "-f", "/dev/null"},
		"resourceLimits": map[string]any{"cpu": "500m", "memory": "512Mi"}, "timeout": 3600,
		"metadata": map[string]any{"project": "apollo"},
	}
	for _, f := range edit {
		f(b)
	}
	return b
}

func set(k string, v any) func(map[string]any) { return func(b map[string]any) { b[k] = v } }

func (h *harness) create(edit ...func(map[string]any)) wire.Sandbox {
	h.t.Helper()
	return decode[wire.Sandbox](h.request("POST", "/v1/sandboxes", body(edit...)).want(202))
}
