package conversation

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/fleet/fleettest"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

// BenchmarkTurn measures the platform's own share of a turn: from Send to the
// turn's end in a live stream, with a program that answers at once.
func BenchmarkTurn(b *testing.B) {
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "shellagent"), []byte("x"), 0o755); err != nil {
		b.Fatal(err)
	}
	backend := fleettest.New()
	defer backend.Close()
	bound, _ := backend.Bound(fleettest.Caps)
	s, err := New(b.Context(), Config{InstallationID: "i", DatabasePath: filepath.Join(dir, "x.db"), Backends: []*sandbox.Bound{bound},
		AgentBinary: func(agentprogram.Binary) (string, error) { return filepath.Join(dir, "shellagent"), nil }})
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	c, err := s.CreateConversation(ctx, CreateRequest{})
	if err != nil {
		b.Fatal(err)
	}
	ended := make(chan struct{}, 1)
	streamed := make(chan struct{})
	go func() {
		defer close(streamed)
		for e := range s.Stream(ctx, c.ID, 0) {
			if e.Type == model.EventTurnEnded {
				ended <- struct{}{}
			}
		}
	}()
	turn := func(i int) {
		if _, err := s.Send(ctx, c.ID, fmt.Sprint("m", i), "echo hello"); err != nil {
			b.Fatal(err)
		}
		<-ended
	}
	turn(0)
	i := 0
	for b.Loop() {
		i++
		turn(i)
	}
	stop()
	<-done
	<-streamed
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
