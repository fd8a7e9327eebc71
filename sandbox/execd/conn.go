package execd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Port is the port of the daemon inside a sandbox: what Handle.Endpoint is asked for.
const Port = wire.Port

// errorBodyLimit bounds how much of a refusal's body is read.
const errorBodyLimit = 64 << 10

// Resolver finds the daemon's address and the headers that it wants. It is
// called for the first request and again after the daemon couldn't be reached
// or refused the token; it should then look afresh rather than answer from a cache.
type Resolver = func(ctx context.Context) (sandbox.Endpoint, error)

// Fixed is a Resolver for an endpoint that never changes.
func Fixed(e sandbox.Endpoint) Resolver {
	return func(context.Context) (sandbox.Endpoint, error) { return e, nil }
}

// Conn reaches the execd of one sandbox. It is made by [Dial].
type Conn struct {
	resolve Resolver
	client  *http.Client
	apart   *http.Client // see apart
	dir     string       // of a sandbox with a foreign execd, for what is ours
	session string       // path of the isolated session that requests go to; "": none
	stall   time.Duration
	silence time.Duration // how long a daemon that is watched may say nothing; 0: watchSilence

	mu       sync.Mutex
	endpoint *sandbox.Endpoint // nil: to be resolved
	features []string          // nil: not asked yet
	foreign  bool              // features were asked for, and it isn't AstraBox's daemon
}

// Dial makes a Conn. It does no I/O. A nil client means the pool that all
// Conns of the process share; another client must have no Timeout, must not
// follow redirects and must speak HTTP/1.1.
func Dial(resolve Resolver, client *http.Client) *Conn {
	lone := client
	if client == nil {
		client, lone = shared, apart
	}
	return &Conn{resolve: resolve, client: client, apart: lone, dir: foreignDir, stall: foreignStall}
}

// shared never follows a redirect, since a sandbox's answer must not be able to
// send a request of ours elsewhere, and knows no proxy, since sandbox addresses
// are reached directly.
var shared = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second,
		// The daemon answers at once with headers, however long the rest takes;
		// only a store of a large file has work (fsync) to do before them.
		ResponseHeaderTimeout: 90 * time.Second,
		MaxIdleConns:          512,
		MaxIdleConnsPerHost:   16,
		IdleConnTimeout:       90 * time.Second,
		DisableCompression:    true,
		WriteBufferSize:       64 << 10,
		ReadBufferSize:        64 << 10,
	},
}

// apart gives each request a connection of its own: when one that was kept is
// lost, the transport sends a request without a body again by itself, and an
// attachment must not start a process twice. It waits for an answer as long as
// the context lasts (openSocket limits that): a foreign execd says nothing of a run in an isolated
// session before the run itself does.
var apart = func() *http.Client {
	t := shared.Transport.(*http.Transport).Clone()
	t.DisableKeepAlives, t.ResponseHeaderTimeout = true, 0
	return &http.Client{CheckRedirect: shared.CheckRedirect, Transport: t}
}()

// address gives the endpoint, asking the resolver when it isn't known.
func (c *Conn) address(ctx context.Context) (sandbox.Endpoint, error) {
	c.mu.Lock()
	known := c.endpoint
	c.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	e, err := c.resolve(ctx)
	if err != nil {
		return sandbox.Endpoint{}, err
	}
	if e.URL == nil || e.URL.Host == "" {
		return sandbox.Endpoint{}, fmt.Errorf("%w: the endpoint has no address", sandbox.ErrUnreachable)
	}
	e.Headers = maps.Clone(e.Headers)
	c.mu.Lock()
	c.endpoint = &e
	c.mu.Unlock()
	return e, nil
}

// forget drops what is known, so that the next request resolves anew.
func (c *Conn) forget() {
	c.mu.Lock()
	c.endpoint, c.features, c.foreign = nil, nil, false
	c.mu.Unlock()
}

// target gives the URL and headers of a request to path, which is a clean
// absolute path of the protocol. rawQuery is encoded already.
func target(e sandbox.Endpoint, path, rawQuery string) (*url.URL, http.Header) {
	u := *e.URL
	u.Path = strings.TrimSuffix(u.Path, "/") + path
	u.RawPath = ""
	switch {
	case u.RawQuery == "":
		u.RawQuery = rawQuery
	case rawQuery != "":
		u.RawQuery += "&" + rawQuery
	}
	h := make(http.Header, len(e.Headers)+2)
	for k, v := range e.Headers {
		h.Set(k, v)
	}
	return &u, h
}

// within gives the path of a request that goes to an isolated session.
func (c *Conn) within(path string) string {
	if c.session == "" || !strings.HasPrefix(path, "/pty") && !strings.HasPrefix(path, "/v1/fs/") {
		return path
	}
	return c.session + strings.TrimPrefix(path, "/v1")
}

// request is one request to the daemon.
type request struct {
	method string
	path   string // a clean absolute path of the protocol, such as "/command"
	query  string // encoded; may be empty
	header http.Header
	body   func() (io.Reader, error) // nil: no body. Called again for a second attempt
	once   bool                      // the body can't be read twice: no second attempt
	apart  bool                      // over a connection of its own, see apart
}

// do sends a request and gives the response, whose status is below 300. The
// caller closes its body. A refusal is a *refusal. A request that certainly had
// no effect (the connection or the token was refused) is sent once more when
// the resolver then names another endpoint.
func (c *Conn) do(ctx context.Context, r request) (*http.Response, error) {
	before, err := c.address(ctx)
	if err != nil {
		return nil, unreachable(ctx, err)
	}
	resp, err := c.attempt(ctx, r, before)
	if err == nil || !errors.Is(err, errStale) {
		return resp, err
	}
	c.forget()
	if r.once {
		return nil, err
	}
	after, again := c.address(ctx)
	if again != nil || same(before, after) {
		return nil, err
	}
	if resp, again = c.attempt(ctx, r, after); errors.Is(again, errStale) {
		c.forget()
	}
	return resp, again
}

func same(a, b sandbox.Endpoint) bool {
	return a.URL.String() == b.URL.String() && maps.Equal(a.Headers, b.Headers)
}

// errStale marks failures that say that the endpoint or its token may be out
// of date and that the request had no effect.
var errStale = errors.New("the endpoint may be out of date")

func (c *Conn) attempt(ctx context.Context, r request, e sandbox.Endpoint) (*http.Response, error) {
	u, header := target(e, c.within(r.path), r.query)
	var body io.Reader
	if r.body != nil {
		var err error
		if body, err = r.body(); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("execd: %w", err)
	}
	maps.Copy(header, r.header)
	req.Header = header
	client := c.client
	if r.apart {
		client = c.apart
	}
	resp, err := client.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			c.forget() // a moved sandbox looks like this; the next request finds out
		}
		return nil, unreachable(ctx, err)
	}
	if resp.StatusCode < 300 && c.fromDaemon(resp) {
		return resp, nil
	}
	defer resp.Body.Close()
	err = c.refused(resp)
	if errors.Is(err, sandbox.ErrUnreachable) {
		c.forget() // something else may have the address by now
	}
	return nil, err
}

// fromDaemon reports whether an answer can be the daemon's. AstraBox's own names
// itself in each; what is at the address of a sandbox that has gone doesn't, and
// its "200 OK" says nothing about what was asked.
func (c *Conn) fromDaemon(resp *http.Response) bool {
	c.mu.Lock()
	ours := c.features != nil
	c.mu.Unlock()
	return !ours || resp.Header.Get(wire.HeaderServer) != ""
}

// bytesBody is a request body that can be sent again.
func bytesBody(b []byte) func() (io.Reader, error) {
	return func() (io.Reader, error) { return bytes.NewReader(b), nil }
}

// json sends in (nil: no body) and decodes the answer into out (nil: ignored).
func (c *Conn) json(ctx context.Context, method, path, query string, in, out any) error {
	r := request{method: method, path: path, query: query}
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("execd: %w", err)
		}
		r.header = http.Header{"Content-Type": {"application/json"}}
		r.body = bytesBody(b)
	}
	resp, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, errorBodyLimit))
		return unreachable(ctx, err)
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, 4<<20)).Decode(out); err != nil {
		return unreachable(ctx, fmt.Errorf("the daemon's answer can't be read: %w", err))
	}
	return nil
}

// speaks reports whether the daemon is AstraBox's own with a feature; false
// means another execd, which is spoken to over the older protocol. One of ours
// without the feature is refused. It asks once for each Conn (again after the
// endpoint was resolved anew).
func (c *Conn) speaks(ctx context.Context, feature string) (bool, error) {
	c.mu.Lock()
	known, foreign := c.features, c.foreign
	c.mu.Unlock()
	if known == nil && !foreign {
		var v wire.Version
		err := c.json(ctx, http.MethodGet, "/version", "", nil, &v)
		var no *refusal
		switch {
		case errors.As(err, &no) && no.unknownPath():
			foreign = true // the older protocol has no such path
		case err != nil:
			return false, err
		default:
			known = append([]string{}, v.Features...)
		}
		c.mu.Lock()
		c.features, c.foreign = known, foreign
		c.mu.Unlock()
	}
	if !foreign && !slices.Contains(known, feature) {
		return false, sandbox.Errorf(sandbox.CodeUnsupported, "the execd of this sandbox lacks %s", feature)
	}
	return !foreign, nil
}

// require refuses a daemon that lacks a feature for which there is no other way.
func (c *Conn) require(ctx context.Context, feature string) error {
	ours, err := c.speaks(ctx, feature)
	if err == nil && !ours {
		return sandbox.Errorf(sandbox.CodeUnsupported, "the execd of this sandbox isn't AstraBox's and lacks %s", feature)
	}
	return err
}

// refusal is an answer of the daemon that says no. Callers translate it.
type refusal struct {
	status        int
	code, message string
	body          []byte // of the answer, for the few that say more than code and message
}

func (r *refusal) Error() string {
	return fmt.Sprintf("execd answered %d %s: %s", r.status, r.code, r.message)
}

// missing reports whether what was named isn't there. The older protocol says
// so in three ways.
func (r *refusal) missing() bool {
	return r.code == wire.CodeNotFound ||
		r.status == http.StatusNotFound && (r.code == wire.CodeInvalidBody || r.code == wire.CodeFileNotFound) ||
		r.status == http.StatusInternalServerError && strings.Contains(r.message, "context not found")
}

const codeBare = "ERROR" // stands for the answers that have an "error" instead of a code

// unknownPath reports whether it is what Go's HTTP servers answer for a path
// that they don't serve.
func (r *refusal) unknownPath() bool {
	return r.status == http.StatusNotFound && string(bytes.TrimSpace(r.body)) == "404 page not found"
}

// olderCodes are what a foreign execd refuses with. Another code comes from
// something that stands between.
var olderCodes = []string{
	wire.CodeInvalidBody, wire.CodeMissingQuery, wire.CodeRuntime, wire.CodeNotFound, wire.CodeHeld,
	wire.CodeFileNotFound, codeBare, "INVALID_FILE", "INVALID_FILE_METADATA", "INVALID_FILE_CONTENT", "UNKNOWN",
	"NOT_SUPPORTED", "SERVICE_UNAVAILABLE", wire.CodeSessionNotFound,
}

// refused reads a response that isn't a success. An answer that didn't come
// from the daemon, and a refused token, say nothing about what was asked:
// they are ErrUnreachable.
func (c *Conn) refused(resp *http.Response) error {
	c.mu.Lock()
	foreign := c.foreign
	c.mu.Unlock()
	if foreign && resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return &refusal{status: resp.StatusCode} // its body may never come
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, errorBodyLimit))
	if err != nil {
		return lost(err) // half of an answer isn't another answer
	}
	r := &refusal{status: resp.StatusCode, body: b}
	// Only the first value counts: a foreign execd may send two.
	var e struct {
		wire.Error
		Bare string `json:"error"`
	}
	if json.NewDecoder(bytes.NewReader(b)).Decode(&e) == nil {
		if r.code, r.message = e.Code, e.Message; r.code == "" && e.Bare != "" {
			r.code, r.message = codeBare, e.Bare
		}
	}
	ours := resp.Header.Get(wire.HeaderServer) != ""
	switch {
	case resp.StatusCode == http.StatusUnauthorized:
		return fmt.Errorf("%w: the sandbox refused the token (%w)", sandbox.ErrUnreachable, errStale)
	case ours && r.code == wire.CodeStopping:
		return fmt.Errorf("%w: the daemon is stopping", sandbox.ErrUnreachable)
	case r.code == wire.CodeSessionNotFound && (ours || foreign) && resp.StatusCode == http.StatusNotFound:
		return sandbox.Errorf(sandbox.CodeIsolatedSessionNotFound, "the isolated session isn't there any more")
	case ours, r.unknownPath(), foreign && slices.Contains(olderCodes, r.code):
		return r
	}
	return fmt.Errorf("%w: answered %d by something that isn't execd", sandbox.ErrUnreachable, r.status)
}

// unreachable classifies a failure to ask: the context's error when the
// context ended, else ErrUnreachable. The URL is left out of the text. nil stays nil.
func unreachable(ctx context.Context, err error) error {
	var known *sandbox.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, sandbox.ErrUnreachable), errors.As(err, &known):
		return err
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w (%w)", lost(err), errStale)
	}
	return lost(err)
}

// lost makes an ErrUnreachable that keeps the cause's text alone: the end of a
// connection (io.EOF) isn't the end of what it carried, and a dial that took
// too long isn't the caller's deadline.
func lost(cause error) error {
	return fmt.Errorf("%w: %s", sandbox.ErrUnreachable, cause.Error())
}

// CloseIdleConnections closes the connections of the shared pool that nobody
// uses just now.
func CloseIdleConnections() { shared.CloseIdleConnections() }
