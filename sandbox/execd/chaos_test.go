package execd_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/internal/quirk"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
	"github.com/astrabox/astrabox/test/machine"
)

// chaosSetting is the number of disconnects that the chaos test forces.
const chaosSetting = "ASTRABOX_CHAOS_DISCONNECTS"

func disconnects(t *testing.T) int64 {
	s := os.Getenv(chaosSetting)
	if s == "" {
		return 300
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 1 {
		t.Fatalf("%s is not a number of disconnects: %q", chaosSetting, s)
	}
	return n
}

// program is AstraBox's daemon as a process of its own.
type program struct {
	pid      int
	endpoint sandbox.Endpoint
}

func runProgram(t *testing.T) program {
	t.Helper()
	bin := filepath.Join(t.TempDir(), "execd")
	if out, err := exec.Command("go", "build", "-o", bin, "../../cmd/execd").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	tokenR, tokenW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	readyR, readyW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	cmd := exec.Command(bin, "--listen", addr, "--token-fd", "3", "--ready-fd", "4")
	cmd.ExtraFiles = []*os.File{tokenR, readyW}
	cmd.Stderr = t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		readyR.Close()
	})
	tokenR.Close()
	readyW.Close()
	if _, err := tokenW.WriteString("a-token\n"); err != nil {
		t.Fatal(err)
	}
	tokenW.Close()
	if b, err := io.ReadAll(readyR); err != nil || string(b) != "ready\n" {
		t.Fatalf("the daemon isn't ready: %q, %v", b, err)
	}
	return program{cmd.Process.Pid, sandbox.Endpoint{
		URL: &url.URL{Scheme: "http", Host: addr}, Headers: map[string]string{wire.HeaderToken: "a-token"},
	}}
}

// proxy passes connections on and breaks each off after some bytes.
type proxy struct {
	l      net.Listener
	to     string
	budget int64 // at most so many bytes, both ways together
	cuts   atomic.Int64
	wg     sync.WaitGroup
}

func chaosProxy(t *testing.T, to string, budget int64) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, to: to, budget: budget}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.serve(c.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		execd.CloseIdleConnections()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) serve(c *net.TCPConn) {
	defer c.Close()
	back, err := net.Dial("tcp", p.to)
	if err != nil {
		return
	}
	d := back.(*net.TCPConn)
	defer d.Close()
	var left atomic.Int64
	left.Store(1 + rand.Int64N(p.budget))
	var once sync.Once
	stop := func(cut bool) {
		once.Do(func() {
			if cut {
				p.cuts.Add(1)
				if rand.IntN(2) == 0 { // a reset loses what is on its way
					_ = c.SetLinger(0)
					_ = d.SetLinger(0)
				}
			}
			c.Close()
			d.Close()
		})
	}
	pass := func(to, from net.Conn) {
		buf := make([]byte, 8<<10)
		for {
			n, err := from.Read(buf)
			rest := left.Add(-int64(n))
			if rest < 0 {
				n = max(0, n+int(rest))
			}
			if n > 0 {
				if _, err := to.Write(buf[:n]); err != nil {
					stop(false)
					return
				}
			}
			if err != nil || rest <= 0 {
				stop(rest <= 0)
				return
			}
		}
	}
	var both sync.WaitGroup
	both.Go(func() { pass(c, d) })
	both.Go(func() { pass(d, c) })
	both.Wait()
}

// sums reads a process to its end and hashes each channel.
func sums(t *testing.T, a sandbox.Attachment) (out [3]string, total int64) {
	t.Helper()
	h := [3]hash.Hash{1: sha256.New(), 2: sha256.New()}
	var next int64
	limit, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	ended := false
	for {
		f, err := a.Recv(limit)
		if errors.Is(err, io.EOF) {
			if !ended {
				t.Error("no end of the run")
			}
			for i := 1; i <= 2; i++ {
				out[i] = hex.EncodeToString(h[i].Sum(nil))
			}
			return out, next
		}
		if err != nil {
			t.Fatalf("after %d bytes: %v", next, err)
		}
		if f.Offset != next || ended {
			t.Fatalf("a frame at %d, want %d; ended %v", f.Offset, next, ended)
		}
		ended = f.Exit != nil
		next += int64(len(f.Data))
		if f.Exit == nil {
			h[f.Channel].Write(f.Data)
			if err := a.Ack(limit, next); err != nil && !errors.Is(err, sandbox.ErrUnreachable) {
				t.Fatalf("Ack: %v", err)
			}
		}
	}
}

func numbers(n int) string {
	h := sha256.New()
	for i := range n {
		fmt.Fprintln(h, i+1)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Every byte of every stream arrives once, whatever breaks connections off.
func TestChaos(t *testing.T) {
	p := runProgram(t)
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		execd.CloseIdleConnections()
		if err := goleak.Find(before); err != nil {
			t.Error(err)
		}
	})
	wanted := disconnects(t)
	px := chaosProxy(t, p.endpoint.URL.Host, 64<<10)
	broken := p.endpoint
	broken.URL = &url.URL{Scheme: "http", Host: px.l.Addr().String()}
	direct, through := execd.Processes(execd.Dial(execd.Fixed(p.endpoint), nil)), execd.Processes(execd.Dial(execd.Fixed(broken), nil))
	const lines = 150000
	want := numbers(lines)
	var streams atomic.Int64
	var workers sync.WaitGroup
	for range 4 {
		workers.Go(func() {
			for px.cuts.Load() < wanted && !t.Failed() {
				n := streams.Add(1)
				id, err := direct.Start(t.Context(), sandbox.ProcessSpec{
					Key: fmt.Sprint("stream ", n), Full: sandbox.Block, Buffer: 256 << 10, Line: fmt.Sprintf("seq %d | tee /dev/stderr", lines),
				})
				if err != nil {
					t.Error(err)
					return
				}
				stream(t, direct, through, id, want)
			}
		})
	}
	workers.Wait()
	t.Logf("%d streams, %d disconnects", streams.Load(), px.cuts.Load())
}

func stream(t *testing.T, direct, through sandbox.Processes, id, want string) {
	first, err := direct.Attach(t.Context(), id, sandbox.AttachOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	first.Close() // started; from here everything goes through the proxy
	var a sandbox.Attachment
	for a == nil {
		a, err = execd.Keep(t.Context(), through, id, sandbox.AttachOptions{Takeover: true, NoStart: true})
		if err != nil && !errors.Is(err, sandbox.ErrUnreachable) {
			t.Errorf("Keep: %v", err)
			return
		}
	}
	got, _ := sums(t, a)
	a.Close()
	if got[1] != want || got[2] != want {
		t.Errorf("%s: %v, want %s", id, got[1:], want)
	}
	if err := direct.Delete(t.Context(), id); err != nil {
		t.Error(err)
	}
}

// The same over a foreign execd, whose replay doesn't keep the channels apart
// and is one message, which has to come whole.
func TestForeignChaos(t *testing.T) {
	b := foreign(t, quirk.Harmless...)
	px := chaosProxy(t, b.s.URL().Host, 96<<10)
	broken := execd.Dial(execd.Fixed(sandbox.Endpoint{
		URL: &url.URL{Scheme: "http", Host: px.l.Addr().String()}, Headers: map[string]string{wire.HeaderToken: quirk.Token},
	}), nil)
	broken.SetDir(b.dir)
	const lines = 12000
	want := numbers(lines)
	for i := 0; px.cuts.Load() < disconnects(t)/20; i++ {
		id := b.start(sandbox.ProcessSpec{Key: fmt.Sprint(i), Line: fmt.Sprintf("seq %d", lines)})
		b.attach(id, sandbox.AttachOptions{}).Close()
		var a sandbox.Attachment
		for a == nil {
			var err error
			a, err = execd.Keep(t.Context(), execd.Processes(broken), id, sandbox.AttachOptions{Takeover: true, NoStart: true})
			if err != nil && !errors.Is(err, sandbox.ErrUnreachable) {
				t.Fatalf("Keep: %v", err)
			}
		}
		got, _ := sums(t, a)
		a.Close()
		if got[1] != want {
			t.Errorf("stream %d: %v, want %s", i, got[1], want)
		}
		if err := b.proc.Delete(ctx(t), id); err != nil {
			t.Error(err)
		}
	}
	t.Logf("%d disconnects", px.cuts.Load())
}

// AstraBox's daemon still speaks the older protocol: hidden behind something
// that doesn't know /version, it is as good as any.
func TestOursAsAForeignOne(t *testing.T) {
	machine.NeedRoot(t)
	p := runProgram(t)
	pass := httputil.NewSingleHostReverseProxy(p.endpoint.URL)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			http.Error(w, "404 page not found", http.StatusNotFound)
			return
		}
		// An answer to a request whose end wasn't read yet is cut off otherwise.
		_ = http.NewResponseController(w).EnableFullDuplex()
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	t.Cleanup(execd.CloseIdleConnections)
	u, _ := url.Parse(front.URL)
	b := &box{t: t, tmp: t.TempDir(), conn: execd.Dial(execd.Fixed(sandbox.Endpoint{URL: u, Headers: p.endpoint.Headers}), nil)}
	b.dir = filepath.Join(b.tmp, "state")
	b.conn.SetDir(b.dir)
	b.cmds, b.proc = execd.Commands(b.conn), execd.Processes(b.conn)
	b.everything()
}

// usage counts a process's descriptors and threads.
func usage(t *testing.T, pid int) (fds, threads int) {
	t.Helper()
	for dir, n := range map[string]*int{"fd": &fds, "task": &threads} {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, dir))
		if err != nil {
			t.Fatal(err)
		}
		*n = len(entries)
	}
	return fds, threads
}

// hasConnections reports whether a process has sockets besides the listening one.
func hasConnections(pid int) bool {
	sockets := 0
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, l := range links {
		if to, _ := os.Readlink(l); strings.HasPrefix(to, "socket:") {
			sockets++
		}
	}
	return sockets > 1
}

// 200 requests given up at any moment leave nothing on either side, and no
// process of theirs.
func TestAbortedRequestsLeaveNothing(t *testing.T) {
	p := runProgram(t)
	conn := execd.Dial(execd.Fixed(p.endpoint), nil)
	round := func(n int, tag string) {
		id, err := execd.Processes(conn).Start(t.Context(), sandbox.ProcessSpec{Key: "p", Line: "exec cat"})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		slots := make(chan struct{}, 20)
		for i := range n {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				c, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(40))*time.Millisecond)
				defer cancel()
				if i%2 == 0 {
					if _, err := execd.Commands(conn).Run(c, sandbox.Command{Line: "exec sleep " + tag}); err == nil {
						t.Error("a command of a minute ended")
					}
					return
				}
				a, err := execd.Processes(conn).Attach(c, id, sandbox.AttachOptions{Takeover: true})
				if err == nil {
					_, _ = a.Recv(c)
					a.Close()
				}
			})
		}
		wg.Wait()
		if err := execd.Processes(conn).Delete(t.Context(), id); err != nil {
			t.Error(err)
		}
		execd.CloseIdleConnections()
	}
	if _, err := execd.Commands(conn).Run(t.Context(), sandbox.Command{Line: "true"}); err != nil {
		t.Fatal(err)
	}
	execd.CloseIdleConnections()
	var fds, threads int
	eventually(t, "the daemon is quiet", func() bool { // all but its connections is made now
		fds, _ = usage(t, p.pid)
		return !hasConnections(p.pid)
	})
	leaks := goleak.IgnoreCurrent()
	ourFDs, _ := usage(t, os.Getpid())
	round(60, "61.25")
	_, threads = usage(t, p.pid)
	round(200, "61.25")
	var nowFDs, nowThreads int
	eventually(t, "the daemon lets go of all descriptors", func() bool {
		nowFDs, nowThreads = usage(t, p.pid)
		return nowFDs <= fds
	})
	eventually(t, "the client lets go of all descriptors", func() bool {
		n, _ := usage(t, os.Getpid())
		return n <= ourFDs
	})
	if nowThreads > threads+16 { // the runtime keeps what it needed at once; one for each request would be 200
		t.Errorf("%d threads, before %d", nowThreads, threads)
	}
	if err := goleak.Find(leaks); err != nil {
		t.Error(err)
	}
	eventually(t, "no command is left", func() bool {
		lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, f := range lines {
			if b, _ := os.ReadFile(f); strings.HasPrefix(string(b), "sleep\x0061.25") {
				return false
			}
		}
		return true
	})
	t.Logf("descriptors %d → %d, threads %d → %d", fds, nowFDs, threads, nowThreads)
}

// The same over a foreign execd.
func TestForeignAbortedRequestsLeaveNothing(t *testing.T) {
	b := foreign(t, quirk.Harmless...)
	b.run("true")
	execd.CloseIdleConnections()
	fds, _ := usage(t, os.Getpid())
	var wg sync.WaitGroup
	slots := make(chan struct{}, 4)
	for range 40 {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			c, cancel := context.WithTimeout(t.Context(), time.Duration(rand.IntN(60))*time.Millisecond)
			defer cancel()
			if _, err := b.cmds.Run(c, sandbox.Command{Line: "exec sleep 62.25"}); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	execd.CloseIdleConnections()
	eventually(t, "all descriptors are let go of", func() bool {
		n, _ := usage(t, os.Getpid())
		return n <= fds
	})
	if left, _ := filepath.Glob(b.dir + "/*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
