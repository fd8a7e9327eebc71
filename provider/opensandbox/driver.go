// Package opensandbox is the provider open_sandbox: sandboxes of any service
// that speaks the OpenSandbox lifecycle API, the bundled one among them.
// Importing it installs the driver; package provider/all does.
//
// The service creates, pauses and destroys; files, commands and processes go
// to the sandbox's execd directly, through package sandbox/execd. Nothing is
// kept between calls but pooled connections, so a Provider may be rebuilt at
// any time and several may use one service. It is safe for concurrent use and
// an io.Closer.
//
// Errors are *sandbox.Error. Text of the service is passed on shortened, and
// the API key is in no error, log line or URL.
package opensandbox

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
)

// Name is the registry key.
const Name = "open_sandbox"

// The environment variables that the provider reads.
const (
	settingBaseURL    = "ASTRABOX_SANDBOX_OPENAPI_BASE_URL"
	settingListenFile = "ASTRABOX_SANDBOX_OPENAPI_LISTEN_FILE"
	settingKey        = "ASTRABOX_SANDBOX_OPENAPI_KEY"
	settingKeyFile    = "ASTRABOX_SANDBOX_OPENAPI_KEY_FILE"
	settingTimeout    = "ASTRABOX_SANDBOX_OPENAPI_TIMEOUT"
	settingReady      = "ASTRABOX_SANDBOX_READY_TIMEOUT"
	settingScheme     = "ASTRABOX_SANDBOX_ENDPOINT_SCHEME"
	settingProxy      = "ASTRABOX_SANDBOX_SERVER_PROXY"
)

var declared = sandbox.Capabilities{
	Pause: true, CorrelatedCreate: true, InventoryListing: true, ProcessSessions: true,
	IsolatedSessions: true, IsolatedSessionRecovery: true,
}

func init() {
	sandbox.Register(sandbox.Driver{
		Name:        Name,
		SeamVersion: "1.0",
		Declares:    declared,
		Settings: []sandbox.Setting{
			{Name: settingBaseURL, Doc: "base URL of the lifecycle API, with scheme and path, such as http://127.0.0.1:8080/v1"},
			{Name: settingListenFile, Doc: `JSON file with the base URL as "url", read again for each request; used when the base URL isn't set`},
			{Name: settingKey, Secret: true, Doc: "API key of the lifecycle service"},
			{Name: settingKeyFile, Doc: "file that holds the API key, read again for each request; used when the key isn't set"},
			{Name: settingTimeout, Doc: "how long a request may take, as a duration; default 15s"},
			{Name: settingReady, Doc: "how long a create may take, as a duration; default 120s, never less than a request"},
			{Name: settingScheme, Doc: "http or https, of the endpoints of sandboxes; default: that of the base URL"},
			{Name: settingProxy, Doc: "true: reach sandboxes through the lifecycle service's proxy; default false"},
		},
		New: func(_ context.Context, h sandbox.Host) (sandbox.Provider, error) { return New(h) },
	})
}

// Provider is open_sandbox.
type Provider struct {
	sandbox.Base
	execd.Isolation
	api          *client
	log          *slog.Logger
	installation string
	ready        time.Duration
	scheme       string // empty: the base URL's
	proxy        bool
}

var (
	_ sandbox.Provider                = (*Provider)(nil)
	_ sandbox.Pauser                  = (*Provider)(nil)
	_ sandbox.AssignmentFinder        = (*Provider)(nil)
	_ sandbox.Inventory               = (*Provider)(nil)
	_ sandbox.IsolatedSessions        = (*Provider)(nil)
	_ sandbox.IsolatedSessionRecovery = (*Provider)(nil)
)

// New makes a Provider from the host's settings, without any I/O: a service
// that isn't there yet is no error. The error names every setting that is wrong.
func New(h sandbox.Host) (*Provider, error) {
	get := h.Getenv
	if get == nil {
		get = func(string) string { return "" }
	}
	p := &Provider{log: h.Log, installation: h.InstallationID}
	p.Isolation = execd.Isolated(p.execdOf)
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	r := reading{get: get}
	c := &client{
		base: r.base(), listenFile: get(settingListenFile), key: r.key(), keyFile: get(settingKeyFile),
		timeout: r.duration(settingTimeout, 15*time.Second),
	}
	p.ready = max(c.timeout, r.duration(settingReady, 120*time.Second))
	p.scheme = r.scheme()
	p.proxy = r.boolean(settingProxy)
	if len(r.wrong) > 0 {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "open_sandbox: %v", errors.Join(r.wrong...))
	}
	c.http = &http.Client{
		// A redirect would carry the API key to wherever it points.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			MaxIdleConns: 64, MaxIdleConnsPerHost: 32, MaxConnsPerHost: 256,
			IdleConnTimeout: 60 * time.Second, TLSHandshakeTimeout: 10 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}
	p.api = c
	return p, nil
}

// Name implements sandbox.Provider.
func (p *Provider) Name() string { return Name }

// Capabilities implements sandbox.Provider.
func (p *Provider) Capabilities() sandbox.Capabilities { return declared }

// Close ends idle connections to the service and to sandboxes.
func (p *Provider) Close() error {
	p.api.http.CloseIdleConnections()
	execd.CloseIdleConnections()
	return nil
}
