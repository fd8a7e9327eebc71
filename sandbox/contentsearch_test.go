package sandbox_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
)

// lines describes matches and checks that the match is where it is said to be.
func lines(t *testing.T, f sandbox.Files, dir string, q sandbox.ContentQuery) []string {
	t.Helper()
	seq, err := sandbox.SearchContent(t.Context(), f, dir, q)
	must(t, err)
	out := []string{}
	for m, err := range seq {
		must(t, err)
		b, err := os.ReadFile(m.Path)
		must(t, err)
		match := m.Text[m.Start:m.End]
		if string(b[m.Offset:m.Offset+int64(len(match))]) != match {
			t.Errorf("%q isn't at byte %d of %s", match, m.Offset, m.Path)
		}
		if want := int64(strings.Count(string(b[:m.Offset]), "\n") + 1); m.Line != want {
			t.Errorf("line %d of %s is said to be %d", want, m.Path, m.Line)
		}
		if len(m.Text) > 600 {
			t.Errorf("%d bytes of text", len(m.Text))
		}
		out = append(out, fmt.Sprintf("%s:%d:%s", strings.TrimPrefix(m.Path, dir), m.Line, match))
	}
	return out
}

func TestSearchContentOverBaseOperations(t *testing.T) {
	dir := t.TempDir()
	long := strings.Repeat("x", 300_000)
	for name, content := range map[string]string{
		"a.txt":    "one\ntwo needle needle\r\nthree\nNeedle\n\n",
		"b.md":     "needle without an end",
		"binary":   "needle\x00needle",
		"long":     long + "needle" + long + "needle" + long + "\nneedle\n",
		"straddle": long[:131072-3] + "needle\n" + long + "\nneedle",
		"lines":    strings.Repeat("some line\n", 20_000) + "the needle\n",
		"empty":    "",
		"colours":  "rot\ngrün\n",
	} {
		must(t, os.WriteFile(dir+"/"+name, []byte(content), 0o644))
	}
	must(t, os.Symlink("a.txt", dir+"/link"))
	for _, tt := range []struct {
		name string
		q    sandbox.ContentQuery
		want []string
	}{
		{"literal", sandbox.ContentQuery{Text: "needle"}, []string{"/a.txt:2:needle", "/b.md:1:needle", "/lines:20001:needle", "/long:1:needle", "/long:2:needle", "/straddle:1:needle", "/straddle:3:needle"}},
		{"case", sandbox.ContentQuery{Text: "NEEDLE", IgnoreCase: true, Name: "*.txt"}, []string{"/a.txt:2:needle", "/a.txt:4:Needle"}},
		{"case beyond ASCII", sandbox.ContentQuery{Text: "GRÜN", IgnoreCase: true}, []string{"/colours:2:grün"}},
		{"case far away", sandbox.ContentQuery{Text: "The Needle", IgnoreCase: true, Name: "lines"}, []string{"/lines:20001:the needle"}},
		{"case in pieces", sandbox.ContentQuery{Text: "nEEdle", IgnoreCase: true, Name: "[ls]*"}, []string{"/lines:20001:needle", "/long:1:needle", "/long:2:needle", "/straddle:1:needle", "/straddle:3:needle"}},
		{"regexp", sandbox.ContentQuery{Text: `n[e]{2}dle$`, Regexp: true, Name: "a*"}, nil},
		{"anchors of texts", sandbox.ContentQuery{Text: `\At(wo needle|hree\z)`, Regexp: true, Name: "a*"}, []string{"/a.txt:2:two needle", "/a.txt:3:three"}},
		{"anchors in any case", sandbox.ContentQuery{Text: `\AN.*E$|(?-i:^ONE)`, Regexp: true, IgnoreCase: true, Name: "a*"}, []string{"/a.txt:4:Needle"}},
		{"anchors", sandbox.ContentQuery{Text: `^t\w+`, Regexp: true, Name: "a*"}, []string{"/a.txt:2:two", "/a.txt:3:three"}},
		{"empty matches", sandbox.ContentQuery{Text: `z*`, Regexp: true, Name: "a*"}, []string{"/a.txt:1:", "/a.txt:2:", "/a.txt:3:", "/a.txt:4:", "/a.txt:5:"}},
		{"over lines", sandbox.ContentQuery{Text: `e\s*t`, Regexp: true, Name: "a*"}, nil},
		{"class over lines", sandbox.ContentQuery{Text: `[^x]e\s*`, Regexp: true, Name: "a*"}, []string{"/a.txt:1:ne", "/a.txt:2:ne", "/a.txt:3:re", "/a.txt:4:Ne"}},
		{"max", sandbox.ContentQuery{Text: "needle", Max: 2}, []string{"/a.txt:2:needle", "/b.md:1:needle"}},
		{"size", sandbox.ContentQuery{Text: "needle", MaxSize: 100}, []string{"/a.txt:2:needle", "/b.md:1:needle"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(append([]string{}, tt.want...), lines(t, plainFiles{}, dir, tt.q)); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, q := range []sandbox.ContentQuery{
		{}, {Text: "a\nb"}, {Text: "a\x00"}, {Text: "(", Regexp: true}, {Text: "x", Max: -1}, {Text: "x", MaxSize: -1},
		{Text: strings.Repeat("x", 1025)}, {Text: "\xff", IgnoreCase: true},
	} {
		if _, err := sandbox.SearchContent(t.Context(), plainFiles{}, dir, q); !errors.Is(err, sandbox.ErrPathRejected) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if _, err := sandbox.SearchContent(t.Context(), plainFiles{}, dir+"/missing", sandbox.ContentQuery{Text: "x"}); !errors.Is(err, sandbox.ErrPathNotFound) {
		t.Errorf("below nothing: %v", err)
	}
}
