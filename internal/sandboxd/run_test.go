package sandboxd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/sandboxd/fakeruntime"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
	"github.com/astrabox/astrabox/test/machine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// started runs the service on a machine without a kernel.
func started(t *testing.T, dir string, m *fakeruntime.Machine) (l Listening, key string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Run(ctx, config(dir, m)) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	deadline := time.After(20 * time.Second)
	for {
		l, err := ReadListening(dir)
		if err == nil {
			key, err := ReadKey(dir)
			if err != nil {
				t.Fatal(err)
			}
			return l, key, stop
		}
		select {
		case err := <-done:
			t.Fatalf("Run: %v", err)
		case <-deadline:
			t.Fatalf("it doesn't listen: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func config(dir string, m *fakeruntime.Machine) Config {
	return Config{StateDir: dir, Version: "test", OpenRuntime: func(context.Context, string, *slog.Logger) (runtime.Runtime, error) {
		return m.Runtime(), nil
	}}
}

func request(t *testing.T, method, url, key, body string) (status int, sandbox wire.Sandbox) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(wire.HeaderKey, key)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_ = json.NewDecoder(resp.Body).Decode(&sandbox) // not every answer is one
	return resp.StatusCode, sandbox
}

const createBody = `{"image":{"uri":"astrabox:host"},"entrypoint":["tail"],"resourceLimits":{}}`

func TestRun(t *testing.T) {
	dir, m := t.TempDir(), fakeruntime.NewMachine()
	l, key, stop := started(t, dir, m)
	if l.PID != os.Getpid() || l.Version != "test" || !strings.HasPrefix(l.URL, "http://127.0.0.1:") || !strings.HasSuffix(l.URL, "/v1") {
		t.Errorf("listening %+v", l)
	}
	for path, mode := range map[string]fs.FileMode{Dir(dir): fs.ModeDir | 0o700, KeyFile(dir): 0o600, LogFile(dir): 0o600, ListenFile(dir): 0o600, Dir(dir) + "/sandboxes.db": 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("%s: %v, %v; want mode %v", path, info, err, mode)
		}
	}
	if locked, err := Locked(dir); err != nil || !locked {
		t.Errorf("locked %v, %v", locked, err)
	}
	if err := Run(t.Context(), config(dir, m)); !errors.Is(err, ErrLocked) {
		t.Errorf("a second service: %v", err)
	}
	if again, err := ReadListening(dir); err != nil || again != l {
		t.Errorf("the second service changed the address: %+v, %v", again, err)
	}
	status, s := request(t, "POST", l.URL+"/sandboxes", key, createBody)
	if status != 202 {
		t.Fatalf("create: %d", status)
	}
	stop()
	if _, err := ReadListening(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after the stop the address is still there: %v", err)
	}
	if locked, err := Locked(dir); err != nil || locked {
		t.Errorf("after the stop: locked %v, %v", locked, err)
	}
	if pid := m.Boxes()[s.ID]; pid == 0 {
		t.Error("the sandbox didn't outlive its service")
	}
	l, key2, stop := started(t, dir, m)
	defer stop()
	if key2 != key {
		t.Error("the key changed")
	}
	if status, got := request(t, "GET", l.URL+"/sandboxes/"+s.ID, key, ""); status != 200 || got.Status.State != wire.Running {
		t.Errorf("after the restart: %d %+v", status, got)
	}
	log, err := os.ReadFile(LogFile(dir))
	if err != nil || !bytes.Contains(log, []byte(s.ID)) || bytes.Contains(log, []byte(key)) {
		t.Errorf("log: %v %s", err, log)
	}
}

func TestRefusals(t *testing.T) {
	for _, listen := range []string{"0.0.0.0:0", ":0", "10.0.0.1:1", "example.com:80", "127.0.0.1", "[::]:0"} {
		cfg := config(t.TempDir(), fakeruntime.NewMachine())
		cfg.Listen = listen
		if err := Run(t.Context(), cfg); err == nil {
			t.Errorf("it listened on %s", listen)
		}
	}
	dir := t.TempDir()
	if _, _, err := readForTest(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(KeyFile(dir), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), config(dir, fakeruntime.NewMachine())); err == nil || !strings.Contains(err.Error(), "read by others") {
		t.Errorf("with a key that others can read: %v", err)
	}
	broken := config(t.TempDir(), nil)
	broken.OpenRuntime = func(context.Context, string, *slog.Logger) (runtime.Runtime, error) {
		return nil, errors.New("runc is missing")
	}
	if err := Run(t.Context(), broken); err == nil || !strings.Contains(err.Error(), "runc is missing") {
		t.Errorf("without a runtime: %v", err)
	}
}

// A directory that another account could change decides nothing here.
func TestForeignDirectory(t *testing.T) {
	machine.NeedRoot(t)
	for name, change := range map[string]func(dir string) error{
		"the state is another's": func(dir string) error { return os.Chown(dir, 65534, 65534) },
		"ours is another's":      func(dir string) error { return os.Chown(Dir(dir), 65534, 65534) },
		"others write the state": func(dir string) error { return os.Chmod(dir, 0o777) },
		"others see into ours":   func(dir string) error { return os.Chmod(Dir(dir), 0o755) },
		"ours is a link": func(dir string) error {
			return errors.Join(os.Remove(Dir(dir)), os.Symlink(t.TempDir(), Dir(dir)))
		},
	} {
		dir := t.TempDir()
		if err := os.Mkdir(Dir(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // one that serves would go on
		err := Run(ctx, config(dir, fakeruntime.NewMachine()))
		cancel()
		if err == nil {
			t.Errorf("%s, and it was used", name)
		}
		if _, err := os.Stat(KeyFile(dir)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s, and a key was put there: %v", name, err)
		}
	}
}

func readForTest(dir string) (key, inst string, err error) {
	if err := os.MkdirAll(Dir(dir), 0o700); err != nil {
		return "", "", err
	}
	key, err1 := ReadKey(dir)
	inst, err2 := installation(dir)
	return key, inst, errors.Join(err1, err2)
}

func TestNamesStay(t *testing.T) {
	dir := t.TempDir()
	key, inst, err := readForTest(dir)
	if err != nil || len(key) < 40 || !installationForm.MatchString(inst) {
		t.Fatalf("key of %d characters, installation %q, %v", len(key), inst, err)
	}
	again, inst2, err := readForTest(dir)
	if err != nil || again != key || inst2 != inst {
		t.Errorf("they changed: %v", err)
	}
	other, inst3, _ := readForTest(t.TempDir())
	if other == key || inst3 == inst {
		t.Error("two directories have the same")
	}
}

// The log keeps its bound, and nothing is lost at the turn but what is older
// than the file before.
func TestLogFile(t *testing.T) {
	path := t.TempDir() + "/log"
	l, err := openLog(path, 100)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("x", 29) + "\n"
	for range 10 {
		if n, err := l.Write([]byte(line)); n != 30 || err != nil {
			t.Fatalf("wrote %d, %v", n, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	now, _ := os.ReadFile(path)
	before, _ := os.ReadFile(path + ".1")
	if string(now) != line || string(before) != strings.Repeat(line, 3) {
		t.Errorf("now %d bytes, before %d", len(now), len(before))
	}
	if _, err := l.Write([]byte(line)); err == nil {
		t.Error("a closed log was written to")
	}
}
