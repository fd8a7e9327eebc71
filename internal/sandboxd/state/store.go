// Package state keeps the rows of the bundled lifecycle service: which
// sandboxes there are meant to be, how each is, and what became of those that
// are gone. Package lifecycle alone calls it.
//
// Every change of a state is one compare-and-set statement, so that of two
// callers who want to move a sandbox one wins and the other is told the state
// that holds. A row whose sandbox is gone stays for a while as a record of how
// it was destroyed, without its secrets.
//
// A Store is safe for concurrent use. Errors: [ErrNotFound], [*StateError],
// [*KeyError]; anything else is the database's.
package state

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/sqldb"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

//go:embed migrations/*.sql
var files embed.FS

// Store reads and writes the rows.
type Store struct {
	db *sql.DB
	// write is held for each change: SQLite has one writer at a time, and
	// waiting for a mutex is cheaper than asking the database again and again.
	write sync.Mutex
}

// Open opens the database file at path and migrates it. The caller closes the Store.
func Open(ctx context.Context, path string) (*Store, error) {
	migrations, err := fs.Sub(files, "migrations")
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	db, err := sqldb.Open(ctx, path, migrations)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return &Store{db: db}, nil
}

// Close closes the database.
func (s *Store) Close() error { return s.db.Close() }

// ErrNotFound: there is no row of that id whose sandbox isn't gone.
var ErrNotFound = errors.New("state: no such sandbox")

// StateError: the sandbox isn't in a state from which the change may be made.
type StateError struct{ ID, Have, Want string }

func (e *StateError) Error() string {
	return fmt.Sprintf("state: sandbox %s is %s, which can't become %s", e.ID, e.Have, e.Want)
}

// KeyError: the Idempotency-Key belongs to another row.
type KeyError struct{ Existing Record }

func (e *KeyError) Error() string {
	return fmt.Sprintf("state: the key belongs to sandbox %s", e.Existing.ID)
}

const columns = `id, state, reason, message, changed_at, created_at, expires_at, spec, metadata,
	idem_key, digest, pid, address, token, boot_id, gone_at, evidence`

// Insert stores a new row. A key in use by another row is a [*KeyError] with
// that row, read in the same transaction.
func (s *Store) Insert(ctx context.Context, r Record) error {
	spec, err := json.Marshal(r.Spec)
	if err != nil {
		return fmt.Errorf("state: %w", err)
	}
	metadata, err := marshalMap(r.Metadata)
	if err != nil {
		return err
	}
	s.write.Lock()
	defer s.write.Unlock()
	return sqldb.Tx(ctx, s.db, func(tx *sql.Tx) error {
		if r.Key != "" {
			have, err := scan(tx.QueryRowContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE idem_key = ?`, r.Key))
			if err == nil {
				return &KeyError{Existing: have}
			}
			if !errors.Is(err, ErrNotFound) {
				return err
			}
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO sandboxes (`+columns+`)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, '', '', '', NULL, NULL)`,
			r.ID, r.State, r.Reason, r.Message, millis(r.ChangedAt), millis(r.CreatedAt), nullTime(r.ExpiresAt),
			string(spec), metadata, nullString(r.Key), r.Digest)
		return err
	})
}

// Get gives the row of a sandbox that isn't gone.
func (s *Store) Get(ctx context.Context, id string) (Record, error) {
	return scan(s.db.QueryRowContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE id = ? AND gone_at IS NULL`, id))
}

// Past gives the row of a sandbox that is gone, while it is still kept.
func (s *Store) Past(ctx context.Context, id string) (Record, error) {
	return scan(s.db.QueryRowContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE id = ? AND gone_at IS NOT NULL`, id))
}

// Live gives all rows whose sandbox isn't gone, oldest first.
func (s *Store) Live(ctx context.Context) ([]Record, error) {
	return collect(s.db.QueryContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE gone_at IS NULL ORDER BY created_at, id`))
}

// Filter selects rows for List. A row matches when its state is one of States
// (none: any) and it carries all of Metadata.
type Filter struct {
	States        []string
	Metadata      map[string]string
	Limit, Offset int
}

// List gives the matching rows of one page, oldest first, and how many match.
func (s *Store) List(ctx context.Context, f Filter) (rows []Record, total int, err error) {
	where, args := []string{"gone_at IS NULL"}, []any(nil)
	if len(f.States) > 0 {
		where = append(where, "state IN (?"+strings.Repeat(", ?", len(f.States)-1)+")")
		for _, st := range f.States {
			args = append(args, st)
		}
	}
	for k, v := range f.Metadata {
		where = append(where, "EXISTS (SELECT 1 FROM json_each(metadata) m WHERE m.key = ? AND m.value = ?)")
		args = append(args, k, v)
	}
	cond := strings.Join(where, " AND ")
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true}) // one view for the count and the page
	if err != nil {
		return nil, 0, fmt.Errorf("state: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM sandboxes WHERE `+cond, args...).Scan(&total); err != nil {
		return nil, 0, fmt.Errorf("state: %w", err)
	}
	rows, err = collect(tx.QueryContext(ctx, `SELECT `+columns+` FROM sandboxes WHERE `+cond+` ORDER BY created_at, id LIMIT ? OFFSET ?`,
		append(args, f.Limit, f.Offset)...))
	return rows, total, err
}

// Due gives the sandboxes whose scheduled end is at or before now and that
// aren't being made or destroyed.
func (s *Store) Due(ctx context.Context, now time.Time) ([]string, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT id FROM sandboxes
		WHERE gone_at IS NULL AND expires_at <= ? AND state NOT IN (?, ?) ORDER BY expires_at`, millis(now), wire.Pending, wire.Stopping)
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("state: %w", err)
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

// NextExpiry gives the earliest scheduled end of the sandboxes that Due may give.
func (s *Store) NextExpiry(ctx context.Context) (at time.Time, ok bool, err error) {
	var ms sql.NullInt64
	err = s.db.QueryRowContext(ctx, `SELECT min(expires_at) FROM sandboxes
		WHERE gone_at IS NULL AND expires_at IS NOT NULL AND state NOT IN (?, ?)`, wire.Pending, wire.Stopping).Scan(&ms)
	if err != nil {
		return time.Time{}, false, fmt.Errorf("state: %w", err)
	}
	return fromMillis(ms.Int64), ms.Valid, nil
}

type scanner interface{ Scan(...any) error }

func scan(row scanner) (Record, error) {
	var r Record
	var changed, created int64
	var expires, gone sql.NullInt64
	var spec, metadata string
	var key, evidence sql.NullString
	err := row.Scan(&r.ID, &r.State, &r.Reason, &r.Message, &changed, &created, &expires, &spec, &metadata,
		&key, &r.Digest, &r.Run.PID, &r.Run.Address, &r.Run.Token, &r.Run.BootID, &gone, &evidence)
	if errors.Is(err, sql.ErrNoRows) {
		return Record{}, ErrNotFound
	}
	if err != nil {
		return Record{}, fmt.Errorf("state: %w", err)
	}
	if err := json.Unmarshal([]byte(spec), &r.Spec); err != nil {
		return Record{}, fmt.Errorf("state: sandbox %s: spec: %w", r.ID, err)
	}
	if err := json.Unmarshal([]byte(metadata), &r.Metadata); err != nil {
		return Record{}, fmt.Errorf("state: sandbox %s: metadata: %w", r.ID, err)
	}
	r.ChangedAt, r.CreatedAt, r.Key = fromMillis(changed), fromMillis(created), key.String
	if expires.Valid {
		r.ExpiresAt = fromMillis(expires.Int64)
	}
	if gone.Valid {
		r.GoneAt = fromMillis(gone.Int64)
	}
	if evidence.Valid {
		r.Evidence = json.RawMessage(evidence.String)
	}
	return r, nil
}

func collect(rows *sql.Rows, err error) ([]Record, error) {
	if err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	defer rows.Close()
	var out []Record
	for rows.Next() {
		r, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("state: %w", err)
	}
	return out, nil
}

func marshalMap(m map[string]string) (string, error) {
	if m == nil {
		m = map[string]string{}
	}
	b, err := json.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("state: %w", err)
	}
	return string(b), nil
}

func millis(t time.Time) int64      { return t.UnixMilli() }
func fromMillis(ms int64) time.Time { return time.UnixMilli(ms).UTC() }
func nullString(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func nullTime(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return millis(t)
}
