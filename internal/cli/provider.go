package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/verify"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform"
)

func (c *command) providerCommand() *cobra.Command {
	return group("provider", "Sandbox providers of this program", c.providerListCommand(), c.providerVerifyCommand())
}

func (c *command) providerVerifyCommand() *cobra.Command {
	o := verify.Options{Exe: c.Executable, Getenv: c.Getenv}
	var (
		list       bool
		only       string
		junit      string
		deviations []string
		level      string
	)
	cmd := &cobra.Command{
		Use:   "verify NAME",
		Short: "Check a sandbox provider against the contract, clause by clause",
		Long: `Check an installed sandbox provider against the contract of the sandbox seam:
first what can be told without a sandbox, then with sandboxes that are made and
destroyed for it. A capability that the provider declares must work; one that it
doesn't must be refused. The report says which promise broke, what was expected
and what was seen.

The provider reads its settings from the environment, as serve does; the
capabilities in ASTRABOX_SANDBOX_DISABLE count as not declared. Without a
lifecycle service configured, open_sandbox gets the bundled one, in a network
namespace of its own with a temporary state directory (as root).

Exit code 1: a promise is broken.`,
		Args: nArgs(0, 1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if only != "" {
				if o.Conform.Run, err = regexp.Compile(only); err != nil {
					return usage("--run: %v", err)
				}
				if !slices.ContainsFunc(conform.Clauses(), func(i conform.Info) bool { return o.Conform.Run.MatchString(i.ID) }) {
					return usage("--run matches no clause; --list shows them")
				}
			}
			if list {
				return c.listClauses(o.Conform.Run)
			}
			if len(args) != 1 {
				return usage("name the provider; use: %s", cmd.UseLine())
			}
			if o.Driver, err = verify.Find(args[0]); err != nil {
				return usageError{err}
			}
			if o.Disable, err = sandbox.ParseMask(c.Getenv("ASTRABOX_SANDBOX_DISABLE")); err != nil {
				return usage("ASTRABOX_SANDBOX_DISABLE: %s", fault.From(err).Public)
			}
			switch {
			case o.Conform.Timeout <= 0:
				return usage("--timeout must be above zero")
			case o.ShortTTL < 0:
				return usage("--short-ttl must not be negative")
			case strings.TrimSpace(o.Image) == "":
				return usage("--image must name an image")
			}
			if o.Conform.Deviations, err = deviationList(deviations); err != nil {
				return err
			}
			if level != "" {
				if o.Log, err = c.logger(level); err != nil {
					return err
				}
			}
			if !c.json {
				o.Conform.Observe = func(r conform.Result) {
					if r.Status == conform.NotRun { // hundreds, for one reason, which the report has
						return
					}
					fmt.Fprintf(c.Stdout, "%-12s %6d ms  %s\n", r.Status, r.Ms, r.ID)
				}
			}
			if junit != "" { // now, and not after minutes
				if err := writeFile(junit, func(io.Writer) error { return nil }); err != nil {
					return usage("--junit: %v", err)
				}
			}
			ctx, done := c.untilInterrupted(cmd.Context())
			defer done()
			err = verify.Run(ctx, o, c.Stdout, func(r conform.Report) error { return c.showReport(r, junit) })
			if errors.Is(err, verify.ErrFailed) {
				return exitError(ExitFailure)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.BoolVar(&list, "list", false, "print the clauses instead of checking them")
	f.StringVar(&only, "run", "", "check the clauses whose id matches this regular expression")
	f.StringVar(&junit, "junit", "", "also write the report to this file, as JUnit XML")
	f.StringArrayVar(&deviations, "deviation", nil, "ID=REASON of a clause that is known to fail; may be given more than once")
	f.StringVar(&o.Image, "image", "astrabox:host", "image of the sandboxes that are made")
	f.StringVar(&o.Account, "account", "agent", "account of the image, with a group of the same name; empty: clauses about owners are skipped")
	f.DurationVar(&o.ShortTTL, "short-ttl", 0, "shortest lease that the backend takes; without it clauses that wait for a sandbox to expire are skipped")
	f.DurationVar(&o.Conform.Timeout, "timeout", 30*time.Second, "for a clause that has no time of its own")
	f.StringVar(&level, "log-level", "", "show the provider's log: debug, info, warn or error")
	return cmd
}

func (c *command) listClauses(only *regexp.Regexp) error {
	all := slices.DeleteFunc(conform.Clauses(), func(i conform.Info) bool { return only != nil && !only.MatchString(i.ID) })
	if c.json {
		return c.printJSON(map[string]any{"clauses": all})
	}
	var rows [][]string
	for _, i := range all {
		rows = append(rows, []string{i.ID, i.Capability, i.Doc})
	}
	return c.table([]string{"ID", "CAPABILITY", "PROMISE"}, rows)
}

// showReport prints and, where a file is named, writes the report.
func (c *command) showReport(r conform.Report, junit string) error {
	if junit != "" {
		if err := writeFile(junit, r.WriteJUnit); err != nil {
			return err
		}
	}
	var err error
	if c.json {
		err = c.printJSON(r)
	} else {
		fmt.Fprintln(c.Stdout)
		err = r.WriteText(c.Stdout)
	}
	if err == nil && !r.OK() {
		return exitError(ExitFailure)
	}
	return err
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}

func deviationList(args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, a := range args {
		id, reason, ok := strings.Cut(a, "=")
		if !ok || strings.TrimSpace(reason) == "" {
			return nil, usage("--deviation wants ID=REASON, not %q", a)
		}
		if !slices.ContainsFunc(conform.Clauses(), func(i conform.Info) bool { return i.ID == id }) {
			return nil, usage("--deviation names %q, which is no clause; --list shows them", id)
		}
		out[id] = reason
	}
	return out, nil
}
