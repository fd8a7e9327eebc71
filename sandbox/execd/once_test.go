package execd_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const held = `{"code":"` + wire.CodeHeld + `","message":"held"}`

// silent is a daemon on whose kept connections every request but the one for its
// version gets the end of the connection for an answer. It counts them.
func silent(t *testing.T) (conn *execd.Conn, seen func() []string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var asked []string
	var wg sync.WaitGroup
	serve := func(c net.Conn) {
		defer c.Close()
		in := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			if r.URL.Path != "/version" {
				mu.Lock()
				asked = append(asked, r.Method+" "+r.URL.Path)
				mu.Unlock()
				if r.URL.Path != "/pty/held/ws" {
					return
				}
				fmt.Fprintf(c, "HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n%s: %s/test\r\n\r\n%s", len(held), wire.HeaderServer, wire.ServerName, held)
				continue
			}
			b, _ := json.Marshal(wire.Version{Features: []string{wire.FeatureOutput, wire.FeatureProcess, wire.FeatureFiles, wire.FeatureIsolated}})
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s: %s/test\r\n\r\n%s", len(b), wire.HeaderServer, wire.ServerName, b)
		}
	}
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); execd.CloseIdleConnections(); wg.Wait() })
	e := sandbox.Endpoint{URL: &url.URL{Scheme: "http", Host: l.Addr().String()}}
	return execd.Dial(execd.Fixed(e), nil), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string{}, asked...)
	}
}

// What changes something is asked for once: an answer that was lost doesn't say
// that the request was. An attachment may start a process.
func TestAskedOnce(t *testing.T) {
	for name, call := range map[string]func(*execd.Conn) error{
		"a command": func(c *execd.Conn) error {
			_, err := execd.Commands(c).Run(t.Context(), sandbox.Command{Line: "true"})
			return err
		},
		"an attachment": func(c *execd.Conn) error {
			if _, err := execd.Processes(c).Attach(t.Context(), "held", sandbox.AttachOptions{}); !errors.Is(err, sandbox.ErrProcessHeld) {
				return err
			}
			_, err := execd.Processes(c).Attach(t.Context(), "1", sandbox.AttachOptions{})
			return err
		},
		"a start": func(c *execd.Conn) error {
			_, err := execd.Processes(c).Start(t.Context(), sandbox.ProcessSpec{Key: "k", Line: "true"})
			return err
		},
		"a deletion": func(c *execd.Conn) error { return execd.Processes(c).Delete(t.Context(), "1") },
		"a write": func(c *execd.Conn) error {
			return execd.Files(c).Write(t.Context(), "/f", strings.NewReader("x"), sandbox.WriteOptions{})
		},
		"a removal": func(c *execd.Conn) error { return execd.Files(c).Remove(t.Context(), "/f") },
		"a move":    func(c *execd.Conn) error { return execd.Files(c).Rename(t.Context(), "/f", "/g") },
	} {
		t.Run(name, func(t *testing.T) {
			c, seen := silent(t)
			err := call(c)
			if !errors.Is(err, sandbox.ErrUnreachable) {
				t.Errorf("error %v", err)
			}
			if asked := slices.DeleteFunc(seen(), func(a string) bool { return strings.Contains(a, "held") }); len(asked) != 1 {
				t.Errorf("asked for %q", asked)
			}
		})
	}
}
