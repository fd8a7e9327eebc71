package files

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/execd/account"
)

// stopAt is a client that goes once it has read a word.
type stopAt struct {
	*httptest.ResponseRecorder
	word string
	also func() bool
	stop context.CancelFunc
}

func (s *stopAt) Write(p []byte) (int, error) {
	n, err := s.ResponseRecorder.Write(p)
	if bytes.Contains(p, []byte(s.word)) && s.also() {
		s.stop()
	}
	return n, err
}

// When the kernel's queue overflows the tree is read again, and the client is
// told to do the same; what happens afterwards is told one by one again.
func TestWatchOverflow(t *testing.T) {
	dir := t.TempDir()
	s := &service{accounts: account.System}
	tree, err := s.newWatchTree(nil, dir)
	must(t, err)
	defer tree.close()
	must(t, tree.build())
	for n := range 12_000 { // two events each, of which the kernel keeps 16,384
		must(t, os.WriteFile(fmt.Sprint(dir, "/", n%300), []byte("x"), 0o600))
		must(t, os.Remove(fmt.Sprint(dir, "/", n%300)))
	}
	must(t, os.MkdirAll(dir+"/new/in", 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	// What was gathered may be too much before the overflow is met.
	w := &stopAt{httptest.NewRecorder(), "resync", func() bool { return len(tree.byWD) == 3 }, cancel}
	v := &watcher{t: tree, interval: time.Millisecond, changes: gathered{root: dir}, rc: http.NewResponseController(w), enc: newEncoder(w), beat: time.Now().Add(beatTime)}
	must(t, v.run(ctx))
	if !strings.Contains(w.Body.String(), `"resync","path":"`+dir+`"`) {
		t.Fatalf("no resync was told: %.300s", w.Body)
	}
	must(t, os.WriteFile(dir+"/new/in/f", nil, 0o600))
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w.word, w.also, w.stop = dir+"/new/in/f", func() bool { return true }, cancel
	must(t, v.run(ctx))
	if !strings.Contains(w.Body.String(), dir+"/new/in/f") {
		t.Errorf("what follows isn't told: %.300s", w.Body)
	}
}

// What is below a directory that was removed and made again is told again,
// although it was told before.
func TestGatheredAgain(t *testing.T) {
	g := gathered{root: "/r"}
	for range 2 {
		g.add("created", "/r/d", true)
		g.add("created", "/r/d/in", true)
		g.add("created", "/r/d/in/f", false)
		g.add("created", "/r/d/in/f", false) // once by an event, once by a look
		g.add("removed", "/r/d", true)
	}
	g.add("created", "/r/d", true)
	g.add("created", "/r/d/in", true)
	g.add("created", "/r/d/in/f", false)
	var got []string
	for _, c := range g.take() {
		got = append(got, c.Kind+" "+c.Path)
	}
	again := []string{"created /r/d", "created /r/d/in", "created /r/d/in/f"}
	if diff := cmp.Diff(again, got[max(0, len(got)-3):]); diff != "" {
		t.Errorf("the last directory is told as (-want +got):\n%s", diff)
	}
}

// What is gathered is merged where that loses nothing, and bounded.
func TestGathered(t *testing.T) {
	g := gathered{root: "/r"}
	kinds := func() string {
		var out []string
		for _, c := range g.take() {
			out = append(out, c.Kind+" "+c.From+c.Path)
		}
		return strings.Join(out, ", ")
	}
	for _, tt := range []struct {
		do   func()
		want string
	}{
		{func() { g.add("created", "/a", false); g.add("modified", "/a", false); g.add("modified", "/a", false) }, "created /a"},
		{func() { g.add("modified", "/a", false); g.add("removed", "/a", false) }, "removed /a"},
		{func() { g.add("removed", "/a", false); g.add("created", "/a", true); g.add("modified", "/a", true) }, "removed /a, created /a"},
		{func() { g.add("created", "/a", false); g.add("removed", "/a", false); g.add("created", "/a", false) }, "removed /a, created /a"},
		{func() {
			g.drop(g.add("removed", "/a", false))
			g.move("/a", "/b", false)
			g.add("modified", "/b", false)
		}, "moved /a/b, modified /b"},
		{func() { g.add("modified", "/b", false); g.move("/a", "/b", false); g.add("modified", "/b", false) }, "modified /b, moved /a/b, modified /b"},
		{func() { g.drop(g.add("removed", "/a", false)) }, ""},
		{func() {
			for i := range 3 * maxPending {
				g.add("created", fmt.Sprint("/", i), false)
				g.move("/x", "/y", false)
			}
			if len(g.list) > maxPending || len(g.last) > maxPending {
				t.Errorf("%d changes are held", len(g.list))
			}
		}, "resync /r"},
	} {
		tt.do()
		if diff := cmp.Diff(tt.want, kinds()); diff != "" {
			t.Error(diff)
		}
		if !g.empty() || g.full {
			t.Error("something is left")
		}
	}
}

func TestParseEvent(t *testing.T) {
	var many []byte
	for i := range 3 {
		many = append(many, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 16, 0, 0, 0)
		many = append(many, append([]byte(fmt.Sprint("name", i)), make([]byte, 11)...)...)
	}
	var got []string
	for rest := many; ; {
		e, next, ok := parseEvent(rest)
		if !ok {
			break
		}
		got = append(got, fmt.Sprint(e.wd, e.mask, e.cookie, e.name))
		rest = next
	}
	if diff := cmp.Diff([]string{"1 2 3name0", "1 2 3name1", "1 2 3name2"}, got); diff != "" {
		t.Error(diff)
	}
	for n := range 31 {
		if _, _, ok := parseEvent(many[:n]); ok {
			t.Errorf("%d bytes are taken for an event", n)
		}
	}
}

// Nothing that a listing or a watch tells names the daemon's own files.
func TestHiddenNames(t *testing.T) {
	s := &service{}
	if name := s.hide(); !hiddenName(name) {
		t.Errorf("%s isn't taken for hidden", name)
	}
	for _, name := range []string{"", ".astrabox-.tmp", ".astrabox-x", "x.tmp", strings.Repeat("x", 40)} {
		if hiddenName(name) {
			t.Errorf("%s is taken for hidden", name)
		}
	}
}

// A client hears something from time to time, and one that takes nothing any
// more ends its watch.
func TestWatchBeats(t *testing.T) {
	dir := t.TempDir()
	s := &service{accounts: account.System}
	tree, err := s.newWatchTree(nil, dir)
	must(t, err)
	defer tree.close()
	must(t, tree.build())
	w := httptest.NewRecorder()
	v := &watcher{t: tree, interval: time.Millisecond, changes: gathered{root: dir}, rc: http.NewResponseController(w), enc: newEncoder(w)}
	now := time.Now()
	must(t, v.tick(now)) // the first is due at once
	must(t, v.tick(now))
	must(t, v.tick(now.Add(beatTime+time.Second)))
	if diff := cmp.Diff("{\"beat\":true}\n{\"beat\":true}\n", w.Body.String()); diff != "" {
		t.Error(diff)
	}
	v.enc = newEncoder(deaf{})
	must(t, os.WriteFile(dir+"/f", nil, 0o600))
	must(t, v.run(t.Context()))
	must(t, os.RemoveAll(dir))
	if err := v.tick(now.Add(time.Hour)); err == nil {
		t.Error("a root that is gone isn't noticed")
	}
}

type deaf struct{}

func (deaf) Write([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }
