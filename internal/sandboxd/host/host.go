// Package host answers "can this machine run sandboxes, and if not, what
// helps". The doctor command prints its findings; the runtime refuses to start
// over those that are errors.
//
// Findings are made by trying the real thing wherever that leaves no trace.
// Safe for concurrent use.
package host

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime/cgroup"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime/network"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime/rootfs"
	"golang.org/x/sys/unix"
)

// Severity says what a finding that isn't OK means.
type Severity string

const (
	// Error: no sandbox can run.
	Error Severity = "error"
	// Warning: sandboxes run, with less than what they could have.
	Warning Severity = "warning"
	// Info: good to know.
	Info Severity = "info"
)

// Finding is one thing that was looked at.
type Finding struct {
	ID       string   `json:"id"` // stable, lower case
	OK       bool     `json:"ok"`
	Severity Severity `json:"severity"` // what it means, or would mean, when not OK
	Summary  string   `json:"summary"`  // what was seen, a sentence
	Fix      string   `json:"fix,omitempty"`
}

// Config says what to look at. An empty path is a finding.
type Config struct {
	// StateDir is where sandboxes' files go. It is made if missing.
	StateDir            string
	RuncPath, ExecdPath string
}

// Check looks at everything, about 20 ms. It needs no lock and disturbs nothing
// that runs. Without root only that is found.
func Check(ctx context.Context, cfg Config) []Finding {
	root := rootFinding()
	if !root.OK {
		return []Finding{root}
	}
	fs := []Finding{root, kernel(), merged(), shell(), layers(cfg.StateDir)}
	fs = append(fs, cgroups()...)
	return append(fs, firewall(), runc(ctx, cfg.RuncPath), execd(cfg.ExecdPath), exitStatus(), watches(), disk(cfg.StateDir))
}

// Refuse is the error that Error findings amount to, nil when there is none.
func Refuse(fs []Finding) error {
	var errs []error
	for _, f := range fs {
		if f.Severity == Error && !f.OK {
			errs = append(errs, fmt.Errorf("%s: %s; %s", f.ID, f.Summary, f.Fix))
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("this machine can't run sandboxes yet: %w", errors.Join(errs...))
}

func good(id string, s Severity, format string, args ...any) Finding {
	return Finding{ID: id, OK: true, Severity: s, Summary: fmt.Sprintf(format, args...)}
}

func bad(id string, s Severity, fix, format string, args ...any) Finding {
	return Finding{ID: id, Severity: s, Summary: fmt.Sprintf(format, args...), Fix: fix}
}

func rootFinding() Finding {
	const id = "root"
	if os.Geteuid() != 0 {
		return bad(id, Error, "start the sandbox service as root, for example with sudo", "this process runs as user %d", os.Geteuid())
	}
	have := effectiveCapabilities()
	var missing []string
	for _, c := range []struct {
		bit  int
		name string
	}{
		{unix.CAP_SYS_ADMIN, "SYS_ADMIN"}, {unix.CAP_NET_ADMIN, "NET_ADMIN"}, {unix.CAP_CHOWN, "CHOWN"}, {unix.CAP_DAC_OVERRIDE, "DAC_OVERRIDE"},
		{unix.CAP_FOWNER, "FOWNER"}, {unix.CAP_SETUID, "SETUID"}, {unix.CAP_SETGID, "SETGID"}, {unix.CAP_KILL, "KILL"}, {unix.CAP_SYS_PTRACE, "SYS_PTRACE"},
	} {
		if have&(1<<c.bit) == 0 {
			missing = append(missing, "CAP_"+c.name)
		}
	}
	if len(missing) > 0 {
		return bad(id, Error, "give them to the process, or its container; a container may be started with --privileged",
			"this process is root without %s", strings.Join(missing, ", "))
	}
	return good(id, Error, "root, with the capabilities that are needed")
}

func effectiveCapabilities() uint64 {
	b, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapEff:"); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(v), 16, 64)
			return n
		}
	}
	return 0
}

func release() (major, minor int, text string) {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return 0, 0, "unknown"
	}
	text = unix.ByteSliceToString(u.Release[:])
	_, _ = fmt.Sscanf(text, "%d.%d", &major, &minor)
	return major, minor, text
}

func atLeast(major, minor int) bool {
	a, b, _ := release()
	return a > major || a == major && b >= minor
}

func kernel() Finding {
	const id = "kernel"
	_, _, text := release()
	if !atLeast(5, 12) {
		return bad(id, Error, "use a kernel of version 5.12 or newer, for mounts with mapped ids", "Linux %s", text)
	}
	b, err := os.ReadFile("/proc/sys/user/max_user_namespaces")
	if n, e := strconv.Atoi(string(bytes.TrimSpace(b))); err == nil && e == nil && n == 0 {
		return bad(id, Error, "sysctl user.max_user_namespaces=15000", "user namespaces are switched off")
	}
	return good(id, Error, "Linux %s with user namespaces", text)
}

func merged() Finding {
	const id = "usr-merge"
	if err := rootfs.CheckMerged(); err != nil {
		return bad(id, Error, "merge them (Debian: package usrmerge)", "%v", err)
	}
	return good(id, Error, "/bin, /sbin and /lib are links into /usr")
}

func shell() Finding {
	const id = "shell"
	if err := unix.Access("/bin/sh", unix.X_OK); err != nil {
		return bad(id, Error, "install a POSIX shell as /bin/sh", "/bin/sh: %v", err)
	}
	return good(id, Error, "/bin/sh is there")
}

// probeAge is how old a probe's directory is when it counts as left behind.
const probeAge = time.Minute

func layers(dir string) Finding {
	const id = "layers"
	if dir == "" {
		return bad(id, Error, "name a state directory", "no state directory")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return bad(id, Error, "choose a state directory that root can write", "%v", err)
	}
	old, _ := filepath.Glob(filepath.Join(dir, ".probe-*"))
	for _, p := range old {
		if fi, err := os.Stat(p); err == nil && time.Since(fi.ModTime()) > probeAge {
			_ = os.RemoveAll(p)
		}
	}
	name := fileSystem(dir)
	if err := rootfs.Probe(dir); err != nil {
		fix := "put the state directory on ext4, xfs, btrfs or tmpfs"
		if name == "overlay" {
			fix = "put the state directory on a volume: " + dir + " is on an overlay, as a container's own root is, and overlays don't stack that way"
		}
		return bad(id, Error, fix, "writable layers with mapped ids don't work on %s (%s): %v", dir, name, err)
	}
	return good(id, Error, "writable layers with mapped ids work on %s (%s)", dir, name)
}

// fileSystem names the type of the file system that holds dir.
func fileSystem(dir string) string {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "unknown"
	}
	names := map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs", unix.TMPFS_MAGIC: "tmpfs",
		unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.NFS_SUPER_MAGIC: "nfs", unix.F2FS_SUPER_MAGIC: "f2fs", 0x2fc12fc1: "zfs",
	}
	if n, ok := names[st.Type]; ok {
		return n
	}
	return fmt.Sprintf("file system type %#x", st.Type)
}

func cgroups() []Finding {
	const id, swap = "cgroups", "swap-limit"
	t, err := cgroup.Find("/astrabox")
	if err != nil {
		return []Finding{bad(id, Error, "mount them: mount -t cgroup2 none /sys/fs/cgroup", "%v", err)}
	}
	version := "v1 or hybrid"
	if t.Unified() {
		version = "v2"
	}
	if m := t.Missing(); len(m) > 0 {
		return []Finding{bad(id, Error, "switch them on in the kernel's command line (cgroup_enable=memory), or hand them to this container",
			"cgroup %s lacks the controllers %s, so limits can't be kept", version, strings.Join(m, ", "))}
	}
	fs := []Finding{good(id, Error, "cgroup %s with cpu, memory and pids", version)}
	if !t.SwapLimit() {
		return append(fs, bad(swap, Warning, "boot with swapaccount=1, or switch swap off", "a sandbox at its memory limit can go on into swap"))
	}
	return append(fs, good(swap, Warning, "swap counts into the memory limit"))
}

func firewall() Finding {
	const id = "nftables"
	if err := network.CheckTables(); err != nil {
		return bad(id, Error, "load the kernel modules nf_tables, nft_ct, nft_reject_inet and nft_fib_inet", "this kernel doesn't take the firewall table: %v", err)
	}
	return good(id, Error, "the firewall table can be made")
}

func runc(ctx context.Context, path string) Finding {
	const id = "runc"
	const fix = "build it (make build puts it beside astrabox) or name one with ASTRABOX_RUNC_PATH"
	if path == "" {
		return bad(id, Error, fix, "no OCI runtime is named")
	}
	if err := executable(path); err != nil {
		return bad(id, Error, fix, "no OCI runtime: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = []string{}
	out, err := cmd.Output()
	if err != nil {
		return bad(id, Error, fix, "%s --version: %v", path, err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	first = first[:min(len(first), 100)]
	if !strings.Contains(strings.ToLower(string(out)), "seccomp") {
		return bad(id, Error, "build it with the tag seccomp", "%s (%s) can't filter system calls", path, first)
	}
	return good(id, Error, "%s (%s)", path, first)
}

func execd(path string) Finding {
	const id = "execd"
	const fix = "build it (make build puts it beside astrabox) or name one with ASTRABOX_EXECD_PATH"
	if path == "" {
		return bad(id, Error, fix, "no execd is named")
	}
	if err := executable(path); err != nil {
		return bad(id, Error, fix, "no execd: %v", err)
	}
	f, err := elf.Open(path)
	if err != nil {
		return bad(id, Error, fix, "%s is no program for Linux: %v", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return bad(id, Error, "build it with CGO_ENABLED=0", "%s needs shared libraries, which images may lack", path)
		}
	}
	return good(id, Error, "%s, static", path)
}

// executable wants a file that the user ids of a sandbox may run.
func executable(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o005 != 0o005 {
		return fmt.Errorf("%s isn't a file that everybody may read and run (mode %v)", path, fi.Mode())
	}
	return nil
}

func exitStatus() Finding {
	const id = "exit-status"
	if !atLeast(6, 15) {
		_, _, text := release()
		return bad(id, Info, "use a kernel of version 6.15 or newer", "Linux %s doesn't tell how a sandbox's process 1 ended", text)
	}
	return good(id, Info, "how a sandbox's process 1 ended can be told")
}

func watches() Finding {
	const id, want = "inotify", 1024
	b, err := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	n, e := strconv.Atoi(string(bytes.TrimSpace(b)))
	if err != nil || e != nil {
		return good(id, Warning, "this kernel has no limit of file watchers to look at")
	}
	if n < want {
		return bad(id, Warning, fmt.Sprintf("sysctl fs.inotify.max_user_instances=%d", want),
			"all sandboxes together can have %d file watchers; each user in one at most %d", n, max(n/4, 1))
	}
	return good(id, Warning, "all sandboxes together can have %d file watchers", n)
}

func disk(dir string) Finding {
	const id = "disk-limit"
	if fileSystem(dir) == "tmpfs" {
		return bad(id, Warning, "keep the state directory on a disk",
			"%s is in memory (tmpfs): files count into a sandbox's memory, its disk limit stops nobody, and all is lost when the machine restarts", dir)
	}
	return bad(id, Info, "give the state directory a file system of its own, so that sandboxes can't fill others",
		"a sandbox's disk limit is watched, not enforced: one that passes it has its writing processes killed some seconds later, and all share the free space of %s (%s)", dir, fileSystem(dir))
}
