package files

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// The older interface: /files and /directories. Paths are absolute or relative
// to the daemon's directory, literal, and confined only where Config.Root is set. A batch runs in order
// (sorted, where it is a map) up to the first failure, which names its path.

// maxLegacyBody limits a JSON body of the older interface.
const maxLegacyBody = 16 << 20

// Codes of the older interface.
const (
	codeFileNotFound    = "FILE_NOT_FOUND"
	codeInvalidFile     = "INVALID_FILE"
	codeInvalidMetadata = "INVALID_FILE_METADATA"
	codeInvalidContent  = "INVALID_FILE_CONTENT"
)

func (s *service) legacy() map[string]func(http.ResponseWriter, *http.Request) error {
	return map[string]func(http.ResponseWriter, *http.Request) error{
		"GET /files/info":         s.oldInfo,
		"POST /files/upload":      s.oldUpload,
		"GET /files/download":     s.oldDownload,
		"DELETE /files":           s.oldRemove,
		"POST /files/mv":          s.oldMove,
		"POST /files/permissions": s.oldPermissions,
		"POST /files/replace":     s.oldReplace,
		"GET /files/search":       s.oldSearch,
		"GET /directories/list":   s.oldList,
		"POST /directories":       s.oldMakeDirs,
		"DELETE /directories":     s.oldRemoveDirs,
	}
}

// oldFailure is a refusal with the older interface's code and status.
type oldFailure struct {
	status int
	body   wire.Error
}

func (f *oldFailure) Error() string { return f.body.Message }

func badRequest(code, format string, args ...any) error {
	return &oldFailure{http.StatusBadRequest, wire.Error{Code: code, Message: fmt.Sprintf(format, args...)}}
}

func refuseLegacy(w http.ResponseWriter, err error) {
	var f *oldFailure
	if errors.As(err, &f) {
		respond(w, f.status, f.body)
		return
	}
	known := failureOf(err)
	e := wire.Error{Code: wire.CodeRuntime, Message: known.message}
	if known.path != "" {
		e.Message = known.path + ": " + e.Message
	}
	status := http.StatusInternalServerError
	switch known.code {
	case wire.CodeFileNotFound:
		e.Code, status = codeFileNotFound, http.StatusNotFound
	case wire.CodeIncompleteBody:
		e.Code, status = codeInvalidFile, http.StatusBadRequest
	}
	respond(w, status, e)
}

// oldQuery reads the query, which must be well formed.
func oldQuery(r *http.Request) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badRequest(wire.CodeInvalidBody, "the query can't be read: %s", err)
	}
	return q, nil
}

// oldPath gives the one path of a request.
func (s *service) oldPath(q url.Values) (string, error) {
	if q.Get("path") == "" {
		return "", badRequest(wire.CodeMissingQuery, "missing query parameter 'path'")
	}
	return s.absolute(q.Get("path"))
}

// absolute gives a path as the scope takes it. Below a root, an absolute path
// that lies elsewhere begins at the root.
func (s *service) absolute(p string) (string, error) {
	if root := s.all.root; s.all.held {
		if _, ok := below(root, p); ok {
			return p, nil
		}
		return root + "/" + strings.TrimLeft(p, "/"), nil
	}
	if strings.HasPrefix(p, "/") {
		return p, nil
	}
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	if p == "" {
		return dir, nil
	}
	return strings.TrimRight(dir, "/") + "/" + p, nil
}

// oldBody reads the first JSON value of a body and ignores the rest.
func oldBody(r *http.Request, out any) error {
	b, err := io.ReadAll(io.LimitReader(r.Body, maxLegacyBody+1))
	if err != nil {
		return badRequest(wire.CodeInvalidBody, "the body ended early: %s", err)
	}
	if len(b) > maxLegacyBody {
		return badRequest(wire.CodeInvalidBody, "the body is larger than %d bytes", maxLegacyBody)
	}
	if !utf8.Valid(b) { // decoding would change the names in it
		return badRequest(wire.CodeInvalidBody, "the body isn't valid UTF-8")
	}
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(out); err != nil {
		return badRequest(wire.CodeInvalidBody, "the body can't be read: %s", err)
	}
	return nil
}

// oldAttr is bits and owner as the older interface has them: the digits of a
// decimal number are octal, and 0 leaves the bits alone.
type oldAttr struct {
	Owner string `json:"owner"`
	Group string `json:"group"`
	Mode  int64  `json:"mode"`
}

func (s *service) oldAttr(o oldAttr) (attr, error) {
	w := wire.FileAttr{Owner: o.Owner, Group: o.Group}
	if o.Mode != 0 {
		w.Mode = strconv.FormatInt(o.Mode, 10)
	}
	return s.attr(w)
}

// oldFile is FileInfo of the older interface.
type oldFile struct {
	Path     string    `json:"path"`
	Type     string    `json:"type"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified_at"`
	Created  time.Time `json:"created_at"` // of the last change, as it always was
	Owner    string    `json:"owner"`
	Group    string    `json:"group"`
	Mode     int       `json:"mode"`
}

func oldFileOf(p string, st *unix.Stat_t, n namer) oldFile {
	f := oldFile{
		Path: path.Clean(p), Type: "other", Size: st.Size,
		Modified: time.Unix(st.Mtim.Unix()), Created: time.Unix(st.Ctim.Unix()),
		Owner: n.owner(st.Uid), Group: n.group(st.Gid),
	}
	f.Mode, _ = strconv.Atoi(strconv.FormatUint(uint64(st.Mode&0o7777), 8))
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f.Type = "file"
	case unix.S_IFDIR:
		f.Type = "directory"
	case unix.S_IFLNK:
		f.Type = "symlink"
	}
	return f
}

func (s *service) statPath(p string) (*unix.Stat_t, error) {
	fd, err := s.all.open(p, unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
	st := new(unix.Stat_t)
	return st, unix.Fstat(fd, st)
}

func (s *service) oldInfo(w http.ResponseWriter, r *http.Request) error {
	q, err := oldQuery(r)
	if err != nil {
		return err
	}
	out, n := map[string]oldFile{}, newNamer(s.accounts)
	for _, given := range q["path"] {
		p, err := s.absolute(given)
		if err != nil {
			return err
		}
		st, err := s.statPath(p)
		if err != nil {
			return named(err, given)
		}
		out[given] = oldFileOf(p, st, n)
	}
	respond(w, http.StatusOK, out)
	return nil
}

// eachPath calls do for every path of the query.
func (s *service) eachPath(r *http.Request, do func(p string) error) error {
	q, err := oldQuery(r)
	if err != nil {
		return err
	}
	for _, given := range q["path"] {
		p, err := s.absolute(given)
		if err == nil {
			err = do(p)
		}
		if err != nil {
			return named(err, given)
		}
	}
	return nil
}

func (s *service) oldRemove(_ http.ResponseWriter, r *http.Request) error {
	return s.eachPath(r, func(p string) error {
		at, err := s.all.place(p, false)
		if missing(err) {
			return nil
		}
		if err != nil {
			return err
		}
		defer at.close()
		if err := unlink(at.dir, at.base); !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil
	})
}

func (s *service) oldRemoveDirs(_ http.ResponseWriter, r *http.Request) error {
	return s.eachPath(r, func(p string) error { return removePath(r.Context(), s.all, p, true) })
}

func (s *service) oldMove(_ http.ResponseWriter, r *http.Request) error {
	var items []struct{ Src, Dest string }
	if err := oldBody(r, &items); err != nil {
		return err
	}
	for _, item := range items {
		if item.Src == "" || item.Dest == "" {
			return badRequest(wire.CodeInvalidBody, "an item has no src or no dest")
		}
		src, err := s.absolute(item.Src)
		if err != nil {
			return err
		}
		dest, err := s.absolute(item.Dest)
		if err != nil {
			return err
		}
		if _, err := s.statPath(src); err != nil {
			return named(err, item.Src)
		}
		if err := s.parents(dest, attr{}); err != nil {
			return named(err, item.Dest)
		}
		if err := move(s.all, src, dest, unix.RENAME_NOREPLACE); err != nil {
			return err
		}
	}
	return nil
}

// parents makes the directories above p.
func (s *service) parents(p string, a attr) error {
	parent, _ := split(strings.TrimRight(p, "/"))
	_, err := s.mkdirAll(s.all, parent, a, a)
	return err
}

func (s *service) oldPermissions(_ http.ResponseWriter, r *http.Request) error {
	var items map[string]oldAttr
	if err := oldBody(r, &items); err != nil {
		return err
	}
	return s.eachAttr(items, func(p string, a attr) error {
		fd, err := s.all.open(p, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // an O_PATH descriptor
		return a.set(fd)
	})
}

func (s *service) oldMakeDirs(_ http.ResponseWriter, r *http.Request) error {
	var items map[string]oldAttr
	if err := oldBody(r, &items); err != nil {
		return err
	}
	return s.eachAttr(items, func(p string, a attr) error {
		_, err := s.mkdirAll(s.all, p, a, attr{uid: a.uid, gid: a.gid})
		return err
	})
}

// eachAttr resolves every item before it touches the first.
func (s *service) eachAttr(items map[string]oldAttr, do func(p string, a attr) error) error {
	given := slices.Sorted(maps.Keys(items))
	attrs := make([]attr, len(given))
	for i, g := range given {
		var err error
		if attrs[i], err = s.oldAttr(items[g]); err != nil {
			return named(err, g)
		}
	}
	for i, g := range given {
		p, err := s.absolute(g)
		if err == nil {
			err = do(p, attrs[i])
		}
		if err != nil {
			return named(err, g)
		}
	}
	return nil
}
