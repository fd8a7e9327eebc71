package pump

import (
	"bytes"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// writer opens the child's end of a pipe.
func open(t *testing.T) (*Pump, *os.File) {
	t.Helper()
	ours, theirs, err := Pipe(false)
	if err != nil {
		t.Fatal(err)
	}
	w := os.NewFile(uintptr(theirs), "|")
	t.Cleanup(func() { ours.Close(); w.Close() })
	return New(ours), w
}

func write(t *testing.T, w *os.File, s string) {
	t.Helper()
	if _, err := w.WriteString(s); err != nil {
		t.Fatal(err)
	}
}

// What is in the pipe is delivered however late the pump gets to run.
func TestLatePump(t *testing.T) {
	for _, closed := range []bool{false, true} {
		p, w := open(t)
		data := string(bytes.Repeat([]byte("x"), 50000))
		write(t, w, data)
		if closed {
			w.Close()
		}
		p.Exited()
		<-time.After(2 * silence) // a machine so busy that the deadline passes first
		var got bytes.Buffer
		stillOpen := p.Run(func(b []byte) bool { got.Write(b); return true })
		if got.String() != data || stillOpen == closed {
			t.Errorf("closed %v: %d bytes of %d, open %v", closed, got.Len(), len(data), stillOpen)
		}
	}
}

// What the child wrote is delivered although the time for what others write has
// passed at once, whenever the end is told while the pump reads.
func TestEndWhileReading(t *testing.T) {
	const want = 2 * minBuffer
	data := string(bytes.Repeat([]byte("x"), want))
	for range 3000 {
		p, w := open(t)
		p.linger = 0
		write(t, w, data)
		got := make(chan int, 1)
		go func() {
			n := 0
			p.Run(func(b []byte) bool { n += len(b); return true })
			got <- n
		}()
		p.Exited()
		n := <-got
		w.Close()
		p.f.Close()
		if n != want {
			t.Fatalf("%d bytes of %d", n, want)
		}
	}
}

// A holder that stays silent doesn't keep the pump.
func TestSilentHolder(t *testing.T) {
	p, w := open(t)
	write(t, w, "last words")
	result := make(chan bool, 1)
	var got bytes.Buffer
	go func() { result <- p.Run(func(b []byte) bool { got.Write(b); return true }) }()
	p.Exited()
	if !<-result || got.String() != "last words" {
		t.Errorf("%q", got.String())
	}
}

// A sink that wants no more doesn't block the writer.
func TestUnwantedOutputIsReadAway(t *testing.T) {
	p, w := open(t)
	result := make(chan bool, 1)
	calls := 0
	go func() { result <- p.Run(func([]byte) bool { calls++; return false }) }()
	for range 100 {
		write(t, w, string(make([]byte, 64<<10)))
	}
	w.Close()
	if <-result || calls != 1 {
		t.Errorf("%d calls", calls)
	}
}

// What was left behind can go on writing.
func TestDiscarder(t *testing.T) {
	var d Discarder
	ours, theirs, err := Pipe(false)
	if err != nil {
		t.Fatal(err)
	}
	w := os.NewFile(uintptr(theirs), "|")
	d.Take(ours)
	for range 100 {
		write(t, w, string(make([]byte, 64<<10)))
	}
	d.Close()
	if _, err := w.WriteString("x"); err == nil {
		t.Error("the pipe is still read")
	}
	w.Close()
	other, fd, err := Pipe(false)
	if err != nil {
		t.Fatal(err)
	}
	d.Take(other) // closed at once
	if _, err := other.Read(make([]byte, 1)); err == nil {
		t.Error("open after Close")
	}
	syscall.Close(fd)
}

// A stream that comes fast, stops, and comes fast again arrives as it was
// written, and its child's end is seen however the stream was being read.
func TestFastStream(t *testing.T) {
	for i := range 4 {
		held, collects := i&1 != 0, i&2 != 0
		p, w := open(t)
		p.collects = collects
		want := make([]byte, 3<<20)
		for i := range want {
			want[i] = byte(i * 31 >> 3)
		}
		result := make(chan bool, 1)
		var got bytes.Buffer
		go func() { result <- p.Run(func(b []byte) bool { got.Write(b); return true }) }()
		for rest := want; len(rest) > 0; {
			n := min(len(rest), 8<<10)
			write(t, w, string(rest[:n]))
			if rest = rest[n:]; len(rest) == len(want)/2 {
				<-time.After(2 * patience * moment) // long enough to be slow again
			}
		}
		if !held {
			w.Close()
		}
		p.Exited()
		if stillOpen := <-result; stillOpen != held || !bytes.Equal(got.Bytes(), want) {
			t.Errorf("collects %v, held %v: open %v, %d bytes of %d", collects, held, stillOpen, got.Len(), len(want))
		}
	}
}
