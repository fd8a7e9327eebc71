package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

func (c *command) envCommand() *cobra.Command {
	return group("env", "Environments: how sandboxes are made", &cobra.Command{
		Use: "list", Short: "List the Environments", Args: nArgs(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			list, err := api.Environments(cmd.Context())
			if err != nil || c.json {
				return errors.Join(err, c.jsonIf(err == nil, list))
			}
			var rows [][]string
			for _, e := range list.Items {
				idle := string(e.Idle)
				if e.IdleSeconds > 0 {
					idle = fmt.Sprintf("%s after %ds", e.Idle, e.IdleSeconds)
				}
				rows = append(rows, []string{e.Name, e.Program, e.Backend, e.Image, e.Limits["cpu"], e.Limits["memory"], e.Limits["disk"], idle})
			}
			return c.table([]string{"NAME", "PROGRAM", "BACKEND", "IMAGE", "CPU", "MEMORY", "DISK", "IDLE"}, rows)
		},
	})
}

// jsonIf prints v when it is wanted.
func (c *command) jsonIf(wanted bool, v any) error {
	if !wanted {
		return nil
	}
	return c.printJSON(v)
}

func (c *command) agentCommand() *cobra.Command {
	return group("agent", "Agents: whom a conversation is with", &cobra.Command{
		Use: "list", Short: "List the Agents", Args: nArgs(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			list, err := api.Agents(cmd.Context())
			if err != nil || c.json {
				return errors.Join(err, c.jsonIf(err == nil, list))
			}
			var rows [][]string
			for _, a := range list.Items {
				rows = append(rows, []string{a.Name, a.Environment, a.Description})
			}
			return c.table([]string{"NAME", "ENVIRONMENT", "DESCRIPTION"}, rows)
		},
	})
}

func (c *command) conversationCommand() *cobra.Command {
	return group("conversation", "Conversations", c.conversationList(), c.conversationShow(), c.conversationDelete())
}

func (c *command) conversationList() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List conversations, newest first", Args: nArgs(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return usage("--limit must be 1 or more")
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			items := []model.Conversation{}
			for cursor := ""; len(items) < limit; {
				page, err := api.Conversations(cmd.Context(), cursor, min(limit-len(items), 200))
				if err != nil {
					return err
				}
				items = append(items, page.Items...)
				if cursor = page.NextCursor; cursor == "" {
					break
				}
			}
			if c.json {
				return c.printJSON(wire.Items[model.Conversation]{Items: items})
			}
			var rows [][]string
			for _, v := range items {
				rows = append(rows, []string{v.ID, v.Title, v.Agent, status(v), age(v.UpdatedAt)})
			}
			return c.table([]string{"ID", "TITLE", "AGENT", "STATE", "UPDATED"}, rows)
		},
	}
	cmd.Flags().IntVar(&limit, "limit", 50, "how many")
	return cmd
}

// status is a conversation's state in a word or two.
func status(v model.Conversation) string {
	switch {
	case v.State != model.Active:
		return string(v.State)
	case v.Turn != nil:
		return "working"
	case v.Runtime.State == model.RuntimeNone:
		return "no sandbox"
	}
	return string(v.Runtime.State)
}

func (c *command) conversationShow() *cobra.Command {
	return &cobra.Command{
		Use: "show CONVERSATION", Short: "Show one conversation", Args: nArgs(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			v, err := api.Conversation(cmd.Context(), args[0])
			if err != nil || c.json {
				return errors.Join(err, c.jsonIf(err == nil, v))
			}
			turn, gone := "", ""
			if v.Turn != nil {
				turn = v.Turn.ID + " (" + string(v.Turn.State) + ")"
			}
			if v.Destruction != nil {
				gone = v.Destruction.SandboxID + ": " + v.Destruction.Outcome + "; " + v.Destruction.Detail
			}
			queued := ""
			if v.Queued > 0 {
				queued = fmt.Sprint(v.Queued)
			}
			return c.list("id", v.ID, "title", v.Title, "agent", v.Agent, "environment", v.Environment, "state", string(v.State),
				"runtime", strings.TrimSpace(string(v.Runtime.State)+" "+v.Runtime.Reason), "sandbox", v.Runtime.SandboxID, "turn", turn, "queued", queued,
				"events", fmt.Sprint(v.LastSeq), "created", v.CreatedAt.Local().Format("2006-01-02 15:04:05"), "updated", v.UpdatedAt.Local().Format("2006-01-02 15:04:05"),
				"destruction", gone)
		},
	}
}

func (c *command) conversationDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete CONVERSATION...", Short: "Delete conversations with their sandboxes", Args: nArgs(1, 1000),
		Long: `Delete conversations with their sandboxes, and wait until a second look
confirms that each sandbox is gone. Exit code 1: one isn't confirmed yet; the
server goes on trying.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			var failed error
			var all []model.Conversation
			for _, id := range args {
				v, err := api.Delete(cmd.Context(), id)
				if err != nil {
					failed = errors.Join(failed, err)
					continue
				}
				all = append(all, v)
				if v.State != model.Deleted {
					failed = errors.Join(failed, fmt.Errorf("%s: it isn't confirmed yet that its sandbox is gone; the server goes on trying", id))
				}
				if c.json {
					continue
				}
				detail := "it had no sandbox"
				if v.Destruction != nil {
					detail = fmt.Sprintf("sandbox %s: %s; %s", v.Destruction.SandboxID, v.Destruction.Outcome, v.Destruction.Detail)
				}
				fmt.Fprintf(c.Stdout, "%s %s (%s)\n", v.ID, v.State, harmless(detail))
			}
			if c.json {
				failed = errors.Join(failed, c.printJSON(wire.Items[model.Conversation]{Items: all}))
			}
			return failed
		},
	}
}
