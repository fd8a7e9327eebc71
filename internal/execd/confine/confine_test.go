package confine

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/test/machine"
)

// run gives the output of a shell line whose process comes from a thread that
// gave up what isn't in keep.
func run(t *testing.T, keep Caps, f Filter, line string) (string, error) {
	t.Helper()
	var out []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked
		if err = Thread(keep, f); err == nil {
			out, err = exec.Command("/bin/sh", "-c", line).CombinedOutput()
		}
	}()
	<-done
	return strings.TrimSpace(string(out)), err
}

func TestThread(t *testing.T) {
	machine.NeedRoot(t)
	before, err := Effective()
	if err != nil {
		t.Fatal(err)
	}
	keep := CapsOf(unix.CAP_CHOWN, unix.CAP_KILL)
	for name, f := range map[string]Filter{"caps": {}, "mounting": NoMounting(), "session": Session()} {
		out, err := run(t, keep, f, "grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status | tr -d '\\t\\n'")
		want := "CapInh:0000000000000000CapPrm:0000000000000021CapEff:0000000000000021CapBnd:0000000000000021CapAmb:0000000000000000NoNewPrivs:1Seccomp:2"
		if name == "caps" {
			want = strings.Replace(want, "NoNewPrivs:1Seccomp:2", "NoNewPrivs:0Seccomp:0", 1)
		}
		if err != nil || out != want {
			t.Errorf("%s: %s, %v, want %s", name, out, err, want)
		}
	}
	if after, err := Effective(); err != nil || after != before {
		t.Errorf("this thread has %x, had %x, %v", after, before, err)
	}
}

func TestFilter(t *testing.T) {
	machine.NeedRoot(t)
	all := ^Caps(0)
	for _, c := range []struct {
		line                    string
		none, mounting, session bool // it works under that filter
	}{
		{"unshare -m true", true, false, false},
		{"unshare -n true", true, false, false},
		{"unshare -U true", true, false, false},
		{"unshare -fp true", true, false, false},
		{"unshare -m mount -t tmpfs none /mnt", true, false, false},
		{"python3 -c 'import ctypes;c=ctypes.CDLL(None);exit(0 if c.syscall(56,0x20000000|17,0,0,0,0)>=0 else 1)'", true, false, false},
		{"sh -c 'sh -c true & wait'", true, true, true},
		{"python3 -c 'import threading;t=threading.Thread(target=print);t.start();t.join()'", true, true, true},
		{"python3 -c 'import ctypes;c=ctypes.CDLL(None);exit(0 if c.syscall(250,0,-3,0,0,0)>=0 else 1)'", true, true, false},
		{"python3 -c 'import ctypes;c=ctypes.CDLL(None);exit(0 if c.syscall(435,0,0)<0 else 1)'", true, true, true},
	} {
		for _, with := range []struct {
			name string
			f    Filter
			ok   bool
		}{{"none", Filter{}, c.none}, {"mounting", NoMounting(), c.mounting}, {"session", Session(), c.session}} {
			if out, err := run(t, all, with.f, c.line); (err == nil) != with.ok {
				t.Errorf("%s with %s: %v %s", c.line, with.name, err, out)
			}
		}
	}
	if len(Session().program) > 255 {
		t.Error("a jump is too far")
	}
}
