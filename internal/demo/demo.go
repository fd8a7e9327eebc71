// Package demo walks AstraBox's main path against the real thing and checks
// every step: real processes, real sandboxes, and the kernel's own view of what
// is left afterwards. `astrabox demo` calls it; it is the shortest proof that
// an installation works on a machine.
//
// The walk happens in a network namespace of its own with a fresh state
// directory, so it neither disturbs nor uses what else runs on the host. Run is
// for one goroutine.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/astrabox/astrabox/internal/httpapi/client"
	"github.com/astrabox/astrabox/internal/instance"
	"github.com/astrabox/astrabox/internal/inventory"
	"github.com/astrabox/astrabox/internal/ownnet"
)

// Options of a walk.
type Options struct {
	Exe     string    // the astrabox program to walk with
	Backend string    // empty: the default backend
	JSON    bool      // a JSON document per step
	Out     io.Writer // where the steps are reported
}

// ErrFailed: a step didn't see what it expected. It was reported already.
var ErrFailed = errors.New("demo: failed")

// Run walks all steps and stops at the first that fails, with ErrFailed.
func Run(ctx context.Context, o Options) error {
	err := ownnet.Run(ctx, o.Out, func(ctx context.Context) error { return inside(ctx, o) })
	if errors.Is(err, ownnet.ErrFailed) {
		return ErrFailed
	}
	return err
}

func inside(ctx context.Context, o Options) error {
	state, err := os.MkdirTemp("", "astrabox-demo-")
	if err != nil {
		return err
	}
	w := &walk{o: o, place: inventory.Place{ExeDir: filepath.Dir(o.Exe)},
		server: instance.New(instance.Config{Exe: o.Exe, StateDir: state, Address: address, IdleAfter: idleAfter, Backend: o.Backend})}
	if w.api, err = w.server.Client(); err != nil {
		return err
	}
	err = w.all(ctx)
	refused := w.server.Refused()
	w.api.Close()
	w.server.Abandon()
	if refused { // all that is there to see was in the report
		return errors.Join(err, os.RemoveAll(state))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "the state directory was kept for a look: %s\n", state)
		return err
	}
	return os.RemoveAll(state)
}

const (
	address   = "127.0.0.1:8088" // free: the network namespace is the demo's own
	idleAfter = 4 * time.Second  // short, so that the demo sees a pause; long enough for a step's own gaps
)

// walk is the state that steps hand on.
type walk struct {
	o      Options
	server *instance.Instance
	api    *client.Client
	place  inventory.Place
	before inventory.Inventory

	conversation, sandbox string
}

// step is one line of the demo: it returns what it saw, or what it expected
// and saw instead.
type step struct {
	name string
	run  func(context.Context) (seen string, err error)
}

func (w *walk) all(ctx context.Context) error {
	steps := []step{
		{"start a conversation", w.start},
		{"a message that writes a file and prints it, streamed", w.message},
		{"read and write files, right owner and bits", w.files},
		{"a terminal: sleep 1000, interrupt, shell still there", w.terminal},
		{"kill -9 of the server during a command and a terminal", w.killServer},
		{"kill -9 of sandboxd: the sandbox stays", w.killSandboxd},
		{"idle until paused, memory given back", w.idle},
		{"another message: same sandbox, files and directory", w.resume},
		{"delete, confirmed by a second observation", w.delete},
		{"the host as before", w.clean},
	}
	for _, s := range steps {
		began := time.Now()
		stepCtx, cancel := context.WithTimeout(ctx, 90*time.Second)
		seen, err := s.run(stepCtx)
		cancel()
		w.report(s.name, time.Since(began), seen, err)
		if err != nil {
			w.final("failed")
			return ErrFailed
		}
	}
	w.final("ok")
	return nil
}

func (w *walk) report(name string, took time.Duration, seen string, err error) {
	if w.o.JSON {
		detail := seen
		if err != nil {
			detail = err.Error()
		}
		w.line(map[string]any{"step": name, "ok": err == nil, "ms": took.Milliseconds(), "detail": detail})
		return
	}
	mark := "ok  "
	if err != nil {
		mark, seen = "FAIL", err.Error()
	}
	fmt.Fprintf(w.o.Out, "%s %7d ms  %s: %s\n", mark, took.Milliseconds(), name, seen)
}

func (w *walk) final(result string) {
	if w.o.JSON {
		w.line(map[string]any{"demo": result})
		return
	}
	fmt.Fprintf(w.o.Out, "demo: %s\n", result)
}

func (w *walk) line(v any) {
	if err := json.NewEncoder(w.o.Out).Encode(v); err != nil {
		fmt.Fprintf(os.Stderr, "demo: %v\n", err)
	}
}

func expected(want, saw string, args ...any) error {
	return fmt.Errorf("expected "+want+", saw "+saw, args...)
}
