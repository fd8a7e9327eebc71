package rootfs

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/test/machine"
)

// Root in a sandbox sees the machine's root's files as its own: what only some
// may read on the machine must not be there at all, all else must.
func TestPrivate(t *testing.T) {
	needRoot(t)
	if err := Probe(t.TempDir()); err != nil {
		machine.Missing(t, "%v", err)
	}
	dir := t.TempDir()
	lower := filepath.Join(dir, "lower")
	if err := os.Mkdir(lower, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		path     string
		mode     uint32 // of a directory when the path ends with a slash
		uid, gid int
	}{
		{"local/", 0o2775, 0, 50}, {"local/bin/", 0o755, 0, 0}, {"local/bin/tool", 0o755, 0, 0}, {"local/bin/setuid", 0o4755, 0, 0},
		{"local/keys/", 0o755, 7, 8}, {"local/keys/key", 0o600, 0, 0}, {"local/keys/group", 0o640, 0, 8}, {"local/keys/all", 0o644, 0, 0},
		{"local/keys/run", 0o711, 0, 0}, {"local/closed/", 0o750, 0, 0}, {"local/closed/open", 0o644, 0, 0},
		{"local/way/", 0o711, 0, 0}, {"local/way/known", 0o644, 0, 0}, {"share/", 0o755, 0, 0}, {"share/x", 0o444, 0, 0},
		{"etc/", 0o755, 0, 0}, {"etc/all", 0o644, 0, 0}, {"local/etc/", 0o755, 0, 0}, {"local/etc/all", 0o644, 0, 0}, {"share/etc/", 0o755, 0, 0},
	} {
		p := filepath.Join(lower, f.path)
		var err error
		if f.path[len(f.path)-1] == '/' {
			err = os.Mkdir(p, 0o700)
		} else {
			err = os.WriteFile(p, []byte("x"), 0o600)
		}
		if err == nil {
			err = os.Chown(p, f.uid, f.gid)
		}
		if err == nil {
			err = unix.Chmod(p, f.mode)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("keys/key", filepath.Join(lower, "local/link")); err != nil {
		t.Fatal(err)
	}

	private, err := scanPrivate(lower)
	if err != nil {
		t.Fatal(err)
	}
	want := []cover{
		{rel: "etc", hidden: true}, // the machine's configuration, though everybody may read it
		{rel: "local", mode: 0o2775, gid: 50},
		{rel: "local/closed", hidden: true},
		{rel: "local/etc", hidden: true},
		{rel: "local/keys", mode: 0o755, uid: 7, gid: 8},
		{rel: "local/keys/group", hidden: true},
		{rel: "local/keys/key", hidden: true},
		{rel: "local/keys/run", hidden: true},
		{rel: "local/way", hidden: true},
	}
	if d := cmp.Diff(want, private, cmp.AllowUnexported(cover{})); d != "" {
		t.Errorf("private files (-want +got):\n%s", d)
	}

	above := filepath.Join(dir, "above")
	if err := os.Mkdir(above, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range private {
		if err := c.build(above); err != nil {
			t.Fatal(err)
		}
	}
	l := Layers{Dir: filepath.Join(dir, "layers")}
	if err := l.Make(5); err != nil {
		t.Fatal(err)
	}
	ns, err := newUserNamespace(5)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	mnt, err := Overlay{Lower: []string{above, lower}, Upper: filepath.Join(l.Dir, "usr"), Work: filepath.Join(l.Dir, "usr.work")}.Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer mnt.Close()
	type seen struct {
		Mode     uint32
		UID, GID int
	}
	base := Range(5).Base()
	for path, want := range map[string]*seen{
		"local":            {syscall.S_IFDIR | 0o2775, base, base + 50},
		"local/keys":       {syscall.S_IFDIR | 0o755, base + 7, base + 8},
		"local/keys/all":   {syscall.S_IFREG | 0o644, base, base},
		"local/bin/tool":   {syscall.S_IFREG | 0o755, base, base},
		"local/bin/setuid": {syscall.S_IFREG | 0o4755, base, base},
		"local/link":       {syscall.S_IFLNK | 0o777, base, base + 50}, // made in a directory that gives its group on
		"share/x":          {syscall.S_IFREG | 0o444, base, base},
		"local/keys/key":   nil, "local/keys/group": nil, "local/keys/run": nil,
		"local/closed": nil, "local/closed/open": nil, "local/way": nil, "local/way/known": nil,
		"etc": nil, "local/etc": nil, "local/etc/all": nil,
	} {
		var st unix.Stat_t
		err := unix.Fstatat(int(mnt.Fd()), path, &st, unix.AT_SYMLINK_NOFOLLOW)
		var got *seen
		if err == nil {
			got = &seen{st.Mode, int(st.Uid), int(st.Gid)}
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got, %v):\n%s", path, err, d)
		}
	}
}
