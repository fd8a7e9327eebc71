package files

import (
	"bytes"
	"errors"
	"hash/maphash"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func inode(fd int) uint64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Ino
}

// FuzzConfinedPath: no path leads out, and the walk agrees with the kernel
// wherever the kernel has an answer.
func FuzzConfinedPath(f *testing.F) {
	dir := f.TempDir()
	root := dir + "/r"
	must(f, os.MkdirAll(root+"/a/b", 0o755))
	must(f, os.MkdirAll(dir+"/out", 0o755))
	must(f, os.WriteFile(root+"/a/b/f", nil, 0o644))
	must(f, os.WriteFile(dir+"/out/f", nil, 0o644))
	for link, target := range map[string]string{"l": "a/b", "a/u": "..", "a/b/o": "../../../out", "x": dir + "/out", "y": root + "/a", "s": "s", "d": "a/none", "a/p": dir} {
		must(f, os.Symlink(target, root+"/"+link))
	}
	inside := map[uint64]bool{}
	for _, p := range []string{"", "/a", "/a/b", "/a/b/f", "/l", "/a/u", "/a/b/o", "/x", "/y", "/s", "/d", "/a/p"} {
		var st unix.Stat_t
		must(f, unix.Lstat(root+p, &st))
		inside[st.Ino] = true
	}
	sc, err := newScope([]string{root})
	must(f, err)
	f.Cleanup(func() { sc.close() })
	for _, seed := range []string{"", "/", "/a/b/f", "/l/f", "/a/u/a/b/../b/f", "/a/b/o/f", "/x/f", "/y/b/f", "/s", "/d", "/a/p/etc", "/..", "/../r/a", "/a/./b//f/", "/l/", "/a/b/f/.", "/y/../out", "//a", "/\xff", "/a/b/f/.."} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, p string, follow bool) {
		flags := unix.O_PATH | unix.O_CLOEXEC
		if !follow {
			flags |= unix.O_NOFOLLOW
		}
		fd, err := sc.open(root+p, flags&unix.O_NOFOLLOW)
		if err == nil {
			defer unix.Close(fd)
			if !inside[inode(fd)] {
				t.Fatalf("%q leads out", p)
			}
		}
		if at, err := sc.place(root+p, follow); err == nil {
			if !inside[inode(at.dir)] || strings.Contains(at.base, "/") || at.base == ".." || at.base == "." || at.base == "" {
				t.Fatalf("the place of %q is %q outside", p, at.base)
			}
			at.close()
		}
		rel, err := sc.rel(root + p)
		if err != nil || strings.HasSuffix(rel, "/") {
			return
		}
		kernel, kerr := openBeneath(sc.fd, rel, flags)
		if kerr == nil {
			defer unix.Close(kernel)
		}
		dir, base, werr := sc.walk(rel, follow)
		walked := -1
		if werr == nil {
			walked, werr = openat(dir, base, flags|unix.O_NOFOLLOW)
			unix.Close(dir)
		}
		if werr == nil {
			defer unix.Close(walked)
			if !inside[inode(walked)] {
				t.Fatalf("the walk of %q leads out", p)
			}
		}
		switch {
		case kerr == nil && (werr != nil || inode(walked) != inode(kernel)):
			t.Fatalf("%q: the walk says %v, the kernel found it", p, werr)
		case kerr != nil && werr == nil && !errors.Is(kerr, unix.EXDEV):
			t.Fatalf("%q: the walk found it, the kernel says %v", p, kerr)
		}
	})
}

func FuzzReplaceAll(f *testing.F) {
	f.Add([]byte("aaaa"), []byte("aa"), []byte("b"))
	f.Add([]byte("abcabcab"), []byte("abcab"), []byte("abc"))
	f.Add(bytes.Repeat([]byte("xy"), 70<<10), []byte("yxy"), []byte(""))
	f.Fuzz(func(t *testing.T, src, old, replacement []byte) {
		if len(old) == 0 {
			return
		}
		want := bytes.ReplaceAll(src, old, replacement)
		for _, r := range []*bytes.Reader{bytes.NewReader(src), bytes.NewReader(src)} {
			var got bytes.Buffer
			n, err := replaceAll(&got, iotest.HalfReader(r), old, replacement)
			if err != nil || !bytes.Equal(got.Bytes(), want) || n != bytes.Count(src, old) {
				t.Fatalf("replaced %d, %v", n, err)
			}
		}
	})
}

func FuzzMatcher(f *testing.F) {
	for _, p := range []string{"*", "*.go", "{a,b}*", "[a-z]?", "\\*", "\xff*", "**", "a{b,{c,d}}"} {
		f.Add(p, "a.go")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		match, err := matcher(pattern)
		if err != nil {
			if failureOf(err).code != wire.CodePathInvalid {
				t.Fatal(err)
			}
			return
		}
		if len(name) > 255 {
			return
		}
		match(name)
		if !strings.ContainsAny(pattern, `*?[]{}\`) && !strings.Contains(pattern, "/") && !strings.Contains(name, "/") && match(name) != (pattern == name) {
			t.Fatalf("a literal %q on %q: %v", pattern, name, match(name))
		}
	})
}

// A file system without O_TMPFILE: the content has a hidden name from the
// start, which listings leave out and every end removes.
func TestUploadWithAName(t *testing.T) {
	dir := t.TempDir()
	s := &service{accounts: account.System, publishing: &publishing{seed: maphash.MakeSeed()}}
	start := func(want target) *upload {
		u, err := s.begin(anywhere, dir+"/f", want)
		must(t, err)
		must(t, u.f.Close())
		must(t, u.createHidden())
		must(t, u.fill(strings.NewReader("content")))
		if list, err := os.ReadDir(dir); err != nil || list[0].Name() != u.hidden {
			t.Errorf("no hidden name: %v, %v", list, err)
		}
		return u
	}
	check := func(want string) {
		t.Helper()
		list, err := os.ReadDir(dir)
		must(t, err)
		got := ""
		for _, e := range list {
			got += e.Name() + " "
		}
		if got != want {
			t.Errorf("the directory has %q, want %q", got, want)
		}
		s.hidden.Range(func(name, _ any) bool { t.Errorf("%s is still marked", name); return true })
	}
	start(target{newMode: 0o600}).abort()
	check("")
	for _, want := range []target{{newMode: 0o600, noReplace: true}, {newMode: 0o644}} {
		u := start(want)
		_, err := u.commit(dir + "/f")
		u.abort()
		must(t, err)
		check("f ")
	}
	u, err := s.begin(anywhere, dir+"/g", target{noReplace: true})
	must(t, err)
	must(t, u.f.Close())
	must(t, u.createHidden())
	must(t, os.WriteFile(dir+"/g", nil, 0o644))
	_, err = u.commit(dir + "/g")
	u.abort()
	if !errors.Is(err, unix.EEXIST) {
		t.Errorf("a file that came meanwhile: %v", err)
	}
	check("f g ")
	if st, err := os.Stat(dir + "/f"); err != nil || st.Mode() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

// without runs f on a thread that lacks a capability.
func without(capability int, f func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps [2]unix.CapUserData
		err := unix.Capget(&head, &caps[0])
		caps[0].Effective &^= 1 << capability
		if err == nil {
			err = unix.Capset(&head, &caps[0])
		}
		if err == nil {
			err = f()
		}
		result <- err
	}()
	return <-result
}

// Before a file gets another group, it has no bits that the group isn't to have,
// so that nobody gets to it who may neither before nor after. A change of owner
// that fails shows what was done before it.
func TestChangeIsNeverWider(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	defer f.Close()
	fd := int(f.Fd())
	must(t, owned{0o660, 0, 0}.give(fd))
	if err := without(unix.CAP_CHOWN, func() error { return owned{0o604, 1000, 1000}.give(fd) }); !errors.Is(err, unix.EPERM) {
		t.Errorf("error %v", err)
	}
	var st unix.Stat_t
	must(t, unix.Fstat(fd, &st))
	if got := st.Mode & 0o7777; got != 0o600 {
		t.Errorf("%o when the owner changes", got)
	}
}

// A bit that the kernel drops without a word is an error: whoever asked for
// setgid must not believe that it is there.
func TestDroppedBitIsAnError(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	defer f.Close()
	err = without(unix.CAP_FSETID, func() error { return owned{0o2755, 0, 31001}.give(int(f.Fd())) })
	if err == nil || failureOf(err).code != wire.CodePermissionDenied {
		t.Errorf("error %v", err)
	}
}
