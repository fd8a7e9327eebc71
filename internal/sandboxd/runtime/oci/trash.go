package oci

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime/rootfs"
)

// trash is where files wait for their deletion, which takes half a millisecond
// a file on some disks. One goroutine deletes. It also lets go of unmounted
// file systems, as the kernel then writes out all that the disk below has.
type trash struct {
	dir string
	log *slog.Logger

	mu       sync.Mutex
	releases []release
	pending  map[string]chan struct{} // sandboxes with unreleased mounts; closed when released
	wake     chan struct{}
	draining bool // finish before stopping

	stop context.CancelFunc
	done chan struct{}
}

type release struct {
	id     string
	mounts []rootfs.Detached
	done   chan struct{}
}

func newTrash(dir string, log *slog.Logger) *trash {
	ctx, stop := context.WithCancel(context.Background())
	t := &trash{dir: dir, log: log, pending: map[string]chan struct{}{}, wake: make(chan struct{}, 1), stop: stop, done: make(chan struct{})}
	t.poke()
	go t.run(ctx)
	return t
}

// take moves path into the trash and returns its name there.
func (t *trash) take(id, path string) (string, error) {
	name := filepath.Join(t.dir, id+"-"+strings.ToLower(rand.Text()[:8]))
	if err := os.Rename(path, name); err != nil {
		return "", err
	}
	t.poke()
	return name, nil
}

// release lets go of a sandbox's unmounted file systems in the background.
func (t *trash) release(id string, mounts []rootfs.Detached) {
	if len(mounts) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := release{id, mounts, make(chan struct{})}
	t.releases = append(t.releases, r)
	t.pending[id] = r.done
	t.poke()
}

// released waits until nothing of the sandbox's earlier mounts is left.
func (t *trash) released(ctx context.Context, id string) error {
	for {
		t.mu.Lock()
		c := t.pending[id]
		t.mu.Unlock()
		if c == nil {
			return nil
		}
		select {
		case <-c:
		case <-ctx.Done():
			return fmt.Errorf("its file system is still being written out: %w", context.Cause(ctx))
		}
	}
}

func (t *trash) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// close stops the goroutine, with finish only once the trash is empty.
func (t *trash) close(finish bool) {
	t.mu.Lock()
	t.draining = finish
	t.mu.Unlock()
	if !finish {
		t.stop()
	} else {
		t.poke()
	}
	<-t.done
	t.stop()
}

func (t *trash) run(ctx context.Context) {
	defer close(t.done)
	for {
		t.mu.Lock()
		draining := t.draining // from here on nothing comes in
		t.mu.Unlock()
		t.releaseAll()
		t.empty(ctx)
		if draining {
			return
		}
		select {
		case <-t.wake:
		case <-ctx.Done():
			t.releaseAll()
			return
		}
	}
}

func (t *trash) releaseAll() {
	for {
		t.mu.Lock()
		if len(t.releases) == 0 {
			t.mu.Unlock()
			return
		}
		r := t.releases[0]
		t.releases = t.releases[1:]
		t.mu.Unlock()
		for _, m := range r.mounts {
			m.Close()
		}
		t.mu.Lock()
		if t.pending[r.id] == r.done {
			delete(t.pending, r.id)
		}
		close(r.done)
		t.mu.Unlock()
	}
}

// empty deletes what is in the trash until ctx ends.
func (t *trash) empty(ctx context.Context) {
	root, err := os.OpenRoot(t.dir)
	if err != nil {
		t.log.ErrorContext(ctx, "trash can't be emptied", "error", err)
		return
	}
	defer root.Close()
	es, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		t.log.ErrorContext(ctx, "trash can't be emptied", "error", err)
		return
	}
	for _, e := range es {
		if ctx.Err() != nil {
			return
		}
		t.releaseAll() // resumes wait for it
		if err := removeTree(ctx, root, e.Name()); err != nil && ctx.Err() == nil {
			t.log.ErrorContext(ctx, "deletion failed", "path", filepath.Join(t.dir, e.Name()), "error", err)
		}
	}
}

// removeTree deletes name in parent, whatever it is, without following links.
// Unlike os.RemoveAll it can be stopped.
func removeTree(ctx context.Context, parent *os.Root, name string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	fi, err := parent.Lstat(name)
	if err != nil {
		return ignoreMissing(err)
	}
	if !fi.IsDir() {
		return ignoreMissing(parent.Remove(name))
	}
	dir, err := parent.OpenRoot(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer f.Close()
	var errs []error
	for {
		names, err := f.Readdirnames(256)
		for _, n := range names {
			if err := removeTree(ctx, dir, n); err != nil {
				errs = append(errs, err)
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				errs = append(errs, err)
			}
			break
		}
		if len(errs) > 16 {
			return errors.Join(errs...)
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return ignoreMissing(parent.Remove(name))
}
