package agentprogram

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCommand runs the start line under sh with a stand-in for the program.
func TestCommand(t *testing.T) {
	p, ok := ByID(ShellID)
	if !ok || All()[0].ID != ShellID {
		t.Fatal("the shell program isn't the default")
	}
	dir := t.TempDir()
	standIn := filepath.Join(dir, "agent")
	if err := os.WriteFile(standIn, []byte("#!/bin/sh\necho line\necho \"trouble $N\" >&2\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	line := strings.ReplaceAll(p.Command(), ShellAgentPath, standIn)
	home := filepath.Join(dir, "my home")
	log := filepath.Join(home, ".local/state/astrabox-shell/shell.err")
	for _, c := range []struct{ n, home, log, old string }{
		{"1", home, "trouble 1\n", ""},
		{"2", home, "trouble 2\n", "trouble 1\n"},
		{"3", "/proc/nowhere", "", ""},
	} {
		cmd := exec.Command("/bin/sh", "-c", line)
		cmd.Env = []string{"HOME=" + c.home, "N=" + c.n, "PATH=" + os.Getenv("PATH")}
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != "line\n" {
			t.Errorf("run %s: %v, output %q", c.n, err, out)
		}
		if c.log == "" {
			continue
		}
		got, _ := os.ReadFile(log)
		old, _ := os.ReadFile(log + ".old")
		if string(got) != c.log || string(old) != c.old {
			t.Errorf("run %s: log %q, the one before %q", c.n, got, old)
		}
	}
}

func TestFindBinary(t *testing.T) {
	dir := t.TempDir()
	b := Binary{Name: "shellagent", Setting: "X_PATH"}
	good, plain := filepath.Join(dir, "shellagent"), filepath.Join(dir, "plain")
	for path, mode := range map[string]os.FileMode{good: 0o755, plain: 0o644} {
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ name, setting, executable, want, err string }{
		{"beside the executable", "", filepath.Join(dir, "astrabox"), good, ""},
		{"the setting first", good, "/nowhere/astrabox", good, ""},
		{"missing", "", "/nowhere/astrabox", "", "X_PATH"},
		{"the setting names nothing", "/nowhere/x", filepath.Join(dir, "astrabox"), "", "X_PATH"},
		{"not executable", plain, filepath.Join(dir, "astrabox"), "", "not an executable"},
		{"a directory", dir, filepath.Join(dir, "astrabox"), "", "not an executable"},
	} {
		got, err := b.Find(func(name string) string {
			if name != "X_PATH" {
				t.Errorf("%s was asked for", name)
			}
			return c.setting
		}, c.executable)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}
