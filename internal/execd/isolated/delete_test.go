package isolated

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/execd/child"
)

// Who deletes a session that another call is deleting learns of its end, and not
// that it isn't there: its processes may run still.
func TestDeleteTwice(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	reaper := child.NewReaper(false)
	defer reaper.Close()
	fd := int(null.Fd())
	c, err := reaper.Start(child.Spec{Path: "/bin/sh", Args: []string{"sh", "-c", "sleep 60"}, Dir: "/", Files: []int{fd, fd, fd}})
	if err != nil {
		t.Fatal(err)
	}
	m := NewManager(Config{Reaper: reaper, Log: slog.New(slog.DiscardHandler)})
	asked, over := make(chan struct{}), make(chan struct{})
	go func() { <-c.Done(); close(over) }()
	var once sync.Once
	// A run is told of the end, which takes a while.
	m.byID["s"] = &Open{ID: "s", m: m, child: c, over: over, active: 1, transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			once.Do(func() { close(asked) })
			<-ctx.Done()
			return nil, ctx.Err()
		},
	}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	first := make(chan error, 1)
	go func() { first <- m.Delete(ctx, "s") }()
	<-asked
	if _, err := m.Get("s"); !errors.Is(err, ErrNotFound) {
		t.Errorf("it is found: %v", err)
	}
	if err := m.Delete(ctx, "s"); err != nil {
		t.Errorf("the second call: %v", err)
	}
	select {
	case <-over:
	default:
		t.Error("the second call returned while the session lived")
	}
	if err := <-first; err != nil {
		t.Errorf("the first call: %v", err)
	}
	if err := m.Delete(ctx, "s"); !errors.Is(err, ErrNotFound) {
		t.Errorf("afterwards: %v", err)
	}
}
