package files_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox"
)

// Writers race; a reader sees one whole content with its own bits and owner.
func TestReadersSeeOldOrNew(t *testing.T) {
	f, dir := setup(t)
	path := dir + "/f"
	sizes := map[string]int{"0": 200 << 10, "alice": 70 << 10}
	write := func(owner string) error {
		o := sandbox.WriteOptions{Attr: sandbox.Attr{Owner: owner, Mode: sandbox.Mode(0o600)}}
		if owner == "0" {
			o.Mode = sandbox.Mode(0o640)
		}
		return f.Write(t.Context(), path, strings.NewReader(strings.Repeat(owner[:1], sizes[owner])), o)
	}
	must(t, write("0"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for owner := range sizes {
		wg.Go(func() {
			for ctx.Err() == nil {
				if err := write(owner); err != nil {
					t.Error(err)
				}
			}
		})
	}
	reads := map[uint32]int{}
	wg.Go(func() {
		for ctx.Err() == nil {
			h, err := os.Open(path)
			if err != nil {
				t.Errorf("the name was missing for a moment: %v", err)
				return
			}
			var st unix.Stat_t
			if err := unix.Fstat(int(h.Fd()), &st); err != nil {
				t.Error(err)
			}
			b, err := io.ReadAll(h)
			h.Close()
			owner, mode := "0", uint32(0o640)
			if st.Uid != 0 {
				owner, mode = "alice", 0o600
			}
			reads[st.Uid]++
			if err != nil || st.Mode&0o7777 != mode || len(b) != sizes[owner] || strings.Trim(string(b), owner[:1]) != "" {
				t.Errorf("saw %d bytes under mode %o of %d, %v", len(b), st.Mode, st.Uid, err)
			}
		}
	})
	wg.Wait()
	if reads[0] == 0 || reads[1501] == 0 {
		t.Errorf("both contents should have been seen: %v", reads)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
}

// Of writers that saw the same state, and of those that want to be first, one wins.
func TestOneWriterWins(t *testing.T) {
	f, dir := setup(t)
	for round := range 20 {
		path := fmt.Sprint(dir, "/", round)
		race := func(o sandbox.WriteOptions) (winner string) {
			var wg sync.WaitGroup
			var won atomic.Int64
			for i := range 6 {
				wg.Go(func() {
					err := f.Write(t.Context(), path, strings.NewReader(fmt.Sprint(i)), o)
					switch {
					case err == nil:
						won.Add(1)
					case !errors.Is(err, sandbox.ErrChanged) && !errors.Is(err, fs.ErrExist):
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				t.Errorf("%d writers won", won.Load())
			}
			return get(t, path)
		}
		race(sandbox.WriteOptions{NoReplace: true})
		info, err := f.Stat(t.Context(), path)
		must(t, err)
		race(sandbox.WriteOptions{IfUnchanged: info.Version})
	}
	if got := names(t, dir); len(got) != 20 {
		t.Errorf("left behind: %v", got)
	}
}

// Listings survive files that come and go, and never show an unfinished write.
func TestListUnderChurn(t *testing.T) {
	f, dir := setup(t)
	must(t, os.Mkdir(dir+"/stay", 0o755))
	put(t, dir+"/zz", "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			d := fmt.Sprint(dir, "/d", i%50)
			os.MkdirAll(d+"/sub", 0o755)
			os.WriteFile(d+"/sub/f", nil, 0o644)
			os.Remove(d + "-link")
			os.Symlink("x", d+"-link")
			os.RemoveAll(fmt.Sprint(dir, "/d", (i+25)%50))
		}
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			f.Write(ctx, dir+"/zz", strings.NewReader("x"), sandbox.WriteOptions{})
		}
	})
	rounds := 0
	for ; ctx.Err() == nil; rounds++ {
		seq, err := f.List(t.Context(), dir, 5)
		got := collect(t, seq, err)
		if !slices.Contains(got, dir+"/stay") || !slices.Contains(got, dir+"/zz") {
			t.Errorf("what stayed is missing")
		}
		for _, path := range got {
			if strings.Contains(path, "/.astrabox") {
				t.Errorf("an unfinished write shows: %s", path)
			}
		}
	}
	wg.Wait()
	t.Logf("%d listings", rounds)
}

func TestConcurrentParents(t *testing.T) {
	f, dir := setup(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 20 {
				if err := f.MakeDir(t.Context(), fmt.Sprint(dir, "/", i, "/b/c"), sandbox.DirOptions{Parents: true}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := names(t, dir); len(got) != 20 {
		t.Errorf("left: %v", got)
	}
}

// A misspelt parameter must not widen what a request does.
func TestStrictRequests(t *testing.T) {
	dir := t.TempDir()
	srv := daemon(t, files.Config{})
	put(t, dir+"/f", "old")
	p := url.QueryEscape(dir + "/f")
	for _, tt := range []struct{ method, target, body string }{
		{"PUT", "/v1/fs/content?path=" + p + "&roots=/", "x"},
		{"PUT", "/v1/fs/content?path=" + p + "&noreplace=1", "x"},
		{"PUT", "/v1/fs/content?path=" + p + "&no_replace=true", "x"},
		{"PUT", "/v1/fs/content?path=" + p + "&path=" + p, "x"},
		{"PUT", "/v1/fs/content?path=" + p + "&mode=8", "x"},
		{"PUT", "/v1/fs/content?path=" + p + "&mode=10000", "x"},
		{"PUT", "/v1/fs/content?path=" + p + "&mode=-1", "x"},
		{"PUT", "/v1/fs/content?path=" + p + "&no_replace=1&if_unchanged=v", "x"},
		{"PUT", "/v1/fs/content?path=" + p + "%zz", "x"},
		{"PUT", "/v1/fs/content?path=" + p + ";root=/etc", "x"},
		{"GET", "/v1/fs/list?path=" + p + "&depth=x", ""},
		{"GET", "/v1/fs/stat", ""},
		{"POST", "/v1/fs/remove", `{"paths":["` + dir + `/f"],"root":"/etc"}`},
		{"POST", "/v1/fs/remove", `{"path":"` + dir + `/f"}`},
		{"POST", "/v1/fs/remove", `{"paths":["` + dir + `/f"]} {}`},
		{"POST", "/v1/fs/remove", "{\"paths\":[\"" + dir + "/f\xff\"]}"},
		{"POST", "/v1/fs/remove", `{"paths":["` + dir + `/f"],"x":"` + strings.Repeat("x", 4<<20) + `"}`},
		{"POST", "/v1/fs/attr", `[]`},
		{"POST", "/v1/fs/rename", ``},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tt.method, srv.URL+tt.target, strings.NewReader(tt.body))
		must(t, err)
		resp, err := srv.Client().Do(req)
		must(t, err)
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(b), `"PATH_INVALID"`) {
			t.Errorf("%s %s: %d %s", tt.method, tt.target, resp.StatusCode, b)
		}
	}
	if got := get(t, dir+"/f"); got != "old" {
		t.Errorf("the file holds %q", got)
	}
}

// A refusal reaches the client although it is still sending.
func TestRefusalOfALargeBody(t *testing.T) {
	f, dir := setup(t)
	put(t, dir+"/f", "old")
	for i := range 16 {
		var r io.Reader = &failing{32 << 20, io.EOF}
		if i%2 == 0 {
			r = strings.NewReader(strings.Repeat("x", 32<<20))
		}
		want(t, f.Write(t.Context(), dir+"/f", r, sandbox.WriteOptions{NoReplace: true}), fs.ErrExist)
	}
}
