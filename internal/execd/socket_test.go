package execd

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// A peer that answers stays, however long nothing else is said.
func TestIdlePeersStay(t *testing.T) {
	const short, enough = 20 * time.Millisecond, 30
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := accept(w, r)
		if conn == nil {
			t.Error("no handshake")
			return
		}
		ctx := conn.CloseRead(r.Context()) // reads the answers, and ends with the peer
		keepPinging(ctx, conn, short, 100*short, func() bool { return false })
	}))
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var pings atomic.Int32
	conn, _, err := websocket.Dial(ctx, s.URL, &websocket.DialOptions{ //nolint:bodyclose // read by Dial
		OnPingReceived: func(context.Context, []byte) bool {
			if pings.Add(1) == enough {
				cancel() // that ends Read
			}
			return true
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if _, _, err := conn.Read(ctx); pings.Load() < enough {
		t.Errorf("dropped after %d pings: %v", pings.Load(), err)
	}
}

// A peer that doesn't answer pings is dropped, unless its answer can't be read
// because the process leaves what came before it unread.
func TestPings(t *testing.T) {
	const short = 20 * time.Millisecond
	var waiting atomic.Bool
	waiting.Store(true)
	dropped := make(chan time.Time, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn := accept(w, r)
		if conn == nil {
			t.Error("no handshake")
			return
		}
		keepPinging(r.Context(), conn, short, short, waiting.Load)
		dropped <- time.Now()
	}))
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, s.URL, nil) //nolint:bodyclose // read by Dial
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow() // it reads nothing, so it answers nothing
	select {
	case <-dropped:
		t.Fatal("dropped although its answer can't be read")
	case <-time.After(10 * short):
	}
	waiting.Store(false)
	select {
	case <-dropped:
	case <-ctx.Done():
		t.Error("not dropped")
	}
}
