// Package proxy hands requests on to programs that listen on the sandbox's
// loopback address: /proxy/{port}/{path}, any method, WebSockets too. The
// daemon puts it in front of its other routes.
//
// Path and query are passed on byte for byte, redirects and bodies as they come
// back. The daemon's token, and what a client claims about earlier proxies,
// stay here. Refusals are wire.Error bodies. A Handler is safe for concurrent use.
package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Prefix is how the paths that a Handler serves begin.
const Prefix = "/proxy/"

const (
	dialTime = 5 * time.Second
	idleTime = 30 * time.Second
	// maxIdle bounds the connections kept to one port.
	maxIdle = 8
)

// Handler serves paths that begin with Prefix.
type Handler struct {
	reserved  func() int
	transport *http.Transport
	proxy     *httputil.ReverseProxy
}

// New makes a Handler that refuses the port that reserved gives: the daemon's own.
func New(reserved func() int) *Handler {
	h := &Handler{reserved: reserved, transport: &http.Transport{
		DialContext:         dial,
		DisableCompression:  true, // bodies stay as they are
		MaxIdleConnsPerHost: maxIdle,
		IdleConnTimeout:     idleTime,
	}}
	h.proxy = &httputil.ReverseProxy{
		Rewrite:       rewrite,
		Transport:     h.transport,
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			message := "Bad Gateway: the program didn't answer"
			if errors.Is(err, syscall.ECONNREFUSED) {
				message = "Bad Gateway: nothing listens on that port"
			}
			refuse(w, http.StatusBadGateway, "BAD_GATEWAY", message)
		},
		ErrorLog: log.New(io.Discard, "", 0), // it would name paths and queries
	}
	return h
}

// Close closes idle connections.
func (h *Handler) Close() { h.transport.CloseIdleConnections() }

// dial tries both loopback addresses, since a program may listen on one only.
func dial(ctx context.Context, _, addr string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	d := net.Dialer{Timeout: dialTime}
	conn, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port))
	if errors.Is(err, syscall.ECONNREFUSED) {
		if six, err6 := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", port)); err6 == nil {
			return six, nil
		}
	}
	return conn, err
}

type target struct {
	port int
	path string // escaped, with its leading slash
	// plain is path without escapes.
	plain string
}

type targetKey struct{}

// parse takes /proxy/{port}/{path} apart.
func parse(u *url.URL) (t target, ok bool) {
	port, path, slash := strings.Cut(strings.TrimPrefix(u.EscapedPath(), Prefix), "/")
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return t, false
	}
	t.port = int(n)
	if t.path = "/" + path; !slash {
		t.path = "/"
	}
	t.plain, err = url.PathUnescape(t.path)
	return t, err == nil
}

// ServeHTTP hands a request on. It lasts until either side or the request's
// context ends.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, ok := parse(r.URL)
	switch {
	case !ok:
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, "the path is not /proxy/{port}/{path} with a port from 1 to 65535")
	case t.port == h.reserved():
		refuse(w, http.StatusForbidden, "PORT_RESERVED", "the port is the daemon's own")
	default:
		// A server may answer before it has read the request's end. Without
		// this net/http would close the request's body then, and the transport,
		// still reading it, would cut the answer off.
		_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 needs it not
		h.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetKey{}, t)))
	}
}

func rewrite(p *httputil.ProxyRequest) {
	t, _ := p.In.Context().Value(targetKey{}).(target)
	out := p.Out
	out.URL.Scheme, out.URL.Host = "http", net.JoinHostPort("127.0.0.1", strconv.Itoa(t.port))
	out.URL.RawQuery, out.URL.ForceQuery = p.In.URL.RawQuery, p.In.URL.ForceQuery
	// RawPath is what is sent, as long as it is an encoding of Path.
	out.URL.Path, out.URL.RawPath = t.plain, t.path
	out.Host = p.In.Host
	p.SetXForwarded()
	out.Header.Set("X-Forwarded-Prefix", Prefix+strconv.Itoa(t.port))
	out.Header.Del(wire.HeaderToken)
	if _, given := p.In.Header["User-Agent"]; !given {
		out.Header.Set("User-Agent", "") // or net/http puts its own
	}
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(wire.Error{Code: code, Message: message}) // failing is the client's going away
}
