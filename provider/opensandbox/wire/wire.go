// Package wire has the names and JSON shapes of the OpenSandbox lifecycle API:
// what a client sends to a lifecycle service and what it gets back. The
// provider open_sandbox speaks it and the bundled service serves it; the types
// live here once so that the two can't drift apart.
//
// The package has no behaviour, apart from the form of labels. Fields that a
// side doesn't know are ignored when read.
package wire

import (
	"encoding/json"
	"time"
)

// HeaderKey carries the API key on every request.
const HeaderKey = "OPEN-SANDBOX-API-KEY"

// Headers beside the API's own.
const (
	HeaderRequestID = "X-Request-ID"
	// HeaderIdempotencyKey on a create: the same key gives the same sandbox.
	// Services that don't know it ignore it.
	HeaderIdempotencyKey = "Idempotency-Key"
)

// Prefix is the base path of the API. The bundled service answers without it too.
const Prefix = "/v1"

// States of a sandbox. A service may have others; clients compare without
// regard to case.
const (
	Pending    = "Pending"
	Running    = "Running"
	Pausing    = "Pausing"
	Paused     = "Paused"
	Resuming   = "Resuming"
	Stopping   = "Stopping"
	Terminated = "Terminated"
	Failed     = "Failed"
)

// CreateRequest is the body of POST /sandboxes. Parts that say what the
// bundled service can't do are decoded too, so that it can refuse them.
type CreateRequest struct {
	Image            *Image                     `json:"image,omitempty"`
	SnapshotID       string                     `json:"snapshotId,omitempty"`
	TemplateID       string                     `json:"templateId,omitempty"`
	Platform         *Platform                  `json:"platform,omitempty"`
	Timeout          *int64                     `json:"timeout,omitempty"` // seconds; nil: no scheduled end
	ResourceLimits   map[string]string          `json:"resourceLimits,omitempty"`
	ResourceRequests map[string]string          `json:"resourceRequests,omitempty"`
	Env              map[string]string          `json:"env,omitempty"`
	Metadata         map[string]string          `json:"metadata,omitempty"`
	Entrypoint       []string                   `json:"entrypoint,omitempty"`
	NetworkPolicy    *NetworkPolicy             `json:"networkPolicy,omitempty"`
	CredentialProxy  *CredentialProxy           `json:"credentialProxy,omitempty"`
	SecureAccess     bool                       `json:"secureAccess,omitempty"`
	Volumes          []Volume                   `json:"volumes,omitempty"`
	Lifecycle        map[string]json.RawMessage `json:"lifecycle,omitempty"` // commands to run by itself
	Extensions       map[string]string          `json:"extensions,omitempty"`
}

// Image names what a sandbox is made from.
type Image struct {
	URI  string     `json:"uri"`
	Auth *ImageAuth `json:"auth,omitempty"`
}

// ImageAuth are a registry's credentials. They are never answered.
type ImageAuth struct {
	Username string `json:"username,omitempty"`
	Password string `json:"password,omitempty"`
}

// Platform constrains where a sandbox runs.
type Platform struct {
	OS   string `json:"os"`
	Arch string `json:"arch"`
}

// NetworkPolicy says what a sandbox may reach.
type NetworkPolicy struct {
	DefaultAction string        `json:"defaultAction,omitempty"` // "allow" or "deny"
	Egress        []NetworkRule `json:"egress,omitempty"`
}

// NetworkRule is one rule of a policy.
type NetworkRule struct {
	Action string `json:"action"`
	Target string `json:"target"`
}

// CredentialProxy asks for credential injection.
type CredentialProxy struct {
	Enabled bool `json:"enabled,omitempty"`
}

// Volume is storage to mount.
type Volume struct {
	Name      string `json:"name"`
	MountPath string `json:"mountPath"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
	SubPath   string `json:"subPath,omitempty"`
}

// Status says how a sandbox is and since when.
type Status struct {
	State            string     `json:"state"`
	Reason           string     `json:"reason,omitempty"`
	Message          string     `json:"message,omitempty"`
	LastTransitionAt *time.Time `json:"lastTransitionAt,omitempty"`
}

// Sandbox is a sandbox as the service describes it. A create answers it
// without Image.
type Sandbox struct {
	ID         string            `json:"id"`
	Image      *Image            `json:"image,omitempty"`
	SnapshotID string            `json:"snapshotId,omitempty"`
	Platform   *Platform         `json:"platform,omitempty"`
	Status     Status            `json:"status"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	Extensions map[string]string `json:"extensions,omitempty"`
	Entrypoint []string          `json:"entrypoint"`
	ExpiresAt  *time.Time        `json:"expiresAt,omitempty"` // nil: no scheduled end
	CreatedAt  time.Time         `json:"createdAt"`
}

// List is the answer of GET /sandboxes.
type List struct {
	Items      []Sandbox  `json:"items"`
	Pagination Pagination `json:"pagination"`
}

// Pagination says which page an answer is. Pages count from 1.
type Pagination struct {
	Page        int  `json:"page"`
	PageSize    int  `json:"pageSize"`
	TotalItems  int  `json:"totalItems"`
	TotalPages  int  `json:"totalPages"`
	HasNextPage bool `json:"hasNextPage"`
}

// Renewal is the body of POST /sandboxes/{id}/renew-expiration and its answer.
type Renewal struct {
	ExpiresAt time.Time `json:"expiresAt"`
}

// Endpoint is the answer of GET /sandboxes/{id}/endpoints/{port}. Endpoint is
// host, port and path without a scheme; every request to it carries Headers.
type Endpoint struct {
	Endpoint string            `json:"endpoint"`
	Headers  map[string]string `json:"headers,omitempty"`
}

// Error is the body of every answer that isn't a success.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Health is the answer of GET /health.
type Health struct {
	Status string `json:"status"` // "healthy"
}

// Version is the answer of GET /version.
type Version struct {
	Server  string `json:"server"`
	Version string `json:"version"`
	API     string `json:"api"` // of the lifecycle API
}

// MetricsEvent is the body of POST /metrics/events.
type MetricsEvent struct {
	EventType        string `json:"eventType"`
	SandboxID        string `json:"sandboxId,omitempty"`
	Image            string `json:"image,omitempty"`
	CreateDurationMS *int64 `json:"createDurationMs"`
	Success          *bool  `json:"success"`
}
