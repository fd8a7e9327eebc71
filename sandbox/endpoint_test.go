package sandbox_test

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func TestCheckPort(t *testing.T) {
	for _, tt := range []struct {
		port int
		own  []int
		code sandbox.Code
	}{
		{1, nil, ""}, {65535, nil, ""}, {8080, nil, ""},
		{8080, []int{8080}, sandbox.CodePortReserved}, {sandbox.ExecdPort, nil, sandbox.CodePortReserved},
		{0, nil, sandbox.CodeInvalid}, {-1, nil, sandbox.CodeInvalid}, {65536, nil, sandbox.CodeInvalid},
	} {
		if err := sandbox.CheckPort(tt.port, tt.own...); sandbox.CodeOf(err) != tt.code {
			t.Errorf("%d: %v", tt.port, err)
		}
	}
}

func parse(t *testing.T, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestEndpointShowsNoSecret(t *testing.T) {
	e := sandbox.Endpoint{URL: parse(t, "https://u:hunter2@host/p?sig=hunter2"), Headers: map[string]string{"X": "hunter2"}}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d"} {
		if s := fmt.Sprintf(verb, e); s != "https://host/p" {
			t.Errorf("%s gives %s", verb, s)
		}
	}
	if e.LogValue().String() != "https://host/p" || (sandbox.Endpoint{}).String() != "" {
		t.Error("the log or the empty endpoint")
	}
}

func TestBrowserLink(t *testing.T) {
	soon := time.Now().Add(time.Hour)
	var signs int
	for _, tt := range []struct {
		name    string
		port    int
		until   time.Time
		answer  sandbox.Endpoint
		err     error
		panics  bool
		code    sandbox.Code
		unasked bool
		link    string
	}{
		{name: "signed", port: 80, until: soon, answer: sandbox.Endpoint{URL: parse(t, "https://h/?sig=x")}, link: "https://h/?sig=x"},
		{name: "needs headers", port: 80, until: soon, answer: sandbox.Endpoint{URL: parse(t, "https://h/"), Headers: map[string]string{"A": "b"}}, code: sandbox.CodeLinkNeedsHeaders},
		{name: "can't sign", port: 80, until: soon, err: sandbox.Errorf(sandbox.CodeSignedUnsupported, "no"), code: sandbox.CodeSignedUnsupported},
		{name: "no address", port: 80, until: soon, code: sandbox.CodeUnavailable},
		{name: "another scheme", port: 80, until: soon, answer: sandbox.Endpoint{URL: parse(t, "javascript:alert(1)")}, code: sandbox.CodeUnavailable},
		{name: "relative", port: 80, until: soon, answer: sandbox.Endpoint{URL: parse(t, "/x")}, code: sandbox.CodeUnavailable},
		{name: "a password", port: 80, until: soon, answer: sandbox.Endpoint{URL: parse(t, "https://u:p@h/")}, code: sandbox.CodeUnavailable},
		{name: "reserved", port: sandbox.ExecdPort, until: soon, code: sandbox.CodePortReserved, unasked: true},
		{name: "no port", port: 0, until: soon, code: sandbox.CodeInvalid, unasked: true},
		{name: "in the past", port: 80, until: time.Now().Add(-time.Second), code: sandbox.CodeInvalid, unasked: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			signs = 0
			h := &doubleHandle{id: "a", signed: func(int) (sandbox.Endpoint, error) { signs++; return tt.answer, tt.err }}
			u, err := sandbox.BrowserLink(t.Context(), h, tt.port, tt.until)
			if sandbox.CodeOf(err) != tt.code || (signs == 0) != tt.unasked {
				t.Fatalf("%v after %d requests", err, signs)
			}
			if tt.link != "" && u.String() != tt.link {
				t.Errorf("%v", u)
			}
		})
	}
	h := &doubleHandle{id: "a", signed: func(int) (sandbox.Endpoint, error) { panic("boom") }}
	if _, err := sandbox.BrowserLink(t.Context(), h, 80, soon); err == nil {
		t.Error("a panic gave a link")
	}
}

// naming confirms endpoints of the form https://host/sandboxes/ID/.
type naming struct{ bare }

func (*naming) EndpointNamesSandbox(e string) (string, bool) {
	if strings.Contains(e, "panic") {
		panic("boom")
	}
	_, rest, ok := strings.Cut(e, "/sandboxes/")
	id, _, _ := strings.Cut(rest, "/")
	return id, ok
}

func TestStoredEndpoint(t *testing.T) {
	b, err := sandbox.Bind(driverOf(sandbox.Capabilities{}), &naming{})
	if err != nil {
		t.Fatal(err)
	}
	for stored, want := range map[string]bool{
		"https://h/sandboxes/a/80":     true,
		"http://h:1/sandboxes/a/":      true,
		"https://h/sandboxes/b/80":     false, // another
		"https://h:8080/":              false, // names nothing
		"h:8080":                       false,
		"":                             false,
		"/sandboxes/a/":                false,
		"ftp://h/sandboxes/a/":         false,
		"https://u:p@h/sandboxes/a/":   false,
		"https://h/sandboxes/":         false,
		"https://h/panic/sandboxes/a/": false,
		"https://h/sandboxes/a\x00/":   false,
	} {
		u, ok := sandbox.StoredEndpoint(b, "a", stored)
		if ok != want || ok && u.String() != stored {
			t.Errorf("%q: %v, %v", stored, u, ok)
		}
	}
	if _, ok := sandbox.StoredEndpoint(b, "", "https://h/sandboxes//"); ok {
		t.Error("an endpoint of no sandbox is used")
	}
	bare := &bare{}
	if _, ok := sandbox.StoredEndpoint(bare, "a", "https://h/sandboxes/a/80"); ok {
		t.Error("Base confirms an endpoint")
	}
}

func FuzzStoredEndpoint(f *testing.F) {
	f.Add("https://h/sandboxes/a/80", "a")
	f.Add("h:80", "a..b")
	p := &naming{}
	f.Fuzz(func(t *testing.T, stored, id string) {
		u, ok := sandbox.StoredEndpoint(p, id, stored)
		if !ok {
			return
		}
		named, _ := p.EndpointNamesSandbox(stored)
		if !sandbox.ValidID(id) || named != id || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
			t.Errorf("%q is used for %q", stored, id)
		}
	})
}

func TestCheckPath(t *testing.T) {
	long := "/" + strings.Repeat("x", 4094)
	for path, ok := range map[string]bool{
		"/": true, "/a": true, "/~": true, "/$HOME": true, "/a/../b": true, "//": true, "/ a\n\xff": true, "/*": true, long: true,
		"": false, "a": false, "~": false, "./a": false, "/a\x00": false, long + "x": false,
	} {
		err := sandbox.CheckPath("stat", path)
		var e *sandbox.PathError
		if (err == nil) != ok || err != nil && (!errors.Is(err, sandbox.ErrPathRejected) || !errors.As(err, &e) || e.Op != "stat" || errors.Is(err, fs.ErrNotExist)) {
			t.Errorf("%.20q: %v", path, err)
		}
	}
}

func FuzzCheckPath(f *testing.F) {
	for _, s := range []string{"/a", "a", "", "/\x00", "/a/../b", "/\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		err := sandbox.CheckPath("stat", path)
		if err != nil && !errors.Is(err, sandbox.ErrPathRejected) {
			t.Errorf("%q: %v", path, err)
		}
		if good := strings.HasPrefix(path, "/") && !strings.Contains(path, "\x00") && len(path) < 4096; good != (err == nil) {
			t.Errorf("%q: %v", path, err)
		}
	})
}

func TestReplayFrom(t *testing.T) {
	for _, tt := range []struct {
		from, oldest, next int64
		gap                bool
		code               sandbox.Code
	}{
		{0, 0, 0, false, ""}, {5, 5, 9, false, ""}, {9, 5, 9, false, ""},
		{4, 5, 9, true, ""}, {10, 5, 9, false, sandbox.CodeInvalid}, {-1, 0, 9, false, sandbox.CodeInvalid},
	} {
		err := sandbox.ReplayFrom(tt.from, tt.oldest, tt.next)
		var gap *sandbox.ReplayGapError
		if errors.As(err, &gap) != tt.gap || sandbox.CodeOf(err) != tt.code || tt.gap && (gap.From != tt.from || gap.Oldest != tt.oldest) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

func FuzzReplayFrom(f *testing.F) {
	f.Add(int64(0), int64(0), int64(0))
	f.Add(int64(4), int64(5), int64(9))
	f.Fuzz(func(t *testing.T, from, oldest, next int64) {
		err := sandbox.ReplayFrom(from, oldest, next)
		var gap *sandbox.ReplayGapError
		switch held := 0 <= oldest && oldest <= from && from <= next; {
		case held != (err == nil):
			t.Errorf("from %d of [%d, %d): %v", from, oldest, next, err)
		case errors.As(err, &gap) && (gap.From >= gap.Oldest || gap.Oldest > next):
			t.Errorf("a gap of %d before %d, of [%d, %d)", gap.From, gap.Oldest, oldest, next)
		}
	})
}
