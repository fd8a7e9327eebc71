package proxy

import (
	"net/url"
	"strings"
	"testing"
)

// Whatever the path, a target is a port and a path that stands for itself.
func FuzzParse(f *testing.F) {
	for _, path := range []string{"/proxy/80/a%2Fb", "/proxy/", "/proxy/0/", "/proxy/99999/x", "/proxy/80", "/proxy/80//..//%zz", "/proxy/80@x/"} {
		f.Add(path)
	}
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(u.EscapedPath(), Prefix) {
			return
		}
		got, ok := parse(u)
		if !ok {
			return
		}
		out := url.URL{Scheme: "http", Host: "127.0.0.1", Path: got.plain, RawPath: got.path}
		if got.port < 1 || got.port > 65535 || !strings.HasPrefix(got.path, "/") || out.EscapedPath() != got.path {
			t.Errorf("%q: %+v, sent as %q", path, got, out.EscapedPath())
		}
	})
}
