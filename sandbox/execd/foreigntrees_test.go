package execd_test

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/internal/quirk"
	"github.com/astrabox/astrabox/test/machine"
)

// What a files face may have beside its methods works over a foreign execd by
// the base operations alone.
func TestForeignTrees(t *testing.T) {
	b := foreign(t, quirk.Harmless...)
	f, dir := b.files()
	must(t, os.MkdirAll(dir+"/from/d$1", 0o750))
	put(t, dir+"/from/d$1/needle\xff", "hay\nneedle\xff here\n")
	must(t, os.Chmod(dir+"/from/d$1/needle\xff", 0o640))
	must(t, os.Symlink("d$1", dir+"/from/link"))
	must(t, os.Mkdir(dir+"/to", 0o755))

	archive, err := sandbox.Archive(ctx(t), f, dir+"/from", sandbox.ArchiveTarGzip)
	must(t, err)
	defer archive.Close()
	done, err := sandbox.Extract(ctx(t), f, dir+"/to", archive, sandbox.ExtractOptions{Owner: someone})
	must(t, err)
	_, err = io.Copy(io.Discard, archive)
	must(t, err)
	if done.Entries != 2 || done.Skipped != 1 || get(t, dir+"/to/d$1/needle\xff") != get(t, dir+"/from/d$1/needle\xff") {
		t.Errorf("extracted %+v", done)
	}
	if i, err := f.Stat(ctx(t), dir+"/to/d$1/needle\xff"); err != nil || i.Owner != someone || i.Mode != 0o640 {
		t.Errorf("%+v, %v", i, err)
	}

	seq, err := sandbox.SearchContent(ctx(t), f, dir+"/from", sandbox.ContentQuery{Text: "needle"})
	must(t, err)
	var found []sandbox.ContentMatch
	for m, err := range seq {
		must(t, err)
		found = append(found, m)
	}
	if diff := cmp.Diff([]sandbox.ContentMatch{{Path: dir + "/from/d$1/needle\xff", Line: 2, Offset: 4, Text: "needle\xff here", End: 6}}, found); diff != "" {
		t.Error(diff)
	}

	content := strings.Repeat("0123456789", 100<<10)
	must(t, sandbox.Upload(ctx(t), f, dir+"/large", strings.NewReader(content), int64(len(content)), sandbox.WriteOptions{}))
	if get(t, dir+"/large") != content {
		t.Error("another content arrived")
	}

	watched, stop := context.WithCancel(ctx(t))
	defer stop()
	changes, err := sandbox.Watch(watched, f, dir, sandbox.WatchOptions{})
	must(t, err)
	put(t, dir+"/new", "")
	for c, err := range changes {
		must(t, err)
		if c.Path == dir+"/new" {
			break
		}
	}
	stop()
	must(t, f.RemoveAll(ctx(t), dir+"/from"))
	if got := names(t, dir); !slices.Equal(got, []string{"large", "new", "to"}) {
		t.Errorf("left: %v", got)
	}
}

func TestForeignList(t *testing.T) {
	shells(t, func(t *testing.T, shell, searched string) {
		b := foreign(t, quirk.Harmless...)
		b.s.Shell, b.s.Path = shell, searched
		f, dir := b.files()
		for _, d := range []string{"/a/b/c", "/a.d", "/z"} {
			must(t, os.MkdirAll(dir+d, 0o755))
		}
		for _, p := range []string{"/a/x.go", "/a/b/.hidden.go", "/a/b/c/\xff.go", "/B.go", "/[x].txt", "/a.d/y.TXT"} {
			put(t, dir+p, "")
		}
		must(t, os.Symlink("a", dir+"/link"))
		must(t, os.Symlink("/target\xfe", dir+"/z/l.go"))
		check := func(want ...string) func(seq iter.Seq2[sandbox.FileInfo, error], err error) {
			t.Helper()
			return func(seq iter.Seq2[sandbox.FileInfo, error], err error) {
				t.Helper()
				for range 2 { // a sequence can be ranged over again
					if diff := cmp.Diff(append([]string{}, want...), paths(t, dir, seq, err)); diff != "" {
						t.Error(diff)
					}
				}
			}
		}
		check()(f.List(ctx(t), dir, 0))
		check("/B.go", "/[x].txt", "/a", "/a.d", "/link", "/z")(f.List(ctx(t), dir+"/", 1))
		check("/B.go", "/[x].txt", "/a", "/a/b", "/a/x.go", "/a.d", "/a.d/y.TXT", "/link", "/z", "/z/l.go")(f.List(ctx(t), dir, 2))
		check("/a/b/c/\xff.go")(f.List(ctx(t), dir+"/a/b/c", 5))
		check("/link/b", "/link/x.go")(f.List(ctx(t), dir+"/link", 1))
		check("/B.go", "/a/b/.hidden.go", "/a/b/c/\xff.go", "/a/x.go", "/z/l.go")(f.Search(ctx(t), dir, "*.go"))
		check("/a/b/c/\xff.go")(f.Search(ctx(t), dir, "\xff*"))
		check()(f.Search(ctx(t), dir, "\xfe*"))
		check("/B.go", "/a/x.go", "/a.d/y.TXT")(f.Search(ctx(t), dir, "{[Bx].go,*.TXT}"))
		check("/[x].txt")(f.Search(ctx(t), dir, `\[x\].???`))
		check()(f.Search(ctx(t), dir, "b/*"))
		check("/a/b", "/a/x.go")(f.Beneath(dir).Beneath(dir+"/a").List(ctx(t), dir+"/a", 1))
		seq, err := f.List(ctx(t), dir, 9)
		must(t, err)
		for i, err := range seq {
			must(t, err)
			same, err := f.Stat(ctx(t), i.Path)
			if diff := cmp.Diff(same, i); err != nil || diff != "" {
				t.Errorf("%s, %v", diff, err)
			}
		}
	})
}

func ExampleDeviations() {
	for _, d := range execd.Deviations() {
		if d.Face == "files" {
			fmt.Println(d.ID != "" && d.Says != "" && d.Reason != "")
			break
		}
	}
	// Output: true
}

// Only where a fault in it costs nothing.
func TestForeignRemoveAllOfTheMachine(t *testing.T) {
	machine.NeedReadOnly(t)
	shells(t, func(t *testing.T, shell, path string) {
		b := foreign(t)
		b.s.Shell, b.s.Path = shell, path
		f, dir := b.files()
		for _, path := range []string{"/", "//", "/.", "/..", "/proc/self/root", "/proc/self/cwd/", "/tmp/.."} {
			err := f.RemoveAll(ctx(t), path)
			isRefused(t, path, err, sandbox.ErrPathRejected)
			if strings.Contains(err.Error(), "read-only") {
				t.Errorf("removing %s was tried: %v", path, err)
			}
		}
		must(t, os.Remove(dir)) // still there
	})
}
