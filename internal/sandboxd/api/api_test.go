package api_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

func TestLife(t *testing.T) {
	h := newHarness(t)
	a := h.request("POST", "/v1/sandboxes", body()).want(202)
	s := decode[wire.Sandbox](a)
	if s.Status.State != wire.Running || s.Image != nil || s.ExpiresAt == nil || s.Metadata["project"] != "apollo" || len(s.Entrypoint) != 3 {
		t.Errorf("created %s", a.body)
	}
	if l := a.resp.Header.Get("Location"); l != "/v1/sandboxes/"+s.ID {
		t.Errorf("Location %q", l)
	}
	path := "/v1/sandboxes/" + s.ID
	if got := decode[wire.Sandbox](h.request("GET", path, nil).want(200)); got.Image == nil || got.Image.URI != "astrabox:host" {
		t.Errorf("described %+v", got)
	}
	h.request("GET", "/sandboxes/"+s.ID, nil).want(200) // without /v1 too

	e := decode[wire.Endpoint](h.request("GET", path+"/endpoints/44772", nil).want(200))
	if !strings.HasSuffix(e.Endpoint, ":44772") || strings.Contains(e.Endpoint, "://") || e.Headers["X-EXECD-ACCESS-TOKEN"] == "" {
		t.Errorf("endpoint %+v", e)
	}
	p := decode[wire.Endpoint](h.request("GET", path+"/endpoints/44772?use_server_proxy=true", nil).want(200))
	if want := strings.TrimPrefix(h.url, "http://") + path + "/proxy/44772"; p.Endpoint != want {
		t.Errorf("endpoint through the proxy %q, want %q", p.Endpoint, want)
	}

	h.request("POST", path+"/resume", nil).want(409, "INVALID_STATE")
	if a := h.request("POST", path+"/pause", nil).want(202); a.resp.ContentLength != 0 || a.resp.Header.Get("Content-Length") != "0" {
		t.Errorf("pause answered Content-Length %q", a.resp.Header.Get("Content-Length"))
	}
	if got := decode[wire.Sandbox](h.request("GET", path, nil).want(200)); got.Status.State != wire.Paused || got.Status.LastTransitionAt == nil {
		t.Errorf("paused: %+v", got.Status)
	}
	h.request("GET", path+"/endpoints/44772", nil).want(409, "INVALID_STATE")
	h.request("POST", path+"/pause", nil).want(409, "INVALID_STATE")
	h.request("POST", path+"/resume", nil).want(202)
	if got := decode[wire.Endpoint](h.request("GET", path+"/endpoints/44772", nil).want(200)); got.Headers["X-EXECD-ACCESS-TOKEN"] == e.Headers["X-EXECD-ACCESS-TOKEN"] {
		t.Error("the token outlived the pause")
	}

	if a := h.request("DELETE", path, nil).want(204); len(a.body) != 0 {
		t.Errorf("delete answered %q", a.body)
	}
	if a := h.request("GET", path, nil).want(404, "SANDBOX_NOT_FOUND"); !strings.Contains(string(a.body), "user_delete") {
		t.Errorf("what became of it isn't said: %s", a.body)
	}
	for _, again := range []*answer{
		h.request("DELETE", path, nil), h.request("POST", path+"/pause", nil), h.request("POST", path+"/resume", nil),
		h.request("GET", path+"/endpoints/44772", nil), h.request("PATCH", path+"/metadata", "{}"),
		h.request("POST", path+"/renew-expiration", wire.Renewal{ExpiresAt: time.Now().Add(time.Hour)}),
	} {
		again.want(404, "SANDBOX_NOT_FOUND")
	}
	if strings.Contains(h.logs.String(), e.Headers["X-EXECD-ACCESS-TOKEN"]) || strings.Contains(h.logs.String(), key) {
		t.Error("a secret is in the log")
	}
}

func TestEndedSandboxSaysSo(t *testing.T) {
	h := newHarness(t)
	s := h.create()
	h.machine.Exit(s.ID, runtime.Exit{Known: true, Code: 7})
	eventually(t, func() bool {
		got := decode[wire.Sandbox](h.request("GET", "/v1/sandboxes/"+s.ID, nil).want(200))
		return got.Status.State == wire.Failed && got.Status.Reason == "entrypoint_exited" && strings.Contains(got.Status.Message, "7")
	})
}

// eventually asks until it is true, for at most ten seconds.
func eventually(t *testing.T, f func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline:
			t.Fatal("it didn't become true")
		case <-tick.C:
		}
	}
}

func TestNoScheduledEnd(t *testing.T) {
	h := newHarness(t)
	for _, edit := range []func(map[string]any){set("timeout", nil), func(b map[string]any) { delete(b, "timeout") }} {
		a := h.request("POST", "/v1/sandboxes", body(edit)).want(202)
		if s := decode[wire.Sandbox](a); s.ExpiresAt != nil || strings.Contains(string(a.body), "expiresAt") {
			t.Errorf("answered %s", a.body)
		}
	}
}

func TestRenew(t *testing.T) {
	h := newHarness(t)
	s := h.create()
	path := "/v1/sandboxes/" + s.ID
	later := s.ExpiresAt.Add(time.Hour)
	for range 2 {
		got := decode[wire.Renewal](h.request("POST", path+"/renew-expiration", wire.Renewal{ExpiresAt: later}).want(200))
		if got.ExpiresAt.Before(later) {
			t.Errorf("renewed to %v, want %v", got.ExpiresAt, later)
		}
	}
	if got := decode[wire.Sandbox](h.request("GET", path, nil).want(200)); got.ExpiresAt.Before(later) {
		t.Errorf("the renewed end isn't visible: %v", got.ExpiresAt)
	}
	for name, b := range map[string]any{
		"earlier": wire.Renewal{ExpiresAt: later.Add(-time.Minute)}, "past": wire.Renewal{ExpiresAt: time.Now().Add(-time.Hour)},
		"too far": wire.Renewal{ExpiresAt: time.Now().Add(20 * 365 * 24 * time.Hour)},
		"missing": "{}", "not a time": `{"expiresAt":"tomorrow"}`, "empty": "", "not JSON": "{", "more": `{} {}`,
	} {
		t.Run(name, func(t *testing.T) { h.request("POST", path+"/renew-expiration", b).want(400, "INVALID_REQUEST") })
	}
}

func TestMetadata(t *testing.T) {
	h := newHarness(t)
	s := h.create(set("metadata", map[string]any{"a": "1", "b": "2", "example.com/c": ""}))
	path := "/v1/sandboxes/" + s.ID + "/metadata"
	got := decode[wire.Sandbox](h.request("PATCH", path, `{"a":null,"b":"3","new":"x","never":null}`).want(200))
	if fmt.Sprint(got.Metadata) != "map[b:3 example.com/c: new:x]" {
		t.Errorf("metadata %v", got.Metadata)
	}
	h.request("PATCH", path, `{}`).want(200)
	for _, bad := range []string{`{"opensandbox.io/x":"1"}`, `{"a":"not a label"}`, `{"a b":"1"}`, `{"a":1}`, `null`, `[]`, ``, `{"a":"` + strings.Repeat("x", 64) + `"}`} {
		h.request("PATCH", path, bad).want(400, "INVALID_REQUEST")
	}
	if got := decode[wire.Sandbox](h.request("GET", "/v1/sandboxes/"+s.ID, nil).want(200)); fmt.Sprint(got.Metadata) != "map[b:3 example.com/c: new:x]" {
		t.Errorf("a refused patch changed something: %v", got.Metadata)
	}
}

func TestList(t *testing.T) {
	h := newHarness(t)
	var ids []string
	for i := range 5 {
		ids = append(ids, h.create(set("metadata", map[string]any{"n": fmt.Sprint(i), "odd": fmt.Sprint(i % 2)})).ID)
	}
	h.request("POST", "/v1/sandboxes/"+ids[1]+"/pause", nil).want(202)
	h.request("DELETE", "/v1/sandboxes/"+ids[4], nil).want(204)
	for query, want := range map[string][]string{
		"":                                      {ids[0], ids[1], ids[2], ids[3]},
		"state=Running":                         {ids[0], ids[2], ids[3]},
		"state=Running&state=paused":            {ids[0], ids[1], ids[2], ids[3]},
		"state=Unheard":                         {},
		"metadata=" + url.QueryEscape("odd=1"):  {ids[1], ids[3]},
		"metadata=odd%3D1%26n%3D3":              {ids[3]},
		"metadata=odd%3D1&metadata=n%3D1":       {ids[1]},
		"metadata=odd%3D1%26n%3D0":              {},
		"metadata=odd%3D1&state=Running":        {ids[3]},
		"metadata=" + url.QueryEscape(`n='or"`): {},
		"pageSize=3":                            {ids[0], ids[1], ids[2]},
		"pageSize=3&page=2":                     {ids[3]},
		"page=9":                                {},
	} {
		t.Run(query, func(t *testing.T) {
			got := decode[wire.List](h.request("GET", "/v1/sandboxes?"+query, nil).want(200))
			have := []string{}
			for _, s := range got.Items {
				have = append(have, s.ID)
			}
			if fmt.Sprint(sorted(have)) != fmt.Sprint(sorted(want)) {
				t.Errorf("listed %v, want %v", have, want)
			}
			p := got.Pagination
			if p.HasNextPage != (p.Page*p.PageSize < p.TotalItems) || p.TotalPages != (p.TotalItems+p.PageSize-1)/p.PageSize {
				t.Errorf("pagination %+v", p)
			}
		})
	}
	for _, bad := range []string{"page=0", "page=x", "pageSize=0", "pageSize=-1", "pageSize=100000", "page=99999999999999999999", "metadata=a%3D1%26a%3D2", "x=%zz"} {
		h.request("GET", "/v1/sandboxes?"+bad, nil).want(400, "INVALID_REQUEST")
	}
}

func sorted(s []string) map[string]bool {
	m := map[string]bool{}
	for _, v := range s {
		m[v] = true
	}
	return m
}

func TestCreateRefusals(t *testing.T) {
	h := newHarness(t)
	limits := func(k, v string) func(map[string]any) { return set("resourceLimits", map[string]any{k: v}) }
	for name, tc := range map[string]struct {
		body   any
		status int
		code   string
	}{
		"not JSON":              {"{", 400, "INVALID_REQUEST"},
		"empty":                 {"", 400, "INVALID_REQUEST"},
		"two values":            {"{}{}", 400, "INVALID_REQUEST"},
		"too large":             {`{"env":{"a":"` + strings.Repeat("x", 1<<20) + `"}}`, 413, "BODY_TOO_LARGE"},
		"no image":              {body(set("image", nil)), 400, "INVALID_REQUEST"},
		"unknown image":         {body(set("image", map[string]any{"uri": "python:3.11"})), 400, "IMAGE_UNKNOWN"},
		"no entrypoint":         {body(set("entrypoint", []string{})), 400, "INVALID_REQUEST"},
		"empty program":         {body(set("entrypoint", []string{""})), 400, "INVALID_REQUEST"},
		"NUL in entrypoint":     {body(set("entrypoint", []string{"a\x00"})), 400, "INVALID_REQUEST"},
		"zero timeout":          {body(set("timeout", 0)), 400, "INVALID_REQUEST"},
		"negative timeout":      {body(set("timeout", -1)), 400, "INVALID_REQUEST"},
		"short timeout":         {body(set("timeout", 59)), 400, "INVALID_REQUEST"},
		"endless timeout":       {body(set("timeout", int64(1)<<62)), 400, "INVALID_REQUEST"},
		"zero cpu":              {body(limits("cpu", "0")), 400, "INVALID_REQUEST"},
		"negative cpu":          {body(limits("cpu", "-1")), 400, "INVALID_REQUEST"},
		"zero memory":           {body(limits("memory", "0")), 400, "INVALID_REQUEST"},
		"tiny memory":           {body(limits("memory", "1Ki")), 400, "INVALID_REQUEST"},
		"huge memory":           {body(limits("memory", "99999999999Pi")), 400, "INVALID_REQUEST"},
		"memory of words":       {body(limits("memory", "lots")), 400, "INVALID_REQUEST"},
		"gpu":                   {body(limits("gpu", "1")), 400, "INVALID_REQUEST"},
		"env name":              {body(set("env", map[string]any{"A=B": "c"})), 400, "INVALID_REQUEST"},
		"no grace":              {body(set("env", map[string]any{"EXECD_API_GRACE_SHUTDOWN": "-1s"})), 400, "INVALID_REQUEST"},
		"no limit":              {body(set("env", map[string]any{"GOMEMLIMIT": "1x"})), 400, "INVALID_REQUEST"},
		"long variable":         {body(set("env", map[string]any{"A": strings.Repeat("x", 128<<10-2)})), 400, "INVALID_REQUEST"},
		"long argument":         {body(set("entrypoint", []string{"echo", strings.Repeat("x", 128<<10)})), 400, "INVALID_REQUEST"},
		"few processes":         {body(limits("pids", "15")), 400, "INVALID_REQUEST"},
		"no capacity":           {body(set("env", map[string]any{"EXECD_OPERATION_CAPACITY": "x"})), 400, "INVALID_REQUEST"},
		"template":              {body(set("templateId", "t"), set("image", nil)), 501, "TEMPLATES_NOT_SUPPORTED"},
		"hooks":                 {body(set("lifecycle", map[string]any{"preStart": map[string]any{"command": []string{"x"}}})), 501, "LIFECYCLE_HOOKS_NOT_SUPPORTED"},
		"env NUL":               {body(set("env", map[string]any{"A": "\x00"})), 400, "INVALID_REQUEST"},
		"metadata value":        {body(set("metadata", map[string]any{"a": "b c"})), 400, "INVALID_REQUEST"},
		"reserved metadata":     {body(set("metadata", map[string]any{"opensandbox.io/a": "b"})), 400, "INVALID_REQUEST"},
		"other platform":        {body(set("platform", map[string]any{"os": "windows", "arch": "amd64"})), 400, "INVALID_REQUEST"},
		"snapshot":              {body(set("snapshotId", "s")), 501, "SNAPSHOTS_NOT_SUPPORTED"},
		"volumes":               {body(set("volumes", []any{map[string]any{"name": "a", "mountPath": "/a"}})), 501, "VOLUMES_NOT_SUPPORTED"},
		"network":               {body(set("networkPolicy", map[string]any{"defaultAction": "allow"})), 501, "NETWORK_POLICY_NOT_SUPPORTED"},
		"credentials":           {body(set("credentialProxy", map[string]any{"enabled": true})), 501, "CREDENTIAL_PROXY_NOT_SUPPORTED"},
		"registry credentials":  {body(set("image", map[string]any{"uri": "a", "auth": map[string]any{"username": "u", "password": "p"}})), 501, "REGISTRY_AUTH_NOT_SUPPORTED"},
		"pool":                  {body(set("extensions", map[string]any{"poolRef": "p"})), 501, "POOLS_NOT_SUPPORTED"},
		"renewal extension":     {body(set("extensions", map[string]any{"access.renew.extend.seconds": "299"})), 400, "INVALID_REQUEST"},
		"renew on access":       {body(set("extensions", map[string]any{"access.renew.extend.seconds": "300"})), 501, "RENEW_ON_ACCESS_NOT_SUPPORTED"},
		"other runtime":         {body(set("extensions", map[string]any{"astrabox.runtime": "gvisor"})), 501, "RUNTIME_NOT_SUPPORTED"},
		"metadata of all kinds": {body(set("metadata", map[string]any{"a": 1})), 400, "INVALID_REQUEST"},
	} {
		t.Run(name, func(t *testing.T) { h.request("POST", "/v1/sandboxes", tc.body).want(tc.status, tc.code) })
	}
	h.request("POST", "/v1/sandboxes", body(), func(r *http.Request) { r.Header.Set("Idempotency-Key", strings.Repeat("x", 300)) }).want(400)
	if n := len(h.machine.Boxes()); n != 0 {
		t.Errorf("refused creates made %d sandboxes", n)
	}
	// The policy that holds anyway may be asked for, and unknown extensions and fields are passed over.
	s := h.create(set("networkPolicy", map[string]any{"defaultAction": "deny"}), set("lifecycle", nil), set("env", map[string]any{"EXECD_API_GRACE_SHUTDOWN": "5s", "GOMEMLIMIT": "64MiB", "A": strings.Repeat("x", 128<<10-3)}), set("extensions", map[string]any{"x.y": "z"}), set("fieldOfTheFuture", 1))
	if s.Extensions["x.y"] != "z" {
		t.Errorf("extensions %v", s.Extensions)
	}
}

func TestLimitsReachTheRuntime(t *testing.T) {
	h := newHarness(t)
	s := h.create(set("resourceLimits", map[string]any{"cpu": "1500m", "memory": "1Gi", "pids": "77", "disk": "2G"}))
	got := h.machine.Spec(s.ID)
	if got.CPUs != 1.5 || got.MemoryBytes != 1<<30 || got.PIDs != 77 || got.DiskBytes != 2e9 {
		t.Errorf("spec %+v", got)
	}
	s = h.create(set("resourceLimits", map[string]any{}))
	got = h.machine.Spec(s.ID)
	if got.CPUs <= 0 || got.MemoryBytes != 4<<30 || got.PIDs != 4096 || got.DiskBytes != 10<<30 {
		t.Errorf("default spec %+v", got)
	}
}

func TestIdempotencyKey(t *testing.T) {
	h := newHarness(t)
	key := func(r *http.Request) { r.Header.Set("Idempotency-Key", "one") }
	ids := make(chan string, 16)
	var wg sync.WaitGroup
	for range cap(ids) {
		wg.Go(func() { ids <- decode[wire.Sandbox](h.request("POST", "/v1/sandboxes", body(), key).want(202)).ID })
	}
	wg.Wait()
	first := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != first {
			t.Fatalf("one key gave %s and %s", first, id)
		}
	}
	h.request("POST", "/v1/sandboxes", body(set("timeout", 7200)), key).want(409, "IDEMPOTENCY_KEY_REUSED")
	h.request("DELETE", "/v1/sandboxes/"+first, nil).want(204)
	h.request("POST", "/v1/sandboxes", body(), key).want(409, "IDEMPOTENCY_KEY_SPENT")
}

func TestDoors(t *testing.T) {
	h := newHarness(t)
	s := h.create()
	noKey := func(r *http.Request) { r.Header.Del(wire.HeaderKey) }
	wrongKey := func(r *http.Request) { r.Header.Set(wire.HeaderKey, key+"x") }
	for _, path := range []string{"/v1/sandboxes", "/v1/sandboxes/" + s.ID, "/v1/sandboxes/none", "/v1/version", "/v1/nonsense", "/", "/v1/sandboxes/" + s.ID + "/endpoints/44772", "/v1/snapshots"} {
		h.request("GET", path, nil, noKey).want(401, "UNAUTHORIZED")
		h.request("GET", path, nil, wrongKey).want(401, "UNAUTHORIZED")
	}
	h.request("DELETE", "/v1/sandboxes/"+s.ID, nil, wrongKey).want(401)
	for _, path := range []string{"/health", "/v1/health"} {
		h.request("GET", path, nil, noKey).want(200)
	}
	h.request("GET", "/v1/version", nil).want(200)

	host := func(v string) func(*http.Request) { return func(r *http.Request) { r.Host = v } }
	for v, status := range map[string]int{"evil.example": 403, "evil.example:8080": 403, "10.0.0.1:80": 403, "127.0.0.1.evil.example": 403, "": 200, "localhost:1": 200, "[::1]:9": 200} {
		if a := h.request("GET", "/v1/sandboxes", nil, host(v)); a.resp.StatusCode != status {
			t.Errorf("Host %q: %d, want %d", v, a.resp.StatusCode, status)
		}
	}
	h.request("GET", "/v1/sandboxes", nil, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }).want(403, "ORIGIN_NOT_ALLOWED")
	h.request("GET", "/v1/sandboxes", nil, func(r *http.Request) { r.Header.Set("Origin", h.url) }).want(200)
}

func TestPaths(t *testing.T) {
	h := newHarness(t)
	s := h.create()
	for path, want := range map[string]struct {
		status int
		code   string
	}{
		"/v1/sandboxes/none":                                               {404, "SANDBOX_NOT_FOUND"},
		"/v1/sandboxes/..%2f..%2fetc":                                      {404, "SANDBOX_NOT_FOUND"},
		"/v1/sandboxes/a%00b":                                              {404, "SANDBOX_NOT_FOUND"},
		"/v1/nonsense":                                                     {404, "NOT_FOUND"},
		"/v1/sandboxes/" + s.ID + "/pause":                                 {405, "METHOD_NOT_ALLOWED"},
		"/v1/sandboxes/" + s.ID + "/endpoints/0":                           {400, "INVALID_REQUEST"},
		"/v1/sandboxes/" + s.ID + "/endpoints/65536":                       {400, "INVALID_REQUEST"},
		"/v1/sandboxes/" + s.ID + "/endpoints/x":                           {400, "INVALID_REQUEST"},
		"/v1/sandboxes/none/endpoints/44772":                               {404, "SANDBOX_NOT_FOUND"},
		"/v1/sandboxes/" + s.ID + "/endpoints/44772?expires=1999999999":    {501, "SIGNED_ENDPOINTS_NOT_SUPPORTED"},
		"/v1/sandboxes/" + s.ID + "/endpoints/44772?use_server_proxy=what": {400, "INVALID_REQUEST"},
		"/v1/sandboxes/" + s.ID + "/endpoints/44772?use_server_proxy=true&expires=1999999999": {400, "INVALID_REQUEST"},
		"/v1/snapshots":   {501, "NOT_IMPLEMENTED"},
		"/v1/templates":   {501, "NOT_IMPLEMENTED"},
		"/v1/templates/x": {501, "NOT_IMPLEMENTED"},
		"/v1/sandboxes/" + s.ID + "/networkpolicy":    {501, "NOT_IMPLEMENTED"},
		"/v1/sandboxes/" + s.ID + "/diagnostics/logs": {501, "NOT_IMPLEMENTED"},
	} {
		t.Run(path, func(t *testing.T) { h.request("GET", path, nil).want(want.status, want.code) })
	}
	if a := h.request("PUT", "/v1/sandboxes/"+s.ID, nil).want(405); a.resp.Header.Get("Allow") != "GET, DELETE" {
		t.Errorf("Allow %q", a.resp.Header.Get("Allow"))
	}
	ask := func(id string) string {
		return h.request("GET", "/v1/sandboxes/none", nil, func(r *http.Request) { r.Header.Set("X-Request-ID", id) }).want(404).resp.Header.Get("X-Request-ID")
	}
	if got := ask("my-id-1"); got != "my-id-1" {
		t.Errorf("X-Request-ID %q", got)
	}
	if got := ask(strings.Repeat("x", 1000)); len(got) != 36 {
		t.Errorf("X-Request-ID %q", got)
	}
}

func TestMetricsEvent(t *testing.T) {
	h := newHarness(t)
	h.request("POST", "/v1/metrics/events", `{"eventType":"sandbox.create","createDurationMs":18,"success":true}`).want(204)
	for _, bad := range []string{`{}`, `{"eventType":"other","createDurationMs":18,"success":true}`, `{"eventType":"sandbox.create","createDurationMs":-1,"success":true}`, `[`} {
		h.request("POST", "/v1/metrics/events", bad).want(400, "INVALID_REQUEST")
	}
}
