package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"strings"
	"time"
)

// Files reaches the files of one sandbox.
//
// Paths are absolute and literal: no ~, no $VAR, no globbing. A relative or
// empty path, or one with a NUL, fails with ErrPathRejected. Every failure is
// a [*PathError] that wraps ErrPathNotFound, ErrPathRejected (with the cause),
// ErrUnreachable (says nothing about the file) or a context error. Transfers
// stream; there is no size cap.
//
// Files may have more: the functions [Archive], [Extract], [Watch],
// [SearchContent], [Upload] and [Move] use it, or make do with the operations
// below.
type Files interface {
	// Stat doesn't follow a final symlink.
	Stat(ctx context.Context, path string) (FileInfo, error)
	// List yields what is below dir down to depth levels (1: its entries), in
	// lexical order per directory, children after their parent. Symlinks are
	// not followed. An entry that vanishes meanwhile is left out. The error of
	// List says that dir can't be listed; one yielded ends the sequence.
	List(ctx context.Context, dir string, depth int) (iter.Seq2[FileInfo, error], error)
	// Open reads length bytes from offset; a negative length reads to the end.
	// It follows symlinks. What isn't a regular file is rejected, files of
	// /proc and /sys apart.
	Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error)
	// Write replaces the file's content in one step, with its bits and owner:
	// nobody in the sandbox sees the new content under other bits or another
	// owner, and a write that failed or was cut off leaves the old file as it
	// was and nothing beside it. The directory must exist. A final symlink is
	// followed, except with NoReplace, for which any entry of that name exists.
	// An error of r itself is ErrPathRejected with that cause.
	Write(ctx context.Context, path string, r io.Reader, o WriteOptions) error
	// MakeDir makes a directory. One that exists is ErrPathRejected (fs.ErrExist)
	// unless Parents is set.
	MakeDir(ctx context.Context, path string, o DirOptions) error
	// Rename moves from to to and replaces to atomically.
	Rename(ctx context.Context, from, to string) error
	// Remove removes files, links and empty directories; a missing one is success.
	Remove(ctx context.Context, paths ...string) error
	// RemoveAll removes a tree and never follows a link out of it; missing is success.
	RemoveAll(ctx context.Context, path string) error
	// SetAttr sets what is set in a, on the file that a final symlink names.
	SetAttr(ctx context.Context, path string, a Attr) error
	// Search yields what is below root and whose base name matches the glob
	// pattern (* ? [a-z] {a,b}), hidden names too, links not followed.
	Search(ctx context.Context, root, pattern string) (iter.Seq2[FileInfo, error], error)
	// Beneath is the same face confined to root: paths stay absolute and must
	// lie below root; no .., link or race leads out of it, and a link that
	// would is ErrPathRejected.
	Beneath(root string) Files
}

// Mover is what a Files may have beside its methods; use the function [Move].
type Mover interface {
	// Move is Rename, but whatever is at to stays: that is ErrPathRejected
	// (fs.ErrExist). Of several moves to one place, one succeeds.
	Move(ctx context.Context, from, to string) error
}

// Move moves from to to unless there is anything at to, which is ErrPathRejected
// (fs.ErrExist). Where f isn't a [Mover] it looks first, and what appears at to
// between the look and the rename is replaced.
func Move(ctx context.Context, f Files, from, to string) error {
	if m, ok := f.(Mover); ok {
		return m.Move(ctx, from, to)
	}
	switch _, err := f.Stat(ctx, to); {
	case err == nil:
		return &PathError{Op: "move", Path: to, Err: fmt.Errorf("%w: %w", ErrPathRejected, fs.ErrExist)}
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return f.Rename(ctx, from, to)
}

// FileInfo describes a file. Mode holds the type bits and the permission bits,
// setuid, setgid and sticky as fs.ModeSetuid, fs.ModeSetgid and fs.ModeSticky.
type FileInfo struct {
	Path         string // absolute, as asked for, joined with the entry's name
	Size         int64
	Mode         fs.FileMode
	Owner, Group string // names; the number in digits where the image has no name
	ModTime      time.Time
	Target       string // of a symlink
	Version      string // opaque; changes with the content; for WriteOptions.IfUnchanged
}

// Name is the last element of the path.
func (i FileInfo) Name() string { return i.Path[strings.LastIndexByte(i.Path, '/')+1:] }

// IsDir reports whether it is a directory.
func (i FileInfo) IsDir() bool { return i.Mode.IsDir() }

// Attr is what a file can be given. A nil Mode differs from mode 0, and an
// empty Owner from root. Mode takes permission bits and fs.ModeSetuid,
// fs.ModeSetgid and fs.ModeSticky; any other bit is rejected, never trimmed.
// Owner and Group are names of accounts in the sandbox; digits are taken as an
// id where nothing has that name, so that what Stat says can be given back.
// A new owner without a Mode drops setuid and setgid, as chown does.
type Attr struct {
	Mode         *fs.FileMode
	Owner, Group string
}

// CheckMode refuses bits that Attr.Mode doesn't take.
func (a Attr) CheckMode() error {
	if a.Mode == nil {
		return nil
	}
	if rest := *a.Mode &^ (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky); rest != 0 {
		return Errorf(CodeInvalid, "mode %#o has bits that a file can't be given; special bits are fs.ModeSetuid, fs.ModeSetgid and fs.ModeSticky", uint32(*a.Mode))
	}
	return nil
}

// Mode is a shorthand for Attr.Mode.
func Mode(m fs.FileMode) *fs.FileMode { return &m }

// WriteOptions are the options of Files.Write. With Attr unset an existing
// file keeps its bits and owner and a new one is root's with 0644.
type WriteOptions struct {
	Attr
	NoReplace   bool   // an existing file is ErrPathRejected (fs.ErrExist)
	IfUnchanged string // a FileInfo.Version; another one is ErrPathRejected (ErrChanged)
}

// ErrChanged: the file isn't the one that the caller saw.
var ErrChanged error = &sentinel{"sandbox: the file has changed", ErrPathRejected}

// DirOptions are the options of Files.MakeDir. Unset: root's, 0755. Attr holds
// for every directory that the call makes.
type DirOptions struct {
	Attr
	Parents bool // make missing parents; an existing directory is success and stays as it is
}
