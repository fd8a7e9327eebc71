package files_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

func upload(t testing.TB, f sandbox.Files, path, content string, o sandbox.WriteOptions) error {
	t.Helper()
	return f.(sandbox.Uploader).Upload(t.Context(), path, strings.NewReader(content), int64(len(content)), o)
}

func TestUpload(t *testing.T) {
	f, dir := setup(t)
	for _, f := range []sandbox.Files{f, f.Beneath(dir)} {
		for _, size := range []int{0, 1, 1 << 20} {
			content := strings.Repeat("x", size)
			must(t, upload(t, f, dir+"/f\xff", content, sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o600), Owner: "alice"}}))
			if got := get(t, dir+"/f\xff"); got != content {
				t.Errorf("%d bytes are there instead of %d", len(got), size)
			}
			info, err := f.Stat(t.Context(), dir+"/f\xff")
			if err != nil || info.Mode != 0o600 || info.Owner != "alice" {
				t.Errorf("got %v, %v", info, err)
			}
		}
		want(t, upload(t, f, dir+"/f\xff", "x", sandbox.WriteOptions{NoReplace: true}), fs.ErrExist)
		want(t, upload(t, f, dir+"/f\xff", "x", sandbox.WriteOptions{IfUnchanged: "other"}), sandbox.ErrChanged)
		want(t, upload(t, f, dir+"/missing/f", "x", sandbox.WriteOptions{}), sandbox.ErrPathNotFound)
		want(t, upload(t, f, dir, "x", sandbox.WriteOptions{}), sandbox.ErrPathRejected)
		must(t, os.Symlink("/etc/hostname", dir+"/out"))
		want(t, upload(t, f.Beneath(dir), dir+"/out", "x", sandbox.WriteOptions{}), sandbox.ErrPathRejected)
		must(t, os.Remove(dir+"/out"))
	}
	err := f.(sandbox.Uploader).Upload(t.Context(), dir+"/short", strings.NewReader("short"), 100, sandbox.WriteOptions{})
	want(t, err, sandbox.ErrPathRejected, io.ErrUnexpectedEOF)
	err = f.(sandbox.Uploader).Upload(t.Context(), dir+"/broken", brokenAt{errors.New("disk")}, 100, sandbox.WriteOptions{})
	if want(t, err, sandbox.ErrPathRejected); !strings.Contains(err.Error(), "disk") {
		t.Error(err)
	}
	err = f.(sandbox.Uploader).Upload(t.Context(), dir+"/huge", brokenAt{nil}, 1<<50, sandbox.WriteOptions{})
	want(t, err, sandbox.ErrPathRejected)
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left behind: %q", got)
	}
}

type brokenAt struct{ err error }

func (b brokenAt) ReadAt([]byte, int64) (int, error) { return 0, b.err }

// cutting closes connections after some bytes were received.
type cutting struct {
	net.Listener
	cuts  *atomic.Int64 // how many are still to come
	after int64
}

func (l cutting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && l.cuts.Add(-1) >= 0 {
		c = &cutConn{Conn: c, left: rand.Int64N(l.after) + 1}
	}
	return c, err
}

type cutConn struct {
	net.Conn
	left int64
}

func (c *cutConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.left -= int64(n); c.left < 0 {
		c.Close()
		return 0, errors.New("cut")
	}
	return n, err
}

// An upload whose connection is cut again and again arrives, and nobody sees
// it before it is whole.
func TestUploadIsResumed(t *testing.T) {
	content := make([]byte, 32<<20)
	for i := range content {
		content[i] = byte(rand.Uint32())
	}
	srv := httptest.NewUnstartedServer(nil)
	var received atomic.Int64
	service := files.New(files.Config{})
	srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(wire.HeaderServer, wire.ServerName+"/test")
		if r.URL.Path == "/version" {
			json.NewEncoder(w).Encode(wire.Version{Server: wire.ServerName, Features: files.Features()})
			return
		}
		r.Body = counting{r.Body, &received}
		service.ServeHTTP(w, r)
	})
	var cuts atomic.Int64
	cuts.Store(25)
	srv.Listener = cutting{srv.Listener, &cuts, 1 << 20}
	srv.Start()
	t.Cleanup(srv.Close)
	f, dir := face(t, srv), t.TempDir()
	put(t, dir+"/f", "old")
	for f.(sandbox.Uploader).Upload(t.Context(), dir+"/none", strings.NewReader(""), 0, sandbox.WriteOptions{}) != nil {
		// The question for the features may be what is cut.
	}
	u := f.(sandbox.Uploader)
	must(t, u.Upload(t.Context(), dir+"/f", watched{bytes.NewReader(content), func() {
		if got := get(t, dir+"/f"); got != "old" {
			t.Errorf("%d bytes are seen before the end", len(got))
		}
	}}, int64(len(content)), sandbox.WriteOptions{}))
	if get(t, dir+"/f") != string(content) {
		t.Error("the file holds something else")
	}
	if cuts.Load() > 0 {
		t.Errorf("%d cuts didn't happen", cuts.Load())
	}
	if n := received.Load(); n > int64(len(content))*3/2 {
		t.Errorf("%d bytes were sent for %d", n, len(content))
	}
}

type counting struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c counting) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

type watched struct {
	io.ReaderAt
	look func()
}

func (w watched) ReadAt(p []byte, at int64) (int, error) { w.look(); return w.ReaderAt.ReadAt(p, at) }

// A daemon that was started anew has forgotten the upload, and left nothing;
// the client begins again.
func TestUploadOverARestart(t *testing.T) {
	var service atomic.Pointer[http.Handler]
	restart := func() { h := files.New(files.Config{}); service.Store(&h) }
	restart()
	var patches atomic.Int64
	srv := daemonOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch && patches.Add(1) == 1 {
			(*service.Load()).ServeHTTP(w, r)
			restart()
			return
		}
		(*service.Load()).ServeHTTP(w, r)
	}))
	f, dir := face(t, srv), t.TempDir()
	content := strings.Repeat("y", 1<<20)
	must(t, upload(t, f, dir+"/f", content, sandbox.WriteOptions{}))
	if get(t, dir+"/f") != content || len(names(t, dir)) != 1 {
		t.Errorf("there is %v", names(t, dir))
	}
}

// raw sends one request of the protocol itself.
func raw(t testing.TB, srv *httptest.Server, method, path string, body any) (status int, answer map[string]any) {
	t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		j, err := json.Marshal(b)
		must(t, err)
		r = bytes.NewReader(j)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, r)
	must(t, err)
	resp, err := srv.Client().Do(req)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	if len(b) > 0 {
		must(t, json.Unmarshal(b, &answer))
	}
	return resp.StatusCode, answer
}

func TestUploadProtocol(t *testing.T) {
	srv, dir := daemon(t, files.Config{}), t.TempDir()
	hash := func(s string) string { sum := sha256.Sum256([]byte(s)); return hex.EncodeToString(sum[:]) }
	start := func(name, sum string, size int) string {
		t.Helper()
		status, answer := raw(t, srv, "POST", wire.PathUploads, wire.UploadStart{Scope: wire.Scope{Path: dir + "/" + name}, Size: int64(size), SHA256: sum})
		if status != 200 {
			t.Fatal(status, answer)
		}
		return answer["id"].(string)
	}
	id := start("f", strings.ToUpper(hash("0123456789")), 10)
	at := func(id string, offset int) string {
		return fmt.Sprintf("%s?id=%s&offset=%d", wire.PathUploads, id, offset)
	}
	for _, step := range []struct {
		name, method, path string
		body               any
		status             int
		code               string
		offset             float64
	}{
		{"first part", "PATCH", at(id, 0), "0123", 200, "", 4},
		{"elsewhere", "PATCH", at(id, 3), "3456", 409, wire.CodeUploadOffset, 0},
		{"nowhere", "PATCH", at(id, -1), "x", 400, wire.CodePathInvalid, 0},
		{"too much", "PATCH", at(id, 4), "456789xxx", 400, wire.CodePathInvalid, 0},
		{"status", "GET", wire.PathUploads + "?id=" + id, nil, 200, "", 4},
		{"early finish", "POST", wire.PathUploadFinish, wire.UploadFinish{ID: id}, 400, wire.CodeIncompleteBody, 0},
		{"nothing", "PATCH", at(id, 4), "", 200, "", 4},
		{"second part", "PATCH", at(id, 4), "456789", 200, "", 10},
		{"bad hash", "POST", wire.PathUploadFinish, wire.UploadFinish{ID: id, SHA256: "xyz"}, 400, wire.CodePathInvalid, 0},
		{"unknown field", "POST", wire.PathUploadFinish, map[string]string{"id": id, "sha": "x"}, 400, wire.CodePathInvalid, 0},
		{"finish", "POST", wire.PathUploadFinish, wire.UploadFinish{ID: id, SHA256: hash("0123456789")}, 200, "", 0},
		{"again", "POST", wire.PathUploadFinish, wire.UploadFinish{ID: id}, 200, "", 0},
		{"more after that", "PATCH", at(id, 10), "x", 409, wire.CodeUploadOffset, 0},
		{"status after that", "GET", wire.PathUploads + "?id=" + id, nil, 200, "", 10},
		{"unknown", "GET", wire.PathUploads + "?id=none", nil, 404, wire.CodeUploadNotFound, 0},
		{"unknown too", "PATCH", at("none", 0), "x", 404, wire.CodeUploadNotFound, 0},
		{"path at the wrong place", "GET", wire.PathUploads + "?path=/x&id=" + id, nil, 400, wire.CodePathInvalid, 0},
		{"drop", "DELETE", wire.PathUploads + "?id=" + id, nil, 204, "", 0},
		{"drop again", "DELETE", wire.PathUploads + "?id=" + id, nil, 204, "", 0},
		{"negative size", "POST", wire.PathUploads, wire.UploadStart{Scope: wire.Scope{Path: dir + "/x"}, Size: -1}, 400, wire.CodePathInvalid, 0},
		{"larger than the disk", "POST", wire.PathUploads, wire.UploadStart{Scope: wire.Scope{Path: dir + "/x"}, Size: 1 << 55}, 507, wire.CodeNoSpace, 0},
	} {
		status, answer := raw(t, srv, step.method, step.path, step.body)
		code, _ := answer["code"].(string)
		offset, _ := answer["offset"].(float64)
		if status != step.status || code != step.code || offset != step.offset {
			t.Errorf("%s: %d %v", step.name, status, answer)
		}
	}
	if got := get(t, dir+"/f"); got != "0123456789" {
		t.Errorf("the file holds %q", got)
	}
	id = start("g", "", 3)
	raw(t, srv, "PATCH", at(id, 0), "abc")
	if status, answer := raw(t, srv, "POST", wire.PathUploadFinish, wire.UploadFinish{ID: id}); status != 400 {
		t.Errorf("without a hash: %d %v", status, answer)
	}
	if status, answer := raw(t, srv, "POST", wire.PathUploadFinish, wire.UploadFinish{ID: id, SHA256: hash("other")}); status != 422 || answer["code"] != wire.CodeHashMismatch {
		t.Errorf("with another hash: %d %v", status, answer)
	}
	if status, _ := raw(t, srv, "GET", wire.PathUploads+"?id="+id, nil); status != 404 {
		t.Errorf("after another hash: %d", status)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("there is %v", got)
	}
}

// There is room for a number of uploads only; a finished one makes room.
func TestUploadsAreBounded(t *testing.T) {
	srv, dir := daemon(t, files.Config{}), t.TempDir()
	before := descriptors(t)
	var ids []string
	begin := func() (int, map[string]any) {
		return raw(t, srv, "POST", wire.PathUploads, wire.UploadStart{Scope: wire.Scope{Path: dir + "/f"}})
	}
	for range 64 {
		status, answer := begin()
		if status != 200 {
			t.Fatal(status, answer)
		}
		ids = append(ids, answer["id"].(string))
	}
	if status, answer := begin(); status != 429 || answer["code"] != wire.CodeTooMany {
		t.Errorf("one too many: %d %v", status, answer)
	}
	empty := sha256.Sum256(nil)
	raw(t, srv, "POST", wire.PathUploadFinish, wire.UploadFinish{ID: ids[0], SHA256: hex.EncodeToString(empty[:])})
	status, answer := begin()
	if status != 200 {
		t.Fatalf("after one was finished: %d %v", status, answer)
	}
	for _, id := range append(ids[1:], answer["id"].(string)) {
		raw(t, srv, "DELETE", wire.PathUploads+"?id="+id, nil)
	}
	srv.Client().CloseIdleConnections()
	if after := descriptors(t); after > before+8 {
		t.Errorf("%d descriptors are open, %d were before", after, before)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("there is %v", got)
	}
}

// A part that hangs, because its client is gone without a word, doesn't hold
// up the next one.
func TestUploadTakesOver(t *testing.T) {
	srv, dir := daemon(t, files.Config{}), t.TempDir()
	_, answer := raw(t, srv, "POST", wire.PathUploads, wire.UploadStart{Scope: wire.Scope{Path: dir + "/f"}, Size: 6})
	id := answer["id"].(string)
	pr, pw := io.Pipe()
	defer pw.Close()
	hung := make(chan int, 1)
	go func() {
		req, _ := http.NewRequestWithContext(t.Context(), "PATCH", srv.URL+wire.PathUploads+"?offset=0&id="+id, pr)
		resp, err := srv.Client().Do(req)
		if err != nil {
			hung <- 0
			return
		}
		resp.Body.Close()
		hung <- resp.StatusCode
	}()
	io.WriteString(pw, "abc")
	for {
		if _, answer := raw(t, srv, "GET", wire.PathUploads+"?id="+id, nil); answer["offset"] == 3.0 {
			break
		}
	}
	if status, answer := raw(t, srv, "PATCH", wire.PathUploads+"?offset=3&id="+id, "def"); status != 200 {
		t.Fatal(status, answer)
	}
	pw.Close()
	if status := <-hung; status == 200 {
		t.Error("the part that hung is said to have ended well")
	}
	sum := sha256.Sum256([]byte("abcdef"))
	if status, answer := raw(t, srv, "POST", wire.PathUploadFinish, wire.UploadFinish{ID: id, SHA256: hex.EncodeToString(sum[:])}); status != 200 {
		t.Fatal(status, answer)
	}
	if got := get(t, dir+"/f"); got != "abcdef" {
		t.Errorf("the file holds %q", got)
	}
}

// The directory of an upload is moved out of its root, and another takes its
// place: the file appears in neither.
func TestUploadStaysInItsRoot(t *testing.T) {
	srv, dir := daemon(t, files.Config{}), t.TempDir()
	must(t, os.MkdirAll(dir+"/root/d", 0o755))
	empty := sha256.Sum256(nil)
	for _, put := range []func() error{
		func() error { return nil },
		func() error { return os.Mkdir(dir+"/root/d", 0o755) },
		func() error { return os.Symlink("../gone", dir+"/root/d") },
	} {
		must(t, os.RemoveAll(dir+"/root/d"))
		must(t, os.RemoveAll(dir+"/gone"))
		must(t, os.Mkdir(dir+"/root/d", 0o755))
		_, answer := raw(t, srv, "POST", wire.PathUploads, wire.UploadStart{Scope: wire.Scope{Path: dir + "/root/d/f", Roots: []string{dir + "/root"}}})
		id := answer["id"].(string)
		must(t, os.Rename(dir+"/root/d", dir+"/gone"))
		must(t, put())
		if status, answer := raw(t, srv, "POST", wire.PathUploadFinish, wire.UploadFinish{ID: id, SHA256: hex.EncodeToString(empty[:])}); status == 200 {
			t.Errorf("%v", answer)
		}
		if list := names(t, dir+"/gone"); len(list) != 0 {
			t.Errorf("outside there is %v", list)
		}
	}
}
