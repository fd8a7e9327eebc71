package execd

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/execd/isolated"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// isolator is what /v1/isolated/capabilities says makes the sessions.
const isolator = "namespaces"

func (s *Server) isolatedCapabilities(w http.ResponseWriter, r *http.Request) {
	c := s.isolated.Capability(r.Context())
	answer := wire.IsolatedCapabilities{
		Available: c.Available, Isolator: isolator, Version: s.cfg.Version, Message: c.Message, SetPriv: c.Available,
	}
	if c.Available && s.cfg.Token == "" {
		answer.Message = "the daemon wants no token, so a session with the sandbox's network can have it do anything"
	}
	reply(w, http.StatusOK, answer)
}

func (s *Server) postIsolated(w http.ResponseWriter, r *http.Request) {
	var req isolated.Request
	if !decode(w, r, &req) {
		return
	}
	// A client that goes away while the session is made couldn't name it.
	o, err := s.isolated.Open(r.Context(), req)
	if err != nil {
		refuseIsolated(w, err)
		return
	}
	reply(w, http.StatusCreated, struct {
		ID      string    `json:"session_id"`
		Created time.Time `json:"created_at"`
		isolated.Request
	}{o.ID, o.Created, o.Request})
}

func refuseIsolated(w http.ResponseWriter, err error) {
	var e *isolated.Error
	if errors.As(err, &e) {
		refuse(w, e.Status, e.Code, e.Message)
		return
	}
	status, body, tried := startFailure(err)
	if tried {
		body.Code = wire.CodeRuntime
	}
	reply(w, status, body)
}

// isolatedSummary is a session in a list.
type isolatedSummary struct {
	ID        string    `json:"session_id"`
	Status    string    `json:"status"`
	Reason    string    `json:"reason,omitempty"` // of the status dead
	Created   time.Time `json:"created_at"`
	LastRun   time.Time `json:"last_run_at"`
	Remaining *int64    `json:"idle_remaining_seconds"`
}

// isolatedState is all that is told of a session.
type isolatedState struct {
	isolatedSummary
	isolated.Request
}

func summaryOf(o *isolated.Open) isolatedSummary {
	sum := isolatedSummary{ID: o.ID, Status: "active", Created: o.Created, LastRun: o.LastRun()}
	if o.Dead() {
		sum.Status, sum.Reason = "dead", o.Reason()
	} else if left, ok := o.IdleRemaining(); ok {
		seconds := int64(left / time.Second)
		sum.Remaining = &seconds
	}
	return sum
}

func (s *Server) listIsolated(w http.ResponseWriter, _ *http.Request) {
	var answer struct {
		Sessions []isolatedSummary `json:"sessions"`
	}
	answer.Sessions = []isolatedSummary{}
	for _, o := range s.isolated.List() {
		answer.Sessions = append(answer.Sessions, summaryOf(o))
	}
	reply(w, http.StatusOK, answer)
}

func (s *Server) isolatedSession(w http.ResponseWriter, r *http.Request) *isolated.Open {
	o, err := s.isolated.Get(r.PathValue("id"))
	if err != nil {
		refuseIsolated(w, err)
		return nil
	}
	return o
}

func (s *Server) getIsolated(w http.ResponseWriter, r *http.Request) {
	if o := s.isolatedSession(w, r); o != nil {
		reply(w, http.StatusOK, isolatedState{summaryOf(o), o.Request})
	}
}

func (s *Server) deleteIsolated(w http.ResponseWriter, r *http.Request) {
	// A client that goes away has still asked for the deletion.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), deleteTime)
	defer cancel()
	if err := s.isolated.Delete(ctx, r.PathValue("id")); err != nil {
		refuseIsolated(w, err)
	}
}

// inIsolated hands on what a session itself answers.
func (s *Server) inIsolated(w http.ResponseWriter, r *http.Request) {
	o := s.isolatedSession(w, r)
	if o == nil {
		return
	}
	_, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.EscapedPath(), wire.PathIsolated+"/session/"), "/")
	first, _, _ := strings.Cut(rest, "/")
	switch {
	case first == "diff" && r.Method == http.MethodGet, first == "commit" && r.Method == http.MethodPost:
		refuse(w, http.StatusServiceUnavailable, isolated.CodeUnsupported, "the workspace is not a copy: there is nothing to compare or take over")
	case slices.Contains([]string{"run", "runs", "files", "directories", "pty"}, first):
		s.serveIsolated(w, r, o, "/"+rest)
	case first == "fs":
		s.serveIsolated(w, r, o, "/v1/"+rest)
	default:
		refuse(w, http.StatusNotFound, "NOT_FOUND", "no such operation")
	}
}

// serveIsolated ends with the server as well as with the request.
func (s *Server) serveIsolated(w http.ResponseWriter, r *http.Request, o *isolated.Open, path string) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ending, cancel)()
	o.Serve(w, r.WithContext(ctx), path)
}
