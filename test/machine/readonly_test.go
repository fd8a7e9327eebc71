package machine

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	ReadOnly()
	os.Exit(m.Run())
}

// Nothing can be made where the machine keeps what it needs, in the tree of the
// sources or in the memory that others share.
func TestReadOnly(t *testing.T) {
	NeedReadOnly(t)
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{"/", "/etc", "/usr", "/usr/bin", "/var", "/root", "/run", "/opt", "/dev", "/dev/shm", "/tmp", "/var/tmp", "/sys/fs/cgroup", home}
	if flag.Lookup("test.outputdir").Value.String() == "" { // else profiles are kept beside the sources
		dirs = append(dirs, ".")
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err != nil {
			continue // this machine has none
		}
		path := filepath.Join(dir, "astrabox-test-canary")
		if err := os.Mkdir(path, 0o700); !errors.Is(err, unix.EROFS) {
			t.Errorf("a directory below %s: %v", dir, err)
			os.Remove(path)
		}
	}
}

func TestWhatStaysWritable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/dev/null", "/proc/self/oom_score_adj", "/dev/ptmx"} {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Error(err)
			continue
		}
		f.Close()
	}
}

// missing records what a test without something would do.
type missing struct {
	testing.TB
	failed, skipped bool
}

func (m *missing) Helper()               {}
func (m *missing) Fatalf(string, ...any) { m.failed = true }
func (m *missing) Skipf(string, ...any)  { m.skipped = true }

func TestMissing(t *testing.T) {
	t.Setenv("CI", "")
	m := &missing{TB: t}
	if Missing(m, "x"); m.failed || !m.skipped {
		t.Errorf("on a developer's machine: %+v", m)
	}
	t.Setenv("CI", "true")
	m = &missing{TB: t}
	if Missing(m, "x"); !m.failed {
		t.Errorf("in CI: %+v", m)
	}
}
