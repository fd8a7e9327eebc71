package execd_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
)

// Over another execd, archives, changes, search and uploads are made of the
// operations that it has.
func TestTreesOverAForeignExecd(t *testing.T) {
	b := foreign(t)
	f, dir := b.files()
	must(t, os.MkdirAll(dir+"/from/sub", 0o750))
	put(t, dir+"/from/a", "alpha\n")
	put(t, dir+"/from/sub/b$1", "beta needle\n")
	must(t, os.Symlink("a", dir+"/from/link"))
	r, err := sandbox.Archive(ctx(t), f, dir+"/from", sandbox.ArchiveTar)
	must(t, err)
	packed, err := io.ReadAll(r)
	must(t, err)
	must(t, r.Close())
	got := map[string]string{}
	for in := tar.NewReader(bytes.NewReader(packed)); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must(t, err)
		content, err := io.ReadAll(in)
		must(t, err)
		got[h.Name] = string(content) + h.Linkname
	}
	if diff := cmp.Diff(map[string]string{"a": "alpha\n", "link": "a", "sub/": "", "sub/b$1": "beta needle\n"}, got); diff != "" {
		t.Error(diff)
	}
	must(t, os.Mkdir(dir+"/to", 0o755))
	done, err := sandbox.Extract(ctx(t), f.Beneath(dir), dir+"/to", bytes.NewReader(packed), sandbox.ExtractOptions{Owner: someone})
	must(t, err)
	if diff := cmp.Diff(sandbox.Extracted{Entries: 3, Bytes: 18, Skipped: 1}, done); diff != "" {
		t.Error(diff)
	}
	if get(t, dir+"/to/sub/b$1") != "beta needle\n" {
		t.Error("the file holds something else")
	}
	if info, err := f.Stat(ctx(t), dir+"/to/a"); err != nil || info.Owner != someone {
		t.Errorf("%+v, %v", info, err)
	}
	must(t, sandbox.Upload(ctx(t), f, dir+"/up", strings.NewReader("uploaded"), 8, sandbox.WriteOptions{}))
	if get(t, dir+"/up") != "uploaded" {
		t.Error("the file holds something else")
	}
	matches, err := sandbox.SearchContent(ctx(t), f, dir+"/from", sandbox.ContentQuery{Text: "needle"})
	must(t, err)
	found := 0
	for m, err := range matches {
		must(t, err)
		if found++; m.Path != dir+"/from/sub/b$1" || m.Line != 1 || m.Offset != 5 {
			t.Errorf("%+v", m)
		}
	}
	if found != 1 {
		t.Errorf("%d lines were found", found)
	}
	changes, err := sandbox.Watch(ctx(t), f, dir, sandbox.WatchOptions{})
	must(t, err)
	put(t, dir+"/new", "x")
	for c, err := range changes {
		must(t, err)
		if c != (sandbox.Change{Kind: sandbox.ChangeCreated, Path: dir + "/new"}) {
			t.Errorf("%+v", c)
		}
		break
	}
}
