package httpapi_test

import (
	"archive/zip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/fault"
)

func TestArchive(t *testing.T) {
	r, one, root := box(t)
	if err := os.Mkdir(filepath.Join(root, "dé\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ query, kind, disposition string }{
		{"", "application/zip", `attachment; filename="workspace.zip"`},
		{"?path=/workspace/dir&format=tar", "application/x-tar", `attachment; filename="dir.tar"`},
		{"?path=/workspace/dir/&format=tar.gz", "application/gzip", `attachment; filename="dir.tar.gz"`},
		{"?path=/workspace/d%C3%A9%22%0A", "application/zip", `attachment; filename="d___.zip"; filename*=UTF-8''d%C3%A9%22%0A.zip`},
	} {
		for _, method := range []string{"GET", "HEAD"} {
			a := r.do(method, one+"/files/archive"+tt.query, "")
			got := []string{a.Header.Get("Content-Type"), a.Header.Get("Content-Disposition")}
			if diff := cmp.Diff([]string{tt.kind, tt.disposition}, got); diff != "" || a.StatusCode != 200 || (method == "GET") != (len(a.body) > 0) {
				t.Errorf("%s %s: %d, %d bytes: %s", method, tt.query, a.StatusCode, len(a.body), diff)
			}
		}
	}
	body := r.do("GET", one+"/files/archive", "").body
	z, err := zip.NewReader(strings.NewReader(body), int64(len(body)))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range z.File {
		names = append(names, f.Name)
	}
	slices.Sort(names)
	if diff := cmp.Diff([]string{"a.txt", "dir/", "dir/b", "dé\"\n/", "empty", "link", "loop", "out", "run.sh", "up"}, names); diff != "" {
		t.Error(diff)
	}
	for query, code := range map[string]fault.Code{
		"?format=rar": fault.RequestInvalid, "?format=zip&format=tar": fault.RequestInvalid, "?depth=1": fault.RequestInvalid, "?path=x": fault.PathInvalid,
		"?path=/etc": fault.PathEscapes, "?path=/workspace/../etc": fault.PathEscapes, "?path=/workspace/nothing": fault.FileNotFound, "?path=/workspace/a.txt": fault.NotADirectory,
	} {
		if p := r.do("GET", one+"/files/archive"+query, "").problem(t); p.Code != string(code) {
			t.Errorf("%s: %+v", query, p)
		}
	}
}
