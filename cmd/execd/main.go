// Command execd is the daemon inside a sandbox: it runs commands, keeps
// long-lived processes and serves files to whoever holds its token.
//
//	execd --listen 0.0.0.0:44772 --token-fd 3 [--ready-fd N] [-- ENTRYPOINT...]
//
// As PID 1 it reaps, passes signals on and exits with the entrypoint's status.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/astrabox/astrabox/internal/execd"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/internal/execd/isolated"
	"github.com/astrabox/astrabox/internal/execd/operation"
	"github.com/astrabox/astrabox/internal/version"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

func main() {
	if err := child.Prepare(); err != nil {
		fail(err)
	}
	debug.SetGCPercent(50) // a small heap, in a memory limit that it shares with the workload
	if isolated.Inside() {
		os.Exit(execd.SessionMain(false))
	}
	o, err := options(os.Args[1:])
	if err != nil {
		fail(err)
	}
	notes := files.OpenNotes(unfinished)
	o.Files, o.Notes = files.New(files.Config{Notes: notes}), notes
	status := execd.Main(o)
	notes.Close()
	os.Exit(status)
}

const defaultGrace = 3 * time.Second

// fromEnvironment takes what no flag gave from the environment.
func fromEnvironment(f *flag.FlagSet, grace *time.Duration, operations *int) error {
	given := map[string]bool{}
	f.Visit(func(one *flag.Flag) { given[one.Name] = true })
	var err error
	if v := os.Getenv("EXECD_API_GRACE_SHUTDOWN"); v != "" && !given["graceful-shutdown-timeout"] {
		if *grace, err = time.ParseDuration(v); err != nil {
			return fmt.Errorf("EXECD_API_GRACE_SHUTDOWN: %w", err)
		}
	}
	if v := os.Getenv("EXECD_OPERATION_CAPACITY"); v != "" && !given["operation-capacity"] {
		if *operations, err = strconv.Atoi(v); err != nil {
			return fmt.Errorf("EXECD_OPERATION_CAPACITY: %w", err)
		}
	}
	return nil
}

func fail(err error) {
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, "execd:", err)
	os.Exit(2)
}

// unfinished is where names of unfinished files are noted, for the next daemon
// of the sandbox.
const unfinished = "/run/astrabox-execd/unfinished"

func options(args []string) (_ execd.Options, err error) {
	f := flag.NewFlagSet("execd", flag.ContinueOnError)
	listen := f.String("listen", "", "`host:port` to listen on (default every address, port "+strconv.Itoa(wire.Port)+")")
	listenFD := f.Int("listen-fd", -1, "`descriptor` of a listening socket to use instead of an address")
	port := f.Int("port", wire.Port, "port to listen on, when --listen isn't given")
	tokenFD := f.Int("token-fd", -1, "`descriptor` to read the token from")
	token := f.String("access-token", "", "the token; other programs can see it here, prefer --token-fd (also EXECD_ACCESS_TOKEN)")
	noToken := f.Bool("no-token", false, "serve anybody who can connect")
	readyFD := f.Int("ready-fd", -1, "`descriptor` to write a line to when requests are answered")
	grace := f.Duration("graceful-shutdown-timeout", defaultGrace, "how long everything gets to end after SIGTERM (also EXECD_API_GRACE_SHUTDOWN)")
	operations := f.Int("operation-capacity", operation.DefaultCapacity, "how many operations are remembered (also EXECD_OPERATION_CAPACITY)")
	defer func() {
		if err != nil && *readyFD >= 0 { // nobody may see the standard error
			if ready := os.NewFile(uintptr(*readyFD), "ready"); ready != nil {
				fmt.Fprintf(ready, "%s%v\n", wire.FailedPrefix, err)
			}
		}
	}()
	// Given to other daemons of this protocol; accepted so that what starts those can start this one.
	f.Int("log-level", 0, "accepted and ignored: the daemon logs warnings and errors")
	jupyter := f.String("jupyter-host", "", "accepted and ignored: the daemon has no interpreters (also JUPYTER_HOST)")
	f.String("jupyter-token", "", "accepted and ignored")
	f.Duration("jupyter-idle-poll-interval", 0, "accepted and ignored")
	isolation := f.String("isolation-config", "", "accepted and ignored: isolated sessions need no configuration (also EXECD_ISOLATION_CONFIG)")
	reserve := f.Bool("reserve-mounts", false, "let nothing that the daemon starts make mounts or namespaces, though the daemon may, for isolated sessions")
	show := f.Bool("version", false, "print the version")
	if err := f.Parse(args); err != nil {
		return execd.Options{}, err
	}
	if *show {
		fmt.Println(wire.ServerName, version.Version)
		os.Exit(0)
	}
	if err := fromEnvironment(f, grace, operations); err != nil {
		return execd.Options{}, err
	}
	o := execd.Options{
		EnvFile: os.Getenv("EXECD_ENVS"), Operations: *operations,
		Listen: *listen, Token: *token, Version: version.Version, Entrypoint: f.Args(), Grace: *grace,
		Reserve: *reserve,
		Log:     slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if *jupyter != "" || os.Getenv("JUPYTER_HOST") != "" {
		o.Log.Warn("the daemon has no interpreters: the Jupyter server is ignored, and /code runs shell commands only")
	}
	if *isolation != "" || os.Getenv("EXECD_ISOLATION_CONFIG") != "" {
		o.Log.Warn("the configuration of isolated sessions is ignored")
	}
	if o.Listen == "" {
		o.Listen = "0.0.0.0:" + strconv.Itoa(*port)
	}
	if o.Token == "" {
		o.Token = os.Getenv("EXECD_ACCESS_TOKEN")
	}
	os.Unsetenv("EXECD_ACCESS_TOKEN")
	if *tokenFD >= 0 {
		if o.Token, err = execd.Token(*tokenFD); err != nil {
			return o, err
		}
	}
	switch {
	case o.Token == "" && !*noToken:
		return o, errors.New("no token: give --token-fd, --access-token or EXECD_ACCESS_TOKEN, or say --no-token")
	case o.Grace < 0:
		return o, errors.New("graceful-shutdown-timeout is negative")
	case o.Operations <= 0:
		return o, errors.New("operation-capacity is not positive")
	}
	if *listenFD >= 0 {
		if o.Socket = os.NewFile(uintptr(*listenFD), "socket"); o.Socket == nil {
			return o, fmt.Errorf("listen-fd: descriptor %d is not open", *listenFD)
		}
	}
	if *readyFD >= 0 {
		if o.Ready = os.NewFile(uintptr(*readyFD), "ready"); o.Ready == nil {
			return o, fmt.Errorf("ready-fd: descriptor %d is not open", *readyFD)
		}
	}
	return o, nil
}
