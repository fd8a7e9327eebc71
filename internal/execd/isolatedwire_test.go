package execd_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// ask sends a request of the older protocol.
func ask(t testing.TB, d *daemon, method, path, body string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx(t), method, d.base+path, strings.NewReader(body))
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
		t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

// openRaw makes a session of a body and gives its id.
func openRaw(t testing.TB, p place, body string) string {
	t.Helper()
	status, _, answer := ask(t, p.daemon, "POST", "/v1/isolated/session", body)
	var made struct {
		ID      string `json:"session_id"`
		Created string `json:"created_at"`
	}
	if err := json.Unmarshal([]byte(answer), &made); err != nil || status != 201 || made.ID == "" || made.Created == "" {
		t.Fatalf("%s: %d %s", body, status, answer)
	}
	return made.ID
}

// Events of a run are as the older protocol has them in isolated sessions: no
// init and no ping, both streams as stdout in order, and its own words at the end.
func TestIsolatedEvents(t *testing.T) {
	p := startIsolated(t)
	dir := p.workspace(t)
	at := "/v1/isolated/session/" + openRaw(t, p, `{"workspace":{"path":"`+dir+`"},"uid":4321}`)
	for _, c := range []struct{ body, want string }{
		{`{"code":"echo hi"}`, "stdout hi; execution_complete"},
		{`{"code":"printf 'a\\r\\nb\\rc\\n\\n'; echo e >&2; printf end"}`, "stdout a; stdout b\rc; stdout \n; stdout e; stdout end; execution_complete"},
		{`{"code":"exit 1"}`, "error command exited with code 1 ExitError 1"},
		{`{"code":"kill -9 $$"}`, "error command exited with code 137 ExitError 137"},
		{`{"code":"sleep 1007","timeout_ms":50}`, "error command timed out after 50ms RuntimeError timeout after 50ms"},
		{`{"code":"echo on; (setsid sleep 1008 &); echo off","timeout_seconds":20}`, "stdout on; stdout off; execution_complete"},
		{`{"code":"echo '\"open'; echo \"unclosed"}`, "stdout bash: "},
		{`{"code":"cat; read x; echo [$x]"}`, "stdout []; execution_complete"},
		{`{"code":"export E=1; cd /"}`, "execution_complete"},
		{`{"code":"echo $E$A; pwd; export E=2; cd /usr","envs":{"A":"2"}}`, "stdout 12; stdout /; execution_complete"},
		{`{"code":"echo $E$A; pwd","envs":{}}`, "stdout 1; stdout /; execution_complete"},
	} {
		status, header, answer := ask(t, p.daemon, "POST", at+"/run", c.body)
		var got []string
		for _, object := range strings.Split(answer, "\n\n") {
			if object == "" {
				continue
			}
			var e struct {
				Type, Text string
				Timestamp  int64
				Error      *struct{ EName, EValue string }
			}
			if err := json.Unmarshal([]byte(object), &e); err != nil || e.Timestamp == 0 {
				t.Errorf("%s: %q, %v", c.body, object, err)
			}
			one := e.Type
			if e.Text != "" {
				one += " " + e.Text
			}
			if e.Error != nil {
				one += " " + e.Error.EName + " " + e.Error.EValue
			}
			got = append(got, one)
		}
		s := strings.Join(got, "; ")
		if strings.HasSuffix(c.want, ": ") {
			s = s[:min(len(s), len(c.want))]
		}
		if s != c.want || status != 200 || header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%s: %d %s %q, want %q", c.body, status, header, s, c.want)
		}
		if len(header.Values(wire.HeaderServer)) != 1 {
			t.Errorf("the daemon names itself %v", header.Values(wire.HeaderServer))
		}
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", "/run", `{`, 400, "INVALID_REQUEST_BODY"},
		{"POST", "/run", `{"code":"true","timeout_seconds":-1}`, 400, "timeout"},
		{"POST", "/run", `{"code":"true","timeout_seconds":1,"timeout_ms":1}`, 400, "exclude"},
		{"POST", "/run", `{"code":"true","timeout_seconds":99999999999999}`, 400, "timeout"},
		{"POST", "/run", `{"code":"true","cwd":"x"}`, 400, "absolute"},
		{"GET", "/run", ``, 404, "NOT_FOUND"}, {"PATCH", "/pty/x", ``, 404, "NOT_FOUND"}, {"DELETE", "/runs/x", ``, 404, "NOT_FOUND"},
		{"GET", "/nothing", ``, 404, "NOT_FOUND"}, {"GET", "/activity", ``, 404, "NOT_FOUND"}, {"POST", "/end", ``, 404, "NOT_FOUND"},
		{"GET", "/diff", ``, 503, "NOT_SUPPORTED"}, {"POST", "/commit", ``, 503, "NOT_SUPPORTED"}, {"GET", "/commit", ``, 404, "NOT_FOUND"}, {"DELETE", "/diff", ``, 404, "NOT_FOUND"},
		{"POST", "/pty", `{}`, 400, "key is empty"}, {"GET", "/pty/x", ``, 404, "CONTEXT_NOT_FOUND"},
		{"GET", "/files/download?path=/etc/passwd", ``, 404, "FILE_NOT_FOUND"}, {"GET", "/files/download?path=../x", ``, 500, "RUNTIME_ERROR"},
		{"GET", "/runs/x", ``, 404, "no such background run"}, {"GET", "/runs/x/logs", ``, 404, "no such background run"},
		{"GET", "/runs/..%2f..%2factivity", ``, 404, ""},
	} {
		if status, _, answer := ask(t, p.daemon, c.method, at+c.path, c.body); status != c.status || !strings.Contains(answer, c.want) {
			t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.path, c.body, status, answer, c.status, c.want)
		}
	}
	none := "/v1/isolated/session/00000000-0000-4000-8000-000000000000"
	for _, path := range []string{none, none + "/run", none + "/pty/x", none + "/files/info"} {
		method := map[bool]string{true: "POST", false: "GET"}[strings.HasSuffix(path, "/run")]
		if status, _, answer := ask(t, p.daemon, method, path, `{"code":"true"}`); status != 404 || !strings.Contains(answer, "SESSION_NOT_FOUND") {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
}

// Runs in the background have a record and a log by byte cursor, and are killed
// with the session.
func TestIsolatedBackgroundRuns(t *testing.T) {
	p := startIsolated(t)
	s := p.session(t)
	at := "/v1/isolated/session/" + s.SessionID()
	start := func(body string) string {
		t.Helper()
		status, _, answer := ask(t, p.daemon, "POST", at+"/run", body)
		var made struct {
			SessionID string `json:"session_id"`
			RunID     string `json:"run_id"`
			Started   string `json:"started_at"`
		}
		if err := json.Unmarshal([]byte(answer), &made); err != nil || status != 202 || made.SessionID != s.SessionID() || made.RunID == "" || made.Started == "" {
			t.Fatalf("%s: %d %s", body, status, answer)
		}
		return made.RunID
	}
	type state struct {
		Running  bool
		ExitCode *int `json:"exit_code"`
		Error    string
		TimedOut bool    `json:"timed_out"`
		Finished *string `json:"finished_at"`
	}
	stateOf := func(id string) (st state) {
		t.Helper()
		if _, _, answer := ask(t, p.daemon, "GET", at+"/runs/"+id, ""); json.Unmarshal([]byte(answer), &st) != nil {
			t.Fatal(answer)
		}
		return st
	}
	says(t, s, sandbox.Command{Line: "export FROM=session; cd /usr"})
	one := start(`{"code":"echo $FROM; pwd; echo e >&2; printf 'a\\0b'; export FROM=2; cd /; exit 3","background":true}`)
	two := start(`{"code":"echo begun; sleep 1009","background":true}`)
	three := start(`{"code":"sleep 1010","background":true,"timeout_ms":50}`)
	four := start(`{"code":"kill -9 $$","background":true}`)
	// They don't wait for each other, nor hold the session up, nor change it.
	if got := says(t, s, sandbox.Command{Line: "echo $FROM; pwd"}); got != "session\n/usr\n||0" {
		t.Errorf("beside them: %q", got)
	}
	for id, want := range map[string]string{one: "3 exit status 3 false", three: "-1 signal: killed true", four: "-1 signal: killed false"} {
		var st state
		eventually(t, "the end of a run", func() bool { st = stateOf(id); return !st.Running })
		if got := fmt.Sprintf("%d %s %v", *st.ExitCode, st.Error, st.TimedOut); got != want || st.Finished == nil {
			t.Errorf("%+v: %s, want %s", st, got, want)
		}
	}
	if st := stateOf(two); !st.Running || st.ExitCode != nil {
		t.Errorf("one that runs: %+v", st)
	}
	const all = "session\n/usr\ne\na\x00b"
	for cursor, want := range map[string]string{"": all, "0": all, "8": all[8:], "999": ""} {
		status, header, answer := ask(t, p.daemon, "GET", at+"/runs/"+one+"/logs?cursor="+cursor, "")
		if status != 200 || answer != want || header.Get("EXECD-ISOLATED-TAIL-CURSOR") != fmt.Sprint(len(all)) {
			t.Errorf("the log from %q: %d %q %s", cursor, status, answer, header.Get("EXECD-ISOLATED-TAIL-CURSOR"))
		}
	}
	for _, cursor := range []string{"-1", "x"} {
		if status, _, answer := ask(t, p.daemon, "GET", at+"/runs/"+one+"/logs?cursor="+cursor, ""); status != 400 {
			t.Errorf("cursor %s: %d %s", cursor, status, answer)
		}
	}
	big := start(`{"code":"head -c 20000000 /dev/zero; echo over","background":true}`)
	eventually(t, "the end of a loud run", func() bool { return !stateOf(big).Running })
	if _, header, answer := ask(t, p.daemon, "GET", at+"/runs/"+big+"/logs", ""); len(answer) != 16<<20 || header.Get("EXECD-ISOLATED-TAIL-CURSOR") != fmt.Sprint(16<<20) {
		t.Errorf("its log has %d bytes", len(answer))
	}
	// There is a limit, for runs that run.
	refused := false
	for range 40 {
		status, _, answer := ask(t, p.daemon, "POST", at+"/run", `{"code":"sleep 1009","background":true}`)
		if status == 429 && strings.Contains(answer, "too many") {
			refused = true
			break
		}
	}
	if !refused {
		t.Error("40 runs in the background")
	}
	if got := says(t, s, sandbox.Command{Line: "echo on"}); got != "on\n||0" {
		t.Errorf("at the limit: %q", got)
	}
	if err := p.CloseIsolatedSession(ctx(t), "s", s.SessionID()); err != nil {
		t.Error(err)
	}
	if left := outside(t, "sleep 1009"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// What a session is, is told, so that a client that knows the id alone can go on.
func TestIsolatedState(t *testing.T) {
	p := startIsolated(t)
	dir := p.workspace(t)
	id := openRaw(t, p, `{"workspace":{"path":"/tmp/w","source":"`+dir+`"},"uid":4321,"extra_writable":["`+dir+`"],"binds":[{"source":"`+dir+`","dest":"/tmp/b","readonly":true}],"share_net":false,"idle_timeout_seconds":100,"env_passthrough":{"keys":["X"]}}`)
	_, _, answer := ask(t, p.daemon, "GET", "/v1/isolated/session/"+id, "")
	for _, want := range []string{
		`"session_id":"` + id + `"`, `"status":"active"`, `"created_at":"`, `"last_run_at":"`, `"idle_remaining_seconds":`,
		`"profile":"strict"`, `"workspace":{"path":"/tmp/w","mode":"rw","source":"` + dir + `"}`, `"extra_writable":["` + dir + `"]`,
		`"binds":[{"source":"` + dir + `","dest":"/tmp/b","readonly":true}]`, `"share_net":false`, `"uid":4321`, `"gid":4321`, `"uid_mode":"setpriv"`,
		`"idle_timeout_seconds":100`, `"env_passthrough":{"keys":["X"]}`,
	} {
		if !strings.Contains(answer, want) {
			t.Errorf("%s lacks %s", answer, want)
		}
	}
	if _, _, list := ask(t, p.daemon, "GET", "/v1/isolated/sessions", ""); !strings.Contains(list, `{"sessions":[{"session_id":"`+id+`","status":"active"`) {
		t.Error(list)
	}
}

// MaxSessions are open at a time, and each that ends makes room.
func TestIsolatedLimit(t *testing.T) {
	p := startIsolated(t)
	body := `{"workspace":{"path":"` + p.workspace(t) + `"},"uid":4321}`
	var ids []string
	for range 64 {
		ids = append(ids, openRaw(t, p, body))
	}
	if status, _, answer := ask(t, p.daemon, "POST", "/v1/isolated/session", body); status != 429 {
		t.Errorf("one too many: %d %s", status, answer)
	}
	if status, _, answer := ask(t, p.daemon, "DELETE", "/v1/isolated/session/"+ids[7], ""); status != 200 || answer != "" {
		t.Errorf("delete: %d %s", status, answer)
	}
	openRaw(t, p, body)
}
