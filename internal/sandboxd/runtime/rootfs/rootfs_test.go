package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/test/machine"
)

// A fault in a mount meets a mount namespace that nobody else has.
func TestMain(m *testing.M) {
	machine.OwnMounts()
	os.Exit(m.Run())
}

func needRoot(t *testing.T) {
	t.Helper()
	machine.NeedRoot(t)
	if err := CheckMerged(); err != nil {
		machine.Missing(t, "%v", err)
	}
}

func TestSkeleton(t *testing.T) {
	needRoot(t)
	old := syscall.Umask(0o077) // must not matter
	defer syscall.Umask(old)
	cache := t.TempDir()
	dir, err := Skeleton(cache)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Skeleton(cache); err != nil || again != dir {
		t.Errorf("again: %s, %v", again, err)
	}
	if es, _ := os.ReadDir(cache); len(es) != 1 {
		t.Errorf("cache holds %v", es)
	}
	for path, want := range map[string]struct {
		mode     fs.FileMode
		uid, gid uint32
	}{
		".":             {fs.ModeDir | 0o755, 0, 0},
		"root":          {fs.ModeDir | 0o700, 0, 0},
		"tmp":           {fs.ModeDir | fs.ModeSticky | 0o777, 0, 0},
		"home/agent":    {fs.ModeDir | 0o750, 1000, 1000},
		"workspace":     {fs.ModeDir | 0o750, 1000, 1000},
		"etc/shadow":    {0o600, 0, 0},
		"etc/passwd":    {0o644, 0, 0},
		"opt/astrabox":  {fs.ModeDir | 0o755, 0, 0},
		"var/tmp":       {fs.ModeDir | fs.ModeSticky | 0o777, 0, 0},
		"etc/ssl/certs": {fs.ModeDir | 0o755, 0, 0},
		"usr":           {fs.ModeDir | 0o755, 0, 0},
	} {
		fi, err := os.Lstat(filepath.Join(dir, path))
		if err != nil {
			if path != "etc/ssl/certs" {
				t.Error(err)
			}
			continue
		}
		st := fi.Sys().(*syscall.Stat_t)
		if fi.Mode() != want.mode || st.Uid != want.uid || st.Gid != want.gid {
			t.Errorf("%s is %v %d:%d, want %v %d:%d", path, fi.Mode(), st.Uid, st.Gid, want.mode, want.uid, want.gid)
		}
	}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		under := strings.HasPrefix(p, filepath.Join(dir, "usr")+"/") // looks as the machine's, with whiteouts
		if whiteout := fi.Mode().Type() == fs.ModeDevice|fs.ModeCharDevice && fi.Sys().(*syscall.Stat_t).Rdev == 0; under && (whiteout || fi.IsDir()) {
			return nil
		}
		if fi.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
			t.Errorf("%s is %v", p, fi.Mode())
		}
		if fi.Mode().IsRegular() && fi.Mode().Perm()&0o022 != 0 {
			t.Errorf("%s may be written by others", p)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSecretsStayOut fills an /etc with what must not get into a sandbox.
func TestSecretsStayOut(t *testing.T) {
	etc := t.TempDir()
	write := func(name string, mode fs.FileMode) {
		t.Helper()
		p := filepath.Join(etc, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
	}
	secrets := []string{
		"shadow", "passwd", "ssh/ssh_host_key", "ssl/private/key.pem", "npmrc", "pip.conf", "gitconfig", "docker/daemon.json", "apt/auth.conf",
		"profile.d/proxy.sh", "environment", "skel/.netrc", "maven/settings.xml", "hosts", "resolv.conf", "sudoers", "kubernetes/admin.conf",
		"krb5.keytab", "machine-id", "hostname", "fstab", "crontab", "wireguard/wg0.conf", "ssl/openssl.key",
	}
	for _, s := range secrets {
		write(s, 0o644)
	}
	write("ssl/certs/ca.pem", 0o644)
	write("ssl/certs/secret.key", 0o640) // not for everybody, even where others are
	write("security/opasswd", 0o600)
	write("pam.d/common-auth", 0o644)
	if err := os.MkdirAll(filepath.Join(etc, "perl/closed"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("perl/closed/f", 0o644)
	if err := os.Chmod(filepath.Join(etc, "perl/closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(etc, "perl/fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	list, err := scanEtc(etc)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		if !e.info.IsDir() {
			got = append(got, e.rel)
		}
	}
	if s := strings.Join(got, " "); s != "pam.d/common-auth ssl/certs/ca.pem" {
		t.Errorf("what passes: %s", s)
	}
	before := digest(list, nil)
	write("pam.d/more", 0o644)
	if list, err = scanEtc(etc); err != nil || digest(list, nil) == before {
		t.Errorf("the digest doesn't see a new file: %v", err)
	}
}

func TestLayers(t *testing.T) {
	needRoot(t)
	if err := Probe(t.TempDir()); err != nil {
		machine.Missing(t, "%v", err)
	}
	dir := t.TempDir()
	l := Layers{Dir: filepath.Join(dir, "layers")}
	if err := l.Make(5); err != nil {
		t.Fatal(err)
	}
	if n, err := l.Range(); err != nil || n != 5 {
		t.Errorf("range %d, %v", n, err)
	}
	if _, err := RangeOfOwner(dir); err == nil {
		t.Error("root's directory has a range")
	}
	skeleton, err := Skeleton(dir)
	if err != nil {
		t.Fatal(err)
	}
	// The skeleton's usr lies over the machine's.
	if err := (cover{rel: "include", hidden: true}).build(filepath.Join(skeleton, "usr")); err != nil {
		t.Fatal(err)
	}
	var ns UserNamespaces
	defer ns.Close()
	f, err := ns.Take(5)
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(dir, "root with\ta space")
	if err := os.Mkdir(target, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := l.Mount(skeleton, target, f); err != nil {
		t.Fatal(err)
	}
	ns.Give(5, f)
	owner := func(p string) uint32 {
		fi, err := os.Lstat(filepath.Join(target, p))
		if err != nil {
			t.Fatal(err)
		}
		return fi.Sys().(*syscall.Stat_t).Uid
	}
	base := uint32(Range(5).Base())
	for p, want := range map[string]uint32{".": base, "etc/passwd": base, "workspace": base + 1000, "usr/bin/sh": base} {
		if got := owner(p); got != want {
			t.Errorf("%s belongs to %d, want %d", p, got, want)
		}
	}
	if _, err := os.Lstat(filepath.Join(target, "usr/include")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what the skeleton hides of /usr: %v", err)
	}
	if ms, err := MountsUnder(target); err != nil || len(ms) != 2 || ms[1] != target+"/usr" {
		t.Errorf("mounts %v, %v", ms, err)
	}
	if err := os.WriteFile(filepath.Join(target, "usr/new"), nil, 0o644); err != nil {
		t.Error(err)
	}
	// Away and back, through a copy.
	tree, err := Clone(target)
	if err != nil {
		t.Fatal(err)
	}
	gone := func() {
		t.Helper()
		ds, err := Unmount(target)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ds {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		if ms, err := MountsUnder(target); err != nil || len(ms) > 0 {
			t.Errorf("mounts left: %v, %v", ms, err)
		}
	}
	gone()
	if err := Attach(tree, target); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(target, "usr/new")); err != nil {
		t.Error(err)
	}
	gone()
	gone() // nothing there

	// A sandbox that turned its /usr into a link out of itself.
	if err := os.Symlink("/", filepath.Join(l.Dir, "root", "usr")); err != nil {
		t.Fatal(err)
	}
	if f, err = ns.Take(5); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := l.Mount(skeleton, target, f); err == nil {
		t.Error("a link was taken for /usr")
	}
	if ms, err := MountsUnder(target); err != nil || len(ms) > 0 {
		t.Errorf("mounts left after a failure: %v, %v", ms, err)
	}
	if _, err := os.Stat("/new"); !errors.Is(err, os.ErrNotExist) {
		t.Error("the link was followed")
	}
}
