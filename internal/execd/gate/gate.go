// Package gate bounds the connections of a listener so that strangers can't
// keep out who is known. The daemon's server listens through it.
//
// A connection is a stranger's until [Conn.Welcome] is called for it, which the
// server does when a request has carried the token. When all places are taken, a
// new connection gets the place of the oldest stranger; only when there is none
// does it wait. So whoever fills the daemon with connections that say nothing
// (any program in the sandbox can) only loses them again.
//
// Everything is safe for concurrent use; Accept is for one goroutine.
package gate

import (
	"container/list"
	"net"
	"sync"
)

// Listener gives at most so many connections at a time.
type Listener struct {
	*net.TCPListener
	places int

	mu        sync.Mutex
	free      sync.Cond // there may be a place, or a stranger, or the listener is closed
	taken     int
	strangers list.List // of *Conn, oldest first
	closed    bool
}

// New makes a Listener with so many places.
func New(l *net.TCPListener, places int) *Listener {
	g := &Listener{TCPListener: l, places: places}
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
	return true
}

// leave gives a place back. The lock is held.
func (g *Listener) leave(c *Conn) {
	if c.gone {
		return
	}
	c.gone, c.stranger = true, nil
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
