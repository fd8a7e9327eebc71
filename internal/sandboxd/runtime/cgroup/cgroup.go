// Package cgroup answers "where are the control groups of this installation's
// sandboxes, who is in them, what do they use", on cgroup v1, hybrid and v2
// alike. The OCI runtime makes the groups and sets limits; this package finds,
// reads, empties and removes them.
//
// The runtime in package oci calls it, and package host for its findings. A
// [Tree] is immutable and safe for concurrent use. Errors name paths only.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNone marks a machine without a usable cgroup mount.
var ErrNone = errors.New("no cgroup file system is mounted")

// Tree is the part of the cgroup hierarchies that belongs to one installation.
type Tree struct {
	unified bool
	mounts  []mount
	parent  string
}

// mount is one mounted hierarchy.
type mount struct {
	point       string
	controllers []string // v1: what the mount options name
}

// Find reads which hierarchies are mounted. parent is the absolute path, as the
// kernel names it, below which every sandbox has its group.
func Find(parent string) (*Tree, error) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parse(string(b), parent)
}

func parse(mountinfo, parent string) (*Tree, error) {
	var v1, v2 []mount
	for line := range strings.Lines(mountinfo) {
		left, right, ok := strings.Cut(strings.TrimSpace(line), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 3 {
			continue
		}
		switch r[0] {
		case "cgroup":
			v1 = append(v1, mount{l[4], strings.Split(r[2], ",")})
		case "cgroup2":
			v2 = append(v2, mount{point: l[4]})
		}
	}
	switch {
	// The unified part of a hybrid machine takes part too: a runtime may use it.
	case len(v1) > 0:
		return &Tree{mounts: append(v1, v2...), parent: parent}, nil
	case len(v2) > 0:
		return &Tree{unified: true, mounts: v2[:1], parent: parent}, nil
	}
	return nil, ErrNone
}

// Unified reports cgroup v2 alone; false means v1, hybrid included.
func (t *Tree) Unified() bool { return t.unified }

// Path is the group of a sandbox as the OCI configuration wants it.
func (t *Tree) Path(id string) string { return filepath.Join(t.parent, id) }

// Missing lists which of the controllers that limits need aren't there.
func (t *Tree) Missing() []string {
	have := map[string]bool{}
	for _, m := range t.mounts {
		for _, c := range m.controllers {
			have[c] = true
		}
	}
	if t.unified {
		b, _ := os.ReadFile(filepath.Join(t.mounts[0].point, "cgroup.controllers"))
		for c := range strings.FieldsSeq(string(b)) {
			have[c] = true
		}
	}
	var missing []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !have[c] {
			missing = append(missing, c)
		}
	}
	return missing
}

// SwapLimit reports whether swap can be limited along with memory.
func (t *Tree) SwapLimit() bool {
	if t.unified {
		return true // the runtime leaves memory.swap.max alone where it's missing
	}
	for _, m := range t.mounts {
		if slices.Contains(m.controllers, "memory") {
			_, err := os.Stat(filepath.Join(m.point, "memory.memsw.limit_in_bytes"))
			return err == nil
		}
	}
	return false
}

// Prepare makes the parent group ready for limits. v1 needs nothing. On v2 the
// controllers must be handed down, which the kernel refuses in a group that has
// processes itself; then the error says so.
func (t *Tree) Prepare() error {
	if !t.unified {
		return nil
	}
	root := t.mounts[0].point
	parent := filepath.Join(root, t.parent)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return fmt.Errorf("cgroup parent: %w", err)
	}
	for dir := root; ; {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu +memory +pids"), 0o644); err != nil {
			return fmt.Errorf("handing cpu, memory and pids down from %s: %w (a group with processes can't; start AstraBox in a group of its own below it)", dir, err)
		}
		if dir == parent {
			return nil
		}
		rel, err := filepath.Rel(dir, parent)
		if err != nil {
			return err
		}
		first, _, _ := strings.Cut(rel, "/")
		dir = filepath.Join(dir, first)
	}
}

// Dirs lists the directories of the sandbox's group that exist.
func (t *Tree) Dirs(id string) []string {
	var dirs []string
	for _, m := range t.mounts {
		dir := filepath.Join(m.point, t.parent, id)
		if fi, err := os.Lstat(dir); err == nil && fi.IsDir() && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// IDs lists the sandboxes that have a group in any hierarchy.
func (t *Tree) IDs() []string {
	var ids []string
	for _, m := range t.mounts {
		es, err := os.ReadDir(filepath.Join(m.point, t.parent))
		if err != nil {
			continue
		}
		for _, e := range es {
			if e.IsDir() && !slices.Contains(ids, e.Name()) {
				ids = append(ids, e.Name())
			}
		}
	}
	slices.Sort(ids)
	return ids
}

// Procs lists the processes in the sandbox's group and below it.
func (t *Tree) Procs(id string) ([]int, error) {
	var pids []int
	for _, dir := range t.Dirs(id) {
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return ignoreGone(err)
			}
			b, err := os.ReadFile(filepath.Join(p, "cgroup.procs"))
			if err != nil {
				return ignoreGone(err)
			}
			for f := range strings.FieldsSeq(string(b)) {
				// 0 is a process that this pid namespace doesn't see.
				if pid, err := strconv.Atoi(f); err == nil && pid > 0 && !slices.Contains(pids, pid) {
					pids = append(pids, pid)
				}
			}
			return nil
		})
		if err != nil {
			return pids, fmt.Errorf("processes of %s: %w", dir, err)
		}
	}
	return pids, nil
}

// Contains reports whether pid is in the sandbox's group. The caller that
// acts on the answer holds a pidfd from before the question.
func (t *Tree) Contains(id string, pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	want := t.Path(id)
	for line := range strings.Lines(string(b)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && (f[2] == want || strings.HasPrefix(f[2], want+"/")) {
			return true
		}
	}
	return false
}

// Remove removes the sandbox's group from all hierarchies. It waits while ended
// processes aren't reaped yet, until ctx ends.
func (t *Tree) Remove(ctx context.Context, id string) error {
	for _, dir := range t.Dirs(id) {
		if err := removeTree(ctx, dir); err != nil {
			return err
		}
	}
	return nil
}

// RemoveParent removes the installation's own group; one that isn't empty is an error.
func (t *Tree) RemoveParent() error {
	var errs []error
	for _, m := range t.mounts {
		if t.parent == "" || t.parent == "/" {
			continue
		}
		errs = append(errs, ignoreGone(unix.Rmdir(filepath.Join(m.point, t.parent))))
	}
	return errors.Join(errs...)
}

func removeTree(ctx context.Context, dir string) error {
	es, err := os.ReadDir(dir)
	if err != nil {
		return ignoreGone(err)
	}
	for _, e := range es {
		if e.IsDir() {
			if err := removeTree(ctx, filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	for pause := 200 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := unix.Rmdir(dir)
		if ignoreGone(err) == nil {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("rmdir %s: %w", dir, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("rmdir %s: %w: %w", dir, err, ctx.Err())
		case <-time.After(pause):
		}
	}
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// Usage is what a sandbox uses now.
type Usage struct{ MemoryBytes, PIDs, OOMKills int64 }

// Usage reads the sandbox's counters; what can't be read is zero.
func (t *Tree) Usage(id string) Usage {
	var u Usage
	for _, dir := range t.Dirs(id) {
		for _, f := range []struct {
			name string
			to   *int64
		}{
			{"memory.usage_in_bytes", &u.MemoryBytes}, {"memory.current", &u.MemoryBytes}, {"pids.current", &u.PIDs},
		} {
			if b, err := os.ReadFile(filepath.Join(dir, f.name)); err == nil {
				if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil {
					*f.to = n
				}
			}
		}
		for _, name := range []string{"memory.oom_control", "memory.events"} {
			b, _ := os.ReadFile(filepath.Join(dir, name))
			for line := range strings.Lines(string(b)) {
				if v, ok := strings.CutPrefix(line, "oom_kill "); ok {
					u.OOMKills, _ = strconv.ParseInt(strings.TrimSpace(v), 10, 64)
				}
			}
		}
	}
	return u
}
