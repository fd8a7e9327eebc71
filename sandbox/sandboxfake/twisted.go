package sandboxfake

import (
	"context"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// twisted is the fake with some operations replaced: the apply of variants that
// differ as a whole. A nil function is the honest operation.
type twisted struct {
	*Provider

	name     func() string
	caps     func() sandbox.Capabilities
	create   func(context.Context, sandbox.CreateSpec) (sandbox.Handle, error)
	connect  func(context.Context, string) (sandbox.Handle, error)
	kill     func(context.Context, string) (bool, error)
	probe    func(context.Context, string) (sandbox.Observation, error)
	renew    func(context.Context, string, time.Duration) (time.Time, error)
	expires  func(context.Context, string) (time.Time, error)
	names    func(string) (string, bool)
	route    func() (sandbox.WorkspaceRoute, bool)
	pause    func(context.Context, string) (bool, error)
	resume   func(context.Context, string) (bool, error)
	find     func(context.Context, string, string) (sandbox.Info, bool, error)
	list     func(context.Context, map[string]string, string) ([]sandbox.Info, string, error)
	describe func(context.Context, string) (sandbox.Info, error)
	// handle is put around every handle that Create and Connect give.
	handle func(handle) sandbox.Handle
}

// twisting is the apply of a variant that replaces operations; honest is what
// they replace.
func twisting(twist func(t *twisted, honest *Provider)) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return func(p *Provider, _ *sandbox.Driver) sandbox.Provider {
		t := &twisted{Provider: p}
		twist(t, p)
		return t
	}
}

func (t *twisted) Name() string {
	if t.name != nil {
		return t.name()
	}
	return t.Provider.Name()
}

func (t *twisted) Capabilities() sandbox.Capabilities {
	if t.caps != nil {
		return t.caps()
	}
	return t.Provider.Capabilities()
}

func (t *twisted) Create(ctx context.Context, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	f := t.Provider.Create
	if t.create != nil {
		f = t.create
	}
	return t.wrap(f(ctx, spec))
}

func (t *twisted) Connect(ctx context.Context, id string) (sandbox.Handle, error) {
	f := t.Provider.Connect
	if t.connect != nil {
		f = t.connect
	}
	return t.wrap(f(ctx, id))
}

func (t *twisted) wrap(h sandbox.Handle, err error) (sandbox.Handle, error) {
	if plain, ok := h.(handle); ok && err == nil && t.handle != nil {
		return t.handle(plain), nil
	}
	return h, err
}

func (t *twisted) Kill(ctx context.Context, id string) (bool, error) {
	if t.kill != nil {
		return t.kill(ctx, id)
	}
	return t.Provider.Kill(ctx, id)
}

func (t *twisted) Probe(ctx context.Context, id string) (sandbox.Observation, error) {
	if t.probe != nil {
		return t.probe(ctx, id)
	}
	return t.Provider.Probe(ctx, id)
}

func (t *twisted) Renew(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
	if t.renew != nil {
		return t.renew(ctx, id, ttl)
	}
	return t.Provider.Renew(ctx, id, ttl)
}

func (t *twisted) ExpiresAt(ctx context.Context, id string) (time.Time, error) {
	if t.expires != nil {
		return t.expires(ctx, id)
	}
	return t.Provider.ExpiresAt(ctx, id)
}

func (t *twisted) EndpointNamesSandbox(endpoint string) (string, bool) {
	if t.names != nil {
		return t.names(endpoint)
	}
	return t.Provider.EndpointNamesSandbox(endpoint)
}

func (t *twisted) WorkspaceRoute() (sandbox.WorkspaceRoute, bool) {
	if t.route != nil {
		return t.route()
	}
	return t.Provider.WorkspaceRoute()
}

func (t *twisted) Pause(ctx context.Context, id string) (bool, error) {
	if t.pause != nil {
		return t.pause(ctx, id)
	}
	return t.Provider.Pause(ctx, id)
}

func (t *twisted) Resume(ctx context.Context, id string) (bool, error) {
	if t.resume != nil {
		return t.resume(ctx, id)
	}
	return t.Provider.Resume(ctx, id)
}

func (t *twisted) FindSandboxByAssignment(ctx context.Context, installation, assignment string) (sandbox.Info, bool, error) {
	if t.find != nil {
		return t.find(ctx, installation, assignment)
	}
	return t.Provider.FindSandboxByAssignment(ctx, installation, assignment)
}

func (t *twisted) ListSandboxes(ctx context.Context, metadata map[string]string, page string) ([]sandbox.Info, string, error) {
	if t.list != nil {
		return t.list(ctx, metadata, page)
	}
	return t.Provider.ListSandboxes(ctx, metadata, page)
}

func (t *twisted) DescribeSandbox(ctx context.Context, id string) (sandbox.Info, error) {
	if t.describe != nil {
		return t.describe(ctx, id)
	}
	return t.Provider.DescribeSandbox(ctx, id)
}

// twistedHandle is a handle with some of it replaced.
type twistedHandle struct {
	handle

	id        func() string
	files     func() sandbox.Files
	commands  func() sandbox.Commands
	processes func() sandbox.Processes
	endpoint  func(ctx context.Context, port int) (sandbox.Endpoint, error)
	signed    func(ctx context.Context, port int, until time.Time) (sandbox.Endpoint, error)
	close     func() error
}

// twistingHandle is the apply of a variant that replaces parts of its handles.
func twistingHandle(twist func(h *twistedHandle)) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return twisting(func(t *twisted, _ *Provider) {
		t.handle = func(h handle) sandbox.Handle {
			w := &twistedHandle{handle: h}
			twist(w)
			return w
		}
	})
}

func (h *twistedHandle) SandboxID() string {
	if h.id != nil {
		return h.id()
	}
	return h.handle.SandboxID()
}

func (h *twistedHandle) Files() sandbox.Files {
	if h.files != nil {
		return h.files()
	}
	return h.handle.Files()
}

func (h *twistedHandle) Commands() sandbox.Commands {
	if h.commands != nil {
		return h.commands()
	}
	return h.handle.Commands()
}

func (h *twistedHandle) Processes() sandbox.Processes {
	if h.processes != nil {
		return h.processes()
	}
	return h.handle.Processes()
}

func (h *twistedHandle) Endpoint(ctx context.Context, port int) (sandbox.Endpoint, error) {
	if h.endpoint != nil {
		return h.endpoint(ctx, port)
	}
	return h.handle.Endpoint(ctx, port)
}

func (h *twistedHandle) SignedEndpoint(ctx context.Context, port int, until time.Time) (sandbox.Endpoint, error) {
	if h.signed != nil {
		return h.signed(ctx, port, until)
	}
	return h.handle.SignedEndpoint(ctx, port, until)
}

func (h *twistedHandle) Close() error {
	if h.close != nil {
		return h.close()
	}
	return nil
}
