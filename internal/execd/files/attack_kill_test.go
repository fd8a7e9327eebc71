package files_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// daemonVariable makes the test program a daemon, which serves on descriptor 3
// until it is killed; its value names the file of what is unfinished.
const daemonVariable = "ASTRABOX_FILES_TEST_DAEMON"

// serveIfAsked is called before the tests.
func serveIfAsked() {
	unfinished := os.Getenv(daemonVariable)
	if unfinished == "" {
		return
	}
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	service := files.New(files.Config{Notes: files.OpenNotes(unfinished)})
	err = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(wire.HeaderServer, wire.ServerName+"/test")
		if r.URL.Path == "/version" {
			_ = json.NewEncoder(w).Encode(wire.Version{Server: wire.ServerName, Features: []string{wire.FeatureFiles}})
			return
		}
		service.ServeHTTP(w, r)
	}))
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// mortal is a daemon in a process of its own, on an address that it keeps
// however often it is killed and begun again.
type mortal struct {
	t          *testing.T
	socket     *os.File
	unfinished string
	url        *url.URL
	cmd        *exec.Cmd
	f          sandbox.Files
}

func newMortal(t *testing.T) *mortal {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	socket, err := l.(*net.TCPListener).File()
	must(t, err)
	m := &mortal{t: t, socket: socket, unfinished: t.TempDir() + "/unfinished", url: &url.URL{Scheme: "http", Host: l.Addr().String()}}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	m.f = execd.Files(execd.Dial(execd.Fixed(sandbox.Endpoint{URL: m.url}), client))
	t.Cleanup(func() {
		m.kill()
		client.CloseIdleConnections()
		socket.Close()
	})
	return m
}

func (m *mortal) start() {
	m.t.Helper()
	m.cmd = exec.Command("/proc/self/exe", "-test.run=^$")
	m.cmd.Env = append(os.Environ(), daemonVariable+"="+m.unfinished)
	m.cmd.ExtraFiles = []*os.File{m.socket}
	m.cmd.Stderr = os.Stderr
	must(m.t, m.cmd.Start())
}

func (m *mortal) kill() {
	if m.cmd != nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		m.cmd = nil
	}
}

// left gives the unfinished names below dir.
func left(t testing.TB, dir string) (all []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if strings.HasPrefix(filepath.Base(path), ".astrabox-") {
			all = append(all, path)
		}
		return err
	}))
	return all
}

// The daemon is killed in the middle of whatever it does, again and again. A
// file then holds one whole content with its own bits and owner, and what had a
// name for a moment is gone once the daemon has begun again.
func TestAttackKills(t *testing.T) {
	m := newMortal(t)
	dir := t.TempDir()
	type version struct {
		letter   string
		size     int
		mode     os.FileMode
		uid      int
		attr     sandbox.Attr
		finished atomic.Int64
	}
	versions := []*version{
		{letter: "a", size: 3 << 10, mode: 0o640, attr: sandbox.Attr{Mode: sandbox.Mode(0o640), Owner: "root"}},
		{letter: "b", size: 200 << 10, mode: 0o600, uid: 4242, attr: sandbox.Attr{Mode: sandbox.Mode(0o600), Owner: "4242"}},
	}
	put(t, dir+"/f", strings.Repeat("a", 3<<10))
	must(t, os.Chmod(dir+"/f", 0o640))
	debris, kills := 0, 0
	for goOn := attacking(); goOn(kills > 2 && versions[0].finished.Load() > 0); kills++ {
		m.start()
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for _, v := range versions {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					o := sandbox.WriteOptions{Attr: v.attr}
					if m.f.Write(ctx, dir+"/f", strings.NewReader(strings.Repeat(v.letter, v.size)), o) == nil {
						v.finished.Add(1)
					}
					_ = m.f.MakeDir(ctx, fmt.Sprint(dir, "/", v.letter, n), sandbox.DirOptions{Attr: v.attr})
					_ = m.f.Remove(ctx, fmt.Sprint(dir, "/", v.letter, n))
				}
			})
		}
		began := versions[0].finished.Load()
		eventually(t, "the daemon works", func() bool { return versions[0].finished.Load() > began+1 })
		timer := time.NewTimer(time.Duration(rand.IntN(5000)) * time.Microsecond)
		<-timer.C
		m.kill()
		cancel()
		wg.Wait()
		h, err := os.Open(dir + "/f")
		must(t, err)
		i, err := h.Stat()
		must(t, err)
		b, err := io.ReadAll(h)
		h.Close()
		must(t, err)
		whole := false
		for _, v := range versions {
			whole = whole || string(b) == strings.Repeat(v.letter, v.size) && i.Mode().Perm() == v.mode && owner(i) == v.uid
		}
		if !whole {
			t.Fatalf("a mixture of %d bytes under %v of %d", len(b), i.Mode(), owner(i))
		}
		debris += len(left(t, dir))
	}
	m.start()
	eventually(t, "the daemon answers", func() bool { _, err := m.f.Stat(t.Context(), dir); return err == nil })
	// What the dead daemon was still asked for may be under way.
	eventually(t, "nothing is left behind", func() bool { return len(left(t, dir)) == 0 })
	t.Logf("%d kills, which left %d names for the next start", kills, debris)
}
