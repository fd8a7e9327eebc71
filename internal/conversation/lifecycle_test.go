package conversation

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/fleet/fleettest"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

func (w *world) running(id string, turn model.Turn) {
	w.t.Helper()
	w.until("running", func(ctx context.Context, s *Service) (bool, error) {
		now, err := s.Turn(ctx, id, turn.ID)
		return now.State == model.TurnRunning, err
	})
}

func (w *world) get(id string) model.Conversation {
	w.t.Helper()
	c, err := w.s.Get(context.Background(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

func count(events []model.Event, kind string) (n int) {
	for _, e := range events {
		if e.Type == kind {
			n++
		}
	}
	return n
}

// A dead sandbox ends its turn truthfully and never its conversation: what
// waits gets another sandbox.
func TestLostInATurn(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		one := w.send(id, "m1", "hang")
		w.running(id, one)
		two := w.send(id, "m2", "echo next")
		lost := w.get(id).Runtime.SandboxID
		at := time.Now()
		w.backend.Lose(lost)
		one, two = w.settled(id, one), w.settled(id, two)
		if one.State != model.TurnFailed || one.Error == nil || one.Error.Code != string(fault.SandboxLost) {
			t.Errorf("the turn in the lost sandbox: %s %+v", one.State, one.Error)
		}
		if one.EndedAt.Sub(at) > time.Second {
			t.Errorf("the death was noticed after %v", one.EndedAt.Sub(at))
		}
		if two.State != model.TurnDone || w.get(id).Runtime.SandboxID == lost {
			t.Errorf("the waiting message: %s %+v", two.State, two.Error)
		}
		events := w.events(id)
		checkJournal(t, events, one, two)
		if count(events, model.EventLost) != 1 || count(events, model.EventReady) != 2 {
			t.Error("the journal doesn't tell the loss and the replacement")
		}
	})
}

func TestLostWhileIdleOrPaused(t *testing.T) {
	for _, when := range []model.RuntimeState{model.RuntimeReady, model.RuntimePaused} {
		t.Run(string(when), func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				id := w.create()
				w.settled(id, w.send(id, "m1", "echo one"))
				w.runtimeIs(id, when)
				w.backend.Lose(w.get(id).Runtime.SandboxID)
				if when == model.RuntimeReady {
					w.runtimeIs(id, model.RuntimeLost) // by itself, at once
				}
				two := w.settled(id, w.send(id, "m2", "echo two"))
				if two.State != model.TurnDone {
					t.Errorf("%s %+v", two.State, two.Error)
				}
				if n := count(w.events(id), model.EventLost); n != 1 {
					t.Errorf("the loss is told %d times", n)
				}
			})
		})
	}
}

// A probe that can't be answered changes nothing: the turn goes on when the
// backend answers again.
func TestUnanswerableProbeChangesNothing(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		turn := w.send(id, "m1", "drip 100")
		w.running(id, turn)
		w.backend.Set(func(b *fleettest.Backend) { b.ProbeErr = errors.New("no answer") })
		w.backend.DropAttachments()
		time.Sleep(20 * time.Second)
		w.backend.Set(func(b *fleettest.Backend) { b.ProbeErr = nil })
		turn = w.settled(id, turn)
		if turn.State != model.TurnDone || said(w.events(id), turn.ID) != chunks(100) {
			t.Errorf("%s %+v", turn.State, turn.Error)
		}
	})
}

func TestPauseThatIsNotConfirmed(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.backend.Set(func(b *fleettest.Backend) { b.PauseFails = true })
		id := w.create()
		w.settled(id, w.send(id, "m1", "echo one"))
		w.until("a try", func(ctx context.Context, s *Service) (bool, error) {
			events, _, err := s.Events(ctx, id, 0, 1000)
			return count(events, model.EventPausing) == 1, err
		})
		w.runtimeIs(id, model.RuntimeReady)
		two := w.settled(id, w.send(id, "m2", "echo two"))
		if two.State != model.TurnDone || w.backend.Creates() != 1 {
			t.Errorf("after an unconfirmed pause: %s, %d sandboxes", two.State, w.backend.Creates())
		}
		w.backend.Set(func(b *fleettest.Backend) { b.PauseFails = false })
		w.runtimeIs(id, model.RuntimePaused)
	})
}

func TestPausedFromOutside(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		one := w.send(id, "m1", "hang")
		w.running(id, one)
		w.backend.PauseFromOutside(w.get(id).Runtime.SandboxID)
		if one = w.settled(id, one); one.State != model.TurnFailed {
			t.Errorf("the turn: %s", one.State)
		}
		if c := w.runtimeIs(id, model.RuntimePaused); c.Runtime.SandboxID == "" {
			t.Error("the paused sandbox was forgotten")
		}
		if two := w.settled(id, w.send(id, "m2", "echo two")); two.State != model.TurnDone || w.backend.Creates() != 1 {
			t.Errorf("afterwards: %s %+v", two.State, two.Error)
		}
	})
}

// A sandbox at work is never reaped as idle.
func TestWorkIsNotIdle(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		turn := w.settled(id, w.send(id, "m1", "silent 7000")) // longer than any idle time
		if turn.State != model.TurnDone {
			t.Errorf("a long silent turn: %s %+v", turn.State, turn.Error)
		}
		files, account, err := w.s.Workspace(t.Context(), id)
		if err != nil || account != "agent" {
			t.Fatal(account, err)
		}
		r := readUntil{make(chan struct{})}
		go func() { time.Sleep(2 * time.Hour); close(r.end) }()
		if err := files.Write(t.Context(), "/workspace/slow", r, sandbox.WriteOptions{}); err != nil {
			t.Errorf("a slow upload: %v", err)
		}
		if n := count(w.events(id), model.EventPausing); n != 0 {
			t.Errorf("it was paused %d times while it was used", n)
		}
		// The idle time begins anew with each use.
		time.Sleep(29 * time.Minute)
		if _, err := files.Stat(t.Context(), "/workspace/slow"); err != nil {
			t.Error(err)
		}
		time.Sleep(29 * time.Minute)
		if c := w.get(id); c.Runtime.State != model.RuntimeReady {
			t.Errorf("%s, 29 minutes after a use", c.Runtime.State)
		}
		if _, err := files.Stat(t.Context(), "/etc/passwd"); !errors.Is(err, sandbox.ErrPathRejected) {
			t.Errorf("outside of the workspace: %v", err)
		}
		w.runtimeIs(id, model.RuntimePaused)
	})
}

// readUntil is a body that comes to its end when the channel is closed.
type readUntil struct{ end chan struct{} }

func (r readUntil) Read([]byte) (int, error) {
	<-r.end
	return 0, errEOF
}

// The lease is renewed while a conversation is used, and moved to the retention
// time before a pause.
func TestLease(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		turn := w.send(id, "m1", "silent 36000")
		w.running(id, turn)
		for range 9 {
			time.Sleep(time.Hour)
			if left := time.Until(w.backend.Expires(w.get(id).Runtime.SandboxID)); left < 50*time.Minute {
				t.Fatalf("%v are left of the lease of a sandbox at work", left)
			}
		}
		w.settled(id, turn)
		c := w.runtimeIs(id, model.RuntimePaused)
		if left := time.Until(w.backend.Expires(c.Runtime.SandboxID)); left < 7*24*time.Hour-time.Minute {
			t.Errorf("paused with %v left", left)
		}
		// Its retention time passes and the backend ends it.
		time.Sleep(7*24*time.Hour - time.Minute)
		w.backend.Lose(c.Runtime.SandboxID)
		w.runtimeIs(id, model.RuntimeNone)
		if two := w.settled(id, w.send(id, "m2", "echo two")); two.State != model.TurnDone {
			t.Errorf("after the retention: %s", two.State)
		}
	})
}

// A destruction is called confirmed only when it is; the ledger goes on for ever.
func TestUnconfirmedDestruction(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		w.settled(id, w.send(id, "m1", "echo one"))
		box := w.get(id).Runtime.SandboxID
		w.backend.Set(func(b *fleettest.Backend) { b.KillKeeps = true })
		c, err := w.s.Delete(t.Context(), id)
		if err != nil || c.State != model.Deleting || c.Destruction == nil || c.Destruction.Outcome != string(sandbox.Unconfirmed) || c.Destruction.SandboxID != box {
			t.Fatalf("an unproven deletion: %+v %+v %v", c, c.Destruction, err)
		}
		w.reboot() // the ledger outlives the process
		time.Sleep(3 * time.Hour)
		if n, err := w.s.Unconfirmed(t.Context()); n != 1 || err != nil {
			t.Errorf("the ledger has %d open entries, %v", n, err)
		}
		if c := w.get(id); c.State != model.Deleting {
			t.Errorf("it is called %s without a proof", c.State)
		}
		w.backend.Set(func(b *fleettest.Backend) { b.KillKeeps = false })
		w.until("deleted", func(ctx context.Context, s *Service) (bool, error) {
			c, err := s.Get(ctx, id)
			return c.State == model.Deleted, err
		})
		if c := w.get(id); c.Destruction == nil || c.Destruction.Outcome != string(sandbox.Gone) {
			t.Errorf("the proof: %+v", c.Destruction)
		}
	})
}

func TestDeleteGivesTheProof(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		one := w.send(id, "m1", "hang")
		w.running(id, one)
		box := w.get(id).Runtime.SandboxID
		c, err := w.s.Delete(t.Context(), id)
		if err != nil || c.State != model.Deleted || c.Destruction == nil || c.Destruction.Outcome != string(sandbox.Gone) || c.Destruction.SandboxID != box {
			t.Fatalf("%+v %+v %v", c, c.Destruction, err)
		}
		if one = w.settled(id, one); one.State != model.TurnInterrupted {
			t.Errorf("the running turn: %s", one.State)
		}
		again, err := w.s.Delete(t.Context(), id)
		if err != nil || again.State != model.Deleted {
			t.Errorf("deleting again: %+v %v", again, err)
		}
		// One that never had a sandbox.
		other := w.create()
		if c, err := w.s.Delete(t.Context(), other); err != nil || c.State != model.Deleted || c.Destruction != nil {
			t.Errorf("without a sandbox: %+v %v", c, err)
		}
		if items, _, err := w.s.List(t.Context(), "", 0); err != nil || len(items) != 0 {
			t.Errorf("deleted ones are listed: %v %v", items, err)
		}
	})
}

// The sweep takes what is ours and unnamed, and nothing else.
func TestSweep(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		w.settled(id, w.send(id, "m1", "echo one"))
		mine := map[string]string{sandbox.KeyManagedBy: sandbox.ManagedBy, sandbox.KeyInstallation: "inst", sandbox.KeySessionID: "cnv_x", sandbox.KeyAssignmentID: "asg_x"}
		unclaimed := map[string]string{sandbox.KeyManagedBy: sandbox.ManagedBy, sandbox.KeyInstallation: "inst"}
		foreign := map[string]string{sandbox.KeyManagedBy: sandbox.ManagedBy, sandbox.KeyInstallation: "other"}
		old, young := w.backend.Plant(mine, time.Hour), w.backend.Plant(mine, 0)
		other, nobodys, ownerless := w.backend.Plant(foreign, time.Hour), w.backend.Plant(nil, time.Hour), w.backend.Plant(unclaimed, time.Hour)
		w.backend.Set(func(b *fleettest.Backend) { b.ListAll = true })
		time.Sleep(6 * time.Minute)
		boxes := w.backend.Boxes()
		for box, want := range map[string]bool{old: false, young: true, other: true, nobodys: true, ownerless: true, w.get(id).Runtime.SandboxID: true} {
			if _, there := boxes[box]; there != want {
				t.Errorf("%s is there: %v", box, there)
			}
		}
		time.Sleep(10 * time.Minute)
		if _, there := w.backend.Boxes()[young]; there {
			t.Error("it was left alone for ever")
		}
	})
}

func TestStartThatFails(t *testing.T) {
	for name, cause := range map[string]*sandbox.Error{
		"capacity": sandbox.Errorf(sandbox.CodeCapacity, "no room"),
		"config":   sandbox.Errorf(sandbox.CodeInvalid, "no such image"),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				tries := 0
				w.backend.Set(func(b *fleettest.Backend) {
					b.CreateErr = func(sandbox.CreateSpec) error { tries++; return cause }
				})
				id := w.create()
				one := w.settled(id, w.send(id, "m1", "echo one"))
				if one.State != model.TurnUndelivered || one.Error == nil || one.Error.Code != string(fault.InputNotDelivered) || !strings.Contains(one.Error.Message, cause.Message) {
					t.Errorf("%s %+v", one.State, one.Error)
				}
				if c := w.get(id); c.Runtime.State != model.RuntimeNone || c.Runtime.Reason == "" {
					t.Errorf("runtime: %+v", c.Runtime)
				}
				if want := map[bool]int{true: createTries, false: 1}[cause.Retryable]; tries != want {
					t.Errorf("it was tried %d times, want %d", tries, want)
				}
				w.backend.Set(func(b *fleettest.Backend) { b.CreateErr = nil })
				if two := w.settled(id, w.send(id, "m2", "echo two")); two.State != model.TurnDone {
					t.Errorf("afterwards: %s", two.State)
				}
				checkJournal(t, w.events(id), one)
			})
		})
	}
}

// Somebody who waits for the files of a sandbox that can't start is told.
func TestWaitersAreTold(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.backend.Set(func(b *fleettest.Backend) {
			b.CreateErr = func(sandbox.CreateSpec) error { return sandbox.Errorf(sandbox.CodeInvalid, "no such image") }
		})
		id := w.create()
		if _, _, err := w.s.Workspace(t.Context(), id); !fault.Is(fault.From(err), fault.Code(sandbox.CodeInvalid)) {
			t.Errorf("files: %v", err)
		}
		w.backend.Set(func(b *fleettest.Backend) { b.CreateErr = nil; b.CreateTime = time.Hour })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := w.s.Workspace(ctx, id); !fault.Is(err, fault.Timeout) {
			t.Errorf("with a deadline: %v", err)
		}
		if _, _, err := w.s.Workspace(t.Context(), "conv_unknown"); !fault.Is(err, fault.ConversationNotFound) {
			t.Errorf("an unknown conversation: %v", err)
		}
	})
}

func TestTerminals(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		term, err := w.s.CreateTerminal(t.Context(), id, sandbox.Size{Cols: 80, Rows: 24})
		if err != nil {
			t.Fatal(err)
		}
		attach := func(o sandbox.AttachOptions) (string, error) {
			a, err := w.s.AttachTerminal(t.Context(), id, term.ID, o)
			if err != nil {
				return "", err
			}
			defer a.Close()
			if err := a.Send(t.Context(), []byte("ls\n")); err != nil {
				return "", err
			}
			f, err := a.Recv(t.Context())
			return string(f.Data), err
		}
		if got, err := attach(sandbox.AttachOptions{}); got != "$ ls\r\n" || err != nil {
			t.Errorf("the shell said %q, %v", got, err)
		}
		w.reboot() // and outlives the platform
		if got, err := attach(sandbox.AttachOptions{From: 6}); got != "$ ls\r\n" || err != nil {
			t.Errorf("after a restart the shell said %q, %v", got, err)
		}
		if _, err := attach(sandbox.AttachOptions{From: 1000}); !fault.Is(err, fault.TerminalOffset) {
			t.Errorf("from a byte that doesn't exist yet: %v", err)
		}
		c := w.runtimeIs(id, model.RuntimePaused)
		list, err := w.s.Terminals(t.Context(), id)
		if err != nil || len(list) != 1 || list[0].State != model.TerminalGone || !strings.Contains(list[0].Reason, "paused") {
			t.Errorf("after a pause: %+v, %v", list, err)
		}
		_, err = attach(sandbox.AttachOptions{})
		if f := fault.From(err); f == nil || f.Code != fault.TerminalNotFound || !strings.Contains(f.Public, "paused") {
			t.Errorf("attaching after a pause: %v", err)
		}
		if now := w.get(id); now.Runtime.State != c.Runtime.State {
			t.Error("looking at a gone terminal woke the sandbox")
		}
		if err := w.s.DeleteTerminal(t.Context(), id, term.ID); err != nil {
			t.Error(err)
		}
		for range MaxTerminals {
			if _, err := w.s.CreateTerminal(t.Context(), id, sandbox.Size{Cols: 80, Rows: 24}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := w.s.CreateTerminal(t.Context(), id, sandbox.Size{Cols: 80, Rows: 24}); !fault.Is(err, fault.TerminalLimit) {
			t.Errorf("one too many: %v", err)
		}
		synctest.Wait()
	})
}

// A clean stop pauses all sandboxes. What runs is interrupted and says so; what
// waits is delivered after the next start.
func TestSuspend(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		idle, busy, never := w.create(), w.create(), w.create()
		w.settled(idle, w.send(idle, "m1", "echo one"))
		turn := w.send(busy, "m1", "drip 100")
		w.running(busy, turn)
		waits := w.send(busy, "m2", "echo two")
		if err := w.s.Suspend(t.Context()); err != nil {
			t.Fatal(err)
		}
		for id, want := range map[string]model.RuntimeState{idle: model.RuntimePaused, busy: model.RuntimePaused, never: model.RuntimeNone} {
			if c := w.get(id); c.Runtime.State != want {
				t.Errorf("%s instead of %s", c.Runtime.State, want)
			}
		}
		if turn = w.settled(busy, turn); turn.State != model.TurnInterrupted {
			t.Errorf("the turn that ran: %s", turn.State)
		}
		if c := w.get(busy); c.Queued != 1 {
			t.Errorf("%d messages wait", c.Queued)
		}
		w.halt()
		time.Sleep(10 * time.Second)
		w.boot()
		if waits = w.settled(busy, waits); waits.State != model.TurnDone {
			t.Errorf("the message that waited: %s", waits.State)
		}
		if two := w.settled(idle, w.send(idle, "m2", "echo two")); two.State != model.TurnDone {
			t.Errorf("the suspended one afterwards: %s", two.State)
		}
		notices := 0
		for _, e := range w.events(busy) {
			if e.Type == model.EventNotice && e.TurnID == turn.ID {
				notices++
			}
		}
		if notices != 1 {
			t.Errorf("%d notices say why the turn was interrupted", notices)
		}
		checkJournal(t, w.events(busy), turn, waits)
	})
}
