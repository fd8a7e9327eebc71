package app

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/sqldb"
	"github.com/astrabox/astrabox/test/machine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// buffer is a bytes.Buffer for several goroutines.
type buffer struct {
	mu   sync.Mutex
	b    bytes.Buffer
	line chan struct{} // gets something for each write
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.line <- struct{}{}:
	default:
	}
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// external is a Config whose lifecycle service is somebody else's and isn't
// there: everything of this process works without it.
func external(t *testing.T, env map[string]string) (Config, *buffer) {
	t.Helper()
	agent := filepath.Join(t.TempDir(), "shellagent")
	if err := os.WriteFile(agent, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{"ASTRABOX_SANDBOX_OPENAPI_BASE_URL": "http://127.0.0.1:1/v1", "ASTRABOX_SANDBOX_OPENAPI_KEY": "hunter2", "ASTRABOX_SHELLAGENT_PATH": agent}
	for k, v := range env {
		settings[k] = v
	}
	out := &buffer{line: make(chan struct{}, 100)}
	return Config{
		StateDir: filepath.Join(t.TempDir(), "state"), Listen: "127.0.0.1:0", Version: "1.2.3", Executable: filepath.Join(t.TempDir(), "astrabox"),
		Getenv: func(k string) string { return settings[k] }, Out: out, Log: slog.New(slog.NewTextHandler(out, nil)),
	}, out
}

// running is a Run that serves.
type running struct {
	url  string
	stop func() error
}

func start(t *testing.T, c Config, out *buffer) running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, c) }()
	var once sync.Once
	var result error
	r := running{stop: func() error {
		once.Do(func() { cancel(); result = <-done })
		return result
	}}
	t.Cleanup(func() { _ = r.stop() })
	deadline := time.After(20 * time.Second)
	for {
		if _, rest, ok := strings.Cut(out.String(), "is ready on "); ok && strings.Contains(rest, "Ctrl-C") {
			r.url, _, _ = strings.Cut(rest, " ")
			return r
		}
		select {
		case <-out.line:
		case err := <-done:
			done <- err
			t.Fatalf("Run ended: %v\n%s", err, out)
		case <-deadline:
			t.Fatalf("it doesn't start:\n%s", out)
		}
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

func TestRun(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	c, out := external(t, nil)
	r := start(t, c, out)
	for path, want := range map[string]string{"/readyz": "ready", "/": "AstraBox", "/api/v1/agents": `"name":"shell"`, "/api/v1/environments": `"backend":"open_sandbox"`, "/api/v1/doctor": "program.shell", "/openapi.json": "openapi"} {
		if status, body := get(t, r.url+path); status != 200 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	second := c
	second.Out, second.Log = io.Discard, slog.New(slog.DiscardHandler)
	if err := Run(t.Context(), second); !fault.Is(err, fault.StateInUse) {
		t.Errorf("a second server on the directory: %v", err)
	}
	other, _ := external(t, nil)
	other.Listen = strings.TrimPrefix(r.url, "http://")
	if err := Run(t.Context(), other); !fault.Is(err, fault.AddressInUse) {
		t.Errorf("a port in use: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Error("the key was printed")
	}
	if _, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://")); err == nil {
		t.Error("it still listens")
	}
	c2, out2 := external(t, nil)
	c2.StateDir = c.StateDir
	again := start(t, c2, out2)
	if err := again.stop(); err != nil {
		t.Errorf("the second start: %v", err)
	}
}

// A stream that is open doesn't hold up a stop.
func TestStopEndsStreams(t *testing.T) {
	defer http.DefaultClient.CloseIdleConnections()
	c, out := external(t, nil)
	r := start(t, c, out)
	resp, err := http.Post(r.url+"/api/v1/conversations", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	var v struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	stream, err := http.Get(r.url + "/api/v1/conversations/" + v.ID + "/events/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	began := time.Now()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > drainTimeout/2 {
		t.Errorf("the stop took %v", took)
	}
	if _, err := io.Copy(io.Discard, stream.Body); err != nil {
		t.Errorf("the stream was cut instead of ended: %v", err)
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		name   string
		env    map[string]string
		change func(t *testing.T, c *Config)
		code   fault.Code
		says   string
	}{
		{"all addresses", nil, func(_ *testing.T, c *Config) { c.Listen = "0.0.0.0:0" }, fault.AuthRequired, "no login"},
		{"no host", nil, func(_ *testing.T, c *Config) { c.Listen = ":0" }, fault.AuthRequired, "no login"},
		{"an address of the network", nil, func(_ *testing.T, c *Config) { c.Listen = "192.0.2.1:0" }, fault.AuthRequired, "no login"},
		{"a name", nil, func(_ *testing.T, c *Config) { c.Listen = "example.test:0" }, fault.AuthRequired, "no login"},
		{"no port", nil, func(_ *testing.T, c *Config) { c.Listen = "127.0.0.1" }, fault.SettingInvalid, "host:port"},
		{"a port that isn't one", nil, func(_ *testing.T, c *Config) { c.Listen = "127.0.0.1:99999" }, fault.SettingInvalid, "99999"},
		{"others may read the state", nil, func(t *testing.T, c *Config) { mkdir(t, c.StateDir, 0o755) }, fault.StateInvalid, "chmod 700"},
		{"the state is another's", nil, func(t *testing.T, c *Config) {
			machine.NeedRoot(t)
			mkdir(t, c.StateDir, 0o700)
			if err := os.Chown(c.StateDir, 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}, fault.StateInvalid, "belongs to user 65534"},
		{"the state is a file", nil, func(t *testing.T, c *Config) { write(t, c.StateDir, "") }, fault.StateInvalid, "can't be made"},
		{"the id of the installation is broken", nil, func(t *testing.T, c *Config) {
			mkdir(t, c.StateDir, 0o700)
			write(t, filepath.Join(c.StateDir, "installation"), "x\n")
		}, fault.StateInvalid, "26 characters"},
		{"the database is no database", nil, func(t *testing.T, c *Config) {
			mkdir(t, c.StateDir, 0o700)
			write(t, filepath.Join(c.StateDir, "astrabox.db"), strings.Repeat("x", 5000))
		}, fault.StorageUnavailable, ""},
		{"the state is newer", nil, func(t *testing.T, c *Config) { newer(t, c.StateDir) }, fault.StateTooNew, ""},
		{"unknown backend", map[string]string{settingBackends: "e2b"}, nil, fault.SettingInvalid, "open_sandbox"},
		{"bad address of the service", map[string]string{"ASTRABOX_SANDBOX_OPENAPI_BASE_URL": "://hunter2"}, nil, fault.SettingInvalid, "BASE_URL"},
		{"a default backend without what the Agent needs", map[string]string{settingDisable: "ProcessSessions"}, nil, fault.SettingInvalid, settingDisable},
		{"no Agent program", map[string]string{"ASTRABOX_SHELLAGENT_PATH": "/nonexistent"}, nil, fault.HostUnfit, "ASTRABOX_SHELLAGENT_PATH"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, out := external(t, tt.env)
			if tt.change != nil {
				tt.change(t, &c)
			}
			err := Run(t.Context(), c)
			f := fault.From(err)
			if err == nil || f.Code != tt.code || !strings.Contains(f.Public, tt.says) {
				t.Errorf("%v", err)
			}
			if _, err := os.Lstat(c.StateDir); tt.code == fault.SettingInvalid && tt.says != "BASE_URL" && !os.IsNotExist(err) {
				t.Errorf("a state directory was made: %v", err)
			}
			if strings.Contains(out.String()+f.Public, "hunter2") {
				t.Error("a secret was told")
			}
		})
	}
}

func mkdir(t *testing.T, name string, mode os.FileMode) {
	t.Helper()
	if err := os.Mkdir(name, mode); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// newer makes a database that a later version of the program wrote.
func newer(t *testing.T, dir string) {
	t.Helper()
	mkdir(t, dir, 0o700)
	migrations := os.DirFS(migrationsOfLater(t))
	db, err := sqldb.Open(t.Context(), filepath.Join(dir, "astrabox.db"), migrations)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func migrationsOfLater(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "99999_later.sql"), "-- +goose Up\nCREATE TABLE later (id TEXT);\n")
	return dir
}

func TestInstallationStays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	first, err := openState(dir)
	if err != nil {
		t.Fatal(err)
	}
	first.close()
	second, err := openState(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer second.close()
	if first.installation != second.installation || !installationForm.MatchString(first.installation) {
		t.Errorf("%q, then %q", first.installation, second.installation)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(dir, "installation")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
}

func TestDoctorLeavesNothing(t *testing.T) {
	c, _ := external(t, map[string]string{"ASTRABOX_SANDBOX_OPENAPI_BASE_URL": ""})
	findings, err := Doctor(t.Context(), c)
	if err != nil || len(findings) < 3 {
		t.Errorf("%v %v", findings, err)
	}
	if _, err := os.Lstat(c.StateDir); !os.IsNotExist(err) {
		t.Errorf("the state directory: %v", err)
	}
}

func TestRefuseNamesTheFix(t *testing.T) {
	err := refuse([]wire.Finding{
		{ID: "root", Severity: "error", Summary: "this process runs as user 1000", Fix: "start it with sudo"},
		{ID: "swap", Severity: "warning", Summary: "no swap"},
		{ID: "runc", OK: true, Severity: "error"},
	})
	text := fault.From(err).Public
	if !fault.Is(err, fault.HostUnfit) || !strings.Contains(text, "fix: start it with sudo") || strings.Contains(text, "swap") {
		t.Error(text)
	}
	if err := refuse([]wire.Finding{{ID: "x", Severity: "warning"}}); err != nil {
		t.Errorf("a warning refuses: %v", err)
	}
}
