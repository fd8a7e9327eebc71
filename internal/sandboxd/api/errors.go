package api

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/astrabox/astrabox/internal/sandboxd/lifecycle"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// refusal is an answer that isn't a success.
type refusal struct {
	body   wire.Error
	status int
	header map[string]string
}

func (r *refusal) Error() string { return r.body.Code + ": " + r.body.Message }

func refuse(status int, code, message string) *refusal {
	return &refusal{body: wire.Error{Code: code, Message: message}, status: status}
}

func invalid(format string, args ...any) error {
	return refuse(http.StatusBadRequest, string(lifecycle.CodeInvalid), fmt.Sprintf(format, args...))
}

// unsupported refuses what the API describes and this service can't do.
func unsupported(code, format string, args ...any) error {
	return refuse(http.StatusNotImplemented, code, fmt.Sprintf(format, args...))
}

// missing serves the operations of a part of the API that isn't there.
func missing(what string) func(*Handler, http.ResponseWriter, *http.Request, params) error {
	return func(*Handler, http.ResponseWriter, *http.Request, params) error {
		return unsupported("NOT_IMPLEMENTED", "this service has no %s", what)
	}
}

// statuses maps the service's codes; any other is 500.
var statuses = map[lifecycle.Code]int{
	lifecycle.CodeInvalid:   http.StatusBadRequest,
	lifecycle.CodeImage:     http.StatusBadRequest,
	lifecycle.CodeNotFound:  http.StatusNotFound,
	lifecycle.CodeState:     http.StatusConflict,
	lifecycle.CodeKeyReused: http.StatusConflict,
	lifecycle.CodeKeySpent:  http.StatusConflict,
	lifecycle.CodeCapacity:  http.StatusServiceUnavailable,
	lifecycle.CodeStopping:  http.StatusServiceUnavailable,
}

// failure gives the answer to an error.
func failure(err error) *refusal {
	var r *refusal
	if errors.As(err, &r) {
		return r
	}
	var e *lifecycle.Error
	if !errors.As(err, &e) {
		e = lifecycle.Errorf(lifecycle.CodeInternal, "the service failed; its log says more")
	}
	status, ok := statuses[e.Code]
	if !ok {
		status = http.StatusInternalServerError
	}
	r = refuse(status, string(e.Code), e.Message)
	if status == http.StatusServiceUnavailable {
		r.header = map[string]string{"Retry-After": "1"}
	}
	return r
}
