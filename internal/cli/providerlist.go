package cli

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/astrabox/astrabox/internal/app"
)

func (c *command) providerListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the installed providers, what they declare and read, and which are enabled", Args: nArgs(0, 0),
		Long: `List the sandbox providers of this program: where each comes from, the
capabilities that it declares and which of them ASTRABOX_SANDBOX_DISABLE takes
away, the settings that only it reads, and whether ASTRABOX_SANDBOX_BACKENDS
enables it. Settings are environment variables; their values aren't shown. No
provider is started. Exit code 1: the server would refuse to start with these
providers or settings, and why.`,
		RunE: func(*cobra.Command, []string) error {
			list, err := app.Providers(c.Getenv)
			if c.json {
				return errors.Join(c.printJSON(map[string]any{"providers": list}), err)
			}
			return errors.Join(c.showProviders(list), err)
		},
	}
}

func (c *command) showProviders(list []app.Provider) error {
	var rows [][]string
	for _, p := range list {
		state := "installed"
		switch {
		case p.Default:
			state = "default"
		case p.Enabled:
			state = "enabled"
		}
		var capabilities []string
		for _, flag := range p.Capabilities {
			if slices.Contains(p.Disabled, flag) {
				flag += " (disabled)"
			}
			capabilities = append(capabilities, flag)
		}
		rows = append(rows, []string{p.Name, state, p.Module, p.Version, p.Seam, strings.Join(capabilities, ", ")})
	}
	if err := c.table([]string{"NAME", "STATE", "MODULE", "VERSION", "SEAM", "CAPABILITIES"}, rows); err != nil {
		return err
	}
	for _, p := range list {
		if len(p.Settings) == 0 {
			continue
		}
		fmt.Fprintf(c.Stdout, "\nSettings of %s:\n", harmless(p.Name))
		w := tabwriter.NewWriter(c.Stdout, 0, 0, 2, ' ', 0)
		for _, s := range p.Settings {
			state := "not set"
			if s.Set {
				state = "set"
			}
			if s.Secret {
				state += ", secret"
			}
			fmt.Fprintf(w, "  %s\t%s\t%s\n", harmless(s.Name), state, harmless(s.Doc))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}
