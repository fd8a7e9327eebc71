// Package client calls the HTTP API from Go; the command line does so.
//
// Errors are *[Problem] for what the server refused, *[Unreachable] when it
// couldn't be asked or the connection was lost, and context errors. A Client
// is safe for concurrent use.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

// Client reaches one server.
type Client struct {
	base *url.URL
	http *http.Client
}

// New makes a client of the server at that address, such as
// http://127.0.0.1:8088. It does no I/O. Redirects are not followed: this
// server sends none.
func New(server string) (*Client, error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		// Its text is left out: it may hold a password.
		return nil, errors.New("that is not the address of a server, such as http://127.0.0.1:8088 (without user, query or fragment)")
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	return &Client{base: u, http: &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Server is the address that the client was made with.
func (c *Client) Server() string { return c.base.String() }

// Close lets go of idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Problem is a refusal or failure that the server told.
type Problem struct{ wire.Problem }

func (p *Problem) Error() string {
	if p.Code == "" {
		return p.Detail
	}
	return fmt.Sprintf("%s (%s)", p.Detail, p.Code)
}

// NotFound reports whether err is a Problem with the status 404 or 410.
func NotFound(err error) bool {
	var p *Problem
	return errors.As(err, &p) && (p.Status == http.StatusNotFound || p.Status == http.StatusGone)
}

// Unreachable: the server couldn't be asked, or its answer broke off.
type Unreachable struct {
	Server string
	Err    error
}

func (u *Unreachable) Error() string {
	var inner *url.Error
	if errors.As(u.Err, &inner) {
		return fmt.Sprintf("can't reach the server at %s: %v", u.Server, inner.Err)
	}
	return fmt.Sprintf("can't reach the server at %s: %v", u.Server, u.Err)
}

// Unwrap gives the cause.
func (u *Unreachable) Unwrap() error { return u.Err }

func (c *Client) lost(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &Unreachable{Server: c.Server(), Err: err}
}

// request describes a call. Parts of path are escaped by the caller.
type request struct {
	method, path string
	query        url.Values
	header       http.Header
	body         io.Reader
}

// do sends a request and gives a response with a status below 300. The caller
// closes its body.
func (c *Client) do(ctx context.Context, r request) (*http.Response, error) {
	u := *c.base
	// Ids and paths come from people: they are escaped once, here.
	u.RawPath = u.EscapedPath() + r.path
	unescaped, err := url.PathUnescape(r.path)
	if err != nil {
		return nil, err
	}
	u.Path += unescaped
	u.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), r.body)
	if err != nil {
		return nil, err
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.lost(ctx, err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	p := &Problem{}
	if err == nil && json.Unmarshal(text, &p.Problem) == nil && p.Code != "" {
		return nil, p
	}
	p.Problem = wire.Problem{Status: resp.StatusCode, Title: resp.Status, Retryable: resp.StatusCode >= 500,
		Detail: fmt.Sprintf("%s answered %s, which AstraBox never does; is it another server?", c.Server(), resp.Status)}
	return nil, p
}

// call sends in as JSON, unless it is nil, and reads the answer into out,
// unless that is nil.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out any, header ...string) error {
	r := request{method: method, path: path, query: query, header: http.Header{"Accept": {"application/json"}}}
	for i := 0; i+1 < len(header); i += 2 {
		if header[i+1] != "" {
			r.header.Set(header[i], header[i+1])
		}
	}
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		r.body = bytes.NewReader(data)
		r.header.Set("Content-Type", "application/json")
	}
	resp, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return c.lost(ctx, fmt.Errorf("its answer can't be read: %w", err))
	}
	return nil
}

func one(id string) string { return "/api/v1/conversations/" + url.PathEscape(id) }

// CreateConversation makes a conversation. key makes a repetition harmless.
func (c *Client) CreateConversation(ctx context.Context, in wire.CreateConversation, key string) (out model.Conversation, err error) {
	return out, c.call(ctx, http.MethodPost, "/api/v1/conversations", nil, in, &out, "Idempotency-Key", key)
}

// Conversation reads one.
func (c *Client) Conversation(ctx context.Context, id string) (out model.Conversation, err error) {
	return out, c.call(ctx, http.MethodGet, one(id), nil, nil, &out)
}

// Conversations reads a page.
func (c *Client) Conversations(ctx context.Context, cursor string, limit int) (out wire.Conversations, err error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	return out, c.call(ctx, http.MethodGet, "/api/v1/conversations", q, nil, &out)
}

// Rename sets a conversation's title.
func (c *Client) Rename(ctx context.Context, id, title string) (out model.Conversation, err error) {
	return out, c.call(ctx, http.MethodPatch, one(id), nil, wire.ChangeConversation{Title: title}, &out)
}

// Delete deletes a conversation with its sandbox.
func (c *Client) Delete(ctx context.Context, id string) (out model.Conversation, err error) {
	return out, c.call(ctx, http.MethodDelete, one(id), nil, nil, &out)
}

// Send sends a message.
func (c *Client) Send(ctx context.Context, id string, in wire.SendMessage) (out model.Turn, err error) {
	return out, c.call(ctx, http.MethodPost, one(id)+"/messages", nil, in, &out)
}

// Interrupt stops the turn in progress.
func (c *Client) Interrupt(ctx context.Context, id string) (out model.Turn, err error) {
	return out, c.call(ctx, http.MethodPost, one(id)+"/interrupt", nil, nil, &out)
}

// Turn reads a turn.
func (c *Client) Turn(ctx context.Context, id, turnID string) (out model.Turn, err error) {
	return out, c.call(ctx, http.MethodGet, one(id)+"/turns/"+url.PathEscape(turnID), nil, nil, &out)
}

// Events reads a piece of the journal.
func (c *Client) Events(ctx context.Context, id string, after int64, limit int) (out wire.Events, err error) {
	q := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(limit)}}
	return out, c.call(ctx, http.MethodGet, one(id)+"/events", q, nil, &out)
}

// Environments lists the Environments.
func (c *Client) Environments(ctx context.Context) (out wire.Items[model.Environment], err error) {
	return out, c.call(ctx, http.MethodGet, "/api/v1/environments", nil, nil, &out)
}

// Agents lists the Agents.
func (c *Client) Agents(ctx context.Context) (out wire.Items[model.Agent], err error) {
	return out, c.call(ctx, http.MethodGet, "/api/v1/agents", nil, nil, &out)
}

// Doctor asks the server about its machine.
func (c *Client) Doctor(ctx context.Context) (out wire.Items[wire.Finding], err error) {
	return out, c.call(ctx, http.MethodGet, "/api/v1/doctor", nil, nil, &out)
}

// Health asks whether the server is alive.
func (c *Client) Health(ctx context.Context) (out wire.Health, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return out, c.call(ctx, http.MethodGet, "/healthz", nil, nil, &out)
}
