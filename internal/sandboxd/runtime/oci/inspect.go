package oci

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
)

// Inspect implements runtime.Runtime. While a call for the same id is under
// way it tells what is there at the moment; it doesn't wait.
func (r *Runtime) Inspect(ctx context.Context, id string) (runtime.State, error) {
	if !validID.MatchString(id) {
		return runtime.State{}, fmt.Errorf("%w: sandbox id %q", runtime.ErrInvalid, id)
	}
	if err := r.enter(); err != nil {
		return runtime.State{}, err
	}
	defer r.calls.Done()
	b := r.box(id)
	pid, err := r.init(b)
	if err != nil {
		return runtime.State{}, fmt.Errorf("inspect sandbox %s: %w", id, err)
	}
	if pid != 0 {
		u := r.groups.Usage(id)
		return runtime.State{
			Status:      runtime.StatusRunning,
			PID:         pid,
			Addr:        netip.AddrPortFrom(readIntent(b).Addr, runtime.ExecdPort),
			MemoryBytes: u.MemoryBytes, PIDs: u.PIDs, OOMKills: u.OOMKills, DiskBytes: r.disk.last(id),
		}, nil
	}
	for _, dir := range []string{b.made, b.making, b.run} {
		_, err := os.Lstat(dir)
		if err == nil {
			return runtime.State{Status: runtime.StatusStopped}, nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return runtime.State{}, fmt.Errorf("inspect sandbox %s: %w", id, err)
		}
	}
	return runtime.State{Status: runtime.StatusAbsent}, nil
}

// List implements runtime.Runtime.
func (r *Runtime) List(ctx context.Context) ([]string, error) {
	if err := r.enter(); err != nil {
		return nil, err
	}
	defer r.calls.Done()
	return r.list()
}

func (r *Runtime) list() ([]string, error) {
	ids := map[string]bool{}
	for _, dir := range []string{
		filepath.Join(r.cfg.StateDir, "making"), filepath.Join(r.cfg.StateDir, "sandboxes"),
		filepath.Join(r.cfg.RunDir, "box"), filepath.Join(r.cfg.RunDir, "runc"),
	} {
		es, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("list sandboxes: %w", err)
		}
		for _, e := range es {
			if validID.MatchString(e.Name()) {
				ids[e.Name()] = true
			}
		}
	}
	for _, id := range r.groups.IDs() {
		if validID.MatchString(id) {
			ids[id] = true
		}
	}
	return slices.Sorted(maps.Keys(ids)), nil
}

// reapTime is how long Wait waits for the status of a process that has ended.
const reapTime = 2 * time.Second

// Wait implements runtime.Runtime.
func (r *Runtime) Wait(ctx context.Context, id string, pid int) (runtime.Exit, error) {
	if !validID.MatchString(id) {
		return runtime.Exit{}, fmt.Errorf("%w: sandbox id %q", runtime.ErrInvalid, id)
	}
	b := r.box(id)
	p, err := r.openMember(b, pid)
	if err != nil {
		return runtime.Exit{}, fmt.Errorf("wait for sandbox %s: %w", id, err)
	}
	if p == nil {
		return runtime.Exit{}, nil
	}
	defer p.close()
	if err := p.wait(ctx); err != nil {
		return runtime.Exit{}, fmt.Errorf("wait for sandbox %s: %w", id, err)
	}
	return p.exit(ctx, reapTime), nil
}
