package conform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

// oddNames are names that a careless system changes or expands.
var oddNames = []string{
	"$HOME", "k$1", "~", "~root", "a b", "*", "?", "[a]", "it's", `"quoted"`, `back\slash`, "new\nline", "-rf", "%41", "a;b", "`id`",
	"ünïcødé", "日本", "#", "&", "{a,b}", " ", "\t", "..x", ".hidden",
}

func nameClauses() []Clause[Box] {
	return []Clause[Box]{
		{ID: "files.names.literal", Check: try(literalNames),
			Doc: "A name is taken literally: no ~, no $VAR, no globbing, whatever letters it has."},
		{ID: "files.names.bytes", Check: try(byteNames),
			Doc: "A name that isn't UTF-8 is kept byte by byte."},
		{ID: "files.paths.refused", Check: try(refusedPaths),
			Doc: "A relative or empty path, or one with a NUL, is refused with ErrPathRejected by every operation."},
		{ID: "files.errors.missing", Check: try(missingPaths),
			Doc: "What isn't there is ErrPathNotFound, for which fs.ErrNotExist holds, in a PathError that names the path."},
		{ID: "files.errors.rejected", Check: try(rejectedPaths),
			Doc: "What the sandbox was asked for and refuses is ErrPathRejected and no other class."},
		{ID: "files.errors.context", Check: try(contextErrors),
			Doc: "A call whose context has ended fails with the context's error, which says nothing about the file or the sandbox."},
	}
}

func literalNames(t *trial) {
	dir := t.mkdir("d")
	var want []string
	for i, name := range oddNames {
		content := fmt.Sprint("content ", i)
		p := t.put("d/"+name, content)
		t.same(fmt.Sprintf("the path of %q", name), t.stat(p).Path, p)
		want = append(want, name)
	}
	slices.Sort(want)
	var got []string
	for _, e := range t.entries(dir, 1) {
		got = append(got, e.Path)
	}
	t.want(slices.Equal(got, want), fmt.Sprintf("the directory to have the entries %q", want), "%q", got)
	for i, name := range oddNames {
		content := fmt.Sprint("content ", i)
		t.same(fmt.Sprintf("the content of %q", name), t.read(dir+"/"+name), content)
		t.holds(dir+"/"+name, content)
	}
	// Neighbours that an expansion would hit.
	t.put("d/k", "kept")
	t.must("removing k$1", t.Files.Remove(t.ctx, dir+"/k$1", dir+"/*"))
	t.absent(dir + "/k$1")
	t.same("the neighbour k", t.read(dir+"/k"), "kept")
	t.must("renaming", t.Files.Rename(t.ctx, dir+"/$HOME", dir+"/~$USER"))
	t.holds(dir+"/~$USER", "content 0")
}

// byteNames asks nothing of a command line, which may be text.
func byteNames(t *trial) {
	const name = "x\xff\xfe\xc3(y"
	p := t.put(name, "content")
	t.names(t.Scratch, name)
	t.same("the name in a listing", pathsOf(t.entries(t.Scratch, 1)), name)
	t.same("the path", t.stat(p).Path, p)
	t.same("the content", t.read(p), "content")
	t.must("renaming", t.Files.Rename(t.ctx, p, p+"\xff"))
	t.names(t.Scratch, name+"\xff")
	t.must("removing", t.Files.Remove(t.ctx, p+"\xff"))
	t.names(t.Scratch)
}

// linked makes a symlink in the clause's directory.
func (t *trial) linked(target, name string) error {
	r, err := t.Commands.Run(t.ctx, sandbox.Command{Line: script.Line(script.Link(target, t.path(name)))})
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("status %d: %s", r.ExitCode, r.Stderr)
	}
	return err
}

// onPath are all operations, each done on one path; source is renamed to it.
func onPath(f sandbox.Files, path, source string) map[string]func(context.Context) error {
	elsewhere := func(p string) string { return strings.TrimRight(p, "/") + ".new" }
	drain := func(seq func(func(sandbox.FileInfo, error) bool), err error) error {
		if err != nil {
			return err
		}
		for _, err := range seq {
			if err != nil {
				return err
			}
		}
		return nil
	}
	return map[string]func(context.Context) error{
		"Stat":   func(ctx context.Context) error { _, err := f.Stat(ctx, path); return err },
		"List":   func(ctx context.Context) error { return drain(f.List(ctx, path, 1)) },
		"Search": func(ctx context.Context) error { return drain(f.Search(ctx, path, "*")) },
		"Open": func(ctx context.Context) error {
			r, err := f.Open(ctx, path, 0, -1)
			if err == nil {
				r.Close()
			}
			return err
		},
		"Write": func(ctx context.Context) error {
			return f.Write(ctx, path, strings.NewReader("x"), sandbox.WriteOptions{})
		},
		"MakeDir":     func(ctx context.Context) error { return f.MakeDir(ctx, path, sandbox.DirOptions{}) },
		"Rename from": func(ctx context.Context) error { return f.Rename(ctx, path, elsewhere(path)) },
		"Rename to":   func(ctx context.Context) error { return f.Rename(ctx, source, path) },
		"Remove":      func(ctx context.Context) error { return f.Remove(ctx, path) },
		"RemoveAll":   func(ctx context.Context) error { return f.RemoveAll(ctx, path) },
		"SetAttr":     func(ctx context.Context) error { return f.SetAttr(ctx, path, sandbox.Attr{Mode: sandbox.Mode(0o600)}) },
		"Beneath":     func(ctx context.Context) error { _, err := f.Beneath(path).Stat(ctx, path); return err },
	}
}

func refusedPaths(t *trial) {
	for _, path := range []string{"", "f", "./f", "../f", "f/" + t.Scratch, "~/f", t.Scratch + "/a\x00b", "\x00"} {
		calls := onPath(t.Files, path, t.Scratch)
		for _, op := range sortedKeys(calls) {
			t.fails(fmt.Sprintf("%s of %q", op, path), calls[op](t.ctx), sandbox.ErrPathRejected)
		}
	}
	t.names(t.Scratch)
}

func missingPaths(t *trial) {
	path := t.path("none")
	calls := onPath(t.Files, path, t.Scratch)
	for _, op := range []string{"Stat", "List", "Search", "Open", "Rename from", "SetAttr", "Beneath"} {
		err := calls[op](t.ctx)
		t.fails(op+" of a missing path", err, sandbox.ErrPathNotFound, fs.ErrNotExist)
		var named *sandbox.PathError
		if errors.As(err, &named) {
			t.same("the path in the error of "+op, named.Path, path)
		}
	}
	for _, op := range []string{"Write", "MakeDir"} {
		t.fails(op+" in a missing directory", onPath(t.Files, path+"/f", t.Scratch)[op](t.ctx), sandbox.ErrPathNotFound, fs.ErrNotExist)
	}
}

func rejectedPaths(t *trial) {
	file, dir := t.put("file", "x"), t.mkdir("dir")
	t.put("dir/entry", "x")
	for _, c := range []struct {
		doing string
		err   error
	}{
		{"opening a directory", onPath(t.Files, dir, t.Scratch)["Open"](t.ctx)},
		{"writing onto a directory", onPath(t.Files, dir, t.Scratch)["Write"](t.ctx)},
		{"listing a file", onPath(t.Files, file, t.Scratch)["List"](t.ctx)},
		{"making a directory in a file", onPath(t.Files, file+"/d", t.Scratch)["MakeDir"](t.ctx)},
		{"writing into a file as if it were a directory", onPath(t.Files, file+"/f", t.Scratch)["Write"](t.ctx)},
		{"removing a directory with entries", onPath(t.Files, dir, t.Scratch)["Remove"](t.ctx)},
		{"giving a file to an unknown account", t.Files.SetAttr(t.ctx, file, sandbox.Attr{Owner: "no-such-account"})},
		{"writing as an unknown account", t.Files.Write(t.ctx, t.path("new"), strings.NewReader("x"),
			sandbox.WriteOptions{Attr: sandbox.Attr{Group: "no-such-group"}})},
		{"opening from before the start", openError(t, file, -1)},
	} {
		t.fails(c.doing, c.err, sandbox.ErrPathRejected)
	}
	t.names(t.Scratch, "dir", "file")
	t.names(dir, "entry")
	t.holds(file, "x")
}

func openError(t *trial, path string, offset int64) error {
	r, err := t.Files.Open(t.ctx, path, offset, 1)
	if err == nil {
		r.Close()
	}
	return err
}

func contextErrors(t *trial) {
	file := t.put("file", "old")
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	calls := onPath(t.Files, file, t.Scratch)
	for _, op := range sortedKeys(calls) {
		t.fails(op+" under a context that was cancelled", calls[op](ctx), context.Canceled)
	}
	r, err := t.Files.Open(t.ctx, file, 0, -1)
	t.must("opening", err)
	b, err := io.ReadAll(r)
	t.must("reading", err)
	t.must("closing", r.Close())
	t.same("the file afterwards", string(b), "old")
	t.names(t.Scratch, "file")
}
