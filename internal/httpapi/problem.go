package httpapi

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"reflect"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
)

// problem is wire.Problem as an error that huma can send. The exported name
// of its schema is Problem.
type problem struct {
	wire.Problem
	cause error // for the log
}

func (p *problem) Error() string {
	if p.cause != nil {
		return p.cause.Error()
	}
	return p.Code + ": " + p.Detail
}

// GetStatus is the HTTP status.
func (p *problem) GetStatus() int { return p.Status }

// ContentType turns JSON into the media type of problems.
func (p *problem) ContentType(string) string { return "application/problem+json" }

// Schema makes the OpenAPI document show the shape under the name Problem.
func (p *problem) Schema(r huma.Registry) *huma.Schema {
	return r.Schema(problemType, true, "Problem")
}

func newProblem(ctx context.Context, err error) *problem {
	f := fault.From(err)
	p := &problem{Problem: wire.Problem{
		Type: "about:blank", Title: statusText(f.Status), Status: f.Status, Detail: f.Public,
		Code: string(f.Code), Retryable: f.Retryable, RequestID: requestID(ctx),
	}}
	p.cause = f
	return p
}

func statusText(status int) string {
	if status == fault.StatusClientClosed {
		return "Client Closed Request"
	}
	return http.StatusText(status)
}

// fail logs a failure and answers with it. It must be the only answer of the
// request.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	p := newProblem(r.Context(), err)
	s.logFailure(r.Context(), p)
	body, _ := json.Marshal(p.Problem) // strings, numbers and booleans only
	h := w.Header()
	// What a handler prepared for its success doesn't hold.
	for _, k := range []string{"Content-Disposition", "ETag", "Last-Modified", "Accept-Ranges"} {
		h.Del(k)
	}
	h.Set("Content-Type", p.ContentType(""))
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client is gone if this fails
	}
}

func (s *Server) logFailure(ctx context.Context, p *problem) {
	level := slog.LevelDebug
	if p.Status >= 500 {
		level = slog.LevelError
	}
	s.log.LogAttrs(ctx, level, "request failed", slog.String("request_id", p.RequestID),
		slog.String("code", p.Code), slog.Int("status", p.Status), slog.Any("error", p.cause))
}

// humaProblem turns what huma itself refuses into a problem of our codes. The
// values that huma would echo are left out: they may be a megabyte long, and
// the client knows what it sent.
func humaProblem(ctx context.Context, status int, msg string, errs []error) *problem {
	code := fault.RequestInvalid
	switch {
	case status == http.StatusRequestEntityTooLarge:
		code = fault.BodyTooLarge
	case status == http.StatusUnsupportedMediaType:
		code = fault.MediaTypeUnsupported
	case status == http.StatusNotAcceptable:
		code = fault.NotAcceptable
	case status == http.StatusRequestTimeout:
		code = fault.Timeout
	case status >= 500:
		code = fault.Internal
	}
	p := newProblem(ctx, fault.New(code, ""))
	if code != fault.RequestInvalid {
		return p
	}
	for _, err := range errs {
		d := wire.Detail{}
		if e, ok := err.(huma.ErrorDetailer); ok {
			detail := e.ErrorDetail()
			d.Location, d.Message = detail.Location, detail.Message
		} else {
			d.Message = err.Error()
		}
		p.Errors = append(p.Errors, d)
	}
	switch {
	case len(p.Errors) > 0 && p.Errors[0].Location != "":
		p.Detail = "The request is not valid: " + p.Errors[0].Location + ": " + p.Errors[0].Message + "."
	case len(p.Errors) > 0:
		p.Detail = "The request is not valid: " + p.Errors[0].Message + "."
	case msg != "":
		p.Detail = "The request is not valid: " + msg + "."
	}
	return p
}

// huma takes these settings from package variables; every API of this program
// wants the same ones.
func init() {
	huma.ValidateStrictCasing = true
	huma.NewErrorWithContext = func(ctx huma.Context, status int, msg string, errs ...error) huma.StatusError {
		base := context.Background()
		if ctx != nil {
			base = ctx.Context()
		}
		return humaProblem(base, status, msg, errs)
	}
	huma.NewError = func(status int, msg string, errs ...error) huma.StatusError {
		return humaProblem(context.Background(), status, msg, errs)
	}
}

var problemType = reflect.TypeFor[wire.Problem]()
