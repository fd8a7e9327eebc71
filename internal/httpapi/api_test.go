package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

func TestConversationLife(t *testing.T) {
	r := newRig(t)
	made := r.do("POST", "/api/v1/conversations", `{"title":" Hello ","agent":"shell"}`, "Idempotency-Key: k1")
	if made.StatusCode != 201 {
		t.Fatalf("%d %s", made.StatusCode, made.body)
	}
	c := decode[model.Conversation](t, made.body)
	if c.Title != "Hello" || c.State != model.Active || c.Turn != nil {
		t.Errorf("%+v", c)
	}
	if again := r.do("POST", "/api/v1/conversations", `{}`, "Idempotency-Key: k1"); decode[model.Conversation](t, again.body).ID != c.ID {
		t.Error("the same key made another conversation")
	}
	one := "/api/v1/conversations/" + c.ID
	if got := decode[model.Conversation](t, r.do("PATCH", one, `{"title":"New"}`).body); got.Title != "New" {
		t.Errorf("renamed to %q", got.Title)
	}
	sent := r.do("POST", one+"/messages", `{"client_message_id":"m1","text":"ls"}`)
	turn := decode[model.Turn](t, sent.body)
	if sent.StatusCode != 202 || turn.State != model.TurnQueued {
		t.Errorf("%d %+v", sent.StatusCode, turn)
	}
	if got := decode[model.Turn](t, r.do("POST", one+"/messages", `{"client_message_id":"m1","text":"ls"}`).body); got.ID != turn.ID {
		t.Error("a repeated message made another turn")
	}
	if got := decode[model.Turn](t, r.do("GET", one+"/turns/"+turn.ID, "").body); got.ID != turn.ID {
		t.Errorf("%+v", got)
	}
	if got := r.do("POST", one+"/interrupt", ""); got.StatusCode != 202 || decode[model.Turn](t, got.body).State != model.TurnInterrupted {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	events := decode[wire.Events](t, r.do("GET", one+"/events?after=1&limit=1", "").body)
	if len(events.Items) != 1 || events.Items[0].Seq != 2 || events.LastSeq != 3 {
		t.Errorf("%+v", events)
	}
	if got := r.do("DELETE", one, ""); got.StatusCode != 200 || decode[model.Conversation](t, got.body).Destruction.Outcome != "gone" {
		t.Errorf("%d %s", got.StatusCode, got.body)
	}
	r.svc.Unconfirmed = true
	if got := r.do("DELETE", "/api/v1/conversations/"+r.conversation(), ""); got.StatusCode != 202 {
		t.Errorf("an unconfirmed deletion is %d", got.StatusCode)
	}
}

func TestListPages(t *testing.T) {
	r := newRig(t)
	want := []string{r.conversation(), r.conversation(), r.conversation()}
	var got []string
	for cursor := ""; ; {
		page := decode[wire.Conversations](t, r.do("GET", "/api/v1/conversations?limit=2&cursor="+cursor, "").body)
		for _, c := range page.Items {
			got = append([]string{c.ID}, got...)
		}
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	empty := newRig(t)
	if body := empty.do("GET", "/api/v1/conversations", "").body; !strings.Contains(body, `"items":[]`) {
		t.Errorf("an empty list is %s", body)
	}
}

func TestBadInput(t *testing.T) {
	r := newRig(t)
	id := r.conversation()
	dead := r.conversation()
	r.do("DELETE", "/api/v1/conversations/"+dead, "")
	one, gone, none := "/api/v1/conversations/"+id, "/api/v1/conversations/"+dead, "/api/v1/conversations/"+unknown
	big := strings.Repeat("x", wire.JSONLimit)
	tests := []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		code                     fault.Code
		says                     string // part of the detail
	}{
		{"unknown conversation", "GET", none, "", nil, 404, fault.ConversationNotFound, ""},
		{"not an id", "GET", "/api/v1/conversations/%2e%2e%2fetc", "", nil, 404, fault.ConversationNotFound, ""},
		{"rename an unknown one", "PATCH", none, `{"title":"x"}`, nil, 404, fault.ConversationNotFound, ""},
		{"delete an unknown one", "DELETE", none, "", nil, 404, fault.ConversationNotFound, ""},
		{"message to an unknown one", "POST", none + "/messages", `{"client_message_id":"a","text":"b"}`, nil, 404, fault.ConversationNotFound, ""},
		{"message to a deleted one", "POST", gone + "/messages", `{"client_message_id":"a","text":"b"}`, nil, 410, fault.ConversationDeleted, ""},
		{"files of a deleted one", "GET", gone + "/files", "", nil, 410, fault.ConversationDeleted, ""},
		{"upload to a deleted one", "PUT", gone + "/files/content?path=/workspace/a", "x", nil, 410, fault.ConversationDeleted, ""},
		{"terminal of a deleted one", "POST", gone + "/terminals", `{"cols":80,"rows":24}`, nil, 410, fault.ConversationDeleted, ""},
		{"stream of an unknown one", "GET", none + "/events/stream", "", nil, 404, fault.ConversationNotFound, ""},
		{"events of an unknown one", "GET", none + "/events", "", nil, 404, fault.ConversationNotFound, ""},
		{"interrupt with nothing to stop", "POST", one + "/interrupt", "", nil, 409, fault.TurnNotRunning, ""},
		{"unknown turn", "GET", one + "/turns/turn_x", "", nil, 404, fault.TurnNotFound, ""},
		{"unknown terminal", "DELETE", one + "/terminals/term_x", "", nil, 404, fault.TerminalNotFound, ""},
		{"unknown Agent", "POST", "/api/v1/conversations", `{"agent":"nobody"}`, nil, 404, fault.AgentNotFound, "nobody"},
		{"malformed JSON", "POST", "/api/v1/conversations", `{"title":`, nil, 400, fault.RequestInvalid, "body"},
		{"trailing JSON", "POST", "/api/v1/conversations", `{} {}`, nil, 400, fault.RequestInvalid, "body"},
		{"another shape", "POST", "/api/v1/conversations", `[]`, nil, 400, fault.RequestInvalid, "object"},
		{"wrong type", "POST", "/api/v1/conversations", `{"title":7}`, nil, 400, fault.RequestInvalid, "body.title"},
		{"unknown field", "POST", "/api/v1/conversations", `{"titel":"x"}`, nil, 400, fault.RequestInvalid, "body.titel"},
		{"unknown field, differing in case", "POST", "/api/v1/conversations", `{"Title":"x"}`, nil, 400, fault.RequestInvalid, "body.Title"},
		{"no body", "POST", one + "/messages", "", nil, 400, fault.RequestInvalid, "body"},
		{"missing field", "POST", one + "/messages", `{"text":"x"}`, nil, 400, fault.RequestInvalid, "client_message_id"},
		{"empty key", "POST", one + "/messages", `{"client_message_id":"","text":"x"}`, nil, 400, fault.RequestInvalid, "client_message_id"},
		{"title too long", "PATCH", one, `{"title":"` + strings.Repeat("x", 201) + `"}`, nil, 400, fault.RequestInvalid, "title"},
		{"title of two lines", "PATCH", one, `{"title":"a\nb"}`, nil, 400, fault.RequestInvalid, "one line"},
		{"empty message", "POST", one + "/messages", `{"client_message_id":"a","text":" \n"}`, nil, 400, fault.RequestInvalid, "empty"},
		{"NUL in a message", "POST", one + "/messages", `{"client_message_id":"a","text":"a\u0000b"}`, nil, 400, fault.RequestInvalid, "NUL"},
		{"message too long", "POST", one + "/messages", `{"client_message_id":"a","text":"` + big[:wire.TextLimit+1] + `"}`, nil, 413, fault.MessageTooLarge, "262144"},
		{"body too long", "POST", one + "/messages", `{"client_message_id":"a","text":"` + big + `"}`, nil, 413, fault.BodyTooLarge, "1048576"},
		{"broken UTF-8", "POST", one + "/messages", "{\"client_message_id\":\"a\",\"text\":\"\xff\"}", nil, 400, fault.RequestInvalid, "UTF-8"},
		{"not JSON by type", "POST", one + "/messages", `{"client_message_id":"a","text":"b"}`, []string{"Content-Type: text/plain"}, 415, fault.MediaTypeUnsupported, ""},
		{"key with other content", "POST", one + "/messages", `{"client_message_id":"same","text":"other"}`, nil, 409, fault.IdempotencyConflict, ""},
		{"limit 0", "GET", "/api/v1/conversations?limit=0", "", nil, 400, fault.RequestInvalid, "query.limit"},
		{"limit no number", "GET", "/api/v1/conversations?limit=x", "", nil, 400, fault.RequestInvalid, "query.limit"},
		{"bad cursor", "GET", "/api/v1/conversations?cursor=x", "", nil, 400, fault.CursorInvalid, ""},
		{"misspelt parameter", "GET", "/api/v1/conversations?limt=1", "", nil, 400, fault.RequestInvalid, "limt"},
		{"misspelt parameter of a stream", "GET", one + "/files?dept=1", "", nil, 400, fault.RequestInvalid, "dept"},
		{"negative after", "GET", one + "/events?after=-1", "", nil, 400, fault.RequestInvalid, "query.after"},
		{"stream after nonsense", "GET", one + "/events/stream?after=x", "", nil, 400, fault.RequestInvalid, "after"},
		{"stream after the end", "GET", one + "/events/stream?after=99", "", nil, 400, fault.RequestInvalid, "99"},
		{"bad Last-Event-ID", "GET", one + "/events/stream", "", []string{"Last-Event-ID: -4"}, 400, fault.RequestInvalid, "Last-Event-ID"},
		{"terminal without size", "POST", one + "/terminals", `{}`, nil, 400, fault.RequestInvalid, "cols"},
		{"terminal of no size", "POST", one + "/terminals", `{"cols":0,"rows":24}`, nil, 400, fault.RequestInvalid, "cols"},
		{"attach without WebSocket", "GET", one + "/terminals/x/attach", "", nil, 426, fault.UpgradeRequired, ""},
		{"unknown route", "GET", "/api/v1/nothing", "", nil, 404, fault.RouteNotFound, ""},
		{"unknown version", "GET", "/api/v2/conversations", "", nil, 404, fault.RouteNotFound, ""},
		{"wrong method", "PUT", one, `{}`, nil, 405, fault.MethodNotAllowed, ""},
		{"wrong method of a stream", "POST", one + "/files/content?path=/workspace/x", "x", nil, 405, fault.MethodNotAllowed, ""},
	}
	r.do("POST", one+"/messages", `{"client_message_id":"same","text":"this"}`)
	r.do("POST", one+"/interrupt", "")
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := r.do(tt.method, tt.path, tt.body, tt.headers...)
			p := a.problem(t)
			if a.StatusCode != tt.status || p.Code != string(tt.code) || p.Status != tt.status || !strings.Contains(p.Detail, tt.says) {
				t.Errorf("%d %+v", a.StatusCode, p)
			}
			if p.RequestID == "" || p.RequestID != a.Header.Get("X-Request-Id") || p.Title == "" || p.Type != "about:blank" {
				t.Errorf("%+v, X-Request-Id %q", p, a.Header.Get("X-Request-Id"))
			}
			if len(a.body) > 2000 {
				t.Errorf("the answer is %d bytes long: it echoes the request", len(a.body))
			}
			if tt.status == 405 && a.Header.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
		})
	}
}

func TestChunkedBodyIsLimitedToo(t *testing.T) {
	r := newRig(t)
	body := strings.NewReader(`{"title":"` + strings.Repeat("x", 2*wire.JSONLimit) + `"}`)
	a := r.send("POST", "/api/v1/conversations", struct{ *strings.Reader }{body}) // not a type whose length net/http knows
	if p := a.problem(t); p.Code != string(fault.BodyTooLarge) {
		t.Errorf("%+v", p)
	}
}

func TestFailuresTellNoSecrets(t *testing.T) {
	r := newRig(t)
	id := r.conversation()
	tests := []struct {
		err       error
		status    int
		code      string
		retryable bool
	}{
		{errLost, 500, "INTERNAL_ERROR", false},
		{fmt.Errorf("%w: %w", sandbox.ErrUnreachable, errLost), 502, "SANDBOX_UNREACHABLE", true},
		{sandbox.Errorf(sandbox.CodeCapacity, "The backend is full."), 503, "SANDBOX_CAPACITY_UNAVAILABLE", true},
		{fault.Wrap(fault.SandboxStartFailed, errLost, ""), 502, "SANDBOX_START_FAILED", true},
		{context.DeadlineExceeded, 504, "TIMEOUT", true},
	}
	for _, tt := range tests {
		r.svc.Fail = func(string) error { return tt.err }
		for _, path := range []string{"/api/v1/conversations/" + id, "/api/v1/conversations/" + id + "/files", "/api/v1/conversations/" + id + "/events/stream"} {
			a := r.do("GET", path, "")
			p := a.problem(t)
			if p.Status != tt.status || p.Code != tt.code || p.Retryable != tt.retryable || strings.Contains(a.body, "hunter2") {
				t.Errorf("%s: %v gives %s", path, tt.err, a.body)
			}
		}
	}
}

func TestPanics(t *testing.T) {
	r := newRig(t)
	id := r.conversation()
	r.svc.Fail = func(method string) error { panic("in " + method) }
	for _, path := range []string{"/api/v1/conversations/" + id, "/api/v1/conversations/" + id + "/files"} {
		if p := r.do("GET", path, "").problem(t); p.Code != string(fault.Internal) || strings.Contains(p.Detail, "panic") {
			t.Errorf("%+v", p)
		}
	}
}

func TestRequestIDs(t *testing.T) {
	r := newRig(t)
	if got := r.do("GET", "/healthz", "", "X-Request-Id: my-1").Header.Get("X-Request-Id"); got != "my-1" {
		t.Errorf("a plain id became %q", got)
	}
	for _, bad := range []string{"a b", `"`, strings.Repeat("x", 65), "ü"} {
		if got := r.do("GET", "/healthz", "", "X-Request-Id: "+bad).Header.Get("X-Request-Id"); got == bad || !strings.HasPrefix(got, "req_") {
			t.Errorf("%q became %q", bad, got)
		}
	}
}

func TestHealthAndDrain(t *testing.T) {
	var unready error
	r := newRig(t, func(c *httpapi.Config) { c.Ready = func(context.Context) error { return unready } })
	get := func(path string) (int, wire.Health) {
		a := r.do("GET", path, "")
		return a.StatusCode, decode[wire.Health](t, a.body)
	}
	if status, h := get("/healthz"); status != 200 || h.Version != "1.2.3" {
		t.Errorf("%d %+v", status, h)
	}
	if status, _ := get("/readyz"); status != 200 {
		t.Errorf("ready: %d", status)
	}
	unready = errors.New("secret cause")
	if status, h := get("/readyz"); status != 503 || h.Status != "unready" || strings.Contains(h.Detail, "secret") {
		t.Errorf("%d %+v", status, h)
	}
	r.api.Drain()
	if status, h := get("/readyz"); status != 503 || h.Status != "stopping" {
		t.Errorf("%d %+v", status, h)
	}
	if status, _ := get("/healthz"); status != 200 {
		t.Errorf("health while draining: %d", status)
	}
	if p := r.do("GET", "/api/v1/conversations/"+r.conversation()+"/events/stream", "").problem(t); p.Code != string(fault.Stopping) {
		t.Errorf("%+v", p)
	}
}

func TestLists(t *testing.T) {
	r := newRig(t)
	for path, want := range map[string]string{
		"/api/v1/environments": `"name":"local"`,
		"/api/v1/agents":       `"name":"shell"`,
		"/api/v1/doctor":       `"id":"kernel"`,
	} {
		if a := r.do("GET", path, ""); a.StatusCode != 200 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %s", path, a.StatusCode, a.body)
		}
	}
}

func TestOpenAPI(t *testing.T) {
	r := newRig(t)
	a := r.do("GET", "/openapi.json", "")
	doc, err := openapi3.NewLoader().LoadFromData([]byte(a.body))
	if err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("version %q", doc.OpenAPI)
	}
	want := []string{"/healthz", "/api/v1/conversations", "/api/v1/conversations/{id}/events/stream", "/api/v1/conversations/{id}/files/content", "/api/v1/conversations/{id}/terminals/{tid}/attach"}
	for _, p := range want {
		if doc.Paths.Find(p) == nil {
			t.Errorf("%s is not described", p)
		}
	}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			if op.OperationID == "" || op.Summary == "" || len(op.Tags) != 1 {
				t.Errorf("%s %s: incomplete", method, path)
			}
		}
	}
	for _, name := range []string{"Problem", "Conversation", "Event", "FileEntry", "Turn"} {
		if doc.Components.Schemas[name] == nil {
			t.Errorf("no schema %s", name)
		}
	}
}

func TestPagesAndHeaders(t *testing.T) {
	r := newRig(t)
	for path, part := range map[string]string{"/docs": "API", "/docs/docs.js": "openapi.json", "/docs/docs.css": "body", "/": "console", "/c/conv_1": "console"} {
		a := r.do("GET", path, "")
		if a.StatusCode != 200 || !strings.Contains(a.body, part) {
			t.Errorf("%s: %d", path, a.StatusCode)
		}
		if strings.Contains(a.body, "http://") || strings.Contains(a.body, "https://") {
			t.Errorf("%s names another server", path)
		}
		for h, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin"} {
			if got := a.Header.Get(h); got != want {
				t.Errorf("%s: %s is %q", path, h, got)
			}
		}
	}
	if csp := r.do("GET", "/docs", "").Header.Get("Content-Security-Policy"); !strings.Contains(csp, "script-src 'self'") || strings.Contains(csp, "unsafe") {
		t.Errorf("docs: %q", csp)
	}
	a := r.do("GET", "/api/v1/agents", "")
	if a.Header.Get("Cache-Control") != "no-store" || !strings.Contains(a.Header.Get("Content-Security-Policy"), "sandbox") {
		t.Errorf("%v", a.Header)
	}
	if a := r.do("HEAD", "/api/v1/agents", ""); a.StatusCode != http.StatusOK {
		t.Errorf("HEAD: %d", a.StatusCode)
	}
}
