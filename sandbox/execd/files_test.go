package execd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"syscall"
	"testing"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// answering gives a files face whose every request gets one answer. A daemon
// that says who it is also has files.v1.
func answering(t *testing.T, server string, answer http.HandlerFunc) sandbox.Files {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if server != "" {
			w.Header().Set(wire.HeaderServer, server)
			if r.URL.Path == "/version" {
				io.WriteString(w, `{"features":["files.v1"]}`)
				return
			}
		}
		answer(w, r)
	}))
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	return execd.Files(execd.Dial(execd.Fixed(sandbox.Endpoint{URL: u}), srv.Client()))
}

// operations are all that can be asked of a face.
func operations(f sandbox.Files) map[string]func(ctx context.Context) error {
	all := func(seq func(func(sandbox.FileInfo, error) bool), err error) error {
		if err != nil {
			return err
		}
		for _, err := range seq {
			if err != nil {
				return err
			}
		}
		return nil
	}
	return map[string]func(ctx context.Context) error{
		"stat": func(ctx context.Context) error { _, err := f.Stat(ctx, "/p"); return err },
		"list": func(ctx context.Context) error {
			seq, err := f.List(ctx, "/p", 1)
			return all(seq, err)
		},
		"search": func(ctx context.Context) error {
			seq, err := f.Search(ctx, "/p", "*")
			return all(seq, err)
		},
		"open": func(ctx context.Context) error {
			r, err := f.Open(ctx, "/p", 0, -1)
			if err != nil {
				return err
			}
			defer r.Close()
			_, err = io.Copy(io.Discard, r)
			return err
		},
		"write": func(ctx context.Context) error {
			return f.Write(ctx, "/p", strings.NewReader("x"), sandbox.WriteOptions{})
		},
		"mkdir":     func(ctx context.Context) error { return f.MakeDir(ctx, "/p", sandbox.DirOptions{}) },
		"rename":    func(ctx context.Context) error { return f.Rename(ctx, "/p", "/q") },
		"remove":    func(ctx context.Context) error { return f.Remove(ctx, "/p") },
		"removeall": func(ctx context.Context) error { return f.RemoveAll(ctx, "/p") },
		"setattr":   func(ctx context.Context) error { return f.SetAttr(ctx, "/p", sandbox.Attr{}) },
	}
}

// Every failure is a PathError of exactly one class.
func TestFilesErrorClasses(t *testing.T) {
	const ours = wire.ServerName + "/1"
	refuse := func(status int, code string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"code":%q,"message":"m"}`, code)
		}
	}
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, `{"path":"/p/x","type":"file","mode":"644"`)
	}
	for name, tt := range map[string]struct {
		server string
		answer http.HandlerFunc
		want   []error
	}{
		"missing":          {ours, refuse(404, wire.CodeFileNotFound), []error{sandbox.ErrPathNotFound, fs.ErrNotExist}},
		"exists":           {ours, refuse(409, wire.CodeFileExists), []error{sandbox.ErrPathRejected, fs.ErrExist}},
		"changed":          {ours, refuse(412, wire.CodeFileChanged), []error{sandbox.ErrPathRejected, sandbox.ErrChanged}},
		"escapes":          {ours, refuse(403, wire.CodePathEscapes), []error{sandbox.ErrPathRejected, fs.ErrPermission}},
		"full":             {ours, refuse(507, wire.CodeNoSpace), []error{sandbox.ErrPathRejected, syscall.ENOSPC}},
		"account":          {ours, refuse(400, wire.CodeUnknownAccount), []error{sandbox.ErrPathRejected}},
		"io":               {ours, refuse(500, wire.CodeFileError), []error{sandbox.ErrPathRejected, syscall.EIO}},
		"busy daemon":      {ours, refuse(429, wire.CodeTooMany), []error{sandbox.ErrUnreachable}},
		"stopping":         {ours, refuse(503, wire.CodeStopping), []error{sandbox.ErrUnreachable}},
		"token":            {ours, refuse(401, ""), []error{sandbox.ErrUnreachable}},
		"unknown route":    {ours, http.NotFound, []error{sandbox.ErrUnreachable}},
		"cut off":          {ours, cut, []error{sandbox.ErrUnreachable}},
		"dropped":          {ours, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, []error{sandbox.ErrUnreachable}},
		"foreign execd":    {"", http.NotFound, []error{sandbox.ErrUnreachable, sandbox.ErrUnsupported}},
		"gateway":          {"", refuse(502, "BAD_GATEWAY"), []error{sandbox.ErrUnreachable}},
		"gateway, 404":     {"", refuse(404, wire.CodeFileNotFound), []error{sandbox.ErrUnreachable}},
		"page for a proxy": {"", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>sign in</html>") }, []error{sandbox.ErrUnreachable}},
		"redirect": {"", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere"+r.URL.Path, http.StatusFound)
		},
			[]error{sandbox.ErrUnreachable}},
	} {
		t.Run(name, func(t *testing.T) {
			f := answering(t, tt.server, tt.answer)
			for op, call := range operations(f) {
				if name == "cut off" && op == "stat" {
					continue // the answer is complete enough to fail as JSON; covered by the others
				}
				err := call(t.Context())
				var pe *sandbox.PathError
				if !errors.As(err, &pe) || pe.Path != "/p" {
					t.Errorf("%s: %v is no PathError of /p", op, err)
					continue
				}
				for _, w := range tt.want {
					if !errors.Is(err, w) {
						t.Errorf("%s: %v isn't %v", op, err, w)
					}
				}
				classes := 0
				for _, class := range []error{sandbox.ErrPathNotFound, sandbox.ErrPathRejected, sandbox.ErrUnreachable} {
					if errors.Is(err, class) {
						classes++
					}
				}
				if classes != 1 {
					t.Errorf("%s: %v is of %d classes", op, err, classes)
				}
			}
		})
	}
}

func TestFilesContext(t *testing.T) {
	entered := make(chan struct{}, 1)
	f := answering(t, wire.ServerName+"/1", func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		entered <- struct{}{}
		<-r.Context().Done()
	})
	for op, call := range operations(f) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-entered
			cancel()
		}()
		err := call(ctx)
		cancel()
		if pe := new(sandbox.PathError); !errors.As(err, &pe) || !errors.Is(err, context.Canceled) || errors.Is(err, sandbox.ErrUnreachable) {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// A listing without its last line was cut off, however cleanly it ended.
func TestFilesListingCutOff(t *testing.T) {
	const entry = `{"path":"/p/x","type":"file","size":1,"mode":"644","owner":"root","group":"root","mtime":"2026-01-02T03:04:05Z","version":"v"}` + "\n"
	for body, want := range map[string]error{
		entry + `{"end":true}`: nil,
		entry:                  sandbox.ErrUnreachable,
		"":                     sandbox.ErrUnreachable,
		entry + `{"error":{"code":"FILE_ERROR","message":"m"}}` + "\n": sandbox.ErrPathRejected,
		entry + "<html>": sandbox.ErrUnreachable,
		"{}\n":           sandbox.ErrUnreachable,
		`{"path":"/p/x","type":"file","mode":"99"}` + "\n" + `{"end":true}`: sandbox.ErrUnreachable,
		strings.Repeat("x", 1<<20): sandbox.ErrUnreachable,
	} {
		f := answering(t, wire.ServerName+"/1", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, body) })
		seq, err := f.List(t.Context(), "/p", 1)
		if err != nil {
			t.Fatal(err)
		}
		var last error
		for _, err := range seq {
			last = err
		}
		if want == nil && last != nil || !errors.Is(last, want) {
			t.Errorf("%.60q: %v, want %v", body, last, want)
		}
	}
}

// A part of a file that isn't the one that was asked for, or ends before it does,
// is no answer.
func TestFilesAnotherRange(t *testing.T) {
	for header, want := range map[string]bool{
		"bytes 2-4/9": true, "bytes 2-3/4": true, "bytes 2-2/3": true,
		"bytes 0-2/9": false, "bytes 3-5/9": false, "bytes 2-3/9": false, "bytes 2-8/9": false, "bytes 2-4/*": false, "bytes */9": false, "2-4/9": false, "": false,
	} {
		f := answering(t, wire.ServerName+"/1", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", header)
			w.WriteHeader(http.StatusPartialContent)
			io.WriteString(w, "x")
		})
		r, err := f.Open(t.Context(), "/p", 2, 3)
		if (err == nil) != want || !want && !errors.Is(err, sandbox.ErrUnreachable) {
			t.Errorf("%q: %v", header, err)
		}
		if err == nil {
			r.Close()
		}
	}
	for _, header := range []string{"bytes 2-8/9", "bytes 2-7/9"} {
		f := answering(t, wire.ServerName+"/1", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", header)
			w.WriteHeader(http.StatusPartialContent)
		})
		r, err := f.Open(t.Context(), "/p", 2, -1)
		if whole := header == "bytes 2-8/9"; (err == nil) != whole {
			t.Errorf("to the end, %q: %v", header, err)
		}
		if err == nil {
			r.Close()
		}
	}
}

// What is in memory is sent again after the endpoint moved; the caller's file
// isn't closed and is rewound.
func TestFilesWriteAgain(t *testing.T) {
	var got []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(wire.HeaderServer, wire.ServerName+"/1")
		switch {
		case r.URL.Path == "/version":
			io.WriteString(w, `{"features":["files.v1"]}`)
		case r.Header.Get(wire.HeaderToken) != "new":
			io.CopyN(io.Discard, r.Body, 3)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			b, err := io.ReadAll(r.Body)
			got = append(got, fmt.Sprint(string(b), err))
			io.WriteString(w, `{}`)
		}
	}))
	defer srv.Close()
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []io.Reader{strings.NewReader("content"), &seekable{Reader: strings.NewReader("content")}} {
		token := "old"
		f := execd.Files(execd.Dial(func(context.Context) (sandbox.Endpoint, error) {
			e := sandbox.Endpoint{URL: u, Headers: map[string]string{wire.HeaderToken: token}}
			token = "new"
			return e, nil
		}, srv.Client()))
		if err := f.Write(t.Context(), "/p", r, sandbox.WriteOptions{}); err != nil {
			t.Error(err)
		}
	}
	if fmt.Sprint(got) != "[content<nil> content<nil>]" {
		t.Errorf("%q", got)
	}
}

type seekable struct{ *strings.Reader }

// WriteTo hides that of the embedded reader.
func (s *seekable) WriteTo(io.Writer) (int64, error) { panic("not to be called") }
func (s *seekable) Close() error                     { panic("not to be called") }

// Nothing is removed when one of the paths can't be asked for.
func TestFilesRemoveChecksFirst(t *testing.T) {
	f := answering(t, wire.ServerName+"/1", func(_ http.ResponseWriter, r *http.Request) { t.Errorf("%s was asked for", r.URL.Path) })
	err := f.Remove(t.Context(), "/p", "relative")
	var pe *sandbox.PathError
	if !errors.Is(err, sandbox.ErrPathRejected) || !errors.As(err, &pe) || pe.Path != "relative" {
		t.Errorf("error %v", err)
	}
}
