package opensandbox_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/provider/opensandbox"
	"github.com/astrabox/astrabox/sandbox"
)

const (
	baseURL    = "ASTRABOX_SANDBOX_OPENAPI_BASE_URL"
	listenFile = "ASTRABOX_SANDBOX_OPENAPI_LISTEN_FILE"
	apiKey     = "ASTRABOX_SANDBOX_OPENAPI_KEY"
	keyFile    = "ASTRABOX_SANDBOX_OPENAPI_KEY_FILE"
	timeout    = "ASTRABOX_SANDBOX_OPENAPI_TIMEOUT"
	ready      = "ASTRABOX_SANDBOX_READY_TIMEOUT"
	scheme     = "ASTRABOX_SANDBOX_ENDPOINT_SCHEME"
	proxy      = "ASTRABOX_SANDBOX_SERVER_PROXY"
)

// What is wrong with a setting is refused with its name, its value unless that
// may be a secret, and what to write instead.
func TestBadSettings(t *testing.T) {
	for _, tt := range []struct{ setting, value, says string }{
		{baseURL, "", "is not set, nor is " + listenFile + ": set one of them, the first to a URL such as http://127.0.0.1:8080/v1"},
		{baseURL, " ", "is blank: unset it, or write a URL"},
		{baseURL, "localhost:8080/v1", "must begin with http:// or https://: write http://localhost:8080/v1"},
		{baseURL, "127.0.0.1:8080", "write http://127.0.0.1:8080"},
		{baseURL, "host/v1", "write http://host/v1"},
		{baseURL, "//host/v1", "must begin with http:// or https://, as in http://127.0.0.1:8080/v1"},
		{baseURL, "ftp://host/v1", `must begin with http:// or https://, as in http://127.0.0.1:8080/v1, not "ftp://host/v1"`},
		{baseURL, "http://", "names no host: write a URL such as http://127.0.0.1:8080/v1"},
		{baseURL, "http://:8080/v1", "names no host"},
		{baseURL, "://hunter2", "is not a URL: write one such as http://127.0.0.1:8080/v1"},
		{baseURL, " http://host/v1", "has a space"},
		{baseURL, "http://host/v1\n", "has a space"},
		{baseURL, "http://host /v1", "has a space"},
		{baseURL, "http://host:port/v1", "is not a URL"},
		{baseURL, "http://host:99999/v1", `must have a port from 1 to 65535, or none, as in http://127.0.0.1:8080/v1, not "http://host:99999/v1"`},
		{baseURL, "http://host:/v1", "must have a port"},
		{baseURL, "http://user:hunter2@host:80/v1", "must have no user, query or fragment: write http://host:80/v1, and an API key into " + apiKey},
		{baseURL, "https://hunter2@host/v1", "write https://host/v1"},
		{baseURL, "http://host/v1?key=hunter2", "write http://host/v1"},
		{baseURL, "http://host/v1?", "write http://host/v1"},
		{baseURL, "http://host/v1#hunter2", "write http://host/v1"},
		{baseURL, "hunter2@host/v1", "must begin with http:// or https://"},
		{apiKey, "hunter2\n", "begins or ends with a space or a line break"},
		{apiKey, " hunter2", "begins or ends with a space"},
		{apiKey, "hunter2\nhunter2", "has a line break or another control character"},
		{timeout, "soon", `must be a duration above zero with its unit, such as 15s or 2m, not "soon"`},
		{timeout, "15", `such as 15s or 2m, not "15"`},
		{timeout, "-1s", `not "-1s"`},
		{timeout, " 15s", `not " 15s"`},
		{timeout, "999999999h", `not "999999999h"`},
		{ready, "0s", `must be a duration above zero with its unit, such as 15s or 2m, not "0s"`},
		{ready, strings.Repeat("9", 500), "…"},
		{scheme, "ws", `must be http or https, not "ws"; unset it for that of the base URL`},
		{scheme, "HTTP", `not "HTTP"`},
		{proxy, "maybe", `must be true or false, not "maybe"`},
		{proxy, "yes", `not "yes"`},
	} {
		m := map[string]string{baseURL: "http://host/v1", tt.setting: tt.value}
		_, err := opensandbox.New(settings(m))
		e := wantCode(t, err, sandbox.CodeInvalid)
		if strings.Contains(e.Error(), "hunter2") || !strings.Contains(e.Error(), tt.setting) || !strings.Contains(e.Error(), tt.says) || len(e.Error()) > 400 {
			t.Errorf("%s=%q: %v", tt.setting, tt.value, err)
		}
	}
	// All that is wrong is told at once.
	_, err := opensandbox.New(settings(map[string]string{baseURL: "host", timeout: "x", ready: "x", scheme: "x", proxy: "x", apiKey: "\n"}))
	for _, name := range []string{baseURL, timeout, ready, scheme, proxy, apiKey} {
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s isn't in %v", name, err)
		}
	}
}

func TestGoodSettings(t *testing.T) {
	for _, m := range []map[string]string{
		{baseURL: "http://host/", apiKey: "k"},
		{baseURL: "https://host"},
		{baseURL: "http://[::1]:8080/v1"},
		{baseURL: "https://gateway.example/team_a/open-sandbox/v1/"},
		{listenFile: "/nonexistent/yet", keyFile: "/nonexistent/yet"},
		{baseURL: "http://host/v1", apiKey: "a key with spaces", timeout: "1m30s", ready: "1s", scheme: "https", proxy: "TRUE"},
	} {
		if _, err := opensandbox.New(settings(m)); err != nil {
			t.Errorf("%v: %v", m, err)
		}
	}
}

// What is wrong with a file, or at the address, shows when it is used, and
// names the setting, too.
func TestSettingsInUse(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return p
	}
	s := newScript(t)
	s.on("GET /sandboxes/a", func(w http.ResponseWriter, _ *http.Request) { reply(404, "<html>")(w, nil) })
	for name, tt := range map[string]struct {
		m    map[string]string
		says []string
	}{
		"no file":      {map[string]string{listenFile: dir + "/none"}, []string{listenFile, "no such file"}},
		"a directory":  {map[string]string{listenFile: dir}, []string{listenFile, "is a directory"}},
		"no JSON":      {map[string]string{listenFile: file("text", "hunter2")}, []string{listenFile, "isn't JSON with a url"}},
		"no URL":       {map[string]string{listenFile: file("empty", "{}")}, []string{listenFile, "the url in", "is blank"}},
		"a bad URL":    {map[string]string{listenFile: file("bad", `{"url": "localhost:8080/v1"}`)}, []string{listenFile, "write http://localhost:8080/v1"}},
		"no key file":  {map[string]string{baseURL: s.URL, keyFile: dir + "/none"}, []string{keyFile, "no such file"}},
		"no key in it": {map[string]string{baseURL: s.URL, keyFile: file("key", "hunter2\nhunter2\n")}, []string{keyFile, "control character"}},
		"a wrong path": {map[string]string{baseURL: s.URL, apiKey: scriptKey}, []string{baseURL, "mostly /v1, as in http://127.0.0.1:8080/v1"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := opensandbox.New(settings(tt.m))
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			_, err = p.Connect(quick(t), "a")
			e := wantCode(t, err, sandbox.CodeUnavailable)
			for _, part := range tt.says {
				if !strings.Contains(e.Error(), part) || strings.Contains(e.Error(), "hunter2") {
					t.Errorf("%q isn't in %v", part, err)
				}
			}
		})
	}
}
