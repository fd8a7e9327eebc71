package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// sweep removes what a killed predecessor left half-made or half-removed, and
// learns what is in use. What it leaves are complete sandboxes, running or
// stopped.
func (r *Runtime) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	// First whatever could still be adding things.
	if err := r.killOrphans(ctx); err != nil {
		return err
	}
	if err := r.ranges.load(r.cfg.Inst6, filepath.Join(r.cfg.StateDir, "making"), filepath.Join(r.cfg.StateDir, "sandboxes")); err != nil {
		return err
	}
	ids, err := r.list()
	if err != nil {
		return err
	}
	kept := map[string]bool{} // links
	var errs []error
	for _, id := range ids {
		b := r.box(id)
		switch made, up := exists(b.made), exists(b.run+"/up"); {
		case made && up:
			i := readIntent(b)
			r.net.Keep(i.link())
			kept[i.Link] = true
		case made:
			// Stopped, or a start or stop of it was cut off.
			killed, err := r.halt(ctx, b, false)
			errs = append(errs, err)
			if len(killed) > 0 {
				r.log.InfoContext(ctx, "stopped a sandbox whose start had been cut off", "sandbox", id)
			}
		default:
			// Never complete, or on its way out. A complete start whose files hadn't
			// been renamed yet wasn't reported to anybody.
			_, err := r.remove(ctx, b)
			errs = append(errs, err)
			r.log.InfoContext(ctx, "removed a half-made sandbox", "sandbox", id)
		}
	}
	// Links that no run directory names can't be; but what can't be costs little to look for.
	links, err := r.net.Links()
	errs = append(errs, err)
	for _, name := range links {
		if !kept[name] {
			errs = append(errs, r.net.Unplug(name))
		}
	}
	errs = append(errs, r.sweepSkeletons())
	reapStages() // where the predecessor was a child of this process
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove leftovers: %w", err)
	}
	return nil
}

// killOrphans ends calls of the OCI runtime that a predecessor left behind,
// with the process groups that they lead.
func (r *Runtime) killOrphans(ctx context.Context) error {
	for {
		pids, err := r.runc.orphans()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			p, err := openProcess(pid)
			if errors.Is(err, unix.ESRCH) {
				continue
			}
			if err != nil {
				return err
			}
			// Held, so the number still means the same; it leads its group.
			_ = unix.Kill(-pid, unix.SIGKILL)
			err = p.kill()
			if err == nil {
				err = p.wait(ctx)
			}
			p.close()
			if err != nil {
				return fmt.Errorf("process %d of a predecessor doesn't end: %w", pid, err)
			}
		}
	}
}

// sweepSkeletons removes lowest layers that no running sandbox uses.
func (r *Runtime) sweepSkeletons() error {
	used := map[string]bool{filepath.Base(r.skeleton): true}
	boxes, err := os.ReadDir(filepath.Join(r.cfg.RunDir, "box"))
	if err != nil {
		return err
	}
	for _, e := range boxes {
		used[readIntent(r.box(e.Name())).Skeleton] = true
	}
	base := filepath.Join(r.cfg.StateDir, "base")
	es, err := os.ReadDir(base)
	if err != nil {
		return err
	}
	for _, e := range es {
		if used[e.Name()] {
			continue
		}
		name := e.Name()
		if _, err := r.trash.take("base-"+strings.TrimPrefix(name, "."), filepath.Join(base, name)); ignoreMissing(err) != nil {
			return err
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
