package files_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
)

func grep(t testing.TB, f sandbox.Files, dir string, q sandbox.ContentQuery) []string {
	t.Helper()
	seq, err := sandbox.SearchContent(t.Context(), f, dir, q)
	must(t, err)
	out := []string{}
	for m, err := range seq {
		must(t, err)
		if b := get(t, m.Path); !strings.HasPrefix(b[m.Offset:], m.Text[m.Start:m.End]) {
			t.Errorf("the match isn't at byte %d of %s", m.Offset, m.Path)
		}
		out = append(out, fmt.Sprintf("%s:%d:%s", strings.TrimPrefix(m.Path, dir), m.Line, m.Text[m.Start:m.End]))
	}
	return out
}

func TestSearchContent(t *testing.T) {
	f, dir := setup(t)
	must(t, os.MkdirAll(dir+"/sub/.hidden", 0o755))
	put(t, dir+"/a.txt", "one\ntwo needle\r\nNeedle\nneedle\xff\n")
	put(t, dir+"/sub/.hidden/b.md", strings.Repeat("line\n", 100_000)+"needle")
	put(t, dir+"/binary", "\x7fELF\x00needle")
	put(t, dir+"/long", strings.Repeat("x", 3<<20)+"needle"+strings.Repeat("x", 3<<20))
	put(t, dir+"/n\xff", "needle")
	must(t, os.Symlink("/etc", dir+"/link"))
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	for _, f := range []sandbox.Files{f, f.Beneath(dir)} {
		for _, tt := range []struct {
			name string
			q    sandbox.ContentQuery
			want []string
		}{
			{"literal", sandbox.ContentQuery{Text: "needle"}, []string{"/a.txt:2:needle", "/a.txt:4:needle", "/long:1:needle", "/n\xff:1:needle", "/sub/.hidden/b.md:100001:needle"}},
			{"regexp", sandbox.ContentQuery{Text: "^N[a-z]+", Regexp: true}, []string{"/a.txt:3:Needle"}},
			{"case and name", sandbox.ContentQuery{Text: "NEEDLE", IgnoreCase: true, Name: "*.{txt,md}"}, []string{"/a.txt:2:needle", "/a.txt:3:Needle", "/a.txt:4:needle", "/sub/.hidden/b.md:100001:needle"}},
			{"max", sandbox.ContentQuery{Text: "needle", Max: 1}, []string{"/a.txt:2:needle"}},
			{"size", sandbox.ContentQuery{Text: "needle", MaxSize: 10}, []string{"/n\xff:1:needle"}},
			{"nothing", sandbox.ContentQuery{Text: "haystack"}, []string{}},
		} {
			if diff := cmp.Diff(tt.want, grep(t, f, dir, tt.q)); diff != "" {
				t.Errorf("%s: %s", tt.name, diff)
			}
		}
	}
	_, err := sandbox.SearchContent(t.Context(), f, dir+"/missing", sandbox.ContentQuery{Text: "x"})
	want(t, err, sandbox.ErrPathNotFound)
	_, err = sandbox.SearchContent(t.Context(), f, dir, sandbox.ContentQuery{Text: "x", Name: "["})
	want(t, err, sandbox.ErrPathRejected)
	_, err = sandbox.SearchContent(t.Context(), f.Beneath(dir+"/sub"), dir, sandbox.ContentQuery{Text: "x"})
	want(t, err, sandbox.ErrPathRejected)
}

// A client that leaves ends the search. goleak would see one that goes on.
func TestSearchContentIsCancelled(t *testing.T) {
	f, dir := setup(t)
	for i := range 50 {
		put(t, fmt.Sprint(dir, "/", i), strings.Repeat(strings.Repeat("x", 100)+"\n", 50_000))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seq, err := sandbox.SearchContent(ctx, f, dir, sandbox.ContentQuery{Text: `(x+x+)+y`, Regexp: true})
	must(t, err)
	start := time.Now()
	cancel()
	for _, err := range seq {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the end is %v", err)
		}
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("the search ended after %s", d)
	}
}
