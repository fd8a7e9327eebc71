package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"github.com/astrabox/astrabox/internal/conversation"
	"github.com/astrabox/astrabox/internal/fault"
	_ "github.com/astrabox/astrabox/provider/all" // installs the bundled providers
	"github.com/astrabox/astrabox/sandbox"
)

// The settings that choose backends.
const (
	settingBackends = "ASTRABOX_SANDBOX_BACKENDS"
	settingBackend  = "ASTRABOX_SANDBOX_BACKEND"
	settingDisable  = "ASTRABOX_SANDBOX_DISABLE"
	settingVolume   = "ASTRABOX_SANDBOX_WORKSPACE_VOLUME"
)

// BackendSettings describes the settings that choose backends, for the docs.
func BackendSettings() []sandbox.Setting {
	return []sandbox.Setting{
		{Name: settingBackends, Doc: "names of the enabled providers, comma separated; blank: " + defaultBackend},
		{Name: settingBackend, Doc: "the provider for Environments that name none; needed when several are enabled"},
		{Name: settingDisable, Doc: "capabilities, and optional operations, that are taken as not there, comma separated: " + strings.Join(sandbox.Maskable(), ", ")},
		{Name: settingVolume, Doc: "storage for workspaces that outlives sandboxes; every enabled provider must have a route to it"},
	}
}

const (
	defaultBackend = "open_sandbox"
)

// backends is the choice of sandbox backends.
type backends struct {
	installed []sandbox.Driver
	enabled   []sandbox.Driver
	standard  string
	mask      []string // names of capabilities that are not to be used
}

func (b backends) has(name string) bool {
	return slices.ContainsFunc(b.enabled, func(d sandbox.Driver) bool { return d.Name == name })
}

func (b backends) names() string { return driverNames(b.enabled) }

func (b backends) installedNames() (names []string) {
	for _, d := range b.installed {
		names = append(names, d.Name)
	}
	return names
}

func driverNames(drivers []sandbox.Driver) string {
	return strings.Join(backends{installed: drivers}.installedNames(), ", ")
}

// chooseBackends reads the choice. Whatever names something that isn't there
// is refused, with what is there.
func chooseBackends(getenv func(string) string, log *slog.Logger) (backends, error) {
	installed, err := sandbox.Installed()
	if err != nil {
		return backends{}, fault.Wrap(fault.SettingInvalid, err, "A sandbox provider of this program can't be used: %s.", strings.TrimSuffix(publicText(err), "."))
	}
	return choose(installed, getenv, log)
}

func choose(installed []sandbox.Driver, getenv func(string) string, log *slog.Logger) (b backends, err error) {
	b.installed = installed
	if err := b.enable(words(getenv(settingBackends))); err != nil {
		return backends{}, err
	}
	if err := b.chooseDefault(word(getenv(settingBackend))); err != nil {
		return backends{}, err
	}
	if b.mask, err = sandbox.ParseMask(getenv(settingDisable)); err != nil {
		return backends{}, invalid("%s: %s.", settingDisable, publicText(err))
	}
	b.warn(getenv, log)
	return b, nil
}

func invalid(format string, args ...any) error {
	return fault.New(fault.SettingInvalid, format, args...)
}

func (b *backends) enable(names []string) error {
	if len(names) == 0 {
		names = []string{defaultBackend}
	}
	for _, name := range names {
		i := slices.IndexFunc(b.installed, func(d sandbox.Driver) bool { return d.Name == name })
		switch {
		case i < 0:
			return invalid("%s names %q, which is not installed. Installed: %s.", settingBackends, name, driverNames(b.installed))
		case !b.has(name):
			b.enabled = append(b.enabled, b.installed[i])
		}
	}
	return nil
}

func (b *backends) chooseDefault(name string) error {
	switch {
	case name == "" && len(b.enabled) == 1:
		name = b.enabled[0].Name
	case name == "":
		return invalid("Several backends are enabled (%s): set %s to the one that Environments use by default.", b.names(), settingBackend)
	case !b.has(name):
		return invalid("%s names %q, which is not enabled. Enabled: %s.", settingBackend, name, b.names())
	}
	b.standard = name
	return nil
}

// masked gives the flags that a driver declares and the mask takes away, in
// the order of sandbox.Rules: as for sandbox.Bind, one that requires a masked
// one goes with it.
func masked(d sandbox.Driver, mask []string) (flags []string) {
	for _, r := range sandbox.Rules() {
		if r.Declared(d.Declares) && (slices.Contains(mask, r.Flag) || r.Requires != "" && slices.Contains(mask, r.Requires)) {
			flags = append(flags, r.Flag)
		}
	}
	return flags
}

// agentNeeds is what the default Agent needs of its backend: its program is a
// long-lived process.
const agentNeeds = "ProcessSessions"

// runsAgent reports whether the default Agent can run on a driver's sandboxes.
func (b backends) runsAgent(d sandbox.Driver) bool {
	r, ok := sandbox.RuleOf(agentNeeds)
	return ok && r.Declared(d.Declares) && !slices.Contains(masked(d, b.mask), agentNeeds)
}

// unfit says why the default Agent can't run on the default backend, and what
// to set; both empty: it can. A server with nothing that can be talked to isn't
// started.
func (b backends) unfit() (why, fix string) {
	var fitEnabled, fitInstalled []sandbox.Driver
	var standard sandbox.Driver
	for _, d := range b.installed {
		if d.Name == b.standard {
			standard = d
		}
		if b.runsAgent(d) {
			fitInstalled = append(fitInstalled, d)
			if b.has(d.Name) {
				fitEnabled = append(fitEnabled, d)
			}
		}
	}
	if b.runsAgent(standard) {
		return "", ""
	}
	why = "The default Agent, " + conversation.DefaultAgent + ", can't run on the default backend, " + b.standard + ": it needs the capability " + agentNeeds
	if slices.Contains(b.mask, agentNeeds) { // of every backend, so another one is no help
		return why + ", which " + settingDisable + " takes away.", "take " + agentNeeds + " out of " + settingDisable
	}
	why += ", which that backend doesn't have."
	switch {
	case len(fitEnabled) > 0:
		fix = "set " + settingBackend + " to a backend that has it: " + driverNames(fitEnabled)
	case len(fitInstalled) > 0:
		fix = "name a backend that has it in " + settingBackends + " and " + settingBackend + ": " + driverNames(fitInstalled)
	default:
		fix = "install a provider that has it; none of those installed does (" + driverNames(b.installed) + ")"
	}
	return why, fix
}

// fits is unfit as an error.
func (b backends) fits() error {
	why, fix := b.unfit()
	if why == "" {
		return nil
	}
	return invalid("%s To help: %s.", why, fix)
}

// warn says once of each setting that nobody reads it: its provider is
// installed, but not enabled. The value isn't shown, it may be a secret.
func (b *backends) warn(getenv func(string) string, log *slog.Logger) {
	read := map[string]bool{}
	for _, d := range b.enabled {
		for _, s := range d.Settings {
			read[s.Name] = true
		}
	}
	for _, d := range b.installed {
		for _, s := range d.Settings {
			if !b.has(d.Name) && !read[s.Name] && strings.TrimSpace(getenv(s.Name)) != "" {
				log.Warn("a setting has no effect: its sandbox provider is not enabled", "setting", s.Name, "provider", d.Name)
			}
		}
	}
}

// word reads one name; blank is unset.
func word(s string) string { return strings.ToLower(strings.TrimSpace(s)) }

// words reads names that commas separate; a blank one is none.
func words(list string) (out []string) {
	for w := range strings.SplitSeq(list, ",") {
		if w = word(w); w != "" {
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
		bound, err := d.Open(ctx, sandbox.Host{Getenv: bundled.getenv(c.Getenv), Log: c.Log.With("provider", d.Name), InstallationID: s.installation,
			ExecdPath: c.path("ASTRABOX_EXECD_PATH", "execd")}, b.mask...)
		if err != nil {
			return out, fault.Wrap(fault.SettingInvalid, err, "The sandbox backend %s can't be used: %s.", d.Name, strings.TrimSuffix(publicText(err), "."))
		}
		out = append(out, bound)
	}
	if strings.TrimSpace(c.Getenv(settingVolume)) != "" {
		if err := needRoutes(out); err != nil {
			return out, err
		}
	}
	return out, nil
}

// needRoutes refuses the enabled backends that have no persistent storage for
// the workspaces that the deployment asks for.
func needRoutes(bound []*sandbox.Bound) error {
	var without []string
	for _, b := range bound {
		if _, ok := b.WorkspaceRoute(); !ok {
			without = append(without, b.Name())
		}
	}
	if len(without) == 0 {
		return nil
	}
	return invalid("%s is set, but these enabled backends have no persistent storage for workspaces: %s. Unset it, or leave them out of %s.",
		settingVolume, strings.Join(without, ", "), settingBackends)
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
