package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/coder/websocket"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/client"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
)

// leaveKey is Ctrl-], as telnet has it.
const leaveKey = 0x1d

func (c *command) terminalCommand() *cobra.Command {
	return group("terminal", "Terminals of a conversation", c.terminalAttach(), &cobra.Command{
		Use: "list CONVERSATION", Short: "List terminals", Args: nArgs(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			list, err := api.Terminals(cmd.Context(), args[0])
			if err != nil || c.json {
				return errors.Join(err, c.jsonIf(err == nil, list))
			}
			var rows [][]string
			for _, t := range list.Items {
				rows = append(rows, []string{t.ID, string(t.State), t.Reason, age(t.CreatedAt)})
			}
			return c.table([]string{"ID", "STATE", "REASON", "AGE"}, rows)
		},
	})
}

func (c *command) terminalAttach() *cobra.Command {
	var takeover, watch bool
	cmd := &cobra.Command{
		Use: "attach CONVERSATION [TERMINAL]", Short: "Attach this terminal to a shell in the sandbox (Ctrl-] leaves)", Args: nArgs(1, 2),
		Long: `Attach this terminal to a terminal of the conversation; without TERMINAL, to a
new one. Ctrl-] leaves it running. The exit code is the shell's, when it ends.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			stdin, ok := c.Stdin.(*os.File)
			if !ok || !c.Terminal(stdin) {
				return usage("standard input is not a terminal")
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			cols, rows, err := term.GetSize(int(stdin.Fd()))
			if err != nil || cols < 1 || rows < 1 {
				cols, rows = 80, 24
			}
			mode, tid := "write", ""
			switch {
			case watch && takeover:
				return usage("--takeover and --watch exclude each other")
			case watch:
				mode = "watch"
			case takeover:
				mode = "takeover"
			}
			if len(args) > 1 {
				tid = args[1]
			} else {
				t, err := api.CreateTerminal(cmd.Context(), args[0], wire.CreateTerminal{Cols: uint16(cols), Rows: uint16(rows)})
				if err != nil {
					return err
				}
				tid = t.ID
			}
			t, err := api.Attach(cmd.Context(), args[0], tid, mode, 0)
			if err != nil {
				return err
			}
			defer t.Close()
			return c.talk(cmd.Context(), stdin, t, args[0]+" "+tid)
		},
	}
	cmd.Flags().BoolVar(&takeover, "takeover", false, "take it over from whoever uses it")
	cmd.Flags().BoolVar(&watch, "watch", false, "only watch")
	return cmd
}

// talk moves bytes between the person's terminal, in raw mode, and the shell.
// which are the arguments that attach to it again.
func (c *command) talk(ctx context.Context, stdin *os.File, t *client.Terminal, which string) error {
	before, err := term.MakeRaw(int(stdin.Fd()))
	if err != nil {
		return err
	}
	defer func() { _ = term.Restore(int(stdin.Fd()), before) }() // nothing else can be done about it
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	left := make(chan struct{})
	// This goroutine is not waited for: a read of a terminal can't be called
	// off, and the program ends right after.
	go c.typed(ctx, stdin, t, left)
	fit := func() {
		if cols, rows, err := term.GetSize(int(stdin.Fd())); err == nil && cols > 0 && rows > 0 && cols <= 1000 && rows <= 1000 {
			_ = t.Resize(ctx, uint16(cols), uint16(rows)) // the reader below sees a lost connection
		}
	}
	fit()
	ended := make(chan error, 1)
	go func() { ended <- c.shown(ctx, t) }()
	for {
		select {
		case err := <-ended:
			return err
		case <-left:
			fmt.Fprintf(c.Stderr, "\r\nleft; go on with: astrabox terminal attach %s\r\n", which)
			cancel()
			return <-ended
		case <-resized:
			fit()
		}
	}
}

func (c *command) typed(ctx context.Context, stdin io.Reader, t *client.Terminal, left chan<- struct{}) {
	buf := make([]byte, 4096)
	for {
		n, err := stdin.Read(buf)
		if n > 0 {
			for i, b := range buf[:n] {
				if b == leaveKey {
					_ = t.Send(ctx, buf[:i]) // leaving anyway
					close(left)
					return
				}
			}
			if t.Send(ctx, buf[:n]) != nil {
				return
			}
		}
		if err != nil {
			close(left)
			return
		}
	}
}

// shown prints output until the shell ends.
func (c *command) shown(ctx context.Context, t *client.Terminal) error {
	code := -1
	for {
		output, frame, err := t.Recv(ctx)
		switch {
		case err != nil && code >= 0 && websocket.CloseStatus(err) == websocket.StatusNormalClosure:
			if code == 0 {
				return nil
			}
			return exitError(code)
		case err != nil && websocket.CloseStatus(err) == websocket.StatusGoingAway:
			return errors.New("the server stops")
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the person left
		case err != nil:
			return fmt.Errorf("the connection was lost: %w", err)
		case frame == nil:
			if _, err := c.Stdout.Write(output); err != nil {
				return err
			}
		case frame.Type == "exit":
			if n, ok := frame.Code.(float64); ok {
				code = int(n)
			}
		case frame.Type == "displaced":
			return errors.New("somebody else took the terminal over")
		case frame.Type == "gap":
			fmt.Fprint(c.Stderr, "\r\n[some output is no longer held]\r\n")
		case frame.Type == "error":
			code := fmt.Sprint(frame.Code)
			return &client.Problem{Problem: wire.Problem{Detail: frame.Message, Code: code, Status: fault.Lookup(fault.Code(code)).Status}}
		}
	}
}
