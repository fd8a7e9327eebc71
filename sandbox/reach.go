package sandbox

import (
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Target is where a request goes, as the boundary sees it.
type Target struct {
	Scheme string // http or https
	Host   string // a name or an IP, without a port
	Port   int    // 0: 443
	Method string
	Path   string // as sent, without the query
}

// ErrOutOfReach: a credential may not be put into that request.
var ErrOutOfReach = errors.New("sandbox: the credential may not go there")

// Check says whether a credential may be put into a request to t: nil, or an
// error that says why not and wraps ErrOutOfReach. A request that carries the
// placeholder then has to be refused, not forwarded.
//
// Names compare without regard to case, and a wildcard never covers its apex. A
// path with a dot segment or an escaped separator matches no pattern, because
// the server may read it otherwise.
func (r Reach) Check(t Target) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrOutOfReach, fmt.Sprintf(format, args...))
	}
	switch strings.ToLower(t.Scheme) {
	case "https":
	case "http":
		if !r.InsecureHTTP {
			return refuse("plain HTTP isn't allowed for it")
		}
	default:
		return refuse("%q is not a scheme of HTTP", shorten(t.Scheme, 20))
	}
	port := t.Port
	if port == 0 {
		port = 443
	}
	if !r.AnyHost && !slices.ContainsFunc(r.Hosts, func(text string) bool {
		h, p, err := parseReachHost(text)
		return err == nil && (p == 0 || p == port) && h.Matches(t.Host)
	}) {
		return refuse("%q is not one of its hosts", shorten(t.Host, 80))
	}
	if r.Methods != nil && !slices.ContainsFunc(r.Methods, func(m string) bool { return strings.EqualFold(m, t.Method) }) {
		return refuse("the method isn't one of its own")
	}
	if r.Paths != nil && !slices.ContainsFunc(r.Paths, func(p string) bool { return matchPath(p, t.Path) }) {
		return refuse("the path isn't one of its own")
	}
	return nil
}

// parseReachHost reads a host or wildcard with or without a port (0: any). An
// IPv6 address with a port has brackets.
func parseReachHost(text string) (h Destination, port int, err error) {
	name := text
	if strings.HasPrefix(text, "[") || strings.Count(text, ":") == 1 {
		var p string
		if name, p, err = net.SplitHostPort(text); err != nil {
			return Destination{}, 0, fmt.Errorf("%q is no host with a port", shorten(text, 80))
		}
		if port, err = strconv.Atoi(p); err != nil || port < 1 || port > 65535 || p[0] == '+' {
			return Destination{}, 0, fmt.Errorf("%q has no port from 1 to 65535", shorten(text, 80))
		}
	}
	if h, err = ParseDestination(name); err != nil {
		return Destination{}, 0, err
	}
	if h.prefix.IsValid() && !h.prefix.IsSingleIP() {
		return Destination{}, 0, fmt.Errorf("%q is a range; a credential is bound to hosts", shorten(text, 80))
	}
	return h, port, nil
}

func checkPathPattern(p string) error {
	if !strings.HasPrefix(p, "/") {
		return fmt.Errorf("%q is not absolute", shorten(p, 80))
	}
	if unclear(p) {
		return fmt.Errorf("%q has a dot segment or an escaped separator", shorten(p, 80))
	}
	if _, err := path.Match(strings.TrimSuffix(p, "/**"), "/"); err != nil {
		return fmt.Errorf("%q is no pattern", shorten(p, 80))
	}
	return nil
}

func matchPath(pattern, p string) bool {
	if !strings.HasPrefix(p, "/") || unclear(p) {
		return false
	}
	if head, below := strings.CutSuffix(pattern, "/**"); below {
		if head == "" {
			return true
		}
		// As many parts as the head has, then a separator.
		parts := strings.Count(head, "/")
		at := 0
		for i := range len(p) {
			if p[i] == '/' {
				if at++; at == parts+1 {
					ok, err := path.Match(head, p[:i])
					return err == nil && ok
				}
			}
		}
		return false
	}
	ok, err := path.Match(pattern, p)
	return err == nil && ok
}

// unclear reports a path that servers read in different ways.
func unclear(p string) bool {
	lower := strings.ToLower(p)
	for part := range strings.SplitSeq(strings.ReplaceAll(lower, "%2e", "."), "/") {
		if part == "." || part == ".." {
			return true
		}
	}
	return strings.Contains(lower, "%2f") || strings.Contains(lower, "%5c") || strings.ContainsAny(lower, "\\\x00")
}
