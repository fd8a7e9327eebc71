package conform

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func changeClauses() []Clause[Box] {
	return []Clause[Box]{
		{ID: "files.mkdir", Check: try(makeDir),
			Doc: "MakeDir makes one directory, root's with 0755 or with what is given; one that exists is fs.ErrExist."},
		{ID: "files.mkdir.parents", Check: try(makeParents),
			Doc: "With Parents MakeDir makes what is missing, all with the bits and owner given, and leaves alone what exists."},
		{ID: "files.rename.replaces", Check: try(renameReplaces),
			Doc: "Rename moves files, links and directories, and replaces what has the new name."},
		{ID: "files.rename.atomic", Check: try(renameAtomic),
			Doc: "While Rename replaces a file, that name is never missing."},
		{ID: "files.rename.refused", Check: try(renameRefused),
			Doc: "A directory with entries isn't replaced, and a file isn't moved over a directory or a directory into itself."},
		{ID: "files.move", Check: try(moveKeeps),
			Doc: "Move never replaces: what has the new name stays, and the error is fs.ErrExist."},
		{ID: "files.move.race", Check: try(moveRace),
			Doc: "Of several moves to one name by a Files that is a Mover, one succeeds."},
		{ID: "files.remove", Check: try(removes),
			Doc: "Remove removes files, empty directories and links, dangling ones too; a missing path is success."},
		{ID: "files.remove.link", Check: try(removeLink),
			Doc: "Removing a link leaves alone what it names."},
		{ID: "files.removeall", Check: try(removesAll),
			Doc: "RemoveAll removes a whole tree; a missing path is success."},
		{ID: "files.removeall.links", Check: try(removeAllLinks),
			Doc: "RemoveAll removes the links in a tree and nothing that they lead to."},
		{ID: "files.setattr", Check: try(setAttr),
			Doc: "SetAttr sets what is given and leaves the rest, on files and directories."},
		{ID: "files.setattr.link", Check: try(setAttrLink),
			Doc: "SetAttr changes the file that a final symlink names."},
		{ID: "files.setattr.chown", Check: try(setAttrChown),
			Doc: "A new owner without bits drops setuid and setgid, so that a program doesn't become another account's."},
		{ID: "files.setattr.names", Check: try(setAttrNames),
			Doc: "What Stat says of owner and group can be given back, for numbers without a name too."},
	}
}

func makeDir(t *trial) {
	t.mkdir("d")
	t.looksDir(t.path("d"), 0o755, "root:root")
	err := t.Files.MakeDir(t.ctx, t.path("d"), sandbox.DirOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o700)}})
	t.fails("making a directory that exists", err, sandbox.ErrPathRejected, fs.ErrExist)
	t.put("f", "x")
	t.fails("making a directory where a file is", t.Files.MakeDir(t.ctx, t.path("f"), sandbox.DirOptions{}), sandbox.ErrPathRejected, fs.ErrExist)
	t.looksDir(t.path("d"), 0o755, "root:root")
	special := sandbox.Attr{Mode: sandbox.Mode(fs.ModeSticky | fs.ModeSetgid | 0o770)}
	t.must("making a directory with bits", t.Files.MakeDir(t.ctx, t.path("s"), sandbox.DirOptions{Attr: special}))
	t.looksDir(t.path("s"), fs.ModeSticky|fs.ModeSetgid|0o770, "root:root")
	a := t.account()
	t.must("making a directory for an account", t.Files.MakeDir(t.ctx, t.path("o"),
		sandbox.DirOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o700), Owner: a, Group: a}}))
	t.looksDir(t.path("o"), 0o700, a+":"+a)
	t.names(t.Scratch, "d", "f", "o", "s")
}

func makeParents(t *trial) {
	attr := sandbox.Attr{Mode: sandbox.Mode(0o750)}
	if t.Account != "" {
		attr.Owner, attr.Group = t.Account, t.Account
	}
	owned := "root:root"
	if t.Account != "" {
		owned = t.Account + ":" + t.Account
	}
	make := func(path string) error {
		return t.Files.MakeDir(t.ctx, path, sandbox.DirOptions{Attr: attr, Parents: true})
	}
	t.mkdir("old")
	t.must("making a directory with its parents", make(t.path("old/b/c")))
	t.looksDir(t.path("old"), 0o755, "root:root")
	for _, name := range []string{"old/b", "old/b/c"} {
		t.looksDir(t.path(name), 0o750, owned)
	}
	t.must("making what is there", make(t.path("old")))
	t.looksDir(t.path("old"), 0o755, "root:root")
	t.put("f", "x")
	t.fails("making a directory below a file", make(t.path("f/d")), sandbox.ErrPathRejected)
	t.fails("making a directory where a file is", make(t.path("f")), sandbox.ErrPathRejected)
	t.holds(t.path("f"), "x")
}

func renameReplaces(t *trial) {
	from, to := t.put("a", "new", sandbox.Attr{Mode: sandbox.Mode(0o600)}), t.put("b", "old")
	t.must("renaming over a file", t.Files.Rename(t.ctx, from, to))
	t.absent(from)
	t.looks(to, 0o600, 3, "root:root")
	t.holds(to, "new")
	t.must("making a link", t.linked("none", "l"))
	t.must("renaming a dangling link", t.Files.Rename(t.ctx, t.path("l"), to))
	t.same("the target", t.stat(to).Target, "none")
	t.mkdir("d")
	t.put("d/f", "x")
	t.mkdir("empty")
	t.must("renaming a directory over an empty one", t.Files.Rename(t.ctx, t.path("d"), t.path("empty")))
	t.holds(t.path("empty/f"), "x")
	t.names(t.Scratch, "b", "empty")
	t.must("renaming a file to itself", t.Files.Rename(t.ctx, t.path("empty/f"), t.path("empty/f")))
	t.holds(t.path("empty/f"), "x")
}

func renameAtomic(t *trial) {
	p := t.put("f", "12345")
	out := &output{}
	stop := t.beside(t.path("stop"), out, script.Watch(p, t.path("stop")))
	var missing error
	wait := t.behind(func(ctx context.Context) {
		for ctx.Err() == nil {
			if _, err := t.Files.Stat(ctx, p); err != nil && ctx.Err() == nil {
				missing = err
				return
			}
			if _, err := t.Files.Stat(ctx, t.path("over")); err == nil || !t.pause(300*time.Microsecond) {
				return
			}
		}
	})
	for range 12 {
		next := t.put("next", "12345")
		t.must("renaming", t.Files.Rename(t.ctx, next, p))
		t.pause(time.Millisecond)
	}
	t.put("over", "")
	wait()
	stop()
	t.want(missing == nil, "the name to be there all the time", "%v", missing)
}

func renameRefused(t *trial) {
	t.mkdir("d")
	t.put("d/f", "x")
	t.mkdir("e")
	t.put("e/f", "x")
	file := t.put("file", "x")
	for _, c := range []struct{ what, from, to string }{
		{"a directory over one with entries", t.path("d"), t.path("e")},
		{"a file over a directory", file, t.path("d")},
		{"a directory over a file", t.path("d"), file},
		{"a directory into itself", t.path("d"), t.path("d/g")},
	} {
		t.fails("renaming "+c.what, t.Files.Rename(t.ctx, c.from, c.to), sandbox.ErrPathRejected)
	}
	t.fails("renaming to a missing directory", t.Files.Rename(t.ctx, file, t.path("none/f")), sandbox.ErrPathNotFound)
	t.names(t.Scratch, "d", "e", "file")
	t.holds(t.path("d/f"), "x")
}

func moveKeeps(t *trial) {
	from, to := t.put("from", "new"), t.put("to", "old")
	t.mkdir("d")
	t.must("making a link", t.linked("none", "dangling"))
	for _, name := range []string{"to", "d", "dangling"} {
		t.fails(fmt.Sprintf("moving a file to %q", name), sandbox.Move(t.ctx, t.Files, from, t.path(name)), sandbox.ErrPathRejected, fs.ErrExist)
	}
	t.holds(from, "new")
	t.holds(to, "old")
	t.must("moving to a new name", sandbox.Move(t.ctx, t.Files, from, t.path("d/f")))
	t.holds(t.path("d/f"), "new")
	t.fails("moving what isn't there", sandbox.Move(t.ctx, t.Files, from, t.path("x")), sandbox.ErrPathNotFound)
	t.names(t.Scratch, "d", "dangling", "to")
}

func moveRace(t *trial) {
	if _, ok := t.Files.(sandbox.Mover); !ok {
		t.give(Skip("the Files is no sandbox.Mover"))
	}
	for range 2 {
		const movers = 6
		for i := range movers {
			t.put(fmt.Sprint("from", i), fmt.Sprint(i))
		}
		var mu sync.Mutex
		var odd error
		won := 0
		var wg sync.WaitGroup
		for i := range movers {
			wg.Go(func() {
				err := sandbox.Move(t.ctx, t.Files, t.path(fmt.Sprint("from", i)), t.path("to"))
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won++
				} else if !errors.Is(err, fs.ErrExist) {
					odd = err
				}
			})
		}
		wg.Wait()
		t.want(odd == nil && won == 1, "one of six moves to succeed and the rest to be fs.ErrExist", "%d succeeded, %v", won, odd)
		n := len(t.entries(t.Scratch, 1))
		t.want(n == movers, "no file to be lost", "%d of %d are left", n, movers)
		t.must("removing", t.Files.Remove(t.ctx, t.path("to")))
	}
}

func removes(t *trial) {
	file, dir := t.put("f", "x"), t.mkdir("d")
	t.must("making a link", t.linked("none", "dangling"))
	t.put("stays", "x")
	t.must("removing a file, a directory, a dangling link and nothing at all",
		t.Files.Remove(t.ctx, file, t.path("never"), dir, t.path("dangling"), t.path("no/such/path")))
	t.names(t.Scratch, "stays")
	t.must("removing what is gone", t.Files.Remove(t.ctx, file))
	t.must("removing no path", t.Files.Remove(t.ctx))
	t.fails("removing several paths of which one can't be asked for", t.Files.Remove(t.ctx, t.path("stays"), "relative"), sandbox.ErrPathRejected)
}

func removeLink(t *trial) {
	t.mkdir("d")
	t.put("d/f", "x")
	t.must("making a link", t.linked("d/f", "file"))
	t.must("making a link", t.linked("d", "dir"))
	t.must("removing links", t.Files.Remove(t.ctx, t.path("file"), t.path("dir")))
	t.names(t.Scratch, "d")
	t.holds(t.path("d/f"), "x")
}

func removesAll(t *trial) {
	dir, _ := grow(t)
	t.put("stays", "x")
	t.must("making a tree hard to remove", t.Files.SetAttr(t.ctx, dir+"/a", sandbox.Attr{Mode: sandbox.Mode(0)}))
	t.must("removing a tree", t.Files.RemoveAll(t.ctx, dir))
	t.must("removing it again", t.Files.RemoveAll(t.ctx, dir))
	t.must("removing below what is gone", t.Files.RemoveAll(t.ctx, dir+"/a/b"))
	t.must("removing a file", t.Files.RemoveAll(t.ctx, t.put("f", "x")))
	t.names(t.Scratch, "stays")
}

func removeAllLinks(t *trial) {
	t.mkdir("tree")
	t.mkdir("tree/sub")
	t.mkdir("outside")
	t.put("outside/f", "x")
	t.must("making a link", t.linked(t.path("outside"), "tree/sub/abs"))
	t.must("making a link", t.linked("../../outside", "tree/sub/rel"))
	t.must("making a link", t.linked("../outside/f", "tree/file"))
	t.must("making a link", t.linked("outside", "link"))
	t.must("removing a tree with links", t.Files.RemoveAll(t.ctx, t.path("tree")))
	t.must("removing a link as a tree", t.Files.RemoveAll(t.ctx, t.path("link")))
	t.names(t.Scratch, "outside")
	t.holds(t.path("outside/f"), "x")
}

func setAttr(t *trial) {
	p, d := t.put("f", "12345", sandbox.Attr{Mode: sandbox.Mode(0o640)}), t.mkdir("d")
	t.must("setting nothing", t.Files.SetAttr(t.ctx, p, sandbox.Attr{}))
	t.looks(p, 0o640, 5, "root:root")
	for _, m := range []fs.FileMode{0, 0o777, fs.ModeSetuid | 0o711} {
		t.must("setting bits", t.Files.SetAttr(t.ctx, p, sandbox.Attr{Mode: sandbox.Mode(m)}))
		t.looks(p, m, 5, "root:root")
	}
	t.must("setting a directory's bits", t.Files.SetAttr(t.ctx, d, sandbox.Attr{Mode: sandbox.Mode(fs.ModeSticky | 0o770)}))
	t.looksDir(d, fs.ModeSticky|0o770, "root:root")
	a := t.account()
	t.must("setting the group", t.Files.SetAttr(t.ctx, p, sandbox.Attr{Group: a}))
	t.must("setting the owner", t.Files.SetAttr(t.ctx, p, sandbox.Attr{Owner: a, Mode: sandbox.Mode(fs.ModeSetgid | 0o700)}))
	t.looks(p, fs.ModeSetgid|0o700, 5, a+":"+a)
	t.holds(p, "12345")
}

func setAttrLink(t *trial) {
	t.mkdir("d")
	p := t.put("d/f", "12345")
	t.must("making a link", t.linked("d/f", "l"))
	t.must("setting bits through a link", t.Files.SetAttr(t.ctx, t.path("l"), sandbox.Attr{Mode: sandbox.Mode(0o600)}))
	t.looks(p, 0o600, 5, "root:root")
}

func setAttrChown(t *trial) {
	a := t.account()
	p := t.put("f", "1", sandbox.Attr{Mode: sandbox.Mode(fs.ModeSetuid | fs.ModeSetgid | 0o755)})
	t.must("giving the file away", t.Files.SetAttr(t.ctx, p, sandbox.Attr{Owner: a}))
	t.looks(p, 0o755, 1, a+":root")
}

func setAttrNames(t *trial) {
	p, q := t.put("f", "1"), t.put("g", "1")
	for _, owner := range []string{"root", "54321"} {
		t.must("giving the file to "+owner, t.Files.SetAttr(t.ctx, p, sandbox.Attr{Owner: owner, Group: owner}))
		i := t.stat(p)
		t.want(i.Owner == owner && i.Group == owner, "owner and group "+owner, "%s and %s", i.Owner, i.Group)
		t.must("giving back what Stat said", t.Files.SetAttr(t.ctx, q, sandbox.Attr{Owner: i.Owner, Group: i.Group}))
		t.want(t.stat(q).Owner == owner && t.stat(q).Group == owner, "the same owner and group", "%s and %s", t.stat(q).Owner, t.stat(q).Group)
	}
}
