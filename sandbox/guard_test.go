package sandbox_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func boundFull(t *testing.T, f *full) *sandbox.Bound {
	t.Helper()
	f.caps = everything()
	b, err := sandbox.Bind(driverOf(f.caps), f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func goodPool() sandbox.PoolSpec {
	return sandbox.PoolSpec{Name: "p", Image: "i", MaxIdle: 1, IdleTimeout: time.Hour, PrepareTimeout: time.Minute}
}

// calls are all operations of a bound provider that take a sandbox id.
func calls(b *sandbox.Bound) map[string]func(ctx context.Context, id string) error {
	err1 := func(_ any, err error) error { return err }
	return map[string]func(context.Context, string) error{
		"Connect":   func(ctx context.Context, id string) error { return err1(b.Connect(ctx, id)) },
		"Probe":     func(ctx context.Context, id string) error { return err1(b.Probe(ctx, id)) },
		"Renew":     func(ctx context.Context, id string) error { return err1(b.Renew(ctx, id, time.Hour)) },
		"ExpiresAt": func(ctx context.Context, id string) error { return err1(b.ExpiresAt(ctx, id)) },
		"Pause":     func(ctx context.Context, id string) error { return err1(b.Pauser.Pause(ctx, id)) },
		"Resume":    func(ctx context.Context, id string) error { return err1(b.Pauser.Resume(ctx, id)) },
		"Describe":  func(ctx context.Context, id string) error { return err1(b.Inventory.DescribeSandbox(ctx, id)) },
		"Admit": func(ctx context.Context, id string) error {
			return b.Network.AdmitRuntimeEgress(ctx, id, sandbox.NetworkPolicy{}, sandbox.VaultPlan{})
		},
		"Vault": func(ctx context.Context, id string) error {
			return b.Vault.ApplyCredentialVault(ctx, id, sandbox.VaultPlan{})
		},
		"Adopt":      func(ctx context.Context, id string) error { return b.Pool.AdoptSandbox(ctx, id, "o", "a") },
		"Capability": func(ctx context.Context, id string) error { return err1(b.Isolated.ReadIsolationCapability(ctx, id)) },
		"Prepare": func(ctx context.Context, id string) error {
			return b.Isolated.PrepareIsolatedWorkspace(ctx, id, "/w", 2000, 2000)
		},
		"Open": func(ctx context.Context, id string) error {
			return err1(b.Isolated.OpenIsolatedSession(ctx, id, sandbox.IsolatedSessionSpec{Workspace: "/w"}))
		},
		"ConnectSession": func(ctx context.Context, id string) error {
			return err1(b.Isolated.ConnectIsolatedSession(ctx, id, "s"))
		},
		"RunIn": func(ctx context.Context, id string) error {
			return err1(b.Isolated.RunInIsolatedSession(ctx, id, "s", sandbox.Command{}))
		},
		"StreamIn": func(ctx context.Context, id string) error {
			return err1(b.Isolated.StreamInIsolatedSession(ctx, id, "s", sandbox.Command{}, nil, nil))
		},
		"CloseSession": func(ctx context.Context, id string) error { return b.Isolated.CloseIsolatedSession(ctx, id, "s") },
		"Count": func(ctx context.Context, id string) error {
			return err1(b.Isolated.CountActiveIsolatedSessions(ctx, id))
		},
		"FindSessions": func(ctx context.Context, id string) error {
			return err1(b.Recovery.FindIsolatedSessionsByWorkspace(ctx, id, "/w"))
		},
		"Diagnostics": func(ctx context.Context, id string) error {
			return err1(b.Diagnoser.ReadDiagnostics(ctx, id, sandbox.DiagnosticLogs))
		},
		"Posture": func(ctx context.Context, id string) error { return err1(b.Posture.ReadSecurityPosture(ctx, id)) },
		"Metrics": func(ctx context.Context, id string) error { return err1(b.Metrics.ReadMetrics(ctx, id)) },
		"Memory":  func(ctx context.Context, id string) error { return err1(b.Memory.ReadMemoryHeadroom(ctx, id)) },
		"Ports":   func(ctx context.Context, id string) error { return err1(b.Ports.ListListeningPorts(ctx, id)) },
	}
}

// An id of another form never reaches a provider, by whatever operation.
func TestBadIDsAreNeverSent(t *testing.T) {
	f := &full{}
	f.probe = func(int) (sandbox.Observation, error) { f.ask("probe"); return sandbox.Observation{}, nil }
	f.connect = func(id string) (sandbox.Handle, error) { f.ask(id); return nil, nil }
	b := boundFull(t, f)
	for name, call := range calls(b) {
		for _, id := range []string{"", "../x", "a/b", "a..b", "a b"} {
			if err := call(t.Context(), id); sandbox.CodeOf(err) != sandbox.CodeNameInvalid {
				t.Errorf("%s(%q): %v", name, id, err)
			}
		}
	}
	if len(f.asked) > 0 {
		t.Errorf("the provider was asked for %q", f.asked)
	}
}

// A provider that panics gives errors, and the caller lives.
func TestPanicsAreErrors(t *testing.T) {
	f := &full{}
	b := boundFull(t, f)
	f.fail = func() { panic("boom") }
	f.probe = func(int) (sandbox.Observation, error) { panic("boom") }
	f.connect = func(string) (sandbox.Handle, error) { panic("boom") }
	f.create = func(sandbox.CreateSpec) (sandbox.Handle, error) { panic("boom") }
	more := calls(b)
	delete(more, "Renew") // Base answers
	delete(more, "ExpiresAt")
	more["Create"] = func(ctx context.Context, _ string) error { _, err := b.Create(ctx, goodSpec()); return err }
	more["Find"] = func(ctx context.Context, _ string) error {
		_, _, err := b.Finder.FindSandboxByAssignment(ctx, "i", "a")
		return err
	}
	more["List"] = func(ctx context.Context, _ string) error {
		_, _, err := b.Inventory.ListSandboxes(ctx, nil, "")
		return err
	}
	more["Ensure"] = func(ctx context.Context, _ string) error { return b.Pool.EnsureClientPool(ctx, goodPool(), nil, nil) }
	more["Acquire"] = func(ctx context.Context, _ string) error {
		_, err := b.Pool.AcquireFromClientPool(ctx, goodPool())
		return err
	}
	more["DescribePool"] = func(ctx context.Context, _ string) error { _, err := b.Pool.DescribeClientPool(ctx, "p"); return err }
	more["Retire"] = func(ctx context.Context, _ string) error { _, err := b.Pool.RetireClientPool(ctx, "p"); return err }
	more["Readiness"] = func(context.Context, string) error { return b.Pool.ClientPoolReadiness() }
	more["Validate"] = func(context.Context, string) error {
		return b.Validator.ValidateEnvironment(sandbox.EnvironmentConfig{})
	}
	more["Close"] = func(context.Context, string) error { return b.Close() }
	for name, call := range more {
		if err := call(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), "panicked: boom") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !b.Pool.OwnsUnclaimedSandbox(sandbox.Info{ID: "a"}) {
		t.Error("a sandbox that can't be asked for is given free")
	}
}

// Answers that can't be true are refused.
func TestLies(t *testing.T) {
	b := boundFull(t, &full{})
	ctx := t.Context()
	if _, err := b.Inventory.DescribeSandbox(ctx, "lie"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("a description of another sandbox: %v", err)
	}
	if _, _, err := b.Inventory.ListSandboxes(ctx, nil, "2"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("a page whose next is itself: %v", err)
	}
	if _, _, err := b.Finder.FindSandboxByAssignment(ctx, "i", "../x"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("a find without a usable id: %v", err)
	}
	if _, _, err := b.Finder.FindSandboxByAssignment(ctx, "", "x"); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a find in no installation: %v", err)
	}
	if _, found, err := b.Finder.FindSandboxByAssignment(ctx, "i", "none"); found || err != nil {
		t.Errorf("none: %v %v", found, err)
	}
	if _, err := b.Isolated.OpenIsolatedSession(ctx, "a", sandbox.IsolatedSessionSpec{Workspace: "/w"}); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("a session without an id: %v", err)
	}
	if _, err := b.Isolated.OpenIsolatedSession(ctx, "a", sandbox.IsolatedSessionSpec{Workspace: "w"}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a relative workspace: %v", err)
	}
	if err := b.Isolated.PrepareIsolatedWorkspace(ctx, "a", "/w/../x", 1, 1); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a workspace with ..: %v", err)
	}
	if _, err := b.Isolated.CountActiveIsolatedSessions(ctx, "a"); err == nil {
		t.Error("-1 sessions passed")
	}
	if h, err := b.Pool.AcquireFromClientPool(ctx, goodPool()); h != nil || err != nil {
		t.Errorf("an empty pool: %v %v", h, err)
	}
	if err := b.Pool.AdoptSandbox(ctx, "a", "same", "same"); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("an assignment that is the owner: %v", err)
	}
	if _, err := b.Renew(ctx, "a", 0); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a renewal by nothing: %v", err)
	}
	if _, err := b.Diagnoser.ReadDiagnostics(ctx, "a", "everything"); sandbox.CodeOf(err) != sandbox.CodeDiagnosticScope {
		t.Errorf("a report that there isn't: %v", err)
	}
	if d, err := b.Diagnoser.ReadDiagnostics(ctx, "a", sandbox.DiagnosticLogs); err != nil || strings.Contains(d.Text, "hunter2") || !strings.Contains(d.Text, "API_KEY=") || d.SandboxID != "a" {
		t.Errorf("%+v %v", d, err)
	}
	if ports, err := b.ListeningPorts(ctx, goodHandle("a")); err != nil || len(ports) != 1 || ports[0] != 80 {
		t.Errorf("ports %v %v", ports, err)
	}
	if m, err := b.MemoryHeadroom(ctx, goodHandle("a")); err != nil || m.Free() != 6 {
		t.Errorf("memory %v %v", m, err)
	}
}

func TestIsolatedSessionsAreHeldToTheContract(t *testing.T) {
	faceless := goodHandle("s")
	faceless.processes = nil
	for name, tt := range map[string]struct {
		session         sandbox.IsolatedSession
		open, connected bool
	}{
		"good":        {doubleSession{goodHandle("s")}, true, true},
		"another":     {doubleSession{goodHandle("t")}, true, false},
		"none":        {nil, false, false},
		"without id":  {doubleSession{goodHandle("")}, false, false},
		"a face less": {doubleSession{faceless}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := boundFull(t, &full{session: tt.session})
			s, err := b.Isolated.OpenIsolatedSession(t.Context(), "a", sandbox.IsolatedSessionSpec{Workspace: "/w"})
			if (s != nil) != tt.open || !tt.open && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
				t.Errorf("open: %v, %v", s, err)
			}
			s, err = b.Isolated.ConnectIsolatedSession(t.Context(), "a", "s")
			if (s != nil) != tt.connected || !tt.connected && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
				t.Errorf("connect: %v, %v", s, err)
			}
		})
	}
}

func TestPoolMemberIsHeldToTheContract(t *testing.T) {
	f := &poolOf{h: &doubleHandle{id: "a"}}
	f.caps = everything()
	b, err := sandbox.Bind(driverOf(f.caps), f)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Pool.AcquireFromClientPool(t.Context(), goodPool()); sandbox.CodeOf(err) != sandbox.CodePoolUnavailable {
		t.Errorf("%v", err)
	}
	for field, spoil := range map[string]func(*sandbox.PoolSpec){
		"Name":           func(s *sandbox.PoolSpec) { s.Name = " p" },
		"Image":          func(s *sandbox.PoolSpec) { s.Image = "" },
		"MaxIdle":        func(s *sandbox.PoolSpec) { s.MaxIdle = 0 },
		"IdleTimeout":    func(s *sandbox.PoolSpec) { s.IdleTimeout = 0 },
		"PrepareTimeout": func(s *sandbox.PoolSpec) { s.PrepareTimeout = -1 },
	} {
		s := goodPool()
		spoil(&s)
		for _, err := range []error{b.Pool.EnsureClientPool(t.Context(), s, nil, nil), second(b.Pool.AcquireFromClientPool(t.Context(), s))} {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), field) {
				t.Errorf("%s: %v", field, err)
			}
		}
	}
}

func second(_ any, err error) error { return err }

type poolOf struct {
	full
	h sandbox.Handle
}

func (p *poolOf) AcquireFromClientPool(context.Context, sandbox.PoolSpec) (sandbox.Handle, error) {
	return p.h, nil
}

// What isn't declared is refused before the provider sees the spec.
func TestCreateIsHeldToTheCapabilities(t *testing.T) {
	plan := sandbox.VaultPlan{Environment: []sandbox.EnvironmentCredential{}} // revokes, which needs a vault too
	for _, tt := range []struct {
		name  string
		caps  sandbox.Capabilities
		spec  func(*sandbox.CreateSpec)
		code  sandbox.Code
		check func(sandbox.CreateSpec) bool
	}{
		{"nothing asked, nothing declared", sandbox.Capabilities{}, func(*sandbox.CreateSpec) {}, "",
			func(s sandbox.CreateSpec) bool { return s.NetworkPolicy == nil && !s.CredentialProxy }},
		{"a policy that can't be enforced", sandbox.Capabilities{}, func(s *sandbox.CreateSpec) { s.NetworkPolicy = &sandbox.NetworkPolicy{Mode: "unrestricted"} }, sandbox.CodeNetworkUnsupported, nil},
		{"no policy is the zero one", sandbox.Capabilities{CreateNetworkPolicy: true}, func(*sandbox.CreateSpec) {}, "",
			func(s sandbox.CreateSpec) bool {
				return s.NetworkPolicy.Mode == sandbox.NetworkLimited && len(s.NetworkPolicy.AllowedHosts) == 0
			}},
		{"a policy in its normal form", sandbox.Capabilities{CreateNetworkPolicy: true}, func(s *sandbox.CreateSpec) {
			s.NetworkPolicy = &sandbox.NetworkPolicy{AllowedHosts: []string{"Example.COM."}}
		}, "",
			func(s sandbox.CreateSpec) bool { return s.NetworkPolicy.AllowedHosts[0] == "example.com" }},
		{"a vault that there isn't", sandbox.Capabilities{}, func(s *sandbox.CreateSpec) { s.Vault = plan }, sandbox.CodeInjectionUnsupported, nil},
		{"a proxy that there isn't", sandbox.Capabilities{}, func(s *sandbox.CreateSpec) { s.CredentialProxy = true }, sandbox.CodeInjectionUnsupported, nil},
		{"a vault implies the proxy", sandbox.Capabilities{EgressCredentialInjection: true}, func(s *sandbox.CreateSpec) { s.Vault = plan }, "",
			func(s sandbox.CreateSpec) bool { return s.CredentialProxy }},
		{"a level that isn't listed", sandbox.Capabilities{}, func(s *sandbox.CreateSpec) { s.PermissionLevel = sandbox.PermissionAdvanced }, sandbox.CodeLevelUnsupported, nil},
		{"privileged", sandbox.Capabilities{}, func(s *sandbox.CreateSpec) { s.PermissionLevel = sandbox.PermissionPrivileged }, sandbox.CodeLevelUnsupported, nil},
		{"an invalid spec", sandbox.Capabilities{}, func(s *sandbox.CreateSpec) { s.Image = "" }, sandbox.CodeInvalid, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var seen *sandbox.CreateSpec
			f := &full{bare: bare{caps: tt.caps}}
			f.create = func(s sandbox.CreateSpec) (sandbox.Handle, error) { seen = &s; return goodHandle("a"), nil }
			b, err := sandbox.Bind(driverOf(tt.caps), f)
			if err != nil {
				t.Fatal(err)
			}
			spec := goodSpec()
			tt.spec(&spec)
			_, err = b.Create(t.Context(), spec)
			if sandbox.CodeOf(err) != tt.code || (seen == nil) != (tt.code != "") {
				t.Fatalf("%v, asked %v", err, seen != nil)
			}
			if tt.check != nil && !tt.check(*seen) {
				t.Errorf("the provider saw %#v", struct{ N, C any }{seen.NetworkPolicy, seen.CredentialProxy})
			}
		})
	}
}

func TestRedactDiagnostics(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"PATH=/bin\nall well\n", "PATH=/bin\nall well\n"},
		{"a\nKEY=hunter2\n", "a\nKEY=***\n"},
		{"KEY=-----BEGIN\nhunter2\nHOME=/root\nmore hunter2\n", "KEY=***\n***\nHOME=/root\n***\n"},
		{`"Env": ["PATH=/bin", "TOKEN=hunter2"]` + "\r\n", `"Env": ["PATH=/bin", "TOKEN=***` + "\r\n"},
		{"Authorization: Bearer hunter2\nx hunter2\n", "Authorization: ***\n***\n"},
		{`"api_key": "hunter2"`, `"api_key": ***`},
		{"curl -H bearer hunter2 x", "curl -H bearer *** x"},
		{"clone https://u:hunter2@host/x", "clone https://***@host/x"},
		{"astrabox.session-id=cnv_1\n", "astrabox.session-id=cnv_1\n"},
		{"astrabox.network-wiring=hunter2\n", "astrabox.network-wiring=***\n"},
	} {
		got, cut := sandbox.RedactDiagnostics(tt.in, sandbox.DiagnosticInspect)
		if got != tt.want || cut {
			t.Errorf("%q became %q, want %q", tt.in, got, tt.want)
		}
	}
	var long bytes.Buffer
	for i := range 40000 {
		fmt.Fprintf(&long, "line %d\n", i)
	}
	head, cut := sandbox.RedactDiagnostics(long.String(), sandbox.DiagnosticSummary)
	if !cut || len(head) > sandbox.DiagnosticsLimit || !strings.HasPrefix(head, "line 0\n") {
		t.Errorf("a long summary has %d bytes", len(head))
	}
	tail, cut := sandbox.RedactDiagnostics(long.String(), sandbox.DiagnosticLogs)
	if !cut || len(tail) > sandbox.DiagnosticsLimit || !strings.HasPrefix(tail, "line ") || !strings.HasSuffix(tail, "line 39999\n") {
		t.Errorf("a long log has %d bytes and begins with %.20q", len(tail), tail)
	}
}
