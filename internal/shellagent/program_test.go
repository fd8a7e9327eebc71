package shellagent_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
)

func TestCommands(t *testing.T) {
	dir := t.TempDir()
	c := open(t, start(t, options{}), dir, "")
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, s := range []struct {
		cmd, output string
		exit        int
		cwd         string // below dir
	}{
		{cmd: "echo hello", output: "hello\n"},
		{cmd: "  \n", output: ""},
		{cmd: "echo out; echo err >&2; echo out again", output: "out\nerr\nout again\n"},
		{cmd: "exit 3", exit: 3},
		{cmd: "cd sub; export A='it'\\''s' B=$'two\nlines' C=$'\\xff\\t' ; D=4; f() { :; }", cwd: "/sub"},
		{cmd: "pwd; echo \"$A|$B|$D\"; printf %s \"$C\" | od -An -tx1; type -t f", output: dir + "/sub\nit's|two\nlines|\n ff 09\n", exit: 1, cwd: "/sub"},
		{cmd: "cd nowhere", output: "bash: line 1: cd: nowhere: No such file or directory\n", exit: 1, cwd: "/sub"},
		{cmd: "echo 'open", output: "bash: eval: line 1: unexpected EOF while looking for matching `''\n", exit: 2, cwd: "/sub"},
		{cmd: "no-such-program", output: "bash: line 1: no-such-program: command not found\n", exit: 127, cwd: "/sub"},
		{cmd: "set -eux; cd ..; false; echo no", output: "++ cd ..\n++ false\n", exit: 1},
		{cmd: "unset A; (cd sub; export Z=1; exit 0)", output: ""},
		{cmd: "echo ${A-unset} ${Z-unset}", output: "unset unset\n"},
		{cmd: "export PATH=/nowhere"},
		{cmd: "ls", output: "bash: line 1: ls: command not found\n", exit: 127},
		{cmd: "export PATH=/usr/bin:/bin; cat; wc -c <&0", output: "0\n"},
		{cmd: "kill -9 $$", exit: 137},
		{cmd: "cat <<E\nhere $((1+1))\nE", output: "here 2\n"},
		{cmd: "# nothing"},
		{cmd: "printf 'a\\0b\\xff\\n'", output: "a\uFFFDb\uFFFD\n"},
		{cmd: "printf '1%%\\r2%%\\r3%%\\r\\n'", output: "3%\n"},
		{cmd: "exec true"},
		{cmd: "echo $TERM $# $0", output: "dumb 0 bash\n"},
		{cmd: "cd - >/dev/null && cd " + dir, output: ""},
	} {
		r := c.run(s.cmd)
		if r.output != s.output || r.exitCode() != s.exit || r.ended[0].Cwd != dir+s.cwd {
			t.Errorf("%q gave exit %d in %s and\n%s\nwant exit %d in %s and\n%s", s.cmd, r.exitCode(), r.ended[0].Cwd, r.output, s.exit, dir+s.cwd, s.output)
		}
		if r.end.Reason != agentprogram.ReasonDone || len(r.notices)+len(r.other) > 0 {
			t.Errorf("%q ended as %+v with %v and %v", s.cmd, r.end, r.notices, r.other)
		}
		if len(r.started) != 1 || r.started[0].Kind != "execute" || r.started[0].Name != "shell" || r.ended[0].DurationMS == nil {
			t.Errorf("%q was shown as %+v, %+v", s.cmd, r.started, r.ended)
		}
		if want := (r.exitCode() != 0); want != (r.ended[0].Status == agentprogram.ToolFailed) {
			t.Errorf("%q has status %s", s.cmd, r.ended[0].Status)
		}
	}
}

func TestToolHeader(t *testing.T) {
	dir := t.TempDir()
	c := open(t, start(t, options{}), dir, "")
	long := ": " + strings.Repeat("é", 5000)
	r := c.run(long)
	if got := r.started[0].Title; len(got) > 2100 || !strings.HasPrefix(long, strings.TrimSuffix(got, "…")) {
		t.Errorf("title %q", got)
	}
	var input struct{ Command, Cwd string }
	if err := json.Unmarshal(r.started[0].Input, &input); err != nil || input.Command != long || input.Cwd != dir {
		t.Errorf("input %+v, %v", input, err)
	}
}

// TestResume: directory, variables and numbers carry over to the next process,
// however the first one ended; a value of the platform's doesn't.
func TestResume(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	c := open(t, start(t, options{home: home, env: []string{"ASTRABOX_X=old", "GONE=1"}}), dir, "")
	c.run("mkdir sub; cd sub; export KEEP=kept ASTRABOX_X=mine; unset GONE")
	first := c.run("echo $ASTRABOX_X")
	if first.output != "old\n" {
		t.Errorf("a variable of the platform was changed: %q", first.output)
	}
	c.prompt("echo $$ >../pid.new; mv ../pid.new ../pid; cd /; sleep 1000")
	eventually(t, "the command runs", func() bool { return exists(filepath.Join(dir, "pid")) })
	// Nobody is left to stop the command: in a sandbox execd does it.
	pid, err := strconv.Atoi(strings.TrimSpace(readFile(t, filepath.Join(dir, "pid"))))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(-pid, syscall.SIGKILL)
	if err := c.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	session := c.session
	c.exit()

	c = open(t, start(t, options{home: home, env: []string{"ASTRABOX_X=new", "GONE=2", "MORE=1"}}), "/", session)
	if c.session != session || len(c.result.notices) > 0 {
		t.Fatalf("the session %s is now %s, with %v", session, c.session, c.result.notices)
	}
	r := c.run("pwd; echo $KEEP $ASTRABOX_X ${GONE-unset} $MORE")
	if want := dir + "/sub\nkept new unset 1\n"; r.output != want {
		t.Errorf("got %q, want %q", r.output, want)
	}
	if want := session + "-4"; r.started[0].Call != want {
		t.Errorf("the call after a kill is %s, want %s", r.started[0].Call, want)
	}
}

// TestSavedUnseen: the shell had saved its state, and the agent died before it
// looked.
func TestSavedUnseen(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	c := open(t, start(t, options{home: home}), "/", "")
	session := c.session
	c.run("true")
	c.stdin.Close()
	c.exit()
	save := exec.Command(program(t), "--save-state", filepath.Join(home, ".local/state/astrabox-shell", session+".next"))
	save.Dir, save.Env = dir, []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8", "NEW=1"}
	if out, err := save.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c = open(t, start(t, options{home: home}), "/", session)
	if r := c.run("pwd; echo $NEW"); r.output != dir+"\n1\n" {
		t.Errorf("got %q", r.output)
	}
}

func TestLostSession(t *testing.T) {
	for _, id := range []string{"sh_0000000000000000", "../../../etc/passwd"} {
		c := open(t, start(t, options{}), "/", id)
		if c.session == id || len(c.result.notices) != 1 {
			t.Errorf("session %q became %q with %v", id, c.session, c.result.notices)
		}
		if r := c.run("echo ok"); r.output != "ok\n" {
			t.Errorf("got %q", r.output)
		}
	}
}

// TestStreaming: the first output comes while the command runs, a character in
// two parts comes whole, and the rest comes at most twenty times a second.
func TestStreaming(t *testing.T) {
	dir := t.TempDir()
	c := open(t, start(t, options{}), dir, "")
	c.prompt(`echo one; until [ -e go ]; do sleep .01; done; printf '\xe2\x82'; sleep .2; printf '\xac'; for i in 1 2 3 4 5 6 7 8 9; do sleep .02; echo; done`)
	c.until(func() bool { return c.result.output == "one\n" })
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	r := c.wait()
	if want := "one\n€" + strings.Repeat("\n", 9); r.output != want {
		t.Errorf("got %q, want %q", r.output, want)
	}
	if most := int(*r.ended[0].DurationMS/50) + 2; r.updates > most {
		t.Errorf("%d updates in %d ms", r.updates, *r.ended[0].DurationMS)
	}
}

func TestLongOutput(t *testing.T) {
	c := open(t, start(t, options{}), "/", "")
	r := c.run("seq 2000000")
	if len(r.output) > 4<<20+256<<10 || !strings.HasPrefix(r.output, "1\n2\n") || !strings.HasSuffix(r.output, "\n1999999\n2000000\n") ||
		!strings.Contains(r.output, "\n[more than 4 MiB of output: ") || !strings.Contains(r.output, " bytes left out]\n") {
		t.Errorf("%d bytes of output: %.50q ... %.50q", len(r.output), r.output, r.output[max(0, len(r.output)-50):])
	}
	if r := c.run("printf x"); r.output != "x" {
		t.Errorf("the next output is %q", r.output)
	}
}

// TestBackground: a child that keeps the output open neither holds the turn nor
// dies of writing to it; cancelling a later command leaves it alone.
func TestBackground(t *testing.T) {
	dir := t.TempDir()
	c := open(t, start(t, options{}), dir, "")
	began := time.Now()
	r := c.run(`(until [ -e go ]; do sleep .01; echo late; done; echo alive >alive) & echo started`)
	if !strings.HasPrefix(r.output, "started\n") && !strings.HasSuffix(r.output, "started\n") || r.exitCode() != 0 {
		t.Errorf("got %q, exit %d", r.output, r.exitCode())
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("the turn took %v", d)
	}
	c.prompt("echo running; sleep 1000")
	c.until(func() bool { return c.result.output != "" })
	c.write(c.m.Cancel())
	if r := c.wait(); r.end.Reason != agentprogram.ReasonInterrupted || r.output != "running\n" {
		t.Errorf("the turn ended as %+v with %q", r.end, r.output)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the child of before lives", func() bool { return exists(filepath.Join(dir, "alive")) })
}

// TestCancel: nothing that the command started is left, whatever it did to get
// away, and what the shell knew is saved.
func TestCancel(t *testing.T) {
	word := fmt.Sprintf("1000.%d", os.Getpid())
	for _, s := range []struct{ name, cmd string }{
		{"foreground", "cd /usr; echo up; sleep " + word},
		{"pipe", "cd /usr; echo up; sleep " + word + " | cat"},
		{"setsid", "cd /usr; setsid sleep " + word + " & echo up; sleep " + word},
		{"daemon", "cd /usr; (setsid sh -c 'sleep " + word + " & sleep " + word + " & exit' &); echo up; sleep " + word},
		{"ignores TERM", "cd /usr; trap '' TERM; setsid sleep " + word + " & echo up; sleep " + word},
		{"clean environment", "cd /usr; env -i setsid sleep " + word + " & echo up; sleep " + word},
		{"spawns on", "cd /usr; echo up; while :; do setsid sleep " + word + " & sleep .005; done"},
	} {
		t.Run(s.name, func(t *testing.T) {
			c := open(t, start(t, options{}), "/", "")
			c.prompt(s.cmd)
			c.until(func() bool { return c.result.output == "up\n" })
			eventually(t, "it sleeps", func() bool { return living(t, word) > 0 })
			began := time.Now()
			c.write(c.m.Cancel())
			r := c.wait()
			if r.end.Reason != agentprogram.ReasonInterrupted || len(r.ended) != 1 || r.ended[0].Status != agentprogram.ToolFailed {
				t.Errorf("the turn ended as %+v, the tool as %+v", r.end, r.ended)
			}
			if n := living(t, word); n > 0 {
				t.Errorf("%d processes are left", n)
			}
			if d := time.Since(began); d > 10*time.Second {
				t.Errorf("it took %v", d)
			}
			after := c.run("pwd")
			if s.name != "ignores TERM" && after.output != "/usr\n" {
				t.Errorf("the directory afterwards is %q", after.output)
			}
		})
	}
}

// TestUnread: when nobody reads, a command runs on, can be cancelled, and what
// it wrote is told to whoever reads at last.
func TestUnread(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	a := startUnread(t, options{home: home})
	m, err := agentprogram.New(agentprogram.ShellID)
	if err != nil {
		t.Fatal(err)
	}
	out, err := m.Open(agentprogram.OpenOptions{Cwd: dir})
	if err != nil {
		t.Fatal(err)
	}
	a.write(out)
	// What the machine would send, had it the answers.
	a.write([]byte(`{"id":2,"method":"session/new","params":{"cwd":"` + dir + `","mcpServers":[]}}` + "\n"))
	var files []string
	eventually(t, "the session is stored", func() bool {
		files, _ = filepath.Glob(filepath.Join(home, ".local/state/astrabox-shell/*.jsonl"))
		return len(files) == 1
	})
	session := strings.TrimSuffix(filepath.Base(files[0]), ".jsonl")
	a.write([]byte(`{"id":3,"method":"session/prompt","params":{"sessionId":"` + session + `","prompt":[{"type":"text","text":"seq 1000000; touch done; exec yes"}]}}` + "\n"))
	eventually(t, "the command runs on", func() bool { return exists(filepath.Join(dir, "done")) })
	a.write([]byte(`{"method":"session/cancel","params":{"sessionId":"` + session + `"}}` + "\n"))
	eventually(t, "the command is stopped", func() bool { return strings.Contains(readFile(t, files[0]), `"ended":true`) })

	a.read()
	var got result
	for got.end == nil {
		r, err := m.Feed([]byte(a.line()))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range r.Events {
			got.add(e)
		}
		if got.end = r.TurnEnded; got.end == nil && r.Ready {
			if _, err := m.Prompt("t", ""); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got.end.Reason != agentprogram.ReasonInterrupted || len(got.ended) != 1 || got.ended[0].Status != agentprogram.ToolFailed {
		t.Errorf("the turn ended as %+v with %+v", got.end, got.ended)
	}
	if !strings.HasPrefix(got.output, "1\n2\n") || !strings.Contains(got.output, "\n500000\n500001\n") || !strings.Contains(got.output, " bytes left out]\n") {
		t.Errorf("%d bytes were told, without what was written", len(got.output))
	}
}

// TestPieces: requests arrive in any pieces, and may be long.
func TestPieces(t *testing.T) {
	a := start(t, options{})
	c := open(t, a, "/", "")
	out, err := c.m.Prompt("t", "echo \"é ok\"")
	if err != nil {
		t.Fatal(err)
	}
	c.result = &result{}
	for _, b := range out {
		a.write([]byte{b})
	}
	if r := c.wait(); r.output != "é ok\n" {
		t.Errorf("got %q", r.output)
	}
	for _, size := range []int{90 << 10, 130 << 10, 3 << 20} {
		if r := c.run("x='" + strings.Repeat("y", size) + "'; echo ${#x} $#; cd /usr"); r.output != fmt.Sprintf("%d 0\n", size) || r.ended[0].Cwd != "/usr" {
			t.Errorf("a command of %d bytes gave %.200q in %s", size, r.output, r.ended[0].Cwd)
		}
	}
	a.write([]byte(`{"x":"`))
	for range 17 {
		a.write([]byte(strings.Repeat("z", 1<<20)))
	}
	a.write([]byte("\"}\n"))
	if r := c.run("echo still"); r.output != "still\n" {
		t.Errorf("got %q", r.output)
	}
}

func TestGoneDirectory(t *testing.T) {
	dir := t.TempDir()
	c := open(t, start(t, options{}), dir, "")
	c.run("mkdir sub; cd sub")
	if err := os.Remove(filepath.Join(dir, "sub")); err != nil {
		t.Fatal(err)
	}
	r := c.run("pwd")
	if want := fmt.Sprintf("[%s/sub is gone; running in %s]\n%s\n", dir, dir, dir); r.output != want {
		t.Errorf("got %q, want %q", r.output, want)
	}
	if r := c.run("pwd"); r.output != dir+"\n" {
		t.Errorf("then %q", r.output)
	}
}

func TestTooManyVariables(t *testing.T) {
	c := open(t, start(t, options{}), "/", "")
	r := c.run("export SMALL=1 BIG=$(head -c 100000 /dev/zero | tr '\\0' x); echo ok")
	if want := "ok\n[1 exported variables are too big to be kept for the next command]\n"; r.output != want {
		t.Errorf("got %q", r.output)
	}
	if r := c.run("echo $SMALL ${#BIG}"); r.output != "1 0\n" {
		t.Errorf("then %q", r.output)
	}
}

// TestNoState: a home that can't be written costs the memory, not the shell.
func TestNoState(t *testing.T) {
	c := open(t, start(t, options{home: "/proc/nowhere"}), "/", "")
	r := c.run("echo ok")
	if !strings.HasPrefix(r.output, "ok\n[the state of this shell can't be saved: ") || r.exitCode() != 0 {
		t.Errorf("got %q, exit %d", r.output, r.exitCode())
	}
}
