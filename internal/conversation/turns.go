package conversation

import (
	"context"
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/killpoint"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
)

var (
	killAccepted     = killpoint.New("turn.accepted")
	killInterrupt    = killpoint.New("turn.interrupt")
	killDeleteStored = killpoint.New("delete.stored")
)

// Send accepts a message: when it returns, the message is stored and will be
// settled, whatever crashes. The same clientMessageID gives the same turn, with
// its present state; with another text it is IDEMPOTENCY_CONFLICT.
func (s *Service) Send(ctx context.Context, id, clientMessageID, text string) (model.Turn, error) {
	switch {
	case clientMessageID == "" || len(clientMessageID) > MaxMessageID || !utf8.ValidString(clientMessageID):
		return model.Turn{}, fault.New(fault.RequestInvalid, "client_message_id must have 1 to %d bytes of UTF-8.", MaxMessageID)
	case text == "" || !utf8.ValidString(text):
		return model.Turn{}, fault.New(fault.RequestInvalid, "The text must be UTF-8 and not empty.")
	case len(text) > MaxText:
		return model.Turn{}, fault.New(fault.MessageTooLarge, "The text is longer than %d bytes.", MaxText)
	}
	var turn *model.TurnRecord
	err := s.store.Update(ctx, func(t *store.Tx) error {
		r, err := t.Load(id)
		if err != nil {
			return err
		}
		// A repeat is answered whatever became of the conversation.
		turn, err = t.TurnByMessage(id, clientMessageID)
		switch {
		case err == nil && turn.Text != text:
			return fault.New(fault.IdempotencyConflict, "The same client_message_id was used before with another text.")
		case err == nil:
			return nil
		case !errors.Is(err, store.ErrNotFound):
			return err
		}
		if err := usable(r); err != nil {
			return err
		}
		if r.Queued >= MaxQueue {
			return fault.New(fault.QueueFull, "")
		}
		turn = &model.TurnRecord{Turn: model.Turn{ID: model.NewID(model.PrefixTurn), ConversationID: id,
			ClientMessageID: clientMessageID, Text: text}, AcceptedSeq: r.LastSeq + 1}
		if err := t.AddTurn(turn); err != nil {
			return err
		}
		if err := t.Event(r, turn.ID, model.EventAccepted, map[string]string{"text": text, "client_message_id": clientMessageID}); err != nil {
			return err
		}
		if r.Title == "" {
			r.Title = titleOf(text)
		}
		r.ActiveAt = t.Now()
		return t.Save(r)
	})
	if err != nil {
		return model.Turn{}, err
	}
	killAccepted.Hit()
	s.wake(id)
	return turn.Turn, nil
}

// titleOf makes a title from a conversation's first message: its first line
// with anything in it, at most 60 characters of it.
func titleOf(text string) string {
	const most = 60
	for line := range strings.Lines(text) {
		words := strings.Join(strings.FieldsFunc(line, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
		if words == "" {
			continue
		}
		if runes := []rune(words); len(runes) > most {
			return strings.TrimSpace(string(runes[:most-1])) + "…"
		}
		return words
	}
	return ""
}

// usable refuses conversations that take no more input.
func usable(r *model.Record) error {
	switch r.State {
	case model.Active:
		return nil
	case model.Archived:
		return fault.New(fault.ConversationArchived, "")
	}
	return fault.New(fault.ConversationDeleted, "")
}

// Turn gives one turn of the conversation; TURN_NOT_FOUND for an unknown one.
func (s *Service) Turn(ctx context.Context, id, turnID string) (model.Turn, error) {
	if _, err := s.store.Record(ctx, id); err != nil {
		return model.Turn{}, err
	}
	t, err := s.store.Turn(ctx, id, turnID)
	if err != nil {
		return model.Turn{}, err
	}
	return t.Turn, nil
}

// Interrupt stops the turn in progress; when none is, the messages that wait
// for a sandbox. TURN_NOT_RUNNING when there is nothing to stop. It returns the
// turn as it is then: one in progress is still interrupting.
func (s *Service) Interrupt(ctx context.Context, id string) (model.Turn, error) {
	var turnID string
	_, err := s.change(ctx, id, func(t *store.Tx, r *model.Record) error {
		if r.Turn != nil {
			turnID = r.Turn.ID
			if r.Turn.State == model.TurnInterrupting {
				return nil
			}
			return t.SetTurn(turnID, r.Turn.State, model.TurnInterrupting, nil)
		}
		queue, err := t.Queue(id, MaxQueue)
		if err != nil {
			return err
		}
		if len(queue) == 0 {
			return fault.New(fault.TurnNotRunning, "")
		}
		turnID = queue[0].ID
		for _, q := range queue {
			if err := endTurn(t, r, q.ID, q.State, model.TurnInterrupted, nil); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return model.Turn{}, err
	}
	killInterrupt.Hit()
	s.wake(id)
	return s.Turn(ctx, id, turnID)
}

// endTurn settles a turn and says so in the journal.
func endTurn(t *store.Tx, r *model.Record, turnID string, from, to model.TurnState, e *model.TurnError) error {
	if err := t.SetTurn(turnID, from, to, e); err != nil {
		return err
	}
	data := struct {
		Reason model.TurnState  `json:"reason"`
		Error  *model.TurnError `json:"error,omitempty"`
	}{to, e}
	return t.Event(r, turnID, model.EventTurnEnded, data)
}

// fates says what becomes of the turns of a conversation whose sandbox or
// program ended: for each state they may be in, the final one and why. A state
// that is missing is left alone.
type fates map[model.TurnState]fate

type fate struct {
	to  model.TurnState
	why *model.TurnError
}

func turnError(code fault.Code, text string) *model.TurnError {
	if text == "" {
		text = fault.Lookup(code).Public
	}
	return &model.TurnError{Code: string(code), Message: text}
}

var deletedTurns = fates{
	model.TurnQueued:       {model.TurnUndelivered, turnError(fault.ConversationDeleted, "")},
	model.TurnDelivering:   {model.TurnInterrupted, nil},
	model.TurnRunning:      {model.TurnInterrupted, nil},
	model.TurnInterrupting: {model.TurnInterrupted, nil},
}

// brokenTurns: what the turn ran in is gone, for that reason.
func brokenTurns(code fault.Code, text string) fates {
	return fates{
		model.TurnDelivering:   {model.TurnUnknown, turnError(fault.DeliveryUnknown, text)},
		model.TurnRunning:      {model.TurnFailed, turnError(code, text)},
		model.TurnInterrupting: {model.TurnInterrupted, nil},
	}
}

// waitingTurns: what waits can't be delivered, for that reason.
func waitingTurns(why *model.TurnError) fates {
	return fates{model.TurnQueued: {model.TurnUndelivered, why}}
}

// settleTurns ends the turn in progress and the queue as f says.
func settleTurns(t *store.Tx, r *model.Record, f fates) error {
	if r.Turn != nil {
		if fate, ok := f[r.Turn.State]; ok {
			if err := endTurn(t, r, r.Turn.ID, r.Turn.State, fate.to, fate.why); err != nil {
				return err
			}
			r.Turn = nil
		}
	}
	fate, ok := f[model.TurnQueued]
	if !ok {
		return nil
	}
	queue, err := t.Queue(r.ID, MaxQueue)
	if err != nil {
		return err
	}
	for _, q := range queue {
		if err := endTurn(t, r, q.ID, q.State, fate.to, fate.why); err != nil {
			return err
		}
	}
	r.Queued = 0
	return nil
}

// turnStates translates the end that a machine saw.
var turnStates = map[string]model.TurnState{
	agentprogram.ReasonDone:        model.TurnDone,
	agentprogram.ReasonInterrupted: model.TurnInterrupted,
	agentprogram.ReasonFailed:      model.TurnFailed,
	agentprogram.ReasonLimit:       model.TurnLimit,
	agentprogram.ReasonRefused:     model.TurnRefused,
}
