package oci

import (
	"net/url"
	"strings"
	"testing"

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
