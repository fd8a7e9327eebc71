package gate

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	places  = 3
	silence = 6 * time.Second // the kernel's keep-alive knows whole seconds only
)

func listen(t *testing.T) *Listener {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	g := New(l, places, silence)
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

// deafen makes the other end of a connection vanish: it takes nothing that is
// sent to it any more, and so answers nothing, not even the kernel for it.
func deafen(t *testing.T, c net.Conn) {
	t.Helper()
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		t.Fatalf("%T", c)
	}
	if err := tcp.SetKeepAlive(false); err != nil { // it says nothing by itself either
		t.Fatal(err)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing[0]})
	}); errors.Join(e, err) != nil {
		t.Fatal(e, err)
	}
}

// full waits until all that fits is on its way, has arrived, and isn't read.
func full(t *testing.T, c *Conn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for asked := false; !asked; {
		<-tick.C
		if err := raw.Control(func(fd uintptr) {
			i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			asked = err == nil && i.Unacked == 0 && i.Notsent_bytes > 0
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A peer that vanishes loses its connection in bounded time, whatever was on its
// way to it; one that only doesn't read keeps it.
func TestVanishedPeers(t *testing.T) {
	for name, c := range map[string]struct {
		write, vanish, late, kept bool
	}{
		"nothing on its way":    {vanish: true},
		"something on its way":  {vanish: true, write: true},
		"no room when it went":  {vanish: true, write: true, late: true},
		"there and quiet":       {kept: true},
		"there and not reading": {kept: true, write: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := listen(t)
			theirs, ours := enter(t, g)
			if c.vanish && !c.late {
				deafen(t, theirs)
			}
			begun := time.Now()
			ended := make(chan error, 2)
			if c.write {
				go func() { // more than fits
					_, err := ours.Write(make([]byte, 64<<20))
					ended <- err
				}()
			} else {
				go func() {
					_, err := ours.Read(make([]byte, 1))
					ended <- err
				}()
			}
			if c.late {
				full(t, ours)
				deafen(t, theirs)
			}
			patience := time.NewTimer(3 * silence)
			defer patience.Stop()
			select {
			case err := <-ended:
				if took := time.Since(begun); c.kept || err == nil || took < silence-time.Second {
					t.Errorf("it ended after %v: %v", took, err)
				}
				ended <- nil
			case <-patience.C:
				if !c.kept {
					t.Error("it is still there")
				}
			}
			ours.Close()
			<-ended
		})
	}
}
