package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// Whatever a body has in the place of what belongs there is refused with a
// reason, and makes or changes nothing.
func TestWrongBodies(t *testing.T) {
	h := newHarness(t)
	s := h.create()
	path := "/v1/sandboxes/" + s.ID
	before := h.request("GET", path, nil).want(200).body

	create := map[string]string{}
	for _, field := range []string{"image", "snapshotId", "templateId", "platform", "timeout", "resourceLimits", "resourceRequests", "env", "metadata", "entrypoint", "networkPolicy", "credentialProxy", "secureAccess", "volumes", "extensions", "lifecycle"} {
		for _, wrong := range []any{1.5, -1, "x", true, []any{1}, map[string]any{"uri": 1, "os": 1, "a": []any{}, "enabled": 1, "defaultAction": 1}} {
			_, object := wrong.(map[string]any)
			if field == "snapshotId" && wrong == "x" || field == "templateId" && wrong == "x" || field == "secureAccess" && wrong == true || field == "lifecycle" && object {
				continue // right, or refused for another reason
			}
			b, err := json.Marshal(body(set(field, wrong)))
			if err != nil {
				t.Fatal(err)
			}
			create[fmt.Sprintf("%s is %v", field, wrong)] = string(b)
		}
	}
	valid, err := json.Marshal(body())
	if err != nil {
		t.Fatal(err)
	}
	edit := func(old, replacement string) string {
		b := strings.Replace(string(valid), old, replacement, 1)
		if b == string(valid) {
			t.Fatalf("%s isn't in %s", old, valid)
		}
		return b
	}
	for name, b := range map[string]string{
		"null": "null", "a list": "[]", "a string": `"x"`, "a number": "1", "spaces": " \n", "half": string(valid[:len(valid)-1]), "NUL": string(valid) + "\x00",
		"not UTF-8": edit("apollo", "apoll\xff"), "UTF-16": "\xff\xfe{\x00}\x00", "a mark before": "\xef\xbb\xbf" + string(valid),
		"deep":                      strings.Repeat("[", 100_000),
		"deep inside":               edit(`"apollo"`, strings.Repeat(`{"a":`, 20_000)+"1"+strings.Repeat("}", 20_000)),
		"a field twice":             edit(`"timeout":3600`, `"timeout":3600,"timeout":7200`),
		"a key twice":               edit(`"project":"apollo"`, `"project":"apollo","project":"zeus"`),
		"escaped, twice":            edit(`"project":"apollo"`, `"project":"apollo","\u0070roject":"zeus"`),
		"twice in what isn't known": edit(`"timeout":3600`, `"timeout":3600,"x":[1,{"a":{},"a":[]}]`),
		"half a pair":               edit(`"timeout":3600`, `"timeout":3600,"env":{"A":"\ud83d"}`),
		"huge timeout":              edit("3600", "1e400"),
		"long timeout":              edit("3600", strings.Repeat("9", 1000)),
		"hexadecimal":               edit("3600", "0x10"),
		"NaN":                       edit("3600", "NaN"),
		"a comment":                 edit("3600", "3600 /* s */"),
		"single quotes":             `{'image':{}}`,
		"a form":                    "image=astrabox:host&entrypoint=tail",
		"65 keys":                   edit(`"project":"apollo"`, `"project":"apollo",`+many(64, `"k%d":""`)),
		"4097 variables":            edit(`"timeout":3600`, `"timeout":3600,"env":{`+many(4097, `"K%d":""`)+"}"),
		"1025 arguments":            edit(`"tail"`, many(1023, `"%d"`)+`,"tail"`),
		"65 extensions":             edit(`"timeout":3600`, `"timeout":3600,"extensions":{`+many(65, `"k%d":""`)+"}"),
		"a key of 1 MB":             edit(`"project"`, `"`+strings.Repeat("p", 1000_000)+`"`),
		"a line as key":             edit(`"project"`, `"pro\nject"`),
		"a line as value":           edit(`"apollo"`, `"apo\nllo"`),
		"no suffix so named":        edit(`"512Mi"`, `"512Xi"`),
		"signed":                    edit(`"512Mi"`, `"+512Mi"`),
		"an exponent":               edit(`"512Mi"`, `"5e8"`),
		"not a number":              edit(`"512Mi"`, `"NaN"`),
		"infinite":                  edit(`"500m"`, `"Inf"`),
		"full width":                edit(`"500m"`, `"５00m"`),
		"empty quantity":            edit(`"500m"`, `""`),
	} {
		create[name] = b
	}
	for name, b := range create {
		h.request("POST", "/v1/sandboxes", b).want(400, "INVALID_REQUEST").says(t, name)
	}
	for _, b := range []string{"null", "[]", `""`, "1", "{", `{"a":1}`, `{"a":{}}`, `{"a":true}`, `{"a":"1","a":"2"}`, `{"":"x"}`, "{\"a\":\"\xff\"}", "{" + many(65, `"k%d":"v"`) + "}"} {
		h.request("PATCH", path+"/metadata", b).want(400, "INVALID_REQUEST").says(t, b)
	}
	for _, at := range []string{"null", "{}", `{"expiresAt":null}`, `{"expiresAt":1}`, `{"expiresAt":""}`, `{"expiresAt":"0001-01-01T00:00:00Z"}`, `{"expiresAt":"9999-12-31T23:59:59Z"}`, `{"expiresAt":"2999-13-01T00:00:00Z"}`, `{"expiresAt":["2999-01-01T00:00:00Z"]}`} {
		h.request("POST", path+"/renew-expiration", at).want(400, "INVALID_REQUEST").says(t, at)
	}
	for _, p := range []string{"/v1/sandboxes", path + "/renew-expiration", "/v1/metrics/events"} {
		h.request("POST", p, `{"x":"`+strings.Repeat("x", 1<<20)+`"}`).want(413, "BODY_TOO_LARGE")
	}
	h.request("PATCH", path+"/metadata", `{"x":"`+strings.Repeat("x", 1<<20)+`"}`).want(413, "BODY_TOO_LARGE")

	if n := len(h.machine.Boxes()); n != 1 {
		t.Errorf("%d sandboxes, want the first", n)
	}
	if diff := cmp.Diff(string(before), string(h.request("GET", path, nil).want(200).body)); diff != "" {
		t.Errorf("the sandbox changed (-before +after):\n%s", diff)
	}
	if strings.Contains(h.logs.String(), `"level":"ERROR"`) {
		t.Error("the log has errors, which are the service's own")
	}
}

// many gives n of what has its number in it, with commas between.
func many(n int, format string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// says names the input that was answered wrongly.
func (a *answer) says(t *testing.T, input string) {
	t.Helper()
	if a.resp.StatusCode < 400 || a.resp.StatusCode >= 500 || a.resp.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%.80s: %d %s %s", input, a.resp.StatusCode, a.resp.Header.Get("Content-Type"), a.body)
	}
}

// Paths and methods that nobody documents, sent as they are.
func TestStrangeRequests(t *testing.T) {
	h := newHarness(t)
	s := h.create()
	id := "/v1/sandboxes/" + s.ID
	for request, want := range map[string]int{
		"GET /v1/sandboxes/": 200, "GET /sandboxes": 200, "GET " + id + "/": 200,
		"GET /v1/sandboxes/" + strings.Replace(s.ID, s.ID[:1], fmt.Sprintf("%%%02x", s.ID[0]), 1): 200, // the same path
		"GET //v1/sandboxes": 404, "GET /v1//sandboxes": 404, "GET /v1/v1/sandboxes": 404, "GET /v1/./sandboxes": 404, "GET /v1/x/../sandboxes": 404,
		"GET /v1/Sandboxes": 404, "GET /v1%2fsandboxes": 404, "GET /v1/sandboxes%2f" + s.ID: 404, "GET " + id + "%2fpause": 404, "POST " + id + "%2fpause": 405,
		"DELETE /v1/sandboxes/%2e%2e": 404, "DELETE /v1/sandboxes/..%2f" + s.ID: 404, "DELETE /v1/sandboxes/%00": 404, "DELETE /v1/sandboxes/%ff": 404,
		"DELETE /v1/sandboxes/" + strings.Repeat("a", 100_000): 404, "DELETE /v1/sandboxes/%20" + s.ID: 404, "DELETE " + id + "%20": 404, "DELETE /v1/sandboxes/'or'1'='1": 404,
		"DELETE /v1/sandboxes": 405, "PUT /v1/sandboxes": 405, "PATCH /v1/sandboxes": 405, "OPTIONS /v1/sandboxes": 405, "TRACE /v1/sandboxes": 405, "HEAD /v1/sandboxes": 405,
		"PROPFIND " + id: 405, "get " + id: 405, "POST " + id: 405, "GET " + id + "/pause": 405, "DELETE " + id + "/metadata": 405, "POST /v1/snapshots": 405, "PUT /v1/templates/x": 405,
		"GET " + id + "/endpoints/0": 400, "GET " + id + "/endpoints/-1": 400, "GET " + id + "/endpoints/080x": 400, "GET " + id + "/endpoints/99999999999999999999": 400, "GET " + id + "/endpoints/%2e": 400, "GET " + id + "/endpoints/": 404,
		"GET " + id + "/endpoints/80?use_server_proxy=": 400, "GET " + id + "/endpoints/80?%zz": 400,
		"GET /v1/sandboxes?page=-1": 400, "GET /v1/sandboxes?page=1.5": 400, "GET /v1/sandboxes?page=": 400, "GET /v1/sandboxes?page=0x1": 400, "GET /v1/sandboxes?pageSize=1001": 400,
		"GET /v1/sandboxes?metadata=%25zz": 400, "GET /v1/sandboxes?" + strings.Repeat("state=a&", 33): 400, "GET /v1/sandboxes?metadata=" + strings.Repeat("k%26", 10): 200,
		"GET /v1/sandboxes?page=2147483647&pageSize=1000": 200, "GET /v1/sandboxes?state=%00": 200, "GET /v1/sandboxes?metadata=a%3D%00": 200, "GET /v1/sandboxes?limit=-1": 200,
		"GET " + id + "/proxy/0/": 400, "GET " + id + "/proxy/65536/": 400, "GET " + id + "/proxy/x/": 400, "GET " + id + "/proxy/": 400, "GET " + id + "/proxy/80%2f": 400, "GET /v1/sandboxes//proxy/80/": 404, "GET /v1/sandboxes/none/proxy/80/": 404,
	} {
		method, target, _ := strings.Cut(request, " ")
		resp, b := h.raw(method + " " + target + " HTTP/1.1\r\nHost: 127.0.0.1\r\n" + wire.HeaderKey + ": " + key + "\r\nConnection: close\r\n\r\n")
		var e wire.Error
		if resp.StatusCode != want {
			t.Errorf("%.100s: %d %s, want %d", request, resp.StatusCode, b, want)
		} else if err := json.Unmarshal(b, &e); want >= 400 && method != "HEAD" && (err != nil || e.Code == "" || e.Message == "") {
			t.Errorf("%.100s: %s, %v", request, b, err)
		}
		if want == 405 && resp.Header.Get("Allow") == "" {
			t.Errorf("%.100s: it isn't said what is allowed", request)
		}
	}
	h.request("GET", id, nil).want(200)
	if strings.Contains(h.logs.String(), `"level":"ERROR"`) {
		t.Error("the log has errors, which are the service's own")
	}
}

// raw sends bytes as they are.
func (h *harness) raw(request string) (*http.Response, []byte) {
	h.t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		h.t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		h.t.Fatal(err)
	}
	if _, err := io.WriteString(c, request); err != nil {
		h.t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		h.t.Fatalf("%.100q: %v", request, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatalf("%.100q: %v", request, err)
	}
	return resp, b
}
