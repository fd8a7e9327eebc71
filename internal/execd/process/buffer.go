package process

import (
	"slices"

	"github.com/astrabox/astrabox/internal/execd/child"
)

// maxExits bounds how many ends of earlier runs are remembered.
const maxExits = 256

// buffer holds the newest output of a process, numbered in bytes from its
// first, and the ends of its runs. It isn't safe for concurrent use.
type buffer struct {
	max          int
	ring         []byte // byte n is at n % len(ring); grows up to max
	oldest, next int64
	segments     []segment // in order, without gaps
	exits        []runEnd  // in order
}

// segment is a stretch of output from one place.
type segment struct {
	end     int64 // offset after its last byte
	run     int
	channel byte
}

// runEnd is the end of a run, after the byte before at.
type runEnd struct {
	at   int64
	run  int
	exit child.Exit
}

// maxSegments bounds the bookkeeping to a part of the buffer: a process that
// changes channel with each byte fills it before its bytes do.
func (b *buffer) maxSegments() int { return max(b.max/64, 64) }

// room says how many bytes can be appended when nothing from floor on may be dropped.
func (b *buffer) room(floor int64, run int, channel byte) int {
	n := len(b.segments)
	if n >= b.maxSegments() && !b.continues(run, channel) && b.segments[0].end > floor {
		return 0
	}
	return b.max - int(b.next-max(floor, b.oldest))
}

func (b *buffer) continues(run int, channel byte) bool {
	n := len(b.segments)
	return n > 0 && b.segments[n-1].run == run && b.segments[n-1].channel == channel
}

// append adds p, at most room bytes, and drops the oldest where it has to.
func (b *buffer) append(run int, channel byte, p []byte) {
	b.grow(int(b.next-b.oldest) + len(p))
	if over := int(b.next-b.oldest) + len(p) - len(b.ring); over > 0 {
		b.drop(b.oldest + int64(over))
	}
	if !b.continues(run, channel) {
		if len(b.segments) >= b.maxSegments() {
			b.drop(b.segments[0].end)
		}
		b.segments = append(b.segments, segment{end: b.next, run: run, channel: channel})
	}
	at := int(b.next % int64(len(b.ring)))
	n := copy(b.ring[at:], p)
	copy(b.ring, p[n:])
	b.next += int64(len(p))
	b.segments[len(b.segments)-1].end = b.next
}

// grow makes the ring hold want bytes, as far as max allows.
func (b *buffer) grow(want int) {
	size := len(b.ring)
	if want <= size || size == b.max {
		return
	}
	if size == 0 {
		size = min(b.max, 4<<10)
	}
	for size < want && size < b.max {
		size = min(2*size, b.max)
	}
	old := b.ring
	b.ring = make([]byte, size)
	for off := b.oldest; off < b.next; {
		from, to := int(off%int64(len(old))), int(off%int64(size))
		n := min(len(old)-from, size-to, int(b.next-off))
		copy(b.ring[to:to+n], old[from:])
		off += int64(n)
	}
}

// drop forgets everything before offset.
func (b *buffer) drop(offset int64) {
	b.oldest = max(b.oldest, offset)
	gone := 0
	for gone < len(b.segments) && b.segments[gone].end <= b.oldest {
		gone++
	}
	b.segments = b.segments[gone:] // append moves what is left once in a while
	gone = 0
	for gone < len(b.exits) && b.exits[gone].at < b.oldest {
		gone++
	}
	b.exits = b.exits[gone:]
}

// read copies output from offset on into p, of one run and channel only.
// offset lies in [oldest, next).
func (b *buffer) read(offset int64, p []byte) (n, run int, channel byte) {
	i, _ := slices.BinarySearchFunc(b.segments, offset, func(s segment, off int64) int {
		if s.end <= off {
			return -1
		}
		return 1
	})
	s := b.segments[i]
	want := min(len(p), int(s.end-offset))
	at := int(offset % int64(len(b.ring)))
	n = copy(p[:want], b.ring[at:])
	n += copy(p[n:want], b.ring)
	return n, s.run, s.channel
}

// ended notes the end of a run at the current end of the output.
func (b *buffer) ended(run int, exit child.Exit) {
	if len(b.exits) >= maxExits {
		b.exits = b.exits[1:]
	}
	b.exits = append(b.exits, runEnd{at: b.next, run: run, exit: exit})
}

// endAt gives the end of a run later than after that lies at offset.
func (b *buffer) endAt(offset int64, after int) (runEnd, bool) {
	for _, e := range b.exits {
		if e.at == offset && e.run > after {
			return e, true
		}
	}
	return runEnd{}, false
}
