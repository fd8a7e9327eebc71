// Package cli is the astrabox command line: it reads arguments, calls package
// app for what runs here and the HTTP API for the rest, and prints tables or
// JSON.
//
// Exit codes: 0 success, 1 failure, 2 wrong use, 3 the server can't be
// reached, 4 something that was named doesn't exist, 5 a turn ended otherwise
// than done, 130 interrupted. They, the commands and the JSON forms are kept
// stable; tables are for people.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/client"
	"github.com/astrabox/astrabox/internal/ownnet"
	"github.com/astrabox/astrabox/internal/version"
)

// The exit codes.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2
	ExitUnreachable = 3
	ExitNotFound    = 4
	ExitTurn        = 5
	ExitInterrupted = 130
)

// System is what the command line has of the process around it.
type System struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	Executable     string // of this program
	// Terminal reports whether a stream is a person's terminal.
	Terminal func(stream any) bool
	// Interrupts gives a channel that gets something for each Ctrl-C, until
	// stop is called.
	Interrupts func() (c <-chan os.Signal, stop func())
}

// OS is the System of this process.
func OS() System {
	executable, err := os.Executable()
	if err != nil {
		executable = os.Args[0]
	}
	return System{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Executable: executable, Terminal: isTerminal,
		Interrupts: func() (<-chan os.Signal, func()) {
			c := make(chan os.Signal, 2)
			signal.Notify(c, os.Interrupt, syscall.SIGTERM)
			return c, func() { signal.Stop(c) }
		},
	}
}

// usageError is a wrong use of the command line.
type usageError struct{ error }

func usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitError ends the program with a code and says nothing: it was said.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// Main runs one command and gives its exit code. It returns early when ctx ends.
func Main(ctx context.Context, args []string, sys System) int {
	c := &command{System: sys}
	defer c.close()
	root := c.root()
	root.SetArgs(args)
	root.SetIn(sys.Stdin)
	root.SetOut(sys.Stdout)
	root.SetErr(sys.Stderr)
	ran, err := root.ExecuteContextC(ctx)
	code := exitCode(err)
	var silent exitError
	switch {
	case err == nil, errors.As(err, &silent), errors.Is(err, ownnet.ErrInterrupted):
	case code == ExitInterrupted:
		fmt.Fprintln(sys.Stderr, "interrupted")
	default:
		fmt.Fprintf(sys.Stderr, "astrabox: %s\n", message(err))
	}
	if code == ExitUsage {
		fmt.Fprintf(sys.Stderr, "Run \"%s --help\" for what there is.\n", ran.CommandPath())
	}
	return code
}

// message is what a person reads: for a fault its public text, with the cause
// only where the text doesn't say more than the code.
func message(err error) string {
	var f *fault.Error
	if errors.As(err, &f) {
		if f.Cause != nil && f.Public == fault.Lookup(f.Code).Public {
			return fmt.Sprintf("%s (%s: %v)", f.Public, f.Code, f.Cause)
		}
		return f.Public
	}
	var u *client.Unreachable
	if errors.As(err, &u) {
		return u.Error() + "\nIs it running? Start it with \"astrabox serve\", or name another one with --server."
	}
	return err.Error()
}

func exitCode(err error) int {
	var (
		code        exitError
		wrong       usageError
		unreachable *client.Unreachable
	)
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &code):
		return int(code)
	case errors.As(err, &wrong):
		return ExitUsage
	case errors.Is(err, context.Canceled), errors.Is(err, ownnet.ErrInterrupted):
		return ExitInterrupted
	case errors.As(err, &unreachable):
		return ExitUnreachable
	case client.NotFound(err):
		return ExitNotFound
	}
	return ExitFailure
}

// command is one run of the command line.
type command struct {
	System
	server string
	json   bool
	api    *client.Client
}

func (c *command) close() {
	if c.api != nil {
		c.api.Close()
	}
}

const defaultServer = "http://127.0.0.1:8088"

func (c *command) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "astrabox",
		Short: "Conversations with Agent programs that run in sandboxes",
		Long: `AstraBox runs Agent programs in sandboxes on this machine and keeps your
conversations with them.

  astrabox serve               start the server and its console
  astrabox chat "uname -a"     run one message in a new sandbox
  astrabox chat                talk, one line at a time

Exit codes: 0 success, 1 failure, 2 wrong use, 3 the server can't be reached,
4 something that was named doesn't exist, 5 a turn ended otherwise than done,
130 interrupted.`,
		Version:       version.Version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          noCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("astrabox {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.PersistentFlags().StringVar(&c.server, "server", "", "address of the server (default $ASTRABOX_URL, else "+defaultServer+")")
	root.PersistentFlags().BoolVar(&c.json, "json", false, "print JSON instead of tables")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(c.serveCommand(), c.sandboxdCommand(), c.doctorCommand(), c.chatCommand(), c.conversationCommand(), c.filesCommand(),
		c.terminalCommand(), c.envCommand(), c.agentCommand(), c.versionCommand(), c.demoCommand(), c.benchCommand(), c.providerCommand())
	return root
}

func noCommand(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage("there is no command %q", args[0])
	}
	return nil
}

// group is a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Args: noCommand, RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	g.AddCommand(commands...)
	return g
}

// nArgs wants from least to most arguments.
func nArgs(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return usage("wrong number of arguments; use: %s", cmd.UseLine())
		}
		return nil
	}
}

// client makes the API's client on first use.
func (c *command) client() (*client.Client, error) {
	if c.api != nil {
		return c.api, nil
	}
	server := c.server
	if server == "" {
		server = strings.TrimSpace(c.Getenv("ASTRABOX_URL"))
	}
	if server == "" {
		server = defaultServer
	}
	api, err := client.New(server)
	if err != nil {
		return nil, usageError{err}
	}
	c.api = api
	return api, nil
}
