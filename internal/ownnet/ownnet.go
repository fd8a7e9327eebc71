// Package ownnet runs the calling program again in a network namespace of its
// own, so that a demo or a benchmark can make links, firewall rules and
// listeners without meeting the host's. It needs root.
package ownnet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// insideEnv marks the process that runs inside.
const insideEnv = "ASTRABOX_OWN_NETWORK"

// ErrFailed: the program inside ended with status 1; it has said why.
var ErrFailed = errors.New("ownnet: the program failed")

// Run calls f in a network namespace whose only link is loopback: in this
// process when it is the one inside, else by running this program again with
// the same arguments and its output on out. A cancelled ctx asks the inner
// program to end and waits up to a minute.
func Run(ctx context.Context, out io.Writer, f func(context.Context) error) error {
	if os.Getenv(insideEnv) != "" {
		lo, err := netlink.LinkByName("lo")
		if err == nil {
			err = netlink.LinkSetUp(lo)
		}
		if err != nil {
			return fmt.Errorf("set up the loopback link: %w", err)
		}
		return f(ctx)
	}
	if os.Geteuid() != 0 {
		return errors.New("sandboxes and network namespaces need root: run it as root (sudo)")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = time.Minute
	// An interrupt of the terminal reaches the inner process by itself.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, os.Interrupt)
	defer signal.Stop(ignored)

	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		return ErrFailed
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("this machine doesn't allow a network namespace: %w", err)
	}
	return err
}
