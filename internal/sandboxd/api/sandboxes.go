package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/lifecycle"
	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// pageMax is the largest page that a list gives.
const pageMax = 1000

func (h *Handler) health(w http.ResponseWriter, _ *http.Request, _ params) error {
	respond(w, http.StatusOK, wire.Health{Status: "healthy"})
	return nil
}

func (h *Handler) getVersion(w http.ResponseWriter, _ *http.Request, _ params) error {
	respond(w, http.StatusOK, wire.Version{Server: "astrabox-sandboxd", Version: h.version, API: "0.1.0"})
	return nil
}

func (h *Handler) create(w http.ResponseWriter, r *http.Request, _ params) error {
	var body wire.CreateRequest
	if err := decode(w, r, &body); err != nil {
		return err
	}
	q, err := request(body, r.Header.Get(wire.HeaderIdempotencyKey))
	if err != nil {
		return err
	}
	rec, err := h.service.Create(r.Context(), q)
	if err != nil {
		return err
	}
	out := describe(rec)
	out.Image = nil // of the complete description only
	w.Header().Set("Location", wire.Prefix+"/sandboxes/"+rec.ID)
	respond(w, http.StatusAccepted, out)
	return nil
}

func (h *Handler) get(w http.ResponseWriter, r *http.Request, p params) error {
	rec, err := h.find(r.Context(), p["id"])
	if err != nil {
		return err
	}
	respond(w, http.StatusOK, describe(rec))
	return nil
}

// find is service.Get, whose refusal says what became of a sandbox that is gone.
func (h *Handler) find(ctx context.Context, id string) (state.Record, error) {
	rec, err := h.service.Get(ctx, id)
	return rec, h.explain(ctx, id, err)
}

func (h *Handler) explain(ctx context.Context, id string, err error) error {
	var e *lifecycle.Error
	if !errors.As(err, &e) || e.Code != lifecycle.CodeNotFound {
		return err
	}
	if past, ok := h.service.Past(ctx, id); ok {
		return lifecycle.Errorf(lifecycle.CodeNotFound, "the sandbox was destroyed at %s (%s)", past.GoneAt.Format(time.RFC3339), past.Reason)
	}
	return err
}

func (h *Handler) list(w http.ResponseWriter, r *http.Request, _ params) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return invalid("the query can't be read: %v", err)
	}
	page, err := number(query, "page", 1, 1<<31-1)
	if err != nil {
		return err
	}
	size, err := number(query, "pageSize", 20, pageMax)
	if err != nil {
		return err
	}
	f := state.Filter{Metadata: map[string]string{}, Limit: size, Offset: (page - 1) * size}
	for _, s := range query["state"] {
		f.States = append(f.States, canonicalState(s))
	}
	for _, m := range query["metadata"] {
		// The value is a query of its own: key=value&key=value.
		pairs, err := url.ParseQuery(m)
		if err != nil {
			return invalid("metadata: %v", err)
		}
		for k, values := range pairs {
			for _, v := range values {
				if have, twice := f.Metadata[k]; twice && have != v {
					return invalid("metadata: %q is asked to have two values", k)
				}
				f.Metadata[k] = v
			}
		}
	}
	if len(f.Metadata) > metadataMax || len(f.States) > 32 {
		return invalid("there are too many conditions")
	}
	rows, total, err := h.service.List(r.Context(), f)
	if err != nil {
		return err
	}
	out := wire.List{Items: make([]wire.Sandbox, 0, len(rows)), Pagination: wire.Pagination{
		Page: page, PageSize: size, TotalItems: total,
		TotalPages: (total + size - 1) / size, HasNextPage: page*size < total,
	}}
	for _, rec := range rows {
		out.Items = append(out.Items, describe(rec))
	}
	respond(w, http.StatusOK, out)
	return nil
}

func number(q url.Values, name string, otherwise, most int) (int, error) {
	if !q.Has(name) {
		return otherwise, nil
	}
	n, err := strconv.Atoi(q.Get(name))
	if err != nil || n < 1 || n > most {
		return 0, invalid("%s must be a number from 1 to %d", name, most)
	}
	return n, nil
}

func canonicalState(s string) string {
	for _, known := range []string{wire.Pending, wire.Running, wire.Pausing, wire.Paused, wire.Resuming, wire.Stopping, wire.Terminated, wire.Failed} {
		if strings.EqualFold(s, known) {
			return known
		}
	}
	return s
}

func (h *Handler) delete(w http.ResponseWriter, r *http.Request, p params) error {
	if err := h.explain(r.Context(), p["id"], h.service.Delete(r.Context(), p["id"])); err != nil {
		return err
	}
	respond(w, http.StatusNoContent, nil)
	return nil
}

func (h *Handler) patchMetadata(w http.ResponseWriter, r *http.Request, p params) error {
	var patch map[string]*string
	if err := decode(w, r, &patch); err != nil {
		return err
	}
	if patch == nil {
		return invalid("the body must be a JSON object")
	}
	for k := range patch {
		if strings.HasPrefix(k, wire.ReservedPrefix) {
			return invalid("metadata: keys that start with %s are reserved", wire.ReservedPrefix)
		}
	}
	rec, err := h.service.PatchMetadata(r.Context(), p["id"], patch, checkMetadata)
	if err != nil {
		return h.explain(r.Context(), p["id"], err)
	}
	respond(w, http.StatusOK, describe(rec))
	return nil
}

func (h *Handler) pause(w http.ResponseWriter, r *http.Request, p params) error {
	if err := h.explain(r.Context(), p["id"], h.service.Pause(r.Context(), p["id"])); err != nil {
		return err
	}
	respond(w, http.StatusAccepted, nil)
	return nil
}

func (h *Handler) resume(w http.ResponseWriter, r *http.Request, p params) error {
	if err := h.explain(r.Context(), p["id"], h.service.Resume(r.Context(), p["id"])); err != nil {
		return err
	}
	respond(w, http.StatusAccepted, nil)
	return nil
}

func (h *Handler) renew(w http.ResponseWriter, r *http.Request, p params) error {
	var body wire.Renewal
	if err := decode(w, r, &body); err != nil {
		return err
	}
	if body.ExpiresAt.IsZero() {
		return invalid("expiresAt is missing")
	}
	if body.ExpiresAt.After(time.Now().Add(ttlMax)) {
		return invalid("expiresAt is more than %v away", ttlMax)
	}
	at, err := h.service.Renew(r.Context(), p["id"], body.ExpiresAt)
	if err != nil {
		return h.explain(r.Context(), p["id"], err)
	}
	respond(w, http.StatusOK, wire.Renewal{ExpiresAt: at})
	return nil
}

func (h *Handler) endpoint(w http.ResponseWriter, r *http.Request, p params) error {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return invalid("the query can't be read: %v", err)
	}
	port, err := strconv.Atoi(p["port"])
	if err != nil || port < 1 || port > 65535 {
		return invalid("port must be a number from 1 to 65535")
	}
	proxy := false
	if query.Has("use_server_proxy") {
		if proxy, err = strconv.ParseBool(query.Get("use_server_proxy")); err != nil {
			return invalid("use_server_proxy must be true or false")
		}
	}
	if query.Has("expires") {
		if proxy {
			return invalid("expires can't be combined with use_server_proxy")
		}
		return unsupported("SIGNED_ENDPOINTS_NOT_SUPPORTED", "this service gives no signed endpoints")
	}
	rec, err := h.find(r.Context(), p["id"])
	if err != nil {
		return err
	}
	if err := reachable(rec); err != nil {
		return err
	}
	out := wire.Endpoint{Endpoint: rec.Run.Address + pathTo(port), Headers: map[string]string{headerToken: rec.Run.Token}}
	if proxy {
		out.Endpoint = fmt.Sprintf("%s%s/sandboxes/%s/proxy/%d", r.Host, wire.Prefix, rec.ID, port)
	}
	w.Header().Set("Cache-Control", "no-store")
	respond(w, http.StatusOK, out)
	return nil
}

func (h *Handler) metricsEvent(w http.ResponseWriter, r *http.Request, _ params) error {
	var e wire.MetricsEvent
	if err := decode(w, r, &e); err != nil {
		return err
	}
	if e.EventType != "sandbox.create" || e.CreateDurationMS == nil || *e.CreateDurationMS < 0 || e.Success == nil {
		return invalid("a metrics event needs eventType sandbox.create, createDurationMs and success")
	}
	h.log.Debug("a client measured a create", "sandbox", e.SandboxID, "ms", *e.CreateDurationMS, "success", *e.Success)
	respond(w, http.StatusNoContent, nil)
	return nil
}

func describe(r state.Record) wire.Sandbox {
	changed := r.ChangedAt
	s := wire.Sandbox{
		ID: r.ID, Image: &wire.Image{URI: r.Spec.Image}, Platform: r.Spec.Platform,
		Status:   wire.Status{State: r.State, Reason: r.Reason, Message: r.Message, LastTransitionAt: &changed},
		Metadata: r.Metadata, Extensions: r.Spec.Extensions, Entrypoint: r.Spec.Entrypoint, CreatedAt: r.CreatedAt,
	}
	if !r.ExpiresAt.IsZero() {
		end := r.ExpiresAt
		s.ExpiresAt = &end
	}
	return s
}
