package client

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

// CreateTerminal opens a terminal.
func (c *Client) CreateTerminal(ctx context.Context, id string, in wire.CreateTerminal) (out model.Terminal, err error) {
	return out, c.call(ctx, http.MethodPost, one(id)+"/terminals", nil, in, &out)
}

// Terminals lists a conversation's terminals.
func (c *Client) Terminals(ctx context.Context, id string) (out wire.Items[model.Terminal], err error) {
	return out, c.call(ctx, http.MethodGet, one(id)+"/terminals", nil, nil, &out)
}

// DeleteTerminal closes a terminal.
func (c *Client) DeleteTerminal(ctx context.Context, id, terminalID string) error {
	return c.call(ctx, http.MethodDelete, one(id)+"/terminals/"+url.PathEscape(terminalID), nil, nil, nil)
}

// Terminal is an attachment to a terminal. Recv is for one goroutine, the rest
// for any.
type Terminal struct {
	ws   *websocket.Conn
	next int64 // offset of the next byte of output; -1: not known yet
}

// Attach attaches to a terminal. mode is write, takeover or watch. Output
// begins with byte number since; where that isn't kept any more, Recv says so
// with a frame of type gap.
func (c *Client) Attach(ctx context.Context, id, terminalID, mode string, since int64) (*Terminal, error) {
	u := *c.base
	u.Path += "/api/v1/conversations/" + id + "/terminals/" + terminalID + "/attach"
	u.RawQuery = url.Values{"mode": {mode}, "since": {strconv.FormatInt(since, 10)}}.Encode()
	ws, resp, err := websocket.Dial(ctx, u.String(), &websocket.DialOptions{HTTPClient: c.http, Subprotocols: []string{wire.TerminalProtocol}}) //nolint:bodyclose // Dial leaves nothing to close
	if resp != nil && err != nil {
		return nil, &Problem{wire.Problem{Status: resp.StatusCode, Detail: "The terminal can't be attached to: " + resp.Status + "."}}
	}
	if err != nil {
		return nil, c.lost(ctx, err)
	}
	ws.SetReadLimit(1 << 20)
	return &Terminal{ws, since}, nil
}

// Recv gives the next output, or the next frame of another kind.
func (t *Terminal) Recv(ctx context.Context) (output []byte, frame *wire.ServerFrame, err error) {
	kind, data, err := t.ws.Read(ctx)
	if err != nil {
		return nil, nil, err
	}
	if kind == websocket.MessageBinary {
		if len(data) < 8 {
			return nil, nil, errors.New("the server sent a broken frame")
		}
		at := int64(binary.BigEndian.Uint64(data))
		if t.next >= 0 && at != t.next {
			return nil, nil, fmt.Errorf("the server sent output at byte %d, the next one is %d", at, t.next)
		}
		t.next = at + int64(len(data)-8)
		return data[8:], nil, nil
	}
	frame = &wire.ServerFrame{}
	err = json.Unmarshal(data, frame)
	if frame.Type == "gap" {
		t.next = -1 // whatever comes next is the oldest kept
	}
	return nil, frame, err
}

// Send sends input.
func (t *Terminal) Send(ctx context.Context, input []byte) error {
	return t.ws.Write(ctx, websocket.MessageBinary, input)
}

// Resize tells the size of the window.
func (t *Terminal) Resize(ctx context.Context, cols, rows uint16) error {
	data, err := json.Marshal(wire.ClientFrame{Type: "resize", Cols: cols, Rows: rows})
	if err != nil {
		return err
	}
	return t.ws.Write(ctx, websocket.MessageText, data)
}

// Close leaves the terminal, which goes on.
func (t *Terminal) Close() { _ = t.ws.Close(websocket.StatusNormalClosure, "") }
