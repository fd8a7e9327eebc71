package execd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/sandbox"
)

// answerTime is how long the daemon may take to answer for a WebSocket. It answers
// within half a minute even where a start hangs.
const answerTime = 90 * time.Second

// socket opens a WebSocket. ctx bounds the handshake, and answerTime each try. A refusal is a *refusal;
// like a request, one that had no effect is tried again at a new endpoint.
// An empty protocol is the older one, which has no name.
func (c *Conn) socket(ctx context.Context, path, query, protocol string) (*websocket.Conn, error) {
	before, err := c.address(ctx)
	if err != nil {
		return nil, unreachable(ctx, err)
	}
	ws, err := c.openSocket(ctx, before, path, query, protocol)
	if errors.Is(err, sandbox.ErrUnreachable) {
		c.forget() // as in attempt
	}
	if err == nil || !errors.Is(err, errStale) {
		return ws, err
	}
	after, again := c.address(ctx)
	if again != nil || same(before, after) {
		return nil, err
	}
	return c.openSocket(ctx, after, path, query, protocol)
}

func (c *Conn) openSocket(ctx context.Context, e sandbox.Endpoint, path, query, protocol string) (*websocket.Conn, error) {
	u, header := target(e, c.within(path), query)
	var protocols []string
	if protocol != "" {
		protocols = []string{protocol}
	}
	opening, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	//nolint:bodyclose // Dial has read the body and replaced it by what it read
	ws, resp, err := websocket.Dial(opening, u.String(), &websocket.DialOptions{
		HTTPClient:      c.apart,
		HTTPHeader:      header,
		Subprotocols:    protocols,
		CompressionMode: websocket.CompressionDisabled,
	})
	switch {
	case err == nil && ws.Subprotocol() == protocol:
		return ws, nil
	case err == nil:
		ws.CloseNow()
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "the execd of this sandbox doesn't speak %s", protocol)
	case ctx.Err() == nil && resp != nil && resp.StatusCode >= 300:
		return nil, c.refused(resp)
	case ctx.Err() == nil && resp != nil:
		return nil, fmt.Errorf("%w: answered %d instead of a WebSocket", sandbox.ErrUnreachable, resp.StatusCode)
	}
	return nil, unreachable(ctx, err)
}
