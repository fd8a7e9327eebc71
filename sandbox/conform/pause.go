package conform

import (
	"context"
	"errors"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func pauseClauses() []Clause[*Stage] {
	clauses := []Clause[*Stage]{
		{ID: "pause.evidence", Doc: "Pause and Resume say true only when it is so: Connect is refused with SANDBOX_NOT_RUNNING, and works again.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				if err := s.pause(ctx, h.SandboxID()); err != nil {
					return err
				}
				if _, err := s.Connect(ctx, h.SandboxID()); err == nil || !errors.Is(err, sandbox.ErrNotRunning) {
					return Refused("connecting to a paused sandbox", err, sandbox.CodeNotRunning)
				}
				again, err := s.resume(ctx, h.SandboxID())
				if err != nil {
					return err
				}
				return works(ctx, again)
			})},
		{ID: "pause.asleep", Doc: "Connect and Probe don't wake a paused sandbox.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				if err := s.pause(ctx, h.SandboxID()); err != nil {
					return err
				}
				for range 3 {
					_, _ = s.Probe(ctx, h.SandboxID()) // what it says is another clause's
					_, err := s.Connect(ctx, h.SandboxID())
					if err := Refused("connecting to a paused sandbox", err, sandbox.CodeNotRunning); err != nil {
						return err
					}
				}
				return nil
			})},
		{ID: "pause.probe", Doc: "A paused sandbox is seen, in a state of its own, and isn't lost.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				running, err := s.Probe(ctx, h.SandboxID())
				if errors.Is(err, sandbox.ErrProbeUnsupported) {
					return Skip("the backend can't probe")
				}
				if err := s.pause(ctx, h.SandboxID()); err != nil {
					return err
				}
				o, err := s.Probe(ctx, h.SandboxID())
				if err != nil {
					return NoError("probing a paused sandbox", err)
				}
				if o.Status != sandbox.ObservedOK || o.Lost() || !lowerWord(o.State) || o.State == running.State {
					return Unmet("ok, and another state than "+running.State, "%s %q", statusWord(o.Status), o.State)
				}
				return nil
			})},
		{ID: "pause.files", Doc: "Id and files, with their bits and owners, stay through pause and resume.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				still, err := s.kept(ctx, h)
				if err != nil {
					return err
				}
				if err := s.pause(ctx, h.SandboxID()); err != nil {
					return err
				}
				again, err := s.resume(ctx, h.SandboxID())
				if err != nil {
					return err
				}
				if again.SandboxID() != h.SandboxID() {
					return Unmet("the id "+h.SandboxID(), "%s", again.SandboxID())
				}
				return still(ctx, again)
			})},
		{ID: "pause.processes", Doc: "A pause ends every long-lived process: afterwards its id is not found.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				if !s.Caps.ProcessSessions {
					return Skip("the backend has no long-lived processes")
				}
				id, err := h.Processes().Start(ctx, sandbox.ProcessSpec{Key: "conform-pause", Line: script.Line(script.Emit("started"), script.Sleep(5*time.Minute))})
				if err != nil {
					return NoError("starting a process", err)
				}
				a, err := h.Processes().Attach(ctx, id, sandbox.AttachOptions{})
				if err != nil {
					return NoError("attaching to a process", err)
				}
				_, err = a.Recv(ctx)
				_ = a.Close() // the process goes on
				if err != nil {
					return NoError("reading the first output of a process", err)
				}
				if err := s.pause(ctx, h.SandboxID()); err != nil {
					return err
				}
				again, err := s.resume(ctx, h.SandboxID())
				if err != nil {
					return err
				}
				if st, err := again.Processes().Status(ctx, id); !errors.Is(err, sandbox.ErrProcessNotFound) {
					return Unmet("ErrProcessNotFound for a process from before the pause", "%s, %v", st.State, err)
				}
				return nil
			})},
		{ID: "pause.commands", Doc: "A command that runs when its sandbox is paused ends with ErrUnreachable, never with an exit status.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				return s.endsCommands(ctx, h, "the pause of the sandbox", func() error { return s.pause(ctx, h.SandboxID()) })
			})},
		{ID: "pause.again", Doc: "Pausing what is paused and resuming what runs is a success that changes nothing.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				still, err := s.kept(ctx, h)
				if err != nil {
					return err
				}
				for range 2 {
					if err := s.pause(ctx, h.SandboxID()); err != nil {
						return err
					}
				}
				for range 2 {
					again, err := s.resume(ctx, h.SandboxID())
					if err != nil {
						return err
					}
					if err := still(ctx, again); err != nil {
						return err
					}
				}
				return nil
			})},
		{ID: "pause.own", Doc: "Pausing one sandbox leaves every other running.",
			Check: withHandle(func(ctx context.Context, s *Stage, a sandbox.Handle) error {
				b, err := s.Create(ctx)
				if err != nil {
					return NoError("creating a second sandbox", err)
				}
				if err := s.pause(ctx, a.SandboxID()); err != nil {
					return err
				}
				if _, err := s.Connect(ctx, b.SandboxID()); err != nil {
					return NoError("connecting to the other sandbox", err)
				}
				return works(ctx, b)
			})},
		{ID: "pause.lease", Doc: "A pause doesn't bring the sandbox's end nearer, and a paused sandbox can be renewed.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				before, err := s.expiresAt(ctx, h)
				if err != nil {
					return err
				}
				if err := s.pause(ctx, h.SandboxID()); err != nil {
					return err
				}
				after, err := s.expiresAt(ctx, h)
				if err != nil {
					return err
				}
				if earlier(after, before) {
					return Unmet("the end "+timeText(before)+" to stay", "%v", after)
				}
				now := time.Now()
				at, err := s.renew(ctx, h, 3*time.Hour)
				if err != nil {
					return err
				}
				if !at.IsZero() && at.Before(now.Add(3*time.Hour-slack)) {
					return Unmet("an end in three hours", "%s", afterText(at, now))
				}
				if _, err := s.Connect(ctx, h.SandboxID()); err == nil {
					return Unmet("the renewed sandbox to stay paused", "it runs")
				}
				return nil
			})},
		{ID: "pause.destroy", Doc: "A paused sandbox can be destroyed with proof.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				if err := s.pause(ctx, h.SandboxID()); err != nil {
					return err
				}
				if err := s.destroyed(ctx, h.SandboxID()); err != nil {
					return err
				}
				return s.absent(ctx, h.SandboxID(), "it was destroyed")
			})},
	}
	for i := range clauses {
		clauses[i].Capability, clauses[i].Refusal, clauses[i].Timeout = "Pause", stageUnbound("Pause"), 2*time.Minute
	}
	return clauses
}

// pause pauses with evidence.
func (s *Stage) pause(ctx context.Context, id string) error {
	paused, err := s.Pauser.Pause(ctx, id)
	if err != nil {
		return NoError("pausing a sandbox", err)
	}
	if !paused {
		o, err := s.Probe(ctx, id)
		return Unmet("evidence that the sandbox is paused", "Pause said false, and the probe %s %q, %v", statusWord(o.Status), o.State, err)
	}
	return nil
}

// resume resumes with evidence and connects anew.
func (s *Stage) resume(ctx context.Context, id string) (sandbox.Handle, error) {
	running, err := s.Pauser.Resume(ctx, id)
	if err != nil {
		return nil, NoError("resuming a sandbox", err)
	}
	if !running {
		return nil, Unmet("evidence that the sandbox runs", "Resume said false")
	}
	h, err := s.connect(ctx, id)
	if err != nil {
		return nil, NoError("connecting to a resumed sandbox", err)
	}
	return h, nil
}
