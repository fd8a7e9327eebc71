package oci

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/test/machine"
)

// Environment variables by which the test binary calls itself.
const (
	inNamespace = "ASTRABOX_TEST_NETNS" // it runs in a network namespace of its own
	victimVar   = "ASTRABOX_TEST_VICTIM"
)

// programs for the tests, made once.
var runcPath, execdPath string

// TestMain runs the tests in a network namespace of their own, which stands
// for the machine's. Without root they are skipped, each saying so.
func TestMain(m *testing.M) {
	if os.Getenv(victimVar) != "" {
		victim()
	}
	if os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	if os.Getenv(inNamespace) == "" {
		os.Exit(again())
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "loopback:", err)
		os.Exit(1)
	}
	os.Exit(withPrograms(m.Run))
}

func again() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	goruntime.LockOSThread()
	if err := cmd.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// withPrograms builds runc and execd unless they are given.
func withPrograms(run func() int) int {
	dir, err := os.MkdirTemp("/run", "astrabox-test-bin-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	_ = os.Chmod(dir, 0o755)
	root, _ := filepath.Abs("../../../..")
	build := func(out, in string, env []string, args ...string) bool {
		cmd := exec.Command("go", append([]string{"build", "-trimpath", "-o", out}, args...)...)
		cmd.Dir, cmd.Env = filepath.Join(root, in), append(os.Environ(), env...)
		if b, err := cmd.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", out, err, b)
			return false
		}
		return true
	}
	if runcPath = os.Getenv("ASTRABOX_RUNC_PATH"); runcPath == "" {
		runcPath = filepath.Join(root, "bin", "runc")
		if _, err := os.Stat(runcPath); err != nil {
			runcPath = filepath.Join(dir, "runc")
			if !build(runcPath, "tools/runc", []string{"CGO_ENABLED=1"}, "-tags", "seccomp netgo osusergo",
				"-ldflags", `-s -w -extldflags "-static"`, "github.com/opencontainers/runc") {
				return 1
			}
		}
	}
	if execdPath = os.Getenv("ASTRABOX_EXECD_PATH"); execdPath == "" {
		execdPath = filepath.Join(dir, "execd")
		if !build(execdPath, ".", []string{"CGO_ENABLED=0"}, "-ldflags", "-s -w", "./cmd/execd") {
			return 1
		}
	}
	return run()
}

// place is an installation of its own and what the machine looked like before it.
type place struct {
	t   testing.TB
	cfg Config
}

func newPlace(t testing.TB, inst6 string) place {
	t.Helper()
	machine.NeedRoot(t)
	shared, err := os.MkdirTemp("/run", "astrabox-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shared, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(shared) })
	return placeIn(t, shared, ofThisRun(inst6))
}

var salt = rand.Text()

// ofThisRun gives an installation's name that no other run of the tests has:
// control groups are the machine's, whatever network namespace a run is in, and
// a run that was killed leaves some. The last two characters stay.
func ofThisRun(inst6 string) string {
	sum := sha256.Sum256([]byte(salt + inst6[:4]))
	return hex.EncodeToString(sum[:2]) + inst6[4:]
}

// placeIn is a further installation on the same machine.
func placeIn(t testing.TB, shared, inst6 string) place {
	t.Helper()
	p := place{t, Config{
		StateDir: t.TempDir(), RunDir: filepath.Join(shared, inst6), Inst6: inst6,
		RuncPath: runcPath, ExecdPath: execdPath,
		Log: slog.New(slog.NewTextHandler(testWriter{t}, nil)),
	}}
	before := p.machine()
	t.Cleanup(func() {
		if d := cmp.Diff(before, p.machine()); d != "" {
			t.Errorf("the machine isn't as it was (-before +after):\n%s", d)
		}
	})
	return p
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// open starts a runtime; when the test ends everything must go.
func (p place) open() *Runtime {
	p.t.Helper()
	r, err := New(p.t.Context(), p.cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		ids, err := r.List(context.Background())
		for _, id := range ids {
			if _, e := r.Destroy(context.Background(), id); e != nil {
				p.t.Error(e)
			}
		}
		if errors.Is(err, runtime.ErrClosed) {
			return
		}
		if err := r.Close(true); err != nil {
			p.t.Error(err)
		}
	})
	return r
}

// machine lists everything that an installation could leave.
func (p place) machine() map[string][]string {
	m := map[string][]string{}
	links, err := netlink.LinkList()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, l := range links {
		m["links"] = append(m["links"], l.Attrs().Name)
	}
	routes, _ := netlink.RouteList(nil, netlink.FAMILY_V4)
	for _, r := range routes {
		m["routes"] = append(m["routes"], r.String())
	}
	c, err := nftables.New()
	if err != nil {
		p.t.Fatal(err)
	}
	tables, err := c.ListTables()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, t := range tables {
		m["tables"] = append(m["tables"], t.Name)
	}
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(b)) {
		if strings.Contains(line, p.cfg.RunDir) || strings.Contains(line, p.cfg.StateDir) {
			m["mounts"] = append(m["mounts"], line)
		}
	}
	groups, _ := filepath.Glob("/sys/fs/cgroup/*/astrabox-" + p.cfg.Inst6)
	more, _ := filepath.Glob("/sys/fs/cgroup/astrabox-" + p.cfg.Inst6)
	m["cgroups"] = append(groups, more...)
	for _, pid := range p.processes() {
		cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // number, name, state and parent first
		m["processes"] = append(m["processes"], fmt.Sprintf("%.40s %s", stat, bytes.ReplaceAll(cmd, []byte{0}, []byte{' '})))
	}
	for _, dir := range []string{p.cfg.RunDir, filepath.Join(p.cfg.StateDir, "making"), filepath.Join(p.cfg.StateDir, "sandboxes"), filepath.Join(p.cfg.StateDir, "trash")} {
		es, _ := os.ReadDir(dir)
		for _, e := range es {
			m["files"] = append(m["files"], dir+"/"+e.Name())
		}
	}
	return m
}

// processes lists those in the installation's groups and calls of its runc.
func (p place) processes() []int {
	var pids []int
	procs, _ := os.ReadDir("/proc")
	for _, e := range procs {
		var pid int
		if _, err := fmt.Sscanf(e.Name(), "%d", &pid); err != nil || pid == os.Getpid() {
			continue
		}
		group, _ := os.ReadFile("/proc/" + e.Name() + "/cgroup")
		cmd, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if bytes.Contains(group, []byte("astrabox-"+p.cfg.Inst6)) || bytes.Contains(cmd, []byte(p.cfg.RunDir)) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// inside runs a shell line as a user of the sandbox, with what its processes may do.
func (p place) inside(id, user, line string) (string, error) {
	p.t.Helper()
	cmd := p.runcExec(id, user, "/", line)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// runcExec makes a command that runs a line in a sandbox with what execd leaves
// to the programs that it starts, not with what execd has itself.
func (p place) runcExec(id, user, dir, line string) *exec.Cmd {
	p.t.Helper()
	user, group, _ := strings.Cut(user, ":")
	uid, err := strconv.Atoi(user)
	gid := 0
	if group != "" && err == nil {
		gid, err = strconv.Atoi(group)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	process := specs.Process{
		User: specs.User{UID: uint32(uid), GID: uint32(gid)}, Cwd: dir, NoNewPrivileges: true,
		Args:         []string{"/bin/sh", "-c", line},
		Env:          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"},
		Capabilities: &specs.LinuxCapabilities{Bounding: capabilities},
	}
	if uid == 0 {
		process.Capabilities.Effective, process.Capabilities.Permitted = capabilities, capabilities
	}
	b, err := json.Marshal(process)
	if err != nil {
		p.t.Fatal(err)
	}
	file := filepath.Join(p.t.TempDir(), "process.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		p.t.Fatal(err)
	}
	return exec.Command(runcPath, "--root", filepath.Join(p.cfg.RunDir, "runc"), "exec", "--process", file, id)
}

func (p place) mustInside(id, user, line string) string {
	p.t.Helper()
	out, err := p.inside(id, user, line)
	if err != nil {
		p.t.Fatalf("%s: %v: %s", line, err, out)
	}
	return out
}

// mustFail tries something that a sandbox must not manage. A program that isn't
// there fails as well and proves nothing, so that is an error too.
func (p place) mustFail(id, user, line string) {
	p.t.Helper()
	out, err := p.inside(id, user, line)
	var exit *exec.ExitError
	switch {
	case err == nil:
		p.t.Errorf("inside as %s, %q worked: %.200s", user, line, out)
	case !errors.As(err, &exit):
		p.t.Errorf("inside as %s, %q: %v", user, line, err)
	case exit.ExitCode() == 127:
		p.t.Errorf("inside as %s, %q was not tried (scripts/deps test installs what is missing): %s", user, line, out)
	}
}

func spec(id string) runtime.Spec {
	return runtime.Spec{ID: id, Image: runtime.HostImage, CPUs: 1, MemoryBytes: 512 << 20, PIDs: 256}
}

func (p place) create(r *Runtime, s runtime.Spec) runtime.Running {
	p.t.Helper()
	run, err := r.Create(p.t.Context(), s)
	if err != nil {
		p.t.Fatal(err)
	}
	return run
}

func dialable(addr string) error {
	c, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err != nil {
		return err
	}
	return c.Close()
}

// victim is a process that makes a sandbox and is killed over it.
func victim() {
	point := os.Getenv(victimVar)
	killpoint = func(p string) {
		if p == point {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		}
	}
	env := func(n string) string { return os.Getenv("ASTRABOX_TEST_" + n) }
	r, err := New(context.Background(), Config{StateDir: env("STATE"), RunDir: env("RUN"), Inst6: env("INST"), RuncPath: env("RUNC"), ExecdPath: env("EXECD")})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	fmt.Println("begin")
	s := spec(env("ID"))
	switch env("VERB") {
	case "resume":
		_, err = r.Resume(context.Background(), s)
	case "stop":
		err = r.Stop(context.Background(), s.ID)
	case "destroy":
		_, err = r.Destroy(context.Background(), s.ID)
	default:
		_, err = r.Create(context.Background(), s)
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	os.Exit(4)
}

// startVictim starts one that dies at point, or lives if there is no such point.
func (p place) startVictim(point, verb, id string) *exec.Cmd {
	p.t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), victimVar+"="+point,
		"ASTRABOX_TEST_STATE="+p.cfg.StateDir, "ASTRABOX_TEST_RUN="+p.cfg.RunDir, "ASTRABOX_TEST_INST="+p.cfg.Inst6,
		"ASTRABOX_TEST_RUNC="+p.cfg.RuncPath, "ASTRABOX_TEST_EXECD="+p.cfg.ExecdPath, "ASTRABOX_TEST_VERB="+verb, "ASTRABOX_TEST_ID="+id)
	cmd.Stderr = testWriter{p.t}
	return cmd
}
