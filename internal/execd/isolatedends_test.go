package execd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/execd"
	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
	"github.com/astrabox/astrabox/test/machine"
)

// How isolated sessions end, and with what words.

// stateOf gives what the daemon tells of a session.
func stateOf(t testing.TB, p place, id string) (status, reason string) {
	t.Helper()
	var st struct{ Status, Reason string }
	if _, _, answer := ask(t, p.daemon, "GET", "/v1/isolated/session/"+id, ""); json.Unmarshal([]byte(answer), &st) != nil {
		t.Fatal(answer)
	}
	return st.Status, st.Reason
}

// Root in a session can end its own first process, in several ways. That is the
// end of this session alone, and it is told.
func TestIsolatedRootEndsItsSession(t *testing.T) {
	p := startIsolated(t)
	other := p.session(t)
	before := machineState(t)
	for line, c := range map[string]struct {
		dead   bool
		reason string
	}{
		"kill -9 1; kill -STOP 1; kill -9 -1; kill -STOP -1; true": {false, ""}, // the kernel doesn't let it
		"kill -TERM 1": {true, "its first process ended with status 2"},
		"kill -INT 1":  {true, "its first process ended with status 2"},
		"for i in $(seq 9); do kill -HUP 1; done": {true, "its first process ended with status 2"},
	} {
		dir := p.workspace(t)
		id := openRaw(t, p, `{"workspace":{"path":"`+dir+`"},"uid":0,"gid":0,"share_net":false}`)
		at := "/v1/isolated/session/" + id
		status, _, answer := ask(t, p.daemon, "POST", at+"/run", `{"code":"(setsid sleep 1012 >/dev/null 2>&1 &); echo on","background":false}`)
		if status != 200 {
			t.Fatal(answer)
		}
		// The answer breaks off, or never comes, with the session.
		c0, cancel := context.WithTimeout(t.Context(), patience)
		_, err := p.RunInIsolatedSession(c0, "s", id, sandbox.Command{Line: line})
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: the run hangs", line)
		}
		if !c.dead {
			if status, reason := stateOf(t, p, id); status != "active" || reason != "" {
				t.Errorf("%s: %s %s", line, status, reason)
			}
			if status, _, answer := ask(t, p.daemon, "POST", at+"/run", `{"code":"echo on"}`); status != 200 || !strings.Contains(answer, "execution_complete") {
				t.Errorf("after %s: %d %s", line, status, answer)
			}
		} else {
			eventually(t, line+" ends the session", func() bool { status, _ := stateOf(t, p, id); return status == "dead" })
			if _, reason := stateOf(t, p, id); reason != c.reason {
				t.Errorf("%s: %q, want %q", line, reason, c.reason)
			}
			if status, _, answer := ask(t, p.daemon, "POST", at+"/run", `{"code":"echo on"}`); status != 404 || !strings.Contains(answer, "SESSION_NOT_FOUND") || !strings.Contains(answer, c.reason) {
				t.Errorf("after %s: %d %s", line, status, answer)
			}
		}
		if status, _, answer := ask(t, p.daemon, "DELETE", at, ""); status != 200 {
			t.Errorf("delete: %d %s", status, answer)
		}
		if status, _, _ := ask(t, p.daemon, "GET", at, ""); status != 404 {
			t.Errorf("deleted: %d", status)
		}
		if got := says(t, other, sandbox.Command{Line: "echo on"}); got != "on\n||0" {
			t.Errorf("after %s the other session says %q", line, got)
		}
	}
	if d := cmp.Diff(before, machineState(t)); d != "" {
		t.Errorf("left behind: %s", d)
	}
	if got := run(t, p.daemon, "pgrep -fx 'sleep 1012' | wc -l"); string(got.Stdout) != "0\n" {
		t.Errorf("left behind: %s", got.Stdout)
	}
}

// A body that can't be read is the request's fault, and the session goes on.
func TestIsolatedBadBodies(t *testing.T) {
	p := startIsolated(t)
	s := p.session(t)
	dir := p.workspace(t)
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/run", "zz\r\n", "400 INVALID_REQUEST_BODY"},
		{"POST", "/run", "5\r\n{\"cod", "400 INVALID_REQUEST_BODY"},
		{"POST", "/run", "5\r\n{\"cod\r\nzz\r\n", "400 INVALID_REQUEST_BODY"},
		{"POST", "/pty", "ffffffffffffffffff\r\n", "400 INVALID_REQUEST_BODY"},
		{"PUT", "/fs/content?path=" + dir + "/x", "5\r\nhello\r\nzz\r\n", "400 INCOMPLETE_BODY"},
	} {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(p.base, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "%s /v1/isolated/session/%s%s HTTP/1.1\r\nHost: x\r\n%s: %s\r\nTransfer-Encoding: chunked\r\n\r\n%s", c.method, s.SessionID(), c.path, wire.HeaderToken, token, c.body)
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Error(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			t.Error(err)
		}
		answer, err := io.ReadAll(conn)
		conn.Close()
		got := strings.TrimPrefix(string(answer), "HTTP/1.1 ")
		status, code, _ := strings.Cut(c.want, " ")
		if !strings.HasPrefix(got, status) || !strings.Contains(got, `"`+code+`"`) || err != nil {
			t.Errorf("%s %s with %q: %q, %v, want %s", c.method, c.path, c.body, got, err, c.want)
		}
	}
	if _, err := os.Lstat(dir + "/x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was cut off: %v", err)
	}
	if got := says(t, s, sandbox.Command{Line: "echo on"}); got != "on\n||0" {
		t.Errorf("afterwards: %q", got)
	}
}

// left gives the names of unfinished files below dir.
func left(t testing.TB, dir string) (all []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(path), ".astrabox-") {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return all
}

// A session that is killed in the middle of writing leaves no name of its own
// behind, wherever in its view that was.
func TestIsolatedKilledWhileWriting(t *testing.T) {
	notes := files.OpenNotes(t.TempDir() + "/notes/unfinished")
	if notes == nil {
		t.Fatal("no notes")
	}
	t.Cleanup(func() {
		notes.Close()
		if _, err := os.Lstat(filepath.Dir(notes.File().Name())); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("notes are left: %v", err)
		}
	})
	p := startIsolatedWith(t, execd.Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Files: files.New(files.Config{Notes: notes}), Notes: notes})
	dir, more := p.workspace(t), p.workspace(t)
	if err := os.MkdirAll(dir+"/sub/bound", 0o777); err != nil {
		t.Fatal(err)
	}
	for kills := range 6 { // each place, with a kill and without
		id := openRaw(t, p, `{"workspace":{"path":"/tmp/seen","source":"`+dir+`"},"uid":0,"binds":[{"source":"`+more+`","dest":"/tmp/seen/sub/bound"}]}`)
		s, err := p.ConnectIsolatedSession(ctx(t), "s", id)
		if err != nil {
			t.Fatal(err)
		}
		pid := firstProcess(t, s)
		writing, stop := context.WithCancel(ctx(t))
		var all sync.WaitGroup
		for i, at := range []string{"/tmp/seen/f", "/tmp/seen/sub/g", "/tmp/seen/sub/bound/h"} {
			all.Go(func() {
				for writing.Err() == nil {
					_ = s.Files().MakeDir(writing, at+"d", sandbox.DirOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o750)}})
					_ = s.Files().RemoveAll(writing, at+"d")
					_ = s.Files().Write(writing, at, strings.NewReader(strings.Repeat("x", 1000+i)), sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o640)}})
				}
			})
		}
		machine.StopWhen(t, pid, func() bool { // in each of the places at some time
			names, _ := filepath.Glob([]string{dir, dir + "/sub", more}[kills%3] + "/.astrabox-*")
			return len(names) > 0
		})
		if kills%2 == 0 {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
		if err := p.CloseIsolatedSession(ctx(t), "s", id); err != nil {
			t.Error(err)
		}
		stop()
		all.Wait()
		if names := append(left(t, dir), left(t, more)...); len(names) > 0 {
			t.Fatalf("left behind by kill %d: %v", kills, names)
		}
	}
}

// What runs in sessions when the daemon is asked to end gets SIGTERM, and the
// time to do something about it: runs, processes, terminals, and what runs left
// in the background.
func TestIsolatedStop(t *testing.T) {
	p := startIsolated(t)
	dir := p.workspace(t)
	s, err := p.ConnectIsolatedSession(ctx(t), "s", openRaw(t, p, `{"workspace":{"path":"`+dir+`"},"uid":4321}`))
	if err != nil {
		t.Fatal(err)
	}
	openRaw(t, p, `{"workspace":{"path":"`+dir+`"},"uid":4321}`) // an idle one
	polite := func(name string) string {
		return fmt.Sprintf("trap 'sleep 0.2; echo bye; touch bye-%[1]s; exit 3' TERM; touch up-%[1]s; while :; do sleep 0.02; done", name)
	}
	if got := says(t, s, sandbox.Command{Line: "(setsid bash -c \"" + polite("left") + "\" >/dev/null 2>&1 &)"}); got != "||0" {
		t.Fatal(got)
	}
	id, err := s.Processes().Start(ctx(t), sandbox.ProcessSpec{Key: "k", Line: polite("process")})
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Processes().Attach(ctx(t), id, sandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		res, err := s.Commands().Run(ctx(t), sandbox.Command{Line: polite("run"), Timeout: patience})
		if err != nil || !strings.HasSuffix(string(res.Stdout), "bye\n") || res.ExitCode != 3 {
			t.Errorf("the run: %+v, %v", res, err)
		}
	})
	for _, name := range []string{"left", "process", "run"} {
		eventually(t, name+" is up", func() bool { _, err := os.Lstat(dir + "/up-" + name); return err == nil })
	}
	p.Stop()
	p.Stop() // as often as one likes
	quiet, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	begun := time.Now()
	p.Quiet(quiet)
	if quiet.Err() != nil {
		t.Error("it is never quiet")
	}
	if took := time.Since(begun); took < 150*time.Millisecond {
		t.Errorf("it was quiet after %v", took)
	}
	for _, name := range []string{"left", "process", "run"} {
		if _, err := os.Lstat(dir + "/bye-" + name); err != nil {
			t.Errorf("%s got no time: %v", name, err)
		}
	}
	all.Wait()
	if out, exit := readAll(t, a); !strings.HasSuffix(out, "bye\n") || exit.Code != 3 {
		t.Errorf("the process wrote %q and ended with %+v", out, exit)
	}
	if status, _, answer := ask(t, p.daemon, http.MethodGet, "/v1/isolated/sessions", ""); status != 503 {
		t.Errorf("a daemon that stops: %d %s", status, answer)
	}
}
