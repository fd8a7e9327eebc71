package execd_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

func TestCommandResults(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	for _, c := range []struct {
		name    string
		command sandbox.Command
		want    sandbox.CommandResult
	}{
		{"output", sandbox.Command{Line: `printf hi; printf err >&2`}, sandbox.CommandResult{Stdout: []byte("hi"), Stderr: []byte("err")}},
		{"status", sandbox.Command{Line: `exit 3`}, sandbox.CommandResult{ExitCode: 3}},
		{"not found", sandbox.Command{Line: `no-such-program 2>/dev/null`}, sandbox.CommandResult{ExitCode: 127}},
		{"signal", sandbox.Command{Line: `kill -TERM $$`}, sandbox.CommandResult{ExitCode: 128 + 15}},
		{"stdin is empty", sandbox.Command{Line: `cat; echo $?`}, sandbox.CommandResult{Stdout: []byte("0\n")}},
		{"dir", sandbox.Command{Line: `pwd`, Dir: dir}, sandbox.CommandResult{Stdout: []byte(dir + "\n")}},
		{"root dir", sandbox.Command{Line: `pwd`}, sandbox.CommandResult{Stdout: []byte("/\n")}},
		{"env", sandbox.Command{Line: `printf "%s" "$A"`, Env: map[string]string{"A": "x y\n$z"}}, sandbox.CommandResult{Stdout: []byte("x y\n$z")}},
		{"home", sandbox.Command{Line: `printf "%s %s" "$HOME" "$USER"`}, sandbox.CommandResult{Stdout: []byte("/root root")}},
		{"carriage returns and NULs", sandbox.Command{Line: `printf '10%%\r20%%\r\n\0\377\n\n'`}, sandbox.CommandResult{Stdout: []byte("10%\r20%\r\n\x00\xff\n\n")}},
		{"text that looks like markers", sandbox.Command{Line: `printf '__EXIT_CODE__:77\n{"code":"X"}\n\n'`}, sandbox.CommandResult{Stdout: []byte("__EXIT_CODE__:77\n{\"code\":\"X\"}\n\n")}},
		{"own process group", sandbox.Command{Line: `read -r _ _ _ _ pg _ < /proc/self/stat; test "$pg" = $$`}, sandbox.CommandResult{}},
		{"no descriptor leaks", sandbox.Command{Line: `ls /proc/self/fd | wc -l`}, sandbox.CommandResult{Stdout: []byte("4\n")}},
		{"a line longer than an argument may be", sandbox.Command{Line: "printf %s " + strings.Repeat("a", 300<<10) + " | wc -c; ls /proc/self/fd | wc -l"}, sandbox.CommandResult{Stdout: []byte("307200\n4\n")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := client.Commands(d.conn).Run(ctx(t), c.command)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCommandRefusals(t *testing.T) {
	d := start(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]sandbox.Command{
		"empty":            {},
		"NUL":              {Line: "echo \x00"},
		"missing dir":      {Line: "true", Dir: "/no/such/dir"},
		"dir is a file":    {Line: "true", Dir: file},
		"relative dir":     {Line: "true", Dir: "tmp"},
		"bad variable":     {Line: "true", Env: map[string]string{"A=B": ""}},
		"huge variable":    {Line: "true", Env: map[string]string{"A": strings.Repeat("x", 200<<10)}},
		"negative timeout": {Line: "true", Timeout: -1},
	} {
		if _, err := client.Commands(d.conn).Run(ctx(t), c); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v, want %s", name, err, sandbox.CodeInvalid)
		}
	}
}

// Short commands whose output is lost or late were the commonest fault of
// other daemons.
func TestShortCommandsAreComplete(t *testing.T) {
	d := start(t)
	const each, workers = 100, 8
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range each {
				res, err := client.Commands(d.conn).Run(ctx(t), sandbox.Command{Line: "echo hi; echo ho >&2"})
				if err != nil || string(res.Stdout) != "hi\n" || string(res.Stderr) != "ho\n" {
					t.Errorf("%q %q %v", res.Stdout, res.Stderr, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestLargeOutputIsExact(t *testing.T) {
	d := start(t)
	data := make([]byte, 24<<20)
	_, _ = rand.Read(data)
	file := filepath.Join(t.TempDir(), "data")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	res, err := client.Commands(d.conn).Stream(ctx(t), sandbox.Command{Line: "cat data >&2 & cat data; wait", Dir: filepath.Dir(file)}, &out, &errs)
	if err != nil || res.ExitCode != 0 {
		t.Fatal(res, err)
	}
	if !bytes.Equal(out.Bytes(), data) || !bytes.Equal(errs.Bytes(), data) {
		t.Errorf("the output differs: %d and %d of %d bytes", out.Len(), errs.Len(), len(data))
	}
	short, err := client.Commands(d.conn).Run(ctx(t), sandbox.Command{Line: "cat " + file})
	if err != nil || !short.Truncated || len(short.Stdout) != sandbox.RunOutputLimit {
		t.Errorf("Run kept %d bytes, truncated %v, %v", len(short.Stdout), short.Truncated, err)
	}
}

// Output comes while the command runs, a partial line too.
func TestOutputComesAtOnce(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := client.Commands(d.conn).Stream(ctx(t), sandbox.Command{Line: "printf prompt; while [ ! -e go ]; do sleep 0.01; done", Dir: dir}, w, nil)
		done <- err
	}()
	b := make([]byte, 6)
	if _, err := io.ReadFull(r, b); err != nil || string(b) != "prompt" {
		t.Fatalf("%q %v", b, err)
	}
	select {
	case err := <-done:
		t.Fatalf("ended before its time: %v", err)
	default:
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// spread starts processes in every way that a kill of the group would miss and
// writes their ids to files. Each is left by its parent.
const spread = `
(setsid sh -c 'echo $$ > session; exec sleep 1000' &)
(nohup sh -c 'echo $$ > hangup; exec sleep 1000' >/dev/null 2>&1 &)
(setsid setsid sh -c '(trap "" TERM; sh -c "echo \$\$ > grandchild; exec sleep 1000") & exec sleep 1000' &)
sh -c 'echo $$ > clean; exec env -i sleep 1000' &
echo $$ > leader
`

var spreadFiles = []string{"session", "hangup", "grandchild", "clean", "leader"}

func spreadPids(t *testing.T, dir string) (pids []int) {
	t.Helper()
	for _, name := range spreadFiles {
		pids = append(pids, pidIn(t, filepath.Join(dir, name)))
	}
	return pids
}

func checkGone(t *testing.T, pids []int) {
	t.Helper()
	for i, pid := range pids {
		eventually(t, "the end of "+spreadFiles[i], func() bool { return !alive(pid) })
	}
}

func TestTimeoutKillsEverything(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	begun := time.Now()
	res, err := client.Commands(d.conn).Run(t.Context(), sandbox.Command{Line: spread + "sleep 1000", Dir: dir, Timeout: 700 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) || res.ExitCode != 128+9 {
		t.Errorf("%+v, %v", res, err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	for i, pid := range spreadPids(t, dir) {
		if alive(pid) {
			t.Errorf("%s lives on after the answer", spreadFiles[i])
		}
	}
}

func TestCancelKillsEverything(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	c, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := client.Commands(d.conn).Run(c, sandbox.Command{Line: spread + "sleep 1000", Dir: dir})
		done <- err
	}()
	pids := spreadPids(t, dir)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want context.Canceled", err)
	}
	checkGone(t, pids)
}

// The deadline of the context holds in the sandbox too, when nobody is left to cancel.
func TestDeadlineIsPassedOn(t *testing.T) {
	d := start(t)
	c, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := client.Commands(d.conn).Run(c, sandbox.Command{Line: "sleep 1000"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	body := fmt.Sprintf(`{"command":"sleep 1000","timeout":%d}`, 200)
	resp := post(t, d, "/command", body, http.Header{"Accept": {wire.OutputType}})
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || !bytes.HasSuffix(b, []byte(`{"code":137,"signal":"SIGKILL","timed_out":true}`)) {
		t.Errorf("%q %v", b, err)
	}
}

// A child in the background neither holds the answer up nor dies of it.
func TestBackgroundIsLeftAlone(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	begun := time.Now()
	res, err := client.Commands(d.conn).Run(ctx(t), sandbox.Command{
		Line: `(while :; do echo noise; sleep 0.02; done) & echo $! > pid; echo done`, Dir: dir})
	if err != nil || !strings.Contains(string(res.Stdout), "done\n") {
		t.Fatalf("%+v %v", res, err)
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("took %v", took)
	}
	pid := pidIn(t, filepath.Join(dir, "pid"))
	killAtEnd(t, pid)
	// It goes on writing to a pipe that must not break: wait for more than
	// one round of it.
	res = run(t, d, fmt.Sprintf("sleep 0.2; kill -0 %d", pid))
	if res.ExitCode != 0 {
		t.Error("the background process is dead")
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
}

// What is in the background can go on writing after its command, process or
// run has ended: the end of the pipe would kill it.
func TestBackgroundGoesOnWriting(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	// More than a pipe holds, once what started it is over.
	late := func(name string) string {
		return fmt.Sprintf("(trap '' HUP; while [ ! -e %[1]s/go ]; do sleep 0.01; done; head -c 300000 /dev/zero && echo and stderr >&2 && touch %[1]s/%[2]s) & echo %[2]s", dir, name)
	}
	if res := run(t, d, late("command")); string(res.Stdout) != "command\n" {
		t.Errorf("%+v", res)
	}
	if _, got := events(t, d, wire.CommandRequest{Command: late("events")}); !cmp.Equal(brief(got), []string{"stdout events", done}) {
		t.Errorf("%q", brief(got))
	}
	id := newSession(t, d, "")
	if got := in(t, d, id, sessionRun{Command: late("session")}); !cmp.Equal(got, []string{"stdout session", done}) {
		t.Errorf("%q", got)
	}
	s := process(t, d, sandbox.ProcessSpec{Line: late("process")})
	if got := collect(t, s.attach(sandbox.AttachOptions{}), 0); got.out != "process\n" {
		t.Errorf("%+v", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"command", "events", "session", "process"} {
		eventually(t, "the end of what the "+name+" left", func() bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil })
	}
}

// All that the leader wrote counts, however slow the reader and however busy a
// child that it left behind.
func TestLeadersOutputIsCompleteBesideABusyChild(t *testing.T) {
	d := start(t)
	slow := &slowWriter{}
	dir := t.TempDir()
	_, err := client.Commands(d.conn).Stream(ctx(t), sandbox.Command{
		Line: `(yes n & echo $! > pid); head -c 300000 /dev/zero | tr '\0' x; echo END`, Dir: dir}, slow, nil)
	killAtEnd(t, pidIn(t, filepath.Join(dir, "pid")))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(slow.String(), "x"); n != 300000 || !strings.Contains(slow.String(), "END") {
		t.Errorf("%d x, END: %v", n, strings.Contains(slow.String(), "END"))
	}
}

type slowWriter struct{ bytes.Buffer }

func (w *slowWriter) Write(b []byte) (int, error) {
	<-time.After(5 * time.Millisecond)
	return w.Buffer.Write(b)
}

func TestAnswerWithoutTheToken(t *testing.T) {
	d := start(t)
	for _, wrong := range []string{"", "wrong", token + "x"} {
		c := client.Dial(client.Fixed(d.endpoint(wrong)), nil)
		if _, err := client.Commands(c).Run(ctx(t), sandbox.Command{Line: "true"}); !errors.Is(err, sandbox.ErrUnreachable) {
			t.Errorf("token %q: %v, want ErrUnreachable", wrong, err)
		}
	}
	for _, path := range []string{"/ping", "/ping/", "/nope", "/version", "//command", "/pty/x/ws"} {
		req, _ := http.NewRequestWithContext(ctx(t), http.MethodGet, d.base+path, nil)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s: %d, want 401", path, resp.StatusCode)
		}
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestTokenIsRenewed(t *testing.T) {
	d := start(t)
	calls := 0
	c := client.Dial(func(context.Context) (sandbox.Endpoint, error) {
		calls++
		if calls == 1 {
			return d.endpoint("of the run before the pause"), nil
		}
		return d.endpoint(token), nil
	}, nil)
	if _, err := client.Commands(c).Run(ctx(t), sandbox.Command{Line: "true"}); err != nil || calls != 2 {
		t.Errorf("%v after %d resolutions", err, calls)
	}
}

func TestUnreachable(t *testing.T) {
	d := start(t)
	gone := d.endpoint(token)
	gone.URL.Host = "127.0.0.1:1"
	_, err := client.Commands(client.Dial(client.Fixed(gone), nil)).Run(ctx(t), sandbox.Command{Line: "true"})
	if !errors.Is(err, sandbox.ErrUnreachable) {
		t.Errorf("%v", err)
	}
	if strings.Contains(fmt.Sprint(err), token) {
		t.Error("the token is in the error")
	}
}

func TestEndOfTheDaemonIsToldToClients(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	done := make(chan sandbox.CommandResult, 1)
	go func() {
		res, err := client.Commands(d.conn).Run(t.Context(), sandbox.Command{Line: `trap 'echo bye; exit 7' TERM; echo $$ > pid; while :; do sleep 0.01; done`, Dir: dir})
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	pidIn(t, filepath.Join(dir, "pid"))
	d.Stop()
	if res := <-done; res.ExitCode != 7 || string(res.Stdout) != "bye\n" {
		t.Errorf("%+v", res)
	}
	if _, err := client.Commands(d.conn).Run(ctx(t), sandbox.Command{Line: "true"}); !errors.Is(err, sandbox.ErrUnreachable) {
		t.Errorf("a stopping daemon answers %v", err)
	}
}

func post(t testing.TB, d *daemon, path, body string, header http.Header) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx(t), http.MethodPost, d.base+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if header != nil {
		req.Header = header
	}
	req.Header.Set(wire.HeaderToken, token)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}
