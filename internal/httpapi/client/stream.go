package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

const (
	// patience is how long Stream tries to reach a server that is away, for
	// example because it restarts, since it last heard from it.
	patience = 30 * time.Second
	// silence is how long a stream may be without a byte: the server sends a
	// heartbeat every 15 s.
	silence = 60 * time.Second
	// maxEvent bounds one line of a stream.
	maxEvent = 64 << 20
)

// Stream yields the events with a number above after, those of the journal and
// then live ones, until ctx ends or the conversation is deleted. It reconnects
// by itself and yields each event once. The error that it yields last is a
// refusal, an *Unreachable after half a minute without a server, or ctx's.
func (c *Client) Stream(ctx context.Context, id string, after int64) iter.Seq2[model.Event, error] {
	return func(yield func(model.Event, error) bool) {
		heard := time.Now()
		for wait := 50 * time.Millisecond; ; {
			goOn, err := c.follow(ctx, id, func(e model.Event) bool {
				if e.Seq <= after {
					return true
				}
				after = e.Seq
				return yield(e, nil)
			}, after, func() { heard, wait = time.Now(), 50*time.Millisecond })
			if !goOn {
				return
			}
			if err == nil {
				// An orderly end: the conversation is gone, or the server stops.
				if conv, getErr := c.Conversation(ctx, id); getErr == nil && (conv.State == model.Deleted || conv.State == model.Deleting) || NotFound(getErr) {
					return
				}
				err = &Unreachable{Server: c.Server(), Err: errors.New("it ended the stream")}
			}
			var p *Problem
			switch {
			case ctx.Err() != nil:
				yield(model.Event{}, ctx.Err())
				return
			case errors.As(err, &p) && !p.Retryable, time.Since(heard) > patience:
				yield(model.Event{}, err)
				return
			}
			select {
			case <-ctx.Done():
				yield(model.Event{}, ctx.Err())
				return
			case <-time.After(wait):
			}
			wait = min(2*wait, 2*time.Second)
		}
	}
}

// follow reads one connection of a stream. goOn is false when got said to stop.
func (c *Client) follow(ctx context.Context, id string, got func(model.Event) bool, after int64, heard func()) (goOn bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := c.do(ctx, request{method: http.MethodGet, path: one(id) + "/events/stream",
		header: http.Header{"Accept": {"text/event-stream"}, "Last-Event-Id": {strconv.FormatInt(after, 10)}}})
	if err != nil {
		return true, err
	}
	defer resp.Body.Close()
	heard()
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	name, data := "", ""
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 64<<10), maxEvent)
	for lines.Scan() {
		quiet.Reset(silence)
		field, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			name = value
		case "data":
			data += value
		case "":
			if lines.Text() != "" || data == "" {
				continue // a comment, or nothing was said
			}
			heard()
			if name == "error" {
				p := &Problem{}
				if err := json.Unmarshal([]byte(data), &p.Problem); err != nil {
					p.Problem = wire.Problem{Detail: "the stream ended with an error that can't be read"}
				}
				return true, p
			}
			var e model.Event
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				return true, &Unreachable{Server: c.Server(), Err: fmt.Errorf("an event can't be read: %w", err)}
			}
			if !got(e) {
				return false, nil
			}
			name, data = "", ""
		}
	}
	if err := lines.Err(); err != nil {
		return true, &Unreachable{Server: c.Server(), Err: err}
	}
	return true, nil
}
