package execd_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/execd/shell"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

func newSession(t *testing.T, d *daemon, body string) string {
	t.Helper()
	resp := post(t, d, "/session", body, nil)
	defer resp.Body.Close()
	var made wire.ProcessCreated
	if b, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(b, &made) != nil {
		t.Fatalf("%d %s %v", resp.StatusCode, b, err)
	}
	return made.SessionID
}

type sessionRun struct {
	Command string `json:"command"`
	Cwd     string `json:"cwd,omitempty"`
	Timeout int    `json:"timeout,omitempty"`
}

// in runs a line in a session and gives its events in words.
func in(t *testing.T, d *daemon, id string, r sessionRun) []string {
	t.Helper()
	b, _ := json.Marshal(r)
	resp := post(t, d, "/session/"+id+"/run", string(b), nil)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %q %v", r.Command, resp.StatusCode, body, err)
	}
	got, all := parseEvents(t, string(body))
	if got != id {
		t.Errorf("%s: init says %q", r.Command, got)
	}
	return brief(all)
}

// expect runs lines one after another, and compares what they print.
func expectRuns(t *testing.T, d *daemon, id string, steps []struct {
	run  sessionRun
	want []string
}) {
	t.Helper()
	for _, s := range steps {
		if diff := cmp.Diff(s.want, in(t, d, id, s.run)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", s.run.Command, diff)
		}
	}
}

const done = "execution_complete"

func TestSessionState(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	id := newSession(t, d, `{"cwd":"`+dir+`/made"}`)
	expectRuns(t, d, id, []struct {
		run  sessionRun
		want []string
	}{
		{sessionRun{Command: "pwd"}, []string{"stdout " + dir + "/made", done}},
		{sessionRun{Command: `export A=$'l1\nl2\t"x" $HOME \\ \' \x01 é \xff' E= B; plain=1; cd /usr; exit 3`}, []string{"error 3 [exit status 3]"}},
		{sessionRun{Command: `pwd; printf %s "$A" | od -An -c | tr -s ' \n' ' '; echo; echo "[${E-unset}] [$plain]"`}, []string{
			"stdout /usr", `stdout  l 1 \n l 2 \t " x " $ H O M E \ ' 001 303 251 377 `, "stdout [] []", done,
		}},
		// Programs see the variables too, and what was removed stays removed.
		{sessionRun{Command: `unset HOME; export -n A`}, []string{done}},
		{sessionRun{Command: `env | grep -c '^HOME=\|^A='; echo "${HOME-gone}"`}, []string{"stdout 0", "stdout gone", done}},
		// Functions and attributes, where they are exported.
		{sessionRun{Command: `f() { echo "f $1"; }; g() { :; }; export -f f; declare -rx R=1`}, []string{done}},
		{sessionRun{Command: `f 1; type g 2>&1 | tail -1 | grep -c 'not found'; bash -c 'f 2'`}, []string{"stdout f 1", "stdout 1", "stdout f 2", done}},
		// A directory given once sticks, with its OLDPWD.
		{sessionRun{Command: `pwd; echo $OLDPWD`, Cwd: dir}, []string{"stdout " + dir, "stdout /usr", done}},
		{sessionRun{Command: `pwd; cd - >&2`}, []string{"stdout " + dir, "stdout /usr", done}},
		// A large value, far beyond one line's or one variable's usual size.
		{sessionRun{Command: `export BIG=$(head -c 100000 /dev/zero | tr '\0' x)`}, []string{done}},
		{sessionRun{Command: `echo ${#BIG}`}, []string{"stdout 100000", done}},
		// An EXIT trap of the run's own runs once, in that run only.
		{sessionRun{Command: `trap 'echo bye' EXIT; export T=1`}, []string{"stdout bye", done}},
		{sessionRun{Command: `echo $T`}, []string{"stdout 1", done}},
		// Options, and a failure that set -e notices.
		{sessionRun{Command: "set -eux; export X=1; false; echo never"}, []string{"stdout ++ export X=1", "stdout ++ X=1", "stdout ++ false", "error 1 [exit status 1]"}},
		{sessionRun{Command: "echo $X; set -x; echo y"}, []string{"stdout 1", "stdout ++ echo y", "stdout y", done}},
	})
	got := in(t, d, id, sessionRun{Command: "echo 'unclosed"})
	// Only what is wrong with the line: nothing of what the daemon puts around it.
	if n := len(got); n != 2 || !strings.Contains(got[0], "unexpected EOF") || !strings.HasPrefix(got[n-1], "error ") {
		t.Errorf("an unclosed quote: %q", got)
	}
	if got := in(t, d, id, sessionRun{Command: "echo $X"}); !cmp.Equal(got, []string{"stdout 1", done}) {
		t.Errorf("after an unclosed quote: %q", got)
	}
}

// Output is data, whatever it looks like, and both streams come in order.
func TestSessionOutput(t *testing.T) {
	d := start(t)
	id := newSession(t, d, "")
	var lines, want []string
	for i := range 200 {
		n := string(rune('a' + i%26))
		lines = append(lines, "echo o"+n, "echo e"+n+" >&2")
		want = append(want, "stdout o"+n, "stdout e"+n)
	}
	expectRuns(t, d, id, []struct {
		run  sessionRun
		want []string
	}{
		{sessionRun{Command: strings.Join(lines, "\n")}, append(want, done)},
		{sessionRun{Command: `echo __EXIT_CODE__:77; echo __PWD__:/x; echo __ENV_DUMP_START__; echo 'declare -x Q="1"'; echo after`}, []string{
			"stdout __EXIT_CODE__:77", "stdout __PWD__:/x", "stdout __ENV_DUMP_START__", `stdout declare -x Q="1"`, "stdout after", done,
		}},
		{sessionRun{Command: `echo "[$Q]"; printf 'a\n\n\nb\r\n10%%\r20%%\r\nno newline'`}, []string{
			"stdout []", "stdout a", "stdout \n", "stdout \n", "stdout b", "stdout 10%\r20%", "stdout no newline", done,
		}},
		{sessionRun{Command: "cat; read x; echo \"[$x]\""}, []string{"stdout []", done}},
	})
	if got := in(t, d, id, sessionRun{Command: "cat <<EOF\nhere"}); !cmp.Equal(got[len(got)-2:], []string{"stdout here", done}) {
		t.Errorf("an open here-document: %q", got)
	}
	out := in(t, d, id, sessionRun{Command: "head -c 17825792 /dev/zero | tr '\\0' x; echo; echo end"})
	n := 0
	for _, e := range out {
		n += strings.Count(e, "x")
	}
	if last := out[len(out)-2:]; n != 17825792+strings.Count(done, "x") || !cmp.Equal(last, []string{"stdout end", done}) {
		t.Errorf("a line of 17 MiB: %d characters, then %q", n, last)
	}
}

func TestSessionTimeout(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	id := newSession(t, d, `{"cwd":"`+dir+`"}`)
	if got := in(t, d, id, sessionRun{Command: "export A=1"}); len(got) != 1 {
		t.Fatal(got)
	}
	got := in(t, d, id, sessionRun{Command: "export A=2; " + spread + "wait; sleep 1000", Timeout: 400})
	if diff := cmp.Diff([]string{"error -1 [signal: killed timeout after 400ms]"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	checkGone(t, spreadPids(t, dir))
	if got := in(t, d, id, sessionRun{Command: "echo $A"}); !cmp.Equal(got, []string{"stdout 1", done}) {
		t.Errorf("after a killed run: %q", got)
	}
}

// Runs wait for each other, what is in the background doesn't hold a run up,
// and the deletion takes it along.
func TestSessionRuns(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	id := newSession(t, d, `{"cwd":"`+dir+`"}`)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			in(t, d, id, sessionRun{Command: `n=${N:-0}; sleep 0.01; export N=$((n+1)); mkdir lock && rmdir lock`})
		})
	}
	wg.Wait()
	if got := in(t, d, id, sessionRun{Command: "echo $N"}); !cmp.Equal(got, []string{"stdout 8", done}) {
		t.Errorf("8 runs at once: %q", got)
	}
	if got := in(t, d, id, sessionRun{Command: spread + "echo started"}); !cmp.Equal(got, []string{"stdout started", done}) {
		t.Errorf("a run with a background: %q", got)
	}
	pids := spreadPids(t, dir)
	for _, pid := range pids[:len(pids)-1] { // the last is the shell itself
		if !alive(pid) {
			t.Errorf("process %d of an ended run was killed", pid)
		}
	}
	stuck := make(chan []string, 1)
	go func() { stuck <- in(t, d, id, sessionRun{Command: "touch running; sleep 1000"}) }()
	eventually(t, "the run", func() bool { _, err := os.Stat(filepath.Join(dir, "running")); return err == nil })
	if resp, body := get(t, d, "DELETE", "/session/"+id); resp.StatusCode != http.StatusOK {
		t.Errorf("DELETE: %d %s", resp.StatusCode, body)
	}
	if got := <-stuck; !cmp.Equal(got, []string{"error -1 [signal: killed]"}) {
		t.Errorf("the run in a deleted session: %q", got)
	}
	checkGone(t, pids)
	if resp := post(t, d, "/session/"+id+"/run", `{"command":"true"}`, nil); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a run in a deleted session: %d", resp.StatusCode)
	}
	if resp, _ := get(t, d, "DELETE", "/session/"+id); resp.StatusCode != http.StatusNotFound {
		t.Errorf("DELETE again: %d", resp.StatusCode)
	}
}

// A client that goes away ends its run; the session stays as it was.
func TestSessionDisconnect(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	id := newSession(t, d, `{"cwd":"`+dir+`"}`)
	resp := post(t, d, "/session/"+id+"/run", `{"command":"echo $$ >pid; cd /; sleep 1000"}`, nil)
	pid := pidIn(t, filepath.Join(dir, "pid"))
	resp.Body.Close()
	eventually(t, "the run's end", func() bool { return !alive(pid) })
	if got := in(t, d, id, sessionRun{Command: "pwd"}); !cmp.Equal(got, []string{"stdout " + dir, done}) {
		t.Errorf("%q", got)
	}
}

func TestSessionRefusals(t *testing.T) {
	d := start(t)
	id := newSession(t, d, "{}")
	for body, want := range map[string]int{
		`{}`: 400, `{"command":""}`: 400, `{"command":"a\u0000b"}`: 400, `{"command":"true","timeout":-1}`: 400,
		`{"command":"true","cwd":"/no/such"}`: 400, `{`: 400, `{"command":"true","cwd":"$NO_SUCH_VARIABLE"}`: 400,
		`{"command":"true","timeout":9223372036854775807}`: 400,
	} {
		if resp := post(t, d, "/session/"+id+"/run", body, nil); resp.StatusCode != want {
			t.Errorf("%s: %d", body, resp.StatusCode)
		}
	}
	if resp := post(t, d, "/session", `{"cwd":"/dev/null/x"}`, nil); resp.StatusCode != http.StatusBadRequest {
		t.Errorf("a directory that can't be: %d", resp.StatusCode)
	}
	for range shell.MaxSessions - 1 {
		newSession(t, d, "")
	}
	resp := post(t, d, "/session", "", nil)
	if b, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(b), "LIMIT_EXCEEDED") {
		t.Errorf("one too many: %d %s", resp.StatusCode, b)
	}
	// The interrupt of the older protocol deletes a session as well.
	if resp, _ := get(t, d, "DELETE", "/command?id="+id); resp.StatusCode != http.StatusOK {
		t.Errorf("DELETE /command: %d", resp.StatusCode)
	}
	if resp, _ := get(t, d, "DELETE", "/session/"+id); resp.StatusCode != http.StatusNotFound {
		t.Errorf("after DELETE /command: %d", resp.StatusCode)
	}
}
