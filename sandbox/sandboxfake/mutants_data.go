package sandboxfake

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/astrabox/astrabox/sandbox"
)

type (
	files2 = iter.Seq2[sandbox.FileInfo, error]
	info   = sandbox.FileInfo
)

const special = fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky

func fileMutant(name, clause, why string, h fileHooks) Mutant {
	return Mutant{Name: name, Clause: clause, Why: why, apply: bending(bendFiles(h))}
}

// readingMutants break promises on names, errors and reading.
func readingMutants() []Mutant {
	return []Mutant{
		fileMutant("names-expand-variables", "files.names.literal", "k$1 removes k, $HOME is root's home",
			fileHooks{path: func(p string) string { return strings.NewReplacer("$HOME", "root", "$1", "").Replace(p) }}),
		fileMutant("names-expand-tilde", "files.names.literal", "a file named ~ can't be reached",
			fileHooks{path: func(p string) string { return strings.ReplaceAll(p, "/~", "/root") }}),
		fileMutant("names-lose-blanks", "files.names.literal", "names are trimmed on the way through a form",
			fileHooks{path: func(p string) string { return strings.TrimRight(p, " \t") }}),
		fileMutant("names-are-unescaped", "files.names.literal", "%41 in a name is decoded twice",
			fileHooks{path: func(p string) string { return strings.ReplaceAll(p, "%41", "A") }}),
		fileMutant("remove-globs", "files.names.literal", "removing the file * removes all files", fileHooks{
			remove: func(ctx context.Context, f sandbox.Files, p string) error {
				if path.Base(p) != "*" {
					return f.Remove(ctx, p)
				}
				return each(ctx, f, path.Dir(p), func(i info) error { return f.Remove(ctx, i.Path) })
			}}),
		fileMutant("names-become-utf8", "files.names.bytes", "JSON replaces what isn't UTF-8",
			fileHooks{path: func(p string) string { return strings.ToValidUTF8(p, "\ufffd") }}),
		fileMutant("relative-paths-are-taken", "files.paths.refused", "the file lands wherever the daemon stands",
			fileHooks{path: func(p string) string {
				if p != "" && p[0] != '/' {
					return "/" + p
				}
				return p
			}}),
		fileMutant("nul-cuts-the-path", "files.paths.refused", "a check sees another path than the system",
			fileHooks{path: func(p string) string { before, _, _ := strings.Cut(p, "\x00"); return before }}),
		fileMutant("empty-path-is-the-root", "files.paths.refused", "a missing parameter removes everything",
			fileHooks{path: func(p string) string {
				if p == "" {
					return "/"
				}
				return p
			}}),
		fileMutant("missing-is-rejected", "files.errors.missing", "callers can't tell a missing file from a refusal",
			fileHooks{fail: func(err error) error {
				if errors.Is(err, sandbox.ErrPathNotFound) {
					return &sandbox.PathError{Op: "?", Path: pathIn(err), Err: rejected(syscall.EIO, "it failed")}
				}
				return err
			}}),
		fileMutant("errors-name-no-path", "files.errors.missing", "nobody knows which file is meant",
			fileHooks{fail: func(err error) error {
				var e *sandbox.PathError
				if errors.As(err, &e) {
					return e.Err
				}
				return err
			}}),
		fileMutant("refusals-are-unreachable", "files.errors.rejected", "what will never work is tried again for ever",
			fileHooks{fail: func(err error) error {
				if errors.Is(err, sandbox.ErrPathRejected) {
					return &sandbox.PathError{Op: "?", Path: pathIn(err), Err: sandbox.ErrUnreachable}
				}
				return err
			}}),
		fileMutant("unknown-account-is-root", "files.errors.rejected", "a mistyped account leaves root's files behind", fileHooks{
			setAttr: func(ctx context.Context, f sandbox.Files, p string, a sandbox.Attr) error {
				if strings.HasPrefix(a.Owner, "no-such") {
					a.Owner = "root"
				}
				return f.SetAttr(ctx, p, a)
			}}),
		fileMutant("cancelled-is-unreachable", "files.errors.context", "a caller that gave up counts as a broken sandbox",
			fileHooks{fail: func(err error) error {
				if errors.Is(err, context.Canceled) {
					return &sandbox.PathError{Op: "?", Path: pathIn(err), Err: fmt.Errorf("%w: %w", sandbox.ErrUnreachable, err)}
				}
				return err
			}}),
		fileMutant("cancelled-writes-anyway", "files.errors.context", "what the caller gave up happens later", fileHooks{
			write: func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
				err := f.Write(context.WithoutCancel(ctx), p, r, o)
				return errors.Join(fail("write", p, ctx.Err()), err)
			}}),

		infoMutant("stat-without-owner", "files.stat.fields", "nobody can tell whose a file is", func(i info) info { i.Owner, i.Group = "", ""; return i }),
		infoMutant("stat-without-type", "files.stat.fields", "a directory looks like a file", func(i info) info { i.Mode &^= fs.ModeType; return i }),
		fileMutant("stat-follows-links", "files.stat.link", "a dangling link can't be seen, or removed", fileHooks{
			stat: func(ctx context.Context, f sandbox.Files, p string) (info, error) {
				i, err := f.Stat(ctx, p)
				if err == nil && i.Mode.Type() == fs.ModeSymlink {
					return f.Stat(ctx, path.Join(path.Dir(p), i.Target))
				}
				return i, err
			}}),
		infoMutant("stat-without-target", "files.stat.link", "where a link leads stays hidden", func(i info) info { i.Target = ""; return i }),
		infoMutant("special-bits-are-hidden", "files.stat.special", "a setuid program isn't noticed", func(i info) info { i.Mode &^= special; return i }),
		infoMutant("special-bits-are-raw", "files.stat.special", "0o4000 is no bit of fs.FileMode", func(i info) info {
			if i.Mode&fs.ModeSetuid != 0 {
				i.Mode = i.Mode&^fs.ModeSetuid | 0o4000
			}
			return i
		}),
		infoMutant("version-is-the-size", "files.stat.version", "another text of the same length is taken for the same", func(i info) info { i.Version = strconv.FormatInt(i.Size, 10); return i }),
		infoMutant("version-changes-by-itself", "files.stat.version", "no write with IfUnchanged ever succeeds", counted(func(n int64, i info) info {
			i.Version += "-" + strconv.FormatInt(n, 10)
			return i
		})),

		listMutant("list-is-unsorted", "files.list.order", "as the directory has it", func(all []info) []info { slices.Reverse(all); return all }),
		listMutant("list-hides-dotfiles", "files.list.order", "hidden files are never synchronised", func(all []info) []info {
			return slices.DeleteFunc(all, func(i info) bool { return strings.HasPrefix(i.Name(), ".") })
		}),
		listMutant("list-sorts-whole-paths", "files.list.order", "a-b comes between a and a/z", func(all []info) []info {
			slices.SortFunc(all, func(a, b info) int { return strings.Compare(a.Path, b.Path) })
			return all
		}),
		fileMutant("list-ignores-depth", "files.list.depth", "the listing of / never ends", fileHooks{
			list: func(ctx context.Context, f sandbox.Files, dir string, _ int) (files2, error) {
				return f.List(ctx, dir, 99)
			}}),
		fileMutant("list-stops-at-one-level", "files.list.depth", "trees look empty", fileHooks{
			list: func(ctx context.Context, f sandbox.Files, dir string, depth int) (files2, error) {
				return f.List(ctx, dir, min(depth, 1))
			}}),
		fileMutant("list-follows-links", "files.list.links", "a link to .. makes the listing endless", fileHooks{list: listThroughLinks}),
		fileMutant("list-fails-on-vanished", "files.list.vanishing", "a busy directory can't be listed", fileHooks{
			list: func(ctx context.Context, f sandbox.Files, dir string, depth int) (files2, error) {
				return again(ctx, f, dir, depth, func(err error) (drop bool, out error) { return false, err })
			}}),
		fileMutant("list-ends-at-vanished", "files.list.vanishing", "the rest of the listing is lost without a word", fileHooks{
			list: func(ctx context.Context, f sandbox.Files, dir string, depth int) (files2, error) {
				return again(ctx, f, dir, depth, func(error) (drop bool, out error) { return true, nil })
			}}),
		listMutant("list-ends-at-1000", "files.list.large", "only the first page is fetched", func(all []info) []info { return all[:min(len(all), 1000)] }),
		listMutant("list-repeats-at-pages", "files.list.large", "the last entry of a page is the first of the next", func(all []info) []info {
			if len(all) > 1000 {
				return slices.Insert(all, 1000, all[999])
			}
			return all
		}),
		fileMutant("list-ranges-once", "files.list.early", "a listing that was looked at is empty", fileHooks{
			list: func(ctx context.Context, f sandbox.Files, dir string, depth int) (files2, error) {
				seq, err := f.List(ctx, dir, depth)
				used := false
				return func(yield func(info, error) bool) {
					if !used {
						used = true
						seq(yield)
					}
				}, err
			}}),
		fileMutant("list-fails-late", "files.list.refused", "a directory that isn't there looks empty at first", fileHooks{
			list: func(ctx context.Context, f sandbox.Files, dir string, depth int) (files2, error) {
				seq, err := f.List(ctx, dir, depth)
				if err != nil {
					seq = func(yield func(info, error) bool) { yield(info{}, err) }
				}
				return seq, nil
			}}),

		openMutant("open-ignores-offset", "files.open.ranges", "a resumed download repeats its start", func(ctx context.Context, f sandbox.Files, p string, _, n int64) (io.ReadCloser, error) {
			return f.Open(ctx, p, 0, n)
		}),
		openMutant("open-ignores-length", "files.open.ranges", "a preview loads all of a large file", func(ctx context.Context, f sandbox.Files, p string, o, _ int64) (io.ReadCloser, error) {
			return f.Open(ctx, p, o, -1)
		}),
		openMutant("open-past-the-end-fails", "files.open.ranges", "following a file that grows breaks (416 of HTTP)", func(ctx context.Context, f sandbox.Files, p string, o, n int64) (io.ReadCloser, error) {
			if i, err := f.Stat(ctx, p); err == nil && o >= i.Size && o > 0 {
				return nil, fail("open", p, rejected(syscall.EINVAL, "range not satisfiable"))
			}
			return f.Open(ctx, p, o, n)
		}),
		openMutant("open-refuses-links", "files.open.link", "a configuration that is a link can't be read", func(ctx context.Context, f sandbox.Files, p string, o, n int64) (io.ReadCloser, error) {
			if i, err := f.Stat(ctx, p); err == nil && i.Mode.Type() == fs.ModeSymlink {
				return nil, fail("open", p, errno(syscall.ELOOP))
			}
			return f.Open(ctx, p, o, n)
		}),
		openMutant("open-hangs-on-pipes", "files.open.kinds", "opening a named pipe waits for a writer", func(ctx context.Context, f sandbox.Files, p string, o, n int64) (io.ReadCloser, error) {
			if i, err := f.Stat(ctx, p); err == nil && i.Mode.Type() == fs.ModeNamedPipe {
				<-ctx.Done()
			}
			return f.Open(ctx, p, o, n)
		}),
		openMutant("open-takes-directories", "files.open.kinds", "a directory downloads as an empty file", func(ctx context.Context, f sandbox.Files, p string, o, n int64) (io.ReadCloser, error) {
			if i, err := f.Stat(ctx, p); err == nil && i.IsDir() {
				return io.NopCloser(strings.NewReader("")), nil
			}
			return f.Open(ctx, p, o, n)
		}),

		openMutant("open-believes-the-size", "files.open.proc", "the files of /proc are empty", func(ctx context.Context, f sandbox.Files, p string, o, n int64) (io.ReadCloser, error) {
			if i, err := f.Stat(ctx, p); err == nil && i.Mode.IsRegular() && i.Size == 0 {
				return io.NopCloser(strings.NewReader("")), nil
			}
			return f.Open(ctx, p, o, n)
		}),
		searchMutant("search-skips-hidden", "files.search.hidden", ".github is never found", func(i info, pattern string) bool {
			return !strings.Contains(i.Path, "/.") && matches(pattern, i.Name())
		}),
		searchMutant("search-matches-paths", "files.search.patterns", "*.go finds nothing below", func(i info, pattern string) bool {
			_, rel, _ := strings.Cut(i.Path, "/tree/")
			return matches(pattern, rel)
		}),
		searchMutant("search-ignores-case", "files.search.patterns", "on Linux these are two files", func(i info, pattern string) bool {
			return matches(strings.ToLower(pattern), strings.ToLower(i.Name()))
		}),
		searchMutant("search-knows-no-braces", "files.search.patterns", "{md,txt} is taken literally", func(i info, pattern string) bool {
			ok, _ := path.Match(strings.ReplaceAll(pattern, "{", `\{`), i.Name())
			return ok
		}),
		fileMutant("search-follows-links", "files.search.hidden", "it leaves the tree and may never end", fileHooks{
			search: func(ctx context.Context, f sandbox.Files, root, pattern string) (files2, error) {
				seq, err := listThroughLinks(ctx, f, root, 99)
				return filtered(seq, func(i info) bool { return matches(pattern, i.Name()) }), err
			}}),
	}
}

func pathIn(err error) string {
	var e *sandbox.PathError
	if errors.As(err, &e) {
		return e.Path
	}
	return ""
}

func infoMutant(name, clause, why string, change func(info) info) Mutant {
	return fileMutant(name, clause, why, fileHooks{info: change})
}

func counted(change func(int64, info) info) func(info) info {
	var n atomic.Int64
	return func(i info) info { return change(n.Add(1), i) }
}

type opener func(ctx context.Context, f sandbox.Files, path string, offset, length int64) (io.ReadCloser, error)

func openMutant(name, clause, why string, open opener) Mutant {
	return fileMutant(name, clause, why, fileHooks{open: open})
}

// listMutant changes the whole of a listing.
func listMutant(name, clause, why string, change func([]info) []info) Mutant {
	return fileMutant(name, clause, why, fileHooks{
		list: func(ctx context.Context, f sandbox.Files, dir string, depth int) (files2, error) {
			var all []info
			seq, err := f.List(ctx, dir, depth)
			if err != nil {
				return nil, err
			}
			for i, err := range seq {
				if err != nil {
					return nil, err
				}
				all = append(all, i)
			}
			return yielding(change(all)), nil
		}})
}

func yielding(all []info) files2 {
	return func(yield func(info, error) bool) {
		for _, i := range all {
			if !yield(i, nil) {
				return
			}
		}
	}
}

// searchMutant searches by another rule.
func searchMutant(name, clause, why string, match func(i info, pattern string) bool) Mutant {
	return fileMutant(name, clause, why, fileHooks{
		search: func(ctx context.Context, f sandbox.Files, root, pattern string) (files2, error) {
			seq, err := f.List(ctx, root, 99)
			return filtered(seq, func(i info) bool { return match(i, pattern) }), err
		}})
}

func filtered(seq files2, keep func(info) bool) files2 {
	return func(yield func(info, error) bool) {
		for i, err := range seq {
			if (err != nil || keep(i)) && !yield(i, err) {
				return
			}
		}
	}
}

func matches(pattern, name string) bool {
	match, err := matcher(pattern)
	return err == nil && match(name)
}

// each does something with every entry of a directory.
func each(ctx context.Context, f sandbox.Files, dir string, do func(info) error) error {
	seq, err := f.List(ctx, dir, 1)
	if err != nil {
		return err
	}
	var all []info
	for i, err := range seq {
		if err != nil {
			return err
		}
		all = append(all, i)
	}
	for _, i := range all {
		if err := do(i); err != nil {
			return err
		}
	}
	return nil
}

// listThroughLinks lists links to directories as if they were directories.
func listThroughLinks(ctx context.Context, f sandbox.Files, dir string, depth int) (files2, error) {
	seq, err := f.List(ctx, dir, depth)
	return func(yield func(info, error) bool) {
		for i, err := range seq {
			if !yield(i, err) {
				return
			}
			if i.Mode.Type() != fs.ModeSymlink {
				continue
			}
			inner, err := f.List(ctx, i.Path, 1)
			if err != nil {
				continue
			}
			for j, err := range inner {
				if !yield(j, err) {
					return
				}
			}
		}
	}, err
}

// again lists names first and asks about each a little later; gone says what
// becomes of the listing when one has vanished.
func again(ctx context.Context, f sandbox.Files, dir string, depth int, gone func(error) (end bool, err error)) (files2, error) {
	seq, err := f.List(ctx, dir, depth)
	if err != nil {
		return nil, err
	}
	var all []info
	for i, err := range seq {
		if err != nil {
			return nil, err
		}
		all = append(all, i)
	}
	linger(ctx)
	return func(yield func(info, error) bool) {
		for _, i := range all {
			i, err := f.Stat(ctx, i.Path)
			if err != nil {
				end, err := gone(err)
				if err != nil {
					yield(info{}, err)
					return
				}
				if end {
					return
				}
				continue
			}
			if !yield(i, nil) {
				return
			}
		}
	}, nil
}

// all reads a whole content.
func all(r io.Reader) ([]byte, error) {
	if r == nil {
		return nil, nil
	}
	var b bytes.Buffer
	_, err := b.ReadFrom(r)
	return b.Bytes(), err
}
