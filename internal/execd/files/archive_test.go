package files_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// grove makes a directory with something of each kind.
func grove(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/sub/empty", 0o750))
	put(t, dir+"/a", "alpha")
	must(t, os.Chmod(dir+"/a", 0o4755))
	must(t, os.Chown(dir+"/a", 1501, 1600))
	must(t, os.Chmod(dir+"/a", 0o755|fs.ModeSetuid))
	must(t, os.WriteFile(dir+"/sub/large", bytes.Repeat([]byte("0123456789abcdef"), 20_000), 0o640))
	must(t, os.WriteFile(dir+"/sub/none", nil, 0o600))
	put(t, dir+"/sub/n\xff\n ü", "odd name")
	put(t, dir+"/sub/"+strings.Repeat("l", 255), "long name")
	must(t, os.Symlink("../a", dir+"/sub/link"))
	must(t, os.Symlink("/nowhere", dir+"/sub/dangling"))
	must(t, os.Link(dir+"/a", dir+"/sub/second"))
	must(t, unix.Mkfifo(dir+"/sub/fifo", 0o600))
	must(t, unix.Mknod(dir+"/sub/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	old := time.Unix(1_000_000_000, 0)
	must(t, os.Chtimes(dir+"/a", old, old))
	return dir
}

// shape describes a tree, without what archives leave out.
func shape(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		must(t, err)
		var st unix.Stat_t
		must(t, unix.Lstat(p, &st))
		name := strings.TrimPrefix(p, dir)
		switch {
		case name == "":
		case d.Type().IsRegular():
			b := get(t, p)
			if len(b) > 40 {
				b = fmt.Sprint(len(b), b[:8], b[len(b)-8:])
			}
			out[name] = fmt.Sprintf("%o %d:%d %d %s", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, b)
		case d.IsDir():
			out[name] = fmt.Sprintf("%o %d:%d", st.Mode, st.Uid, st.Gid)
		case d.Type() == fs.ModeSymlink:
			target, _ := os.Readlink(p)
			out[name] = fmt.Sprintf("link %d:%d %s", st.Uid, st.Gid, target)
		}
		return nil
	}))
	return out
}

func archive(t testing.TB, f sandbox.Files, dir string, format sandbox.ArchiveFormat) []byte {
	t.Helper()
	r, err := f.(sandbox.Archiver).Archive(t.Context(), dir, format)
	must(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	must(t, err)
	return b
}

// What tar(1) makes of the archive is what was there.
func TestArchiveAsTar(t *testing.T) {
	f, _ := setup(t)
	dir := grove(t)
	want := shape(t, dir)
	for _, f := range []sandbox.Files{f, f.Beneath(dir)} {
		for format, flag := range map[sandbox.ArchiveFormat]string{sandbox.ArchiveTar: "-x", sandbox.ArchiveTarGzip: "-xz"} {
			to := t.TempDir()
			cmd := exec.Command("tar", flag, "-p", "--numeric-owner", "-f", "-", "-C", to)
			cmd.Stdin = bytes.NewReader(archive(t, f, dir, format))
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("tar: %v: %s", err, out)
			}
			if diff := cmp.Diff(want, shape(t, to)); diff != "" {
				t.Errorf("%s: %s", format, diff)
			}
			var one, two unix.Stat_t
			must(t, unix.Stat(to+"/a", &one))
			must(t, unix.Stat(to+"/sub/second", &two))
			if one.Ino != two.Ino {
				t.Errorf("%s: the two names of one file are two files", format)
			}
		}
	}
}

func TestArchiveAsZip(t *testing.T) {
	f, _ := setup(t)
	dir := grove(t)
	b := archive(t, f, dir, sandbox.ArchiveZip)
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	must(t, err)
	got := map[string]string{}
	for _, e := range z.File {
		r, err := e.Open()
		must(t, err)
		content, err := io.ReadAll(r)
		must(t, err)
		got["/"+e.Name] = fmt.Sprintf("%v %d", e.Mode(), len(content))
	}
	want := map[string]string{
		"/a": "-rwxr-xr-x 5", "/sub/": "drwxr-x--- 0", "/sub/empty/": "drwxr-x--- 0", "/sub/large": "-rw-r----- 320000", "/sub/none": "-rw------- 0",
		"/sub/n\xff\n ü": "-rw-r--r-- 8", "/sub/" + strings.Repeat("l", 255): "-rw-r--r-- 9", "/sub/link": "Lrwxrwxrwx 4", "/sub/dangling": "Lrwxrwxrwx 8", "/sub/second": "-rwxr-xr-x 5",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestArchiveRefusals(t *testing.T) {
	f, dir := setup(t)
	put(t, dir+"/file", "x")
	must(t, os.Mkdir(dir+"/in", 0o755))
	must(t, os.Symlink("/etc", dir+"/in/out"))
	a := f.(sandbox.Archiver)
	for path, target := range map[string]error{dir + "/missing": sandbox.ErrPathNotFound, dir + "/file": sandbox.ErrPathRejected, "relative": sandbox.ErrPathRejected} {
		_, err := a.Archive(t.Context(), path, sandbox.ArchiveTar)
		want(t, err, target)
	}
	_, err := a.Archive(t.Context(), dir, "rar")
	want(t, err, sandbox.ErrPathRejected)
	_, err = f.Beneath(dir+"/in").(sandbox.Archiver).Archive(t.Context(), dir+"/in/out", sandbox.ArchiveTar)
	want(t, err, sandbox.ErrPathRejected)
	_, err = f.Beneath(dir+"/in").(sandbox.Archiver).Archive(t.Context(), dir, sandbox.ArchiveTar)
	want(t, err, sandbox.ErrPathRejected)
}

// A tree that changes all the time makes a whole archive, in which every file
// has one of the contents that it had, or zeros behind a shorter one.
func TestArchiveOfChangingTree(t *testing.T) {
	f, dir := setup(t)
	for i := range 20 {
		must(t, os.MkdirAll(fmt.Sprint(dir, "/d", i), 0o755))
		put(t, fmt.Sprint(dir, "/d", i, "/f"), strings.Repeat("x", 300_000))
	}
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; !stop.Load(); i++ {
			d := fmt.Sprint(dir, "/d", i%20)
			switch i % 5 {
			case 0:
				os.RemoveAll(d)
			case 1, 2:
				os.MkdirAll(d, 0o755)
				os.WriteFile(d+"/f", bytes.Repeat([]byte("x"), 200_000+i%100_000), 0o644)
			case 3:
				os.Truncate(d+"/f", int64(i%150_000))
			case 4:
				os.Symlink("f", d+"/l")
			}
		}
	}()
	for range 30 {
		r := tar.NewReader(bytes.NewReader(archive(t, f, dir, sandbox.ArchiveTar)))
		for {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			must(t, err)
			b, err := io.ReadAll(r)
			must(t, err)
			if rest := bytes.TrimRight(b, "\x00"); len(bytes.Trim(rest, "x")) > 0 {
				t.Fatalf("%s holds bytes that it never had", h.Name)
			}
		}
	}
	stop.Store(true)
	<-done
}

func TestArchiveTrailers(t *testing.T) {
	srv := daemon(t, files.Config{})
	dir := grove(t)
	resp, err := srv.Client().Get(srv.URL + wire.PathArchive + "?format=tar&path=" + url.QueryEscape(dir))
	must(t, err)
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	must(t, err)
	if got := resp.Trailer.Get(wire.HeaderSkipped) + " " + resp.Trailer.Get(wire.HeaderChanged); got != "2 0" {
		t.Errorf("skipped and changed are %q", got)
	}
}

// An archive that is cut off doesn't look like a whole one.
func TestArchiveCutOff(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/f", strings.Repeat("x", 8<<20))
	srv := daemonOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		files.New(files.Config{}).ServeHTTP(&cutWriter{ResponseWriter: w, left: 1 << 20}, r)
	}))
	r, err := face(t, srv).(sandbox.Archiver).Archive(t.Context(), dir, sandbox.ArchiveTar)
	must(t, err)
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	want(t, err, sandbox.ErrUnreachable)
}

// cutWriter fails after some bytes, as a connection may.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errors.New("cut")
	}
	return w.ResponseWriter.Write(p)
}

// Without the features the client makes do with the base operations.
func TestOlderDaemon(t *testing.T) {
	service := files.New(files.Config{})
	srv := daemonOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case wire.PathArchive, wire.PathExtract, wire.PathGrep, wire.PathWatch, wire.PathUploads:
			t.Errorf("%s was asked for", r.URL.Path)
		}
		service.ServeHTTP(w, r)
	}), wire.FeatureFiles)
	f, dir := face(t, srv), t.TempDir()
	put(t, dir+"/f", "content")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := sandbox.Archive(ctx, f, dir, sandbox.ArchiveTar)
	must(t, err)
	b, err := io.ReadAll(r)
	must(t, err)
	must(t, r.Close())
	must(t, os.Mkdir(dir+"/to", 0o755))
	_, err = sandbox.Extract(ctx, f, dir+"/to", bytes.NewReader(b), sandbox.ExtractOptions{})
	must(t, err)
	if got := get(t, dir+"/to/f"); got != "content" {
		t.Errorf("extracted %q", got)
	}
	must(t, sandbox.Upload(ctx, f, dir+"/g", strings.NewReader("uploaded"), 8, sandbox.WriteOptions{}))
	found := 0
	seq, err := sandbox.SearchContent(ctx, f, dir, sandbox.ContentQuery{Text: "content"})
	must(t, err)
	for _, err := range seq {
		must(t, err)
		found++
	}
	if found != 2 {
		t.Errorf("%d files were found", found)
	}
	changes, err := sandbox.Watch(ctx, f, dir, sandbox.WatchOptions{})
	must(t, err)
	put(t, dir+"/h", "new")
	for c, err := range changes {
		must(t, err)
		if c.Path == dir+"/h" {
			break
		}
	}
}

// A zip that would have too many files is refused before anything of it is sent.
func TestZipOfTooMany(t *testing.T) {
	f, dir := setup(t)
	must(t, os.WriteFile(dir+"/0", nil, 0o600))
	for i := range sandbox.MaxZipEntries {
		must(t, os.Link(dir+"/0", fmt.Sprint(dir, "/", i+1)))
	}
	r, err := sandbox.Archive(t.Context(), f, dir, sandbox.ArchiveZip)
	if !errors.Is(err, sandbox.ErrLimit) {
		t.Errorf("error %v", err)
	}
	if err == nil {
		r.Close()
	}
}
