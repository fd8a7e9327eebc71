package httpapi_test

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
)

// box is a conversation with some files.
func box(t *testing.T) (r *rig, one, root string) {
	r = newRig(t)
	id := r.conversation()
	root = r.svc.Files(id).Root()
	mustWrite(t, filepath.Join(root, "a.txt"), "0123456789")
	mustWrite(t, filepath.Join(root, "run.sh"), "#!/bin/sh\n")
	mustWrite(t, filepath.Join(root, "empty"), "")
	for _, err := range []error{
		os.Chmod(filepath.Join(root, "run.sh"), 0o755),
		os.Mkdir(filepath.Join(root, "dir"), 0o750),
		os.Symlink("a.txt", filepath.Join(root, "link")),
		os.Symlink("/etc/passwd", filepath.Join(root, "out")),
		os.Symlink("../../../../etc/passwd", filepath.Join(root, "up")),
		os.Symlink("loop", filepath.Join(root, "loop")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	mustWrite(t, filepath.Join(root, "dir/b"), "b")
	return r, "/api/v1/conversations/" + id, root
}

func content(one, path string) string {
	return one + "/files/content?path=" + url.QueryEscape(path)
}

func TestList(t *testing.T) {
	r, one, _ := box(t)
	list := decode[wire.FileList](t, r.do("GET", one+"/files?depth=2", "").body)
	var got []string
	for _, e := range list.Entries {
		got = append(got, fmt.Sprintf("%s %s %s %d %s", e.Path, e.Name, e.Type, e.Size, e.Mode))
	}
	want := []string{
		"/workspace/a.txt a.txt file 10 0644", "/workspace/dir dir directory", "/workspace/dir/b b file 1 0644", "/workspace/empty empty file 0 0644",
		"/workspace/link link symlink 5 0777", "/workspace/loop loop symlink 4 0777", "/workspace/out out symlink 11 0777", "/workspace/run.sh run.sh file 10 0755", "/workspace/up up symlink 22 0777",
	}
	for i := range got {
		if list.Entries[i].Type == wire.TypeDirectory {
			got[i] = strings.Join(strings.Fields(got[i])[:3], " ") // the size of a folder is the file system's affair
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if list.Path != "/workspace" {
		t.Errorf("path %q", list.Path)
	}
	if e := decode[wire.FileList](t, r.do("GET", one+"/files?path=/workspace//dir/", "").body); e.Path != "/workspace/dir" || len(e.Entries) != 1 {
		t.Errorf("%+v", e)
	}
	r.do("POST", one+"/files/mkdir", `{"path":"/workspace/void"}`)
	if body := r.do("GET", one+"/files?path=/workspace/void", "").body; !strings.Contains(body, `"entries":[]`) {
		t.Error(body)
	}
}

func TestBadPaths(t *testing.T) {
	r, one, root := box(t)
	tests := []struct {
		path   string
		status int
		code   fault.Code
	}{
		{"", 400, fault.PathInvalid},
		{"a.txt", 400, fault.PathInvalid},
		{"~/a", 400, fault.PathInvalid},
		{"/workspace/a\x00b", 400, fault.PathInvalid},
		{"/workspace/" + strings.Repeat("x", 5000), 400, fault.PathInvalid},
		{"/etc/passwd", 403, fault.PathEscapes},
		{"/workspace/../etc/passwd", 403, fault.PathEscapes},
		{"/workspace/dir/../../etc/passwd", 403, fault.PathEscapes},
		{"/workspace/dir/../a.txt", 403, fault.PathEscapes},
		{"/workspacex", 403, fault.PathEscapes},
		{"/", 403, fault.PathEscapes},
		{"/workspace/out", 403, fault.PathEscapes},
		{"/workspace/up", 403, fault.PathEscapes},
		{"/workspace/loop", 400, fault.FileRejected},
		{"/workspace", 400, fault.IsADirectory},
		{"/workspace/dir", 400, fault.IsADirectory},
	}
	for _, tt := range tests {
		for _, method := range []string{"GET", "PUT"} {
			body := ""
			if method == "PUT" {
				body = "evil"
			}
			a := r.do(method, content(one, tt.path), body)
			if p := a.problem(t); a.StatusCode != tt.status || p.Code != string(tt.code) {
				t.Errorf("%s %.40q: %d %s", method, tt.path, a.StatusCode, p.Code)
			}
		}
	}
	missing := r.do("GET", content(one, "/workspace/nothing"), "").problem(t)
	if missing.Status != 404 || missing.Code != string(fault.FileNotFound) || !strings.Contains(missing.Detail, "/workspace/nothing") {
		t.Errorf("%+v", missing)
	}
	for _, bad := range []string{one + "/files/content?path=/workspace/a.txt&path=/workspace/empty", one + "/files/content?path=%zz", one + "/files/content?path=/workspace/a.txt&mode=0777",
		one + "/files?depth=0", one + "/files?depth=33", one + "/files?depth=x"} {
		if p := r.do("GET", bad, "").problem(t); p.Code != string(fault.RequestInvalid) {
			t.Errorf("%s: %+v", bad, p)
		}
	}
	for op, body := range map[string]string{
		"mkdir":  `{"path":"/tmp/x"}`,
		"move":   `{"from":"/workspace/a.txt","to":"/workspace/../x"}`,
		"delete": `{"paths":["/workspace/a.txt","/etc"]}`,
	} {
		if p := r.do("POST", one+"/files/"+op, body).problem(t); p.Code != string(fault.PathEscapes) {
			t.Errorf("%s: %+v", op, p)
		}
	}
	for op, body := range map[string]string{"delete": `{"paths":["/workspace/"]}`, "move": `{"from":"/workspace","to":"/workspace/x"}`} {
		if p := r.do("POST", one+"/files/"+op, body).problem(t); p.Code != string(fault.PathInvalid) {
			t.Errorf("%s of the workspace: %+v", op, p)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "a.txt")); err != nil {
		t.Errorf("a refused request had an effect: %v", err)
	}
}

func TestRanges(t *testing.T) {
	r, one, _ := box(t)
	etag := r.do("HEAD", content(one, "/workspace/a.txt"), "").Header.Get("ETag")
	tests := []struct {
		name    string
		headers []string
		status  int
		body    string
		span    string
	}{
		{"whole", nil, 200, "0123456789", ""},
		{"first", []string{"Range: bytes=0-3"}, 206, "0123", "bytes 0-3/10"},
		{"open", []string{"Range: bytes=7-"}, 206, "789", "bytes 7-9/10"},
		{"last", []string{"Range: bytes=-2"}, 206, "89", "bytes 8-9/10"},
		{"longer than the file", []string{"Range: bytes=5-999"}, 206, "56789", "bytes 5-9/10"},
		{"last more than all", []string{"Range: bytes=-99"}, 206, "0123456789", "bytes 0-9/10"},
		{"one byte", []string{"Range: bytes=9-9"}, 206, "9", "bytes 9-9/10"},
		{"beyond", []string{"Range: bytes=10-"}, 416, "", "bytes */10"},
		{"none at the end", []string{"Range: bytes=-0"}, 416, "", "bytes */10"},
		{"several", []string{"Range: bytes=0-1,4-5"}, 200, "0123456789", ""},
		{"backwards", []string{"Range: bytes=5-2"}, 200, "0123456789", ""},
		{"nonsense", []string{"Range: bytes=a-b"}, 200, "0123456789", ""},
		{"a sign", []string{"Range: bytes=+1-2"}, 200, "0123456789", ""},
		{"too large a number", []string{"Range: bytes=99999999999999999999-"}, 200, "0123456789", ""},
		{"another unit", []string{"Range: lines=1-2"}, 200, "0123456789", ""},
		{"if it is the same", []string{"Range: bytes=0-1", "If-Range: " + etag}, 206, "01", "bytes 0-1/10"},
		{"if it is another", []string{"Range: bytes=0-1", `If-Range: "x"`}, 200, "0123456789", ""},
		{"unchanged", []string{"If-None-Match: " + etag}, 304, "", ""},
		{"unchanged, weak, in a list", []string{`If-None-Match: "x", W/` + etag}, 304, "", ""},
		{"changed", []string{`If-None-Match: "x"`}, 200, "0123456789", ""},
		{"matches", []string{"If-Match: " + etag}, 200, "0123456789", ""},
		{"matches no more", []string{`If-Match: "x"`}, 412, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, path := range []string{"/workspace/a.txt", "/workspace/link"} {
				a := r.do("GET", content(one, path), "", tt.headers...)
				if a.StatusCode != tt.status || a.Header.Get("Content-Range") != tt.span || tt.status < 300 && a.body != tt.body {
					t.Errorf("%d %q %q", a.StatusCode, a.Header.Get("Content-Range"), a.body)
				}
			}
		})
	}
	if a := r.do("GET", content(one, "/workspace/empty"), "", "Range: bytes=0-"); a.StatusCode != 416 {
		t.Errorf("a range of nothing: %d", a.StatusCode)
	}
	if a := r.do("GET", content(one, "/workspace/empty"), ""); a.StatusCode != 200 || a.body != "" {
		t.Errorf("an empty file: %d %q", a.StatusCode, a.body)
	}
}

func TestContentCanNotRun(t *testing.T) {
	r, one, root := box(t)
	for name, want := range map[string]string{
		"page.html": "application/octet-stream", "x.js": "application/octet-stream", "x.svg": "image/svg+xml", "x.png": "image/png", "x": "application/octet-stream",
		"grüße \"1\".txt": "text/plain; charset=utf-8",
	} {
		mustWrite(t, filepath.Join(root, name), "<script>alert(1)</script>")
		a := r.do("GET", content(one, "/workspace/"+name), "")
		if a.Header.Get("Content-Type") != want {
			t.Errorf("%s: %q", name, a.Header.Get("Content-Type"))
		}
		if !strings.Contains(a.Header.Get("Content-Security-Policy"), "sandbox") || !strings.HasPrefix(a.Header.Get("Content-Disposition"), "attachment") || a.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %v", name, a.Header)
		}
	}
	if d := r.do("GET", content(one, "/workspace/grüße \"1\".txt"), "").Header.Get("Content-Disposition"); d != `attachment; filename="gr__e _1_.txt"; filename*=UTF-8''gr%C3%BC%C3%9Fe%20%221%22.txt` {
		t.Error(d)
	}
}

func TestConditionalWrites(t *testing.T) {
	r, one, root := box(t)
	put := func(path, body string, headers ...string) answer {
		return r.do("PUT", content(one, path), body, headers...)
	}

	made := put("/workspace/new", "one", "If-None-Match: *")
	e := decode[wire.FileEntry](t, made.body)
	if made.StatusCode != 201 || e.Mode != "0640" || e.Owner != "agent" || e.Group != "agent" || e.Size != 3 || made.Header.Get("ETag") != `"`+e.Version+`"` {
		t.Errorf("%d %+v", made.StatusCode, e)
	}
	if p := put("/workspace/new", "two", "If-None-Match: *").problem(t); p.Code != string(fault.FileExists) || p.Status != 409 {
		t.Errorf("%+v", p)
	}
	second := put("/workspace/new", "two", `If-Match: "`+e.Version+`"`)
	if second.StatusCode != 200 {
		t.Errorf("%d %s", second.StatusCode, second.body)
	}
	if p := put("/workspace/new", "three", `If-Match: "`+e.Version+`"`).problem(t); p.Code != string(fault.FileChanged) || p.Status != 412 {
		t.Errorf("%+v", p)
	}
	if p := put("/workspace/gone", "x", `If-Match: "1"`).problem(t); p.Status != 412 {
		t.Errorf("%+v", p)
	}
	for _, bad := range [][]string{{"If-Match: *"}, {"If-Match: x"}, {`If-Match: "a", "b"`}, {`If-None-Match: "a"`}, {`If-Match: "a"`, "If-None-Match: *"}} {
		if p := put("/workspace/new", "x", bad...).problem(t); p.Code != string(fault.RequestInvalid) {
			t.Errorf("%v: %+v", bad, p)
		}
	}
	if b, _ := os.ReadFile(filepath.Join(root, "new")); string(b) != "two" {
		t.Errorf("content %q", b)
	}

	if e := decode[wire.FileEntry](t, put("/workspace/run.sh", "#!/bin/sh\ntrue\n").body); e.Mode != "0755" || e.Owner != "agent" {
		t.Errorf("saving a script: %+v", e)
	}
	if e := decode[wire.FileEntry](t, put("/workspace/link", "through").body); e.Path != "/workspace/a.txt" {
		t.Errorf("writing through a link: %+v", e)
	}
	if target, err := os.Readlink(filepath.Join(root, "link")); err != nil || target != "a.txt" {
		t.Errorf("the link is gone: %q %v", target, err)
	}
	if p := put("/workspace/no/such/dir", "x").problem(t); p.Status != 404 {
		t.Errorf("%+v", p)
	}
	if p := put("/workspace/x/", "x").problem(t); p.Code != string(fault.IsADirectory) {
		t.Errorf("%+v", p)
	}
}

// An upload that ends before its end leaves the old file.
func TestBrokenUpload(t *testing.T) {
	r, one, root := box(t)
	for name, request := range map[string]string{
		"length":  "Content-Length: 1000\r\n\r\npart",
		"chunked": "Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
	} {
		conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: localhost\r\n%s", content(one, "/workspace/a.txt"), request)
		conn.(*net.TCPConn).CloseWrite()
		status, _ := bufio.NewReader(conn).ReadString('\n')
		conn.Close()
		if strings.Contains(status, " 20") {
			t.Errorf("%s: %s", name, status)
		}
		if b, _ := os.ReadFile(filepath.Join(root, "a.txt")); string(b) != "0123456789" {
			t.Errorf("%s: the file is %q", name, b)
		}
	}
	left, _ := filepath.Glob(filepath.Join(root, "*.tmp"))
	if len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// A client that was answered before it sent its whole body, and sends nothing
// more, doesn't keep its connection.
func TestRestOfABodyThatNeverComes(t *testing.T) {
	r, one, _ := box(t)
	for name, request := range map[string]string{
		"refused upload": "PUT " + content(one, "/etc/passwd") + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\npart",
		"unknown route":  "POST /api/v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{",
		"foreign host":   "POST /api/v1/conversations HTTP/1.1\r\nHost: evil.example\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := io.WriteString(conn, request); err != nil {
				t.Fatal(err)
			}
			if err := conn.SetReadDeadline(time.Now().Add(30 * time.Second)); err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(conn)
			if err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 4") {
				t.Errorf("%.60q, then %v", got, err)
			}
		})
	}
}

func TestLargeTransfer(t *testing.T) {
	r, one, _ := box(t)
	const size = 64 << 20
	source := func() io.Reader { return io.LimitReader(rand.NewChaCha8([32]byte{1}), size) }
	want := sha256.New()
	if _, err := io.Copy(want, source()); err != nil {
		t.Fatal(err)
	}
	if a := r.send("PUT", content(one, "/workspace/large"), source()); a.StatusCode != 201 {
		t.Fatalf("%d %s", a.StatusCode, a.body)
	}
	a := r.do("GET", content(one, "/workspace/large"), "")
	if got := sha256.Sum256([]byte(a.body)); a.err != nil || string(got[:]) != string(want.Sum(nil)) {
		t.Errorf("%d bytes differ, %v", len(a.body), a.err)
	}
}

// A file that is replaced while it is opened is read again, so that the bytes
// and the ETag are of one version.
func TestContentOfOneVersion(t *testing.T) {
	r, one, root := box(t)
	id := strings.TrimPrefix(one, "/api/v1/conversations/")
	stats := 0
	r.svc.Files(id).OnStat = func(p string) {
		if stats++; p == "/workspace/a.txt" && stats == 3 { // the second look of the first try
			mustWrite(t, filepath.Join(root, "other"), "replaced")
			if err := os.Rename(filepath.Join(root, "other"), filepath.Join(root, "a.txt")); err != nil {
				t.Error(err)
			}
		}
	}
	a := r.do("GET", content(one, "/workspace/a.txt"), "")
	r.svc.Files(id).OnStat = nil
	if a.body != "replaced" || a.Header.Get("ETag") != r.do("HEAD", content(one, "/workspace/a.txt"), "").Header.Get("ETag") {
		t.Errorf("%q %s", a.body, a.Header.Get("ETag"))
	}
}

func TestFileOperations(t *testing.T) {
	r, one, root := box(t)
	post := func(op, body string) answer { return r.do("POST", one+"/files/"+op, body) }
	if a := post("mkdir", `{"path":"/workspace/d"}`); a.StatusCode != 201 || decode[wire.FileEntry](t, a.body).Mode != "0750" || decode[wire.FileEntry](t, a.body).Owner != "agent" {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if p := post("mkdir", `{"path":"/workspace/d"}`).problem(t); p.Code != string(fault.FileExists) {
		t.Errorf("%+v", p)
	}
	if p := post("mkdir", `{"path":"/workspace/p/q"}`).problem(t); p.Code != string(fault.FileNotFound) {
		t.Errorf("%+v", p)
	}
	if a := post("mkdir", `{"path":"/workspace/p/q","parents":true}`); a.StatusCode != 201 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if a := post("move", `{"from":"/workspace/a.txt","to":"/workspace/d/a"}`); a.StatusCode != 200 || decode[wire.FileEntry](t, a.body).Path != "/workspace/d/a" {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if p := post("move", `{"from":"/workspace/d/a","to":"/workspace/run.sh"}`).problem(t); p.Code != string(fault.FileExists) {
		t.Errorf("%+v", p)
	}
	if a := post("move", `{"from":"/workspace/d/a","to":"/workspace/run.sh","replace":true}`); a.StatusCode != 200 {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if p := post("move", `{"from":"/workspace/nothing","to":"/workspace/x"}`).problem(t); p.Code != string(fault.FileNotFound) {
		t.Errorf("%+v", p)
	}
	if a := post("delete", `{"paths":["/workspace/d","/workspace/run.sh","/workspace/not/there"]}`); a.StatusCode != 204 || a.body != "" {
		t.Errorf("%d %s", a.StatusCode, a.body)
	}
	if p := post("delete", `{"paths":[]}`).problem(t); p.Code != string(fault.RequestInvalid) {
		t.Errorf("%+v", p)
	}
	for _, gone := range []string{"d", "run.sh"} {
		if _, err := os.Lstat(filepath.Join(root, gone)); !os.IsNotExist(err) {
			t.Errorf("%s: %v", gone, err)
		}
	}
}
