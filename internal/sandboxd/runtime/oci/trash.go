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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime/rootfs"
)

// trash is where files wait for their deletion, which takes half a millisecond
// a file on some disks. One goroutine deletes. It also lets go of unmounted
// file systems: the kernel then writes out all that the disk below has to write,
// which nobody should have to wait for.
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

// release is a file system to let go of.
type release struct {
	id     string
	due    time.Time
	kept   *os.File // a tree of mounts that a resume may take back until due
	mounts []rootfs.Detached
	done   chan struct{}
}

// The file systems of stopped sandboxes are kept ready so long and so many. By
// then the kernel has written by itself what they had to write, and a resume
// soon after a stop needs neither wait for that nor mount anew.
const (
	keepTime = 60 * time.Second
	keepMax  = 128
)

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
	if len(mounts) > 0 {
		t.add(release{id: id, mounts: mounts})
	}
}

// keep is release, but later, so that reclaim can have the tree back.
func (t *trash) keep(id string, tree *os.File) {
	t.add(release{id: id, kept: tree, due: time.Now().Add(keepTime)})
}

func (t *trash) add(r release) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.releases) >= keepMax && len(t.releases) > 0 {
		t.releases[0].due = time.Time{} // the oldest
	}
	r.done = make(chan struct{})
	t.releases = append(t.releases, r)
	t.pending[r.id] = r.done
	t.poke()
}

// reclaim gives a kept tree back, nil when there is none.
func (t *trash) reclaim(id string) *os.File {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, r := range t.releases {
		if r.id == id && r.kept != nil {
			t.releases = slices.Delete(t.releases, i, i+1)
			t.settle(r)
			return r.kept
		}
	}
	return nil
}

// expire makes what is kept for a sandbox due.
func (t *trash) expire(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.releases {
		if t.releases[i].id == id {
			t.releases[i].due = time.Time{}
		}
	}
	t.poke()
}

// settle marks r as done. The caller holds mu.
func (t *trash) settle(r release) {
	if t.pending[r.id] == r.done {
		delete(t.pending, r.id)
	}
	close(r.done)
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
	timer := time.NewTimer(keepTime)
	defer timer.Stop()
	for {
		t.mu.Lock()
		draining := t.draining // from here on nothing comes in
		t.mu.Unlock()
		next := t.releaseDue(draining)
		t.empty(ctx)
		if draining {
			return
		}
		timer.Reset(next)
		select {
		case <-t.wake:
		case <-timer.C:
		case <-ctx.Done():
			t.releaseDue(true)
			return
		}
	}
}

// releaseDue lets go of what is due, or of all, and tells when to look again.
func (t *trash) releaseDue(all bool) time.Duration {
	for {
		t.mu.Lock()
		now := time.Now()
		next := keepTime
		due := -1
		for i, r := range t.releases {
			if all || !r.due.After(now) {
				due = i
				break
			}
			next = min(next, r.due.Sub(now))
		}
		if due < 0 {
			t.mu.Unlock()
			return next
		}
		r := t.releases[due]
		t.releases = slices.Delete(t.releases, due, due+1)
		t.mu.Unlock()
		for _, m := range r.mounts {
			m.Close()
		}
		if r.kept != nil {
			r.kept.Close()
		}
		t.mu.Lock()
		t.settle(r)
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
		t.releaseDue(false) // resumes wait for it
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
