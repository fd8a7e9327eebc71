package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"
)

// Bound is a provider whose optional interfaces are resolved: a nil field is an
// operation that the backend doesn't have, or that was masked. It is the only
// way in which AstraBox uses a provider. Nothing asserts on the provider's type
// afterwards.
//
// The operations hold the provider to the contract's edges: an id of another
// form is refused before the provider sees it, a panic becomes an error, a
// state is read in lower case. To decorate, Clone it and wrap fields: a wrapper
// around the Provider itself would hide what it implements, but here that is
// resolved already.
type Bound struct {
	Provider
	Caps Capabilities // what is declared and not masked

	// The operations that go with a flag, in the order of [Rules].
	Network   NetworkAdmitter
	Isolated  IsolatedSessions
	Recovery  IsolatedSessionRecovery
	Pauser    Pauser
	Pool      ClientPool
	Finder    AssignmentFinder
	Vault     CredentialInjector
	Inventory Inventory

	// The operations without one, in the order of [Optionals].
	Validator EnvironmentValidator
	Diagnoser Diagnoser
	Posture   SecurityPosture
	Metrics   Metrics
	Memory    MemoryReader
	Ports     PortLister
	Closer    io.Closer

	name   string
	masked []string
}

// Bind checks a provider against its driver and the rules, and resolves its
// optional interfaces. Names in mask ([Maskable]) are taken as undeclared or
// not implemented; a flag that requires a masked one goes with it. The error
// (SANDBOX_CONFIG_INVALID) names everything that is wrong. A provider that is
// nil, is a nil pointer, embeds a nil interface or panics is refused, too.
func Bind(d Driver, p Provider, mask ...string) (*Bound, error) {
	refuse := func(wrong ...string) (*Bound, error) {
		return nil, Errorf(CodeInvalid, "provider %q: %s", d.Name, strings.Join(wrong, "; "))
	}
	if isNil(p) {
		return refuse("New returned no provider")
	}
	var wrong []string
	name, err := safely(func() (string, error) { return p.Name(), nil })
	if err != nil {
		wrong = append(wrong, fmt.Sprintf("Name: %v", err))
	} else if name != d.Name {
		wrong = append(wrong, fmt.Sprintf("it calls itself %q", shorten(name, 80)))
	}
	caps, err := safely(func() (Capabilities, error) { return p.Capabilities(), nil })
	if err != nil {
		return refuse(append(wrong, fmt.Sprintf("Capabilities: %v", err))...)
	}
	for _, field := range nilEmbedded(reflect.ValueOf(p), 0) {
		wrong = append(wrong, "it embeds "+field+", which is nil")
	}
	if !caps.Equal(d.Declares) {
		wrong = append(wrong, fmt.Sprintf("it declares %s, its driver %s", caps, d.Declares))
	}
	wrong = append(wrong, caps.wrong()...)
	for _, m := range mask {
		if !slices.Contains(Maskable(), m) {
			wrong = append(wrong, fmt.Sprintf("%q can't be masked; there are %s", m, strings.Join(Maskable(), ", ")))
		}
	}

	b := &Bound{Provider: p, Caps: caps, name: name}
	for _, r := range rules {
		switch {
		case !r.get(caps):
		case slices.Contains(mask, r.Flag) || r.Requires != "" && slices.Contains(mask, r.Requires):
			r.set(&b.Caps, false)
			b.masked = append(b.masked, r.Flag)
		case r.bind != nil && !r.bind(p, b):
			wrong = append(wrong, fmt.Sprintf("it declares %s without %s", r.Flag, r.Needs))
		}
	}
	for _, o := range optionals {
		if slices.Contains(mask, o.Field) {
			if o.Implemented(p) {
				b.masked = append(b.masked, o.Field)
			}
			continue
		}
		o.bind(p, b)
	}
	if attests, _ := RuleOf("IsolatedSessions"); slices.Contains(caps.PermissionLevels, PermissionAdvanced) && !attests.Implemented(p) {
		wrong = append(wrong, "it lists the permission level advanced without ReadIsolationCapability, which attests it (sandbox.IsolatedSessions)")
	}
	if len(wrong) > 0 {
		return refuse(wrong...)
	}
	b.guard()
	return b, nil
}

// Open makes the driver's provider and binds it. A New that panics has failed,
// and its error is for the operator, who reads it when the server doesn't
// start; a provider that Bind refuses is closed, where it can be.
func (d Driver) Open(ctx context.Context, h Host, mask ...string) (*Bound, error) {
	if d.New == nil {
		return nil, Errorf(CodeInvalid, "provider %q: New is nil", d.Name)
	}
	p, err := safely(func() (Provider, error) { return d.New(ctx, h) })
	switch {
	case err != nil && CodeOf(err) == "":
		return nil, Errorf(CodeInvalid, "provider %q: New: %w", d.Name, err)
	case err != nil:
		return nil, err
	}
	b, err := Bind(d, p, mask...)
	if err != nil {
		return nil, errors.Join(err, Resolve(p, Capabilities{}).Close())
	}
	return b, nil
}

// Resolve finds the operations of what caps declares, as they are: without the
// checks of Bind, and without the guards, which would hide from a suite that
// tries a provider what it looks for. AstraBox itself uses Bind.
func Resolve(p Provider, caps Capabilities) *Bound {
	b := &Bound{Provider: p, Caps: caps}
	if isNil(p) {
		return b
	}
	b.name, _ = safely(func() (string, error) { return p.Name(), nil })
	for _, r := range rules {
		if r.get(caps) && r.bind != nil {
			r.bind(p, b)
		}
	}
	for _, o := range optionals {
		o.bind(p, b)
	}
	return b
}

// nilEmbedded names embedded interfaces without a value: their methods are
// there for the compiler and panic when they are called.
func nilEmbedded(v reflect.Value, depth int) (names []string) {
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct || depth > 8 {
		return nil
	}
	for i := range v.NumField() {
		if !v.Type().Field(i).Anonymous {
			continue
		}
		f := v.Field(i)
		if f.Kind() == reflect.Interface {
			if f.IsNil() {
				names = append(names, f.Type().String())
				continue
			}
			f = f.Elem()
		}
		names = append(names, nilEmbedded(f, depth+1)...)
	}
	return names
}

// String names what is declared, for messages.
func (c Capabilities) String() string {
	var on []string
	for _, r := range rules {
		if r.get(c) {
			on = append(on, r.Flag)
		}
	}
	if len(on) == 0 {
		on = []string{"nothing"}
	}
	if c.PermissionLevels != nil {
		on = append(on, "levels "+joined(c.PermissionLevels))
	}
	return strings.Join(on, ", ")
}

// Name is the provider's name as it was when it was bound.
func (b *Bound) Name() string { return b.name }

// Capabilities gives Caps.
func (b *Bound) Capabilities() Capabilities { return b.Caps }

// Clone gives a copy whose fields can be replaced.
func (b *Bound) Clone() *Bound {
	c := *b
	return &c
}

// Feature is a line of what a bound provider can do.
type Feature struct {
	Name   string // the flag, or the field of an operation without one
	On     bool
	Masked bool // the provider has it, and it isn't to be used
	Doc    string
}

// Features lists every capability and optional operation.
func (b *Bound) Features() (out []Feature) {
	for _, r := range rules {
		out = append(out, Feature{Name: r.Flag, On: r.get(b.Caps), Masked: slices.Contains(b.masked, r.Flag), Doc: r.Doc})
	}
	for _, o := range optionals {
		field := reflect.ValueOf(b).Elem().FieldByName(o.Field)
		out = append(out, Feature{Name: o.Field, On: !field.IsNil(), Masked: slices.Contains(b.masked, o.Field), Doc: o.Doc})
	}
	return out
}

// cleanupBudget bounds the destruction of a sandbox whose handle is no good.
const cleanupBudget = 60 * time.Second

// Create is Provider.Create. A spec that asks for what the backend hasn't
// declared is refused before the provider sees it, and a handle that doesn't
// keep the contract has its sandbox destroyed.
func (b *Bound) Create(ctx context.Context, spec CreateSpec) (Handle, error) {
	spec, err := b.admit(spec)
	if err != nil {
		return nil, err
	}
	h, err := safely(func() (Handle, error) { return b.Provider.Create(ctx, spec) })
	if err != nil {
		return nil, err
	}
	id, err := b.check(h)
	if err == nil {
		return b.hide(h), nil
	}
	letGo(h)
	if !ValidID(id) {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupBudget)
	defer cancel()
	if d := ConfirmDestroyed(ctx, b, id); !d.ConfirmsGone(id) {
		e := Errorf(CodeCleanupUnconfirmed, "a sandbox couldn't be used, and it couldn't be confirmed that it is gone (%s): %w", d.Detail, err)
		e.SandboxID = id
		return nil, e
	}
	return nil, err
}

// admit holds a spec to the capabilities.
func (b *Bound) admit(spec CreateSpec) (CreateSpec, error) {
	if err := spec.Validate(); err != nil {
		return spec, err
	}
	if err := b.Caps.CheckLevel(b.name, spec.PermissionLevel); err != nil {
		return spec, err
	}
	switch {
	case b.Caps.CreateNetworkPolicy:
		var policy NetworkPolicy // nil is the zero policy: nothing is reachable
		if spec.NetworkPolicy != nil {
			policy = *spec.NetworkPolicy
		}
		policy, err := policy.Normalize()
		if err != nil {
			return spec, err
		}
		spec.NetworkPolicy = &policy
	case spec.NetworkPolicy != nil:
		return spec, Missing("CreateNetworkPolicy", b.name)
	}
	if !b.Caps.EgressCredentialInjection && (spec.CredentialProxy || !spec.Vault.IsZero()) {
		return spec, Missing("EgressCredentialInjection", b.name)
	}
	spec.CredentialProxy = spec.CredentialProxy || !spec.Vault.IsZero()
	return spec, nil
}

// Connect is Provider.Connect, with the handle held to the contract.
func (b *Bound) Connect(ctx context.Context, sandboxID string) (Handle, error) {
	if err := CheckID(sandboxID); err != nil {
		return nil, err
	}
	h, err := safely(func() (Handle, error) { return b.Provider.Connect(ctx, sandboxID) })
	if err != nil {
		return nil, err
	}
	id, err := b.check(h)
	if err == nil && id != sandboxID {
		err = Errorf(CodeUnavailable, "the backend %s was asked for sandbox %s and gave another", b.name, sandboxID)
	}
	if err != nil {
		letGo(h)
		return nil, err
	}
	return b.hide(h), nil
}

// hide takes from a handle that was checked what isn't declared, or masked.
func (b *Bound) hide(h Handle) Handle {
	if b.Caps.ProcessSessions || IsUnsupportedProcesses(h.Processes()) {
		return h
	}
	hidden := noProcesses{h, b.name}
	if c, ok := h.(io.Closer); ok {
		return struct {
			noProcesses
			io.Closer
		}{hidden, c}
	}
	return hidden
}

type noProcesses struct {
	Handle
	name string
}

func (n noProcesses) Processes() Processes { return UnsupportedProcesses(n.name) }

// check holds a handle to the contract and gives its id, also with an error,
// where it has one.
func (b *Bound) check(h Handle) (id string, err error) {
	if isNil(h) {
		return "", Errorf(CodeUnavailable, "the backend %s gave no handle", b.name)
	}
	if id, err = safely(func() (string, error) { return h.SandboxID(), nil }); err != nil || !ValidID(id) {
		return "", Errorf(CodeUnavailable, "the backend %s gave a sandbox without a usable id: %q", b.name, shorten(id, 80))
	}
	_, err = safely(func() (struct{}, error) { return struct{}{}, b.checkFaces(h) })
	if err != nil && CodeOf(err) == "" {
		err = Errorf(CodeUnavailable, "the backend %s gave a sandbox that can't be used: %w", b.name, err)
	}
	return id, err
}

// letGo closes a handle that isn't passed on, where that can be done.
func letGo(h Handle) {
	if c, ok := h.(io.Closer); ok && !isNil(h) {
		_, _ = safely(func() (struct{}, error) { return struct{}{}, c.Close() }) // nothing depends on it
	}
}

func (b *Bound) checkFaces(h Handle) error {
	switch {
	case isNil(h.Files()) || isNil(h.Commands()):
		return Errorf(CodeUnavailable, "the backend %s gave a sandbox without Files or Commands", b.name)
	case isNil(h.Processes()):
		return Errorf(CodeUnavailable, "the backend %s gave a sandbox whose Processes is nil; without long-lived processes it is UnsupportedProcesses", b.name)
	case b.Caps.ProcessSessions && IsUnsupportedProcesses(h.Processes()):
		return Errorf(CodeInvalid, "the backend %s declares ProcessSessions, but its sandbox has no Processes", b.name)
	}
	return nil
}

// Probe is Provider.Probe in its normal form.
func (b *Bound) Probe(ctx context.Context, sandboxID string) (Observation, error) {
	return guarded(sandboxID, func() (Observation, error) {
		o, err := b.Provider.Probe(ctx, sandboxID)
		return o.Normal(), err
	})
}

// Renew is Provider.Renew. A ttl that isn't above zero is refused.
func (b *Bound) Renew(ctx context.Context, sandboxID string, ttl time.Duration) (time.Time, error) {
	if ttl <= 0 {
		return time.Time{}, Errorf(CodeInvalid, "a renewal by %v would end the sandbox", ttl)
	}
	t, err := guarded(sandboxID, func() (time.Time, error) { return b.Provider.Renew(ctx, sandboxID, ttl) })
	return t, b.lacks(err)
}

// ExpiresAt is Provider.ExpiresAt.
func (b *Bound) ExpiresAt(ctx context.Context, sandboxID string) (time.Time, error) {
	t, err := guarded(sandboxID, func() (time.Time, error) { return b.Provider.ExpiresAt(ctx, sandboxID) })
	return t, b.lacks(err)
}

// lacks names the backend in the error of an operation that it lacks: Base
// doesn't know whose it is.
func (b *Bound) lacks(err error) error {
	var e *Error
	if !errors.As(err, &e) || !errors.Is(e, ErrUnsupported) || strings.Contains(e.Message, b.name) {
		return err
	}
	named := *e
	named.Message = "the backend " + b.name + ": " + e.Message
	return &named
}

// EndpointNamesSandbox is Provider.EndpointNamesSandbox; a panic names nothing.
func (b *Bound) EndpointNamesSandbox(endpoint string) (sandboxID string, ok bool) {
	id, err := safely(func() (string, error) {
		sandboxID, ok = b.Provider.EndpointNamesSandbox(endpoint)
		return sandboxID, nil
	})
	return id, ok && err == nil && ValidID(id)
}

// WorkspaceRoute is Provider.WorkspaceRoute; what is nil is none.
func (b *Bound) WorkspaceRoute() (WorkspaceRoute, bool) {
	r, err := safely(func() (WorkspaceRoute, error) {
		if r, ok := b.Provider.WorkspaceRoute(); ok {
			return r, nil
		}
		return nil, nil
	})
	return r, err == nil && !isNil(r)
}

// Close lets go of the provider's own resources, where it has some.
func (b *Bound) Close() error {
	if b.Closer == nil {
		return nil
	}
	_, err := safely(func() (struct{}, error) { return struct{}{}, b.Closer.Close() })
	return err
}
