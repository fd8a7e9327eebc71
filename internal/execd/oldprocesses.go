package execd

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"

	"github.com/coder/websocket"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/launch"
	"github.com/astrabox/astrabox/internal/execd/process"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// The older protocol of long-lived processes: output on the same numbering and
// buffer as process.v1, in unnumbered messages after a numbered replay.

// The first bytes of its binary messages.
const (
	oldStdin  = 0
	oldStdout = 1
	oldReplay = 3 // then the offset of the first byte, eight bytes, big endian
)

// oldMessage is any text message of the older protocol.
type oldMessage struct {
	Type      string `json:"type"`
	SessionID string `json:"session_id,omitempty"`
	Mode      string `json:"mode,omitempty"`
	Role      string `json:"role,omitempty"` // "holder" or "viewer"
	ExitCode  *int   `json:"exit_code,omitempty"`
	Error     string `json:"error,omitempty"`
	Code      string `json:"code,omitempty"`

	Data   string `json:"data,omitempty"`
	Cols   int    `json:"cols,omitempty"`
	Rows   int    `json:"rows,omitempty"`
	Signal string `json:"signal,omitempty"`
}

// postOldProcess registers a shell, or a command line, that runs when the first
// client attaches, in a terminal or with pipes as that client says. The
// directory is made where it is missing.
func (s *Server) postOldProcess(w http.ResponseWriter, r *http.Request, req wire.ProcessRequest) {
	p, err := s.registerOld(r.Context(), oldSpec(req.Command, req.Cwd))
	if err != nil {
		status, e, _ := oldStartFailure(err)
		reply(w, status, e)
		return
	}
	reply(w, http.StatusCreated, wire.ProcessCreated{SessionID: p.ID})
}

func oldSpec(line, dir string) process.Spec {
	if line == "" {
		line = `if [ -n "$BASH_VERSION" ]; then exec bash --noprofile --norc; else exec sh; fi`
	}
	return process.Spec{
		Launch: launch.Request{Line: line, Dir: dir}, Buffer: wire.DefaultBuffer,
		TTY: &process.Size{Cols: 80, Rows: 24},
	}
}

func (s *Server) registerOld(ctx context.Context, spec process.Spec) (*process.Process, error) {
	dir, err := launch.ExpandDir(spec.Launch.Dir, nil)
	if err != nil {
		return nil, err
	}
	if dir != "" {
		if dir, err = absoluteDir(dir); err != nil {
			return nil, err
		}
	}
	if err := makeDir(dir); err != nil {
		return nil, &launch.Error{Code: wire.CodeBadDirectory, Message: err.Error()}
	}
	spec.Launch.Dir, spec.Launch.File = dir, s.envFile(ctx)
	plan, err := launch.Prepare(ctx, s.cfg.Accounts, spec.Launch) // so that a mistake shows at once
	if err != nil {
		return nil, err
	}
	plan.Close()
	p, _, err := s.processes.Register(spec)
	return p, err
}

func (s *Server) attachOldProcess(w http.ResponseWriter, r *http.Request, p *process.Process) {
	q := r.URL.Query()
	o := process.Options{Takeover: q.Get("takeover") == "1", Clamp: true, Choose: true, Terminal: &process.Size{Cols: 80, Rows: 24}}
	if q.Get("pty") == "0" {
		o.Terminal = nil
	}
	viewer := q.Get("mode") == "viewer"
	if viewer {
		o.Viewer, o.NeedsRun, o.Takeover = true, true, false
	}
	// What isn't a number asks for all that there is.
	o.Since, _ = strconv.ParseInt(q.Get("since"), 10, 64)
	a, err := p.Attach(o)
	if err != nil {
		refuseAttach(w, err)
		return
	}
	defer a.Close()
	conn := accept(w, r)
	if conn == nil {
		return
	}
	hello := oldMessage{Type: "connected", SessionID: p.ID, Mode: "pipe", Role: "holder"}
	if p.TTY() {
		hello.Mode = "pty"
	}
	receive := oldReceive
	if viewer {
		hello.Role, receive = "viewer", viewerReceive
	}
	serveAttachment(conn, a, peer{
		send: func(ctx context.Context, conn *websocket.Conn, a *process.Attachment) (websocket.StatusCode, string) {
			return oldSend(ctx, conn, a, hello)
		},
		receive: receive,
	})
}

// oldSend sends the replay, then hello, then what comes.
func oldSend(ctx context.Context, conn *websocket.Conn, a *process.Attachment, hello oldMessage) (websocket.StatusCode, string) {
	text := func(m oldMessage) error {
		return write(ctx, conn, websocket.MessageText, append(encode(m), '\n'))
	}
	const replayHead = 9
	st := a.Status()
	buf := make([]byte, replayHead+32<<10)
	live := false
	greet := func() (err error) {
		if !live {
			live = true
			err = text(hello)
		}
		return err
	}
	var err error
	if a.Since() >= st.Next {
		err = greet()
	}
	for err == nil {
		room := buf[replayHead:]
		if left := st.Next - a.Cursor(); !live && left < int64(len(room)) {
			room = room[:left] // the replay ends where the attachment began
		}
		var e process.Event
		if e, err = a.Next(room); err != nil {
			break
		}
		switch e.Kind {
		case process.Output:
			head := replayHead - 1
			if buf[head] = oldStdout - 1 + e.Channel; !live || hello.Role == "viewer" {
				head = 0
				buf[0] = oldReplay
				binary.BigEndian.PutUint64(buf[1:], uint64(e.Offset))
			}
			err = write(ctx, conn, websocket.MessageBinary, buf[head:replayHead+e.N])
			if err == nil && e.Offset+int64(e.N) >= st.Next {
				err = greet()
			}
		case process.End:
			if e.Run < st.Run {
				continue // of an earlier run
			}
			code := e.Exit.Code
			if e.Exit.Signal != "" {
				code = -1
			}
			if err = greet(); err == nil {
				err = text(oldMessage{Type: "exit", ExitCode: &code})
			}
		case process.Over:
			return wire.CloseEnd, "process exited"
		}
	}
	return closeOf(err)
}

func oldReceive(ctx context.Context, conn *websocket.Conn, a *process.Attachment) websocket.StatusCode {
	buf := make([]byte, 0, 4<<10)
	for {
		t, r, err := conn.Reader(ctx)
		if err != nil {
			return 0
		}
		if buf, err = readAll(r, buf[:0]); err != nil {
			return 0
		}
		if t == websocket.MessageBinary {
			if len(buf) > 0 && buf[0] == oldStdin {
				a.WaitStdin(buf[1:])
			}
			continue
		}
		if answer := oldControl(a, buf); answer != nil {
			if write(ctx, conn, websocket.MessageText, append(encode(answer), '\n')) != nil {
				return 0
			}
		}
	}
}

// viewerStrikes is how many messages that a viewer may not send it can send.
const viewerStrikes = 5

// viewerReceive refuses what would change the process, at last by closing.
func viewerReceive(ctx context.Context, conn *websocket.Conn, _ *process.Attachment) websocket.StatusCode {
	buf := make([]byte, 0, 4<<10)
	for strikes := 0; strikes < viewerStrikes; {
		t, r, err := conn.Reader(ctx)
		if err != nil {
			return 0
		}
		if buf, err = readAll(r, buf[:0]); err != nil {
			return 0
		}
		var answer oldMessage
		switch m, ok := oldParse(buf); {
		case t == websocket.MessageBinary && (len(buf) == 0 || buf[0] != oldStdin), t == websocket.MessageText && !ok:
			continue
		case t == websocket.MessageBinary, m.Type == "stdin", m.Type == wire.TypeStdinClose, m.Type == "resize", m.Type == "signal":
			answer = oldMessage{Type: "error", Error: "a viewer only watches", Code: "READ_ONLY"}
			strikes++
		case m.Type == "ping":
			answer = oldMessage{Type: "pong"}
		default:
			answer = unknownMessage
		}
		if write(ctx, conn, websocket.MessageText, append(encode(answer), '\n')) != nil {
			return 0
		}
	}
	return wire.ClosePolicy
}

var unknownMessage = oldMessage{Type: "error", Error: "unknown message type", Code: "INVALID_FRAME"}

// oldParse reads a text message; one with a field of another type counts as far
// as it can be read.
func oldParse(b []byte) (m oldMessage, ok bool) {
	if err := json.Unmarshal(b, &m); err != nil {
		var mistyped *json.UnmarshalTypeError
		return m, errors.As(err, &mistyped)
	}
	return m, true
}

// oldControl carries out a text message; what can't be read is passed over.
func oldControl(a *process.Attachment, b []byte) *oldMessage {
	m, ok := oldParse(b)
	if !ok {
		return nil
	}
	const most = 1<<16 - 1
	switch m.Type {
	case "stdin":
		a.WaitStdin([]byte(m.Data))
	case "resize":
		if m.Cols > 0 && m.Rows > 0 {
			a.Resize(process.Size{Cols: uint16(min(m.Cols, most)), Rows: uint16(min(m.Rows, most))})
		}
	case "signal":
		if sig := unix.SignalNum(m.Signal); slices.Contains(signals, sig) {
			a.Signal(sig)
		}
	case wire.TypeStdinClose: // which other daemons don't know
		a.CloseStdin()
	case "ping":
		return &oldMessage{Type: "pong"}
	default:
		return &unknownMessage
	}
	return nil
}
