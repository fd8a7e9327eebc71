package conform

import (
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func readClauses() []Clause[Box] {
	return []Clause[Box]{
		{ID: "files.stat.fields", Check: try(statFields),
			Doc: "Stat gives path, type, size, bits, owner, group and time of what the path names."},
		{ID: "files.stat.link", Check: try(statLink),
			Doc: "Stat doesn't follow a final symlink, dangling or not, and gives its target."},
		{ID: "files.stat.special", Check: try(statSpecial),
			Doc: "Stat and List give setuid, setgid and sticky as the bits of fs.FileMode."},
		{ID: "files.stat.version", Check: try(versions),
			Doc: "The version of a file changes with its content, and doesn't while nothing changes."},
		{ID: "files.list.order", Check: try(listOrder),
			Doc: "List yields the entries of each directory in lexical order, hidden ones too, children after their parent."},
		{ID: "files.list.depth", Check: try(listDepth),
			Doc: "List goes down just so many levels."},
		{ID: "files.list.links", Check: try(listLinks),
			Doc: "List gives symlinks as such and doesn't go through them."},
		{ID: "files.list.vanishing", Check: try(listVanishing),
			Doc: "An entry that vanishes during a listing is left out, and the rest is listed."},
		{ID: "files.list.large", Check: try(listLarge),
			Doc: "A directory of thousands of entries is listed whole, each entry once."},
		{ID: "files.list.early", Check: try(listEarly),
			Doc: "Ranging over a listing can stop early, and be done again."},
		{ID: "files.list.refused", Check: try(listRefused),
			Doc: "That a directory can't be listed is the error of List itself."},
		{ID: "files.open.ranges", Check: try(openRanges),
			Doc: "Open reads just the bytes from the offset on that were asked for, none past the end, all for a negative length."},
		{ID: "files.open.link", Check: try(openLink),
			Doc: "Open follows symlinks."},
		{ID: "files.open.kinds", Check: try(openKinds), Timeout: 15 * time.Second,
			Doc: "What isn't a regular file can't be opened, and the refusal comes at once, for a named pipe too."},
		{ID: "files.open.proc", Check: try(openProc),
			Doc: "A file of /proc is read whole, though its size says that it is empty."},
		{ID: "files.search.patterns", Check: try(searchPatterns),
			Doc: "Search yields what is below the root and whose base name matches the pattern of * ? [a-z] {a,b}."},
		{ID: "files.search.hidden", Check: try(searchHidden),
			Doc: "Search matches hidden names like all others, and follows no link."},
	}
}

func statFields(t *trial) {
	p := t.put("f", "12345", sandbox.Attr{Mode: sandbox.Mode(0o640)})
	i := t.stat(p)
	t.want(i.Path == p && i.Size == 5 && i.Mode == 0o640 && i.Owner == "root" && i.Group == "root" && i.Target == "" && i.Version != "",
		say("%q, 0640 root:root, 5 bytes, no target, a version", p), "%+v", i)
	if age := time.Since(i.ModTime); i.ModTime.IsZero() || age < -24*time.Hour || age > 24*time.Hour {
		t.want(false, "the time of a file written just now", "%v", i.ModTime)
	}
	d := t.mkdir("d")
	i = t.stat(d)
	t.want(i.Mode == fs.ModeDir|0o755 && i.Path == d, "a directory with mode 0755", "%+v", i)
	t.does(script.FIFO(t.path("p")))
	i = t.stat(t.path("p"))
	t.want(i.Mode.Type() == fs.ModeNamedPipe, "a named pipe", "%v", i.Mode)
}

func statLink(t *trial) {
	t.put("f", "12345")
	for name, target := range map[string]string{"l": "f", "dangling": "/no/such file", "self": "self"} {
		t.must("making a link", t.linked(target, name))
		i := t.stat(t.path(name))
		t.want(i.Mode.Type() == fs.ModeSymlink && i.Target == target, "a symlink to "+target, "%v to %q", i.Mode, i.Target)
	}
}

func statSpecial(t *trial) {
	p, d := t.put("f", "x"), t.mkdir("d")
	special := fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
	for _, m := range []fs.FileMode{fs.ModeSetuid | 0o755, fs.ModeSetgid | 0o710, fs.ModeSticky | 0o777, special | 0o700, 0o644} {
		for path, typ := range map[string]fs.FileMode{p: 0, d: fs.ModeDir} {
			t.must("setting bits", t.Files.SetAttr(t.ctx, path, sandbox.Attr{Mode: sandbox.Mode(m)}))
			t.want(t.stat(path).Mode == typ|m, say("Stat to give %v", typ|m), "%v", t.stat(path).Mode)
		}
		for _, e := range t.entries(t.Scratch, 1) {
			t.want(e.Mode&^fs.ModeDir == m, say("List to give %v", m), "%v of %s", e.Mode, e.Path)
		}
		t.looks(p, m, 1, "root:root")
	}
}

func versions(t *trial) {
	p := t.put("f", "one")
	v := t.stat(p).Version
	t.want(v != "" && t.stat(p).Version == v && t.entries(t.Scratch, 1)[0].Version == v,
		"the same version each time it is asked for", "%q, %q, %q", v, t.stat(p).Version, t.entries(t.Scratch, 1)[0].Version)
	t.put("f", "two")
	t.want(t.stat(p).Version != v, "another version after a write", "%q again", v)
	v = t.stat(p).Version
	t.does(script.Append(p, "more"))
	t.want(t.stat(p).Version != v, "another version after a program has written", "%q again", v)
}

// grow makes a small tree and names its entries in the order of a listing.
func grow(t *trial) (dir, order string) {
	dir = t.mkdir("tree")
	for _, name := range []string{"b", "a", "a.d", "B", ".h"} {
		t.mkdir("tree/" + name)
	}
	t.mkdir("tree/a/deep")
	for _, name := range []string{"a/deep/f", "a/z", "a.d/f", "a-b", "c", ".h/f", "10", "9"} {
		t.put("tree/"+name, "x")
	}
	return dir, ".h .h/f 10 9 B a a/deep a/deep/f a/z a-b a.d a.d/f b c"
}

func listOrder(t *trial) {
	dir, order := grow(t)
	t.same("a listing", pathsOf(t.entries(dir, 9)), order)
	t.same("a listing of the directory with a slash", pathsOf(t.entries(dir+"/", 9)), order)
	seq, err := t.Files.List(t.ctx, dir, 1)
	t.must("listing", err)
	for e, err := range seq {
		t.must("listing", err)
		t.want(strings.HasPrefix(e.Path, dir+"/"), "absolute paths below "+dir, "%q", e.Path)
	}
}

func listDepth(t *trial) {
	dir, _ := grow(t)
	for depth, want := range []string{"", ".h 10 9 B a a-b a.d b c", ".h .h/f 10 9 B a a/deep a/z a-b a.d a.d/f b c"} {
		t.same(fmt.Sprintf("a listing of depth %d", depth), pathsOf(t.entries(dir, depth)), want)
	}
}

func listLinks(t *trial) {
	t.mkdir("d")
	t.put("d/f", "x")
	t.must("making a link", t.linked("d", "l"))
	t.must("making a link", t.linked("..", "d/up"))
	all := t.entries(t.Scratch, 9)
	t.same("a listing", pathsOf(all), "d d/f d/up l")
	t.want(all[3].Mode.Type() == fs.ModeSymlink && all[3].Target == "d", "l to be a symlink to d", "%v to %q", all[3].Mode, all[3].Target)
	t.same("a listing of what a link names", pathsOf(t.entries(t.path("l"), 1)), "f up")
}

func listVanishing(t *trial) {
	dir := t.mkdir("d")
	var want []string
	for i := range 10 {
		want = append(want, fmt.Sprint("a", i), fmt.Sprint("z", i))
	}
	for _, name := range want {
		t.put("d/"+name, "x")
	}
	stop := t.beside(t.path("stop"), &output{}, script.Churn(dir+"/m", t.path("stop")))
	for range 25 {
		seen := 0
		for _, e := range t.entries(dir, 1) {
			if e.Path != "m" {
				seen++
			}
		}
		t.want(seen == len(want), fmt.Sprintf("all of the %d entries that stay", len(want)), "%d of them", seen)
		t.pause(700 * time.Microsecond)
	}
	stop()
}

func listLarge(t *trial) {
	const files = 3000
	dir := t.mkdir("d")
	t.does(script.Fill(dir, files))
	all := t.entries(dir, 1)
	seen := map[string]bool{}
	for _, e := range all {
		seen[e.Path] = true
	}
	t.want(len(all) == files && len(seen) == files, fmt.Sprintf("%d entries, each once", files), "%d entries, %d different ones", len(all), len(seen))
	t.must("removing the tree", t.Files.RemoveAll(t.ctx, dir))
}

func listEarly(t *trial) {
	dir, order := grow(t)
	seq, err := t.Files.List(t.ctx, dir, 9)
	t.must("listing", err)
	for range 2 {
		for e, err := range seq {
			t.must("listing", err)
			t.same("the first entry", e.Path, dir+"/.h")
			break
		}
	}
	n := 0
	for _, err := range seq {
		t.must("listing", err)
		n++
	}
	t.want(n == len(strings.Fields(order)), fmt.Sprintf("%d entries after two ranges that stopped early", len(strings.Fields(order))), "%d", n)
}

func listRefused(t *trial) {
	_, err := t.Files.List(t.ctx, t.path("none"), 1)
	t.fails("listing what isn't there", err, sandbox.ErrPathNotFound)
	_, err = t.Files.List(t.ctx, t.put("f", "x"), 1)
	t.fails("listing a file", err, sandbox.ErrPathRejected)
	_, err = t.Files.Search(t.ctx, t.path("none"), "*")
	t.fails("searching below what isn't there", err, sandbox.ErrPathNotFound)
}

func openRanges(t *trial) {
	const text = "0123456789"
	p := t.put("f", text)
	for _, c := range []struct {
		offset, length int64
		want           string
	}{
		{0, -1, text}, {0, 10, text}, {0, 11, text}, {0, 1 << 40, text}, {3, -1, "3456789"}, {3, 4, "3456"}, {9, 1, "9"}, {9, 5, "9"},
		{0, 1, "0"}, {10, -1, ""}, {10, 1, ""}, {99, -1, ""}, {99, 5, ""}, {4, 0, ""}, {0, 0, ""}, {5, 1<<63 - 1, "56789"},
	} {
		b, err := readAll(t.ctx, t.Files, p, c.offset, c.length)
		doing := fmt.Sprintf("reading %d bytes from %d on of ten", c.length, c.offset)
		t.must(doing, err)
		t.same("what "+doing+" gives", string(b), c.want)
	}
	empty := t.put("empty", "")
	t.same("an empty file", t.read(empty), "")
}

func openLink(t *trial) {
	t.put("f", "content")
	t.must("making a link", t.linked("f", "one"))
	t.must("making a link", t.linked(t.path("one"), "two"))
	t.same("what a link to a link gives", t.read(t.path("two")), "content")
	t.must("making a link", t.linked("none", "dangling"))
	t.fails("opening a dangling link", openError(t, t.path("dangling"), 0), sandbox.ErrPathNotFound)
	t.must("making a link", t.linked("loop", "loop"))
	t.fails("opening a link to itself", openError(t, t.path("loop"), 0), sandbox.ErrPathRejected)
}

func openKinds(t *trial) {
	t.does(script.FIFO(t.path("pipe")))
	t.mkdir("dir")
	for _, name := range []string{"pipe", "dir"} {
		start := time.Now()
		t.fails("opening a "+name, openError(t, t.path(name), 0), sandbox.ErrPathRejected)
		t.want(time.Since(start) < 5*time.Second, "the refusal at once", "it came after %v", time.Since(start))
	}
}

func openProc(t *trial) {
	const path = "/proc/version"
	r := t.run(script.CatFile(path))
	if r.ExitCode != 0 {
		t.give(Skip("a program of the sandbox can't read %s", path))
	}
	t.same("the content", t.read(path), string(r.Stdout))
	b, err := readAll(t.ctx, t.Files, path, 3, 5)
	t.must("reading a part", err)
	t.same("a part of the content", string(b), string(r.Stdout[3:8]))
}

// found gives the paths below root that a pattern finds.
func (t *trial) found(root, pattern string) string {
	seq, err := t.Files.Search(t.ctx, root, pattern)
	t.must("searching for "+pattern, err)
	var all []sandbox.FileInfo
	for e, err := range seq {
		t.must("searching for "+pattern, err)
		e.Path = strings.TrimPrefix(e.Path, root+"/")
		all = append(all, e)
	}
	return pathsOf(all)
}

func searchPatterns(t *trial) {
	dir := t.mkdir("tree")
	t.mkdir("tree/sub")
	t.mkdir("tree/sub/deep.go")
	for _, name := range []string{"main.go", "main_test.go", "sub/a.go", "sub/b.txt", "sub/deep.go/c1", "sub/deep.go/c23", "x.md"} {
		t.put("tree/"+name, "x")
	}
	for pattern, want := range map[string]string{
		"*.go":       "main.go main_test.go sub/a.go sub/deep.go",
		"?.go":       "sub/a.go",
		"c[0-9]":     "sub/deep.go/c1",
		"*.{md,txt}": "sub/b.txt x.md",
		"main.go":    "main.go",
		"sub/a.go":   "",
		"MAIN.GO":    "",
		"*":          "main.go main_test.go sub sub/a.go sub/b.txt sub/deep.go sub/deep.go/c1 sub/deep.go/c23 x.md",
	} {
		t.same("what "+pattern+" finds", t.found(dir, pattern), want)
	}
}

func searchHidden(t *trial) {
	dir, out := t.mkdir("tree"), t.mkdir("out")
	t.mkdir("tree/.git")
	t.put("tree/.git/x.go", "x")
	t.put("tree/.x.go", "x")
	t.put("out/y.go", "x")
	t.must("making a link", t.linked(out, "tree/l.go"))
	t.same("what *.go finds", t.found(dir, "*.go"), ".git/x.go .x.go l.go")
}
