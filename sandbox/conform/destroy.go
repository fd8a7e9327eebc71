package conform

import (
	"context"
	"errors"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func destroyClauses() []Clause[*Stage] {
	return []Clause[*Stage]{
		{ID: "probe.running", Doc: "Probe sees a running sandbox, with the backend's word for its state in lower case.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				o, err := s.Probe(ctx, h.SandboxID())
				if errors.Is(err, sandbox.ErrProbeUnsupported) {
					return Skip("the backend can't probe")
				}
				if err != nil {
					return NoError("probing a running sandbox", err)
				}
				if o.Status != sandbox.ObservedOK || !lowerWord(o.State) || o.Lost() {
					return Unmet("ok, with a state in lower case that isn't one of a lost sandbox", "%s %q", statusWord(o.Status), o.State)
				}
				return nil
			})},
		{ID: "destroy.proven", Doc: "A destruction is proven within the 20 seconds of ConfirmDestroyed: Kill asks, and a probe finds no such sandbox.",
			Timeout: time.Minute,
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				if err := s.mine(ctx, h.SandboxID()); err != nil {
					return err
				}
				d := sandbox.ConfirmDestroyed(ctx, s.backend.Provider, h.SandboxID())
				if !d.ConfirmsGone(h.SandboxID()) {
					return Unmet("the verdict gone for "+h.SandboxID(), "%s for %s: %s", d.Outcome, d.SandboxID, d.Detail)
				}
				return nil
			})},
		{ID: "kill.honest", Doc: "Kill says gone only when the sandbox is gone: a probe and Connect agree at once.",
			Timeout: time.Minute,
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				id := h.SandboxID()
				if err := s.mine(ctx, id); err != nil {
					return err
				}
				gone, err := eventually(ctx, 20*time.Second, func() (bool, error) {
					gone, err := s.Kill(ctx, id)
					if gone {
						return true, s.absent(ctx, id, "Kill said gone")
					}
					return gone, NoError("killing a sandbox", err)
				})
				if err != nil {
					return err
				}
				if !gone { // it never claimed it: that is honest, and the probe proves
					return s.destroyed(ctx, id)
				}
				return nil
			})},
		{ID: "kill.again", Doc: "Destroying a sandbox again gives the same verdict, and killing it is no failure of another kind.",
			Timeout: time.Minute,
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				for range 2 {
					if err := s.destroyed(ctx, h.SandboxID()); err != nil {
						return err
					}
				}
				if _, err := s.Kill(ctx, h.SandboxID()); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
					return Unmet("a second kill to succeed or to be SANDBOX_NOT_FOUND", "%v", err)
				}
				return s.absent(ctx, h.SandboxID(), "it was destroyed twice")
			})},
		{ID: "kill.together", Doc: "Several who destroy one sandbox at once all get the verdict gone.",
			Timeout: time.Minute,
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				return together(4, func(int) error { return s.destroyed(ctx, h.SandboxID()) })
			})},
		{ID: "kill.own", Doc: "Destroying one sandbox leaves every other as it is.",
			Timeout: time.Minute,
			Check: withHandle(func(ctx context.Context, s *Stage, a sandbox.Handle) error {
				b, err := s.Create(ctx)
				if err != nil {
					return NoError("creating a second sandbox", err)
				}
				still, err := s.kept(ctx, b)
				if err != nil {
					return err
				}
				if err := s.destroyed(ctx, a.SandboxID()); err != nil {
					return err
				}
				if err := s.exists(ctx, b.SandboxID()); err != nil {
					return err
				}
				if err := still(ctx, b); err != nil {
					return err
				}
				return works(ctx, b)
			})},
		{ID: "kill.running", Doc: "A command that runs when its sandbox is destroyed ends with ErrUnreachable, never with an exit status.",
			Timeout: time.Minute,
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				return s.endsCommands(ctx, h, "the destruction of the sandbox", func() error { return s.destroyed(ctx, h.SandboxID()) })
			})},
	}
}

// lowerWord reports whether s is a word without capitals.
func lowerWord(s string) bool {
	for _, r := range s {
		if r >= 'A' && r <= 'Z' || r <= ' ' {
			return false
		}
	}
	return s != ""
}

// absent wants probe and Connect to find no such sandbox, now.
func (s *Stage) absent(ctx context.Context, id, why string) error {
	o, err := s.Probe(ctx, id)
	if err == nil && o.Status != sandbox.ObservedGone || err != nil && !errors.Is(err, sandbox.ErrProbeUnsupported) {
		return Unmet("a probe to find nothing, since "+why, "%s %q, %v", statusWord(o.Status), o.State, err)
	}
	_, err = s.Connect(ctx, id)
	return Refused("connecting, since "+why+",", err, sandbox.CodeGone)
}

// endsCommands runs a command of five minutes, does what ends it, and wants its
// caller to learn soon that its outcome isn't known.
func (s *Stage) endsCommands(ctx context.Context, h sandbox.Handle, what string, end func() error) error {
	run, cancel := context.WithCancel(ctx)
	defer cancel()
	started := make(chan struct{})
	type outcome struct {
		r   sandbox.CommandResult
		err error
	}
	ended := make(chan outcome, 1)
	go func() {
		out := &signalWriter{c: started}
		r, err := h.Commands().Stream(run, sandbox.Command{Line: script.Line(script.Emit("started"), script.Sleep(5*time.Minute))}, out, nil)
		ended <- outcome{r, err}
	}()
	select {
	case <-started:
	case o := <-ended:
		return Unmet("a command that sleeps to run", "exit status %d, %v", o.r.ExitCode, o.err)
	case <-ctx.Done():
		cancel()
		<-ended
		return ctx.Err()
	}
	if err := end(); err != nil {
		cancel()
		<-ended
		return err
	}
	t := time.NewTimer(20 * time.Second)
	defer t.Stop()
	select {
	case o := <-ended:
		if !errors.Is(o.err, sandbox.ErrUnreachable) {
			return Unmet("a command that "+what+" ended to be ErrUnreachable", "exit status %d, %v", o.r.ExitCode, o.err)
		}
		return nil
	case <-t.C:
		cancel()
		<-ended
		return Unmet("the caller of a command to learn of "+what+" within 20 s", "nothing")
	}
}

// signalWriter closes its channel at the first byte.
type signalWriter struct {
	c    chan struct{}
	told bool
}

func (w *signalWriter) Write(b []byte) (int, error) {
	if !w.told && len(b) > 0 {
		w.told = true
		close(w.c)
	}
	return len(b), nil
}
