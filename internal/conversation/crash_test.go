package conversation

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/fleet/fleettest"
	"github.com/astrabox/astrabox/internal/killpoint"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

var (
	seeds    = flag.Int("seeds", 20, "crash schedules to run")
	fromSeed = flag.Uint64("seed", 1, "the first of them")
)

// script is a life of a conversation: every durable step happens in it. It
// checks at the end that nothing was lost, doubled or left.
func script(t *testing.T, w *world) {
	id := w.create()
	var turns []model.Turn
	turn := func(key, text string) model.Turn {
		done := w.settled(id, w.send(id, key, text))
		turns = append(turns, done)
		return done
	}
	want := func(turn model.Turn, text string) {
		if turn.State != model.TurnDone {
			t.Errorf("turn %q: %s %+v", turn.Text, turn.State, turn.Error)
		}
		if got := said(w.events(id), turn.ID); got != text {
			t.Errorf("turn %q said %q, want %q", turn.Text, got, text)
		}
	}
	want(turn("m1", "echo first"), "first")
	want(turn("m2", "chunks 200"), chunks(200))
	want(turn("m3", "drip 3"), chunks(3))

	// Two messages at once: the second waits.
	a, b := w.send(id, "m4", "silent 7"), w.send(id, "m5", "echo behind")
	a, b = w.settled(id, a), w.settled(id, b)
	turns = append(turns, a, b)
	want(b, "behind")

	// A stop by the program's own means, and one by force.
	for key, text := range map[string]string{"m6": "hang", "m7": "stubborn"} {
		stopped := w.send(id, key, text)
		w.until("running", func(ctx context.Context, s *Service) (bool, error) {
			now, err := s.Turn(ctx, id, stopped.ID)
			return now.State == model.TurnRunning, err
		})
		w.do(func(ctx context.Context, s *Service) error {
			_, err := s.Interrupt(ctx, id)
			if fault.Is(err, fault.TurnNotRunning) {
				err = nil // the first try did it
			}
			return err
		})
		stopped = w.settled(id, stopped)
		turns = append(turns, stopped)
		if stopped.State != model.TurnInterrupted {
			t.Errorf("turn %q: %s %+v", stopped.Text, stopped.State, stopped.Error)
		}
	}
	if died := turn("m8", "die 1"); died.State != model.TurnFailed && died.State != model.TurnUnknown {
		t.Errorf("turn %q: %s", died.Text, died.State)
	}
	want(turn("m9", "echo after"), "after")

	w.do(func(ctx context.Context, s *Service) error {
		_, err := s.CreateTerminal(ctx, id, sandbox.Size{Cols: 80, Rows: 24})
		return err
	})
	before := w.runtimeIs(id, model.RuntimePaused)
	want(turn("m10", "echo awake"), "awake")
	if after := w.runtimeIs(id, model.RuntimeReady); after.Runtime.SandboxID != before.Runtime.SandboxID {
		t.Errorf("the pause cost the sandbox: %s became %s", before.Runtime.SandboxID, after.Runtime.SandboxID)
	}

	w.do(func(ctx context.Context, s *Service) error {
		_, err := s.Delete(ctx, id)
		return err
	})
	w.until("deleted", func(ctx context.Context, s *Service) (bool, error) {
		c, err := s.Get(ctx, id)
		return c.State == model.Deleted, err
	})
	events := w.events(id)
	checkJournal(t, events, turns...)
	seen := map[string]int{}
	for _, prompt := range w.backend.Executed() {
		seen[prompt]++
	}
	for _, turn := range turns {
		if n := seen[turn.Text]; n != 1 {
			t.Errorf("%q ran %d times", turn.Text, n)
		}
	}
	// Nothing of anybody is left, once the sweep has been by.
	w.until("no sandbox left", func(ctx context.Context, s *Service) (bool, error) {
		n, err := s.Unconfirmed(ctx)
		return n == 0 && len(w.backend.Boxes()) == 0, err
	})
	if n := w.backend.Creates(); n != 1 {
		t.Errorf("%d sandboxes were made", n)
	}
}

func TestScriptWithoutACrash(t *testing.T) {
	hit := map[string]int{}
	var mu sync.Mutex
	defer killpoint.Arm(func(name string) { mu.Lock(); defer mu.Unlock(); hit[name]++ })()
	inWorld(t, nil, script)
	for _, name := range killpoint.Names() {
		if hit[name] == 0 {
			t.Errorf("the script never passes %s", name)
		}
	}
}

// TestCrashAtEveryPoint kills the platform at the first and second
// passing of every kill point and starts it again.
func TestCrashAtEveryPoint(t *testing.T) {
	passings := []int{1, 2}
	if testing.Short() {
		passings = passings[:1]
	}
	for _, name := range killpoint.Names() {
		for _, nth := range passings {
			t.Run(fmt.Sprintf("%s/%d", name, nth), func(t *testing.T) {
				inWorld(t, nil, func(t *testing.T, w *world) {
					hits, disarm := w.killAt(name, nth)
					defer disarm()
					script(t, w)
					if *hits >= nth && w.boots < 2 {
						t.Error("the point was passed and nothing crashed")
					}
				})
			})
		}
	}
}

// TestCrashSchedules crashes again and again, at random points.
func TestCrashSchedules(t *testing.T) {
	n := *seeds
	if testing.Short() {
		n = min(n, 5)
	}
	for i := range n {
		seed := *fromSeed + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				w.backend.Set(func(b *fleettest.Backend) { b.Chunk = rnd.IntN(3) * 37; b.CreateTime = 1e9 })
				var mu sync.Mutex
				left := 8
				disarm := killpoint.Arm(func(string) {
					mu.Lock()
					now := !w.crashed.Load() && left > 0 && rnd.IntN(12) == 0
					if now {
						left--
					}
					mu.Unlock()
					if now {
						w.crash()
					}
					if w.crashed.Load() {
						runtime.Goexit()
					}
				})
				defer disarm()
				script(t, w)
			})
			if t.Failed() {
				t.Logf("again: go test ./internal/conversation -run 'TestCrashSchedules/%d$' -seed %d -seeds 1 -v", seed, seed)
			}
		})
	}
}

// Without CorrelatedCreate an interrupted create can't be continued: the
// message says so, and only a new one starts again.
func TestInterruptedCreateWithoutCorrelation(t *testing.T) {
	setup := func(w *world) { w.caps.CorrelatedCreate = false }
	for _, point := range []string{"start.planned", "start.created"} {
		t.Run(point, func(t *testing.T) {
			inWorld(t, setup, func(t *testing.T, w *world) {
				_, disarm := w.killAt(point, 1)
				defer disarm()
				id := w.create()
				one := w.settled(id, w.send(id, "m1", "echo one"))
				if one.State != model.TurnUndelivered || one.Error == nil || one.Error.Code != string(sandbox.CodeCreateInterrupted) {
					t.Errorf("the waiting message: %s %+v", one.State, one.Error)
				}
				if ran := w.backend.Executed(); len(ran) != 0 {
					t.Errorf("ran %q", ran)
				}
				two := w.settled(id, w.send(id, "m2", "echo two"))
				if two.State != model.TurnDone {
					t.Errorf("a new message: %s %+v", two.State, two.Error)
				}
				checkJournal(t, w.events(id), one, two)
			})
		})
	}
}

// A message of which a part arrived before the connection broke and the
// platform crashed is completed, not sent again.
func TestCutSend(t *testing.T) {
	text := "echo " + strings.Repeat("long ", 400)
	for _, limit := range []int{1, 50, 700, 2000} {
		for _, crash := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/%v", limit, crash), func(t *testing.T) {
				inWorld(t, nil, func(t *testing.T, w *world) {
					id := w.create()
					w.settled(id, w.send(id, "m1", "echo ready"))
					w.backend.Set(func(b *fleettest.Backend) { b.SendLimit = limit })
					turn := w.send(id, "m2", text)
					if crash {
						w.until("delivering", func(ctx context.Context, s *Service) (bool, error) {
							now, err := s.Turn(ctx, id, turn.ID)
							return now.State != model.TurnQueued, err
						})
						w.crash()
					}
					turn = w.settled(id, turn)
					if turn.State != model.TurnDone {
						t.Errorf("%s %+v", turn.State, turn.Error)
					}
					if ran := w.backend.Executed(); !slices.Equal(ran, []string{"echo ready", text}) {
						t.Errorf("ran %d prompts: %.80q", len(ran), ran)
					}
				})
			})
		}
	}
}

// A deletion in the middle of a create leaves nothing, also when the platform
// crashed in it and the sandbox came to be all the same.
func TestDeleteWhileStarting(t *testing.T) {
	for name, late := range map[string]bool{"no crash": false, "crash, sandbox made": true} {
		t.Run(name, func(t *testing.T) {
			setup := func(w *world) {
				w.backend.CreateTime = time.Minute
				w.config = func(c *Config) { c.SweepEvery = 100 * time.Hour } // not what is tested
			}
			inWorld(t, setup, func(t *testing.T, w *world) {
				id := w.create()
				turn := w.send(id, "m1", "echo one")
				w.runtimeIs(id, model.RuntimeStarting)
				if late {
					w.crash()
					time.Sleep(2 * time.Minute)
					if len(w.backend.Boxes()) != 1 {
						t.Fatal("the sandbox was not made")
					}
					w.config = func(c *Config) { c.SweepEvery = 100 * time.Hour }
				}
				w.do(func(ctx context.Context, s *Service) error { _, err := s.Delete(ctx, id); return err })
				w.until("deleted", func(ctx context.Context, s *Service) (bool, error) {
					c, err := s.Get(ctx, id)
					return c.State == model.Deleted, err
				})
				if turn = w.settled(id, turn); turn.State != model.TurnUndelivered {
					t.Errorf("the waiting message: %s", turn.State)
				}
				if boxes := w.backend.Boxes(); len(boxes) != 0 {
					t.Errorf("left: %v", boxes)
				}
				if _, err := w.s.Send(context.Background(), id, "m2", "x"); !fault.Is(err, fault.ConversationDeleted) {
					t.Errorf("a message to a deleted conversation: %v", err)
				}
			})
		})
	}
}

// A create that the backend finishes after everybody has forgotten it is swept.
func TestLateCreateIsSwept(t *testing.T) {
	inWorld(t, func(w *world) { w.backend.CreateTime = time.Minute }, func(t *testing.T, w *world) {
		id := w.create()
		w.send(id, "m1", "echo one")
		w.runtimeIs(id, model.RuntimeStarting)
		w.reboot()
		w.do(func(ctx context.Context, s *Service) error { _, err := s.Delete(ctx, id); return err })
		time.Sleep(20 * time.Minute)
		if boxes := w.backend.Boxes(); len(boxes) != 0 || w.backend.Creates() == 0 {
			t.Errorf("left: %v of %d", boxes, w.backend.Creates())
		}
	})
}

// What a program said before it ended is kept, wherever the platform crashes.
func TestLastWords(t *testing.T) {
	for _, point := range []string{"output.flushing", "output.stored", "program.ended"} {
		for nth := range 8 {
			t.Run(fmt.Sprintf("%s/%d", point, nth), func(t *testing.T) {
				inWorld(t, nil, func(t *testing.T, w *world) {
					_, disarm := w.killAt(point, nth)
					defer disarm()
					id := w.create()
					turn := w.settled(id, w.send(id, "m1", "lastwords farewell"))
					if got := said(w.events(id), turn.ID); got != "farewell" || turn.State != model.TurnFailed {
						t.Errorf("%s, and said %q", turn.State, got)
					}
				})
			})
		}
	}
}

// What was accepted or asked for before a crash is done without being asked for
// again.
func TestNobodyAsksAgain(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id, other := w.create(), w.create()
		_, disarm := w.killAt("turn.accepted", 1)
		done := make(chan struct{})
		go func() { defer close(done); _, _ = w.s.Send(context.Background(), id, "m1", "echo one") }()
		<-done
		disarm()
		w.until("the message ran", func(context.Context, *Service) (bool, error) { return len(w.backend.Executed()) == 1, nil })

		_, disarm = w.killAt("delete.stored", 1)
		defer disarm()
		done = make(chan struct{})
		go func() { defer close(done); _, _ = w.s.Delete(context.Background(), other) }()
		<-done
		w.until("deleted", func(ctx context.Context, s *Service) (bool, error) {
			c, err := s.Get(ctx, other)
			return c.State == model.Deleted, err
		})
	})
}
