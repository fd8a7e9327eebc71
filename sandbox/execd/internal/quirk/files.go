package quirk

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
)

// upload writes in place, with the bits of a new file set after the content.
func (s *Server) upload(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseMultipartForm(32 << 20); err != nil {
		refuse(w, http.StatusBadRequest, "INVALID_FILE", err.Error())
		return
	}
	metas, files := r.MultipartForm.File["metadata"], r.MultipartForm.File["file"]
	if len(metas) == 0 || len(metas) != len(files) {
		refuse(w, http.StatusBadRequest, "INVALID_FILE_METADATA", "the parts don't match")
		return
	}
	for i := range metas {
		var meta struct {
			Path string `json:"path"`
			Mode int    `json:"mode"`
		}
		err := decodePart(metas[i].Open, &meta)
		if err == nil {
			err = writePart(files[i].Open, meta.Path, meta.Mode)
		}
		if err != nil {
			refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
			return
		}
	}
}

func decodePart[F io.ReadCloser](open func() (F, error), to any) error {
	f, err := open()
	if err != nil {
		return err
	}
	defer f.Close()
	return json.NewDecoder(f).Decode(to)
}

func writePart[F io.ReadCloser](open func() (F, error), path string, mode int) error {
	f, err := open()
	if err != nil {
		return err
	}
	defer f.Close()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	to, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o777)
	if err != nil {
		return err
	}
	defer to.Close()
	if _, err := io.Copy(to, f); err != nil || mode == 0 {
		return err
	}
	return os.Chmod(path, bits(mode))
}

// bits reads a decimal number as octal digits, and drops the special bits.
func bits(mode int) fs.FileMode {
	n, _ := strconv.ParseUint(strconv.Itoa(mode), 8, 32)
	return fs.FileMode(n) & 0o777
}

func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	path := os.ExpandEnv(r.URL.Query().Get("path"))
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		refuse(w, http.StatusNotFound, "FILE_NOT_FOUND", path+" not found")
	case err != nil:
		refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
	default:
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(b)
	}
}

func (s *Server) info(w http.ResponseWriter, r *http.Request) {
	infos := map[string]map[string]any{}
	for _, path := range r.URL.Query()["path"] {
		i, err := os.Lstat(os.ExpandEnv(path))
		if err != nil {
			refuse(w, http.StatusNotFound, "FILE_NOT_FOUND", path+" not found")
			return
		}
		kind := "file"
		switch {
		case i.IsDir():
			kind = "directory"
		case i.Mode()&fs.ModeSymlink != 0:
			kind = "symlink"
		}
		infos[path] = map[string]any{"path": path, "type": kind, "size": i.Size()}
	}
	answer(w, http.StatusOK, infos)
}

func (s *Server) makeDirectories(w http.ResponseWriter, r *http.Request) {
	var dirs map[string]struct {
		Mode int `json:"mode"`
	}
	if err := json.NewDecoder(r.Body).Decode(&dirs); err != nil {
		refuse(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", err.Error())
		return
	}
	for path, d := range dirs {
		_, before := os.Lstat(path)
		err := os.MkdirAll(path, 0o755)
		if err == nil && before != nil && d.Mode != 0 {
			err = os.Chmod(path, bits(d.Mode))
		}
		if err != nil {
			refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
			return
		}
	}
}
