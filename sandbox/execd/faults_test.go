package execd_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// serve is a daemon of the given answers, which speaks of all features.
func serve(t *testing.T, routes map[string]http.HandlerFunc) *execd.Conn {
	t.Helper()
	mux := http.NewServeMux()
	if _, ok := routes["GET /version"]; !ok {
		mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(wire.HeaderServer, wire.ServerName+"/test")
			_, _ = io.WriteString(w, `{"features":["output.v1","process.v1","files.v1"]}`)
		})
	}
	for pattern, h := range routes {
		mux.HandleFunc(pattern, h)
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Cleanup(execd.CloseIdleConnections)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return execd.Dial(execd.Fixed(sandbox.Endpoint{URL: u}), nil)
}

// isLost checks that an error says that the sandbox couldn't be asked, and
// nothing that a caller would take for an orderly end or its own deadline.
func isLost(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, sandbox.ErrUnreachable) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		t.Errorf("%s: %v", what, err)
	}
}

func TestCutCommands(t *testing.T) {
	for name, send := range map[string]string{
		"before anything":   "",
		"within a header":   "\x01\x00\x00",
		"within a payload":  "\x01\x00\x00\x00\x05he",
		"between frames":    "\x01\x00\x00\x00\x02he",
		"within the exit":   "\x03\x00\x00\x00\x28{\"code\":0",
		"by a huge frame":   "\x01\xff\xff\xff\xff",
		"by an unread exit": "\x03\x00\x00\x00\x01x",
	} {
		c := serve(t, map[string]http.HandlerFunc{"POST /command": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", wire.OutputType)
			_, _ = io.WriteString(w, send)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}})
		res, err := execd.Commands(c).Run(t.Context(), sandbox.Command{Line: "true"})
		isLost(t, name, err)
		if res.ExitCode != 0 {
			t.Errorf("%s: exit %d", name, res.ExitCode)
		}
	}
}

func TestCutAttachments(t *testing.T) {
	hello := []byte(`{"type":"connected","run":1,"state":"running"}`)
	frame := make([]byte, wire.OutputHeaderSize+1)
	wire.PutOutputHeader(frame, 1, 1, 0)
	gap := make([]byte, wire.OutputHeaderSize+1)
	wire.PutOutputHeader(gap, 1, 1, 5)
	text, binary := websocket.MessageText, websocket.MessageBinary
	type message struct {
		kind websocket.MessageType
		b    []byte
	}
	for name, c := range map[string]struct {
		messages []message
		end      websocket.StatusCode // 0: cut
		want     func(error) bool
	}{
		"cut at once":     {nil, 0, nil},
		"cut":             {[]message{{text, hello}, {binary, frame}}, 0, nil},
		"no greeting":     {[]message{{binary, frame}}, wire.CloseEnd, nil},
		"a gap":           {[]message{{text, hello}, {binary, gap}}, wire.CloseEnd, nil},
		"not a message":   {[]message{{text, hello}, {binary, []byte("x")}}, wire.CloseEnd, nil},
		"not JSON":        {[]message{{text, hello}, {text, []byte("x")}}, wire.CloseEnd, nil},
		"a later message": {[]message{{text, hello}, {text, []byte(`{"type":"news"}`)}}, wire.CloseEnd, func(err error) bool { return errors.Is(err, io.EOF) }},
		"end":             {[]message{{text, hello}, {binary, frame}}, wire.CloseEnd, func(err error) bool { return errors.Is(err, io.EOF) }},
		"taken over":      {[]message{{text, hello}}, wire.CloseTakenOver, func(err error) bool { return errors.Is(err, sandbox.ErrDisplaced) }},
		"stopping":        {[]message{{text, hello}}, wire.CloseStopping, nil},
		"lagging":         {[]message{{text, hello}}, wire.CloseLagging, nil},
		"broken rule":     {[]message{{text, hello}}, wire.ClosePolicy, nil},
		"another status":  {[]message{{text, hello}}, 4999, nil},
	} {
		conn := serve(t, map[string]http.HandlerFunc{"GET /pty/x/ws": func(w http.ResponseWriter, r *http.Request) {
			ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{wire.ProcessProtocol}})
			if err != nil {
				return
			}
			defer ws.CloseNow()
			for _, m := range c.messages {
				_ = ws.Write(r.Context(), m.kind, m.b)
			}
			if c.end != 0 {
				_ = ws.Close(c.end, "")
			}
		}})
		a, err := execd.Processes(conn).Attach(t.Context(), "x", sandbox.AttachOptions{})
		for err == nil {
			_, err = a.Recv(t.Context())
		}
		switch {
		case c.want == nil:
			isLost(t, name, err)
		case !c.want(err):
			t.Errorf("%s: %v", name, err)
		}
		if a != nil {
			a.Close()
		}
	}
}

// What something else than our daemon answers isn't taken for its answer.
func TestStrangersAnswers(t *testing.T) {
	answer := func(status int, body string, ours bool) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			if ours {
				w.Header().Set(wire.HeaderServer, wire.ServerName+"/test")
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for name, c := range map[string]struct {
		status int
		body   string
		ours   bool
		code   sandbox.Code // empty: ErrUnreachable
	}{
		"a foreign execd":                 {404, "404 page not found", false, sandbox.CodeUnsupported},
		"a page that isn't there":         {404, "<html>no", false, ""},
		"an older one of ours":            {200, `{"features":["files.v1"]}`, true, sandbox.CodeUnsupported},
		"a proxy without the sandbox":     {404, `{"code":"SANDBOX_NOT_FOUND"}`, false, ""},
		"a gateway":                       {502, "bad gateway", false, ""},
		"a redirect":                      {302, "", false, ""},
		"a refused token":                 {401, `{"error":"no"}`, true, ""},
		"a page":                          {200, "<html>", false, ""},
		"a daemon that is on its way out": {503, `{"code":"STOPPING"}`, true, ""},
	} {
		conn := serve(t, map[string]http.HandlerFunc{"GET /version": answer(c.status, c.body, c.ours)})
		_, err := execd.Commands(conn).Run(t.Context(), sandbox.Command{Line: "true"})
		if c.code == "" {
			isLost(t, name, err)
		} else if sandbox.CodeOf(err) != c.code {
			t.Errorf("%s: %v", name, err)
		}
		_, err = execd.Processes(conn).Status(t.Context(), "x")
		if errors.Is(err, sandbox.ErrProcessNotFound) {
			t.Errorf("%s: a process is said to be gone", name)
		}
	}
}

// Half of a refusal isn't another refusal.
func TestCutRefusals(t *testing.T) {
	conn := serve(t, map[string]http.HandlerFunc{"GET /version": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, "404 page not found")
	}})
	_, err := execd.Commands(conn).Run(t.Context(), sandbox.Command{Line: "true"})
	isLost(t, "a cut 404", err)
}

func TestContextsBoundCalls(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then is the client's going away seen
		<-r.Context().Done()
	}
	conn := serve(t, map[string]http.HandlerFunc{"POST /command": hang, "GET /pty/x/ws": hang, "GET /pty/x": hang})
	for name, f := range map[string]func(context.Context) error{
		"Run": func(c context.Context) error {
			_, err := execd.Commands(conn).Run(c, sandbox.Command{Line: "true"})
			return err
		},
		"Attach": func(c context.Context) error {
			_, err := execd.Processes(conn).Attach(c, "x", sandbox.AttachOptions{})
			return err
		},
		"Status": func(c context.Context) error { _, err := execd.Processes(conn).Status(c, "x"); return err },
	} {
		c, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := f(c); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		c, cancel = context.WithCancel(t.Context())
		cancel()
		if err := f(c); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
