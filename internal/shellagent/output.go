package shellagent

import (
	"bytes"
	"fmt"
)

// The bounds of one command's output. Its beginning and its end are what a
// person looks for, so these are kept.
const (
	headLimit = 4 << 20  // shown as it comes
	tailLimit = 64 << 10 // of what comes after, shown when the command has ended
)

// output holds what a command has written and nobody was told yet. It never
// holds more than headLimit and tailLimit together, and a little for notices.
type output struct {
	text  text
	shown int // bytes taken
	cut   bool
	tail  []byte // the newest bytes since the cut; up to twice tailLimit
	left  int64  // bytes that were dropped from tail
}

func (o *output) write(p []byte) {
	if !o.cut {
		o.text.write(p)
		if o.shown+len(o.text.out) < headLimit {
			return
		}
		o.text.collapse()
		if o.shown+len(o.text.out) < headLimit {
			return
		}
		o.cut = true
		o.notice("[more than %d MiB of output: the rest is left out, except for its end]", headLimit>>20)
		return
	}
	o.tail = append(o.tail, p...)
	if extra := len(o.tail) - tailLimit; extra > tailLimit {
		o.tail = append(o.tail[:0], o.tail[extra:]...)
		o.left += int64(extra)
	}
}

// finish makes the end of a long output ready to be taken.
func (o *output) finish() {
	if len(o.tail) == 0 {
		return
	}
	tail := o.tail
	if extra := len(tail) - tailLimit; extra > 0 {
		tail = tail[extra:]
		o.left += int64(extra)
	}
	if o.left > 0 {
		// From the start of a line, where there is one.
		if i := bytes.IndexByte(tail, '\n'); i >= 0 && i+1 < len(tail) {
			tail = tail[i+1:]
			o.left += int64(i + 1)
		}
		o.notice("[%d bytes left out]", o.left)
	}
	o.text.write(tail)
	o.tail = nil
}

// notice adds a line of our own.
func (o *output) notice(format string, args ...any) {
	if len(o.text.out) > o.text.line || o.text.continued || len(o.text.rest) > 0 {
		o.text.write([]byte("\n"))
	}
	o.text.write(fmt.Appendf(nil, format+"\n", args...))
}

// take removes and returns the next piece, at most limit bytes; empty when
// there is nothing to tell.
func (o *output) take(limit int, last bool) string {
	s := o.text.take(limit, last)
	o.shown += len(s)
	return s
}
