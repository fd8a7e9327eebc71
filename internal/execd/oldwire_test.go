package execd_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
	"github.com/astrabox/astrabox/test/machine"
)

// Programs without a shell: literal arguments, and what finds the program.
func TestArgv(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "tool")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho tool \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	id := ""
	for _, c := range []struct {
		req  wire.CommandRequest
		want []string
	}{
		{wire.CommandRequest{Argv: wire.Argv{"printf", "%s|", "$HOME", "a b", "", "*"}}, []string{"stdout $HOME|a b||*|", done}},
		{wire.CommandRequest{Argv: wire.Argv{"./tool", "x"}, Cwd: dir}, []string{"stdout tool x", done}},
		{wire.CommandRequest{Argv: wire.Argv{"tool"}, Envs: map[string]string{"PATH": "relative::" + dir + ":/bin"}}, []string{"stdout tool", done}},
		{wire.CommandRequest{Argv: wire.Argv{"tool"}, Cwd: dir, Envs: map[string]string{"PATH": ":."}}, []string{`error exec: "tool": executable file not found in $PATH [exec: "tool": executable file not found in $PATH]`}},
		{wire.CommandRequest{Argv: wire.Argv{"/no/such"}}, []string{`error exec: "/no/such": no such executable file [exec: "/no/such": no such executable file]`}},
	} {
		var got []event
		if id, got = events(t, d, c.req); !cmp.Equal(brief(got), c.want) {
			t.Errorf("%q: %q", c.req.Argv, brief(got))
		}
	}
	if resp, _ := get(t, d, "GET", "/command/status/"+id); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a program that wasn't started has a record: %d", resp.StatusCode)
	}
	id, _ = events(t, d, wire.CommandRequest{Argv: wire.Argv{"echo", "a b"}})
	if _, state := get(t, d, "GET", "/command/status/"+id); !strings.Contains(state, `"content":"[\"echo\",\"a b\"]"`) {
		t.Errorf("%s", state)
	}
	for _, body := range []string{
		`{"argv":[]}`, `{"argv":[""]}`, `{"argv":["a",null]}`, `{"argv":["a","b\u0000"]}`, `{"argv":["true"],"command":"true"}`,
		`{"argv":"true"}`, `{}`, `{"command":""}`, `{"command":null,"argv":null}`,
		`{"command":"true","timeout":-1}`, `{"command":"true","timeout":1.5}`, `{"command":"true","timeout":9223372036854775807}`,
		`{"command":"true","gid":1}`, `{"command":"true","uid":-1}`, `{"command":"true","uid":4294967295}`, `{"command":"true","uid":1,"gid":4294967295}`,
		`{"command":"true","cwd":"/dev/null"}`, `{"command":"true","cwd":"${NO_SUCH_VARIABLE}/x"}`, `{"command":"true","envs":{"A=":""}}`,
	} {
		resp := post(t, d, "/command", body, nil)
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 400 || !strings.Contains(string(b), `"code":"INVALID_REQUEST_BODY"`) {
			t.Errorf("%s: %d %s", body, resp.StatusCode, b)
		}
	}
	resp := post(t, d, "/command", `{"command":"true","surprise":1} and more`, nil)
	if resp.Body.Close(); resp.StatusCode != 200 {
		t.Errorf("unknown fields and what follows: %d", resp.StatusCode)
	}
}

func TestOldAccounts(t *testing.T) {
	machine.NeedRoot(t)
	d := start(t)
	id := func(n uint32) *uint32 { return &n }
	for name, c := range map[string]struct {
		uid, gid *uint32
		want     string
	}{
		"no entry":            {id(54321), nil, "54321:54321:54321"},
		"no entry, and group": {id(54321), id(7), "54321:7:7"},
		"root":                {id(0), nil, "0:0:0"},
		"group replaced":      {id(0), id(7), "0:7:7"},
		"an account":          {id(65534), nil, "65534:65534:65534"},
	} {
		_, got := events(t, d, wire.CommandRequest{Command: `echo "$(id -u):$(id -g):$(id -G)"`, UID: c.uid, GID: c.gid, Cwd: "/"})
		if diff := cmp.Diff([]string{"stdout " + c.want, done}, brief(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	private := filepath.Join(t.TempDir(), "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	_, got := events(t, d, wire.CommandRequest{Command: "true", UID: id(54321), Cwd: private})
	if out := brief(got); len(out) != 1 || !strings.HasPrefix(out[0], "error fork/exec /") || !strings.Contains(out[0], "permission denied") {
		t.Errorf("a directory that the account can't enter: %q", out)
	}
}

// Directories that clients name with ~ and variables, and the file of variables.
func TestOldEnvironment(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "env")
	d := startWith(t, execd.Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), EnvFile: file})
	home := filepath.Join(dir, "home")
	for _, sub := range []string{home, filepath.Join(dir, "$X")} {
		if err := os.Mkdir(sub, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for cwd, want := range map[string]string{
		"~": home, "~/": home, "$H": home, "${H}/.": home, dir + "/$X": dir + "/$X", "": must(os.Getwd()), ".": must(os.Getwd()),
	} {
		_, got := events(t, d, wire.CommandRequest{Command: "pwd", Cwd: cwd, Envs: map[string]string{"H": home, "HOME": home}})
		if diff := cmp.Diff([]string{"stdout " + want, done}, brief(got)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", cwd, diff)
		}
	}
	show := wire.CommandRequest{Command: `echo "$A|$B|$C|$D"`, Envs: map[string]string{"D": "given"}}
	for text, want := range map[string]string{
		"": "|||given", "A='1 $PATH'\nB=\"a\\tb\"\n": "1 $PATH|a\tb||given", "A=1\n # B=2\n\nB = two words \nC=$NO_SUCH${USER_X}-$PATH\nD=file\nnonsense": "1|two words|-" + os.Getenv("PATH") + "|given",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, got := events(t, d, show)
		if diff := cmp.Diff([]string{"stdout " + want, done}, brief(got)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, got := events(t, d, show); !cmp.Equal(brief(got), []string{"stdout |||given", done}) {
		t.Errorf("without the file: %q", brief(got))
	}
}

func must(s string, err error) string {
	if err != nil {
		panic(err)
	}
	return s
}

// A timeout is told apart from another kill, in the stream and in the record,
// and still looks like one to who doesn't know.
func TestOldTimeoutIsTold(t *testing.T) {
	d := start(t)
	id, got := events(t, d, wire.CommandRequest{Command: "sleep 1000", Timeout: 50})
	if diff := cmp.Diff([]string{"error -1 [signal: killed timeout after 50ms]"}, brief(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, state := get(t, d, "GET", "/command/status/"+id); !strings.Contains(state, `"exit_code":-1,"error":"signal: killed","timed_out":true`) {
		t.Errorf("%s", state)
	}
	id, _ = events(t, d, wire.CommandRequest{Command: "kill -9 $$"})
	if _, state := get(t, d, "GET", "/command/status/"+id); !strings.Contains(state, `"error":"signal: killed"`) || strings.Contains(state, "timed_out") {
		t.Errorf("%s", state)
	}
	id, _ = events(t, d, wire.CommandRequest{Command: "sleep 1000", Timeout: 50, Background: true})
	eventually(t, "the end in the background", func() bool {
		_, state := get(t, d, "GET", "/command/status/"+id)
		return strings.Contains(state, `"timed_out":true`)
	})
}

// The answer ends with its last event, and the first output comes at once.
func TestOldPromptness(t *testing.T) {
	d := start(t)
	first, end := time.Hour, time.Hour
	const most = 5 * time.Millisecond
	for try := 0; try < 400 && (first > most || end > most); try++ { // the best counts: others may use the machine
		begun := time.Now()
		resp := post(t, d, "/command", `{"command":"echo x; sleep 0.02"}`, nil)
		r := json.NewDecoder(resp.Body)
		var last time.Time
		for {
			var e event
			if err := r.Decode(&e); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			last = time.Now()
			if e.Type == "stdout" {
				first = min(first, last.Sub(begun))
			}
		}
		end = min(end, time.Since(last))
		resp.Body.Close()
	}
	if end > most || first > most {
		t.Errorf("the first output after %v, the end %v after the last event", first, end)
	}
}

// Nothing is left on disk, and nothing of the output in the log.
func TestOldLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	var log bytes.Buffer
	d := startWith(t, execd.Config{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	const secret = "a-word-that-nobody-logs"
	events(t, d, wire.CommandRequest{Command: "echo " + secret})
	id, _ := events(t, d, wire.CommandRequest{Command: "echo " + secret, Background: true})
	session := newSession(t, d, "")
	in(t, d, session, sessionRun{Command: "export S=" + secret + "; echo $S"})
	p := oldSession(t, d, `{"command":"echo `+secret+`"}`)
	oldAll(t, oldAttach(t, d, p, "pty=0"))
	eventually(t, "the log", func() bool { _, page := get(t, d, "GET", "/command/"+id+"/logs"); return page == secret+"\n" })
	if names, err := os.ReadDir(tmp); err != nil || len(names) > 0 {
		t.Errorf("left in the temporary directory: %v %v", names, err)
	}
	if strings.Contains(log.String(), secret) {
		t.Errorf("the log has output: %s", &log)
	}
}

// Every line comes, in order, however fast they are written.
func TestOldLines(t *testing.T) {
	d := start(t)
	const lines = 300_000
	_, got := events(t, d, wire.CommandRequest{Command: fmt.Sprintf("seq %d", lines)})
	if len(got) != lines+1 || got[lines].Type != done {
		t.Fatalf("%d events", len(got))
	}
	for i, e := range got[:lines] {
		if e.Text != strconv.Itoa(i+1) {
			t.Fatalf("line %d is %q", i+1, e.Text)
		}
	}
}

// What runs is told to end, and its clients get to know how it did.
func TestOldEndOfTheDaemon(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	id := newSession(t, d, `{"cwd":"`+dir+`"}`)
	results := make(chan []string, 2)
	go func() {
		_, got := events(t, d, wire.CommandRequest{Command: "exec 2>/dev/null; trap 'echo bye; exit 3' TERM; touch one; while :; do sleep 0.01; done", Cwd: dir})
		results <- brief(got)
	}()
	go func() { results <- in(t, d, id, sessionRun{Command: "touch two; exec sleep 1000"}) }()
	eventually(t, "both to run", func() bool { all, _ := filepath.Glob(dir + "/*"); return len(all) == 2 })
	d.Stop()
	d.Quiet(ctx(t))
	got := [][]string{<-results, <-results}
	slices.SortFunc(got, func(a, b []string) int { return len(a) - len(b) })
	if diff := cmp.Diff([][]string{{"error -1 [signal: terminated]"}, {"stdout bye", "error 3 [exit status 3]"}}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if resp, body := get(t, d, "GET", "/metrics"); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "STOPPING") {
		t.Errorf("afterwards: %d %s", resp.StatusCode, body)
	}
}

func TestOldViewers(t *testing.T) {
	d := start(t)
	id := oldSession(t, d, `{"command":"read x; echo $x; read y; echo $y >&2"}`)
	dial := func(query string) string {
		t.Helper()
		conn, resp, err := websocket.Dial(ctx(t), d.base+"/pty/"+id+"/ws?"+query, &websocket.DialOptions{HTTPHeader: http.Header{wire.HeaderToken: {token}}})
		if err == nil {
			conn.CloseNow()
			return "attached"
		}
		b, _ := io.ReadAll(resp.Body)
		return resp.Status + string(b)
	}
	if got := dial("mode=viewer"); !strings.HasPrefix(got, "409") || !strings.Contains(got, "VIEWER_REQUIRES_RUNNING_SESSION") {
		t.Errorf("before the start: %s", got)
	}
	send := func(conn *websocket.Conn, kind websocket.MessageType, m string) {
		t.Helper()
		if err := conn.Write(ctx(t), kind, []byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	holder := oldAttach(t, d, id, "pty=0")
	if _, err := oldRead(t, holder); err != nil {
		t.Fatal(err)
	}
	early := oldAttach(t, d, id, "mode=viewer&takeover=1")
	hello := `{"type":"connected","session_id":"` + id + `","mode":"pipe","role":"viewer"}`
	if m, err := oldRead(t, early); m != hello || err != nil {
		t.Errorf("%q %v", m, err)
	}
	send(holder, websocket.MessageBinary, "\x00one\n")
	if m, err := oldRead(t, holder); m != "1 one\n" || err != nil {
		t.Errorf("the holder got %q %v", m, err)
	}
	late := oldAttach(t, d, id, "mode=viewer")

	// Everything that would change the process is refused, at last by closing.
	naughty := oldAttach(t, d, id, "mode=viewer&since=4")
	send(naughty, websocket.MessageText, `{"type":"ping"}`)
	for _, m := range []string{`{"type":"stdin","data":"x\n"}`, `{"type":"signal","signal":"SIGKILL"}`, `{"type":"resize","cols":1,"rows":1}`, `{"type":"stdin_close"}`} {
		send(naughty, websocket.MessageText, m)
	}
	send(naughty, websocket.MessageBinary, "\x00x\n")
	got, code := oldAll(t, naughty)
	readOnly := `{"type":"error","error":"a viewer only watches","code":"READ_ONLY"}`
	want := []string{hello, `{"type":"pong"}`, readOnly, readOnly, readOnly, readOnly, readOnly}
	slices.Sort(got) // the greeting and the answers come from two sides
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" || code != 1008 {
		t.Errorf("closed with %d (-want +got):\n%s", code, diff)
	}

	send(holder, websocket.MessageBinary, "\x00two\n")
	exit := `{"type":"exit","exit_code":0}`
	if got, code := oldAll(t, early); !cmp.Equal(got, []string{"replay@0 one\n", "replay@4 two\n", exit}) || code != 1000 {
		t.Errorf("the early viewer: %q, %d", got, code)
	}
	if got, _ := oldAll(t, late); !cmp.Equal(got, []string{"replay@0 one\n", hello, "replay@4 two\n", exit}) {
		t.Errorf("the late viewer: %q", got)
	}
	if got, _ := oldAll(t, holder); !cmp.Equal(got, []string{"2 two\n", exit}) {
		t.Errorf("the holder: %q", got)
	}
	if got := dial("mode=viewer"); !strings.HasPrefix(got, "409") {
		t.Errorf("after the end: %s", got)
	}
}

// Input that nobody reads doesn't hold a signal up, and input has an end.
func TestOldStdin(t *testing.T) {
	d := start(t)
	id := oldSession(t, d, `{"command":"exec sleep 1000"}`)
	conn := oldAttach(t, d, id, "pty=0")
	for range 8 {
		if err := conn.Write(ctx(t), websocket.MessageBinary, make([]byte, 100<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.Write(ctx(t), websocket.MessageText, []byte(`{"type":"signal","signal":"SIGKILL"}`)); err != nil {
		t.Fatal(err)
	}
	if got, _ := oldAll(t, conn); got[len(got)-1] != `{"type":"exit","exit_code":-1}` {
		t.Errorf("%q", got)
	}
	id = oldSession(t, d, `{"command":"cat; echo end"}`)
	conn = oldAttach(t, d, id, "pty=0")
	for _, m := range []string{`{"type":"stdin","data":"text\n"}`, `{"type":"stdin_close"}`} {
		if err := conn.Write(ctx(t), websocket.MessageText, []byte(m)); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := oldAll(t, conn)
	if out := strings.ReplaceAll(strings.Join(got[1:len(got)-1], ""), "1 ", ""); out != "text\nend\n" {
		t.Errorf("%q", got)
	}
}
