package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// ArchiveFormat names a format of archives.
type ArchiveFormat string

// The formats of [Archive]. [Extract] finds out by itself which of the two tar
// formats it is given.
const (
	ArchiveTar     ArchiveFormat = "tar"    // POSIX, with PAX headers where they are needed
	ArchiveTarGzip ArchiveFormat = "tar.gz" // the same, compressed
	ArchiveZip     ArchiveFormat = "zip"    // compressed, at most MaxZipEntries files
)

// MaxZipEntries bounds the entries of a zip archive, whose table of contents
// has to be remembered to its end.
const MaxZipEntries = 50_000

func (f ArchiveFormat) check() error {
	switch f {
	case ArchiveTar, ArchiveTarGzip, ArchiveZip:
		return nil
	}
	return fmt.Errorf("%w: %w", ErrPathRejected, Errorf(CodeInvalid, "an archive is %s, %s or %s, not %q", ArchiveTar, ArchiveTarGzip, ArchiveZip, string(f)))
}

// Archiver is what a Files may have beside its methods; use the function [Archive].
type Archiver interface {
	// Archive has the contract of the function Archive.
	Archive(ctx context.Context, dir string, format ArchiveFormat) (io.ReadCloser, error)
}

// Archive reads the directory dir with all below it as an archive. Names in it
// are relative to dir. It is made while it is read, in constant memory (a zip
// remembers its names).
//
// It holds files, directories and symlinks (as links) with their permission
// bits, special bits (not in a zip), owners by name, and times. FIFOs, sockets
// and devices are left out, and so is what vanishes meanwhile or can't be read.
// Of a file that grows meanwhile the size that it had is taken; one that
// shrinks is filled up with zeros in a tar. Where the provider can tell, further
// names of one file are hard links in a tar.
//
// The reader ends with io.EOF only when the archive is whole: any other error
// means that it was cut off. It must be closed. Where f isn't an [Archiver] the
// tree is listed and its files are opened one by one.
func Archive(ctx context.Context, f Files, dir string, format ArchiveFormat) (io.ReadCloser, error) {
	if err := format.check(); err != nil {
		return nil, &PathError{Op: "archive", Path: dir, Err: err}
	}
	if a, ok := f.(Archiver); ok {
		return a.Archive(ctx, dir, format)
	}
	ctx, cancel := context.WithCancel(ctx)
	list, err := f.List(ctx, dir, maxArchiveDepth)
	if err != nil {
		cancel()
		return nil, err
	}
	pr, pw := io.Pipe()
	p := &packing{PipeReader: pr, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		w, err := NewArchiveWriter(pw, format)
		if err == nil {
			err = pack(ctx, w, f.Beneath(dir), dir, list)
		}
		if err == nil {
			err = w.Close()
		}
		pw.CloseWithError(err) // nil is io.EOF
	}()
	return p, nil
}

// maxArchiveDepth is how many levels the fallbacks go down.
const maxArchiveDepth = 256

// packing is an archive that a goroutine makes.
type packing struct {
	*io.PipeReader
	cancel context.CancelFunc
	done   chan struct{}
}

// Close ends the goroutine and waits for it.
func (p *packing) Close() error {
	p.cancel()
	err := p.PipeReader.Close()
	<-p.done
	return err
}

func pack(ctx context.Context, w *ArchiveWriter, f Files, dir string, list func(func(FileInfo, error) bool)) error {
	prefix := strings.TrimRight(dir, "/") + "/"
	for info, err := range list {
		if err != nil {
			return err
		}
		e := ArchiveEntry{Name: strings.TrimPrefix(info.Path, prefix), Info: info}
		if !info.Mode.IsRegular() {
			if err := w.Add(e, nil); err != nil {
				return err
			}
			continue
		}
		content, err := f.Open(ctx, info.Path, 0, -1)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, ErrPathRejected):
			continue // vanished, or closed to who asks
		case err != nil:
			return err
		}
		err = w.Add(e, content)
		if err = errors.Join(err, content.Close()); err != nil {
			return err
		}
	}
	return nil
}
