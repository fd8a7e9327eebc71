package files_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Memory stays the same however large a file is, and whatever comes first.
func TestOldTransfersAreStreams(t *testing.T) {
	o := newOld(t)
	const size = 96 << 20
	contentType, form := o.form(`metadata={"path":"$D/f"}`, "file=MARK")
	head, foot, _ := bytes.Cut(form, []byte("MARK"))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	body := io.MultiReader(bytes.NewReader(head), &failing{size, io.EOF}, bytes.NewReader(foot))
	expect(t, 200, "")(o.do("POST", "/files/upload", contentType, body))
	resp, err := o.srv.Client().Get(o.srv.URL + "/files/download?path=" + url.QueryEscape(o.dir+"/f"))
	must(t, err)
	n, err := io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	if n != size || err != nil {
		t.Errorf("downloaded %d, %v", n, err)
	}
	expect(t, 200, `{"`+o.dir+`/f":{"replacedCount":0}}`)(o.json("POST", "/files/replace?verbose=true", `{"$D/f":{"old":"xyz","new":"y"}}`))
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 8<<20 {
		t.Errorf("%d MiB were allocated for %d MiB three times", grown>>20, size>>20)
	}
}

func TestOldConditionalDownload(t *testing.T) {
	o := newOld(t)
	put(t, o.dir+"/f", "0123456789")
	ask := func(header ...string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, o.srv.URL+"/files/download?path="+url.QueryEscape(o.dir+"/f"), nil)
		must(t, err)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := o.srv.Client().Do(req)
		must(t, err)
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		resp.Body.Close()
		resp.Body = io.NopCloser(bytes.NewReader(b))
		return resp
	}
	whole := ask()
	modified, etag := whole.Header.Get("Last-Modified"), whole.Header.Get("ETag")
	if whole.StatusCode != 200 || whole.ContentLength != 10 || modified == "" || etag == "" || whole.Header.Get("Accept-Ranges") != "bytes" {
		t.Errorf("%d %v", whole.StatusCode, whole.Header)
	}
	for name, c := range map[string]struct {
		header []string
		status int
	}{
		"not modified since": {[]string{"If-Modified-Since", modified}, 304},
		"the same":           {[]string{"If-None-Match", etag}, 304},
		"another":            {[]string{"If-None-Match", `"x"`}, 200},
		"long ago":           {[]string{"If-Modified-Since", "Mon, 01 Jan 2001 00:00:00 GMT"}, 200},
		"go on with it":      {[]string{"If-Range", etag, "Range", "bytes=5-"}, 206},
		"it has changed":     {[]string{"If-Range", `"x"`, "Range", "bytes=5-"}, 200},
	} {
		if got := ask(c.header...).StatusCode; got != c.status {
			t.Errorf("%s: %d", name, got)
		}
	}
	refused := ask("Range", "bytes=20-")
	if b, _ := io.ReadAll(refused.Body); refused.StatusCode != 416 || refused.Header.Get("Content-Range") != "bytes */10" || int64(len(b)) != refused.ContentLength {
		t.Errorf("%d %v %q", refused.StatusCode, refused.Header, b)
	}
}

// A listing of the older interface leaves out what vanishes, whatever its depth.
func TestOldListUnderChurn(t *testing.T) {
	o := newOld(t)
	must(t, os.Mkdir(o.dir+"/stays", 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), attackTime())
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			d := fmt.Sprint(o.dir, "/d", i%40)
			os.MkdirAll(d+"/sub", 0o755)
			os.WriteFile(d+"/sub/f", nil, 0o644)
			os.Symlink("x", d+"/link")
			os.RemoveAll(fmt.Sprint(o.dir, "/d", (i+20)%40))
		}
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			o.upload(`metadata={"path":"$D/stays/f"}`, "file=x")
		}
	})
	for ctx.Err() == nil {
		for _, what := range []string{"/directories/list?depth=5&path={}", "/files/search?path={}&pattern=*"} {
			for _, line := range o.infos(what) {
				if strings.Contains(line, ".astrabox") {
					t.Errorf("an unfinished upload shows: %s", line)
				}
			}
		}
	}
	wg.Wait()
}

// The first entries of a big directory come before the last were described, and
// a client that stops reading stops the work.
func TestOldListIsAStream(t *testing.T) {
	o := newOld(t)
	for i := range 20_000 {
		fd, err := unix.Open(fmt.Sprintf("%s/an entry with a name of some length %d", o.dir, i), unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		must(t, err)
		unix.Close(fd)
	}
	resp, err := o.srv.Client().Get(o.srv.URL + "/directories/list?path=" + url.QueryEscape(o.dir))
	must(t, err)
	if resp.ContentLength >= 0 {
		t.Error("all of it was made before it was sent")
	}
	d := json.NewDecoder(resp.Body)
	_, err = d.Token()
	must(t, err)
	n := 0
	for ; d.More(); n++ {
		var e struct{ Path string }
		must(t, d.Decode(&e))
	}
	resp.Body.Close()
	if n != 20_000 {
		t.Errorf("%d entries", n)
	}
	resp, err = o.srv.Client().Get(o.srv.URL + "/directories/list?path=" + url.QueryEscape(o.dir))
	must(t, err)
	resp.Body.Close()
	eventually(t, "the listing ends", func() bool { return len(openDirs(t, o.dir)) == 0 })
}

// openDirs gives the descriptors of this process that are dir itself.
func openDirs(t testing.TB, dir string) (fds []string) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range list {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && to == dir {
			fds = append(fds, e.Name())
		}
	}
	return fds
}

// Requests that don't end by themselves on other daemons do here, and hold nothing.
func TestOldRequestsEnd(t *testing.T) {
	o := newOld(t)
	must(t, unix.Mkfifo(o.dir+"/fifo", 0o600))
	must(t, os.Symlink("fifo", o.dir+"/link"))
	for range 20 {
		expect(t, 400, "fifo")(o.get("/files/download?path={link}"))
		expect(t, 400, "fifo")(o.get("/files/download?path={fifo}&limit=1"))
		expect(t, 500, "fifo")(o.upload(`metadata={"path":"$D/fifo"}`, "file=x"))
		expect(t, 500, "fifo")(o.json("POST", "/files/replace", `{"$D/fifo":{"old":"x","new":"y"}}`))
		expect(t, 400, "directory")(o.get("/files/download?path={}&offset=1"))
	}
	if fds := openIn(t, o.dir); len(fds) != 0 {
		t.Errorf("still open: %v", fds)
	}
	for _, path := range []string{"/proc/self/status", "/proc/meminfo", "/sys/kernel/mm/transparent_hugepage/enabled"} {
		if status, body := o.get("/files/download?path=" + path); status != 200 || body == "" {
			t.Errorf("%s: %d %q", path, status, body)
		}
		if status, body := o.get("/files/download?limit=1&path=" + path); status != 200 || !strings.HasSuffix(body, "\n") {
			t.Errorf("a line of %s: %d %q", path, status, body)
		}
	}
}

// A batch runs in order up to the first failure, which names its item.
func TestOldBatchesNameTheItem(t *testing.T) {
	o := newOld(t)
	for _, name := range []string{"a", "b", "c"} {
		put(t, o.dir+"/"+name, name)
	}
	must(t, os.MkdirAll(o.dir+"/d/e", 0o755))
	expect(t, 500, o.dir+"/d: ")(o.do("DELETE", "/files?path={a}&path={d}&path={b}", "", nil))
	expect(t, 404, o.dir+"/x: ")(o.json("POST", "/files/mv", `[{"src":"$D/b","dest":"$D/moved"},{"src":"$D/x","dest":"$D/y"},{"src":"$D/c","dest":"$D/z"}]`))
	expect(t, 404, o.dir+"/x: ")(o.json("POST", "/files/permissions", `{"$D/c":{"mode":600},"$D/x":{"mode":600},"$D/y":{"mode":600}}`))
	expect(t, 404, o.dir+"/x: ")(o.get("/files/info?path={c}&path={x}"))
	expect(t, 500, o.dir+"/c/x: ")(o.json("POST", "/directories", `{"$D/c/x":{},"$D/z":{}}`))
	expect(t, 500, o.dir+"/d/.: ")(o.do("DELETE", "/directories?path={c/x}&path={d/.}&path={d}", "", nil))
	expect(t, 404, o.dir+"/x: ")(o.json("POST", "/files/replace", `{"$D/c":{"old":"c","new":"C"},"$D/x":{"old":"c","new":"C"}}`))
	if got := names(t, o.dir); !slices.Equal(got, []string{"c", "d", "moved"}) || get(t, o.dir+"/c") != "C" {
		t.Errorf("left: %v", got)
	}
	var st unix.Stat_t
	must(t, unix.Stat(o.dir+"/c", &st))
	if st.Mode&0o777 != 0o600 {
		t.Errorf("what came before the failure wasn't done: %o", st.Mode)
	}
}

// A relative path starts at the daemon's directory.
func TestOldRelativePaths(t *testing.T) {
	o := newOld(t)
	t.Chdir(o.dir)
	expect(t, 200, "")(o.upload(`metadata={"path":"sub/$HOME"}`, "file=x"))
	expect(t, 200, "x")(o.get("/files/download?path=sub/$HOME"))
	expect(t, 200, `"`+o.dir+`/sub/$HOME"`)(o.get("/files/info?path=sub/./$HOME"))
	expect(t, 200, `"`+o.dir+`"`)(o.get("/files/info?path="))
	expect(t, 200, "")(o.do("DELETE", "/directories?path=sub", "", nil))
	if got := names(t, o.dir); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// So is a listing of files.v1: what comes first is there while the rest is made.
func TestListIsAStream(t *testing.T) {
	f, dir := setup(t)
	for i := range 20_000 {
		fd, err := unix.Open(fmt.Sprintf("%s/an entry with a name of some length %d", dir, i), unix.O_CREAT|unix.O_CLOEXEC, 0o600)
		must(t, err)
		unix.Close(fd)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seq, err := f.List(ctx, dir, 1)
	must(t, err)
	n, open := 0, 0
	for _, err := range seq {
		must(t, err)
		if n++; n == 10 {
			open = len(openDirs(t, dir)) // the daemon, in this process, is still at it
			break
		}
	}
	if open == 0 {
		t.Error("all of it was made before it was sent")
	}
	cancel()
	eventually(t, "the listing ends", func() bool { return len(openDirs(t, dir)) == 0 })
}
