package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/test/machine"
)

func TestCheck(t *testing.T) {
	if os.Geteuid() != 0 {
		fs := Check(t.Context(), Config{})
		if len(fs) != 1 || fs[0].OK || Refuse(fs) == nil {
			t.Errorf("without root: %+v", fs)
		}
		machine.NeedRoot(t)
	}
	dir := t.TempDir()
	fs := Check(t.Context(), Config{StateDir: dir, RuncPath: "/nonexistent", ExecdPath: "/usr/bin/env"})
	seen := map[string]bool{}
	for _, f := range fs {
		if seen[f.ID] {
			t.Errorf("%s is there twice", f.ID)
		}
		seen[f.ID] = true
		if f.Summary == "" || !f.OK && f.Fix == "" || f.Severity == "" {
			t.Errorf("incomplete: %+v", f)
		}
	}
	for _, id := range []string{"root", "kernel", "usr-merge", "shell", "layers", "cgroups", "nftables", "runc", "execd", "exit-status", "inotify", "disk-limit"} {
		if !seen[id] {
			t.Errorf("nothing about %s", id)
		}
	}
	err := Refuse(fs)
	for _, want := range []string{"runc: ", "execd: ", "shared libraries", "ASTRABOX_RUNC_PATH"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q isn't in: %v", want, err)
		}
	}
	if es, _ := os.ReadDir(dir); len(es) > 0 {
		t.Errorf("left behind: %v", es)
	}
}

func TestRefuse(t *testing.T) {
	if err := Refuse([]Finding{good("a", Error, "x"), bad("b", Warning, "f", "y"), bad("c", Info, "f", "z")}); err != nil {
		t.Errorf("refused over warnings: %v", err)
	}
	err := Refuse([]Finding{bad("a", Error, "do it", "broken"), bad("b", Error, "do that", "missing")})
	if d := cmp.Diff("this machine can't run sandboxes yet: a: broken; do it\nb: missing; do that", err.Error()); d != "" {
		t.Error(d)
	}
}

func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for path, want := range map[string]string{
		"":                                    "no execd is named",
		dir:                                   "isn't a file",
		write("private", "x", 0o700):          "everybody may read",
		write("script", "#!/bin/sh\n", 0o755): "no program for Linux",
	} {
		if f := execd(path); f.OK || !strings.Contains(f.Summary, want) {
			t.Errorf("execd %q: %+v", path, f)
		}
	}
	for path, want := range map[string]string{
		"": "no OCI runtime is named",
		write("fails", "#!/bin/sh\nexit 1\n", 0o755):             "exit status 1",
		write("bare", "#!/bin/sh\necho runc version 9\n", 0o755): "can't filter",
	} {
		if f := runc(t.Context(), path); f.OK || !strings.Contains(f.Summary, want) {
			t.Errorf("runc %q: %+v", path, f)
		}
	}
}
