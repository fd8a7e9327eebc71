package demo

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/httpapi/client"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

func (w *walk) get(ctx context.Context) (model.Conversation, error) {
	return w.api.Conversation(ctx, w.conversation)
}

func (w *walk) readFile(ctx context.Context, path string) (string, error) {
	r, _, err := w.api.Download(ctx, w.conversation, path)
	if err != nil {
		return "", err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), err
}

// archive downloads a folder as one file and gives the contents in it.
func (w *walk) archive(ctx context.Context, path string) (map[string]string, error) {
	r, err := w.api.Archive(ctx, w.conversation, path, "tar")
	if err != nil {
		return nil, err
	}
	defer r.Close()
	files := map[string]string{}
	for in := tar.NewReader(r); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(in)
		if err != nil {
			return nil, err
		}
		files[h.Name] = string(b)
	}
}

func (w *walk) writeFile(ctx context.Context, path, content string) (wire.FileEntry, error) {
	return w.api.Upload(ctx, w.conversation, path, strings.NewReader(content), "", false)
}

// turn is what was seen of one message.
type turn struct {
	output             string // of all tool calls, joined
	sent, first, ended time.Time
}

// send sends a message and gives its turn's id.
func (w *walk) send(ctx context.Context, text string) (string, error) {
	t, err := w.api.Send(ctx, w.conversation, wire.SendMessage{ClientMessageID: rand.Text(), Text: text})
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
	for e, err := range w.api.Stream(ctx, w.conversation, 0) {
		if err != nil {
			return t, err
		}
		if e.TurnID != id {
			continue
		}
		switch e.Type {
		case agentprogram.EventToolOutput:
			o, err := wire.Data[agentprogram.ToolOutput](e)
			if err != nil {
				return t, err
			}
			if t.first.IsZero() {
				t.first = time.Now()
			}
			t.output += o.Text
		case model.EventTurnEnded:
			t.ended = time.Now()
			end, err := wire.Data[agentprogram.TurnEnd](e)
			if err == nil && end.Reason != agentprogram.ReasonDone {
				err = expected("the turn to end done", "%s", e.Data)
			}
			return t, err
		}
	}
	return t, fmt.Errorf("the event stream ended before the turn")
}

// follow returns once the turn's output has contained the text.
func (w *walk) follow(ctx context.Context, id, text string) error {
	var output string
	for e, err := range w.api.Stream(ctx, w.conversation, 0) {
		if err != nil {
			return err
		}
		if e.TurnID != id || e.Type != agentprogram.EventToolOutput {
			continue
		}
		o, err := wire.Data[agentprogram.ToolOutput](e)
		if output += o.Text; err != nil || strings.Contains(output, text) {
			return err
		}
	}
	return fmt.Errorf("the event stream ended before %q", text)
}

func (w *walk) events(ctx context.Context) ([]model.Event, error) {
	var all []model.Event
	for {
		page, err := w.api.Events(ctx, w.conversation, int64(len(all)), 500)
		if err != nil || len(page.Items) == 0 {
			return all, err
		}
		all = append(all, page.Items...)
	}
}

// terminalConn is an attachment to a terminal that remembers what it has seen.
type terminalConn struct {
	*client.Terminal
	w    *walk
	id   string
	seen []byte
}

func (w *walk) openTerminal(ctx context.Context) (*terminalConn, error) {
	t, err := w.api.CreateTerminal(ctx, w.conversation, wire.CreateTerminal{Cols: 80, Rows: 24})
	if err != nil {
		return nil, err
	}
	c := &terminalConn{w: w, id: t.ID}
	return c, c.reconnect(ctx)
}

// reconnect attaches from the byte after the last one seen.
func (t *terminalConn) reconnect(ctx context.Context) (err error) {
	t.Terminal, err = t.w.api.Attach(ctx, t.w.conversation, t.id, "takeover", int64(len(t.seen)))
	return err
}

func (t *terminalConn) send(ctx context.Context, keys string) error {
	return t.Send(ctx, []byte(keys))
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
	output, frame, err := t.Recv(ctx)
	if err != nil {
		return err
	}
	if frame != nil && frame.Type != "ready" && frame.Type != "pong" {
		return fmt.Errorf("the terminal said %+v", *frame)
	}
	t.seen = append(t.seen, output...)
	return nil
}

// drain reads what has arrived, up to the end of a broken connection.
func (t *terminalConn) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	for t.read(ctx) == nil {
	}
}
