package sandbox

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// SeamVersion is the version of this contract. A driver states the one that it
// was built against; another major version is refused.
const SeamVersion = "1.0"

// Driver is an installed provider, inert until New is called.
type Driver struct {
	Name        string
	SeamVersion string
	// Settings are the environment variables that only this provider reads.
	Settings []Setting
	// Declares equals the Capabilities() of what New returns.
	Declares Capabilities
	// New makes the provider. It is called for enabled backends only.
	New func(ctx context.Context, h Host) (Provider, error)
}

// Setting is an environment variable that a provider owns.
type Setting struct {
	Name   string
	Secret bool
	Doc    string
}

// Host is all that a provider gets from AstraBox.
type Host struct {
	Getenv         func(string) string
	Log            *slog.Logger
	InstallationID string
	ExecdPath      string // of the execd binary, for providers that inject it
}

var (
	nameForm = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

	registryMu sync.Mutex
	registered []Driver
	refusals   []string
)

// Register installs a driver. It is called when the provider's package is
// imported and never panics: what is wrong is collected for [Installed].
func Register(d Driver) {
	registryMu.Lock()
	defer registryMu.Unlock()
	if wrong := d.wrong(); len(wrong) > 0 {
		refusals = append(refusals, fmt.Sprintf("provider %q: %s", d.Name, strings.Join(wrong, "; ")))
		return
	}
	if slices.ContainsFunc(registered, func(o Driver) bool { return o.Name == d.Name }) {
		refusals = append(refusals, fmt.Sprintf("provider %q is registered twice", d.Name))
		return
	}
	registered = append(registered, d)
}

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
	for _, s := range d.Settings {
		if s.Name == "" {
			wrong = append(wrong, "a setting has no name")
		}
	}
	return wrong
}

func major(v string) string { m, _, _ := strings.Cut(v, "."); return m }

// Installed gives the drivers by name, and an error that names everything that
// was refused.
func Installed() ([]Driver, error) {
	registryMu.Lock()
	defer registryMu.Unlock()
	out := slices.Clone(registered)
	slices.SortFunc(out, func(a, b Driver) int { return strings.Compare(a.Name, b.Name) })
	if len(refusals) > 0 {
		return out, Errorf(CodeInvalid, "%s", strings.Join(refusals, "\n"))
	}
	return out, nil
}

// Bound is a provider whose optional interfaces are resolved: a nil field is
// an operation that the backend doesn't have (or that was masked).
type Bound struct {
	Provider
	Caps      Capabilities
	Pauser    Pauser
	Finder    AssignmentFinder
	Inventory Inventory
}

// Bind checks a provider against its driver and the rules, and resolves its
// optional interfaces. Flags named in mask are taken as undeclared. The error
// names everything that is wrong.
func Bind(d Driver, p Provider, mask ...string) (*Bound, error) {
	if v := reflect.ValueOf(p); p == nil || (v.Kind() == reflect.Pointer && v.IsNil()) {
		return nil, Errorf(CodeInvalid, "provider %q: New returned no provider", d.Name)
	}
	var wrong []string
	if n := p.Name(); n != d.Name {
		wrong = append(wrong, fmt.Sprintf("it calls itself %q", n))
	}
	caps := p.Capabilities()
	if caps != d.Declares {
		wrong = append(wrong, fmt.Sprintf("it declares %+v, its driver %+v", caps, d.Declares))
	}
	b := &Bound{Provider: p, Caps: caps}
	for _, r := range Rules() {
		if slices.Contains(mask, r.Flag) {
			reflect.ValueOf(&b.Caps).Elem().FieldByName(r.Flag).SetBool(false)
			continue
		}
		if r.Declared(caps) && !r.bind(p, b) {
			wrong = append(wrong, fmt.Sprintf("it declares %s without %s", r.Flag, r.Needs))
		}
	}
	if len(wrong) > 0 {
		return nil, Errorf(CodeInvalid, "provider %q: %s", d.Name, strings.Join(wrong, "; "))
	}
	return b, nil
}

// Create is Provider.Create, with the handle held to the declared capabilities.
func (b *Bound) Create(ctx context.Context, spec CreateSpec) (Handle, error) {
	h, err := b.Provider.Create(ctx, spec)
	return b.check(h, err)
}

// Connect is Provider.Connect, with the handle held to the declared capabilities.
func (b *Bound) Connect(ctx context.Context, sandboxID string) (Handle, error) {
	if err := CheckID(sandboxID); err != nil {
		return nil, err
	}
	h, err := b.Provider.Connect(ctx, sandboxID)
	return b.check(h, err)
}

func (b *Bound) check(h Handle, err error) (Handle, error) {
	switch {
	case err != nil:
		return nil, err
	case h == nil || h.SandboxID() == "":
		return nil, Errorf(CodeUnavailable, "the backend %s gave a sandbox without an id", b.Name())
	case b.Caps.ProcessSessions && (h.Processes() == nil || IsUnsupportedProcesses(h.Processes())):
		return nil, Errorf(CodeInvalid, "the backend %s declares ProcessSessions, but its sandbox has no Processes", b.Name())
	}
	return h, nil
}
