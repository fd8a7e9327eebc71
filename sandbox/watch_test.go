package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
)

// next gives n changes as text.
func next(t *testing.T, pull func() (sandbox.Change, error, bool), n int, dir string) []string {
	t.Helper()
	var out []string
	for range n {
		c, err, ok := pull()
		if err != nil || !ok {
			t.Fatalf("after %v: %v, %v", out, err, ok)
		}
		kind := "file"
		if c.Dir {
			kind = "dir"
		}
		out = append(out, fmt.Sprintf("%s %s %s", c.Kind, kind, strings.TrimPrefix(c.Path, dir)))
	}
	return out
}

func TestWatchOverBaseOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		must(t, os.WriteFile(dir+"/old", []byte("1"), 0o644))
		must(t, os.WriteFile(dir+"/stays", nil, 0o644))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seq, err := sandbox.Watch(ctx, plainFiles{}, dir, sandbox.WatchOptions{})
		must(t, err)
		pull, stop := iter.Pull2(seq)
		defer stop()
		must(t, os.MkdirAll(dir+"/d/e", 0o755))
		must(t, os.WriteFile(dir+"/d/e/new", nil, 0o644))
		must(t, os.WriteFile(dir+"/old", []byte("12"), 0o644))
		if diff := cmp.Diff([]string{"created dir /d", "created dir /d/e", "created file /d/e/new", "modified file /old"}, next(t, pull, 4, dir)); diff != "" {
			t.Error(diff)
		}
		must(t, os.RemoveAll(dir+"/d"))
		must(t, os.Rename(dir+"/old", dir+"/moved"))
		if diff := cmp.Diff([]string{"removed file /old", "removed file /d/e/new", "removed dir /d/e", "removed dir /d", "created file /moved"}, next(t, pull, 5, dir)); diff != "" {
			t.Error(diff)
		}
		must(t, os.RemoveAll(dir))
		for range 3 { // the removals, if they are seen before the root's
			if _, err, _ = pull(); err != nil {
				break
			}
		}
		if !errors.Is(err, sandbox.ErrPathNotFound) {
			t.Errorf("the end is %v", err)
		}
	})
}

func TestWatchEnds(t *testing.T) {
	last := func(t *testing.T, ctx context.Context, f sandbox.Files, dir string) error {
		t.Helper()
		seq, err := sandbox.Watch(ctx, f, dir, sandbox.WatchOptions{})
		if err != nil {
			return err
		}
		for _, e := range seq {
			err = e
		}
		return err
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := last(t, ctx, plainFiles{}, t.TempDir()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("at the end of its context: %v", err)
		}
		dir := t.TempDir()
		for i := range 10_001 {
			must(t, os.WriteFile(fmt.Sprint(dir, "/", i), nil, 0o600))
		}
		if err := last(t, t.Context(), plainFiles{}, dir); !errors.Is(err, sandbox.ErrLimit) {
			t.Errorf("of a large tree: %v", err)
		}
		if err := last(t, t.Context(), plainFiles{}, dir+"/missing"); !errors.Is(err, sandbox.ErrPathNotFound) {
			t.Errorf("of nothing: %v", err)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := &outage{}
		dir := t.TempDir()
		seq, err := sandbox.Watch(t.Context(), f, dir, sandbox.WatchOptions{})
		must(t, err)
		start := time.Now()
		f.from, f.to = 10*time.Second, 40*time.Second
		f.start = start
		must(t, os.WriteFile(dir+"/x", nil, 0o600))
		pull, stop := iter.Pull2(seq)
		defer stop()
		next(t, pull, 1, dir)
		f.from, f.to = 0, 40*time.Second
		must(t, os.WriteFile(dir+"/y", nil, 0o600))
		if diff := cmp.Diff([]string{"resync dir ", "created file /y"}, next(t, pull, 2, dir)); diff != "" || time.Since(start) < 40*time.Second {
			t.Errorf("after %v: %s", time.Since(start), diff)
		}
		f.from, f.to = 0, time.Hour
		if _, err, _ := pull(); !errors.Is(err, sandbox.ErrUnreachable) || time.Since(start) < time.Minute {
			t.Errorf("after %s out of reach: %v", time.Since(start), err)
		}
	})
	_, err := sandbox.Watch(t.Context(), plainFiles{}, "/", sandbox.WatchOptions{Interval: time.Hour})
	if !errors.Is(err, sandbox.ErrPathRejected) {
		t.Errorf("a long interval: %v", err)
	}
}

// outage is out of reach for a time.
type outage struct {
	plainFiles
	start    time.Time
	from, to time.Duration
}

func (o *outage) List(ctx context.Context, dir string, depth int) (iter.Seq2[sandbox.FileInfo, error], error) {
	f := o.plainFiles
	if d := time.Since(o.start); !o.start.IsZero() && d >= o.from && d < o.to {
		f.broken = sandbox.ErrUnreachable
	}
	return f.List(ctx, dir, depth)
}
