package sandbox

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// ExtractOptions are the options of [Extract].
type ExtractOptions struct {
	// Owner and Group own everything that is made, as in [Attr]; unset: root.
	// The owners that the archive names are never taken.
	Owner, Group string
	// NoReplace fails with fs.ErrExist where a file has the name of one of the
	// archive. Without it files and links are replaced, each in one step.
	NoReplace bool
	// MaxBytes and MaxEntries bound what is written: 0 means 64 GiB and
	// 1,000,000. They can't be raised above that.
	MaxBytes, MaxEntries int64
}

// Extracted says what [Extract] wrote, also when it failed.
type Extracted struct {
	Entries int64 // files, directories and links that were made
	Bytes   int64 // of file content
	Skipped int64 // what the archive holds that isn't made: see Extract
}

// Extractor is what a Files may have beside its methods; use the function [Extract].
type Extractor interface {
	// Extract has the contract of the function Extract.
	Extract(ctx context.Context, dir string, r io.Reader, o ExtractOptions) (Extracted, error)
}

// Extract unpacks a tar, compressed with gzip or not, into the directory dir,
// which must exist.
//
// Nothing is written outside of dir, whatever names, links and races the
// archive and the sandbox come up with: names are relative, without "..", of at
// most 4095 bytes and 64 levels; no link is followed, neither one from the
// archive nor one that is there, and a link where the archive has a directory
// is an error; a hard link names a file below dir. Symlinks are made as they
// are, wherever they lead. Bits are permission bits: setuid, setgid and sticky
// are dropped. Directories that exist keep their bits and owner, missing ones
// are made with 0755. Devices and FIFOs are skipped and counted. Beside the
// limits of o, more than 200 bytes of content for each byte of archive (after
// the first 64 MiB) is [ErrLimit].
//
// The first entry that can't be made ends it, with a [*PathError] that names
// it; Extracted says what was written until then, which stays. An archive that
// was cut off is ErrPathRejected with io.ErrUnexpectedEOF.
//
// Where f isn't an [Extractor] the archive is read here and its files are
// written one by one: symlinks, which can't be made, are skipped, hard links
// become copies, and times aren't set.
func Extract(ctx context.Context, f Files, dir string, r io.Reader, o ExtractOptions) (Extracted, error) {
	if e, ok := f.(Extractor); ok {
		return e.Extract(ctx, dir, r, o)
	}
	u := &unpacking{files: f.Beneath(dir), dir: strings.TrimRight(dir, "/"), o: o, known: map[string]bool{"": true}}
	name, err := u.run(ctx, r)
	var pe *PathError
	if err == nil || errors.As(err, &pe) {
		return u.done, err
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case !errors.Is(err, ErrPathRejected):
		err = fmt.Errorf("%w: the archive can't be read: %w", ErrPathRejected, err)
	}
	return u.done, &PathError{Op: "extract", Path: name, Err: err}
}

// unpacking extracts with base operations.
type unpacking struct {
	files Files
	dir   string
	o     ExtractOptions
	done  Extracted
	known map[string]bool // directories that are there, by their names; bounded
}

const maxKnownDirs = 10_000

// run gives the path of the entry that an error is about.
func (u *unpacking) run(ctx context.Context, r io.Reader) (name string, err error) {
	switch info, err := u.files.Stat(ctx, u.dir+"/"); {
	case err != nil:
		return u.dir, err
	case !info.IsDir():
		return u.dir, fmt.Errorf("%w: not a directory", ErrPathRejected)
	}
	a := NewArchiveReader(r, u.o)
	for {
		h, err := a.Next()
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return u.dir + "/" + a.Name(), err
		}
		if err := u.entry(ctx, h, a); err != nil {
			return u.dir + "/" + h.Name, err
		}
	}
}

func (u *unpacking) entry(ctx context.Context, h *tar.Header, content *ArchiveReader) error {
	parent := ""
	if i := strings.LastIndexByte(h.Name, '/'); i >= 0 {
		parent = h.Name[:i]
	}
	if err := u.mkdir(ctx, parent, 0o755); err != nil {
		return err
	}
	bits := fs.FileMode(h.Mode) & fs.ModePerm
	attr := Attr{Mode: &bits, Owner: u.o.Owner, Group: u.o.Group}
	if attr.Owner == "" {
		attr.Owner = "root"
	}
	if attr.Group == "" {
		attr.Group = "root"
	}
	path := u.dir + "/" + h.Name
	var r io.Reader = content
	switch h.Typeflag {
	case tar.TypeDir:
		if h.Name != "" {
			if err := u.mkdir(ctx, h.Name, bits); err != nil {
				return err
			}
		}
		u.done.Entries++
		return nil
	case tar.TypeReg:
	case tar.TypeLink:
		info, err := u.files.Stat(ctx, u.dir+"/"+h.Linkname)
		if err != nil {
			return err
		}
		if !info.Mode.IsRegular() {
			return fmt.Errorf("%w: a hard link to what is no file", ErrPathRejected)
		}
		bits = info.Mode.Perm()
		original, err := u.files.Open(ctx, u.dir+"/"+h.Linkname, 0, -1)
		if err != nil {
			return err
		}
		defer original.Close() //nolint:errcheck // read only
		r = content.Count(original)
	default:
		u.done.Skipped++
		return nil
	}
	// A link of that name is replaced rather than written through.
	switch info, err := u.files.Stat(ctx, path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case info.Mode.Type() == fs.ModeSymlink && !u.o.NoReplace:
		if err := u.files.Remove(ctx, path); err != nil {
			return err
		}
	}
	counted := &countingReader{r: r}
	if err := u.files.Write(ctx, path, counted, WriteOptions{Attr: attr, NoReplace: u.o.NoReplace}); err != nil {
		return err
	}
	u.done.Entries++
	u.done.Bytes += counted.n
	return nil
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// mkdir makes the directories of a name that are missing, and refuses one that
// is a link.
func (u *unpacking) mkdir(ctx context.Context, name string, bits fs.FileMode) error {
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' || u.known[name[:i]] {
			continue
		}
		part := name[:i]
		mode := fs.FileMode(0o755)
		if i == len(name) {
			mode = bits
		}
		switch info, err := u.files.Stat(ctx, u.dir+"/"+part); {
		case errors.Is(err, fs.ErrNotExist):
			err := u.files.MakeDir(ctx, u.dir+"/"+part, DirOptions{Attr: Attr{Mode: &mode, Owner: u.o.Owner, Group: u.o.Group}})
			if err != nil {
				return err
			}
		case err != nil:
			return err
		case info.Mode.Type() == fs.ModeSymlink:
			return fmt.Errorf("%w: a link stands where the archive has the directory %q", ErrPathRejected, part)
		case !info.IsDir():
			return fmt.Errorf("%w: no directory: %q", ErrPathRejected, part)
		}
		if len(u.known) < maxKnownDirs {
			u.known[part] = true
		}
	}
	return nil
}
