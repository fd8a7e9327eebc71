package execd_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
)

// tree gives all names below directories.
func tree(t testing.TB, dirs ...string) (all []string) {
	t.Helper()
	for _, dir := range dirs {
		names, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			all = append(all, dir+"/"+n.Name())
			if n.IsDir() {
				all = append(all, tree(t, dir+"/"+n.Name())...)
			}
		}
	}
	return all
}

// Every input of the creation of a session, spoiled in every way: it is refused
// with what was wrong, and nothing is made, or the session works.
func TestIsolatedInputs(t *testing.T) {
	p := startIsolated(t)
	dir, more, closed := p.workspace(t), p.workspace(t), p.workspace(t)
	parent := dir[:strings.LastIndexByte(dir, '/')]
	for _, sub := range []string{dir + "/sub", more + "/sub"} {
		if err := os.Mkdir(sub, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range []string{dir + "/file", more + "/file"} {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{parent + "/link": parent, dir + "/link": "../../" + strings.TrimPrefix(more, parent[:strings.LastIndexByte(parent, '/')+1])} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(closed, 0, 0); err != nil {
		t.Fatal(err)
	}
	const invalid, failed = "INVALID_REQUEST_BODY", "RUNTIME_ERROR"
	at := func(dest string) string {
		return fmt.Sprintf(`{"workspace":{"path":%q},"uid":4321,"binds":[{"source":%q,"dest":%s}]}`, dir, more, quote(dest))
	}
	seen := func(path string) string {
		return fmt.Sprintf(`{"workspace":{"path":%s,"source":%q},"uid":4321}`, quote(path), dir)
	}
	from := func(source string) string {
		return fmt.Sprintf(`{"workspace":{"path":%q},"uid":4321,"binds":[{"source":%s,"dest":"/tmp/x"}]}`, dir, quote(source))
	}
	with := func(field string) string {
		return fmt.Sprintf(`{"workspace":{"path":%q},"uid":4321,%s}`, dir, field)
	}
	binds := func(pairs ...string) string {
		var list []string
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, fmt.Sprintf(`{"source":%q,"dest":%q}`, pairs[i], pairs[i+1]))
		}
		return with(`"binds":[` + strings.Join(list, ",") + `]`)
	}
	type expect struct{ body, code, says string } // without a code: it works
	var all []expect
	for _, place := range []string{
		"/dev", "/dev/", "//dev", "/dev/null", "/dev/pts", "/dev/shm", "/dev/x/y", "/proc", "/proc/1", "/proc/self/fd/0", "/proc/x", "/sys", "/sys/class/net", "/sys/x",
	} {
		all = append(all, expect{at(place), invalid, "the session's own"}, expect{seen(place), invalid, "the session's own"})
	}
	for _, place := range []string{"/run", "/run/", "/etc", "/usr", "/usr/bin", "/usr//lib", "/bin", "/sbin", "/lib", "/lib64"} {
		all = append(all, expect{at(place), invalid, "needs as it is"}, expect{seen(place), invalid, "needs as it is"})
	}
	for place, says := range map[string]string{"/": "root directory", "//": "root directory", "x": "not an absolute", "./x": "not an absolute", "../x": "not an absolute", "/tmp/../etc": "part . or ..", "/tmp/./x": "part . or ..", "/tmp/\x00": "no path", "/" + strings.Repeat("x/", 2100): "no path"} {
		all = append(all, expect{at(place), invalid, says}, expect{seen(place), invalid, says}, expect{from(place), invalid, says}, expect{with(`"extra_writable":[` + quote(place) + `]`), invalid, says})
	}
	long := "/" + strings.Repeat("x", 300)
	all = append(all,
		expect{at("/tmp"), failed, dir + ": no such file"}, expect{at("/nowhere"), failed, "has to exist"}, expect{at("/nowhere/x"), failed, "has to exist"}, expect{seen("/nowhere"), failed, "has to exist"}, expect{at(dir + "/none"), failed, "has to exist"},
		expect{at("/tmp" + long), failed, "too long"}, expect{from("/tmp" + long), failed, "too long"}, expect{at(dir + "/file"), failed, "not a directory"}, expect{at(dir + "/file/x"), failed, "not a directory"},
		expect{at(dir), invalid, "workspace.path and binds.dest are both"}, expect{at(dir + "/"), invalid, "both"},
		expect{binds(more, "/tmp/x", dir, "/tmp//x/"), invalid, "binds.dest and binds.dest are both /tmp/x"},
		expect{with(`"extra_writable":[` + quote(dir) + `]`), invalid, "both"}, expect{with(`"extra_writable":[` + quote(more) + "," + quote(more) + `]`), invalid, "both"},
		expect{with(`"extra_writable":[` + quote(more) + `],"binds":[{"source":` + quote(more) + `}]`), invalid, "both"},
		// What is made for one place isn't left behind, or made at all, where another is refused.
		expect{binds(more, "/tmp/x", dir, "/tmp/x/made/deep"), failed, "has to exist"}, expect{binds(more, "/tmp/x/y", dir, "/nowhere"), failed, "has to exist"},
		expect{fmt.Sprintf(`{"workspace":{"path":"/tmp/x","source":%q},"uid":4321,"binds":[{"source":%q,"dest":"/tmp/x/made"}]}`, dir, more), failed, "has to exist"},
		expect{fmt.Sprintf(`{"workspace":{"path":"/tmp/not-there","source":%q},"uid":4321,"profile":"balanced"}`, dir), failed, "has to exist"},
		expect{binds(more+"/file", "/tmp/f", dir, "/tmp/f/x"), failed, "not a directory"},
		// Sources.
		expect{from("/etc"), failed, "directory of the system"}, expect{from("/run"), failed, "directory of the system"}, expect{from("/dev/shm"), failed, "directory of the system"}, expect{from("/proc/self"), failed, ""},
		expect{from("/dev/null"), failed, "neither a directory nor"}, expect{from(more + "/none"), failed, "doesn't exist"}, expect{from(more + "/file/"), failed, "not a directory"},
		expect{from(parent + "/link/ws"), failed, parent + "/link is a link, and links aren't followed; give " + dir}, expect{from(parent + "/link"), failed, parent + "/link is a link, and links aren't followed; give " + parent},
		expect{at(dir + "/link/x"), failed, dir + "/link is a link, and links aren't followed; give " + more + "/x"},
		expect{fmt.Sprintf(`{"workspace":{"path":%q},"uid":4321}`, more+"/file"), failed, "not a directory"}, expect{fmt.Sprintf(`{"workspace":{"path":%q},"uid":4321}`, parent+"/link/ws"), failed, "give " + dir},
		// Accounts: one that can't enter its workspace could run nothing.
		expect{fmt.Sprintf(`{"workspace":{"path":%q},"uid":4321}`, closed), failed, "may not enter the workspace"},
		expect{with(`"uid":4294967295`), invalid, "not the number"}, expect{with(`"gid":4294967295`), invalid, "not the number"}, expect{with(`"uid":null,"gid":1`), invalid, "gid without uid"},
		expect{with(`"uid":-1`), invalid, "JSON"}, expect{with(`"uid":4294967296`), invalid, "JSON"}, expect{with(`"uid":1.5`), invalid, "JSON"}, expect{with(`"uid":"x"`), invalid, "JSON"},
		// What covers all that a program needs, though each part is allowed.
		expect{binds(more, shellOf(t)), failed, ""},
		// Words and numbers.
		expect{with(`"profile":"x"`), invalid, "profile"}, expect{with(`"uid_mode":"x"`), invalid, "uid_mode"}, expect{with(`"env_passthrough":{"mode":"x"}`), invalid, "env_passthrough.mode"},
		expect{with(`"env_passthrough":{"keys":["` + strings.Repeat(`x","`, 300) + `"]}`), invalid, "env_passthrough.keys"}, expect{with(`"env_passthrough":[]`), invalid, "JSON"},
		expect{with(`"idle_timeout_seconds":-1`), invalid, "idle_timeout"}, expect{with(`"idle_timeout_seconds":9223372036854775807`), invalid, "idle_timeout"}, expect{with(`"idle_timeout_seconds":"1"`), invalid, "JSON"},
		expect{with(`"share_net":"no"`), invalid, "JSON"}, expect{with(`"binds":{}`), invalid, "JSON"}, expect{with(`"binds":[null]`), invalid, "not an absolute"}, expect{with(`"binds":[1]`), invalid, "JSON"},
		expect{with(`"binds":[` + strings.Repeat(`{"source":`+quote(more)+`},`, 64) + `{"source":` + quote(more) + `}]`), invalid, "more than 64"},
		expect{`{}`, invalid, "workspace.path"}, expect{``, invalid, "JSON"}, expect{`null`, invalid, "workspace.path"}, expect{`[]`, invalid, "JSON"}, expect{`{"workspace":null}`, invalid, "workspace.path"}, expect{`{"workspace":{"path":1}}`, invalid, "JSON"},
		expect{fmt.Sprintf(`{"workspace":{"path":%q,"mode":"x"},"uid":4321}`, dir), invalid, "workspace.mode"}, expect{fmt.Sprintf(`{"workspace":{"path":%q,"source":"x"},"uid":4321}`, dir), invalid, "workspace.source"},
		// And these are as good as they look odd.
		expect{at("/tmp/a/b/c"), "", ""}, expect{at("/tmp//a///b/"), "", ""}, expect{at("/run/x"), "", ""}, expect{at("/dev/shm/x"), "", ""}, expect{at(dir + "/sub"), "", ""}, expect{at("/mnt"), "", ""},
		expect{seen("/dev/shm/w"), "", ""}, expect{seen("/run/w/x"), "", ""}, expect{seen("/srv"), "", ""}, expect{seen("/tmp"), "", ""},
		expect{binds(more, "/tmp/x", dir, "/tmp/x/sub"), "", ""}, expect{binds(dir, "/tmp/x/sub", more, "/tmp/x"), "", ""},
		// A place above the workspace doesn't hide it.
		expect{fmt.Sprintf(`{"workspace":{"path":"/tmp/x/sub","source":%q},"uid":4321,"binds":[{"source":%q,"dest":"/tmp/x"}]}`, dir, more), "", ""},
		expect{with(`"idle_timeout_seconds":0,"env_passthrough":{"keys":["A=B",""]},"unknown":1`), "", ""}, expect{with(`"share_net":null,"binds":null,"extra_writable":[]`), "", ""},
	)
	before, state := tree(t, dir, more, closed), machineState(t)
	for _, c := range all {
		status, _, answer := ask(t, p.daemon, "POST", "/v1/isolated/session", c.body)
		if c.code != "" {
			if status != 400 || !strings.Contains(answer, `"`+c.code+`"`) || !strings.Contains(answer, c.says) {
				t.Errorf("%.300s: %d %s, want 400 %s %q", c.body, status, answer, c.code, c.says)
			}
			if status != 201 {
				continue
			}
		}
		var made struct {
			ID        string `json:"session_id"`
			Workspace struct{ Path string }
		}
		if err := json.Unmarshal([]byte(answer), &made); err != nil || status != 201 {
			t.Errorf("%s: %d %s", c.body, status, answer)
			continue
		}
		res, err := p.RunInIsolatedSession(ctx(t), "s", made.ID, sandbox.Command{Line: "touch here && rm here && test -e /proc/self && test -w /dev/null && pwd"})
		if want := strings.TrimSuffix(made.Workspace.Path, "/") + "\n"; err != nil || string(res.Stdout) != want {
			t.Errorf("%s: a run says %q %q, %v, want %q", c.body, res.Stdout, res.Stderr, err, want)
		}
		if err := p.CloseIsolatedSession(ctx(t), "s", made.ID); err != nil {
			t.Error(err)
		}
	}
	if d := cmp.Diff(before, tree(t, dir, more, closed)); d != "" {
		t.Errorf("left in the directories: %s", d)
	}
	if d := cmp.Diff(state, machineState(t)); d != "" {
		t.Errorf("left behind: %s", d)
	}
	if n, err := p.CountActiveIsolatedSessions(ctx(t), "s"); n != 0 || err != nil {
		t.Errorf("%d sessions, %v", n, err)
	}
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// shellOf gives the directory of the C library, without which no shell starts.
func shellOf(t testing.TB) string {
	t.Helper()
	for _, dir := range []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"} {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
	}
	return "/usr/lib" // where it isn't apart, this is refused for another reason
}
