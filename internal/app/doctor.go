package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/sandboxd"
	"github.com/astrabox/astrabox/internal/sandboxd/host"
	"github.com/astrabox/astrabox/web"
)

// environment is what doctor looks at.
type environment struct {
	getenv     func(string) string
	executable string
	backends   backends
	host       *host.Config // nil: sandboxes run elsewhere
}

func (c Config) environment(stateDir string, b backends) environment {
	e := environment{getenv: c.Getenv, executable: c.Executable, backends: b}
	if needsBundled(c.Getenv, b) {
		e.host = &host.Config{StateDir: sandboxd.Dir(stateDir), RuncPath: c.path("ASTRABOX_RUNC_PATH", "runc"), ExecdPath: c.path("ASTRABOX_EXECD_PATH", "execd")}
	}
	return e
}

// doctor checks the machine and what belongs to this program.
func doctor(ctx context.Context, e environment) []wire.Finding {
	var out []wire.Finding
	if e.host != nil {
		for _, f := range host.Check(ctx, *e.host) {
			out = append(out, wire.Finding{ID: f.ID, OK: f.OK, Severity: string(f.Severity), Summary: f.Summary, Fix: f.Fix})
		}
	}
	backend := wire.Finding{ID: "backend." + e.backends.standard, Severity: string(host.Error), OK: true,
		Summary: "the default Agent can run on the default backend, " + e.backends.standard}
	if why, fix := e.backends.unfit(); why != "" {
		backend.OK, backend.Summary, backend.Fix = false, why, fix
	}
	out = append(out, backend)
	for _, p := range agentprogram.All() {
		if p.Binary == nil {
			continue
		}
		f := wire.Finding{ID: "program." + p.ID, OK: true, Severity: string(host.Error)}
		path, err := p.Binary.Find(e.getenv, e.executable)
		if err != nil {
			f.OK, f.Summary = false, err.Error()
			f.Fix = fmt.Sprintf("build it with \"make build\", or set %s to its path", p.Binary.Setting)
		} else {
			f.Summary = "the Agent program " + p.ID + " is " + path
		}
		out = append(out, f)
	}
	f := wire.Finding{ID: "console", OK: true, Severity: string(host.Info), Summary: "the console is part of this program"}
	if _, built := web.Console(); !built {
		f.OK, f.Summary, f.Fix = false, "this program was built without the console", "install Node 20.19, 22.12 or newer and run \"make build\""
	}
	return append(out, f)
}

// Doctor checks what Run with the same settings would need, and starts nothing.
func Doctor(ctx context.Context, c Config) ([]wire.Finding, error) {
	b, err := chooseBackends(c.Getenv, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	// Looking at the state directory makes it. Where it wasn't, it is taken away
	// again: a look leaves nothing.
	for _, dir := range []string{c.StateDir, sandboxd.Dir(c.StateDir)} {
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			defer os.Remove(dir) // the inner one first; only an empty one goes
		}
	}
	return doctor(ctx, c.environment(c.StateDir, b)), nil
}

// doctorRoute is Doctor for the API.
func (c Config) doctorRoute(stateDir string, b backends) func(context.Context) []wire.Finding {
	return func(ctx context.Context) []wire.Finding { return doctor(ctx, c.environment(stateDir, b)) }
}

// refuse turns findings without which nothing can work into an error.
func refuse(findings []wire.Finding) error {
	var lines []string
	for _, f := range findings {
		if !f.OK && f.Severity == string(host.Error) {
			lines = append(lines, "\n  "+describe(f))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return fault.New(fault.HostUnfit, "This machine can't run sandboxes yet:%s", strings.Join(lines, ""))
}

func describe(f wire.Finding) string {
	if f.Fix == "" {
		return f.ID + ": " + f.Summary
	}
	return f.ID + ": " + f.Summary + "\n      fix: " + f.Fix
}

// announce tells a person where the server is and what it found.
func announce(c Config, address, stateDir string, b backends, service *bundled, findings []wire.Finding, took time.Duration) {
	w := c.Out
	fmt.Fprintf(w, "AstraBox %s is ready on http://%s (after %v)\n", c.Version, address, took.Round(time.Millisecond))
	where := ""
	if service != nil {
		where = ", with the bundled service at " + service.url
	}
	fmt.Fprintf(w, "  backend  %s%s\n  state    %s\n", b.names(), where, stateDir)
	announceFindings(w, findings)
	fmt.Fprintln(w, "Press Ctrl-C to stop; once more to stop at once.")
}

func announceFindings(w io.Writer, findings []wire.Finding) {
	var open []wire.Finding
	for _, f := range findings {
		if !f.OK {
			open = append(open, f)
		}
	}
	if len(open) == 0 {
		fmt.Fprintf(w, "  doctor   all %d checks passed\n", len(findings))
		return
	}
	fmt.Fprintf(w, "  doctor   %d of %d checks passed; the rest:\n", len(findings)-len(open), len(findings))
	for _, f := range open {
		fmt.Fprintf(w, "    %s: %s\n", f.Severity, strings.ReplaceAll(describe(f), "\n", "\n  "))
	}
}
