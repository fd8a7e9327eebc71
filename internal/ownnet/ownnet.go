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
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
)

// insideEnv marks the process that runs inside.
const insideEnv = "ASTRABOX_OWN_NETWORK"

// ErrFailed: the program inside ended with status 1; it has said why.
var ErrFailed = errors.New("ownnet: the program failed")

// ErrInterrupted: the program inside was interrupted; it has said so.
var ErrInterrupted = errors.New("ownnet: the program was interrupted")

// interrupted is the status of a program that was.
const interrupted = 130

// Run calls f in a network namespace whose only link is loopback: in this
// process when it is the one inside, else by running this program again with
// the same arguments and its output on out. An interrupt or a cancelled ctx
// asks the inner program to end, once, and waits up to a minute; each further
// interrupt asks again.
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
	// A group of its own, so that a Ctrl-C reaches the inner program once, by
	// way of us. With the terminal's beside it, one Ctrl-C would be two signals,
	// and the second one ends a program that is cleaning up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Setpgid: true}
	cmd.WaitDelay = time.Minute
	var a asked
	cmd.Cancel = func() error { return a.atLeast(1, cmd.Process) }
	interrupts := make(chan os.Signal, 2)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)

	if err = cmd.Start(); err == nil {
		ended := make(chan struct{})
		forwarded := make(chan struct{})
		go func() {
			defer close(forwarded)
			for n := 1; ; n++ {
				select {
				case <-interrupts:
					_ = a.atLeast(n, cmd.Process) // it fails where the program has ended
				case <-ended:
					return
				}
			}
		}()
		err = cmd.Wait()
		close(ended)
		<-forwarded
	}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == 1:
		return ErrFailed
	case errors.As(err, &exit) && exit.ExitCode() == interrupted:
		return ErrInterrupted
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("this machine doesn't allow a network namespace: %w", err)
	}
	return err
}

// asked counts how often a process was asked to end. An interrupt that also
// ends the caller's context is one request; the next interrupt is another.
type asked struct {
	mu sync.Mutex
	n  int
}

func (a *asked) atLeast(n int, p *os.Process) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n >= n {
		return nil
	}
	a.n++
	return p.Signal(syscall.SIGTERM)
}
