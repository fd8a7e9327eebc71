package app

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/internal/fault"
)

func TestProviders(t *testing.T) {
	env := map[string]string{"ASTRABOX_SANDBOX_OPENAPI_KEY": "hunter2"}
	list, err := Providers(func(k string) string { return env[k] })
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(p Provider) bool { return p.Name == "open_sandbox" })
	if i < 0 {
		t.Fatalf("%+v", list)
	}
	p := list[i]
	if !p.Enabled || !p.Default || p.Module != "github.com/astrabox/astrabox" || p.Package != p.Module+"/provider/opensandbox" ||
		p.Version == "" || p.Seam == "" || !slices.Contains(p.Capabilities, "ProcessSessions") || len(p.Levels) == 0 {
		t.Errorf("%+v", p)
	}
	if !slices.Contains(p.Settings, ProviderSetting{Name: "ASTRABOX_SANDBOX_OPENAPI_KEY", Doc: "API key of the lifecycle service", Secret: true, Set: true}) {
		t.Errorf("%+v", p.Settings)
	}

	if len(p.Disabled) > 0 {
		t.Errorf("disabled without a mask: %v", p.Disabled)
	}

	// What a masked capability is needed for goes with it.
	env[settingDisable] = "pause, isolatedsessions,Metrics"
	list, err = Providers(func(k string) string { return env[k] })
	if diff := cmp.Diff([]string{"IsolatedSessions", "IsolatedSessionRecovery", "Pause"}, list[i].Disabled); diff != "" || err != nil || !slices.Contains(list[i].Capabilities, "Pause") {
		t.Errorf("%v, %v, %s", list[i].Capabilities, err, diff)
	}
	env[settingDisable] = "processsessions"
	list, err = Providers(func(k string) string { return env[k] })
	if !fault.Is(err, fault.SettingInvalid) || !list[i].Enabled {
		t.Errorf("with what the server would refuse: %+v, %v", list[i], err)
	}
	env[settingDisable] = ""

	env[settingBackends] = "k8s"
	list, err = Providers(func(k string) string { return env[k] })
	if !fault.Is(err, fault.SettingInvalid) || len(list) == 0 || list[i].Enabled || list[i].Default {
		t.Errorf("with a backend that isn't installed: %+v, %v", list, err)
	}
}
