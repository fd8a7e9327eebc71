package oci

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestNoWayOut looks from inside for the machine, for another sandbox and for
// anything else, first as the sandbox is and then with a route that it can't
// make itself, so that the firewall is what refuses.
func TestNoWayOut(t *testing.T) {
	p := newPlace(t, "tnoway")
	r := p.open()
	a, b := p.create(r, spec("a")), p.create(r, spec("b"))

	l, err := net.Listen("tcp", "0.0.0.0:0") // on the machine, every address
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	u, err := net.ListenPacket("udp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	port := l.Addr().(*net.TCPAddr).Port
	gw := r.net.Gateway()

	try := func(why, host string, port int) {
		t.Helper()
		start := time.Now()
		out, err := p.inside("a", "0", fmt.Sprintf("exec 2>&1; timeout 5 bash -c 'exec 3<>/dev/tcp/%s/%d && echo connected'", host, port))
		if err == nil || strings.Contains(out, "connected") {
			t.Errorf("%s: a sandbox reached %s port %d: %s", why, host, port, out)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("%s: %s port %d made it wait for %v", why, host, port, took)
		}
	}
	attack := func(why string) {
		t.Helper()
		try(why, gw.String(), port)
		try(why, gw.String(), 22)
		try(why, b.Addr.Addr().String(), 44772)
		try(why, b.Addr.Addr().String(), 80)
		try(why, "169.254.169.254", 80)
		try(why, "192.0.2.1", 443)
	}
	attack("as it is")

	// UDP to the machine: refused, and nothing arrives.
	_, _ = p.inside("a", "0", fmt.Sprintf("bash -c 'echo x >/dev/udp/%s/%d'", gw, u.LocalAddr().(*net.UDPAddr).Port))
	_ = u.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if n, from, err := u.ReadFrom(make([]byte, 10)); err == nil {
		t.Errorf("%d bytes of UDP arrived from %v", n, from)
	}

	// The sandbox's root can't change that.
	for _, line := range []string{
		"ip route add default via " + gw.String(), "ip addr add 10.1.1.1/8 dev eth0", "ip link add d0 type dummy",
		"nft list ruleset", "unshare -n true", "unshare -r true", "ping -c1 " + gw.String(),
	} {
		p.mustFail("a", "0", line)
	}
	if out := p.mustInside("a", "0", "cat /proc/net/if_inet6 2>/dev/null; true"); out != "" {
		t.Errorf("IPv6 addresses: %s", out)
	}

	// As if it had a way round that.
	st, err := r.Inspect(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	enter := func(args ...string) {
		t.Helper()
		out, err := exec.Command("nsenter", append([]string{fmt.Sprintf("--net=/proc/%d/ns/net", st.PID)}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v %s", args, err, out)
		}
	}
	enter("ip", "route", "add", "default", "via", gw.String())
	attack("with a route")
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	attack("on a machine that forwards")
	// With somebody else's address.
	enter("ip", "addr", "add", "10.9.9.9/32", "dev", "eth0")
	out, err := exec.Command("nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", st.PID), "bash", "-c",
		fmt.Sprintf("timeout 1 nc -s 10.9.9.9 -w 1 %s %d </dev/null && echo connected", gw, port)).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() == 127 { // 127: there is no nc
		t.Errorf("with a foreign address: %v, %s", err, out)
	}

	// From the machine only execd's port.
	if err := dialable(a.Addr.String()); err != nil {
		t.Errorf("execd: %v", err)
	}
	closed := listenIn(t, st.PID, a.Addr.Addr().String()+":8080")
	defer closed.Close()
	start := time.Now()
	if err := dialable(net.JoinHostPort(a.Addr.Addr().String(), "8080")); err == nil {
		t.Error("the machine reached port 8080 of a sandbox")
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("refusing took %v", took)
	}
}

// listenIn listens in the network namespace of process pid and makes sure that
// one can connect from within.
func listenIn(t *testing.T, pid int, addr string) net.Listener {
	t.Helper()
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var l net.Listener
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // the thread ends with this function
		err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			l, err = net.Listen("tcp", addr)
		}
		if err == nil {
			err = dialable(addr)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return l
}

// syscallWorks is a command that succeeds when the system call (its number on
// amd64 and its arguments) does.
func syscallWorks(args string) string {
	return "python3 -c 'import ctypes;exit(0 if ctypes.CDLL(None).syscall(" + args + ")>=0 else 1)'"
}

func TestTokenCantBeRead(t *testing.T) {
	p := newPlace(t, "ttoken")
	r := p.open()
	run := p.create(r, spec("a"))
	script := `
for f in /proc/[0-9]*/environ /proc/[0-9]*/cmdline /proc/[0-9]*/fd/* /proc/1/maps /proc/1/mem /proc/1/stack /proc/1/root/etc/hostname; do
  timeout 1 head -c 1000000 "$f" 2>/dev/null </dev/null | tr '\0' '\n'
done
env; mount; cat /proc/self/mountinfo
timeout 20 grep -rsl TOKEN /run /tmp /var /etc /opt /root /home /workspace 2>/dev/null`
	out, _ := p.inside("a", "0", strings.ReplaceAll(script, "TOKEN", run.Token[:16]))
	if strings.Contains(strings.ReplaceAll(out, run.Token[:16]+" ", ""), run.Token) {
		t.Error("the sandbox's root found the token")
	}
	for _, line := range []string{
		"cat /proc/1/environ", "ls -l /proc/1/fd", "cat /proc/1/mem", "readlink /proc/1/exe",
		syscallWorks("101,16,1,0,0") /* ptrace attach */, "kill -9 1 && sleep 1 && kill -0 1 && false",
	} {
		p.mustFail("a", "0", line)
	}
	// execd itself can't be replaced, so the next one is ours too.
	for _, line := range []string{
		"echo x >" + execdInside, "rm -f " + execdInside, "mv " + execdInside + " /tmp/x", "mv /opt/astrabox/opensandbox /opt/x",
		"umount " + execdInside, "mount --bind /bin/true " + execdInside, "chmod 777 " + execdInside,
	} {
		p.mustFail("a", "0", line)
	}
	// What the machine keeps about it: only files of root.
	for _, dir := range []string{p.cfg.RunDir, p.cfg.StateDir} {
		b, _ := exec.Command("grep", "-rsl", "--exclude-dir=rootfs", run.Token, dir).Output()
		if len(b) > 0 {
			t.Errorf("the token is in %s", b)
		}
	}
	resp, err := http.Get("http://" + run.Addr.String() + "/ping")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the token: %s", resp.Status)
	}
}

func TestContained(t *testing.T) {
	p := newPlace(t, "tcont1")
	secret := filepath.Join("/root", "astrabox-test-secret-"+fmt.Sprint(os.Getpid()))
	if err := os.WriteFile(secret, []byte("host secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(secret)
	t.Setenv("ASTRABOX_TEST_SECRET", "host secret")
	r := p.open()
	s := spec("a")
	s.PIDs = 64
	run := p.create(r, s)
	// What would reach the machine if it worked does nothing to it.
	for _, c := range []struct{ user, line string }{
		{"0", "mknod /tmp/d b 1 1"}, {"0", "mknod /dev/mem2 c 1 1"},
		{"0", "mount -t tmpfs none /mnt"}, {"0", "mount --bind /etc /mnt"}, {"0", "mount -o remount,rw /sys"}, {"0", "umount /proc"},
		{"0", "ls " + secret}, {"0", "cat /etc/shadow | grep -v '^[a-z]*:[*]'"}, {"0", "dmesg"}, {"0", "cat /proc/kcore"},
		{"0", "head -c1 /proc/cmdline | grep ."}, {"0", "cat /proc/sys/kernel/panic >/tmp/same && cat /tmp/same >/proc/sys/kernel/panic"}, {"0", "echo h >/proc/sysrq-trigger"},
		{"0", "echo 99 >/proc/sys/user/max_inotify_instances"}, {"0", "chroot /proc/1/root true"},
		{"0", syscallWorks("169,0xfee1dead,672274793,0x1234567,0") /* reboot */}, {"0", "date -s \"$(date)\""}, {"0", "modprobe loop"}, {"0", "sysctl -w kernel.hostname=\"$(uname -n)\""},
		{"0", "test -e /dev/vda || test -e /dev/sda"}, {"0", syscallWorks("250,0,-3,0,0,0") /* keyctl */},
		{"0", "python3 -c 'import os;os.unshare(0x10000000)'"}, {"0", "python3 -c 'import os;os.setns(os.open(\"/proc/1/ns/mnt\",0))'"},
		{"0", "ls /var/lib/docker"}, {"0", "touch /sys/x"}, {"0", "env | grep -i secret"},
		{"0", "ls /sys/fs/cgroup/memory/release_agent"}, {"0", "nice -n -20 true 2>&1 | grep -v cannot"},
		{"1000", "cat /etc/shadow"}, {"1000", "ls /root"}, {"1000", "touch /usr/x"}, {"1000", "su root -c true </dev/null"}, {"1000", "chown 0 /workspace"},
	} {
		p.mustFail("a", c.user, c.line)
	}
	// What must work.
	for _, c := range []struct{ user, line, want string }{
		{"0", "id -u; id -g", "0\n0"},
		{"1000", "id -un; echo ok >/workspace/x; cat /workspace/x", "agent\nok"},
		{"0", "su agent -c 'id -u; touch ~/y /tmp/z; stat -c %U /tmp/z'", "1000\nagent"},
		{"0", "chown 33:44 /tmp && stat -c %u:%g /tmp && chown 0:0 /tmp", "33:44"},
		{"0", "cat /proc/sys/user/max_user_namespaces /proc/sys/user/max_inotify_instances | head -1", "0"},
		{"0", "stat -c %a /tmp /root /workspace", "1777\n700\n750"},
		{"0", "grep -c . /proc/net/dev", "4"}, // two of heading, lo and eth0
		{"0", "python3 -c 'import ssl,sqlite3,socket;print(socket.gethostname())'", "sandbox"},
		{"0", "grep -E '^(NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t'", "NoNewPrivs:1\nSeccomp:2"},
		{"0", "cat /proc/self/uid_map | wc -l; ls /proc/1/task >/dev/null && echo seen", "1\nseen"},
	} {
		if out, err := p.inside("a", c.user, c.line); err != nil || out != c.want {
			t.Errorf("inside as %s, %q: %q, %v", c.user, c.line, out, err)
		}
	}
	// A fork bomb stays inside; execd answers.
	_, _ = p.inside("a", "1000", "bash -c 'f(){ f|f& }; f' >/dev/null 2>&1; sleep 0.3")
	if err := ping(t.Context(), run.Addr, run.Token); err != nil {
		t.Errorf("after a fork bomb: %v", err)
	}
	st, err := r.Inspect(t.Context(), "a")
	if err != nil || st.PIDs > 64 {
		t.Errorf("processes: %d, %v", st.PIDs, err)
	}
	if _, err := r.Destroy(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
}

// TestOtherUsers looks at a sandbox as another user of the machine, who sees in
// the list of mounts where its files are.
func TestOtherUsers(t *testing.T) {
	p := newPlace(t, "tother")
	r := p.open()
	p.create(r, spec("a"))
	root := r.box("a").root
	as := func(line string) (string, error) {
		cmd := exec.Command("/bin/sh", "-c", line)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	look := func(when string) {
		t.Helper()
		p.mustInside("a", "0", "echo private >/tmp/x; chmod 644 /tmp/x; cp /bin/true /tmp/true; chmod 4755 /tmp/true")
		if out, err := as("cat /proc/mounts"); err != nil || !strings.Contains(out, root) {
			t.Fatalf("%s: the mount isn't in the list, so this proves nothing: %v", when, err)
		}
		for _, line := range []string{
			"cat " + root + "/tmp/x", "echo y >" + root + "/tmp/planted", "ls " + root, root + "/tmp/true",
			"ls " + filepath.Join(p.cfg.RunDir, "box"), "ls " + filepath.Join(p.cfg.RunDir, "box", "a"), "ls " + filepath.Join(p.cfg.RunDir, "runc", "a"),
			"cat " + filepath.Join(p.cfg.RunDir, "box", "a", "config.json"), "stat " + filepath.Join(p.cfg.RunDir, "runc", "a", "state.json"),
		} {
			if out, err := as(line); err == nil {
				t.Errorf("%s: another user's %q worked: %.200s", when, line, out)
			}
		}
	}
	look("after the start")
	if err := r.Stop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Resume(t.Context(), spec("a")); err != nil {
		t.Fatal(err)
	}
	look("after a resume")
}

func TestLimits(t *testing.T) {
	p := newPlace(t, "tlimit")
	r := p.open()
	s := spec("a")
	s.MemoryBytes, s.CPUs = 64<<20, 0.25
	run := p.create(r, s)
	if out, err := p.inside("a", "1000", "echo 900 >/proc/self/oom_score_adj; python3 -c 'x=bytearray(200<<20)'"); err == nil {
		t.Errorf("200 MiB in a sandbox of 64: %s", out)
	}
	if err := ping(t.Context(), run.Addr, run.Token); err != nil {
		t.Errorf("execd after the memory ran out: %v", err)
	}
	if st, err := r.Inspect(t.Context(), "a"); err != nil || st.OOMKills == 0 || st.MemoryBytes > 64<<20 {
		t.Errorf("state: %+v, %v", st, err)
	}
	// A busy loop of half a second of wall time gets about an eighth of processor time.
	out := p.mustInside("a", "1000", "python3 -c 'import time\nt=time.time()\nc=time.process_time()\nwhile time.time()-t<1: pass\nprint(int(100*(time.process_time()-c)))'")
	var percent int
	if _, err := fmt.Sscan(out, &percent); err != nil || percent > 45 {
		t.Errorf("%q percent of a processor with a limit of 25", out)
	}
	// Memory comes back with a stop.
	if err := r.Stop(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if len(r.groups.Dirs("a")) > 0 {
		t.Error("a stopped sandbox still has a memory group")
	}
}

// onDisk gives dir, or a directory that isn't in memory: there the kernel
// doesn't count what a process writes.
func onDisk(t *testing.T, dir string) string {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if st.Type != unix.TMPFS_MAGIC {
		return dir
	}
	dir, err := os.MkdirTemp("/var/tmp", "astrabox-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestDiskLimit(t *testing.T) {
	p := newPlace(t, "tdiskl")
	p.cfg.StateDir = onDisk(t, p.cfg.StateDir)
	r := p.open()
	s := spec("a")
	s.DiskBytes = 32 << 20
	run := p.create(r, s)
	p.mustInside("a", "1000", "head -c 1000000 /dev/zero >/workspace/a; ln /workspace/a /workspace/b")
	cmd := p.runcExec("a", "1000", "/workspace", "while :; do head -c 4000000 /dev/zero >>f && sync f; sleep 0.05; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	reader := p.runcExec("a", "0", "/", "while [ ! -e /tmp/end ]; do sleep 0.05; done")
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	size := func() int64 {
		fi, err := os.Stat(filepath.Join(r.box("a").root, "workspace/f"))
		if err != nil {
			return 0
		}
		return fi.Size()
	}
	deadline := time.After(60 * time.Second)
	for before := int64(-1); ; {
		select {
		case <-deadline:
			t.Fatalf("the writer goes on at %d bytes", size())
		case <-ended:
			t.Log("the writer's shell was killed")
		case <-time.After(3 * time.Second):
			if n := size(); n > s.DiskBytes && n == before {
				t.Log("the writers were killed") // each new one is
			} else {
				before = n
				continue
			}
		}
		break
	}
	if err := ping(t.Context(), run.Addr, run.Token); err != nil {
		t.Errorf("execd: %v", err)
	}
	st, err := r.Inspect(t.Context(), "a")
	if err != nil || st.DiskBytes < s.DiskBytes {
		t.Errorf("state: %+v, %v", st, err)
	}
	p.mustInside("a", "1000", "rm /workspace/f && touch /tmp/end") // somebody can make room
	if err := reader.Wait(); err != nil {
		t.Errorf("a process that wrote nothing: %v", err)
	}
	if _, err := r.Destroy(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	<-ended
}
