package files_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/files"
)

// as uploads as an account.
func (o *old) as(uid, gid string, parts ...string) (int, string) {
	o.t.Helper()
	contentType, body := o.form(parts...)
	return o.do("POST", "/v1/filesystem/"+uid+"/"+gid+"/files/upload", contentType, bytes.NewReader(body))
}

// newShared gives directories that alice (1501, also in staff, 1600), staff and
// root own, and one for everybody.
func newShared(t testing.TB) *old {
	t.Helper()
	dir, err := os.MkdirTemp("", "as-") // t.TempDir is for this account alone
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	put(t, dir+"/passwd", passwd)
	put(t, dir+"/group", group)
	must(t, os.Chmod(dir+"/passwd", 0o644))
	must(t, os.Chmod(dir+"/group", 0o644))
	o := &old{t, daemon(t, files.Config{Accounts: account.New(dir+"/passwd", dir+"/group")}), dir}
	for _, d := range []struct {
		name     string
		uid, gid int
		mode     uint32
	}{
		{"alice", 1501, 1501, 0o755}, {"staff", 0, 1600, 0o775}, {"root", 0, 0, 0o700}, {"all", 0, 0, 0o1777},
	} {
		must(t, os.Mkdir(o.dir+"/"+d.name, 0o700))
		must(t, os.Chown(o.dir+"/"+d.name, d.uid, d.gid))
		must(t, unix.Chmod(o.dir+"/"+d.name, d.mode))
	}
	put(t, o.dir+"/root/secret", "secret")
	put(t, o.dir+"/all/roots", "roots")
	put(t, o.dir+"/alice/roots", "roots")
	return o
}

func TestAsAccount(t *testing.T) {
	o := newShared(t)
	const denied, alice, stranger = "operation not permitted", "/v1/filesystem/1501/1501", "/v1/filesystem/2000/2000"
	before := fmt.Sprint(os.Geteuid(), os.Getgid())

	expect(t, 200, "")(o.as("1501", "1501", `metadata={"path":"$D/alice/sub/a","mode":640}`, "file=mine", `metadata={"path":"$D/staff/b"}`, "file=ours"))
	expect(t, 200, `"owner":"alice","group":"alice","mode":640`)(o.get(alice + "/files/info?path={alice/sub/a}"))
	expect(t, 200, `"owner":"alice","group":"alice","mode":755`)(o.get(alice + "/files/info?path={alice/sub}"))
	expect(t, 200, `"owner":"alice","group":"alice"`)(o.get(alice + "/files/info?path={staff/b}"))
	expect(t, 200, "mine")(o.get(alice + "/files/download?path={alice/sub/a}"))
	expect(t, 200, "")(o.as("1501", "1501", `metadata={"path":"$D/alice/sub/a"}`, "file=new")) // replaced, as it was
	expect(t, 200, `"mode":640`)(o.get(alice + "/files/info?path={alice/sub/a}"))
	expect(t, 200, "")(o.json("POST", alice+"/files/permissions", `{"$D/alice/sub/a":{"mode":600,"group":"staff"}}`))
	expect(t, 200, `"group":"staff","mode":600`)(o.get(alice + "/files/info?path={alice/sub/a}"))
	expect(t, 200, "")(o.json("POST", alice+"/files/replace", `{"$D/alice/sub/a":{"old":"new","new":"newer"}}`))
	expect(t, 200, "")(o.json("POST", alice+"/files/mv", `[{"src":"$D/alice/sub/a","dest":"$D/alice/moved"}]`))
	expect(t, 200, "newer")(o.get(alice + "/files/download?path={alice/moved}"))
	expect(t, 200, "")(o.json("POST", alice+"/directories", `{"$D/alice/d/e":{"mode":700}}`))
	expect(t, 200, `/d/e"`)(o.get(alice + "/directories/list?path={alice}&depth=3"))
	expect(t, 200, `moved"`)(o.get(alice + "/files/search?path={alice}&pattern=mo*"))
	expect(t, 200, "")(o.do("DELETE", alice+"/directories?path={alice/d}", "", nil))
	expect(t, 200, "")(o.do("DELETE", alice+"/files?path={alice/roots}", "", nil)) // its directory decides

	for what, answer := range map[string]func() (int, string){
		"a strange directory":      func() (int, string) { return o.as("2000", "2000", `metadata={"path":"$D/alice/x"}`, "file=x") },
		"a group that it isn't in": func() (int, string) { return o.as("2000", "2000", `metadata={"path":"$D/staff/x"}`, "file=x") },
		"a strange file":           func() (int, string) { return o.get(stranger + "/files/download?path={alice/moved}") },
		"root's directory":         func() (int, string) { return o.get(alice + "/directories/list?path={root}") },
		"what is in it":            func() (int, string) { return o.get(alice + "/files/info?path={root/secret}") },
		"root's file":              func() (int, string) { return o.as("1501", "1501", `metadata={"path":"$D/all/roots"}`, "file=x") },
		"its removal":              func() (int, string) { return o.do("DELETE", alice+"/files?path={all/roots}", "", nil) },
		"its bits": func() (int, string) {
			return o.json("POST", alice+"/files/permissions", `{"$D/all/roots":{"mode":777}}`)
		},
		"a gift": func() (int, string) {
			return o.as("1501", "1501", `metadata={"path":"$D/alice/x","owner":"root"}`, "file=x")
		},
		"a directory as a gift": func() (int, string) { return o.json("POST", alice+"/directories", `{"$D/alice/x":{"owner":"root"}}`) },
		"a move into another's": func() (int, string) {
			return o.json("POST", alice+"/files/mv", `[{"src":"$D/alice/moved","dest":"$D/root/x"}]`)
		},
		"a directory in another's": func() (int, string) { return o.json("POST", stranger+"/directories", `{"$D/alice/x/y":{}}`) },
	} {
		if status, body := answer(); status != 500 || !strings.Contains(body, denied) && !strings.Contains(body, "permission denied") || !strings.Contains(body, `"code":"RUNTIME_ERROR"`) {
			t.Errorf("%s: %d %s", what, status, body)
		}
	}
	// A group that the account isn't in by itself is what the path says it is.
	expect(t, 200, "")(o.as("2000", "1600", `metadata={"path":"$D/staff/c"}`, "file=c"))
	expect(t, 200, `"owner":"2000","group":"staff"`)(o.get(stranger + "/files/info?path={staff/c}"))

	if got := o.infos("/directories/list?path={alice}&depth=5"); fmt.Sprint(got) != "[/alice/moved file 600 /alice/sub directory 755]" {
		t.Errorf("%v", got)
	}
	if get(t, o.dir+"/all/roots") != "roots" || fmt.Sprint(os.Geteuid(), os.Getgid()) != before {
		t.Error("root's file was changed, or the daemon itself")
	}
	expect(t, 200, "secret")(o.get("/files/download?path={root/secret}"))
	expect(t, 200, "secret")(o.get("/v1/filesystem/0/0/files/download?path={root/secret}"))
}

func TestAsAccountRefused(t *testing.T) {
	o := newShared(t)
	for path, want := range map[string]int{
		"/v1/filesystem": 404, "/v1/filesystem/": 404, "/v1/filesystem/1": 404, "/v1/filesystem/1/2": 404, "/v1/filesystem/1/2/": 404,
		"/v1/filesystem/1/2/files": 404, "/v1/filesystem/1/2/v1/fs/stat": 404, "/v1/filesystem/1/2/v1/filesystem/0/0/files/info": 404,
		"/v1/filesystem//2/files/info": 400, "/v1/filesystem/1//files/info": 400, "/v1/filesystem/-1/2/files/info": 400, "/v1/filesystem/+1/2/files/info": 400,
		"/v1/filesystem/4294967295/2/files/info": 400, "/v1/filesystem/1/4294967295/files/info": 400, "/v1/filesystem/alice/2/files/info": 400,
		"/v1/filesystem/4294967294/4294967294/files/info": 200,
	} {
		if status, body := o.get(path); status != want || status == 400 && !strings.Contains(body, "INVALID_REQUEST_BODY") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// Requests of different accounts at once don't get each other's rights.
func TestAsAccountsAtOnce(t *testing.T) {
	o := newShared(t)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			uid := fmt.Sprint(3000 + i%8)
			if status, body := o.as(uid, uid, fmt.Sprintf(`metadata={"path":"$D/all/%d"}`, i), "file=x"); status != 200 {
				t.Errorf("%d %s", status, body)
			}
			if status, _ := o.get("/v1/filesystem/" + uid + "/" + uid + "/files/download?path={root/secret}"); status != 500 {
				t.Errorf("account %s read root's file: %d", uid, status)
			}
			if status, _ := o.get("/files/download?path={root/secret}"); status != 200 {
				t.Errorf("root couldn't read its file: %d", status)
			}
		})
	}
	wg.Wait()
	for i := range 64 {
		var st unix.Stat_t
		must(t, unix.Stat(fmt.Sprint(o.dir, "/all/", i), &st))
		if want := uint32(3000 + i%8); st.Uid != want || st.Gid != want {
			t.Errorf("file %d belongs to %d:%d", i, st.Uid, st.Gid)
		}
	}
}

// An account sees of others' processes what it would see by itself: that the
// daemon may look into all of them doesn't count.
func TestAsAccountHasNoCapabilities(t *testing.T) {
	o := newShared(t)
	c := exec.CommandContext(t.Context(), "sleep", "60")
	must(t, c.Start())
	defer c.Wait()         //nolint:errcheck // it is killed
	defer c.Process.Kill() //nolint:errcheck // the same
	maps := fmt.Sprintf("/files/download?path=/proc/%d/maps", c.Process.Pid)
	expect(t, 200, "sleep")(o.get(maps))
	if status, body := o.get("/v1/filesystem/1501/1501" + maps); status != 500 || !strings.Contains(body, "denied") && !strings.Contains(body, "permitted") {
		t.Errorf("%d %.100q", status, body)
	}
}

// A replacement that succeeded isn't lost to another's, whoever each is made as.
func TestAsAccountReplacementsAtOnce(t *testing.T) {
	o := newShared(t)
	path := o.dir + "/f"
	for range 60 {
		must(t, os.WriteFile(path, []byte("<0><1><2><3><4><5>"), 0o644))
		var wg sync.WaitGroup
		var done [6]bool
		for i := range done {
			wg.Go(func() {
				as := []string{"", "/v1/filesystem/0/0"}[i%2]
				status, answer := o.json("POST", as+"/files/replace", fmt.Sprintf(`{"$D/f":{"old":"<%d>","new":"[%d]"}}`, i, i))
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
