package model

import (
	"errors"
	"testing"
	"time"
)

func checkTable[S ~string](t *testing.T, table Table[S], start S, final ...S) {
	t.Helper()
	seen := map[S]bool{start: true}
	for todo := []S{start}; len(todo) > 0; todo = todo[1:] {
		for _, next := range table[todo[0]] {
			if _, ok := table[next]; !ok {
				t.Errorf("%s leads to %s, which has no line", todo[0], next)
			}
			if next == todo[0] {
				t.Errorf("%s follows itself", next)
			}
			if !seen[next] {
				seen[next] = true
				todo = append(todo, next)
			}
		}
	}
	finals := map[S]bool{}
	for _, s := range final {
		finals[s] = true
	}
	for s := range table {
		if !seen[s] {
			t.Errorf("%s can't be reached", s)
		}
		if table.Final(s) != finals[s] {
			t.Errorf("%s is final: %v", s, table.Final(s))
		}
	}
}

func TestTables(t *testing.T) {
	checkTable(t, Conversations, Active, Deleted)
	checkTable(t, Runtimes, RuntimeNone)
	checkTable(t, Turns, TurnQueued, TurnDone, TurnInterrupted, TurnFailed, TurnLimit, TurnRefused, TurnUndelivered, TurnUnknown)
	var e *TransitionError
	if err := Turns.Check(TurnDone, TurnRunning); !errors.As(err, &e) || e.From != "done" {
		t.Errorf("a finished turn can run again: %v", err)
	}
	// A sandbox that lives can always be lost, and the conversation goes on.
	for s := range Runtimes {
		if s != RuntimeNone && s != RuntimeLost && !Runtimes.Allows(s, RuntimeLost) {
			t.Errorf("a sandbox that is %s can't be lost", s)
		}
	}
}

func TestIDs(t *testing.T) {
	a, b := NewID(PrefixTurn), NewID(PrefixTurn)
	if a >= b || !IsID(PrefixTurn, a) || IsID(PrefixAgent, a) || IsID(PrefixTurn, "turn_x") || IsID(PrefixTurn, "") {
		t.Errorf("%s %s", a, b)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC)
	if !Time(Millis(at)).Equal(at) || !Time(0).IsZero() || Millis(time.Time{}) != 0 {
		t.Error("times don't survive the store")
	}
}

func TestDecide(t *testing.T) {
	now := time.Unix(1e9, 0)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	base := Facts{Now: now, IdleAfter: time.Hour, Idle: IdlePause, RenewBelow: time.Hour}
	with := func(f func(*Facts)) Facts { c := base; f(&c); return c }
	rec := func(s RuntimeState, f func(*Record)) Record {
		r := Record{Conversation: Conversation{State: Active, Runtime: Runtime{State: s, SandboxID: "x"}}, ActiveAt: now, ExpiresAt: now.Add(4 * time.Hour)}
		if s == RuntimeNone || s == RuntimeLost || s == RuntimeStarting {
			r.Runtime.SandboxID = ""
		}
		if f != nil {
			f(&r)
		}
		return r
	}
	queued := func(r *Record) { r.Queued = 1 }
	old := func(r *Record) { r.ActiveAt = ago(time.Hour) }
	for _, tc := range []struct {
		name  string
		r     Record
		f     Facts
		want  Action
		after time.Duration // of the due time; 0: none
	}{
		{"nothing to do", rec(RuntimeNone, nil), base, ActNothing, 0},
		{"a message starts", rec(RuntimeNone, queued), base, ActStart, 0},
		{"a waiter starts", rec(RuntimeNone, nil), with(func(f *Facts) { f.Wanted = true }), ActStart, 0},
		{"a message replaces", rec(RuntimeLost, queued), base, ActStart, 0},
		{"lost and unused", rec(RuntimeLost, nil), base, ActNothing, 0},
		{"a start goes on", rec(RuntimeStarting, nil), base, ActStart, 0},
		{"ready", rec(RuntimeReady, nil), base, ActServe, time.Hour},
		{"idle", rec(RuntimeReady, old), base, ActPause, 0},
		{"idle ends", rec(RuntimeReady, old), with(func(f *Facts) { f.Idle = IdleTerminate }), ActTerminate, 0},
		{"active in memory", rec(RuntimeReady, old), with(func(f *Facts) { f.ActiveAt = ago(time.Minute) }), ActServe, 59 * time.Minute},
		{"not idle in a turn", rec(RuntimeReady, func(r *Record) { old(r); r.Turn = &TurnRef{"t", TurnRunning} }), base, ActServe, 3 * time.Hour},
		{"not idle with a queue", rec(RuntimeReady, func(r *Record) { old(r); queued(r) }), base, ActServe, 3 * time.Hour},
		{"not idle while used", rec(RuntimeReady, old), with(func(f *Facts) { f.Busy = true }), ActServe, 3 * time.Hour},
		{"stopping", rec(RuntimeReady, queued), with(func(f *Facts) { f.IdleAfter, f.Stopping = 0, true }), ActPause, 0},
		{"stopping in a turn", rec(RuntimeReady, func(r *Record) { r.Turn = &TurnRef{"t", TurnInterrupting} }), with(func(f *Facts) { f.IdleAfter, f.Stopping = 0, true }), ActServe, 3 * time.Hour},
		{"stopped", rec(RuntimePaused, queued), with(func(f *Facts) { f.Stopping = true }), ActNothing, 4 * time.Hour},
		{"never idle", rec(RuntimeReady, old), with(func(f *Facts) { f.IdleAfter = -1 }), ActServe, 3 * time.Hour},
		{"the lease comes first", rec(RuntimeReady, func(r *Record) { old(r); r.ExpiresAt = now.Add(time.Hour) }), base, ActRenew, 0},
		{"no lease", rec(RuntimeReady, func(r *Record) { r.ExpiresAt = time.Time{} }), with(func(f *Facts) { f.IdleAfter = -1 }), ActServe, 0},
		{"a pause goes on", rec(RuntimePausing, queued), base, ActPause, 0},
		{"paused", rec(RuntimePaused, nil), base, ActNothing, 4 * time.Hour},
		{"a message resumes", rec(RuntimePaused, queued), base, ActResume, 0},
		{"a resume goes on", rec(RuntimeResuming, nil), base, ActResume, 0},
		{"the retention is over", rec(RuntimePaused, func(r *Record) { r.ExpiresAt = now }), base, ActExpire, 0},
		{"an end goes on", rec(RuntimeTerminating, queued), base, ActTerminate, 0},
		{"deleted in a turn", rec(RuntimeReady, func(r *Record) { r.State = Deleting }), base, ActTerminate, 0},
		{"deleted while starting", rec(RuntimeStarting, func(r *Record) { r.State = Deleting }), base, ActTerminate, 0},
		{"nothing is left", rec(RuntimeNone, func(r *Record) { r.State = Deleting }), base, ActFinish, 0},
		{"deleted", rec(RuntimeNone, func(r *Record) { r.State = Deleted; r.Queued = 1 }), base, ActNothing, 0},
	} {
		got, due := Decide(tc.r, tc.f)
		var want time.Time
		if tc.after != 0 {
			want = now.Add(tc.after)
		}
		if got != tc.want || !due.Equal(want) {
			t.Errorf("%s: %s due %v, want %s due %v", tc.name, got, due.Sub(now), tc.want, want.Sub(now))
		}
	}
}
