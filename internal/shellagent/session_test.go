package shellagent

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDelta(t *testing.T) {
	base := []string{"A=1", "B=2", "PWD=/", "ASTRABOX_RUN=x", "GONE=1", "=odd", "noequals"}
	env := []string{"A=1", "B=3=4", "PWD=/tmp", "ASTRABOX_RUN=y", "_=/bin/x", "SHLVL=1", "RAW=\xff", "BASH_FUNC_f%%=() { :; }", "EMPTY="}
	d, dropped := diff(base, env)
	want := delta{
		Set:   map[string]string{"B": "3=4", "BASH_FUNC_f%%": "() { :; }", "EMPTY": ""},
		Bytes: map[string][]byte{"RAW": {0xff}},
		Unset: []string{"GONE"},
	}
	if diff := cmp.Diff(want, d); diff != "" || dropped != 0 {
		t.Errorf("%d dropped (-want +got):\n%s", dropped, diff)
	}
	got := d.apply([]string{"A=9", "GONE=2", "NEW=1", "B=0"})
	if diff := cmp.Diff([]string{"A=9", "B=3=4", "BASH_FUNC_f%%=() { :; }", "EMPTY=", "NEW=1", "RAW=\xff"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if d, dropped := diff(nil, []string{"S=1", "L=" + strings.Repeat("x", maxEnv)}); dropped != 1 || d.Set["S"] != "1" {
		t.Errorf("%d dropped, left %v", dropped, d)
	}
}

// TestSessionFile: it stays bounded over many commands, keeps what holds, and
// is readable for its owner only.
func TestSessionFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	s, err := newSession(dir, "/root")
	if err != nil {
		t.Fatal(err)
	}
	s.cwd = "/somewhere"
	s.env.put("A", "1")
	if err := s.begin("first"); err != nil {
		t.Fatal(err)
	}
	if err := s.end(entry{Exit: 1}, true); err != nil {
		t.Fatal(err)
	}
	for range 500 {
		if err := s.begin(strings.Repeat("c", 100<<10)); err != nil {
			t.Fatal(err)
		}
		if err := s.end(entry{Output: strings.Repeat("o", 100<<10)}, false); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(s.path("jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() != s.size || info.Size() > maxFile+64<<10 || info.Mode() != 0o600 {
			t.Fatalf("the file has %d bytes (%d counted), mode %v", info.Size(), s.size, info.Mode())
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", info, err)
	}
	again, entries, err := openSession(dir, s.id, "/other", nil)
	if err != nil {
		t.Fatal(err)
	}
	if again.cwd != "/somewhere" || again.env.Set["A"] != "1" || again.number != 501 || len(entries) < 10 {
		t.Errorf("read back: %+v with %d entries", again, len(entries))
	}
}

// TestTornFile: a line that was cut off costs itself only.
func TestTornFile(t *testing.T) {
	dir := t.TempDir()
	s, err := newSession(dir, "/root")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.begin("one"); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.path("jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"n":2,"cmd":"tw`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for want := 2; want < 4; want++ {
		again, _, err := openSession(dir, s.id, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := again.begin("next"); err != nil {
			t.Fatal(err)
		}
		if again.number != want {
			t.Errorf("the next number is %d, want %d", again.number, want)
		}
	}
}

func TestNoSession(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"empty": "", "other": `{"session":"x"}` + "\n", "odd": "odd\n"} {
		if err := os.WriteFile(filepath.Join(dir, name+".jsonl"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"", "missing", "empty", "other", "odd", "../x", "a/b", strings.Repeat("a", 65)} {
		if _, _, err := openSession(dir, id, "/", nil); !errors.Is(err, errNoSession) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// TestScript runs the script under each shell: status, output and the saved
// state are the same whichever it is.
func TestScript(t *testing.T) {
	dir := t.TempDir()
	self := filepath.Join(dir, "it's me")
	if err := os.WriteFile(self, []byte("#!/bin/sh\npwd >\"$2\"; echo \"$1 ${A-unset}\" >>\"$2\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, sh := range [][]string{{"bash", "--noprofile", "--norc"}, {"sh"}} {
		if _, err := exec.LookPath(sh[0]); err != nil {
			t.Logf("no %s here", sh[0])
			continue
		}
		for _, c := range []struct {
			cmd, output string
			exit        int
			saved       string
		}{
			{"echo 'a'; export A=\"it's\"; cd /usr", "a\n", 0, "/usr\n--save-state it's\n"},
			{"cd /usr; exit 5", "", 5, "/usr\n--save-state unset\n"},
			{"set -eu; cd /usr; false; cd /", "", 1, "/usr\n--save-state unset\n"},
			{"exec true", "", 0, ""},
		} {
			save := filepath.Join(t.TempDir(), "saved")
			cmd := exec.Command(sh[0], append(sh[1:len(sh):len(sh)], "-c", script(self, save, c.cmd), sh[0])...)
			cmd.Dir = dir
			out, err := cmd.CombinedOutput()
			saved, _ := os.ReadFile(save)
			if string(out) != c.output || cmd.ProcessState.ExitCode() != c.exit || string(saved) != c.saved {
				t.Errorf("%s %q: %v, output %q, saved %q", sh[0], c.cmd, err, out, saved)
			}
		}
	}
}

func TestFindShell(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{"", "relative:" + dir, dir} {
		if sh, err := findShell(path); err != nil || !filepath.IsAbs(sh.path) {
			t.Errorf("PATH=%s: %+v, %v", path, sh, err)
		}
	}
	mine := filepath.Join(dir, "bash")
	if err := os.WriteFile(mine, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if sh, err := findShell(dir); err != nil || sh.path != mine {
		t.Errorf("%+v, %v", sh, err)
	}
}

func TestParseStat(t *testing.T) {
	fields := "S 7 9" + strings.Repeat(" 0", 16) + " 4711 0 0"
	for name, want := range map[string]proc{"sh": {42, 7, 9, 4711}, "a) S 1 (b": {42, 7, 9, 4711}} {
		if p, alive := parseStat(42, fmt.Appendf(nil, "42 (%s) %s", name, fields)); p != want || !alive {
			t.Errorf("%s: %+v, %v", name, p, alive)
		}
	}
	for _, s := range []string{"", "42 (x", "42 (x) S 7", "42 (x) " + strings.Replace(fields, "S", "Z", 1), "42 (x) " + strings.Replace(fields, "7", "x", 1)} {
		if _, alive := parseStat(42, []byte(s)); alive {
			t.Errorf("%q is alive", s)
		}
	}
}
