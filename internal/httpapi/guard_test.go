package httpapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
)

// everyRoute gives each route that the document names, and the pages.
func everyRoute(t *testing.T, r *rig) (routes [][2]string) {
	var doc struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	if err := json.Unmarshal(r.api.OpenAPI(), &doc); err != nil {
		t.Fatal(err)
	}
	for path, methods := range doc.Paths {
		for method := range methods {
			routes = append(routes, [2]string{strings.ToUpper(method), strings.NewReplacer("{id}", unknown, "{tid}", "term_x", "{turn_id}", "turn_x").Replace(path)})
		}
	}
	if len(routes) < 20 {
		t.Fatalf("only %d routes", len(routes))
	}
	return append(routes, [2]string{"GET", "/"}, [2]string{"GET", "/docs"}, [2]string{"GET", "/openapi.json"}, [2]string{"GET", "/api/v1/nothing"}, [2]string{"OPTIONS", "/api/v1/conversations"})
}

func TestStrangersAreRefusedOnEveryRoute(t *testing.T) {
	r := newRig(t)
	port := r.url[strings.LastIndexByte(r.url, ':')+1:]
	tests := []struct {
		name    string
		headers []string
		code    fault.Code
	}{
		{"foreign Host (a rebound name)", []string{"Host: evil.example"}, fault.HostRefused},
		{"foreign Host with our port", []string{"Host: evil.example:" + port}, fault.HostRefused},
		{"foreign Host that looks like ours", []string{"Host: 127.0.0.1.evil.example"}, fault.HostRefused},
		{"an address of the network", []string{"Host: 192.168.1.5:" + port}, fault.HostRefused},
		{"foreign Origin", []string{"Origin: https://evil.example"}, fault.OriginRefused},
		{"no origin that can be named", []string{"Origin: null"}, fault.OriginRefused},
		{"another port of this machine", []string{"Origin: http://127.0.0.1:1"}, fault.OriginRefused},
		{"another name of this machine", []string{"Origin: http://localhost:" + port}, fault.OriginRefused},
		{"another scheme", []string{"Origin: ftp://127.0.0.1:" + port}, fault.OriginRefused},
		{"an Origin with more to it", []string{"Origin: http://u@127.0.0.1:" + port}, fault.OriginRefused},
		{"a picture in a foreign page", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"}, fault.OriginRefused},
		{"a page of another port", []string{"Sec-Fetch-Site: same-site", "Sec-Fetch-Mode: cors"}, fault.OriginRefused},
		{"a frame in a foreign page", []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"}, fault.OriginRefused},
	}
	for _, route := range everyRoute(t, r) {
		for _, tt := range tests {
			a := r.do(route[0], route[1], "", tt.headers...)
			if route[0] == "HEAD" {
				continue
			}
			if p := a.problem(t); p.Code != string(tt.code) {
				t.Errorf("%s %s, %s: %d %s", route[0], route[1], tt.name, a.StatusCode, a.body)
			}
		}
	}
}

func TestFriendsPass(t *testing.T) {
	r := newRig(t)
	own := strings.TrimPrefix(r.url, "http://")
	port := own[strings.LastIndexByte(own, ':'):]
	for name, headers := range map[string][]string{
		"a program":                   nil,
		"localhost":                   {"Host: localhost" + port},
		"LOCALHOST.":                  {"Host: LOCALHOST." + port},
		"IPv6":                        {"Host: [::1]" + port},
		"another loopback address":    {"Host: 127.1.2.3"},
		"a configured name":           {"Host: BOX.example"},
		"the console":                 {"Origin: http://" + own, "Sec-Fetch-Site: same-origin"},
		"the console, older browser":  {"Origin: http://" + own},
		"the console behind a proxy":  {"Host: box.example", "Origin: https://box.example"},
		"an address that was typed":   {"Sec-Fetch-Site: none", "Sec-Fetch-Mode: navigate"},
		"a download from the console": {"Sec-Fetch-Site: same-origin", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"},
	} {
		if a := r.do("GET", "/api/v1/agents", "", headers...); a.StatusCode != 200 {
			t.Errorf("%s: %d %s", name, a.StatusCode, a.body)
		}
	}
	link := []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"}
	if a := r.do("GET", "/c/conv_1", "", link...); a.StatusCode != 200 {
		t.Errorf("a link to the console: %d", a.StatusCode)
	}
	if a := r.do("GET", "/api/v1/agents", "", link...); a.StatusCode != 403 {
		t.Errorf("a link to the API: %d", a.StatusCode)
	}
}

func TestForeignWebSocketsAreRefused(t *testing.T) {
	r := newRig(t)
	id := r.conversation()
	term := decodeTerminal(t, r.do("POST", "/api/v1/conversations/"+id+"/terminals", `{"cols":80,"rows":24}`))
	for name, o := range map[string]*websocket.DialOptions{
		"origin": {HTTPHeader: http.Header{"Origin": {"https://evil.example"}}},
		"null":   {HTTPHeader: http.Header{"Origin": {"null"}}},
		"host":   {Host: "evil.example"},
	} {
		o.Subprotocols = []string{wire.TerminalProtocol}
		ws, resp, err := websocket.Dial(context.Background(), r.url+"/api/v1/conversations/"+id+"/terminals/"+term+"/attach", o)
		if err == nil {
			ws.CloseNow()
			t.Errorf("%s: a stranger has a terminal", name)
		} else if resp == nil || resp.StatusCode != 403 && resp.StatusCode != 421 {
			t.Errorf("%s: %v %v", name, resp, err)
		}
	}
}
