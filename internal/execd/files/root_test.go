package files_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/test/machine"
)

// The older interface of a service with a root begins there and doesn't lead out.
func TestOlderInterfaceBelowARoot(t *testing.T) {
	machine.NeedRoot(t)
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for _, err := range []error{
		os.Mkdir(root, 0o700), os.WriteFile(dir+"/outside", []byte("secret"), 0o644),
		os.Symlink("../outside", root+"/out"), os.Symlink("/etc", root+"/etc"),
		os.WriteFile(root+"/in", []byte("inside"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	open, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	h := files.New(files.Config{Root: open, UID: 1234, GID: 2345})
	ask := func(method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		w := &recorder{header: http.Header{}, status: 200}
		h.ServeHTTP(w, r)
		return w.status, w.body.String()
	}
	for _, c := range []struct {
		path, want string
		status     int
	}{
		{"in", "inside", 200}, {root + "/in", "inside", 200}, {"/in", "inside", 200},
		{"out", "below", 500}, {"../outside", "below", 500}, {root + "/../outside", "below", 500},
		{dir + "/outside", "FILE_NOT_FOUND", 404}, {"etc/passwd", "below", 500}, {"/etc/passwd", "below", 500},
	} {
		status, body := ask("GET", "/files/download?path="+c.path, "")
		if status != c.status || c.status == 200 && body != c.want || strings.Contains(body, "secret") || strings.Contains(body, "root:") {
			t.Errorf("%s: %d %s, want %d %s", c.path, status, body, c.status, c.want)
		}
	}
	if status, body := ask("POST", "/directories", `{"a/b":{"mode":750}}`); status != 200 {
		t.Errorf("mkdir: %d %s", status, body)
	}
	for _, made := range []string{"a", "a/b"} {
		fi, err := os.Stat(filepath.Join(root, made))
		if err != nil {
			t.Fatal(err)
		}
		if st := fi.Sys().(*syscall.Stat_t); st.Uid != 1234 || st.Gid != 2345 {
			t.Errorf("%s belongs to %d:%d", made, st.Uid, st.Gid)
		}
	}
	for _, c := range []struct{ method, path, body string }{
		{"DELETE", "/files?path=../outside", ""}, {"DELETE", "/directories?path=..", ""},
		{"POST", "/files/mv", `[{"src":"in","dest":"../moved"}]`}, {"POST", "/files/mv", `[{"src":"../outside","dest":"x"}]`},
		{"POST", "/files/permissions", `{"out":{"mode":600}}`}, {"POST", "/files/replace", `{"out":{"old":"secret","new":"x"}}`},
		{"GET", "/directories/list?path=..", ""}, {"GET", "/files/search?path=..", ""}, {"POST", "/directories", `{"../made":{}}`},
	} {
		if status, body := ask(c.method, c.path, c.body); status < 400 {
			t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, status, body)
		}
	}
	if b, err := os.ReadFile(dir + "/outside"); err != nil || string(b) != "secret" {
		t.Errorf("outside: %q, %v", b, err)
	}
	if names, _ := filepath.Glob(dir + "/*"); len(names) != 2 {
		t.Errorf("beside the root: %v", names)
	}
}

type recorder struct {
	header http.Header
	status int
	body   strings.Builder
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) WriteHeader(status int)      { r.status = status }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
