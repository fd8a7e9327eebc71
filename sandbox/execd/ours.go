package execd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// ours is the dialect of AstraBox's daemon, wire.ProcessProtocol.
type ours struct {
	next int64 // offset of the next byte
}

// attachOurs waits for the daemon's first message and starts reading.
func attachOurs(ctx context.Context, ws *websocket.Conn, o sandbox.AttachOptions) (sandbox.Attachment, error) {
	d := &ours{next: o.From}
	ws.SetReadLimit(d.limits().message)
	t, b, err := ws.Read(ctx)
	var hello wire.Connected
	if err == nil && (t != websocket.MessageText || json.Unmarshal(b, &hello) != nil || hello.Type != wire.TypeConnected) {
		err = errors.New("the daemon's first message isn't a greeting")
	}
	if err != nil {
		ws.CloseNow()
		return nil, unreachable(ctx, d.closed(err))
	}
	a := &attachment{ws: ws, d: d, readOnly: o.ReadOnly, flight: hello.Stdin, written: hello.Written}
	return a.start(nil, false), nil
}

func (*ours) limits() limits {
	return limits{message: wire.OutputHeaderSize + wire.MaxFrame, window: wire.MaxStdinInFlight, step: 64 << 10}
}

func (d *ours) read(a *attachment, t websocket.MessageType, b []byte) ([]sandbox.Frame, error) {
	switch {
	case t == websocket.MessageBinary && len(b) >= wire.OutputHeaderSize:
		channel, run, offset := wire.OutputHeader(b)
		data := b[wire.OutputHeaderSize:]
		if offset != d.next {
			return nil, fmt.Errorf("output jumps from byte %d to %d", d.next, offset)
		}
		d.next += int64(len(data))
		return []sandbox.Frame{{Run: run, Offset: offset, Channel: sandbox.Channel(channel), Data: data}}, nil
	case t != websocket.MessageText:
		return nil, errors.New("a message that isn't of the protocol")
	}
	var m wire.ServerMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("a message that can't be read: %w", err)
	}
	switch m.Type {
	case wire.TypeExit:
		return []sandbox.Frame{{Run: m.Run, Offset: d.next, Exit: &sandbox.Exit{Code: m.Code, Signal: m.Signal}}}, nil
	case wire.TypeStdin:
		a.wrote(m.Written, 0)
	}
	return nil, nil // what a later protocol adds is passed over
}

func (*ours) closed(err error) error {
	switch websocket.CloseStatus(err) {
	case wire.CloseEnd:
		return io.EOF
	case wire.CloseTakenOver:
		return sandbox.ErrDisplaced
	case wire.CloseLagging:
		return fmt.Errorf("%w: %w", sandbox.ErrUnreachable, errSlow)
	case wire.CloseStopping:
		return fmt.Errorf("%w: the daemon is stopping", sandbox.ErrUnreachable)
	case wire.ClosePolicy:
		return fmt.Errorf("%w: the daemon refused a message", sandbox.ErrUnreachable)
	}
	return lost(err)
}

func (*ours) stdin(ctx context.Context, a *attachment, b []byte) error { return a.input(ctx, b) }

func (*ours) control(ctx context.Context, a *attachment, m wire.ClientMessage) error {
	return a.text(ctx, m)
}

func (*ours) detach(ctx context.Context, a *attachment) {
	b, _ := json.Marshal(wire.ClientMessage{Type: wire.TypeDetach})
	if a.ws.Write(ctx, websocket.MessageText, b) == nil {
		select {
		case <-a.ended:
		case <-ctx.Done():
		}
	}
}
