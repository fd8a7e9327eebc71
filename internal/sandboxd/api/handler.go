// Package api serves the OpenSandbox lifecycle API over HTTP for package
// lifecycle: it decodes and checks requests, calls the service and encodes the
// answers. What the API describes and this service can't do is refused with
// 501, never ignored.
//
// Every request but GET /health carries the API key; the proxy also takes the
// sandbox's own token. Paths work with and without /v1. Every answer carries
// X-Request-ID, the client's own where it sent a readable one. Errors are
// {"code","message"}.
//
// Limits: bodies of the API 1 MiB within 30 s (the proxy streams without a limit).
//
// The handler is safe for concurrent use. Close ends its idle connections.
package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/lifecycle"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// bodyLimit and bodyTime bound the body of an API request.
const (
	bodyLimit = 1 << 20
	bodyTime  = 30 * time.Second
)

// Handler serves the API.
type Handler struct {
	service *lifecycle.Service
	log     *slog.Logger
	version string
	key     [sha256.Size]byte
	proxy   *httputil.ReverseProxy
	direct  *http.Transport
}

// New makes a Handler. The key must not be empty.
func New(service *lifecycle.Service, key, version string, log *slog.Logger) (*Handler, error) {
	if key == "" {
		return nil, errors.New("api: the key is empty")
	}
	h := &Handler{service: service, log: log, version: version, key: sha256.Sum256([]byte(key))}
	h.proxy, h.direct = newProxy(log)
	return h, nil
}

// Close ends idle connections to sandboxes.
func (h *Handler) Close() { h.direct.CloseIdleConnections() }

// route is one operation. Its path's segments are literals, or names in braces.
type route struct {
	method string
	path   []string
	serve  func(*Handler, http.ResponseWriter, *http.Request, params) error
}

type params map[string]string

func at(method, path string, serve func(*Handler, http.ResponseWriter, *http.Request, params) error) route {
	return route{method, strings.Split(path, "/"), serve}
}

var routes = []route{
	at("GET", "health", (*Handler).health),
	at("GET", "version", (*Handler).getVersion),
	at("POST", "sandboxes", (*Handler).create),
	at("GET", "sandboxes", (*Handler).list),
	at("GET", "sandboxes/{id}", (*Handler).get),
	at("DELETE", "sandboxes/{id}", (*Handler).delete),
	at("PATCH", "sandboxes/{id}/metadata", (*Handler).patchMetadata),
	at("POST", "sandboxes/{id}/pause", (*Handler).pause),
	at("POST", "sandboxes/{id}/resume", (*Handler).resume),
	at("POST", "sandboxes/{id}/renew-expiration", (*Handler).renew),
	at("GET", "sandboxes/{id}/endpoints/{port}", (*Handler).endpoint),
	at("POST", "metrics/events", (*Handler).metricsEvent),

	at("POST", "sandboxes/{id}/snapshots", missing("snapshots")),
	at("GET", "snapshots", missing("snapshots")),
	at("GET", "snapshots/{id}", missing("snapshots")),
	at("DELETE", "snapshots/{id}", missing("snapshots")),
	at("POST", "templates", missing("templates")),
	at("GET", "templates", missing("templates")),
	at("GET", "templates/{id}", missing("templates")),
	at("DELETE", "templates/{id}", missing("templates")),
	at("GET", "sandboxes/{id}/networkpolicy", missing("network policy but that which denies everything")),
	at("PUT", "sandboxes/{id}/networkpolicy", missing("network policy but that which denies everything")),
	at("PATCH", "sandboxes/{id}/networkpolicy", missing("network policy but that which denies everything")),
	at("DELETE", "sandboxes/{id}/networkpolicy", missing("network policy but that which denies everything")),
	at("GET", "sandboxes/{id}/diagnostics/{scope}", missing("diagnostics")),
}

func (r route) match(segments []string) (params, bool) {
	if len(segments) != len(r.path) {
		return nil, false
	}
	var p params
	for i, want := range r.path {
		if name, ok := strings.CutPrefix(want, "{"); ok {
			value, err := url.PathUnescape(segments[i])
			if err != nil || value == "" {
				return nil, false
			}
			if p == nil {
				p = params{}
			}
			p[strings.TrimSuffix(name, "}")] = value
		} else if want != segments[i] {
			return nil, false
		}
	}
	return p, true
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := requestID(r.Header.Get(wire.HeaderRequestID))
	w.Header().Set(wire.HeaderRequestID, id)
	w.Header().Set("Server", "astrabox-sandboxd/"+h.version)
	start := time.Now()
	err := h.serve(w, r)
	if err == nil {
		h.log.Debug("request", "request_id", id, "method", r.Method, "path", r.URL.Path, "took", time.Since(start))
		return
	}
	e := failure(err)
	level := slog.LevelInfo
	if e.status >= 500 && e.status != http.StatusNotImplemented {
		level = slog.LevelError
	}
	h.log.Log(context.WithoutCancel(r.Context()), level, "request refused", "request_id", id, "method", r.Method, "path", r.URL.Path, "status", e.status, "code", e.body.Code, "error", err)
	for k, v := range e.header {
		w.Header().Set(k, v)
	}
	respond(w, e.status, e.body)
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) error {
	if err := ownHost(r); err != nil {
		return err
	}
	// Split before decoding: an encoded slash belongs to its segment.
	path := strings.TrimPrefix(r.URL.EscapedPath(), "/")
	path = strings.TrimPrefix(path, strings.TrimPrefix(wire.Prefix, "/")+"/")
	if p, ok := proxied(path); ok {
		return h.serveProxy(w, r, p)
	}
	open := r.Method == http.MethodGet && path == "health"
	if !open && !h.authorised(r) {
		return refuse(http.StatusUnauthorized, "UNAUTHORIZED", "the header "+wire.HeaderKey+" is missing or wrong")
	}
	r.Body = http.MaxBytesReader(w, r.Body, bodyLimit)
	segments := strings.Split(strings.TrimSuffix(path, "/"), "/")
	var allow []string
	for _, route := range routes {
		p, ok := route.match(segments)
		if !ok {
			continue
		}
		if route.method == r.Method {
			return route.serve(h, w, r, p)
		}
		allow = append(allow, route.method)
	}
	if allow != nil {
		e := refuse(http.StatusMethodNotAllowed, "METHOD_NOT_ALLOWED", "this path takes "+strings.Join(allow, ", "))
		e.header = map[string]string{"Allow": strings.Join(allow, ", ")}
		return e
	}
	return refuse(http.StatusNotFound, "NOT_FOUND", "there is no such path")
}

// authorised compares digests, which have one length, in constant time.
func (h *Handler) authorised(r *http.Request) bool {
	given := sha256.Sum256([]byte(r.Header.Get(wire.HeaderKey)))
	return subtle.ConstantTimeCompare(given[:], h.key[:]) == 1
}

// ownHost refuses requests that a browser was led to send: for another name
// that resolves to this machine, or from a page of another origin.
func ownHost(r *http.Request) error {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.Trim(host, "[]")
	addr, err := netip.ParseAddr(host)
	if !strings.EqualFold(host, "localhost") && (err != nil || !addr.Unmap().IsLoopback()) {
		return refuse(http.StatusForbidden, "HOST_NOT_ALLOWED", "this service answers on loopback addresses only")
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || u.Host != r.Host {
			return refuse(http.StatusForbidden, "ORIGIN_NOT_ALLOWED", "requests from other origins are refused")
		}
	}
	return nil
}

func requestID(given string) string {
	if given != "" && len(given) <= 128 && strings.IndexFunc(given, func(c rune) bool { return c <= ' ' || c > '~' }) < 0 {
		return given
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// respond sends v as JSON; nil sends no body.
func respond(w http.ResponseWriter, status int, v any) {
	if v == nil {
		w.Header().Set("Content-Length", "0")
		w.WriteHeader(status)
		return
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil { // only for types that can't be encoded
		status = http.StatusInternalServerError
		b.Reset()
		b.WriteString(`{"code":"INTERNAL_ERROR","message":"the answer can't be encoded"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", fmt.Sprint(b.Len()))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, b.String()) // a client that went away
}
