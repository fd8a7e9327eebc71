package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/sqldb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, committed func([]Committed)) *Store {
	t.Helper()
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "x.db"), committed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func conversation(t *testing.T, s *Store) string {
	t.Helper()
	r := &model.Record{Conversation: model.Conversation{ID: model.NewID(model.PrefixConversation), Agent: "a", Environment: "e",
		State: model.Active, Runtime: model.Runtime{State: model.RuntimeNone}}}
	update(t, s, func(tx *Tx) error {
		ok, err := tx.Insert(r, "", "")
		if err == nil && !ok {
			err = errors.New("refused")
		}
		return err
	})
	return r.ID
}

func update(t *testing.T, s *Store, f func(*Tx) error) {
	t.Helper()
	if err := s.Update(t.Context(), f); err != nil {
		t.Fatal(err)
	}
}

// A worker that was replaced can't change anything any more.
func TestFence(t *testing.T) {
	s := open(t, nil)
	id := conversation(t, s)
	hold := func() int64 {
		fence, err := s.Hold(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return fence
	}
	first, second := hold(), hold()
	if second <= first {
		t.Fatalf("the fence went from %d to %d", first, second)
	}
	title := func(fence int64, title string) error {
		return s.Update(t.Context(), func(tx *Tx) error {
			r, err := tx.LoadFenced(id, fence)
			if err != nil {
				return err
			}
			r.Title = title
			if err := tx.Event(r, "", "x", nil); err != nil {
				return err
			}
			return tx.Save(r)
		})
	}
	if err := title(second, "new"); err != nil {
		t.Fatal(err)
	}
	if err := title(first, "old"); !errors.Is(err, ErrFenced) {
		t.Errorf("the replaced worker got %v", err)
	}
	r, err := s.Record(t.Context(), id)
	if err != nil || r.Title != "new" || r.LastSeq != 1 {
		t.Errorf("%+v %v", r, err)
	}
	if _, err := s.Hold(t.Context(), "conv_x"); !fault.Is(err, fault.ConversationNotFound) {
		t.Errorf("holding nothing: %v", err)
	}
}

func TestSaveIsCompareAndSet(t *testing.T) {
	s := open(t, nil)
	id := conversation(t, s)
	stale, err := s.Record(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	update(t, s, func(tx *Tx) error {
		r, err := tx.Load(id)
		if err != nil {
			return err
		}
		r.Title = "first"
		return tx.Save(r)
	})
	stale.Title = "second"
	if err := s.Update(t.Context(), func(tx *Tx) error { return tx.Save(stale) }); !errors.Is(err, ErrConflict) {
		t.Errorf("an old view was saved: %v", err)
	}
}

// What Save stores, Record reads.
func TestRecordRoundTrip(t *testing.T) {
	s := open(t, nil)
	id := conversation(t, s)
	at := time.Now().Add(time.Hour).UTC().Truncate(time.Millisecond)
	var want *model.Record
	update(t, s, func(tx *Tx) (err error) {
		if want, err = tx.Load(id); err != nil {
			return err
		}
		want.Title, want.Backend, want.AssignmentID = "t", "b", "asg"
		want.Runtime = model.Runtime{State: model.RuntimeReady, SandboxID: "sb", Reason: "why", Since: at}
		want.ExpiresAt, want.ActiveAt, want.DueAt = at, at.Add(1e6), at.Add(2e6)
		want.Destruction = &model.Destruction{SandboxID: "old", Outcome: "gone", Detail: "d"}
		return tx.Save(want)
	})
	got, err := s.Record(t.Context(), id)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

// Concurrent writers make a journal without gaps, told in the order of commits.
func TestJournalIsDense(t *testing.T) {
	var told []int64
	s := open(t, func(made []Committed) {
		for _, c := range made {
			for _, e := range c.Events {
				told = append(told, e.Seq)
			}
		}
	})
	id := conversation(t, s)
	boom := errors.New("boom")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 25 {
				err := s.Update(context.Background(), func(tx *Tx) error {
					r, err := tx.Load(id)
					if err != nil {
						return err
					}
					if err := tx.Event(r, "", "x", map[string]int{"i": i}); err != nil {
						return err
					}
					if j%5 == 4 {
						return boom // takes its number back
					}
					return tx.Save(r)
				})
				if err != nil && !errors.Is(err, boom) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	events, err := s.Events(t.Context(), id, 0, 1000, 1<<30)
	if err != nil || len(events) != 160 || len(told) != 160 {
		t.Fatalf("%d events, %d told, %v", len(events), len(told), err)
	}
	for i, e := range events {
		if e.Seq != int64(i+1) || told[i] != e.Seq {
			t.Fatalf("event %d has number %d and was told as %d", i+1, e.Seq, told[i])
		}
	}
}

// Large entries don't make large pages: many readers read at once.
func TestPagesOfEventsAreBounded(t *testing.T) {
	s := open(t, nil)
	id := conversation(t, s)
	const n, size = 10, 1000
	update(t, s, func(tx *Tx) error {
		r, err := tx.Load(id)
		if err != nil {
			return err
		}
		for range n {
			if err := tx.Event(r, "", "x", strings.Repeat("y", size)); err != nil {
				return err
			}
		}
		return tx.Save(r)
	})
	for bytes, want := range map[int]int{1: 1, size: 1, 3 * size: 3, 100 * size: n} {
		events, err := s.Events(t.Context(), id, 0, 1000, bytes)
		if err != nil || len(events) != want {
			t.Errorf("%d bytes: %d events, %v; want %d", bytes, len(events), err, want)
		}
	}
}

// That one turn is in progress at a time is a rule of the data.
func TestOneTurnInProgress(t *testing.T) {
	s := open(t, nil)
	id := conversation(t, s)
	for i := range 3 {
		update(t, s, func(tx *Tx) error {
			return tx.AddTurn(&model.TurnRecord{Turn: model.Turn{ID: fmt.Sprint("t", i), ConversationID: id, ClientMessageID: fmt.Sprint(i), Text: "x"}, AcceptedSeq: int64(9 - i)})
		})
	}
	set := func(turn string, from, to model.TurnState) error {
		return s.Update(t.Context(), func(tx *Tx) error { return tx.SetTurn(turn, from, to, nil) })
	}
	if err := set("t0", model.TurnQueued, model.TurnDelivering); err != nil {
		t.Fatal(err)
	}
	if err := set("t1", model.TurnQueued, model.TurnDelivering); !sqldb.IsUnique(err) {
		t.Errorf("a second turn in progress: %v", err)
	}
	if err := set("t0", model.TurnRunning, model.TurnDone); !errors.Is(err, ErrConflict) {
		t.Errorf("a step from a state that it isn't in: %v", err)
	}
	var e *model.TransitionError
	if err := set("t0", model.TurnDelivering, model.TurnQueued); !errors.As(err, &e) {
		t.Errorf("a step that the table lacks: %v", err)
	}
	update(t, s, func(tx *Tx) error {
		queue, err := tx.Queue(id, 10)
		if len(queue) != 2 || queue[0].ID != "t2" || queue[1].ID != "t1" {
			t.Errorf("the queue is not in the order of acceptance: %v", queue)
		}
		return err
	})
	r, err := s.Record(t.Context(), id)
	if err != nil || r.Turn == nil || r.Turn.ID != "t0" || r.Queued != 2 {
		t.Errorf("%+v %v", r, err)
	}
}

func TestLedger(t *testing.T) {
	s := open(t, nil)
	entry := model.LedgerEntry{Backend: "b", SandboxID: "x", Reason: "r"}
	add := func() { update(t, s, func(tx *Tx) error { return tx.AddToLedger(entry) }) }
	add()
	add() // once each
	count := func() int64 {
		n, err := s.OpenLedgerCount(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(); n != 1 {
		t.Errorf("%d entries", n)
	}
	later := time.Now().Add(time.Hour)
	update(t, s, func(tx *Tx) error { return tx.NoteDestruction("b", "x", "unconfirmed", "d", false, later) })
	due, next, err := s.OpenLedger(t.Context(), time.Now(), 10)
	if err != nil || len(due) != 0 || next.UnixMilli() != later.UnixMilli() {
		t.Errorf("after a try: %v, next %v, %v", due, next, err)
	}
	if due, _, _ = s.OpenLedger(t.Context(), later, 10); len(due) != 1 || due[0].Attempts != 1 || due[0].Outcome != "unconfirmed" {
		t.Errorf("when it is due: %+v", due)
	}
	if named, err := s.Named(t.Context(), "b", "x", ""); !named || err != nil {
		t.Errorf("a sandbox of the ledger has no name: %v", err)
	}
	update(t, s, func(tx *Tx) error { return tx.NoteDestruction("b", "x", "gone", "d", true, later) })
	if n := count(); n != 0 {
		t.Errorf("%d open entries after the proof", n)
	}
	if e, err := s.LedgerEntry(t.Context(), "b", "x"); err != nil || e.EndedAt.IsZero() || e.Outcome != "gone" {
		t.Errorf("the record of the proof: %+v %v", e, err)
	}
	add() // it was seen again
	if n := count(); n != 1 {
		t.Errorf("%d open entries when it came back", n)
	}
}

func TestClosed(t *testing.T) {
	s := open(t, nil)
	id := conversation(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Update(t.Context(), func(*Tx) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("Update: %v", err)
	}
	if _, err := s.Record(t.Context(), id); err == nil {
		t.Error("Record: no error")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := open(t, nil).Update(ctx, func(*Tx) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
