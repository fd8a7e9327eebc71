package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/conversation"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi"
	"github.com/astrabox/astrabox/internal/httpapi/client"
	"github.com/astrabox/astrabox/internal/httpapi/httpapitest"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a server, and command lines that talk to it.
type rig struct {
	*testing.T
	svc        *httpapitest.Service
	api        *httpapi.Server
	srv        *httptest.Server
	interrupts chan os.Signal
}

func newRig(t *testing.T) *rig {
	t.Helper()
	svc := httpapitest.New(t.TempDir())
	r := &rig{T: t, svc: svc, interrupts: make(chan os.Signal, 2)}
	r.serve("127.0.0.1:0")
	t.Cleanup(func() { r.down() })
	return r
}

// serve starts the server on an address.
func (r *rig) serve(address string) {
	r.Helper()
	api, err := httpapi.New(httpapi.Config{Service: r.svc, Version: "1.2.3", Doctor: func(context.Context) []wire.Finding {
		return []wire.Finding{{ID: "kernel", OK: true, Severity: "error", Summary: "fine"}, {ID: "runc", Severity: "error", Summary: "missing", Fix: "install it"}}
	}})
	if err != nil {
		r.Fatal(err)
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		r.Fatal(err)
	}
	r.api, r.srv = api, httptest.NewUnstartedServer(api)
	r.srv.Listener.Close()
	r.srv.Listener = l
	r.srv.Start()
}

// down stops the server as a stop of the program does.
func (r *rig) down() {
	r.api.Drain()
	r.srv.CloseClientConnections()
	r.srv.Close()
}

// result is what a command line did.
type result struct {
	code           int
	stdout, stderr string
}

// writer tells about what is written.
type writer struct {
	mu sync.Mutex
	b  bytes.Buffer
	on func(string)
}

func (w *writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.on != nil {
		w.on(string(p))
	}
	return w.b.Write(p)
}

func (r *rig) run(args ...string) result { return r.with("", nil, args...) }

// with runs a command line with an input; on is called with each piece of output.
func (r *rig) with(stdin string, on func(string), args ...string) result {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	stdout, stderr := &writer{on: on}, &writer{}
	code := Main(ctx, args, System{
		Stdin: strings.NewReader(stdin), Stdout: stdout, Stderr: stderr, Executable: "/nonexistent/astrabox",
		Getenv: func(k string) string {
			if k == "ASTRABOX_URL" {
				return r.srv.URL
			}
			return ""
		},
		Terminal:   func(any) bool { return false },
		Interrupts: func() (<-chan os.Signal, func()) { return r.interrupts, func() {} },
	})
	if ctx.Err() != nil {
		r.Errorf("astrabox %v took too long", args)
	}
	return result{code: code, stdout: stdout.b.String(), stderr: stderr.b.String()}
}

func (r *rig) conversation() string {
	r.Helper()
	c, err := r.svc.CreateConversation(context.Background(), conversation.CreateRequest{Title: "a title"})
	if err != nil {
		r.Fatal(err)
	}
	return c.ID
}

func TestExitCodes(t *testing.T) {
	r := newRig(t)
	id := r.conversation()
	dead := r.conversation()
	r.run("conversation", "delete", dead)
	const none = "conv_00000000000000000000000000"
	tests := []struct {
		args string
		code int
		says string // on the error stream
	}{
		{"", 0, ""},
		{"--help", 0, ""},
		{"chat --help", 0, ""},
		{"conversation", 0, ""},
		{"version", 0, ""},
		{"--version", 0, ""},
		{"env list", 0, ""},
		{"agent list", 0, ""},
		{"conversation list", 0, ""},
		{"conversation show " + id, 0, ""},
		{"files ls " + id, 0, ""},
		{"nonsense", 2, `"nonsense"`},
		{"conversation nonsense", 2, `"nonsense"`},
		{"--nonsense", 2, "--nonsense"},
		{"conversation show", 2, "show CONVERSATION"},
		{"conversation show a b", 2, "number of arguments"},
		{"conversation list --limit 0", 2, "--limit"},
		{"conversation list --limit x", 2, "--limit"},
		{"env list extra", 2, ""},
		{"files put " + id + " -", 2, "PATH"},
		{"files put " + id + " - dir/", 2, "PATH"},
		{"files put " + id + " x --new --if-version v", 2, "if-version"},
		{"serve --log-level loud", 2, "log-level"},
		{"serve --idle-after soon", 2, "idle-after"},
		{"serve --idle-after 0s", 2, "idle-after"},
		{"--server ftp://x env list", 2, "address of a server"},
		{"--server http://user:pass@x env list", 2, "address of a server"},
		{"terminal attach " + id, 2, "not a terminal"},
		{"--server http://127.0.0.1:1 env list", 3, "astrabox serve"},
		{"--server http://127.0.0.1:1 chat hello", 3, "can't reach"},
		{"--server http://127.0.0.1:1 files get " + id + " x -", 3, ""},
		{"conversation show " + none, 4, "no such conversation"},
		{"conversation show ../../healthz", 4, ""},
		{"conversation delete " + none, 4, ""},
		{"chat -c " + none + " hello", 4, ""},
		{"chat -c " + none, 4, ""},
		{"chat -c " + dead + " hello", 4, "deleted"},
		{"chat --agent nobody hello", 4, "nobody"},
		{"files ls " + none, 4, ""},
		{"files get " + id + " nothing -", 4, "nothing"},
		{"files ls " + id + " nothing", 4, ""},
		{"files archive " + id + " nothing -", 4, "nothing"},
		{"files archive " + id + " --format rar -", 1, "format"},
		{"files ls " + id + " /etc", 1, "PATH_ESCAPES"},
		{"files ls " + id + " --depth 99", 1, "depth"},
		{"files put " + id + " /nonexistent", 1, "no such file"},
		{"files put " + id + " /", 1, "regular"},
		{"--server " + r.srv.URL + " doctor", 1, ""},
		{"--json --server " + r.srv.URL + " doctor", 1, ""},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			got := r.run(strings.Fields(tt.args)...)
			if got.code != tt.code || !strings.Contains(got.stderr, tt.says) {
				t.Errorf("exit code %d, stderr %q", got.code, got.stderr)
			}
			if got.code != 0 && got.code != 1 && got.stderr == "" {
				t.Error("it says nothing")
			}
			if strings.Contains(got.stderr, "pass@") {
				t.Error("it tells a password")
			}
		})
	}
}

func TestNotOurServer(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	r := newRig(t)
	if got := r.run("--server", other.URL, "env", "list"); got.code != 4 || !strings.Contains(got.stderr, "another server") {
		t.Errorf("%+v", got)
	}
}

func TestTables(t *testing.T) {
	r := newRig(t)
	id := r.conversation()
	for args, parts := range map[string][]string{
		"env list":                {"NAME", "local", "open_sandbox", "4Gi"},
		"agent list":              {"shell", "Runs each message"},
		"conversation list":       {"ID", id, "a title", "no sandbox"},
		"conversation show " + id: {"environment", "local", "state", "active"},
		"version":                 {"astrabox", "seam", "open_sandbox", "github.com/astrabox/astrabox"},
		"provider list":           {"NAME", "open_sandbox", "default", "ProcessSessions"},
	} {
		got := r.run(strings.Fields(args)...)
		for _, p := range parts {
			if !strings.Contains(got.stdout, p) {
				t.Errorf("%s: no %q in %s", args, p, got.stdout)
			}
		}
		asJSON := r.run(append(strings.Fields(args), "--json")...)
		if !json.Valid([]byte(asJSON.stdout)) || asJSON.code != 0 {
			t.Errorf("%s --json: %d %s", args, asJSON.code, asJSON.stdout)
		}
	}
	r.conversation()
	r.conversation()
	if got := r.run("conversation", "list", "--limit", "2"); strings.Count(got.stdout, "\n") != 3 {
		t.Errorf("%s", got.stdout)
	}
}

func TestDelete(t *testing.T) {
	r := newRig(t)
	id := r.conversation()
	if got := r.run("conversation", "delete", id); got.code != 0 || !strings.Contains(got.stdout, "gone") {
		t.Errorf("%+v", got)
	}
	r.svc.Unconfirmed = true
	if got := r.run("conversation", "delete", r.conversation()); got.code != 1 || !strings.Contains(got.stderr, "isn't confirmed") {
		t.Errorf("%+v", got)
	}
	two := []string{r.conversation(), "conv_x", r.conversation()}
	r.svc.Unconfirmed = false
	if got := r.run(append([]string{"conversation", "delete", "--json"}, two...)...); got.code != 4 || strings.Count(got.stdout, `"state": "deleted"`) != 2 {
		t.Errorf("%+v", got)
	}
}

func TestFiles(t *testing.T) {
	r := newRig(t)
	id := r.conversation()
	dir := t.TempDir()
	local := filepath.Join(dir, "local.txt")
	if err := os.WriteFile(local, []byte("content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := r.run("files", "put", id, local); got.code != 0 || !strings.Contains(got.stderr, "mode 0640, owner agent") {
		t.Errorf("%+v", got)
	}
	if got := r.with("from a pipe", nil, "files", "put", id, "-", "sub.txt", "--json"); got.code != 0 || !strings.Contains(got.stdout, `"path": "/workspace/sub.txt"`) {
		t.Errorf("%+v", got)
	}
	if got := r.run("files", "put", id, local, "--new"); got.code != 1 || !strings.Contains(got.stderr, "FILE_EXISTS") {
		t.Errorf("%+v", got)
	}
	if got := r.run("files", "put", id, local, "--if-version", "old"); got.code != 1 || !strings.Contains(got.stderr, "FILE_CHANGED") {
		t.Errorf("%+v", got)
	}
	if got := r.run("files", "ls", id); !strings.Contains(got.stdout, "local.txt") || !strings.Contains(got.stdout, "agent:agent") {
		t.Errorf("%+v", got)
	}
	if got := r.run("files", "archive", id, ".", "-", "--format", "tar"); got.code != 0 || len(got.stdout)%512 != 0 || !strings.Contains(got.stdout, "content") {
		t.Errorf("%+v", got)
	}
	if got := r.run("files", "archive", id, "", filepath.Join(t.TempDir(), "all.zip"), "--format", "zip"); got.code != 0 || !strings.Contains(got.stderr, "all.zip") {
		t.Errorf("%+v", got)
	}
	if got := r.run("files", "get", id, "local.txt", "-"); got.stdout != "content" {
		t.Errorf("%+v", got)
	}
	target := filepath.Join(dir, "copy")
	if got := r.run("files", "get", id, "sub.txt", target); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := r.run("files", "get", id, "local.txt", target); got.code != 1 || !strings.Contains(got.stderr, "--force") {
		t.Errorf("%+v", got)
	}
	if b, _ := os.ReadFile(target); string(b) != "from a pipe" {
		t.Errorf("%q", b)
	}
	if got := r.run("files", "get", id, "local.txt", target, "--force"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := r.run("files", "get", id, "local.txt", dir); got.code != 1 { // dir/local.txt is there
		t.Errorf("%+v", got)
	}
	if b, _ := os.ReadFile(target); string(b) != "content" {
		t.Errorf("%q", b)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// Names that others chose can't write to the terminal.
func TestNamesAreHarmless(t *testing.T) {
	r := newRig(t)
	id := r.conversation()
	evil := "a\x1b]0;owned\x07\rb"
	if err := os.WriteFile(filepath.Join(r.svc.Files(id).Root(), evil), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := r.run("files", "ls", id); strings.ContainsAny(got.stdout, "\x1b\x07\r") || !strings.Contains(got.stdout, "owned") {
		t.Errorf("%q", got.stdout)
	}
}

func TestMessageOf(t *testing.T) {
	cause := errors.New("the cause")
	for _, tt := range []struct {
		err        error
		want, lack string
	}{
		{fault.Wrap(fault.StorageUnavailable, cause, ""), "the cause", "\x00"},
		{fault.Wrap(fault.StateInUse, cause, "It is in use by X."), "in use by X", "the cause"},
		{&client.Problem{Problem: wire.Problem{Detail: "No.", Code: "X"}}, "No. (X)", "\x00"},
		{io.ErrUnexpectedEOF, "unexpected EOF", "\x00"},
	} {
		if got := message(tt.err); !strings.Contains(got, tt.want) || strings.Contains(got, tt.lack) {
			t.Errorf("%v: %q", tt.err, got)
		}
	}
}

func TestSmallForms(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 1023: "1023", 1024: "1.0K", 1536: "1.5K", 1 << 20: "1.0M", 1<<20 - 1: "1.0M", 5 << 40: "5.0T"} {
		if got := size(n); got != want {
			t.Errorf("size(%d) = %s", n, got)
		}
	}
	for d, want := range map[time.Duration]string{5 * time.Second: "5s", 3 * time.Minute: "3m", 5 * time.Hour: "5h", 72 * time.Hour: "3d"} {
		if got := age(time.Now().Add(-d)); got != want {
			t.Errorf("age(%v) = %s", d, got)
		}
	}
	if status(model.Conversation{State: model.Active, Turn: &model.TurnRef{}}) != "working" {
		t.Error("a conversation at work")
	}
}
