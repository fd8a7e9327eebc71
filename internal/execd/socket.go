package execd

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/process"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	// pingEvery and pongTime drop a silent peer after at most 60 s.
	pingEvery = 30 * time.Second
	pongTime  = 30 * time.Second
	// stallTime drops a peer that doesn't read.
	stallTime = 10 * time.Second
)

// signals are those that a client may send.
var signals = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGQUIT, syscall.SIGHUP}

func (s *Server) attachProcess(w http.ResponseWriter, r *http.Request) {
	p := s.process(w, r)
	if p == nil {
		return
	}
	// Before the attachment, which may start the process or take it from
	// somebody: neither is for a request that can't become a WebSocket.
	if problem := handshakeProblem(r); problem != "" {
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, "not a WebSocket request: "+problem)
		return
	}
	if !hasToken(r.Header, "Sec-WebSocket-Protocol", wire.ProcessProtocol) {
		s.attachOldProcess(w, r, p)
		return
	}
	o, ok := attachOptions(r)
	if !ok {
		refuse(w, http.StatusBadRequest, wire.CodeInvalidOffset, "since is not a number")
		return
	}
	a, err := p.Attach(o)
	if err != nil {
		refuseAttach(w, err)
		return
	}
	defer a.Close()
	if conn := accept(w, r, wire.ProcessProtocol); conn != nil {
		serveAttachment(conn, a, peer{send: send, receive: receive})
	}
}

// handshakeProblem says what a request lacks of a WebSocket handshake; "": nothing.
func handshakeProblem(r *http.Request) string {
	keys := r.Header.Values("Sec-WebSocket-Key")
	switch {
	case !r.ProtoAtLeast(1, 1):
		return "it isn't HTTP/1.1"
	case !hasToken(r.Header, "Connection", "upgrade"), !hasToken(r.Header, "Upgrade", "websocket"):
		return "it asks for no upgrade to one"
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		return "Sec-WebSocket-Version isn't 13"
	case len(keys) != 1:
		return "there isn't one Sec-WebSocket-Key"
	}
	if key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(keys[0])); err != nil || len(key) != 16 {
		return "Sec-WebSocket-Key isn't 16 bytes in base64"
	}
	return ""
}

// hasToken reports whether a header lists a token, in whatever case.
func hasToken(h http.Header, name, token string) bool {
	for _, line := range h.Values(name) {
		for one := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(one), token) {
				return true
			}
		}
	}
	return false
}

// accept completes the handshake. nil: it failed and was answered.
func accept(w http.ResponseWriter, r *http.Request, protocols ...string) *websocket.Conn {
	conn, err := websocket.Accept(wholeFrames{w}, r, &websocket.AcceptOptions{
		Subprotocols:    protocols,
		CompressionMode: websocket.CompressionDisabled,
		// The token is in a header, which no web page can make a browser send.
		InsecureSkipVerify: true,
	})
	if err != nil {
		return nil
	}
	return conn
}

// wholeFrames gives a WebSocket a write buffer that holds a whole message, so
// that it goes out in one piece. With net/http's own buffer a large one takes
// two writes, and wakes the client twice.
type wholeFrames struct{ http.ResponseWriter }

const frameHeader = 14 // of a WebSocket frame, at most

// Hijack implements [http.Hijacker].
func (w wholeFrames) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		rw.Writer = bufio.NewWriterSize(conn, frameHeader+wire.OutputHeaderSize+wire.MaxFrame)
	}
	return conn, rw, err
}

// peer is what the two protocols do differently.
type peer struct {
	// send writes the attachment's events and says how to close.
	send func(context.Context, *websocket.Conn, *process.Attachment) (websocket.StatusCode, string)
	// receive carries out what the client sends until the connection ends. A
	// code says that the client broke a rule.
	receive func(context.Context, *websocket.Conn, *process.Attachment) websocket.StatusCode
}

// serveAttachment carries an attachment over a WebSocket until either ends.
func serveAttachment(conn *websocket.Conn, a *process.Attachment, p peer) {
	conn.SetReadLimit(wire.MaxClientMessage)
	ctx, cancel := context.WithCancel(context.Background())
	defer conn.CloseNow()
	pinged := make(chan struct{})
	go func() {
		defer close(pinged)
		keepPinging(ctx, conn, pingEvery, pongTime, a.Waiting)
	}()
	refused := make(chan websocket.StatusCode, 1) // what the reader closes with
	read := make(chan struct{})
	go func() {
		defer close(read)
		if code := p.receive(ctx, conn, a); code != 0 {
			refused <- code
		}
		a.Close() // Next ends
	}()

	code, reason := p.send(ctx, conn, a)
	a.Close() // the process is free for the next, however long the goodbye takes
	select {
	case code = <-refused:
		reason = "broken rule"
	default:
	}
	_ = conn.Close(code, reason)
	cancel()
	<-pinged
	<-read
}

// keepPinging closes the connection to a peer that doesn't answer. While
// waiting, its answer can't be read, since it comes after input that the process
// doesn't take.
func keepPinging(ctx context.Context, conn *websocket.Conn, every, patience time.Duration, waiting func() bool) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ping, cancel := context.WithTimeout(ctx, patience)
		err := conn.Ping(ping)
		unanswered := ping.Err() != nil
		cancel()
		if err != nil && ctx.Err() == nil && (!unanswered || !waiting()) {
			conn.CloseNow()
			return
		}
	}
}

// send speaks process.v1.
func send(ctx context.Context, conn *websocket.Conn, a *process.Attachment) (websocket.StatusCode, string) {
	write := func(t websocket.MessageType, b []byte) error { return write(ctx, conn, t, b) }
	st := a.Status()
	err := write(websocket.MessageText, encode(wire.Connected{
		Type: wire.TypeConnected, Run: st.Run, State: string(st.State),
		Oldest: st.Oldest, Next: st.Next, Stdin: st.Stdin, Written: st.Written,
	}))
	buf := make([]byte, wire.OutputHeaderSize+4<<10)
	for err == nil {
		var e process.Event
		if e, err = a.Next(buf[wire.OutputHeaderSize:]); err != nil {
			break
		}
		switch e.Kind {
		case process.Output:
			wire.PutOutputHeader(buf, e.Channel, e.Run, e.Offset)
			n := wire.OutputHeaderSize + e.N
			err = write(websocket.MessageBinary, buf[:n])
			if n == len(buf) && e.N < wire.MaxFrame { // there is more at a time: use larger messages
				buf = make([]byte, wire.OutputHeaderSize+wire.MaxFrame)
			}
		case process.End:
			err = write(websocket.MessageText, encode(wire.Exited{Type: wire.TypeExit, Run: e.Run, Code: e.Exit.Code, Signal: e.Exit.Signal}))
		case process.Written:
			err = write(websocket.MessageText, encode(wire.StdinWritten{Type: wire.TypeStdin, Run: e.Run, Written: e.Written}))
		case process.Over:
			return wire.CloseEnd, "end"
		}
	}
	return closeOf(err)
}

// write sends a message to a peer that has to read it in time.
func write(ctx context.Context, conn *websocket.Conn, t websocket.MessageType, b []byte) error {
	ctx, cancel := context.WithTimeout(ctx, stallTime)
	defer cancel()
	return conn.Write(ctx, t, b)
}

// closeOf says how to close after an attachment ended with err.
func closeOf(err error) (websocket.StatusCode, string) {
	switch {
	case errors.Is(err, process.ErrTakenOver):
		return wire.CloseTakenOver, "TAKEN_OVER"
	case errors.Is(err, process.ErrLagging):
		return wire.CloseLagging, "too slow"
	case errors.Is(err, process.ErrStopping):
		return wire.CloseStopping, "stopping"
	}
	return websocket.StatusNormalClosure, ""
}

// receive speaks process.v1. It never waits for the process.
func receive(ctx context.Context, conn *websocket.Conn, a *process.Attachment) websocket.StatusCode {
	buf := make([]byte, 0, 4<<10)
	for {
		t, r, err := conn.Reader(ctx)
		if err != nil {
			return 0
		}
		if buf, err = readAll(r, buf[:0]); err != nil {
			return 0
		}
		ok := false
		if t == websocket.MessageBinary {
			ok = len(buf) > 0 && buf[0] == 0 && a.Stdin(buf[1:]) == nil
		} else {
			ok = control(a, buf)
		}
		if !ok {
			return wire.ClosePolicy
		}
	}
}

// readAll is io.ReadAll into a buffer that is used again.
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

// control carries out a text message; false: it isn't one of the protocol.
func control(a *process.Attachment, b []byte) bool {
	var m wire.ClientMessage
	if json.Unmarshal(b, &m) != nil {
		return false
	}
	switch m.Type {
	case wire.TypeResize:
		a.Resize(process.Size{Cols: m.Cols, Rows: m.Rows})
	case wire.TypeSignal:
		sig := unix.SignalNum(m.Signal)
		if !slices.Contains(signals, sig) {
			return false
		}
		a.Signal(sig)
	case wire.TypeStdinClose:
		a.CloseStdin()
	case wire.TypeAck:
		a.Ack(m.Offset)
	case wire.TypeDetach:
		a.Close()
	default:
		return false
	}
	return true
}
