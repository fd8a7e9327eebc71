package execd_test

import (
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/execd"
	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
)

// A watch, which has no end of its own, doesn't hold up the daemon's end.
func TestShutdownEndsWatches(t *testing.T) {
	d := startWith(t, execd.Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Files: files.New(files.Config{})})
	dir := t.TempDir()
	seq, err := sandbox.Watch(ctx(t), client.Files(d.conn), dir, sandbox.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/f", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	ended := make(chan error, 1)
	for c, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		if c.Path == dir+"/f" {
			go func() { ended <- d.Shutdown(ctx(t)) }()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			break
		}
	}
	if took := time.Since(started); took > 5*time.Second {
		t.Errorf("the daemon's end took %s", took)
	}
	if _, err := client.Files(d.conn).Stat(ctx(t), dir); !errors.Is(err, sandbox.ErrUnreachable) {
		t.Errorf("after its end: %v", err)
	}
}
