package opensandbox_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/sandboxd"
	"github.com/astrabox/astrabox/internal/sandboxd/fakeruntime"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/provider/opensandbox"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	execdwire "github.com/astrabox/astrabox/sandbox/execd/wire"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { execd.CloseIdleConnections() }))
}

const installation = "inst_1"

// service is the real bundled service, over HTTP, on a machine without a kernel.
type service struct {
	t       *testing.T
	dir     string
	machine *fakeruntime.Machine
	rt      *fakeruntime.Runtime
	stop    func()

	mu     sync.Mutex
	broken bool // execds refuse everything
}

func newService(t *testing.T) *service {
	s := &service{t: t, dir: t.TempDir(), machine: fakeruntime.NewMachine()}
	s.machine.Serve = func(_, token string) (netip.AddrPort, func()) {
		d := httptest.NewServer(s.daemon(token))
		return netip.MustParseAddrPort(strings.TrimPrefix(d.URL, "http://")), func() {
			d.CloseClientConnections()
			d.Close()
		}
	}
	s.start()
	t.Cleanup(func() {
		if s.stop != nil {
			s.stop()
		}
		s.machine.Close()
	})
	return s
}

func (s *service) start() {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s.rt = s.machine.Runtime()
	go func() {
		done <- sandboxd.Run(ctx, sandboxd.Config{StateDir: s.dir, OpenRuntime: func(context.Context, string, *slog.Logger) (runtime.Runtime, error) {
			return s.rt, nil
		}})
	}()
	s.stop = func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
		s.stop = nil
	}
	deadline := time.After(20 * time.Second)
	for {
		if _, err := sandboxd.ReadListening(s.dir); err == nil {
			return
		}
		select {
		case err := <-done:
			s.t.Fatal(err)
		case <-deadline:
			s.t.Fatal("the service doesn't listen")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// daemon answers what Create asks of an execd.
func (s *service) daemon(token string) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }
	mux.HandleFunc("/version", func(w http.ResponseWriter, r *http.Request) {
		answer(w, execdwire.Version{Server: "astrabox-execd", Wire: "1.1.0", Features: []string{"output.v1", "process.v1", "files.v1"}})
	})
	mux.HandleFunc(execdwire.PathStat, func(w http.ResponseWriter, r *http.Request) {
		answer(w, execdwire.Entry{Path: r.URL.Query().Get("path"), Type: "directory", Mode: "755", Owner: "root", Group: "root"})
	})
	mux.HandleFunc(execdwire.PathMakeDir, func(w http.ResponseWriter, r *http.Request) { answer(w, struct{}{}) })
	mux.HandleFunc("/command", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", execdwire.OutputType)
		b := []byte(`{"code":0,"signal":""}`)
		h := make([]byte, execdwire.FrameHeaderSize)
		execdwire.PutFrameHeader(h, execdwire.FrameExit, len(b))
		_, _ = w.Write(append(h, b...))
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(execdwire.HeaderServer, "astrabox-execd/test")
		s.mu.Lock()
		broken := s.broken
		s.mu.Unlock()
		switch {
		case r.Header.Get(execdwire.HeaderToken) != token:
			w.WriteHeader(http.StatusUnauthorized)
		case broken:
			w.WriteHeader(http.StatusInternalServerError)
			answer(w, execdwire.Error{Code: "RUNTIME_ERROR", Message: "no"})
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

func settings(m map[string]string) sandbox.Host {
	return sandbox.Host{InstallationID: installation, Getenv: func(k string) string { return m[k] }}
}

// provider gives the provider bound as the platform binds it.
func (s *service) provider(extra ...string) *sandbox.Bound {
	m := map[string]string{
		"ASTRABOX_SANDBOX_OPENAPI_LISTEN_FILE": sandboxd.ListenFile(s.dir),
		"ASTRABOX_SANDBOX_OPENAPI_KEY_FILE":    sandboxd.KeyFile(s.dir),
	}
	for i := 0; i < len(extra); i += 2 {
		m[extra[i]] = extra[i+1]
	}
	return bound(s.t, settings(m))
}

func bound(t *testing.T, h sandbox.Host) *sandbox.Bound {
	t.Helper()
	drivers, err := sandbox.Installed()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range drivers {
		if d.Name != opensandbox.Name {
			continue
		}
		p, err := d.New(t.Context(), h)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.(*opensandbox.Provider).Close() })
		b, err := sandbox.Bind(d, p)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	t.Fatal("the driver isn't installed")
	return nil
}

func spec(assignment string) sandbox.CreateSpec {
	return sandbox.CreateSpec{
		InstallationID: installation, OwnerID: "conv_1", AssignmentID: assignment, Image: "astrabox:host",
		ResourceLimits: map[string]string{"cpu": "1", "memory": "512Mi"}, ResourceRequests: map[string]string{"cpu": "200m"},
		TTL: time.Hour, Dir: "/workspace", RequireCommandChannel: true,
	}
}

func create(t *testing.T, p sandbox.Provider, s sandbox.CreateSpec) sandbox.Handle {
	t.Helper()
	h, err := p.Create(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func wantCode(t *testing.T, err error, want sandbox.Code) *sandbox.Error {
	t.Helper()
	if got := sandbox.CodeOf(err); got != want {
		t.Errorf("error %v, want code %s", err, want)
	}
	var e *sandbox.Error
	if !errors.As(err, &e) {
		return &sandbox.Error{}
	}
	return e
}

// script is a lifecycle service that answers as a test says. Keys are method
// and path without the base; a missing one is 404 in the API's form.
type script struct {
	t *testing.T
	*httptest.Server
	mu       sync.Mutex
	answers  map[string]http.HandlerFunc
	requests []string
}

const scriptKey = "very-secret-key"

func newScript(t *testing.T) *script {
	s := &script{t: t, answers: map[string]http.HandlerFunc{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.Method + " " + strings.TrimPrefix(r.URL.Path, "/v1/")
		s.mu.Lock()
		s.requests = append(s.requests, name)
		f := s.answers[name]
		s.mu.Unlock()
		if r.Header.Get(wire.HeaderKey) != scriptKey {
			s.t.Errorf("%s came without the key", name)
		}
		if f == nil {
			reply(404, wire.Error{Code: "SANDBOX_NOT_FOUND", Message: "no such sandbox"})(w, r)
			return
		}
		f(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *script) on(name string, f http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[name] = f
}

func (s *script) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.requests...)
}

func reply(status int, body any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		switch b := body.(type) {
		case nil:
		case string:
			_, _ = w.Write([]byte(b))
		default:
			_ = json.NewEncoder(w).Encode(b)
		}
	}
}

// inTurn gives one answer after another and then the last for ever.
func inTurn(fs ...http.HandlerFunc) http.HandlerFunc {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		f := fs[0]
		if len(fs) > 1 {
			fs = fs[1:]
		}
		mu.Unlock()
		f(w, r)
	}
}

func described(id, state string) wire.Sandbox {
	return wire.Sandbox{ID: id, Status: wire.Status{State: state}, Entrypoint: []string{"tail"}, CreatedAt: time.Now()}
}

func (s *script) provider() *sandbox.Bound {
	return bound(s.t, settings(map[string]string{
		"ASTRABOX_SANDBOX_OPENAPI_BASE_URL": s.URL + "/v1", "ASTRABOX_SANDBOX_OPENAPI_KEY": scriptKey,
		"ASTRABOX_SANDBOX_OPENAPI_TIMEOUT": "5s",
	}))
}
