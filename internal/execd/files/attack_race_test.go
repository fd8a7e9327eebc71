package files_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
)

// arena is a root that calls are confined to, with what attackers move about:
//
//	root/flip       a directory, swapped with root/flop, a link to the outside
//	root/flat       a file, swapped with root/flink, a link to the outside's secret
//	root/a/b        a directory, moved to the outside and back, so that b/.. is there
type arena struct {
	t             *testing.T
	f             sandbox.Files
	root, outside string
	before        []string
	swaps         atomic.Int64
}

const secret = "a secret of the outside"

func newArena(t *testing.T) *arena {
	t.Helper()
	f, dir := setup(t)
	a := &arena{t: t, f: f.Beneath(dir + "/root"), root: dir + "/root", outside: dir + "/outside"}
	for _, d := range []string{a.root + "/flip/d", a.root + "/a/b", a.outside + "/d/kept", a.outside + "/private"} {
		must(t, os.MkdirAll(d, 0o755))
	}
	must(t, os.Chmod(a.outside+"/private", 0o700))
	for _, p := range []string{"/flip/secret", "/flat", "/a/secret", "/a/b/x"} {
		put(t, a.root+p, "inside")
	}
	for _, p := range []string{"/secret", "/d/kept/secret", "/private/secret", "/only-outside"} {
		put(t, a.outside+p, secret)
		must(t, os.Chmod(a.outside+p, 0o604))
	}
	must(t, os.Symlink(a.outside, a.root+"/flop"))
	must(t, os.Symlink(a.outside+"/secret", a.root+"/flink"))
	a.before = a.state()
	return a
}

// state describes the outside: names, bits, owners, contents, inodes. What the
// attackers themselves bring there and back is left out.
func (a *arena) state() (all []string) {
	a.t.Helper()
	must(a.t, filepath.WalkDir(a.outside, func(path string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.Name() == "b" {
			return filepath.SkipDir
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		content := ""
		if e.Type().IsRegular() {
			content = get(a.t, path)
		}
		all = append(all, fmt.Sprintf("%s %o %d:%d %d %s", strings.TrimPrefix(path, a.outside), st.Mode, st.Uid, st.Gid, st.Ino, content))
		return nil
	}))
	return all
}

// swap runs the attackers until ctx ends.
func (a *arena) swap(ctx context.Context, wg *sync.WaitGroup) {
	wg.Go(func() {
		for ctx.Err() == nil {
			for _, pair := range [][2]string{{"/flip", "/flop"}, {"/flat", "/flink"}} {
				if unix.Renameat2(unix.AT_FDCWD, a.root+pair[0], unix.AT_FDCWD, a.root+pair[1], unix.RENAME_EXCHANGE) == nil {
					a.swaps.Add(1)
				}
			}
		}
	})
	wg.Go(func() {
		for ctx.Err() == nil {
			_ = os.Rename(a.root+"/a/b", a.outside+"/b")
			_ = os.Rename(a.outside+"/b", a.root+"/a/b")
		}
	})
}

// Every call, on paths that are swapped under it, ends inside or not at all.
func TestAttackRaces(t *testing.T) {
	ways := []string{"/flip/secret", "/flat", "/a/b/../secret", "/flip/../flip/secret"}
	dirs := []string{"/flip", "/a/b/..", "/a/b/../b"}
	attr := sandbox.Attr{Mode: sandbox.Mode(0o666), Owner: "alice", Group: "staff"}
	inside := func(content string) error {
		if strings.Contains(content, "outside") {
			return errors.New("it read the outside's secret")
		}
		return nil
	}
	entries := func(f sandbox.Files, list func() (func(func(sandbox.FileInfo, error) bool), error)) error {
		seq, err := list()
		if err != nil {
			return err
		}
		for i, err := range seq {
			if err != nil {
				return err
			}
			if i.Name() == "only-outside" || i.Size == int64(len(secret)) {
				return fmt.Errorf("%w: %s", errShown, i.Path)
			}
		}
		return nil
	}
	write := func(f sandbox.Files, path string, o sandbox.WriteOptions) error {
		return f.Write(t.Context(), path, strings.NewReader("inside"), o)
	}
	for name, call := range map[string]func(a *arena, way, dir string, n int) error{
		"stat": func(a *arena, way, _ string, _ int) error {
			i, err := a.f.Stat(t.Context(), a.root+way)
			if i.Size == int64(len(secret)) {
				return errShown
			}
			return err
		},
		"open": func(a *arena, way, _ string, _ int) error {
			r, err := a.f.Open(t.Context(), a.root+way, 0, -1)
			if err != nil {
				return err
			}
			defer r.Close()
			b, err := io.ReadAll(r)
			return errors.Join(err, inside(string(b)))
		},
		"list": func(a *arena, _, dir string, _ int) error {
			return entries(a.f, func() (func(func(sandbox.FileInfo, error) bool), error) { return a.f.List(t.Context(), a.root+dir, 3) })
		},
		"list of all": func(a *arena, _, _ string, _ int) error {
			return entries(a.f, func() (func(func(sandbox.FileInfo, error) bool), error) { return a.f.List(t.Context(), a.root, 9) })
		},
		"search": func(a *arena, _, dir string, _ int) error {
			return entries(a.f, func() (func(func(sandbox.FileInfo, error) bool), error) {
				return a.f.Search(t.Context(), a.root+dir, "*")
			})
		},
		"write": func(a *arena, way, _ string, _ int) error { return write(a.f, a.root+way, sandbox.WriteOptions{}) },
		"write owned": func(a *arena, way, _ string, _ int) error {
			return write(a.f, a.root+way, sandbox.WriteOptions{Attr: attr})
		},
		"write new": func(a *arena, _, dir string, n int) error {
			return write(a.f, fmt.Sprint(a.root, dir, "/new", n%50), sandbox.WriteOptions{NoReplace: true, Attr: attr})
		},
		"mkdir": func(a *arena, _, dir string, n int) error {
			return a.f.MakeDir(t.Context(), fmt.Sprint(a.root, dir, "/m", n%50), sandbox.DirOptions{Attr: attr})
		},
		"mkdir all": func(a *arena, _, dir string, n int) error {
			return a.f.MakeDir(t.Context(), fmt.Sprint(a.root, dir, "/p/q", n%50), sandbox.DirOptions{Attr: attr, Parents: true})
		},
		"setattr": func(a *arena, way, _ string, _ int) error { return a.f.SetAttr(t.Context(), a.root+way, attr) },
		"rename from": func(a *arena, way, _ string, n int) error {
			err := a.f.Rename(t.Context(), a.root+way, a.root+"/stolen")
			if b, readErr := os.ReadFile(a.root + "/stolen"); err == nil && readErr == nil && a.link("/stolen") == "" {
				err = inside(string(b))
			}
			_ = write(a.f, a.root+way, sandbox.WriteOptions{})
			return err
		},
		"rename to": func(a *arena, way, _ string, _ int) error {
			must(t, os.WriteFile(a.root+"/mine", []byte("inside"), 0o644))
			return a.f.Rename(t.Context(), a.root+"/mine", a.root+way)
		},
		"move to": func(a *arena, _, dir string, n int) error {
			must(t, os.WriteFile(a.root+"/mine", []byte("inside"), 0o644))
			return sandbox.Move(t.Context(), a.f, a.root+"/mine", fmt.Sprint(a.root, dir, "/moved", n%50))
		},
		"remove": func(a *arena, way, _ string, _ int) error {
			err := a.f.Remove(t.Context(), a.root+way)
			_ = write(a.f, a.root+way, sandbox.WriteOptions{})
			return err
		},
		"remove all": func(a *arena, _, _ string, _ int) error {
			_ = a.f.MakeDir(t.Context(), a.root+"/flip/d/e", sandbox.DirOptions{Parents: true})
			return a.f.RemoveAll(t.Context(), a.root+"/flip/d")
		},
		"remove all that is swapped": func(a *arena, _, _ string, _ int) error {
			err := a.f.RemoveAll(t.Context(), a.root+"/flip")
			// Made elsewhere and moved: a write below flip would follow the link.
			fresh := a.root + "/fresh"
			if os.Mkdir(fresh, 0o755) == nil && os.WriteFile(fresh+"/secret", []byte("inside"), 0o644) == nil && os.Rename(fresh, a.root+"/flip") != nil {
				_ = os.RemoveAll(fresh)
			}
			_ = os.Symlink(a.outside, a.root+"/flop")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := newArena(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var attackers sync.WaitGroup
			a.swap(ctx, &attackers)
			done := 0
			for n, goOn := 0, attacking(); goOn(done > 0 && a.swaps.Load() > 0); n++ {
				err := call(a, ways[n%len(ways)], dirs[n%len(dirs)], n)
				switch {
				case err == nil:
					done++
				case !errors.Is(err, sandbox.ErrPathRejected) && !errors.Is(err, sandbox.ErrPathNotFound):
					t.Fatalf("%v", err)
				}
			}
			cancel()
			attackers.Wait()
			_ = os.Rename(a.outside+"/b", a.root+"/a/b")
			if after := a.state(); !slices.Equal(a.before, after) {
				t.Errorf("the outside was\n%s\nand is\n%s", strings.Join(a.before, "\n"), strings.Join(after, "\n"))
			}
			if done == 0 || a.swaps.Load() == 0 {
				t.Errorf("%d calls succeeded in %d swaps: nothing was tried", done, a.swaps.Load())
			}
			must(t, filepath.WalkDir(a.root, func(path string, _ os.DirEntry, err error) error {
				if strings.Contains(filepath.Base(path), ".astrabox") {
					t.Errorf("left behind: %s", path)
				}
				return err
			}))
			t.Logf("%d calls succeeded, %d swaps", done, a.swaps.Load())
		})
	}
}

var errShown = errors.New("it showed the outside")

// link gives the target of a link in the root, "" of anything else.
func (a *arena) link(name string) string {
	target, _ := os.Readlink(a.root + name)
	return target
}

// Root makes what another account is to own in a directory of that account,
// which swaps whatever appears there. Without a root links are followed, so
// these paths have none of their own.
func TestAttackByTheOwner(t *testing.T) {
	a := newArena(t)
	o := newOld(t)
	dir := a.root + "/home"
	must(t, os.Mkdir(dir, 0o755))
	f, _ := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	var swaps atomic.Int64
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			list, _ := os.ReadDir(dir)
			for _, e := range list {
				target := a.outside + "/secret"
				if e.IsDir() {
					target = a.outside + "/private"
				}
				link := fmt.Sprint(dir, "/.link", n)
				if os.Symlink(target, link) != nil {
					continue
				}
				if unix.Renameat2(unix.AT_FDCWD, link, unix.AT_FDCWD, dir+"/"+e.Name(), unix.RENAME_EXCHANGE) == nil {
					swaps.Add(1)
				}
				_ = os.RemoveAll(link)
			}
		}
	})
	attr := sandbox.Attr{Mode: sandbox.Mode(0o777), Owner: "alice", Group: "staff"}
	done := 0
	for n, goOn := 0, attacking(); goOn(done > 0 && swaps.Load() > 0); n++ {
		for _, err := range []error{
			f.MakeDir(t.Context(), fmt.Sprint(dir, "/d", n), sandbox.DirOptions{Attr: attr}),
			f.Write(t.Context(), fmt.Sprint(dir, "/f", n), strings.NewReader("x"), sandbox.WriteOptions{Attr: attr, NoReplace: true}),
			a.f.Write(t.Context(), fmt.Sprint(dir, "/g", n), strings.NewReader("x"), sandbox.WriteOptions{Attr: attr}),
		} {
			if err == nil {
				done++
			}
		}
		o.dir = dir
		o.upload(fmt.Sprintf(`metadata={"path":"$D/u%d","mode":777,"owner":"alice"}`, n), "file=x")
		o.json("POST", "/directories", fmt.Sprintf(`{"$D/m%d":{"mode":777,"owner":"alice"}}`, n))
		for _, e := range must2(os.ReadDir(dir)) {
			_ = os.RemoveAll(dir + "/" + e.Name())
		}
	}
	cancel()
	wg.Wait()
	if after := a.state(); !slices.Equal(a.before, after) {
		t.Errorf("the outside was\n%s\nand is\n%s", strings.Join(a.before, "\n"), strings.Join(after, "\n"))
	}
	if done == 0 || swaps.Load() == 0 {
		t.Errorf("%d calls succeeded in %d swaps: nothing was tried", done, swaps.Load())
	}
	t.Logf("%d calls succeeded, %d swaps", done, swaps.Load())
}

func must2[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
