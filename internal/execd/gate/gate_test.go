package gate

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const places = 3

func listen(t *testing.T) *Listener {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	g := New(l, places)
	t.Cleanup(func() { g.Close() })
	return g
}

// enter connects, and gives both ends.
func enter(t *testing.T, g *Listener) (theirs net.Conn, ours *Conn) {
	t.Helper()
	var d net.Dialer
	theirs, err := d.DialContext(t.Context(), "tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { theirs.Close() })
	c, err := g.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return theirs, c.(*Conn)
}

// closed reports whether a connection was closed by the other side.
func closed(t *testing.T, c net.Conn) bool {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Read(make([]byte, 1))
	return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

// However many strangers come, they only take each other's places.
func TestStrangersMakeRoom(t *testing.T) {
	g := listen(t)
	known, ours := enter(t, g)
	ours.Welcome()
	ours.Welcome() // each request says so
	var strangers []net.Conn
	for range 20 {
		theirs, _ := enter(t, g)
		strangers = append(strangers, theirs)
	}
	if closed(t, known) {
		t.Error("who was welcome lost the place")
	}
	for i, s := range strangers {
		if want := i < len(strangers)-(places-1); closed(t, s) != want {
			t.Errorf("stranger %d: closed %v, want %v", i, !want, want)
		}
	}
}

// With nobody to send away a connection waits until somebody goes.
func TestFull(t *testing.T) {
	g := listen(t)
	var ours []*Conn
	for range places {
		_, c := enter(t, g)
		c.Welcome()
		ours = append(ours, c)
	}
	var d net.Dialer
	late, err := d.DialContext(t.Context(), "tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	accepted := make(chan net.Conn)
	go func() {
		c, err := g.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	select {
	case <-accepted:
		t.Fatal("one more than there are places")
	case <-time.After(50 * time.Millisecond):
	}
	ours[0].Close()
	ours[0].Close() // gives one place back, not two
	c := <-accepted
	defer c.Close()
	if g.taken != places {
		t.Errorf("%d places are taken", g.taken)
	}
}

// The end of the listener ends the wait for a place.
func TestCloseWhileFull(t *testing.T) {
	g := listen(t)
	for range places {
		_, c := enter(t, g)
		c.Welcome()
	}
	var d net.Dialer
	late, err := d.DialContext(t.Context(), "tcp", g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	failed := make(chan error)
	go func() {
		_, err := g.Accept()
		failed <- err
	}()
	g.Close()
	if err := <-failed; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	if _, err := io.ReadAll(late); err != nil && !errors.Is(err, io.EOF) {
		t.Logf("the one who waited: %v", err) // reset or closed, but not left hanging
	}
}
