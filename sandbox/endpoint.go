package sandbox

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"
)

// ExecdPort is the port of the daemon in a sandbox, where it has one.
const ExecdPort = 44772

// Endpoint is an absolute http or https URL that reaches a port of a sandbox,
// and the headers that every request to it must carry. Header values are
// secrets: String leaves them out.
type Endpoint struct {
	URL     *url.URL
	Headers map[string]string
}

// String gives the URL without its query and without headers.
func (e Endpoint) String() string {
	if e.URL == nil {
		return ""
	}
	u := *e.URL
	u.RawQuery, u.User = "", nil
	return u.String()
}

// GoString is String, so that %#v shows no header either.
func (e Endpoint) GoString() string { return e.String() }

// Format is String, for every verb.
func (e Endpoint) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, e.String()) }

// LogValue is String.
func (e Endpoint) LogValue() slog.Value { return slog.StringValue(e.String()) }

// CheckPort refuses what is no port (SANDBOX_CONFIG_INVALID), and ExecdPort and
// the backend's own ports (EXPOSE_PORT_RESERVED). Reserved ports are never
// signed, listed or proxied: whoever reaches them can do everything.
func CheckPort(port int, own ...int) error {
	switch {
	case port < 1 || port > 65535:
		return Errorf(CodeInvalid, "port %d is not from 1 to 65535", port)
	case port == ExecdPort, slices.Contains(own, port):
		return Errorf(CodePortReserved, "port %d belongs to the sandbox's own services", port)
	}
	return nil
}

// CheckEndpoint refuses what no client could use safely: an address that isn't
// absolute http or https, has no host, or holds a user name.
func CheckEndpoint(e Endpoint) error {
	switch u := e.URL; {
	case u == nil:
		return Errorf(CodeUnavailable, "the backend gave no address")
	case u.Scheme != "http" && u.Scheme != "https", u.Hostname() == "", u.Opaque != "", u.User != nil:
		return Errorf(CodeUnavailable, "the backend gave an address that is not an absolute http or https URL")
	}
	return nil
}

// StoredEndpoint gives a stored address back only when the provider confirms
// that it names the expected sandbox. Anything else is resolved again from the
// id: an address such as host:port may belong to another sandbox by now.
func StoredEndpoint(p Provider, sandboxID, stored string) (u *url.URL, ok bool) {
	if stored == "" || !ValidID(sandboxID) {
		return nil, false
	}
	u, err := url.Parse(stored)
	if err != nil || CheckEndpoint(Endpoint{URL: u}) != nil {
		return nil, false
	}
	named, err := safely(func() (string, error) {
		id, ok := p.EndpointNamesSandbox(stored)
		if !ok {
			id = ""
		}
		return id, nil
	})
	return u, err == nil && named == sandboxID
}

// BrowserLink gives an address of a port that a browser can open until
// expiresAt. Reserved ports are refused. What needs headers is no link, and
// what the backend can't sign is no link either, rather than one for everybody.
func BrowserLink(ctx context.Context, h Handle, port int, expiresAt time.Time) (*url.URL, error) {
	if err := CheckPort(port); err != nil {
		return nil, err
	}
	if !expiresAt.After(time.Now()) {
		return nil, Errorf(CodeInvalid, "a link can't end in the past")
	}
	e, err := safely(func() (Endpoint, error) { return h.SignedEndpoint(ctx, port, expiresAt) })
	if err != nil {
		return nil, err
	}
	if len(e.Headers) > 0 {
		return nil, Errorf(CodeLinkNeedsHeaders, "the backend's address of port %d needs headers, which a browser doesn't send", port)
	}
	if err := CheckEndpoint(e); err != nil {
		return nil, err
	}
	return e.URL, nil
}

// CheckPath says whether a path can be asked of a sandbox's files: absolute,
// with at least its slash, without NUL, and no longer than a file system takes
// (4095 bytes). Everything else in it is literal. The error is a *[PathError]
// that wraps ErrPathRejected.
func CheckPath(op, path string) error {
	why := ""
	switch {
	case path == "":
		why = "the path is empty"
	case !strings.HasPrefix(path, "/"):
		why = "the path isn't absolute"
	case strings.ContainsRune(path, 0):
		why = "the path holds a NUL"
	case len(path) > maxPath:
		why = "the path is too long"
	default:
		return nil
	}
	return &PathError{Op: op, Path: shorten(path, 200), Err: pathRejected(why)}
}

const maxPath = 4095
