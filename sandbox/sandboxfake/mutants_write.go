package sandboxfake

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"

	"github.com/astrabox/astrabox/sandbox"
)

type writer func(ctx context.Context, f sandbox.Files, path string, r io.Reader, o sandbox.WriteOptions) error

func writeMutant(name, clause, why string, w writer) Mutant {
	return fileMutant(name, clause, why, fileHooks{write: w})
}

// optionsMutant writes with other options.
func optionsMutant(name, clause, why string, change func(ctx context.Context, f sandbox.Files, path string, o *sandbox.WriteOptions)) Mutant {
	return writeMutant(name, clause, why, func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
		change(ctx, f, p, &o)
		return f.Write(ctx, p, r, o)
	})
}

// contentMutant writes another content.
func contentMutant(name, why string, change func([]byte) []byte) Mutant {
	return writeMutant(name, "files.write.bytes", why, func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
		b, err := all(r)
		if err != nil {
			return f.Write(ctx, p, failing{err}, o)
		}
		return f.Write(ctx, p, bytes.NewReader(change(b)), o)
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func isLink(ctx context.Context, f sandbox.Files, p string) bool {
	i, err := f.Stat(ctx, p)
	return err == nil && i.Mode.Type() == fs.ModeSymlink
}

func there(ctx context.Context, f sandbox.Files, p string) bool {
	_, err := f.Stat(ctx, p)
	return err == nil
}

// decimal reads the digits of an octal mode as a decimal number.
func decimal(m fs.FileMode) fs.FileMode {
	n, _ := strconv.ParseUint(strconv.FormatUint(uint64(m.Perm()), 8), 10, 32) // digits
	return fs.FileMode(n) & fs.ModePerm
}

// writingMutants break promises on Write.
func writingMutants() []Mutant {
	return []Mutant{
		optionsMutant("new-files-are-private", "files.write.new", "a umask hides new files from the workload", func(ctx context.Context, f sandbox.Files, p string, o *sandbox.WriteOptions) {
			if o.Mode == nil && !there(ctx, f, p) {
				o.Mode = sandbox.Mode(0o600)
			}
		}),
		optionsMutant("new-files-are-open", "files.write.new", "a file with secrets can be written by all", func(ctx context.Context, f sandbox.Files, p string, o *sandbox.WriteOptions) {
			if o.Mode == nil && !there(ctx, f, p) {
				o.Mode = sandbox.Mode(0o666)
			}
		}),
		contentMutant("content-cut-at-18-KiB", "uploads were silently truncated", func(b []byte) []byte { return b[:min(len(b), 18<<10)] }),
		contentMutant("content-gets-line-ends", "text mode changes binary files", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")) }),
		contentMutant("content-becomes-utf8", "binary files are taken for text", func(b []byte) []byte { return bytes.ToValidUTF8(b, []byte("\ufffd")) }),
		contentMutant("content-gets-a-newline", "shell redirection adds one", func(b []byte) []byte {
			if len(b) > 0 && b[len(b)-1] != '\n' {
				return append(b, '\n')
			}
			return b
		}),
		optionsMutant("bits-are-reset", "files.write.keeps", "a script isn't executable after an edit", func(_ context.Context, _ sandbox.Files, _ string, o *sandbox.WriteOptions) {
			if o.Mode == nil {
				o.Mode = sandbox.Mode(0o644)
			}
		}),
		optionsMutant("owner-is-reset", "files.write.keeps", "the workload can't write its own file after an edit", func(_ context.Context, _ sandbox.Files, _ string, o *sandbox.WriteOptions) {
			if o.Owner == "" && o.Mode == nil {
				o.Owner, o.Group = "root", "root"
			}
		}),
		optionsMutant("mode-is-read-as-decimal", "files.write.bits", "0o640 arrives as 416", func(_ context.Context, _ sandbox.Files, _ string, o *sandbox.WriteOptions) {
			if o.Mode != nil {
				o.Mode = sandbox.Mode(decimal(*o.Mode) | *o.Mode&special)
			}
		}),
		optionsMutant("special-bits-are-dropped", "files.write.bits", "setuid is lost with status 200", func(_ context.Context, _ sandbox.Files, _ string, o *sandbox.WriteOptions) {
			if o.Mode != nil {
				o.Mode = sandbox.Mode(*o.Mode &^ special)
			}
		}),
		optionsMutant("mode-zero-is-unset", "files.write.bits", "a file for nobody is one for all", func(_ context.Context, _ sandbox.Files, _ string, o *sandbox.WriteOptions) {
			if o.Mode != nil && *o.Mode == 0 {
				o.Mode = nil
			}
		}),
		optionsMutant("umask-narrows-bits", "files.write.bits", "0777 arrives as 0755", func(_ context.Context, _ sandbox.Files, _ string, o *sandbox.WriteOptions) {
			if o.Mode != nil {
				o.Mode = sandbox.Mode(*o.Mode &^ 0o022)
			}
		}),
		optionsMutant("group-is-ignored", "files.write.owner", "uid without gid leaves group root", func(_ context.Context, _ sandbox.Files, _ string, o *sandbox.WriteOptions) { o.Group = "" }),
		optionsMutant("owner-is-ignored", "files.write.owner", "files of the account are root's", func(_ context.Context, _ sandbox.Files, _ string, o *sandbox.WriteOptions) { o.Owner = "" }),
		optionsMutant("raw-mode-is-trimmed", "files.write.rawmode", "the caller believes it set setuid", func(_ context.Context, _ sandbox.Files, _ string, o *sandbox.WriteOptions) {
			if o.Mode != nil {
				o.Mode = sandbox.Mode(*o.Mode & settable)
			}
		}),
		fileMutant("raw-mode-of-directories-is-trimmed", "files.write.rawmode", "the same for MakeDir", fileHooks{
			mkdir: func(ctx context.Context, f sandbox.Files, p string, o sandbox.DirOptions) error {
				if o.Mode != nil {
					o.Mode = sandbox.Mode(*o.Mode & settable)
				}
				return f.MakeDir(ctx, p, o)
			}}),
		writeMutant("owner-comes-late", "files.write.together", "the new content belongs to the old owner for a moment", late(func(a *sandbox.Attr) sandbox.Attr {
			rest := sandbox.Attr{Mode: a.Mode, Owner: a.Owner, Group: a.Group}
			a.Owner, a.Group = "", ""
			return rest
		})),
		writeMutant("bits-come-late", "files.write.together", "a secret can be read by all for a moment", late(func(a *sandbox.Attr) sandbox.Attr {
			rest := sandbox.Attr{Mode: a.Mode}
			a.Mode = nil
			return rest
		})),
		writeMutant("bits-come-first", "files.write.together", "the old content can be read by all for a moment", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			if there(ctx, f, p) {
				if err := f.SetAttr(ctx, p, o.Attr); err != nil {
					return err
				}
				linger(ctx)
			}
			return f.Write(ctx, p, r, o)
		}),
		writeMutant("writes-in-place", "files.write.atomic", "a reader sees half of the new content", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			b, err := all(r)
			if err != nil {
				return f.Write(ctx, p, failing{err}, o)
			}
			if there(ctx, f, p) && !o.NoReplace && o.IfUnchanged == "" {
				if err := f.Write(ctx, p, bytes.NewReader(b[:len(b)/2]), o); err != nil {
					return err
				}
				linger(ctx)
			}
			return f.Write(ctx, p, bytes.NewReader(b), o)
		}),
		writeMutant("removes-before-writing", "files.write.atomic", "the file is gone for a moment", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			if i, err := f.Stat(ctx, p); err == nil && i.Mode.IsRegular() && !o.NoReplace {
				_ = f.Remove(ctx, p)
				linger(ctx)
			}
			return f.Write(ctx, p, r, o)
		}),
		writeMutant("cut-off-content-is-kept", "files.write.cutoff", "half a file replaces a good one", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			b, err := all(r)
			if err == nil || ctx.Err() != nil {
				return f.Write(ctx, p, either(b, ctx.Err()), o)
			}
			_ = f.Write(ctx, p, bytes.NewReader(b), o)
			return f.Write(ctx, p, failing{err}, o)
		}),
		writeMutant("cut-off-temporary-stays", "files.write.cutoff", "failed uploads fill the disk", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			err := f.Write(ctx, p, r, o)
			if err != nil && ctx.Err() == nil {
				_ = f.Write(ctx, p+".part", strings.NewReader("new"), sandbox.WriteOptions{})
			}
			return err
		}),
		writeMutant("cut-off-loses-the-cause", "files.write.cutoff", "nobody learns that the source broke", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			err := f.Write(ctx, p, r, o)
			if errors.Is(err, sandbox.ErrPathRejected) {
				return fail("write", p, rejected(syscall.EIO, "the body ended early"))
			}
			return err
		}),
		writeMutant("cut-off-is-success", "files.write.cutoff", "a broken upload looks complete", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			b, err := all(r)
			if err != nil && ctx.Err() == nil {
				err = nil
			}
			return f.Write(ctx, p, either(b, err), o)
		}),
		writeMutant("cancelled-content-is-kept", "files.write.cancelled", "half a file replaces a good one", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			b, err := all(r)
			if ctx.Err() != nil {
				_ = f.Write(context.WithoutCancel(ctx), p, bytes.NewReader(b), o)
			}
			return f.Write(ctx, p, either(b, err), o)
		}),
		writeMutant("cancelled-temporary-stays", "files.write.cancelled", "aborted uploads fill the disk", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			err := f.Write(ctx, p, r, o)
			if ctx.Err() != nil {
				_ = f.Write(context.WithoutCancel(ctx), p+".part", strings.NewReader("new"), sandbox.WriteOptions{})
			}
			return err
		}),
		optionsMutant("noreplace-is-ignored", "files.write.noreplace", "a name that was to be new overwrites", func(_ context.Context, _ sandbox.Files, _ string, o *sandbox.WriteOptions) { o.NoReplace = false }),
		optionsMutant("noreplace-follows-links", "files.write.noreplace", "a dangling link lets another place be written", func(ctx context.Context, f sandbox.Files, p string, o *sandbox.WriteOptions) {
			if o.NoReplace && isLink(ctx, f, p) {
				o.NoReplace = false
			}
		}),
		writeMutant("noreplace-looks-first", "files.write.noreplace.race", "two writers both believe they were first", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			if o.NoReplace && !there(ctx, f, p) {
				o.NoReplace = false
				linger(ctx)
			}
			return f.Write(ctx, p, r, o)
		}),
		optionsMutant("ifunchanged-is-ignored", "files.write.ifunchanged", "an edit overwrites another one", func(_ context.Context, _ sandbox.Files, _ string, o *sandbox.WriteOptions) { o.IfUnchanged = "" }),
		optionsMutant("ifunchanged-makes-the-file", "files.write.ifunchanged", "a removed file comes back", func(ctx context.Context, f sandbox.Files, p string, o *sandbox.WriteOptions) {
			if o.IfUnchanged != "" && !there(ctx, f, p) {
				o.IfUnchanged = ""
			}
		}),
		writeMutant("ifunchanged-looks-first", "files.write.ifunchanged.race", "of two edits one is lost", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			if i, err := f.Stat(ctx, p); err == nil && i.Version == o.IfUnchanged {
				o.IfUnchanged = ""
				linger(ctx)
			}
			return f.Write(ctx, p, r, o)
		}),
		writeMutant("write-replaces-links", "files.write.link", "a linked configuration goes its own way", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			if !o.NoReplace && isLink(ctx, f, p) {
				if err := f.Remove(ctx, p); err != nil {
					return err
				}
			}
			return f.Write(ctx, p, r, o)
		}),
		writeMutant("write-makes-directories", "files.errors.missing", "missing parents appear, with the wrong owner", func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
			if checkPath(p) == nil {
				_ = f.MakeDir(ctx, path.Dir(p), sandbox.DirOptions{Parents: true})
			}
			return f.Write(ctx, p, r, o)
		}),
	}
}

func either(b []byte, err error) io.Reader {
	if err != nil {
		return failing{err}
	}
	return bytes.NewReader(b)
}

// late writes with a part of the attributes and gives the rest a little later.
func late(split func(*sandbox.Attr) sandbox.Attr) writer {
	return func(ctx context.Context, f sandbox.Files, p string, r io.Reader, o sandbox.WriteOptions) error {
		rest := split(&o.Attr)
		if err := f.Write(ctx, p, r, o); err != nil || rest.Mode == nil {
			return err
		}
		linger(ctx)
		return f.SetAttr(ctx, p, rest)
	}
}
