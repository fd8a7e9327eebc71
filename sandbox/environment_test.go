package sandbox_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
)

func TestCheckEnvironment(t *testing.T) {
	all := everything()
	all.PermissionLevels = []sandbox.PermissionLevel{"default", "advanced"}
	without := func(flags ...string) sandbox.Capabilities {
		c := all
		if slices.Contains(flags, "CreateNetworkPolicy") {
			c.CreateNetworkPolicy = false
		}
		if slices.Contains(flags, "IsolatedSessions") {
			c.IsolatedSessions, c.IsolatedSessionRecovery = false, false
		}
		if slices.Contains(flags, "Pause") {
			c.Pause = false
		}
		if slices.Contains(flags, "ClientPool") {
			c.ClientPool = false
		}
		if slices.Contains(flags, "ProcessSessions") {
			c.ProcessSessions = false
		}
		return c
	}
	notReady := sandbox.Errorf(sandbox.CodePoolUnavailable, "no store")
	for _, tt := range []struct {
		name  string
		caps  sandbox.Capabilities
		ready error
		c     sandbox.EnvironmentConfig
		want  []string // capability/field
	}{
		{"everything on everything", all, nil, sandbox.EnvironmentConfig{PauseIdle: true, Prepared: 2, Program: "pi", Terminal: true, PermissionLevel: "advanced"}, nil},
		{"shared on everything", all, nil, sandbox.EnvironmentConfig{Sharing: true}, nil},
		{"a plain one without network rules", without("CreateNetworkPolicy"), nil, sandbox.EnvironmentConfig{}, []string{"CreateNetworkPolicy/network"}},
		{"an unrestricted one without network rules", without("CreateNetworkPolicy"), nil, sandbox.EnvironmentConfig{Network: sandbox.NetworkPolicy{Mode: "unrestricted"}}, []string{"CreateNetworkPolicy/network"}},
		{"sharing", without("IsolatedSessions"), nil, sandbox.EnvironmentConfig{Sharing: true}, []string{"IsolatedSessions/sandbox_sharing"}},
		{"pause", without("Pause"), nil, sandbox.EnvironmentConfig{PauseIdle: true}, []string{"Pause/idle"}},
		{"terminate needs no pause", without("Pause"), nil, sandbox.EnvironmentConfig{}, nil},
		{"prepared", without("ClientPool"), notReady, sandbox.EnvironmentConfig{Prepared: 1}, []string{"ClientPool/prepared"}},
		{"prepared, not ready", all, notReady, sandbox.EnvironmentConfig{Prepared: 1}, []string{"ClientPool/prepared"}},
		{"not prepared, not ready", all, notReady, sandbox.EnvironmentConfig{}, nil},
		{"a program", without("ProcessSessions"), nil, sandbox.EnvironmentConfig{Program: "pi"}, []string{"ProcessSessions/program"}},
		{"a terminal", without("ProcessSessions"), nil, sandbox.EnvironmentConfig{Terminal: true}, []string{"ProcessSessions/terminal_panel"}},
		{"both, shared", without("ProcessSessions"), nil, sandbox.EnvironmentConfig{Program: "pi", Terminal: true, Sharing: true}, nil},
		{"commands only", without("ProcessSessions"), nil, sandbox.EnvironmentConfig{}, nil},
		{"a level", without(), nil, sandbox.EnvironmentConfig{PermissionLevel: "privileged"}, []string{"PermissionLevels/permission_level"}},
		{"bad rules", all, nil, sandbox.EnvironmentConfig{Network: limited("a.com:443")}, []string{"/network"}},
		{"all at once", sandbox.Capabilities{}, nil, sandbox.EnvironmentConfig{PauseIdle: true, Prepared: 1, Program: "pi", Terminal: true, PermissionLevel: "advanced"},
			[]string{"CreateNetworkPolicy/network", "Pause/idle", "ClientPool/prepared", "ProcessSessions/program", "ProcessSessions/terminal_panel", "PermissionLevels/permission_level"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := sandbox.CheckEnvironment("acme", tt.caps, tt.ready, tt.c)
			var e *sandbox.ConfigError
			if !errors.As(err, &e) {
				if err != nil || tt.want != nil {
					t.Fatalf("%v", err)
				}
				return
			}
			var got []string
			for _, r := range e.Refusals {
				got = append(got, r.Capability+"/"+r.Field)
				if r.Backend != "acme" || !strings.Contains(r.Message, r.Field) || r.Code == "" ||
					r.Capability != "" && (!strings.Contains(r.Message, "acme") || !strings.Contains(err.Error(), r.Message)) {
					t.Errorf("%+v", r)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if sandbox.CodeOf(err) != sandbox.CodeConfigUnsupported {
				t.Errorf("%v", err)
			}
		})
	}
}

// picky refuses what only it knows.
type picky struct {
	full
	err   error
	ready error
}

func (p *picky) ValidateEnvironment(sandbox.EnvironmentConfig) error { return p.err }
func (p *picky) ClientPoolReadiness() error                          { return p.ready }

func TestBoundCheckEnvironment(t *testing.T) {
	p := &picky{}
	p.caps = everything()
	b, err := sandbox.Bind(driverOf(p.caps), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.CheckEnvironment(sandbox.EnvironmentConfig{}); err != nil {
		t.Fatal(err)
	}
	p.err = sandbox.Errorf(sandbox.CodeInvalid, "image: only signed images run here")
	if err := b.CheckEnvironment(sandbox.EnvironmentConfig{}); err == nil || !strings.Contains(err.Error(), "only signed images") || sandbox.CodeOf(err) != sandbox.CodeConfigUnsupported {
		t.Errorf("%v", err)
	}
	p.err = errors.New("token=hunter2")
	if err := b.CheckEnvironment(sandbox.EnvironmentConfig{}); err == nil || strings.Contains(err.Error(), "hunter2") || !errors.Is(err, p.err) {
		t.Errorf("%v", err)
	}
	p.err, p.ready = nil, sandbox.Errorf(sandbox.CodePoolUnavailable, "no store")
	if err := b.CheckEnvironment(sandbox.EnvironmentConfig{Prepared: 1}); err == nil || !strings.Contains(err.Error(), "no store") {
		t.Errorf("%v", err)
	}
}
