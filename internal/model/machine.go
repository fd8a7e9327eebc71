package model

import (
	"fmt"
	"slices"
)

// Table is a state machine as data: for each state the states that may follow.
type Table[S ~string] map[S][]S

// Allows reports whether to may follow from. No state follows itself.
func (t Table[S]) Allows(from, to S) bool { return slices.Contains(t[from], to) }

// Check is Allows as an error that names both states.
func (t Table[S]) Check(from, to S) error {
	if t.Allows(from, to) {
		return nil
	}
	return &TransitionError{From: string(from), To: string(to)}
}

// Final reports whether nothing follows s.
func (t Table[S]) Final(s S) bool { return len(t[s]) == 0 }

// TransitionError: the table doesn't allow this step. It means that the caller
// decided on an old view of the row.
type TransitionError struct{ From, To string }

func (e *TransitionError) Error() string {
	return fmt.Sprintf("%s can't follow %s", e.To, e.From)
}

// ConversationState is where a conversation is in its life.
type ConversationState string

// The states of a conversation.
const (
	Active   ConversationState = "active"
	Archived ConversationState = "archived"
	Deleting ConversationState = "deleting" // its sandbox isn't proven gone yet
	Deleted  ConversationState = "deleted"
)

// Conversations is the state machine of conversations.
var Conversations = Table[ConversationState]{
	Active:   {Archived, Deleting},
	Archived: {Active, Deleting},
	Deleting: {Deleted},
	Deleted:  {},
}

// RuntimeState is where a conversation's sandbox is.
type RuntimeState string

// The states of a runtime.
const (
	RuntimeNone        RuntimeState = "none"
	RuntimeStarting    RuntimeState = "starting"
	RuntimeReady       RuntimeState = "ready"
	RuntimePausing     RuntimeState = "pausing"
	RuntimePaused      RuntimeState = "paused"
	RuntimeResuming    RuntimeState = "resuming"
	RuntimeTerminating RuntimeState = "terminating" // a destruction is under way, its ledger row exists
	RuntimeLost        RuntimeState = "lost"        // the sandbox died by itself; the next message gets a new one
)

// Runtimes is the state machine of a conversation's runtime. A sandbox that
// died never ends its conversation: lost leads back to starting.
var Runtimes = Table[RuntimeState]{
	RuntimeNone:        {RuntimeStarting},
	RuntimeStarting:    {RuntimeReady, RuntimeNone, RuntimeTerminating, RuntimeLost},
	RuntimeReady:       {RuntimePausing, RuntimePaused, RuntimeTerminating, RuntimeLost},
	RuntimePausing:     {RuntimePaused, RuntimeReady, RuntimeTerminating, RuntimeLost},
	RuntimePaused:      {RuntimeResuming, RuntimeTerminating, RuntimeNone, RuntimeLost},
	RuntimeResuming:    {RuntimeReady, RuntimePaused, RuntimeTerminating, RuntimeLost},
	RuntimeTerminating: {RuntimeNone, RuntimeLost},
	RuntimeLost:        {RuntimeStarting, RuntimeNone},
}

// TurnState is where a message and what it caused is.
type TurnState string

// The states of a turn. Done and what follows it are final.
const (
	TurnQueued       TurnState = "queued"
	TurnDelivering   TurnState = "delivering" // its bytes are on the way to the program
	TurnRunning      TurnState = "running"
	TurnInterrupting TurnState = "interrupting"
	TurnDone         TurnState = "done"
	TurnInterrupted  TurnState = "interrupted"
	TurnFailed       TurnState = "failed"
	TurnLimit        TurnState = "limit"
	TurnRefused      TurnState = "refused"
	TurnUndelivered  TurnState = "undelivered" // the program never got it
	TurnUnknown      TurnState = "unknown"     // it can't be established whether the program got it
)

// Turns is the state machine of turns. A final turn is never run again by itself.
var Turns = Table[TurnState]{
	TurnQueued:       {TurnDelivering, TurnInterrupted, TurnUndelivered},
	TurnDelivering:   {TurnRunning, TurnInterrupting, TurnDone, TurnInterrupted, TurnFailed, TurnLimit, TurnRefused, TurnUndelivered, TurnUnknown},
	TurnRunning:      {TurnInterrupting, TurnDone, TurnInterrupted, TurnFailed, TurnLimit, TurnRefused},
	TurnInterrupting: {TurnDone, TurnInterrupted, TurnFailed, TurnLimit, TurnRefused, TurnUnknown},
	TurnDone:         {},
	TurnInterrupted:  {},
	TurnFailed:       {},
	TurnLimit:        {},
	TurnRefused:      {},
	TurnUndelivered:  {},
	TurnUnknown:      {},
}
