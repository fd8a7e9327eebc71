package shellagent

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// A command may put anything in the place of the state files. Nobody opens the
// other end of the FIFOs here, so whatever waits for it never returns.
func TestOddStateFiles(t *testing.T) {
	odd := map[string]func(path string) error{
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"device":    func(path string) error { return os.Symlink("/dev/zero", path) },
		"loop":      func(path string) error { return os.Symlink(path, path) },
	}
	for name, put := range odd {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := newSession(dir, "/root")
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(s.path("jsonl")); err != nil {
				t.Fatal(err)
			}
			for _, kind := range []string{"jsonl", "next", "next.tmp"} {
				if err := put(s.path(kind)); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.begin("one"); err == nil {
				t.Error("a command was stored in it")
			}
			if _, changed := s.adopt(nil); changed {
				t.Error("a state was read from it")
			}
			if _, _, err := openSession(dir, s.id, "/", nil); err == nil {
				t.Error("a session was read from it")
			} else if name == "fifo" && !errors.Is(err, errNoSession) {
				t.Errorf("openSession: %v", err)
			}
		})
	}
}

// What a command leaves where its shell's state is expected.
func TestOddSavedState(t *testing.T) {
	for _, content := range []string{"", "x", "\x00x", "/tmp", "/tmp\x00A=1"} {
		s, err := newSession(t.TempDir(), "/root")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.path("next"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, changed := s.adopt(nil); changed {
			t.Errorf("%q was taken for a state", content)
		}
	}
}
