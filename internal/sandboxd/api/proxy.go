package api

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	execd "github.com/astrabox/astrabox/sandbox/execd/wire"

	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// headerToken carries the per-sandbox token of execd.
const headerToken = execd.HeaderToken

// reachable refuses what no request can get to.
func reachable(r state.Record) error {
	if r.State != wire.Running {
		return refuse(http.StatusConflict, "INVALID_STATE", "the sandbox is "+r.State)
	}
	return nil
}

// pathTo gives what a path of execd begins with that leads to a port of its
// sandbox. Only execd's own port is let through to a sandbox; it passes requests
// on to the others, and keeps its token from them.
func pathTo(port int) string {
	if port == execd.Port {
		return ""
	}
	return fmt.Sprintf("/proxy/%d", port)
}

// target is the sandbox, port and rest of the path that a proxied path names.
type target struct {
	id, port string
	rest     string // escaped, begins with a slash
}

// proxied reads an escaped path of the form sandboxes/{id}/proxy/{port}/rest.
func proxied(path string) (target, bool) {
	after, ok := strings.CutPrefix(path, "sandboxes/")
	if !ok {
		return target{}, false
	}
	id, after, ok := strings.Cut(after, "/")
	after, isProxy := strings.CutPrefix(after, "proxy/")
	if !ok || !isProxy {
		return target{}, false
	}
	port, rest, _ := strings.Cut(after, "/")
	return target{id, port, "/" + rest}, true
}

// serveProxy passes a request on to a sandbox, WebSockets and streams too. The
// caller has the service's key or the sandbox's token; the sandbox gets the
// token in either case and never the key.
func (h *Handler) serveProxy(w http.ResponseWriter, r *http.Request, t target) error {
	keyed := h.authorised(r)
	rec, err := h.find(r.Context(), t.id)
	if !keyed {
		given := []byte(r.Header.Get(headerToken))
		if err != nil || rec.Run.Token == "" || subtle.ConstantTimeCompare(given, []byte(rec.Run.Token)) != 1 {
			return refuse(http.StatusUnauthorized, "UNAUTHORIZED", "the headers that the sandbox's endpoint asks for are missing or wrong")
		}
	}
	if err != nil {
		return err
	}
	port, err := strconv.Atoi(t.port)
	if err != nil || port < 1 || port > 65535 {
		return invalid("port must be a number from 1 to 65535")
	}
	if err := reachable(rec); err != nil {
		return err
	}
	path, err := url.PathUnescape(t.rest)
	if err != nil {
		return invalid("the path can't be read: %v", err)
	}
	inside := pathTo(port)
	ctx := context.WithValue(r.Context(), hopKey{}, hop{
		to:     &url.URL{Scheme: "http", Host: rec.Run.Address, Path: inside + path, RawPath: inside + t.rest, RawQuery: r.URL.RawQuery},
		prefix: fmt.Sprintf("%s/sandboxes/%s/proxy/%d", wire.Prefix, rec.ID, port),
		token:  rec.Run.Token,
	})
	// Otherwise net/http closes the request's body as soon as the sandbox
	// answers, and the transport, which may still be reading its end, gives up
	// the whole exchange: a quick answer would be cut off. Failing means HTTP/2,
	// which has no such rule.
	_ = http.NewResponseController(w).EnableFullDuplex()
	h.proxy.ServeHTTP(w, r.WithContext(ctx))
	return nil
}

// hop is what the shared proxy needs to know of one request.
type hop struct {
	to            *url.URL
	prefix, token string
}

type hopKey struct{}

func newProxy(log *slog.Logger) (*httputil.ReverseProxy, *http.Transport) {
	transport := &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		MaxIdleConns:        256,
		MaxIdleConnsPerHost: 8,
		// Short, since a sandbox's address may pass to another.
		IdleConnTimeout:    15 * time.Second,
		DisableCompression: true, // bodies pass as they are
	}
	return &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // streams
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		Rewrite: func(p *httputil.ProxyRequest) {
			hop := p.In.Context().Value(hopKey{}).(hop)
			p.Out.URL, p.Out.Host = hop.to, ""
			p.Out.Header.Del(wire.HeaderKey)
			p.Out.Header.Set(headerToken, hop.token)
			p.Out.Header.Set("X-Forwarded-Prefix", hop.prefix)
			p.SetXForwarded()
		},
		ModifyResponse: func(resp *http.Response) error {
			// A redirect to a path of the sandbox must lead through the proxy again.
			hop := resp.Request.Context().Value(hopKey{}).(hop)
			if l := resp.Header.Get("Location"); strings.HasPrefix(l, "/") && !strings.HasPrefix(l, "//") {
				resp.Header.Set("Location", hop.prefix+l)
			}
			resp.Header.Del(wire.HeaderRequestID) // ours stands
			resp.Header.Del("Server")
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if errors.Is(err, context.Canceled) {
				return // the client went away
			}
			log.Warn("proxy", "path", r.URL.Path, "error", err)
			respond(w, http.StatusBadGateway, wire.Error{Code: "SANDBOX_UNREACHABLE", Message: "the sandbox didn't answer"})
		},
	}, transport
}
