package sandboxfake

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

// Options of a Provider. The zero value is a provider named fake that declares
// every capability.
type Options struct {
	// Name is the registry key; empty: fake.
	Name string
	// Capabilities are what it declares; nil: everything that it can.
	Capabilities *sandbox.Capabilities
	// Accounts of each sandbox beside root, each with a group of its name and a
	// home; nil: agent.
	Accounts []string
	// PageSize is how many sandboxes one page of a listing has; 0: 100.
	PageSize int
}

// Account is the account that sandboxes have beside root unless Options says
// otherwise.
const Account = "agent"

// All is every capability that the fake has.
func All() sandbox.Capabilities {
	return sandbox.Capabilities{Pause: true, CorrelatedCreate: true, InventoryListing: true, ProcessSessions: true, IsolatedSessions: true, IsolatedSessionRecovery: true}
}

// Provider is an honest backend in memory. Sandboxes are gone for good when
// they are killed, when their lease ends, or with Close.
type Provider struct {
	options Options
	faults  Faults
	bent    bent // zero in an honest provider

	mu       sync.Mutex
	machines map[string]*machine
	closed   bool
}

// New makes a Provider. [Provider.Close] ends it.
func New(o Options) *Provider {
	o.Name = cmp.Or(o.Name, "fake")
	if o.Capabilities == nil {
		all := All()
		o.Capabilities = &all
	}
	if o.Accounts == nil {
		o.Accounts = []string{Account}
	}
	o.PageSize = cmp.Or(o.PageSize, 100)
	return &Provider{options: o, machines: map[string]*machine{}}
}

// Driver is a driver whose New gives p.
func (p *Provider) Driver() sandbox.Driver {
	return sandbox.Driver{
		Name: p.options.Name, SeamVersion: sandbox.SeamVersion, Declares: p.Capabilities(),
		New: func(context.Context, sandbox.Host) (sandbox.Provider, error) { return p, nil },
	}
}

// Faults is the plan of what goes wrong.
func (p *Provider) Faults() *Faults { return &p.faults }

// Close ends every sandbox and waits for what runs in them.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed = true
	all := slices.Collect(maps.Values(p.machines))
	clear(p.machines)
	p.mu.Unlock()
	for _, m := range all {
		m.end()
	}
	return nil
}

// Name implements sandbox.Provider.
func (p *Provider) Name() string { return p.options.Name }

// Capabilities implements sandbox.Provider.
func (p *Provider) Capabilities() sandbox.Capabilities { return *p.options.Capabilities }

// Create implements sandbox.Provider.
func (p *Provider) Create(ctx context.Context, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := p.accept(spec); err != nil {
		return nil, err
	}
	return operation[sandbox.Handle](ctx, p, "Create", "", p.nowhere(), func() (sandbox.Handle, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		m, err := p.add(spec)
		if err != nil {
			return nil, err
		}
		if err := m.prepare(ctx, spec); err != nil {
			p.vanish(m.id)
			return nil, err
		}
		return p.handle(m), nil
	})
}

// machine makes a sandbox that isn't there yet.
func (p *Provider) machine(spec sandbox.CreateSpec) *machine {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails
	return newMachine(p, "sb-"+hex.EncodeToString(b[:]), spec)
}

// nowhere is the handle of a sandbox that never was.
func (p *Provider) nowhere() sandbox.Handle {
	m := p.machine(sandbox.CreateSpec{})
	m.ended = true
	return handle{m}
}

func (p *Provider) add(spec sandbox.CreateSpec) (*machine, error) {
	p.sweep()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the backend %s is closed", p.Name())
	}
	if p.Capabilities().CorrelatedCreate {
		found := p.matching(map[string]string{sandbox.KeyInstallation: spec.InstallationID, sandbox.KeyAssignmentID: spec.AssignmentID})
		switch {
		case len(found) > 1:
			return nil, ambiguous(spec.AssignmentID)
		case len(found) == 1 && found[0].metadata[sandbox.KeySessionID] != spec.OwnerID:
			return nil, sandbox.Errorf(sandbox.CodeAssignmentConflict, "the assignment %s belongs to another owner", spec.AssignmentID)
		case len(found) == 1:
			return found[0], nil
		}
	}
	m := p.machine(spec)
	p.machines[m.id] = m
	m.schedule(spec.TTL)
	return m, nil
}

func ambiguous(assignment string) error {
	return sandbox.Errorf(sandbox.CodeAssignmentAmbiguous, "several sandboxes carry the assignment %s", assignment)
}

// prepare does what a new sandbox is asked to have. One that had it already
// keeps it.
func (m *machine) prepare(ctx context.Context, spec sandbox.CreateSpec) error {
	dirs := []string{spec.Dir}
	for _, mount := range spec.WorkspaceMounts {
		dirs = append(dirs, mount.Path)
	}
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		m.tree.mu.Lock()
		err := m.tree.makeAll(nil, dir, sandbox.Attr{})
		m.tree.mu.Unlock()
		if err != nil {
			return sandbox.Errorf(sandbox.CodeInvalid, "the directory %s can't be made: %w", dir, err)
		}
	}
	if spec.RequireCommandChannel {
		if _, err := m.commands().Run(ctx, sandbox.Command{Line: script.Line(script.Exit(0))}); err != nil {
			return sandbox.Errorf(sandbox.CodeUnavailable, "the new sandbox runs no command: %w", err)
		}
	}
	if spec.WaitForPort != 0 {
		return awaitPort(ctx, spec.WaitForPort)
	}
	return nil
}

// find gives a sandbox that exists.
func (p *Provider) find(id string, missing sandbox.Code) (*machine, error) {
	if err := sandbox.CheckID(id); err != nil {
		return nil, err
	}
	p.sweep()
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.machines[id]; m != nil {
		return m, nil
	}
	return nil, sandbox.Errorf(missing, "there is no sandbox %s", id)
}

// sweep ends what has run out of time.
func (p *Provider) sweep() {
	p.mu.Lock()
	var over []string
	for id, m := range p.machines {
		if !m.expires.IsZero() && !time.Now().Before(m.expires) && !p.bent.deathless {
			over = append(over, id)
		}
	}
	p.mu.Unlock()
	for _, id := range over {
		p.vanish(id)
	}
}

// vanish destroys a sandbox and reports whether there was one.
func (p *Provider) vanish(id string) bool {
	p.mu.Lock()
	m := p.machines[id]
	delete(p.machines, id)
	p.mu.Unlock()
	if m != nil {
		m.end()
	}
	return m != nil
}

// Connect implements sandbox.Provider.
func (p *Provider) Connect(ctx context.Context, id string) (sandbox.Handle, error) {
	return operation[sandbox.Handle](ctx, p, "Connect", id, p.nowhere(), func() (sandbox.Handle, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		m, err := p.find(id, sandbox.CodeGone)
		if err != nil {
			return nil, err
		}
		if m.isPaused() {
			return nil, sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox %s is paused", id)
		}
		return p.handle(m), nil
	})
}

// Kill implements sandbox.Provider.
func (p *Provider) Kill(ctx context.Context, id string) (bool, error) {
	return operation(ctx, p, "Kill", id, true, func() (bool, error) {
		if err := sandbox.CheckID(id); err != nil {
			return false, err
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
		p.vanish(id)
		return true, nil
	})
}

// Probe implements sandbox.Provider.
func (p *Provider) Probe(ctx context.Context, id string) (sandbox.Observation, error) {
	gone := sandbox.Observation{Status: sandbox.ObservedGone, Detail: "there is no such sandbox"}
	return operation(ctx, p, "Probe", id, gone, func() (sandbox.Observation, error) {
		if err := ctx.Err(); err != nil {
			return sandbox.Observation{}, err
		}
		m, err := p.find(id, sandbox.CodeNotFound)
		switch {
		case sandbox.CodeOf(err) == sandbox.CodeNotFound:
			return gone, nil
		case err != nil:
			return sandbox.Observation{}, err
		}
		return sandbox.Observation{Status: sandbox.ObservedOK, State: m.state(), Detail: "it is " + m.state()}, nil
	})
}

// Renew implements sandbox.Provider.
func (p *Provider) Renew(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
	return operation(ctx, p, "Renew", id, time.Now().Add(ttl), func() (time.Time, error) {
		if ttl <= 0 {
			return time.Time{}, sandbox.Errorf(sandbox.CodeInvalid, "a lease of %v", ttl)
		}
		if err := ctx.Err(); err != nil {
			return time.Time{}, err
		}
		m, err := p.find(id, sandbox.CodeNotFound)
		if err != nil {
			return time.Time{}, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if end := time.Now().Add(ttl); !m.expires.IsZero() && end.After(m.expires) {
			m.schedule(ttl)
		}
		return m.expires, nil
	})
}

// ExpiresAt implements sandbox.Provider.
func (p *Provider) ExpiresAt(ctx context.Context, id string) (time.Time, error) {
	return operation(ctx, p, "ExpiresAt", id, time.Time{}, func() (time.Time, error) {
		if err := ctx.Err(); err != nil {
			return time.Time{}, err
		}
		m, err := p.find(id, sandbox.CodeNotFound)
		if err != nil {
			return time.Time{}, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return m.expires, nil
	})
}

// domain is the last part of endpoints' host names; no resolver knows it.
const domain = ".fake.invalid"

// EndpointNamesSandbox implements sandbox.Provider.
func (p *Provider) EndpointNamesSandbox(endpoint string) (string, bool) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" {
		return "", false
	}
	id, ok := strings.CutSuffix(u.Hostname(), domain)
	return id, ok && sandbox.ValidID(id)
}

// WorkspaceRoute implements sandbox.Provider: there is none.
func (p *Provider) WorkspaceRoute() (sandbox.WorkspaceRoute, bool) { return nil, false }

// String names the provider and how many sandboxes it has.
func (p *Provider) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprintf("%s (%d sandboxes)", p.options.Name, len(p.machines))
}
