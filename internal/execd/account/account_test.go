package account

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const passwd = `root:x:0:0:root:/root:/bin/bash
# comment
broken line
bad:x:abc:1::/:/bin/sh
minus:x:4294967295:1::/:/bin/sh
agent:x:1000:1000:Agent,,,:/home/agent:/bin/bash
agent:x:2000:2000:second:/home/second:/bin/sh
alias:x:1000:1000::/home/alias:/bin/sh
noshell:x:1001:1001::/home/noshell:
`

const group = `root:x:0:
agent:x:1000:agent
docker:x:999:agent,noshell
audio:x:29:agent
`

func files(t *testing.T) (*DB, string) {
	t.Helper()
	dir := t.TempDir()
	p, g := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	for path, text := range map[string]string{p: passwd, g: group} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return New(p, g), dir
}

func TestUser(t *testing.T) {
	d, _ := files(t)
	for name, want := range map[string]User{
		"root":    {Name: "root", Home: "/root", Shell: "/bin/bash"},
		"agent":   {Name: "agent", UID: 1000, GID: 1000, Groups: []uint32{999, 29}, Home: "/home/agent", Shell: "/bin/bash"},
		"noshell": {Name: "noshell", UID: 1001, GID: 1001, Groups: []uint32{999}, Home: "/home/noshell"},
	} {
		got, err := d.User(name)
		if err != nil {
			t.Errorf("User(%q): %v", name, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("User(%q) (-want +got):\n%s", name, diff)
		}
	}
	for _, name := range []string{"bad", "minus", "broken line", "#", "", "1000"} {
		if u, err := d.User(name); !errors.Is(err, ErrUnknown) {
			t.Errorf("User(%q) = %v, %v; want ErrUnknown", name, u, err)
		}
	}
	if u, err := d.UserID(1000); err != nil || u.Name != "agent" {
		t.Errorf("UserID(1000) = %v, %v; want the first entry", u, err)
	}
}

func TestNames(t *testing.T) {
	d, _ := files(t)
	for uid, want := range map[uint32]string{0: "root", 1000: "agent", 77: "77"} {
		if got := d.UserName(uid); got != want {
			t.Errorf("UserName(%d) = %q, want %q", uid, got, want)
		}
	}
	for gid, want := range map[uint32]string{999: "docker", 78: "78"} {
		if got := d.GroupName(gid); got != want {
			t.Errorf("GroupName(%d) = %q, want %q", gid, got, want)
		}
	}
	if gid, err := d.Group("audio"); err != nil || gid != 29 {
		t.Errorf("Group(audio) = %d, %v", gid, err)
	}
	if _, err := d.Group("none"); !errors.Is(err, ErrUnknown) {
		t.Errorf("Group(none): %v, want ErrUnknown", err)
	}
}

// An account that a command has just made must be there for the next request.
func TestChangeIsSeen(t *testing.T) {
	d, dir := files(t)
	if _, err := d.User("late"); !errors.Is(err, ErrUnknown) {
		t.Fatalf("before: %v", err)
	}
	next := filepath.Join(dir, "passwd.new")
	if err := os.WriteFile(next, []byte(passwd+"late:x:1500:0::/:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(next, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "passwd")); err != nil {
		t.Fatal(err)
	}
	if u, err := d.User("late"); err != nil || u.UID != 1500 {
		t.Errorf("after: %v, %v", u, err)
	}
}

func TestMissingFiles(t *testing.T) {
	d := New(filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b"))
	if _, err := d.User("root"); !errors.Is(err, ErrUnknown) {
		t.Errorf("User: %v, want ErrUnknown", err)
	}
	if got := d.UserName(0); got != "0" {
		t.Errorf("UserName(0) = %q", got)
	}
}

// The sandbox's root can put anything at the path. Nobody writes to the FIFO
// here, so a blocking open would never return.
func TestOddFiles(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"fifo":      func(path string) error { return unix.Mkfifo(path, 0o644) },
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"device":    func(path string) error { return os.Symlink("/dev/zero", path) },
		"loop":      func(path string) error { return os.Symlink(path, path) },
	} {
		t.Run(name, func(t *testing.T) {
			d, dir := files(t)
			path := filepath.Join(dir, "passwd")
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			if u, err := d.User("agent"); err == nil || errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), path) {
				t.Errorf("User = %v, %v; want an error that names the file", u, err)
			}
			if got := d.UserName(1000); got != "1000" {
				t.Errorf("UserName = %q, want the number", got)
			}
		})
	}
}
