package conversation

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/astrabox/astrabox/test/machine"
)

// The script under every shell that this machine has, on files of our own in
// place of the machine's.
func TestPrepareScript(t *testing.T) {
	machine.NeedRoot(t) // to give files to an account
	shells := [][]string{{"sh"}, {"bash"}, {"dash"}, {"busybox", "sh"}}
	for _, tc := range []struct {
		name, passwd, group   string
		wantPasswd, wantGroup string // what is added; empty: nothing
		uid, gid              uint32
	}{
		{"missing", "root:x:0:0:root:/root:/bin/sh\n", "root:x:0:\n",
			"agent:x:1000:1000:agent:HOME/agent:SHELL\n", "agent:x:1000:\n", 1000, 1000},
		{"ids taken", "root:x:0:0:root:/root:/bin/sh\nu:x:1000:1000::/:/bin/sh\nv:x:1002:9::/:/bin/sh\n", "u:x:1000:\nw:x:1001:\n",
			"agent:x:1003:1003:agent:HOME/agent:SHELL\n", "agent:x:1003:\n", 1003, 1003},
		{"a group of that name", "root:x:0:0:root:/root:/bin/sh\n", "agent:x:77:\n",
			"agent:x:1000:77:agent:HOME/agent:SHELL\n", "", 1000, 77},
		{"last lines without an end", "root:x:0:0:root:/root:/bin/sh", "root:x:0:",
			"\nagent:x:1000:1000:agent:HOME/agent:SHELL\n", "\nagent:x:1000:\n", 1000, 1000},
		{"taken on a last line without an end", "u:x:1000:5::/:/bin/sh", "v:x:1001:",
			"\nagent:x:1002:1002:agent:HOME/agent:SHELL\n", "\nagent:x:1002:\n", 1002, 1002},
		{"there on a last line without an end", "agent:x:1234:1235::HOME/elsewhere:/bin/sh", "agent:x:1235:", "\n", "\n", 1234, 1235},
		{"there already", "agent:x:1234:1235::HOME/elsewhere:/bin/sh\n", "agent:x:1235:\n", "", "", 1234, 1235},
	} {
		for _, shell := range shells {
			if _, err := exec.LookPath(shell[0]); err != nil {
				continue
			}
			t.Run(tc.name+"/"+shell[0], func(t *testing.T) {
				dir := t.TempDir()
				path := func(name string) string { return filepath.Join(dir, name) }
				fill := strings.NewReplacer("HOME", path("home"), "SHELL", "/bin/bash")
				write := func(name, body string) {
					if err := os.WriteFile(path(name), []byte(body), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				write("passwd", fill.Replace(tc.passwd))
				write("group", tc.group)
				script := strings.NewReplacer("/etc/passwd", path("passwd"), "/etc/group", path("group"), "/home/", path("home")+"/").Replace(prepareScript)
				run := func() string {
					cmd := exec.Command(shell[0], append(shell[1:], "-c", script)...)
					cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "ACCOUNT=agent", "WORKSPACE=" + path("ws"), "BINARY=" + path("opt/bin/prog"), "MARK=" + path("opt/bin/.prog.sum")}
					out, err := cmd.CombinedOutput()
					if err != nil {
						t.Fatalf("%v: %s", err, out)
					}
					return string(out)
				}
				if out := run(); out != "" {
					t.Errorf("without a binary it printed %q", out)
				}
				for name, want := range map[string]string{"passwd": fill.Replace(tc.passwd + tc.wantPasswd), "group": tc.group + tc.wantGroup} {
					// The file that had no end gets one, whether or not a line is added.
					if got, _ := os.ReadFile(path(name)); string(got) != want {
						t.Errorf("%s is %q, want %q", name, got, want)
					}
				}
				home := "home/agent"
				if !strings.Contains(tc.wantPasswd, "agent") {
					home = "home/elsewhere"
				}
				for _, name := range []string{"ws", home} {
					st, err := os.Stat(path(name))
					if err != nil {
						t.Fatal(err)
					}
					sys := st.Sys().(*syscall.Stat_t)
					if st.Mode().Perm() != 0o750 || sys.Uid != tc.uid || sys.Gid != tc.gid {
						t.Errorf("%s: %v %d:%d", name, st.Mode(), sys.Uid, sys.Gid)
					}
				}
				// A second time it changes nothing, and tells what is there.
				before, _ := os.ReadFile(path("passwd"))
				if err := os.WriteFile(path("opt/bin/prog"), []byte("12345"), 0o755); err != nil {
					t.Fatal(err)
				}
				write("opt/bin/.prog.sum", "abc 5\n")
				if out := run(); out != "abc 5\n" {
					t.Errorf("it printed %q", out)
				}
				if after, _ := os.ReadFile(path("passwd")); string(after) != string(before) {
					t.Errorf("a second run made %q of %q", after, before)
				}
			})
		}
	}
}
