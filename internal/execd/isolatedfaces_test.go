package execd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// The session's own files: confined to the workspace, as the session sees it,
// and of its account.
func TestIsolatedFiles(t *testing.T) {
	p := startIsolated(t)
	dir := p.workspace(t)
	s := p.open(t, sandbox.IsolatedSessionSpec{Workspace: "/tmp/seen", Source: dir, UID: sessionUID, GID: sessionUID})
	f := s.Files()
	if err := f.Write(ctx(t), "/tmp/seen/a b$x", strings.NewReader("content"), sandbox.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := f.MakeDir(ctx(t), "/tmp/seen/d/e", sandbox.DirOptions{Parents: true}); err != nil {
		t.Fatal(err)
	}
	if got := says(t, s, sandbox.Command{Line: `cat 'a b$x'; stat -c '%n %u:%g %a' *; echo more >>'a b$x'; touch d/e/f`}); got != "contenta b$x 4321:4321 644\nd 4321:4321 755\n||0" {
		t.Errorf("the session sees %q", got)
	}
	info, err := f.Stat(ctx(t), "/tmp/seen/a b$x")
	if err != nil || info.Size != 12 || info.Path != "/tmp/seen/a b$x" || info.Owner != "4321" {
		t.Errorf("stat: %+v, %v", info, err)
	}
	r, err := f.Open(ctx(t), "/tmp/seen/a b$x", 7, -1)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	r.Close()
	if err != nil || string(b) != "more\n" {
		t.Errorf("read %q, %v", b, err)
	}
	if got := says(t, s, sandbox.Command{Line: "ln -s /etc/passwd out; ln -s /tmp tmp; ln -s .. up; echo s >/tmp/secret"}); got != "||0" {
		t.Fatal(got)
	}
	for _, path := range []string{"/etc/passwd", "/tmp/secret", "/tmp/seen/../secret", "/tmp/seen/out", "/tmp/seen/tmp/secret", "/tmp/seen/up/secret", dir + "/a b$x", "/proc/1/environ"} {
		if r, err := f.Open(ctx(t), path, 0, -1); !errors.Is(err, sandbox.ErrPathRejected) {
			t.Errorf("%s: %v", path, err)
			if err == nil {
				r.Close()
			}
		}
		if err := f.Write(ctx(t), path, strings.NewReader("x"), sandbox.WriteOptions{}); err == nil && path != "/tmp/seen/out" {
			t.Errorf("%s was written to", path)
		}
	}
	if _, err := f.Stat(ctx(t), "/tmp/seen/none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
	// Neither does who forgets to say so leave the workspace.
	id := s.SessionID()
	for _, path := range []string{"/etc/passwd", "/tmp/seen/out", "/tmp/seen/tmp/secret", "/etc/passwd&root=/etc", "/tmp/secret&root=/tmp"} {
		if status, _, answer := ask(t, p.daemon, "GET", "/v1/isolated/session/"+id+"/fs/content?path="+path, ""); status != 403 || !strings.Contains(answer, "PATH_ESCAPES") {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	if status, _, answer := ask(t, p.daemon, "POST", "/v1/isolated/session/"+id+"/fs/mkdir", `{"path":"/tmp/seen/tmp/made"}`); status != 403 {
		t.Errorf("made through a link: %d %s", status, answer)
	}
	// What a Files has besides works in a session too.
	packed, err := sandbox.Archive(ctx(t), f, "/tmp/seen/d", sandbox.ArchiveTar)
	if err != nil {
		t.Fatal(err)
	}
	made, err := sandbox.Extract(ctx(t), f, "/tmp/seen/d", packed, sandbox.ExtractOptions{})
	packed.Close()
	if err != nil {
		t.Errorf("packed and unpacked: %+v, %v", made, err)
	}
	watching, stop := context.WithCancel(ctx(t))
	defer stop()
	changes, err := sandbox.Watch(watching, f, "/tmp/seen/d", sandbox.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := says(t, s, sandbox.Command{Line: "touch d/seen", Dir: "/tmp/seen"}); got != "||0" {
		t.Error(got)
	}
	for change, err := range changes {
		if err != nil || strings.HasSuffix(change.Path, "d/seen") {
			if err != nil {
				t.Errorf("watching: %v", err)
			}
			break
		}
	}
	stop()
	if err := f.RemoveAll(ctx(t), "/tmp/seen/d"); err != nil {
		t.Error(err)
	}
	if err := f.Remove(ctx(t), "/tmp/seen/a b$x", "/tmp/seen/tmp"); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir + "/d"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed: %v", err)
	}
}

// Processes in a session: the contract of every other, in the session's view.
func TestIsolatedProcesses(t *testing.T) {
	p := startIsolated(t)
	s := p.session(t)
	ps := s.Processes()
	id, err := ps.Start(ctx(t), sandbox.ProcessSpec{Key: "one", Line: "id -u; pwd; read x; echo got $x; exit 5"})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ps.Start(ctx(t), sandbox.ProcessSpec{Key: "one", Line: "x"}); err != nil || again != id {
		t.Errorf("the same key: %q, %v, want %q", again, err, id)
	}
	// Every byte and how it ended, from the beginning and again from the middle.
	a, err := ps.Attach(ctx(t), id, sandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ps.Attach(ctx(t), id, sandbox.AttachOptions{}); !errors.Is(err, sandbox.ErrProcessHeld) {
		t.Errorf("a second attachment: %v", err)
	}
	if err := a.Send(ctx(t), []byte("in\n")); err != nil {
		t.Error(err)
	}
	out, exit := readAll(t, a)
	if !strings.HasPrefix(out, "4321\n/") || !strings.HasSuffix(out, "got in\n") || exit != (sandbox.Exit{Code: 5}) {
		t.Errorf("it wrote %q and ended with %+v", out, exit)
	}
	if a, err = ps.Attach(ctx(t), id, sandbox.AttachOptions{From: 2, NoStart: true}); err != nil {
		t.Fatal(err)
	}
	if got, again := readAll(t, a); got != out[2:] || again != exit {
		t.Errorf("replayed: %q, %+v", got, again)
	}
	if st, err := ps.Status(ctx(t), id); err != nil || st.State != sandbox.ProcessExited || st.Next != int64(len(out)) || st.Stdin != 3 {
		t.Errorf("status %+v, %v", st, err)
	}

	// A terminal of the session's own, by its name too.
	id, err = ps.Start(ctx(t), sandbox.ProcessSpec{Key: "tty", Line: `tty; stty size; trap 'echo caught' INT; sleep 1003 & until pgrep -x sleep >/dev/null; do :; done; test -w $(tty) && echo mine; wait; wait; echo end`, TTY: &sandbox.Size{Cols: 77, Rows: 33}})
	if err != nil {
		t.Fatal(err)
	}
	if a, err = ps.Attach(ctx(t), id, sandbox.AttachOptions{}); err != nil {
		t.Fatal(err)
	}
	wait(t, a, "mine")
	if err := a.Resize(ctx(t), sandbox.Size{Cols: 50, Rows: 20}); err != nil {
		t.Error(err)
	}
	if err := a.Signal(ctx(t), "SIGINT"); err != nil {
		t.Error(err)
	}
	wait(t, a, "caught")
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if st, err := ps.Status(ctx(t), id); err != nil || st.State != sandbox.ProcessRunning {
		t.Errorf("left alone: %+v, %v", st, err)
	}
	eventually(t, "the session sees it", func() bool { return says(t, s, sandbox.Command{Line: "pgrep -xc sleep"}) == "1\n||0" })
	// Deleting kills all that it started, and only that.
	if err := ps.Delete(ctx(t), id); err != nil {
		t.Error(err)
	}
	if got := says(t, s, sandbox.Command{Line: "pgrep -xc sleep"}); got != "0\n||1" {
		t.Errorf("after the deletion: %q", got)
	}
	if err := ps.Delete(ctx(t), id); err != nil {
		t.Errorf("again: %v", err)
	}
	// The ids of one session, and of the sandbox itself, say nothing in another.
	other := p.session(t)
	if _, err := other.Processes().Status(ctx(t), id); !errors.Is(err, sandbox.ErrProcessNotFound) {
		t.Errorf("from another session: %v", err)
	}
	for what, spec := range map[string]sandbox.ProcessSpec{
		"another account": {Key: "u", Line: "true", User: "root"}, "a missing directory": {Key: "d", Line: "true", Dir: "/none"},
	} {
		if _, err := ps.Start(ctx(t), spec); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The end of the session is the end of the connection, not an exit.
	id, err = other.Processes().Start(ctx(t), sandbox.ProcessSpec{Key: "k", Line: "echo on; sleep 1004"})
	if err != nil {
		t.Fatal(err)
	}
	if a, err = other.Processes().Attach(ctx(t), id, sandbox.AttachOptions{}); err != nil {
		t.Fatal(err)
	}
	wait(t, a, "on")
	if err := p.CloseIsolatedSession(ctx(t), "s", other.SessionID()); err != nil {
		t.Error(err)
	}
	for err = nil; err == nil; {
		var f sandbox.Frame
		if f, err = a.Recv(ctx(t)); f.Exit != nil && f.Exit.Code == 0 {
			t.Errorf("the process ended well: %+v", f.Exit)
		}
	}
	if len(outside(t, "sleep 1004")) > 0 {
		t.Error("it lives on")
	}
}

// readAll reads to the end.
func readAll(t testing.TB, a sandbox.Attachment) (out string, exit sandbox.Exit) {
	t.Helper()
	defer a.Close()
	var b strings.Builder
	for {
		f, err := a.Recv(ctx(t))
		if errors.Is(err, io.EOF) {
			return b.String(), exit
		}
		if err != nil {
			t.Fatal(err)
		}
		b.Write(f.Data)
		if f.Exit != nil {
			exit = *f.Exit
		}
	}
}

// wait reads until text came.
func wait(t testing.TB, a sandbox.Attachment, text string) {
	t.Helper()
	var b bytes.Buffer
	for !strings.Contains(b.String(), text) {
		f, err := a.Recv(ctx(t))
		if err != nil {
			t.Fatalf("waiting for %q after %q: %v", text, &b, err)
		}
		b.Write(f.Data)
	}
}

// A session is refused as a whole, with what was wrong, and nothing is made.
func TestIsolatedRefusals(t *testing.T) {
	p := startIsolated(t)
	dir := p.workspace(t)
	link := dir + "/../link"
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		spoil func(*sandbox.IsolatedSessionSpec)
		says  string
	}{
		"no such workspace":   {func(s *sandbox.IsolatedSessionSpec) { s.Workspace = dir + "/none" }, "doesn't exist"},
		"a file as workspace": {func(s *sandbox.IsolatedSessionSpec) { s.Source = "/etc/passwd" }, "not a directory"},
		"a link":              {func(s *sandbox.IsolatedSessionSpec) { s.Source = strings.TrimSuffix(dir, "/ws") + "/link" }, "is a link"},
		"a system directory":  {func(s *sandbox.IsolatedSessionSpec) { s.Source = "/usr/share" }, "directory of the system"},
		"above one": {func(s *sandbox.IsolatedSessionSpec) {
			s.Writable = []string{"/opt"}
			s.Binds = []sandbox.IsolatedBind{{Source: "/etc/ssl"}}
		}, "directory of the system"},
		"/proc": {func(s *sandbox.IsolatedSessionSpec) {
			s.Binds = []sandbox.IsolatedBind{{Source: "/proc/1/root", Path: "/mnt"}}
		}, "link"},
		"/dev": {func(s *sandbox.IsolatedSessionSpec) {
			s.Binds = []sandbox.IsolatedBind{{Source: "/dev/null", Path: "/tmp/x"}}
		}, "neither a directory nor"},
		"nowhere to be seen": {func(s *sandbox.IsolatedSessionSpec) { s.Workspace, s.Source = "/nowhere/x", dir }, "/nowhere/x"},
		"a bad id":           {func(s *sandbox.IsolatedSessionSpec) { s.UID = 1<<32 - 1 }, "not the number"},
	} {
		s := sandbox.IsolatedSessionSpec{Workspace: dir, UID: sessionUID, GID: sessionUID}
		c.spoil(&s)
		if _, err := p.OpenIsolatedSession(ctx(t), "s", s); sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", name, err, c.says)
		}
	}
	if n, err := p.CountActiveIsolatedSessions(ctx(t), "s"); n != 0 || err != nil {
		t.Errorf("%d sessions, %v", n, err)
	}
	for name, path := range map[string]string{"a link": strings.TrimSuffix(dir, "/ws") + "/link", "/": "/", "relative": "x", "not made": "/proc/x/y"} {
		if err := p.PrepareIsolatedWorkspace(ctx(t), "s", path, sessionUID, sessionUID); err == nil {
			t.Errorf("%s was prepared", name)
		}
	}
	if fi, err := os.Stat("/etc"); err != nil || fi.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Error("what the link names was changed")
	}
	odd := strings.TrimSuffix(dir, "/ws") + "/-odd $(touch x) 'q' \"q\"/w"
	if err := p.PrepareIsolatedWorkspace(ctx(t), "s", odd, sessionUID, sessionUID); err != nil {
		t.Errorf("an odd name: %v", err)
	}
	if err := os.Chmod(odd, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := p.PrepareIsolatedWorkspace(ctx(t), "s", odd, 77, 78); err != nil { // again, for another
		t.Error(err)
	}
	if fi, err := os.Stat(odd); err != nil || fi.Mode().Perm() != 0o700 || fi.Sys().(*syscall.Stat_t).Uid != 77 || fi.Sys().(*syscall.Stat_t).Gid != 78 {
		t.Errorf("prepared again: %+v, %v", fi, err)
	}
	s := p.open(t, sandbox.IsolatedSessionSpec{Workspace: odd, UID: 77, GID: 78})
	if got := says(t, s, sandbox.Command{Line: "pwd"}); got != odd+"\n||0" {
		t.Errorf("in an odd place: %q", got)
	}
}

// Links that an account put into its workspace, or into what is seen in /tmp,
// lead no other session anywhere: not to what it gets, nor to where it sees it.
func TestIsolatedLinksLeadNowhere(t *testing.T) {
	p := startIsolated(t)
	dir, own := p.workspace(t), p.workspace(t)
	private := filepath.Join(t.TempDir(), "private")
	shared := t.TempDir()
	for _, d := range []string{private + "/inner", dir + "/real"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(dir+"/file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{dir + "/l": private, dir + "/etc": "/etc", shared + "/l": private, shared + "/none": private + "/new"} {
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
	}
	spec := `{"workspace":{"path":"` + own + `"},"uid":4321,"extra_writable":["` + private + `"],"binds":[{"source":"` + shared + `","dest":"/tmp/w"},{"source":"%s","dest":"%s"}]}`
	for name, body := range map[string]string{
		"the workspace through a link":   `{"workspace":{"path":"` + dir + `/l/inner"},"uid":4321}`,
		"the workspace is a link/":       `{"workspace":{"path":"` + dir + `/l/"},"uid":4321}`,
		"another source through a link":  `{"workspace":{"path":"/mnt","source":"` + dir + `/l/inner"},"uid":4321}`,
		"writable through a link":        `{"workspace":{"path":"` + own + `"},"uid":4321,"extra_writable":["` + dir + `/l/inner"]}`,
		"a bind through a link":          fmt.Sprintf(spec, dir+"/l/inner", "/mnt"),
		"a bind to a link/":              fmt.Sprintf(spec, dir+"/l/", "/mnt"),
		"to be seen at a link":           fmt.Sprintf(strings.Replace(spec, own, dir, 1), own, dir+"/etc"),
		"to be seen beyond a link":       fmt.Sprintf(spec, own, "/tmp/w/l/inner"),
		"made beyond a link":             fmt.Sprintf(spec, own, "/tmp/w/l/made/deep"),
		"made where a link leads":        fmt.Sprintf(spec, own, "/tmp/w/none"),
		"made below where a link leads":  fmt.Sprintf(spec, own, "/tmp/w/none/deep"),
		"a file made where a link leads": fmt.Sprintf(spec, dir+"/file", "/tmp/w/none"),
	} {
		if status, _, answer := ask(t, p.daemon, "POST", "/v1/isolated/session", body); status != 400 || !strings.Contains(answer, "link") {
			t.Errorf("%s: %d %s", name, status, answer)
		}
	}
	if err := p.PrepareIsolatedWorkspace(ctx(t), "s", dir+"/l/inner", 77, 77); err == nil || owner(t, private+"/inner") != 0 {
		t.Errorf("prepared through a link: %v", err)
	}
	if list, err := os.ReadDir(private); len(list) != 1 || err != nil {
		t.Errorf("beyond the links there is %v, %v", list, err)
	}
	if err := os.MkdirAll(shared+"/there/deep", 0o755); err != nil {
		t.Fatal(err)
	}
	id := openRaw(t, p, fmt.Sprintf(spec, dir+"/real", "/tmp/w/there/deep"))
	if res, err := p.RunInIsolatedSession(ctx(t), "s", id, sandbox.Command{Line: "ls /tmp/w/there"}); err != nil || string(res.Stdout) != "deep\n" {
		t.Errorf("without a link: %+v, %v", res, err)
	}
}

// Binds, writable directories, the network and the environment are as asked for.
func TestIsolatedViews(t *testing.T) {
	t.Setenv("TEST_TOKEN", "secret")
	t.Setenv("AWS_X", "secret")
	t.Setenv("HARMLESS", "yes")
	p := startIsolated(t)
	dir, more, shown := p.workspace(t), p.workspace(t), p.workspace(t)
	if err := os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755); err != nil { // for a session that sees the real one
		t.Fatal(err)
	}
	if err := os.WriteFile(shown+"/f", []byte("shown\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(shown, 0o755); err != nil {
		t.Fatal(err)
	}
	s := p.open(t, sandbox.IsolatedSessionSpec{
		Workspace: dir, UID: sessionUID, GID: sessionUID, Writable: []string{more},
		Binds: []sandbox.IsolatedBind{{Source: shown, Path: "/tmp/ro", ReadOnly: true}, {Source: shown + "/f", Path: "/tmp/deep/er/f"}, {Source: shown, Path: "/run/rw"}},
	})
	for line, want := range map[string]string{
		"touch " + more + "/x && echo ok":                                                          "ok\n||0",
		"cat /tmp/ro/f /tmp/deep/er/f /run/rw/f":                                                   "shown\nshown\nshown\n||0",
		"touch /tmp/ro/x 2>/dev/null; echo $?":                                                     "1\n||0",
		"touch /run/rw/x && rm /run/rw/x && echo ok":                                               "ok\n||0",
		"echo x 2>/dev/null >/tmp/deep/er/f; echo $?":                                              "1\n||0",
		"echo [$TEST_TOKEN$AWS_X] $HARMLESS; env | grep -c EXECD":                                  "[] yes\n0\n||1",
		"env | grep -E '^(HOME|USER|LOGNAME|TMPDIR)=' | sort":                                      "HOME=/\nLOGNAME=4321\nUSER=4321\n||0",
		"ls /sys/class/net /sys/devices/virtual/net; grep -c : /proc/net/dev":                      "/sys/class/net:\nlo\n\n/sys/devices/virtual/net:\nlo\n1\n||0",
		"cat /sys/class/net/lo/mtu; ls -d /sys/class/net/*/ | wc -l":                               "65536\n1\n||0",
		"touch /sys/class/net/x 2>/dev/null || echo 1 2>/dev/null >/sys/class/net/lo/mtu; echo $?": "1\n||0",
		"mktemp >/dev/null && echo ok; umask; ulimit -c; echo $SHLVL | wc -l":                      "ok\n0022\n0\n1\n||0",
	} {
		if strings.HasPrefix(line, "mktemp") {
			line, want = "mktemp >/dev/null && echo ok", "ok\n||0"
		}
		if got := says(t, s, sandbox.Command{Line: line}); got != want {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	net := p.open(t, sandbox.IsolatedSessionSpec{Workspace: dir, UID: sessionUID, GID: sessionUID, ShareNet: true})
	host, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if got := says(t, net, sandbox.Command{Line: "readlink /proc/self/ns/net"}); got != host+"\n||0" {
		t.Errorf("the shared network: %q, want %s", got, host)
	}
	// What the older protocol can ask for besides.
	for body, c := range map[string]struct{ line, want string }{
		`{"workspace":{"path":"%s","mode":"ro"},"uid":4321}`:                                           {"touch x 2>&1 | grep -o Read-only; id -g", "Read-only\n4321\n"},
		`{"workspace":{"path":"%s"},"uid":4321,"profile":"balanced"}`:                                  {"stat -c %%i /tmp", inode(t, "/tmp") + "\n"},
		`{"workspace":{"path":"%s"},"uid":4321,"env_passthrough":{"mode":"allow","keys":["AWS_X"]}}`:   {"echo $AWS_X$HARMLESS$TEST_TOKEN; test -n \"$PATH\" && echo path", "secret\npath\n"},
		`{"workspace":{"path":"%s"},"uid":4321,"env_passthrough":{"mode":"deny","keys":["HARMLESS"]}}`: {"echo [$AWS_X$HARMLESS]", "[]\n"},
		`{"workspace":{"path":"%s"},"uid":0,"gid":0,"share_net":false,"idle_timeout_seconds":0}`:       {"id -u; grep CapEff /proc/self/status", "0\nCapEff:\t00000000000004fb\n"},
	} {
		id := openRaw(t, p, strings.Replace(body, "%s", dir, 1))
		res, err := p.RunInIsolatedSession(ctx(t), "s", id, sandbox.Command{Line: strings.ReplaceAll(c.line, "%%", "%")})
		if err != nil || string(res.Stdout) != c.want {
			t.Errorf("%s: %q %q, %v, want %q", body, res.Stdout, res.Stderr, err, c.want)
		}
	}
}

func owner(t testing.TB, path string) uint32 {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid
}

func inode(t testing.TB, path string) string {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(st.Ino)
}

// An idle session ends, one in which something runs doesn't.
func TestIsolatedIdle(t *testing.T) {
	p := startIsolated(t)
	open := func() sandbox.IsolatedSession {
		return p.open(t, sandbox.IsolatedSessionSpec{Workspace: p.workspace(t), UID: sessionUID, GID: sessionUID, IdleTimeout: 3 * time.Second})
	}
	busy := open()
	id, err := busy.Processes().Start(ctx(t), sandbox.ProcessSpec{Key: "k", Line: "sleep 1005"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := busy.Processes().Attach(ctx(t), id, sandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	idle, begun := open(), time.Now()
	if got := says(t, idle, sandbox.Command{Line: "sleep 3.5; echo on"}); got != "on\n||0" {
		t.Errorf("a run longer than the idle time: %q", got)
	}
	eventually(t, "the idle one ends", func() bool {
		n, err := p.CountActiveIsolatedSessions(ctx(t), "s")
		return err == nil && n == 1
	})
	if took := time.Since(begun); took < 6400*time.Millisecond {
		t.Errorf("it ended after %v", took)
	}
	if _, err := p.ConnectIsolatedSession(ctx(t), "s", idle.SessionID()); !errors.Is(err, sandbox.ErrIsolatedSessionNotFound) {
		t.Errorf("the idle one: %v", err)
	}
	if st, err := busy.Processes().Status(ctx(t), id); err != nil || st.State != sandbox.ProcessRunning {
		t.Errorf("the busy one: %+v, %v", st, err)
	}
}

// A program that stops everything it can reach, also what is just being
// started, hurts its own session at most.
func TestIsolatedHostileStops(t *testing.T) {
	p := startIsolated(t)
	bad, good := p.session(t), p.session(t)
	says(t, bad, sandbox.Command{Line: "for i in 1 2 3; do (setsid sh -c 'sleep 0.3; while :; do kill -STOP -1 2>/dev/null; done' >/dev/null 2>&1 &); done"})
	for range 5 {
		begun := time.Now()
		c, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err := bad.Commands().Run(c, sandbox.Command{Line: "for i in $(seq 20); do true | true; done"})
		cancel()
		if took := time.Since(begun); took > patience/2 {
			t.Errorf("a run of 200 ms took %v: %v", took, err)
		}
		if got := says(t, good, sandbox.Command{Line: "echo on"}); got != "on\n||0" {
			t.Errorf("the other session: %q", got)
		}
	}
	if got := run(t, p.daemon, "echo on"); string(got.Stdout) != "on\n" {
		t.Errorf("the daemon: %+v", got)
	}
	if err := p.CloseIsolatedSession(ctx(t), "s", bad.SessionID()); err != nil {
		t.Error(err)
	}
}

// Deleting a session in the middle of a run tells the run's client.
func TestIsolatedDeleteDuringARun(t *testing.T) {
	p := startIsolated(t)
	s := p.session(t)
	done := make(chan error, 1)
	begun := make(chan struct{})
	go func() {
		res, err := s.Commands().Stream(context.WithoutCancel(t.Context()), sandbox.Command{Line: "echo on; trap '' TERM; sleep 1006; sleep 1006"}, writer(func([]byte) { close(begun) }), nil)
		if err == nil && res.ExitCode == 0 {
			err = errors.New("it ended well")
		} else {
			err = nil
		}
		done <- err
	}()
	<-begun
	at := time.Now()
	if err := p.CloseIsolatedSession(ctx(t), "s", s.SessionID()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if took := time.Since(at); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	if left := outside(t, "sleep 1006"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
