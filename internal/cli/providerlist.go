package cli

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/astrabox/astrabox/internal/app"
)

func (c *command) providerListCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the installed providers, what they declare, and which are enabled", Args: nArgs(0, 0),
		Long: `List the sandbox providers of this program: where each comes from, the
capabilities that it declares, the settings that only it reads, and whether
ASTRABOX_SANDBOX_BACKENDS enables it. No provider is started. Exit code 1: the
server would refuse to start with these providers or settings, and why.`,
		RunE: func(*cobra.Command, []string) error {
			list, err := app.Providers(c.Getenv)
			if c.json {
				return errors.Join(c.printJSON(map[string]any{"providers": list}), err)
			}
			var rows [][]string
			for _, p := range list {
				state := "installed"
				switch {
				case p.Default:
					state = "default"
				case p.Enabled:
					state = "enabled"
				}
				var settings []string
				for _, s := range p.Settings {
					if s.Set {
						settings = append(settings, s.Name)
					}
				}
				rows = append(rows, []string{p.Name, state, p.Module, p.Version, p.Seam, strings.Join(p.Capabilities, " "), strings.Join(settings, " ")})
			}
			return errors.Join(c.table([]string{"NAME", "STATE", "MODULE", "VERSION", "SEAM", "CAPABILITIES", "SETTINGS SET"}, rows), err)
		},
	}
}
