package shellagent_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/astrabox/astrabox/internal/agentprogram"
)

// patience is how long a test waits for what must happen.
const patience = 30 * time.Second

var (
	built   sync.Once
	binary  string
	buildIt error
)

func TestMain(m *testing.M) {
	code := m.Run()
	if binary != "" {
		os.RemoveAll(filepath.Dir(binary))
	}
	os.Exit(code)
}

// build builds the real program, static unless it is watched for races.
func build(path string, flags ...string) error {
	args := append([]string{"build", "-trimpath", "-ldflags", "-s -w", "-o", path}, flags...)
	cmd := exec.Command("go", append(args, "github.com/astrabox/astrabox/cmd/shellagent")...)
	cmd.Env = os.Environ()
	if flags == nil {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// program builds it once for all tests.
func program(t *testing.T) string {
	t.Helper()
	built.Do(func() {
		dir, err := os.MkdirTemp("", "shellagent")
		if err != nil {
			buildIt = err
			return
		}
		binary = filepath.Join(dir, "shellagent")
		buildIt = build(binary, raceFlags...)
	})
	if buildIt != nil {
		t.Fatal(buildIt)
	}
	return binary
}

// agent is a running program, its stdout read or not.
type agent struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin io.WriteCloser
	out   io.ReadCloser
	lines chan string // closed at the end of stdout
	read  func()      // starts reading it; once
}

type options struct {
	home string   // empty: a new one
	env  []string // besides HOME and PATH
}

func start(t *testing.T, o options) *agent {
	t.Helper()
	a := startUnread(t, o)
	a.read()
	return a
}

// startUnread starts the program; nobody reads its stdout until read is called.
func startUnread(t *testing.T, o options) *agent {
	t.Helper()
	if o.home == "" {
		o.home = t.TempDir()
	}
	errs, err := os.CreateTemp(t.TempDir(), "stderr")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, cmd: exec.Command(program(t)), lines: make(chan string)}
	a.cmd.Env = append([]string{"HOME=" + o.home, "PATH=" + os.Getenv("PATH"), "LANG=C.UTF-8"}, o.env...)
	if raceFlags != nil { // its second at every end is no part of what is tested
		a.cmd.Env = append(a.cmd.Env, "GORACE=atexit_sleep_ms=0")
	}
	a.cmd.Stderr = errs
	if a.stdin, err = a.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if a.out, err = a.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a.read = sync.OnceFunc(func() {
		go func() {
			defer close(a.lines)
			r := bufio.NewReader(a.out)
			for {
				l, err := r.ReadString('\n')
				if err != nil {
					return
				}
				a.lines <- l
			}
		}()
	})
	t.Cleanup(func() {
		_ = a.cmd.Process.Signal(os.Interrupt)
		a.exit()
		told := readFile(t, errs.Name())
		if told != "" {
			t.Logf("stderr: %s", told)
		}
		if strings.Contains(told, "DATA RACE") || strings.Contains(told, "panic") {
			t.Error("the program has a fault")
		}
	})
	return a
}

// exit waits for the program's end.
func (a *agent) exit() {
	a.t.Helper()
	if a.cmd.ProcessState != nil {
		return
	}
	a.read()
	timer := time.AfterFunc(patience, func() { _ = a.cmd.Process.Kill() })
	defer timer.Stop()
	for range a.lines { // Wait may only come after the last read
	}
	_ = a.cmd.Wait()
	if !timer.Stop() {
		a.t.Error("the program didn't end")
	}
}

func (a *agent) write(b []byte) {
	a.t.Helper()
	if _, err := a.stdin.Write(b); err != nil {
		a.t.Fatal(err)
	}
}

func (a *agent) line() string {
	a.t.Helper()
	select {
	case l, ok := <-a.lines:
		if !ok {
			a.t.Fatal("the program's output ended")
		}
		return l
	case <-time.After(patience):
		a.t.Fatal("no line came")
	}
	return ""
}

// call sends a request and returns its answer and the updates before it.
func (a *agent) call(id int, method string, params any) (answer reply, updates []map[string]any) {
	a.t.Helper()
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(append(b, '\n'))
	for {
		var r reply
		l := a.line()
		if err := json.Unmarshal([]byte(l), &r); err != nil {
			a.t.Fatalf("%v: %s", err, l)
		}
		if r.ID != nil && *r.ID == id {
			return r, updates
		}
		updates = append(updates, r.Params.Update)
	}
}

type reply struct {
	ID     *int           `json:"id"`
	Result map[string]any `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Params struct {
		Update map[string]any `json:"update"`
	} `json:"params"`
}

// conversation drives an agent through the platform's machine.
type conversation struct {
	*agent
	m       agentprogram.Machine
	session string
	turns   int
	result  *result // of the running turn
}

// result is what a turn showed.
type result struct {
	started []agentprogram.ToolStarted
	output  string
	updates int
	ended   []agentprogram.ToolEnded
	notices []agentprogram.Notice
	other   []string // types of other events
	end     *agentprogram.TurnEnd
}

// exitCode is the one of the only command.
func (r *result) exitCode() int {
	if len(r.ended) != 1 || r.ended[0].ExitCode == nil {
		return -1
	}
	return *r.ended[0].ExitCode
}

func open(t *testing.T, a *agent, cwd, session string) *conversation {
	t.Helper()
	m, err := agentprogram.New(agentprogram.ShellID)
	if err != nil {
		t.Fatal(err)
	}
	c := &conversation{agent: a, m: m, result: &result{}}
	out, err := m.Open(agentprogram.OpenOptions{Cwd: cwd, NativeSession: session})
	if err != nil {
		t.Fatal(err)
	}
	a.write(out)
	c.until(m.Ready)
	return c
}

// prompt starts a turn.
func (c *conversation) prompt(text string) {
	c.t.Helper()
	c.turns++
	out, err := c.m.Prompt(fmt.Sprint("turn", c.turns), text)
	if err != nil {
		c.t.Fatal(err)
	}
	c.result = &result{}
	c.write(out)
}

// run runs one command to its end.
func (c *conversation) run(text string) *result {
	c.t.Helper()
	c.prompt(text)
	return c.wait()
}

func (c *conversation) wait() *result {
	c.t.Helper()
	c.until(func() bool { return c.result.end != nil })
	return c.result
}

// until feeds lines to the machine until done.
func (c *conversation) until(done func() bool) {
	c.t.Helper()
	for !done() {
		l := c.line()
		r, err := c.m.Feed([]byte(strings.TrimSuffix(l, "\n")))
		if err != nil {
			c.t.Fatal(err)
		}
		if r.Skipped || r.Broken != nil {
			c.t.Fatalf("skipped %v, broken %v: %s", r.Skipped, r.Broken, l)
		}
		if r.NativeSession != "" {
			c.session = r.NativeSession
		}
		if len(r.Out) > 0 {
			c.write(r.Out)
		}
		for _, e := range r.Events {
			c.result.add(e)
		}
		if r.TurnEnded != nil {
			c.result.end = r.TurnEnded
		}
	}
}

func (r *result) add(e agentprogram.Event) {
	switch d := e.Data.(type) {
	case agentprogram.ToolStarted:
		r.started = append(r.started, d)
	case agentprogram.ToolOutput:
		r.updates++
		if d.Mode == agentprogram.OutputReplace {
			r.output = ""
		}
		r.output += d.Text
	case agentprogram.ToolEnded:
		r.ended = append(r.ended, d)
	case agentprogram.Notice:
		r.notices = append(r.notices, d)
	default:
		r.other = append(r.other, e.Type)
	}
}

// eventually waits for a condition that nothing tells about.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// living counts the processes whose command line holds word.
func living(t *testing.T, word string) int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, dir := range dirs {
		cmdline, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		stat, _ := os.ReadFile(filepath.Join(dir, "stat"))
		if strings.Contains(string(cmdline), word) && !strings.Contains(string(stat), ") Z ") {
			n++
		}
	}
	return n
}
