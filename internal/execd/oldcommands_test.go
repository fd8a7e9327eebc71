package execd_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// event is any event of the older protocol.
type event struct {
	Type  string
	Text  string
	Error *struct {
		Ename, Evalue string
		Traceback     []string
	}
}

// events runs a command over the older protocol.
func events(t *testing.T, d *daemon, req wire.CommandRequest) (id string, all []event) {
	t.Helper()
	b, _ := json.Marshal(req)
	resp := post(t, d, "/command", string(b), nil)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%d %q %v", resp.StatusCode, body, err)
	}
	return parseEvents(t, string(body))
}

// parseEvents reads a stream of the older protocol.
func parseEvents(t *testing.T, body string) (id string, all []event) {
	t.Helper()
	for piece := range strings.SplitSeq(strings.TrimSuffix(body, "\n\n"), "\n\n") {
		var e event
		if err := json.Unmarshal([]byte(piece), &e); err != nil {
			t.Fatalf("%q: %v", piece, err)
		}
		switch e.Type {
		case "init":
			id = e.Text
		case "ping":
		default:
			all = append(all, e)
		}
	}
	return id, all
}

func brief(all []event) (out []string) {
	for _, e := range all {
		line := e.Type
		if e.Text != "" {
			line += " " + e.Text
		}
		if e.Error != nil {
			line += fmt.Sprint(" ", e.Error.Evalue, " ", e.Error.Traceback)
		}
		out = append(out, line)
	}
	return out
}

func get(t *testing.T, d *daemon, method, path string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx(t), method, d.base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(wire.HeaderToken, token)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func TestOldEvents(t *testing.T) {
	d := start(t)
	for line, want := range map[string][]string{
		`true`:                                 {"execution_complete"},
		`echo hi; exit 3`:                      {"stdout hi", "error 3 [exit status 3]"},
		`kill -9 $$`:                           {"error -1 [signal: killed]"},
		`printf 'a\r\nb\n10%%\r20%%\r\n\nend'`: {"stdout a", "stdout b", "stdout 10%", "stdout 20%", "stdout \n", "stdout end", "execution_complete"},
		`printf 'a\r'; sleep .05; printf '\nb\r'; sleep .05; printf 'c'`: {"stdout a", "stdout b", "stdout c", "execution_complete"},
		`printf '\377<&>"\\\t\1é'`:                                       {"stdout \ufffd<&>\"\\\t\x01é", "execution_complete"},
		`echo e >&2`:                                                     {"stderr e", "execution_complete"},
		`echo '{"code":"X"}'`:                                            {`stdout {"code":"X"}`, "execution_complete"},
		`echo a; sleep 0.05; echo b >&2; sleep 0.05; echo c`:             {"stdout a", "stderr b", "stdout c", "execution_complete"},
	} {
		id, got := events(t, d, wire.CommandRequest{Command: line})
		if diff := cmp.Diff(want, brief(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", line, diff)
		}
		if len(id) != 32 {
			t.Errorf("%s: id %q", line, id)
		}
	}
	_, got := events(t, d, wire.CommandRequest{Command: "sleep 1000", Timeout: 50})
	if diff := cmp.Diff([]string{"error -1 [signal: killed timeout after 50ms]"}, brief(got)); diff != "" {
		t.Errorf("timeout (-want +got):\n%s", diff)
	}
	_, got = events(t, d, wire.CommandRequest{Command: "head -c 17000000 /dev/zero | tr '\\0' x"})
	n := 0
	for _, e := range got {
		n += len(e.Text)
	}
	if n != 17000000 {
		t.Errorf("a long line: %d characters", n)
	}
	if resp := post(t, d, "/command", `{"command":"true","cwd":"/no/such"}`, nil); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a missing directory: %d", resp.StatusCode)
	}
}

func TestOldBackground(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	id, got := events(t, d, wire.CommandRequest{Command: "echo one; echo two >&2; while [ ! -e go ]; do sleep 0.01; done; echo three; exit 5", Cwd: dir, Background: true})
	if diff := cmp.Diff([]string{"execution_complete"}, brief(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	_, state := get(t, d, "GET", "/command/status/"+id)
	if !strings.Contains(state, `"running":true`) || strings.Contains(state, "exit_code") {
		t.Errorf("%s", state)
	}
	log, cursor := "", "0"
	more := func(want string) {
		t.Helper()
		eventually(t, want, func() bool {
			resp, page := get(t, d, "GET", "/command/"+id+"/logs?cursor="+cursor)
			log, cursor = log+page, resp.Header.Get("EXECD-COMMANDS-TAIL-CURSOR")
			return log == want
		})
	}
	more("one\ntwo\n")
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	more("one\ntwo\nthree\n")
	eventually(t, "the end", func() bool {
		_, state = get(t, d, "GET", "/command/status/"+id)
		return strings.Contains(state, `"exit_code":5`)
	})
	if resp, _ := get(t, d, "GET", "/command/"+id+"/logs?cursor=999999"); resp.Header.Get("EXECD-COMMANDS-TAIL-CURSOR") != cursor {
		t.Error("a cursor past the end is echoed")
	}
	for path, want := range map[string]int{
		"/command/status/nope": 404, "/command/nope/logs": 404, "/command/" + id + "/logs?cursor=-1": 400,
	} {
		if resp, _ := get(t, d, "GET", path); resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
}

func TestOldInterrupt(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	id, _ := events(t, d, wire.CommandRequest{Command: spread + "trap '' TERM; while :; do sleep 0.01; done", Cwd: dir, Background: true})
	pids := spreadPids(t, dir)
	if resp, body := get(t, d, "DELETE", "/command?id="+id); resp.StatusCode != http.StatusOK || body != "" {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	checkGone(t, pids)
	if _, state := get(t, d, "GET", "/command/status/"+id); !strings.Contains(state, `"exit_code":-1`) || !strings.Contains(state, "signal: killed") {
		t.Errorf("%s", state)
	}
	for path, want := range map[string]int{"/command?id=nope": 404, "/command": 400} {
		if resp, _ := get(t, d, "DELETE", path); resp.StatusCode != want {
			t.Errorf("%s: %d, want %d", path, resp.StatusCode, want)
		}
	}
}
