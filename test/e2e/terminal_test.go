package e2e

import (
	"errors"
	"strings"
	"sync"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/internal/httpapi/client"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
)

// terminal is an attachment that is read all the time.
type terminal struct {
	*client.Terminal
	s  *server
	id string

	done chan struct{} // closed with the connection
	mu   sync.Mutex
	seen string
	last closing
}

// closing is how an attachment ended, and what was said before it.
type closing struct {
	code    websocket.StatusCode
	frame   string // type of the last text frame
	message string // of an error frame, else the reason of the close
}

// terminal opens a terminal and attaches to it.
func (s *server) terminal(id string) *terminal {
	s.t.Helper()
	v, err := s.api.CreateTerminal(timeout(s.t), id, wire.CreateTerminal{Cols: 80, Rows: 24})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.attach(id, v.ID, 0)
}

// attach attaches to a terminal.
func (s *server) attach(id, terminalID string, since int64) *terminal {
	s.t.Helper()
	ctx := timeout(s.t)
	a, err := s.api.Attach(ctx, id, terminalID, "takeover", since)
	if err != nil {
		s.t.Fatal(err)
	}
	v := &terminal{Terminal: a, s: s, id: terminalID, done: make(chan struct{})}
	s.t.Cleanup(func() { a.Close(); <-v.done })
	go func() {
		defer close(v.done)
		for {
			output, frame, err := a.Recv(ctx)
			v.mu.Lock()
			v.seen += string(output)
			if frame != nil {
				v.last.frame = frame.Type
				v.last.message = frame.Message
			}
			if err != nil {
				v.last.code = websocket.CloseStatus(err)
				var end websocket.CloseError
				if errors.As(err, &end) && v.last.message == "" {
					v.last.message = end.Reason
				}
			}
			v.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return v
}

func (v *terminal) text() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.seen
}

func (v *terminal) keys(keys string) {
	v.s.t.Helper()
	if err := v.Send(timeout(v.s.t), []byte(keys)); err != nil {
		v.s.t.Fatal(err)
	}
}

// shows waits until the terminal has shown a text.
func (v *terminal) shows(text string) {
	v.s.t.Helper()
	until(v.s.t, "the terminal to show "+text, func() (bool, any) { seen := v.text(); return strings.Contains(seen, text), seen })
}

// untilClosed waits for the end of the attachment.
func (v *terminal) untilClosed() closing {
	v.s.t.Helper()
	until(v.s.t, "the terminal's connection to end", func() (bool, any) {
		select {
		case <-v.done:
			return true, nil
		default:
			return false, v.text()
		}
	})
	return v.last
}
