package execd_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// behind starts a program behind the proxy and gives its port.
func behind(t *testing.T, h http.HandlerFunc) (port string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	u, _ := url.Parse(s.URL)
	return u.Port()
}

// raw sends a request as it stands, with the token, and gives the answer.
func raw(t *testing.T, d *daemon, request string) (*http.Response, string) {
	t.Helper()
	var dial net.Dialer
	conn, err := dial.DialContext(ctx(t), "tcp", strings.TrimPrefix(d.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	line, rest, _ := strings.Cut(request, "\n")
	io.WriteString(conn, line+"\r\nHost: app.example\r\nConnection: close\r\n"+wire.HeaderToken+": "+token+"\r\n"+rest+"\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	return resp, string(b)
}

func TestProxy(t *testing.T) {
	d := start(t)
	var seen *http.Request
	port := behind(t, func(w http.ResponseWriter, r *http.Request) {
		seen = r
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusFound)
		io.Copy(w, r.Body)
	})
	for sent, want := range map[string]string{
		"GET /proxy/" + port + "/a%2Fb/../c//d%20e?x=1&y=%2F;z HTTP/1.1":   "GET /a%2Fb/../c//d%20e?x=1&y=%2F;z",
		"PROPFIND /proxy/" + port + "/%2e%2e/x HTTP/1.1":                   "PROPFIND /%2e%2e/x",
		"HEAD /proxy/" + port + " HTTP/1.1":                                "HEAD /",
		"GET /proxy/" + port + "//x HTTP/1.1":                              "GET //x",
		"GET /proxy/" + port + "/? HTTP/1.1":                               "GET /?",
		"DELETE /proxy/" + port + "/files/%E4%BD%A0?path=%ff HTTP/1.1":     "DELETE /files/%E4%BD%A0?path=%ff",
		"OPTIONS /proxy/" + port + "/ping HTTP/1.1\nAccept-Encoding: gzip": "OPTIONS /ping",
	} {
		resp, _ := raw(t, d, sent)
		if resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != "/elsewhere" {
			t.Errorf("%s: %d", sent, resp.StatusCode)
			continue
		}
		if got := seen.Method + " " + seen.RequestURI; got != want {
			t.Errorf("%s: the program got %s", sent, got)
		}
	}
	resp, body := raw(t, d, "POST /proxy/"+port+"/ HTTP/1.1\nContent-Length: 5\nX-Forwarded-For: 6.6.6.6\nX-Forwarded-Proto: https\nForwarded: for=6.6.6.6\nX-Own: kept\n\nhello")
	if body != "hello" || resp.StatusCode != http.StatusFound {
		t.Errorf("%d %q", resp.StatusCode, body)
	}
	got := map[string]string{"Host": seen.Host}
	for _, k := range []string{"X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Forwarded-Prefix", "Forwarded", "X-Own", "User-Agent", "Accept-Encoding", wire.HeaderToken} {
		got[k] = seen.Header.Get(k)
	}
	if diff := cmp.Diff(map[string]string{
		"Host": "app.example", "X-Own": "kept", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http",
		"X-Forwarded-Host": "app.example", "X-Forwarded-Prefix": "/proxy/" + port,
		"Forwarded": "", "User-Agent": "", "Accept-Encoding": "", wire.HeaderToken: "",
	}, got); diff != "" {
		t.Errorf("headers (-want +got):\n%s", diff)
	}
}

func TestProxyRefusals(t *testing.T) {
	d := start(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, closed, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	_, own, _ := net.SplitHostPort(strings.TrimPrefix(d.base, "http://"))
	for path, want := range map[string]int{
		"/proxy/" + closed + "/": 502, "/proxy/" + own + "/ping": 403, "/proxy/0" + own + "/ping": 403,
		"/proxy/": 400, "/proxy": 400, "/proxy//x": 400, "/proxy/0/": 400, "/proxy/65536/": 400, "/proxy/-1/": 400, "/proxy/+80/": 400,
		"/proxy/80@10.0.0.1/": 400, "/proxy/localhost:80/": 400, "/proxy/%38%30/": 400,
	} {
		resp, body := get(t, d, "GET", path)
		if resp.StatusCode != want || !strings.Contains(body, `"code":`) || want == 502 && !strings.Contains(body, "Bad Gateway") {
			t.Errorf("%s: %d %s", path, resp.StatusCode, body)
		}
	}
	req, _ := http.NewRequestWithContext(ctx(t), "GET", d.base+"/proxy/"+closed+"/", nil)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a token: %d", resp.StatusCode)
	}
}

// An answer that begins before the request's end was sent isn't cut off.
func TestProxyAnswersEarly(t *testing.T) {
	d := start(t)
	port := behind(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		io.WriteString(w, "early ")
		rc.Flush()
		io.Copy(w, r.Body)
	})
	var dial net.Dialer
	conn, err := dial.DialContext(ctx(t), "tcp", strings.TrimPrefix(d.base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "POST /proxy/"+port+"/ HTTP/1.1\r\nHost: app.example\r\nConnection: close\r\nContent-Length: 6\r\n"+wire.HeaderToken+": "+token+"\r\n\r\na ")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	io.WriteString(conn, "body") // only now
	if b, err := io.ReadAll(resp.Body); string(b) != "early a body" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

// A WebSocket goes through, and neither it nor an endless answer keeps the
// daemon from ending (which start checks).
func TestProxyStreams(t *testing.T) {
	d := start(t)
	gone := make(chan struct{})
	port := behind(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			io.WriteString(w, "first")
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(gone)
			return
		}
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"echo"}})
		if err != nil {
			return
		}
		defer conn.CloseNow()
		for {
			kind, b, err := conn.Read(r.Context())
			if err != nil || conn.Write(r.Context(), kind, b) != nil {
				return
			}
		}
	})
	conn, _, err := websocket.Dial(ctx(t), d.base+"/proxy/"+port+"/ws", &websocket.DialOptions{
		Subprotocols: []string{"echo"}, HTTPHeader: http.Header{wire.HeaderToken: {token}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.CloseNow() })
	if conn.Subprotocol() != "echo" {
		t.Errorf("subprotocol %q", conn.Subprotocol())
	}
	for _, m := range []string{"one", "two"} {
		if err := conn.Write(ctx(t), websocket.MessageText, []byte(m)); err != nil {
			t.Fatal(err)
		}
		if _, b, err := conn.Read(ctx(t)); err != nil || string(b) != m {
			t.Fatalf("%q %v", b, err)
		}
	}
	c, cancel := context.WithCancel(ctx(t))
	req, _ := http.NewRequestWithContext(c, "GET", d.base+"/proxy/"+port+"/", nil)
	req.Header.Set(wire.HeaderToken, token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b := make([]byte, 5)
	if _, err := io.ReadFull(resp.Body, b); err != nil || string(b) != "first" {
		t.Errorf("%q %v", b, err)
	}
	cancel()
	<-gone // the program learns that its client went away
}
