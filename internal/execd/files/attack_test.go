package files_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/test/machine"
)

// confined makes a root with the links that an attacker would make, and a
// secret outside that nothing may reach. The links that would lead to the
// machine's own root or working directory, by a path and through /proc, lead to
// the test's directory instead: this must be safe while confinement is broken.
func confined(t testing.TB) (f sandbox.Files, root, outside string) {
	t.Helper()
	f, dir := setup(t)
	root, outside = dir+"/root", dir+"/root-outside" // the root's name is a prefix of it
	must(t, os.MkdirAll(root+"/in/deep", 0o755))
	must(t, os.Mkdir(outside, 0o755))
	put(t, outside+"/secret", "secret")
	put(t, root+"/in/file", "inside")
	must(t, os.Mkdir(dir+"/etc", 0o755))
	put(t, dir+"/etc/passwd", "secret")
	d, err := os.Open(dir)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	t.Chdir(dir)
	for link, target := range map[string]string{
		"absfile": outside + "/secret", "absdir": outside, "reldir": "../root-outside", "slash": dir, "chain": "in/chain2",
		"in/chain2": "../reldir", "proc": fmt.Sprint("/proc/self/fd/", d.Fd()), "cwd": "/proc/self/cwd", "loop": "loop2", "loop2": "loop",
		"dangling": outside + "/fresh", "in/up": "../..", "prefix": root + "-outside", "dots": root + "/../root-outside",
		"okabs": root + "/in/file", "okabsdir": root + "/in", "okrel": "in/../in/file", "okroot": root,
	} {
		must(t, os.Symlink(target, root+"/"+link))
	}
	return f.Beneath(root), root, outside
}

var escapes = []string{
	"/../root-outside/secret", "/in/../../root-outside/secret", "/absfile", "/absdir/secret", "/reldir/secret", "/slash/etc/passwd",
	"/chain/secret", "/in/up/root-outside/secret", "/prefix/secret", "/dots/secret", "-outside/secret", "/proc/etc/passwd", "/cwd/etc/passwd", "/okroot/reldir/secret",
}

func TestConfinement(t *testing.T) {
	f, root, outside := confined(t)
	ctx := t.Context()
	before, err := os.Stat(outside)
	must(t, err)
	for _, p := range append(escapes, "/dangling", "/loop") {
		path := root + p
		t.Run(p, func(t *testing.T) {
			if r, err := f.Open(ctx, path, 0, -1); err == nil {
				b, _ := io.ReadAll(r)
				t.Errorf("read %q", b)
			} else {
				want(t, err, sandbox.ErrPathRejected)
			}
			final := !strings.Contains(strings.TrimPrefix(p, "/"), "/") && p[0] == '/'
			if _, err := f.Stat(ctx, path); err == nil != final { // a link itself may be looked at
				t.Errorf("Stat: %v", err)
			}
			want(t, f.Write(ctx, path, strings.NewReader("x"), sandbox.WriteOptions{}), sandbox.ErrPathRejected)
			want(t, f.SetAttr(ctx, path, sandbox.Attr{Mode: sandbox.Mode(0o777)}), sandbox.ErrPathRejected)
			want(t, f.MakeDir(ctx, path+"/d", sandbox.DirOptions{Parents: true}), sandbox.ErrPathRejected)
			_, err := f.List(ctx, path, 1)
			want(t, err, sandbox.ErrPathRejected)
			_, err = f.Search(ctx, path, "*")
			want(t, err, sandbox.ErrPathRejected)
			if !final {
				want(t, f.Write(ctx, path+"2", strings.NewReader("x"), sandbox.WriteOptions{NoReplace: true}), sandbox.ErrPathRejected)
				want(t, f.Rename(ctx, path, root+"/stolen"), sandbox.ErrPathRejected)
				want(t, f.Rename(ctx, root+"/in/file", path), sandbox.ErrPathRejected)
				want(t, f.Remove(ctx, path), sandbox.ErrPathRejected)
				want(t, f.RemoveAll(ctx, path), sandbox.ErrPathRejected)
			}
		})
	}
	for _, path := range []string{"/etc/passwd", outside + "/secret", "/", "/root"} { // looks only
		_, err := f.Stat(ctx, path)
		want(t, err, sandbox.ErrPathRejected, fs.ErrPermission)
	}
	for _, p := range []string{"/okabs", "/okabsdir/file", "/okrel", "/okroot/okabs", "/in/deep/../file", "/in//file", "/./in/./file", "/in/deep/../../okabsdir/../okrel"} {
		r, err := f.Open(ctx, root+p, 0, -1)
		if err != nil {
			t.Errorf("%s: %v", p, err)
			continue
		}
		b, err := io.ReadAll(r)
		r.Close()
		if string(b) != "inside" || err != nil {
			t.Errorf("%s: %q, %v", p, b, err)
		}
	}
	seq, err := f.Search(ctx, root, "secret")
	if got := collect(t, seq, err); len(got) != 0 {
		t.Errorf("the search left the root: %v", got)
	}
	// A root inside a root is looked up below it.
	for _, second := range []string{root + "/absdir", root + "/in/up", root + "/../root-outside", "/etc"} {
		_, err := f.Beneath(second).Stat(ctx, second+"/secret")
		want(t, err, sandbox.ErrPathRejected)
	}
	must(t, f.RemoveAll(ctx, root+"/absdir")) // the link
	after, err := os.Stat(outside)
	must(t, err)
	if got := names(t, outside); !slices.Equal(got, []string{"secret"}) || get(t, outside+"/secret") != "secret" || before.Mode() != after.Mode() {
		t.Errorf("the outside was changed: %v", got)
	}
	if got := names(t, root+"/../etc"); !slices.Equal(got, []string{"passwd"}) || get(t, root+"/../etc/passwd") != "secret" {
		t.Errorf("what stands for the machine was changed: %v", got)
	}
}

// While a directory is swapped with a link to the outside as fast as possible,
// no operation gets there.
func TestConfinementRaces(t *testing.T) {
	f, root, outside := confined(t)
	must(t, os.Mkdir(root+"/flip", 0o755))
	put(t, root+"/flip/secret", "inside")
	must(t, os.Symlink(outside, root+"/flop"))
	put(t, root+"/flat", "inside")
	must(t, os.Symlink(outside+"/secret", root+"/flink"))
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	var wg sync.WaitGroup
	var swaps atomic.Int64
	wg.Go(func() {
		for ctx.Err() == nil {
			unix.Renameat2(unix.AT_FDCWD, root+"/flip", unix.AT_FDCWD, root+"/flop", unix.RENAME_EXCHANGE)
			unix.Renameat2(unix.AT_FDCWD, root+"/flat", unix.AT_FDCWD, root+"/flink", unix.RENAME_EXCHANGE)
			swaps.Add(1)
		}
	})
	var done, refused [7]atomic.Int64
	count := func(i int, err error) {
		if err == nil {
			done[i].Add(1)
		} else if errors.Is(err, sandbox.ErrPathRejected) {
			refused[i].Add(1)
		}
	}
	for i, op := range []func() error{
		func() error {
			for _, p := range []string{"/flip/secret", "/flat"} {
				r, err := f.Open(ctx, root+p, 0, -1)
				if err != nil {
					return err
				}
				b, err := io.ReadAll(r)
				r.Close()
				if strings.Contains(string(b), "secret") {
					t.Error("read the secret")
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
		func() error {
			return f.Write(ctx, root+"/flip/secret", strings.NewReader("inside"), sandbox.WriteOptions{})
		},
		func() error { return f.Write(ctx, root+"/flat", strings.NewReader("inside"), sandbox.WriteOptions{}) },
		func() error {
			return f.SetAttr(ctx, root+"/flip/secret", sandbox.Attr{Mode: sandbox.Mode(0o600), Owner: "alice"})
		},
		func() error { return f.MakeDir(ctx, root+"/flip/d", sandbox.DirOptions{Parents: true}) },
		func() error { return f.RemoveAll(ctx, root+"/flip/d") },
		func() error {
			_, err := f.Stat(ctx, root+"/flip/secret")
			return err
		},
	} {
		wg.Go(func() {
			for ctx.Err() == nil {
				count(i, op())
			}
		})
	}
	wg.Wait()
	if got := names(t, outside); !slices.Equal(got, []string{"secret"}) || get(t, outside+"/secret") != "secret" {
		t.Errorf("the outside was changed: %v", got)
	}
	var st unix.Stat_t
	must(t, unix.Stat(outside+"/secret", &st))
	if st.Uid != 0 || st.Mode&0o777 != 0o644 {
		t.Errorf("the secret's owner or bits were changed: %d %o", st.Uid, st.Mode)
	}
	t.Logf("%d swaps", swaps.Load())
	for i := range done {
		if done[i].Load() == 0 {
			t.Errorf("operation %d never succeeded, so the race was not tried (refused %d times)", i, refused[i].Load())
		}
	}
	// The flipping can leave at most the links and directories that were there.
	for _, name := range names(t, root) {
		if strings.HasPrefix(name, ".astrabox") {
			t.Errorf("left behind: %s", name)
		}
	}
}

// An upload that ends early changes nothing, however the end shows.
func TestCutOffUploads(t *testing.T) {
	dir := t.TempDir()
	srv := daemon(t, files.Config{})
	put(t, dir+"/f", "old")
	const head = "PUT /v1/fs/content?path=%s HTTP/1.1\r\nHost: x\r\n"
	q := url.QueryEscape(dir + "/f")
	for name, request := range map[string]string{
		"short":              fmt.Sprintf(head, q) + "Content-Length: 100\r\n\r\nonly this",
		"chunked, no end":    fmt.Sprintf(head, q) + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"chunked, mid-chunk": fmt.Sprintf(head, q) + "Transfer-Encoding: chunked\r\n\r\n500\r\nhello",
		"chunked, half end":  fmt.Sprintf(head, q) + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
		"chunked, bad size":  fmt.Sprintf(head, q) + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", strings.TrimPrefix(srv.URL, "http://"))
			must(t, err)
			defer c.Close()
			_, err = io.WriteString(c, request)
			must(t, err)
			must(t, c.(*net.TCPConn).CloseWrite())
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			must(t, err)
			b, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), "INCOMPLETE_BODY") {
				t.Errorf("answered %d %s", resp.StatusCode, b)
			}
			if got := get(t, dir+"/f"); got != "old" || len(names(t, dir)) != 1 {
				t.Errorf("the file holds %q, beside it %v", got, names(t, dir))
			}
		})
	}
}

// failing gives some content and then an error.
type failing struct {
	left int
	err  error
}

func (f *failing) Read(p []byte) (int, error) {
	if f.left <= 0 {
		return 0, f.err
	}
	n := min(len(p), f.left)
	f.left -= n
	return n, nil
}

func TestSourceFails(t *testing.T) {
	f, dir := setup(t)
	put(t, dir+"/f", "old")
	for _, size := range []int{0, 10, 300 << 10} {
		cause := errors.New("the disk of the caller failed")
		err := f.Write(t.Context(), dir+"/f", &failing{size, cause}, sandbox.WriteOptions{})
		want(t, err, sandbox.ErrPathRejected, cause)
		if errors.Is(err, sandbox.ErrUnreachable) {
			t.Errorf("the caller's own failure is taken for the sandbox's: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		err = f.Write(ctx, dir+"/f", io.MultiReader(&failing{size, io.EOF}, cancelling{cancel}), sandbox.WriteOptions{})
		want(t, err, context.Canceled)
	}
	if got := get(t, dir+"/f"); got != "old" || len(names(t, dir)) != 1 {
		t.Errorf("the file holds %q, beside it %v", got, names(t, dir))
	}
}

type cancelling struct{ cancel func() }

func (c cancelling) Read([]byte) (int, error) {
	c.cancel()
	return 0, errors.New("cancelled")
}

// tmpfs mounts a small file system for the test.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		machine.Missing(t, "no tmpfs can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestNoSpace(t *testing.T) {
	dir := tmpfs(t, "size=1m,nr_inodes=20")
	f, _ := setup(t)
	put(t, dir+"/f", "old")
	free := func() uint64 {
		var st unix.Statfs_t
		must(t, unix.Statfs(dir, &st))
		return st.Bfree
	}
	before := free()
	for _, size := range []int{2 << 20, 64 << 20} {
		for _, r := range []io.Reader{strings.NewReader(strings.Repeat("x", size)), &failing{size, io.EOF}} {
			want(t, f.Write(t.Context(), dir+"/f", r, sandbox.WriteOptions{}), sandbox.ErrPathRejected, syscall.ENOSPC)
			if got := get(t, dir+"/f"); got != "old" || len(names(t, dir)) != 1 {
				t.Errorf("the file holds %q, beside it %v", got, names(t, dir))
			}
		}
	}
	if after := free(); after != before {
		t.Errorf("%d blocks were free, now %d", before, after)
	}
	// What an archive had written by then stays, what didn't fit leaves nothing.
	done, err := unpack(t, f, dir, packed(t, regular("small", "x"), regular("large", strings.Repeat("x", 2<<20))), sandbox.ExtractOptions{})
	want(t, err, sandbox.ErrPathRejected, syscall.ENOSPC)
	if got := names(t, dir); done.Entries != 1 || len(got) != 2 {
		t.Errorf("%d entries, there is %v", done.Entries, got)
	}
	must(t, f.Remove(t.Context(), dir+"/small"))
	want(t, upload(t, f, dir+"/f", strings.Repeat("x", 2<<20), sandbox.WriteOptions{}), sandbox.ErrPathRejected, syscall.ENOSPC)
	if after := free(); after != before || get(t, dir+"/f") != "old" {
		t.Errorf("%d blocks were free, now %d", before, after)
	}
	var full error
	for i := 0; full == nil && i < 30; i++ { // no inode left
		full = f.Write(t.Context(), fmt.Sprint(dir, "/n", i), strings.NewReader(""), sandbox.WriteOptions{})
	}
	want(t, full, sandbox.ErrPathRejected, syscall.ENOSPC)
	want(t, f.MakeDir(t.Context(), dir+"/d", sandbox.DirOptions{}), syscall.ENOSPC)
	want(t, f.Rename(t.Context(), dir+"/f", t.TempDir()+"/x"), syscall.EXDEV)
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	want(t, f.Write(t.Context(), dir+"/f", strings.NewReader(""), sandbox.WriteOptions{}), sandbox.ErrPathRejected, fs.ErrPermission)
	want(t, f.Remove(t.Context(), dir+"/f"), sandbox.ErrPathRejected, fs.ErrPermission)
}
