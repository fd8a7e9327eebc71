package sandboxfake

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/astrabox/astrabox/sandbox"
)

// changingMutants break promises on directories, names, attributes and confinement.
func changingMutants() []Mutant {
	return slices.Concat(directoryMutants(), nameMutants(), attributeMutants(), confinementMutants())
}

func directoryMutants() []Mutant {
	mkdir := func(name, clause, why string, do func(ctx context.Context, f sandbox.Files, p string, o sandbox.DirOptions) error) Mutant {
		return fileMutant(name, clause, why, fileHooks{mkdir: do})
	}
	return []Mutant{
		mkdir("mkdir-takes-what-exists", "files.mkdir", "two callers both believe they made it", func(ctx context.Context, f sandbox.Files, p string, o sandbox.DirOptions) error {
			if err := f.MakeDir(ctx, p, o); !errors.Is(err, fs.ErrExist) {
				return err
			}
			return nil
		}),
		mkdir("mkdir-ignores-bits", "files.mkdir", "a private directory is open to all", func(ctx context.Context, f sandbox.Files, p string, o sandbox.DirOptions) error {
			o.Mode = nil
			return f.MakeDir(ctx, p, o)
		}),
		mkdir("mkdir-ignores-owner", "files.mkdir", "the account can't use its directory", func(ctx context.Context, f sandbox.Files, p string, o sandbox.DirOptions) error {
			o.Owner, o.Group = "", ""
			return f.MakeDir(ctx, p, o)
		}),
		mkdir("parents-are-root's", "files.mkdir.parents", "missing parents get the wrong owner", func(ctx context.Context, f sandbox.Files, p string, o sandbox.DirOptions) error {
			if !o.Parents || there(ctx, f, p) {
				return f.MakeDir(ctx, p, o)
			}
			if err := f.MakeDir(ctx, path.Dir(p), sandbox.DirOptions{Parents: true}); err != nil {
				return err
			}
			return f.MakeDir(ctx, p, o)
		}),
		mkdir("parents-change-what-exists", "files.mkdir.parents", "making sure of a directory changes its bits", func(ctx context.Context, f sandbox.Files, p string, o sandbox.DirOptions) error {
			err := f.MakeDir(ctx, p, o)
			if err == nil && o.Parents {
				err = f.SetAttr(ctx, p, o.Attr)
			}
			return err
		}),
		mkdir("parents-fail-on-what-exists", "files.mkdir.parents", "the second start of a conversation fails", func(ctx context.Context, f sandbox.Files, p string, o sandbox.DirOptions) error {
			if o.Mode != nil && there(ctx, f, p) { // not the suite's own directories
				o.Parents = false
			}
			return f.MakeDir(ctx, p, o)
		}),
	}
}

func nameMutants() []Mutant {
	rename := func(name, clause, why string, do func(ctx context.Context, f sandbox.Files, from, to string) error) Mutant {
		return fileMutant(name, clause, why, fileHooks{rename: do})
	}
	remove := func(name, clause, why string, do func(ctx context.Context, f sandbox.Files, p string) error) Mutant {
		return fileMutant(name, clause, why, fileHooks{remove: do})
	}
	return []Mutant{
		rename("rename-refuses-what-exists", "files.rename.replaces", "saving by rename doesn't work", sandbox.Move),
		rename("rename-copies", "files.rename.replaces", "the old name stays", func(ctx context.Context, f sandbox.Files, from, to string) error {
			i, err := f.Stat(ctx, from)
			if err != nil || !i.Mode.IsRegular() {
				return f.Rename(ctx, from, to)
			}
			r, err := f.Open(ctx, from, 0, -1)
			if err != nil {
				return err
			}
			return f.Write(ctx, to, r, sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(i.Mode)}})
		}),
		rename("rename-removes-first", "files.rename.atomic", "the name is missing for a moment", func(ctx context.Context, f sandbox.Files, from, to string) error {
			if i, err := f.Stat(ctx, to); err == nil && i.Mode.IsRegular() && from != to {
				_ = f.Remove(ctx, to)
				linger(ctx)
			}
			return f.Rename(ctx, from, to)
		}),
		rename("rename-replaces-full-directories", "files.rename.refused", "a whole tree is lost by a rename", func(ctx context.Context, f sandbox.Files, from, to string) error {
			if err := f.Rename(ctx, from, to); !errors.Is(err, syscall.ENOTEMPTY) {
				return err
			}
			_ = f.RemoveAll(ctx, to)
			return f.Rename(ctx, from, to)
		}),
		rename("rename-moves-into-directories", "files.rename.refused", "as mv does: the file lands elsewhere", func(ctx context.Context, f sandbox.Files, from, to string) error {
			if i, err := f.Stat(ctx, to); err == nil && i.IsDir() {
				if j, err := f.Stat(ctx, from); err == nil && j.Mode.IsRegular() {
					to += "/" + path.Base(from)
				}
			}
			return f.Rename(ctx, from, to)
		}),
		fileMutant("move-replaces", "files.move", "an upload overwrites what was there", fileHooks{
			move: func(ctx context.Context, f sandbox.Files, from, to string) error { return f.Rename(ctx, from, to) }}),
		fileMutant("move-looks-first", "files.move.race", "of two moves to one name one file is lost", fileHooks{
			move: func(ctx context.Context, f sandbox.Files, from, to string) error {
				if there(ctx, f, to) {
					return sandbox.Move(ctx, f, from, to)
				}
				linger(ctx)
				return f.Rename(ctx, from, to)
			}}),
		remove("remove-missing-fails", "files.remove", "cleaning up twice is an error", func(ctx context.Context, f sandbox.Files, p string) error {
			if _, err := f.Stat(ctx, p); errors.Is(err, sandbox.ErrPathNotFound) {
				return err
			}
			return f.Remove(ctx, p)
		}),
		remove("remove-leaves-dangling-links", "files.remove", "it says 200 and the link stays", func(ctx context.Context, f sandbox.Files, p string) error {
			if isLink(ctx, f, p) {
				if r, err := f.Open(ctx, p, 0, 0); errors.Is(err, sandbox.ErrPathNotFound) {
					return nil
				} else if err == nil {
					r.Close()
				}
			}
			return f.Remove(ctx, p)
		}),
		remove("remove-removes-trees", "files.errors.rejected", "a directory with work in it is gone", func(ctx context.Context, f sandbox.Files, p string) error {
			return f.RemoveAll(ctx, p)
		}),
		remove("remove-follows-links", "files.remove.link", "removing a link removes what it names", func(ctx context.Context, f sandbox.Files, p string) error {
			if i, err := f.Stat(ctx, p); err == nil && i.Mode.Type() == fs.ModeSymlink {
				_ = f.RemoveAll(ctx, path.Join(path.Dir(p), i.Target))
			}
			return f.Remove(ctx, p)
		}),
		fileMutant("removeall-leaves-directories", "files.removeall", "emptied trees pile up", fileHooks{
			removeAll: func(ctx context.Context, f sandbox.Files, p string) error {
				if i, err := f.Stat(ctx, p); err != nil || !i.IsDir() {
					return f.RemoveAll(ctx, p)
				}
				return each(ctx, f, p, func(i info) error { return f.RemoveAll(ctx, i.Path) })
			}}),
		fileMutant("removeall-missing-fails", "files.removeall", "cleaning up twice is an error", fileHooks{
			removeAll: func(ctx context.Context, f sandbox.Files, p string) error {
				if _, err := f.Stat(ctx, p); err != nil {
					return err
				}
				return f.RemoveAll(ctx, p)
			}}),
		fileMutant("removeall-follows-links", "files.removeall.links", "a link in a workspace empties another one", fileHooks{removeAll: removeThroughLinks}),
	}
}

func removeThroughLinks(ctx context.Context, f sandbox.Files, p string) error {
	if seq, err := f.List(ctx, p, 99); err == nil {
		for i, err := range seq {
			if err != nil || i.Mode.Type() != fs.ModeSymlink {
				continue
			}
			if inner, err := f.List(ctx, i.Path, 1); err == nil {
				for j, err := range inner {
					if err == nil {
						_ = f.RemoveAll(ctx, j.Path)
					}
				}
			}
		}
	}
	return f.RemoveAll(ctx, p)
}

func attributeMutants() []Mutant {
	set := func(name, clause, why string, do func(ctx context.Context, f sandbox.Files, p string, a sandbox.Attr) error) Mutant {
		return fileMutant(name, clause, why, fileHooks{setAttr: do})
	}
	return []Mutant{
		set("setattr-resets-the-rest", "files.setattr", "a new group makes a program not executable", func(ctx context.Context, f sandbox.Files, p string, a sandbox.Attr) error {
			if a.Mode == nil {
				a.Mode = sandbox.Mode(0o644)
			}
			return f.SetAttr(ctx, p, a)
		}),
		set("setattr-drops-special-bits", "files.setattr", "setuid is lost without a word", func(ctx context.Context, f sandbox.Files, p string, a sandbox.Attr) error {
			if a.Mode != nil {
				a.Mode = sandbox.Mode(*a.Mode &^ (fs.ModeSetuid | fs.ModeSetgid))
			}
			return f.SetAttr(ctx, p, a)
		}),
		set("setattr-ignores-directories", "files.setattr", "directories stay closed", func(ctx context.Context, f sandbox.Files, p string, a sandbox.Attr) error {
			if i, err := f.Stat(ctx, p); err == nil && i.IsDir() {
				return nil
			}
			return f.SetAttr(ctx, p, a)
		}),
		set("setattr-stops-at-links", "files.setattr.link", "chmod through a link has no effect", func(ctx context.Context, f sandbox.Files, p string, a sandbox.Attr) error {
			if isLink(ctx, f, p) {
				return nil
			}
			return f.SetAttr(ctx, p, a)
		}),
		set("chown-keeps-setuid", "files.setattr.chown", "a program becomes another account's by accident", func(ctx context.Context, f sandbox.Files, p string, a sandbox.Attr) error {
			if i, err := f.Stat(ctx, p); err == nil && a.Mode == nil {
				a.Mode = sandbox.Mode(i.Mode & settable)
			}
			return f.SetAttr(ctx, p, a)
		}),
		set("numbers-are-refused", "files.setattr.names", "what a listing says of an owner can't be given back", func(ctx context.Context, f sandbox.Files, p string, a sandbox.Attr) error {
			if _, err := strconv.Atoi(a.Owner); err == nil {
				return fail("setattr", p, rejected(syscall.EINVAL, "no account %s", a.Owner))
			}
			return f.SetAttr(ctx, p, a)
		}),
	}
}

// confinementMutants let something out of a root, or too little in.
func confinementMutants() []Mutant {
	type choose = func(ctx context.Context, free, confined sandbox.Files, roots []string, p string) sandbox.Files
	beneath := func(name, clause, why string, do choose) Mutant {
		return fileMutant(name, clause, why, fileHooks{beneath: do})
	}
	last := func(roots []string) string { return roots[len(roots)-1] }
	return []Mutant{
		beneath("root-is-ignored", "files.beneath.outside", "a workspace's files face reaches everything", func(_ context.Context, free, _ sandbox.Files, _ []string, _ string) sandbox.Files { return free }),
		beneath("root-is-a-prefix", "files.beneath.outside", "/work lets into /work2", func(_ context.Context, free, confined sandbox.Files, roots []string, p string) sandbox.Files {
			if strings.HasPrefix(p, last(roots)) && !strings.HasPrefix(p, last(roots)+"/") && p != last(roots) {
				return free
			}
			return confined
		}),
		beneath("dots-lead-out", "files.beneath.dots", "the oldest of all ways out", func(_ context.Context, free, confined sandbox.Files, roots []string, p string) sandbox.Files {
			if strings.HasPrefix(p, last(roots)+"/") && strings.Contains(p, "..") {
				return free
			}
			return confined
		}),
		beneath("final-links-lead-out", "files.beneath.links", "only the directories on the way are checked", func(ctx context.Context, free, confined sandbox.Files, roots []string, p string) sandbox.Files {
			if strings.HasPrefix(p, last(roots)+"/") && !strings.Contains(p, "..") && isLink(ctx, confined, p) {
				return free
			}
			return confined
		}),
		beneath("directory-links-lead-out", "files.beneath.links", "only the last name is checked", func(ctx context.Context, free, confined sandbox.Files, roots []string, p string) sandbox.Files {
			if dir := path.Dir(p); strings.HasPrefix(dir, last(roots)+"/") && !strings.Contains(p, "..") && isLink(ctx, confined, dir) {
				return free
			}
			return confined
		}),
		beneath("path-is-checked-first", "files.beneath.race", "a link put there between check and use leads out", func(ctx context.Context, free, confined sandbox.Files, roots []string, p string) sandbox.Files {
			if i, err := confined.Stat(ctx, path.Dir(p)); err == nil && i.IsDir() && path.Dir(p) != path.Dir(last(roots)) {
				linger(ctx)
				return free
			}
			return confined
		}),
		beneath("inner-links-are-refused", "files.beneath.works", "a workspace with links can't be used", func(ctx context.Context, free, confined sandbox.Files, roots []string, p string) sandbox.Files {
			for d := p; len(d) > len(last(roots)); d = path.Dir(d) {
				if isLink(ctx, confined, d) {
					return free.Beneath("/no such root")
				}
			}
			return confined
		}),
		beneath("inner-root-leads-out", "files.beneath.nested", "confining further frees", func(_ context.Context, free, _ sandbox.Files, roots []string, _ string) sandbox.Files {
			return free.Beneath(last(roots))
		}),
	}
}
