package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime/rootfs"
)

// Stop implements runtime.Runtime.
func (r *Runtime) Stop(ctx context.Context, id string) error {
	end, err := r.begin(ctx, id)
	if err != nil {
		return err
	}
	defer end()
	b := r.box(id)
	if _, err := os.Lstat(b.made); err != nil {
		return fmt.Errorf("sandbox %s %w", id, runtime.ErrNotFound)
	}
	if _, err := r.halt(ctx, b, true); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	return nil
}

// Destroy implements runtime.Runtime.
func (r *Runtime) Destroy(ctx context.Context, id string) (runtime.Evidence, error) {
	end, err := r.begin(ctx, id)
	if err != nil {
		return runtime.Evidence{ID: id}, err
	}
	defer end()
	e, err := r.remove(ctx, r.box(id))
	if err != nil {
		err = fmt.Errorf("destroy sandbox %s: %w", id, err)
	}
	return e, err
}

// found lists what exists of b, in words for Evidence.
func (r *Runtime) found(b box) []string {
	found := []string{}
	add := func(what, path string) {
		if _, err := os.Lstat(path); err == nil {
			found = append(found, what+" "+path)
		}
	}
	if pid, _ := r.init(b); pid != 0 {
		found = append(found, fmt.Sprintf("process %d", pid))
	}
	if mounts, err := rootfs.MountsUnder(b.run); err == nil {
		for _, m := range mounts {
			found = append(found, "mount "+m)
		}
	}
	if name := readIntent(b).Link; name != "" {
		if ok, _ := r.net.Exists(name); ok {
			found = append(found, "link "+name)
		}
	}
	for _, dir := range r.groups.Dirs(b.id) {
		found = append(found, "cgroup "+dir)
	}
	add("runtime state", b.runc)
	add("directory", b.run)
	add("directory", b.making)
	add("directory", b.made)
	return found
}

// halt takes away everything of b but its files: processes, mounts, link,
// control groups, the OCI runtime's state and the run directory. Doing it
// again, or to what isn't there, does nothing. With keep the file system stays
// ready for a resume, out of sight. The processes that it killed are returned.
func (r *Runtime) halt(ctx context.Context, b box, keep bool) ([]int, error) {
	killed, err := r.killAll(ctx, b)
	if err != nil {
		return killed, err
	}
	killpoint("killed")
	// The OCI runtime's own "delete" would do the same for its part, but waits
	// in long steps and fails on what a cut-off start left. Nothing below needs
	// another part to be done first; removing the link takes longest.
	intent := readIntent(b)
	var linkErr error
	var link sync.WaitGroup
	link.Go(func() {
		if intent.Link != "" {
			linkErr = r.net.Unplug(intent.Link)
		}
	})
	mountErr := r.unmount(b, keep)
	groupErr := r.groups.Remove(ctx, b.id)
	stateErr := os.RemoveAll(b.runc)
	link.Wait()
	if err := errors.Join(linkErr, mountErr, groupErr, stateErr); err != nil {
		return killed, err
	}
	killpoint("emptied")
	// Last, since it is what a later attempt finds the rest by.
	if err := removeRunDir(b); err != nil {
		return killed, err
	}
	if intent.Link != "" {
		r.net.Free(intent.link())
	}
	return killed, nil
}

// unmount takes b's file system out of sight.
func (r *Runtime) unmount(b box, keep bool) error {
	var tree *os.File
	if keep {
		// /usr is mounted last; without it there is nothing worth keeping.
		if mounts, err := rootfs.MountsUnder(b.root); err == nil && slices.Contains(mounts, b.root+"/usr") {
			tree, _ = rootfs.Clone(b.root) // else the resume mounts anew
		}
	}
	mounts, err := rootfs.Unmount(b.root)
	if tree == nil {
		r.trash.release(b.id, mounts)
		return err
	}
	for _, m := range mounts { // cheap, since the copy holds the file systems
		m.Close()
	}
	r.trash.keep(b.id, tree)
	return err
}

// removeRunDir removes the run directory, the note about the link last. It
// never goes down into the mount point, should something still be mounted there.
func removeRunDir(b box) error {
	es, err := os.ReadDir(b.run)
	if err != nil {
		return ignoreMissing(err)
	}
	for _, e := range es {
		if e.Name() == "net.json" {
			continue
		}
		if err := ignoreMissing(os.Remove(b.run + "/" + e.Name())); err != nil {
			return err
		}
	}
	if err := ignoreMissing(os.Remove(b.run + "/net.json")); err != nil {
		return err
	}
	return ignoreMissing(os.Remove(b.run))
}

// remove takes away everything of b and looks afterwards.
func (r *Runtime) remove(ctx context.Context, b box) (e runtime.Evidence, err error) {
	e = runtime.Evidence{ID: b.id, StartedAt: time.Now().UTC(), Found: r.found(b), Checks: []runtime.Check{}}
	defer func() { e.Took = time.Since(e.StartedAt) }()
	link := readIntent(b).Link
	e.Killed, err = r.halt(ctx, b, false)
	if err != nil {
		return e, err
	}
	killpoint("halted")
	r.trash.expire(b.id)
	for _, dir := range []string{b.making, b.made} {
		ids, rangeErr := rootfs.Layers{Dir: dir}.Range()
		name, err := r.trash.take(b.id, dir)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return e, err
		}
		e.Trash = name
		if rangeErr == nil {
			r.ranges.free(ids)
		}
	}
	return e, r.prove(&e, b, link)
}

// prove looks for everything that b could have left, and fails on what it sees
// and on what it can't see.
func (r *Runtime) prove(e *runtime.Evidence, b box, link string) error {
	var left []string
	check := func(what, seen string, err error) {
		c := runtime.Check{What: what, Gone: err == nil && seen == "", Detail: seen}
		if err != nil {
			c.Detail = err.Error()
		}
		e.Checks = append(e.Checks, c)
		if !c.Gone {
			left = append(left, what+": "+c.Detail)
		}
	}
	pids, err := r.groups.Procs(b.id)
	seen := ""
	if len(pids) > 0 {
		seen = fmt.Sprint(pids)
	}
	check("processes", seen, err)
	check("cgroups", strings.Join(r.groups.Dirs(b.id), " "), nil)
	mounts, err := rootfs.MountsUnder(b.run)
	check("mounts", strings.Join(mounts, " "), err)
	seen = ""
	if link != "" {
		ok, e := r.net.Exists(link)
		if err = e; ok {
			seen = link
		}
	}
	check("link", seen, err)
	for _, d := range []struct{ what, path string }{
		{"runtime state", b.runc}, {"run directory", b.run}, {"files", b.made}, {"unfinished files", b.making},
	} {
		seen := d.path
		_, err := os.Lstat(d.path)
		if errors.Is(err, os.ErrNotExist) {
			seen, err = "", nil
		}
		check(d.what, seen, err)
	}
	if len(left) > 0 {
		return fmt.Errorf("still there after removal: %s", strings.Join(left, "; "))
	}
	return nil
}
