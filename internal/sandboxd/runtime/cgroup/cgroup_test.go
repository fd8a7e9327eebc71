package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/test/machine"
)

func TestParse(t *testing.T) {
	const v1 = `30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:1 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 30 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
34 30 0:30 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
`
	const hybrid = v1 + "35 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	const v2 = "40 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	for name, c := range map[string]struct {
		in      string
		unified bool
		points  []string
		err     error
	}{
		"v1":     {v1, false, []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/systemd"}, nil},
		"hybrid": {hybrid, false, []string{"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"}, nil},
		"v2":     {v2, true, []string{"/sys/fs/cgroup"}, nil},
		"none":   {"24 1 8:1 / / rw - ext4 /dev/sda rw\n", false, nil, ErrNone},
		"broken": {"x\n - \n1 2 3 4 5 - cgroup\n", false, nil, ErrNone},
	} {
		t.Run(name, func(t *testing.T) {
			tree, err := parse(c.in, "/p")
			if !errors.Is(err, c.err) {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
			var points []string
			for _, m := range tree.mounts {
				points = append(points, m.point)
			}
			if d := cmp.Diff(c.points, points); d != "" || tree.Unified() != c.unified {
				t.Errorf("unified %v, %s", tree.Unified(), d)
			}
			if !c.unified && len(tree.Missing()) > 0 {
				t.Errorf("missing %v", tree.Missing())
			}
		})
	}
}

// TestGroup makes a group, puts a process into it, and takes both away.
func TestGroup(t *testing.T) {
	machine.NeedRoot(t)
	tree, err := Find(fmt.Sprintf("/astrabox-test-%d", os.Getpid()))
	if err != nil {
		machine.Missing(t, "%v", err)
	}
	if err := tree.Prepare(); err != nil {
		machine.Missing(t, "%v", err)
	}
	for _, m := range tree.mounts {
		if err := os.MkdirAll(filepath.Join(m.point, tree.Path("box"), "below"), 0o755); err != nil {
			if errors.Is(err, unix.EROFS) {
				machine.Missing(t, "%v", err)
			}
			t.Fatal(err)
		}
	}
	sleeper := exec.Command("sleep", "100")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	pid := sleeper.Process.Pid
	if tree.Contains("box", pid) {
		t.Error("a process is where it wasn't put")
	}
	joined := false
	for _, dir := range tree.Dirs("box") { // a cpuset without processors takes nobody
		joined = os.WriteFile(filepath.Join(dir, "below", "cgroup.procs"), fmt.Append(nil, pid), 0) == nil || joined
	}
	if !joined {
		t.Fatal("no hierarchy takes a process")
	}
	pids, err := tree.Procs("box")
	if d := cmp.Diff([]int{pid}, pids); d != "" || err != nil {
		t.Errorf("%s %v", d, err)
	}
	if !tree.Contains("box", pid) || tree.Contains("bo", pid) || tree.Contains("other", pid) {
		t.Error("Contains is wrong about the process")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := tree.Remove(ctx, "box"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("removing a group with a process: %v", err)
	}
	if d := cmp.Diff([]string{"box"}, tree.IDs()); d != "" {
		t.Error(d)
	}
	_ = sleeper.Process.Kill()
	_ = sleeper.Wait()
	if err := tree.Remove(t.Context(), "box"); err != nil {
		t.Error(err)
	}
	if err := tree.Remove(t.Context(), "box"); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := tree.RemoveParent(); err != nil {
		t.Error(err)
	}
	if ids := tree.IDs(); len(ids) > 0 {
		t.Errorf("left: %v", ids)
	}
}
