package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"github.com/astrabox/astrabox/internal/fault"
	_ "github.com/astrabox/astrabox/provider/all" // installs the bundled providers
	"github.com/astrabox/astrabox/sandbox"
)

// The settings that choose backends.
const (
	settingBackends = "ASTRABOX_SANDBOX_BACKENDS" // names, comma separated
	settingBackend  = "ASTRABOX_SANDBOX_BACKEND"  // the one for Environments that name none
	settingDisable  = "ASTRABOX_SANDBOX_DISABLE"  // capabilities taken as not there, comma separated

	defaultBackend = "open_sandbox"
)

// backends is the choice of sandbox backends.
type backends struct {
	enabled  []sandbox.Driver
	standard string
	mask     []string // names of capabilities that are not to be used
}

func (b backends) has(name string) bool {
	return slices.ContainsFunc(b.enabled, func(d sandbox.Driver) bool { return d.Name == name })
}

func (b backends) names() string { return driverNames(b.enabled) }

func driverNames(drivers []sandbox.Driver) string {
	var names []string
	for _, d := range drivers {
		names = append(names, d.Name)
	}
	return strings.Join(names, ", ")
}

// chooseBackends reads the choice. Whatever names something that isn't there
// is refused, with what is there.
func chooseBackends(getenv func(string) string, log *slog.Logger) (backends, error) {
	installed, err := sandbox.Installed()
	if err != nil {
		return backends{}, fault.Wrap(fault.SettingInvalid, err, "A sandbox provider of this program can't be used: %v.", err)
	}
	return choose(installed, getenv, log)
}

func choose(installed []sandbox.Driver, getenv func(string) string, log *slog.Logger) (b backends, err error) {
	invalid := func(format string, args ...any) (backends, error) {
		return backends{}, fault.New(fault.SettingInvalid, format, args...)
	}
	names := words(getenv(settingBackends))
	if len(names) == 0 {
		names = []string{defaultBackend}
	}
	for _, name := range names {
		name = strings.ToLower(name)
		i := slices.IndexFunc(installed, func(d sandbox.Driver) bool { return d.Name == name })
		switch {
		case i < 0:
			return invalid("%s names %q, which is not installed. Installed: %s.", settingBackends, name, driverNames(installed))
		case !b.has(name):
			b.enabled = append(b.enabled, installed[i])
		}
	}
	b.standard = strings.ToLower(strings.TrimSpace(getenv(settingBackend)))
	switch {
	case b.standard == "" && len(b.enabled) == 1:
		b.standard = b.enabled[0].Name
	case b.standard == "":
		return invalid("Several backends are enabled (%s): set %s to the one that Environments use by default.", b.names(), settingBackend)
	case !b.has(b.standard):
		return invalid("%s names %q, which is not enabled. Enabled: %s.", settingBackend, b.standard, b.names())
	}
	flags := sandbox.Maskable()
	for _, flag := range words(getenv(settingDisable)) {
		i := slices.IndexFunc(flags, func(f string) bool { return strings.EqualFold(f, flag) })
		if i < 0 {
			return invalid("%s names %q, which is nothing that can be disabled. There are: %s.", settingDisable, flag, strings.Join(flags, ", "))
		}
		b.mask = append(b.mask, flags[i])
	}
	for _, d := range installed {
		if b.has(d.Name) {
			continue
		}
		for _, s := range d.Settings {
			if getenv(s.Name) != "" {
				log.Warn("a setting has no effect: its sandbox provider is not enabled", "setting", s.Name, "provider", d.Name)
			}
		}
	}
	return b, nil
}

func words(list string) (out []string) {
	for w := range strings.SplitSeq(list, ",") {
		if w = strings.TrimSpace(w); w != "" {
			out = append(out, w)
		}
	}
	return out
}

// bindBackends makes the enabled providers and holds them to what they declare.
func bindBackends(ctx context.Context, c Config, s *state, b backends, bundled *bundled) (out []*sandbox.Bound, err error) {
	defer func() {
		if err != nil {
			closeBackends(c.Log, out)
		}
	}()
	for _, d := range b.enabled {
		p, err := d.New(ctx, sandbox.Host{Getenv: bundled.getenv(c.Getenv), Log: c.Log.With("provider", d.Name), InstallationID: s.installation,
			ExecdPath: c.path("ASTRABOX_EXECD_PATH", "execd")})
		if err != nil {
			return out, fault.Wrap(fault.SettingInvalid, err, "The sandbox backend %s can't be used: %s.", d.Name, strings.TrimSuffix(publicText(err), "."))
		}
		bound, err := sandbox.Bind(d, p, b.mask...)
		if err != nil {
			return out, fault.Wrap(fault.SettingInvalid, err, "The sandbox backend %s can't be used: %s.", d.Name, publicText(err))
		}
		out = append(out, bound)
	}
	return out, nil
}

func publicText(err error) string { return fault.From(err).Public }

// closeBackends lets go of the providers' resources. One that fails strands
// no other.
func closeBackends(log *slog.Logger, bound []*sandbox.Bound) {
	for _, b := range bound {
		if err := b.Close(); err != nil && !errors.Is(err, context.Canceled) {
			log.Warn("a sandbox provider didn't close", "provider", b.Name(), "error", err)
		}
	}
}
