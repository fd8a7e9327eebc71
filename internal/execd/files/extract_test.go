package files_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
)

type member struct {
	tar.Header
	content string
}

func packed(t testing.TB, members ...member) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, m := range members {
		m.Size = int64(len(m.content))
		if m.Mode == 0 {
			m.Mode = 0o644
		}
		must(t, w.WriteHeader(&m.Header))
		_, err := io.WriteString(w, m.content)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func gzipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	must(t, err)
	must(t, w.Close())
	return out.Bytes()
}

func regular(name, content string) member {
	return member{tar.Header{Typeflag: tar.TypeReg, Name: name}, content}
}

func other(kind byte, name, target string) member {
	return member{tar.Header{Typeflag: kind, Name: name, Linkname: target}, ""}
}

func unpack(t testing.TB, f sandbox.Files, dir string, b []byte, o sandbox.ExtractOptions) (sandbox.Extracted, error) {
	t.Helper()
	return f.(sandbox.Extractor).Extract(t.Context(), dir, struct{ io.Reader }{bytes.NewReader(b)}, o)
}

func TestExtract(t *testing.T) {
	stamp := time.Unix(1_234_567_890, 0)
	f, dir := setup(t)
	to := dir + "/to"
	must(t, os.MkdirAll(to+"/kept", 0o711))
	put(t, dir+"/outside", "old")
	must(t, os.Symlink("../outside", to+"/evil"))
	put(t, to+"/replaced", "old")
	b := packed(t,
		other(tar.TypeDir, "./", ""),
		member{tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o2750}, ""},
		member{tar.Header{Typeflag: tar.TypeReg, Name: "d/f", Mode: 0o640, ModTime: stamp, Uid: 77, Gid: 78, Uname: "root"}, "content"},
		member{tar.Header{Typeflag: tar.TypeReg, Name: "suid", Mode: 0o6755}, "x"},
		member{tar.Header{Typeflag: tar.TypeDir, Name: "kept", Mode: 0o700}, ""},
		regular("deep/er/n\xff", "deep"),
		regular("evil", "replaces the link"),
		regular("replaced", "new"),
		other(tar.TypeLink, "hard", "./d/f"),
		other(tar.TypeLink, "hard", "d/f"),
		other(tar.TypeSymlink, "soft", "/etc/passwd"),
		other(tar.TypeSymlink, "soft", "d/f"),
		other(tar.TypeFifo, "fifo", ""), other(tar.TypeChar, "null", ""), other(tar.TypeBlock, "disk", ""),
	)
	for _, tt := range []struct {
		name  string
		f     sandbox.Files
		b     []byte
		o     sandbox.ExtractOptions
		owner string
	}{
		{"plain", f, b, sandbox.ExtractOptions{}, "0:0"},
		{"gzip", f, gzipped(t, b), sandbox.ExtractOptions{Owner: "alice", Group: "staff"}, "1501:1600"},
		{"beneath", f.Beneath(dir).Beneath(to), b, sandbox.ExtractOptions{Owner: "4242"}, "4242:0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, name := range []string{"d", "deep", "suid", "hard", "soft"} {
				must(t, os.RemoveAll(to+"/"+name))
			}
			done, err := unpack(t, tt.f, to, tt.b, tt.o)
			must(t, err)
			if diff := cmp.Diff(sandbox.Extracted{Entries: 12, Bytes: 32, Skipped: 3}, done); diff != "" {
				t.Error(diff)
			}
			got := shape(t, to)
			for name, line := range got {
				if fields := strings.Fields(line); name != "/d/f" && name != "/hard" && fields[0] != "link" && len(fields) > 2 {
					got[name] = strings.Join(append(fields[:2:2], fields[3:]...), " ") // without the time
				}
			}
			want := map[string]string{
				"/d": "40750 OWNER", "/d/f": "100640 OWNER 1234567890 content", "/hard": "100640 OWNER 1234567890 content", "/suid": "100755 OWNER x",
				"/kept": "40711 0:0", "/deep": "40755 OWNER", "/deep/er": "40755 OWNER", "/deep/er/n\xff": "100644 OWNER deep",
				"/evil": "100644 OWNER replaces the link", "/replaced": "100644 OWNER new", "/soft": "link OWNER d/f",
			}
			for name, line := range want {
				want[name] = strings.ReplaceAll(line, "OWNER", tt.owner)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if got := get(t, dir+"/outside"); got != "old" {
				t.Errorf("the file outside holds %q", got)
			}
		})
	}
}

func TestExtractAttacks(t *testing.T) {
	for _, tt := range []struct {
		name  string
		b     []byte
		o     sandbox.ExtractOptions
		cause error
		path  string // of the entry that is blamed
		wrote int64
	}{
		{name: "dots", b: packed(t, regular("ok", "x"), regular("a/../../x", "x")), cause: sandbox.ErrPathRejected, path: "/a/../../x", wrote: 1},
		{name: "dots inside", b: packed(t, regular("a/../x", "x")), cause: sandbox.ErrPathRejected, path: "/a/../x"},
		{name: "absolute", b: packed(t, regular("/etc/x", "x")), cause: sandbox.ErrPathRejected, path: "//etc/x"},
		{name: "own link", b: packed(t, other(tar.TypeSymlink, "l", ".."), regular("l/x", "x")), cause: syscall.EPERM, path: "/l/x", wrote: 1},
		{name: "own link to a directory", b: packed(t, other(tar.TypeSymlink, "l", "/etc"), other(tar.TypeDir, "l", "")), cause: syscall.EPERM, path: "/l", wrote: 1},
		{name: "own link to a file", b: packed(t, other(tar.TypeSymlink, "l", "../secret"), regular("l", "mine")), wrote: 2},
		{name: "chain of links", b: packed(t, other(tar.TypeSymlink, "a", "."), other(tar.TypeSymlink, "a/b", "..")), cause: syscall.EPERM, path: "/a/b", wrote: 1},
		{name: "link that was there", b: packed(t, regular("out/x", "x")), cause: syscall.EPERM, path: "/out/x"},
		{name: "hard link out", b: packed(t, other(tar.TypeLink, "h", "../secret"), regular("h", "x")), cause: sandbox.ErrPathRejected, path: "/h"},
		{name: "hard link through a link", b: packed(t, other(tar.TypeLink, "h", "out/secret")), cause: syscall.EPERM, path: "/h"},
		{name: "hard link to a link", b: packed(t, other(tar.TypeSymlink, "l", "../secret"), other(tar.TypeLink, "h", "l")), cause: syscall.ENODEV, path: "/h", wrote: 1},
		{name: "hard link to nothing", b: packed(t, other(tar.TypeLink, "h", "missing")), cause: sandbox.ErrPathNotFound, path: "/h"},
		{name: "hard link to a directory", b: packed(t, other(tar.TypeLink, "h", "dir")), cause: syscall.ENODEV, path: "/h"},
		{name: "written through a hard link", b: packed(t, other(tar.TypeLink, "h", "there"), regular("h", "mine")), wrote: 2},
		{name: "through a file", b: packed(t, regular("f", "x"), regular("f/x", "x")), cause: syscall.ENOTDIR, path: "/f/x", wrote: 1},
		{name: "over a directory", b: packed(t, regular("dir", "x")), cause: syscall.EISDIR, path: "/dir"},
		{name: "link over a directory", b: packed(t, other(tar.TypeSymlink, "dir", "x")), cause: sandbox.ErrPathRejected, path: "/dir"},
		{name: "over a fifo", b: packed(t, regular("fifo", "x")), cause: syscall.ENODEV, path: "/fifo"},
		{name: "existing", b: packed(t, regular("there", "x")), o: sandbox.ExtractOptions{NoReplace: true}, cause: fs.ErrExist, path: "/there"},
		{name: "existing link", b: packed(t, other(tar.TypeSymlink, "there", "x")), o: sandbox.ExtractOptions{NoReplace: true}, cause: fs.ErrExist, path: "/there"},
		{name: "existing hard link", b: packed(t, regular("a", "x"), other(tar.TypeLink, "there", "a")), o: sandbox.ExtractOptions{NoReplace: true}, cause: fs.ErrExist, path: "/there", wrote: 1},
		{name: "unknown owner", b: packed(t, regular("a", "x")), o: sandbox.ExtractOptions{Owner: "nobody-here"}, cause: sandbox.ErrPathRejected},
		{name: "long name", b: packed(t, regular(strings.Repeat("n", 256), "x")), cause: sandbox.ErrLimit, path: "/" + strings.Repeat("n", 256)},
		{name: "deep", b: packed(t, regular(strings.Repeat("d/", 70)+"x", "x")), cause: sandbox.ErrLimit, path: "/" + strings.Repeat("d/", 70) + "x"},
		{name: "entries", b: packed(t, regular("1", ""), regular("2", ""), regular("3", "")), o: sandbox.ExtractOptions{MaxEntries: 2}, cause: sandbox.ErrLimit, path: "/3", wrote: 2},
		{name: "bytes", b: packed(t, regular("1", "12345"), regular("2", "123456")), o: sandbox.ExtractOptions{MaxBytes: 10}, cause: sandbox.ErrLimit, path: "/2", wrote: 1},
		{name: "bomb", b: gzipped(t, packed(t, regular("zeros", strings.Repeat("\x00", 80<<20)))), cause: sandbox.ErrLimit, path: "/zeros"},
		{name: "cut in a file", b: packed(t, regular("1", "x"), regular("2", strings.Repeat("x", 5000)))[:4000], cause: io.ErrUnexpectedEOF, path: "/2", wrote: 1},
		{name: "cut between files", b: packed(t, regular("1", "x"), regular("2", "x"))[:1024], cause: io.ErrUnexpectedEOF, wrote: 1},
		{name: "cut gzip", b: gzipped(t, packed(t, regular("1", "x")))[:90], cause: io.ErrUnexpectedEOF, wrote: 1},
		{name: "no tar", b: []byte(strings.Repeat("no tar ", 200)), cause: sandbox.ErrPathRejected},
		{name: "empty", b: nil, cause: io.ErrUnexpectedEOF},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, dir := setup(t)
			to := dir + "/to"
			must(t, os.MkdirAll(to+"/dir/x", 0o755))
			put(t, dir+"/secret", "secret")
			put(t, to+"/there", "old")
			must(t, unix.Mkfifo(to+"/fifo", 0o600))
			must(t, os.Symlink("..", to+"/out"))
			done, err := unpack(t, f, to, tt.b, tt.o)
			if tt.cause == nil {
				must(t, err)
			} else {
				want(t, err, tt.cause)
			}
			var pe *sandbox.PathError
			if errors.As(err, &pe) && tt.path != "" && pe.Path != to+tt.path {
				t.Errorf("%s is blamed: %v", pe.Path, err)
			}
			if done.Entries != tt.wrote {
				t.Errorf("%d entries are said to be written", done.Entries)
			}
			if diff := cmp.Diff([]string{"secret", "to"}, names(t, dir)); diff != "" {
				t.Error(diff)
			}
			if get(t, dir+"/secret") != "secret" || get(t, to+"/there") != "old" {
				t.Error("a file was written through a link")
			}
			must(t, filepath.WalkDir(to, func(p string, _ fs.DirEntry, err error) error {
				if strings.Contains(p, ".astrabox-") {
					t.Errorf("left behind: %s", p)
				}
				return err
			}))
		})
	}
}

// A program of the sandbox swaps directories for links while an archive is
// unpacked. Nothing gets out, and nothing but the archive's content gets in.
func TestExtractRaces(t *testing.T) {
	f, dir := setup(t)
	to, out := dir+"/to", dir+"/out"
	must(t, os.MkdirAll(to, 0o755))
	must(t, os.MkdirAll(out+"/sub", 0o755))
	var members []member
	for i := range 40 {
		members = append(members, regular(fmt.Sprint("d/sub/f", i), "content"), other(tar.TypeSymlink, fmt.Sprint("d/sub/l", i), "x"), other(tar.TypeDir, fmt.Sprint("d/sub/d", i), ""))
	}
	b := packed(t, members...)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; !stop.Load(); i++ {
			os.Rename(to+"/d", fmt.Sprint(to, "/was", i%3))
			os.Symlink(out, to+"/d")
			os.Remove(to + "/d")
			os.Rename(to+"/d/sub", to+"/d/gone")
			os.Symlink("../../out/sub", to+"/d/sub")
			os.Remove(to + "/d/sub")
			os.RemoveAll(fmt.Sprint(to, "/was", i%3))
		}
	}()
	wrote := int64(0)
	for start := time.Now(); time.Since(start) < raceTime; {
		done, err := unpack(t, f, to, b, sandbox.ExtractOptions{Owner: "alice"})
		wrote += done.Entries
		if err != nil && !errors.Is(err, sandbox.ErrPathRejected) && !errors.Is(err, sandbox.ErrPathNotFound) {
			t.Errorf("error is %v", err)
		}
	}
	stop.Store(true)
	<-done
	if wrote == 0 {
		t.Error("nothing was unpacked at all")
	}
	if list := append(names(t, out), names(t, out+"/sub")...); len(list) != 1 {
		t.Errorf("outside there is %v", list)
	}
}

// The same for what reads a tree, and for uploads.
func TestTreeRaces(t *testing.T) {
	f, dir := setup(t)
	root, out := dir+"/root", dir+"/out"
	must(t, os.MkdirAll(root+"/d/sub", 0o755))
	must(t, os.MkdirAll(out+"/sub", 0o755))
	put(t, root+"/d/sub/f", "inside")
	put(t, out+"/f", "SECRET")
	put(t, out+"/sub/f", "SECRET")
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			for _, at := range []string{root + "/d", root + "/d/sub", root + "/d/sub/f"} {
				os.Rename(at, dir+"/away")
				os.Symlink(out+strings.TrimPrefix(at, root+"/d"), at)
				os.Remove(at)
				os.Rename(dir+"/away", at)
			}
		}
	}()
	g := f.Beneath(root)
	ok := map[string]int{}
	for start, n := time.Now(), 0; time.Since(start) < raceTime; n++ {
		for _, dir := range []string{root, root + "/d", root + "/d/sub"} {
			if r, err := sandbox.Archive(t.Context(), g, dir, sandbox.ArchiveTar); err == nil {
				b, err := io.ReadAll(r)
				r.Close()
				if err == nil {
					ok["archive"]++
				}
				if bytes.Contains(b, []byte("SECRET")) {
					t.Fatal("an archive holds what lies outside")
				}
			}
			if seq, err := sandbox.SearchContent(t.Context(), g, dir, sandbox.ContentQuery{Text: "SECRET"}); err == nil {
				for m, err := range seq {
					if err == nil {
						t.Fatalf("a search finds what lies outside: %v", m)
					}
				}
				ok["search"]++
			}
			if upload(t, g, fmt.Sprint(dir, "/new", n), "x", sandbox.WriteOptions{}) == nil {
				ok["upload"]++
			}
		}
	}
	stop.Store(true)
	<-done
	if len(ok) != 3 {
		t.Errorf("not everything was done at all: %v", ok)
	}
	if list := append(names(t, out), names(t, out+"/sub")...); len(list) != 3 {
		t.Errorf("outside there is %v", list)
	}
}

// raceTime is how long each race is tried.
const raceTime = 3 * time.Second
