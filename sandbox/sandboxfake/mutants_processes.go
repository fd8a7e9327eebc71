package sandboxfake

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func processMutant(name, clause, why string, h processHooks) Mutant {
	return Mutant{Name: name, Clause: clause, Why: why, apply: bending(bendProcesses(h))}
}

// specMutant starts another process.
func specMutant(name, clause, why string, change func(*spec)) Mutant {
	return processMutant(name, clause, why, processHooks{
		start: func(ctx context.Context, p *bentProcesses, s spec) (string, error) {
			change(&s)
			return p.Processes.Start(ctx, s)
		}})
}

// statusMutant says something else in Status.
func statusMutant(name, clause, why string, change func(*status)) Mutant {
	return processMutant(name, clause, why, processHooks{
		status: func(ctx context.Context, p *bentProcesses, id string) (status, error) {
			s, err := p.Processes.Status(ctx, id)
			change(&s)
			return s, err
		}})
}

// frameMutant changes frames; keep false drops one.
func frameMutant(name, clause, why string, change func(a *bentAttachment, f *frame) (keep bool)) Mutant {
	return processMutant(name, clause, why, processHooks{
		recv: func(ctx context.Context, a *bentAttachment) (frame, error) {
			for {
				f, err := a.Attachment.Recv(ctx)
				if err != nil {
					return f, err
				}
				a.seen++
				if change(a, &f) {
					return f, nil
				}
			}
		}})
}

// optsMutant attaches otherwise.
func optsMutant(name, clause, why string, change func(ctx context.Context, p *bentProcesses, id string, o *opts)) Mutant {
	return processMutant(name, clause, why, processHooks{
		attach: func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
			change(ctx, p, id, &o)
			return p.Processes.Attach(ctx, id, o)
		}})
}

func state(ctx context.Context, p *bentProcesses, id string) status {
	s, _ := p.Processes.Status(ctx, id)
	return s
}

// processMutants break promises on Processes apart from replay and attachments.
func processMutants() []Mutant {
	return slices.Concat(lifeMutants(), deleteMutants())
}

func lifeMutants() []Mutant {
	return []Mutant{
		processMutant("key-is-ignored", "processes.key", "a retried start runs the program twice", processHooks{start: uniqueKeys()}),
		specMutant("key-is-the-same-for-all", "processes.key", "two terminals share a shell", func(s *spec) { s.Key = "k" }),
		processMutant("start-runs-at-once", "processes.start", "opening a panel keeps the sandbox awake", processHooks{
			start: func(ctx context.Context, p *bentProcesses, s spec) (string, error) {
				id, err := p.Processes.Start(ctx, s)
				if err == nil {
					if a, err := p.Processes.Attach(ctx, id, opts{}); err == nil {
						err = a.Close()
						return id, err
					}
				}
				return id, err
			}}),
		specMutant("unknown-account-runs-as-root", "processes.refused", "the workload becomes root by a mistake", func(s *spec) {
			if strings.HasPrefix(s.User, "no-such") {
				s.User = ""
			}
		}),
		processMutant("missing-directory-is-passed-over", "processes.refused", "the program works on other files", processHooks{
			start: func(ctx context.Context, p *bentProcesses, s spec) (string, error) {
				id, err := p.Processes.Start(ctx, s)
				if sandbox.CodeOf(err) == sandbox.CodeInvalid && s.Key != "" && s.User == "" {
					s.Dir = ""
					return p.Processes.Start(ctx, s)
				}
				return id, err
			}}),
		specMutant("key-is-made-up", "processes.refused", "a start without a key can't be retried", func(s *spec) {
			if s.Key == "" {
				s.Key = "made up"
			}
		}),
		processMutant("unknown-is-registered", "processes.unknown", "a process that a pause ended seems to be there", processHooks{
			status: func(ctx context.Context, p *bentProcesses, id string) (status, error) {
				s, err := p.Processes.Status(ctx, id)
				if errors.Is(err, sandbox.ErrProcessNotFound) {
					return status{State: sandbox.ProcessRegistered}, nil
				}
				return s, err
			}}),
		processMutant("unknown-is-unreachable", "processes.unknown", "the platform waits for what will never come", processHooks{
			attach: func(ctx context.Context, p *bentProcesses, id string, o opts) (sandbox.Attachment, error) {
				a, err := p.Processes.Attach(ctx, id, o)
				if errors.Is(err, sandbox.ErrProcessNotFound) {
					err = sandbox.ErrUnreachable
				}
				return a, err
			}}),
		statusMutant("status-has-no-exit", "processes.status", "how it ended is lost with the connection", func(s *status) { s.Exit = nil }),
		statusMutant("status-is-never-exited", "processes.status", "main exits and it stays running for ever", func(s *status) {
			if s.State == sandbox.ProcessExited {
				s.State, s.Exit = sandbox.ProcessRunning, nil
			}
		}),
		statusMutant("status-counts-no-output", "processes.status", "nobody knows where to go on", func(s *status) { s.Next = 0 }),
		statusMutant("status-run-is-one", "processes.rerun", "a rerun goes unnoticed", func(s *status) { s.Run = min(s.Run, 1) }),
		frameMutant("exit-code-is-lost", "processes.exit.code", "a failed program counts as a success", func(_ *bentAttachment, f *frame) bool {
			if f.Exit != nil {
				f.Exit.Code = 0
			}
			return true
		}),
		frameMutant("signal-name-is-lost", "processes.exit.signal", "nobody sees that it was killed", func(_ *bentAttachment, f *frame) bool {
			if f.Exit != nil {
				f.Exit.Signal = ""
			}
			return true
		}),
		statusMutant("status-signal-is-a-status", "processes.exit.signal", "Status and Exit disagree", func(s *status) {
			if s.Exit != nil {
				s.Exit.Signal = ""
			}
		}),
		processMutant("exit-comes-first", "processes.exit.last", "the exit is sent before the terminal is drained", processHooks{recv: exitFirst}),
		frameMutant("last-output-is-lost", "processes.exit.last", "a short program prints nothing", func(_ *bentAttachment, f *frame) bool {
			return len(f.Data) != 1
		}),
		processMutant("end-is-unreachable", "processes.exit.last", "every end looks like a lost connection", processHooks{
			recv: func(ctx context.Context, a *bentAttachment) (frame, error) {
				f, err := a.Attachment.Recv(ctx)
				if errors.Is(err, io.EOF) {
					err = sandbox.ErrUnreachable
				}
				return f, err
			}}),
		specMutant("process-env-is-dropped", "processes.env", "the program lacks its configuration", func(s *spec) { s.Env = nil }),
		specMutant("process-env-is-trimmed", "processes.env", "blanks in a value are lost", func(s *spec) { s.Env = mapped(s.Env, strings.TrimSpace) }),
		specMutant("process-dir-is-ignored", "processes.dir", "the program works on other files", func(s *spec) { s.Dir = "" }),
		specMutant("process-dir-defaults-to-the-root", "processes.dir", "a terminal doesn't begin at home", func(s *spec) {
			if s.Dir == "" {
				s.Dir = "/"
			}
		}),
		specMutant("process-runs-as-root", "processes.user", "the workload can do everything", func(s *spec) { s.User = "" }),
		frameMutant("stderr-becomes-stdout", "processes.pipes", "warnings get into a protocol's stream", func(_ *bentAttachment, f *frame) bool {
			if f.Channel == sandbox.Stderr {
				f.Channel = sandbox.Stdout
			}
			return true
		}),
		specMutant("pipes-are-a-terminal", "processes.pipes", "a protocol's bytes are echoed and changed", func(s *spec) {
			if s.TTY == nil {
				s.TTY = &sandbox.Size{Cols: 80, Rows: 24}
			}
		}),
		specMutant("terminal-is-missing", "processes.tty", "editors don't work", func(s *spec) { s.TTY = nil }),
		specMutant("terminal-has-a-standard-size", "processes.tty", "the screen is garbled until it is resized", func(s *spec) {
			if s.TTY != nil {
				s.TTY = &sandbox.Size{Cols: 80, Rows: 24}
			}
		}),
	}
}

func uniqueKeys() func(ctx context.Context, p *bentProcesses, s spec) (string, error) {
	n := 0
	var mu sync.Mutex
	return func(ctx context.Context, p *bentProcesses, s spec) (string, error) {
		mu.Lock()
		n++
		if s.Key != "" {
			s.Key += strings.Repeat("+", n)
		}
		mu.Unlock()
		return p.Processes.Start(ctx, s)
	}
}

// exitFirst gives the end of a run before its output.
func exitFirst(ctx context.Context, a *bentAttachment) (frame, error) {
	for len(a.queue) == 0 || a.queue[0].Exit == nil && !a.lost {
		f, err := a.Attachment.Recv(ctx)
		switch {
		case err != nil && len(a.queue) == 0:
			return f, err
		case err != nil:
			a.lost = true
		case f.Exit != nil:
			a.queue, a.lost = append([]frame{f}, a.queue...), true
		default:
			a.queue = append(a.queue, f)
		}
	}
	f := a.queue[0]
	if a.queue = a.queue[1:]; len(a.queue) == 0 {
		a.lost = false
	}
	return f, nil
}

func deleteMutants() []Mutant {
	return []Mutant{
		spareMutant("delete-leaves-orphans", "processes.delete", "only the program itself is killed", script.Orphan),
		spareMutant("delete-leaves-children", "processes.delete", "only the program itself is killed", script.Plain),
		processMutant("delete-kills-everything", "processes.delete", "closing one terminal ends all programs", processHooks{
			delete: func(ctx context.Context, p *bentProcesses, id string) error {
				defer p.m.kernel.kill(nil, nil)
				return p.Processes.Delete(ctx, id)
			}}),
		processMutant("delete-forgets-only", "processes.delete", "the program goes on unseen", processHooks{delete: forget}),
		spareMutant("delete-only-asks", "processes.delete.deaf", "SIGHUP isn't followed by SIGKILL", script.Deaf),
		spareMutant("delete-kills-the-group-only", "processes.delete.setsid", "kill misses the tree", script.Setsid),
		processMutant("delete-kills-the-present-run-only", "processes.delete.earlier", "what an earlier run left goes on for ever", processHooks{
			delete: func(ctx context.Context, p *bentProcesses, id string) error {
				if state(ctx, p, id).State == sandbox.ProcessExited {
					return forget(ctx, p, id)
				}
				return p.Processes.Delete(ctx, id)
			}}),
		processMutant("delete-again-fails", "processes.delete.again", "a retried clean-up never ends", processHooks{
			delete: func(ctx context.Context, p *bentProcesses, id string) error {
				if _, err := p.Processes.Status(ctx, id); err != nil {
					return err
				}
				return p.Processes.Delete(ctx, id)
			}}),
		processMutant("delete-keeps-the-key", "processes.delete.again", "a new terminal gets the id of the dead one", processHooks{start: sameForEver()}),
		processMutant("delete-strands-the-attached", "processes.delete.attached", "a terminal stays open and silent for ever", processHooks{
			recv: func(ctx context.Context, a *bentAttachment) (frame, error) {
				f, err := a.Attachment.Recv(ctx)
				a.p.mu.Lock()
				deleted := a.p.deleted
				a.p.mu.Unlock()
				if deleted {
					<-ctx.Done()
					return frame{}, ctx.Err()
				}
				return f, err
			}}),
		processMutant("delete-looks-like-an-exit", "processes.delete.attached", "who is attached believes that the program ended by itself", processHooks{
			recv: func(ctx context.Context, a *bentAttachment) (frame, error) {
				f, err := a.Attachment.Recv(ctx)
				if f.Exit != nil && f.Exit.Signal != "" {
					f.Exit = &sandbox.Exit{}
				}
				return f, err
			}}),
	}
}

// forget takes a process off without killing anything.
func forget(_ context.Context, p *bentProcesses, id string) error {
	p.m.mu.Lock()
	defer p.m.mu.Unlock()
	if pr := p.m.processes[id]; pr != nil {
		delete(p.m.processes, id)
		delete(p.m.byKey, pr.spec.Key)
	}
	return nil
}

func sameForEver() func(ctx context.Context, p *bentProcesses, s spec) (string, error) {
	var mu sync.Mutex
	ids := map[string]string{}
	return func(ctx context.Context, p *bentProcesses, s spec) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if id := ids[s.Key]; id != "" {
			return id, nil
		}
		id, err := p.Processes.Start(ctx, s)
		if err == nil {
			ids[s.Key] = id
		}
		return id, err
	}
}

// inputMutants break promises on input, terminals and signals.
func inputMutants() []Mutant {
	send := func(name, clause, why string, f func(ctx context.Context, a *bentAttachment, b []byte) error) Mutant {
		return processMutant(name, clause, why, processHooks{send: f})
	}
	signal := func(name, clause, why string, f func(ctx context.Context, a *bentAttachment, name string) error) Mutant {
		return processMutant(name, clause, why, processHooks{signal: f})
	}
	return []Mutant{
		send("input-is-cut-at-64-KiB", "processes.stdin", "a large paste loses its end", func(ctx context.Context, a *bentAttachment, b []byte) error {
			return a.Attachment.Send(ctx, b[:min(len(b), 64<<10)])
		}),
		send("input-becomes-utf8", "processes.stdin", "a binary protocol is spoilt", func(ctx context.Context, a *bentAttachment, b []byte) error {
			return a.Attachment.Send(ctx, []byte(strings.ToValidUTF8(string(b), "\ufffd")))
		}),
		send("input-lost-its-order", "processes.stdin", "pieces overtake each other", func(ctx context.Context, a *bentAttachment, b []byte) error {
			half := len(b) / 2
			return a.Attachment.Send(ctx, append(slices.Clone(b[half:]), b[:half]...))
		}),
		processMutant("input-never-ends", "processes.stdin.end", "a program that reads to the end hangs", processHooks{
			closeStdin: func(context.Context, *bentAttachment) error { return nil }}),
		processMutant("input-ends-early", "processes.stdin.end", "what waits is dropped with the end", processHooks{
			send: func(_ context.Context, a *bentAttachment, b []byte) error {
				a.late.hold(b, a.p.typeIn)
				return nil
			},
			closeStdin: func(ctx context.Context, a *bentAttachment) error {
				a.late.drop()
				return a.Attachment.CloseStdin(ctx)
			}}),
		statusMutant("input-isn't-counted", "processes.stdin.count", "input can't be resent exactly once", func(s *status) { s.Stdin = 0 }),
		processMutant("input-is-counted-over-all-runs", "processes.stdin.count", "input of the next run is dropped as sent", processHooks{
			status: func(ctx context.Context, p *bentProcesses, id string) (status, error) {
				s, err := p.Processes.Status(ctx, id)
				s.Stdin += int64(max(s.Run-1, 0)) * 6
				return s, err
			}}),
		send("input-waits-for-the-reader", "processes.stdin.full", "a program that doesn't read blocks the platform", func(ctx context.Context, a *bentAttachment, b []byte) error {
			if err := a.Attachment.Send(ctx, b); err != nil {
				return err
			}
			for a.p.unread() > 64<<10 {
				if linger(ctx); ctx.Err() != nil {
					return ctx.Err()
				}
			}
			return nil
		}),
		send("input-is-unbounded", "processes.stdin.full", "a program that doesn't read fills the memory", func(ctx context.Context, a *bentAttachment, b []byte) error {
			if a.p.unread()+len(b) > 512<<10 {
				a.p.typeIn(b)
				return nil
			}
			return a.Attachment.Send(ctx, b)
		}),
		signal("signal-waits-behind-input", "processes.stdin.control", "a program that doesn't read can't be stopped", func(ctx context.Context, a *bentAttachment, name string) error {
			for a.p.unread() > 0 {
				if linger(ctx); ctx.Err() != nil {
					return ctx.Err()
				}
			}
			return a.Attachment.Signal(ctx, name)
		}),
		send("input-after-the-end-is-dropped", "processes.stdin.over", "a message to a dead program counts as delivered", func(ctx context.Context, a *bentAttachment, b []byte) error {
			if err := a.Attachment.Send(ctx, b); !errors.Is(err, io.EOF) {
				return err
			}
			return nil
		}),
		processMutant("ack-after-the-end-fails", "processes.stdin.over", "storing the last output looks like a failure", processHooks{
			ack: func(ctx context.Context, a *bentAttachment, offset int64) error {
				a.p.mu.Lock()
				over := a.p.task == nil
				a.p.mu.Unlock()
				if over {
					return io.EOF
				}
				return a.Attachment.Ack(ctx, offset)
			}}),
		processMutant("resize-is-ignored", "processes.resize", "the screen stays as it was", processHooks{
			resize: func(_ context.Context, _ *bentAttachment, s sandbox.Size) error {
				if s.Cols == 0 || s.Rows == 0 {
					return sandbox.Errorf(sandbox.CodeInvalid, "no size")
				}
				return nil
			}}),
		processMutant("resize-swaps-rows-and-columns", "processes.resize", "a classic", processHooks{
			resize: func(ctx context.Context, a *bentAttachment, s sandbox.Size) error {
				return a.Attachment.Resize(ctx, sandbox.Size{Cols: s.Rows, Rows: s.Cols})
			}}),
		processMutant("resize-takes-nothing", "processes.resize", "a terminal of no rows crashes programs", processHooks{
			resize: func(ctx context.Context, a *bentAttachment, s sandbox.Size) error {
				if s.Cols == 0 || s.Rows == 0 {
					return nil
				}
				return a.Attachment.Resize(ctx, s)
			}}),
		send("interrupt-key-is-data", "processes.tty.input", "^C does nothing", func(ctx context.Context, a *bentAttachment, b []byte) error {
			return a.Attachment.Send(ctx, []byte(strings.ReplaceAll(string(b), "\x03", "")))
		}),
		send("return-key-is-data", "processes.tty.input", "Enter does nothing", func(ctx context.Context, a *bentAttachment, b []byte) error {
			return a.Attachment.Send(ctx, []byte(strings.ReplaceAll(string(b), "\r", "")))
		}),
		signal("signal-hits-the-shell-only", "processes.signal", "interrupt kills only the shell, not the group", func(_ context.Context, a *bentAttachment, name string) error {
			a.p.mu.Lock()
			pid := a.p.group
			a.p.mu.Unlock()
			a.m.kernel.signal(pid, strings.TrimPrefix(name, "SIG"))
			return nil
		}),
		signal("signal-is-always-term", "processes.signal", "a program that ignores SIGTERM can't be killed", func(ctx context.Context, a *bentAttachment, name string) error {
			if strings.HasPrefix(name, "SIG") && name != "SIGSTOP" && name != "SIGUSR1" {
				name = "SIGTERM"
			}
			return a.Attachment.Signal(ctx, name)
		}),
		signal("signal-is-always-kill", "processes.signal.caught", "no program ends in order", func(ctx context.Context, a *bentAttachment, name string) error {
			if name == "SIGTERM" || name == "SIGHUP" {
				name = "SIGKILL"
			}
			return a.Attachment.Signal(ctx, name)
		}),
		signal("signal-names-aren't-checked", "processes.signal.refused", "a mistyped signal counts as sent", func(ctx context.Context, a *bentAttachment, name string) error {
			if err := a.Attachment.Signal(ctx, name); sandbox.CodeOf(err) != sandbox.CodeInvalid {
				return err
			}
			return nil
		}),
	}
}
