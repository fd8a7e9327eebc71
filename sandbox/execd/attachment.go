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
	sendTime  = 15 * time.Second
	closeTime = 3 * time.Second
	pingEvery = 30 * time.Second
	pongTime  = 30 * time.Second
)

var (
	errReadOnly = errors.New("execd: a read-only attachment can't send")
	// errOver: a dialect has given all that there is.
	errOver = errors.New("nothing more to come")
	errSlow = errors.New("this attachment was too slow")
)

// dialect is one of the two protocols that an attachment can speak. read is
// for the reader's goroutine, the rest for any.
type dialect interface {
	// read turns a message into frames, whose data may be of b. Frames that
	// come with an error are given before it.
	read(a *attachment, t websocket.MessageType, b []byte) ([]sandbox.Frame, error)
	// closed says what the end of the connection means: io.EOF, ErrDisplaced
	// or ErrUnreachable.
	closed(err error) error
	// stdin sends one piece, for which there is room.
	stdin(ctx context.Context, a *attachment, b []byte) error
	control(ctx context.Context, a *attachment, m wire.ClientMessage) error
	// detach gives the process up, after what was sent has arrived.
	detach(ctx context.Context, a *attachment)
	limits() limits
}

// limits are how a dialect wants to be treated.
type limits struct {
	message int64 // longest message of the daemon
	window  int64 // stdin that may be in flight
	step    int   // stdin in one message
	// stall is how long Recv may keep the reader waiting before the process is
	// given up; 0: the daemon sees to that.
	stall time.Duration
	// deaf: the daemon doesn't answer pings while the process leaves stdin unread.
	deaf bool
}

// attachment is one WebSocket to a process: everything that doesn't depend on
// what is spoken over it. Two goroutines belong to it; Close ends and awaits
// them, and the loss of the connection ends them too.
type attachment struct {
	ws       *websocket.Conn
	d        dialect
	lim      limits
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
	buf   []byte // given back after the frame; nil: another frame needs it too
}

// start makes an attachment of a WebSocket whose greeting has been read. Recv
// gives first, then what comes; over: nothing comes.
func (a *attachment) start(first []sandbox.Frame, over bool) *attachment {
	a.lim = a.d.limits()
	a.frames, a.free = make(chan received, framesAhead), make(chan []byte, framesAhead)
	a.closing, a.ended = make(chan struct{}), make(chan struct{})
	a.moved, a.send = make(chan struct{}), make(chan struct{}, 1)
	for range framesAhead {
		a.free <- nil
	}
	a.wg.Go(func() { a.read(first, over) })
	a.wg.Go(a.ping)
	return a
}

// read is the reader's goroutine. After Close it goes on reading, so that the
// closing handshake gets through.
func (a *attachment) read(first []sandbox.Frame, over bool) {
	err := a.pass(first, nil)
	if err == nil && over {
		err = errOver
	}
	for err == nil {
		err = a.readMessage()
	}
	a.err = a.d.closed(err)
	close(a.ended)
	close(a.frames)
	a.ws.CloseNow()
}

func (a *attachment) readMessage() error {
	t, r, err := a.ws.Reader(context.Background()) // Close and the ping end it
	if err != nil {
		return err
	}
	var buf []byte
	select {
	case buf = <-a.free:
	default:
		select {
		case buf = <-a.free:
		case <-a.closing:
		case <-a.stalled():
			return errSlow
		}
	}
	if buf, err = readAll(r, buf[:0]); err != nil {
		return err
	}
	frames, err := a.d.read(a, t, buf)
	if slow := a.pass(frames, buf); slow != nil {
		return slow
	}
	return err
}

// stalled says when Recv has kept the reader waiting for too long.
func (a *attachment) stalled() <-chan time.Time {
	if a.lim.stall == 0 {
		return nil
	}
	return time.After(a.lim.stall)
}

// pass hands frames to Recv. After Close they are dropped.
func (a *attachment) pass(frames []sandbox.Frame, buf []byte) error {
	if len(frames) == 0 && buf != nil {
		a.giveBack(buf)
	}
	for i, f := range frames {
		r := received{frame: f}
		if i == len(frames)-1 {
			r.buf = buf
		}
		select {
		case a.frames <- r:
			continue
		default:
		}
		select {
		case a.frames <- r:
		case <-a.closing:
		case <-a.stalled():
			return errSlow
		}
	}
	return nil
}

// giveBack doesn't wait: there are as many places as buffers, until Close.
func (a *attachment) giveBack(buf []byte) {
	select {
	case a.free <- buf:
	default:
	}
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
		deaf := a.lim.deaf && ctx.Err() != nil && a.unread()
		if err != nil && !deaf {
			a.ws.CloseNow()
			return
		}
	}
}

// unread reports whether stdin is in flight.
func (a *attachment) unread() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.flight > a.written
}

// wrote counts stdin up to total, or n more bytes of it, as taken.
func (a *attachment) wrote(total, n int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.written = max(a.written+n, total)
	close(a.moved)
	a.moved = make(chan struct{})
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
	for len(stdin) > 0 {
		n := min(len(stdin), a.lim.step)
		if err := a.reserve(ctx, n); err != nil {
			return err
		}
		if err := a.d.stdin(ctx, a, stdin[:n]); err != nil {
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
		fits := a.flight+int64(n)-a.written <= a.lim.window
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
	return a.d.control(ctx, a, m)
}

// text sends a message of JSON.
func (a *attachment) text(ctx context.Context, m wire.ClientMessage) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("execd: %w", err)
	}
	return a.write(ctx, websocket.MessageText, b)
}

// input sends a piece of stdin, which both dialects put the same way.
func (a *attachment) input(ctx context.Context, b []byte) error {
	return a.write(ctx, websocket.MessageBinary, append([]byte{0}, b...))
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
		a.d.detach(ctx, a)
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
