package files

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// An upload that nobody goes on with is forgotten, with what it holds; each
// part gives it another hour.
func TestUploadExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		h := New(Config{})
		ask := func(method, path, body string) (int, wire.UploadStatus) {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(body)))
			var st wire.UploadStatus
			if w.Code == http.StatusOK {
				must(t, json.Unmarshal(w.Body.Bytes(), &st))
			}
			return w.Code, st
		}
		open := func() int {
			list, err := os.ReadDir("/proc/self/fd")
			must(t, err)
			return len(list)
		}
		before := open()
		_, st := ask("POST", wire.PathUploads, `{"path":"`+dir+`/f","size":10}`)
		if open() <= before {
			t.Error("the upload holds nothing")
		}
		time.Sleep(sessionIdle - time.Minute)
		if status, st := ask("PATCH", wire.PathUploads+"?offset=0&id="+st.ID, "01234"); status != 200 || st.Offset != 5 {
			t.Errorf("%d %+v", status, st)
		}
		time.Sleep(sessionIdle - time.Minute)
		if status, st := ask("GET", wire.PathUploads+"?id="+st.ID, ""); status != 200 || st.Offset != 5 {
			t.Errorf("%d %+v", status, st)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if status, _ := ask("GET", wire.PathUploads+"?id="+st.ID, ""); status != http.StatusNotFound {
			t.Errorf("after its time: %d", status)
		}
		if after := open(); after != before {
			t.Errorf("%d descriptors are open, %d were before", after, before)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
			t.Errorf("there is %v, %v", list, err)
		}
	})
}

// Uploads that were begun and never gone on with, such as those whose answer was
// lost, keep nobody from beginning others.
func TestUnusedUploadsGiveWay(t *testing.T) {
	for name, size := range map[string]int64{"in number": 10, "in size": maxSessionBytes / maxSessions} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &sessions{}
				add := func() (*session, error) {
					x := &session{id: rand.Text(), size: size, u: &upload{at: &place{dir: -1}}, began: time.Now(), turn: make(chan struct{}, 1), idle: time.NewTimer(time.Hour)}
					x.turn <- struct{}{}
					return x, s.add(x)
				}
				busy, err := add()
				must(t, err)
				begun, err := add()
				must(t, err)
				begun.offset.Store(1)
				finished, err := add()
				must(t, err)
				finished.done.Store(&wire.Entry{})
				s.free(finished, false)
				for i := range maxSessions - 3 + 1 {
					if _, err := add(); err != nil && (size == 10 || i < maxSessions-3) {
						t.Fatal(i, err)
					}
				}
				<-busy.turn // a request works on it
				if x, err := add(); err == nil {
					t.Fatalf("%d uploads: %+v", len(s.byID), x)
				}
				time.Sleep(sessionUnused + time.Second)
				if _, err := add(); err != nil {
					t.Error(err)
				}
				if len(s.byID) != 3 || s.byID[busy.id] == nil || s.byID[begun.id] == nil || s.bytes != 3*size {
					t.Errorf("%d uploads with %d bytes are left", len(s.byID), s.bytes)
				}
			})
		})
	}
}
