package demo

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/sandboxd"
)

const api = "http://" + address + "/api/v1/"

// request sends one request and fails on a problem answer. The caller closes the body.
func request(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, api+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		return nil, fmt.Errorf("%s %s answered %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	}
	return resp, nil
}

// call sends in as JSON and reads the answer into out.
func call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(b)
	}
	resp, err := request(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(out)
}

func (w *walk) path(rest string) string { return "conversations/" + w.conversation + rest }

func (w *walk) get(ctx context.Context) (c model.Conversation, err error) {
	return c, call(ctx, http.MethodGet, w.path(""), nil, &c)
}

func (w *walk) readFile(ctx context.Context, path string) (string, error) {
	resp, err := request(ctx, http.MethodGet, w.path("/files/content?path="+url.QueryEscape(path)), nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}

func (w *walk) writeFile(ctx context.Context, path, content string) (e wire.FileEntry, err error) {
	resp, err := request(ctx, http.MethodPut, w.path("/files/content?path="+url.QueryEscape(path)), strings.NewReader(content))
	if err != nil {
		return e, err
	}
	defer resp.Body.Close()
	return e, json.NewDecoder(resp.Body).Decode(&e)
}

// turn is what was seen of one message.
type turn struct {
	output             string // of all tool calls, joined
	sent, first, ended time.Time
}

// send sends a message and gives its turn's id.
func (w *walk) send(ctx context.Context, text string) (string, error) {
	var t model.Turn
	err := call(ctx, http.MethodPost, w.path("/messages"), wire.SendMessage{ClientMessageID: rand.Text(), Text: text}, &t)
	return t.ID, err
}

// say sends a message and waits for the end of its turn.
func (w *walk) say(ctx context.Context, text string) (turn, error) {
	sent := time.Now()
	id, err := w.send(ctx, text)
	if err != nil {
		return turn{}, err
	}
	t, err := w.wait(ctx, id)
	t.sent = sent
	return t, err
}

// wait follows the event stream until the turn has ended well.
func (w *walk) wait(ctx context.Context, id string) (t turn, err error) {
	err = w.stream(ctx, func(e model.Event) (bool, error) {
		if e.TurnID != id {
			return false, nil
		}
		switch e.Type {
		case agentprogram.EventToolOutput:
			o, err := wire.Data[agentprogram.ToolOutput](e)
			if err != nil {
				return false, err
			}
			if t.first.IsZero() {
				t.first = time.Now()
			}
			t.output += o.Text
		case agentprogram.EventTurnEnded:
			t.ended = time.Now()
			end, err := wire.Data[agentprogram.TurnEnd](e)
			if err == nil && end.Reason != agentprogram.ReasonDone {
				err = expected("the turn to end done", "%s: %s", e.Data)
			}
			return true, err
		}
		return false, nil
	})
	return t, err
}

// follow returns once the turn's output ends with, or has contained, the text.
func (w *walk) follow(ctx context.Context, id, text string) error {
	var output string
	return w.stream(ctx, func(e model.Event) (bool, error) {
		if e.TurnID != id || e.Type != agentprogram.EventToolOutput {
			return false, nil
		}
		o, err := wire.Data[agentprogram.ToolOutput](e)
		output += o.Text
		return strings.Contains(output, text), err
	})
}

// stream reads the conversation's events from the first on, live, until see
// says that it has seen enough.
func (w *walk) stream(ctx context.Context, see func(model.Event) (enough bool, err error)) error {
	resp, err := request(ctx, http.MethodGet, w.path("/events/stream?after=0"), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	dec := sseReader{r: resp.Body}
	for {
		data, err := dec.next()
		if err != nil {
			return fmt.Errorf("the event stream ended: %w", err)
		}
		var e model.Event
		if err := json.Unmarshal(data, &e); err != nil {
			return err
		}
		if enough, err := see(e); enough || err != nil {
			return err
		}
	}
}

func (w *walk) events(ctx context.Context) ([]model.Event, error) {
	var all []model.Event
	for {
		var page wire.Events
		if err := call(ctx, http.MethodGet, w.path(fmt.Sprintf("/events?after=%d", len(all))), nil, &page); err != nil {
			return nil, err
		}
		if len(page.Items) == 0 {
			return all, nil
		}
		all = append(all, page.Items...)
	}
}

// sseReader takes the data of server-sent events from a body.
type sseReader struct {
	r   io.Reader
	buf []byte
}

func (s *sseReader) next() ([]byte, error) {
	for {
		if i := bytes.Index(s.buf, []byte("\n\n")); i >= 0 {
			block := s.buf[:i]
			s.buf = s.buf[i+2:]
			for line := range bytes.Lines(block) {
				if data, ok := bytes.CutPrefix(bytes.TrimRight(line, "\n"), []byte("data: ")); ok {
					return data, nil
				}
			}
			continue
		}
		chunk := make([]byte, 16<<10)
		n, err := s.r.Read(chunk)
		s.buf = append(s.buf, chunk[:n]...)
		if n == 0 && err != nil {
			return nil, err
		}
	}
}

// terminalConn is an attachment to a terminal that remembers what it has seen.
type terminalConn struct {
	w      *walk
	id     string
	conn   *websocket.Conn
	seen   []byte
	offset int64 // of the next byte wanted
}

func (w *walk) openTerminal(ctx context.Context) (*terminalConn, error) {
	var t model.Terminal
	if err := call(ctx, http.MethodPost, w.path("/terminals"), wire.CreateTerminal{Cols: 80, Rows: 24}, &t); err != nil {
		return nil, err
	}
	c := &terminalConn{w: w, id: t.ID}
	return c, c.reconnect(ctx)
}

func (t *terminalConn) reconnect(ctx context.Context) error {
	target := fmt.Sprintf("%s/terminals/%s/attach?mode=takeover&since=%d", api+t.w.path(""), t.id, t.offset)
	conn, resp, err := websocket.Dial(ctx, target, &websocket.DialOptions{Subprotocols: []string{wire.TerminalProtocol}})
	if err != nil {
		if resp != nil {
			return fmt.Errorf("attach to the terminal: %s: %w", resp.Status, err)
		}
		return err
	}
	conn.SetReadLimit(1 << 20)
	t.conn = conn
	return nil
}

func (t *terminalConn) send(ctx context.Context, keys string) error {
	return t.conn.Write(ctx, websocket.MessageBinary, []byte(keys))
}

func (t *terminalConn) text() string { return string(t.seen) }

// waitFor reads until the terminal has shown the text.
func (t *terminalConn) waitFor(ctx context.Context, text string) error {
	for !strings.Contains(string(t.seen), text) {
		if err := t.read(ctx); err != nil {
			return fmt.Errorf("expected the terminal to show %q, saw %q: %w", text, t.seen, err)
		}
	}
	return nil
}

func (t *terminalConn) read(ctx context.Context) error {
	kind, b, err := t.conn.Read(ctx)
	if err != nil {
		return err
	}
	if kind == websocket.MessageText {
		var f wire.ServerFrame
		if err := json.Unmarshal(b, &f); err != nil {
			return err
		}
		switch f.Type {
		case "ready", "pong":
			return nil
		}
		return fmt.Errorf("the terminal said %s", b)
	}
	if len(b) < 8 {
		return fmt.Errorf("a frame of %d bytes", len(b))
	}
	at, data := int64(binary.BigEndian.Uint64(b)), b[8:]
	if at != t.offset {
		return fmt.Errorf("output at byte %d, expected byte %d", at, t.offset)
	}
	t.offset += int64(len(data))
	t.seen = append(t.seen, data...)
	return nil
}

// drain reads what has arrived, up to the end of a broken connection.
func (t *terminalConn) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for t.read(ctx) == nil {
	}
}

func (t *terminalConn) close() { t.conn.CloseNow() }

// service reads where the bundled lifecycle service listens.
func (w *walk) service() (sandboxd.Listening, error) { return sandboxd.ReadListening(w.server.state) }

// askService asks the lifecycle service itself, past the platform.
func (w *walk) askService(ctx context.Context, s sandboxd.Listening, path string) (status int, err error) {
	key, err := os.ReadFile(sandboxd.KeyFile(w.server.state))
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("OPEN-SANDBOX-API-KEY", strings.TrimSpace(string(key)))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	resp.Body.Close()
	return resp.StatusCode, nil
}

// installation is what the service's names on the host carry.
func (w *walk) installation() (string, error) {
	b, err := os.ReadFile(filepath.Join(sandboxd.Dir(w.server.state), "installation"))
	return strings.TrimSpace(string(b)), err
}
