package execd

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// The older protocol's POST /command loses bytes and order, so it only serves
// for small lines of this package's own, whose output is short plain text.

const (
	// maxEventLine bounds one line of the stream, maxLineOutput all of the output.
	maxEventLine  = 256 << 10
	maxLineOutput = 1 << 20
	// lineTime bounds one such line in the sandbox; ours is a little longer.
	lineTime  = 20 * time.Second
	graceTime = 5 * time.Second
)

// event is one object of the stream.
type event struct {
	Type  string `json:"type"`
	Text  string `json:"text"`
	Error *struct {
		Name  string   `json:"ename"`
		Value string   `json:"evalue"`
		Trace []string `json:"traceback"`
	} `json:"error"`
	// An object with a code and no type is the failure of the run.
	Code    string `json:"code"`
	Message string `json:"message"`
}

// eventReader reads a stream of events: bare JSON objects between blank lines,
// as a foreign execd sends them, or the data lines of an event stream.
type eventReader struct {
	s       *bufio.Scanner
	pending *json.Decoder // of a line with several objects
}

func newEventReader(r io.Reader) *eventReader {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4<<10), maxEventLine)
	return &eventReader{s: s}
}

// next gives the next event. The end of the stream is io.EOF, a broken one another error.
func (r *eventReader) next() (event, error) {
	for {
		if r.pending != nil {
			var e event
			switch err := r.pending.Decode(&e); {
			case err == nil:
				return e, nil
			case !errors.Is(err, io.EOF):
				return event{}, fmt.Errorf("an event that can't be read: %w", err)
			}
			r.pending = nil
		}
		if !r.s.Scan() {
			if err := r.s.Err(); err != nil {
				return event{}, err
			}
			return event{}, io.EOF
		}
		line := bytes.TrimPrefix(bytes.TrimSpace(r.s.Bytes()), []byte("data:"))
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] == '{' {
			r.pending = json.NewDecoder(bytes.NewReader(line))
		}
	}
}

// outcome is how a line ended.
type outcome struct {
	out  string
	code int  // -1: by a signal, which may have been the timeout's
	cut  bool // the stream broke off: out may be incomplete
}

// output gives the output of a line that succeeded.
func (o outcome) output() (string, error) {
	switch {
	case o.cut:
		return "", fmt.Errorf("%w: the connection to a running command was lost", sandbox.ErrUnreachable)
	case o.code != 0:
		return "", sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox failed at a step of its own (status %d)", o.code)
	}
	return strings.TrimSpace(o.out), nil
}

// line runs a shell line of at most lineTime.
func (f foreign) line(ctx context.Context, line string) (outcome, error) {
	return f.lineFor(ctx, line, lineTime)
}

// lineFor runs a shell line. It returns at the event that ends it, since the
// response goes on for a second. When ctx ends, the line is killed; one whose
// id isn't known yet is waited for shortly, since it would start all the same.
func (f foreign) lineFor(ctx context.Context, line string, limit time.Duration) (outcome, error) {
	if ctx.Err() != nil {
		return outcome{}, ctx.Err()
	}
	run, stop := context.WithTimeout(context.WithoutCancel(ctx), limit+graceTime)
	defer stop()
	known := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		late := time.NewTimer(setupTime)
		defer late.Stop()
		select {
		case <-known:
		case <-late.C:
		case <-run.Done():
		}
		stop()
	})()
	body, err := json.Marshal(wire.CommandRequest{Command: line, Timeout: limit.Milliseconds()})
	if err != nil {
		return outcome{}, fmt.Errorf("execd: %w", err)
	}
	resp, err := f.c.do(run, request{
		method: http.MethodPost, path: "/command", body: bytesBody(body),
		header: http.Header{"Content-Type": {"application/json"}},
	})
	if err != nil {
		if ctx.Err() != nil {
			return outcome{}, ctx.Err()
		}
		return outcome{}, f.overdue(ctx, startError(err))
	}
	defer resp.Body.Close()
	o, id, err := follow(newEventReader(resp.Body), known)
	if err == nil || !errors.Is(err, errUnknownEnd) {
		return o, err
	}
	return f.askEnd(ctx, o, id, err)
}

// overdue keeps the deadline of a line from being taken for the caller's.
func (f foreign) overdue(ctx context.Context, err error) error {
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return lost(err)
	}
	return err
}

// errUnknownEnd: the stream ended before the run did.
var errUnknownEnd = errors.New("the stream of a command broke off")

// follow reads events to the one that ends the run. It closes known once it has the id.
func follow(r *eventReader, known chan<- struct{}) (o outcome, id string, err error) {
	var out strings.Builder
	for {
		e, err := r.next()
		o.out = out.String()
		if err != nil {
			o.cut = true
			return o, id, fmt.Errorf("%w: %w", errUnknownEnd, err)
		}
		switch e.Type {
		case "init":
			if id = e.Text; known != nil {
				close(known)
				known = nil
			}
		case "stdout":
			if out.Len()+len(e.Text) > maxLineOutput {
				return o, id, lost(errors.New("a command wrote too much"))
			}
			out.WriteString(strings.TrimSuffix(e.Text, "\n") + "\n")
		case "execution_complete":
			return o, id, nil
		case "error":
			if e.Error == nil {
				return o, id, sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox couldn't run a step of its own")
			}
			if o.code, err = strconv.Atoi(e.Error.Value); err != nil {
				return o, id, sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox couldn't run a step of its own: %s", e.Error.Value)
			}
			return o, id, nil
		case "":
			if e.Code != "" {
				return o, id, sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox couldn't run a step of its own: %s", e.Message)
			}
		}
	}
}

// askEnd finds out about a line whose stream ended too early, and kills one
// that still runs: the connection's end doesn't.
func (f foreign) askEnd(ctx context.Context, o outcome, id string, cause error) (outcome, error) {
	over := ctx.Err()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
	defer cancel()
	if id == "" {
		if over != nil {
			return o, over
		}
		return o, lost(cause)
	}
	var st struct {
		Running bool `json:"running"`
		Code    *int `json:"exit_code"`
	}
	err := f.c.json(ctx, http.MethodGet, "/command/status/"+url.PathEscape(id), "", nil, &st)
	if over != nil || err != nil || st.Running || st.Code == nil {
		// A line that has ended meanwhile can't be killed, which is as well.
		_ = f.c.json(ctx, http.MethodDelete, "/command", url.Values{"id": {id}}.Encode(), nil, nil)
		if over != nil {
			return o, over
		}
		return o, lost(cause)
	}
	o.code = *st.Code
	return o, nil
}
