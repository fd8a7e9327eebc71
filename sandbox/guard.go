package sandbox

import (
	"context"
	"io"
)

// guarded runs an operation on one sandbox: an id of another form is refused
// before the provider sees it, and a panic is an error.
func guarded[T any](sandboxID string, f func() (T, error)) (T, error) {
	if err := CheckID(sandboxID); err != nil {
		return *new(T), err
	}
	return safely(f)
}

func guardedErr(sandboxID string, f func() error) error {
	_, err := guarded(sandboxID, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// guard puts the guards around what is there.
func (b *Bound) guard() {
	if b.Network != nil {
		b.Network = guardNetwork{b.Network}
	}
	if b.Isolated != nil {
		b.Isolated = guardIsolated{b.Isolated, b.name}
	}
	if b.Recovery != nil {
		b.Recovery = guardRecovery{b.Recovery}
	}
	if b.Pauser != nil {
		b.Pauser = guardPauser{b.Pauser}
	}
	if b.Pool != nil {
		b.Pool = guardPool{b.Pool, b}
	}
	if b.Finder != nil {
		b.Finder = guardFinder{b.Finder, b.name}
	}
	if b.Vault != nil {
		b.Vault = guardVault{b.Vault}
	}
	if b.Inventory != nil {
		b.Inventory = guardInventory{b.Inventory, b.name}
	}
	if b.Validator != nil {
		b.Validator = guardValidator{b.Validator}
	}
	if b.Diagnoser != nil {
		b.Diagnoser = guardDiagnoser{b.Diagnoser}
	}
	if b.Posture != nil {
		b.Posture = guardPosture{b.Posture}
	}
	if b.Metrics != nil {
		b.Metrics = guardMetrics{b.Metrics}
	}
	if b.Memory != nil {
		b.Memory = guardMemory{b.Memory}
	}
	if b.Ports != nil {
		b.Ports = guardPorts{b.Ports}
	}
}

type guardNetwork struct{ to NetworkAdmitter }

func (g guardNetwork) AdmitRuntimeEgress(ctx context.Context, id string, p NetworkPolicy, plan VaultPlan) error {
	return guardedErr(id, func() error {
		p, err := p.Normalize()
		if err != nil {
			return err
		}
		if err := plan.Validate(); err != nil {
			return err
		}
		return g.to.AdmitRuntimeEgress(ctx, id, p, plan)
	})
}

type guardVault struct{ to CredentialInjector }

func (g guardVault) ApplyCredentialVault(ctx context.Context, id string, plan VaultPlan) error {
	return guardedErr(id, func() error {
		if err := plan.Validate(); err != nil {
			return err
		}
		return g.to.ApplyCredentialVault(ctx, id, plan)
	})
}

type guardPauser struct{ to Pauser }

func (g guardPauser) Pause(ctx context.Context, id string) (bool, error) {
	return guarded(id, func() (bool, error) { return g.to.Pause(ctx, id) })
}

func (g guardPauser) Resume(ctx context.Context, id string) (bool, error) {
	return guarded(id, func() (bool, error) { return g.to.Resume(ctx, id) })
}

type guardFinder struct {
	to   AssignmentFinder
	name string
}

func (g guardFinder) FindSandboxByAssignment(ctx context.Context, installation, assignment string) (info Info, found bool, err error) {
	if installation == "" || assignment == "" {
		return Info{}, false, Errorf(CodeInvalid, "installation and assignment must be named")
	}
	info, err = safely(func() (Info, error) {
		info, ok, err := g.to.FindSandboxByAssignment(ctx, installation, assignment)
		found = ok
		return info, err
	})
	if err == nil && found && !ValidID(info.ID) {
		err = Errorf(CodeUnavailable, "the backend %s found a sandbox without a usable id", g.name)
	}
	if err != nil {
		return Info{}, false, err
	}
	return info, found, nil
}

type guardInventory struct {
	to   Inventory
	name string
}

func (g guardInventory) ListSandboxes(ctx context.Context, metadata map[string]string, page string) (infos []Info, next string, err error) {
	infos, err = safely(func() ([]Info, error) {
		infos, n, err := g.to.ListSandboxes(ctx, metadata, page)
		next = n
		return infos, err
	})
	if err == nil && next != "" && next == page {
		err = Errorf(CodeUnavailable, "the listing of the backend %s doesn't get past a page", g.name)
	}
	for _, i := range infos {
		if err == nil && !ValidID(i.ID) {
			err = Errorf(CodeUnavailable, "the backend %s listed a sandbox without a usable id", g.name)
		}
	}
	if err != nil {
		return nil, "", err
	}
	return infos, next, nil
}

func (g guardInventory) DescribeSandbox(ctx context.Context, id string) (Info, error) {
	return guarded(id, func() (Info, error) {
		i, err := g.to.DescribeSandbox(ctx, id)
		if err == nil && i.ID != id {
			return Info{}, Errorf(CodeUnavailable, "the backend %s was asked for sandbox %s and described another", g.name, id)
		}
		return i, err
	})
}

type guardPool struct {
	to ClientPool
	b  *Bound
}

func (g guardPool) EnsureClientPool(ctx context.Context, s PoolSpec, create PoolCreator, prepare PoolPreparer) error {
	if err := s.Validate(); err != nil {
		return err
	}
	_, err := safely(func() (struct{}, error) { return struct{}{}, g.to.EnsureClientPool(ctx, s, create, prepare) })
	return err
}

func (g guardPool) AcquireFromClientPool(ctx context.Context, s PoolSpec) (Handle, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	h, err := safely(func() (Handle, error) { return g.to.AcquireFromClientPool(ctx, s) })
	if err != nil || h == nil {
		return nil, err
	}
	if id, err := g.b.check(h); err != nil {
		letGo(h)
		e := Errorf(CodePoolUnavailable, "the pool gave a member that can't be used: %w", err)
		e.SandboxID = id
		return nil, e
	}
	return g.b.hide(h), nil
}

func (g guardPool) AdoptSandbox(ctx context.Context, id, owner, assignment string) error {
	if owner == "" || assignment == "" || owner == assignment {
		return Errorf(CodeInvalid, "owner and assignment must be named, and differ")
	}
	return guardedErr(id, func() error { return g.to.AdoptSandbox(ctx, id, owner, assignment) })
}

func (g guardPool) DescribeClientPool(ctx context.Context, name string) (PoolStatus, error) {
	return safely(func() (PoolStatus, error) { return g.to.DescribeClientPool(ctx, name) })
}

func (g guardPool) RetireClientPool(ctx context.Context, name string) ([]Destruction, error) {
	return safely(func() ([]Destruction, error) { return g.to.RetireClientPool(ctx, name) })
}

// OwnsUnclaimedSandbox is true after a panic: what may be a member is left alone.
func (g guardPool) OwnsUnclaimedSandbox(i Info) bool {
	owns, err := safely(func() (bool, error) { return g.to.OwnsUnclaimedSandbox(i), nil })
	return owns || err != nil
}

func (g guardPool) ClientPoolReadiness() error {
	_, err := safely(func() (struct{}, error) { return struct{}{}, g.to.ClientPoolReadiness() })
	return err
}

type guardValidator struct{ to EnvironmentValidator }

func (g guardValidator) ValidateEnvironment(c EnvironmentConfig) error {
	_, err := safely(func() (struct{}, error) { return struct{}{}, g.to.ValidateEnvironment(c) })
	return err
}

type guardDiagnoser struct{ to Diagnoser }

func (g guardDiagnoser) ReadDiagnostics(ctx context.Context, id string, scope DiagnosticScope) (Diagnostics, error) {
	if !scope.known() {
		return Diagnostics{}, Errorf(CodeDiagnosticScope, "%q is no report; there are summary, inspect, events and logs", shorten(string(scope), 40))
	}
	return guarded(id, func() (Diagnostics, error) {
		d, err := g.to.ReadDiagnostics(ctx, id, scope)
		if err != nil {
			return Diagnostics{}, err
		}
		text, cut := RedactDiagnostics(d.Text, scope)
		return Diagnostics{SandboxID: id, Scope: scope, Text: text, Truncated: d.Truncated || cut}, nil
	})
}

type guardPosture struct{ to SecurityPosture }

func (g guardPosture) ReadSecurityPosture(ctx context.Context, id string) (Posture, error) {
	return guarded(id, func() (Posture, error) { return g.to.ReadSecurityPosture(ctx, id) })
}

type guardMetrics struct{ to Metrics }

func (g guardMetrics) ReadMetrics(ctx context.Context, id string) (Usage, error) {
	return guarded(id, func() (Usage, error) { return g.to.ReadMetrics(ctx, id) })
}

type guardMemory struct{ to MemoryReader }

func (g guardMemory) ReadMemoryHeadroom(ctx context.Context, id string) (Headroom, error) {
	return guarded(id, func() (Headroom, error) { return g.to.ReadMemoryHeadroom(ctx, id) })
}

type guardPorts struct{ to PortLister }

func (g guardPorts) ListListeningPorts(ctx context.Context, id string) ([]int, error) {
	return guarded(id, func() ([]int, error) { return g.to.ListListeningPorts(ctx, id) })
}

type guardRecovery struct{ to IsolatedSessionRecovery }

func (g guardRecovery) FindIsolatedSessionsByWorkspace(ctx context.Context, id, source string) ([]string, error) {
	return guarded(id, func() ([]string, error) { return g.to.FindIsolatedSessionsByWorkspace(ctx, id, source) })
}

type guardIsolated struct {
	to   IsolatedSessions
	name string
}

func (g guardIsolated) ReadIsolationCapability(ctx context.Context, id string) (IsolationCapability, error) {
	return guarded(id, func() (IsolationCapability, error) { return g.to.ReadIsolationCapability(ctx, id) })
}

func (g guardIsolated) PrepareIsolatedWorkspace(ctx context.Context, id, dir string, uid, gid uint32) error {
	return guardedErr(id, func() error {
		if why := badDir(dir); why != "" {
			return Errorf(CodeInvalid, "the directory of an isolated session %s", why)
		}
		return g.to.PrepareIsolatedWorkspace(ctx, id, dir, uid, gid)
	})
}

func (g guardIsolated) OpenIsolatedSession(ctx context.Context, id string, s IsolatedSessionSpec) (IsolatedSession, error) {
	return guarded(id, func() (IsolatedSession, error) {
		if err := s.Check(); err != nil {
			return nil, err
		}
		v, err := g.to.OpenIsolatedSession(ctx, id, s)
		return g.session(v, err)
	})
}

func (g guardIsolated) ConnectIsolatedSession(ctx context.Context, id, session string) (IsolatedSession, error) {
	return guarded(id, func() (IsolatedSession, error) {
		v, err := g.to.ConnectIsolatedSession(ctx, id, session)
		if v, err = g.session(v, err); err == nil && v.SessionID() != session {
			return nil, Errorf(CodeUnavailable, "the backend %s was asked for an isolated session and gave another", g.name)
		}
		return v, err
	})
}

// session holds an answer to having an id.
func (g guardIsolated) session(v IsolatedSession, err error) (IsolatedSession, error) {
	switch {
	case err != nil:
		return nil, err
	case isNil(v) || v.SessionID() == "":
		return nil, Errorf(CodeUnavailable, "the backend %s gave an isolated session without an id", g.name)
	case isNil(v.Files()) || isNil(v.Commands()) || isNil(v.Processes()):
		return nil, Errorf(CodeUnavailable, "the backend %s gave an isolated session without Files, Commands or Processes", g.name)
	}
	return v, nil
}

func (g guardIsolated) RunInIsolatedSession(ctx context.Context, id, session string, c Command) (CommandResult, error) {
	return guarded(id, func() (CommandResult, error) { return g.to.RunInIsolatedSession(ctx, id, session, c) })
}

func (g guardIsolated) StreamInIsolatedSession(ctx context.Context, id, session string, c Command, stdout, stderr io.Writer) (CommandResult, error) {
	return guarded(id, func() (CommandResult, error) {
		return g.to.StreamInIsolatedSession(ctx, id, session, c, stdout, stderr)
	})
}

func (g guardIsolated) CloseIsolatedSession(ctx context.Context, id, session string) error {
	return guardedErr(id, func() error { return g.to.CloseIsolatedSession(ctx, id, session) })
}

func (g guardIsolated) CountActiveIsolatedSessions(ctx context.Context, id string) (int, error) {
	return guarded(id, func() (int, error) {
		n, err := g.to.CountActiveIsolatedSessions(ctx, id)
		if err == nil && n < 0 {
			return 0, Errorf(CodeUnavailable, "the backend %s counted %d isolated sessions", g.name, n)
		}
		return n, err
	})
}
