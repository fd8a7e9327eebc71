package e2e

import (
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
)

// TestStrangers: without a login, loopback would be a shell for every page that
// somebody visits, so a foreign Host or Origin is refused on every route.
func TestStrangers(t *testing.T) {
	s := newServer(t, options{})
	id := s.conversation()
	one := conversations + "/" + id
	term, err := s.api.CreateTerminal(timeout(t), id, wire.CreateTerminal{Cols: 80, Rows: 24})
	if err != nil {
		t.Fatal(err)
	}
	attach := one + "/terminals/" + term.ID + "/attach"
	upgrade := map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": wire.TerminalProtocol}
	routes := []request{
		{method: "GET", path: "/"},
		{method: "GET", path: "/healthz"},
		{method: "GET", path: "/openapi.json"},
		{method: "GET", path: conversations},
		{method: "POST", path: conversations, body: `{}`},
		{method: "DELETE", path: one},
		{method: "POST", path: one + "/messages", body: `{"client_message_id":"1","text":"touch /tmp/was-here"}`},
		{method: "GET", path: one + "/events/stream"},
		{method: "PUT", path: one + "/files/content", query: url.Values{"path": {"/workspace/was-here"}}, body: "x"},
		{method: "POST", path: one + "/terminals", body: `{"cols":80,"rows":24}`},
		{method: "GET", path: attach, header: upgrade},
	}
	_, port, _ := strings.Cut(s.address, ":")
	for _, r := range routes {
		for _, host := range []string{"evil.example", "evil.example:" + port, "localhost.evil.example:" + port, "127.0.0.1.evil.example", "10.0.0.1:" + port, "[fe80::1]:" + port} {
			r.host = host
			s.refused(t, r, fault.HostRefused, "")
		}
		r.host = ""
		for _, origin := range []string{"http://evil.example", "https://" + s.address + ".evil.example", "http://localhost:1", "http://127.0.0.1", "null", "file://", "http://evil.example@" + s.address} {
			h := maps.Clone(r.header)
			if h == nil {
				h = map[string]string{}
			}
			h["Origin"] = origin
			s.refused(t, request{method: r.method, path: r.path, query: r.query, body: r.body, header: h}, fault.OriginRefused, "")
		}
		h := maps.Clone(r.header)
		if h == nil {
			h = map[string]string{}
		}
		h["Sec-Fetch-Site"], h["Sec-Fetch-Mode"] = "cross-site", "no-cors"
		s.refused(t, request{method: r.method, path: r.path, query: r.query, body: r.body, header: h}, fault.OriginRefused, "")
	}
	if got := s.say(id, "ls -A /workspace; ls -d /tmp/was-here 2>/dev/null; true"); got != "" {
		t.Errorf("a stranger's request had an effect: %q", got)
	}

	// The console's own terminal, from the server's own origin, gets in.
	ws, _, err := websocket.Dial(timeout(t), s.url()+attach+"?since=0&mode=write", &websocket.DialOptions{
		Subprotocols: []string{wire.TerminalProtocol}, HTTPHeader: http.Header{"Origin": {s.url()}}})
	if err != nil {
		t.Fatalf("from its own origin: %v", err)
	}
	ws.CloseNow()
	all, err := s.api.Conversations(timeout(t), "", 200)
	if err != nil || len(all.Items) != 1 {
		t.Errorf("expected one conversation, saw %d, %v", len(all.Items), err)
	}
	terms, err := s.api.Terminals(timeout(t), id)
	if err != nil || len(terms.Items) != 1 {
		t.Errorf("expected one terminal, saw %d, %v", len(terms.Items), err)
	}
}
