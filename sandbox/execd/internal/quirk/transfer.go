package quirk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// upload stores pairs of parts up to the first failure.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseMultipartForm(32 << 20); err != nil {
		refuse(w, http.StatusBadRequest, "INVALID_FILE", err.Error())
		return
	}
	metas, files := r.MultipartForm.File["metadata"], r.MultipartForm.File["file"]
	switch {
	case len(metas) == 0:
		refuse(w, http.StatusBadRequest, "INVALID_FILE_METADATA", "the metadata is missing")
		return
	case len(metas) != len(files):
		refuse(w, http.StatusBadRequest, "INVALID_FILE", "the parts don't match")
		return
	}
	for i := range metas {
		var meta struct {
			Path string
			attr
		}
		f, err := metas[i].Open()
		if err == nil {
			err = json.NewDecoder(f).Decode(&meta)
			f.Close()
		}
		if err != nil || meta.Path == "" {
			refuse(w, http.StatusBadRequest, "INVALID_FILE_METADATA", fmt.Sprint("the metadata: ", err))
			return
		}
		path, err := s.place(meta.Path)
		if err == nil {
			if f, err = files[i].Open(); err == nil {
				err = s.store(f, path, meta.attr)
				f.Close()
			}
		}
		if err != nil {
			refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
			return
		}
	}
}

// store writes a file, in place or by a rename.
func (s *Server) store(content io.Reader, path string, a attr) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if s.faults[NoRoom] {
		content = io.MultiReader(io.LimitReader(content, 1), noRoom{})
	}
	if s.faults[InPlace] {
		if err := fill(content, path, 0o777); err != nil {
			return err
		}
		s.between("upload", path)
		return s.give(path, a)
	}
	if old, err := os.Stat(path); err == nil && a.Mode == 0 {
		a.Mode, _ = strconv.Atoi(strconv.FormatUint(uint64(old.Mode().Perm()), 8))
	}
	tmp := path + ".tmp"
	err := fill(content, tmp, 0o600)
	if err == nil {
		err = s.give(tmp, a)
	}
	s.between("upload", path)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(tmp))
	}
	return nil
}

func fill(content io.Reader, path string, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// noRoom fails as a full disk does.
type noRoom struct{}

func (noRoom) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: "/somewhere", Err: syscall.ENOSPC}
}

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	path, err := s.place(r.URL.Query().Get("path"))
	s.between("download", path)
	var i fs.FileInfo
	if err == nil {
		i, err = os.Stat(path)
	}
	if err != nil {
		failedFile(w, err)
		return
	}
	odd := s.faults[OddBodies]
	switch {
	case i.IsDir() && odd:
		w.Header().Set("Content-Length", strconv.FormatInt(1<<63-1, 10))
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case i.Mode()&fs.ModeNamedPipe != 0 && odd:
		select {
		case <-s.done:
		case <-r.Context().Done():
		}
		return
	case i.Mode()&fs.ModeDevice != 0 && odd:
		return
	case !i.Mode().IsRegular():
		refuse(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", "it isn't a file")
		return
	case strings.HasPrefix(path, "/proc/") && odd:
		http.Error(w, "seeker can't seek", http.StatusInternalServerError)
		return
	case strings.HasPrefix(path, "/proc/"):
		b, err := os.ReadFile(path)
		if err != nil {
			failedFile(w, err)
			return
		}
		_, _ = w.Write(b)
		return
	}
	f, err := os.Open(path)
	if err != nil {
		failedFile(w, err)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	unit, span, ranged := strings.Cut(r.Header.Get("Range"), "=")
	first, _, _ := strings.Cut(span, "-")
	start, bad := strconv.ParseInt(first, 10, 64)
	if ranged && odd && (unit != "bytes" || bad != nil && first != "" || start >= i.Size()) {
		w.Header().Set("Content-Length", strconv.FormatInt(i.Size(), 10))
		w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	if s.faults[ShortBodies] && i.Size() > 1 && !ranged {
		w.Header().Set("Content-Length", strconv.FormatInt(i.Size(), 10))
		_, _ = io.CopyN(w, f, i.Size()/2)
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	http.ServeContent(w, r, "", i.ModTime(), f)
}
