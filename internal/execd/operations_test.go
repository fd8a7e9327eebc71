package execd_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// operationOf is any answer about an operation.
type operationOf struct {
	ID, Kind, State string
	Code            string
	ExpiresAt       string `json:"expires_at"`
	status          int
}

// operate asks for an operation with a body without its id.
func operate(t *testing.T, d *daemon, path, id, body string) (o operationOf) {
	t.Helper()
	resp := post(t, d, path, strings.Replace(body, "{", fmt.Sprintf(`{"operation_id":%q,`, id), 1), nil)
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&o); err != nil {
		t.Fatal(err)
	}
	if resp.Header.Get("Cache-Control") != "no-store" {
		t.Error("the answer may be stored")
	}
	o.status = resp.StatusCode
	return o
}

func lookup(t *testing.T, d *daemon, kind, id string) (o operationOf) {
	t.Helper()
	req, _ := http.NewRequestWithContext(ctx(t), http.MethodGet, d.base+"/execution/operation?kind="+kind, nil)
	req.Header.Set(wire.HeaderToken, token)
	req.Header.Set("X-EXECD-OPERATION-ID", id)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&o); err != nil {
		t.Fatal(err)
	}
	o.status = resp.StatusCode
	return o
}

// namer gives names of operations.
func namer(t *testing.T, d *daemon) func(token string) string {
	t.Helper()
	_, body := get(t, d, "GET", "/execution/instance")
	var i struct {
		InstanceID string `json:"instance_id"`
		IssuedAt   int64  `json:"issued_at"`
		Retention  int    `json:"retention_seconds"`
		Capacity   int
	}
	if err := json.Unmarshal([]byte(body), &i); err != nil || i.Retention != 86400 || i.Capacity != 4096 || len(i.InstanceID) != 32 {
		t.Fatalf("%s: %v", body, err)
	}
	return func(token string) string { return fmt.Sprintf("%s.%d.%s", i.InstanceID, i.IssuedAt, token) }
}

func TestCommandOperations(t *testing.T) {
	d := start(t)
	name := namer(t, d)
	dir := t.TempDir()
	body := fmt.Sprintf(`{"command":"echo $A >>ran; echo out; exit 7","cwd":%q,"background":true,"envs":{"A":"1"}}`, dir)
	var wg sync.WaitGroup
	handles := make([]operationOf, 8)
	for i := range handles {
		wg.Go(func() { handles[i] = operate(t, d, "/command/operations", name("the-first"), body) })
	}
	wg.Wait()
	id := handles[0].ID
	for _, o := range handles {
		if o.ID != id || o.Kind != "command" || o.status != 200 && o.status != 202 {
			t.Errorf("%+v", o)
		}
	}
	eventually(t, "the end", func() bool {
		_, state := get(t, d, "GET", "/command/status/"+id)
		return strings.Contains(state, `"exit_code":7`)
	})
	if o := lookup(t, d, "command", name("the-first")); o.ID != id || o.State != "created" || o.status != 200 || o.ExpiresAt == "" {
		t.Errorf("%+v", o)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "ran")); string(b) != "1\n" {
		t.Errorf("ran: %q", b)
	}
	if _, log := get(t, d, "GET", "/command/"+id+"/logs"); log != "out\n" {
		t.Errorf("log: %q", log)
	}

	failed := operate(t, d, "/command/operations", name("fails-to-start"), `{"argv":["/no/such/program"]}`)
	if failed.State != "failed" || failed.status != 200 {
		t.Errorf("%+v", failed)
	}
	if _, state := get(t, d, "GET", "/command/status/"+failed.ID); !strings.Contains(state, `"exit_code":255`) || !strings.Contains(state, "no such executable") {
		t.Errorf("%s", state)
	}
	if o := operate(t, d, "/command/operations", name("no-directory"), `{"command":"true","cwd":"/no/such"}`); o.State != "failed" {
		t.Errorf("a missing directory: %+v", o)
	}
	for what, o := range map[string]operationOf{
		"operation_conflict 409":          operate(t, d, "/command/operations", name("the-first"), strings.Replace(body, "true", "false", 1)),
		"operation_not_found 404":         lookup(t, d, "pty", name("the-first")),
		"invalid_operation_kind 400":      lookup(t, d, "other", name("the-first")),
		"operation_instance_mismatch 409": operate(t, d, "/command/operations", strings.Repeat("0", 32)+".1.12345678", body),
		"operation_expired 410":           operate(t, d, "/command/operations", strings.Split(name("x"), ".")[0]+".1.12345678", body),
		"invalid_operation_id 400":        operate(t, d, "/command/operations", name("short"), body),
		"invalid_operation_request 400":   operate(t, d, "/command/operations", name("unknown-field"), `{"command":"true","wait":true}`),
	} {
		if got := fmt.Sprint(o.Code, " ", o.status); got != what {
			t.Errorf("%s, want %s", got, what)
		}
	}
	for _, bad := range []string{
		`{"command":"true","operation_id":"` + name("trailing-data") + `"} {}`,
		`{"command":"true","operation_id":"` + name("a-large-body") + `","envs":{"A":"` + strings.Repeat("x", 1<<20) + `"}}`,
		`{"operation_id":"` + name("nothing-to-do") + `"}`,
		`{"argv":["a"],"command":"b","operation_id":"` + name("two-to-do") + `"}`,
	} {
		resp := post(t, d, "/command/operations", bad, nil)
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != 400 || !strings.Contains(string(b), "invalid_operation_request") {
			t.Errorf("%.80s: %d %s", bad, resp.StatusCode, b)
		}
	}
	for _, path := range []string{"/command/operations", "/pty/operations"} {
		req, _ := http.NewRequestWithContext(ctx(t), http.MethodPost, d.base+path, strings.NewReader("{}"))
		req.Close = true
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != 401 || !strings.Contains(string(b), `"code":"UNAUTHORIZED"`) || resp.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s without a token: %d %s", path, resp.StatusCode, b)
		}
	}
}

// A session of an operation is started once; later attachments get what there was.
func TestProcessOperations(t *testing.T) {
	d := start(t)
	name := namer(t, d)
	body := fmt.Sprintf(`{"command":"echo hi; exit 3","cwd":%q}`, t.TempDir()+"/made")
	first := operate(t, d, "/pty/operations", name("a-session"), body)
	again := operate(t, d, "/pty/operations", name("a-session"), body)
	if first.State != "created" || first.ID != again.ID {
		t.Fatalf("%+v %+v", first, again)
	}
	flags := func(want string) {
		t.Helper()
		if _, state := get(t, d, "GET", "/pty/"+first.ID); !strings.Contains(state, want) {
			t.Errorf("%s, want %s", state, want)
		}
	}
	flags(`"launch_attempted":false,"launch_failed":false`)
	got, _ := oldAll(t, oldAttach(t, d, first.ID, "pty=0"))
	hello := `{"type":"connected","session_id":"` + first.ID + `","mode":"pipe","role":"holder"}`
	if diff := cmp.Diff([]string{hello, "1 hi\n", `{"type":"exit","exit_code":3}`}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	flags(`"launch_attempted":true,"launch_failed":false`)
	for range 2 {
		got, _ = oldAll(t, oldAttach(t, d, first.ID, "pty=0"))
		if diff := cmp.Diff([]string{"replay@0 hi\n", hello, `{"type":"exit","exit_code":3}`}, got); diff != "" {
			t.Errorf("after the end (-want +got):\n%s", diff)
		}
	}
	if o := operate(t, d, "/pty/operations", name("a-session"), `{"command":"other"}`); o.Code != "operation_conflict" {
		t.Errorf("%+v", o)
	}
	if o := operate(t, d, "/pty/operations", name("no-directory"), `{"cwd":"/dev/null/x"}`); o.State != "failed" {
		t.Errorf("%+v", o)
	}
	if resp, _ := get(t, d, "DELETE", "/pty/"+first.ID); resp.StatusCode != 200 {
		t.Errorf("DELETE: %d", resp.StatusCode)
	}
	if o := operate(t, d, "/pty/operations", name("a-session"), body); o.ID != first.ID || o.State != "created" {
		t.Errorf("after DELETE: %+v", o)
	}
	if resp, _ := get(t, d, "GET", "/pty/"+first.ID); resp.StatusCode != 404 {
		t.Errorf("the session was made again")
	}
}
