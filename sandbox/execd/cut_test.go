package execd_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// cutting passes connections on until the daemon has said so many bytes on them
// together, and then cuts all.
func cutting(t *testing.T, to string, bytes int64) (l net.Listener, done func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var left atomic.Int64
	left.Store(bytes)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			d, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(d, c)
				d.Close()
			})
			wg.Go(func() {
				buf := make([]byte, 4<<10)
				for {
					n, err := d.Read(buf)
					if rest := left.Add(-int64(n)); rest < 0 {
						n = max(0, n+int(rest))
						err = io.EOF
					}
					if _, writeErr := c.Write(buf[:n]); err != nil || writeErr != nil {
						c.Close()
						return
					}
				}
			})
		}
	})
	return l, func() {
		l.Close()
		execd.CloseIdleConnections()
		wg.Wait()
	}
}

// Wherever a connection is cut, the answer is whole or known to be lost, never
// a shorter one.
func TestCutAnywhere(t *testing.T) {
	p := runProgram(t)
	through := func(bytes int64, use func(*execd.Conn) (complete bool)) bool {
		l, done := cutting(t, p.endpoint.URL.Host, bytes)
		defer done()
		e := p.endpoint
		e.URL = &url.URL{Scheme: "http", Host: l.Addr().String()}
		return use(execd.Dial(execd.Fixed(e), nil))
	}
	direct := execd.Processes(execd.Dial(execd.Fixed(p.endpoint), nil))
	const step, enough = 7, 3
	for name, use := range map[string]func(int64) bool{
		"command": func(n int64) bool {
			return through(n, func(c *execd.Conn) bool {
				res, err := execd.Commands(c).Run(t.Context(), sandbox.Command{Line: "printf out; printf err >&2; exit 3"})
				if err != nil {
					isLost(t, fmt.Sprintf("a command cut after %d bytes", n), err)
					return false
				}
				if want := (sandbox.CommandResult{ExitCode: 3, Stdout: []byte("out"), Stderr: []byte("err")}); !cmp.Equal(res, want) {
					t.Errorf("cut after %d bytes: %q %q, exit %d", n, res.Stdout, res.Stderr, res.ExitCode)
				}
				return true
			})
		},
		"process": func(n int64) bool {
			id, err := direct.Start(t.Context(), sandbox.ProcessSpec{Key: fmt.Sprint("cut ", n), Line: "printf out; printf err >&2; exit 3"})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := direct.Delete(t.Context(), id); err != nil {
					t.Error(err)
				}
			}()
			return through(n, func(c *execd.Conn) bool {
				a, err := execd.Processes(c).Attach(t.Context(), id, sandbox.AttachOptions{})
				if err != nil {
					isLost(t, fmt.Sprintf("an attachment cut after %d bytes", n), err)
					return false
				}
				defer a.Close()
				var out [3]strings.Builder
				var exit *sandbox.Exit
				for {
					f, err := a.Recv(t.Context())
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						isLost(t, fmt.Sprintf("an attachment cut after %d bytes", n), err)
						return false
					}
					out[f.Channel].Write(f.Data)
					if f.Exit != nil {
						exit = f.Exit
					}
				}
				if out[1].String() != "out" || out[2].String() != "err" || !cmp.Equal(exit, &sandbox.Exit{Code: 3}) {
					t.Errorf("cut after %d bytes: %q %q %v", n, out[1].String(), out[2].String(), exit)
				}
				return true
			})
		},
	} {
		lost, complete := 0, 0
		for n := rand.Int64N(step); complete < enough && n < 10000; n += 1 + rand.Int64N(step) {
			if use(n) {
				complete++
			} else {
				lost++
			}
		}
		if complete < enough || lost < 100 {
			t.Errorf("%s: %d were lost, %d complete", name, lost, complete)
		}
	}
}

// What leads elsewhere isn't followed, with or without a WebSocket.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var followed atomic.Bool
	away := func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/elsewhere") {
			followed.Store(true)
			return
		}
		http.Redirect(w, r, "/elsewhere"+r.URL.Path, http.StatusTemporaryRedirect)
	}
	conn := serve(t, map[string]http.HandlerFunc{"POST /command": away, "GET /pty/x/ws": away, "DELETE /pty/x": away, "/elsewhere/": away})
	_, err := execd.Commands(conn).Run(t.Context(), sandbox.Command{Line: "true"})
	isLost(t, "a command", err)
	_, err = execd.Processes(conn).Attach(t.Context(), "x", sandbox.AttachOptions{})
	isLost(t, "an attachment", err)
	isLost(t, "a deletion", execd.Processes(conn).Delete(t.Context(), "x"))
	if followed.Load() {
		t.Error("a redirect was followed")
	}
}

// "200 OK" of something that isn't the daemon says nothing: a sandbox that has
// gone may have left its address to anybody.
func TestStrangersSuccess(t *testing.T) {
	for _, contentType := range []string{"text/html", wire.OutputType, "application/json"} {
		ok := func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Type", contentType) }
		conn := serve(t, map[string]http.HandlerFunc{"/": ok})
		_, err := execd.Commands(conn).Run(t.Context(), sandbox.Command{Line: "true"})
		isLost(t, "a command", err)
		isLost(t, "a deletion", execd.Processes(conn).Delete(t.Context(), "x"))
		_, err = execd.Processes(conn).Start(t.Context(), sandbox.ProcessSpec{Key: "k", Line: "true"})
		isLost(t, "a start", err)
		_, err = execd.Processes(conn).Attach(t.Context(), "x", sandbox.AttachOptions{})
		isLost(t, "an attachment", err)
		if err := execd.Files(conn).Write(t.Context(), "/x", strings.NewReader("x"), sandbox.WriteOptions{}); !errors.Is(err, sandbox.ErrUnreachable) {
			t.Errorf("a write: %v", err)
		}
	}
}
