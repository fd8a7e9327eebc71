package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/sqldb"
)

const conversationColumns = `c.id, c.title, c.agent, c.environment, c.state, c.version, c.fence,
	c.runtime, c.runtime_reason, c.runtime_since, c.backend, c.assignment_id, c.sandbox_id,
	c.expires_at, c.active_at, c.due_at, c.last_seq,
	c.destroyed_sandbox, c.destruction_outcome, c.destruction_detail, c.created_at, c.updated_at,
	coalesce(p.id, ''), coalesce(p.state, ''),
	(SELECT count(*) FROM turns q WHERE q.conversation_id = c.id AND q.state = 'queued')`

const conversationTables = ` FROM conversations c LEFT JOIN turns p
	ON p.conversation_id = c.id AND p.state IN ('delivering', 'running', 'interrupting') `

func scanRecord(r scanner) (*model.Record, error) {
	var c model.Record
	var d model.Destruction
	var turn model.TurnRef
	var since, expires, active, due, created, updated int64
	err := r.Scan(&c.ID, &c.Title, &c.Agent, &c.Environment, &c.State, &c.Version, &c.Fence,
		&c.Runtime.State, &c.Runtime.Reason, &since, &c.Backend, &c.AssignmentID, &c.Runtime.SandboxID,
		&expires, &active, &due, &c.LastSeq,
		&d.SandboxID, &d.Outcome, &d.Detail, &created, &updated,
		&turn.ID, &turn.State, &c.Queued)
	if err != nil {
		return nil, err
	}
	c.Runtime.Since, c.ExpiresAt, c.ActiveAt, c.DueAt = model.Time(since), model.Time(expires), model.Time(active), model.Time(due)
	c.CreatedAt, c.UpdatedAt = model.Time(created), model.Time(updated)
	if turn.ID != "" {
		c.Turn = &turn
	}
	if d.Outcome != "" {
		c.Destruction = &d
	}
	return &c, nil
}

// Record reads a conversation; CONVERSATION_NOT_FOUND for an unknown one.
func (s *Store) Record(ctx context.Context, id string) (*model.Record, error) {
	return record(ctx, s, id)
}

// Load reads a conversation in the transaction, to be changed and given to
// Save; CONVERSATION_NOT_FOUND for an unknown one.
func (t *Tx) Load(id string) (*model.Record, error) { return record(t.ctx, t, id) }

// LoadFenced is Load for the worker that holds the conversation; ErrFenced when
// another one does by now.
func (t *Tx) LoadFenced(id string, fence int64) (*model.Record, error) {
	r, err := t.Load(id)
	if err == nil && r.Fence != fence {
		return nil, ErrFenced
	}
	return r, err
}

func record(ctx context.Context, q queryer, id string) (*model.Record, error) {
	r, err := one(ctx, q, scanRecord, `SELECT `+conversationColumns+conversationTables+`WHERE c.id = $1`, id)
	if errors.Is(err, ErrNotFound) {
		return nil, fault.New(fault.ConversationNotFound, "")
	}
	return r, err
}

// Insert stores a new conversation; ok is false when its idempotency key (may be
// empty) was used before.
func (t *Tx) Insert(r *model.Record, idempotencyKey, digest string) (ok bool, err error) {
	var key any
	if idempotencyKey != "" {
		key = idempotencyKey
	}
	r.Version, r.CreatedAt, r.UpdatedAt, r.Runtime.Since = 1, t.now, t.now, t.now
	_, err = t.exec(`INSERT INTO conversations (id, title, agent, environment, idempotency_key, request_digest,
		state, runtime, runtime_since, active_at, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $9, $9)`,
		r.ID, r.Title, r.Agent, r.Environment, key, digest, r.State, r.Runtime.State, ms(t.now))
	if sqldb.IsUnique(err) {
		return false, nil
	}
	return err == nil, err
}

// ByIdempotencyKey finds what an earlier request with that key made: the
// conversation's id and the digest of that request. ErrNotFound: nothing.
func (t *Tx) ByIdempotencyKey(key string) (id, digest string, err error) {
	pair, err := one(t.ctx, t, func(r scanner) (p [2]string, err error) { return p, r.Scan(&p[0], &p[1]) },
		`SELECT id, request_digest FROM conversations WHERE idempotency_key = $1`, key)
	return pair[0], pair[1], err
}

// Save stores the changed row by compare-and-set on its version and fence, and
// steps the version. ErrConflict: it was changed since it was loaded. The turn
// and the length of the queue are not saved: turns are rows of their own.
func (t *Tx) Save(r *model.Record) error {
	var d model.Destruction
	if r.Destruction != nil {
		d = *r.Destruction
	}
	r.UpdatedAt = t.now
	n, err := t.exec(`UPDATE conversations SET title = $1, state = $2, runtime = $3, runtime_reason = $4, runtime_since = $5,
		backend = $6, assignment_id = $7, sandbox_id = $8, expires_at = $9, active_at = $10, due_at = $11, last_seq = $12,
		destroyed_sandbox = $13, destruction_outcome = $14, destruction_detail = $15, updated_at = $16, version = version + 1
		WHERE id = $17 AND version = $18 AND fence = $19`,
		r.Title, r.State, r.Runtime.State, r.Runtime.Reason, ms(r.Runtime.Since),
		r.Backend, r.AssignmentID, r.Runtime.SandboxID, ms(r.ExpiresAt), ms(r.ActiveAt), ms(r.DueAt), r.LastSeq,
		d.SandboxID, d.Outcome, d.Detail, ms(t.now), r.ID, r.Version, r.Fence)
	if err != nil {
		return err
	}
	if n != 1 {
		return ErrConflict
	}
	r.Version++
	return nil
}

// Hold makes the caller the conversation's worker and returns its fencing
// token. Whoever held it before can't change it any more.
func (s *Store) Hold(ctx context.Context, id string) (fence int64, err error) {
	err = s.Update(ctx, func(t *Tx) error {
		fence, err = one(t.ctx, t, scanInt, `UPDATE conversations SET fence = fence + 1, version = version + 1 WHERE id = $1 RETURNING fence`, id)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return 0, fault.New(fault.ConversationNotFound, "")
	}
	return fence, err
}

// SetRuntime takes a step of the runtime's state machine.
func (t *Tx) SetRuntime(r *model.Record, to model.RuntimeState, reason string) error {
	if err := model.Runtimes.Check(r.Runtime.State, to); err != nil {
		return fmt.Errorf("runtime of %s: %w", r.ID, err)
	}
	r.Runtime.State, r.Runtime.Reason, r.Runtime.Since = to, reason, t.now
	return nil
}

// SetState takes a step of the conversation's state machine.
func (t *Tx) SetState(r *model.Record, to model.ConversationState) error {
	if err := model.Conversations.Check(r.State, to); err != nil {
		return fmt.Errorf("conversation %s: %w", r.ID, err)
	}
	r.State = to
	return nil
}

// Page lists conversations that aren't deleted, newest first, with ids below
// before (empty: from the newest).
func (s *Store) Page(ctx context.Context, before string, limit int) ([]*model.Record, error) {
	if before == "" {
		before = "~" // after every id
	}
	return all(ctx, s, scanRecord, `SELECT `+conversationColumns+conversationTables+
		`WHERE c.id < $1 AND c.state <> 'deleted' ORDER BY c.id DESC LIMIT $2`, before, limit)
}

// Unsettled gives the conversations that need a worker after a start of the
// platform: a sandbox that runs or is between two states, messages that wait,
// a deletion that isn't finished.
func (s *Store) Unsettled(ctx context.Context) ([]string, error) {
	return all(ctx, s, scanString, `SELECT id FROM conversations WHERE runtime NOT IN ('none', 'paused', 'lost')
		UNION SELECT conversation_id FROM turns WHERE state = 'queued'
		UNION SELECT conversation_id FROM turns WHERE state IN ('delivering', 'running', 'interrupting')
		UNION SELECT id FROM conversations WHERE state = 'deleting'`)
}

// Due gives the conversations whose due time has come, and when the next one's
// comes (zero: none).
func (s *Store) Due(ctx context.Context, now time.Time) (ids []string, next time.Time, err error) {
	ids, err = all(ctx, s, scanString, `SELECT id FROM conversations WHERE due_at > 0 AND due_at <= $1 ORDER BY due_at LIMIT 1000`, ms(now))
	if err != nil {
		return nil, time.Time{}, err
	}
	at, err := one(ctx, s, scanInt, `SELECT coalesce(min(due_at), 0) FROM conversations WHERE due_at > $1`, ms(now))
	return ids, model.Time(at), err
}

// Event adds an entry to the conversation's journal; r must be saved in the same
// transaction. data encodes to a JSON object; nil is {}.
func (t *Tx) Event(r *model.Record, turnID, kind string, data any) error {
	raw := json.RawMessage("{}")
	if data != nil {
		var err error
		if raw, err = json.Marshal(data); err != nil {
			return fmt.Errorf("event %s: %w", kind, err)
		}
	}
	r.LastSeq++
	e := model.Event{Seq: r.LastSeq, Type: kind, TurnID: turnID, At: t.now, Data: raw}
	if _, err := t.exec(`INSERT INTO events (conversation_id, seq, type, turn_id, at, data) VALUES ($1, $2, $3, $4, $5, $6)`,
		r.ID, e.Seq, e.Type, e.TurnID, ms(e.At), string(raw)); err != nil {
		return err
	}
	if n := len(t.made); n > 0 && t.made[n-1].ConversationID == r.ID {
		t.made[n-1].Events = append(t.made[n-1].Events, e)
	} else {
		t.made = append(t.made, Committed{r.ID, []model.Event{e}})
	}
	return nil
}

// Events reads up to limit entries with seq > after, and no more once their data
// has size bytes together: an entry may be large, and many readers read at once.
func (s *Store) Events(ctx context.Context, conversationID string, after int64, limit, size int) ([]model.Event, error) {
	return some(ctx, s, func(r scanner) (e model.Event, err error) {
		var at int64
		var data string
		err = r.Scan(&e.Seq, &e.Type, &e.TurnID, &at, &data)
		e.At, e.Data = model.Time(at), json.RawMessage(data)
		return e, err
	}, func(e model.Event) bool {
		size -= len(e.Data)
		return size > 0
	}, `SELECT seq, type, turn_id, at, data FROM events WHERE conversation_id = $1 AND seq > $2 ORDER BY seq LIMIT $3`,
		conversationID, after, limit)
}
