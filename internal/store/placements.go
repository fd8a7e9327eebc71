package store

import (
	"context"
	"errors"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
)

const assignmentColumns = `id, conversation_id, backend, spec, digest, state, sandbox_id, error, created_at`

func scanAssignment(r scanner) (*model.Assignment, error) {
	var a model.Assignment
	var spec string
	var created int64
	err := r.Scan(&a.ID, &a.ConversationID, &a.Backend, &spec, &a.Digest, &a.State, &a.SandboxID, &a.Error, &created)
	a.Spec, a.CreatedAt = []byte(spec), model.Time(created)
	return &a, err
}

// AddAssignment stores a planned attempt.
func (t *Tx) AddAssignment(a *model.Assignment) error {
	a.State, a.CreatedAt = model.AssignmentPlanned, t.now
	_, err := t.exec(`INSERT INTO assignments (id, conversation_id, backend, spec, digest, state, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		a.ID, a.ConversationID, a.Backend, string(a.Spec), a.Digest, a.State, ms(t.now))
	return err
}

// Assignment reads one; ErrNotFound for an unknown one.
func (s *Store) Assignment(ctx context.Context, id string) (*model.Assignment, error) {
	return one(ctx, s, scanAssignment, `SELECT `+assignmentColumns+` FROM assignments WHERE id = $1`, id)
}

// SetAssignment moves an open assignment on. Done and failed end it.
func (t *Tx) SetAssignment(id, state, sandboxID, problem string) error {
	var ended int64
	if state == model.AssignmentDone || state == model.AssignmentFailed {
		ended = ms(t.now)
	}
	n, err := t.exec(`UPDATE assignments SET state = $1, sandbox_id = CASE WHEN $2 <> '' THEN $2 ELSE sandbox_id END, error = $3, ended_at = $4
		WHERE id = $5 AND ended_at = 0`, state, sandboxID, problem, ended, id)
	if err == nil && n != 1 {
		err = ErrConflict
	}
	return err
}

// Named reports whether any row of ours names the sandbox: a conversation that
// uses it, an open assignment that may be about to, or an open ledger entry.
func (s *Store) Named(ctx context.Context, backend, sandboxID, assignmentID string) (bool, error) {
	n, err := one(ctx, s, scanInt, `SELECT
		(SELECT count(*) FROM conversations WHERE sandbox_id = $2 AND backend = $1) +
		(SELECT count(*) FROM assignments WHERE ended_at = 0 AND (id = $3 OR sandbox_id = $2)) +
		(SELECT count(*) FROM destructions WHERE backend = $1 AND sandbox_id = $2 AND ended_at = 0)`, backend, sandboxID, assignmentID)
	return n > 0, err
}

const ledgerColumns = `backend, sandbox_id, conversation_id, reason, outcome, detail, attempts, due_at, created_at, ended_at`

func scanLedger(r scanner) (*model.LedgerEntry, error) {
	var e model.LedgerEntry
	var due, created, ended int64
	err := r.Scan(&e.Backend, &e.SandboxID, &e.ConversationID, &e.Reason, &e.Outcome, &e.Detail, &e.Attempts, &due, &created, &ended)
	e.DueAt, e.CreatedAt, e.EndedAt = model.Time(due), model.Time(created), model.Time(ended)
	return &e, err
}

// AddToLedger stores the intent to destroy a sandbox; once each. An entry that
// was ended opens again: ids are never used twice, so what is there was not gone.
func (t *Tx) AddToLedger(e model.LedgerEntry) error {
	_, err := t.exec(`INSERT INTO destructions (backend, sandbox_id, conversation_id, reason, due_at, created_at)
		VALUES ($1, $2, $3, $4, $5, $5) ON CONFLICT (backend, sandbox_id) DO UPDATE
		SET ended_at = 0, due_at = excluded.due_at, reason = excluded.reason WHERE destructions.ended_at > 0`,
		e.Backend, e.SandboxID, e.ConversationID, e.Reason, ms(t.now))
	return err
}

// LedgerEntry reads one; ErrNotFound when the sandbox was never to be destroyed.
func (s *Store) LedgerEntry(ctx context.Context, backend, sandboxID string) (*model.LedgerEntry, error) {
	return one(ctx, s, scanLedger, `SELECT `+ledgerColumns+` FROM destructions WHERE backend = $1 AND sandbox_id = $2`, backend, sandboxID)
}

// OpenLedger gives open entries that are due, and when the next one is.
func (s *Store) OpenLedger(ctx context.Context, now time.Time, limit int) (due []*model.LedgerEntry, next time.Time, err error) {
	due, err = all(ctx, s, scanLedger, `SELECT `+ledgerColumns+` FROM destructions WHERE ended_at = 0 AND due_at <= $1 ORDER BY due_at LIMIT $2`, ms(now), limit)
	if err != nil {
		return nil, time.Time{}, err
	}
	at, err := one(ctx, s, scanInt, `SELECT coalesce(min(due_at), 0) FROM destructions WHERE ended_at = 0 AND due_at > $1`, ms(now))
	return due, model.Time(at), err
}

// OpenLedgerCount is the number of sandboxes whose end isn't proven.
func (s *Store) OpenLedgerCount(ctx context.Context) (int64, error) {
	return one(ctx, s, scanInt, `SELECT count(*) FROM destructions WHERE ended_at = 0`)
}

// NoteDestruction stores the verdict of a try; gone ends the entry, anything
// else makes it due again at next.
func (t *Tx) NoteDestruction(backend, sandboxID, outcome, detail string, gone bool, next time.Time) error {
	var ended int64
	if gone {
		ended = ms(t.now)
	}
	_, err := t.exec(`UPDATE destructions SET outcome = $1, detail = $2, attempts = attempts + 1, due_at = $3, ended_at = $4
		WHERE backend = $5 AND sandbox_id = $6 AND ended_at = 0`, outcome, detail, ms(next), ended, backend, sandboxID)
	return err
}

const terminalColumns = `id, conversation_id, sandbox_id, process_id, state, reason, created_at`

func scanTerminal(r scanner) (*model.TerminalRecord, error) {
	var t model.TerminalRecord
	var created int64
	err := r.Scan(&t.ID, &t.ConversationID, &t.SandboxID, &t.ProcessID, &t.State, &t.Reason, &created)
	t.CreatedAt = model.Time(created)
	return &t, err
}

// AddTerminal stores a terminal whose process isn't known yet.
func (t *Tx) AddTerminal(r *model.TerminalRecord) error {
	r.State, r.CreatedAt = model.TerminalLive, t.now
	_, err := t.exec(`INSERT INTO terminals (id, conversation_id, sandbox_id, process_id, state, created_at) VALUES ($1, $2, $3, $4, $5, $6)`,
		r.ID, r.ConversationID, r.SandboxID, r.ProcessID, r.State, ms(t.now))
	return err
}

// SetTerminalProcess stores the id of the terminal's process.
func (t *Tx) SetTerminalProcess(id, processID string) error {
	n, err := t.exec(`UPDATE terminals SET process_id = $1 WHERE id = $2 AND state = 'live'`, processID, id)
	if err == nil && n != 1 {
		err = ErrConflict
	}
	return err
}

// EndTerminals marks all terminals of the conversation as gone: their sandbox
// was paused or ended.
func (t *Tx) EndTerminals(conversationID, reason string) error {
	_, err := t.exec(`UPDATE terminals SET state = 'gone', reason = $1 WHERE conversation_id = $2 AND state = 'live'`, reason, conversationID)
	return err
}

// EndTerminal marks one as gone.
func (t *Tx) EndTerminal(id, reason string) error {
	_, err := t.exec(`UPDATE terminals SET state = 'gone', reason = $1 WHERE id = $2 AND state = 'live'`, reason, id)
	return err
}

// DropTerminal forgets one.
func (t *Tx) DropTerminal(id string) error {
	_, err := t.exec(`DELETE FROM terminals WHERE id = $1`, id)
	return err
}

// LiveTerminals counts the terminals that aren't gone.
func (t *Tx) LiveTerminals(conversationID string) (int64, error) {
	return one(t.ctx, t, scanInt, `SELECT count(*) FROM terminals WHERE conversation_id = $1 AND state = 'live'`, conversationID)
}

// Terminals lists a conversation's terminals, oldest first.
func (s *Store) Terminals(ctx context.Context, conversationID string) ([]*model.TerminalRecord, error) {
	return all(ctx, s, scanTerminal, `SELECT `+terminalColumns+` FROM terminals WHERE conversation_id = $1 ORDER BY id`, conversationID)
}

// Terminal reads one; TERMINAL_NOT_FOUND for an unknown one.
func (s *Store) Terminal(ctx context.Context, conversationID, id string) (*model.TerminalRecord, error) {
	r, err := one(ctx, s, scanTerminal, `SELECT `+terminalColumns+` FROM terminals WHERE id = $1 AND conversation_id = $2`, id, conversationID)
	if errors.Is(err, ErrNotFound) {
		return nil, fault.New(fault.TerminalNotFound, "There is no such terminal.")
	}
	return r, err
}
