// Package gate bounds the connections of a listener so that strangers can't
// keep out who is known. The daemon's server listens through it.
//
// A connection is a stranger's until [Conn.Welcome] is called for it, which the
// server does when a request has carried the token. When all places are taken, a
// new connection gets the place of the oldest stranger; only when there is none
// does it wait. So whoever fills the daemon with connections that say nothing
// (any program in the sandbox can) only loses them again.
//
// A peer that vanishes without a word, since its machine or the way to it has
// gone, is noticed within little more than the silence that [New] is given: its
// connection is closed. Within five minutes, where it had stopped reading before,
// since the kernel asks such a peer less and less often. One that is there and
// doesn't read keeps its connection for as long as it likes. (That is why
// TCP_USER_TIMEOUT isn't used: the kernel ends those too.)
//
// Everything is safe for concurrent use; Accept is for one goroutine.
package gate

import (
	"container/list"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Silence is how long a daemon's peers may be silent when they should speak.
const Silence = 30 * time.Second

// Listener gives at most so many connections at a time.
type Listener struct {
	*net.TCPListener
	places int

	mu        sync.Mutex
	free      sync.Cond // there may be a place, or a stranger, or the listener is closed
	taken     int
	strangers list.List // of *Conn, oldest first
	all       map[*Conn]struct{}
	closed    bool
	watching  *time.Timer // nil: there is no connection
	silence   time.Duration
}

// New makes a Listener with so many places, whose peers may be silent for
// silence, when they should speak, before they are taken to be gone.
func New(l *net.TCPListener, places int, silence time.Duration) *Listener {
	g := &Listener{TCPListener: l, places: places, all: map[*Conn]struct{}{}, silence: silence}
	g.free.L = &g.mu
	return g
}

// Conn is a connection that has a place. It remains a TCP connection, so that
// files can be sent from the kernel.
type Conn struct {
	*net.TCPConn
	gate *Listener

	// The rest belongs to the listener's lock.
	stranger *list.Element // nil: welcome, or without a place
	gone     bool
}

// Accept implements [net.Listener].
func (g *Listener) Accept() (net.Conn, error) {
	tcp, err := g.AcceptTCP()
	if err != nil {
		return nil, err
	}
	// A connection on which nothing happens: the kernel asks, and ends it.
	_ = tcp.SetKeepAliveConfig(net.KeepAliveConfig{ // a failure means that the peer has gone
		Enable: true, Idle: g.silence / 2, Interval: g.silence / 6, Count: 3,
	})
	c := &Conn{TCPConn: tcp, gate: g}
	if !g.admit(c) {
		tcp.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}

func (g *Listener) admit(c *Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.taken >= g.places && !g.closed {
		oldest := g.strangers.Front()
		if oldest == nil {
			g.free.Wait()
			continue
		}
		old, ok := g.strangers.Remove(oldest).(*Conn)
		if ok {
			g.leave(old)
			old.TCPConn.Close() // its server notices
		}
	}
	if g.closed {
		return false
	}
	g.taken++
	c.stranger = g.strangers.PushBack(c)
	g.all[c] = struct{}{}
	if g.watching == nil {
		g.watching = time.AfterFunc(g.silence/6, g.watch)
	}
	return true
}

// leave gives a place back. The lock is held.
func (g *Listener) leave(c *Conn) {
	if c.gone {
		return
	}
	c.gone, c.stranger = true, nil
	delete(g.all, c)
	if len(g.all) == 0 {
		g.watching.Stop()
		g.watching = nil
	}
	g.taken--
	g.free.Broadcast()
}

// Close implements [net.Listener]. The connections stay.
func (g *Listener) Close() error {
	g.mu.Lock()
	g.closed = true
	g.free.Broadcast()
	g.mu.Unlock()
	return g.TCPListener.Close()
}

// Welcome says that the connection is no stranger's: it keeps its place.
func (c *Conn) Welcome() {
	g := c.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.stranger != nil {
		g.strangers.Remove(c.stranger)
		c.stranger = nil
	}
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	g := c.gate
	g.mu.Lock()
	if c.stranger != nil {
		g.strangers.Remove(c.stranger)
	}
	g.leave(c)
	g.mu.Unlock()
	return c.TCPConn.Close()
}

// watch ends the connections of peers that have vanished.
func (g *Listener) watch() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.watching == nil {
		return // the last connection has just gone
	}
	for c := range g.all {
		if c.vanished(g.silence) {
			_ = c.SetLinger(0)    // nobody takes what is on its way
			_ = c.TCPConn.Close() // its server notices
		}
	}
	g.watching.Reset(g.silence / 6)
}

// vanished reports whether the peer has not said a word for so long, though it
// was sent something again, or asked several times whether it has room.
func (c *Conn) vanished(silence time.Duration) (gone bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false // it is closed already
	}
	_ = raw.Control(func(fd uintptr) { // the same
		i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err != nil {
			return
		}
		asked := i.Unacked > 0 && i.Retransmits > 0 || i.Probes > 1
		gone = asked && time.Duration(i.Last_ack_recv)*time.Millisecond >= silence
	})
	return gone
}
