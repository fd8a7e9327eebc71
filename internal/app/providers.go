package app

import (
	"io"
	"log/slog"
	"strings"

	"github.com/astrabox/astrabox/internal/version"
	"github.com/astrabox/astrabox/sandbox"
)

// Provider is an installed sandbox provider as the command line lists it.
type Provider struct {
	Name         string                    `json:"name"`
	Module       string                    `json:"module"`  // Go module that it came from
	Package      string                    `json:"package"` // that registered it
	Version      string                    `json:"version"` // of the module; this program's own for what it is built with
	Seam         string                    `json:"seam"`    // version of the contract
	Settings     []ProviderSetting         `json:"settings"`
	Capabilities []string                  `json:"capabilities"` // declared flags
	Disabled     []string                  `json:"disabled"`     // those of them that ASTRABOX_SANDBOX_DISABLE takes away
	Levels       []sandbox.PermissionLevel `json:"permission_levels"`
	Enabled      bool                      `json:"enabled"`
	Default      bool                      `json:"default"`
}

// ProviderSetting is an environment variable that only that provider reads.
// Its value isn't shown.
type ProviderSetting struct {
	Name   string `json:"name"`
	Doc    string `json:"doc"` // one line
	Secret bool   `json:"secret"`
	Set    bool   `json:"set"`
}

// Providers lists the installed providers by name, without making one. The
// error says what a server would refuse to start with; the list is there all
// the same, with nothing enabled when the choice of backends is what is wrong.
func Providers(getenv func(string) string) ([]Provider, error) {
	installed, err := sandbox.Installed()
	b, chosen := choose(installed, getenv, slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err == nil {
		err = chosen
	}
	if err == nil {
		err = b.fits()
	}
	mask, _ := sandbox.ParseMask(getenv(settingDisable)) // what is wrong with it is in chosen, unless something before it is
	out := []Provider{}
	for _, d := range installed {
		from := d.Origin()
		p := Provider{
			Name: d.Name, Module: from.Module, Package: from.Package, Version: from.Version, Seam: d.SeamVersion,
			Settings: []ProviderSetting{}, Capabilities: []string{}, Disabled: append([]string{}, masked(d, mask)...), Levels: d.Declares.Levels(),
			Enabled: chosen == nil && b.has(d.Name), Default: chosen == nil && b.standard == d.Name,
		}
		if from.Main {
			p.Version = version.Version
		}
		for _, s := range d.Settings {
			p.Settings = append(p.Settings, ProviderSetting{s.Name, strings.Join(strings.Fields(s.Doc), " "), s.Secret, word(getenv(s.Name)) != ""})
		}
		for _, r := range sandbox.Rules() {
			if r.Declared(d.Declares) {
				p.Capabilities = append(p.Capabilities, r.Flag)
			}
		}
		out = append(out, p)
	}
	return out, err
}
