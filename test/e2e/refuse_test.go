package e2e

import (
	"database/sql"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	_ "modernc.org/sqlite" // opens a state directory's database to age it

	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/inventory"
	"github.com/astrabox/astrabox/internal/sandboxd"
)

// TestServeRefuses: what a server can't start with it says, with what helps,
// and leaves nothing running and nothing half-made.
func TestServeRefuses(t *testing.T) {
	need(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()

	tests := map[string]struct {
		args []string
		env  []string
		make func(t *testing.T, state string) // prepares the state directory
		code int
		says []string
	}{
		"another program listens": {args: []string{"--listen", taken.Addr().String()}, code: 1,
			says: []string{taken.Addr().String(), "in use by another program", "--listen"}},
		"all addresses":                    {args: []string{"--listen", "0.0.0.0:0"}, code: 1, says: []string{"0.0.0.0:0", "no login", "127.0.0.1", "SSH tunnel"}},
		"all addresses by an empty host":   {args: []string{"--listen", ":0"}, code: 1, says: []string{"no login"}},
		"all addresses of the new kind":    {args: []string{"--listen", "[::]:0"}, code: 1, says: []string{"no login"}},
		"a private address":                {args: []string{"--listen", "10.1.2.3:8088"}, code: 1, says: []string{"no login"}},
		"a name that isn't localhost":      {args: []string{"--listen", "example.test:8088"}, code: 1, says: []string{"no login"}},
		"an address without a port":        {args: []string{"--listen", "127.0.0.1"}, code: 1, says: []string{"host:port"}},
		"a port that isn't one":            {args: []string{"--listen", "127.0.0.1:99999"}, code: 1, says: []string{"127.0.0.1:99999"}},
		"a wrong flag":                     {args: []string{"--prot", "8088"}, code: 2, says: []string{"--prot", "--help"}},
		"a wrong log level":                {args: []string{"--log-level", "loud"}, code: 2, says: []string{"--log-level", "debug, info, warn or error"}},
		"an argument":                      {args: []string{"now"}, code: 2, says: []string{"serve"}},
		"runc is missing":                  {env: []string{"ASTRABOX_RUNC_PATH=/nowhere/runc"}, code: 1, says: []string{"can't run sandboxes", "/nowhere/runc", "fix:", "ASTRABOX_RUNC_PATH"}},
		"runc isn't a program":             {env: []string{"ASTRABOX_RUNC_PATH=/etc/passwd"}, code: 1, says: []string{"can't run sandboxes", "/etc/passwd", "fix:"}},
		"execd is missing":                 {env: []string{"ASTRABOX_EXECD_PATH=/nowhere/execd"}, code: 1, says: []string{"/nowhere/execd", "fix:", "ASTRABOX_EXECD_PATH"}},
		"the Agent's program is missing":   {env: []string{"ASTRABOX_SHELLAGENT_PATH=/nowhere/shellagent"}, code: 1, says: []string{"/nowhere/shellagent", "fix:", "ASTRABOX_SHELLAGENT_PATH"}},
		"an unknown backend":               {env: []string{"ASTRABOX_SANDBOX_BACKENDS=cloud"}, code: 1, says: []string{"cloud", "open_sandbox"}},
		"others may enter the directory":   {make: func(t *testing.T, state string) { chmod(t, state, 0o755) }, code: 1, says: []string{"0755", "chmod 700"}},
		"the directory is a file":          {make: replaceByFile, code: 1, says: []string{"state directory"}},
		"the installation's id is damaged": {make: func(t *testing.T, state string) { write(t, filepath.Join(state, "installation"), "x") }, code: 1, says: []string{"installation", "26 characters"}},
		"the database isn't one": {make: func(t *testing.T, state string) {
			write(t, filepath.Join(state, "astrabox.db"), strings.Repeat("no database ", 500))
		}, code: 1, says: []string{"astrabox.db"}},
		"the key can be read by others": {make: func(t *testing.T, state string) {
			if err := os.Mkdir(sandboxd.Dir(state), 0o700); err != nil {
				t.Fatal(err)
			}
			write(t, sandboxd.KeyFile(state), strings.Repeat("k", 43))
			chmod(t, sandboxd.KeyFile(state), 0o644)
		}, code: 1, says: []string{"key", "may be read by others", "remove it"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			state := stateDir(t)
			if test.make != nil {
				test.make(t, state)
			}
			refused(t, state, test.env, test.args, test.code, test.says...)
		})
	}
}

// TestDoctor: it says what is missing and how to get it, without a server.
func TestDoctor(t *testing.T) {
	missing := []string{"ASTRABOX_RUNC_PATH=/nowhere/runc"}
	r := run(t, missing, "doctor")
	if r.code != 1 || !strings.Contains(r.out, "/nowhere/runc") || !strings.Contains(r.out, "fix:") {
		t.Errorf("without runc: %+v", r)
	}
	r = run(t, missing, "doctor", "--json")
	var list wire.Items[wire.Finding]
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || r.code != 1 {
		t.Fatalf("without runc: %d, %v in %q", r.code, err, r.out)
	}
	for _, f := range list.Items {
		if f.ID == "" || f.Summary == "" || !f.OK && f.Fix == "" || !f.OK && f.Severity == "error" != (f.ID == "runc") {
			t.Errorf("%+v", f)
		}
	}
	if r := run(t, nil, "doctor"); r.code != 0 || strings.Contains(r.out, "error ") {
		t.Errorf("with all there is: %+v", r)
	}
}

// refused runs a server that must end by itself with a code and a message, and
// looks at what it left.
func refused(t *testing.T, state string, env, args []string, code int, says ...string) {
	t.Helper()
	place := inventory.Place{ExeDir: bin}
	before, err := place.Take()
	if err != nil {
		t.Fatal(err)
	}
	args = append([]string{"serve", "--state-dir", state}, args...)
	if !strings.Contains(strings.Join(args, " "), "--listen") {
		args = append(args, "--listen", freeAddress(t))
	}
	r := run(t, env, args...)
	if r.code != code {
		t.Errorf("expected exit code %d, saw %d", code, r.code)
	}
	for _, want := range says {
		if !strings.Contains(r.errOut, want) {
			t.Errorf("expected the message to contain %q, saw %q", want, r.errOut)
		}
	}
	if strings.Contains(r.errOut, "goroutine") || strings.Contains(r.errOut, "panic") {
		t.Errorf("a trace for a person: %s", r.errOut)
	}
	if strings.Contains(r.out, "is ready") {
		t.Errorf("it was ready before it refused: %s", r.out)
	}
	if id, err := os.ReadFile(filepath.Join(sandboxd.Dir(state), "installation")); err == nil {
		place.Installation = strings.TrimSpace(string(id))
	}
	after, err := place.Take()
	if err != nil {
		t.Fatal(err)
	}
	if left := inventory.Added(before, after); len(left) != 0 {
		t.Errorf("it left %v", left)
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func replaceByFile(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write(t, path, "")
}

// TestServeRefusesNewerState: a directory that a newer version wrote is left as
// it is, and goes on working with that version.
func TestServeRefusesNewerState(t *testing.T) {
	s := newServer(t, options{})
	id := s.conversation()
	s.stop()
	for _, file := range []string{"astrabox.db", "sandboxd/sandboxes.db"} {
		t.Run(file, func(t *testing.T) {
			path := filepath.Join(s.state, file)
			version := schema(t, path, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1) RETURNING version_id`)
			if version != 9999 {
				t.Fatalf("version %d", version)
			}
			before := fileSum(t, path)
			refused(t, s.state, nil, nil, 1, "newer", "9999")
			if after := fileSum(t, path); after != before {
				t.Error("the newer database was changed")
			}
			schema(t, path, `DELETE FROM goose_db_version WHERE version_id = 9999 RETURNING version_id`)
		})
	}
	s.start()
	if c := s.look(id); c.ID != id {
		t.Errorf("afterwards: %+v", c)
	}
}

// schema runs a statement that returns a number on a database.
func schema(t *testing.T, path, statement string) (n int64) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRow(statement).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func fileSum(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestStateDirectoryInUse: a second server, or a second service, doesn't get
// in, and the first one doesn't notice.
func TestStateDirectoryInUse(t *testing.T) {
	s := newServer(t, options{})
	id := s.conversation()
	s.say(id, "echo one")
	init := s.pids("execd")
	r := run(t, nil, "serve", "--state-dir", s.state, "--listen", freeAddress(t))
	if r.code != 1 || !strings.Contains(r.errOut, s.state) || !strings.Contains(r.errOut, "in use by another server") || !strings.Contains(r.errOut, "--state-dir") {
		t.Errorf("a second server: %+v", r)
	}
	r = run(t, nil, "sandboxd", "--state-dir", s.state)
	if r.code != 1 || !strings.Contains(r.errOut, "another sandboxd uses this state directory") {
		t.Errorf("a second service: %+v", r)
	}
	if got := s.say(id, "echo two"); got != "two\n" || len(init) != 1 || s.pids("execd")[0] != init[0] {
		t.Errorf("afterwards: %q in %v, before in %v", got, s.pids("execd"), init)
	}
}

// TestNotRoot: somebody who isn't root is told so at once.
func TestNotRoot(t *testing.T) {
	need(t)
	const nobody = 65534
	dir := t.TempDir() // the built programs may lie where nobody else may look
	chmod(t, filepath.Dir(dir), 0o755)
	for _, name := range []string{"astrabox", "execd", "shellagent", "runc"} {
		copyFile(t, filepath.Join(bin, name), filepath.Join(dir, name))
	}
	state := stateDir(t)
	if err := os.Chown(state, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	as := func(args ...string) result {
		t.Helper()
		cmd, out, errOut := command(t, nil, args...)
		cmd.Path, cmd.Dir = filepath.Join(dir, "astrabox"), "/"
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		return result{exitCode(t, cmd.Run()), out.String(), errOut.String()}
	}
	r := as("serve", "--state-dir", state, "--listen", freeAddress(t))
	if r.code != 1 || !strings.Contains(r.errOut, "root") || !strings.Contains(r.errOut, "fix:") || strings.Contains(r.out, "is ready") {
		t.Errorf("serve: %+v", r)
	}
	r = as("doctor", "--state-dir", state)
	if r.code != 1 || !strings.Contains(r.out, "root") {
		t.Errorf("doctor: %+v", r)
	}
	r = as("demo")
	if r.code != 1 || !strings.Contains(r.errOut, "root") {
		t.Errorf("demo: %+v", r)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}
