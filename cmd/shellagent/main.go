// Shellagent is the built-in Agent program: an Agent Client Protocol agent on
// stdin and stdout that runs what it is told as shell commands. See package
// shellagent.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/astrabox/astrabox/internal/shellagent"
	"github.com/astrabox/astrabox/internal/version"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "shellagent:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == shellagent.SaveArg:
		return shellagent.Save(args[1])
	case len(args) == 1 && args[0] == "--version":
		_, err := fmt.Println("shellagent", version.Version)
		return err
	case len(args) > 0:
		return errors.New("no arguments are taken: it speaks the Agent Client Protocol on stdin and stdout")
	}
	// Many of us run on one host and wait most of the time: small before fast.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(25)
	// SIGPIPE is caught, not ignored: children would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	defer stop()
	return shellagent.Run(ctx, os.Stdin, os.Stdout)
}
