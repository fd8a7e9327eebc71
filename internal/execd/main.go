package execd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/confine"
	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Exit codes of Main besides the entrypoint's own.
const (
	exitFailed   = 1
	exitNotFound = 127
	exitNoStart  = 126
)

// killTime bounds the end of what survived the grace time.
const killTime = 3 * time.Second

// Options of Main.
type Options struct {
	Listen string // host:port
	// Socket, where it isn't nil, listens already and is used instead; it is closed.
	Socket  *os.File
	Token   string
	Version string
	// Ready gets [wire.ReadyLine] when requests are answered, or [wire.FailedPrefix] and
	// why there will be none, and is closed; nil: nobody waits.
	Ready *os.File
	// Entrypoint is the program to run beside the daemon; empty: none.
	Entrypoint []string
	// Grace is how long everything gets to end by itself after SIGTERM.
	Grace time.Duration
	Files http.Handler
	// Notes are as in Config.
	Notes *files.Notes
	// EnvFile and Operations are as in Config.
	EnvFile    string
	Operations int
	// Reserve keeps what makes mounts and namespaces to the daemon, which needs
	// it for isolated sessions: nothing that it starts has it.
	Reserve bool
	Log     *slog.Logger
}

// Main runs the daemon until it gets SIGTERM, or its entrypoint ends, and gives
// the process's exit code: the entrypoint's own, 128+n for a signal, else 0.
// It takes the whole process for itself: signals, children, orphans.
//
// Signals are passed on to the entrypoint's process group. SIGTERM (SIGINT too
// when there is no entrypoint) ends the daemon: everything that runs gets
// SIGTERM and Grace, then SIGKILL; clients see how their commands ended.
func Main(o Options) int {
	signals := make(chan os.Signal, 32)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
	defer signal.Stop(signals)
	// Orphans that aren't PID 1's yet come to the daemon, which reaps and can kill them.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		o.Log.Warn("can't adopt orphans", "error", err)
	}
	// The workload must not read the token out of the daemon's memory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return o.refuse("can't protect the daemon's memory", err)
	}
	l, err := listen(o)
	if err != nil {
		return o.refuse("can't listen", err)
	}
	reaper := child.NewReaper(true)
	defer reaper.Close()
	if o.Reserve {
		if err := reaper.Restrict(func() error { return confine.Thread(^confine.Mounting, confine.NoMounting()) }); err != nil {
			return o.refuse("can't keep the right to make mounts to the daemon", err)
		}
	}
	s, err := New(Config{
		Token: o.Token, Version: o.Version, Files: o.Files, Notes: o.Notes,
		Accounts: account.System, Reaper: reaper, Log: o.Log,
		EnvFile: o.EnvFile, Operations: o.Operations,
	})
	if err != nil {
		return o.refuse("can't start", err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()

	d := &daemon{o: o, server: s, reaper: reaper}
	code := d.startEntrypoint()
	if code == 0 {
		if o.Ready != nil {
			_, _ = o.Ready.WriteString(wire.ReadyLine) // who went away doesn't need to know
			o.Ready.Close()
		}
		code = d.wait(signals, served)
	}
	d.end()
	return code
}

// refuse tells why the daemon doesn't start, and gives its exit status.
func (o Options) refuse(what string, err error) int {
	o.Log.Error(what, "error", err)
	if o.Ready != nil {
		fmt.Fprintf(o.Ready, "%s%s: %v\n", wire.FailedPrefix, what, err)
		o.Ready.Close()
	}
	return exitFailed
}

// listen gives the socket of an address, or the one that was inherited.
func listen(o Options) (*net.TCPListener, error) {
	var l net.Listener
	var err error
	if o.Socket != nil {
		defer o.Socket.Close()
		l, err = net.FileListener(o.Socket)
	} else {
		l, err = net.Listen("tcp", o.Listen)
	}
	if err != nil {
		return nil, err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		l.Close()
		return nil, errors.New("the inherited socket isn't one of TCP")
	}
	return tcp, nil
}

// daemon is the part of Main after the start.
type daemon struct {
	o          Options
	server     *Server
	reaper     *child.Reaper
	entrypoint *child.Child // nil: none
}

// startEntrypoint gives a non-zero exit code when it can't.
func (d *daemon) startEntrypoint() int {
	if len(d.o.Entrypoint) == 0 {
		return 0
	}
	c, err := startEntrypoint(d.reaper, d.o.Entrypoint)
	if err != nil {
		d.o.refuse("can't start the entrypoint", err)
		if errors.Is(err, os.ErrNotExist) {
			return exitNotFound
		}
		return exitNoStart
	}
	d.entrypoint = c
	return 0
}

// wait passes signals on until the daemon is to end, and gives the exit code.
func (d *daemon) wait(signals <-chan os.Signal, served <-chan error) int {
	var ended <-chan struct{}
	if d.entrypoint != nil {
		ended = d.entrypoint.Done()
	}
	for {
		select {
		case <-ended:
			return d.entrypoint.Exit().Code
		case err := <-served:
			d.o.Log.Error("the daemon doesn't answer any more", "error", err)
			return exitFailed
		case sig := <-signals:
			n, ok := sig.(syscall.Signal)
			if !ok {
				continue
			}
			if d.entrypoint != nil {
				_ = d.entrypoint.Signal(n) // it may have ended just now
			}
			if n == syscall.SIGTERM || d.entrypoint == nil && n == syscall.SIGINT {
				return d.drain()
			}
		}
	}
}

// drain gives everything the grace time and returns the exit code.
func (d *daemon) drain() int {
	ctx, cancel := context.WithTimeout(context.Background(), d.o.Grace)
	defer cancel()
	d.server.Stop()
	if d.entrypoint == nil {
		d.server.Quiet(ctx)
		return 0
	}
	select {
	case <-d.entrypoint.Done():
	case <-ctx.Done():
		_ = d.entrypoint.Signal(syscall.SIGKILL)
		<-d.entrypoint.Done()
	}
	d.server.Quiet(ctx)
	return d.entrypoint.Exit().Code
}

// end stops what is left: also what commands, sessions and the entrypoint left
// in the background, as the end of a PID 1 does. It goes first, in one piece,
// since everything else then finds nothing left to be killed.
func (d *daemon) end() {
	d.server.Stop()
	d.reaper.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	if err := (child.Tree{All: true}).Kill(ctx); err != nil {
		if d.entrypoint != nil {
			_ = d.entrypoint.Signal(syscall.SIGKILL) // its group can be reached in any case
		}
		d.o.Log.Warn("not everything ended", "error", err)
	}
	if err := d.server.Shutdown(ctx); err != nil {
		d.o.Log.Warn("not everything ended", "error", err)
	}
}

// Token reads a token from a descriptor to its end and closes it. One newline
// at the end isn't part of it.
func Token(fd int) (string, error) {
	f := os.NewFile(uintptr(fd), "token")
	if f == nil {
		return "", fmt.Errorf("execd: descriptor %d is not open", fd)
	}
	defer f.Close()
	const limit = 4 << 10
	b := make([]byte, limit+1)
	n := 0
	for n <= limit {
		m, err := f.Read(b[n:])
		n += m
		if err != nil || m == 0 {
			break
		}
	}
	switch {
	case n > limit:
		return "", errors.New("execd: the token is longer than 4 KiB")
	case n > 0 && b[n-1] == '\n':
		n--
	}
	if n == 0 {
		return "", errors.New("execd: the token is empty")
	}
	return string(b[:n]), nil
}
