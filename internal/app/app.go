// Package app puts the platform together: it is the one place that knows all
// of its parts. The serve command calls [Run], the doctor command [Doctor].
//
// Run reads from top to bottom: what is made there in order is let go of in
// reverse. Errors are *fault.Error where a person can do something about them.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/console"
	"github.com/astrabox/astrabox/internal/conversation"
	"github.com/astrabox/astrabox/internal/httpapi"
)

// Config says what Run serves and where.
type Config struct {
	StateDir  string        // made, with mode 0700, when it is missing
	Listen    string        // loopback address and port
	Hosts     []string      // names that requests may be addressed to, beside the loopback ones
	IdleAfter time.Duration // zero: the default; negative: sandboxes are never paused for being idle
	// KeepSandboxes leaves sandboxes, and the bundled service, running at a
	// clean stop. Otherwise sandboxes are paused first and the service ends.
	KeepSandboxes bool
	Version       string
	Executable    string // of this program: others are found beside it
	Getenv        func(string) string
	Out           io.Writer // gets the few lines that a person reads
	Log           *slog.Logger
}

const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	headerLimit   = 64 << 10
	// drainTimeout is how long requests may go on at a stop, pauseTimeout how
	// long pausing the sandboxes may take, finishTimeout removing those that are
	// to be removed, endTimeout what is left after that.
	drainTimeout  = 10 * time.Second
	pauseTimeout  = 60 * time.Second
	finishTimeout = 10 * time.Second
	endTimeout    = 30 * time.Second
)

// Run serves until ctx ends, then stops in order and returns nil. What it
// can't start with, it refuses before anything was begun.
func Run(ctx context.Context, c Config) error {
	serving := false
	err := run(ctx, c, &serving)
	if err != nil && !serving && ctx.Err() != nil {
		return ctx.Err() // stopped while it started: what broke is of no interest
	}
	return err
}

func run(ctx context.Context, c Config, serving *bool) (err error) {
	began := time.Now()
	backends, err := chooseBackends(c.Getenv, c.Log)
	if err == nil {
		err = backends.fits()
	}
	if err != nil {
		return err
	}
	listener, err := listen(ctx, c.Listen)
	if err != nil {
		return err
	}
	defer listener.Close() // closed by the server already, unless a later step fails
	// The state directory comes after what can be refused without it, so that a
	// refusal leaves none.
	state, err := openState(c.StateDir)
	if err != nil {
		return err
	}
	defer state.close()
	findings := doctor(ctx, c.environment(state.dir, backends))
	if err := refuse(findings); err != nil {
		return err
	}
	bundled := newBundled(c, state.dir, backends)
	bound, err := bindBackends(ctx, c, state, backends, bundled)
	if err != nil {
		return err
	}
	defer closeBackends(c.Log, bound)

	service, err := conversation.New(ctx, conversation.Config{
		InstallationID: state.installation, DatabasePath: filepath.Join(state.dir, "astrabox.db"),
		Backends: bound, DefaultBackend: backends.standard, Installed: backends.installedNames(), Log: c.Log, IdleAfter: c.IdleAfter,
		AgentBinary: func(b agentprogram.Binary) (string, error) { return b.Find(c.Getenv, c.Executable) },
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Close()) }()

	api, err := httpapi.New(httpapi.Config{
		Service: service, Console: console.Handler(), Hosts: c.Hosts, Version: c.Version, Log: c.Log,
		Doctor: c.doctorRoute(state.dir, backends),
		Ready:  func(ctx context.Context) error { _, err := service.Unconfirmed(ctx); return err },
	})
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: api, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: headerLimit,
		ErrorLog: slog.NewLogLogger(c.Log.Handler(), slog.LevelWarn),
	}

	// Nothing was started so far, so that what was refused above left nothing.
	defer func() { err = errors.Join(err, bundled.end(ctx, c)) }()
	if err := bundled.start(ctx); err != nil {
		return err
	}

	// The loops outlive ctx: a clean stop still needs them to pause sandboxes.
	loops, stopLoops := context.WithCancel(context.WithoutCancel(ctx))
	defer stopLoops()
	group, failed := errgroup.WithContext(loops)
	group.Go(func() error { return service.Run(failed) })
	group.Go(func() error { return bundled.keep(failed) })
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
		return nil
	})
	*serving = true
	announce(c, listener.Addr().String(), state.dir, backends, bundled, findings, time.Since(began))

	select {
	case <-ctx.Done():
		c.Log.Info("stopping")
	case <-failed.Done(): // group.Wait has the reason
	}
	stop(ctx, c, server, api, service)
	stopLoops()
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	c.Log.Info("stopped")
	return nil
}

// stop takes no more work, lets requests end, pauses what runs, and removes
// what is to be removed.
func stop(ctx context.Context, c Config, server *http.Server, api *httpapi.Server, service *conversation.Service) {
	ctx = context.WithoutCancel(ctx)
	drainCtx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	api.Drain()
	if err := server.Shutdown(drainCtx); err != nil {
		c.Log.Warn("some requests didn't end in time and are cut off")
		_ = server.Close() // what it reports was said just now
	}
	if err := api.Wait(drainCtx); err != nil {
		c.Log.Warn("some terminals didn't end in time")
	}
	if !c.KeepSandboxes {
		pauseCtx, cancel := context.WithTimeout(ctx, pauseTimeout)
		defer cancel()
		if err := service.Suspend(pauseCtx); err != nil {
			c.Log.Warn("not every sandbox could be paused; they go on until they are idle or their lease ends", "error", err)
		}
	}
	finishCtx, cancel := context.WithTimeout(ctx, finishTimeout)
	defer cancel()
	if err := service.Finish(finishCtx); err != nil {
		c.Log.Warn("sandboxes that are to be removed could not be looked after; the next start does it", "error", err)
	}
}
