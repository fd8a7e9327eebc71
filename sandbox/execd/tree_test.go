package execd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// modern serves routes as a daemon with all features.
func modern(t *testing.T, routes map[string]http.HandlerFunc) *execd.Conn {
	t.Helper()
	all := map[string]http.HandlerFunc{"GET /version": func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(wire.HeaderServer, wire.ServerName+"/test")
		_, _ = io.WriteString(w, `{"features":["files.v1","archive.v1","watch.v1","search.v1","upload.v1"]}`)
	}}
	for pattern, h := range routes {
		all[pattern] = func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(wire.HeaderServer, wire.ServerName+"/test")
			h(w, r)
		}
	}
	return serve(t, all)
}

// says answers with a text, and then cuts the connection or not.
func says(text string, cut bool) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, text)
		if cut {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	}
}

// A daemon on which nothing is heard any more is asked anew, and what may have
// been missed is said.
func TestWatchOfASilentDaemon(t *testing.T) {
	var asked atomic.Int64
	c := modern(t, map[string]http.HandlerFunc{"GET " + wire.PathWatch: func(w http.ResponseWriter, r *http.Request) {
		n := asked.Add(1)
		fmt.Fprintf(w, "{\"ready\":true}\n{\"kind\":\"created\",\"path\":\"/d/%d\"}\n", n)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}})
	c.SetSilence(50 * time.Millisecond)
	seq, err := sandbox.Watch(t.Context(), execd.Files(c), "/d", sandbox.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for change, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, string(change.Kind)+" "+change.Path); len(got) == 3 {
			break
		}
	}
	if s := strings.Join(got, ", "); s != "created /d/1, resync /d, created /d/2" {
		t.Errorf("what was told is %s", s)
	}
}

func TestWatchFaults(t *testing.T) {
	const ready = `{"ready":true}` + "\n"
	for _, tt := range []struct {
		name, text string
		want       error
	}{
		{"gone", ready + `{"error":{"code":"FILE_NOT_FOUND","message":"gone"}}` + "\n", sandbox.ErrPathNotFound},
		{"limit", ready + `{"error":{"code":"FILE_LIMIT","message":"too many"}}` + "\n", sandbox.ErrLimit},
		{"at once", `{"error":{"code":"FILE_LIMIT","message":"too many"}}` + "\n", sandbox.ErrLimit},
		{"not ready", `{"kind":"created","path":"/d/x"}` + "\n", sandbox.ErrUnreachable},
		{"no JSON", "<html>\n", sandbox.ErrUnreachable},
		{"nothing", "", sandbox.ErrUnreachable},
		{"long line", strings.Repeat("x", 1<<20), sandbox.ErrUnreachable},
	} {
		c := modern(t, map[string]http.HandlerFunc{"GET " + wire.PathWatch: says(tt.text, false)})
		seq, err := sandbox.Watch(t.Context(), execd.Files(c), "/d", sandbox.WatchOptions{})
		if err == nil {
			for _, e := range seq {
				err = e
			}
		}
		var pe *sandbox.PathError
		if !errors.Is(err, tt.want) || !errors.As(err, &pe) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

// What is cut off isn't taken for an end.
func TestTreesCutOff(t *testing.T) {
	c := modern(t, map[string]http.HandlerFunc{
		"GET " + wire.PathArchive: says(strings.Repeat("\x00", 1<<10), true),
		"GET " + wire.PathGrep:    says(`{"path":"/d/f","line":1,"text":"x","start":0,"stop":1}`+"\n", false),
		"POST " + wire.PathExtract: func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		},
	})
	f := execd.Files(c)
	r, err := sandbox.Archive(t.Context(), f, "/d", sandbox.ArchiveTar)
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(io.Discard, r)
	r.Close()
	isLost(t, "archive", err)
	seq, err := sandbox.SearchContent(t.Context(), f, "/d", sandbox.ContentQuery{Text: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range seq {
		err = e
	}
	isLost(t, "search", err)
	_, err = sandbox.Extract(t.Context(), f, "/d", strings.NewReader("x"), sandbox.ExtractOptions{})
	isLost(t, "extract", err)
}

// Answers that make no sense are neither believed nor waited for.
func TestTreesOfALyingDaemon(t *testing.T) {
	status := func(offset int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			fmt.Fprintf(w, `{"id":"i","size":4,"offset":%d}`, offset)
		}
	}
	refuse := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code); _, _ = io.WriteString(w, text) }
	}
	for _, tt := range []struct {
		name                 string
		start, patch, finish http.HandlerFunc
		want                 error
	}{
		{"beyond the end", status(0), status(9), status(4), sandbox.ErrUnreachable},
		{"negative", status(-1), status(-5), status(4), sandbox.ErrUnreachable},
		{"takes nothing", status(0), status(0), status(4), sandbox.ErrUnreachable},
		{"other content", status(0), status(4), refuse(422, `{"code":"HASH_MISMATCH","message":"other"}`), sandbox.ErrPathRejected},
		{"forgets", status(0), refuse(404, `{"code":"UPLOAD_NOT_FOUND","message":"none"}`), status(4), sandbox.ErrUnreachable},
		{"full", status(0), refuse(507, `{"code":"NO_SPACE","message":"full"}`), status(4), sandbox.ErrPathRejected},
		{"no room", refuse(429, `{"code":"LIMIT_EXCEEDED","message":"64"}`), status(4), status(4), sandbox.ErrUnreachable},
	} {
		var dropped atomic.Int64
		c := modern(t, map[string]http.HandlerFunc{
			"POST " + wire.PathUploads: tt.start, "PATCH " + wire.PathUploads: tt.patch, "POST " + wire.PathUploadFinish: tt.finish,
			"GET " + wire.PathUploads:    status(0),
			"DELETE " + wire.PathUploads: func(http.ResponseWriter, *http.Request) { dropped.Add(1) },
		})
		err := sandbox.Upload(t.Context(), execd.Files(c), "/d/f", strings.NewReader("1234"), 4, sandbox.WriteOptions{})
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
		if wanted := tt.name != "no room"; (dropped.Load() > 0) != wanted {
			t.Errorf("%s: given up %d times", tt.name, dropped.Load())
		}
	}
	c := modern(t, map[string]http.HandlerFunc{"GET " + wire.PathGrep: says(`{"path":"/d/f","line":1,"text":"x","start":0,"stop":7}`+"\n", false)})
	seq, err := sandbox.SearchContent(t.Context(), execd.Files(c), "/d", sandbox.ContentQuery{Text: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range seq {
		err = e
	}
	if !errors.Is(err, sandbox.ErrUnreachable) {
		t.Errorf("a match outside of its line: %v", err)
	}
}

// A caller that gives an upload up gets its own error, and the daemon is told.
func TestUploadIsGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	told := make(chan struct{})
	c := modern(t, map[string]http.HandlerFunc{
		"POST " + wire.PathUploads: says(`{"id":"i","size":4,"offset":0}`, false),
		"PATCH " + wire.PathUploads: func(_ http.ResponseWriter, r *http.Request) {
			cancel()
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		},
		"DELETE " + wire.PathUploads: func(http.ResponseWriter, *http.Request) { close(told) },
	})
	err := sandbox.Upload(ctx, execd.Files(c), "/d/f", strings.NewReader("1234"), 4, sandbox.WriteOptions{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	<-told
}
