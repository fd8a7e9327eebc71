package opensandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/astrabox/astrabox/provider/opensandbox/wire"
	"github.com/astrabox/astrabox/sandbox"
)

// client sends requests of the lifecycle API.
type client struct {
	http       *http.Client
	base       *url.URL // nil: in listenFile
	listenFile string
	key        string // empty: in keyFile, if there is one
	keyFile    string
	timeout    time.Duration
}

const (
	answerLimit = 16 << 20 // of a success
	errorLimit  = 64 << 10
	textLimit   = 300 // of the service's text in our errors

	attempts = 3
	// restart is how long a request waits for a service that refuses
	// connections, since nothing was sent and a service that was restarted is
	// back soon.
	restart = 5 * time.Second
)

// call is one request.
type call struct {
	method, path string
	query        url.Values
	header       map[string]string
	body         any           // nil: none
	timeout      time.Duration // zero: the client's
	// twice says that the service accepts the request twice, so that it may be
	// sent again when its fate isn't known.
	twice bool
}

// refusal is an answer of the service that isn't a success.
type refusal struct {
	status        int
	code, message string // code is empty when the answer isn't the API's
}

func (r *refusal) Error() string {
	return fmt.Sprintf("the lifecycle service answered %d %s: %s", r.status, r.code, r.message)
}

// notFound reports whether err is the service's own word that there is no such
// sandbox. A 404 of something else, such as a proxy or a wrong path, isn't.
func notFound(err error) bool {
	var r *refusal
	return errors.As(err, &r) && r.status == http.StatusNotFound && r.code != ""
}

// do sends a request and decodes the answer into out (nil: ignored). Errors
// are a *refusal, the context's, or "the service can't be reached".
func (c *client) do(ctx context.Context, r call, out any) error {
	var body []byte
	if r.body != nil {
		var err error
		if body, err = json.Marshal(r.body); err != nil {
			return fmt.Errorf("open_sandbox: %w", err)
		}
	}
	timeout := r.timeout
	if timeout == 0 {
		timeout = c.timeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	start, wait := time.Now(), 20*time.Millisecond
	for try := 1; ; {
		err := c.once(ctx, r, body, out)
		if err == nil || ctx.Err() != nil {
			return c.explain(ctx, err)
		}
		again := false
		switch {
		case restarting(err):
			again = time.Since(start)+wait < restart
		case r.twice && transient(err):
			try++
			again = try <= attempts
		}
		if !again {
			return c.explain(ctx, err)
		}
		select {
		case <-ctx.Done():
			return c.explain(ctx, err)
		case <-time.After(wait):
		}
		wait = min(2*wait, 500*time.Millisecond)
	}
}

func (c *client) once(ctx context.Context, r call, body []byte, out any) error {
	base, err := c.baseURL()
	if err != nil {
		return err
	}
	key, err := c.apiKey()
	if err != nil {
		return err
	}
	u := base.JoinPath(r.path)
	u.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json")
	if key != "" {
		req.Header.Set(wire.HeaderKey, key)
	}
	for k, v := range r.header {
		// In small letters: a request with an Idempotency-Key, so written, is sent
		// once more by net/http itself when its connection breaks, and a service
		// that doesn't know the key makes a second sandbox then.
		req.Header[strings.ToLower(k)] = []string{v}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		b, _ := io.ReadAll(io.LimitReader(resp.Body, errorLimit)) // a part is as good
		var e wire.Error
		if json.Unmarshal(b, &e) != nil {
			e = wire.Error{}
		}
		return &refusal{status: resp.StatusCode, code: plain(e.Code, key, 64), message: plain(e.Message, key, textLimit)}
	}
	b, err := io.ReadAll(io.LimitReader(resp.Body, answerLimit+1))
	switch {
	case err != nil:
		return err
	case len(b) > answerLimit:
		return fmt.Errorf("%w: the answer is larger than %d bytes", errUnreadable, answerLimit)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return nil
}

var (
	errUnreadable = errors.New("the answer can't be read")
	errNoAddress  = errors.New("its address isn't known")
	errNoKey      = errors.New("its API key can't be used")
)

// baseURL gives the configured address, or the one in the file now: a bundled
// service that was restarted listens elsewhere.
func (c *client) baseURL() (*url.URL, error) {
	if c.base != nil {
		return c.base, nil
	}
	b, err := os.ReadFile(c.listenFile)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errNoAddress, settingListenFile, err)
	}
	var l struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return nil, fmt.Errorf("%w: %s: %s isn't JSON with a url: %w", errNoAddress, settingListenFile, c.listenFile, err)
	}
	u, err := parseBase(l.URL)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: the url in %s %w", errNoAddress, settingListenFile, c.listenFile, err)
	}
	return u, nil
}

func (c *client) apiKey() (string, error) {
	if c.key != "" || c.keyFile == "" {
		return c.key, nil
	}
	b, err := os.ReadFile(c.keyFile)
	if err != nil {
		return "", fmt.Errorf("%w: %s: %w", errNoKey, settingKeyFile, err)
	}
	key := strings.TrimSpace(string(b))
	if err := checkKey(key); err != nil {
		return "", fmt.Errorf("%w: %s: the key in %s %w", errNoKey, settingKeyFile, c.keyFile, err)
	}
	return key, nil
}

// unsent reports whether the request certainly didn't reach the service: there
// was no address, key or connection for it.
func unsent(err error) bool {
	var op *net.OpError
	return errors.Is(err, errNoAddress) || errors.Is(err, errNoKey) || errors.As(err, &op) && op.Op == "dial"
}

// restarting reports whether the service may be one that is being started.
func restarting(err error) bool {
	return unsent(err) && (errors.Is(err, errNoAddress) || errors.Is(err, syscall.ECONNREFUSED))
}

// transient reports whether the same request may succeed in a moment.
func transient(err error) bool {
	var r *refusal
	if errors.As(err, &r) {
		return r.status == http.StatusBadGateway || r.status == http.StatusServiceUnavailable || r.status == http.StatusGatewayTimeout
	}
	return !errors.Is(err, errUnreadable)
}

// explain makes a failure to ask an error without the URL. nil stays nil.
func (c *client) explain(ctx context.Context, err error) error {
	var r *refusal
	if err == nil || errors.As(err, &r) {
		return err
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = errors.Join(ctx.Err(), err)
	}
	return fmt.Errorf("the lifecycle service can't be asked: %w", err)
}

// plain makes the service's text fit for an error: one line, shortened,
// without the key.
func plain(s, key string, limit int) string {
	if key != "" {
		s = strings.ReplaceAll(s, key, "***")
	}
	s = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	return s
}

// failed makes err an error of the seam. missing is the code of a sandbox that
// isn't there; id is the sandbox concerned, if one is.
func failed(err error, id string, missing sandbox.Code) error {
	if err == nil {
		return nil
	}
	var known *sandbox.Error
	if errors.As(err, &known) {
		return err
	}
	var r *refusal
	e := &sandbox.Error{}
	switch {
	case !errors.As(err, &r):
		e = sandbox.Errorf(sandbox.CodeUnavailable, "%w", err)
	case notFound(err):
		e = sandbox.Errorf(missing, "the lifecycle service knows no sandbox %s: %s", id, r.message)
	case r.status == http.StatusNotFound && r.code == "":
		e = sandbox.Errorf(sandbox.CodeUnavailable, "there is no lifecycle API at that address (404, without the API's error code): does %s end in the API's path, which is mostly /v1, as in %s?", settingBaseURL, exampleURL)
	case r.status == http.StatusUnauthorized, r.status == http.StatusForbidden:
		e = sandbox.Errorf(sandbox.CodeUnavailable, "the lifecycle service refused the API key; set the right one with %s or %s", settingKey, settingKeyFile)
		e.Retryable = false
	case r.status == http.StatusNotImplemented:
		e = sandbox.Errorf(sandbox.CodeUnsupported, "open_sandbox: %s", r.message)
	case r.status == http.StatusTooManyRequests, r.status == http.StatusServiceUnavailable:
		e = sandbox.Errorf(sandbox.CodeCapacity, "%s", r.Error())
	case r.status == http.StatusBadRequest, r.status == http.StatusUnprocessableEntity, r.status == http.StatusRequestEntityTooLarge:
		e = sandbox.Errorf(sandbox.CodeInvalid, "%s", r.Error())
	case r.status == http.StatusConflict && missing != "" && id != "":
		e = sandbox.Errorf(sandbox.CodeNotRunning, "%s", r.Error())
	default:
		e = sandbox.Errorf(sandbox.CodeUnavailable, "%s", r.Error())
	}
	e.SandboxID, e.Cause = id, err
	return e
}
