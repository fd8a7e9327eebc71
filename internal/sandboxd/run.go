// Package sandboxd is the bundled lifecycle service: it runs sandboxes on this
// machine and serves the OpenSandbox lifecycle API on a loopback address. The
// command line calls [Run]; package launch starts a program that does and
// finds one that runs. It knows nothing of the platform that uses it.
//
// The service keeps its files in <state>/sandboxd (mode 0700): the lock, which
// one process at a time holds, the API key, where it listens, its rows and its
// log. Sandboxes outlive it: after a kill or a stop the next Run takes them
// over.
package sandboxd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/astrabox/astrabox/internal/sandboxd/api"
	"github.com/astrabox/astrabox/internal/sandboxd/lifecycle"
	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// Config says how Run works.
type Config struct {
	StateDir string // made, with mode 0700, when it is missing
	Listen   string // loopback address and port; empty: 127.0.0.1:0
	Version  string // of the program

	RuncPath, ExecdPath string // empty: $ASTRABOX_{RUNC,EXECD}_PATH, else beside the executable
	RunDir              string // shared by all installations; empty: /run/astrabox

	// Log gets the service's log. Nil: LogFile, bounded to LogLimit.
	Log *slog.Logger

	// OpenRuntime makes the runtime for an installation. Nil: the OCI runtime.
	OpenRuntime func(ctx context.Context, installation string, log *slog.Logger) (runtime.Runtime, error)
}

const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	headerLimit   = 64 << 10
	connLimit     = 4096 // past it connections wait to be accepted
	// drain is how long requests may take when the service stops, finish how
	// long operations under way may.
	drain  = 2 * time.Second
	finish = 30 * time.Second
)

// Run serves until ctx ends and then returns nil; sandboxes go on running. It
// refuses a state directory that another Run uses with ErrLocked, and any
// address that isn't loopback. When it returns and no sandbox is left, nothing
// of the installation is left on the host but its state directory.
func Run(ctx context.Context, cfg Config) (err error) {
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if err := loopback(cfg.Listen); err != nil {
		return err
	}
	if cfg.StateDir, err = filepath.Abs(cfg.StateDir); err != nil {
		return fmt.Errorf("sandboxd: %w", err)
	}
	if err := MakeDir(cfg.StateDir); err != nil {
		return fmt.Errorf("sandboxd: %w", err)
	}
	held, err := lock(cfg.StateDir)
	if err != nil {
		return fmt.Errorf("sandboxd: %w", err)
	}
	defer held.Close()
	// A predecessor that was killed left its address; nobody answers there now.
	if err := os.Remove(ListenFile(cfg.StateDir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("sandboxd: %w", err)
	}
	if cfg.Log == nil {
		l, err := openLog(LogFile(cfg.StateDir), LogLimit)
		if err != nil {
			return fmt.Errorf("sandboxd: %w", err)
		}
		defer l.Close()
		cfg.Log = slog.New(slog.NewJSONHandler(l, nil))
	}
	return serve(ctx, cfg)
}

// serve starts the parts in order, waits for ctx, and stops them in reverse.
func serve(ctx context.Context, cfg Config) (err error) {
	key, err := ReadKey(cfg.StateDir)
	if err != nil {
		return fmt.Errorf("sandboxd: API key: %w", err)
	}
	inst, err := installation(cfg.StateDir)
	if err != nil {
		return fmt.Errorf("sandboxd: %w", err)
	}
	store, err := state.Open(ctx, filepath.Join(Dir(cfg.StateDir), fileDatabase))
	if err != nil {
		return fmt.Errorf("sandboxd: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()

	open := cfg.OpenRuntime
	if open == nil {
		open = func(ctx context.Context, inst string, log *slog.Logger) (runtime.Runtime, error) {
			return openOCI(ctx, cfg, inst, log)
		}
	}
	rt, err := open(ctx, inst, cfg.Log)
	if err != nil {
		return fmt.Errorf("sandboxd: %w", err)
	}
	removeAll := false
	defer func() { err = errors.Join(err, rt.Close(removeAll)) }()

	service := lifecycle.New(lifecycle.Config{Store: store, Runtime: rt, Log: cfg.Log, BootID: bootID()})
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), finish)
		defer cancel()
		service.Close(stop)
		empty, emptyErr := service.Empty(stop)
		removeAll = empty
		err = errors.Join(err, emptyErr)
	}()
	if err := service.Start(ctx); err != nil {
		return fmt.Errorf("sandboxd: take over the sandboxes: %w", err)
	}
	handler, err := api.New(service, key, cfg.Version, cfg.Log)
	if err != nil {
		return fmt.Errorf("sandboxd: %w", err)
	}
	defer handler.Close()
	return listen(ctx, cfg, handler)
}

func listen(ctx context.Context, cfg Config, handler http.Handler) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("sandboxd: %w", err)
	}
	server := &http.Server{
		Handler: handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: headerLimit,
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
	}
	ended := make(chan struct{})
	var failed error
	go func() {
		defer close(ended)
		failed = server.Serve(netutil.LimitListener(l, connLimit))
	}()
	where := Listening{URL: "http://" + l.Addr().String() + wire.Prefix, PID: os.Getpid(), Version: cfg.Version}
	if err := writeListening(cfg.StateDir, where); err != nil {
		server.Close()
		<-ended
		return fmt.Errorf("sandboxd: %w", err)
	}
	cfg.Log.Info("serving", "url", where.URL, "version", cfg.Version)
	select {
	case <-ended:
		return fmt.Errorf("sandboxd: serve: %w", failed)
	case <-ctx.Done():
	}
	removed := os.Remove(ListenFile(cfg.StateDir))
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	if server.Shutdown(stop) != nil {
		server.Close() // streams through the proxy have no end of their own
	}
	<-ended
	cfg.Log.Info("stopped serving")
	return removed
}

// loopback refuses an address that others can reach.
func loopback(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("sandboxd: listen address %q: %w", address, err)
	}
	if a, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !a.IsLoopback()) {
		return fmt.Errorf("sandboxd: %q is not a loopback address, and this service listens on no other", host)
	}
	return nil
}

// bootID tells one run of the machine's kernel from the next.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "" // then no restart is noticed, and an ended run is a failed one
	}
	return strings.TrimSpace(string(b))
}
