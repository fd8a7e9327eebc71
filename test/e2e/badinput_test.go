package e2e

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

const conversations = "/api/v1/conversations"

// unknown has the form of an id, and names nothing.
const (
	unknownConversation = "conv_01h455vb4pex5vsknk084sn02q"
	unknownTerminal     = "term_01h455vb4pex5vsknk084sn02q"
	unknownTurn         = "turn_01h455vb4pex5vsknk084sn02q"
)

func TestBadRequests(t *testing.T) {
	s := newServer(t, options{})
	id := s.conversation()
	before := s.journal(id)
	t.Run("unknown conversation", func(t *testing.T) { s.unknownConversations(t) })
	t.Run("unknown things", func(t *testing.T) { s.unknownThings(t, id) })
	t.Run("bodies", func(t *testing.T) { s.badBodies(t, id) })
	t.Run("sizes", func(t *testing.T) { s.tooLarge(t, id) })
	t.Run("queries", func(t *testing.T) { s.badQueries(t, id) })
	t.Run("paths", func(t *testing.T) { s.badPaths(t, id) })

	// Nothing of it left a trace: no event, no conversation, no sandbox.
	if diff := cmp.Diff(before, s.journal(id)); diff != "" {
		t.Errorf("refused requests changed the journal:\n%s", diff)
	}
	if c := s.look(id); c.Runtime.State != model.RuntimeNone || c.Queued != 0 || c.Turn != nil || c.Title != t.Name() {
		t.Errorf("refused requests changed the conversation: %+v", c)
	}
	all, err := s.api.Conversations(timeout(t), "", 200)
	if err != nil || len(all.Items) != 1 {
		t.Errorf("expected one conversation, saw %d, %v", len(all.Items), err)
	}
	if left := s.pids("execd"); len(left) != 0 {
		t.Errorf("refused requests started sandboxes: %v", left)
	}
}

// unknownConversations tries every route of a conversation.
func (s *server) unknownConversations(t *testing.T) {
	routes := []request{
		{method: "GET"},
		{method: "DELETE"},
		{method: "PATCH", body: `{"title":"x"}`},
		{method: "POST", path: "/messages", body: `{"client_message_id":"1","text":"x"}`},
		{method: "POST", path: "/interrupt"},
		{method: "GET", path: "/events"},
		{method: "GET", path: "/events/stream"},
		{method: "GET", path: "/turns/" + unknownTurn},
		{method: "GET", path: "/files", query: url.Values{"path": {"/workspace"}}},
		{method: "GET", path: "/files/content", query: url.Values{"path": {"/workspace/a"}}},
		{method: "PUT", path: "/files/content", query: url.Values{"path": {"/workspace/a"}}, body: "x"},
		{method: "POST", path: "/files/mkdir", body: `{"path":"/workspace/a"}`},
		{method: "POST", path: "/files/move", body: `{"from":"/workspace/a","to":"/workspace/b"}`},
		{method: "POST", path: "/files/delete", body: `{"paths":["/workspace/a"]}`},
		{method: "POST", path: "/terminals", body: `{"cols":80,"rows":24}`},
		{method: "GET", path: "/terminals"},
		{method: "DELETE", path: "/terminals/" + unknownTerminal},
	}
	for _, id := range []string{unknownConversation, "x", "%00", "..%2f..%2fetc", "turn_01h455vb4pex5vsknk084sn02q", strings.Repeat("a", 4000)} {
		for _, r := range routes {
			r.path = conversations + "/" + id + r.path
			s.refused(t, r, fault.ConversationNotFound, "")
		}
	}
}

func (s *server) unknownThings(t *testing.T, id string) {
	one := conversations + "/" + id
	s.refused(t, request{method: "GET", path: one + "/turns/" + unknownTurn}, fault.TurnNotFound, "")
	s.refused(t, request{method: "DELETE", path: one + "/terminals/" + unknownTerminal}, fault.TerminalNotFound, "")
	s.refused(t, request{method: "POST", path: one + "/interrupt"}, fault.TurnNotRunning, "")
	s.refused(t, request{method: "POST", path: conversations, body: `{"agent":"nobody"}`}, fault.AgentNotFound, "")
	s.refused(t, request{method: "GET", path: conversations, query: url.Values{"cursor": {"x"}}}, fault.CursorInvalid, "")
	s.refused(t, request{method: "GET", path: "/api/v1/nothing"}, fault.RouteNotFound, "")
	s.refused(t, request{method: "GET", path: "/api/v2/conversations"}, fault.RouteNotFound, "")
	s.refused(t, request{method: "DELETE", path: conversations}, fault.MethodNotAllowed, "")
	s.refused(t, request{method: "POST", path: one}, fault.MethodNotAllowed, "")
	s.refused(t, request{method: "GET", path: one + "/terminals/" + unknownTerminal + "/attach"}, fault.UpgradeRequired, "")
}

func (s *server) badBodies(t *testing.T, id string) {
	one := conversations + "/" + id
	bodies := map[string]string{
		"cut off":       `{"client_message_id":"1","text":"x"`,
		"not JSON":      `text=x`,
		"two documents": `{"client_message_id":"1","text":"x"}{}`,
		"a list":        `[]`,
		"null":          `null`,
		"a number":      `7`,
		"wrong type":    `{"client_message_id":"1","text":1}`,
		"missing":       `{"client_message_id":"1"}`,
		"empty id":      `{"client_message_id":"","text":"x"}`,
		"empty text":    `{"client_message_id":"1","text":""}`,
		"unknown field": `{"client_message_id":"1","text":"x","txet":"y"}`,
		"wrong case":    `{"Client_Message_Id":"1","text":"x"}`,
		"not UTF-8":     "{\"client_message_id\":\"1\",\"text\":\"\xff\"}",
		"long id":       `{"client_message_id":"` + strings.Repeat("a", 201) + `","text":"x"}`,
		"deep":          `{"client_message_id":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `,"text":"x"}`,
	}
	for name, body := range bodies {
		t.Run(name, func(t *testing.T) {
			s.refused(t, request{method: "POST", path: one + "/messages", body: body}, fault.RequestInvalid, "")
		})
	}
	s.refused(t, request{method: "POST", path: one + "/messages"}, fault.RequestInvalid, "")
	s.refused(t, request{method: "POST", path: one + "/messages", body: `{"client_message_id":"1","text":"x"}`,
		header: map[string]string{"Content-Type": "text/plain"}}, fault.MediaTypeUnsupported, "")
	s.refused(t, request{method: "PATCH", path: one, body: `{"title":"a\nb"}`}, fault.RequestInvalid, "title")
	s.refused(t, request{method: "PATCH", path: one, body: `{"title":"` + strings.Repeat("ä", 201) + `"}`}, fault.RequestInvalid, "title")
	for _, size := range []string{`{"cols":0,"rows":24}`, `{"cols":80}`, `{"cols":80,"rows":1001}`, `{"cols":-1,"rows":24}`, `{"cols":8e9,"rows":24}`} {
		s.refused(t, request{method: "POST", path: one + "/terminals", body: size}, fault.RequestInvalid, "")
	}
}

func (s *server) tooLarge(t *testing.T, id string) {
	messages := conversations + "/" + id + "/messages"
	body := `{"client_message_id":"1","text":"` + strings.Repeat("a", wire.JSONLimit) + `"}`
	s.refused(t, request{method: "POST", path: messages, body: body}, fault.BodyTooLarge, "1048576")
	s.refused(t, request{method: "POST", path: messages, body: body, chunked: true}, fault.BodyTooLarge, "1048576")
	body = `{"client_message_id":"1","text":"` + strings.Repeat("a", wire.TextLimit+1) + `"}`
	s.refused(t, request{method: "POST", path: messages, body: body}, fault.MessageTooLarge, "262144")
	paths := `{"paths":["/workspace/a"` + strings.Repeat(`,"/workspace/a"`, 1000) + `]}`
	s.refused(t, request{method: "POST", path: conversations + "/" + id + "/files/delete", body: paths}, fault.RequestInvalid, "paths")
	s.refused(t, request{method: "POST", path: conversations, body: `{}`,
		header: map[string]string{"Idempotency-Key": strings.Repeat("k", 300)}}, fault.RequestInvalid, "")

	// More headers than the server reads are refused before any route.
	req, err := http.NewRequestWithContext(timeout(t), http.MethodGet, s.url()+conversations, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Large", strings.Repeat("a", 200<<10))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("200 KiB of headers: %s", resp.Status)
	}
}

func (s *server) badQueries(t *testing.T, id string) {
	one := conversations + "/" + id
	for _, q := range []url.Values{{"limit": {"0"}}, {"limit": {"-1"}}, {"limit": {"x"}}, {"limit": {"99999999999999999999"}}, {"size": {"1"}}} {
		s.refused(t, request{method: "GET", path: conversations, query: q}, fault.RequestInvalid, "")
	}
	for _, q := range []url.Values{{"after": {"-1"}}, {"after": {"x"}}, {"after": {"9223372036854775808"}}} {
		s.refused(t, request{method: "GET", path: one + "/events", query: q}, fault.RequestInvalid, "")
		s.refused(t, request{method: "GET", path: one + "/events/stream", query: q}, fault.RequestInvalid, "")
	}
	for _, last := range []string{"-1", "x", "1 or 2", "9223372036854775807"} {
		s.refused(t, request{method: "GET", path: one + "/events/stream", header: map[string]string{"Last-Event-ID": last}}, fault.RequestInvalid, "")
	}
	for _, depth := range []string{"0", "-1", "33", "x"} {
		s.refused(t, request{method: "GET", path: one + "/files", query: url.Values{"path": {"/workspace"}, "depth": {depth}}}, fault.RequestInvalid, "depth")
	}
}

// badPaths are refused by their form, so no sandbox is started for them.
func (s *server) badPaths(t *testing.T, id string) {
	one := conversations + "/" + id
	for path, code := range map[string]fault.Code{
		"":                         fault.PathInvalid,
		"a":                        fault.PathInvalid,
		"./a":                      fault.PathInvalid,
		"workspace/a":              fault.PathInvalid,
		"/workspace/a\x00b":        fault.PathInvalid,
		"/workspace/../etc/passwd": fault.PathEscapes,
		"/workspace/..":            fault.PathEscapes,
		"/workspace/a/../../etc":   fault.PathEscapes,
		"/etc/passwd":              fault.PathEscapes,
		"/":                        fault.PathEscapes,
		"/workspaces/a":            fault.PathEscapes,
		"/workspace/" + strings.Repeat("a/", 3000) + "a": fault.PathInvalid,
	} {
		t.Run(fmt.Sprintf("%.30q", path), func(t *testing.T) {
			q := url.Values{"path": {path}}
			if path != "" { // a listing without a path is one of the workspace
				s.refused(t, request{method: "GET", path: one + "/files", query: q}, code, "")
			}
			s.refused(t, request{method: "GET", path: one + "/files/content", query: q}, code, "")
			s.refused(t, request{method: "PUT", path: one + "/files/content", query: q, body: "x"}, code, "")
			s.refused(t, request{method: "POST", path: one + "/files/mkdir", body: toJSON(t, wire.MakeDir{Path: path, Parents: true})}, code, "")
			s.refused(t, request{method: "POST", path: one + "/files/move", body: toJSON(t, wire.MoveFile{From: path, To: "/workspace/b"})}, code, "")
			s.refused(t, request{method: "POST", path: one + "/files/move", body: toJSON(t, wire.MoveFile{From: "/workspace/b", To: path})}, code, "")
			s.refused(t, request{method: "POST", path: one + "/files/delete", body: toJSON(t, wire.DeleteFiles{Paths: []string{"/workspace/b", path}})}, code, "")
		})
	}
}
