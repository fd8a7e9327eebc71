package httpapi

import (
	"bufio"
	"io"
	"net/http"
	"path"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/sandbox"
)

// archiveTypes are the formats of a folder's download.
var archiveTypes = map[sandbox.ArchiveFormat]string{
	sandbox.ArchiveZip:     "application/zip",
	sandbox.ArchiveTar:     "application/x-tar",
	sandbox.ArchiveTarGzip: "application/gzip",
}

// getArchive sends a folder as one file, which is made while it is sent. One
// that breaks off cuts the connection, so that it isn't taken for whole.
func (s *Server) getArchive(w http.ResponseWriter, r *http.Request) {
	q, err := query(r, "path", "format")
	if err != nil {
		s.fail(w, r, err)
		return
	}
	dir, format := workspace, sandbox.ArchiveZip
	if v := q["path"]; v != "" {
		dir = v
	}
	if v := q["format"]; v != "" {
		format = sandbox.ArchiveFormat(v)
	}
	kind, ok := archiveTypes[format]
	if !ok {
		s.fail(w, r, fault.New(fault.RequestInvalid, "format is zip, tar or tar.gz."))
		return
	}
	if dir, err = cleanPath(dir); err != nil {
		s.fail(w, r, err)
		return
	}
	files, _, err := s.service.Workspace(r.Context(), r.PathValue("id"))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	archive, err := sandbox.Archive(r.Context(), files, dir, format)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	defer archive.Close()
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Content-Disposition", disposition(path.Base(dir)+"."+string(format)))
	h.Set("Cache-Control", "private, no-store")
	if r.Method == http.MethodHead {
		return
	}
	// What fails before the first byte can still be said in words.
	in := bufio.NewReaderSize(archive, 128<<10)
	if _, err := in.Peek(1); err != nil {
		h.Del("Content-Disposition")
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusOK)
	if _, err := io.CopyBuffer(onlyWriter{w}, struct{ io.Reader }{in}, make([]byte, 128<<10)); err != nil {
		if r.Context().Err() == nil {
			s.log.Warn("an archive was cut off", "request_id", requestID(r.Context()), "error", err)
		}
		panic(http.ErrAbortHandler)
	}
}
