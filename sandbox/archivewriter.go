package sandbox

import (
	"archive/tar"
	"archive/zip"
	"compress/flate"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"time"
)

// ArchiveWriter writes an archive entry by entry, for those who implement an
// [Archiver] where the files are. It is not safe for concurrent use.
type ArchiveWriter struct {
	tar   *tar.Writer
	gzip  *gzip.Writer
	zip   *zip.Writer
	count int
	buf   []byte
	// Changed counts the files that had become shorter when they were read.
	Changed int
}

// ArchiveEntry is what [ArchiveWriter.Add] adds.
type ArchiveEntry struct {
	Name     string // relative, without a final slash
	Info     FileInfo
	UID, GID int    // numbers of Info.Owner and Info.Group, where they are known
	HardLink string // Name of an earlier entry that is the same file; not used in a zip
}

// NewArchiveWriter makes an ArchiveWriter on w.
func NewArchiveWriter(w io.Writer, format ArchiveFormat) (*ArchiveWriter, error) {
	if err := format.check(); err != nil {
		return nil, err
	}
	a := &ArchiveWriter{buf: make([]byte, archiveBuffer)}
	switch format {
	case ArchiveZip:
		a.zip = zip.NewWriter(w)
		var squeeze *flate.Writer // one for all files, which come one after the other
		a.zip.RegisterCompressor(zip.Deflate, func(w io.Writer) (_ io.WriteCloser, err error) {
			if squeeze != nil {
				squeeze.Reset(w)
				return squeeze, nil
			}
			squeeze, err = flate.NewWriter(w, flate.BestSpeed)
			return squeeze, err
		})
		return a, nil
	case ArchiveTarGzip:
		var err error
		if a.gzip, err = gzip.NewWriterLevel(w, gzip.BestSpeed); err != nil {
			return nil, err
		}
		w = a.gzip
	}
	a.tar = tar.NewWriter(w)
	return a, nil
}

const archiveBuffer = 128 << 10

// Add adds a file. Content is read for a regular one, up to Info.Size in a tar:
// if it ends earlier, zeros stand for the rest. What is no file, directory or
// symlink is left out. A file whose content fails before it was begun
// (fs.ErrNotExist, ErrPathRejected) is left out too; any later error is one of
// the archive. A zip with more than MaxZipEntries entries fails with ErrLimit.
func (a *ArchiveWriter) Add(e ArchiveEntry, content io.Reader) error {
	regular := e.Info.Mode.IsRegular()
	if !regular && !e.Info.IsDir() && e.Info.Mode.Type() != fs.ModeSymlink {
		return nil
	}
	// The first bytes are read before anything is promised about the file. One
	// that is read whole gets the size that it really has.
	var head []byte
	whole := true
	if regular && (e.HardLink == "" || a.zip != nil) {
		n, err := io.ReadFull(content, a.buf[:min(int64(len(a.buf)), e.Info.Size)])
		switch {
		case err == nil:
			whole = int64(n) == e.Info.Size
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			if int64(n) < e.Info.Size {
				a.Changed++
			}
			e.Info.Size = int64(n)
		case n == 0 && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrPathRejected)):
			return nil
		default:
			return err
		}
		head = a.buf[:n]
	}
	if a.zip != nil {
		return a.addZip(e, head, whole, content)
	}
	return a.addTar(e, head, whole, content)
}

func (a *ArchiveWriter) addTar(e ArchiveEntry, head []byte, whole bool, content io.Reader) error {
	h := tar.Header{
		Name: e.Name, Uid: e.UID, Gid: e.GID, Uname: e.Info.Owner, Gname: e.Info.Group,
		Mode: int64(unixBits(e.Info.Mode)), ModTime: e.Info.ModTime.Truncate(time.Second),
	}
	switch {
	case e.Info.IsDir():
		h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
	case e.Info.Mode.Type() == fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.Info.Target
	case e.HardLink != "":
		h.Typeflag, h.Linkname = tar.TypeLink, e.HardLink
	default:
		h.Typeflag, h.Size = tar.TypeReg, e.Info.Size
	}
	if err := a.tar.WriteHeader(&h); err != nil {
		return err
	}
	if _, err := a.tar.Write(head); err != nil || whole {
		return err
	}
	left := e.Info.Size - int64(len(head))
	for left > 0 {
		buf := a.buf[:min(int64(len(a.buf)), left)]
		n, err := io.ReadFull(content, buf)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			a.Changed++
			clear(buf[n:])
			for ; left > int64(len(buf)); left -= int64(len(buf)) {
				if _, err := a.tar.Write(buf); err != nil {
					return err
				}
				clear(buf[:n])
				n = 0
			}
			_, err := a.tar.Write(buf[:left])
			return err
		}
		if err != nil {
			return err
		}
		if _, err := a.tar.Write(buf); err != nil {
			return err
		}
		left -= int64(n)
	}
	return nil
}

func (a *ArchiveWriter) addZip(e ArchiveEntry, head []byte, whole bool, content io.Reader) error {
	if a.count++; a.count > MaxZipEntries {
		return Errorf(CodeInvalid, "a zip takes %d files; more need a tar: %w", MaxZipEntries, ErrLimit)
	}
	h := zip.FileHeader{Name: e.Name, Modified: e.Info.ModTime, Method: zip.Deflate}
	h.SetMode(e.Info.Mode &^ (fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky))
	switch {
	case e.Info.IsDir():
		h.Name, h.Method = h.Name+"/", zip.Store
	case !e.Info.Mode.IsRegular():
		h.Method, head = zip.Store, []byte(e.Info.Target)
	case len(head) == 0:
		h.Method = zip.Store
	}
	w, err := a.zip.CreateHeader(&h)
	if err != nil {
		return err
	}
	if len(head) > 0 {
		if _, err := w.Write(head); err != nil || whole {
			return err
		}
	}
	if whole {
		return nil
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{io.LimitReader(content, e.Info.Size-int64(len(head)))}, a.buf)
	return err
}

// Close writes the end of the archive. It doesn't close what it is written to.
func (a *ArchiveWriter) Close() error {
	if a.zip != nil {
		return a.zip.Close()
	}
	err := a.tar.Close()
	if a.gzip != nil && err == nil {
		err = a.gzip.Close()
	}
	return err
}

// unixBits gives permission and special bits as the system has them.
func unixBits(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for _, b := range [...]struct {
		mode fs.FileMode
		bit  uint32
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if m&b.mode != 0 {
			bits |= b.bit
		}
	}
	return bits
}
