package oci

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// daemonOf reaches the execd of a running sandbox.
func daemonOf(run runtime.Running) *execd.Conn {
	return execd.Dial(execd.Fixed(sandbox.Endpoint{
		URL: &url.URL{Scheme: "http", Host: run.Addr.String()}, Headers: map[string]string{wire.HeaderToken: run.Token},
	}), nil)
}

// What execd starts in a sandbox can't do what execd itself may, in order to
// make isolated sessions.
func TestReservedToExecd(t *testing.T) {
	p := newPlace(t, "treser")
	r := p.open()
	c := execd.Commands(daemonOf(p.create(r, spec("a"))))
	defer execd.CloseIdleConnections()
	run := func(line string) (int, string) {
		t.Helper()
		res, err := c.Run(t.Context(), sandbox.Command{Line: "exec 2>&1; " + line})
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		return res.ExitCode, strings.TrimSpace(string(res.Stdout))
	}
	const want = "CapInh: 0000000000000000 CapPrm: 00000000a00405fb CapEff: 00000000a00405fb CapBnd: 00000000a00405fb CapAmb: 0000000000000000 NoNewPrivs: 1 Seccomp: 2"
	for _, who := range []string{"self", "$(pgrep -xo tail)"} { // a command, and the entrypoint
		if _, got := run("grep -E '^(Cap...|NoNewPrivs|Seccomp):' /proc/" + who + "/status"); strings.Join(strings.Fields(got), " ") != want {
			t.Errorf("%s has %s, want %s", who, got, want)
		}
	}
	for _, line := range []string{
		"mount -t tmpfs none /mnt", "mount --bind /etc /mnt", "umount /proc", "umount -l /", "mount -o remount,rw /sys",
		"unshare -m true", "unshare -p true", "unshare -n true", "unshare -r true", "unshare -i true", "unshare -u true",
		"nsenter -t 1 -m true", "ip link add d0 type dummy", "ip link set lo down", "ip addr add 10.1.1.1/8 dev eth0", "hostname x",
		"chroot /proc/1/root true", "cat /proc/1/environ", "ls -l /proc/1/fd",
		syscallWorks("56,0x2c020000|17,0,0,0,0"), syscallWorks("56,0x10000000|17,0,0,0,0"), // clone, with a session's namespaces and with a user namespace
		syscallWorks("428,-100,b\"/\",1,0,0") /* open_tree */, syscallWorks("430,b\"tmpfs\",0") /* fsopen */, syscallWorks("435,0,0"), /* clone3 */
	} {
		code, out := run(line)
		switch code {
		case 0:
			t.Errorf("%q worked: %s", line, out)
		case 127:
			t.Errorf("%q proves nothing: %s", line, out)
		}
	}
}

// isolation reaches the sessions of a running sandbox.
func isolation(c *execd.Conn) execd.Isolation {
	return execd.Isolated(func(context.Context, string) (*execd.Conn, error) { return c, nil })
}

// TestIsolatedSessionsInASandbox tries every way out of a session that we know,
// as an account and as root, in the sandbox as it really is.
func TestIsolatedSessionsInASandbox(t *testing.T) {
	p := newPlace(t, "tisola")
	r := p.open()
	conn := daemonOf(p.create(r, spec("a")))
	defer execd.CloseIdleConnections()
	iso := isolation(conn)
	if c, err := iso.ReadIsolationCapability(t.Context(), "a"); err != nil || !c.Available || !c.SwitchAccount || c.Detail != "" {
		t.Fatalf("capability %+v, %v", c, err)
	}
	open := func(s sandbox.IsolatedSessionSpec) sandbox.IsolatedSession {
		t.Helper()
		if err := iso.PrepareIsolatedWorkspace(t.Context(), "a", s.Workspace, s.UID, s.GID); err != nil {
			t.Fatal(err)
		}
		session, err := iso.OpenIsolatedSession(t.Context(), "a", s)
		if err != nil {
			t.Fatal(err)
		}
		return session
	}
	run := func(s sandbox.IsolatedSession, line string) (int, string) {
		t.Helper()
		res, err := s.Commands().Run(t.Context(), sandbox.Command{Line: "exec 2>&1; " + line, Timeout: 30 * time.Second})
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		return res.ExitCode, strings.TrimSpace(string(res.Stdout))
	}
	mine := open(sandbox.IsolatedSessionSpec{Workspace: "/home/one", UID: 3001, GID: 3001})
	other := open(sandbox.IsolatedSessionSpec{Workspace: "/home/two", UID: 3002, GID: 3002, ShareNet: true})
	root := open(sandbox.IsolatedSessionSpec{Workspace: "/home/root-one"})
	sessions := map[string]sandbox.IsolatedSession{"account": mine, "root": root}

	// Something to look for: of the sandbox, and of another session.
	outside, err := execd.Commands(conn).Run(t.Context(), sandbox.Command{Line: "umask 077; echo SECRET-ROOT >/root/secret; echo SECRET-TMP >/tmp/secret; chmod 644 /tmp/secret; " +
		"mkdir -p /srv/open && chmod 777 /srv/open; cp /bin/true /srv/open/suid; chmod 4755 /srv/open/suid; mkdir /run/x; setsid sleep 4000 >/dev/null 2>&1 & echo $!"})
	if err != nil || outside.ExitCode != 0 {
		t.Fatal(outside, err)
	}
	if code, out := run(other, "echo SECRET-TWO >secret; echo SECRET-TMP-TWO >/tmp/secret-two; (setsid env SECRET=SECRET-ENV sleep 4001 >/dev/null 2>&1 &); ipcmk -M 4096 >/dev/null"); code != 0 {
		t.Fatal(out)
	}

	sleeper := strings.TrimSpace(string(outside.Stdout))

	// An account that the sandbox's user namespace doesn't have.
	_, err = iso.OpenIsolatedSession(t.Context(), "a", sandbox.IsolatedSessionSpec{Workspace: "/home/root-one", UID: 1 << 30, GID: 1 << 30})
	if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), "no account or group") {
		t.Errorf("a session of nobody: %v", err)
	}
	// What works.
	for _, c := range []struct{ who, line, want string }{
		{"account", "id -u; id -g; id -G; pwd", "3001\n3001\n3001\n/home/one"},
		{"account", "touch x /tmp/x /dev/shm/x && ls -A . /tmp /dev/shm | tr '\\n' ' '", ".: x  /dev/shm: x  /tmp: x"},
		{"account", "set -- /proc/[0-9]*; echo $#; ls /dev | tr '\\n' ' '", "2\nfd full null ptmx pts random shm stderr stdin stdout tty urandom zero"},
		{"account", "grep -E '^(Cap...|NoNewPrivs):' /proc/self/status | tr -d '\\t\\n'", "CapInh:0000000000000000CapPrm:0000000000000000CapEff:0000000000000000CapBnd:00000000000004fbCapAmb:0000000000000000NoNewPrivs:1"},
		{"root", "grep -E '^(Cap...|NoNewPrivs):' /proc/self/status | tr -d '\\t\\n'", "CapInh:0000000000000000CapPrm:00000000000004fbCapEff:00000000000004fbCapBnd:00000000000004fbCapAmb:0000000000000000NoNewPrivs:1"},
		{"account", "python3 -c 'import socket;s=socket.create_server((\"127.0.0.1\",8000));c=socket.create_connection((\"127.0.0.1\",8000));print(1)'", "1"},
		{"account", "grep -c : /proc/net/dev; ip -o link | cut -d: -f2", "1\n lo"},
		{"account", "ls /sys/class/net /sys/devices/virtual/net; cat /sys/class/net/lo/mtu", "/sys/class/net:\nlo\n\n/sys/devices/virtual/net:\nlo\n65536"},
		{"account", "script -qec 'tty; test -t 0 && echo term' /dev/null </dev/null | tr -d '\\r'", "/dev/pts/0\nterm"},
		{"account", "ipcs -m | grep -c 4096; ls /run | wc -l", "0\n0"},
		{"root", "chown 5 /home/root-one && setpriv --reuid 3003 --clear-groups id -u; chown 0 /home/root-one", "3003"},
		{"root", "touch /home/root-one/f && chown 33:44 f && chmod 6755 f && stat -c %u:%g:%a f", "33:44:6755"},
	} {
		if code, out := run(sessions[c.who], c.line); code != 0 || out != c.want {
			t.Errorf("%s, %q: %d %q, want %q", c.who, c.line, code, out, c.want)
		}
	}
	// What must not.
	for _, c := range []struct{ who, line string }{
		// files
		{"account", "cat /home/two/secret"}, {"account", "ls /home/two"}, {"account", "touch /home/two/x"}, {"account", "cat /root/secret"},
		{"both", "touch /usr/x"}, {"both", "touch /etc/x"}, {"both", "touch /x"}, {"both", "touch /srv/open/x"}, {"both", "touch /var/tmp/x"},
		{"both", "echo x >>/etc/passwd"}, {"both", "chmod 777 /srv/open"}, {"both", "chown 5 /srv/open"}, {"both", "rm /srv/open/suid"}, {"both", "mv /srv/open /srv/x"},
		{"both", "ln /etc/passwd hard"}, {"both", "cat /tmp/secret"}, {"both", "cat /tmp/secret-two"}, {"both", "ls /run/x"}, {"root", "touch /home/two/x"}, {"root", "touch /dev/x"},
		{"both", "python3 -c 'import os;os.setxattr(\"/srv/open\",\"user.x\",b\"y\")'"}, {"both", "truncate -s 0 /srv/open/suid"}, {"both", "touch -d yesterday /srv/open"},
		// processes
		{"both", "pgrep -f 'sleep 400'"}, {"both", "kill -0 " + sleeper + " && grep -qx sleep /proc/" + sleeper + "/comm"} /* the number may be the session's own, too */, {"both", "kill -9 1 && sleep 1 && kill -0 1 && false"},
		{"both", "grep -sl SECRET-ENV /proc/[0-9]*/environ"}, {"both", "cat /proc/1/environ"}, {"both", "ls -l /proc/1/fd"}, {"both", "cat /proc/1/maps"}, {"both", "cat /proc/1/mem"},
		{"both", "ls /proc/1/root/"}, {"both", "readlink /proc/1/exe"}, {"both", "readlink /proc/1/ns/mnt"}, {"both", syscallWorks("101,16,1,0,0")},
		// mounts and namespaces
		{"both", "mount -t tmpfs none /mnt"}, {"both", "mount --bind / /mnt"}, {"both", "mount -o remount,rw /"}, {"both", "mount -o remount,bind,rw /"}, {"both", "umount /tmp"}, {"both", "umount -l /proc"}, {"both", "umount /proc/kcore"},
		{"both", "unshare -m true"}, {"both", "unshare -r true"}, {"both", "unshare -n true"}, {"both", "unshare -U true"}, {"both", "unshare -fp true"},
		{"both", "nsenter -t 1 -m true"}, {"both", "nsenter --mount=/proc/1/ns/mnt true"}, {"both", "chroot / true"}, {"both", "pivot_root . ."},
		{"both", syscallWorks("428,-100,b\"/\",1")}, {"both", syscallWorks("442,-100,b\"/\",0,0,0")}, {"both", syscallWorks("430,b\"tmpfs\",0")}, {"both", syscallWorks("432,0,0,0")},
		{"both", syscallWorks("56,0x00020000|17,0,0,0,0")}, {"both", syscallWorks("56,0x10000000|17,0,0,0,0")}, {"both", syscallWorks("435,0,0")}, {"both", syscallWorks("304,0,0,0")}, /* open_by_handle_at */
		{"both", "python3 -c 'import os;os.setns(os.open(\"/proc/self/ns/net\",0))'"},
		// privileges
		{"account", "su root -c true </dev/null"}, {"account", "chown 0 /home/one"}, {"both", "mknod m c 1 5"}, {"both", "mknod m b 254 0"}, {"both", "hostname x"},
		{"account", "test $(/srv/open/suid; python3 -c 'import os;print(os.geteuid())') = 0"}, {"both", "cp /bin/true s; chmod 4755 s; setcap cap_sys_admin+ep s && ./s && getpcaps $$ | grep sys_admin"},
		{"both", "capsh --inh=cap_sys_admin -- -c true"}, {"both", "setpriv --ambient-caps +sys_admin --inh-caps +sys_admin grep -E 'Cap(Inh|Prm|Eff|Amb):.*[^0][0-9a-f]{5}$' /proc/self/status || exit 1"}, {"both", "ip link set lo down"}, {"both", "ip link add d0 type dummy"},
		// the kernel's own files
		{"both", "echo x >/proc/sysrq-trigger"}, {"both", "cat /proc/kcore | head -c1 | grep ."}, {"both", "test -s /proc/cmdline && head -c1 /proc/cmdline | grep ."}, {"both", "cat /proc/sys/kernel/panic >/tmp/p; cat /tmp/p >/proc/sys/kernel/panic"},
		{"both", "echo 5 >/proc/sys/user/max_user_namespaces"}, {"both", "touch /sys/x"}, {"both", "echo 1 >/sys/kernel/mm/transparent_hugepage/enabled"}, {"both", "dmesg"}, {"both", "ls /sys/fs/cgroup/*/release_agent"},
		{"both", syscallWorks("250,0,-3,0,0,0")}, {"both", syscallWorks("425,1,0")}, {"both", syscallWorks("321,0,0,0")}, {"both", syscallWorks("298,0,0,0,0,0")}, {"both", syscallWorks("323,0")},
		{"both", "echo -1000 >/proc/self/oom_score_adj"}, {"both", "echo -17 >/proc/1/oom_score_adj"}, {"both", "nice -n -20 true 2>&1 | grep -v cannot"},
		{"both", "ls -d /sys/class/net/eth0"}, {"both", "ls -d /sys/devices/virtual/net/eth*"}, {"both", "ls /sys/firmware | grep ."}, {"both", "ls /sys/devices/virtual/powercap | grep ."},
		{"both", "echo 1400 >/sys/class/net/lo/mtu"}, {"both", "mkdir /sys/class/net/x"}, {"both", "umount /sys/class/net"}, {"both", "umount -l /sys/devices/virtual/net"}, {"both", "mount -o remount,rw /sys/class/net"},
		// the network
		{"both", "timeout 2 bash -c 'exec 3<>/dev/tcp/127.0.0.1/44772'"}, {"both", "ip addr add 10.1.1.1/8 dev lo"},
	} {
		for _, who := range []string{"account", "root"} {
			if c.who != who && c.who != "both" {
				continue
			}
			code, out := run(sessions[who], c.line)
			switch {
			case code == 0:
				t.Errorf("%s: %q worked: %.300s", who, c.line, out)
			case code == 127 || strings.Contains(out, "command not found"):
				t.Errorf("%s: %q proves nothing: %.300s", who, c.line, out)
			case strings.Contains(out, "SECRET"):
				t.Errorf("%s: %q told a secret: %.300s", who, c.line, out)
			}
		}
	}
	// With the sandbox's network, execd is there, but wants its token.
	if code, out := run(other, "python3 -c 'import urllib.request as u\ntry: u.urlopen(\"http://127.0.0.1:44772/version\")\nexcept Exception as e: print(e.code)'"); code != 0 || out != "401" {
		t.Errorf("execd from within: %d %s", code, out)
	}
	// The sandbox didn't change.
	after, err := execd.Commands(conn).Run(t.Context(), sandbox.Command{Line: "cat /tmp/secret /root/secret; ls -A /srv/open; stat -c %a:%u /srv/open; kill -0 " + sleeper + " && echo lives; ls /run /home | grep -v astrabox-execd | tr '\\n' ' '"})
	if want := "SECRET-TMP\nSECRET-ROOT\nsuid\n777:0\nlives\n/home: agent one root-one two  /run: lock x "; err != nil || string(after.Stdout) != want {
		t.Errorf("afterwards: %q, %v, want %q", after.Stdout, err, want)
	}
	// Closing leaves nothing.
	for _, s := range []sandbox.IsolatedSession{mine, other, root} {
		if err := iso.CloseIsolatedSession(t.Context(), "a", s.SessionID()); err != nil {
			t.Error(err)
		}
	}
	left, err := execd.Commands(conn).Run(t.Context(), sandbox.Command{Line: "pgrep -x sleep | wc -l; pgrep -f '^execd-session' | wc -l; grep -c /home /proc/self/mountinfo"})
	if want := "1\n0\n0\n"; err != nil || string(left.Stdout) != want {
		t.Errorf("after the end: %q, %v", left.Stdout, err)
	}
}
