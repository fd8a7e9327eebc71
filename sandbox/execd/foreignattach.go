package execd

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	// heldTime is for how long a session that seems held is asked again: one
	// whose holder has just gone is free after a moment.
	heldTime = 500 * time.Millisecond
	heldStep = 10 * time.Millisecond
	// foreignStall is how long a reader may keep the daemon waiting. After 10 s
	// it would fail without letting the session go for a minute.
	foreignStall = 8 * time.Second
	// lateOutput is more than what may be between the two markers of a run: what
	// was in a pipe and on its way when the program ended. Offsets count without
	// markers, so an attachment begins to read so much earlier.
	lateOutput = 128 << 10
	// maxReplay is longer than a replay, maxLive than any message after it.
	maxReplay = foreignRing + 64<<10
	maxLive   = 256 << 10
)

// standing is where a process was when it was attached to.
type standing struct {
	state
	end int // the run whose end ends the attachment
	// need: the run had ended and its markers are before this offset. Without
	// them in what is given, they were before the attachment's offset.
	need int64
}

// attach attaches to a process. Whether From is still held is known for
// certain only from the replay, so a late loser may have displaced a holder.
func (f foreign) attach(ctx context.Context, process string, o sandbox.AttachOptions) (sandbox.Attachment, error) {
	id, err := f.known(ctx, process)
	if err != nil {
		return nil, err
	}
	if o.ReadOnly {
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "the execd of this sandbox can't let a process be watched")
	}
	was, err := f.asked(ctx, id)
	if err != nil {
		return nil, err
	}
	st, err := f.state(ctx, id)
	switch {
	case err != nil:
		return nil, err
	case o.From > was.Next:
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the offset is past the output's end")
	case o.From < was.Next-foreignRing:
		return nil, &sandbox.ReplayGapError{From: o.From, Oldest: was.Next - foreignRing}
	case o.NoStart && st.run == 0 && !was.Running:
		return ended{}, nil
	}
	// Without its shell a process can't run again, and what the attachment
	// makes the daemon start does nothing.
	o.NoStart = o.NoStart || st.run > 0 && !was.Running
	return f.join(ctx, id, o, standing{})
}

// join opens the WebSocket of a session and reads it to where its output is
// live. A fresh session has its standing given.
func (f foreign) join(ctx context.Context, id foreignID, o sandbox.AttachOptions, s standing) (_ *attachment, err error) {
	since := max(0, o.From-lateOutput)
	ws, err := f.socket(ctx, id, since, o.Takeover)
	if err != nil {
		return nil, attachError(err, o.From)
	}
	defer func() {
		if err != nil {
			ws.CloseNow()
		}
	}()
	ws.SetReadLimit(maxReplay)
	from, replay, err := greeting(ctx, ws, since)
	if err != nil {
		return nil, unreachable(ctx, (&foreignDialect{}).closed(err))
	}
	if from > o.From {
		return nil, &sandbox.ReplayGapError{From: o.From, Oldest: from}
	}
	ws.SetReadLimit(maxLive)
	if s.end == 0 {
		if s, err = f.stand(ctx, id, o.NoStart); err != nil {
			return nil, err
		}
	}
	d := &foreignDialect{f: f, id: id, s: s, from: o.From, m: newMarkers(id.nonce, id.terminal, from, max(s.run, 1))}
	if s.exited && s.need == 0 {
		d.m.run = s.end
	}
	d.m.begin(replay, s.state)
	frames := d.take(d.m.add(sandbox.Stdout, replay))
	a := &attachment{ws: ws, d: d}
	return a.start(frames, d.over()), nil
}

// socket attaches, and asks again for a moment when somebody holds the session.
func (f foreign) socket(ctx context.Context, id foreignID, since int64, takeover bool) (*websocket.Conn, error) {
	q := url.Values{"since": {strconv.FormatInt(since, 10)}, "pty": {"0"}}
	if id.terminal {
		q.Set("pty", "1")
	}
	if takeover {
		q.Set("takeover", "1")
	}
	for end := time.Now().Add(heldTime); ; {
		ws, err := f.c.socket(ctx, "/pty/"+id.session+"/ws", q.Encode(), "")
		var no *refusal
		if err == nil || !errors.As(err, &no) || no.code != wire.CodeHeld || time.Now().After(end) {
			return ws, err
		}
		select {
		case <-time.After(heldStep):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// greeting reads to the first message of JSON, which comes after the replay.
// Without a replay the output goes on from the offset that was asked for.
func greeting(ctx context.Context, ws *websocket.Conn, from int64) (int64, []byte, error) {
	var replay []byte
	for {
		t, b, err := ws.Read(ctx)
		if err != nil {
			return 0, nil, err
		}
		if t == websocket.MessageText {
			var m foreignMessage
			if err := json.Unmarshal(b, &m); err != nil {
				return 0, nil, fmt.Errorf("a message that can't be read: %w", err)
			}
			switch m.Type {
			case wire.TypeConnected:
				return from, replay, nil
			case "error":
				return 0, nil, m.failure()
			}
			continue
		}
		offset, data, err := replayFrame(b)
		if err != nil {
			return 0, nil, err
		}
		if replay == nil {
			from = offset
		} else if offset != from+int64(len(replay)) {
			return 0, nil, fmt.Errorf("the replay jumps to byte %d", offset)
		}
		if replay = append(replay, data...); len(replay) > maxReplay {
			return 0, nil, errors.New("the replay is too long")
		}
	}
}

// replayFrame reads a binary message before the greeting.
func replayFrame(b []byte) (offset int64, data []byte, err error) {
	if len(b) < 9 || b[0] != 3 {
		return 0, nil, errors.New("a message that isn't a replay")
	}
	if offset = int64(binary.BigEndian.Uint64(b[1:])); offset < 0 {
		return 0, nil, errors.New("a negative offset")
	}
	return offset, b[9:], nil
}

// stand finds out, as the holder, how the process stands, and starts the next
// run of one that has exited.
func (f foreign) stand(ctx context.Context, id foreignID, noStart bool) (s standing, err error) {
	if s.state, err = f.state(ctx, id); err != nil {
		return s, err
	}
	switch {
	case s.run == 0:
		s.end = 1 // just started
	case !s.exited:
		s.end = s.run
	case noStart:
		s.end = s.run
		now, err := f.asked(ctx, id)
		s.need = now.Next
		return s, err
	default:
		s.end = s.run + 1
		o, err := f.line(ctx, "echo >"+quote(f.dir(id.nonce)+"/go"))
		if err == nil {
			_, err = o.output()
		}
		return s, err
	}
	return s, nil
}

// foreignMessage is a text message of a foreign execd.
type foreignMessage struct {
	Type  string `json:"type"`
	Code  string `json:"code"`
	Error string `json:"error"`
}

func (m foreignMessage) failure() error { return fmt.Errorf("%s: %s", m.Code, m.Error) }

// foreignDialect is the older protocol of /pty.
type foreignDialect struct {
	f  foreign
	id foreignID
	s  standing
	m  *markers
	// from is the first byte that is wanted.
	from int64

	// killed: the shell went, which may not be how the program ended.
	killed bool

	mu  sync.Mutex
	due []int // sizes of the pieces of stdin whose pong is to come
}

// limits: the daemon stops reading while the process leaves more stdin unread
// than a pipe holds, so little is sent ahead.
func (d *foreignDialect) limits() limits {
	return limits{message: maxLive, window: 32 << 10, step: 16 << 10, stall: d.f.c.stall, deaf: true}
}

func (d *foreignDialect) read(a *attachment, t websocket.MessageType, b []byte) ([]sandbox.Frame, error) {
	if t == websocket.MessageBinary {
		if len(b) == 0 || b[0] != 1 && b[0] != 2 {
			return nil, errors.New("a message that isn't of the protocol")
		}
		frames := d.take(d.m.add(sandbox.Channel(b[0]), b[1:]))
		if d.over() {
			return frames, errOver
		}
		return frames, nil
	}
	var m foreignMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("a message that can't be read: %w", err)
	}
	switch m.Type {
	case "pong":
		d.pong(a)
	case "error":
		return nil, m.failure()
	case wire.TypeExit:
		// Only the shell of ours ends so, when it was killed or deleted.
		d.killed = true
		d.m.out = nil
		d.m.giveUp()
		d.m.exit(d.m.run, sandbox.Exit{Code: 137, Signal: "SIGKILL"})
		d.s.end = min(d.s.end, d.m.exits)
		return d.take(d.m.out), errOver
	}
	return nil, nil
}

// take leaves out what was before the attachment's offset and what comes after
// the last run's end, and adds that end when it isn't in the output any more.
func (d *foreignDialect) take(frames []sandbox.Frame) (wanted []sandbox.Frame) {
	if d.s.need > 0 && d.m.raw >= d.s.need && d.m.exits < d.s.run {
		d.m.out = nil
		d.m.giveUp()
		d.m.exit(d.s.run, exitOf(d.s.code))
		frames = append(frames, d.m.out...)
	}
	for _, f := range frames {
		last := f.Exit != nil && f.Run >= d.s.end
		switch early := d.from - f.Offset; {
		case early <= 0:
		case last:
			f.Offset = d.from
		case f.Exit != nil || early >= int64(len(f.Data)):
			continue
		default:
			f.Offset, f.Data = d.from, f.Data[early:]
		}
		if wanted = append(wanted, f); last {
			break
		}
	}
	return wanted
}

func (d *foreignDialect) over() bool { return d.m.exits >= d.s.end }

func (d *foreignDialect) closed(err error) error {
	switch {
	case errors.Is(err, errOver):
		return io.EOF
	case websocket.CloseStatus(err) == wire.CloseTakenOver:
		return sandbox.ErrDisplaced
	}
	return lost(err)
}

// stdin sends a piece and a ping behind it: the pong comes once the piece was
// passed on.
func (d *foreignDialect) stdin(ctx context.Context, a *attachment, b []byte) error {
	d.mu.Lock()
	d.due = append(d.due, len(b))
	d.mu.Unlock()
	if err := a.input(ctx, b); err != nil {
		return err
	}
	return a.text(ctx, wire.ClientMessage{Type: "ping"})
}

func (d *foreignDialect) pong(a *attachment) {
	d.mu.Lock()
	n := 0
	if len(d.due) > 0 {
		n, d.due = d.due[0], d.due[1:]
	}
	d.mu.Unlock()
	a.wrote(0, int64(n))
}

func (d *foreignDialect) control(ctx context.Context, a *attachment, m wire.ClientMessage) error {
	switch {
	case m.Type == wire.TypeAck:
		return nil // nothing waits for it
	case m.Type == wire.TypeStdinClose && d.id.terminal:
		return a.Send(ctx, []byte{0x04})
	case m.Type == wire.TypeStdinClose:
		return sandbox.Errorf(sandbox.CodeUnsupported, "the execd of this sandbox can't end a process's input")
	case m.Type == wire.TypeSignal:
		return d.signal(ctx, a, m)
	}
	return a.text(ctx, m)
}

// signal sends a signal the way that reaches the process: SIGKILL past the
// shell, an interrupt to the foreground of a terminal, and any behind unread
// stdin from the side.
func (d *foreignDialect) signal(ctx context.Context, a *attachment, m wire.ClientMessage) error {
	name := m.Signal[len("SIG"):]
	var line string
	switch {
	case name == "KILL":
		line = "n=" + d.id.nonce + "\n" + sweepLine + "sweep"
	case a.unread():
		s, err := d.f.state(ctx, d.id)
		if err != nil {
			return err
		}
		if s.run == 0 {
			return sandbox.Errorf(sandbox.CodeUnavailable, "the process is only just starting")
		}
		line = fmt.Sprintf("kill -s %s -- -%d", name, s.group)
	case d.id.terminal && name == "INT":
		return a.Send(ctx, []byte{0x03})
	case d.id.terminal && name == "QUIT":
		return a.Send(ctx, []byte{0x1c})
	default:
		return a.text(ctx, m)
	}
	o, err := d.f.line(ctx, line)
	if err == nil {
		_, err = o.output()
	}
	return err
}

// detach waits until what was sent has been passed on, then lets go.
func (d *foreignDialect) detach(ctx context.Context, a *attachment) {
	for a.unread() {
		a.mu.Lock()
		moved := a.moved
		a.mu.Unlock()
		if !a.unread() {
			break
		}
		select {
		case <-moved:
		case <-a.ended:
			return
		case <-ctx.Done():
			return
		}
	}
	stop := context.AfterFunc(ctx, func() { a.ws.CloseNow() })
	defer stop()
	_ = a.ws.Close(websocket.StatusNormalClosure, "")
}

// ended is an attachment with nothing to give.
type ended struct{}

func (ended) Recv(context.Context) (sandbox.Frame, error) { return sandbox.Frame{}, io.EOF }
func (ended) Send(context.Context, []byte) error          { return io.EOF }
func (ended) CloseStdin(context.Context) error            { return io.EOF }
func (ended) Ack(context.Context, int64) error            { return nil }
func (ended) Resize(context.Context, sandbox.Size) error  { return io.EOF }
func (ended) Signal(context.Context, string) error        { return io.EOF }
func (ended) Close() error                                { return nil }
