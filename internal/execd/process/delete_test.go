package process

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/execd/child"
)

// A process that couldn't be ended is there to be deleted again: a client takes
// "not found" for the proof that nothing of it runs.
func TestDeleteAgainAfterAFailure(t *testing.T) {
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
	p, _, err := m.Register(Spec{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() { <-c.Done(); close(over) }()
	p.leader, p.now = c.PID, &run{child: c, over: over}
	tooLate, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Delete(tooLate, p.ID); err == nil || errors.Is(err, ErrNotFound) {
		t.Fatalf("a call without time: %v", err)
	}
	if _, err := m.Get(p.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("it is found: %v", err)
	}
	if other, isNew, err := m.Register(Spec{Key: "k"}); err != nil || !isNew || other.ID == p.ID {
		t.Errorf("its key isn't free: %v, %v", isNew, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := m.Delete(ctx, p.ID); err != nil {
		t.Errorf("once more: %v", err)
	}
	select {
	case <-over:
	default:
		t.Error("it lives")
	}
	if err := m.Delete(ctx, p.ID); !errors.Is(err, ErrNotFound) {
		t.Errorf("afterwards: %v", err)
	}
}
