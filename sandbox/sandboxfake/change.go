package sandboxfake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/astrabox/astrabox/sandbox"
)

// check refuses bits and accounts that can't be given.
func (t *tree) check(a sandbox.Attr) error {
	if err := a.CheckMode(); err != nil {
		return fmt.Errorf("%w: %w", sandbox.ErrPathRejected, err)
	}
	for _, account := range []string{a.Owner, a.Group} {
		if account != "" && !t.knows(account) {
			return rejected(syscall.EINVAL, "the sandbox has no account named %q", account)
		}
	}
	return nil
}

// give sets what is set in a.
func (n *node) give(a sandbox.Attr) {
	owner, group := n.owner, n.group
	if a.Owner != "" {
		n.owner = a.Owner
	}
	if a.Group != "" {
		n.group = a.Group
	}
	if a.Mode != nil {
		n.mode = n.mode&^settable | *a.Mode
	} else if owner != n.owner || group != n.group {
		n.mode &^= fs.ModeSetuid | fs.ModeSetgid // as chown does
	}
}

// writable finds where a content goes, and makes the file that takes it: with
// the bits and owner that it will have, not yet in place.
func (t *tree) writable(roots []string, path string, o sandbox.WriteOptions) (place, *node, error) {
	if err := t.check(o.Attr); err != nil {
		return place{}, nil, err
	}
	if o.NoReplace && o.IfUnchanged != "" {
		return place{}, nil, rejected(syscall.EINVAL, "NoReplace and IfUnchanged exclude each other")
	}
	at, err := t.named(roots, path, !o.NoReplace)
	if err != nil {
		return at, nil, err
	}
	changed := fmt.Errorf("%w: %w", sandbox.ErrPathRejected, sandbox.ErrChanged)
	n := t.node(0o644, "root")
	switch {
	case at.slash:
		return at, nil, errno(syscall.EISDIR)
	case at.n == nil && o.IfUnchanged != "":
		return at, nil, changed
	case at.n == nil:
	case o.NoReplace:
		return at, nil, errno(syscall.EEXIST)
	case at.n.mode.IsDir():
		return at, nil, errno(syscall.EISDIR)
	case !at.n.mode.IsRegular():
		return at, nil, rejected(syscall.ENODEV, "content can't replace what the path names")
	case o.IfUnchanged != "" && o.IfUnchanged != strconv.FormatInt(at.n.version, 10):
		return at, nil, changed
	default:
		n.mode, n.owner, n.group = at.n.mode, at.n.owner, at.n.group
	}
	n.give(o.Attr)
	return at, n, nil
}

func (f *files) MakeDir(ctx context.Context, path string, o sandbox.DirOptions) error {
	return change(ctx, f, "mkdir", "MakeDir", path, func(t *tree) error {
		if err := t.check(o.Attr); err != nil {
			return err
		}
		if o.Parents {
			return t.makeAll(f.roots, path, o.Attr)
		}
		return t.makeDir(f.roots, path, o.Attr)
	})
}

func (t *tree) makeDir(roots []string, path string, a sandbox.Attr) error {
	at, err := t.named(roots, path, false)
	switch {
	case err != nil:
		return err
	case at.n != nil:
		return errno(syscall.EEXIST)
	}
	n := t.node(fs.ModeDir|0o755, "root")
	n.give(a)
	t.add(at.dir, at.name, n)
	return nil
}

// makeAll makes what is missing, from the top.
func (t *tree) makeAll(roots []string, path string, a sandbox.Attr) error {
	start := 1
	if len(roots) > 0 {
		start = len(strings.TrimRight(roots[len(roots)-1], "/")) + 1
	}
	if at, err := t.find(roots, path, true); err == nil && at.n != nil {
		if !at.n.mode.IsDir() {
			return errno(syscall.ENOTDIR)
		}
		return nil
	} else if err != nil && !missing(err) {
		return err
	}
	path = strings.TrimRight(path, "/")
	for i := start; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' || path[i-1] == '/' {
			continue
		}
		at, err := t.find(roots, path[:i], true)
		switch {
		case err != nil:
			return err
		case at.n == nil:
			if err := t.makeDir(roots, path[:i], a); err != nil {
				return err
			}
		case !at.n.mode.IsDir():
			return errno(syscall.ENOTDIR)
		}
	}
	return nil
}

func (f *files) SetAttr(ctx context.Context, path string, a sandbox.Attr) error {
	return change(ctx, f, "setattr", "SetAttr", path, func(t *tree) error {
		if err := t.check(a); err != nil {
			return err
		}
		at, err := t.existing(f.roots, path, true)
		if err == nil {
			at.n.give(a)
		}
		return err
	})
}

func (f *files) Rename(ctx context.Context, from, to string) error {
	return f.move(ctx, "rename", "Rename", from, to, true)
}

// Move implements sandbox.Mover.
func (f *files) Move(ctx context.Context, from, to string) error {
	return f.move(ctx, "move", "Move", from, to, false)
}

func (f *files) move(ctx context.Context, op, method, from, to string, replace bool) error {
	return change(ctx, f, op, method, from, func(t *tree) error {
		src, err := t.named(f.roots, from, false)
		if err != nil {
			return fail(op, from, err)
		}
		dst, err := t.named(f.roots, to, false)
		if err != nil {
			return fail(op, to, err)
		}
		if src.n == nil {
			return fail(op, from, errno(syscall.ENOENT))
		}
		if e := movable(src, dst, replace); e != 0 {
			return fail(op, to, errno(e))
		}
		if src.n != dst.n {
			t.drop(src.dir, src.name)
			t.add(dst.dir, dst.name, src.n)
		}
		return nil
	})
}

// movable says what the system would say against a rename; 0: nothing.
func movable(src, dst place, replace bool) syscall.Errno {
	dir := src.n.mode.IsDir()
	if (src.slash || dst.slash) && !dir {
		return syscall.ENOTDIR
	}
	for d := dst.dir; dir; d = d.parent {
		if d == src.n {
			return syscall.EINVAL // into itself
		}
		if d == d.parent {
			break
		}
	}
	switch {
	case dst.n == nil:
		return 0
	case !replace:
		return syscall.EEXIST
	case dst.n == src.n:
		return 0
	case dst.n.mode.IsDir() && !dir:
		return syscall.EISDIR
	case !dst.n.mode.IsDir() && dir:
		return syscall.ENOTDIR
	case len(dst.n.names) > 0:
		return syscall.ENOTEMPTY
	}
	return 0
}

func (f *files) Remove(ctx context.Context, paths ...string) error {
	for _, p := range paths { // nothing is removed when one can't be asked for
		if err := checkPath(p); err != nil {
			return fail("remove", p, err)
		}
	}
	if len(paths) == 0 {
		return nil
	}
	return change(ctx, f, "remove", "Remove", paths[0], func(t *tree) error {
		for _, p := range paths {
			if err := t.remove(f.roots, p, false); err != nil {
				return fail("remove", p, err)
			}
		}
		return nil
	})
}

func (f *files) RemoveAll(ctx context.Context, path string) error {
	return change(ctx, f, "removeall", "RemoveAll", path, func(t *tree) error { return t.remove(f.roots, path, true) })
}

func (t *tree) remove(roots []string, path string, all bool) error {
	at, err := t.named(roots, path, false)
	switch {
	case missing(err) || err == nil && at.n == nil:
		return nil
	case err != nil:
		return err
	case at.slash && !at.n.mode.IsDir():
		return errno(syscall.ENOTDIR)
	case !all && len(at.n.names) > 0:
		return errno(syscall.ENOTEMPTY)
	}
	t.drop(at.dir, at.name)
	return nil
}

// missing reports whether err says that there is no such file.
func missing(err error) bool {
	return errors.Is(err, sandbox.ErrPathNotFound) || errors.Is(err, syscall.ENOTDIR)
}

// matcher compiles a glob for base names.
func matcher(pattern string) (func(name string) bool, error) {
	bad := rejected(syscall.EINVAL, "the pattern is empty, malformed or too long")
	if pattern == "" || len(pattern) > 1024 {
		return nil, bad
	}
	all, ok := alternatives(strings.ReplaceAll(pattern, "[!", "[^"))
	if !ok {
		return nil, bad
	}
	for _, p := range all {
		if _, err := path.Match(p, ""); err != nil {
			return nil, bad
		}
	}
	return func(name string) bool {
		for _, p := range all {
			if ok, _ := path.Match(p, name); ok {
				return true
			}
		}
		return false
	}, nil
}

// alternatives writes {a,b} out; ok is false for braces that don't pair or too
// many alternatives.
func alternatives(pattern string) (all []string, ok bool) {
	open := strings.IndexByte(pattern, '{')
	if open < 0 {
		return []string{pattern}, !strings.Contains(pattern, "}")
	}
	depth, start := 0, open+1
	var inner []string
	for i := open; i < len(pattern); i++ {
		switch pattern[i] {
		case '{':
			depth++
		case ',':
			if depth == 1 {
				inner = append(inner, pattern[start:i])
				start = i + 1
			}
		case '}':
			if depth--; depth > 0 {
				continue
			}
			for _, alternative := range append(inner, pattern[start:i]) {
				rest, ok := alternatives(pattern[:open] + alternative + pattern[i+1:])
				if all = append(all, rest...); !ok || len(all) > 4096 {
					return nil, false
				}
			}
			return all, true
		}
	}
	return nil, false
}
