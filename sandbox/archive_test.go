package sandbox_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
)

// must ends the test that an unexpected error makes useless.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree makes a directory with something of each kind.
func tree(t *testing.T) string {
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/sub/empty", 0o750))
	must(t, os.WriteFile(dir+"/a", []byte("alpha"), 0o640))
	must(t, os.WriteFile(dir+"/sub/large", bytes.Repeat([]byte("0123456789abcdef"), 20_000), 0o755))
	must(t, os.WriteFile(dir+"/sub/none", nil, 0o600))
	must(t, os.WriteFile(dir+"/sub/n\xff\n ü", []byte("odd name"), 0o644))
	must(t, os.Symlink("../a", dir+"/sub/link"))
	must(t, unix.Mkfifo(dir+"/sub/fifo", 0o600))
	return dir
}

// shape describes a tree for comparison.
func shape(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		must(t, err)
		info, err := d.Info()
		must(t, err)
		name := strings.TrimPrefix(p, dir)
		switch {
		case info.Mode().IsRegular():
			b, err := os.ReadFile(p)
			must(t, err)
			out[name] = fmt.Sprintf("%v %x", info.Mode(), sumOf(b))
		case name != "":
			target, _ := os.Readlink(p)
			out[name] = info.Mode().String() + " " + target
		}
		return nil
	}))
	return out
}

func sumOf(b []byte) string {
	if len(b) > 32 {
		return fmt.Sprint(len(b), string(b[:8]), string(b[len(b)-8:]))
	}
	return string(b)
}

func TestArchiveOverBaseOperations(t *testing.T) {
	dir := tree(t)
	want := shape(t, dir)
	delete(want, "/sub/fifo")
	for _, format := range []sandbox.ArchiveFormat{sandbox.ArchiveTar, sandbox.ArchiveTarGzip, sandbox.ArchiveZip} {
		t.Run(string(format), func(t *testing.T) {
			r, err := sandbox.Archive(t.Context(), plainFiles{}, dir, format)
			must(t, err)
			b, err := io.ReadAll(r)
			must(t, err)
			must(t, r.Close())
			to := t.TempDir()
			if format == sandbox.ArchiveZip {
				unzip(t, b, to)
			} else {
				untar(t, b, to)
			}
			if diff := cmp.Diff(want, shape(t, to)); diff != "" {
				t.Error(diff)
			}
		})
	}
	_, err := sandbox.Archive(t.Context(), plainFiles{}, dir, "rar")
	if !errors.Is(err, sandbox.ErrPathRejected) {
		t.Errorf("an unknown format: %v", err)
	}
	_, err = sandbox.Archive(t.Context(), plainFiles{}, dir+"/missing", sandbox.ArchiveTar)
	if !errors.Is(err, sandbox.ErrPathNotFound) {
		t.Errorf("a missing directory: %v", err)
	}
}

func unzip(t *testing.T, b []byte, to string) {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	must(t, err)
	for _, f := range z.File {
		p := to + "/" + f.Name
		r, err := f.Open()
		must(t, err)
		content, err := io.ReadAll(r)
		must(t, err)
		switch {
		case f.Mode().IsDir():
			must(t, os.Mkdir(p, 0o700))
			must(t, os.Chmod(p, f.Mode().Perm()))
		case f.Mode().Type() == fs.ModeSymlink:
			must(t, os.Symlink(string(content), p))
		default:
			must(t, os.WriteFile(p, content, 0o600))
			must(t, os.Chmod(p, f.Mode().Perm()))
		}
	}
}

func untar(t *testing.T, b []byte, to string) {
	t.Helper()
	var in io.Reader = bytes.NewReader(b)
	if b[0] == 0x1f {
		var err error
		in, err = gzip.NewReader(in)
		must(t, err)
	}
	r := tar.NewReader(in)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return
		}
		must(t, err)
		p := to + "/" + h.Name
		switch h.Typeflag {
		case tar.TypeDir:
			must(t, os.Mkdir(p, 0o700))
			must(t, os.Chmod(p, h.FileInfo().Mode().Perm()))
		case tar.TypeSymlink:
			must(t, os.Symlink(h.Linkname, p))
		default:
			content, err := io.ReadAll(r)
			must(t, err)
			must(t, os.WriteFile(p, content, 0o600))
			must(t, os.Chmod(p, h.FileInfo().Mode().Perm()))
		}
	}
}

// An archive that nobody reads to its end leaves no goroutine.
func TestArchiveClosedEarly(t *testing.T) {
	r, err := sandbox.Archive(t.Context(), plainFiles{}, tree(t), sandbox.ArchiveTar)
	must(t, err)
	_, err = io.ReadFull(r, make([]byte, 10))
	must(t, err)
	must(t, r.Close())
}

// A file's size may change between the look and the read.
func TestArchiveWriterOfChangingFiles(t *testing.T) {
	for _, size := range []int{10, 200_000, 1_000_000} {
		for _, real := range []int{0, 5, size - 1, size, size + 1, 131072, 131073} {
			var buf bytes.Buffer
			w, err := sandbox.NewArchiveWriter(&buf, sandbox.ArchiveTar)
			must(t, err)
			content := bytes.Repeat([]byte{'x'}, real)
			must(t, w.Add(sandbox.ArchiveEntry{Name: "f", Info: sandbox.FileInfo{Size: int64(size)}}, bytes.NewReader(content)))
			must(t, w.Add(sandbox.ArchiveEntry{Name: "next", Info: sandbox.FileInfo{Size: 4}}, strings.NewReader("next")))
			must(t, w.Close())
			r := tar.NewReader(&buf)
			h, err := r.Next()
			must(t, err)
			b, err := io.ReadAll(r)
			must(t, err)
			kept := min(real, size)
			if int64(len(b)) != h.Size || !bytes.Equal(b[:kept], content[:kept]) || len(bytes.Trim(b[kept:], "\x00")) > 0 {
				t.Errorf("size %d, really %d: %d bytes", size, real, len(b))
			}
			if changed := w.Changed > 0; changed != (real < size) {
				t.Errorf("size %d, really %d: changed is %v", size, real, changed)
			}
			if h, err := r.Next(); err != nil || h.Name != "next" {
				t.Errorf("size %d, really %d: what follows is %v, %v", size, real, h, err)
			}
		}
	}
}

// packed makes a tar of headers; a header's PAXRecords[""] is its content.
func packed(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == tar.TypeXGlobalHeader {
			must(t, w.WriteHeader(&tar.Header{Typeflag: h.Typeflag, PAXRecords: map[string]string{"comment": "a commit"}}))
			continue
		}
		content := h.PAXRecords[""]
		h.PAXRecords = nil
		h.Size = int64(len(content))
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		must(t, w.WriteHeader(&h))
		_, err := io.WriteString(w, content)
		must(t, err)
	}
	must(t, w.Close())
	return b.Bytes()
}

func file(name, content string) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, PAXRecords: map[string]string{"": content}}
}

// commented is a header of half a MiB that says something about the next entry.
func commented(t testing.TB) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	must(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "x", Format: tar.FormatPAX, PAXRecords: map[string]string{"ASTRABOX.comment": strings.Repeat("c", 500<<10)}}))
	must(t, w.Flush())
	return b.Bytes()[:b.Len()-512] // without the entry
}

func link(kind byte, name, target string) tar.Header {
	return tar.Header{Typeflag: kind, Name: name, Linkname: target}
}

func zipped(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	must(t, err)
	must(t, w.Close())
	return out.Bytes()
}

func TestExtractOverBaseOperations(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/outside", []byte("old"), 0o644))
	to := dir + "/to"
	must(t, os.Mkdir(to, 0o755))
	must(t, os.Symlink("../outside", to+"/evil"))
	archive := packed(t,
		tar.Header{Typeflag: tar.TypeXGlobalHeader},
		tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o700},
		tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o750},
		file("d/f", "content"),
		tar.Header{Typeflag: tar.TypeReg, Name: "suid", Mode: 0o4755, PAXRecords: map[string]string{"": "x"}},
		file("deep/er/f", "deep"),
		file("evil", "replaces the link"),
		link(tar.TypeLink, "hard", "d/f"),
		link(tar.TypeSymlink, "soft", "d/f"),
		tar.Header{Typeflag: tar.TypeFifo, Name: "fifo"},
		tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3},
	)
	for name, b := range map[string][]byte{"plain": archive, "gzip": zipped(t, archive)} {
		t.Run(name, func(t *testing.T) {
			done, err := sandbox.Extract(t.Context(), plainFiles{}, to, bytes.NewReader(b), sandbox.ExtractOptions{})
			must(t, err)
			if diff := cmp.Diff(sandbox.Extracted{Entries: 7, Bytes: 36, Skipped: 3}, done); diff != "" {
				t.Error(diff)
			}
			want := map[string]string{
				"/d": "drwxr-x--- ", "/d/f": "-rw-r--r-- " + fmt.Sprintf("%x", "content"), "/suid": "-rwxr-xr-x " + fmt.Sprintf("%x", "x"),
				"/deep": "drwxr-xr-x ", "/deep/er": "drwxr-xr-x ", "/deep/er/f": "-rw-r--r-- " + fmt.Sprintf("%x", "deep"),
				"/evil": "-rw-r--r-- " + fmt.Sprintf("%x", "replaces the link"), "/hard": "-rw-r--r-- " + fmt.Sprintf("%x", "content"),
			}
			if diff := cmp.Diff(want, shape(t, to)); diff != "" {
				t.Error(diff)
			}
			if b, err := os.ReadFile(dir + "/outside"); string(b) != "old" {
				t.Errorf("the file outside holds %q, %v", b, err)
			}
		})
	}
}

func TestExtractRefuses(t *testing.T) {
	long := strings.Repeat("n", 256)
	for _, tt := range []struct {
		name  string
		b     []byte
		o     sandbox.ExtractOptions
		cause error
		wrote int64
	}{
		{name: "dots", b: packed(t, file("ok", "x"), file("a/../../x", "x")), cause: sandbox.ErrPathRejected, wrote: 1},
		{name: "absolute", b: packed(t, file("/etc/x", "x")), cause: sandbox.ErrPathRejected},
		{name: "long name", b: packed(t, file(long, "x")), cause: sandbox.ErrLimit},
		{name: "deep", b: packed(t, file(strings.Repeat("d/", 70)+"x", "x")), cause: sandbox.ErrLimit},
		{name: "long path", b: packed(t, file(strings.Repeat("dddddddddddddddddddd/", 200)+"x", "x")), cause: sandbox.ErrLimit},
		{name: "link out", b: packed(t, link(tar.TypeLink, "h", "../x")), cause: sandbox.ErrPathRejected},
		{name: "link absolute", b: packed(t, link(tar.TypeLink, "h", "/etc/passwd")), cause: sandbox.ErrPathRejected},
		{name: "link to nothing", b: packed(t, link(tar.TypeLink, "h", "missing")), cause: sandbox.ErrPathNotFound},
		{name: "through a link", b: packed(t, file("out/x", "x")), cause: sandbox.ErrPathRejected},
		{name: "through a file", b: packed(t, file("f", "x"), file("f/x", "x")), cause: sandbox.ErrPathRejected, wrote: 1},
		{name: "over a directory", b: packed(t, file("dir", "x")), cause: sandbox.ErrPathRejected},
		{name: "existing", b: packed(t, file("there", "x")), o: sandbox.ExtractOptions{NoReplace: true}, cause: fs.ErrExist},
		{name: "entries", b: packed(t, file("1", ""), file("2", ""), file("3", "")), o: sandbox.ExtractOptions{MaxEntries: 2}, cause: sandbox.ErrLimit, wrote: 2},
		{name: "bytes", b: packed(t, file("1", "12345"), file("2", "123456")), o: sandbox.ExtractOptions{MaxBytes: 10}, cause: sandbox.ErrLimit, wrote: 1},
		{name: "bomb", b: zipped(t, packed(t, file("zeros", strings.Repeat("\x00", 80<<20)))), cause: sandbox.ErrLimit},
		{name: "bomb that is passed over", b: zipped(t, packed(t, tar.Header{Typeflag: 'Z', Name: "odd", PAXRecords: map[string]string{"": strings.Repeat("\x00", 80<<20)}})), cause: sandbox.ErrLimit},
		{name: "bomb of headers", b: zipped(t, append(bytes.Repeat(commented(t), 160), packed(t)...)), cause: sandbox.ErrLimit},
		{name: "cut in a file", b: packed(t, file("1", "x"), file("2", strings.Repeat("x", 5000)))[:4000], cause: io.ErrUnexpectedEOF, wrote: 1},
		{name: "cut between files", b: packed(t, file("1", "x"), file("2", "x"))[:1024], cause: io.ErrUnexpectedEOF, wrote: 1},
		{name: "cut gzip", b: zipped(t, packed(t, file("1", "x")))[:90], cause: io.ErrUnexpectedEOF, wrote: 1},
		{name: "no tar", b: []byte(strings.Repeat("no tar ", 200)), cause: tar.ErrHeader},
		{name: "empty", b: nil, cause: io.ErrUnexpectedEOF},
		{name: "damaged gzip", b: []byte{0x1f, 0x8b, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, cause: gzip.ErrHeader},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			to := dir + "/to"
			must(t, os.MkdirAll(to+"/dir", 0o755))
			must(t, os.WriteFile(to+"/there", []byte("old"), 0o644))
			must(t, os.Symlink("..", to+"/out"))
			done, err := sandbox.Extract(t.Context(), plainFiles{}, to, bytes.NewReader(tt.b), tt.o)
			var pe *sandbox.PathError
			if !errors.Is(err, tt.cause) || !errors.As(err, &pe) {
				t.Errorf("error is %v", err)
			}
			if !errors.Is(err, sandbox.ErrPathRejected) && !errors.Is(err, sandbox.ErrPathNotFound) {
				t.Errorf("error %v is of no kind of the seam", err)
			}
			if done.Entries != tt.wrote {
				t.Errorf("%d entries are said to be written", done.Entries)
			}
			if list, _ := os.ReadDir(dir); len(list) != 1 {
				t.Errorf("outside there is %v", list)
			}
			if b, _ := os.ReadFile(to + "/there"); string(b) != "old" {
				t.Errorf("the file that was there holds %q", b)
			}
		})
	}
	_, err := sandbox.Extract(t.Context(), plainFiles{}, t.TempDir()+"/missing", bytes.NewReader(nil), sandbox.ExtractOptions{})
	if !errors.Is(err, sandbox.ErrPathNotFound) {
		t.Errorf("into nothing: %v", err)
	}
}

func TestUploadOverWrite(t *testing.T) {
	dir := t.TempDir()
	must(t, sandbox.Upload(t.Context(), plainFiles{}, dir+"/f", strings.NewReader("content and more"), 7, sandbox.WriteOptions{}))
	if b, _ := os.ReadFile(dir + "/f"); string(b) != "content" {
		t.Errorf("the file holds %q", b)
	}
	err := sandbox.Upload(context.Background(), plainFiles{}, dir+"/g", strings.NewReader("short"), 7, sandbox.WriteOptions{})
	if !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("too short a content: %v", err)
	}
	if err := sandbox.Upload(t.Context(), plainFiles{}, dir+"/g", nil, -1, sandbox.WriteOptions{}); !errors.Is(err, sandbox.ErrPathRejected) {
		t.Errorf("a negative size: %v", err)
	}
}
