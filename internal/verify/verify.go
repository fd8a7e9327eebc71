// Package verify checks an installed sandbox provider against the contract:
// it makes the provider from this process's settings, starts the bundled
// service where open_sandbox has no other, and runs the conformance suites.
// `astrabox provider verify` calls it.
//
// Run is for one goroutine. A provider that panics or hangs is reported, and
// leaves at most a goroutine behind.
package verify

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/astrabox/astrabox/internal/ownnet"
	"github.com/astrabox/astrabox/internal/sandboxd"
	"github.com/astrabox/astrabox/internal/sandboxd/launch"
	_ "github.com/astrabox/astrabox/provider/all" // installs the bundled providers
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
)

// Options say what is verified and how.
type Options struct {
	Driver sandbox.Driver
	Exe    string // the astrabox program, for the bundled service
	Getenv func(string) string
	Log    *slog.Logger // what the provider says; nil: nowhere
	// Disable are capabilities that are taken as not declared.
	Disable []string
	// Image is of the sandboxes that are made; Account an account of it with a
	// group of its name. ShortTTL as in conform.Live.
	Image, Account string
	ShortTTL       time.Duration
	Conform        conform.Options

	twin func(context.Context, sandbox.CreateSpec) (string, error) // of the bundled service
}

// Find gives the installed driver of a name. The error lists what is installed.
func Find(name string) (sandbox.Driver, error) {
	installed, err := sandbox.Installed()
	if err != nil {
		return sandbox.Driver{}, err
	}
	var names []string
	for _, d := range installed {
		if d.Name == strings.ToLower(strings.TrimSpace(name)) {
			return d, nil
		}
		names = append(names, d.Name)
	}
	return sandbox.Driver{}, fmt.Errorf("no sandbox provider %q is installed; there are: %s", name, strings.Join(names, ", "))
}

const bundledName = "open_sandbox"

// Bundled reports whether the provider would use the bundled service: it has
// none of its own configured.
func Bundled(d sandbox.Driver, getenv func(string) string) bool {
	return d.Name == bundledName && !slices.ContainsFunc(
		[]string{"ASTRABOX_SANDBOX_OPENAPI_BASE_URL", "ASTRABOX_SANDBOX_OPENAPI_LISTEN_FILE"},
		func(s string) bool { return getenv(s) != "" })
}

// ErrFailed: the run inside a network namespace of its own failed and has said why.
var ErrFailed = errors.New("verify: failed")

// Run verifies and hands the report to show. With the bundled service that
// happens in a network namespace of its own, in another process; out gets its
// output.
func Run(ctx context.Context, o Options, out io.Writer, show func(conform.Report) error) error {
	if !Bundled(o.Driver, o.Getenv) {
		return run(ctx, o, show)
	}
	err := ownnet.Run(ctx, out, func(ctx context.Context) (err error) {
		stop, err := o.startBundled(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
		return run(ctx, o, show)
	})
	if errors.Is(err, ownnet.ErrFailed) {
		return ErrFailed
	}
	return err
}

// startBundled starts the service on a temporary state directory and points
// the provider at it. stop ends it and removes the directory.
func (o *Options) startBundled(ctx context.Context) (stop func() error, err error) {
	state, err := os.MkdirTemp("", "astrabox-verify-")
	if err != nil {
		return nil, err
	}
	stop = func() error { return errors.Join(end(state), os.RemoveAll(state)) }
	if _, _, err := launch.Ensure(context.WithoutCancel(ctx), launch.Config{StateDir: state, Executable: o.Exe}); err != nil {
		return nil, errors.Join(err, stop())
	}
	o.twin = twin(state)
	settings := map[string]string{
		"ASTRABOX_SANDBOX_OPENAPI_LISTEN_FILE": sandboxd.ListenFile(state),
		"ASTRABOX_SANDBOX_OPENAPI_KEY_FILE":    sandboxd.KeyFile(state),
		"ASTRABOX_SANDBOX_OPENAPI_KEY":         "", // of a service that isn't used
	}
	other := o.Getenv
	o.Getenv = func(name string) string {
		if v, ok := settings[name]; ok {
			return v
		}
		return other(name)
	}
	return stop, nil
}

// end stops the service of a state directory, if one runs. It was started by
// this process, so its number can't be another's before it was waited for.
func end(state string) error {
	l, err := sandboxd.ReadListening(state)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := syscall.Kill(l.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	ended := time.Now().Add(30 * time.Second)
	for time.Now().Before(ended) {
		_, _ = syscall.Wait4(l.PID, nil, syscall.WNOHANG, nil) // a child of ours is reaped
		locked, err := sandboxd.Locked(state)
		if err != nil || !locked {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("verify: the service of %s (process %d) doesn't end", state, l.PID)
}

// run makes the provider and runs the suites.
func run(ctx context.Context, o Options, show func(conform.Report) error) (err error) {
	host := sandbox.Host{Getenv: o.Getenv, Log: o.Log, InstallationID: conform.Installation, ExecdPath: filepath.Join(filepath.Dir(o.Exe), "execd")}
	if host.Log == nil {
		host.Log = slog.New(slog.DiscardHandler)
	}
	if p := strings.TrimSpace(o.Getenv("ASTRABOX_EXECD_PATH")); p != "" {
		host.ExecdPath = p
	}
	for _, s := range o.Driver.Settings {
		if s.Secret {
			o.Conform.Secrets = append(o.Conform.Secrets, o.Getenv(s.Name))
		}
	}
	o.Conform.Provider = o.Driver.Name

	var p sandbox.Provider
	if err := conform.Safely(ctx, time.Minute, func(ctx context.Context) (err error) {
		p, err = o.Driver.New(ctx, host)
		return err
	}); err != nil {
		return fmt.Errorf("the provider %s can't be made: %w", o.Driver.Name, err)
	}
	defer func() { err = errors.Join(err, closeProvider(ctx, p)) }()
	cases := conform.Structural(conform.Subject{Driver: o.Driver, Provider: p, Host: host, Mask: o.Disable})

	live, bindErr := o.bind(ctx, p)
	if bindErr == nil {
		defer func() { err = errors.Join(err, live.Close(context.WithoutCancel(ctx))) }()
		cases = append(cases, live.Cases()...)
	} else {
		cases = append(cases, conform.Unbound(bindErr)...)
	}
	err = show(conform.Check(ctx, cases, o.Conform))
	if ctx.Err() != nil {
		return ctx.Err() // that it was cut short is why it isn't whole
	}
	return err
}

func (o Options) bind(ctx context.Context, p sandbox.Provider) (*conform.Live, error) {
	var b *sandbox.Bound
	if err := conform.Safely(ctx, 10*time.Second, func(context.Context) (err error) {
		b, err = sandbox.Bind(o.Driver, p, o.Disable...)
		return err
	}); err != nil {
		return nil, err
	}
	return &conform.Live{Provider: b, Account: o.Account, ShortTTL: o.ShortTTL, Twin: o.twin, Spec: func() sandbox.CreateSpec {
		return sandbox.CreateSpec{
			Image:            o.Image,
			ResourceLimits:   map[string]string{"cpu": "2", "memory": "1Gi", "pids": "1024"},
			ResourceRequests: map[string]string{"cpu": "100m", "memory": "128Mi"},
			TTL:              15 * time.Minute,
		}
	}}, nil
}

func closeProvider(ctx context.Context, p sandbox.Provider) error {
	c, ok := p.(io.Closer)
	if !ok {
		return nil
	}
	return conform.Safely(context.WithoutCancel(ctx), 10*time.Second, func(context.Context) error { return c.Close() })
}
