package sqldb

import (
	"context"
	"database/sql"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func migrations(n int) fs.FS {
	m := fstest.MapFS{"00001_first.sql": {Data: []byte("-- +goose Up\nCREATE TABLE a (id INTEGER PRIMARY KEY, v TEXT NOT NULL UNIQUE);\n")}}
	if n > 1 {
		m["00002_second.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nALTER TABLE a ADD COLUMN w TEXT NOT NULL DEFAULT 'x';\n")}
	}
	if n > 2 {
		m["00003_broken.sql"] = &fstest.MapFile{Data: []byte("-- +goose Up\nALTER TABLE nowhere ADD COLUMN w TEXT;\n")}
	}
	return m
}

func open(t *testing.T, path string, m fs.FS) *sql.DB {
	t.Helper()
	db, err := Open(t.Context(), path, m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestOpenMakesAPrivateFileWithTheSettings(t *testing.T) {
	// A directory name with every character that a URI gives a meaning.
	dir := filepath.Join(t.TempDir(), "a?b#c%20d e")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "x.db")
	db := open(t, path, migrations(1))
	for _, tc := range []struct{ pragma, want string }{
		{"journal_mode", "wal"}, {"synchronous", "2"}, {"foreign_keys", "1"}, {"busy_timeout", "10000"},
	} {
		var got string
		if err := db.QueryRow("PRAGMA " + tc.pragma).Scan(&got); err != nil || got != tc.want {
			t.Errorf("%s = %q, %v; want %q", tc.pragma, got, err, tc.want)
		}
	}
	if _, err := db.Exec("INSERT INTO a (v) VALUES ('x')"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{path, path + "-wal"} {
		st, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", name, st.Mode())
		}
	}
}

func TestOpenMigratesAndRefusesANewerDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	db, err := Open(t.Context(), path, migrations(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("INSERT INTO a (v) VALUES ('kept')"); err != nil {
		t.Fatal(err)
	}
	db.Close()

	db, err = Open(t.Context(), path, migrations(2))
	if err != nil {
		t.Fatal(err)
	}
	var v, w string
	if err := db.QueryRow("SELECT v, w FROM a").Scan(&v, &w); err != nil || v != "kept" || w != "x" {
		t.Fatalf("after the migration: %q %q %v", v, w, err)
	}
	db.Close()

	_, err = Open(t.Context(), path, migrations(1))
	if !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), "version 2") {
		t.Fatalf("an older program got %v, want ErrNewer that names the version", err)
	}

	// A migration that fails leaves the version as it was.
	if _, err = Open(t.Context(), path, migrations(3)); err == nil {
		t.Fatal("a broken migration was accepted")
	}
	open(t, path, migrations(2))
}

func TestTx(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "x.db"), migrations(1))
	count := func() (n int) {
		t.Helper()
		if err := db.QueryRow("SELECT count(*) FROM a").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	insert := func(v string) func(*sql.Tx) error {
		return func(tx *sql.Tx) error { _, err := tx.Exec("INSERT INTO a (v) VALUES ($1)", v); return err }
	}
	if err := Tx(t.Context(), db, insert("one")); err != nil || count() != 1 {
		t.Fatalf("commit: %v, %d rows", err, count())
	}
	if err := Tx(t.Context(), db, insert("one")); !IsUnique(err) {
		t.Fatalf("a second row of the same value: %v", err)
	}
	boom := errors.New("boom")
	err := Tx(t.Context(), db, func(tx *sql.Tx) error {
		if err := insert("two")(tx); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) || count() != 1 {
		t.Fatalf("rollback: %v, %d rows", err, count())
	}
	func() {
		defer func() { _ = recover() }()
		_ = Tx(t.Context(), db, func(tx *sql.Tx) error { _ = insert("three")(tx); panic("x") })
	}()
	if count() != 1 {
		t.Fatal("a panic committed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Tx(ctx, db, insert("four")); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
}

// Writers of several connections wait for each other; none is refused.
func TestTxConcurrentWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.db")
	a, b := open(t, path, migrations(1)), open(t, path, migrations(1))
	var wg sync.WaitGroup
	for i := range 20 {
		db := a
		if i%2 == 1 {
			db = b
		}
		wg.Go(func() {
			err := Tx(context.Background(), db, func(tx *sql.Tx) error {
				var n int
				if err := tx.QueryRow("SELECT count(*) FROM a").Scan(&n); err != nil {
					return err
				}
				_, err := tx.Exec("INSERT INTO a (id, v) VALUES ($1, $1)", n+1)
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var n int
	if err := a.QueryRow("SELECT count(*) FROM a").Scan(&n); err != nil || n != 20 {
		t.Fatalf("%d rows, %v; an increment was lost", n, err)
	}
}

func BenchmarkTx(b *testing.B) {
	db, err := Open(b.Context(), filepath.Join(b.TempDir(), "x.db"), migrations(1))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	i := 0
	for b.Loop() {
		i++
		if err := Tx(b.Context(), db, func(tx *sql.Tx) error {
			_, err := tx.Exec("INSERT INTO a (v) VALUES ($1)", i)
			return err
		}); err != nil {
			b.Fatal(err)
		}
	}
}

func TestIsFull(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "x.db"), migrations(1))
	db.SetMaxOpenConns(1) // the limit is the connection's
	if _, err := db.Exec("PRAGMA max_page_count = 20"); err != nil {
		t.Fatal(err)
	}
	insert := func(n int) error {
		return Tx(t.Context(), db, func(tx *sql.Tx) error {
			_, err := tx.Exec("INSERT INTO a (v) VALUES (hex(zeroblob($1)))", n)
			return err
		})
	}
	if err := insert(1 << 20); !IsFull(err) || IsBusy(err) {
		t.Errorf("no room: %v", err)
	}
	if err := insert(1); err != nil || IsFull(err) {
		t.Errorf("a row that has room: %v", err)
	}
}
