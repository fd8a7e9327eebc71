package files_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox"
)

// log gathers what a watch tells.
type log struct {
	dir string
	mu  sync.Mutex
	all []sandbox.Change
	err error
	new chan struct{} // closed at each change, and made anew
	end context.CancelFunc
	fin chan struct{}
}

// follow watches dir until the test ends.
func follow(t testing.TB, f sandbox.Files, dir string) *log {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	seq, err := f.(sandbox.Watcher).Watch(ctx, dir, sandbox.WatchOptions{Interval: 20 * time.Millisecond})
	must(t, err)
	l := &log{dir: dir, new: make(chan struct{}), end: cancel, fin: make(chan struct{})}
	go func() {
		defer close(l.fin)
		for c, err := range seq {
			l.mu.Lock()
			if err != nil {
				l.err = err
			} else {
				l.all = append(l.all, c)
			}
			close(l.new)
			l.new = make(chan struct{})
			l.mu.Unlock()
		}
	}()
	t.Cleanup(l.stop)
	return l
}

func (l *log) stop() { l.end(); <-l.fin }

// until waits for done to hold of what was told.
func (l *log) until(t testing.TB, what string, done func([]sandbox.Change, error) bool) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		l.mu.Lock()
		ok, next := done(l.all, l.err), l.new
		l.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-next:
		case <-limit:
			l.mu.Lock()
			defer l.mu.Unlock()
			t.Fatalf("%s wasn't told: %v %v", what, l.lines(), l.err)
		}
	}
}

func (l *log) lines() []string {
	var out []string
	for _, c := range l.all {
		s := string(c.Kind) + " " + strings.TrimPrefix(c.Path, l.dir)
		if c.Dir {
			s += "/"
		}
		if c.From != "" {
			s = string(c.Kind) + " " + strings.TrimPrefix(c.From, l.dir) + " " + strings.TrimPrefix(s, string(c.Kind)+" ")
		}
		out = append(out, s)
	}
	return out
}

// sync makes a file and waits until it is told, so that all before it was. What
// was told is given and forgotten.
func (l *log) sync(t testing.TB) []string {
	t.Helper()
	name := fmt.Sprint("/mark", time.Now().UnixNano())
	put(t, l.dir+name, "")
	l.until(t, "a mark", func(all []sandbox.Change, _ error) bool {
		return slices.ContainsFunc(all, func(c sandbox.Change) bool { return c.Path == l.dir+name })
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := slices.DeleteFunc(l.lines(), func(s string) bool { return strings.Contains(s, "/mark") })
	l.all = nil
	return lines
}

func TestWatch(t *testing.T) {
	f, top := setup(t)
	dir := top + "/w"
	must(t, os.MkdirAll(dir+"/old/deep", 0o755))
	put(t, dir+"/file", "1")
	must(t, os.Symlink("/etc", dir+"/link"))
	l := follow(t, f, dir)
	for _, tt := range []struct {
		name string
		do   func()
		want []string
	}{
		{"create", func() { put(t, dir+"/new", "") }, []string{"created /new"}},
		{"write", func() { put(t, dir+"/file", "123"); put(t, dir+"/file", "1234") }, []string{"modified /file"}},
		{"below", func() { put(t, dir+"/old/deep/f", "x") }, []string{"created /old/deep/f"}},
		{"attributes", func() { must(t, os.Chmod(dir+"/old/deep", 0o700)) }, []string{"modified /old/deep/"}},
		{"a tree at once", func() { must(t, os.MkdirAll(dir+"/a/b/c", 0o755)); put(t, dir+"/a/b/c/f", "x") },
			[]string{"created /a/", "created /a/b/", "created /a/b/c/", "created /a/b/c/f"}},
		{"in that tree", func() { put(t, dir+"/a/b/c/g", "x") }, []string{"created /a/b/c/g"}},
		{"move a file", func() { must(t, os.Rename(dir+"/new", dir+"/a/moved")) }, []string{"moved /new /a/moved"}},
		{"move a directory", func() { must(t, os.Rename(dir+"/a", dir+"/old/a")) }, []string{"moved /a /old/a/"}},
		{"in the moved one", func() { put(t, dir+"/old/a/b/h", "") }, []string{"created /old/a/b/h"}},
		{"move out", func() { must(t, os.Rename(dir+"/old/a", top+"/a")) }, []string{"removed /old/a/"}},
		{"outside", func() { put(t, top+"/a/b/h", "x"); put(t, top+"/a/x", "x") }, nil},
		{"move in", func() { must(t, os.Rename(top+"/a", dir+"/in")) },
			[]string{"created /in/", "created /in/b/", "created /in/b/c/", "created /in/b/c/f", "created /in/b/c/g", "created /in/b/h", "created /in/moved", "created /in/x"}},
		{"in that", func() { put(t, dir+"/in/b/c/i", "") }, []string{"created /in/b/c/i"}},
		{"remove", func() { must(t, os.RemoveAll(dir+"/in/b")) },
			[]string{"removed /in/b/", "removed /in/b/c/", "removed /in/b/c/f", "removed /in/b/c/g", "removed /in/b/c/i", "removed /in/b/h"}},
		{"replace", func() { must(t, f.Write(t.Context(), dir+"/file", strings.NewReader("new"), sandbox.WriteOptions{})) }, []string{"created /file"}},
		{"make", func() { must(t, f.MakeDir(t.Context(), dir+"/made", sandbox.DirOptions{})) }, []string{"created /made/"}},
		{"in what was made", func() { put(t, dir+"/made/f", "") }, []string{"created /made/f"}},
		{"symlink", func() { must(t, os.Symlink(top, dir+"/made/l")) }, []string{"created /made/l"}},
		{"came and went", func() { put(t, dir+"/short", ""); must(t, os.Remove(dir+"/short")) }, []string{"removed /short"}},
		{"replaced by a directory", func() { must(t, os.Remove(dir+"/file")); must(t, os.Mkdir(dir+"/file", 0o755)) }, []string{"removed /file", "created /file/"}},
		{"odd name", func() { put(t, dir+"/made/n\xff\n", "") }, []string{"created /made/n\xff\n"}},
	} {
		tt.do()
		got := l.sync(t)
		slices.Sort(got)
		slices.Sort(tt.want)
		// A write may fall into two rounds.
		if got = slices.Compact(got); tt.name == "came and went" {
			got = slices.DeleteFunc(got, func(s string) bool { return s == "created /short" })
		}
		if tt.name == "create" || strings.HasPrefix(tt.name, "in ") || tt.name == "below" || tt.name == "a tree at once" {
			got = slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "modified ") })
		}
		if diff := cmp.Diff(append([]string{}, tt.want...), got); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
	must(t, os.RemoveAll(dir))
	l.until(t, "the end", func(_ []sandbox.Change, err error) bool { return errors.Is(err, sandbox.ErrPathNotFound) })
}

func TestWatchRefusals(t *testing.T) {
	f, dir := setup(t)
	put(t, dir+"/file", "x")
	must(t, os.MkdirAll(dir+"/in", 0o755))
	must(t, os.Symlink(dir, dir+"/in/out"))
	w := f.(sandbox.Watcher)
	for path, target := range map[string]error{dir + "/missing": sandbox.ErrPathNotFound, dir + "/file": sandbox.ErrPathRejected, "x": sandbox.ErrPathRejected} {
		_, err := w.Watch(t.Context(), path, sandbox.WatchOptions{})
		want(t, err, target)
	}
	_, err := f.Beneath(dir+"/in").(sandbox.Watcher).Watch(t.Context(), dir+"/in/out", sandbox.WatchOptions{})
	want(t, err, sandbox.ErrPathRejected)
	ctx, cancel := context.WithCancel(t.Context())
	seq, err := w.Watch(ctx, dir, sandbox.WatchOptions{})
	must(t, err)
	cancel()
	for _, err := range seq {
		want(t, err, context.Canceled)
	}
}

// The root is moved away: the watch ends, whatever is put in its place.
func TestWatchedRootMoves(t *testing.T) {
	f, top := setup(t)
	must(t, os.Mkdir(top+"/w", 0o755))
	l := follow(t, f, top+"/w")
	must(t, os.Rename(top+"/w", top+"/gone"))
	must(t, os.Mkdir(top+"/w", 0o755))
	l.until(t, "the end", func(_ []sandbox.Change, err error) bool { return errors.Is(err, sandbox.ErrPathNotFound) })
}

// A model that follows the changes, and reads again when told to, knows the
// tree in the end, whatever was done to it: renames of directories in rapid
// succession, floods that overflow the kernel's queue, and directories that
// are filled while they are found.
func TestWatchKnowsTheTree(t *testing.T) {
	for _, tt := range []struct {
		name string
		busy func(dir string, n int)
		n    int
	}{
		{"trees", func(dir string, n int) {
			os.MkdirAll(fmt.Sprint(dir, "/t", n%7, "/a/b/c"), 0o755)
			os.WriteFile(fmt.Sprint(dir, "/t", n%7, "/a/b/c/f", n%3), nil, 0o644)
			if n%5 == 0 {
				os.RemoveAll(fmt.Sprint(dir, "/t", (n+3)%7))
			}
		}, 600},
		{"renames", func(dir string, n int) {
			os.MkdirAll(fmt.Sprint(dir, "/x", n%3, "/y"), 0o755)
			os.WriteFile(fmt.Sprint(dir, "/x", n%3, "/y/f", n%11), nil, 0o644)
			os.Rename(fmt.Sprint(dir, "/x", n%3), fmt.Sprint(dir, "/z", n%4))
			os.Rename(fmt.Sprint(dir, "/z", (n+1)%4), fmt.Sprint(dir, "/z", n%4, "/in"))
			os.Rename(fmt.Sprint(dir, "/z", (n+2)%4), fmt.Sprint(dir, "/../away"))
			os.Rename(fmt.Sprint(dir, "/../away"), fmt.Sprint(dir, "/x", n%3))
			if n%50 == 0 {
				os.RemoveAll(fmt.Sprint(dir, "/z", n%4))
			}
		}, 500},
		{"flood", func(dir string, n int) {
			os.WriteFile(fmt.Sprint(dir, "/f", n%200), nil, 0o644)
			os.Remove(fmt.Sprint(dir, "/f", (n+100)%200))
			os.MkdirAll(fmt.Sprint(dir, "/d", n%50), 0o755)
			os.WriteFile(fmt.Sprint(dir, "/d", n%50, "/f", n%13), nil, 0o644)
		}, 5000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, top := setup(t)
			dir := top + "/w"
			must(t, os.Mkdir(dir, 0o755))
			l := follow(t, f, dir)
			for n := range tt.n {
				tt.busy(dir, n)
			}
			put(t, dir+"/last", "")
			real := map[string]bool{}
			must(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
				real[p] = d.IsDir()
				return err
			}))
			delete(real, dir)
			known, at, resyncs := map[string]bool{}, 0, 0
			l.until(t, "all of it", func(all []sandbox.Change, err error) bool {
				must(t, err)
				for ; at < len(all); at++ {
					if all[at].Kind == sandbox.ChangeResync {
						resyncs++
					}
					apply(t, f, known, all[at])
				}
				return maps.Equal(known, real)
			})
			t.Logf("%d changes, %d resyncs, %d files", at, resyncs, len(known))
		})
	}
}

// apply keeps known, the paths of a tree, up to date.
func apply(t *testing.T, f sandbox.Files, known map[string]bool, c sandbox.Change) {
	t.Helper()
	below := func(path string) (all []string) {
		for p := range known {
			if p == path || strings.HasPrefix(p, path+"/") {
				all = append(all, p)
			}
		}
		return all
	}
	switch c.Kind {
	case sandbox.ChangeCreated:
		known[c.Path] = c.Dir
	case sandbox.ChangeRemoved:
		for _, p := range below(c.Path) {
			delete(known, p)
		}
	case sandbox.ChangeMoved:
		for _, p := range below(c.Path) {
			delete(known, p)
		}
		for _, p := range below(c.From) {
			known[c.Path+strings.TrimPrefix(p, c.From)] = known[p]
			delete(known, p)
		}
		known[c.Path] = c.Dir
	case sandbox.ChangeResync:
		clear(known)
		seq, err := f.List(t.Context(), c.Path, 100)
		must(t, err)
		for info, err := range seq {
			must(t, err)
			known[info.Path] = info.IsDir()
		}
	}
}

// A lost connection is made again, and what may have been missed is said.
func TestWatchReconnects(t *testing.T) {
	dir := t.TempDir()
	srv := daemon(t, files.Config{})
	l := follow(t, face(t, srv), dir)
	put(t, dir+"/one", "")
	l.until(t, "a change", func(all []sandbox.Change, _ error) bool { return len(all) > 0 })
	srv.CloseClientConnections()
	l.until(t, "a resync", func(all []sandbox.Change, _ error) bool {
		return slices.ContainsFunc(all, func(c sandbox.Change) bool { return c.Kind == sandbox.ChangeResync && c.Path == dir })
	})
	put(t, dir+"/two", "")
	l.until(t, "a later change", func(all []sandbox.Change, _ error) bool {
		return slices.ContainsFunc(all, func(c sandbox.Change) bool { return c.Path == dir+"/two" })
	})
}

func TestWatchLimits(t *testing.T) {
	f, dir := setup(t)
	var seqs []*log
	for range 32 {
		seqs = append(seqs, follow(t, f, dir))
	}
	_, err := f.(sandbox.Watcher).Watch(t.Context(), dir, sandbox.WatchOptions{})
	want(t, err, sandbox.ErrLimit)
	for _, l := range seqs {
		l.stop()
	}
	// One that has gone makes room.
	deadline := time.Now().Add(10 * time.Second)
	for {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := f.(sandbox.Watcher).Watch(ctx, dir, sandbox.WatchOptions{})
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if descriptors(t) > 200 {
		t.Errorf("%d descriptors are open", descriptors(t))
	}
	deep := dir + strings.Repeat("/d", 140)
	must(t, os.MkdirAll(deep, 0o755))
	_, err = f.(sandbox.Watcher).Watch(t.Context(), dir, sandbox.WatchOptions{})
	want(t, err, sandbox.ErrLimit)
}

func descriptors(t testing.TB) int { return len(names(t, "/proc/self/fd")) }

// A kernel that allows no further watch is said to, in words that help.
func TestWatchKernelLimit(t *testing.T) {
	f, dir := setup(t)
	const setting = "/proc/sys/fs/inotify/max_user_instances"
	var held []int
	defer func() {
		for _, fd := range held {
			unix.Close(fd)
		}
	}()
	for len(held) < 4096 {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			break
		}
		held = append(held, fd)
	}
	_, err := f.(sandbox.Watcher).Watch(t.Context(), dir, sandbox.WatchOptions{})
	if err == nil {
		t.Logf("%s isn't reached by 4096 instances", strings.TrimSpace(setting))
		return
	}
	want(t, err, sandbox.ErrLimit)
	if !strings.Contains(err.Error(), "max_user_instances") {
		t.Errorf("the error is %v", err)
	}
}
