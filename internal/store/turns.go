package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
)

const turnColumns = `id, conversation_id, client_message_id, text, state, error_code, error_message, accepted_seq, created_at, interrupted_at, ended_at`

func scanTurn(r scanner) (*model.TurnRecord, error) {
	var t model.TurnRecord
	var e model.TurnError
	var created, interrupted, ended int64
	err := r.Scan(&t.ID, &t.ConversationID, &t.ClientMessageID, &t.Text, &t.State, &e.Code, &e.Message, &t.AcceptedSeq, &created, &interrupted, &ended)
	if err != nil {
		return nil, err
	}
	t.CreatedAt, t.InterruptedAt = model.Time(created), model.Time(interrupted)
	if e.Code != "" {
		t.Error = &e
	}
	if ended != 0 {
		at := model.Time(ended)
		t.EndedAt = &at
	}
	return &t, nil
}

// Turn reads a turn of the conversation; TURN_NOT_FOUND for an unknown one.
func (s *Store) Turn(ctx context.Context, conversationID, id string) (*model.TurnRecord, error) {
	r, err := one(ctx, s, scanTurn, `SELECT `+turnColumns+` FROM turns WHERE id = $1 AND conversation_id = $2`, id, conversationID)
	if errors.Is(err, ErrNotFound) {
		return nil, fault.New(fault.TurnNotFound, "")
	}
	return r, err
}

// TurnByMessage finds the turn of a client's message; ErrNotFound: none.
func (t *Tx) TurnByMessage(conversationID, clientMessageID string) (*model.TurnRecord, error) {
	return one(t.ctx, t, scanTurn, `SELECT `+turnColumns+` FROM turns WHERE conversation_id = $1 AND client_message_id = $2`, conversationID, clientMessageID)
}

// AddTurn stores a new queued turn.
func (t *Tx) AddTurn(r *model.TurnRecord) error {
	r.State, r.CreatedAt = model.TurnQueued, t.now
	_, err := t.exec(`INSERT INTO turns (id, conversation_id, client_message_id, text, state, accepted_seq, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`, r.ID, r.ConversationID, r.ClientMessageID, r.Text, r.State, r.AcceptedSeq, ms(t.now))
	return err
}

// Queue gives the queued turns, the next one first, at most limit.
func (t *Tx) Queue(conversationID string, limit int) ([]*model.TurnRecord, error) {
	return all(t.ctx, t, scanTurn, `SELECT `+turnColumns+` FROM turns WHERE conversation_id = $1 AND state = 'queued' ORDER BY accepted_seq LIMIT $2`, conversationID, limit)
}

// SetTurn takes a step of the turn's state machine, by compare-and-set. e says
// why a turn ended otherwise than done.
func (t *Tx) SetTurn(turnID string, from, to model.TurnState, e *model.TurnError) error {
	if err := model.Turns.Check(from, to); err != nil {
		return fmt.Errorf("turn %s: %w", turnID, err)
	}
	var why model.TurnError
	if e != nil {
		why = *e
	}
	var ended, interrupted int64
	if model.Turns.Final(to) {
		ended = ms(t.now)
	}
	if to == model.TurnInterrupting {
		interrupted = ms(t.now)
	}
	n, err := t.exec(`UPDATE turns SET state = $1, error_code = $2, error_message = $3, ended_at = $4,
		interrupted_at = CASE WHEN $5 > 0 THEN $5 ELSE interrupted_at END WHERE id = $6 AND state = $7`,
		to, why.Code, why.Message, ended, interrupted, turnID, from)
	if err == nil && n != 1 {
		err = ErrConflict
	}
	return err
}
