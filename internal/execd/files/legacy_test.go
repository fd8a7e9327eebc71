package files_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/files"
)

// old calls the older interface.
type old struct {
	t   testing.TB
	srv *httptest.Server
	dir string
}

func newOld(t testing.TB) *old {
	etc := t.TempDir()
	put(t, etc+"/passwd", passwd)
	put(t, etc+"/group", group)
	return &old{t, daemon(t, files.Config{Accounts: account.New(etc+"/passwd", etc+"/group")}), t.TempDir()}
}

// do gives status and body; a path in the query is written as {name}, below the
// test's directory.
func (o *old) do(method, target, contentType string, body io.Reader) (int, string) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), 20*time.Second)
	defer cancel()
	for {
		before, rest, ok := strings.Cut(target, "{")
		if !ok {
			break
		}
		name, after, _ := strings.Cut(rest, "}")
		target = before + url.QueryEscape(o.dir+"/"+name) + after
	}
	req, err := http.NewRequestWithContext(ctx, method, o.srv.URL+target, body)
	must(o.t, err)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := o.srv.Client().Do(req)
	must(o.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(o.t, err)
	return resp.StatusCode, string(b)
}

// json calls with a JSON body in which $D is the test's directory.
func (o *old) json(method, target, body string) (int, string) {
	o.t.Helper()
	return o.do(method, target, "", strings.NewReader(strings.ReplaceAll(body, "$D", o.dir)))
}

func (o *old) get(target string) (int, string) { o.t.Helper(); return o.do("GET", target, "", nil) }

func (o *old) infos(target string) []string {
	o.t.Helper()
	status, body := o.get(target)
	if status != 200 {
		o.t.Fatalf("%s: %d %s", target, status, body)
	}
	var list []struct {
		Path, Type string
		Mode       int
	}
	must(o.t, json.Unmarshal([]byte(body), &list))
	out := []string{}
	for _, f := range list {
		out = append(out, fmt.Sprint(strings.TrimPrefix(f.Path, o.dir), " ", f.Type, " ", f.Mode))
	}
	return out
}

// form builds an upload of name=content parts; $D stands for the directory.
func (o *old) form(parts ...string) (contentType string, body []byte) {
	var buf bytes.Buffer
	w := multipart.NewWriter(&buf)
	for _, p := range parts {
		name, content, _ := strings.Cut(p, "=")
		part, err := w.CreateFormFile(name, name)
		must(o.t, err)
		io.WriteString(part, strings.ReplaceAll(content, "$D", o.dir))
	}
	must(o.t, w.Close())
	return w.FormDataContentType(), buf.Bytes()
}

func (o *old) upload(parts ...string) (int, string) {
	o.t.Helper()
	contentType, body := o.form(parts...)
	return o.do("POST", "/files/upload", contentType, bytes.NewReader(body))
}

func expect(t testing.TB, wantStatus int, wantBody string) func(int, string) {
	t.Helper()
	return func(status int, body string) {
		t.Helper()
		if status != wantStatus || !strings.Contains(body, wantBody) || wantBody == "" && body != "" {
			t.Errorf("answered %d %s, want %d %s", status, body, wantStatus, wantBody)
		}
	}
}

func TestOldUpload(t *testing.T) {
	o := newOld(t)
	expect(t, 200, "")(o.upload(`metadata={"path":"$D/a"}`, "file=one", `metadata={"path":"$D/p/q/b","mode":4750,"owner":"alice","group":"staff"}`, "file=two"))
	expect(t, 200, "")(o.upload("file=three", `metadata={"path":"$D/pr$1ce"}`)) // the other order
	if get(t, o.dir+"/a") != "one" || get(t, o.dir+"/p/q/b") != "two" || get(t, o.dir+"/pr$1ce") != "three" {
		t.Error("wrong contents")
	}
	if got := o.infos("/directories/list?path={}&depth=5"); !slices.Equal(got, []string{"/a file 755", "/p directory 755", "/p/q directory 755", "/p/q/b file 4750", "/pr$1ce file 755"}) {
		t.Errorf("%v", got)
	}
	status, body := o.get("/files/info?path={p/q/b}&path={p}")
	var info map[string]struct {
		Path, Type, Owner, Group string
		Size                     int64
		Mode                     int
		Modified                 time.Time `json:"modified_at"`
		Created                  time.Time `json:"created_at"`
	}
	must(t, json.Unmarshal([]byte(body), &info))
	b, p := info[o.dir+"/p/q/b"], info[o.dir+"/p"]
	if status != 200 || b.Owner != "alice" || b.Group != "staff" || b.Mode != 4750 || b.Size != 3 || b.Modified.IsZero() || b.Created.IsZero() || p.Owner != "alice" || p.Type != "directory" {
		t.Errorf("%d %s", status, body)
	}
	before := o.infos("/directories/list?path={}&depth=5")
	expect(t, 500, "no account named")(o.upload(`metadata={"path":"$D/a","owner":"nobody-here"}`, "file=x"))
	expect(t, 500, "octal")(o.upload(`metadata={"path":"$D/a","mode":9}`, "file=x"))
	expect(t, 500, "octal")(o.upload(`metadata={"path":"$D/new/a","mode":-7}`, "file=x"))
	expect(t, 400, "INVALID_FILE_METADATA")(o.upload(`metadata={"path":"$D/a","mode":"644"}`, "file=x"))
	expect(t, 400, "INVALID_FILE_METADATA")(o.upload(`metadata={"path":""}`, "file=x"))
	expect(t, 400, "INVALID_FILE_METADATA")(o.upload("metadata={\"path\":\"$D/\xff\"}", "file=x"))
	expect(t, 400, "INVALID_FILE_METADATA")(o.upload("file=x"))
	expect(t, 400, "INVALID_FILE_CONTENT")(o.upload(`metadata={"path":"$D/a"}`))
	expect(t, 400, "INVALID_FILE")(o.upload(`metadata={"path":"$D/a"}`, "file=x", "file=y"))
	expect(t, 400, "INVALID_FILE")(o.do("POST", "/files/upload", "text/plain", strings.NewReader("x")))
	expect(t, 500, "is a directory")(o.upload(`metadata={"path":"$D/p"}`, "file=x"))
	expect(t, 500, "is a directory")(o.upload(`metadata={"path":"$D/new/"}`, "file=x"))
	contentType, form := o.form(`metadata={"path":"$D/a"}`, "file=x", `metadata={"path":"$D/n/e/w"}`, "file=y")
	for cut := range len(form) - 4 { // whatever is missing at the end, nothing is stored
		if cut%17 == 0 || cut > len(form)-10 {
			expect(t, 400, "INVALID_FILE")(o.do("POST", "/files/upload", contentType, bytes.NewReader(form[:cut])))
		}
	}
	if after := o.infos("/directories/list?path={}&depth=5"); get(t, o.dir+"/a") != "one" || !slices.Equal(before, after) {
		t.Errorf("refused uploads left %v", after)
	}
	expect(t, 500, o.dir+"/p: ")(o.upload(`metadata={"path":"$D/a"}`, "file=1st", `metadata={"path":"$D/p"}`, "file=2nd", `metadata={"path":"$D/c"}`, "file=3rd"))
	if _, err := os.Stat(o.dir + "/c"); get(t, o.dir+"/a") != "1st" || err == nil {
		t.Error("the first failure should stop, with what came before kept")
	}
}

func TestOldDownload(t *testing.T) {
	o := newOld(t)
	put(t, o.dir+"/f", "l1\r\nl2\nl3")
	put(t, o.dir+"/ü \"x\"\n", "u")
	must(t, unix.Mkfifo(o.dir+"/fifo", 0o600))
	expect(t, 200, "l1\r\nl2\nl3")(o.get("/files/download?path={f}"))
	expect(t, 404, "FILE_NOT_FOUND")(o.get("/files/download?path={missing}"))
	expect(t, 400, "MISSING_QUERY")(o.get("/files/download"))
	expect(t, 400, "directory")(o.get("/files/download?path={}"))
	expect(t, 400, "fifo")(o.get("/files/download?path={fifo}"))
	expect(t, 400, "char_device")(o.get("/files/download?path=/dev/zero"))
	expect(t, 200, "Linux version")(o.get("/files/download?path=/proc/version"))
	for query, lines := range map[string]string{
		"offset=1": "l1\r\nl2\nl3", "offset=2": "l2\nl3", "limit=1": "l1\r\n", "offset=2&limit=1": "l2\n", "offset=3&limit=9": "l3", "offset=4": "",
	} {
		expect(t, 200, lines)(o.get("/files/download?path={f}&" + query))
	}
	for _, query := range []string{"offset=0", "limit=0", "offset=x", "limit=-1"} {
		expect(t, 400, "INVALID_REQUEST_BODY")(o.get("/files/download?path={f}&" + query))
	}
	ranged := func(spec, extra string) (int, string, http.Header) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, o.srv.URL+"/files/download?path="+url.QueryEscape(o.dir+"/f")+extra, nil)
		must(t, err)
		req.Header.Set("Range", spec)
		resp, err := o.srv.Client().Do(req)
		must(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, string(b), resp.Header
	}
	for spec, want := range map[string]string{
		"bytes=1-2": "206 1\r", "bytes=7-": "206 l3", "bytes=-2": "206 l3", "bytes=0-0,3-4": "206 l", "bytes=5-99": "206 2\nl3",
		"bytes=99-": "416 ", "bytes=x": "416 ", "lines=1-2": "416 ",
	} {
		status, body, h := ranged(spec, "")
		if got := fmt.Sprint(status, " ", body); !strings.HasPrefix(got, want) || status == 206 && (got != want || h.Get("Content-Range") == "") {
			t.Errorf("Range %s: %q, want %q", spec, got, want)
		}
	}
	if status, _, _ := ranged("bytes=0-1", "&offset=1"); status != 400 {
		t.Errorf("lines with a Range: %d", status)
	}
	resp, err := o.srv.Client().Get(o.srv.URL + "/files/download?path=" + url.QueryEscape(o.dir+"/ü \"x\"\n"))
	must(t, err)
	resp.Body.Close()
	_, params, err := mime.ParseMediaType(resp.Header.Get("Content-Disposition"))
	if err != nil || params["filename"] != "ü \"x\"\n" {
		t.Errorf("disposition %q: %v %v", resp.Header.Get("Content-Disposition"), params, err)
	}
}

func TestOldChanges(t *testing.T) {
	o := newOld(t)
	put(t, o.dir+"/k", "k")
	put(t, o.dir+"/k$1", "k1")
	put(t, o.dir+"/~", "tilde")
	must(t, os.Symlink("nowhere", o.dir+"/dangling"))
	must(t, os.Symlink("k", o.dir+"/link"))
	must(t, os.Mkdir(o.dir+"/d", 0o700))
	expect(t, 200, "")(o.do("DELETE", "/files?path={k$1}&path={missing}&path={~}&path={dangling}", "", nil))
	if got := names(t, o.dir); !slices.Equal(got, []string{"d", "k", "link"}) {
		t.Errorf("left: %v", got)
	}
	expect(t, 500, o.dir+"/d: ")(o.do("DELETE", "/files?path={d}", "", nil))
	expect(t, 200, "")(o.do("DELETE", "/files", "", nil))

	must(t, os.Symlink("nowhere", o.dir+"/dangling"))
	expect(t, 200, "")(o.json("POST", "/files/mv", `[{"src":"$D/k","dest":"$D/new/dir/k"},{"src":"$D/dangling","dest":"$D/moved"}]`))
	expect(t, 404, "FILE_NOT_FOUND")(o.json("POST", "/files/mv", `[{"src":"$D/missing","dest":"$D/never/x"}]`))
	expect(t, 500, "exists")(o.json("POST", "/files/mv", `[{"src":"$D/new/dir/k","dest":"$D/d"}]`))
	expect(t, 500, "exists")(o.json("POST", "/files/mv", `[{"src":"$D/d","dest":"$D/d"}]`))
	expect(t, 400, "INVALID_REQUEST_BODY")(o.json("POST", "/files/mv", `[{"src":"$D/d"}]`))
	expect(t, 400, "INVALID_REQUEST_BODY")(o.json("POST", "/files/mv", `{`))
	if got := names(t, o.dir); !slices.Equal(got, []string{"d", "link", "moved", "new"}) {
		t.Errorf("left: %v", got)
	}

	expect(t, 200, "")(o.json("POST", "/files/permissions", `{"$D/new/dir/k":{"mode":1640,"owner":"alice"},"$D/d":{"group":"staff"}}`))
	expect(t, 500, "nobody-here")(o.json("POST", "/files/permissions", `{"$D/d":{"mode":777},"$D/new":{"owner":"nobody-here"}}`))
	expect(t, 404, "FILE_NOT_FOUND")(o.json("POST", "/files/permissions", `{"$D/missing":{"mode":644}}`))
	expect(t, 200, "")(o.json("POST", "/directories", `{"$D/m/n":{"mode":750,"owner":"alice"},"$D/d":{"mode":777},"$D/o":null}`))
	expect(t, 500, "nobody-here")(o.json("POST", "/directories", `{"$D/z/z":{"owner":"nobody-here"}}`))
	want := []string{"/d directory 700", "/link symlink 777", "/m directory 755", "/m/n directory 750", "/moved symlink 777", "/new directory 755", "/new/dir directory 755", "/new/dir/k file 1640", "/o directory 755"}
	if diff := cmp.Diff(want, o.infos("/directories/list?path={}&depth=9")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/new/dir/k file 1640"}, o.infos("/files/search?path={}&pattern=**/k")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/link symlink 777", "/moved symlink 777", "/new/dir/k file 1640"}, o.infos("/files/search?path={}")); diff != "" {
		t.Error(diff)
	}
	if got := o.infos("/directories/list?path={}&depth=0"); len(got) != 0 {
		t.Errorf("depth 0: %v", got)
	}
	expect(t, 400, "INVALID_REQUEST_BODY")(o.get("/directories/list?path={link}"))
	expect(t, 400, "INVALID_REQUEST_BODY")(o.get("/directories/list?path={}&depth=-1"))
	expect(t, 404, "FILE_NOT_FOUND")(o.get("/directories/list?path={missing}"))
	expect(t, 404, "FILE_NOT_FOUND")(o.get("/files/info?path={d}&path={missing}"))
	expect(t, 200, "{}")(o.get("/files/info"))
	expect(t, 404, "page not found")(o.do("PUT", "/files/info", "", nil))

	expect(t, 200, "")(o.do("DELETE", "/directories?path={m}&path={link}&path={missing}&path={new}", "", nil))
	if got := names(t, o.dir); !slices.Equal(got, []string{"d", "moved", "o"}) {
		t.Errorf("left: %v", got)
	}
}

func TestOldReplace(t *testing.T) {
	o := newOld(t)
	put(t, o.dir+"/f", "aaa b\xff aa")
	must(t, os.Chmod(o.dir+"/f", 0o600))
	put(t, o.dir+"/same", "nothing")
	must(t, os.Symlink("f", o.dir+"/link"))
	before, err := os.Stat(o.dir + "/same")
	must(t, err)
	expect(t, 200, `{"`+o.dir+`/link":{"replacedCount":2},"`+o.dir+`/same":{"replacedCount":0}}`)(
		o.json("POST", "/files/replace?verbose=true", `{"$D/link":{"old":"aa","new":"<aa>"},"$D/same":{"old":"x","new":"y"}}`))
	st, err := os.Stat(o.dir + "/f")
	must(t, err)
	if got := get(t, o.dir+"/f"); got != "<aa>a b\xff <aa>" || st.Mode() != 0o600 {
		t.Errorf("%q %v", got, st.Mode())
	}
	if after, err := os.Stat(o.dir + "/same"); err != nil || !os.SameFile(before, after) {
		t.Error("a file without a match was written")
	}
	expect(t, 200, "")(o.json("POST", "/files/replace", `{"$D/f":{"old":"<aa>","new":""}}`))
	expect(t, 400, "empty")(o.json("POST", "/files/replace", `{"$D/f":{"old":"","new":"x"}}`))
	expect(t, 404, "FILE_NOT_FOUND")(o.json("POST", "/files/replace", `{"$D/missing":{"old":"x","new":"y"}}`))
	if got := get(t, o.dir+"/f"); got != "a b\xff " {
		t.Errorf("%q", got)
	}
}

// A client that leaves in the middle of an upload leaves nothing.
func TestOldUploadAborted(t *testing.T) {
	o := newOld(t)
	contentType, form := o.form(`metadata={"path":"$D/n/e/w"}`, "file="+strings.Repeat("x", 300<<10))
	c, err := net.Dial("tcp", strings.TrimPrefix(o.srv.URL, "http://"))
	must(t, err)
	defer c.Close()
	fmt.Fprintf(c, "POST /files/upload HTTP/1.1\r\nHost: x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", contentType, len(form))
	_, err = c.Write(form[:200<<10])
	must(t, err)
	must(t, c.(*net.TCPConn).CloseWrite())
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest || len(names(t, o.dir)) != 0 {
		t.Errorf("%d, left: %v", resp.StatusCode, names(t, o.dir))
	}
}
