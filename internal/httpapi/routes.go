package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
)

const (
	base            = "/api/v1"
	oneConversation = base + "/conversations/{id}"
)

// routes registers everything. JSON routes go through huma, which decodes,
// validates and documents them; what streams is a plain handler that is
// documented by hand.
func (s *Server) routes() error {
	config := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "AstraBox", Version: s.Version,
				Description: "Conversations with Agent programs that run in sandboxes. Errors are problem documents (RFC 9457) with a stable code.",
			},
			Components: &huma.Components{Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)},
			Tags: []*huma.Tag{
				{Name: "conversations"}, {Name: "messages"}, {Name: "events"}, {Name: "files"}, {Name: "terminals"}, {Name: "configuration"}, {Name: "server"},
			},
		},
		Formats:       map[string]huma.Format{"application/json": huma.DefaultJSONFormat, "json": huma.DefaultJSONFormat},
		DefaultFormat: "application/json",
		// A misspelt parameter would otherwise be ignored without a word.
		RejectUnknownQueryParameters: true,
	}
	jsonMux := http.NewServeMux()
	s.api = humago.New(registrar{s, jsonMux}, config)
	s.conversationRoutes()
	s.messageRoutes()
	s.fileRoutes()
	s.terminalRoutes()
	s.serverRoutes()

	s.mux.HandleFunc("GET "+oneConversation+"/events/stream", s.streamEvents)
	s.mux.HandleFunc("GET "+oneConversation+"/files", s.listFiles)
	s.mux.HandleFunc("GET "+oneConversation+"/files/content", s.getContent)
	s.mux.HandleFunc("GET "+oneConversation+"/files/archive", s.getArchive)
	s.mux.HandleFunc("PUT "+oneConversation+"/files/content", s.putContent)
	s.mux.HandleFunc("GET "+oneConversation+"/terminals/{tid}/attach", s.attachTerminal)
	s.documentStreams()

	spec, err := json.MarshalIndent(s.api.OpenAPI(), "", "  ")
	if err != nil {
		return fmt.Errorf("OpenAPI document: %w", err)
	}
	s.spec = append(spec, '\n')
	s.mux.HandleFunc("GET /openapi.json", s.serveSpec)
	s.docRoutes()
	s.mux.HandleFunc("GET /healthz", s.health)
	s.mux.HandleFunc("GET /readyz", s.ready)
	s.mux.HandleFunc("/api/", s.nothing)
	if s.Console != nil {
		s.mux.Handle("/", s.Console)
	} else {
		s.mux.HandleFunc("/", s.nothing)
	}
	return nil
}

// registrar puts huma's routes into the server's mux, behind the reader of
// JSON bodies.
type registrar struct {
	s *Server
	*http.ServeMux
}

func (r registrar) HandleFunc(pattern string, h func(http.ResponseWriter, *http.Request)) {
	r.s.mux.Handle(pattern, r.s.json(http.HandlerFunc(h)))
}

// operation describes a JSON route.
type operation struct {
	method, path, id, tag, summary, description string
	status                                      int // of success; 0: 200
}

// register adds a JSON route whose errors become problems and are logged.
func register[I, O any](s *Server, op operation, h func(context.Context, *I) (*O, error)) {
	if op.status == 0 {
		op.status = http.StatusOK
	}
	huma.Register(s.api, huma.Operation{
		OperationID: op.id, Method: op.method, Path: op.path, Tags: []string{op.tag},
		Summary: op.summary, Description: op.description, DefaultStatus: op.status,
		// The body was read and bounded by Server.json already.
		MaxBodyBytes: wire.JSONLimit + 1, BodyReadTimeout: -1,
	}, func(ctx context.Context, in *I) (*O, error) {
		out, err := h(ctx, in)
		if err != nil {
			p := newProblem(ctx, err)
			s.logFailure(ctx, p)
			return nil, p
		}
		return out, nil
	})
}

// body is the answer of a route that has nothing but a body.
type body[T any] struct{ Body T }

// nothing answers a path that doesn't exist, or exists for other methods.
func (s *Server) nothing(w http.ResponseWriter, r *http.Request) {
	var allowed []string
	for _, m := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		probe := r.Clone(r.Context())
		probe.Method = m
		if _, pattern := s.mux.Handler(probe); strings.HasPrefix(pattern, m+" ") {
			allowed = append(allowed, m)
		}
	}
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		s.fail(w, r, fault.New(fault.MethodNotAllowed, ""))
		return
	}
	s.fail(w, r, fault.New(fault.RouteNotFound, ""))
}

func (s *Server) serveSpec(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/openapi+json")
	w.Header().Set("Cache-Control", "no-cache")
	_, _ = w.Write(s.spec) // the client is gone if this fails
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	s.writeJSON(w, http.StatusOK, wire.Health{Status: "ok", Version: s.Version})
}

// ready says whether new work is welcome.
func (s *Server) ready(w http.ResponseWriter, r *http.Request) {
	h := wire.Health{Status: "ready", Version: s.Version}
	select {
	case <-s.draining:
		h.Status, h.Detail = "stopping", fault.Lookup(fault.Stopping).Public
	default:
		if s.Ready != nil {
			ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
			defer cancel()
			if err := s.Ready(ctx); err != nil {
				h.Status, h.Detail = "unready", fault.From(err).Public
			}
		}
	}
	status := http.StatusOK
	if h.Status != "ready" {
		status = http.StatusServiceUnavailable
	}
	s.writeJSON(w, status, h)
}

func (s *Server) writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // the client is gone if this fails
}
