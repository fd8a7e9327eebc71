package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/app"
	"github.com/astrabox/astrabox/internal/bench"
	"github.com/astrabox/astrabox/internal/demo"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/sandboxd"
	"github.com/astrabox/astrabox/internal/verify"
	"github.com/astrabox/astrabox/internal/version"
	"github.com/astrabox/astrabox/sandbox"
)

// stateDir adds the flag of commands that work on a state directory.
func (c *command) stateDir(cmd *cobra.Command, into *string) {
	def := c.Getenv("ASTRABOX_STATE_DIR")
	if def == "" {
		def = ".astrabox"
	}
	cmd.Flags().StringVar(into, "state-dir", def, "directory for everything that is kept; $ASTRABOX_STATE_DIR")
}

// logger writes to the error stream.
func (c *command) logger(level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usage("--log-level must be debug, info, warn or error")
	}
	return slog.New(slog.NewTextHandler(c.Stderr, &slog.HandlerOptions{Level: l})), nil
}

// untilInterrupted gives a context that the first Ctrl-C ends. After it the
// signal is the system's again, so that a second one kills. The end of whoever
// reads the output ("| head") ends it, too, and never kills: what was made has
// to be taken away.
func (c *command) untilInterrupted(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	interrupts, stop := c.Interrupts()
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-interrupts:
				stop()
				cancel()
				return
			case <-broken:
				if unread(1) || unread(2) { // standard output and error
					cancel()
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(); <-done; stop(); signal.Stop(broken) }
}

// unread reports whether nobody can read what is written to a descriptor any
// more. SIGPIPE alone doesn't tell: it comes for every connection whose client
// went away, too.
func unread(fd int32) bool {
	fds := []unix.PollFd{{Fd: fd}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
}

func (c *command) serveCommand() *cobra.Command {
	config := app.Config{Version: version.Version, Executable: c.Executable, Getenv: c.Getenv, Out: c.Stdout}
	var level string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Start the server: the API, the console and the sandbox service",
		Long: `Start the server and stop it with Ctrl-C. It listens on this machine only: it
has no login. The bundled sandbox service is started, or found when it runs,
unless ASTRABOX_SANDBOX_OPENAPI_BASE_URL names another one. At a clean stop
turns are interrupted and sandboxes paused; --keep-sandboxes leaves both to run.`,
		Args: nArgs(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if config.Log, err = c.logger(level); err != nil {
				return err
			}
			if config.IdleAfter == 0 {
				return usage("--idle-after must not be 0; negative means never")
			}
			ctx, done := c.untilInterrupted(cmd.Context())
			defer done()
			return app.Run(ctx, config)
		},
	}
	c.stateDir(cmd, &config.StateDir)
	cmd.Flags().StringVar(&config.Listen, "listen", "127.0.0.1:8088", "loopback address and port to listen on")
	cmd.Flags().StringSliceVar(&config.Hosts, "allow-host", nil, "name that requests may be addressed to, beside localhost (for a proxy in front)")
	cmd.Flags().DurationVar(&config.IdleAfter, "idle-after", 30*time.Minute, "pause a sandbox that wasn't used for this long; negative: never")
	cmd.Flags().BoolVar(&config.KeepSandboxes, "keep-sandboxes", false, "leave sandboxes running when the server stops")
	cmd.Flags().StringVar(&level, "log-level", "info", "debug, info, warn or error")
	return cmd
}

func (c *command) sandboxdCommand() *cobra.Command {
	config := sandboxd.Config{Version: version.Version}
	cmd := &cobra.Command{
		Use:   "sandboxd",
		Short: "Run the bundled sandbox service alone (as root); serve starts it by itself",
		Args:  nArgs(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, done := c.untilInterrupted(cmd.Context())
			defer done()
			return sandboxd.Run(ctx, config)
		},
	}
	c.stateDir(cmd, &config.StateDir)
	cmd.Flags().StringVar(&config.Listen, "listen", "127.0.0.1:0", "loopback address and port to listen on")
	return cmd
}

func (c *command) doctorCommand() *cobra.Command {
	config := app.Config{Version: version.Version, Executable: c.Executable, Getenv: c.Getenv}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check whether this machine can run sandboxes, and say what helps",
		Long: `Check this machine without a server; with --server, ask that server about its
machine. Exit code 1: something that is needed is missing.`,
		Args: nArgs(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			findings, err := c.findings(cmd.Context(), config)
			if err != nil {
				return err
			}
			return c.showFindings(findings)
		},
	}
	c.stateDir(cmd, &config.StateDir)
	return cmd
}

func (c *command) findings(ctx context.Context, config app.Config) ([]wire.Finding, error) {
	if c.server == "" {
		return app.Doctor(ctx, config)
	}
	api, err := c.client()
	if err != nil {
		return nil, err
	}
	list, err := api.Doctor(ctx)
	return list.Items, err
}

func (c *command) showFindings(findings []wire.Finding) error {
	var err error
	if c.json {
		if err := c.printJSON(wire.Items[wire.Finding]{Items: findings}); err != nil {
			return err
		}
	}
	for _, f := range findings {
		mark := "ok"
		if !f.OK {
			mark = f.Severity
			if f.Severity == "error" {
				err = exitError(ExitFailure)
			}
		}
		if c.json {
			continue
		}
		fmt.Fprintf(c.Stdout, "%-8s %s: %s\n", mark, f.ID, f.Summary)
		if !f.OK && f.Fix != "" {
			fmt.Fprintf(c.Stdout, "         fix: %s\n", f.Fix)
		}
	}
	return err
}

func (c *command) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version and the sandbox providers of this program",
		Args:  nArgs(0, 0),
		RunE: func(*cobra.Command, []string) error {
			_, err := sandbox.Installed()
			list, _ := app.Providers(c.Getenv) // what is wrong with the choice of backends is "provider list"'s to say
			if c.json {
				return errors.Join(c.printJSON(map[string]any{"version": version.Version, "seam": sandbox.SeamVersion, "providers": list}), err)
			}
			fmt.Fprintf(c.Stdout, "astrabox %s (seam %s)\n", version.Version, sandbox.SeamVersion)
			for _, p := range list {
				fmt.Fprintf(c.Stdout, "provider %s: %s %s\n", p.Name, cmp.Or(p.Module, p.Package), p.Version)
			}
			return err
		},
	}
}

func (c *command) demoCommand() *cobra.Command {
	var backend string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Walk the main path against the real thing and check every step (as root)",
		Args:  nArgs(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if backend != "" {
				if _, err := verify.Find(backend); err != nil {
					return usage("--backend: %v", err)
				}
			}
			ctx, done := c.untilInterrupted(cmd.Context())
			defer done()
			err := demo.Run(ctx, demo.Options{Exe: c.Executable, Backend: backend, JSON: c.json, Out: c.Stdout})
			if errors.Is(err, demo.ErrFailed) {
				return exitError(ExitFailure)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&backend, "backend", "", "sandbox backend to walk with")
	return cmd
}

func (c *command) benchCommand() *cobra.Command {
	o := bench.Options{Exe: c.Executable, Out: c.Stdout}
	var only string
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure beside floors in the same run (as root)",
		Long: "Measure, beside floors in the same run, a server and sandboxes of its own (as root).\n\nMeasures:\n  " +
			strings.Join(bench.Names(), "\n  "),
		Args: nArgs(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			for name := range strings.SplitSeq(only, ",") {
				if name = strings.TrimSpace(name); name == "" {
					continue
				}
				if !slices.Contains(bench.Names(), name) {
					return usage("no measure is called %q", name)
				}
				o.Only = append(o.Only, name)
			}
			ctx, done := c.untilInterrupted(cmd.Context())
			defer done()
			return bench.Run(ctx, o)
		},
	}
	cmd.Flags().StringVar(&only, "only", "", "names of measures, comma separated; empty: all")
	cmd.Flags().StringVar(&o.Dir, "out", "bench/out", "directory for the results")
	cmd.Flags().IntVar(&o.N, "n", 0, "samples of the slow measures; 0: 20")
	return cmd
}
