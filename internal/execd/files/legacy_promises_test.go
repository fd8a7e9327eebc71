package files_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/textproto"
	"os"
	"path/filepath"
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

// A replacement that succeeded isn't lost to another that read the file before.
func TestOldReplacementsAtOnce(t *testing.T) {
	o := newOld(t)
	path := o.dir + "/f"
	for range 30 {
		must(t, os.WriteFile(path, []byte("<0><1><2><3><4><5>"), 0o644))
		var wg sync.WaitGroup
		var done [6]bool
		for i := range done {
			wg.Go(func() {
				status, answer := o.json("POST", "/files/replace", fmt.Sprintf(`{"$D/f":{"old":"<%d>","new":"[%d]"}}`, i, i))
				if done[i] = status == 200; !done[i] && !strings.Contains(answer, "changed") {
					t.Errorf("%d %s", status, answer)
				}
			})
		}
		wg.Wait()
		for i, ok := range done {
			if got := get(t, path); ok != strings.Contains(got, fmt.Sprintf("[%d]", i)) {
				t.Fatalf("of %v the file has %q", done, got)
			}
		}
	}
}
