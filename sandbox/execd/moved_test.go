package execd_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// After a sandbox has moved, something else may have its address. The next
// request asks where the sandbox is.
func TestAddressOfSomethingElse(t *testing.T) {
	var moved atomic.Bool
	daemon := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(wire.HeaderServer, wire.ServerName+"/1")
		switch r.URL.Path {
		case "/version":
			_, _ = io.WriteString(w, `{"features":["process.v1"]}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"code":"`+wire.CodeNotFound+`","message":"no"}`)
		}
	}
	var urls []*url.URL
	for i := range 2 {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if i == 0 && moved.Load() {
				w.WriteHeader([]int{200, 404, 502}[len(r.URL.Path)%3])
				return
			}
			daemon(w, r)
		}))
		defer s.Close()
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		urls = append(urls, u)
	}
	defer execd.CloseIdleConnections()
	ps := func() sandbox.Processes {
		return execd.Processes(execd.Dial(func(context.Context) (sandbox.Endpoint, error) {
			if moved.Load() {
				return sandbox.Endpoint{URL: urls[1]}, nil
			}
			return sandbox.Endpoint{URL: urls[0]}, nil
		}, nil))
	}
	for _, id := range []string{"a", "ab", "abc"} { // each gets another answer
		for op, call := range map[string]func(sandbox.Processes) error{
			"status": func(p sandbox.Processes) error { _, err := p.Status(t.Context(), id); return err },
			"attach": func(p sandbox.Processes) error {
				_, err := p.Attach(t.Context(), id, sandbox.AttachOptions{})
				return err
			},
		} {
			moved.Store(false)
			p := ps()
			for i, want := range []error{sandbox.ErrProcessNotFound, sandbox.ErrUnreachable, sandbox.ErrProcessNotFound} {
				if err := call(p); !errors.Is(err, want) {
					t.Errorf("%s %s, call %d: %v, want %v", op, id, i+1, err, want)
				}
				moved.Store(true)
			}
		}
	}
}
