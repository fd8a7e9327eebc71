package sandbox

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
)

// SeamVersion is the version of this contract. A driver states the one that it
// was built against; another major version is refused.
const SeamVersion = "1.0"

// Driver is an installed provider, inert until New is called.
type Driver struct {
	Name        string // [a-z][a-z0-9_]*, the same for ever
	SeamVersion string // the constant, as text: "1.0"
	// Settings are the environment variables that only this provider reads.
	Settings []Setting
	// Declares equals the Capabilities() of what New returns, so that it is
	// known what a provider can do before it is made.
	Declares Capabilities
	// New makes the provider. It is called for enabled backends only, once per
	// process. A backend that isn't there yet is no error.
	New func(ctx context.Context, h Host) (Provider, error)

	origin Origin
}

// Setting is an environment variable that a provider owns.
type Setting struct {
	Name   string
	Secret bool
	Doc    string
}

// Host is all that a provider gets from AstraBox. It may import nothing internal.
type Host struct {
	Getenv         func(string) string
	Log            *slog.Logger
	InstallationID string
	// PoolStore is nil where the deployment keeps no pools.
	PoolStore PoolStore
	ExecdPath string // of the execd binary, for providers that inject it
}

// Origin is the Go module that a driver came from.
type Origin struct {
	Package string // import path of what called Register
	Module  string // empty: not known
	Version string // empty: not known
	Main    bool   // it is the module of the program itself
}

// Origin says where a registered driver came from.
func (d Driver) Origin() Origin { return d.origin }

var nameForm = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// registry is the list of drivers; there is one per process, tests apart.
type registry struct {
	mu       sync.Mutex
	drivers  []Driver
	refusals []string
}

var installed registry

// Register installs a driver. It is called when the provider's package is
// imported and never panics: what is wrong is collected for [Installed], and
// the server refuses to start with it.
func Register(d Driver) {
	d.origin = originOf(callerPackage(2))
	installed.add(d)
}

func (r *registry) add(d Driver) {
	r.mu.Lock()
	defer r.mu.Unlock()
	wrong := d.wrong()
	if i := slices.IndexFunc(r.drivers, func(o Driver) bool { return o.Name == d.Name }); i >= 0 {
		wrong = append(wrong, "the name is taken by the driver of "+r.drivers[i].origin.String())
	}
	if len(wrong) > 0 {
		r.refusals = append(r.refusals, fmt.Sprintf("provider %q of %s: %s", shorten(d.Name, 80), d.origin, strings.Join(wrong, "; ")))
		return
	}
	r.drivers = append(r.drivers, d)
}

// wrong names everything that can be seen to be wrong without making the provider.
func (d Driver) wrong() (wrong []string) {
	if !nameForm.MatchString(d.Name) {
		wrong = append(wrong, "the name must match "+nameForm.String())
	}
	if major(d.SeamVersion) != major(SeamVersion) {
		wrong = append(wrong, fmt.Sprintf("it was built for seam version %q, this is %s", d.SeamVersion, SeamVersion))
	}
	if d.New == nil {
		wrong = append(wrong, "New is nil")
	}
	seen := map[string]bool{}
	for _, s := range d.Settings {
		switch {
		case s.Name == "":
			wrong = append(wrong, "a setting has no name")
		case strings.ContainsAny(s.Name, "=\x00") || strings.ContainsFunc(s.Name, func(r rune) bool { return r <= ' ' }):
			wrong = append(wrong, fmt.Sprintf("%q can't be the name of a setting", shorten(s.Name, 80)))
		case seen[s.Name]:
			wrong = append(wrong, "the setting "+s.Name+" is there twice")
		}
		seen[s.Name] = true
	}
	return append(wrong, d.Declares.wrong()...)
}

func major(v string) string { m, _, _ := strings.Cut(v, "."); return m }

// Installed gives the drivers by name, and an error that names everything that
// was refused: provider, package, module, and all that is wrong with each.
func Installed() ([]Driver, error) { return installed.list() }

func (r *registry) list() ([]Driver, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.drivers)
	slices.SortFunc(out, func(a, b Driver) int { return strings.Compare(a.Name, b.Name) })
	if len(r.refusals) > 0 {
		return out, Errorf(CodeInvalid, "%s", strings.Join(r.refusals, "\n"))
	}
	return out, nil
}

// String gives module and version, as far as they are known.
func (o Origin) String() string {
	switch {
	case o.Module == "":
		return "package " + o.Package
	case o.Version == "":
		return "module " + o.Module
	}
	return "module " + o.Module + " " + o.Version
}

// callerPackage gives the import path of the function that many calls up.
func callerPackage(skip int) string {
	pc, _, _, ok := runtime.Caller(skip)
	if !ok {
		return ""
	}
	name := runtime.FuncForPC(pc).Name()
	// path/to/pkg.init.0: the package ends at the first dot after the last slash.
	slash := strings.LastIndexByte(name, '/') + 1
	if dot := strings.IndexByte(name[slash:], '.'); dot >= 0 {
		name = name[:slash+dot]
	}
	return strings.ReplaceAll(name, "%2e", ".") // a dot in the last element of a path
}

// originOf finds the module of a package in what the binary says of itself.
func originOf(pkg string) Origin {
	o := Origin{Package: pkg}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return o
	}
	for _, m := range append([]*debug.Module{&info.Main}, info.Deps...) {
		if m.Path == "" || pkg != m.Path && !strings.HasPrefix(pkg, m.Path+"/") || len(m.Path) < len(o.Module) {
			continue
		}
		o.Module, o.Version, o.Main = m.Path, m.Version, m == &info.Main
		if m.Replace != nil && m.Replace.Version != "" {
			o.Version = m.Replace.Version
		}
	}
	return o
}
