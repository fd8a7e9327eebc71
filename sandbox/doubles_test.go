package sandbox_test

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// scripted is a provider whose operations answer from functions.
type scripted struct {
	sandbox.Base
	create  func(sandbox.CreateSpec) (sandbox.Handle, error)
	connect func(string) (sandbox.Handle, error)
	kill    func() (bool, error)
	probe   func(n int) (sandbox.Observation, error)
	probes  int
	kills   int
}

func (*scripted) Name() string                       { return "scripted" }
func (*scripted) Capabilities() sandbox.Capabilities { return sandbox.Capabilities{} }
func (s *scripted) Create(_ context.Context, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	if s.create == nil {
		return nil, errors.ErrUnsupported
	}
	return s.create(spec)
}

func (s *scripted) Connect(_ context.Context, id string) (sandbox.Handle, error) {
	if s.connect == nil {
		return nil, errors.ErrUnsupported
	}
	return s.connect(id)
}
func (s *scripted) Kill(context.Context, string) (bool, error) { s.kills++; return s.kill() }
func (s *scripted) Probe(context.Context, string) (sandbox.Observation, error) {
	s.probes++
	return s.probe(s.probes)
}

// bare declares what it is told to and implements nothing optional.
type bare struct {
	scripted
	caps sandbox.Capabilities
}

func (b *bare) Capabilities() sandbox.Capabilities { return b.caps }

// full implements every optional interface. fail, where it is set, is called by
// each of their operations.
type full struct {
	bare
	fail    func()
	asked   []string // ids that an operation was asked for
	closed  int
	session sandbox.IsolatedSession // the answer of Open and Connect
}

func (f *full) ask(id string) {
	if f.fail != nil {
		f.fail()
	}
	f.asked = append(f.asked, id)
}

func (f *full) Pause(_ context.Context, id string) (bool, error)  { f.ask(id); return true, nil }
func (f *full) Resume(_ context.Context, id string) (bool, error) { f.ask(id); return true, nil }

func (f *full) FindSandboxByAssignment(_ context.Context, _, assignment string) (sandbox.Info, bool, error) {
	f.ask("")
	return sandbox.Info{ID: assignment}, assignment != "none", nil
}

func (f *full) ListSandboxes(_ context.Context, _ map[string]string, page string) ([]sandbox.Info, string, error) {
	f.ask("")
	return []sandbox.Info{{ID: "a"}}, page, nil
}

func (f *full) DescribeSandbox(_ context.Context, id string) (sandbox.Info, error) {
	f.ask(id)
	if id == "lie" {
		id = "other"
	}
	return sandbox.Info{ID: id}, nil
}

func (f *full) AdmitRuntimeEgress(_ context.Context, id string, _ sandbox.NetworkPolicy, _ sandbox.VaultPlan) error {
	f.ask(id)
	return nil
}

func (f *full) ApplyCredentialVault(_ context.Context, id string, _ sandbox.VaultPlan) error {
	f.ask(id)
	return nil
}

func (f *full) EnsureClientPool(context.Context, sandbox.PoolSpec, sandbox.PoolCreator, sandbox.PoolPreparer) error {
	f.ask("")
	return nil
}

func (f *full) AcquireFromClientPool(context.Context, sandbox.PoolSpec) (sandbox.Handle, error) {
	f.ask("")
	return nil, nil
}

func (f *full) AdoptSandbox(_ context.Context, id, _, _ string) error { f.ask(id); return nil }

func (f *full) DescribeClientPool(context.Context, string) (sandbox.PoolStatus, error) {
	f.ask("")
	return sandbox.PoolStatus{}, nil
}

func (f *full) RetireClientPool(context.Context, string) ([]sandbox.Destruction, error) {
	f.ask("")
	return nil, nil
}

func (f *full) OwnsUnclaimedSandbox(i sandbox.Info) bool { f.ask(i.ID); return false }
func (f *full) ClientPoolReadiness() error               { f.ask(""); return nil }

func (f *full) ReadIsolationCapability(_ context.Context, id string) (sandbox.IsolationCapability, error) {
	f.ask(id)
	return sandbox.IsolationCapability{}, nil
}

func (f *full) PrepareIsolatedWorkspace(_ context.Context, id, _ string, _, _ uint32) error {
	f.ask(id)
	return nil
}

func (f *full) OpenIsolatedSession(_ context.Context, id string, _ sandbox.IsolatedSessionSpec) (sandbox.IsolatedSession, error) {
	f.ask(id)
	return f.session, nil
}

func (f *full) ConnectIsolatedSession(_ context.Context, id, _ string) (sandbox.IsolatedSession, error) {
	f.ask(id)
	return f.session, nil
}

func (f *full) RunInIsolatedSession(_ context.Context, id, _ string, _ sandbox.Command) (sandbox.CommandResult, error) {
	f.ask(id)
	return sandbox.CommandResult{}, nil
}

func (f *full) StreamInIsolatedSession(_ context.Context, id, _ string, _ sandbox.Command, _, _ io.Writer) (sandbox.CommandResult, error) {
	f.ask(id)
	return sandbox.CommandResult{}, nil
}

func (f *full) CloseIsolatedSession(_ context.Context, id, _ string) error { f.ask(id); return nil }
func (f *full) CountActiveIsolatedSessions(_ context.Context, id string) (int, error) {
	f.ask(id)
	return -1, nil
}

func (f *full) FindIsolatedSessionsByWorkspace(_ context.Context, id, _ string) ([]string, error) {
	f.ask(id)
	return nil, nil
}

func (f *full) ValidateEnvironment(sandbox.EnvironmentConfig) error { f.ask(""); return nil }

func (f *full) ReadDiagnostics(_ context.Context, id string, _ sandbox.DiagnosticScope) (sandbox.Diagnostics, error) {
	f.ask(id)
	return sandbox.Diagnostics{Text: "API_KEY=hunter2\n"}, nil
}

func (f *full) ReadSecurityPosture(_ context.Context, id string) (sandbox.Posture, error) {
	f.ask(id)
	return sandbox.Posture{}, nil
}

func (f *full) ReadMetrics(_ context.Context, id string) (sandbox.Usage, error) {
	f.ask(id)
	return sandbox.Usage{}, nil
}

func (f *full) ReadMemoryHeadroom(_ context.Context, id string) (sandbox.Headroom, error) {
	f.ask(id)
	return sandbox.Headroom{Limit: 10, Used: 4}, nil
}

func (f *full) ListListeningPorts(_ context.Context, id string) ([]int, error) {
	f.ask(id)
	return []int{80, sandbox.ExecdPort}, nil
}

func (f *full) Close() error { f.ask(""); f.closed++; return nil }

// doubleHandle is a handle of which each part can be left out.
type doubleHandle struct {
	id        string
	files     sandbox.Files
	commands  sandbox.Commands
	processes sandbox.Processes
	signed    func(port int) (sandbox.Endpoint, error)
}

func (h *doubleHandle) SandboxID() string            { return h.id }
func (h *doubleHandle) Files() sandbox.Files         { return h.files }
func (h *doubleHandle) Commands() sandbox.Commands   { return h.commands }
func (h *doubleHandle) Processes() sandbox.Processes { return h.processes }
func (h *doubleHandle) Endpoint(context.Context, int) (sandbox.Endpoint, error) {
	return sandbox.Endpoint{}, errors.ErrUnsupported
}

func (h *doubleHandle) SignedEndpoint(_ context.Context, port int, _ time.Time) (sandbox.Endpoint, error) {
	return h.signed(port)
}

// doubleSession is an isolated session with the faces of a handle.
type doubleSession struct{ *doubleHandle }

func (s doubleSession) SessionID() string { return s.id }

// someFiles is there and does nothing.
type someFiles struct{ sandbox.Files }

// scriptedCommands answers command lines from a function.
type scriptedCommands struct {
	run func(line string) (sandbox.CommandResult, error)
}

func (c *scriptedCommands) Run(_ context.Context, cmd sandbox.Command) (sandbox.CommandResult, error) {
	return c.run(cmd.Line)
}

func (c *scriptedCommands) Stream(_ context.Context, cmd sandbox.Command, _, _ io.Writer) (sandbox.CommandResult, error) {
	return c.run(cmd.Line)
}
