package files_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What the older interface promises beyond its description: one test each.

// heldUpload sends an upload up to the middle of its content, and the rest when
// resume is called, which gives the status.
func (o *old) heldUpload(meta, first, second string) (resume func() (int, string)) {
	o.t.Helper()
	contentType, form := o.form("metadata="+meta, "file="+first+second)
	cut := bytes.Index(form, []byte(first)) + len(first)
	r, w := io.Pipe()
	type answer struct {
		status int
		body   string
	}
	done := make(chan answer, 1)
	go func() {
		status, body := o.do("POST", "/files/upload", contentType, r)
		done <- answer{status, body}
	}()
	if _, err := w.Write(form[:cut]); err != nil {
		o.t.Fatal(err)
	}
	return func() (int, string) {
		_, err := w.Write(form[cut:])
		w.CloseWithError(err)
		a := <-done
		return a.status, a.body
	}
}

// openIn gives the descriptors of this process that are files in dir.
func openIn(t testing.TB, dir string) (fds []int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, e := range list {
		to, err := os.Readlink("/proc/self/fd/" + e.Name())
		var fd int
		if err == nil && filepath.Dir(strings.TrimSuffix(to, " (deleted)")) == dir {
			if _, err := fmt.Sscan(e.Name(), &fd); err == nil {
				fds = append(fds, fd)
			}
		}
	}
	return fds
}

// An unfinished upload is a file of the target's directory that has no name and
// that nobody else may open; the target is as it was.
func TestOldUploadMeanwhile(t *testing.T) {
	o := newOld(t)
	put(t, o.dir+"/f", "old")
	first := strings.Repeat("a", 300<<10)
	resume := o.heldUpload(`{"path":"$D/f","mode":4755,"owner":"alice"}`, first, "b")
	var st unix.Stat_t
	eventually(t, "the content arrives", func() bool {
		fds := openIn(t, o.dir)
		return len(fds) == 1 && unix.Fstat(fds[0], &st) == nil && st.Size > 100<<10
	})
	if st.Mode&0o7777 != 0o600 || st.Nlink != 0 || st.Uid != 0 {
		t.Errorf("meanwhile its mode is %o, its owner %d, its names %d", st.Mode, st.Uid, st.Nlink)
	}
	if got := names(t, o.dir); !slices.Equal(got, []string{"f"}) || get(t, o.dir+"/f") != "old" {
		t.Errorf("meanwhile there is %v", got)
	}
	expect(t, 200, "")(resume())
	must(t, unix.Stat(o.dir+"/f", &st))
	if got := names(t, o.dir); !slices.Equal(got, []string{"f"}) || get(t, o.dir+"/f") != first+"b" || st.Mode&0o7777 != 0o4755 || st.Uid != 1501 {
		t.Errorf("then there is %v, mode %o of %d", got, st.Mode, st.Uid)
	}
}

func eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	end := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		<-tick.C
	}
}

// events reads what inotify says about a name, as "MOVED_TO CLOSE_WRITE …".
func events(t *testing.T, dir string, do func()) (got []string) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	defer unix.Close(fd)
	kinds := map[uint32]string{
		unix.IN_MOVED_TO: "moved to", unix.IN_CREATE: "created", unix.IN_MODIFY: "written", unix.IN_ATTRIB: "attributes",
		unix.IN_DELETE: "deleted", unix.IN_MOVED_FROM: "moved from",
	}
	var mask uint32
	for kind := range kinds {
		mask |= kind
	}
	_, err = unix.InotifyAddWatch(fd, dir, mask)
	must(t, err)
	do()
	buf := make([]byte, 64<<10)
	n, err := unix.Read(fd, buf)
	must(t, err)
	for b := buf[:n]; len(b) > 0; {
		e := (*unix.InotifyEvent)(unsafe.Pointer(&b[0]))
		name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+e.Len]), "\x00")
		if strings.HasPrefix(name, ".astrabox-") || strings.HasPrefix(name, "#") { // "#": it has no name
			name = "hidden"
		}
		got = append(got, name+" "+kinds[e.Mask&^unix.IN_ISDIR])
		b = b[unix.SizeofInotifyEvent+e.Len:]
	}
	return got
}

// Whoever watches the directory sees one rename onto the name, and never a
// write or a change of bits there.
func TestOldUploadIsOneRename(t *testing.T) {
	o := newOld(t)
	put(t, o.dir+"/f", "old")
	got := events(t, o.dir, func() {
		expect(t, 200, "")(o.upload(`metadata={"path":"$D/f","mode":600,"owner":"alice"}`, "file=new"))
	})
	if got = slices.DeleteFunc(got, func(e string) bool { return strings.HasPrefix(e, "hidden ") }); !slices.Equal(got, []string{"f moved to"}) {
		t.Errorf("seen: %v", got)
	}
	got = events(t, o.dir, func() {
		expect(t, 200, "")(o.upload(`metadata={"path":"$D/g","mode":600,"owner":"alice"}`, "file=new"))
	})
	if got = slices.DeleteFunc(got, func(e string) bool { return strings.HasPrefix(e, "hidden ") }); !slices.Equal(got, []string{"g created"}) {
		t.Errorf("of a new file is seen: %v", got)
	}
}

// Uploads of two clients to one path never mix, and a reader sees the one or
// the other with its own bits.
func TestOldUploadsAtOnce(t *testing.T) {
	o := newOld(t)
	ctx, cancel := context.WithTimeout(t.Context(), attackTime())
	defer cancel()
	send := func(owner string, mode, size int) {
		expect(t, 200, "")(o.upload(fmt.Sprintf(`metadata={"path":"$D/f","mode":%d,"owner":%q}`, mode, owner), "file="+strings.Repeat(owner[:1], size)))
	}
	send("root", 640, 200<<10)
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			send("root", 640, 200<<10)
		}
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			send("alice", 600, 70<<10)
		}
	})
	for ctx.Err() == nil {
		h, err := os.Open(o.dir + "/f")
		must(t, err)
		var st unix.Stat_t
		must(t, unix.Fstat(int(h.Fd()), &st))
		b, err := io.ReadAll(h)
		h.Close()
		must(t, err)
		want, mode, size := "r", uint32(0o640), 200<<10
		if st.Uid != 0 {
			want, mode, size = "a", 0o600, 70<<10
		}
		if len(b) != size || strings.Trim(string(b), want) != "" || st.Mode&0o7777 != mode {
			t.Fatalf("saw %d bytes under %o of %d", len(b), st.Mode, st.Uid)
		}
	}
	wg.Wait()
	if got := names(t, o.dir); !slices.Equal(got, []string{"f"}) {
		t.Errorf("left: %v", got)
	}
}

func TestOldUploadNoSpace(t *testing.T) {
	o := newOld(t)
	o.dir = tmpfs(t, "size=1m")
	put(t, o.dir+"/f", "old")
	free := func() uint64 {
		var st unix.Statfs_t
		must(t, unix.Statfs(o.dir, &st))
		return st.Bfree
	}
	before := free()
	big := "file=" + strings.Repeat("x", 3<<20)
	expect(t, 500, "no space left")(o.upload(`metadata={"path":"$D/f"}`, big))
	expect(t, 500, "no space left")(o.upload(`metadata={"path":"$D/n/e/w"}`, big))
	expect(t, 500, "no space left")(o.upload(big, `metadata={"path":"$D/f"}`)) // spooled first
	if got := names(t, o.dir); !slices.Equal(got, []string{"f"}) || get(t, o.dir+"/f") != "old" || free() != before {
		t.Errorf("left: %v, %d of %d blocks", got, free(), before)
	}
}

// What a file has stays where an upload doesn't say otherwise, new parents get
// the owner, and ones that exist stay as they are.
func TestOldUploadKeeps(t *testing.T) {
	o := newOld(t)
	put(t, o.dir+"/f", "old")
	must(t, os.Chown(o.dir+"/f", 1501, 1600))
	must(t, os.Chmod(o.dir+"/f", 0o640))
	must(t, os.Symlink("f", o.dir+"/link"))
	expect(t, 200, "")(o.upload(`metadata={"path":"$D/link","mode":0}`, "file=new"))
	var st unix.Stat_t
	must(t, unix.Lstat(o.dir+"/f", &st))
	if get(t, o.dir+"/f") != "new" || st.Mode&0o7777 != 0o640 || st.Uid != 1501 || st.Gid != 1600 {
		t.Errorf("mode %o of %d:%d", st.Mode, st.Uid, st.Gid)
	}
	must(t, os.Mkdir(o.dir+"/p", 0o711))
	expect(t, 200, "")(o.upload(`metadata={"path":"$D/p/q/r/f","owner":"alice","group":"staff","mode":600}`, "file=x"))
	for path, want := range map[string][3]uint32{"/p": {0o711, 0, 0}, "/p/q": {0o755, 1501, 1600}, "/p/q/r": {0o755, 1501, 1600}, "/p/q/r/f": {0o600, 1501, 1600}} {
		must(t, unix.Lstat(o.dir+path, &st))
		if got := [3]uint32{st.Mode & 0o7777, st.Uid, st.Gid}; got != want {
			t.Errorf("%s: %o, want %o", path, got, want)
		}
	}
}

// Many clients that make the same parents at once all succeed.
func TestOldUploadsShareParents(t *testing.T) {
	o := newOld(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 5 {
				expect(t, 200, "")(o.upload(fmt.Sprintf(`metadata={"path":"$D/%d/a/b/%d"}`, n, i), "file=x"))
				expect(t, 200, "")(o.json("POST", "/directories", fmt.Sprintf(`{"$D/%d/a/b/c/d":{"mode":750}}`, n)))
			}
		})
	}
	wg.Wait()
	for n := range 5 {
		if got := names(t, fmt.Sprint(o.dir, "/", n, "/a/b")); len(got) != 9 {
			t.Errorf("%d: %v", n, got)
		}
	}
}

// The name and the content of a file are bytes: nothing is recoded, and nothing
// is cut at any size.
func TestOldBytesArrive(t *testing.T) {
	o := newOld(t)
	all := make([]byte, 0, 256)
	for c := range 256 {
		all = append(all, byte(c))
	}
	for _, size := range []int{0, 1, 18<<10 - 1, 18 << 10, 18<<10 + 1, 32 << 10, 64<<10 + 7, 1 << 20, 5<<20 + 3} {
		content := bytes.Repeat(all, size/256+1)[:size]
		var form bytes.Buffer
		w := multipart.NewWriter(&form)
		m, err := w.CreateFormFile("metadata", "m")
		must(t, err)
		fmt.Fprintf(m, `{"path":%q}`, o.dir+"/ünï")
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", `form-data; name="file"; filename="x.txt"`)
		h.Set("Content-Type", "text/plain; charset=utf-16")
		h.Set("Content-Transfer-Encoding", "base64")
		p, err := w.CreatePart(h)
		must(t, err)
		_, err = p.Write(content)
		must(t, err)
		must(t, w.Close())
		for _, body := range []io.Reader{bytes.NewReader(form.Bytes()), io.MultiReader(bytes.NewReader(form.Bytes()))} { // with its length, and in chunks
			must(t, os.RemoveAll(o.dir+"/ünï"))
			expect(t, 200, "")(o.do("POST", "/files/upload", w.FormDataContentType(), body))
			if got := get(t, o.dir+"/ünï"); got != string(content) {
				t.Fatalf("%d bytes became %d", size, len(got))
			}
		}
		if status, got := o.get("/files/download?path={ünï}"); status != 200 || got != string(content) {
			t.Errorf("%d bytes were downloaded as %d", size, len(got))
		}
	}
}

// Parts without a file name don't count, as they never did.
func TestOldUploadParts(t *testing.T) {
	o := newOld(t)
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	must(t, w.WriteField("metadata", `{"path":"`+o.dir+`/f"}`))
	must(t, w.WriteField("file", "x"))
	must(t, w.Close())
	expect(t, 400, "INVALID_FILE_METADATA")(o.do("POST", "/files/upload", w.FormDataContentType(), &form))
	if got := names(t, o.dir); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

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
