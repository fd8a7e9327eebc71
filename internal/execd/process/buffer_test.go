package process

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/astrabox/astrabox/internal/execd/child"
)

// The buffer is compared with one that keeps everything.
func TestBufferAgainstAModel(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := buffer{max: 64 + r.IntN(4000)}
		type origin struct {
			run     int
			channel byte
		}
		var all []byte
		var from []origin
		run, floor := 1, int64(0)
		for range 60 {
			if r.IntN(20) == 0 {
				b.ended(run, child.Exit{Code: run})
				if e, ok := b.endAt(b.next, run-1); !ok || e.run != run {
					t.Fatalf("seed %d: the end of run %d is lost", seed, run)
				}
				run++
			}
			channel := byte(1 + r.IntN(2))
			p := make([]byte, 1+r.IntN(b.max/4))
			for i := range p {
				p[i] = byte(r.Uint32())
			}
			if r.IntN(2) == 0 {
				floor = b.oldest + r.Int64N(b.next-b.oldest+1)
			}
			room := b.room(floor, run, channel)
			if room < 0 || room > b.max {
				t.Fatalf("seed %d: room %d", seed, room)
			}
			p = p[:min(len(p), room)]
			if len(p) == 0 {
				floor = b.next
				continue
			}
			b.append(run, channel, p)
			all = append(all, p...)
			for range p {
				from = append(from, origin{run, channel})
			}
			switch {
			case b.next != int64(len(all)):
				t.Fatalf("seed %d: next %d, want %d", seed, b.next, len(all))
			case b.oldest > floor:
				t.Fatalf("seed %d: dropped byte %d, from %d on all must stay", seed, b.oldest, floor)
			case b.next-b.oldest > int64(b.max):
				t.Fatalf("seed %d: holds %d bytes of %d", seed, b.next-b.oldest, b.max)
			case len(b.segments) > b.maxSegments():
				t.Fatalf("seed %d: %d segments", seed, len(b.segments))
			}
			got := make([]byte, 1+r.IntN(3000))
			for at := b.oldest; at < b.next; {
				n, run, channel := b.read(at, got)
				if n <= 0 || !bytes.Equal(got[:n], all[at:at+int64(n)]) {
					t.Fatalf("seed %d: wrong bytes at %d", seed, at)
				}
				for i := range n {
					if from[at+int64(i)] != (origin{run, channel}) {
						t.Fatalf("seed %d: byte %d has another origin", seed, at+int64(i))
					}
				}
				at += int64(n)
			}
		}
	}
}

func TestBufferBoundsSmallAlternatingWrites(t *testing.T) {
	b := buffer{max: 1 << 20}
	for i := range 1 << 20 {
		b.append(1, byte(1+i%2), []byte{byte(i)})
	}
	if len(b.segments) > b.maxSegments() || b.next != 1<<20 {
		t.Errorf("%d segments, next %d", len(b.segments), b.next)
	}
	// And a process that must lose nothing is held up by them.
	if room := b.room(b.oldest, 1, 1); room != 0 {
		t.Errorf("room %d, want 0", room)
	}
}
