package execd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	// framesAhead is how many frames (of at most wire.MaxFrame) are read before
	// Recv asks for them, so that a caller that is busy for a moment doesn't
	// look like one that has gone.
	framesAhead = 16
	// sendTime bounds one message to a daemon that doesn't read.
	sendTime = 15 * time.Second
	// stdinStep is how much stdin goes into one message.
	stdinStep = 64 << 10

	closeTime = 3 * time.Second
	pingEvery = 30 * time.Second
	pongTime  = 30 * time.Second
)

var errReadOnly = errors.New("execd: a read-only attachment can't send")

// attachment is one WebSocket to a process. Two goroutines belong to it; Close
// ends and awaits them, and the loss of the connection ends them too.
type attachment struct {
	ws       *websocket.Conn
	readOnly bool
	frames   chan received
	free     chan []byte   // buffers that Recv has done with
	closing  chan struct{} // closed by Close
	ended    chan struct{} // closed when the reader ended, after err was set
	err      error         // why the frames end
	close    sync.Once
	wg       sync.WaitGroup

	last []byte // the buffer of the frame that Recv gave last

	send    chan struct{} // holds one token: who sends stdin
	mu      sync.Mutex
	flight  int64         // stdin that the run has accepted or been sent
	written int64         // of which it has taken
	moved   chan struct{} // closed and replaced when written grows
}

type received struct {
	frame sandbox.Frame
	buf   []byte
}

// newAttachment waits for the daemon's first message and starts reading.
func newAttachment(ctx context.Context, ws *websocket.Conn, o sandbox.AttachOptions) (sandbox.Attachment, error) {
	ws.SetReadLimit(wire.OutputHeaderSize + wire.MaxFrame)
	t, b, err := ws.Read(ctx)
	var hello wire.Connected
	if err == nil && (t != websocket.MessageText || json.Unmarshal(b, &hello) != nil || hello.Type != wire.TypeConnected) {
		err = errors.New("the daemon's first message isn't a greeting")
	}
	if err != nil {
		ws.CloseNow()
		return nil, unreachable(ctx, closeError(err))
	}
	a := &attachment{
		ws: ws, readOnly: o.ReadOnly,
		frames: make(chan received, framesAhead), free: make(chan []byte, framesAhead),
		closing: make(chan struct{}), ended: make(chan struct{}), moved: make(chan struct{}),
		send: make(chan struct{}, 1), flight: hello.Stdin, written: hello.Written,
	}
	for range framesAhead {
		a.free <- nil
	}
	a.wg.Go(func() { a.read(o.From) })
	a.wg.Go(a.ping)
	return a, nil
}

// read is the reader's goroutine. After Close it goes on reading, so that the
// closing handshake gets through.
func (a *attachment) read(next int64) {
	err := a.readFrames(next)
	a.err = closeError(err)
	close(a.ended)
	close(a.frames)
	a.ws.CloseNow()
}

func (a *attachment) readFrames(next int64) error {
	for {
		t, r, err := a.ws.Reader(context.Background()) // Close and the ping end it
		if err != nil {
			return err
		}
		var buf []byte
		select {
		case buf = <-a.free:
		case <-a.closing:
		}
		if buf, err = readAll(r, buf[:0]); err != nil {
			return err
		}
		f := received{buf: buf}
		switch {
		case t == websocket.MessageBinary && len(buf) >= wire.OutputHeaderSize:
			channel, run, offset := wire.OutputHeader(buf)
			data := buf[wire.OutputHeaderSize:]
			if offset != next {
				return fmt.Errorf("output jumps from byte %d to %d", next, offset)
			}
			next += int64(len(data))
			f.frame = sandbox.Frame{Run: run, Offset: offset, Channel: sandbox.Channel(channel), Data: data}
		case t == websocket.MessageText:
			exit, err := a.message(buf, next)
			if err != nil {
				return err
			}
			if exit == nil {
				a.giveBack(buf)
				continue
			}
			f.frame = *exit
		default:
			return errors.New("a message that isn't of the protocol")
		}
		select {
		case a.frames <- f:
		case <-a.closing:
		}
	}
}

// giveBack doesn't wait: there are as many places as buffers, until Close.
func (a *attachment) giveBack(buf []byte) {
	select {
	case a.free <- buf:
	default:
	}
}

// message handles a text message; a frame is one for Recv.
func (a *attachment) message(b []byte, next int64) (*sandbox.Frame, error) {
	var m wire.ServerMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("a message that can't be read: %w", err)
	}
	switch m.Type {
	case wire.TypeExit:
		return &sandbox.Frame{Run: m.Run, Offset: next, Exit: &sandbox.Exit{Code: m.Code, Signal: m.Signal}}, nil
	case wire.TypeStdin:
		a.mu.Lock()
		a.written = max(a.written, m.Written)
		close(a.moved)
		a.moved = make(chan struct{})
		a.mu.Unlock()
	}
	return nil, nil // what a later protocol adds is passed over
}

// ping notices a daemon that has gone without a word.
func (a *attachment) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-a.ended:
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), pongTime)
		err := a.ws.Ping(ctx)
		cancel()
		if err != nil {
			a.ws.CloseNow()
			return
		}
	}
}

// closeError says what the end of the connection means.
func closeError(err error) error {
	switch websocket.CloseStatus(err) {
	case wire.CloseEnd:
		return io.EOF
	case wire.CloseTakenOver:
		return sandbox.ErrDisplaced
	case wire.CloseLagging:
		return fmt.Errorf("%w: this attachment was too slow", sandbox.ErrUnreachable)
	case wire.CloseStopping:
		return fmt.Errorf("%w: the daemon is stopping", sandbox.ErrUnreachable)
	case wire.ClosePolicy:
		return fmt.Errorf("%w: the daemon refused a message", sandbox.ErrUnreachable)
	}
	return lost(err)
}

func (a *attachment) Recv(ctx context.Context) (sandbox.Frame, error) {
	if a.last != nil {
		a.giveBack(a.last)
		a.last = nil
	}
	select {
	case f, ok := <-a.frames:
		if !ok {
			return sandbox.Frame{}, a.err
		}
		a.last = f.buf
		if f.frame.Exit != nil {
			f.frame.Data = nil
		}
		return f.frame, nil
	case <-ctx.Done():
		return sandbox.Frame{}, ctx.Err()
	}
}

func (a *attachment) Send(ctx context.Context, stdin []byte) error {
	if a.readOnly {
		return errReadOnly
	}
	select {
	case a.send <- struct{}{}: // one at a time, so that pieces keep their order
		defer func() { <-a.send }()
	case <-ctx.Done():
		return ctx.Err()
	case <-a.ended:
		return a.err
	}
	buf := make([]byte, 1, 1+min(len(stdin), stdinStep))
	for len(stdin) > 0 {
		n := min(len(stdin), stdinStep)
		if err := a.reserve(ctx, n); err != nil {
			return err
		}
		if err := a.write(ctx, websocket.MessageBinary, append(buf, stdin[:n]...)); err != nil {
			return err
		}
		stdin = stdin[n:]
	}
	return nil
}

// reserve waits until n more bytes may be in flight.
func (a *attachment) reserve(ctx context.Context, n int) error {
	for {
		a.mu.Lock()
		fits := a.flight+int64(n)-a.written <= wire.MaxStdinInFlight
		if fits {
			a.flight += int64(n)
		}
		moved := a.moved
		a.mu.Unlock()
		if fits {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		case <-a.ended:
			return a.err
		}
	}
}

func (a *attachment) write(ctx context.Context, t websocket.MessageType, b []byte) error {
	select {
	case <-a.ended:
		return a.err
	case <-ctx.Done():
		return ctx.Err()
	default:
	}
	// A context that ends during a write would end the connection with it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTime)
	defer cancel()
	if err := a.ws.Write(ctx, t, b); err != nil {
		// The reader learns more: what the daemon closed the connection with.
		select {
		case <-a.ended:
			return a.err
		case <-time.After(time.Second):
			return lost(err)
		}
	}
	return nil
}

func (a *attachment) control(ctx context.Context, m wire.ClientMessage) error {
	if a.readOnly {
		return errReadOnly
	}
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("execd: %w", err)
	}
	return a.write(ctx, websocket.MessageText, b)
}

func (a *attachment) CloseStdin(ctx context.Context) error {
	return a.control(ctx, wire.ClientMessage{Type: wire.TypeStdinClose})
}

func (a *attachment) Ack(ctx context.Context, offset int64) error {
	if a.readOnly {
		return nil // a watcher holds nothing back
	}
	err := a.control(ctx, wire.ClientMessage{Type: wire.TypeAck, Offset: offset})
	if errors.Is(err, io.EOF) {
		return nil // all was given and nothing waits
	}
	return err
}

func (a *attachment) Resize(ctx context.Context, s sandbox.Size) error {
	if s.Cols == 0 || s.Rows == 0 {
		return sandbox.Errorf(sandbox.CodeInvalid, "a terminal of %d by %d characters", s.Cols, s.Rows)
	}
	return a.control(ctx, wire.ClientMessage{Type: wire.TypeResize, Cols: s.Cols, Rows: s.Rows})
}

func (a *attachment) Signal(ctx context.Context, name string) error {
	switch name {
	case "SIGINT", "SIGTERM", "SIGKILL", "SIGQUIT", "SIGHUP":
		return a.control(ctx, wire.ClientMessage{Type: wire.TypeSignal, Signal: name})
	}
	return sandbox.Errorf(sandbox.CodeInvalid, "%q is not a signal that can be sent", name)
}

// Close says goodbye, so that what was sent before arrives and the process is
// free when it returns, and waits for that for a few seconds at most.
func (a *attachment) Close() error {
	a.close.Do(func() {
		close(a.closing)
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		b, _ := json.Marshal(wire.ClientMessage{Type: wire.TypeDetach})
		if a.ws.Write(ctx, websocket.MessageText, b) == nil {
			select {
			case <-a.ended:
			case <-ctx.Done():
			}
		}
		a.ws.CloseNow()
	})
	a.wg.Wait()
	return nil
}

// readAll reads r to its end into buf, growing it where it must.
func readAll(r io.Reader, buf []byte) ([]byte, error) {
	for {
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if err == io.EOF {
			return buf, nil
		}
		if err != nil {
			return buf, err
		}
	}
}
