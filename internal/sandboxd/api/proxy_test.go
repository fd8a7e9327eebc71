package api_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

const tokenHeader = "X-EXECD-ACCESS-TOKEN"

// inside is what answers in a sandbox: it checks the token as execd does.
func inside(token string) http.Handler {
	mux := http.NewServeMux()
	echo := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Execd-Server", "astrabox-execd/test")
		fmt.Fprintf(w, "%s %s?%s %s key=%q prefix=%s cookie=%s fwd=%s", r.Method, r.URL.EscapedPath(), r.URL.RawQuery, b,
			r.Header.Get(wire.HeaderKey), r.Header.Get("X-Forwarded-Prefix"), r.Header.Get("Cookie"), r.Header.Get("X-Forwarded-Proto"))
	}
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) })
	mux.HandleFunc("/stream", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "first")
		w.(http.Flusher).Flush()
		<-r.Context().Done() // the reader must get it without the end
	})
	mux.HandleFunc("/early", func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		fmt.Fprint(w, "early ")
		_ = rc.Flush()
		_, _ = io.Copy(w, r.Body)
	})
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"astrabox.process.v1"}, InsecureSkipVerify: true})
		if err != nil {
			return
		}
		defer c.CloseNow()
		for {
			kind, b, err := c.Read(r.Context())
			if err != nil {
				return
			}
			if err := c.Write(r.Context(), kind, append([]byte("got "), b...)); err != nil {
				return
			}
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(tokenHeader) != token {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.HasPrefix(strings.TrimPrefix(r.URL.Path, "/proxy/8080"), "/echo/") { // a ServeMux would clean the path
			echo(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func TestProxy(t *testing.T) {
	h := newHarness(t)
	h.serve(func(_, token string) http.Handler { return inside(token) })
	s, other := h.create(), h.create()
	path := "/v1/sandboxes/" + s.ID
	e := decode[wire.Endpoint](h.request("GET", path+"/endpoints/44772?use_server_proxy=true", nil).want(200))
	token := func(v string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Del(wire.HeaderKey); r.Header.Set(tokenHeader, v) }
	}
	good := token(e.Headers[tokenHeader])

	a := h.request("PUT", path+"/proxy/44772/echo/a%2Fb//c?x=1&y=%20", "hello", good, func(r *http.Request) {
		r.Header.Set("Cookie", "c=1")
		r.Header.Set("X-Forwarded-Proto", "https") // believed from nobody
	}).want(200)
	want := fmt.Sprintf(`PUT /echo/a%%2Fb//c?x=1&y=%%20 hello key="" prefix=%s/proxy/44772 cookie=c=1 fwd=http`, path)
	if string(a.body) != want {
		t.Errorf("inside arrived\n%s, want\n%s", a.body, want)
	}
	if a.resp.Header.Get("X-Execd-Server") == "" {
		t.Error("the daemon's own header was dropped")
	}
	// With the key too, which doesn't get inside.
	if a := h.request("GET", path+"/proxy/44772/echo/", nil).want(200); !strings.Contains(string(a.body), `key=""`) {
		t.Errorf("inside arrived %s", a.body)
	}
	if l := h.request("GET", path+"/proxy/44772/redirect", nil, good).want(302).resp.Header.Get("Location"); l != path+"/proxy/44772/elsewhere" {
		t.Errorf("redirected to %q", l)
	}

	h.request("GET", path+"/proxy/44772/echo/", nil, token("")).want(401)
	h.request("GET", path+"/proxy/44772/echo/", nil, token("wrong")).want(401)
	h.request("GET", "/v1/sandboxes/"+other.ID+"/proxy/44772/echo/", nil, good).want(401)
	h.request("GET", "/v1/sandboxes/none/proxy/44772/echo/", nil, good).want(401)
	h.request("GET", "/v1/sandboxes/none/proxy/44772/echo/", nil).want(404)
	// Other ports are reached through execd.
	if a := h.request("GET", path+"/proxy/8080/echo/a%2Fb?x=1", nil, good).want(200); !strings.HasPrefix(string(a.body), "GET /proxy/8080/echo/a%2Fb?x=1") {
		t.Errorf("inside arrived %s", a.body)
	}
	direct := decode[wire.Endpoint](h.request("GET", path+"/endpoints/8080", nil).want(200))
	if host := decode[wire.Endpoint](h.request("GET", path+"/endpoints/44772", nil).want(200)).Endpoint; direct.Endpoint != host+"/proxy/8080" || direct.Headers[tokenHeader] == "" {
		t.Errorf("port 8080 is at %q with headers %d, execd at %q", direct.Endpoint, len(direct.Headers), host)
	}
	h.request("GET", path+"/proxy/x/", nil).want(400)

	h.request("POST", path+"/pause", nil).want(202)
	h.request("GET", path+"/proxy/44772/echo/", nil, good).want(401) // the token ended with the run
	h.request("GET", path+"/proxy/44772/echo/", nil).want(409, "INVALID_STATE")
}

func TestProxyStreams(t *testing.T) {
	h := newHarness(t)
	h.serve(func(_, token string) http.Handler { return inside(token) })
	s := h.create()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.url+"/v1/sandboxes/"+s.ID+"/proxy/44772/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(wire.HeaderKey, key)
	resp, err := h.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); line != "first\n" {
		t.Errorf("read %q, %v before the end of the stream", line, err)
	}
}

// An answer that begins before the request's end was sent isn't cut off.
func TestProxyAnswersEarly(t *testing.T) {
	h := newHarness(t)
	h.serve(func(_, token string) http.Handler { return inside(token) })
	s := h.create()
	body, w := io.Pipe()
	answered := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		_, _ = io.WriteString(w, "a ")
		select {
		case <-answered:
		case <-time.After(10 * time.Second):
		}
		_, _ = io.WriteString(w, "body")
		w.Close()
	})
	a := h.request("POST", "/v1/sandboxes/"+s.ID+"/proxy/44772/early", nil, func(r *http.Request) {
		r.Body, r.ContentLength = body, 6
		*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{GotFirstResponseByte: func() { close(answered) }}))
	})
	writing.Wait()
	if got := string(a.body); got != "early a body" {
		t.Errorf("got %q", got)
	}
}

func TestProxyWebSocket(t *testing.T) {
	h := newHarness(t)
	h.serve(func(_, token string) http.Handler { return inside(token) })
	s := h.create()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	dial := func(hd http.Header) (*websocket.Conn, *http.Response, error) {
		return websocket.Dial(ctx, h.url+"/v1/sandboxes/"+s.ID+"/proxy/44772/ws", &websocket.DialOptions{
			HTTPClient: h.client, HTTPHeader: hd, Subprotocols: []string{"astrabox.process.v1"}})
	}
	if _, resp, err := dial(nil); err == nil || resp == nil || resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without a key: %v, %v", resp, err)
	}
	c, _, err := dial(http.Header{wire.HeaderKey: {key}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if c.Subprotocol() != "astrabox.process.v1" {
		t.Errorf("subprotocol %q", c.Subprotocol())
	}
	for _, text := range []string{"a", strings.Repeat("b", 20_000)} {
		if err := c.Write(ctx, websocket.MessageBinary, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, b, err := c.Read(ctx); err != nil || string(b) != "got "+text {
			t.Fatalf("read %d bytes, %v", len(b), err)
		}
	}
	c.Close(websocket.StatusNormalClosure, "")
}
