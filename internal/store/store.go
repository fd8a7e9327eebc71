// Package store keeps the platform's rows: conversations, turns, the journal of
// events, programs, assignments, the ledger of destructions and terminals.
//
// Changes are made in [Store.Update]: one transaction at a time, which either
// happens with everything in it or not at all. A conversation's row is read
// with its fencing token and saved by compare-and-set ([Tx.Load], [Tx.Save]):
// a worker that was replaced can't change anything. Reads need no transaction.
// All methods are safe for concurrent use; a [Tx] is for the function that got
// it. The SQL is one text for SQLite and PostgreSQL: $1 placeholders, RETURNING,
// integer milliseconds.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/sqldb"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

var (
	// ErrFenced: another worker holds the conversation now.
	ErrFenced = errors.New("store: another worker holds the conversation")
	// ErrConflict: the row was changed since it was read.
	ErrConflict = errors.New("store: the row was changed meanwhile")
	// ErrNotFound: no such row.
	ErrNotFound = errors.New("store: no such row")
	// ErrClosed: the store was closed.
	ErrClosed = errors.New("store: closed")
)

// Store is an open database.
type Store struct {
	db     *sql.DB
	writer *sql.Conn     // the only connection that writes
	gate   chan struct{} // held by the one writer: cheaper than SQLite's own waiting
	closed chan struct{}
	once   sync.Once

	mu    sync.Mutex
	stmts map[string]*sql.Stmt

	committed func([]Committed)
}

// Committed is what a transaction added to the journal of one conversation.
type Committed struct {
	ConversationID string
	Events         []model.Event
}

// Open opens (and migrates) the database file. committed, if not nil, is called
// after each transaction that added events, in the order of the commits; it
// must be quick and mustn't call the store.
func Open(ctx context.Context, path string, committed func([]Committed)) (*Store, error) {
	migrations, err := fs.Sub(migrationFiles, "migrations")
	if err != nil {
		return nil, err
	}
	db, err := sqldb.Open(ctx, path, migrations)
	if err != nil {
		if errors.Is(err, sqldb.ErrNewer) {
			return nil, fault.Wrap(fault.StateTooNew, err, "")
		}
		if sqldb.IsFull(err) {
			return nil, fault.Wrap(fault.StorageFull, err, "")
		}
		return nil, fault.Wrap(fault.StorageUnavailable, err, "")
	}
	writer, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &Store{db: db, writer: writer, gate: make(chan struct{}, 1), closed: make(chan struct{}),
		stmts: map[string]*sql.Stmt{}, committed: committed}, nil
}

// Close waits for the running transaction and closes the database.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.closed)
		s.gate <- struct{}{} // never given back: nobody writes after this
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, st := range s.stmts {
			err = errors.Join(err, st.Close())
		}
		s.stmts = nil
		err = errors.Join(err, s.writer.Close(), s.db.Close())
	})
	return err
}

// stmt gives the prepared statement of a query text. The texts are constants
// of this package, so the map is bounded.
func (s *Store) stmt(query string) (*sql.Stmt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stmts == nil {
		return nil, ErrClosed
	}
	if st, ok := s.stmts[query]; ok {
		return st, nil
	}
	// Without the caller's context: the statement outlives the call.
	st, err := s.db.PrepareContext(context.Background(), query) //nolint:sqlclosecheck // closed by Close
	if err != nil {
		return nil, fmt.Errorf("prepare %q: %w", query, err)
	}
	s.stmts[query] = st
	return st, nil
}

// Tx is a running transaction.
type Tx struct {
	s    *Store
	tx   *sql.Tx
	ctx  context.Context
	now  time.Time
	made []Committed
}

// Now is the time of the transaction, in whole milliseconds, UTC.
func (t *Tx) Now() time.Time { return t.now }

// Update runs f in a transaction and commits when it returns nil. ctx bounds
// the wait for the other writers; a transaction that has begun runs to its end,
// so that a cancelled request leaves no doubt about what was stored.
func (s *Store) Update(ctx context.Context, f func(*Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-s.closed:
		return ErrClosed
	default:
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.closed:
		return ErrClosed
	case s.gate <- struct{}{}:
	}
	defer func() { <-s.gate }()
	ctx = context.WithoutCancel(ctx)
	t := &Tx{s: s, ctx: ctx, now: time.UnixMilli(time.Now().UnixMilli()).UTC()}
	err := sqldb.Tx(ctx, s.writer, func(tx *sql.Tx) error {
		t.tx = tx
		return f(t)
	})
	if err == nil && len(t.made) > 0 && s.committed != nil {
		s.committed(t.made)
	}
	if sqldb.IsFull(err) {
		return fault.Wrap(fault.StorageFull, err, "")
	}
	return err
}

func (t *Tx) prepared(query string) (*sql.Stmt, error) {
	st, err := t.s.stmt(query)
	if err != nil {
		return nil, err
	}
	return t.tx.StmtContext(t.ctx, st), nil
}

// exec runs a statement and reports how many rows it changed.
func (t *Tx) exec(query string, args ...any) (int64, error) {
	st, err := t.prepared(query) //nolint:sqlclosecheck // closed with the transaction
	if err != nil {
		return 0, err
	}
	res, err := st.ExecContext(t.ctx, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", firstWords(query), err)
	}
	return res.RowsAffected()
}

// queryer reads, in a transaction or outside of one.
type queryer interface {
	query(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func (t *Tx) query(_ context.Context, query string, args ...any) (*sql.Rows, error) {
	st, err := t.prepared(query) //nolint:sqlclosecheck // closed with the transaction
	if err != nil {
		return nil, err
	}
	return st.QueryContext(t.ctx, args...)
}

func (s *Store) query(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	st, err := s.stmt(query) //nolint:sqlclosecheck // closed by Close
	if err != nil {
		return nil, err
	}
	return st.QueryContext(ctx, args...)
}

// all reads every row of a query.
func all[T any](ctx context.Context, q queryer, scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	return some(ctx, q, scan, func(T) bool { return true }, query, args...)
}

// some reads rows of a query until more says that a row was the last one wanted.
func some[T any](ctx context.Context, q queryer, scan func(scanner) (T, error), more func(T) bool, query string, args ...any) ([]T, error) {
	rows, err := q.query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", firstWords(query), err)
	}
	defer rows.Close()
	out := []T{}
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", firstWords(query), err)
		}
		if out = append(out, v); !more(v) {
			break
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", firstWords(query), err)
	}
	return out, nil
}

// one reads the first row of a query; ErrNotFound when there is none.
func one[T any](ctx context.Context, q queryer, scan func(scanner) (T, error), query string, args ...any) (T, error) {
	rows, err := all(ctx, q, scan, query, args...)
	var zero T
	switch {
	case err != nil:
		return zero, err
	case len(rows) == 0:
		return zero, ErrNotFound
	}
	return rows[0], nil
}

type scanner interface{ Scan(dest ...any) error }

func scanString(r scanner) (s string, err error) { return s, r.Scan(&s) }
func scanInt(r scanner) (n int64, err error)     { return n, r.Scan(&n) }

// firstWords names a statement in an error without its whole text.
func firstWords(query string) string {
	const limit = 60
	if len(query) > limit {
		query = query[:limit] + "…"
	}
	return "store: " + query
}

func ms(t time.Time) int64 { return model.Millis(t) }
