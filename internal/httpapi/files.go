package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/sandbox"
)

const (
	workspace = "/workspace"
	// maxDepth bounds how deep one listing goes.
	maxDepth = 32
	fileMode = fs.FileMode(0o640)
	dirMode  = fs.FileMode(0o750)
)

type mkdirInput struct {
	Conv
	Body wire.MakeDir
}

type moveInput struct {
	Conv
	Body wire.MoveFile
}

type deleteFilesInput struct {
	Conv
	Body wire.DeleteFiles
}

func (s *Server) fileRoutes() {
	const tag = "files"
	register(s, operation{method: "POST", path: oneConversation + "/files/mkdir", id: "make-folder", tag: tag, status: http.StatusCreated, summary: "Make a folder"},
		func(ctx context.Context, in *mkdirInput) (*body[wire.FileEntry], error) {
			e, err := s.makeDir(ctx, in.ID, in.Body)
			return &body[wire.FileEntry]{e}, err
		})
	register(s, operation{method: "POST", path: oneConversation + "/files/move", id: "move-file", tag: tag, summary: "Move or rename a file or folder"},
		func(ctx context.Context, in *moveInput) (*body[wire.FileEntry], error) {
			e, err := s.moveFile(ctx, in.ID, in.Body)
			return &body[wire.FileEntry]{e}, err
		})
	register(s, operation{method: "POST", path: oneConversation + "/files/delete", id: "delete-files", tag: tag, status: http.StatusNoContent, summary: "Delete files and folders"},
		func(ctx context.Context, in *deleteFilesInput) (*struct{}, error) {
			return nil, s.deleteFiles(ctx, in.ID, in.Body.Paths)
		})
}

func (s *Server) makeDir(ctx context.Context, conversationID string, in wire.MakeDir) (wire.FileEntry, error) {
	p, err := cleanPath(in.Path)
	if err != nil {
		return wire.FileEntry{}, err
	}
	files, account, err := s.service.Workspace(ctx, conversationID)
	if err != nil {
		return wire.FileEntry{}, err
	}
	err = files.MakeDir(ctx, p, sandbox.DirOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(dirMode), Owner: account, Group: account}, Parents: in.Parents})
	if err != nil {
		return wire.FileEntry{}, err
	}
	return stat(ctx, files, p)
}

func (s *Server) moveFile(ctx context.Context, conversationID string, in wire.MoveFile) (wire.FileEntry, error) {
	from, err := cleanPath(in.From)
	if err != nil {
		return wire.FileEntry{}, err
	}
	to, err := cleanPath(in.To)
	if err != nil {
		return wire.FileEntry{}, err
	}
	if from == workspace || to == workspace {
		return wire.FileEntry{}, fault.New(fault.PathInvalid, "The workspace itself can't be moved or replaced.")
	}
	files, _, err := s.service.Workspace(ctx, conversationID)
	if err != nil {
		return wire.FileEntry{}, err
	}
	if in.Replace {
		err = files.Rename(ctx, from, to)
	} else {
		err = sandbox.Move(ctx, files, from, to)
	}
	if err != nil {
		return wire.FileEntry{}, err
	}
	return stat(ctx, files, to)
}

func (s *Server) deleteFiles(ctx context.Context, conversationID string, paths []string) error {
	clean := make([]string, len(paths))
	for i, p := range paths {
		var err error
		if clean[i], err = cleanPath(p); err != nil {
			return err
		}
		if clean[i] == workspace {
			return fault.New(fault.PathInvalid, "The workspace itself can't be deleted.")
		}
	}
	files, _, err := s.service.Workspace(ctx, conversationID)
	if err != nil {
		return err
	}
	for _, p := range clean {
		if err := files.RemoveAll(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// listFiles streams what is below a folder, so that a folder of any size needs
// no memory here. A listing that fails in the middle cuts the connection: half
// a folder must not look like a whole one.
func (s *Server) listFiles(w http.ResponseWriter, r *http.Request) {
	q, err := query(r, "path", "depth")
	if err != nil {
		s.fail(w, r, err)
		return
	}
	dir, depth := workspace, 1
	if v := q["path"]; v != "" {
		dir = v
	}
	if v := q["depth"]; v != "" {
		if depth, err = strconv.Atoi(v); err != nil || depth < 1 || depth > maxDepth {
			s.fail(w, r, fault.New(fault.RequestInvalid, "depth must be a number from 1 to %d.", maxDepth))
			return
		}
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
	entries, err := files.List(r.Context(), dir, depth)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	started := false
	start := func() {
		w.Header().Set("Content-Type", "application/json")
		name, _ := json.Marshal(dir) // a string
		fmt.Fprintf(w, `{"path":%s,"entries":[`, name)
		started = true
	}
	first := true
	for info, err := range entries {
		if err != nil && !started {
			s.fail(w, r, err)
			return
		}
		if err != nil {
			s.log.Warn("a listing was cut off", "request_id", requestID(r.Context()), "error", err)
			panic(http.ErrAbortHandler)
		}
		if !started {
			start()
		}
		data, err := json.Marshal(entry(info))
		if err != nil {
			panic(http.ErrAbortHandler) // a time outside of what RFC 3339 can say
		}
		if !first {
			data = append([]byte{','}, data...)
		}
		first = false
		if _, err := w.Write(data); err != nil {
			return
		}
	}
	if !started {
		start()
	}
	_, _ = w.Write([]byte("]}\n")) // the client is gone if this fails
}

func stat(ctx context.Context, files sandbox.Files, p string) (wire.FileEntry, error) {
	info, err := files.Stat(ctx, p)
	if err != nil {
		return wire.FileEntry{}, err
	}
	return entry(info), nil
}

// entry describes a file for the wire.
func entry(i sandbox.FileInfo) wire.FileEntry {
	e := wire.FileEntry{
		Name: i.Name(), Path: i.Path, Size: i.Size, Mode: octal(i.Mode), Owner: i.Owner, Group: i.Group,
		ModifiedAt: i.ModTime.UTC(), Target: i.Target, Version: i.Version,
	}
	switch {
	case i.Mode.IsRegular():
		e.Type = wire.TypeFile
	case i.Mode.IsDir():
		e.Type = wire.TypeDirectory
	case i.Mode&fs.ModeSymlink != 0:
		e.Type = wire.TypeSymlink
	default:
		e.Type = wire.TypeOther
	}
	if !utf8.ValidString(i.Path) {
		e.PathB64 = base64.StdEncoding.EncodeToString([]byte(i.Path))
	}
	return e
}

// octal writes permission bits as chmod takes them.
func octal(m fs.FileMode) string {
	bits := uint32(m.Perm())
	if m&fs.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if m&fs.ModeSetgid != 0 {
		bits |= 0o2000
	}
	if m&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return fmt.Sprintf("%04o", bits)
}

// cleanPath refuses what can't be a path in the workspace, before a sandbox is
// woken for it. Links are the sandbox's to judge: only it can, without a race.
func cleanPath(p string) (string, error) {
	switch {
	case p == "":
		return "", fault.New(fault.PathInvalid, "The path is missing.")
	case strings.ContainsRune(p, 0):
		return "", fault.New(fault.PathInvalid, "The path holds a NUL.")
	case len(p) > 4096:
		return "", fault.New(fault.PathInvalid, "The path is longer than 4096 bytes.")
	case !strings.HasPrefix(p, "/"):
		return "", fault.New(fault.PathInvalid, "The path must be absolute, below %s.", workspace)
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return "", fault.New(fault.PathEscapes, `The path must not hold "..".`)
		}
	}
	p = path.Clean(p) // doubled slashes and "." only, now
	if p != workspace && !strings.HasPrefix(p, workspace+"/") {
		return "", fault.New(fault.PathEscapes, "The path must lie below %s.", workspace)
	}
	return p, nil
}

// query reads the parameters that a plain handler takes. Unknown and repeated
// ones are refused, as on the JSON routes.
func query(r *http.Request, names ...string) (map[string]string, error) {
	values, err := parseQuery(r)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, n := range names {
		if v := values[n]; len(v) > 1 {
			return nil, fault.New(fault.RequestInvalid, "The parameter %s is given twice.", n)
		} else if len(v) == 1 {
			out[n] = v[0]
		}
		delete(values, n)
	}
	for n := range values {
		return nil, fault.New(fault.RequestInvalid, "The parameter %q is not known here.", n)
	}
	return out, nil
}
