// Shellagent is the built-in Agent program: an Agent Client Protocol agent on
// stdin and stdout that runs what it is told as shell commands. See package
// shellagent.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/astrabox/astrabox/internal/shellagent"
)

func main() {
	log.SetPrefix("shellagent: ")
	if len(os.Args) == 3 && os.Args[1] == shellagent.SaveArg {
		if err := shellagent.Save(os.Args[2]); err != nil {
			log.Fatal(err)
		}
		return
	}
	if len(os.Args) == 2 && os.Args[1] == "--version" {
		fmt.Println("shellagent", shellagent.Version)
		return
	}
	if len(os.Args) != 1 {
		log.Fatal("usage: shellagent (speaks the Agent Client Protocol on stdin and stdout)")
	}
	debug.SetGCPercent(25) // there is little garbage, and many of us on one host
	// SIGPIPE is caught, not ignored: children would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT)
	defer stop()
	if err := shellagent.Run(ctx, os.Stdin, os.Stdout); err != nil {
		log.Fatal(err)
	}
}
