package execd

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"syscall"

	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/command"
	"github.com/astrabox/astrabox/internal/execd/hang"
	"github.com/astrabox/astrabox/internal/execd/launch"
	"github.com/astrabox/astrabox/internal/execd/process"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// reply sends v as JSON. A failure to send is the client's going away.
func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	reply(w, status, wire.Error{Code: code, Message: message})
}

// decode reads the request's JSON body of at most maxBody within bodyTime, and
// refuses the request where it can't. What follows the first value is read, so
// that the server can notice the client's going away, and passed over.
func decode(w http.ResponseWriter, r *http.Request, v any) bool {
	b, err := readBody(w, r, maxBody)
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(b)).Decode(v)
	}
	return decoded(w, err)
}

// decodeOptional is decode for a body that may be missing.
func decodeOptional(w http.ResponseWriter, r *http.Request, v any) bool {
	b, err := readBody(w, r, maxBody)
	if err == nil && len(bytes.TrimSpace(b)) == 0 {
		return true
	}
	if err == nil {
		err = json.NewDecoder(bytes.NewReader(b)).Decode(v)
	}
	return decoded(w, err)
}

// decoded refuses the request when err isn't nil.
func decoded(w http.ResponseWriter, err error) bool {
	var tooBig *http.MaxBytesError
	switch {
	case errors.As(err, &tooBig):
		refuse(w, http.StatusRequestEntityTooLarge, wire.CodeInvalidBody, "the body is larger than 8 MiB")
	case err != nil && !tooLate(w, err):
		refuse(w, http.StatusBadRequest, wire.CodeInvalidBody, "the body is not the JSON that this operation takes")
	}
	return err == nil
}

// startFailure gives the answer for a command or process that wasn't started.
// tried says that the system was asked and said no.
func startFailure(err error) (status int, e wire.Error, tried bool) {
	var l *launch.Error
	switch {
	case errors.As(err, &l):
		return http.StatusBadRequest, wire.Error{Code: l.Code, Message: l.Message}, false
	case errors.Is(err, child.ErrClosed), errors.Is(err, process.ErrStopping):
		return http.StatusServiceUnavailable, wire.Error{Code: wire.CodeStopping, Message: "the daemon is stopping"}, false
	case errors.Is(err, command.ErrTooMany), errors.Is(err, process.ErrTooMany), errors.Is(err, hang.ErrMany):
		return http.StatusTooManyRequests, wire.Error{Code: wire.CodeTooMany, Message: err.Error()}, false
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		return http.StatusTooManyRequests, wire.Error{Code: wire.CodeTooMany, Message: "the sandbox has no room for another process: " + err.Error()}, false
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return http.StatusTooManyRequests, wire.Error{Code: wire.CodeTooMany, Message: "the sandbox's daemon has no descriptors left: " + err.Error()}, false
	case errors.Is(err, syscall.E2BIG):
		return http.StatusBadRequest, wire.Error{Code: wire.CodeStartFailed, Message: "the arguments or the environment are too large"}, true
	default:
		return http.StatusInternalServerError, wire.Error{Code: wire.CodeStartFailed, Message: err.Error()}, true
	}
}
