package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime/rootfs"
)

// keyLocks is a lock per id. A lock that nobody holds or waits for takes no
// memory. The zero value is ready.
type keyLocks struct {
	mu sync.Mutex
	m  map[string]*keyLock
}

type keyLock struct {
	held  chan struct{} // has an element while held
	users int
}

// lock waits for the lock of id until ctx ends.
func (k *keyLocks) lock(ctx context.Context, id string) (unlock func(), err error) {
	k.mu.Lock()
	if k.m == nil {
		k.m = make(map[string]*keyLock)
	}
	l := k.m[id]
	if l == nil {
		l = &keyLock{held: make(chan struct{}, 1)}
		k.m[id] = l
	}
	l.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.m, id)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() {
			<-l.held
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("sandbox %s is busy: %w", id, context.Cause(ctx))
	}
}

// ranges hands out ranges of ids. Which are taken is read from the owners of
// sandboxes' files at the start.
type ranges struct {
	mu    sync.Mutex
	taken map[rootfs.Range]bool
	first rootfs.Range // where this installation begins to look
}

func (g *ranges) take() (rootfs.Range, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range rootfs.Range(rootfs.Ranges) {
		n := (g.first + i) % rootfs.Ranges
		if !g.taken[n] {
			g.taken[n] = true
			return n, nil
		}
	}
	return 0, fmt.Errorf("%w: this installation has %d sandboxes", runtime.ErrExhausted, rootfs.Ranges)
}

func (g *ranges) free(n rootfs.Range) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.taken, n)
}

// load reads the ranges in use from the sandboxes in the given directories.
func (g *ranges) load(inst6 string, dirs ...string) error {
	g.taken = make(map[rootfs.Range]bool)
	// Installations begin at different places, so that they rarely share ranges.
	var h uint32
	for _, c := range []byte(inst6) {
		h = h*31 + uint32(c)
	}
	g.first = rootfs.Range(h % 8 * (rootfs.Ranges / 8))
	for _, dir := range dirs {
		es, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for _, e := range es {
			if n, err := (rootfs.Layers{Dir: filepath.Join(dir, e.Name())}).Range(); err == nil {
				g.taken[n] = true
			}
		}
	}
	return nil
}
