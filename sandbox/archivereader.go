package sandbox

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"strings"
)

// The limits of archives that are extracted.
const (
	maxExtractBytes   = 64 << 30
	maxExtractEntries = 1_000_000
	maxExtractPath    = 4095
	maxExtractName    = 255
	maxExtractLevels  = 64
	extractRatio      = 200
	extractRatioFree  = 64 << 20
	extractTrailer    = 1 << 20 // what may follow the end of the archive
)

// ArchiveReader reads a tar that nobody trusts, compressed with gzip or not,
// for those who implement an [Extractor] where the files are. It hands out
// checked names only and holds the limits that [Extract] promises. It is not
// safe for concurrent use.
type ArchiveReader struct {
	raw        *countingReader // the archive as it comes
	in         io.Reader       // the tar
	unpacked   int64           // bytes of the tar so far
	tar        *tar.Reader
	name       string
	maxBytes   int64
	maxEntries int64
	bytes      int64
	entries    int64
	zero       bool // the last block was an empty one
	started    bool
}

// NewArchiveReader reads r within the limits of o.
func NewArchiveReader(r io.Reader, o ExtractOptions) *ArchiveReader {
	bound := func(asked, most int64) int64 {
		if asked <= 0 || asked > most {
			return most
		}
		return asked
	}
	return &ArchiveReader{
		raw:      &countingReader{r: r},
		maxBytes: bound(o.MaxBytes, maxExtractBytes), maxEntries: bound(o.MaxEntries, maxExtractEntries),
	}
}

// start finds out whether the archive is compressed.
func (a *ArchiveReader) start() error {
	in := bufio.NewReaderSize(a.raw, 64<<10)
	magic, err := in.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	a.in = in
	if bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		if a.in, err = gzip.NewReader(in); err != nil {
			return badArchive(err)
		}
	}
	a.tar = tar.NewReader(blocks{a})
	a.started = true
	return nil
}

// blocks remembers whether the last block that the tar reader read was empty:
// an archive ends with such blocks, and one that was cut off doesn't.
type blocks struct{ a *ArchiveReader }

func (b blocks) Read(p []byte) (int, error) {
	const size = 512
	if len(p) != size {
		b.a.zero = false
		n, err := b.a.in.Read(p)
		if limit := b.a.unpack(n); limit != nil {
			return 0, limit
		}
		return n, err
	}
	n, err := io.ReadFull(b.a.in, p)
	if limit := b.a.unpack(n); limit != nil {
		return 0, limit
	}
	b.a.zero = n == size && len(bytes.Trim(p, "\x00")) == 0
	if errors.Is(err, io.ErrUnexpectedEOF) && n > 0 {
		err = nil // the tar reader finds out itself
	}
	return n, err
}

func badArchive(err error) error {
	if errors.Is(err, tar.ErrHeader) || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum) {
		return fmt.Errorf("%w: not a tar, or a damaged one: %w", ErrPathRejected, err)
	}
	return err
}

// Name is the name of the entry that the last error of Next was about, as it
// stands in the archive; "" when it was about none.
func (a *ArchiveReader) Name() string { return a.name }

// Next gives the next entry, and io.EOF after the last one of an archive that is
// whole. Name is relative, clean and without a final slash, and "" only for the
// top directory itself; a hard link's Linkname is of that form too. Typeflag is
// tar.TypeReg, TypeDir, TypeSymlink, TypeLink or, to be passed over, anything
// else. Of Mode only the permission bits are to be used. A refusal is
// ErrPathRejected or ErrLimit; another error is that of reading.
func (a *ArchiveReader) Next() (*tar.Header, error) {
	a.name = ""
	if !a.started {
		if err := a.start(); err != nil {
			return nil, err
		}
	}
	h, err := a.tar.Next()
	for err == nil && h.Typeflag == tar.TypeXGlobalHeader { // says something about all entries, such as a commit
		if a.entries++; a.entries > a.maxEntries {
			break
		}
		h, err = a.tar.Next()
	}
	if errors.Is(err, io.EOF) {
		return nil, a.end()
	}
	if err != nil {
		return nil, badArchive(err)
	}
	a.name = h.Name
	if a.entries++; a.entries > a.maxEntries {
		return nil, fmt.Errorf("%w: more than %d entries", ErrLimit, a.maxEntries)
	}
	if h.Size > a.maxBytes-a.bytes {
		return nil, a.tooLarge()
	}
	if h.Name, err = archiveName(h.Name); err != nil {
		return nil, err
	}
	switch h.Typeflag {
	case tar.TypeGNUSparse, tar.TypeCont:
		h.Typeflag = tar.TypeReg
	case tar.TypeLink:
		if h.Linkname, err = archiveName(h.Linkname); err != nil {
			return nil, err
		}
		if h.Linkname == "" {
			return nil, fmt.Errorf("%w: a hard link to the top directory", ErrPathRejected)
		}
	case tar.TypeSymlink:
		if h.Linkname == "" || strings.IndexByte(h.Linkname, 0) >= 0 || len(h.Linkname) > maxExtractPath {
			return nil, fmt.Errorf("%w: a link without a usable target", ErrPathRejected)
		}
	}
	if h.Name == "" && h.Typeflag != tar.TypeDir {
		return nil, fmt.Errorf("%w: an entry without a name", ErrPathRejected)
	}
	return h, nil
}

// end makes sure that nothing is missing, and reads what follows.
func (a *ArchiveReader) end() error {
	if !a.zero {
		return fmt.Errorf("%w: the archive has no end: %w", ErrPathRejected, io.ErrUnexpectedEOF)
	}
	n, err := io.CopyN(io.Discard, a.in, extractTrailer+1)
	switch {
	case n > extractTrailer:
		return fmt.Errorf("%w: more than %d bytes follow the end of the archive", ErrLimit, extractTrailer)
	case errors.Is(err, io.EOF):
		return io.EOF
	}
	return badArchive(err)
}

func (a *ArchiveReader) tooLarge() error {
	return fmt.Errorf("%w: more than %d bytes of content", ErrLimit, a.maxBytes)
}

// Read reads the content of the entry.
func (a *ArchiveReader) Read(p []byte) (int, error) {
	n, err := a.tar.Read(p)
	if limit := a.add(n); limit != nil {
		return 0, limit
	}
	if err != nil && !errors.Is(err, io.EOF) {
		err = badArchive(err)
	}
	return n, err
}

func (a *ArchiveReader) add(n int) error {
	a.bytes += int64(n)
	switch {
	case a.bytes > a.maxBytes:
		return a.tooLarge()
	}
	return a.ratio(a.bytes, "content")
}

// unpack counts bytes of the tar itself: what is passed over, and headers that
// only say something about others, are never content.
func (a *ArchiveReader) unpack(n int) error {
	a.unpacked += int64(n)
	return a.ratio(a.unpacked, "tar")
}

func (a *ArchiveReader) ratio(n int64, what string) error {
	if n > extractRatioFree && n/extractRatio > a.raw.n {
		return fmt.Errorf("%w: more than %d bytes of %s for each byte of the archive", ErrLimit, extractRatio, what)
	}
	return nil
}

// Count makes what is read of r count as content, within the limits.
func (a *ArchiveReader) Count(r io.Reader) io.Reader { return counted{a, r} }

type counted struct {
	a *ArchiveReader
	r io.Reader
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if limit := c.a.add(n); limit != nil {
		return 0, limit
	}
	return n, err
}

// archiveName cleans a name of an archive, or refuses it.
func archiveName(name string) (string, error) {
	switch {
	case strings.HasPrefix(name, "/"):
		return "", fmt.Errorf("%w: an absolute name in the archive", ErrPathRejected)
	case strings.IndexByte(name, 0) >= 0:
		return "", fmt.Errorf("%w: a name with a NUL in the archive", ErrPathRejected)
	case len(name) > maxExtractPath:
		return "", fmt.Errorf("%w: a name of more than %d bytes", ErrLimit, maxExtractPath)
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "", part == ".":
			continue
		case part == "..":
			return "", fmt.Errorf(`%w: a name with ".." in the archive`, ErrPathRejected)
		case len(part) > maxExtractName:
			return "", fmt.Errorf("%w: a name of more than %d bytes", ErrLimit, maxExtractName)
		}
		if parts = append(parts, part); len(parts) > maxExtractLevels {
			return "", fmt.Errorf("%w: more than %d levels of directories", ErrLimit, maxExtractLevels)
		}
	}
	return strings.Join(parts, "/"), nil
}
