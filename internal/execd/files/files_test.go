package files_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
	"github.com/astrabox/astrabox/test/machine"
)

// The paths of these tests are hostile, and they may run as root.
func TestMain(m *testing.M) {
	machine.ReadOnly()
	serveIfAsked()
	goleak.VerifyTestMain(m)
}

// daemon serves the file service as execd does, and gives its address.
func daemon(t testing.TB, c files.Config) *httptest.Server {
	t.Helper()
	return daemonOf(t, files.New(c))
}

func daemonOf(t testing.TB, service http.Handler, features ...string) *httptest.Server {
	t.Helper()
	if features == nil {
		features = files.Features()
	}
	mux := http.NewServeMux()
	mux.Handle("/", service)
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(wire.Version{Server: wire.ServerName, Features: features})
	})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(wire.HeaderServer, wire.ServerName+"/test")
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(srv.Close)
	return srv
}

func face(t testing.TB, srv *httptest.Server) sandbox.Files {
	t.Helper()
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	t.Cleanup(client.CloseIdleConnections)
	return execd.Files(execd.Dial(execd.Fixed(sandbox.Endpoint{URL: u}), client))
}

const (
	passwd = "root:x:0:0::/root:/bin/sh\n# x:1\nalice:x:1501:1501::/:/bin/sh\nalice2:x:1501:7::/:\nbad:x:y:\n1777:x:1502:1::/:\n"
	group  = "root:x:0:\nalice:x:1501:\nstaff:x:1600:alice\n"
)

// setup gives a face on a daemon that knows two accounts, and a directory.
func setup(t testing.TB) (sandbox.Files, string) {
	t.Helper()
	etc := t.TempDir()
	put(t, etc+"/passwd", passwd)
	put(t, etc+"/group", group)
	return face(t, daemon(t, files.Config{Accounts: account.New(etc+"/passwd", etc+"/group")})), t.TempDir()
}

func put(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// names lists a directory of the host.
func names(t testing.TB, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	out := []string{}
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

func collect(t testing.TB, seq iter.Seq2[sandbox.FileInfo, error], err error) []string {
	t.Helper()
	must(t, err)
	out := []string{}
	for info, err := range seq {
		must(t, err)
		out = append(out, info.Path)
	}
	return out
}

// want checks an error's class, and its cause where one is given.
func want(t testing.TB, err error, targets ...error) {
	t.Helper()
	var pe *sandbox.PathError
	if !errors.As(err, &pe) {
		t.Errorf("error is %v, not a PathError", err)
		return
	}
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("error is %v, want one that is %v", err, target)
		}
	}
}

func TestWriteStatOpen(t *testing.T) {
	f, dir := setup(t)
	ctx := t.Context()
	for _, name := range []string{"plain", "a b", "$HOME", "~", "~root", "p%41%2e", "q?x=1&path=%2Fetc#f;y", "new\nline", "-rf", `back\slash`, "ünï", "bad\xff\xfe.bin", "*", "\"'`", "..."} {
		t.Run(name, func(t *testing.T) {
			path := dir + "/" + name
			content := "content of " + name
			must(t, f.Write(ctx, path, strings.NewReader(content), sandbox.WriteOptions{}))
			if got := get(t, path); got != content {
				t.Errorf("the file holds %q", got)
			}
			info, err := f.Stat(ctx, path)
			must(t, err)
			if info.Version == "" || info.ModTime.IsZero() {
				t.Errorf("no version or time: %+v", info)
			}
			info.Version, info.ModTime = "", time.Time{}
			if diff := cmp.Diff(sandbox.FileInfo{Path: path, Size: int64(len(content)), Mode: 0o644, Owner: "root", Group: "root"}, info); diff != "" {
				t.Error(diff)
			}
			r, err := f.Open(ctx, path, 0, -1)
			must(t, err)
			defer r.Close()
			b, err := io.ReadAll(r)
			if string(b) != content || err != nil {
				t.Errorf("read %q, %v", b, err)
			}
		})
	}
	if got := len(names(t, dir)); got != 15 {
		t.Errorf("%d files were made", got)
	}
}

func TestOpenRanges(t *testing.T) {
	f, dir := setup(t)
	put(t, dir+"/f", "0123456789")
	put(t, dir+"/empty", "")
	for _, tt := range []struct {
		path           string
		offset, length int64
		want           string
	}{
		{"/f", 0, -1, "0123456789"}, {"/f", 3, -1, "3456789"}, {"/f", 3, 4, "3456"}, {"/f", 8, 100, "89"},
		{"/f", 10, -1, ""}, {"/f", 11, 5, ""}, {"/f", 0, 0, ""}, {"/f", 1, 1<<63 - 1, "123456789"}, {"/f", 9, 1, "9"},
		{"/empty", 0, -1, ""}, {"/empty", 5, -1, ""}, {"/empty", 0, 10, ""},
	} {
		r, err := f.Open(t.Context(), dir+tt.path, tt.offset, tt.length)
		must(t, err)
		b, err := io.ReadAll(r)
		r.Close()
		if string(b) != tt.want || err != nil {
			t.Errorf("Open(%s, %d, %d) read %q, %v; want %q", tt.path, tt.offset, tt.length, b, err, tt.want)
		}
	}
	_, err := f.Open(t.Context(), dir+"/f", -1, 5)
	want(t, err, sandbox.ErrPathRejected)
	_, err = f.Open(t.Context(), dir+"/missing", 0, 0)
	want(t, err, sandbox.ErrPathNotFound, fs.ErrNotExist)
}

// What isn't a regular file answers at once, and files of /proc have content.
func TestOpenOthers(t *testing.T) {
	f, dir := setup(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	must(t, os.Symlink("fifo", dir+"/tofifo"))
	must(t, os.Symlink("loop", dir+"/loop"))
	l, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	must(t, err)
	defer syscall.Close(l)
	must(t, syscall.Bind(l, &syscall.SockaddrUnix{Name: dir + "/sock"}))
	for path, cause := range map[string]error{
		dir: syscall.EISDIR, dir + "/fifo": syscall.ENODEV, dir + "/tofifo": syscall.ENODEV, dir + "/sock": syscall.ENODEV,
		"/dev/zero": syscall.ENODEV, dir + "/loop": syscall.EINVAL, "/proc/self/status/x": syscall.ENOTDIR,
	} {
		_, err := f.Open(ctx, path, 0, -1)
		want(t, err, sandbox.ErrPathRejected, cause)
		if path != dir {
			err = f.Write(ctx, path, strings.NewReader("x"), sandbox.WriteOptions{})
			want(t, err, sandbox.ErrPathRejected)
		}
	}
	want(t, f.Write(ctx, dir, strings.NewReader("x"), sandbox.WriteOptions{}), sandbox.ErrPathRejected, syscall.EISDIR)
	want(t, f.Write(ctx, dir+"/f/", strings.NewReader("x"), sandbox.WriteOptions{}), sandbox.ErrPathRejected, syscall.EISDIR)
	info, err := f.Stat(ctx, dir+"/fifo")
	if err != nil || info.Mode.Type() != fs.ModeNamedPipe {
		t.Errorf("Stat of a FIFO: %v, %v", info.Mode, err)
	}
	for _, path := range []string{"/proc/version", "/proc/self/status", "/proc/meminfo", "/sys/kernel/mm/transparent_hugepage/enabled"} {
		r, err := f.Open(ctx, path, 0, -1)
		must(t, err)
		b, err := io.ReadAll(r)
		r.Close()
		if len(b) == 0 || err != nil {
			t.Errorf("%s: read %q, %v", path, b, err)
		}
	}
	whole := get(t, "/proc/version")
	r, err := f.Open(ctx, "/proc/version", 6, 7)
	must(t, err)
	defer r.Close()
	if b, err := io.ReadAll(r); string(b) != whole[6:13] || err != nil {
		t.Errorf("part of a /proc file: %q, %v", b, err)
	}
}

func TestWriteAttr(t *testing.T) {
	mode := sandbox.Mode
	for _, tt := range []struct {
		name         string
		before       string // "mode:uid:gid" of an existing file
		o            sandbox.Attr
		mode         fs.FileMode
		owner, group string
	}{
		{name: "new", mode: 0o644, owner: "root", group: "root"},
		{name: "new secret", o: sandbox.Attr{Mode: mode(0o600), Owner: "alice"}, mode: 0o600, owner: "alice", group: "root"},
		{name: "mode 0", o: sandbox.Attr{Mode: mode(0)}, mode: 0, owner: "root", group: "root"},
		{name: "special", o: sandbox.Attr{Mode: mode(0o755 | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky), Owner: "alice", Group: "staff"},
			mode: 0o755 | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky, owner: "alice", group: "staff"},
		{name: "kept", before: "2640:1501:1600", mode: 0o640 | fs.ModeSetgid, owner: "alice", group: "staff"},
		{name: "mode only", before: "640:1501:1600", o: sandbox.Attr{Mode: mode(0o600)}, mode: 0o600, owner: "alice", group: "staff"},
		{name: "owner drops setuid", before: "4755:1501:1600", o: sandbox.Attr{Owner: "root"}, mode: 0o755, owner: "root", group: "staff"},
		{name: "number without a name", o: sandbox.Attr{Owner: "4242", Group: "4243"}, mode: 0o644, owner: "4242", group: "4243"},
		{name: "a name of digits", o: sandbox.Attr{Owner: "1777"}, mode: 0o644, owner: "1777", group: "root"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, dir := setup(t)
			path := dir + "/f"
			if tt.before != "" {
				put(t, path, "old")
				var m uint32
				var uid, gid int
				parse(t, tt.before, &m, &uid, &gid)
				must(t, os.Chown(path, uid, gid))
				must(t, unix.Chmod(path, m))
			}
			must(t, f.Write(t.Context(), path, strings.NewReader("new"), sandbox.WriteOptions{Attr: tt.o}))
			info, err := f.Stat(t.Context(), path)
			must(t, err)
			if info.Mode != tt.mode || info.Owner != tt.owner || info.Group != tt.group || get(t, path) != "new" {
				t.Errorf("got %v %s:%s, want %v %s:%s", info.Mode, info.Owner, info.Group, tt.mode, tt.owner, tt.group)
			}
			if got := names(t, dir); len(got) != 1 {
				t.Errorf("left beside the file: %v", got)
			}
		})
	}
}

func TestRefusalsLeaveTheFile(t *testing.T) {
	f, dir := setup(t)
	ctx := t.Context()
	path := dir + "/f"
	put(t, path, "old")
	before, err := f.Stat(ctx, path)
	must(t, err)
	write := func(o sandbox.WriteOptions) error { return f.Write(ctx, path, strings.NewReader("new"), o) }
	want(t, write(sandbox.WriteOptions{Attr: sandbox.Attr{Owner: "nobody-here"}}), sandbox.ErrPathRejected)
	want(t, write(sandbox.WriteOptions{Attr: sandbox.Attr{Group: "nobody-here"}}), sandbox.ErrPathRejected)
	want(t, write(sandbox.WriteOptions{Attr: sandbox.Attr{Owner: "4294967295"}}), sandbox.ErrPathRejected)
	want(t, write(sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o4755)}}), sandbox.ErrPathRejected)
	want(t, write(sandbox.WriteOptions{NoReplace: true}), sandbox.ErrPathRejected, fs.ErrExist)
	want(t, write(sandbox.WriteOptions{IfUnchanged: "other"}), sandbox.ErrPathRejected, sandbox.ErrChanged)
	want(t, f.Write(ctx, dir+"/missing/f", strings.NewReader("x"), sandbox.WriteOptions{}), sandbox.ErrPathNotFound)
	want(t, f.Write(ctx, path+"/f", strings.NewReader("x"), sandbox.WriteOptions{}), sandbox.ErrPathRejected, syscall.ENOTDIR)
	want(t, f.Write(ctx, dir+"/gone", strings.NewReader("x"), sandbox.WriteOptions{IfUnchanged: before.Version}), sandbox.ErrChanged)
	want(t, f.SetAttr(ctx, path, sandbox.Attr{Mode: sandbox.Mode(0), Owner: "nobody-here"}), sandbox.ErrPathRejected)
	for _, bad := range []string{"", "relative", "./x", "~/x", "$HOME/x", "/nul\x00x", "/" + strings.Repeat("x/", 2048)} {
		want(t, f.Write(ctx, bad, strings.NewReader("x"), sandbox.WriteOptions{}), sandbox.ErrPathRejected)
		_, err := f.Stat(ctx, bad)
		want(t, err, sandbox.ErrPathRejected)
		want(t, f.Remove(ctx, path, bad), sandbox.ErrPathRejected)
	}
	want(t, f.Write(ctx, dir+"/"+strings.Repeat("n", 256), strings.NewReader("x"), sandbox.WriteOptions{}), sandbox.ErrPathRejected)
	after, err := f.Stat(ctx, path)
	must(t, err)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
	must(t, write(sandbox.WriteOptions{IfUnchanged: before.Version}))
	want(t, write(sandbox.WriteOptions{IfUnchanged: before.Version}), sandbox.ErrChanged)
	must(t, f.Write(ctx, dir+"/new", strings.NewReader("x"), sandbox.WriteOptions{NoReplace: true}))
}

// A link is followed to the file that it names, as with open(2); it stays a link.
func TestWriteThroughLinks(t *testing.T) {
	f, dir := setup(t)
	ctx := t.Context()
	must(t, os.Mkdir(dir+"/sub", 0o755))
	put(t, dir+"/sub/real", "old")
	must(t, os.Symlink("sub/real", dir+"/rel"))
	must(t, os.Symlink(dir+"/rel", dir+"/abs"))
	must(t, os.Symlink("sub/../sub/fresh", dir+"/dangling"))
	for _, g := range []sandbox.Files{f, f.Beneath(dir)} {
		for link, file := range map[string]string{"rel": "real", "abs": "real", "dangling": "fresh"} {
			must(t, g.Write(ctx, dir+"/"+link, strings.NewReader(link), sandbox.WriteOptions{}))
			if got := get(t, dir+"/sub/"+file); got != link {
				t.Errorf("through %s: %q", link, got)
			}
			info, err := g.Stat(ctx, dir+"/"+link)
			if err != nil || info.Mode.Type() != fs.ModeSymlink || info.Target == "" {
				t.Errorf("%s is %v, %v", link, info, err)
			}
			want(t, g.Write(ctx, dir+"/"+link, strings.NewReader("x"), sandbox.WriteOptions{NoReplace: true}), fs.ErrExist)
		}
		must(t, os.Remove(dir+"/sub/fresh"))
		want(t, g.Write(ctx, dir+"/dangling", strings.NewReader("x"), sandbox.WriteOptions{NoReplace: true}), fs.ErrExist)
	}
	must(t, os.Symlink("sub", dir+"/todir"))
	want(t, f.Write(ctx, dir+"/todir", strings.NewReader("x"), sandbox.WriteOptions{}), syscall.EISDIR)
}

func TestSetAttr(t *testing.T) {
	f, dir := setup(t)
	ctx := t.Context()
	put(t, dir+"/f", "x")
	must(t, os.Symlink("f", dir+"/link"))
	must(t, os.Symlink("nowhere", dir+"/dangling"))
	must(t, f.SetAttr(ctx, dir+"/link", sandbox.Attr{Mode: sandbox.Mode(0o711 | fs.ModeSetuid), Owner: "alice", Group: "staff"}))
	info, err := f.Stat(ctx, dir+"/f")
	if err != nil || info.Mode != 0o711|fs.ModeSetuid || info.Owner != "alice" || info.Group != "staff" {
		t.Errorf("got %v, %v", info, err)
	}
	must(t, f.SetAttr(ctx, dir, sandbox.Attr{Mode: sandbox.Mode(0o777 | fs.ModeSticky)}))
	if info, err = f.Stat(ctx, dir); err != nil || info.Mode != fs.ModeDir|fs.ModeSticky|0o777 {
		t.Errorf("got %v, %v", info, err)
	}
	want(t, f.SetAttr(ctx, dir+"/dangling", sandbox.Attr{Mode: sandbox.Mode(0)}), sandbox.ErrPathNotFound)
	must(t, f.SetAttr(ctx, dir+"/f", sandbox.Attr{}))
}

func TestMakeDir(t *testing.T) {
	f, dir := setup(t)
	ctx := t.Context()
	must(t, f.MakeDir(ctx, dir+"/a", sandbox.DirOptions{}))
	want(t, f.MakeDir(ctx, dir+"/a", sandbox.DirOptions{}), sandbox.ErrPathRejected, fs.ErrExist)
	want(t, f.MakeDir(ctx, dir+"/x/y", sandbox.DirOptions{}), sandbox.ErrPathNotFound)
	o := sandbox.DirOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o750 | fs.ModeSetgid), Owner: "alice", Group: "staff"}, Parents: true}
	must(t, f.MakeDir(ctx, dir+"/a/b/c/", o))
	must(t, f.MakeDir(ctx, dir+"/a/b/c", sandbox.DirOptions{Parents: true}))
	must(t, f.Beneath(dir).MakeDir(ctx, dir+"/a/b/c/d", o))
	must(t, f.Beneath(dir).MakeDir(ctx, dir, o))
	put(t, dir+"/file", "x")
	want(t, f.MakeDir(ctx, dir+"/file", sandbox.DirOptions{Parents: true}), sandbox.ErrPathRejected)
	want(t, f.MakeDir(ctx, dir+"/file/x", sandbox.DirOptions{Parents: true}), sandbox.ErrPathRejected)
	want(t, f.MakeDir(ctx, dir+"/p/q", sandbox.DirOptions{Parents: true, Attr: sandbox.Attr{Owner: "nobody-here"}}), sandbox.ErrPathRejected)
	seq, err := f.List(ctx, dir, 9)
	must(t, err)
	var got []string
	for info, err := range seq {
		must(t, err)
		got = append(got, strings.TrimPrefix(info.Path, dir)+" "+info.Mode.String()+" "+info.Owner+":"+info.Group)
	}
	if diff := cmp.Diff([]string{"/a drwxr-xr-x root:root", "/a/b dgrwxr-x--- alice:staff", "/a/b/c dgrwxr-x--- alice:staff", "/a/b/c/d dgrwxr-x--- alice:staff", "/file -rw-r--r-- root:root"}, got); diff != "" {
		t.Error(diff)
	}
}

// Account files are read from the sandbox as they are now.
func TestAccountsChange(t *testing.T) {
	etc, dir := t.TempDir(), t.TempDir()
	f := face(t, daemon(t, files.Config{Accounts: account.New(etc+"/passwd", etc+"/group")}))
	put(t, dir+"/f", "x")
	info, err := f.Stat(t.Context(), dir+"/f")
	if err != nil || info.Owner != "0" || info.Group != "0" {
		t.Errorf("without account files: %v, %v", info, err)
	}
	put(t, etc+"/passwd", "root:x:0:0::/:\nbob:x:1700:1700::/:\n")
	must(t, f.SetAttr(t.Context(), dir+"/f", sandbox.Attr{Owner: "bob"}))
	if info, err = f.Stat(t.Context(), dir+"/f"); err != nil || info.Owner != "bob" {
		t.Errorf("after it was made: %v, %v", info, err)
	}
}

// parse reads "mode:uid:gid".
func parse(t testing.TB, s string, mode *uint32, uid, gid *int) {
	t.Helper()
	if _, err := fmt.Sscanf(s, "%o:%d:%d", mode, uid, gid); err != nil {
		t.Fatal(err)
	}
}

// The error of a rename names the path that it is about.
func TestRenameNamesThePath(t *testing.T) {
	f, dir := setup(t)
	put(t, dir+"/file", "x")
	for _, c := range []struct{ from, to, about string }{
		{"/none", "/new", "/none"},
		{"/none/x", "/new", "/none/x"},
		{"/file", "/none/x", "/none/x"},
		{"/file", "/file/x", "/file/x"},
	} {
		err := f.Rename(t.Context(), dir+c.from, dir+c.to)
		var pe *sandbox.PathError
		if !errors.As(err, &pe) || pe.Path != dir+c.about {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		}
	}
}

// A slash at the end asks for a directory: a file isn't meant.
func TestSlashMeansADirectory(t *testing.T) {
	f, dir := setup(t)
	put(t, dir+"/file", "x")
	must(t, os.Symlink("file", dir+"/link"))
	for _, name := range []string{"/file/", "/link/"} {
		for op, err := range map[string]error{
			"remove":    f.Remove(t.Context(), dir+name),
			"removeall": f.RemoveAll(t.Context(), dir+name),
			"rename":    f.Rename(t.Context(), dir+name, dir+"/new"),
			"write":     f.Write(t.Context(), dir+name, strings.NewReader("y"), sandbox.WriteOptions{}),
		} {
			if !errors.Is(err, sandbox.ErrPathRejected) {
				t.Errorf("%s %s: %v", op, name, err)
			}
		}
	}
	if got := names(t, dir); len(got) != 2 || get(t, dir+"/file") != "x" {
		t.Errorf("there is %v", got)
	}
	must(t, os.Mkdir(dir+"/d", 0o755))
	must(t, f.Remove(t.Context(), dir+"/d/"))
}
