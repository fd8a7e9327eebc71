package httpapi

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/astrabox/astrabox/internal/fault"
)

// guard decides who may talk to the server at all. Without a login, a server
// on loopback would be a shell for every web page that the user visits, so
// three things are checked on every route, WebSockets included:
//
//   - Host must be a loopback name or one that was configured. A page of
//     evil.example whose name was rebound to 127.0.0.1 sends its own Host.
//   - Origin, where a browser sends one, must be this server's own: scheme,
//     name and port. Another port of localhost is another origin.
//   - Sec-Fetch-Site, which browsers send without an Origin too, must not say
//     that another site caused the request. Following a link to the console
//     is the exception.
//
// Programs send neither Origin nor Sec-Fetch-Site and pass.
type guard struct {
	hosts []string // lower case, without port
}

func newGuard(hosts []string) *guard {
	g := &guard{}
	for _, h := range hosts {
		g.hosts = append(g.hosts, strings.ToLower(strings.Trim(h, "[]")))
	}
	return g
}

func (g *guard) check(r *http.Request) *fault.Error {
	if !g.allowsHost(r.Host) {
		return fault.New(fault.HostRefused, "")
	}
	if origins := r.Header.Values("Origin"); len(origins) > 0 {
		if len(origins) > 1 || !sameOrigin(origins[0], r) {
			return fault.New(fault.OriginRefused, "")
		}
		return nil
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return nil
	}
	if r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
		r.Header.Get("Sec-Fetch-Dest") == "document" && !isAPI(r.URL.Path) {
		return nil
	}
	return fault.New(fault.OriginRefused, "")
}

func (g *guard) allowsHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	} else {
		name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if name == "localhost" || slices.Contains(g.hosts, name) {
		return true
	}
	addr, err := netip.ParseAddr(name)
	return err == nil && addr.Zone() == "" && addr.Unmap().IsLoopback()
}

func sameOrigin(origin string, r *http.Request) bool {
	u, err := url.Parse(origin)
	if err != nil || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.Host == "" {
		return false // "null" has no host
	}
	switch u.Scheme {
	case "http":
	case "https":
		// A proxy in front may speak TLS; its name and port must match then.
	default:
		return false
	}
	return strings.EqualFold(u.Host, r.Host)
}

func isAPI(path string) bool { return path == "/api" || strings.HasPrefix(path, "/api/") }

// splitList splits a header's comma-separated list.
func splitList(s string) []string {
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}
