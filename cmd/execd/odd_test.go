package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// noProc takes /proc away.
func noProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	if err := unix.Unmount("/proc", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount /proc: %w", err)
	}
	return nil
}

// noBash puts something that isn't a program in bash's place.
func noBash() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	for _, path := range []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"} {
		if err := unix.Mount("/dev/null", path, "", unix.MS_BIND, ""); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("mount %s: %w", path, err)
		}
	}
	return nil
}

// listening makes a socket for a program to inherit.
func listening(t *testing.T, addr string) *os.File {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// startWith starts a program that may have so many descriptors.
func startWith(cmd *exec.Cmd, descriptors uint64) error {
	if descriptors > 0 {
		// The shell sets both limits, so that the program can't raise its own.
		cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$@"`, descriptors), "sh"}, cmd.Args...)
		cmd.Path = "/bin/sh"
	}
	return cmd.Start()
}

// Where nobody can tell which processes there are, or only those of another
// namespace can be seen, a command that runs out of time ends all the same, and
// nobody else's does.
func TestTimeoutWithoutProc(t *testing.T) {
	for name, s := range map[string]setup{"none": {noProc: true}, "of another namespace": {foreignProc: true}} {
		t.Run(name, func(t *testing.T) {
			d := start(t, s)
			begun := time.Now()
			_, err := client.Commands(d.conn).Run(ctx(t), sandbox.Command{Line: "sleep 1000 & exec sleep 1000", Timeout: 100 * time.Millisecond})
			if took := time.Since(begun); err == nil || took > 3*time.Second {
				t.Errorf("%v after %v", err, took)
			}
			p := client.Processes(d.conn)
			id, err := p.Start(ctx(t), sandbox.ProcessSpec{Key: "k", Line: "sleep 1000"})
			if err != nil {
				t.Fatal(err)
			}
			a, err := p.Attach(ctx(t), id, sandbox.AttachOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			_ = p.Delete(ctx(t), id) // says that it can't know of all
			if f, err := a.Recv(ctx(t)); err != nil || f.Exit == nil || f.Exit.Signal != "SIGKILL" {
				t.Errorf("the process that was deleted: %+v %v", f, err)
			}
		})
	}
}

// A daemon that is out of descriptors says so, still ends what runs out of
// time, and is as before when it has some again.
func TestWithoutDescriptors(t *testing.T) {
	d := start(t, setup{descriptors: 40})
	const many = 20
	results := make(chan error, many)
	begun := time.Now()
	for range many {
		go func() {
			_, err := client.Commands(d.conn).Run(ctx(t), sandbox.Command{Line: "sleep 1000", Timeout: 500 * time.Millisecond})
			results <- err
		}()
	}
	said := 0
	for range many {
		if err := <-results; err == nil {
			t.Error("a command that can't have ended by itself")
		} else if strings.Contains(err.Error(), "no descriptors left") {
			said++
		}
	}
	if said == 0 {
		t.Errorf("%d commands found descriptors enough", many)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	client.CloseIdleConnections()
	if got := d.out("echo here"); got != "here" {
		t.Errorf("afterwards: %q", got)
	}
}

func TestInheritedSocket(t *testing.T) {
	d := start(t, setup{socket: true})
	if got := d.out("ls -l /proc/self/fd | grep -c socket; true"); got != "0" {
		t.Errorf("a command has %s sockets", got)
	}
	d.signal(syscall.SIGTERM)
	if code := d.exit(patience); code != 0 {
		t.Errorf("exit %d", code)
	}
}

// What a client doesn't choose is the root directory when the daemon's own is
// gone; what it chooses relative to that one is refused.
func TestDeletedDirectory(t *testing.T) {
	dir := t.TempDir() + "/gone"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d := start(t, setup{dir: dir})
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]string{
		`{"command":"pwd"}`:               `"text":"/"`,
		`{"command":"pwd","cwd":"sub/x"}`: `"code":"INVALID_REQUEST_BODY"`,
	} {
		if got := d.post("/command", body); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
	for _, path := range []string{"/session", "/pty"} {
		if got := d.post(path, `{}`); !strings.Contains(got, "session_id") {
			t.Errorf("%s: %s", path, got)
		}
	}
}

// post gives the status and body of an answer.
func (d *daemon) post(path, body string) string {
	d.t.Helper()
	req, err := http.NewRequestWithContext(ctx(d.t), http.MethodPost, d.base+path, strings.NewReader(body))
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set(wire.HeaderToken, token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return resp.Status + " " + string(b)
}

// The end of the daemon takes along what commands and sessions left in the
// background, though it isn't the first process of a namespace.
func TestEndTakesTheBackgroundAlong(t *testing.T) {
	d := start(t, setup{args: []string{"--graceful-shutdown-timeout", "100ms"}})
	dir := t.TempDir()
	leave := func(name string) string {
		return fmt.Sprintf("env -i setsid sh -c 'trap : TERM HUP; echo $$ > %s/%s; while :; do sleep 1; done' >/dev/null 2>&1 &", dir, name)
	}
	d.run(leave("command"))
	id := d.session("{}")
	body, err := json.Marshal(map[string]string{"command": leave("session")})
	if err != nil {
		t.Fatal(err)
	}
	d.post("/session/"+id+"/run", string(body))
	var pids []int
	d.until(func() bool {
		pids = nil
		for _, name := range []string{"command", "session"} {
			b, _ := os.ReadFile(dir + "/" + name)
			if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
				pids = append(pids, pid)
			}
		}
		return len(pids) == 2
	})
	d.signal(syscall.SIGTERM)
	if code := d.exit(patience); code != 0 {
		t.Errorf("exit %d", code)
	}
	for _, pid := range pids {
		// What is killed may still be a zombie of whoever adopted it.
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil && !strings.Contains(string(b), ") Z ") {
			t.Errorf("process %d lives on", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// A sandbox without bash has everything in sh.
func TestWithoutBash(t *testing.T) {
	d := start(t, setup{noBash: true})
	if got := d.out("echo $0 ${BASH_VERSION-none}"); got != "sh none" {
		t.Errorf("a command runs in %q", got)
	}
	id := d.session("{}")
	if got := d.post("/session/"+id+"/run", `{"command":"export A=1; cd /usr"}`); !strings.Contains(got, "execution_complete") {
		t.Errorf("a session: %s", got)
	}
	if got := d.post("/session/"+id+"/run", `{"command":"echo $A $PWD ${BASH_VERSION-none}"}`); !strings.Contains(got, `"1 /usr none"`) {
		t.Errorf("its next run: %s", got)
	}
	p := client.Processes(d.conn)
	for _, line := range []string{"", "exec cat"} {
		key := "k" + line
		id, err := p.Start(ctx(t), sandbox.ProcessSpec{Key: key, Line: line, TTY: &sandbox.Size{Cols: 80, Rows: 24}})
		if err != nil {
			t.Fatal(err)
		}
		a, err := p.Attach(ctx(t), id, sandbox.AttachOptions{})
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		defer a.Close()
		if err := a.Send(ctx(t), []byte("echo $((40+2))\n")); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"": "42\r\n", "exec cat": "40+2"}[line]
		var got strings.Builder
		for !strings.Contains(got.String(), want) {
			f, err := a.Recv(ctx(t))
			if err != nil {
				t.Fatalf("%q: %q, %v", line, got.String(), err)
			}
			got.Write(f.Data)
		}
	}
	body := fmt.Sprintf(`{"command":"echo $#%s"}`, strings.Repeat(" ", 200<<10)) // too long for an argument
	if got := d.post("/command", body); !strings.Contains(got, `"text":"0"`) {
		t.Errorf("a long line: %s", got)
	}
}

// session gives the id of a new shell session.
func (d *daemon) session(body string) string {
	d.t.Helper()
	answer := d.post("/session", body)
	_, rest, ok := strings.Cut(answer, `"session_id":"`)
	id, _, _ := strings.Cut(rest, `"`)
	if !ok {
		d.t.Fatal(answer)
	}
	return id
}

// What can't be started leaves no descriptor behind, in no form.
func TestFailedStartsLeaveNothing(t *testing.T) {
	d := start(t, setup{})
	big := strings.Repeat("x", 200<<10)
	fail := func() {
		for path, bodies := range map[string][]string{
			"/command": {
				`{"argv":["/no/such/program"]}`, `{"argv":["no-such-program"],"background":true}`, `{"command":"true","cwd":"/no/such"}`,
				`{"command":"true","envs":{"A":"` + big + `"}}`, `{"command":"true","background":true,"envs":{"A":"` + big + `"}}`,
				`{"argv":["/etc"]}`, `{"command":"true","uid":4294967295}`, `{"command":"a\u0000b"}`,
			},
			"/session": {`{"cwd":"/dev/null/x"}`},
			"/pty":     {`{"cwd":"/dev/null/x"}`, `{"key":"k","cwd":"/no/such"}`},
		} {
			for _, body := range bodies {
				if got := d.post(path, body); strings.Contains(got, "execution_complete") || strings.HasPrefix(got, "201") {
					t.Fatalf("%s %.60s was started: %s", path, body, got)
				}
			}
		}
		p := client.Processes(d.conn)
		id, err := p.Start(ctx(t), sandbox.ProcessSpec{Key: "big", Line: "true", Env: map[string]string{"A": big}})
		if err != nil {
			t.Fatal(err)
		}
		for _, tty := range []string{"", "tty"} {
			if a, err := p.Attach(ctx(t), id, sandbox.AttachOptions{}); err == nil {
				a.Close()
				t.Fatalf("%s: a process with an environment that is too large was started", tty)
			}
		}
		if err := p.Delete(ctx(t), id); err != nil {
			t.Fatal(err)
		}
		http.DefaultClient.CloseIdleConnections()
		client.CloseIdleConnections()
	}
	count := func() int {
		names, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	fail()
	before := count()
	for range 5 {
		fail()
	}
	d.until(func() bool { return count() <= before })
}

// What the daemon was told by its environment stays with it.
func TestOwnVariablesStay(t *testing.T) {
	const secret = "not-for-children"
	file := t.TempDir() + "/envs"
	if err := os.WriteFile(file, []byte("FROM_FILE=$EXECD_TEST_SECRET.$OPEN\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := start(t, setup{env: []string{"EXECD_TEST_SECRET=" + secret, "JUPYTER_TOKEN=" + secret, "EXECD_ENVS=" + file, "OPEN=to all"}})
	const show = `tr '\\0' '\\n' </proc/self/environ; env`
	for what, got := range map[string]string{
		"a command":          d.out(`tr '\0' '\n' </proc/self/environ; env`),
		"an older command":   d.post("/command", `{"command":"`+show+`"}`),
		"a run of a session": d.post("/session/"+d.session("{}")+"/run", `{"command":"`+show+`"}`),
	} {
		// Where the file of variables is, programs are told: they may add to it.
		for _, want := range []string{"OPEN=to all", "FROM_FILE=.to all", "EXECD_ENVS=" + file} {
			if !strings.Contains(got, want) {
				t.Errorf("%s lacks %q: %s", what, want, got)
			}
		}
		if strings.Contains(got, secret) {
			t.Errorf("%s: %s", what, got)
		}
	}
}

// TestRefusal: whoever waits for the daemon is told why it will never be ready,
// also where nobody sees its standard error.
func TestRefusal(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := func(path string) []string { return []string{"--no-token", "--listen", "127.0.0.1:0", "--", path} }
	for want, c := range map[string]struct {
		args   []string
		status int
	}{
		"no-such-flag":           {[]string{"--no-token", "--no-such-flag"}, 2},
		"no token":               {nil, 2},
		"negative":               {[]string{"--no-token", "--graceful-shutdown-timeout", "-1s"}, 2},
		"address already in use": {[]string{"--no-token", "--listen", taken.Addr().String()}, 1},
		"exec /no/such/program: file does not exist":          {program("/no/such/program"), 127},
		"exec no-such-program: file does not exist":           {program("no-such-program"), 127},
		"the entrypoint: exec /etc/passwd: permission denied": {program("/etc/passwd"), 126},
	} {
		t.Run(want, func(t *testing.T) {
			r, w := pipe(t)
			cmd := exec.CommandContext(ctx(t), self, append([]string{"--ready-fd", "3"}, c.args...)...)
			cmd.Env, cmd.ExtraFiles = append(os.Environ(), runMain+"=main"), []*os.File{w}
			if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != c.status {
				t.Errorf("%v, want exit status %d", err, c.status)
			}
			w.Close()
			b, err := io.ReadAll(r)
			if why, ok := strings.CutPrefix(string(b), wire.FailedPrefix); err != nil || !ok || !strings.Contains(why, want) {
				t.Errorf("it told %q, %v", b, err)
			}
		})
	}
}
