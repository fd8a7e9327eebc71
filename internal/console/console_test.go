package console

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
)

func TestServe(t *testing.T) {
	built := fstest.MapFS{
		"index.html":         {Data: []byte("<title>console</title>")},
		"favicon.svg":        {Data: []byte("<svg/>")},
		"assets/main-abc.js": {Data: []byte("let x")},
	}
	bare := fstest.MapFS{"index.html": {Data: []byte("how to build")}}
	tests := []struct {
		name, method, path string
		bare               bool
		status             int
		body, header, want string
	}{
		{"the page", "GET", "/", false, 200, "console", "Content-Security-Policy", "script-src 'self'"},
		{"a route of the page", "GET", "/c/conv_1", false, 200, "console", "Cache-Control", "no-cache"},
		{"HEAD", "HEAD", "/", false, 200, "", "Content-Type", "text/html"},
		{"an asset", "GET", "/assets/main-abc.js", false, 200, "let x", "Cache-Control", "immutable"},
		{"a script's type", "GET", "/assets/main-abc.js", false, 200, "let x", "Content-Type", "text/javascript"},
		{"a missing asset is not the page", "GET", "/assets/main-old.js", false, 404, "", "", ""},
		{"another file", "GET", "/favicon.svg", false, 200, "<svg/>", "Content-Type", "image/svg+xml"},
		{"dots lead nowhere", "GET", "/../../etc/passwd", false, 200, "console", "", ""},
		{"a folder is the page", "GET", "/assets", false, 200, "console", "", ""},
		{"other methods", "POST", "/", false, 405, "", "Allow", "GET, HEAD"},
		{"not built", "GET", "/c/x", true, 200, "how to build", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHandler(built, true)
			if tt.bare {
				h = newHandler(bare, false)
			}
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest(tt.method, tt.path, nil))
			if rec.Code != tt.status || !strings.Contains(rec.Body.String(), tt.body) {
				t.Errorf("%d %q", rec.Code, rec.Body)
			}
			if tt.header != "" && !strings.Contains(rec.Header().Get(tt.header), tt.want) {
				t.Errorf("%s: %q", tt.header, rec.Header().Get(tt.header))
			}
		})
	}
}

func TestRevalidation(t *testing.T) {
	h := newHandler(fstest.MapFS{"index.html": {Data: []byte("x")}}, true)
	first := httptest.NewRecorder()
	h.ServeHTTP(first, httptest.NewRequest("GET", "/", nil))
	again := httptest.NewRequest("GET", "/", nil)
	again.Header.Set("If-None-Match", first.Header().Get("ETag"))
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, again)
	if rec.Code != http.StatusNotModified {
		t.Errorf("status %d", rec.Code)
	}
}

// A clean clone serves the committed page, a built one the console.
func TestEmbedded(t *testing.T) {
	rec := httptest.NewRecorder()
	Handler().ServeHTTP(rec, httptest.NewRequest("GET", "/", nil))
	if rec.Code != 200 || !strings.Contains(rec.Body.String(), "AstraBox") {
		t.Errorf("%d %q", rec.Code, rec.Body)
	}
}
