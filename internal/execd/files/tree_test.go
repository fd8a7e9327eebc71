package files_test

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/test/machine"
)

// Of many moves to one place one succeeds, and nothing is lost.
func TestMovesToOnePlace(t *testing.T) {
	f, dir := setup(t)
	const n = 16
	var wg sync.WaitGroup
	var done atomic.Int32
	for i := range n {
		put(t, fmt.Sprint(dir, "/", i), "x")
		wg.Go(func() {
			switch err := sandbox.Move(t.Context(), f, fmt.Sprint(dir, "/", i), dir+"/to"); {
			case err == nil:
				done.Add(1)
			case !errors.Is(err, fs.ErrExist) || !errors.Is(err, sandbox.ErrPathRejected):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	left, err := os.ReadDir(dir)
	if err != nil || done.Load() != 1 || len(left) != n {
		t.Errorf("%d moves succeeded, %d of %d files are left, %v", done.Load(), len(left), n, err)
	}
}

func TestRenameRemove(t *testing.T) {
	f, dir := setup(t)
	ctx := t.Context()
	put(t, dir+"/a", "a")
	put(t, dir+"/b", "b")
	must(t, os.MkdirAll(dir+"/full/x", 0o755))
	must(t, os.Mkdir(dir+"/emptydir", 0o755))
	must(t, os.Symlink("nowhere", dir+"/dangling"))
	must(t, os.Symlink("full", dir+"/todir"))
	must(t, f.Rename(ctx, dir+"/a", dir+"/b"))
	must(t, f.Rename(ctx, dir+"/b", dir+"/b"))
	if got := get(t, dir+"/b"); got != "a" {
		t.Errorf("b holds %q", got)
	}
	must(t, f.Rename(ctx, dir+"/dangling", dir+"/moved"))
	want(t, f.Rename(ctx, dir+"/missing", dir+"/b"), sandbox.ErrPathNotFound)
	want(t, f.Rename(ctx, dir+"/emptydir", dir+"/full"), sandbox.ErrPathRejected, syscall.ENOTEMPTY)
	want(t, f.Rename(ctx, dir+"/full", dir+"/full/x/y"), sandbox.ErrPathRejected)
	want(t, f.Rename(ctx, dir+"/b", dir+"/c/"), sandbox.ErrPathRejected, syscall.ENOTDIR)
	want(t, f.Rename(ctx, dir+"/b", tmpfs(t, "")+"/x"), sandbox.ErrPathRejected, syscall.EXDEV)
	err := f.Remove(ctx, dir+"/b", dir+"/full", dir+"/emptydir")
	want(t, err, sandbox.ErrPathRejected, syscall.ENOTEMPTY)
	if pe := new(sandbox.PathError); errors.As(err, &pe) && pe.Path != dir+"/full" {
		t.Errorf("the error names %s", pe.Path)
	}
	must(t, f.Remove(ctx, dir+"/emptydir", dir+"/moved", dir+"/missing", dir+"/missing/too", dir+"/todir"))
	must(t, f.Remove(ctx))
	must(t, f.RemoveAll(ctx, dir+"/missing"))
	must(t, f.RemoveAll(ctx, dir+"/full/"))
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	want(t, f.RemoveAll(ctx, dir+"/."), sandbox.ErrPathRejected)
	want(t, f.Beneath(dir).RemoveAll(ctx, dir), sandbox.ErrPathRejected)
}

// Only where a fault in it costs nothing.
func TestRemoveAllOfTheMachine(t *testing.T) {
	machine.NeedReadOnly(t)
	f, dir := setup(t)
	for _, path := range []string{"/", "//", "/.", "/proc/self/root"} {
		err := f.RemoveAll(t.Context(), path)
		want(t, err, sandbox.ErrPathRejected)
		if errors.Is(err, syscall.EROFS) {
			t.Errorf("removing %s was tried: %v", path, err)
		}
	}
	must(t, os.Remove(dir)) // still there
}

func TestRemoveAllHardTrees(t *testing.T) {
	f, dir := setup(t)
	ctx := t.Context()
	above := t.TempDir()
	outside := above + "/outside"
	must(t, os.Mkdir(outside, 0o755))
	put(t, outside+"/keep", "x")
	tree := dir + "/tree"
	must(t, os.Mkdir(tree, 0o755))
	must(t, os.Symlink(outside, tree+"/link"))
	must(t, os.Symlink(above, tree+"/abovelink"))
	must(t, unix.Mkfifo(tree+"/fifo", 0))
	must(t, os.Mkdir(tree+"/closed", 0))
	for i := range 1500 {
		put(t, tree+"/f"+strings.Repeat("x", i%7)+string(rune('a'+i%26))+time.Duration(i).String(), "")
	}
	// A chain that no path can name and that holds more levels than descriptors.
	fd, err := unix.Open(tree, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	for range 5000 {
		must(t, unix.Mkdirat(fd, "deeper", 0o700))
		next, err := unix.Openat(fd, "deeper", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	seq, err := f.List(ctx, tree, 1<<30)
	must(t, err)
	var last error
	for _, err := range seq {
		last = err
	}
	want(t, last, sandbox.ErrPathRejected) // says so rather than leaving out
	must(t, f.RemoveAll(ctx, tree))
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	if got := get(t, outside+"/keep"); got != "x" {
		t.Error("the removal followed a link")
	}
}

func TestListSearch(t *testing.T) {
	f, dir := setup(t)
	ctx := t.Context()
	for _, d := range []string{"/a/b/c", "/a.d", "/z"} {
		must(t, os.MkdirAll(dir+d, 0o755))
	}
	for _, p := range []string{"/a/x.go", "/a/b/.hidden.go", "/a/b/c/\xff.go", "/B.go", "/[x].txt", "/a.d/y.TXT"} {
		put(t, dir+p, "")
	}
	must(t, os.Symlink("a", dir+"/link"))
	must(t, os.Symlink("/target\xfe", dir+"/z/l.go"))
	all := func(paths ...string) []string {
		for i := range paths {
			paths[i] = dir + paths[i]
		}
		return paths
	}
	check := func(want []string) func(seq iter.Seq2[sandbox.FileInfo, error], err error) {
		t.Helper()
		return func(seq iter.Seq2[sandbox.FileInfo, error], err error) {
			t.Helper()
			for range 2 { // a sequence can be ranged over again
				if diff := cmp.Diff(want, collect(t, seq, err)); diff != "" {
					t.Error(diff)
				}
			}
		}
	}
	check([]string{})(f.List(ctx, dir, 0))
	check(all("/B.go", "/[x].txt", "/a", "/a.d", "/link", "/z"))(f.List(ctx, dir+"/", 1))
	check(all("/B.go", "/[x].txt", "/a", "/a/b", "/a/x.go", "/a.d", "/a.d/y.TXT", "/link", "/z", "/z/l.go"))(f.List(ctx, dir, 2))
	check(all("/a/b/c/\xff.go"))(f.List(ctx, dir+"/a/b/c", 5))
	check(all("/link/b", "/link/x.go"))(f.List(ctx, dir+"/link", 1))
	check(all("/B.go", "/a/b/.hidden.go", "/a/b/c/\xff.go", "/a/x.go", "/z/l.go"))(f.Search(ctx, dir, "*.go"))
	check(all("/a/b/c/\xff.go"))(f.Search(ctx, dir, "\xff*"))
	check([]string{})(f.Search(ctx, dir, "\xfe*"))
	check(all("/B.go", "/a/x.go", "/a.d/y.TXT"))(f.Search(ctx, dir, "{[Bx].go,*.TXT}"))
	check(all("/[x].txt"))(f.Search(ctx, dir, `\[x\].???`))
	check([]string{})(f.Search(ctx, dir, "b/*"))
	g := f.Beneath(dir).Beneath(dir + "/a")
	check(all("/a/b", "/a/x.go"))(g.List(ctx, dir+"/a", 1))
	info, err := f.Stat(ctx, dir+"/z/l.go")
	if err != nil || info.Target != "/target\xfe" {
		t.Errorf("target %q, %v", info.Target, err)
	}
	for _, pattern := range []string{"", "[", "{a", strings.Repeat("{a,b}", 20), strings.Repeat("a", 2000)} {
		_, err := f.Search(ctx, dir, pattern)
		want(t, err, sandbox.ErrPathRejected)
	}
	_, err = f.List(ctx, dir+"/B.go", 1)
	want(t, err, sandbox.ErrPathRejected, syscall.ENOTDIR)
	_, err = f.List(ctx, dir+"/missing", 1)
	want(t, err, sandbox.ErrPathNotFound)
	_, err = f.List(ctx, dir, -1)
	want(t, err, sandbox.ErrPathRejected)
}
