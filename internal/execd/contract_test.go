package execd_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/astrabox/astrabox/internal/execd"
	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// The official description of the protocol isn't part of this repository.
// Where it is at hand, in $OPENSANDBOX_SPECS or in ../shared/specs beside the
// repository, every operation in it is called and each answer compared.
const specName = "execd-api.yaml"

// undescribed are the answers that the description doesn't have, each a
// difference that docs/reference/execd.md lists.
var undescribed = map[string]bool{
	"interruptCommand 404": true, "interruptCode 404": true, "runInSession 404": true,
}

type contractCall struct {
	op, method, path, body string
	status                 int
	header                 http.Header
}

func description(t *testing.T) *openapi3.T {
	t.Helper()
	dir := os.Getenv("OPENSANDBOX_SPECS")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "specs")
	}
	path := filepath.Join(dir, specName)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("%s is not here; set OPENSANDBOX_SPECS to its directory", specName)
	}
	doc, err := openapi3.NewLoader().LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestContract(t *testing.T) {
	doc := description(t)
	d := startWith(t, execd.Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Files: files.New(files.Config{})})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("line 1\nline 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	background, _ := events(t, d, wire.CommandRequest{Command: "echo out; exit 3", Background: true})
	foreground, _ := events(t, d, wire.CommandRequest{Command: "true"})
	session := newSession(t, d, "")
	form, formType := upload(t, dir+"/uploaded")
	at := func(path string) string { return dir + "/" + path }

	calls := []contractCall{
		{op: "ping", path: "/ping", status: 200},
		{op: "listContexts", path: "/code/contexts?language=python", status: 200},
		{op: "deleteContextsByLanguage", path: "/code/contexts?language=python", status: 200},
		{op: "deleteContextsByLanguage", path: "/code/contexts", status: 400},
		{op: "getContext", path: "/code/contexts/x", status: 404},
		{op: "deleteContext", path: "/code/contexts/x", status: 404},
		{op: "createCodeContext", path: "/code/context", body: `{"language":"python"}`, status: 500},
		{op: "createCodeContext", path: "/code/context", body: `{`, status: 400},
		{op: "runCode", path: "/code", body: `{"code":"echo hi; echo e >&2; exit 3"}`, status: 200},
		{op: "runCode", path: "/code", body: `{"code":"1","context":{"language":"python"}}`, status: 500},
		{op: "runCode", path: "/code", body: `{}`, status: 400},
		{op: "interruptCode", path: "/code?id=" + background, status: 200},
		{op: "interruptCode", path: "/code", status: 400},
		{op: "interruptCode", path: "/code?id=x", status: 404},
		{op: "createSession", path: "/session", status: 200},
		{op: "createSession", path: "/session", body: `{"cwd":"` + dir + `"}`, status: 200},
		{op: "createSession", path: "/session", body: `{"cwd":"/dev/null/x"}`, status: 400},
		{op: "runInSession", path: "/session/" + session + "/run", body: `{"command":"echo hi; exit 3","cwd":"` + dir + `"}`, status: 200},
		{op: "runInSession", path: "/session/" + session + "/run", body: `{"command":"sleep 1000","timeout":50}`, status: 200},
		{op: "runInSession", path: "/session/" + session + "/run", body: `{}`, status: 400},
		{op: "runInSession", path: "/session/x/run", body: `{"command":"true"}`, status: 404},
		{op: "deleteSession", path: "/session/" + session, status: 200},
		{op: "deleteSession", path: "/session/" + session, status: 404},
		{op: "runCommand", path: "/command", body: `{"command":"echo hi; echo e >&2; kill -9 $$","envs":{"A":"1"},"timeout":30000}`, status: 200},
		{op: "runCommand", path: "/command", body: `{"command":"true","background":true}`, status: 200},
		{op: "runCommand", path: "/command", body: `{"argv":["/no/such"]}`, status: 200},
		{op: "runCommand", path: "/command", body: `{"command":"true","gid":1}`, status: 400},
		{op: "interruptCommand", path: "/command?id=" + background, status: 200},
		{op: "interruptCommand", path: "/command", status: 400},
		{op: "interruptCommand", path: "/command?id=x", status: 404},
		{op: "getCommandStatus", path: "/command/status/" + background, status: 200},
		{op: "getCommandStatus", path: "/command/status/x", status: 404},
		{op: "getBackgroundCommandLogs", path: "/command/" + background + "/logs?cursor=1", status: 200},
		{op: "getBackgroundCommandLogs", path: "/command/" + background + "/logs?cursor=-1", status: 400},
		{op: "getBackgroundCommandLogs", path: "/command/" + foreground + "/logs", status: 400},
		{op: "getBackgroundCommandLogs", path: "/command/x/logs", status: 404},
		{op: "getFilesInfo", path: "/files/info?path=" + at("file") + "&path=" + dir, status: 200},
		{op: "getFilesInfo", path: "/files/info?path=" + at("none"), status: 404},
		{op: "chmodFiles", path: "/files/permissions", body: `{"` + at("file") + `":{"mode":640}}`, status: 200},
		{op: "chmodFiles", path: "/files/permissions", body: `[]`, status: 400},
		{op: "renameFiles", path: "/files/mv", body: `[{"src":"` + at("file") + `","dest":"` + at("moved") + `"}]`, status: 200},
		{op: "renameFiles", path: "/files/mv", body: `[{"src":"` + at("none") + `","dest":"` + at("x") + `"}]`, status: 404},
		{op: "searchFiles", path: "/files/search?path=" + dir + "&pattern=*", status: 200},
		{op: "searchFiles", path: "/files/search?path=" + at("none"), status: 404},
		{op: "replaceContent", path: "/files/replace?verbose=true", body: `{"` + at("moved") + `":{"old":"line","new":"row"}}`, status: 200},
		{op: "replaceContent", path: "/files/replace", body: `{"` + at("moved") + `":{"old":"","new":"row"}}`, status: 400},
		{op: "uploadFile", path: "/files/upload", body: form, header: http.Header{"Content-Type": {formType}}, status: 200},
		{op: "uploadFile", path: "/files/upload", body: "x", status: 400},
		{op: "downloadFile", path: "/files/download?path=" + at("moved"), status: 200},
		{op: "downloadFile", path: "/files/download?path=" + at("moved") + "&offset=2&limit=1", status: 200},
		{op: "downloadFile", path: "/files/download?path=" + at("moved"), header: http.Header{"Range": {"bytes=1-3"}}, status: 206},
		{op: "downloadFile", path: "/files/download?path=" + at("moved"), header: http.Header{"Range": {"bytes=x"}}, status: 416},
		{op: "downloadFile", path: "/files/download?path=" + at("none"), status: 404},
		{op: "downloadFile", path: "/files/download?path=" + dir, status: 400},
		{op: "listDirectory", path: "/directories/list?path=" + dir + "&depth=2", status: 200},
		{op: "listDirectory", path: "/directories/list?path=" + at("none"), status: 404},
		{op: "listDirectory", path: "/directories/list?path=" + dir + "&depth=x", status: 400},
		{op: "makeDirs", path: "/directories", body: `{"` + at("a/b") + `":{"mode":750}}`, status: 200},
		{op: "makeDirs", path: "/directories", body: `[]`, status: 400},
		{op: "removeDirs", path: "/directories?path=" + at("a"), status: 200},
		{op: "removeFiles", path: "/files?path=" + at("moved"), status: 200},
		{op: "getMetrics", path: "/metrics", status: 200},
		{op: "watchMetrics", path: "/metrics/watch", status: 200},
		{op: "isolatedCapabilities", path: "/v1/isolated/capabilities", status: 200},
	}
	calls = append(calls, isolatedCalls(t, d)...)
	operations := map[string]*openapi3.Operation{}
	for _, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			operations[op.OperationID] = op
			for i := range calls {
				if calls[i].op == op.OperationID {
					calls[i].method = method
				}
			}
		}
	}
	called := map[string]bool{}
	for _, c := range calls {
		op := operations[c.op]
		if op == nil {
			t.Fatalf("the description has no operation %s", c.op)
		}
		called[c.op] = true
		status, header, body := call(t, d, c)
		what := fmt.Sprintf("%s %s %s", c.op, c.method, c.path)
		if status != c.status {
			t.Errorf("%s: %d %s, want %d", what, status, body, c.status)
		}
		described := op.Responses.Status(status)
		if described == nil {
			if !undescribed[c.op+" "+strconv.Itoa(status)] {
				t.Errorf("%s: %d isn't described", what, status)
			}
			described = operations["getContext"].Responses.Status(404) // the body of a refusal
		}
		if c.op == "downloadFile" && status == 416 {
			continue // plain text, as other daemons answer, instead of the described JSON
		}
		if err := conforms(described.Value, header, body); err != nil {
			t.Errorf("%s: %d %s: %v", what, status, body, err)
		}
	}
	for id := range operations {
		if !called[id] {
			t.Errorf("operation %s wasn't called", id)
		}
	}
}

// isolatedCalls are those of sessions within the sandbox.
func isolatedCalls(t *testing.T, d *daemon) []contractCall {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("line 1\nline 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	spec := `{"workspace":{"path":"` + dir + `","mode":"rw"},"uid":0,"gid":0,"idle_timeout_seconds":600,"env_passthrough":{"mode":"deny","keys":["A"]}}`
	resp := post(t, d, "/v1/isolated/session", spec, nil)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	var made struct {
		ID string `json:"session_id"`
	}
	if err == nil {
		err = json.Unmarshal(b, &made)
	}
	if err != nil || resp.StatusCode != 201 {
		t.Fatalf("a session: %d %s %v", resp.StatusCode, b, err)
	}
	one, none := "/v1/isolated/session/"+made.ID, "/v1/isolated/session/00000000-0000-0000-0000-000000000000"
	form, formType := upload(t, "uploaded")
	calls := []contractCall{
		{op: "createIsolatedSession", path: "/v1/isolated/session", body: spec, status: 201},
		{op: "createIsolatedSession", path: "/v1/isolated/session", body: `{}`, status: 400},
		{op: "createIsolatedSession", path: "/v1/isolated/session", body: `{"workspace":{"path":"` + dir + `/none"}}`, status: 400},
		{op: "createIsolatedSession", path: "/v1/isolated/session", body: `{"workspace":{"path":"` + dir + `","mode":"overlay"}}`, status: 503},
		{op: "createIsolatedSession", path: "/v1/isolated/session", body: `{"workspace":{"path":"` + dir + `"},"overlays":[{"path":"/usr"}]}`, status: 503},
		{op: "createIsolatedSession", path: "/v1/isolated/session", body: `{"workspace":{"path":"` + dir + `"},"uid_mode":"userns"}`, status: 503},
		{op: "listIsolatedSessions", path: "/v1/isolated/sessions", status: 200},
		{op: "getIsolatedSession", path: one, status: 200},
		{op: "getIsolatedSession", path: none, status: 404},
		{op: "runInIsolatedSession", path: one + "/run", body: `{"code":"echo hi; echo e >&2; exit 3","envs":{"A":"1"},"timeout_seconds":20}`, status: 200},
		{op: "runInIsolatedSession", path: one + "/run", body: `{"code":""}`, status: 400},
		{op: "runInIsolatedSession", path: none + "/run", body: `{"code":"true"}`, status: 404},
		{op: "isolatedSessionDiff", path: one + "/diff", status: 503},
		{op: "isolatedSessionCommit", path: one + "/commit", status: 503},
		{op: "isolatedGetFilesInfo", path: one + "/files/info?path=file&path=" + dir, status: 200},
		{op: "isolatedGetFilesInfo", path: one + "/files/info?path=none", status: 404},
		{op: "isolatedDownloadFile", path: one + "/files/download?path=file", status: 200},
		{op: "isolatedDownloadFile", path: one + "/files/download?path=file&offset=2&limit=1", status: 200},
		{op: "isolatedDownloadFile", path: one + "/files/download?path=file", header: http.Header{"Range": {"bytes=1-3"}}, status: 206},
		{op: "isolatedDownloadFile", path: one + "/files/download?path=/etc/passwd", status: 404},
		{op: "isolatedUploadFile", path: one + "/files/upload", body: form, header: http.Header{"Content-Type": {formType}}, status: 200},
		{op: "isolatedRenameFiles", path: one + "/files/mv", body: `[{"src":"file","dest":"moved"}]`, status: 200},
		{op: "isolatedChmodFiles", path: one + "/files/permissions", body: `{"moved":{"mode":640}}`, status: 200},
		{op: "isolatedReplaceContent", path: one + "/files/replace", body: `{"moved":{"old":"none","new":"row"}}`, status: 200},
		{op: "isolatedReplaceContent", path: one + "/files/replace?verbose=true", body: `{"moved":{"old":"line","new":"row"}}`, status: 200},
		{op: "isolatedSearchFiles", path: one + "/files/search?path=.&pattern=*", status: 200},
		{op: "isolatedListDirectory", path: one + "/directories/list?path=.", status: 200},
		{op: "isolatedListDirectory", path: one + "/directories/list?path=none", status: 404},
		{op: "isolatedListDirectory", path: one + "/directories/list?path=.&depth=x", status: 400},
		{op: "isolatedMakeDirs", path: one + "/directories", body: `{"a/b":{"mode":750}}`, status: 200},
		{op: "isolatedRemoveDirs", path: one + "/directories?path=a", status: 200},
		{op: "isolatedRemoveFiles", path: one + "/files?path=moved", status: 200},
		{op: "deleteIsolatedSession", path: one, status: 200},
		{op: "deleteIsolatedSession", path: one, status: 404},
	}
	return calls
}

// A wrong answer must be noticed, or the comparison is worth nothing.
func TestContractNoticesWrongAnswers(t *testing.T) {
	doc := description(t)
	get := func(path string) *openapi3.Response {
		return doc.Paths.Find(path).Get.Responses.Status(200).Value
	}
	jsonType := http.Header{"Content-Type": {"application/json"}}
	for name, err := range map[string]error{
		"a missing field": conforms(get("/metrics"), jsonType, []byte(`{"cpu_count":1}`)),
		"a wrong type":    conforms(get("/metrics/watch"), http.Header{"Content-Type": {"text/event-stream"}}, []byte(`{"cpu_count":"1"}`+"\n")),
		"another type":    conforms(get("/metrics"), http.Header{"Content-Type": {"text/plain"}}, []byte(`1`)),
		"not JSON":        conforms(get("/metrics"), jsonType, []byte(`x`)),
	} {
		if err == nil {
			t.Errorf("%s passed", name)
		}
	}
}

// call sends a request and reads the answer, of an endless one a line.
func call(t *testing.T, d *daemon, c contractCall) (int, http.Header, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx(t), c.method, d.base+c.path, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range c.header {
		req.Header[k] = v
	}
	req.Header.Set(wire.HeaderToken, token)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if c.op == "watchMetrics" {
		b := make([]byte, 512)
		n, err := resp.Body.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, resp.Header, b[:n]
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", c.method, c.path, err)
	}
	return resp.StatusCode, resp.Header, b
}

// conforms compares an answer with its description: content type, headers, and
// the schema, which each event of a stream follows.
func conforms(r *openapi3.Response, header http.Header, body []byte) error {
	for name := range r.Headers {
		if name == "Content-Disposition" && strings.HasPrefix(header.Get("Content-Type"), "text/plain") {
			continue // of line by line downloads, as the description says
		}
		if header.Get(name) == "" {
			return fmt.Errorf("no header %s", name)
		}
	}
	if len(r.Content) == 0 || len(body) == 0 {
		return nil
	}
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil {
		return err
	}
	media := r.Content.Get(kind)
	if media == nil || !slices.Contains([]string{"application/json", "text/event-stream"}, kind) {
		if media == nil {
			return fmt.Errorf("content type %q", kind)
		}
		return nil
	}
	for d := json.NewDecoder(bytes.NewReader(body)); ; {
		var v any
		if err := d.Decode(&v); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if err := media.Schema.Value.VisitJSON(v, openapi3.VisitAsResponse(), openapi3.MultiErrors()); err != nil {
			return err
		}
	}
}

// upload makes the form of a file.
func upload(t *testing.T, path string) (body, contentType string) {
	t.Helper()
	const boundary = "the-boundary"
	part := func(name, text string) string {
		return "--" + boundary + "\r\nContent-Disposition: form-data; name=\"" + name + "\"; filename=\"f\"\r\n\r\n" + text + "\r\n"
	}
	return part("metadata", `{"path":"`+path+`","mode":640}`) + part("file", "content") + "--" + boundary + "--\r\n",
		"multipart/form-data; boundary=" + boundary
}
