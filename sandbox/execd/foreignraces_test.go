package execd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/internal/quirk"
)

// places are a directory on the mount of what is the client's own, and one on another.
func places(t *testing.T, run func(t *testing.T, b *box, f sandbox.Files, dir string)) {
	t.Helper()
	t.Run("same mount", func(t *testing.T) {
		b := foreign(t, quirk.KeepRunning)
		f, dir := b.files()
		run(t, b, f, dir)
	})
	t.Run("another mount", func(t *testing.T) {
		b := foreign(t, quirk.Harmless...)
		f, _ := b.files()
		run(t, b, f, tmpfs(t))
	})
}

// Of calls that saw the same state, and of those that want to be first, one succeeds.
func TestForeignOneWins(t *testing.T) {
	places(t, func(t *testing.T, _ *box, f sandbox.Files, dir string) {
		race := func(what string, call func(i int) error) {
			t.Helper()
			var wg sync.WaitGroup
			var won atomic.Int64
			for i := range 6 {
				wg.Go(func() {
					switch err := call(i); {
					case err == nil:
						won.Add(1)
					case !errors.Is(err, sandbox.ErrChanged) && !errors.Is(err, fs.ErrExist):
						t.Errorf("%s: %v", what, err)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				t.Errorf("%s: %d succeeded", what, won.Load())
			}
		}
		for i := range 6 {
			put(t, fmt.Sprint(dir, "/", i), "")
		}
		race("NoReplace", func(i int) error {
			return write(t, f, dir+"/new", fmt.Sprint(i), sandbox.WriteOptions{NoReplace: true})
		})
		i, err := f.Stat(ctx(t), dir+"/new")
		must(t, err)
		race("IfUnchanged", func(n int) error {
			return write(t, f, dir+"/new", fmt.Sprint("again", n), sandbox.WriteOptions{IfUnchanged: i.Version})
		})
		race("MakeDir", func(int) error { return f.MakeDir(ctx(t), dir+"/d", sandbox.DirOptions{}) })
		race("Move", func(i int) error { return sandbox.Move(ctx(t), f, fmt.Sprint(dir, "/", i), dir+"/to") })
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				if err := f.MakeDir(ctx(t), fmt.Sprint(dir, "/a/b/", i%2), sandbox.DirOptions{Parents: true}); err != nil {
					t.Errorf("parents: %v", err)
				}
			})
		}
		wg.Wait()
		if got := names(t, dir); len(got) != 5+1+1+1+1 || !strings.HasPrefix(get(t, dir+"/new"), "again") {
			t.Errorf("left: %v", got)
		}
	})
}

// A reader in the sandbox sees one whole content with its own bits and owner.
func TestForeignReadersSeeOldOrNew(t *testing.T) {
	places(t, func(t *testing.T, _ *box, f sandbox.Files, dir string) {
		path := dir + "/f"
		change := func(owner string, size int, mode fs.FileMode) {
			must(t, f.Write(ctx(t), path, strings.NewReader(strings.Repeat(owner[:1], size)), sandbox.WriteOptions{Attr: sandbox.Attr{Owner: owner, Mode: &mode}}))
		}
		change("root", 70<<10, 0o640)
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return
				case <-tick.C:
				}
				h, err := os.Open(path)
				if err != nil {
					t.Errorf("the name was missing for a moment: %v", err)
					return
				}
				var st unix.Stat_t
				err = unix.Fstat(int(h.Fd()), &st)
				b, err2 := io.ReadAll(h)
				h.Close()
				owner, size, mode := "root", 70<<10, uint32(0o640)
				if st.Uid != 0 {
					owner, size, mode = someone, 200<<10, 0o600
				}
				if errors.Join(err, err2) != nil || st.Mode&0o7777 != mode || len(b) != size || strings.Trim(string(b), owner[:1]) != "" {
					t.Errorf("saw %d bytes under mode %o of %d", len(b), st.Mode, st.Uid)
				}
			}
		})
		for range 4 {
			change(someone, 200<<10, 0o600)
			change("root", 70<<10, 0o640)
		}
		close(done)
		wg.Wait()
		if got := names(t, dir); !slices.Equal(got, []string{"f"}) {
			t.Errorf("left: %v", got)
		}
	})
}

// blocking gives some content, and then waits.
type blocking struct {
	left    int
	blocked chan struct{}
	resume  <-chan struct{}
}

func (r *blocking) Read(p []byte) (int, error) {
	if r.left > 0 {
		n := min(len(p), r.left)
		r.left -= n
		return n, nil
	}
	close(r.blocked)
	<-r.resume
	return 0, io.EOF
}

// Wherever a write is given up or killed, the old content stays or the new one
// is there whole, and nothing else.
func TestForeignWritesThatEndEarly(t *testing.T) {
	places(t, func(t *testing.T, b *box, f sandbox.Files, dir string) {
		path := dir + "/f"
		put(t, path, "old")
		check := func(what string, allowed ...string) {
			t.Helper()
			if got := get(t, path); !slices.Contains(allowed, got) {
				t.Errorf("%s: the file holds %d bytes", what, len(got))
			}
			if got := names(t, dir); !slices.Equal(got, []string{"f"}) {
				t.Errorf("%s: left %v", what, got)
			}
			if left, _ := filepath.Glob(b.dir + "/files-*"); len(left) > 0 {
				t.Errorf("%s: left %v", what, left)
			}
			put(t, path, "old")
		}
		cause := errors.New("the disk of the caller failed")
		err := f.Write(ctx(t), path, io.MultiReader(strings.NewReader(strings.Repeat("x", 100<<10)), failing{cause}), sandbox.WriteOptions{})
		isRefused(t, "a failing source", err, sandbox.ErrPathRejected, cause)
		check("a failing source", "old")

		c, cancel := context.WithCancel(ctx(t))
		r := &blocking{100 << 10, make(chan struct{}), c.Done()}
		go func() { <-r.blocked; cancel() }()
		if err := f.Write(c, path, r, sandbox.WriteOptions{}); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled while sending: %v", err)
		}
		check("cancelled while sending", "old")

		for _, when := range []string{"command", "upload"} {
			for nth := range 2 {
				c, cancel := context.WithCancel(ctx(t))
				seen := 0
				b.s.Between = func(op, _ string) {
					if op == when {
						if seen == nth {
							cancel()
						}
						seen++
					}
				}
				err := f.Write(c, path, strings.NewReader("new"), sandbox.WriteOptions{})
				if err == nil && get(t, path) != "new" || err != nil && !errors.Is(err, context.Canceled) {
					t.Errorf("cancelled at %s %d: %v", when, nth, err)
				}
				cancel()
				b.s.Between = nil
				// A script that was given up may still run to its end.
				eventually(t, "the end of it", func() bool {
					left, _ := filepath.Glob(b.dir + "/files-*")
					return len(left) == 0 && len(names(t, dir)) == 1
				})
				check(fmt.Sprint("cancelled at ", when, nth), "old", "new")
			}
		}

		for _, program := range []string{"chown", "mv", "flock"} {
			b.wrap(program, "kill -9 0")
			err := f.Write(ctx(t), path, strings.NewReader("new"), sandbox.WriteOptions{Attr: sandbox.Attr{Owner: someone}})
			isLost(t, "killed at "+program, err)
			check("killed at "+program, "old")
			b.s.Path = ""
		}
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A disk that fills up where the target is, and one where the client keeps what is its own.
func TestForeignNoSpace(t *testing.T) {
	b := foreign(t, quirk.Harmless...)
	f, _ := b.files()
	dir := tmpfs(t) // 4 MiB
	put(t, dir+"/f", "old")
	var st unix.Statfs_t
	must(t, unix.Statfs(dir, &st))
	free := st.Bfree
	for _, path := range []string{"/f", "/new"} {
		err := f.Write(ctx(t), dir+path, strings.NewReader(strings.Repeat("x", 8<<20)), sandbox.WriteOptions{})
		isRefused(t, path, err, sandbox.ErrPathRejected, syscall.ENOSPC)
	}
	must(t, unix.Statfs(dir, &st))
	if got := names(t, dir); !slices.Equal(got, []string{"f"}) || get(t, dir+"/f") != "old" || st.Bfree != free {
		t.Errorf("left: %v, %d of %d blocks are free", got, st.Bfree, free)
	}
	big := strings.Repeat("0123456789abcdef", 3<<20/16)
	must(t, write(t, f, dir+"/f", big, sandbox.WriteOptions{}))
	if get(t, dir+"/f") != big {
		t.Error("another content arrived")
	}
	small := foreign(t, quirk.Harmless...)
	small.conn.SetDir(dir + "/state")
	small.dir = dir + "/state"
	g, home := small.files()
	put(t, home+"/f", "old")
	isRefused(t, "no room for our own", write(t, g, home+"/f", big, sandbox.WriteOptions{}), sandbox.ErrPathRejected, syscall.ENOSPC)
	if got := names(t, home); !slices.Equal(got, []string{"f"}) || get(t, home+"/f") != "old" {
		t.Errorf("left: %v", got)
	}
}

// Links that lead out of the root, made before the call.
func TestForeignConfinement(t *testing.T) {
	b := foreign(t, quirk.Harmless...)
	g, dir := b.files()
	root, outside := dir+"/root", dir+"/root-outside"
	must(t, os.MkdirAll(root+"/in/deep", 0o755))
	must(t, os.MkdirAll(outside+"/d", 0o755))
	put(t, outside+"/secret", "secret")
	put(t, root+"/in/file", "inside")
	for link, target := range map[string]string{
		"absfile": outside + "/secret", "absdir": outside, "reldir": "../root-outside", "slash": dir, "chain": "in/chain2",
		"in/chain2": "../reldir", "loop": "loop2", "loop2": "loop", "dangling": outside + "/fresh", "in/up": "../..",
		"prefix": root + "-outside", "dots": root + "/../root-outside",
		"okabs": root + "/in/file", "okabsdir": root + "/in", "okrel": "in/../in/file", "okroot": root,
	} {
		must(t, os.Symlink(target, root+"/"+link))
	}
	f := g.Beneath(root)
	no := sandbox.ErrPathRejected
	for _, p := range []string{
		"/../root-outside/secret", "/in/../../root-outside/secret", "/absfile", "/absdir/secret", "/reldir/secret", "/slash/root-outside/secret",
		"/chain/secret", "/in/up/root-outside/secret", "/prefix/secret", "/dots/secret", "-outside/secret", "/okroot/reldir/secret", "/dangling", "/loop",
	} {
		path := root + p
		isRefused(t, "open "+p, second(f.Open(ctx(t), path, 0, -1)), no)
		isRefused(t, "write "+p, write(t, f, path, "x", sandbox.WriteOptions{}), no)
		isRefused(t, "setattr "+p, f.SetAttr(ctx(t), path, sandbox.Attr{Mode: sandbox.Mode(0o777)}), no)
		isRefused(t, "mkdir "+p, f.MakeDir(ctx(t), path+"/d", sandbox.DirOptions{Parents: true}), no)
		isRefused(t, "list "+p, second(f.List(ctx(t), path, 1)), no)
		isRefused(t, "search "+p, second(f.Search(ctx(t), path, "*")), no)
		if strings.Count(p, "/") > 1 || p[0] != '/' {
			isRefused(t, "stat "+p, second(f.Stat(ctx(t), path)), no, fs.ErrPermission)
			isRefused(t, "write new "+p, write(t, f, path+"2", "x", sandbox.WriteOptions{NoReplace: true}), no)
			isRefused(t, "rename "+p, f.Rename(ctx(t), path, root+"/stolen"), no)
			isRefused(t, "rename to "+p, f.Rename(ctx(t), root+"/in/file", path), no)
			isRefused(t, "remove "+p, f.Remove(ctx(t), path), no)
			isRefused(t, "remove all "+p, f.RemoveAll(ctx(t), path), no)
		}
	}
	for _, path := range []string{"/etc/passwd", outside + "/secret", "/", filepath.Dir(root)} {
		isRefused(t, path, second(f.Stat(ctx(t), path)), no, fs.ErrPermission)
	}
	for _, other := range []string{root + "/absdir", root + "/in/up", root + "/../root-outside", "/etc"} {
		isRefused(t, other, second(f.Beneath(other).Stat(ctx(t), other+"/secret")), no)
	}
	for _, p := range []string{"/okabs", "/okabsdir/file", "/okrel", "/okroot/okabs", "/in/deep/../file", "/in//file", "/./in/./file"} {
		if got := read(t, f, root+p, 0, -1); got != "inside" {
			t.Errorf("%s: %q", p, got)
		}
	}
	seq, err := f.Search(ctx(t), root, "secret")
	if got := paths(t, root, seq, err); len(got) != 0 {
		t.Errorf("the search left the root: %v", got)
	}
	isRefused(t, "the root", f.RemoveAll(ctx(t), root), no)
	must(t, f.RemoveAll(ctx(t), root+"/absdir")) // the link
	if got := names(t, outside); !slices.Equal(got, []string{"d", "secret"}) || get(t, outside+"/secret") != "secret" || bitsOf(t, outside+"/secret") != 0o644 {
		t.Errorf("the outside was changed: %v", got)
	}
}

// While whoever owns a directory swaps what appears in it, root's calls touch
// nothing outside.
func TestForeignSwaps(t *testing.T) {
	places(t, func(t *testing.T, _ *box, g sandbox.Files, dir string) {
		outside := t.TempDir()
		put(t, outside+"/secret", "secret")
		must(t, os.Mkdir(outside+"/private", 0o700))
		must(t, os.Mkdir(dir+"/r", 0o755))
		dir += "/r"
		f := g.Beneath(dir)
		end := time.Now().Add(attackTime())
		var stop atomic.Bool
		var wg sync.WaitGroup
		swaps := 0
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				list, _ := os.ReadDir(dir)
				for _, e := range list {
					target := outside + "/secret"
					if e.IsDir() {
						target = outside + "/private"
					}
					link := fmt.Sprint(dir, "/.link", n)
					if os.Symlink(target, link) == nil {
						if unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, dir+"/"+e.Name(), unix.RENAME_EXCHANGE) == nil {
							swaps++
						}
						_ = os.RemoveAll(link)
					}
				}
			}
		})
		succeeded := 0
		for n := 0; time.Now().Before(end); n++ {
			attr := sandbox.Attr{Mode: sandbox.Mode(0o777), Owner: someone, Group: someone}
			for _, err := range []error{
				write(t, f, dir+"/f", "inside", sandbox.WriteOptions{Attr: attr}),
				write(t, f, fmt.Sprint(dir, "/n", n), "inside", sandbox.WriteOptions{Attr: attr, NoReplace: true}),
				f.MakeDir(ctx(t), fmt.Sprint(dir, "/d", n), sandbox.DirOptions{Attr: attr}),
				f.SetAttr(ctx(t), dir+"/f", attr),
				f.Rename(ctx(t), dir+"/f", dir+"/g"),
			} {
				if err == nil {
					succeeded++
				}
			}
		}
		stop.Store(true)
		wg.Wait()
		t.Logf("%d calls succeeded, %d swaps", succeeded, swaps)
		for path, mode := range map[string]uint32{"": 0, "/secret": 0o644, "/private": 0o700} {
			var st unix.Stat_t
			must(t, unix.Stat(outside+path, &st))
			if st.Uid != 0 || mode != 0 && st.Mode&0o7777 != mode {
				t.Errorf("%s became %o of %d", path, st.Mode, st.Uid)
			}
		}
		if got := append(names(t, outside), names(t, outside+"/private")...); !slices.Equal(got, []string{"private", "secret"}) || get(t, outside+"/secret") != "secret" {
			t.Errorf("outside: %v", got)
		}
	})
}

// attackTime is how long an attack goes on: short, or what ASTRABOX_ATTACK_SECONDS says.
func attackTime() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("ASTRABOX_ATTACK_SECONDS") + "s"); err == nil {
		return d
	}
	return 300 * time.Millisecond
}
