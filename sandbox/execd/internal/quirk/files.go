package quirk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// place reads a path as the daemon does.
func (s *Server) place(path string) (string, error) {
	if !s.faults[Expands] {
		return path, nil
	}
	if path == "~" || strings.HasPrefix(path, "~/") {
		path = os.Getenv("HOME") + path[1:]
	}
	var unknown error
	path = os.Expand(path, func(name string) string {
		if len(name) == 1 && strings.ContainsAny(name, "*#$@!?-0123456789") {
			return ""
		}
		value, ok := os.LookupEnv(name)
		if !ok {
			unknown = fmt.Errorf("undefined variable %s", name)
		}
		return value
	})
	return path, unknown
}

// each calls do for the paths of the query up to the first failure.
func (s *Server) each(w http.ResponseWriter, r *http.Request, do func(path string) error) {
	for _, given := range r.URL.Query()["path"] {
		path, err := s.place(given)
		if err == nil {
			err = do(path)
		}
		if err != nil {
			failedFile(w, err)
			return
		}
	}
}

// batch decodes a JSON body whose paths are keys.
func (s *Server) batch(w http.ResponseWriter, r *http.Request, do func(path string, a attr) error) {
	var items map[string]attr
	if err := json.NewDecoder(r.Body).Decode(&items); err != nil {
		refuse(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", err.Error())
		return
	}
	for given, a := range items {
		path, err := s.place(given)
		if err == nil {
			err = do(path, a)
		}
		if err != nil {
			refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
			return
		}
	}
}

func failedFile(w http.ResponseWriter, err error) {
	if errors.Is(err, fs.ErrNotExist) {
		refuse(w, http.StatusNotFound, "FILE_NOT_FOUND", err.Error())
		return
	}
	refuse(w, http.StatusInternalServerError, "RUNTIME_ERROR", err.Error())
}

// attr is bits as a decimal number with octal digits (0: unset), and names.
type attr struct {
	Mode         int
	Owner, Group string
}

// bits gives the bits that a asks for.
func (s *Server) bits(a attr) (fs.FileMode, error) {
	n, err := strconv.ParseUint(strconv.Itoa(a.Mode), 8, 32)
	mode := fs.FileMode(n) & fs.ModePerm
	if !s.faults[PlainBits] {
		for bit, special := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
			if n&bit != 0 {
				mode |= special
			}
		}
	}
	return mode, err
}

// ids gives what the names stand for; -1: unset.
func (s *Server) ids(a attr) (uid, gid int, err error) {
	uid, gid = -1, -1
	number := func(name string, err error) (int, error) {
		if n, bad := strconv.Atoi(name); bad == nil && !s.faults[NamesOnly] {
			return n, nil
		}
		return 0, err
	}
	if a.Owner != "" {
		u, err := user.Lookup(a.Owner)
		if err == nil {
			uid, _ = strconv.Atoi(u.Uid)
		} else if uid, err = number(a.Owner, err); err != nil {
			return -1, -1, err
		}
	}
	if a.Group != "" {
		g, err := user.LookupGroup(a.Group)
		if err == nil {
			gid, _ = strconv.Atoi(g.Gid)
		} else if gid, err = number(a.Group, err); err != nil {
			return -1, -1, err
		}
	}
	return uid, gid, nil
}

// give sets bits and then owner.
func (s *Server) give(path string, a attr) error {
	if a.Mode != 0 {
		mode, err := s.bits(a)
		if err == nil {
			err = os.Chmod(path, mode)
		}
		if err != nil {
			return err
		}
	}
	uid, gid, err := s.ids(a)
	if err != nil || uid < 0 && gid < 0 {
		return err
	}
	if err := os.Chown(path, uid, gid); err != nil || a.Mode == 0 {
		return err
	}
	if s.faults[PlainBits] {
		return nil
	}
	mode, err := s.bits(a) // the change of the owner has dropped the special ones
	if err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// describe is FileInfo.
func (s *Server) describe(path string, i fs.FileInfo) map[string]any {
	kind := "other"
	switch {
	case i.Mode().IsRegular():
		kind = "file"
	case i.IsDir():
		kind = "directory"
	case i.Mode()&fs.ModeSymlink != 0:
		kind = "symlink"
	}
	if s.faults[BothNames] {
		path = strings.ToValidUTF8(path, "\uFFFD")
	}
	mode, _ := strconv.Atoi(strconv.FormatUint(uint64(i.Mode().Perm()), 8))
	return map[string]any{"path": path, "type": kind, "size": i.Size(), "modified_at": i.ModTime(), "mode": mode}
}

func (s *Server) info(w http.ResponseWriter, r *http.Request) {
	infos := map[string]map[string]any{}
	for _, given := range r.URL.Query()["path"] {
		path, err := s.place(given)
		if err != nil {
			failedFile(w, err)
			return
		}
		i, err := os.Lstat(path)
		if err != nil {
			refuse(w, http.StatusNotFound, "FILE_NOT_FOUND", path+" not found")
			return
		}
		infos[given] = s.describe(path, i)
	}
	answer(w, http.StatusOK, infos)
}

// remove says that all is gone also when it left something.
func (s *Server) remove(w http.ResponseWriter, r *http.Request) {
	s.each(w, r, func(path string) error {
		look := os.Lstat
		if s.faults[LinkLies] {
			look = os.Stat
		}
		switch i, err := look(path); {
		case err != nil:
			return nil //nolint:nilerr // missing, it thinks
		case i.IsDir():
			return fmt.Errorf("%s is a directory", path)
		}
		return os.Remove(path)
	})
}

func (s *Server) removeDirectories(w http.ResponseWriter, r *http.Request) {
	s.each(w, r, os.RemoveAll)
}

func (s *Server) move(w http.ResponseWriter, r *http.Request) {
	var items []struct{ Src, Dest string }
	if err := json.NewDecoder(r.Body).Decode(&items); err != nil {
		refuse(w, http.StatusBadRequest, "INVALID_REQUEST_BODY", err.Error())
		return
	}
	for _, item := range items {
		src, err := s.place(item.Src)
		dest, err2 := s.place(item.Dest)
		if err = errors.Join(err, err2); err == nil {
			_, err = os.Stat(src)
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(dest), 0o755)
		}
		if _, there := os.Stat(dest); err == nil && there == nil && s.faults[KeepsDest] {
			err = fmt.Errorf("%s exists", dest)
		}
		if err == nil {
			err = os.Rename(src, dest)
		}
		if err != nil {
			failedFile(w, err)
			return
		}
	}
}

func (s *Server) permissions(w http.ResponseWriter, r *http.Request) { s.batch(w, r, s.give) }

func (s *Server) makeDirectories(w http.ResponseWriter, r *http.Request) {
	s.batch(w, r, func(path string, a attr) error {
		if _, err := os.Lstat(path); err == nil {
			return nil
		}
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		return s.give(path, a)
	})
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	root, err := s.place(r.URL.Query().Get("path"))
	depth := 1
	if text := r.URL.Query().Get("depth"); text != "" && err == nil {
		depth, err = strconv.Atoi(text)
	}
	out := []map[string]any{}
	var walk func(dir string, depth int) error
	walk = func(dir string, depth int) error {
		if depth < 1 {
			return nil
		}
		names, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		s.between("list", dir)
		for _, name := range names {
			path := filepath.Join(dir, name.Name())
			i, err := os.Lstat(path)
			switch {
			case err != nil && s.faults[ListFails]:
				return errors.New("lstat: " + err.Error())
			case err != nil:
				continue
			}
			out = append(out, s.describe(path, i))
			if i.IsDir() {
				if err := walk(path, depth-1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err == nil {
		err = walk(root, depth)
	}
	if err != nil {
		failedFile(w, err)
		return
	}
	answer(w, http.StatusOK, out)
}
