package opensandbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/provider/opensandbox/wire"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
)

// egressPort is where services that have an egress API serve it.
const egressPort = 18080

// Connect implements sandbox.Provider.
func (p *Provider) Connect(ctx context.Context, id string) (sandbox.Handle, error) {
	if err := sandbox.CheckID(id); err != nil {
		return nil, err
	}
	s, err := p.get(ctx, id)
	if err != nil {
		return nil, failed(err, id, sandbox.CodeGone)
	}
	if err := running(s, id); err != nil {
		return nil, err
	}
	return p.handle(id), nil
}

// execdOf reaches the execd of a running sandbox, for operations by its id.
func (p *Provider) execdOf(ctx context.Context, id string) (*execd.Conn, error) {
	s, err := p.get(ctx, id)
	if err != nil {
		return nil, failed(err, id, sandbox.CodeNotFound)
	}
	if err := running(s, id); err != nil {
		return nil, err
	}
	return p.handle(id).conn, nil
}

// running refuses a sandbox that doesn't run.
func running(s wire.Sandbox, id string) error {
	switch state := stateOf(s); {
	case isRunning(state):
		return nil
	case state == "" || state == statePending || state == stateResuming:
		e := sandbox.Errorf(sandbox.CodeUnavailable, "sandbox %s is not running yet (%q)", id, state)
		e.SandboxID = id
		return e
	default:
		e := sandbox.Errorf(sandbox.CodeNotRunning, "sandbox %s is %s", id, state)
		e.SandboxID = id
		return e
	}
}

// handle reaches one sandbox.
type handle struct {
	p    *Provider
	id   string
	conn *execd.Conn
}

func (p *Provider) handle(id string) *handle {
	return &handle{p, id, execd.Dial(func(ctx context.Context) (sandbox.Endpoint, error) {
		e, err := p.endpoint(ctx, id, execd.Port, p.proxy, nil)
		if err != nil {
			// Whatever the reason, the sandbox couldn't be asked.
			return e, fmt.Errorf("%w: %w", sandbox.ErrUnreachable, err)
		}
		return e, nil
	}, nil)}
}

// SandboxID implements sandbox.Handle.
func (h *handle) SandboxID() string { return h.id }

// Files implements sandbox.Handle.
func (h *handle) Files() sandbox.Files { return execd.Files(h.conn) }

// Commands implements sandbox.Handle.
func (h *handle) Commands() sandbox.Commands { return execd.Commands(h.conn) }

// Processes implements sandbox.Handle.
func (h *handle) Processes() sandbox.Processes { return execd.Processes(h.conn) }

// Endpoint implements sandbox.Handle.
func (h *handle) Endpoint(ctx context.Context, port int) (sandbox.Endpoint, error) {
	if err := checkPort(port); err != nil {
		return sandbox.Endpoint{}, err
	}
	return h.p.endpoint(ctx, h.id, port, h.p.proxy, nil)
}

// SignedEndpoint implements sandbox.Handle. A service that doesn't sign may
// answer with its ordinary address; that is recognised and refused.
func (h *handle) SignedEndpoint(ctx context.Context, port int, expiresAt time.Time) (sandbox.Endpoint, error) {
	if err := checkPort(port); err != nil {
		return sandbox.Endpoint{}, err
	}
	if !expiresAt.After(time.Now()) {
		return sandbox.Endpoint{}, sandbox.Errorf(sandbox.CodeInvalid, "an endpoint that ended at %s can't be signed", expiresAt.UTC().Format(time.RFC3339))
	}
	unsupported := sandbox.Errorf(sandbox.CodeSignedUnsupported, "the lifecycle service gives no signed endpoints")
	signed, err := h.p.endpoint(ctx, h.id, port, false, url.Values{"expires": {strconv.FormatInt(expiresAt.Unix(), 10)}})
	switch {
	case errors.Is(err, sandbox.ErrUnsupported):
		return sandbox.Endpoint{}, unsupported
	case err != nil:
		return sandbox.Endpoint{}, err
	}
	ordinary, err := h.p.endpoint(ctx, h.id, port, false, nil)
	if err != nil {
		return sandbox.Endpoint{}, err
	}
	if len(signed.Headers) > 0 || signed.URL.String() == ordinary.URL.String() {
		return sandbox.Endpoint{}, unsupported
	}
	return signed, nil
}

func checkPort(port int) error {
	switch {
	case port < 1 || port > 65535:
		return sandbox.Errorf(sandbox.CodeInvalid, "port %d is not from 1 to 65535", port)
	case port == execd.Port, port == egressPort:
		return sandbox.Errorf(sandbox.CodePortReserved, "port %d belongs to the sandbox's own services", port)
	}
	return nil
}

// endpoint asks the service for the address of a port.
func (p *Provider) endpoint(ctx context.Context, id string, port int, proxy bool, query url.Values) (sandbox.Endpoint, error) {
	if proxy {
		query = url.Values{"use_server_proxy": {"true"}}
	}
	var answer wire.Endpoint
	err := p.api.do(ctx, call{method: http.MethodGet, path: sandboxPath(id, "endpoints", strconv.Itoa(port)), query: query, twice: true}, &answer)
	if err != nil {
		return sandbox.Endpoint{}, failed(err, id, sandbox.CodeNotFound)
	}
	scheme := p.scheme
	if scheme == "" {
		base, err := p.api.baseURL()
		if err != nil {
			return sandbox.Endpoint{}, failed(p.api.explain(ctx, err), id, sandbox.CodeNotFound)
		}
		scheme = base.Scheme
	}
	text := answer.Endpoint
	if !strings.Contains(text, "://") {
		text = scheme + "://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return sandbox.Endpoint{}, sandbox.Errorf(sandbox.CodeUnavailable, "the lifecycle service gave an address of port %d that can't be used", port)
	}
	return sandbox.Endpoint{URL: u, Headers: answer.Headers}, nil
}

// EndpointNamesSandbox implements sandbox.Provider: only addresses of the
// service itself, below /sandboxes/{id}/, say which sandbox they are.
func (p *Provider) EndpointNamesSandbox(endpoint string) (string, bool) {
	u, err := url.Parse(endpoint)
	if err != nil || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return "", false
	}
	base, err := p.api.baseURL()
	if err != nil || !strings.EqualFold(u.Host, base.Host) {
		return "", false
	}
	path := u.EscapedPath()
	prefixes := []string{strings.TrimSuffix(base.EscapedPath(), "/"), wire.Prefix, ""}
	for _, prefix := range prefixes {
		rest, ok := strings.CutPrefix(path, prefix+"/sandboxes/")
		if !ok {
			continue
		}
		id, rest, ok := strings.Cut(rest, "/")
		if ok && rest != "" && sandbox.ValidID(id) {
			return id, true
		}
	}
	return "", false
}
