package conform

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func connectClauses() []Clause[*Stage] {
	return []Clause[*Stage]{
		{ID: "connect.same", Doc: "Connect gives a handle to the same sandbox: its id, its files, its commands.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				still, err := s.kept(ctx, h)
				if err != nil {
					return err
				}
				again, err := s.connect(ctx, h.SandboxID())
				if err != nil {
					return NoError("connecting to a running sandbox", err)
				}
				if again.SandboxID() != h.SandboxID() {
					return Unmet("a handle with the id "+h.SandboxID(), "%q", again.SandboxID())
				}
				if err := still(ctx, again); err != nil {
					return err
				}
				return works(ctx, again)
			})},
		{ID: "connect.gone", Doc: "Connect to a sandbox that was destroyed is SANDBOX_GONE.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				if err := s.destroyed(ctx, h.SandboxID()); err != nil {
					return err
				}
				_, err := s.Connect(ctx, h.SandboxID())
				return Refused("connecting to a destroyed sandbox", err, sandbox.CodeGone)
			})},
		{ID: "handle.faces", Doc: "A handle has Files, Commands and Processes, each time it is asked.",
			Check: withHandle(func(_ context.Context, _ *Stage, h sandbox.Handle) error {
				for range 2 {
					if missing(h.Files()) || missing(h.Commands()) || missing(h.Processes()) {
						return Unmet("three faces", "Files %s, Commands %s, Processes %s",
							typeName(h.Files()), typeName(h.Commands()), typeName(h.Processes()))
					}
				}
				return nil
			})},
		{ID: "handle.close", Doc: "Closing a handle releases local things only: the sandbox and other handles go on.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				still, err := s.kept(ctx, h)
				if err != nil {
					return err
				}
				other, err := s.connect(ctx, h.SandboxID())
				if err != nil {
					return NoError("connecting a second time", err)
				}
				if c, ok := h.(io.Closer); ok {
					if err := c.Close(); err != nil {
						return NoError("closing a handle", err)
					}
				}
				if err := s.exists(ctx, other.SandboxID()); err != nil {
					return err
				}
				if err := still(ctx, other); err != nil {
					return err
				}
				third, err := s.connect(ctx, h.SandboxID())
				if err != nil {
					return NoError("connecting after a handle was closed", err)
				}
				return works(ctx, third)
			})},
		{ID: "handle.together", Doc: "One handle serves many callers at once.",
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				return together(8, func(int) error {
					still, err := s.kept(ctx, h)
					if err != nil {
						return err
					}
					if err := works(ctx, h); err != nil {
						return err
					}
					return still(ctx, h)
				})
			})},
		{ID: "handle.gone", Doc: "A handle whose sandbox was destroyed answers ErrUnreachable, which says nothing about a file or a command.",
			Timeout: time.Minute,
			Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
				if err := s.destroyed(ctx, h.SandboxID()); err != nil {
					return err
				}
				_, err := h.Files().Stat(ctx, "/")
				if !errors.Is(err, sandbox.ErrUnreachable) || errors.Is(err, fs.ErrNotExist) {
					return Unmet("Stat in a destroyed sandbox to be ErrUnreachable", "%v", err)
				}
				var p *sandbox.PathError
				if !errors.As(err, &p) {
					return Unmet("the error of Stat to be a *PathError", "%s: %v", typeName(err), err)
				}
				if r, err := runWord(ctx, h); !errors.Is(err, sandbox.ErrUnreachable) {
					return Unmet("a command in a destroyed sandbox to be ErrUnreachable", "exit status %d, %v", r.ExitCode, err)
				}
				return nil
			})},
	}
}

// unknownClauses are one for each operation that takes an id.
func unknownClauses() (out []Clause[*Stage]) {
	for _, o := range operations {
		want := fmt.Sprintf("is refused with %s", o.missing)
		switch o.id {
		case "probe":
			want = "says that it is gone, without an error"
		case "kill":
			want += " or succeeds"
		}
		c := Clause[*Stage]{ID: "unknown." + o.id, Doc: o.method + " of a sandbox that never was " + want + ".", Capability: o.flag,
			Check: func(ctx context.Context, s *Stage) error { return o.unknown(ctx, s.backend, nobody) }}
		if o.flag != "" {
			c.Refusal = stageUnbound(o.flag)
		}
		out = append(out, c)
	}
	return append(out, Clause[*Stage]{ID: "unknown.destroyed", Doc: "After its destruction a sandbox is unknown to every operation.",
		Check: withHandle(func(ctx context.Context, s *Stage, h sandbox.Handle) error {
			if err := s.destroyed(ctx, h.SandboxID()); err != nil {
				return err
			}
			for _, o := range operations {
				if !s.has(o.flag) {
					continue
				}
				var sk *skipped
				if err := o.unknown(ctx, s.backend, h.SandboxID()); err != nil && !errors.As(err, &sk) {
					return err
				}
			}
			return nil
		})})
}

// unknown wants the operation to say that the sandbox isn't there.
func (o operation) unknown(ctx context.Context, b backend, id string) error {
	doing := o.method + " of a sandbox that isn't there"
	answer, err := o.ask(ctx, b, id)
	switch {
	case o.unsupported(err):
		return Skip("the backend has no %s", o.method)
	case o.id == "probe" && err != nil:
		return Unmet(doing+" to say that it is gone, without an error", "%v", err)
	case o.id == "probe" && answer != `gone ""`:
		return Unmet(doing+" to say that it is gone", "%s", answer)
	case o.id == "probe", o.id == "kill" && err == nil:
		return nil
	case err == nil:
		return Unmet(doing+" to be refused with "+string(o.missing), "%s", answer)
	}
	return Refused(doing, err, o.missing)
}
