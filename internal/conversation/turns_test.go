package conversation

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/fleet/fleettest"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

var errEOF = io.EOF

func TestSendIsIdempotent(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		one := w.send(id, "m1", "echo one")
		again := w.send(id, "m1", "echo one")
		if again.ID != one.ID {
			t.Errorf("the same message made another turn: %s and %s", one.ID, again.ID)
		}
		one = w.settled(id, one)
		if again = w.send(id, "m1", "echo one"); again.ID != one.ID || again.State != model.TurnDone {
			t.Errorf("a repeat after the end: %+v", again)
		}
		if _, err := w.s.Send(t.Context(), id, "m1", "echo other"); !fault.Is(err, fault.IdempotencyConflict) {
			t.Errorf("another text under the same key: %v", err)
		}
		if ran := w.backend.Executed(); !slices.Equal(ran, []string{"echo one"}) {
			t.Errorf("ran %q", ran)
		}
	})
}

func TestRefusedInput(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		for _, tc := range []struct {
			name, conv, key, text string
			want                  fault.Code
		}{
			{"no text", id, "k", "", fault.RequestInvalid},
			{"no key", id, "", "x", fault.RequestInvalid},
			{"a long key", id, strings.Repeat("k", MaxMessageID+1), "x", fault.RequestInvalid},
			{"not UTF-8", id, "k", "\xff", fault.RequestInvalid},
			{"too long", id, "k", strings.Repeat("x", MaxText+1), fault.MessageTooLarge},
			{"unknown", "conv_x", "k", "x", fault.ConversationNotFound},
		} {
			if _, err := w.s.Send(t.Context(), tc.conv, tc.key, tc.text); !fault.Is(err, tc.want) {
				t.Errorf("%s: %v", tc.name, err)
			}
		}
		if _, err := w.s.Interrupt(t.Context(), id); !fault.Is(err, fault.TurnNotRunning) {
			t.Errorf("nothing to stop: %v", err)
		}
		if _, _, err := w.s.List(t.Context(), "nonsense", 0); !fault.Is(err, fault.CursorInvalid) {
			t.Errorf("a foreign cursor: %v", err)
		}
		w.send(id, "m", "hang")
		w.until("running", func(ctx context.Context, s *Service) (bool, error) {
			c, err := s.Get(ctx, id)
			return c.Turn != nil, err
		})
		for i := range MaxQueue {
			w.send(id, fmt.Sprint("q", i), "echo x")
		}
		if _, err := w.s.Send(t.Context(), id, "one more", "x"); !fault.Is(err, fault.QueueFull) {
			t.Errorf("a full queue: %v", err)
		}
	})
}

func TestCreateIsIdempotent(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		a, err := w.s.CreateConversation(t.Context(), CreateRequest{Title: "a", IdempotencyKey: "k"})
		if err != nil {
			t.Fatal(err)
		}
		b, err := w.s.CreateConversation(t.Context(), CreateRequest{Title: "a", IdempotencyKey: "k"})
		if err != nil || a.ID != b.ID {
			t.Errorf("%s and %s, %v", a.ID, b.ID, err)
		}
		if _, err := w.s.CreateConversation(t.Context(), CreateRequest{Title: "b", IdempotencyKey: "k"}); !fault.Is(err, fault.IdempotencyConflict) {
			t.Errorf("another request under the same key: %v", err)
		}
		if _, err := w.s.CreateConversation(t.Context(), CreateRequest{Agent: "nobody"}); !fault.Is(err, fault.AgentNotFound) {
			t.Errorf("an unknown Agent: %v", err)
		}
		for i := range 5 {
			if _, err := w.s.CreateConversation(t.Context(), CreateRequest{Title: fmt.Sprint(i)}); err != nil {
				t.Fatal(err)
			}
		}
		var titles []string
		for cursor := ""; ; {
			items, next, err := w.s.List(t.Context(), cursor, 4)
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range items {
				titles = append(titles, c.Title)
			}
			if cursor = next; next == "" {
				break
			}
		}
		if want := []string{"4", "3", "2", "1", "0", "a"}; !slices.Equal(titles, want) {
			t.Errorf("listed %q", titles)
		}
		if c, err := w.s.Rename(t.Context(), a.ID, " new "); err != nil || c.Title != "new" {
			t.Errorf("renamed to %q, %v", c.Title, err)
		}
	})
}

// The ladder: the protocol's cancel at once; SIGTERM after ten seconds; the end
// of everything after five more.
func TestInterruptLadder(t *testing.T) {
	for _, tc := range []struct {
		text string
		took time.Duration
	}{{"hang", 0}, {"stubborn", ladderKill}} {
		t.Run(tc.text, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				id := w.create()
				one := w.send(id, "m1", tc.text)
				w.running(id, one)
				asked := time.Now()
				if turn, err := w.s.Interrupt(t.Context(), id); err != nil || turn.State != model.TurnInterrupting && turn.State != model.TurnInterrupted {
					t.Errorf("asked to stop: %s, %v", turn.State, err)
				}
				one = w.settled(id, one)
				if one.State != model.TurnInterrupted {
					t.Errorf("%s %+v", one.State, one.Error)
				}
				if took := one.EndedAt.Sub(asked); took < tc.took-time.Millisecond || took > tc.took+time.Second {
					t.Errorf("it took %v", took)
				}
				if two := w.settled(id, w.send(id, "m2", "echo two")); two.State != model.TurnDone {
					t.Errorf("the next message: %s", two.State)
				}
			})
		})
	}
}

func TestInterruptBeforeDelivery(t *testing.T) {
	inWorld(t, func(w *world) { w.backend.CreateTime = time.Minute }, func(t *testing.T, w *world) {
		id := w.create()
		one, two := w.send(id, "m1", "echo one"), w.send(id, "m2", "echo two")
		w.runtimeIs(id, model.RuntimeStarting)
		if _, err := w.s.Interrupt(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		one, two = w.settled(id, one), w.settled(id, two)
		if one.State != model.TurnInterrupted || two.State != model.TurnInterrupted {
			t.Errorf("%s, %s", one.State, two.State)
		}
		w.runtimeIs(id, model.RuntimeReady)
		if ran := w.backend.Executed(); len(ran) != 0 {
			t.Errorf("ran %q", ran)
		}
	})
}

// The longest message, in the characters that take most room on the way.
func TestLongestMessage(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		text := "echo " + strings.Repeat("\x01", MaxText-5)
		one := w.settled(id, w.send(id, "m1", text))
		if ran := w.backend.Executed(); one.State != model.TurnDone || !slices.Equal(ran, []string{text}) {
			t.Errorf("%s %+v", one.State, one.Error)
		}
		if two := w.settled(id, w.send(id, "m2", "echo two")); two.State != model.TurnDone {
			t.Errorf("the next one: %s", two.State)
		}
	})
}

// A command that says nothing is running all the same.
func TestSilentTurnIsRunning(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		w.settled(id, w.send(id, "m0", "echo ready"))
		one := w.send(id, "m1", "silent 60")
		time.Sleep(time.Second)
		if now, err := w.s.Turn(t.Context(), id, one.ID); now.State != model.TurnRunning || err != nil {
			t.Errorf("after a second: %s, %v", now.State, err)
		}
		w.settled(id, one)
	})
}

// A program that never answers is given up after some tries, and the message
// says so; the next message tries again.
func TestProgramThatDoesNotAnswer(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.backend.Set(func(b *fleettest.Backend) { b.Mute = func(*fleettest.Box, string) bool { return true } })
		id := w.create()
		began := time.Now()
		one := w.settled(id, w.send(id, "m1", "echo one"))
		if one.State != model.TurnUndelivered || one.Error == nil || one.Error.Code != string(fault.ProgramFailed) {
			t.Errorf("%s %+v", one.State, one.Error)
		}
		if took := time.Since(began); took > 4*readyTimeout {
			t.Errorf("it took %v", took)
		}
		w.backend.Set(func(b *fleettest.Backend) { b.Mute = nil })
		if two := w.settled(id, w.send(id, "m2", "echo two")); two.State != model.TurnDone {
			t.Errorf("afterwards: %s %+v", two.State, two.Error)
		}
	})
}

// A message that the program never read isn't called delivered when it ends.
func TestUnreadMessageOfAProgramThatEnds(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		w.settled(id, w.send(id, "m1", "echo one"))
		w.backend.Set(func(b *fleettest.Backend) { b.Mute = func(*fleettest.Box, string) bool { return true } })
		two := w.send(id, "m2", "echo two")
		time.Sleep(time.Minute)
		if now, _ := w.s.Turn(t.Context(), id, two.ID); now.State != model.TurnDelivering {
			t.Errorf("unread for a minute: %s", now.State)
		}
		w.backend.EndProcesses(w.get(id).Runtime.SandboxID)
		two = w.settled(id, two)
		if two.State != model.TurnUndelivered || two.Error == nil || two.Error.Code != string(fault.InputNotDelivered) {
			t.Errorf("%s %+v", two.State, two.Error)
		}
		if ran := w.backend.Executed(); !slices.Equal(ran, []string{"echo one"}) {
			t.Errorf("ran %q", ran)
		}
	})
}

// A sandbox that doesn't take the program's binary keeps no message waiting.
func TestProgramThatCanNotBeWritten(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		w.settled(id, w.send(id, "m1", "echo one"))
		w.backend.Set(func(b *fleettest.Backend) { b.NoBinary = sandbox.ErrPathRejected })
		w.backend.EndProcesses(w.get(id).Runtime.SandboxID)
		time.Sleep(time.Second)
		began := time.Now()
		two := w.settled(id, w.send(id, "m2", "echo two"))
		if two.State != model.TurnUndelivered || two.Error == nil || two.Error.Code != string(fault.ProgramFailed) {
			t.Errorf("%s %+v", two.State, two.Error)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		w.backend.Set(func(b *fleettest.Backend) { b.NoBinary = nil })
		if three := w.settled(id, w.send(id, "m3", "echo three")); three.State != model.TurnDone {
			t.Errorf("afterwards: %s %+v", three.State, three.Error)
		}
	})
}

// A program that ended between the storing of a message and its sending takes
// no more input: its end is seen at once, and the message wasn't delivered.
func TestProgramEndsBeforeTheMessageIsSent(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		w.settled(id, w.send(id, "m1", "echo one"))
		_, disarm := w.killAt("turn.delivering", 1)
		defer disarm()
		// Sent past w.send, which would start the platform again if it crashed
		// before the answer.
		var sending sync.WaitGroup
		sending.Go(func() { _, _ = w.s.Send(context.Background(), id, "m2", "echo two") })
		sending.Wait()
		for waited := 0; !w.crashed.Load(); waited++ {
			if waited == 60_000 { // a minute of the world's time
				t.Fatalf("the message was never about to be sent; sandbox %+v", w.get(id).Runtime)
			}
			time.Sleep(time.Millisecond)
		}
		for box := range w.backend.Boxes() {
			w.backend.EndProcesses(box)
		}
		began := time.Now()
		two := w.settled(id, w.send(id, "m2", "echo two"))
		if two.State != model.TurnUndelivered || two.Error == nil || two.Error.Code != string(fault.InputNotDelivered) {
			t.Errorf("%s %+v", two.State, two.Error)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("it took %v", took)
		}
		if three := w.settled(id, w.send(id, "m3", "echo three")); three.State != model.TurnDone {
			t.Errorf("afterwards: %s %+v", three.State, three.Error)
		}
	})
}

// Output is stored at most twenty times a second, the first of it at once, and
// no byte is lost.
func TestCoalescing(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.backend.Set(func(b *fleettest.Backend) { b.ChunkGap = 5 * time.Millisecond })
		id := w.create()
		w.settled(id, w.send(id, "m0", "echo ready"))
		sent := time.Now()
		turn := w.settled(id, w.send(id, "m1", "chunks 1000"))
		events := w.events(id)
		if got := said(events, turn.ID); got != chunks(1000) {
			t.Errorf("it said %d bytes instead of %d", len(got), len(chunks(1000)))
		}
		var at []time.Time
		for _, e := range events {
			if e.TurnID == turn.ID && e.Type == agentprogram.EventTextDelta {
				at = append(at, e.At)
			}
		}
		if len(at) == 0 || at[0].Sub(sent) > 10*time.Millisecond {
			t.Fatalf("the first of %d pieces was stored after %v", len(at), at[0].Sub(sent))
		}
		for i := 20; i < len(at); i++ {
			if d := at[i].Sub(at[i-20]); d < 990*time.Millisecond {
				t.Fatalf("20 pieces within %v", d)
			}
		}
	})
}

// A line far beyond every buffer is read, also when the platform crashes in it.
func TestHugeLine(t *testing.T) {
	const size = 20 << 20
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprint(crash), func(t *testing.T) {
			inWorld(t, func(w *world) { w.backend.Chunk = 64 << 10 }, func(t *testing.T, w *world) {
				id := w.create()
				w.settled(id, w.send(id, "m0", "echo ready"))
				if crash {
					// Slow enough that flushes come between the stored pieces, too.
					w.backend.Set(func(b *fleettest.Backend) { b.RecvGap = 30 * time.Millisecond })
					_, disarm := w.killAt("output.stored", 26)
					defer disarm()
				}
				turn := w.settled(id, w.send(id, "m1", fmt.Sprint("line ", size)))
				got := said(w.events(id), turn.ID)
				if turn.State != model.TurnDone || len(got) != size || strings.Trim(got, "x") != "" {
					t.Errorf("%s, %d bytes", turn.State, len(got))
				}
				if crash && w.boots != 2 {
					t.Errorf("%d boots", w.boots)
				}
			})
		})
	}
}

func TestStream(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		type result struct {
			events []model.Event
			err    error
		}
		// Several streams from different places, one of them slow.
		results := make([]chan result, 4)
		for i := range results {
			results[i] = make(chan result, 1)
			go func() {
				var r result
				for e, err := range w.s.Stream(ctx, id, 0) {
					if r.err = err; err != nil {
						break
					}
					r.events = append(r.events, e)
					if i == 3 {
						time.Sleep(time.Second)
					}
				}
				results[i] <- r
			}()
		}
		synctest.Wait()
		var turns []model.Turn
		for i := range 20 {
			turns = append(turns, w.settled(id, w.send(id, fmt.Sprint(i), "chunks 50")))
		}
		if _, err := w.s.Delete(t.Context(), id); err != nil { // ends the streams
			t.Fatal(err)
		}
		journal := w.events(id)
		checkJournal(t, journal, turns...)
		for i, c := range results {
			r := <-c
			if r.err != nil || len(r.events) != len(journal) {
				t.Errorf("stream %d: %d of %d events, %v", i, len(r.events), len(journal), r.err)
			}
			checkJournal(t, r.events, turns...)
		}
		// From the middle, of a journal that has ended.
		var rest int
		for e, err := range w.s.Stream(ctx, id, 10) {
			if rest++; err != nil || e.Seq != int64(10+rest) {
				t.Fatal(e.Seq, err)
			}
		}
		if rest != len(journal)-10 {
			t.Errorf("%d events after the tenth of %d", rest, len(journal))
		}
		for _, err := range w.s.Stream(ctx, id, int64(len(journal)+1)) {
			if !fault.Is(err, fault.CursorInvalid) {
				t.Errorf("from beyond the end: %v", err)
			}
		}
		for _, err := range w.s.Stream(ctx, "conv_x", 0) {
			if !fault.Is(err, fault.ConversationNotFound) {
				t.Errorf("of nothing: %v", err)
			}
		}
	})
}

func TestStreamLimitAndStop(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		id := w.create()
		ends := make(chan error, MaxStreams)
		for range MaxStreams {
			go func() {
				var last error
				for _, err := range w.s.Stream(context.Background(), id, 0) {
					last = err
				}
				ends <- last
			}()
		}
		synctest.Wait()
		for _, err := range w.s.Stream(t.Context(), id, 0) {
			if !fault.Is(err, fault.TooManyRequests) {
				t.Errorf("one too many: %v", err)
			}
		}
		w.stop()
		for range MaxStreams {
			if err := <-ends; !fault.Is(err, fault.Stopping) {
				t.Fatalf("a stream ended with %v", err)
			}
		}
	})
}
