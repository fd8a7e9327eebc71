// Package sqldb opens AstraBox's SQL databases: it owns the driver, the
// settings of a connection and the schema migrations, and knows no table.
//
// The platform's store and the bundled lifecycle service each open one file
// with it. A *sql.DB is safe for concurrent use; SQLite admits one writer at a
// time, so a caller with many writers serialises them itself and saves the
// waiting (see [Tx]). That only one process uses a state directory is the
// application's business: it holds a lock file.
package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// ErrNewer is in the chain of the error of [Open] when the database was
// written by a newer version of the program. Nothing was changed.
var ErrNewer = errors.New("the database is newer than this program")

// pragmas hold for every connection.
//
// synchronous=FULL: a committed row survives a power cut, because a row is
// what says who owns a sandbox's files. busy_timeout comes first, so that the
// switch to WAL can wait for another opener.
var pragmas = []string{
	"busy_timeout(10000)",
	"journal_mode(WAL)",
	"synchronous(FULL)",
	"foreign_keys(ON)",
	"temp_store(MEMORY)",
	"journal_size_limit(67108864)",
	"cache_size(-8192)",
}

// maxConns bounds the connections: readers beside the one writer.
const maxConns = 8

// Open opens the SQLite database at path, creates it with mode 0600 where it
// is missing (the directory must exist), and brings its schema up to date with
// the goose migrations at the root of the file system migrations. A database
// whose schema is newer than the newest migration is refused with [ErrNewer].
func Open(ctx context.Context, path string, migrations fs.FS) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", path, err)
	}
	// Created here, since SQLite would create it readable for all; the log
	// files beside it take its mode.
	f, err := os.OpenFile(abs, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	db, err := sql.Open("sqlite", dsn(abs))
	if err != nil {
		return nil, fmt.Errorf("open the database %s: %w", abs, err)
	}
	db.SetMaxOpenConns(maxConns)
	db.SetMaxIdleConns(maxConns)
	if err := migrate(ctx, db, migrations); err != nil {
		return nil, errors.Join(fmt.Errorf("database %s: %w", abs, err), db.Close())
	}
	return db, nil
}

// dsn names the file in the URI form, whose path is percent-encoded: a '?' or
// '#' in a directory name must not end it.
func dsn(abs string) string {
	var b strings.Builder
	b.WriteString("file:")
	b.WriteString((&url.URL{Path: abs}).EscapedPath())
	b.WriteString("?_txlock=immediate")
	for _, p := range pragmas {
		b.WriteString("&_pragma=")
		b.WriteString(url.QueryEscape(p))
	}
	return b.String()
}

func migrate(ctx context.Context, db *sql.DB, migrations fs.FS) error {
	p, err := goose.NewProvider(goose.DialectSQLite3, db, migrations,
		goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	current, target, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("read the schema version: %w", err)
	}
	if current > target {
		return fmt.Errorf("%w: its schema is version %d, this program knows versions up to %d; "+
			"start the newer program, or restore a copy made before it ran", ErrNewer, current, target)
	}
	if current == target {
		return nil
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("migrate the schema from version %d to %d: %w", current, target, err)
	}
	return nil
}

// busyTries bounds how often Tx starts again on a busy database. Each try
// itself waits for the busy timeout of the connection.
const busyTries = 3

// Beginner is a *sql.DB, or a *sql.Conn of it that a caller keeps for writing.
type Beginner interface {
	BeginTx(ctx context.Context, opts *sql.TxOptions) (*sql.Tx, error)
}

// Tx runs f in a transaction that holds the write lock from its start, commits
// when f returns nil and rolls back otherwise (also when f panics). When the
// database stays busy before f did anything, it starts again, at most three
// times; f's own errors are returned as they are.
func Tx(ctx context.Context, db Beginner, f func(*sql.Tx) error) error {
	var tx *sql.Tx
	var err error
	for try := 1; ; try++ {
		tx, err = db.BeginTx(ctx, nil)
		if err == nil {
			break
		}
		if !IsBusy(err) || try == busyTries {
			return fmt.Errorf("begin a transaction: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(try) * 10 * time.Millisecond):
		}
	}
	done := false
	defer func() {
		if !done {
			_ = tx.Rollback() // f's error or panic is what counts
		}
	}()
	if err := f(tx); err != nil {
		return err
	}
	done = true
	if err := tx.Commit(); err != nil {
		_ = tx.Rollback() // a busy commit leaves the transaction open
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// IsBusy reports whether another connection held a lock for too long.
func IsBusy(err error) bool {
	return code(err)&0xff == sqlite3.SQLITE_BUSY
}

// IsFull reports whether there was no space left on the disk.
func IsFull(err error) bool {
	c := code(err)
	return c&0xff == sqlite3.SQLITE_FULL || c == sqlite3.SQLITE_IOERR_SHMSIZE
}

// IsUnique reports whether a UNIQUE or PRIMARY KEY constraint refused a row.
func IsUnique(err error) bool {
	switch code(err) {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return true
	}
	return false
}

func code(err error) int {
	var e *sqlite.Error
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}
