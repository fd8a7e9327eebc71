package sandboxfake

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

const (
	stateRunning = "running"
	statePaused  = "paused"
)

// machine is one sandbox.
type machine struct {
	p        *Provider
	id       string
	image    string
	env      map[string]string
	metadata map[string]string
	created  time.Time
	tree     *tree
	kernel   *kernel

	// Of the provider's lock.
	expires time.Time // zero: never
	lease   *time.Timer

	mu        sync.Mutex
	paused    bool
	ended     bool
	processes map[string]*process
	byKey     map[string]*process
	sessions  map[string]*session
	running   sync.WaitGroup // commands and runs
}

func newMachine(p *Provider, id string, spec sandbox.CreateSpec) *machine {
	return &machine{
		p: p, id: id, image: spec.Image, env: maps.Clone(spec.Env), metadata: spec.OwnershipMetadata(), created: time.Now(),
		tree: newTree(append([]string{"root"}, p.options.Accounts...)), kernel: newKernel(),
		processes: map[string]*process{}, byKey: map[string]*process{}, sessions: map[string]*session{},
	}
}

// schedule sets the end of the lease. The provider's lock is held.
func (m *machine) schedule(ttl time.Duration) {
	if ttl <= 0 {
		return
	}
	if m.lease != nil {
		m.lease.Stop()
	}
	m.expires = time.Now().Add(ttl)
	m.lease = time.AfterFunc(ttl, m.p.sweep)
}

// info describes it. The provider's lock is held.
func (m *machine) info() sandbox.Info {
	return sandbox.Info{
		ID: m.id, State: m.state(), Image: m.image, Metadata: maps.Clone(m.metadata), CreatedAt: m.created, ExpiresAt: m.expires,
	}
}

func (m *machine) isPaused() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.paused
}

func (m *machine) state() string {
	if m.isPaused() {
		return statePaused
	}
	return stateRunning
}

// reachable says why nothing can be asked of the sandbox.
func (m *machine) reachable() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.ended:
		return fmt.Errorf("%w: %w", sandbox.ErrUnreachable, sandbox.Errorf(sandbox.CodeGone, "there is no sandbox %s", m.id))
	case m.paused:
		return fmt.Errorf("%w: %w", sandbox.ErrUnreachable, sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox %s is paused", m.id))
	}
	return nil
}

// askable is reachable, for a caller that may have given up.
func (m *machine) askable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return m.reachable()
}

// begin counts something that runs in the sandbox; done is called at its end.
func (m *machine) begin() (done func(), err error) {
	if err := m.reachable(); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ended || m.paused { // just now
		return nil, sandbox.ErrUnreachable
	}
	m.running.Add(1)
	return m.running.Done, nil
}

func (m *machine) pause() {
	m.mu.Lock()
	m.paused = true
	m.mu.Unlock()
	m.quiet()
}

func (m *machine) resume() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = false
}

// end destroys the sandbox and waits for what runs in it.
func (m *machine) end() {
	m.p.mu.Lock()
	if m.lease != nil {
		m.lease.Stop()
	}
	m.p.mu.Unlock()
	m.mu.Lock()
	m.ended = true
	m.mu.Unlock()
	m.quiet()
}

// quiet ends everything that runs; long-lived processes are forgotten.
func (m *machine) quiet() {
	m.mu.Lock()
	all := m.processes
	m.processes, m.byKey = map[string]*process{}, map[string]*process{}
	sessions := m.sessions
	m.sessions = map[string]*session{}
	m.mu.Unlock()
	for _, s := range sessions {
		s.end()
	}
	for _, p := range all {
		p.cut()
	}
	m.kernel.kill(nil, nil)
	m.running.Wait()
}

// handle reaches one sandbox.
type handle struct{ m *machine }

func (p *Provider) handle(m *machine) sandbox.Handle { return handle{m} }

func (h handle) SandboxID() string { return h.m.id }

func (h handle) Files() sandbox.Files {
	f := sandbox.Files(&files{m: h.m})
	if bend := h.m.p.bent.files; bend != nil {
		f = bend(h.m, f)
	}
	return f
}

func (h handle) Commands() sandbox.Commands { return h.m.commands() }

func (m *machine) commands() sandbox.Commands {
	c := sandbox.Commands(commands{m: m})
	if bend := m.p.bent.commands; bend != nil {
		c = bend(m, c)
	}
	return c
}

func (h handle) Processes() sandbox.Processes {
	if !h.m.p.Capabilities().ProcessSessions {
		return sandbox.UnsupportedProcesses(h.m.p.Name())
	}
	ps := sandbox.Processes(processes(h))
	if bend := h.m.p.bent.processes; bend != nil {
		ps = bend(h.m, ps)
	}
	return ps
}

// execdPort is reserved: no sandbox offers it.
const execdPort = 44772

// Endpoint gives an address that names sandbox and port; nothing listens there.
func (h handle) Endpoint(ctx context.Context, port int) (sandbox.Endpoint, error) {
	return operation(ctx, h.m.p, "Endpoint", h.m.id, sandbox.Endpoint{}, func() (sandbox.Endpoint, error) {
		switch {
		case ctx.Err() != nil:
			return sandbox.Endpoint{}, ctx.Err()
		case port < 1 || port > 65535:
			return sandbox.Endpoint{}, sandbox.Errorf(sandbox.CodeInvalid, "%d is not a port", port)
		case port == execdPort:
			return sandbox.Endpoint{}, sandbox.Errorf(sandbox.CodePortReserved, "port %d is reserved", port)
		}
		if err := h.m.reachable(); err != nil {
			return sandbox.Endpoint{}, err
		}
		return sandbox.Endpoint{URL: &url.URL{Scheme: "http", Host: h.m.id + domain + ":" + strconv.Itoa(port), Path: "/"}}, nil
	})
}

// SignedEndpoint is refused: nothing is signed.
func (h handle) SignedEndpoint(ctx context.Context, port int, _ time.Time) (sandbox.Endpoint, error) {
	if _, err := h.Endpoint(ctx, port); err != nil {
		return sandbox.Endpoint{}, err
	}
	return sandbox.Endpoint{}, sandbox.Errorf(sandbox.CodeSignedUnsupported, "the backend %s can't sign addresses", h.m.p.Name())
}
