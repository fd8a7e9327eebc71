package execd

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A request whose body doesn't come ends, whatever the handler does about the
// body; one whose body has come may take as long as it likes.
func TestBodiesHaveToCome(t *testing.T) {
	const short = 50 * time.Millisecond
	const head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n"
	handlers := map[string]http.HandlerFunc{
		"unread":  func(http.ResponseWriter, *http.Request) {},
		"refused": func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusNotFound, "X", "no") },
		"read": func(w http.ResponseWriter, r *http.Request) {
			b, ok := r.Body.(*timedBody)
			if !ok {
				t.Error("the body isn't bounded")
				return
			}
			b.within(short)
			if _, err := io.ReadAll(r.Body); err != nil {
				decoded(w, err)
			}
		},
		"long answer": func(w http.ResponseWriter, r *http.Request) {
			if _, err := readBody(w, r, maxBody); err != nil {
				return
			}
			select {
			case <-r.Context().Done():
				t.Error("the deadline of the body ended the answer")
			case <-time.After(3 * short):
			}
		},
		"in pieces": func(w http.ResponseWriter, r *http.Request) {
			var b [1]byte
			for {
				if _, err := r.Body.Read(b[:]); err != nil {
					return
				}
			}
		},
	}
	for _, c := range []struct {
		handler, send, want string
		closed              bool // by the server, soon
	}{
		{"unread", head, "200 OK", true},
		{"refused", head + "{", "404 Not Found", true},
		{"read", head + "{", "408 Request Timeout", true},
		{"unread", head + "body", "200 OK", false},
		{"long answer", head + "body", "200 OK", false},
		{"in pieces", head + "body", "200 OK", false},
	} {
		t.Run(c.handler, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer timeBody(http.NewResponseController(w), r, short)()
				handlers[c.handler](w, r)
			}))
			defer s.Close()
			var d net.Dialer
			conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(s.URL, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, c.send); err != nil {
				t.Fatal(err)
			}
			r := bufio.NewReader(conn)
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.Status != c.want {
				t.Errorf("%s, want %s", resp.Status, c.want)
			}
			if c.closed {
				if _, err := r.ReadByte(); err != io.EOF {
					t.Errorf("the connection: %v, want its end", err)
				}
				return
			}
			<-time.After(2 * short) // the deadline isn't the next request's
			if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if resp, err = http.ReadResponse(r, nil); err != nil {
				t.Fatalf("the next request: %v", err)
			}
			resp.Body.Close()
		})
	}
}

// The deadline that one answer ended with isn't the next one's.
func TestDeadlinesAreNotInherited(t *testing.T) {
	const short = 20 * time.Millisecond
	var server Server
	var answers atomic.Int64
	s := httptest.NewServer(server.guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "answer")
		if answers.Add(1) == 1 { // as what bounds the end of an answer does
			_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(short))
		}
	})))
	defer s.Close()
	client := s.Client()
	for range 3 {
		// Not a GET, which the client would send again on another connection.
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "answer" {
			t.Errorf("%q, %v", b, err)
		}
		resp.Body.Close()
		<-time.After(2 * short)
	}
}
