package app

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/sandbox"
)

func TestChoose(t *testing.T) {
	installed := []sandbox.Driver{
		{Name: "e2b", Settings: []sandbox.Setting{{Name: "E2B_KEY", Secret: true}}},
		{Name: "open_sandbox", Settings: []sandbox.Setting{{Name: "OPEN_KEY"}}},
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
