package network

import (
	"net"
	"net/netip"
	goruntime "runtime"
	"testing"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// listenInside makes a network namespace with a listener on execd's port.
func listenInside(t *testing.T) (netns.NsHandle, net.Listener) {
	t.Helper()
	type made struct {
		ns  netns.NsHandle
		l   net.Listener
		err error
	}
	done := make(chan made)
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread ends with the goroutine
		var m made
		if m.ns, m.err = netns.New(); m.err == nil {
			m.l, m.err = net.Listen("tcp4", "0.0.0.0:44772")
		}
		done <- m
	}()
	m := <-done
	if m.err != nil {
		t.Fatal(m.err)
	}
	t.Cleanup(func() { m.l.Close(); m.ns.Close() })
	return m.ns, m.l
}

// A link that is plugged carries packets at once: none of a connection that is
// opened right then is lost and sent again.
func TestPluggedLinkLosesNothing(t *testing.T) {
	n := open(t, t.TempDir(), "plugs1")
	defer n.Remove()
	for range 25 {
		ns, _ := listenInside(t)
		l, err := n.Reserve()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.plug(int(ns), l); err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp4", netip.AddrPortFrom(l.Addr, wire.Port).String())
		if err != nil {
			t.Fatal(err)
		}
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		err = raw.Control(func(fd uintptr) {
			info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
			if err != nil {
				t.Error(err)
			} else if info.Total_retrans > 0 {
				t.Errorf("%d packets of the connection were sent again", info.Total_retrans)
			}
		})
		if err != nil {
			t.Error(err)
		}
		c.Close()
		if err := n.Unplug(l.Name); err != nil {
			t.Error(err)
		}
		n.Free(l)
	}
}
