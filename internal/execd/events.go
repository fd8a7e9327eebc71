package execd

import (
	"bytes"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/astrabox/astrabox/internal/execd/command"
)

const (
	eventPing = 3 * time.Second
	// maxEventLine bounds the text of one event; a longer line comes in pieces.
	maxEventLine = 1 << 20
	// eventBuffer is sent as soon as it is full, so that short lines, which
	// are ten times as long as events, don't make it grow.
	eventBuffer = 64 << 10
	// eventStall is how long one write to a client that doesn't read may hold
	// the command up. The client gets nothing more then; the command runs on.
	eventStall = 10 * time.Second

	wireStdout = command.Stdout
)

// eventWriter answers in the form of the older protocol: one JSON object for
// each line of output, followed by an empty line. Lines end with LF, CR LF or
// CR; an empty line is the text "\n"; what isn't UTF-8 is replaced. So bytes
// can't be told exactly from it, which is what framed output is for.
type eventWriter struct {
	w  http.ResponseWriter
	rc *http.ResponseController

	mu     sync.Mutex
	buf    []byte
	lines  [3]lineSplitter // by channel
	failed bool
	over   bool
	begun  time.Time
	ping   *time.Timer
	last   atomic.Pointer[time.Time] // when everything is to be sent, once the command is being killed
}

func newEventWriter(w http.ResponseWriter) *eventWriter {
	return &eventWriter{w: w, rc: http.NewResponseController(w)}
}

// merged keeps a CR within a line as it is: how sessions send their output.
func (e *eventWriter) merged() { e.lines[wireStdout].keepCR = true }

// begin sends the headers and the first two events.
func (e *eventWriter) begin(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h := e.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	e.w.WriteHeader(http.StatusOK)
	e.begun = time.Now()
	now := e.begun.UnixMilli()
	e.text("init", []byte(id), now)
	e.text("ping", []byte("pong"), now)
	e.flush()
	e.ping = time.AfterFunc(eventPing, e.sendPing)
}

func (e *eventWriter) sendPing() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over || e.failed {
		return
	}
	e.text("ping", []byte("pong"), time.Now().UnixMilli())
	e.flush()
	e.ping.Reset(eventPing)
}

// output sends the whole lines of b, all of a read at once.
func (e *eventWriter) output(channel byte, b []byte) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed {
		return false
	}
	now := time.Now().UnixMilli()
	kind := channelName(channel)
	e.lines[channel].add(b, func(line []byte) {
		if e.text(kind, line, now); len(e.buf) >= eventBuffer {
			e.flush()
		}
	})
	return e.flush()
}

func channelName(channel byte) string {
	if channel == command.Stderr {
		return "stderr"
	}
	return "stdout"
}

// note sends a line of the daemon's own.
func (e *eventWriter) note(text string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.text("stderr", []byte(text), time.Now().UnixMilli())
	e.flush()
}

// end writes what is left of the output and the last event. The end of the
// response sends them, in one piece with itself: a client that stops reading
// at the last event then leaves a connection that can be used again.
func (e *eventWriter) end(r command.Result, timeout time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	for _, channel := range []byte{command.Stdout, command.Stderr} {
		e.lines[channel].finish(func(line []byte) { e.text(channelName(channel), line, now.UnixMilli()) })
	}
	if r.Code == 0 {
		e.complete(now)
	} else {
		value, trace := exitText(r, timeout)
		e.failure(value, now.UnixMilli(), trace...)
	}
	e.write()
}

// exitText gives an exit as the older protocol words it. A timeout can be told
// from another kill by the second line of its trace.
func exitText(r command.Result, timeout time.Duration) (value string, trace []string) {
	if r.Signal == "" {
		return strconv.Itoa(r.Code), []string{"exit status " + strconv.Itoa(r.Code)}
	}
	trace = []string{"signal: " + signalText(r.Code)}
	if r.TimedOut {
		trace = append(trace, "timeout after "+timeout.String())
	}
	return "-1", trace
}

func (e *eventWriter) complete(now time.Time) {
	e.buf = append(e.buf, `{"type":"execution_complete"`...)
	if ms := now.Sub(e.begun).Milliseconds(); ms > 0 {
		e.buf = append(e.buf, `,"execution_time":`...)
		e.buf = strconv.AppendInt(e.buf, ms, 10)
	}
	e.stamp(now.UnixMilli())
	e.buf = append(e.buf, "}\n\n"...)
}

// fail sends the event of a command that wasn't started.
func (e *eventWriter) fail(message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failure(message, time.Now().UnixMilli(), message)
	e.write()
}

func (e *eventWriter) failure(value string, now int64, trace ...string) {
	e.buf = append(e.buf, `{"type":"error"`...)
	e.stamp(now)
	e.buf = append(e.buf, `,"error":{"ename":"CommandExecError","evalue":`...)
	e.buf = appendString(e.buf, []byte(value))
	e.buf = append(e.buf, `,"traceback":[`...)
	for i, line := range trace {
		if i > 0 {
			e.buf = append(e.buf, ',')
		}
		e.buf = appendString(e.buf, []byte(line))
	}
	e.buf = append(e.buf, "]}}\n\n"...)
}

func (e *eventWriter) text(kind string, text []byte, now int64) {
	e.buf = append(e.buf, `{"type":"`...)
	e.buf = append(e.buf, kind...)
	e.buf = append(e.buf, `","text":`...)
	e.buf = appendString(e.buf, text)
	e.stamp(now)
	e.buf = append(e.buf, "}\n\n"...)
}

func (e *eventWriter) stamp(now int64) {
	e.buf = append(e.buf, `,"timestamp":`...)
	e.buf = strconv.AppendInt(e.buf, now, 10)
}

func (e *eventWriter) flush() bool {
	if e.write() {
		e.failed = e.rc.Flush() != nil
	}
	return !e.failed
}

// write gives the events to the response; false: there are none, or it failed.
func (e *eventWriter) write() bool {
	events := e.buf
	e.buf = e.buf[:0]
	if len(events) == 0 || e.failed || e.over {
		return false
	}
	// Failing to set a deadline means that the connection is gone, which the write tells.
	_ = e.rc.SetWriteDeadline(e.deadline())
	_, err := e.w.Write(events)
	e.failed = err != nil
	return !e.failed
}

// hurry bounds the time of what is still to be sent. It doesn't wait for a
// write that is stuck, whose own deadline ends it.
func (e *eventWriter) hurry() {
	end := time.Now().Add(lastWrite)
	e.last.CompareAndSwap(nil, &end)
}

func (e *eventWriter) deadline() time.Time {
	end := time.Now().Add(eventStall)
	if last := e.last.Load(); last != nil && last.Before(end) {
		return *last
	}
	return end
}

func (e *eventWriter) finish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
	if e.ping != nil {
		e.ping.Stop()
	}
}

// lineSplitter makes lines of pieces.
type lineSplitter struct {
	part []byte // of a line without its end
	cr   bool   // the piece before ended with a CR, which has ended a line
	// keepCR lets LF alone end lines, and takes one CR before it away.
	keepCR bool
}

func (l *lineSplitter) add(b []byte, line func([]byte)) {
	if l.cr && len(b) > 0 && b[0] == '\n' {
		b = b[1:]
	}
	l.cr = false
	for len(b) > 0 {
		i := l.end(b)
		if i < 0 {
			l.part = append(l.part, b...)
			l.cut(line)
			return
		}
		text := b[:i]
		if len(l.part) > 0 || len(text) > maxEventLine {
			l.part = append(l.part, text...)
			l.cut(line)
			text = l.part
		}
		if l.keepCR {
			text = bytes.TrimSuffix(text, []byte{'\r'})
		}
		if len(text) == 0 {
			text = []byte{'\n'}
		}
		line(text)
		l.part = l.part[:0]
		end := b[i]
		b = b[i+1:]
		switch {
		case end == '\r' && len(b) == 0:
			l.cr = true
		case end == '\r' && b[0] == '\n':
			b = b[1:]
		}
	}
}

// cut gives pieces of a line that is too long for one event, and keeps the
// last, which isn't empty. A character stays in one piece.
func (l *lineSplitter) cut(line func([]byte)) {
	from := 0
	for l.tooLong(l.part[from:]) {
		n := maxEventLine
		for back := 1; back < utf8.UTFMax && !utf8.RuneStart(l.part[from+n]); back++ {
			n--
		}
		if !utf8.RuneStart(l.part[from+n]) {
			n = maxEventLine // no character, so it can be cut anywhere
		}
		line(l.part[from : from+n])
		from += n
	}
	l.part = append(l.part[:0], l.part[from:]...)
}

// tooLong doesn't count a CR that the line's end may take away.
func (l *lineSplitter) tooLong(part []byte) bool {
	n := len(part)
	if l.keepCR && n > 0 && part[n-1] == '\r' {
		n--
	}
	return n > maxEventLine
}

// end finds the byte that ends a line; -1: none.
func (l *lineSplitter) end(b []byte) int {
	if l.keepCR {
		return bytes.IndexByte(b, '\n')
	}
	return bytes.IndexAny(b, "\r\n")
}

func (l *lineSplitter) finish(line func([]byte)) {
	if len(l.part) > 0 {
		line(l.part)
	}
	l.part = nil
}

const hexDigits = "0123456789abcdef"

// appendString appends text as a JSON string that is safe in HTML.
func appendString(b, text []byte) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(text); {
		c := text[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&' {
				i++
				continue
			}
			b = append(b, text[from:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\n':
				b = append(b, '\\', 'n')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 {
			b = append(append(b, text[from:i]...), `\ufffd`...)
			i++
			from = i
			continue
		}
		i += n
	}
	return append(append(b, text[from:]...), '"')
}
