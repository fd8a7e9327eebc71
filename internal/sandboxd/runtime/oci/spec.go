package oci

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"path"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime/cgroup"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime/rootfs"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// execdInside is where every sandbox finds its execd.
const execdInside = "/opt/astrabox/opensandbox/execd"

// The descriptors that execd inherits.
const (
	tokenFD = 3 // the token, then end of file
	readyFD = 4 // execd writes here once it listens
)

// waitForever is the entrypoint of a sandbox for which none was given.
var waitForever = []string{"tail", "-f", "/dev/null"}

// capabilities of root inside, all of them within the sandbox's own user
// namespace: what installing packages and changing accounts takes. Nothing
// that makes mounts, devices or packets.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
	"CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// reserved are what execd has beside them, within the same namespaces, to make
// isolated sessions: nothing that it starts has these (see reserveFlag), nor
// the system calls of sessionCalls.
var reserved = []string{"CAP_NET_ADMIN", "CAP_SYS_ADMIN"}

// reserveFlag makes execd keep them to itself.
const reserveFlag = "--reserve-mounts"

// sessionCalls are the system calls that make an isolated session, with exactly
// the namespaces that one has: never a user namespace. Whoever lacks
// CAP_SYS_ADMIN is refused by the kernel as well.
func sessionCalls() []specs.LinuxSyscall {
	const all = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	const session = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWPID
	calls := []specs.LinuxSyscall{{
		Names:  []string{"mount", "mount_setattr", "move_mount", "open_tree", "pivot_root", "umount2"},
		Action: specs.ActAllow,
	}}
	for _, flags := range []uint64{session, session | unix.CLONE_NEWNET} {
		calls = append(calls, specs.LinuxSyscall{
			Names: []string{"clone"}, Action: specs.ActAllow,
			Args: []specs.LinuxSeccompArg{{Index: 0, Value: all, ValueTwo: flags, Op: specs.OpMaskedEqual}},
		})
	}
	return calls
}

var maskedPaths = []string{
	"/proc/acpi", "/proc/asound", "/proc/cmdline", "/proc/interrupts", "/proc/kcore", "/proc/keys",
	"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
	"/sys/devices/virtual/powercap", "/sys/firmware",
}

var readonlyPaths = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}

// shmSize is the size of /dev/shm where memory isn't limited; else it is at
// most half of the limit, as it counts into it.
const shmSize = 1 << 30

// specBase is what all sandboxes' configurations share.
type specBase struct {
	seccomp   *specs.LinuxSeccomp
	execd     string
	groups    *cgroup.Tree
	swap      bool
	ipv6      bool
	oomAdjust int
	files     uint64
}

func newSpecBase(cfg Config, groups *cgroup.Tree) (specBase, error) {
	b := specBase{execd: cfg.ExecdPath, groups: groups, swap: groups.SwapLimit()}
	profile, err := seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{
		Capabilities: &specs.LinuxCapabilities{Bounding: capabilities},
	}})
	if err != nil {
		return b, fmt.Errorf("seccomp profile: %w", err)
	}
	// Programs of other architectures would double the filter and the time it
	// takes to load, for nobody.
	arch, ok := map[string]specs.Arch{"amd64": specs.ArchX86_64, "arm64": specs.ArchAARCH64}[goruntime.GOARCH]
	if !ok {
		return b, fmt.Errorf("no seccomp profile for %s", goruntime.GOARCH)
	}
	profile.Architectures = []specs.Arch{arch}
	profile.Syscalls = append(profile.Syscalls, sessionCalls()...)
	b.seccomp = profile

	_, err = os.Stat("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	b.ipv6 = err == nil

	// Lowering it below our own needs a capability that not every machine gives;
	// raising is always allowed. Sandboxes go before the machine's services.
	own, _ := os.ReadFile("/proc/self/oom_score_adj")
	n, _ := strconv.Atoi(string(bytes.TrimSpace(own)))
	b.oomAdjust = max(n, 100)

	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return b, fmt.Errorf("limit of open files: %w", err)
	}
	b.files = min(lim.Max, 1<<20)
	return b, nil
}

// validate says what is wrong with s.
func validate(s runtime.Spec) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", runtime.ErrInvalid, fmt.Sprintf(format, args...))
	}
	if s.Image != runtime.HostImage {
		return fmt.Errorf("%w %q: this runtime has %s", runtime.ErrImageUnknown, s.Image, runtime.HostImage)
	}
	if len(s.Entrypoint) > 0 && s.Entrypoint[0] == "" {
		return bad("entrypoint names no program")
	}
	for _, a := range s.Entrypoint {
		if strings.ContainsRune(a, 0) {
			return bad("entrypoint holds a zero byte")
		}
	}
	for k, v := range s.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return bad("environment variable %q", k)
		}
	}
	switch {
	case s.CPUs < 0 || math.IsNaN(s.CPUs) || s.CPUs > 1<<20:
		return bad("%v processors", s.CPUs)
	case s.CPUs > 0 && s.CPUs < 0.01:
		return bad("%v processors: the least is 0.01", s.CPUs)
	case s.MemoryBytes < 0 || s.MemoryBytes > 0 && s.MemoryBytes < 16<<20:
		return bad("%d bytes of memory: the least is 16 MiB", s.MemoryBytes)
	case s.PIDs < 0 || s.PIDs > 0 && s.PIDs < 16:
		return bad("%d processes: the least is 16", s.PIDs)
	case s.DiskBytes < 0:
		return bad("%d bytes of disk", s.DiskBytes)
	}
	return nil
}

// build makes the OCI configuration of s in b with the ids of ids.
func (base specBase) build(s runtime.Spec, b box, ids rootfs.Range, limits userLimits) *specs.Spec {
	env := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": "/root",
		"LANG": "C.UTF-8",
		// Clients add variables for later programs to this file. Only root inside
		// can reach it: who can write it decides what every account's programs see.
		"EXECD_ENVS": "/root/.execd-envs",
	}
	maps.Copy(env, s.Env)
	entrypoint := s.Entrypoint
	if len(entrypoint) == 0 {
		entrypoint = waitForever
	}
	args := []string{execdInside, "--listen", fmt.Sprintf("0.0.0.0:%d", runtime.ExecdPort),
		"--token-fd", strconv.Itoa(tokenFD), "--ready-fd", strconv.Itoa(readyFD), reserveFlag, "--"}
	own := slices.Concat(capabilities, reserved)

	mapping := []specs.LinuxIDMapping{{ContainerID: 0, HostID: uint32(ids.Base()), Size: rootfs.RangeSize}}
	spec := &specs.Spec{
		Version:  "1.0.2", // the oldest that has all of this; some runtimes refuse newer ones
		Hostname: "sandbox",
		Root:     &specs.Root{Path: b.root},
		Process: &specs.Process{
			Args:            append(args, entrypoint...),
			Cwd:             "/",
			NoNewPrivileges: true,
			OOMScoreAdj:     &base.oomAdjust,
			Capabilities:    &specs.LinuxCapabilities{Bounding: own, Effective: own, Permitted: own},
			Rlimits: []specs.POSIXRlimit{
				{Type: "RLIMIT_NOFILE", Hard: base.files, Soft: base.files},
				{Type: "RLIMIT_CORE", Hard: 0, Soft: 0},
			},
		},
		Mounts: base.mounts(s),
		Hooks:  limits.hooks(),
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.UserNamespace}, {Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.NetworkNamespace},
				{Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.CgroupNamespace},
			},
			UIDMappings:   mapping,
			GIDMappings:   mapping,
			CgroupsPath:   base.groups.Path(b.id),
			Resources:     base.resources(s),
			Seccomp:       base.seccomp,
			MaskedPaths:   maskedPaths,
			ReadonlyPaths: readonlyPaths,
		},
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		spec.Process.Env = append(spec.Process.Env, k+"="+env[k])
	}
	if base.ipv6 {
		spec.Linux.Sysctl = map[string]string{"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}
	}
	return spec
}

func (base specBase) mounts(s runtime.Spec) []specs.Mount {
	shm := int64(shmSize)
	if s.MemoryBytes > 0 {
		shm = min(shm, s.MemoryBytes/2)
	}
	m := []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=" + strconv.FormatInt(shm, 10)}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		// One file, read-only, and never a copy: what root inside could replace
		// would be handed the next token.
		{Destination: execdInside, Type: "bind", Source: base.execd, Options: []string{"bind", "ro", "nosuid", "nodev"}},
	}
	if base.groups.Unified() { // so that programs see their limits; one mount on v2, a dozen on v1
		m = append(m, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "ro"}})
	}
	return m
}

func (base specBase) resources(s runtime.Spec) *specs.LinuxResources {
	res := &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
	if s.MemoryBytes > 0 {
		res.Memory = &specs.LinuxMemory{Limit: &s.MemoryBytes}
		if base.swap { // memory and swap together, so no swap
			res.Memory.Swap = &s.MemoryBytes
		}
	}
	if s.PIDs > 0 {
		res.Pids = &specs.LinuxPids{Limit: &s.PIDs}
	}
	if s.CPUs > 0 {
		period := uint64(100_000)
		quota := max(int64(s.CPUs*float64(period)), 1000) // the kernel's least
		res.CPU = &specs.LinuxCPU{Period: &period, Quota: &quota}
	}
	return res
}

// write stores the configuration where the OCI runtime looks for it. Others
// can't read it: it holds the environment.
func writeSpec(dir string, s *specs.Spec) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600)
}

// userLimits are limits in the sandbox's own user namespace, by their name
// below /proc/sys/user.
type userLimits map[string]int64

// What every user in a sandbox may take of things that the kernel counts
// against the creator of the sandbox's user namespace, thus against root here.
var wantedLimits = userLimits{
	"max_inotify_instances": 64,
	"max_inotify_watches":   131_072,
	"max_fanotify_groups":   16,
	"max_fanotify_marks":    16_384,
	"max_user_namespaces":   0,
	"max_time_namespaces":   0,
	// Isolated sessions and the sandbox itself; those that ended count for a moment.
	"max_mnt_namespaces": 512,
	"max_pid_namespaces": 512,
	"max_ipc_namespaces": 512,
	"max_uts_namespaces": 512,
	"max_net_namespaces": 512,
}

// readUserLimits gives the wanted limits that this kernel has. Of what the
// machine itself allows a user, one sandbox's user gets at most a quarter.
func readUserLimits() userLimits {
	l := userLimits{}
	for name, want := range wantedLimits {
		b, err := os.ReadFile(path.Join("/proc/sys/user", name))
		if err != nil {
			continue
		}
		have, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
		if err != nil {
			continue
		}
		l[name] = min(want, have/4)
	}
	return l
}

// hooks sets the limits from within the namespace, before the sandbox's root
// directory is in place, by this machine's shell.
func (l userLimits) hooks() *specs.Hooks {
	if len(l) == 0 {
		return nil
	}
	var script strings.Builder
	script.WriteString("set -e\n")
	for _, name := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(&script, "echo %d >/proc/sys/user/%s\n", l[name], name)
	}
	timeout := 10
	return &specs.Hooks{CreateContainer: []specs.Hook{{
		Path: "/bin/sh", Args: []string{"sh", "-c", script.String()}, Env: []string{}, Timeout: &timeout,
	}}}
}
