package execd_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/internal/quirk"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Each of these tests first shows the fault to a client that uses the daemon's
// own call as its description says, and then that ours comes around it. So a
// client that went back to that call would fail.

// plainly sends a request as a simple client would.
func (b *box) plainly(method, path string, query url.Values, contentType string, body io.Reader) (int, string, http.Header, error) {
	b.t.Helper()
	c, cancel := context.WithTimeout(b.t.Context(), 2*time.Second)
	defer cancel()
	u := b.s.URL()
	u.Path, u.RawQuery = path, query.Encode()
	req, err := http.NewRequestWithContext(c, method, u.String(), body)
	must(b.t, err)
	req.Header.Set(wire.HeaderToken, quirk.Token)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(text), resp.Header, err
}

func (b *box) plainDelete(path string) int {
	b.t.Helper()
	status, _, _, err := b.plainly("DELETE", "/files", url.Values{"path": {path}}, "", nil)
	must(b.t, err)
	return status
}

func (b *box) plainUpload(content string, meta map[string]any) int {
	b.t.Helper()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	text, err := json.Marshal(meta)
	must(b.t, err)
	for _, part := range [][2]string{{"metadata", string(text)}, {"file", content}} {
		w, err := form.CreateFormFile(part[0], part[0])
		must(b.t, err)
		_, err = io.WriteString(w, part[1])
		must(b.t, err)
	}
	must(b.t, form.Close())
	status, _, _, err := b.plainly("POST", "/files/upload", nil, form.FormDataContentType(), &body)
	must(b.t, err)
	return status
}

func (b *box) plainPost(path string, in any) int {
	b.t.Helper()
	body, err := json.Marshal(in)
	must(b.t, err)
	status, _, _, err := b.plainly("POST", path, nil, "application/json", bytes.NewReader(body))
	must(b.t, err)
	return status
}

func bitsOf(t testing.TB, path string) uint32 {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Lstat(path, &st))
	return st.Mode & 0o7777
}

func TestWire14NamesWithADollar(t *testing.T) {
	b := foreign(t, quirk.Expands)
	f, dir := b.files()
	put(t, dir+"/k", "k")
	put(t, dir+"/k$1", "k1")
	if b.plainUpload("x", map[string]any{"path": dir + "/pr$1ce"}) != 200 || get(t, dir+"/prce") != "x" || b.plainDelete(dir+"/k$1") != 200 {
		t.Fatal("no fault")
	}
	if got := names(t, dir); !slices.Equal(got, []string{"k$1", "prce"}) {
		t.Fatalf("no fault: %v", got)
	}
	put(t, dir+"/k", "k")
	must(t, write(t, f, dir+"/pr$1ce", "mine", sandbox.WriteOptions{}))
	must(t, write(t, f, dir+"/$HOME", "home", sandbox.WriteOptions{}))
	must(t, f.Remove(ctx(t), dir+"/k$1"))
	if got := names(t, dir); !slices.Equal(got, []string{"$HOME", "k", "pr$1ce", "prce"}) || read(t, f, dir+"/pr$1ce", 0, -1) != "mine" || get(t, dir+"/prce") != "x" {
		t.Errorf("the wrong file was touched: %v", got)
	}
}

func TestWire15SpecialBits(t *testing.T) {
	b := foreign(t, quirk.PlainBits)
	f, dir := b.files()
	if status := b.plainUpload("x", map[string]any{"path": dir + "/f", "mode": 4755}); status != 200 || bitsOf(t, dir+"/f") != 0o755 {
		t.Fatalf("no fault: %d", status)
	}
	if status := b.plainPost("/files/permissions", map[string]any{dir + "/f": map[string]int{"mode": 1777}}); status != 200 || bitsOf(t, dir+"/f") != 0o777 {
		t.Fatalf("no fault: %d", status)
	}
	special := sandbox.Attr{Mode: sandbox.Mode(0o755 | fs.ModeSetuid), Owner: someone}
	must(t, write(t, f, dir+"/f", "x", sandbox.WriteOptions{Attr: special}))
	must(t, f.MakeDir(ctx(t), dir+"/d", sandbox.DirOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o777 | fs.ModeSticky)}}))
	if bitsOf(t, dir+"/f") != 0o4755 || bitsOf(t, dir+"/d") != 0o1777 {
		t.Errorf("bits %o and %o", bitsOf(t, dir+"/f"), bitsOf(t, dir+"/d"))
	}
	// A sandbox that drops them too is found out, and nothing has changed.
	b.wrap("chmod", `case $1 in 0[0-7][0-7][0-7][0-7]) set -- "00${1#0?}" "$2";; esac`)
	put(t, dir+"/old", "old")
	isRefused(t, "dropped bits", write(t, f, dir+"/old", "x", sandbox.WriteOptions{Attr: special}), sandbox.ErrPathRejected, fs.ErrPermission)
	isRefused(t, "dropped bits", f.MakeDir(ctx(t), dir+"/e", sandbox.DirOptions{Attr: sandbox.Attr{Mode: special.Mode}}), fs.ErrPermission)
	isRefused(t, "dropped bits", f.SetAttr(ctx(t), dir+"/old", special), fs.ErrPermission)
	if got := names(t, dir); !slices.Equal(got, []string{"d", "f", "old"}) || get(t, dir+"/old") != "old" {
		t.Errorf("left: %v", got)
	}
}

// wrap puts shell text before a program of the sandbox.
func (b *box) wrap(program, text string) {
	b.t.Helper()
	real, err := exec.LookPath(program)
	must(b.t, err)
	if b.s.Path == "" {
		b.s.Path = b.t.TempDir() + ":" + os.Getenv("PATH")
	}
	dir, _, _ := strings.Cut(b.s.Path, ":")
	must(b.t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"+text+"\nexec "+real+` "$@"`+"\n"), 0o755))
}

func TestWire16MovesReplace(t *testing.T) {
	b := foreign(t, quirk.KeepsDest)
	f, dir := b.files()
	put(t, dir+"/a", "a")
	put(t, dir+"/b", "b")
	if status := b.plainPost("/files/mv", []map[string]string{{"src": dir + "/a", "dest": dir + "/b"}}); status != 500 || get(t, dir+"/b") != "b" {
		t.Fatalf("no fault: %d", status)
	}
	must(t, f.Rename(ctx(t), dir+"/a", dir+"/b"))
	if got := names(t, dir); !slices.Equal(got, []string{"b"}) || get(t, dir+"/b") != "a" {
		t.Errorf("left: %v", got)
	}
}

// Nobody sees the content under the daemon's bits, or half of it, and a failure
// of the daemon changes nothing.
func TestWire17WritesInPlace(t *testing.T) {
	b := foreign(t, quirk.InPlace)
	f, dir := b.files()
	path := dir + "/f"
	put(t, path, "old")
	var seen []string
	look := func(op, what string) {
		if op != "upload" {
			return
		}
		open := "hidden"
		for up := filepath.Dir(what); ; up = filepath.Dir(up) {
			i, err := os.Stat(up)
			if err != nil || up == dir {
				open = "seen"
				break
			}
			if i.Mode().Perm()&0o077 == 0 {
				break
			}
		}
		seen = append(seen, fmt.Sprintf("%s, the target %q", open, get(t, path)))
	}
	b.s.Between = look
	if status := b.plainUpload("new", map[string]any{"path": path, "mode": 600}); status != 200 || !slices.Equal(seen, []string{`seen, the target "new"`}) {
		t.Fatalf("no fault: %d %v", status, seen)
	}
	put(t, path, "old")
	seen = nil
	must(t, write(t, f, path, "new", sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o600), Owner: someone}}))
	if !slices.Equal(seen, []string{`hidden, the target "old"`}) || get(t, path) != "new" || bitsOf(t, path) != 0o600 {
		t.Errorf("seen meanwhile: %v", seen)
	}

	b = foreign(t, quirk.InPlace, quirk.NoRoom)
	f, dir = b.files()
	put(t, dir+"/f", "old")
	if status := b.plainUpload("new", map[string]any{"path": dir + "/f"}); status != 500 || get(t, dir+"/f") != "n" {
		t.Fatalf("no fault: %d %q", status, get(t, dir+"/f"))
	}
	put(t, dir+"/f", "old")
	isRefused(t, "a full disk", write(t, f, dir+"/f", "new", sandbox.WriteOptions{}), sandbox.ErrPathRejected, syscall.ENOSPC)
	if got := names(t, dir); !slices.Equal(got, []string{"f"}) || get(t, dir+"/f") != "old" {
		t.Errorf("left: %v", got)
	}
}

func TestWire18Downloads(t *testing.T) {
	b := foreign(t, quirk.OddBodies)
	f, dir := b.files()
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	put(t, dir+"/f", "0123456789")
	get := func(path string) (int, string, http.Header, error) {
		return b.plainly("GET", "/files/download", url.Values{"path": {path}}, "", nil)
	}
	if status, _, h, err := get(dir); status != 200 || h.Get("Content-Length") != "9223372036854775807" || err == nil {
		t.Fatalf("no fault: %d %v %v", status, h, err)
	}
	if _, _, _, err := get(dir + "/fifo"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("no fault: %v", err)
	}
	if status, text, _, _ := get("/proc/version"); status != 500 || !strings.Contains(text, "seeker") {
		t.Fatalf("no fault: %d %s", status, text)
	}
	begin := time.Now()
	isRefused(t, "a directory", second(f.Open(ctx(t), dir, 0, -1)), syscall.EISDIR)
	isRefused(t, "a FIFO", second(f.Open(ctx(t), dir+"/fifo", 0, -1)), syscall.ENODEV)
	if got := read(t, f, "/proc/version", 0, 5); got != "Linux" {
		t.Errorf("/proc/version: %q", got)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
	// What changes between the look and the download isn't taken for something else.
	change := func(do func() error) {
		b.s.Between = func(op, _ string) {
			if op == "download" {
				if err := do(); err != nil {
					t.Error(err)
				}
			}
		}
	}
	change(func() error { return errors.Join(os.Remove(dir+"/f"), os.Mkdir(dir+"/f", 0o755)) })
	isLost(t, "it became a directory", second(f.Open(ctx(t), dir+"/f", 0, -1)))
	must(t, os.Remove(dir+"/f"))
	put(t, dir+"/f", "0123456789")
	change(func() error { return os.Truncate(dir+"/f", 3) })
	if got := read(t, f, dir+"/f", 5, -1); got != "" {
		t.Errorf("it became shorter: %q", got)
	}
	change(func() error { return os.Remove(dir + "/f") })
	isRefused(t, "it vanished", second(f.Open(ctx(t), dir+"/f", 0, 1)), sandbox.ErrPathNotFound)
}

// An answer 416 may promise a body that never comes.
func TestWire18NoBodyBehindARefusedRange(t *testing.T) {
	b := foreign(t, quirk.OddBodies)
	f, dir := b.files()
	put(t, dir+"/f", "0123456789")
	c, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	u := b.s.URL()
	u.Path, u.RawQuery = "/files/download", url.Values{"path": {dir + "/f"}}.Encode()
	req, err := http.NewRequestWithContext(c, http.MethodGet, u.String(), nil)
	must(t, err)
	req.Header = http.Header{wire.HeaderToken: {quirk.Token}, "Range": {"lines=1"}}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	must(t, err)
	_, cut := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 416 || resp.ContentLength != 10 || cut == nil {
		t.Fatalf("no fault: %d %d %v", resp.StatusCode, resp.ContentLength, cut)
	}
	b.s.Between = func(op, _ string) {
		if op == "download" {
			if err := os.Truncate(dir+"/f", 0); err != nil {
				t.Error(err)
			}
		}
	}
	if got := read(t, f, dir+"/f", 5, 2); got != "" {
		t.Errorf("%q", got)
	}
}

func TestWire18ShortBodies(t *testing.T) {
	b := foreign(t, quirk.ShortBodies)
	f, dir := b.files()
	put(t, dir+"/f", "0123456789")
	r, err := f.Open(ctx(t), dir+"/f", 0, -1)
	must(t, err)
	defer r.Close()
	got, err := io.ReadAll(r)
	isLost(t, "a short body", err)
	if string(got) != "01234" {
		t.Errorf("read %q", got)
	}
	_, err = f.List(ctx(t), dir, 1)
	isLost(t, "a short listing", err)
}

func TestWire19Links(t *testing.T) {
	b := foreign(t, quirk.LinkLies)
	f, dir := b.files()
	must(t, os.Mkdir(dir+"/d", 0o755))
	for link, target := range map[string]string{"dangling": "nowhere", "todir": "d"} {
		must(t, os.Symlink(target, dir+"/"+link))
	}
	if b.plainDelete(dir+"/dangling") != 200 || b.plainDelete(dir+"/todir") != 500 || len(names(t, dir)) != 3 {
		t.Fatal("no fault")
	}
	must(t, f.Remove(ctx(t), dir+"/dangling", dir+"/todir"))
	if got := names(t, dir); !slices.Equal(got, []string{"d"}) {
		t.Errorf("left: %v", got)
	}
}

func TestListingsSurviveChurn(t *testing.T) {
	b := foreign(t, quirk.ListFails)
	f, dir := b.files()
	put(t, dir+"/f", "")
	b.s.Between = func(op, _ string) {
		if op == "list" {
			_ = os.Remove(dir + "/f")
		}
	}
	status, _, _, err := b.plainly("GET", "/directories/list", url.Values{"path": {dir}}, "", nil)
	if status != 500 || err != nil {
		t.Fatalf("no fault: %d, %v", status, err)
	}
	// Between find and its look at them, all but one vanish.
	put(t, dir+"/stays", "")
	must(t, os.Symlink("x", dir+"/link"))
	must(t, os.MkdirAll(dir+"/d/e", 0o755))
	put(t, dir+"/d/e/ends with: No space left on device", "")
	b.wrap("stat", `case $1$2 in *//*) rm -rf '`+dir+`'/[dfl]*;; esac`)
	put(t, dir+"/f", "")
	seq, err := f.List(ctx(t), dir, 5)
	if got := paths(t, dir, seq, err); !slices.Equal(got, []string{"/stays"}) {
		t.Errorf("listed %v", got)
	}
}

// What a listing can't describe isn't left out without a word.
func TestListingsThatFail(t *testing.T) {
	for text, cause := range map[string]error{
		"No space left on device": syscall.ENOSPC, "Input/output error": syscall.EIO, "File name too long": syscall.EINVAL,
	} {
		b := foreign(t)
		f, dir := b.files()
		put(t, dir+"/f", "")
		b.wrap("stat", `case $1$2 in *//*) echo "stat: ./x: `+text+`" >&2; exit 1;; esac`)
		_, err := f.List(ctx(t), dir, 1)
		isRefused(t, text, err, sandbox.ErrPathRejected, cause)
	}
}

func TestOwnersInDigits(t *testing.T) {
	b := foreign(t, quirk.NamesOnly, quirk.InPlace)
	f, dir := b.files()
	put(t, dir+"/f", "old")
	if status := b.plainUpload("new", map[string]any{"path": dir + "/f", "owner": "42424242"}); status != 500 || get(t, dir+"/f") != "new" {
		t.Fatalf("no fault: %d", status)
	}
	must(t, write(t, f, dir+"/f", "newer", sandbox.WriteOptions{Attr: sandbox.Attr{Owner: "42424242"}}))
	if i, err := f.Stat(ctx(t), dir+"/f"); err != nil || i.Owner != "42424242" {
		t.Errorf("%+v, %v", i, err)
	}
}

func TestNamesThatArentUTF8(t *testing.T) {
	b := foreign(t, quirk.BothNames)
	f, dir := b.files()
	put(t, dir+"/\xff", "")
	_, text, _, err := b.plainly("GET", "/directories/list", url.Values{"path": {dir}}, "", nil)
	if err != nil || !strings.Contains(text, "\uFFFD") {
		t.Fatalf("no fault: %s, %v", text, err)
	}
	seq, err := f.List(ctx(t), dir, 1)
	if got := paths(t, dir, seq, err); !slices.Equal(got, []string{"/\xff"}) {
		t.Errorf("listed %q", got)
	}
}

// An image without a program that is needed says so.
func TestMissingPrograms(t *testing.T) {
	b := foreign(t)
	f, dir := b.files()
	few := t.TempDir()
	for _, name := range []string{"readlink", "stat", "mkdir", "rm"} {
		path, err := exec.LookPath(name)
		must(t, err)
		must(t, os.Symlink(path, few+"/"+name))
	}
	b.s.Path = few
	for what, err := range map[string]error{
		"write": write(t, f, dir+"/f", "x", sandbox.WriteOptions{}), "list": second(f.List(ctx(t), dir, 1)), "rename": f.Rename(ctx(t), dir+"/a", dir+"/b"),
	} {
		if !errors.Is(err, sandbox.ErrUnsupported) || !errors.Is(err, sandbox.ErrUnreachable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}
