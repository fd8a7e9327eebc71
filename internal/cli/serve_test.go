package cli

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A client that goes away in the middle of an answer ends nothing: SIGPIPE,
// which comes for it, means the end only where nobody reads the output.
func TestClientsThatGoAwayEndNothing(t *testing.T) {
	interrupts := make(chan os.Signal, 1)
	c := &command{System: System{Interrupts: func() (<-chan os.Signal, func()) { return interrupts, func() {} }}}
	ctx, done := c.untilInterrupted(t.Context())
	defer done()

	var pair [2]int
	if err := syscall.Pipe2(pair[:], syscall.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pair[1])
	if unread(int32(pair[1])) {
		t.Error("a pipe with a reader is called unread")
	}
	if err := syscall.Close(pair[0]); err != nil {
		t.Fatal(err)
	}
	if !unread(int32(pair[1])) {
		t.Error("a pipe without a reader isn't called unread")
	}
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, unix.SIGPIPE)
	defer signal.Stop(broken)
	for range 100 {
		if _, err := syscall.Write(pair[1], []byte("x")); !errors.Is(err, unix.EPIPE) {
			t.Fatal(err)
		}
		<-broken
	}
	if ctx.Err() != nil {
		t.Error("a broken connection ended the command")
	}
	interrupts <- os.Interrupt
	<-ctx.Done()
}
