package opensandbox_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
	"github.com/astrabox/astrabox/sandbox"
)

// What other services, and things that only look like one, answer.

func TestProbe(t *testing.T) {
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		status sandbox.ObservedStatus
		state  string
	}{
		"running":         {reply(200, described("a", "RUNNING")), sandbox.ObservedOK, "running"},
		"odd state":       {reply(200, described("a", " Hibernating ")), sandbox.ObservedOK, "hibernating"},
		"gone":            {reply(404, wire.Error{Code: "DOCKER::SANDBOX_NOT_FOUND", Message: "no"}), sandbox.ObservedGone, ""},
		"404 of a proxy":  {reply(404, "<html>not found</html>"), sandbox.ObservedError, ""},
		"404 of a router": {reply(404, `{"detail":"Not Found"}`), sandbox.ObservedError, ""},
		"no state":        {reply(200, described("a", "")), sandbox.ObservedError, ""},
		"another sandbox": {reply(200, described("b", "Running")), sandbox.ObservedError, ""},
		"not JSON":        {reply(200, "<html>"), sandbox.ObservedError, ""},
		"key refused":     {reply(401, wire.Error{Code: "UNAUTHORIZED", Message: "no"}), sandbox.ObservedError, ""},
		"failure":         {reply(500, wire.Error{Code: "INTERNAL", Message: "no"}), sandbox.ObservedError, ""},
		"hiccup":          {inTurn(reply(503, nil), reply(502, nil), reply(200, described("a", "Running"))), sandbox.ObservedOK, "running"},
		"redirect":        {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/v1/sandboxes/b", http.StatusFound) }, sandbox.ObservedError, ""},
		"connection cut":  {cut, sandbox.ObservedError, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.on("GET sandboxes/a", tc.answer)
			o, err := s.provider().Probe(t.Context(), "a")
			if err != nil || o.Status != tc.status || o.State != tc.state {
				t.Errorf("observed %+v, %v", o, err)
			}
			if slices.Contains(s.seen(), "GET sandboxes/b") {
				t.Error("a redirect was followed")
			}
		})
	}
}

// cut closes the connection without an answer.
func cut(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func TestKill(t *testing.T) {
	gone := reply(404, wire.Error{Code: "SANDBOX_NOT_FOUND", Message: "no"})
	there := reply(200, described("a", "Stopping"))
	for name, tc := range map[string]struct {
		delete, get http.HandlerFunc
		gone, fails bool
	}{
		"accepted and gone":        {reply(204, nil), gone, true, false},
		"accepted, still there":    {reply(202, nil), there, false, false},
		"accepted, can't be seen":  {reply(204, nil), reply(500, nil), false, true},
		"gone already":             {gone, gone, true, false},
		"404, but there":           {gone, there, false, false},
		"404 of a proxy, there":    {reply(404, "<html>"), there, false, false},
		"404 of a proxy for all":   {reply(404, "<html>"), reply(404, "<html>"), false, true},
		"refused":                  {reply(409, wire.Error{Code: "CONFLICT", Message: "no"}), there, false, true},
		"failed":                   {reply(500, wire.Error{Code: "INTERNAL", Message: "no"}), gone, false, true},
		"answer lost, asked again": {inTurn(cut, gone), gone, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.on("DELETE sandboxes/a", tc.delete)
			s.on("GET sandboxes/a", tc.get)
			got, err := s.provider().Kill(t.Context(), "a")
			if got != tc.gone || (err != nil) != tc.fails {
				t.Errorf("gone %v, %v", got, err)
			}
		})
	}
}

func TestPauseOfOtherServices(t *testing.T) {
	state := func(s string) http.HandlerFunc { return reply(200, described("a", s)) }
	conflict := reply(409, wire.Error{Code: "INVALID_STATE", Message: "no"})
	for name, tc := range map[string]struct {
		post, get http.HandlerFunc
		ok        bool
		code      sandbox.Code
	}{
		"asynchronous":            {reply(202, nil), inTurn(state("Running"), state("Pausing"), state("Paused")), true, ""},
		"another word for it":     {reply(202, nil), inTurn(state("Pausing"), state("SUCCEED")), true, ""},
		"failed":                  {reply(202, nil), inTurn(state("Pausing"), state("FAILED")), false, ""},
		"back to running":         {reply(202, nil), inTurn(state("Pausing"), state("Running")), false, ""},
		"deleted meanwhile":       {reply(202, nil), inTurn(state("Pausing"), state("Stopping")), false, ""},
		"paused already":          {conflict, state("Paused"), true, ""},
		"being paused by another": {conflict, inTurn(state("Pausing"), state("Paused")), true, ""},
		"not possible":            {conflict, state("Pending"), false, sandbox.CodeNotRunning},
		"not there":               {nil, nil, false, sandbox.CodeNotFound},
		"can't pause":             {reply(501, wire.Error{Code: "NOT_IMPLEMENTED", Message: "no"}), state("Running"), false, sandbox.CodeUnsupported},
		"gone meanwhile":          {reply(202, nil), inTurn(state("Pausing"), reply(404, wire.Error{Code: "SANDBOX_NOT_FOUND"})), false, sandbox.CodeNotFound},
		"the answer was lost":     {cut, inTurn(state("Pausing"), state("Paused")), true, ""},
		"a proxy didn't wait":     {reply(504, "<html>"), inTurn(state("Pausing"), state("Paused")), true, ""},
		"nothing came of it":      {cut, state("Running"), false, sandbox.CodeUnavailable},
		"the service failed":      {reply(500, wire.Error{Code: "INTERNAL", Message: "no"}), state("Running"), false, sandbox.CodeUnavailable},
		"restarts meanwhile":      {reply(202, nil), inTurn(reply(500, nil), state("Paused")), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			if tc.post != nil {
				s.on("POST sandboxes/a/pause", tc.post)
				s.on("GET sandboxes/a", tc.get)
			}
			ok, err := s.provider().Pauser.Pause(t.Context(), "a")
			if ok != tc.ok || (err != nil) != (tc.code != "") {
				t.Errorf("paused %v, %v", ok, err)
			}
			if tc.code != "" {
				wantCode(t, err, tc.code)
			}
			if n := count(s.seen(), "POST sandboxes/a/pause"); n != 1 {
				t.Errorf("asked to pause %d times", n)
			}
		})
	}
}

func count(all []string, what string) (n int) {
	for _, s := range all {
		if s == what {
			n++
		}
	}
	return n
}

func TestRenewOfOtherServices(t *testing.T) {
	ends := func(in time.Duration) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			s := described("a", "Running")
			at := time.Now().Add(in)
			s.ExpiresAt = &at
			reply(200, s)(w, r)
		}
	}
	for name, tc := range map[string]struct {
		post, get http.HandlerFunc
		least     time.Duration // zero: an error is wanted
	}{
		"answer lost":             {inTurn(cut, reply(200, wire.Renewal{ExpiresAt: time.Now().Add(time.Hour)})), ends(time.Minute), 59 * time.Minute},
		"somebody was further":    {reply(400, wire.Error{Code: "INVALID", Message: "earlier"}), inTurn(ends(time.Minute), ends(2*time.Hour)), 119 * time.Minute},
		"refused":                 {reply(400, wire.Error{Code: "INVALID", Message: "too far"}), ends(time.Minute), 0},
		"it ends later already":   {nil, ends(3 * time.Hour), 179 * time.Minute}, // a service may take the earlier end
		"the service shortens it": {reply(200, wire.Renewal{ExpiresAt: time.Now().Add(time.Second)}), inTurn(ends(time.Minute), ends(time.Second)), time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			if tc.post != nil {
				s.on("POST sandboxes/a/renew-expiration", tc.post)
			}
			s.on("GET sandboxes/a", tc.get)
			at, err := s.provider().Renew(t.Context(), "a", time.Hour)
			if (err != nil) != (tc.least == 0) || err == nil && time.Until(at) < tc.least-10*time.Second {
				t.Errorf("renewed to %v, %v", at, err)
			}
			if tc.post == nil && count(s.seen(), "POST sandboxes/a/renew-expiration") > 0 {
				t.Error("it was asked for")
			}
		})
	}
	p := newScript(t).provider()
	for _, ttl := range []time.Duration{0, -time.Hour} {
		_, err := p.Renew(t.Context(), "a", ttl)
		wantCode(t, err, sandbox.CodeInvalid)
	}
}

func TestConnectStates(t *testing.T) {
	for state, want := range map[string]sandbox.Code{
		"Running": "", "READY": "", "Pending": sandbox.CodeUnavailable, "Resuming": sandbox.CodeUnavailable, "Paused": sandbox.CodeNotRunning,
		"Pausing": sandbox.CodeNotRunning, "Failed": sandbox.CodeNotRunning, "Terminated": sandbox.CodeNotRunning, "Stopping": sandbox.CodeNotRunning,
	} {
		s := newScript(t)
		s.on("GET sandboxes/a", reply(200, described("a", state)))
		_, err := s.provider().Connect(t.Context(), "a")
		wantCode(t, err, want)
	}
	s := newScript(t)
	s.on("GET sandboxes/a", reply(404, "<html>"))
	_, err := s.provider().Connect(t.Context(), "a")
	wantCode(t, err, sandbox.CodeUnavailable)
}

func TestFindAmbiguous(t *testing.T) {
	owned := func(id string) wire.Sandbox {
		s := described(id, "Running")
		s.Metadata = map[string]string{sandbox.KeyManagedBy: sandbox.ManagedBy, sandbox.KeyInstallation: installation, sandbox.KeyAssignmentID: "asg_1"}
		return s
	}
	for name, tc := range map[string]struct {
		list wire.List
		want sandbox.Code
	}{
		"two":                        {wire.List{Items: []wire.Sandbox{owned("a"), owned("b")}, Pagination: wire.Pagination{TotalItems: 2}}, sandbox.CodeAssignmentAmbiguous},
		"one shown of two":           {wire.List{Items: []wire.Sandbox{owned("a")}, Pagination: wire.Pagination{TotalItems: 2}}, sandbox.CodeAssignmentAmbiguous},
		"none shown of one":          {wire.List{Pagination: wire.Pagination{TotalItems: 1}}, sandbox.CodeAssignmentAmbiguous},
		"the filter was passed over": {wire.List{Items: []wire.Sandbox{described("a", "Running")}, Pagination: wire.Pagination{TotalItems: 1}}, sandbox.CodeUnavailable},
		"an id of another form":      {wire.List{Items: []wire.Sandbox{owned("../a")}, Pagination: wire.Pagination{TotalItems: 1}}, sandbox.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.on("GET sandboxes", reply(200, tc.list))
			_, _, err := s.provider().Finder.FindSandboxByAssignment(t.Context(), installation, "asg_1")
			wantCode(t, err, tc.want)
			if _, err := s.provider().Create(t.Context(), spec("asg_1")); err == nil || count(s.seen(), "POST sandboxes") != 0 {
				t.Errorf("created all the same: %v", err)
			}
		})
	}
}

// A create whose answer is lost isn't sent again, as another service would
// make a second sandbox; the first is found and used.
func TestCreateAnswerLost(t *testing.T) {
	bundled := newService(t)
	l, err := sandboxd.ReadListening(bundled.dir)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(strings.TrimSuffix(l.URL, "/v1"))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	var creates atomic.Int64
	front := httptest.NewServer(&httputil.ReverseProxy{
		Transport: transport,
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: func(r *http.Response) error {
			if r.Request.Method == http.MethodPost && creates.Add(1) == 1 {
				panic(http.ErrAbortHandler)
			}
			return nil
		},
	})
	defer front.Close()
	p := bound(t, settings(map[string]string{
		"ASTRABOX_SANDBOX_OPENAPI_BASE_URL": front.URL + "/v1", "ASTRABOX_SANDBOX_OPENAPI_KEY_FILE": sandboxd.KeyFile(bundled.dir),
	}))
	h, err := p.Create(t.Context(), spec("asg_1"))
	if err != nil {
		t.Fatal(err)
	}
	if n := creates.Load(); n != 1 {
		t.Errorf("%d creates were sent, want 1", n)
	}
	if boxes := bundled.machine.Boxes(); len(boxes) != 1 || boxes[h.SandboxID()] == 0 {
		t.Errorf("the sandbox is %s, there are %v", h.SandboxID(), boxes)
	}
}

// A create that is given up while the service hasn't begun with it makes no
// sandbox that nobody knows of: the look that finds none comes too early.
func TestCreateGivenUpEarly(t *testing.T) {
	bundled := newService(t)
	l, err := sandboxd.ReadListening(bundled.dir)
	if err != nil {
		t.Fatal(err)
	}
	target, err := url.Parse(strings.TrimSuffix(l.URL, "/v1"))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	asked, looked := make(chan struct{}), make(chan struct{})
	var once sync.Once
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			close(asked)
			<-looked
			// The service has the request, whatever becomes of the connection.
			r = r.WithContext(context.WithoutCancel(r.Context()))
			r.Body = io.NopCloser(bytes.NewReader(body))
			proxy.ServeHTTP(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
		select {
		case <-asked:
			once.Do(func() { close(looked) })
		default:
		}
	}))
	defer front.Close()
	p := bound(t, settings(map[string]string{
		"ASTRABOX_SANDBOX_OPENAPI_BASE_URL": front.URL + "/v1", "ASTRABOX_SANDBOX_OPENAPI_KEY_FILE": sandboxd.KeyFile(bundled.dir),
	}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := p.Create(ctx, spec("asg_1")); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	front.Close() // returns when the create was answered
	if boxes := bundled.machine.Boxes(); len(boxes) != 0 {
		t.Errorf("left: %v", boxes)
	}
}

// The API key, and text that the service shouldn't have sent, stay out of errors.
func TestSecretsStayOut(t *testing.T) {
	s := newScript(t)
	p := s.provider()
	s.on("GET sandboxes/a", reply(500, wire.Error{Code: "X", Message: "your key " + scriptKey + " is\nwrong " + strings.Repeat("y", 5000)}))
	_, err := p.Connect(t.Context(), "a")
	o, _ := p.Probe(t.Context(), "a")
	for _, text := range []string{err.Error(), o.Detail} {
		if strings.Contains(text, scriptKey) || strings.Contains(text, "\n") || len(text) > 600 {
			t.Errorf("error text %q", text)
		}
	}
	s.Close()
	_, err = p.Connect(quick(t), "a")
	if err == nil || strings.Contains(err.Error(), scriptKey) {
		t.Errorf("error %v", err)
	}
}

func TestEndpointNamesSandbox(t *testing.T) {
	p := bound(t, settings(map[string]string{"ASTRABOX_SANDBOX_OPENAPI_BASE_URL": "https://box.example:8443/api/v1"}))
	for endpoint, want := range map[string]string{
		"https://box.example:8443/sandboxes/abc/proxy/8080":        "abc",
		"https://BOX.example:8443/v1/sandboxes/abc/port/8080/x?y":  "abc",
		"https://box.example:8443/api/v1/sandboxes/abc/proxy/8080": "abc",
		"https://box.example:8443/sandboxes/abc":                   "",
		"https://box.example:8443/sandboxes/abc/":                  "",
		"https://box.example:8443/other/sandboxes/abc/proxy/1":     "",
		"https://box.example:8443/sandboxes/a%2Fb/proxy/1":         "",
		"https://box.example:8443/sandboxes/../proxy/1":            "",
		"https://box.example/sandboxes/abc/proxy/8080":             "",
		"https://evil.example:8443/sandboxes/abc/proxy/8080":       "",
		"https://u@box.example:8443/sandboxes/abc/proxy/8080":      "",
		"box.example:8443/sandboxes/abc/proxy/8080":                "",
		"http://10.0.0.1:44772":                                    "",
		"":                                                         "",
	} {
		if id, ok := p.EndpointNamesSandbox(endpoint); id != want || ok != (want != "") {
			t.Errorf("%s names %q, %v; want %q", endpoint, id, ok, want)
		}
	}
}

func TestSignedEndpoint(t *testing.T) {
	for name, tc := range map[string]struct {
		signed wire.Endpoint
		want   sandbox.Code
	}{
		"signed":                 {wire.Endpoint{Endpoint: "box.example/sandboxes/a/port/8080/k1-abc"}, ""},
		"the service ignored it": {wire.Endpoint{Endpoint: "10.0.0.1:8080"}, sandbox.CodeSignedUnsupported},
		"needs a header":         {wire.Endpoint{Endpoint: "box.example/x", Headers: map[string]string{"a": "b"}}, sandbox.CodeSignedUnsupported},
		"no address":             {wire.Endpoint{}, sandbox.CodeUnavailable},
		"with a user":            {wire.Endpoint{Endpoint: "http://me:pw@box.example/x"}, sandbox.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.on("GET sandboxes/a", reply(200, described("a", "Running")))
			s.on("GET sandboxes/a/endpoints/8080", func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Has("expires") {
					reply(200, tc.signed)(w, r)
					return
				}
				reply(200, wire.Endpoint{Endpoint: "10.0.0.1:8080"})(w, r)
			})
			h, err := s.provider().Connect(t.Context(), "a")
			if err != nil {
				t.Fatal(err)
			}
			_, err = h.SignedEndpoint(t.Context(), 8080, time.Now().Add(time.Hour))
			wantCode(t, err, tc.want)
			if e, err := h.Endpoint(t.Context(), 8080); err != nil || e.URL.String() != "http://10.0.0.1:8080" {
				t.Errorf("endpoint %v, %v", e, err)
			}
		})
	}
}
