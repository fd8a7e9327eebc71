package httpapi

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/sandbox"
)

const (
	// frameLimit is the longest message that a terminal's client may send;
	// a longer paste is split by the client.
	frameLimit = 1 << 20
	// inputQueue is how many messages of a client may wait for the shell. A
	// client that sends on although nothing is read is cut off, so that the
	// reader is always free for signals, pings and the close.
	inputQueue = 256
	inputBytes = 4 << 20
	// controlQueue is how many resizes and signals may wait, for a sandbox that
	// is being woken say; past it the oldest is dropped.
	controlQueue = 32
	// frameTimeout is how long a client may take to receive one message.
	frameTimeout = 10 * time.Second
	pingEvery    = 30 * time.Second
	maxCells     = 1000 // columns or rows
)

// attachTerminal connects a browser's terminal to a shell. What the request
// itself gets wrong is refused before the upgrade; what the service refuses is
// said after it, in an error frame, because a browser can't read the HTTP
// answer of a WebSocket that failed.
func (s *Server) attachTerminal(w http.ResponseWriter, r *http.Request) {
	p, err := attachQuery(r)
	if err == nil && r.Header.Get("Upgrade") == "" {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		err = fault.New(fault.UpgradeRequired, "")
	}
	if err == nil && !offers(r, wire.TerminalProtocol) {
		err = fault.New(fault.RequestInvalid, "The WebSocket must offer the subprotocol %s.", wire.TerminalProtocol)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}
	ctx, release, err := s.openStream(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer release()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols: []string{wire.TerminalProtocol},
		// The guard checked the origin of this request more strictly already.
		InsecureSkipVerify: true,
		CompressionMode:    websocket.CompressionDisabled,
	})
	if err != nil {
		return // Accept answered
	}
	defer ws.CloseNow() //nolint:errcheck // the orderly close came before
	ws.SetReadLimit(frameLimit)
	t := &terminal{s: s, ws: ws, mode: p.mode, input: make(chan []byte, inputQueue), control: make(chan wire.ClientFrame, controlQueue)}
	t.serve(ctx, r.PathValue("id"), r.PathValue("tid"), p)
}

func offers(r *http.Request, protocol string) bool {
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		if slices.Contains(splitList(line), protocol) {
			return true
		}
	}
	return false
}

// terminal is one attachment over one WebSocket.
type terminal struct {
	s       *Server
	ws      *websocket.Conn
	mode    string
	att     sandbox.Attachment
	input   chan []byte
	queued  atomic.Int64 // bytes in input
	control chan wire.ClientFrame
}

// ending is why an attachment is over: the close that the client gets.
type ending struct {
	code   websocket.StatusCode
	reason string
}

func (e *ending) Error() string { return e.reason }

func (t *terminal) serve(ctx context.Context, conversationID, terminalID string, p attachParams) {
	ctx, cancel := context.WithCancelCause(ctx)
	// Reading starts first: it answers the client's pings and sees it leave
	// while the sandbox is woken, which may take a while. It ends with the
	// connection and not with ctx, since a cancelled read would cut the
	// connection before the client was told why it is over.
	done := make(chan struct{})
	go func() {
		defer close(done)
		cancel(t.readClient(context.WithoutCancel(ctx)))
	}()
	err := t.attach(ctx, conversationID, terminalID, p)
	if err == nil {
		err = t.run(ctx)
		_ = t.att.Close() // the process goes on; nothing is left to lose
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	t.finish(ctx, err)
	cancel(nil)
	_ = t.ws.CloseNow()
	<-done
}

// attach takes the process and says from where its output comes.
func (t *terminal) attach(ctx context.Context, conversationID, terminalID string, p attachParams) error {
	o := p.options()
	att, err := t.s.service.AttachTerminal(ctx, conversationID, terminalID, o)
	var gap *sandbox.ReplayGapError
	if errors.As(err, &gap) {
		o.From = gap.Oldest
		if att, err = t.s.service.AttachTerminal(ctx, conversationID, terminalID, o); err == nil && p.since >= 0 {
			err = t.send(ctx, wire.ServerFrame{Type: "gap", Oldest: &o.From})
			if err != nil {
				_ = att.Close()
				return err
			}
		}
	}
	if err != nil {
		return err
	}
	t.att = att
	mode := modeWrite
	if p.mode == modeWatch {
		mode = modeWatch
	}
	if err := t.send(ctx, wire.ServerFrame{Type: "ready", Mode: mode, Offset: &o.From}); err != nil {
		_ = att.Close()
		return err
	}
	return nil
}

// run moves output to the client and input to the process until one side ends.
func (t *terminal) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	for _, work := range []func(context.Context) error{t.writeProcess, t.controlProcess, t.ping} {
		group.Go(func() {
			if err := work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	err := t.readProcess(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	cancel(nil)
	group.Wait()
	return err
}

func (t *terminal) readProcess(ctx context.Context) error {
	buf := make([]byte, 0, 64<<10)
	for {
		f, err := t.att.Recv(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return &ending{websocket.StatusNormalClosure, "end"}
		case err != nil:
			return err
		case f.Exit != nil:
			err = t.send(ctx, wire.ServerFrame{Type: "exit", Code: f.Exit.Code, Signal: f.Exit.Signal})
		default:
			buf = binary.BigEndian.AppendUint64(buf[:0], uint64(f.Offset))
			err = t.write(ctx, websocket.MessageBinary, append(buf, f.Data...))
		}
		if err != nil {
			return err
		}
	}
}

// writeProcess passes input on in order.
func (t *terminal) writeProcess(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case data := <-t.input:
			t.queued.Add(-int64(len(data)))
			if err := t.att.Send(ctx, data); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// controlProcess passes resizes and signals on, apart from input: an interrupt
// must not wait behind bytes that nobody reads.
func (t *terminal) controlProcess(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case f := <-t.control:
			var err error
			if f.Type == "resize" {
				err = t.att.Resize(ctx, sandbox.Size{Cols: f.Cols, Rows: f.Rows})
			} else {
				err = t.att.Signal(ctx, f.Name)
			}
			if err == nil || ctx.Err() != nil {
				continue
			}
			// Whether the process is still there is seen by the reader of its
			// output; one that just ended is no reason to stop here.
			if err := t.complain(ctx, err); err != nil {
				return err
			}
		}
	}
}

// ping finds a client that is gone without a word.
func (t *terminal) ping(ctx context.Context) error {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			pingCtx, cancel := context.WithTimeout(ctx, pingEvery)
			err := t.ws.Ping(pingCtx)
			cancel()
			if err != nil && ctx.Err() == nil {
				return errClientGone
			}
		}
	}
}

var errClientGone = errors.New("httpapi: the terminal's client is gone")

// readClient reads the client's frames until the connection ends. Input that
// comes before the attachment stands is queued.
func (t *terminal) readClient(ctx context.Context) error {
	for {
		kind, data, err := t.ws.Read(ctx)
		if err != nil {
			if websocket.CloseStatus(err) == -1 && errors.Is(err, websocket.ErrMessageTooBig) {
				return &ending{websocket.StatusMessageTooBig, "a message is longer than 1 MiB"}
			}
			return errClientGone
		}
		if kind == websocket.MessageBinary {
			err = t.stdin(ctx, data)
		} else {
			err = t.command(ctx, data)
		}
		if err != nil {
			return err
		}
	}
}

func (t *terminal) stdin(ctx context.Context, data []byte) error {
	if t.mode == modeWatch {
		return t.complain(ctx, fault.New(fault.TerminalReadOnly, ""))
	}
	if len(data) == 0 {
		return nil
	}
	if t.queued.Add(int64(len(data))) > inputBytes {
		return &ending{websocket.StatusPolicyViolation, "more input than the terminal reads"}
	}
	select {
	case t.input <- data:
		return nil
	default:
		return &ending{websocket.StatusPolicyViolation, "more input than the terminal reads"}
	}
}

// command does what a text frame asks for. A frame that makes no sense is
// answered with an error and otherwise ignored.
func (t *terminal) command(ctx context.Context, data []byte) error {
	var f wire.ClientFrame
	if err := json.Unmarshal(data, &f); err != nil {
		return t.complain(ctx, fault.Wrap(fault.RequestInvalid, err, "A text frame must be a JSON object."))
	}
	bad := func(format string, args ...any) error {
		return t.complain(ctx, fault.New(fault.RequestInvalid, format, args...))
	}
	switch {
	case f.Type == "ping":
		return t.send(ctx, wire.ServerFrame{Type: "pong"})
	case f.Type != "resize" && f.Type != "signal":
		return bad("A text frame's type must be resize, signal or ping.")
	case t.mode == modeWatch:
		return t.complain(ctx, fault.New(fault.TerminalReadOnly, ""))
	case f.Type == "resize" && (f.Cols < 1 || f.Rows < 1 || f.Cols > maxCells || f.Rows > maxCells):
		return bad("cols and rows must be from 1 to %d.", maxCells)
	case f.Type == "signal" && !slices.Contains(signals, f.Name):
		return bad("name must be one of SIGINT, SIGTERM, SIGKILL, SIGQUIT, SIGHUP.")
	}
	for {
		select {
		case t.control <- f:
			return nil
		default:
		}
		select {
		case <-t.control:
		default:
		}
	}
}

var signals = []string{"SIGINT", "SIGTERM", "SIGKILL", "SIGQUIT", "SIGHUP"}

func (t *terminal) complain(ctx context.Context, err error) error {
	p := newProblem(ctx, err)
	t.s.logFailure(ctx, p)
	return t.send(ctx, wire.ServerFrame{Type: "error", Code: p.Code, Message: p.Detail})
}

func (t *terminal) send(ctx context.Context, f wire.ServerFrame) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return t.write(ctx, websocket.MessageText, data)
}

func (t *terminal) write(ctx context.Context, kind websocket.MessageType, data []byte) error {
	// A cancelled write would cut the connection.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), frameTimeout)
	defer cancel()
	if t.ws.Write(ctx, kind, data) != nil {
		return errClientGone
	}
	return nil
}

// finish tells the client why it is over. ctx may have ended already.
func (t *terminal) finish(ctx context.Context, err error) {
	var end *ending
	switch {
	case errors.Is(err, errClientGone) || err == nil:
		return
	case errors.As(err, &end):
	case errors.Is(err, sandbox.ErrDisplaced):
		_ = t.send(ctx, wire.ServerFrame{Type: "displaced"}) // the client may be gone
		end = &ending{wire.CloseDisplaced, "displaced"}
	case errors.Is(err, errDraining):
		end = &ending{websocket.StatusGoingAway, "the server is stopping"}
	case errors.Is(err, context.Canceled):
		return
	default:
		p := newProblem(ctx, err)
		t.s.logFailure(ctx, p)
		_ = t.send(ctx, wire.ServerFrame{Type: "error", Code: p.Code, Message: p.Detail})
		end = &ending{wire.CloseRefused, p.Code}
		switch {
		case p.Status == http.StatusNotFound || p.Status == http.StatusGone:
			end.code = wire.CloseNotFound
		case p.Code == string(fault.TerminalHeld):
			end.code = wire.CloseHeld
		}
	}
	_ = t.ws.Close(end.code, end.reason) // bounded by the library; the client may be gone
}
