package state

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/astrabox/astrabox/internal/sqldb"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// Move is a change of one sandbox's state.
type Move struct {
	ID string
	To string
	At time.Time
	// From narrows the states that the sandbox may be in; none means every
	// state from which To may follow.
	From []string
	// PID, when set, must be the row's: a report about one run must not
	// change another.
	PID             int
	Reason, Message string
	// Run is stored when To is Running; any other state except Pausing
	// clears the row's, and Pausing keeps it.
	Run Run
}

// Apply makes the change in one statement. A sandbox in another state (or
// another run) is a [*StateError]; one that is gone or never was, ErrNotFound.
func (s *Store) Apply(ctx context.Context, m Move) (Record, error) {
	from := m.From
	if len(from) == 0 {
		from = sources(m.To)
	}
	for _, f := range from {
		if !Allowed(f, m.To) {
			return Record{}, fmt.Errorf("state: %s can't become %s", f, m.To)
		}
	}
	set, args := `state = ?, reason = ?, message = ?, changed_at = ?`, []any{m.To, m.Reason, m.Message, millis(m.At)}
	switch {
	case m.To == wire.Running && m.Run != (Run{}):
		set += `, pid = ?, address = ?, token = ?, boot_id = ?`
		args = append(args, m.Run.PID, m.Run.Address, m.Run.Token, m.Run.BootID)
	case m.To != wire.Running && m.To != wire.Pausing:
		set += `, pid = 0, address = '', token = '', boot_id = ''`
	}
	q := `UPDATE sandboxes SET ` + set + ` WHERE id = ? AND gone_at IS NULL AND state IN (?` + strings.Repeat(", ?", len(from)-1) + `)`
	args = append(args, m.ID)
	for _, f := range from {
		args = append(args, f)
	}
	if m.PID != 0 {
		q += ` AND pid = ?`
		args = append(args, m.PID)
	}
	s.write.Lock()
	defer s.write.Unlock()
	r, err := scan(s.db.QueryRowContext(ctx, q+` RETURNING `+columns, args...))
	if errors.Is(err, ErrNotFound) {
		have, err := s.Get(ctx, m.ID)
		if err != nil {
			return Record{}, err
		}
		return have, &StateError{ID: m.ID, Have: have.State, Want: m.To}
	}
	return r, err
}

// Allowed reports whether a sandbox in state from may move to state to.
func Allowed(from, to string) bool {
	return slices.Contains(transitions[from], to)
}

// Expire moves a sandbox to Stopping if, at this very moment, its scheduled
// end is at or before now; ok says whether it did. A renewal that came first wins.
func (s *Store) Expire(ctx context.Context, id string, now time.Time) (ok bool, err error) {
	s.write.Lock()
	defer s.write.Unlock()
	res, err := s.db.ExecContext(ctx, `UPDATE sandboxes
		SET state = ?, reason = 'ttl_expiry', message = 'its scheduled end was reached', changed_at = ?,
		    pid = 0, address = '', token = '', boot_id = ''
		WHERE id = ? AND gone_at IS NULL AND expires_at <= ? AND state NOT IN (?, ?)`,
		wire.Stopping, millis(now), id, millis(now), wire.Pending, wire.Stopping)
	if err != nil {
		return false, fmt.Errorf("state: %w", err)
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// Renew moves the scheduled end of a sandbox to at and gives the row as it is
// afterwards. It never shortens: an earlier end, and a sandbox without one,
// change nothing. A sandbox that is stopping or has ended is a *StateError.
func (s *Store) Renew(ctx context.Context, id string, at time.Time) (Record, error) {
	s.write.Lock()
	defer s.write.Unlock()
	r, err := scan(s.db.QueryRowContext(ctx, `UPDATE sandboxes SET expires_at = max(expires_at, ?)
		WHERE id = ? AND gone_at IS NULL AND state NOT IN (?, ?, ?) RETURNING `+columns,
		millis(at), id, wire.Stopping, wire.Terminated, wire.Failed))
	if errors.Is(err, ErrNotFound) {
		have, err := s.Get(ctx, id)
		if err != nil {
			return Record{}, err
		}
		return have, &StateError{ID: id, Have: have.State, Want: "renewed"}
	}
	return r, err
}

// PatchMetadata merges patch into the row's metadata: a nil value removes the
// key. check sees the result before it is stored and may refuse it.
func (s *Store) PatchMetadata(ctx context.Context, id string, patch map[string]*string, check func(map[string]string) error) (Record, error) {
	var out Record
	s.write.Lock()
	defer s.write.Unlock()
	err := sqldb.Tx(ctx, s.db, func(tx *sql.Tx) error {
		r, err := scan(tx.QueryRowContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE id = ? AND gone_at IS NULL`, id))
		if err != nil {
			return err
		}
		merged := maps.Clone(r.Metadata)
		if merged == nil {
			merged = map[string]string{}
		}
		for k, v := range patch {
			if v == nil {
				delete(merged, k)
			} else {
				merged[k] = *v
			}
		}
		if err := check(merged); err != nil {
			return err
		}
		text, err := marshalMap(merged)
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE sandboxes SET metadata = ? WHERE id = ?`, text, id); err != nil {
			return fmt.Errorf("state: %w", err)
		}
		r.Metadata = merged
		out = r
		return nil
	})
	return out, err
}

// ReleaseKey lets another create use the row's Idempotency-Key, because the
// create that brought it made no sandbox.
func (s *Store) ReleaseKey(ctx context.Context, id string) error {
	s.write.Lock()
	defer s.write.Unlock()
	_, err := s.db.ExecContext(ctx, `UPDATE sandboxes SET idem_key = NULL WHERE id = ?`, id)
	return err
}

// Bury records that a stopping sandbox is proven gone. The row keeps who it
// was and the evidence, and loses its secrets. A row that is buried already,
// or that never was, is success.
func (s *Store) Bury(ctx context.Context, id string, at time.Time, evidence any) error {
	s.write.Lock()
	defer s.write.Unlock()
	b, err := json.Marshal(evidence)
	if err != nil {
		return fmt.Errorf("state: evidence: %w", err)
	}
	_, err = s.db.ExecContext(ctx, `UPDATE sandboxes
		SET state = ?, changed_at = ?, gone_at = ?, evidence = ?, spec = json_remove(spec, '$.env')
		WHERE id = ? AND gone_at IS NULL AND state = ?`,
		wire.Terminated, millis(at), millis(at), string(b), id, wire.Stopping)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}

// Prune forgets sandboxes that were gone before the given time, and the
// oldest of those past the keep newest.
func (s *Store) Prune(ctx context.Context, before time.Time, keep int) error {
	s.write.Lock()
	defer s.write.Unlock()
	_, err := s.db.ExecContext(ctx, `DELETE FROM sandboxes WHERE gone_at IS NOT NULL AND (gone_at < ? OR id NOT IN
		(SELECT id FROM sandboxes WHERE gone_at IS NOT NULL ORDER BY gone_at DESC LIMIT ?))`, millis(before), keep)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	return nil
}
