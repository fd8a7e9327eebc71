package files_test

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/test/machine"
)

// A name of another's file: content never goes through it, and its removal
// takes the name alone. (Bits and owner belong to the file, whatever its name:
// who may make such a name is the kernel's affair, fs.protected_hardlinks.)
func TestAttackHardLinks(t *testing.T) {
	f, dir := setup(t)
	o := newOld(t)
	must(t, os.MkdirAll(dir+"/root/tree/deep", 0o755))
	put(t, dir+"/secret", "secret")
	must(t, os.Chmod(dir+"/secret", 0o604))
	root := dir + "/root"
	g := f.Beneath(root)
	link := func(name string) string {
		t.Helper()
		must(t, os.Link(dir+"/secret", root+name))
		return root + name
	}
	attr := sandbox.Attr{Mode: sandbox.Mode(0o666), Owner: "alice"}
	var before unix.Stat_t
	must(t, unix.Stat(dir+"/secret", &before))
	must(t, g.Write(t.Context(), link("/w"), strings.NewReader("mine"), sandbox.WriteOptions{Attr: attr}))
	info, err := g.Stat(t.Context(), link("/v"))
	must(t, err)
	must(t, g.Write(t.Context(), root+"/v", strings.NewReader("mine"), sandbox.WriteOptions{Attr: attr, IfUnchanged: info.Version}))
	want(t, g.Write(t.Context(), link("/n"), strings.NewReader("mine"), sandbox.WriteOptions{Attr: attr, NoReplace: true}), fs.ErrExist)
	put(t, root+"/mine", "mine")
	must(t, g.Rename(t.Context(), root+"/mine", link("/r")))
	must(t, g.Remove(t.Context(), link("/d")))
	link("/tree/a")
	link("/tree/deep/b")
	must(t, g.RemoveAll(t.Context(), root+"/tree"))
	o.dir = root
	link("/u")
	expect(t, 200, "")(o.upload(`metadata={"path":"$D/u","mode":666,"owner":"alice"}`, "file=mine"))
	link("/e")
	expect(t, 200, "")(o.json("POST", "/files/replace", `{"$D/e":{"old":"secret","new":"mine"}}`))
	for _, name := range []string{"/w", "/v", "/r", "/u", "/e"} {
		if got := get(t, root+name); got != "mine" {
			t.Errorf("%s holds %q", name, got)
		}
	}
	var after unix.Stat_t
	must(t, unix.Stat(dir+"/secret", &after))
	if get(t, dir+"/secret") != "secret" || after.Ino != before.Ino || after.Mode != before.Mode || after.Uid != before.Uid || after.Nlink != 2 {
		t.Errorf("the other's file became %o of %d with %d names: %q", after.Mode, after.Uid, after.Nlink, get(t, dir+"/secret"))
	}
}

// bind mounts from on to.
func bind(t *testing.T, from, to string) {
	t.Helper()
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		machine.Missing(t, "nothing can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(to, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// What is mounted can be neither replaced nor removed nor renamed, which is
// said and leaves everything as it was; what lies in it works as anywhere.
func TestAttackMounts(t *testing.T) {
	f, dir := setup(t)
	must(t, os.MkdirAll(dir+"/root/tree/mount", 0o755))
	must(t, os.Mkdir(dir+"/source", 0o755))
	put(t, dir+"/hosts", "old")
	put(t, dir+"/root/hosts", "hidden below")
	put(t, dir+"/root/other", "other")
	bind(t, dir+"/hosts", dir+"/root/hosts") // as container runtimes do with /etc/hosts
	bind(t, dir+"/source", dir+"/root/tree/mount")
	root := dir + "/root"
	for what, g := range map[string]sandbox.Files{"open": f, "confined": f.Beneath(root)} {
		ctx := t.Context()
		want(t, g.Write(ctx, root+"/hosts", strings.NewReader("new"), sandbox.WriteOptions{}), sandbox.ErrPathRejected)
		want(t, g.Remove(ctx, root+"/hosts"), sandbox.ErrPathRejected)
		want(t, g.Rename(ctx, root+"/hosts", root+"/x"), sandbox.ErrPathRejected)
		want(t, g.Rename(ctx, root+"/other", root+"/hosts"), sandbox.ErrPathRejected)
		want(t, g.Remove(ctx, root+"/tree/mount"), sandbox.ErrPathRejected)
		want(t, g.Rename(ctx, root+"/other", root+"/tree/mount/x"), sandbox.ErrPathRejected, syscall.EXDEV)
		want(t, sandbox.Move(ctx, g, root+"/other", root+"/tree/mount/x"), sandbox.ErrPathRejected, syscall.EXDEV)
		must(t, g.Write(ctx, root+"/tree/mount/f", strings.NewReader("x"), sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o600)}}))
		must(t, g.MakeDir(ctx, root+"/tree/mount/d/e", sandbox.DirOptions{Parents: true}))
		// An attempt to remove a tree with a mount in it ends, and says so.
		want(t, g.RemoveAll(ctx, root+"/tree"), sandbox.ErrPathRejected)
		if got := names(t, root); !slices.Equal(got, []string{"hosts", "other", "tree"}) || get(t, root+"/hosts") != "old" || get(t, root+"/other") != "other" {
			t.Errorf("%s: left %v", what, got)
		}
		if got := names(t, dir+"/source"); len(got) != 0 {
			t.Errorf("%s: in the mount is left %v", what, got)
		}
	}
	// ".." at the top of a mount in the root leads to the root, not to where its source lies.
	put(t, dir+"/secret", "secret")
	put(t, root+"/tree/secret", "inside")
	r, err := f.Beneath(root).Open(t.Context(), root+"/tree/mount/../secret", 0, -1)
	must(t, err)
	defer r.Close()
	if b, err := io.ReadAll(r); string(b) != "inside" || err != nil {
		t.Errorf("read %q, %v", b, err)
	}
}

// The links of /proc lead by the kernel's own means and not by their text; no
// call goes that way out of a root, be the root in /proc itself.
func TestAttackProc(t *testing.T) {
	f, dir := setup(t)
	ctx := t.Context()
	must(t, os.Mkdir(dir+"/root", 0o755))
	put(t, dir+"/secret", "secret")
	open, err := os.Open(dir)
	must(t, err)
	defer open.Close()
	file, err := os.OpenFile(dir+"/secret", os.O_RDWR, 0)
	must(t, err)
	defer file.Close()
	t.Chdir(dir)
	self, pid := "/proc/self", fmt.Sprint("/proc/", os.Getpid())
	root := dir + "/root"
	targets := []string{self + "/cwd", self + "/root" + dir}
	for _, p := range []string{self, pid, "/proc/thread-self", pid + "/task/" + fmt.Sprint(os.Getpid())} {
		targets = append(targets, fmt.Sprint(p, "/fd/", open.Fd()), p+"/cwd")
	}
	attr := sandbox.Attr{Mode: sandbox.Mode(0o666), Owner: "alice"}
	refused := func(what string, g sandbox.Files, path string, toFile bool) {
		t.Helper()
		r, err := g.Open(ctx, path, 0, -1)
		if err == nil {
			b, _ := io.ReadAll(r)
			r.Close()
			t.Errorf("%s: read %q", what, b)
		}
		var calls []error
		if calls = append(calls, err, g.SetAttr(ctx, path, attr)); toFile {
			calls = append(calls, g.Write(ctx, path, strings.NewReader("x"), sandbox.WriteOptions{Attr: attr}))
		} else {
			_, err1 := g.List(ctx, path, 1)
			_, err2 := g.Search(ctx, path, "*")
			calls = append(calls, err1, err2, g.MakeDir(ctx, path+"/d", sandbox.DirOptions{Attr: attr, Parents: true}),
				g.Remove(ctx, path+"/secret"), g.RemoveAll(ctx, path+"/secret"), g.Rename(ctx, path+"/secret", root+"/stolen"))
		}
		for i, err := range calls {
			if err == nil {
				t.Errorf("%s: call %d succeeded", what, i)
			}
		}
	}
	g := f.Beneath(root)
	for i, target := range targets {
		name := fmt.Sprint(root, "/link", i)
		must(t, os.Symlink(target, name))
		refused(target, g, name, false)
		refused(target+"/secret", g, name+"/secret", true)
	}
	must(t, os.Symlink(fmt.Sprint(self, "/fd/", file.Fd()), root+"/file"))
	refused("a descriptor", g, root+"/file", true)
	// A process's own directories, with /proc or a part of it as the root. (Only what the test may lose is named.)
	for root, path := range map[string]string{
		"/proc": fmt.Sprint(pid, "/fd/", open.Fd()), pid: fmt.Sprint(pid, "/fd/", open.Fd()), pid + "/fd": fmt.Sprint(pid, "/fd/", open.Fd()), "/proc/": pid + "/cwd",
	} {
		refused("below "+root, f.Beneath(root), path, false)
		refused("below "+root, f.Beneath(root), path+"/secret", true)
	}
	refused("below "+pid, f.Beneath(pid), fmt.Sprint(pid, "/fd/", file.Fd()), true)
	// A root that is such a link is what it stands for, and no more.
	h := f.Beneath(fmt.Sprint(pid, "/fd/", open.Fd(), "/root"))
	want(t, h.Write(ctx, fmt.Sprint(pid, "/fd/", open.Fd(), "/root/../secret"), strings.NewReader("x"), sandbox.WriteOptions{}), sandbox.ErrPathRejected)
	var st unix.Stat_t
	must(t, unix.Stat(dir+"/secret", &st))
	if got := names(t, dir); !slices.Equal(got, []string{"root", "secret"}) || get(t, dir+"/secret") != "secret" || st.Uid != 0 || st.Mode&0o777 != 0o644 {
		t.Errorf("the outside was changed: %v, %o of %d", got, st.Mode, st.Uid)
	}
	// Without a root, files of /proc are files; nothing is made or removed there.
	want(t, f.Write(ctx, self+"/status", strings.NewReader("x"), sandbox.WriteOptions{})) // the kernel has several words for it
	want(t, f.MakeDir(ctx, self+"/new", sandbox.DirOptions{}))
	want(t, f.Write(ctx, self+"/new", strings.NewReader("x"), sandbox.WriteOptions{}))
	want(t, f.Remove(ctx, self+"/status"))
}

// Names that look like those of unfinished files are names like others.
func TestAttackNamesLikeOurs(t *testing.T) {
	f, dir := setup(t)
	ctx := t.Context()
	fake := dir + "/.astrabox-ABCDEFGHIJKLMNOPQRSTUVWXYZ.tmp"
	must(t, os.Mkdir(fake, 0o777))
	must(t, os.Symlink("/", dir+"/.astrabox-BBCDEFGHIJKLMNOPQRSTUVWXYZ.tmp"))
	must(t, f.Write(ctx, fake+"/f", strings.NewReader("x"), sandbox.WriteOptions{}))
	must(t, f.MakeDir(ctx, dir+"/d", sandbox.DirOptions{}))
	seq, err := f.List(ctx, dir, 2)
	if got := collect(t, seq, err); len(got) != 4 {
		t.Errorf("listed %v", got)
	}
	must(t, f.RemoveAll(ctx, fake))
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("left: %v", got)
	}
}
