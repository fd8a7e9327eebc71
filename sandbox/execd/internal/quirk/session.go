package quirk

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"github.com/creack/pty"
)

// session is a /pty session: one program at a time, one ring of output.
type session struct {
	s       *Server
	id      string
	command string

	mu      sync.Mutex
	ring    []byte
	total   int64
	run     *run
	holder  *holder
	busy    time.Time // until when it seems held
	deleted bool
}

// run is one start of the program.
type run struct {
	cmd      *exec.Cmd
	stdin    *os.File
	terminal *os.File // nil: pipes
	readers  sync.WaitGroup
	ended    bool // its output is no longer passed on
}

// holder is an attachment.
type holder struct {
	ws   *websocket.Conn
	live bool       // output is passed on; with the session's lock
	wmu  sync.Mutex // writes are whole messages
	gone chan struct{}
	once sync.Once
	why  atomic.Int64 // websocket.StatusCode, set before gone is closed
}

func (h *holder) drop(why websocket.StatusCode) {
	h.once.Do(func() { h.why.Store(int64(why)); close(h.gone) })
}

// write is one message, within the write deadline.
func (h *holder) write(t websocket.MessageType, b []byte) error {
	h.wmu.Lock()
	defer h.wmu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), writeTime)
	defer cancel()
	return h.ws.Write(ctx, t, b)
}

func (h *holder) json(v any) {
	b, _ := json.Marshal(v)
	_ = h.write(websocket.MessageText, append(b, '\n'))
}

func (s *Server) postSession(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Cwd     string `json:"cwd"`
		Command string `json:"command"`
	}
	if err := s.body(r, &req); err != nil {
		refuse(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", err.Error())
		return
	}
	id := strings.ToLower(rand.Text())
	id = fmt.Sprintf("%s-%s-%s", id[:8], id[8:12], id[12:])
	if s.faults[TwoValues] {
		w.WriteHeader(http.StatusInternalServerError)
		fmt.Fprintf(w, `{"code":"RUNTIME_ERROR","message":"no directory"}{"session_id":%q}`, id)
		return
	}
	s.mu.Lock()
	s.sessions[id] = &session{s: s, id: id, command: req.Command}
	s.mu.Unlock()
	answer(w, http.StatusCreated, map[string]string{"session_id": id})
}

func (s *Server) session(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id]
}

func (s *Server) getSession(w http.ResponseWriter, r *http.Request) {
	x := s.session(r.PathValue("id"))
	if x == nil {
		s.missing(w, "session")
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	answer(w, http.StatusOK, map[string]any{"session_id": x.id, "running": x.run != nil, "output_offset": x.total})
}

func (s *Server) deleteSession(w http.ResponseWriter, r *http.Request) {
	x := s.session(r.PathValue("id"))
	if x == nil {
		s.missing(w, "session")
		return
	}
	s.mu.Lock()
	delete(s.sessions, x.id)
	s.mu.Unlock()
	x.kill()
}

// kill reaches the group of the program alone.
func (x *session) kill() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.deleted = true
	if x.run != nil {
		_ = syscall.Kill(-x.run.cmd.Process.Pid, syscall.SIGKILL)
	} else if x.holder != nil {
		x.holder.drop(websocket.StatusNormalClosure)
	}
}

// start starts the program, with the session's lock.
func (x *session) start(terminal bool) error {
	c := exec.Command("bash", "--noprofile", "--norc", "-c", x.command)
	c.Env = environment()
	r := &run{cmd: c}
	outputs := map[byte]*os.File{}
	if terminal {
		master, err := pty.StartWithSize(c, &pty.Winsize{Cols: 80, Rows: 24})
		if err != nil {
			return err
		}
		r.stdin, r.terminal, outputs[1] = master, master, master
	} else {
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		in, stdin, err := os.Pipe()
		if err != nil {
			return err
		}
		out, outW, err := os.Pipe()
		if err != nil {
			return err
		}
		errs, errW, err := os.Pipe()
		if err != nil {
			return err
		}
		c.Stdin, c.Stdout, c.Stderr = in, outW, errW
		err = c.Start()
		in.Close()
		outW.Close()
		errW.Close()
		if err != nil {
			return err
		}
		r.stdin, outputs[1], outputs[2] = stdin, out, errs
	}
	x.run = r
	for channel, f := range outputs {
		r.readers.Add(1)
		x.s.wg.Go(func() { x.read(r, channel, f) })
	}
	x.s.wg.Go(func() { x.wait(r) })
	return nil
}

// read passes output on as it comes.
func (x *session) read(r *run, channel byte, f *os.File) {
	defer r.readers.Done()
	defer f.Close()
	buf := make([]byte, 1+frameSize)
	buf[0] = channel
	for {
		n, err := f.Read(buf[1:])
		if n > 0 && channel == 2 && x.s.faults[OldReplay] {
			// Nothing orders the two channels.
			select {
			case <-time.After(50 * time.Millisecond):
			case <-x.s.done:
			}
		}
		if n > 0 && x.s.faults[EarlyExit] {
			// What is read at the moment of an exit is late for it.
			select {
			case <-time.After(5 * time.Millisecond):
			case <-x.s.done:
			}
		}
		if n > 0 {
			x.mu.Lock()
			lost := r.ended && r.terminal != nil
			if !lost {
				x.total += int64(n)
				x.ring = append(x.ring, buf[1:1+n]...)
				x.ring = x.ring[max(0, len(x.ring)-ringSize):]
			}
			h := x.holder
			if r.ended || h != nil && !h.live {
				h = nil
			}
			if h != nil {
				// Taken in the session's lock, so that messages have its order.
				h.wmu.Lock()
			}
			x.mu.Unlock()
			if h != nil {
				ctx, cancel := context.WithTimeout(context.Background(), writeTime)
				_ = h.ws.Write(ctx, websocket.MessageBinary, buf[:1+n])
				cancel()
				h.wmu.Unlock()
			}
		}
		if err != nil {
			return
		}
	}
}

func (x *session) wait(r *run) {
	err := r.cmd.Wait()
	if !x.s.faults[EarlyExit] {
		drained := make(chan struct{})
		x.s.wg.Go(func() { r.readers.Wait(); close(drained) })
		select {
		case <-drained:
		case <-time.After(drainTime):
		case <-x.s.done:
		}
	}
	code := 0
	if err != nil {
		code = r.cmd.ProcessState.ExitCode()
	}
	x.mu.Lock()
	r.ended, x.run = true, nil
	h := x.holder
	if h != nil && !h.live {
		h = nil
	}
	x.mu.Unlock()
	r.stdin.Close()
	if h != nil {
		h.json(map[string]any{"type": "exit", "exit_code": code})
		h.drop(websocket.StatusNormalClosure)
	}
}

// attach is GET /pty/{id}/ws.
func (s *Server) attach(w http.ResponseWriter, r *http.Request) {
	x := s.session(r.PathValue("id"))
	if x == nil {
		s.missing(w, "session")
		return
	}
	q := r.URL.Query()
	x.mu.Lock()
	if x.holder != nil && q.Get("takeover") == "1" {
		old := x.holder
		old.drop(4001)
		x.holder = nil
	}
	if x.holder != nil || time.Now().Before(x.busy) {
		x.mu.Unlock()
		refuse(w, http.StatusConflict, "ALREADY_CONNECTED", "somebody is there")
		return
	}
	h := &holder{gone: make(chan struct{})}
	x.holder = h
	x.mu.Unlock()
	h.wmu.Lock() // live output waits for the greeting
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{InsecureSkipVerify: true})
	if err != nil {
		h.wmu.Unlock()
		x.release(h)
		return
	}
	h.ws = ws
	ws.SetReadLimit(64 << 20)
	defer ws.CloseNow()
	x.mu.Lock()
	if x.run == nil {
		if err := x.start(q.Get("pty") != "0"); err != nil {
			x.mu.Unlock()
			h.wmu.Unlock()
			h.json(map[string]any{"type": "error", "code": "START_FAILED", "error": err.Error()})
			x.release(h)
			return
		}
	}
	run := x.run
	replay := x.replay(q.Get("since"))
	h.live = true
	x.mu.Unlock()
	ctx := context.Background()
	if replay != nil {
		_ = ws.Write(ctx, websocket.MessageBinary, replay)
	}
	hello, _ := json.Marshal(map[string]any{"type": "connected", "session_id": x.id, "mode": "pipe"})
	_ = ws.Write(ctx, websocket.MessageText, append(hello, '\n'))
	h.wmu.Unlock()
	s.serve(x, run, h)
}

// replay is the message of what is kept from an offset on; nil: nothing. From
// an offset that isn't kept it is all that is.
func (x *session) replay(since string) []byte {
	oldest := x.total - int64(len(x.ring))
	from, err := strconv.ParseInt(since, 10, 64)
	if err != nil || from < oldest {
		from = oldest
	}
	if from >= x.total {
		return nil
	}
	b := binary.BigEndian.AppendUint64([]byte{3}, uint64(from))
	return append(b, x.ring[from-oldest:]...)
}

func (x *session) release(h *holder) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.holder == h {
		x.holder = nil
		if x.s.faults[BusyAfter] {
			x.busy = time.Now().Add(busyTime)
		}
	}
}

// serve reads what the client sends until one of the two goes.
func (s *Server) serve(x *session, r *run, h *holder) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	if s.faults[StallHolds] {
		wg.Go(func() { pings(ctx, h) })
	}
	queue := make(chan []byte, 4096) // of a server whose stdin doesn't block
	wg.Go(func() {
		for b := range queue {
			_, _ = r.stdin.Write(b)
		}
	})
	wg.Go(func() {
		defer close(queue)
		defer h.drop(0)
		for {
			t, b, err := h.ws.Read(ctx)
			if err != nil {
				return
			}
			if t == websocket.MessageBinary && len(b) > 0 && b[0] == 0 {
				if s.faults[StdinBlocks] {
					_, _ = r.stdin.Write(b[1:])
				} else {
					queue <- b[1:]
				}
				continue
			}
			x.control(r, h, b)
		}
	})
	select {
	case <-h.gone:
	case <-s.done:
	}
	x.release(h)
	if why := websocket.StatusCode(h.why.Load()); why != 0 {
		h.ws.Close(why, "")
	}
	cancel()
	h.ws.CloseNow()
	s.wg.Go(wg.Wait) // one that is stuck in a write to a child goes when the child does
}

// pings drops a peer that doesn't answer.
func pings(ctx context.Context, h *holder) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		one, cancel := context.WithTimeout(ctx, pongTime)
		err := h.ws.Ping(one)
		cancel()
		if err != nil {
			h.drop(0)
			return
		}
	}
}

var signals = map[string]syscall.Signal{
	"SIGINT": syscall.SIGINT, "SIGTERM": syscall.SIGTERM, "SIGKILL": syscall.SIGKILL, "SIGQUIT": syscall.SIGQUIT, "SIGHUP": syscall.SIGHUP,
}

func (x *session) control(r *run, h *holder, b []byte) {
	var m struct {
		Type, Signal string
		Cols, Rows   uint16
	}
	if json.Unmarshal(b, &m) != nil {
		return
	}
	x.mu.Lock()
	over := r.ended
	x.mu.Unlock()
	switch {
	case m.Type == "ping":
		h.json(map[string]string{"type": "pong"})
	case over:
	case m.Type == "resize" && r.terminal != nil && m.Cols > 0 && m.Rows > 0:
		_ = pty.Setsize(r.terminal, &pty.Winsize{Cols: m.Cols, Rows: m.Rows})
	case m.Type == "signal" && signals[m.Signal] != 0:
		_ = syscall.Kill(-r.cmd.Process.Pid, signals[m.Signal])
	case m.Type != "resize" && m.Type != "signal":
		h.json(map[string]string{"type": "error", "code": "INVALID_FRAME", "error": "unknown type"})
	}
}
