package conform

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func confinedClauses() []Clause[Box] {
	return []Clause[Box]{
		{ID: "files.beneath.works", Check: try(beneathWorks),
			Doc: "Beneath a root all operations work on absolute paths below it, and through links that stay there."},
		{ID: "files.beneath.outside", Check: try(beneathOutside),
			Doc: "Beneath a root a path that doesn't lie below it is ErrPathRejected, a sibling with the same beginning too."},
		{ID: "files.beneath.dots", Check: try(beneathDots),
			Doc: "Beneath a root no .. leads out of it."},
		{ID: "files.beneath.links", Check: try(beneathLinks),
			Doc: "Beneath a root a link that leads out of it is ErrPathRejected, as the last name and on the way."},
		{ID: "files.beneath.race", Check: try(beneathRace),
			Doc: "Beneath a root nothing outside is reached while a program swaps a directory for a link."},
		{ID: "files.beneath.nested", Check: try(beneathNested),
			Doc: "Beneath of a confined Files confines further and never leads out of the first root."},
	}
}

// rooted makes root and outside, each with a file f, and the Files beneath root.
func rooted(t *trial) (root, outside string, f sandbox.Files) {
	root, outside = t.mkdir("root"), t.mkdir("outside")
	t.put("root/f", "inside")
	t.mkdir("root/d")
	t.put("outside/f", "secret")
	return root, outside, t.Files.Beneath(root)
}

// outsideStays checks that nothing outside of the root was touched.
func (t *trial) outsideStays(outside string) {
	t.names(outside, "f")
	t.holds(outside+"/f", "secret")
	t.looks(outside+"/f", 0o644, 6, "root:root")
}

func beneathWorks(t *trial) {
	root, outside, f := rooted(t)
	t.must("making a link", t.linked("../f", "root/d/rel"))
	t.must("making a link", t.linked(root+"/d", "root/abs"))
	b, err := readAll(t.ctx, f, root+"/d/rel", 0, -1)
	t.must("reading through a link that stays below the root", err)
	t.same("the content", string(b), "inside")
	t.must("writing through an absolute link that stays below the root",
		f.Write(t.ctx, root+"/abs/new", strings.NewReader("new"), sandbox.WriteOptions{}))
	t.holds(root+"/d/new", "new")
	t.must("writing by way of ..", f.Write(t.ctx, root+"/d/../d/new", strings.NewReader("newer"), sandbox.WriteOptions{}))
	t.holds(root+"/d/new", "newer")
	t.must("making a directory", f.MakeDir(t.ctx, root+"/x/y", sandbox.DirOptions{Parents: true}))
	t.must("renaming", f.Rename(t.ctx, root+"/d/new", root+"/x/y/moved"))
	t.must("setting bits", f.SetAttr(t.ctx, root+"/x/y/moved", sandbox.Attr{Mode: sandbox.Mode(0o600)}))
	i, err := f.Stat(t.ctx, root+"/x/y/moved")
	t.must("stat", err)
	t.same("the path", i.Path, root+"/x/y/moved")
	seq, err := f.List(t.ctx, root, 9)
	t.must("listing the root", err)
	n := 0
	for _, err := range seq {
		t.must("listing the root", err)
		n++
	}
	t.want(n == 7, "7 entries", "%d", n)
	t.must("removing", f.Remove(t.ctx, root+"/f"))
	t.must("removing a tree", f.RemoveAll(t.ctx, root+"/x"))
	t.names(root, "abs", "d")
	t.outsideStays(outside)
}

// confined tries all operations on a path that leads out.
func (t *trial) confined(f sandbox.Files, path string, ops ...string) {
	calls := onPath(f, path, t.Scratch)
	delete(calls, "Rename to") // its other path lies outside, so it would be refused for that
	if strings.HasSuffix(path, "/new") {
		delete(calls, "Beneath") // that there is no such root may be said
	}
	if len(ops) == 0 {
		ops = sortedKeys(calls)
	}
	for _, op := range ops {
		if call := calls[op]; call != nil {
			t.fails(fmt.Sprintf("%s of %q beneath a root", op, path), call(t.ctx), sandbox.ErrPathRejected)
		}
	}
}

func beneathOutside(t *trial) {
	root, outside, f := rooted(t)
	t.put("root2", "x")
	for _, path := range []string{outside + "/f", outside + "/new", "/etc/passwd", root + "2", "/"} {
		t.confined(f, path)
	}
	t.fails("renaming to the outside", f.Rename(t.ctx, root+"/f", outside+"/g"), sandbox.ErrPathRejected)
	t.fails("renaming from the outside", f.Rename(t.ctx, outside+"/f", root+"/g"), sandbox.ErrPathRejected)
	t.fails("removing something inside and something outside", f.Remove(t.ctx, outside+"/f", root+"/f"), sandbox.ErrPathRejected)
	t.outsideStays(outside)
	t.holds(t.path("root2"), "x")
}

func beneathDots(t *trial) {
	root, outside, f := rooted(t)
	for _, path := range []string{root + "/../outside/f", root + "/d/../../outside/f", root + "/../outside/new"} {
		t.confined(f, path)
	}
	t.outsideStays(outside)
	t.holds(root+"/f", "inside")
}

func beneathLinks(t *trial) {
	root, outside, f := rooted(t)
	through := []string{"Open", "Write", "List", "Search", "SetAttr"} // what follows a final link
	for _, link := range [][2]string{{"abs", outside}, {"rel", "../outside"}, {"up", ".."}, {"chain", "rel"}} {
		name := link[0]
		t.must("making a link", t.linked(link[1], "root/"+name))
		t.confined(f, root+"/"+name, through...)
		if name != "up" {
			t.confined(f, root+"/"+name+"/f")
			t.confined(f, root+"/"+name+"/new")
		}
	}
	t.must("making a link", t.linked(outside+"/f", "root/file"))
	t.must("making a link", t.linked("../outside/new", "root/dangling"))
	t.confined(f, root+"/file", through...)
	t.confined(f, root+"/dangling", through...)
	t.fails("renaming to behind a link", f.Rename(t.ctx, root+"/f", root+"/abs/g"), sandbox.ErrPathRejected)
	t.fails("renaming from behind a link", f.Rename(t.ctx, root+"/abs/f", root+"/g"), sandbox.ErrPathRejected)
	t.outsideStays(outside)
	// The links themselves lie below the root.
	i, err := f.Stat(t.ctx, root+"/abs")
	t.must("stat of a link that leads out", err)
	t.same("its target", i.Target, outside)
	t.must("removing a link that leads out", f.RemoveAll(t.ctx, root+"/abs"))
	t.must("removing a link that leads out", f.Remove(t.ctx, root+"/file"))
	t.outsideStays(outside)
}

func beneathRace(t *trial) {
	root, outside, f := rooted(t)
	stop := t.beside(t.path("stop"), &output{}, script.Flip(root+"/d", outside, t.path("stop")))
	p := root + "/d/f"
	for i := range 40 {
		err := f.Write(t.ctx, p, strings.NewReader("from inside"), sandbox.WriteOptions{})
		t.eitherWay("writing", err)
		b, err := readAll(t.ctx, f, p, 0, -1)
		t.eitherWay("reading", err)
		t.want(string(b) != "secret", "a read to stay below the root", "the content of a file outside")
		t.eitherWay("setting bits", f.SetAttr(t.ctx, p, sandbox.Attr{Mode: sandbox.Mode(0o666)}))
		t.eitherWay("removing", f.Remove(t.ctx, p))
		t.eitherWay("removing", f.RemoveAll(t.ctx, p))
		t.pause(time.Duration(300+10*i) * time.Microsecond)
	}
	stop()
	t.outsideStays(outside)
}

// eitherWay accepts success, and any refusal that has a class.
func (t *trial) eitherWay(doing string, err error) {
	if err == nil || errors.Is(err, sandbox.ErrPathNotFound) || errors.Is(err, sandbox.ErrPathRejected) {
		return
	}
	if errors.Is(err, context.DeadlineExceeded) {
		t.give(err)
	}
	t.want(false, doing+" to succeed or be refused", "%v", err)
}

func beneathNested(t *trial) {
	root, outside, f := rooted(t)
	t.put("root/d/f", "deep")
	inner := f.Beneath(root + "/d")
	b, err := readAll(t.ctx, inner, root+"/d/f", 0, -1)
	t.must("reading below both roots", err)
	t.same("the content", string(b), "deep")
	t.confined(inner, root+"/f")
	t.confined(inner, root+"/d/../f")
	t.confined(f.Beneath(outside), outside+"/f")
	t.must("making a link", t.linked(outside, "root/abs"))
	t.confined(f.Beneath(root+"/abs"), root+"/abs/f")
	t.outsideStays(outside)
	t.holds(root+"/f", "inside")
}
