package files

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// failure is an answer that says no.
type failure struct {
	code    string
	message string
	path    string // the path concerned, for requests that name several
	cause   error
}

func (f *failure) Error() string { return f.message }

func (f *failure) Unwrap() error { return f.cause }

func failf(code, format string, args ...any) error {
	return &failure{code: code, message: fmt.Sprintf(format, args...)}
}

// errEscapes: the path leads out of the root that it is confined to.
var errEscapes = failf(wire.CodePathEscapes, "the path leads out of its root")

var statusOf = map[string]int{
	wire.CodeFileNotFound:     http.StatusNotFound,
	wire.CodeFileExists:       http.StatusConflict,
	wire.CodeFileChanged:      http.StatusPreconditionFailed,
	wire.CodePathInvalid:      http.StatusBadRequest,
	wire.CodePathEscapes:      http.StatusForbidden,
	wire.CodeNotADirectory:    http.StatusBadRequest,
	wire.CodeIsADirectory:     http.StatusBadRequest,
	wire.CodeNotRegular:       http.StatusBadRequest,
	wire.CodeNotEmpty:         http.StatusConflict,
	wire.CodeCrossDevice:      http.StatusBadRequest,
	wire.CodePermissionDenied: http.StatusForbidden,
	wire.CodeNoSpace:          http.StatusInsufficientStorage,
	wire.CodeUnknownAccount:   http.StatusBadRequest,
	wire.CodeIncompleteBody:   http.StatusBadRequest,
	wire.CodeFileLimit:        http.StatusRequestEntityTooLarge,
	wire.CodeUploadNotFound:   http.StatusNotFound,
	wire.CodeUploadOffset:     http.StatusConflict,
	wire.CodeHashMismatch:     http.StatusUnprocessableEntity,
	wire.CodeTooMany:          http.StatusTooManyRequests,
}

func statusFor(code string) int {
	if status := statusOf[code]; status != 0 {
		return status
	}
	return http.StatusInternalServerError
}

// failureOf classifies any error. The text of an unexpected one is kept: it
// comes from system calls and holds no secrets.
func failureOf(err error) *failure {
	var f *failure
	if errors.As(err, &f) {
		return f
	}
	code := wire.CodeFileError
	var errno unix.Errno
	if errors.As(err, &errno) {
		switch errno {
		case unix.ENOENT:
			code = wire.CodeFileNotFound
		case unix.EEXIST:
			code = wire.CodeFileExists
		case unix.ENOTDIR:
			code = wire.CodeNotADirectory
		case unix.EISDIR:
			code = wire.CodeIsADirectory
		case unix.ENOTEMPTY:
			code = wire.CodeNotEmpty
		case unix.EXDEV:
			code = wire.CodeCrossDevice
		case unix.EACCES, unix.EPERM, unix.EROFS:
			code = wire.CodePermissionDenied
		case unix.ENOSPC, unix.EDQUOT, unix.EFBIG:
			code = wire.CodeNoSpace
		case unix.ENAMETOOLONG, unix.ELOOP, unix.EINVAL, unix.EILSEQ:
			code = wire.CodePathInvalid
		}
		return &failure{code: code, message: errno.Error(), cause: err}
	}
	return &failure{code: code, message: err.Error(), cause: err}
}

func (f *failure) wire() *wire.FileError {
	e := &wire.FileError{Code: f.code, Message: f.message}
	e.Path, e.PathB64 = wire.SplitText(f.path)
	return e
}

// missing reports whether err says that there is no such file.
func missing(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR)
}

func refuse(w http.ResponseWriter, err error) {
	f := failureOf(err)
	respond(w, statusFor(f.code), f.wire())
}

func respond(w http.ResponseWriter, status int, body any) {
	b, err := json.Marshal(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	// A refused download has set headers that belong to content.
	h := w.Header()
	h.Del("ETag")
	h.Del("Accept-Ranges")
	h.Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	w.Write(append(b, '\n')) //nolint:errcheck // the client is gone: nothing is left to do
}
