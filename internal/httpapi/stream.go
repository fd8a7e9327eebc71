package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
)

const (
	// heartbeat keeps proxies from closing an idle stream, and finds clients
	// that are gone.
	heartbeat = 15 * time.Second
	// streamBuffer is how many events wait for one slow client, beyond what
	// its connection holds; then the service's iterator waits. An event may be
	// large, and there may be many slow clients.
	streamBuffer = 8
)

// streamEvents sends a conversation's journal and then its live events as
// server-sent events. The number of an event is its id, so a client that
// reconnects with Last-Event-ID gets each event exactly once. A failure
// becomes an event named error that holds the problem, and ends the stream.
func (s *Server) streamEvents(w http.ResponseWriter, r *http.Request) {
	after, err := startAfter(r)
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
	// Whether there is such a conversation has to be known before the 200.
	c, err := s.service.Get(ctx, r.PathValue("id"))
	if err == nil && after > c.LastSeq {
		err = fault.New(fault.RequestInvalid, "The conversation has %d events; there is nothing after %d yet.", c.LastSeq, after)
	}
	if err != nil {
		s.fail(w, r, err)
		return
	}

	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	out := &sse{w: w, control: http.NewResponseController(w)}
	out.comment("connected")
	if out.flush() != nil {
		return
	}

	type item struct {
		event model.Event
		err   error
	}
	events := make(chan item, streamBuffer)
	ctx, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		for range events { //nolint:revive // waits for the goroutine to end
		}
	}()
	go func() {
		defer close(events)
		for e, err := range s.service.Stream(ctx, c.ID, after) {
			select {
			case events <- item{e, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-beat.C:
			out.comment("heartbeat")
		case it, ok := <-events:
			if !ok {
				return // the conversation was deleted, or ctx ended
			}
			for ok {
				if it.err != nil {
					s.endStream(ctx, out, it.err)
					return
				}
				if out.event(it.event) != nil {
					return
				}
				select { // send what is there already with the same flush
				case it, ok = <-events:
				default:
					ok = false
				}
			}
		}
		if out.flush() != nil {
			return
		}
	}
}

func (s *Server) endStream(ctx context.Context, out *sse, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	p := newProblem(ctx, err)
	s.logFailure(ctx, p)
	out.named("error", p.Problem)
	_ = out.flush() // the client is gone if this fails
}

// startAfter reads where to begin. Last-Event-ID, which a browser sends when it
// reconnects to the same address, wins over the address's own after.
func startAfter(r *http.Request) (int64, error) {
	name, value := "Last-Event-ID", r.Header.Get("Last-Event-ID")
	if value == "" {
		name, value = "after", r.URL.Query().Get("after")
	}
	if value == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < 0 {
		return 0, fault.New(fault.RequestInvalid, "%s must be the number of an event, or 0.", name)
	}
	return n, nil
}

// sse writes server-sent events for one goroutine. The first error stays.
type sse struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buf     bytes.Buffer
	err     error
}

func (o *sse) comment(text string) { o.write(": " + text + "\n\n") }

func (o *sse) event(e model.Event) error {
	data, err := json.Marshal(e)
	if err != nil {
		o.err = err
		return err
	}
	o.buf.Reset()
	o.buf.WriteString("id: ")
	o.buf.WriteString(strconv.FormatInt(e.Seq, 10))
	o.buf.WriteString("\ndata: ")
	o.buf.Write(data) // JSON has no line break
	o.buf.WriteString("\n\n")
	o.write(o.buf.String())
	return o.err
}

func (o *sse) named(name string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		o.err = err
		return
	}
	o.write("event: " + name + "\ndata: " + string(data) + "\n\n")
}

func (o *sse) write(text string) {
	if o.err == nil {
		_, o.err = o.w.Write([]byte(text))
	}
}

func (o *sse) flush() error {
	if o.err == nil {
		o.err = o.control.Flush()
	}
	return o.err
}
