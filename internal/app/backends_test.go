package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/sandbox"
)

func TestChoose(t *testing.T) {
	installed := []sandbox.Driver{
		{Name: "e2b", Settings: []sandbox.Setting{{Name: "E2B_KEY", Secret: true}, {Name: "SHARED"}}},
		{Name: "open_sandbox", Settings: []sandbox.Setting{{Name: "OPEN_KEY"}, {Name: "SHARED"}}},
	}
	tests := []struct {
		name              string
		env               map[string]string
		enabled, standard string
		mask              []string
		warns             string
		wrong             []string // what the error says
	}{
		{name: "nothing set", enabled: "open_sandbox", standard: "open_sandbox"},
		{name: "blank is unset", env: map[string]string{settingBackends: " , ", settingBackend: " "}, enabled: "open_sandbox", standard: "open_sandbox"},
		{name: "one", env: map[string]string{settingBackends: " E2B "}, enabled: "e2b", standard: "e2b"},
		{name: "twice", env: map[string]string{settingBackends: "e2b,e2b"}, enabled: "e2b", standard: "e2b"},
		{name: "two and the default", env: map[string]string{settingBackends: "e2b,open_sandbox", settingBackend: "Open_Sandbox"}, enabled: "e2b, open_sandbox", standard: "open_sandbox"},
		{name: "two without a default", env: map[string]string{settingBackends: "e2b,open_sandbox"}, wrong: []string{settingBackend, "e2b, open_sandbox"}},
		{name: "not installed", env: map[string]string{settingBackends: "k8s"}, wrong: []string{`"k8s"`, "e2b, open_sandbox"}},
		{name: "default not enabled", env: map[string]string{settingBackend: "e2b"}, wrong: []string{`"e2b"`, "Enabled: open_sandbox"}},
		{name: "mask", env: map[string]string{settingDisable: "pause, CorrelatedCreate"}, enabled: "open_sandbox", standard: "open_sandbox", mask: []string{"Pause", "CorrelatedCreate"}},
		{name: "default not installed", env: map[string]string{settingBackend: "k8s"}, wrong: []string{`"k8s"`, "Enabled: open_sandbox"}},
		{name: "mask of an operation without a flag", env: map[string]string{settingDisable: "Metrics"}, enabled: "open_sandbox", standard: "open_sandbox", mask: []string{"Metrics"}},
		{name: "what can't be masked", env: map[string]string{settingDisable: "Closer"}, wrong: []string{`"Closer"`}},
		{name: "a blank setting", env: map[string]string{"E2B_KEY": " "}, enabled: "open_sandbox", standard: "open_sandbox"},
		{name: "a setting that an enabled provider reads too", env: map[string]string{"SHARED": "x"}, enabled: "open_sandbox", standard: "open_sandbox"},
		{name: "mask of nothing", env: map[string]string{settingDisable: "Fly"}, wrong: []string{`"Fly"`, "ProcessSessions"}},
		{name: "a setting without effect", env: map[string]string{"E2B_KEY": "hunter2"}, enabled: "open_sandbox", standard: "open_sandbox", warns: "E2B_KEY"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var log bytes.Buffer
			b, err := choose(installed, func(k string) string { return tt.env[k] }, slog.New(slog.NewTextHandler(&log, nil)))
			if tt.wrong != nil {
				if !fault.Is(err, fault.SettingInvalid) {
					t.Fatalf("%v", err)
				}
				for _, part := range tt.wrong {
					if !strings.Contains(fault.From(err).Public, part) {
						t.Errorf("%q doesn't say %s", fault.From(err).Public, part)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]any{tt.enabled, tt.standard, tt.mask}, []any{b.names(), b.standard, b.mask}); diff != "" {
				t.Error(diff)
			}
			if n := strings.Count(log.String(), "level=WARN"); tt.warns != "" && n != 1 {
				t.Errorf("%d warnings", n)
			}
			if !strings.Contains(log.String(), tt.warns) || tt.warns == "" && log.Len() > 0 || strings.Contains(log.String(), "hunter2") {
				t.Errorf("log: %s", &log)
			}
		})
	}
}

// The mask holds for what is bound: a masked capability isn't used.
func TestMaskIsBound(t *testing.T) {
	c, _ := external(t, map[string]string{settingDisable: "Pause"})
	b, err := chooseBackends(c.Getenv, c.Log)
	if err != nil {
		t.Fatal(err)
	}
	bound, err := bindBackends(context.Background(), c, &state{installation: "i"}, b, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer closeBackends(c.Log, bound)
	if len(bound) != 1 || bound[0].Caps.Pause || bound[0].Pauser != nil || !bound[0].Caps.ProcessSessions {
		t.Errorf("%+v", bound[0].Caps)
	}
}

// A backend without persistent storage is refused by name where a deployment
// asks for it.
func TestWorkspaceVolumeNeedsRoutes(t *testing.T) {
	c, _ := external(t, map[string]string{settingVolume: "claim-1"})
	b, err := chooseBackends(c.Getenv, c.Log)
	if err != nil {
		t.Fatal(err)
	}
	_, err = bindBackends(context.Background(), c, &state{installation: "i"}, b, nil)
	if !fault.Is(err, fault.SettingInvalid) {
		t.Fatalf("%v", err)
	}
	for _, part := range []string{settingVolume, "open_sandbox"} {
		if !strings.Contains(fault.From(err).Public, part) {
			t.Errorf("%q doesn't say %s", fault.From(err).Public, part)
		}
	}
	c, _ = external(t, map[string]string{settingVolume: " "})
	bound, err := bindBackends(context.Background(), c, &state{installation: "i"}, b, nil)
	if err != nil {
		t.Fatalf("blank is unset: %v", err)
	}
	closeBackends(c.Log, bound)
}

// A default backend on which the default Agent can't run is refused with what to set.
func TestFits(t *testing.T) {
	whole := sandbox.Driver{Name: "whole", Declares: sandbox.Capabilities{ProcessSessions: true}}
	also := sandbox.Driver{Name: "also", Declares: sandbox.Capabilities{ProcessSessions: true}}
	bare := sandbox.Driver{Name: "bare"}
	all := []sandbox.Driver{also, bare, whole}
	for name, tt := range map[string]struct {
		b    backends
		says []string // nil: nothing
	}{
		"fits":        {backends{installed: all, enabled: all, standard: "whole"}, nil},
		"other masks": {backends{installed: all, enabled: all, standard: "whole", mask: []string{"Pause"}}, nil},
		"another is enabled": {backends{installed: all, enabled: []sandbox.Driver{bare, whole}, standard: "bare"},
			[]string{"shell", "backend, bare", "ProcessSessions", "doesn't have", "set ASTRABOX_SANDBOX_BACKEND to a backend that has it: whole."}},
		"others are installed": {backends{installed: all, enabled: []sandbox.Driver{bare}, standard: "bare"},
			[]string{"bare", "ProcessSessions", "ASTRABOX_SANDBOX_BACKENDS and ASTRABOX_SANDBOX_BACKEND: also, whole."}},
		"none is installed": {backends{installed: []sandbox.Driver{bare}, enabled: []sandbox.Driver{bare}, standard: "bare"},
			[]string{"bare", "ProcessSessions", "install a provider that has it", "(bare)"}},
		"masked": {backends{installed: all, enabled: all, standard: "whole", mask: []string{"ProcessSessions"}},
			[]string{"whole", "ProcessSessions", "ASTRABOX_SANDBOX_DISABLE takes away", "take ProcessSessions out of ASTRABOX_SANDBOX_DISABLE"}},
		"masked where it isn't": {backends{installed: all, enabled: all, standard: "bare", mask: []string{"ProcessSessions"}},
			[]string{"bare", "take ProcessSessions out of ASTRABOX_SANDBOX_DISABLE"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.b.fits()
			if len(tt.says) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			f := fault.From(err)
			for _, part := range tt.says {
				if f.Code != fault.SettingInvalid || !strings.Contains(f.Public, part) {
					t.Errorf("%q isn't in %q (%s)", part, f.Public, f.Code)
				}
			}
			for _, finding := range doctor(t.Context(), environment{getenv: func(string) string { return "" }, backends: tt.b}) {
				if finding.ID == "backend."+tt.b.standard && (finding.OK || finding.Severity != "error" || !strings.Contains(f.Public, finding.Summary) || finding.Fix == "") {
					t.Errorf("%+v", finding)
				}
			}
		})
	}
}

// One provider that fails to close keeps no other from closing.
func TestCloseBackends(t *testing.T) {
	var closed []string
	bind := func(name string, err error, panics bool) *sandbox.Bound {
		b, e := sandbox.Bind(sandbox.Driver{Name: name}, &closing{name: name, close: func() error {
			closed = append(closed, name)
			if panics {
				panic("boom")
			}
			return err
		}})
		if e != nil {
			t.Fatal(e)
		}
		return b
	}
	var log bytes.Buffer
	closeBackends(slog.New(slog.NewTextHandler(&log, nil)), []*sandbox.Bound{
		bind("one", errors.New("stuck"), false), bind("two", nil, true), bind("three", nil, false),
	})
	if diff := cmp.Diff([]string{"one", "two", "three"}, closed); diff != "" {
		t.Error(diff)
	}
	for _, part := range []string{"provider=one", "stuck", "provider=two"} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("%q isn't in the log: %s", part, &log)
		}
	}
}

type closing struct {
	sandbox.Base
	name  string
	close func() error
}

func (c *closing) Name() string                       { return c.name }
func (c *closing) Close() error                       { return c.close() }
func (c *closing) Capabilities() sandbox.Capabilities { return sandbox.Capabilities{} }
func (c *closing) Create(context.Context, sandbox.CreateSpec) (sandbox.Handle, error) {
	return nil, errors.ErrUnsupported
}

func (c *closing) Connect(context.Context, string) (sandbox.Handle, error) {
	return nil, errors.ErrUnsupported
}
func (c *closing) Kill(context.Context, string) (bool, error) { return false, nil }
