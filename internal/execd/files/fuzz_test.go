package files

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// arena is a directory to write into, with something outside of it that must
// stay as it is.
type arena struct {
	top, in string
	service http.Handler
}

func newArena(f *testing.F) *arena {
	a := &arena{top: f.TempDir()}
	a.in = a.top + "/in"
	must(f, os.WriteFile(a.top+"/secret", []byte("secret"), 0o600))
	must(f, os.MkdirAll(a.top+"/out/sub", 0o755))
	must(f, os.Mkdir(a.in, 0o755))
	root, err := os.Open(a.in)
	must(f, err)
	f.Cleanup(func() { root.Close() })
	a.service = New(Config{Root: root})
	return a
}

// fill makes what is written into.
func (a *arena) fill(t testing.TB) {
	list, err := os.ReadDir(a.in)
	must(t, err)
	for _, e := range list {
		must(t, os.RemoveAll(a.in+"/"+e.Name()))
	}
	must(t, os.MkdirAll(a.in+"/d/e", 0o755))
	must(t, os.WriteFile(a.in+"/f", []byte("old"), 0o644))
	must(t, os.Symlink("../out", a.in+"/l"))
	must(t, os.Symlink("../secret", a.in+"/s"))
}

// check looks for what got out, and for what was left behind or made that no
// upload and no archive may make.
func (a *arena) check(t testing.TB) {
	var outside []string
	must(t, filepath.WalkDir(a.top, func(p string, d fs.DirEntry, err error) error {
		must(t, err)
		if p == a.in {
			return fs.SkipDir
		}
		outside = append(outside, strings.TrimPrefix(p, a.top))
		return nil
	}))
	if got := strings.Join(outside, " "); got != " /out /out/sub /secret" {
		t.Fatalf("outside there is %q", got)
	}
	if b, err := os.ReadFile(a.top + "/secret"); string(b) != "secret" || err != nil {
		t.Fatalf("the file outside holds %q, %v", b, err)
	}
	must(t, filepath.WalkDir(a.in, func(p string, d fs.DirEntry, err error) error {
		must(t, err)
		if hiddenName(d.Name()) {
			t.Fatalf("left behind: %s", p)
		}
		info, err := d.Info()
		must(t, err)
		if m := info.Mode(); m&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky|fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
			t.Fatalf("%s is %v", p, m)
		}
		return nil
	}))
}

// archiveOf makes a tar of lines: a letter for the type, then name, link and
// content, separated by tabs. What isn't of that form is an archive already.
func archiveOf(spec []byte) []byte {
	if len(spec) == 0 || spec[0] != '\n' {
		return spec
	}
	types := map[byte]byte{'f': tar.TypeReg, 'd': tar.TypeDir, 'l': tar.TypeSymlink, 'h': tar.TypeLink, 'c': tar.TypeChar, 'p': tar.TypeFifo, 'g': tar.TypeXGlobalHeader, 's': tar.TypeGNUSparse}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for line := range bytes.SplitSeq(spec[1:], []byte("\n")) {
		parts := strings.Split(string(line)+"\t\t\t", "\t")
		if len(parts[0]) == 0 {
			continue
		}
		h := &tar.Header{Typeflag: types[parts[0][0]], Name: parts[1], Linkname: parts[2], Size: int64(len(parts[3])), Mode: 0o7777}
		if h.Typeflag != tar.TypeReg {
			h.Size = 0
		}
		if w.WriteHeader(h) == nil && h.Size > 0 {
			w.Write([]byte(parts[3]))
		}
	}
	w.Close()
	return b.Bytes()
}

// FuzzExtract: no archive gets anything out of its directory, leaves anything
// unfinished, or makes what archives may not make; and the answer is one that
// the protocol knows.
func FuzzExtract(f *testing.F) {
	for _, seed := range []string{
		"\nd\ta\nf\ta/b\t\tcontent\nl\ta/c\t../../secret\nf\ta/c\t\tx", "\nl\tx\t..\nf\tx/y\t\tz", "\nh\tx\t../secret\nf\tx\t\ty", "\nh\tx\tl/sub",
		"\nf\t../x\t\ty", "\nf\t/etc/x\t\ty", "\nf\tl/x\t\ty", "\nf\td\t\ty", "\nf\ts\t\ty", "\nl\td\tf", "\nh\ta\tf\nh\tf\ta\nf\tf\t\tnew",
		"\nd\tf", "\nd\tl", "\nd\t.\nf\t./d/e/g\t\tx", "\nc\tdev", "\np\tpipe", "\ng\tx", "\nd\ta/b/c/d/e/f/g\nh\ta/b/x\tf\nl\ta/b/y\t/", "\nf\t\xff\t\tx", "\x1f\x8b", "", "no tar",
	} {
		f.Add([]byte(seed), false)
		f.Add(archiveOf([]byte(seed)), true)
	}
	a := newArena(f)
	f.Fuzz(func(t *testing.T, spec []byte, noReplace bool) {
		a.fill(t)
		q := url.Values{"path": {a.in}, "root": {a.in}, "max_bytes": {"1048576"}, "max_entries": {"64"}}
		if noReplace {
			q.Set("no_replace", "1")
		}
		r := httptest.NewRequest("POST", wire.PathExtract+"?"+q.Encode(), bytes.NewReader(archiveOf(spec)))
		w := httptest.NewRecorder()
		a.service.ServeHTTP(w, r)
		var answer struct {
			wire.ExtractRefusal
		}
		must(t, json.Unmarshal(w.Body.Bytes(), &answer))
		if (w.Code == 200) != (answer.Code == "") || answer.Code == wire.CodeFileError || answer.Entries > 64 || answer.Bytes > 1<<20 {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
		a.check(t)
	})
}

// FuzzMultipart: no body of an older upload gets past what is said of it.
func FuzzMultipart(f *testing.F) {
	part := func(name, file, content string) string {
		return "--B\r\nContent-Disposition: form-data; name=\"" + name + "\"; filename=\"" + file + "\"\r\n\r\n" + content + "\r\n"
	}
	meta := func(path string) string { return part("metadata", "m", `{"path":"`+path+`","mode":644}`) }
	for _, seed := range []string{
		meta("/f") + part("file", "f", "content") + "--B--\r\n", meta("/new/er/f") + part("file", "f", "") + "--B--", meta("/f") + part("file", "f", "cut"),
		part("file", "f", "first") + meta("/f") + "--B--", meta("/f/x") + part("file", "f", "x") + "--B--", meta("/d") + part("file", "f", "x") + "--B--",
		meta("/f") + "--B--", part("file", "f", "x") + "--B--", meta("../secret") + part("file", "f", "1") + meta("l/x") + part("file", "f", "1") + meta("s") + part("file", "f", "1") + "--B--", meta("/a") + part("file", "f", "1") + meta("/b") + part("file", "f", "2") + "--B--\r\nepilogue",
		"", "--B--", "--B\r\n\r\n\r\n--B--", part("metadata", "m", `{"path":"/f","mode":8,"owner":"nobody-here"}`) + part("file", "f", "x") + "--B--", part("metadata", "m", `{"path":1}`),
	} {
		f.Add(seed)
	}
	a := newArena(f)
	f.Fuzz(func(t *testing.T, body string) {
		a.fill(t)
		before := treeOf(t, a.in)
		r := httptest.NewRequest("POST", "/files/upload", strings.NewReader(body))
		r.Header.Set("Content-Type", "multipart/form-data; boundary=B")
		w := httptest.NewRecorder()
		a.service.ServeHTTP(w, r)
		if w.Code == 500 && !strings.Contains(w.Body.String(), `"code"`) {
			t.Fatalf("%d: %s", w.Code, w.Body)
		}
		if !strings.Contains(body, "--B--") && treeOf(t, a.in) != before {
			t.Fatal("a body without an end changed something")
		}
		a.check(t)
	})
}

// treeOf describes a tree.
func treeOf(t testing.TB, dir string) string {
	var b strings.Builder
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		must(t, err)
		b.WriteString(p + "\n")
		if d.Type().IsRegular() {
			content, err := os.ReadFile(p)
			must(t, err)
			b.Write(content)
		}
		return nil
	}))
	return b.String()
}

// FuzzScan: a search finds the lines that reading all of the content finds.
func FuzzScan(f *testing.F) {
	for _, seed := range []struct{ content, text string }{{"a\nneedle\r\nb", "needle"}, {"x", "x"}, {"\n\n\n", "x*"}, {"abc\nabd\n", "ab[cd]$"}, {"a b\nc", `\s`}, {"ünï\xff\n", "ï"}, {"0", `\z`}, {"a\na\n", `\Aa`}, {"a\nb", `a\z|\Ab`}} {
		f.Add(seed.content, seed.text, false, false, uint8(0))
		f.Add(seed.content, seed.text, true, true, uint8(200))
	}
	f.Fuzz(func(t *testing.T, content, text string, regexp, fold bool, times uint8) {
		m, err := sandbox.ContentQuery{Text: text, Regexp: regexp, IgnoreCase: fold, Max: 100_000}.Compile()
		if err != nil || strings.IndexByte(content, 0) >= 0 || len(content) > 4<<10 {
			return
		}
		content = strings.Repeat(content, 1+int(times))
		if strings.IndexByte(content, '\n') < 0 && len(content) > 64<<10 {
			return // searched in parts
		}
		var got []int64
		_, err = m.Scan(strings.NewReader(content), func(c sandbox.ContentMatch) bool {
			if c.Start < 0 || c.End < c.Start || c.End > len(c.Text) || !strings.HasPrefix(content[c.Offset:], c.Text[c.Start:c.End]) {
				t.Fatalf("%+v", c)
			}
			if want := int64(strings.Count(content[:c.Offset], "\n") + 1); c.Line != want {
				t.Fatalf("line %d is said to be %d", want, c.Line)
			}
			got = append(got, c.Line)
			return true
		})
		must(t, err)
		var want []int64
		one, err := sandbox.ContentQuery{Text: text, Regexp: regexp, IgnoreCase: fold}.Compile()
		must(t, err)
		for i, line := range strings.Split(content, "\n") {
			if line == "" && i == strings.Count(content, "\n") {
				break // behind the last line
			}
			found := false
			one.Scan(strings.NewReader(line+"\n"), func(sandbox.ContentMatch) bool { found = true; return true })
			if found {
				want = append(want, int64(i+1))
			}
		}
		if len(got) != len(want) {
			t.Fatalf("lines %v, want %v", got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("lines %v, want %v", got, want)
			}
		}
	})
}
