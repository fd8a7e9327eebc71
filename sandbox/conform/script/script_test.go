package script_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox/conform/script"
)

// shell runs lines under a real /bin/sh in a directory.
type shell struct {
	t   *testing.T
	dir string
}

type outcome struct {
	Stdout, Stderr string
	Status         int // 128+n for a signal
}

func (s shell) run(stdin string, steps ...script.Step) outcome {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", script.Line(steps...))
	var out, errs bytes.Buffer
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = s.dir, strings.NewReader(stdin), &out, &errs
	cmd.Env = append(os.Environ(), "KNOWN=a value")
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		s.t.Fatalf("%q: %v", script.Line(steps...), err)
	}
	o := outcome{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		o.Status = 128 + int(ws.Signal())
	}
	return o
}

func (s shell) wants(want outcome, steps ...script.Step) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.run("", steps...)); diff != "" {
		s.t.Errorf("%q (-want +got)\n%s", script.Line(steps...), diff)
	}
}

func (s shell) says(want string, steps ...script.Step) {
	s.t.Helper()
	s.wants(outcome{Stdout: want}, steps...)
}

func (s shell) path(name string) string { return filepath.Join(s.dir, name) }

// odd are names and bytes that a careless rendering would spoil.
var odd = []string{"plain", "a b", "$HOME", "~", "`id`", "it's", `"q"`, "new\nline", "*", "-n", "ünïcode", `back\slash`, "\xff\xfe", "%d"}

// eff says what each template does under a real shell. It is a table so that a
// template without an entry fails the test.
var effects = map[string]func(shell){
	"nothing":  func(s shell) { s.says("", script.Step{}) },
	"emit":     func(s shell) { s.says("a\x00\xff%d\\n'\n", script.Emit("a\x00\xff%d\\n'\n")) },
	"emit-err": func(s shell) { s.wants(outcome{Stderr: "x\n"}, script.EmitErr("x\n")) },
	"big":      func(s shell) { s.says(string(script.BigOutput(0, 100_001)), script.Big(100_001)) },
	"big-err":  func(s shell) { s.wants(outcome{Stderr: string(script.BigOutput(0, 33))}, script.BigErr(33)) },
	"lines":    func(s shell) { s.says(string(script.LinesOutput(1200)), script.Lines(1200)) },
	"tick":     func(s shell) { s.says("1\n2\n3\n", script.Tick(3, time.Millisecond)) },
	"exit": func(s shell) {
		s.wants(outcome{Stdout: "a", Status: 7}, script.Emit("a"), script.Exit(7), script.Emit("b"))
	},
	"die": func(s shell) {
		for name, n := range map[string]int{"SIGTERM": 15, "KILL": 9, "HUP": 1, "INT": 2} {
			s.wants(outcome{Status: 128 + n}, script.Die(name), script.Emit("survived"))
		}
	},
	"ignore": func(s shell) { s.says("survived", script.Ignore("TERM"), script.Die("TERM"), script.Emit("survived")) },
	"catch": func(s shell) {
		s.wants(outcome{Stdout: "caught\n", Status: 7}, script.Catch("SIGTERM", 7), script.Die("TERM"), script.Emit("survived"))
	},
	"sleep": func(s shell) {
		start := time.Now()
		s.says("", script.Sleep(120*time.Millisecond))
		if took := time.Since(start); took < 120*time.Millisecond {
			s.t.Errorf("slept for %v", took)
		}
	},
	"cat":   func(s shell) { s.stdin("in\x00put", "in\x00put", script.Cat()) },
	"count": func(s shell) { s.stdin("12345", "5\n", script.Count()) },
	"read-line": func(s shell) {
		s.stdin("  a \\ line\nrest", "<  a \\ line>\nrest", script.ReadLine(), script.Cat())
	},
	"tty-size": func(s shell) {
		if o := s.run("", script.TTYSize()); o.Status == 0 || o.Stdout != "" {
			s.t.Errorf("without a terminal: %+v", o)
		}
	},
	"is-tty": func(s shell) { s.says("none\n", script.IsTTY()) },
	"export": func(s shell) {
		for _, value := range odd {
			s.says(value+"\n", script.Export("KEPT", value), script.Env("KEPT"))
		}
	},
	"cd": func(s shell) {
		s.says("/\n", script.Cd("/"), script.Pwd())
		if o := s.run("", script.Cd(s.path("none"))); o.Status == 0 || o.Stdout != "" {
			s.t.Errorf("to what isn't there: %+v", o)
		}
	},
	"env": func(s shell) {
		s.says("a value\n", script.Env("KNOWN"))
		s.wants(outcome{Status: 1}, script.Env("NOT_KNOWN_AT_ALL"))
	},
	"pwd": func(s shell) { s.says(s.dir+"\n", script.Pwd()) },
	"user": func(s shell) {
		s.says(strings.TrimSpace(command(s.t, "id", "-un"))+"\n", script.User())
	},
	"group": func(s shell) { s.says(strings.TrimSpace(command(s.t, "id", "-gn"))+"\n", script.Group()) },
	"cat-file": func(s shell) {
		s.says("x", script.WriteFile(s.path("f"), "x"), script.CatFile(s.path("f")))
		if o := s.run("", script.CatFile(s.path("none"))); o.Status != 1 {
			s.t.Errorf("a missing file: %+v", o)
		}
	},
	"write": func(s shell) {
		for _, name := range odd {
			s.says("two"+name, script.WriteFile(s.path(name), "one"), script.WriteFile(s.path(name), "two"+name), script.CatFile(s.path(name)))
			if b, err := os.ReadFile(s.path(name)); err != nil || string(b) != "two"+name {
				s.t.Errorf("%q: %q, %v", name, b, err)
			}
		}
	},
	"append": func(s shell) {
		s.says("onetwo", script.Append(s.path("f"), "one"), script.Append(s.path("f"), "two"), script.CatFile(s.path("f")))
	},
	"stat": func(s shell) {
		user, group := strings.TrimSpace(command(s.t, "id", "-un")), strings.TrimSpace(command(s.t, "id", "-gn"))
		os.WriteFile(s.path("f"), []byte("123"), 0o640)
		s.says("81a0 3 "+user+" "+group+"\n", script.Stat(s.path("f")))
		s.says("a1ff 1 "+user+" "+group+"\n", script.Link("f", s.path("l")), script.Stat(s.path("l")))
	},
	"watch": func(s shell) {
		done := s.later("watched", script.Watch(s.path("f"), s.path("stop")))
		if o := <-done; !strings.Contains(o.Stdout, " 7 ") {
			s.t.Errorf("%+v", o)
		}
	},
	"list": func(s shell) {
		s.says(".h\nb\n", script.WriteFile(s.path(".h"), ""), script.WriteFile(s.path("b"), ""), script.List(s.dir))
	},
	"fill": func(s shell) {
		s.says(s.dir+"\n", script.Fill(s.dir, 3), script.Pwd())
		s.says("1\n2\n3\n", script.List(s.dir))
	},
	"link": func(s shell) {
		for _, name := range odd {
			s.says("", script.Link(name, s.path("l-"+name)))
			if target, err := os.Readlink(s.path("l-" + name)); err != nil || target != name {
				s.t.Errorf("%q: %q, %v", name, target, err)
			}
		}
	},
	"fifo": func(s shell) {
		s.says("", script.FIFO(s.path("p")))
		if i, err := os.Lstat(s.path("p")); err != nil || i.Mode().Type() != os.ModeNamedPipe {
			s.t.Errorf("%v, %v", i, err)
		}
	},
	"wait-for": func(s shell) {
		if o := <-s.later("", script.WaitFor(s.path("stop")), script.Emit("done")); o.Stdout != "done" {
			s.t.Errorf("%+v", o)
		}
	},
	"churn": func(s shell) {
		if o := <-s.later("", script.Churn(s.path("c"), s.path("stop"))); o != (outcome{}) {
			s.t.Errorf("%+v", o)
		}
		if _, err := os.Stat(s.path("c")); !errors.Is(err, os.ErrNotExist) {
			s.t.Errorf("left behind: %v", err)
		}
	},
	"flip": func(s shell) {
		if o := <-s.later("", script.Flip(s.path("d"), "/nowhere", s.path("stop"))); o != (outcome{}) {
			s.t.Errorf("%+v", o)
		}
		if i, err := os.Lstat(s.path("d")); err != nil || !i.IsDir() {
			s.t.Errorf("%v, %v", i, err)
		}
	},
	"self": func(s shell) {
		o := s.run("", script.Self(s.path("pid")), script.Alive(s.path("pid")))
		if o.Stdout != "alive\n" {
			s.t.Errorf("%+v", o)
		}
	},
	"spawn": func(s shell) { s.spawns(script.Plain, "TERM") },
	"spawn-holding": func(s shell) {
		cmd := exec.Command("/bin/sh", "-c", script.Line(script.Spawn(script.Holding, time.Minute, s.path("pid"))))
		if err := cmd.Run(); err != nil { // its output is /dev/null, so that nothing waits for the child
			s.t.Error(err)
		}
		s.caughtUp()
		s.says("", script.Kill("KILL", s.path("pid")))
	},
	"spawn-orphan": func(s shell) { s.spawns(script.Orphan, "TERM") },
	"spawn-deaf": func(s shell) {
		s.spawns(script.Deaf, "KILL")
		s.says("", script.Spawn(script.Deaf, time.Minute, s.path("pid")))
		s.caughtUp() // the trap is set shortly after the start
		s.says("alive\n", script.Kill("TERM", s.path("pid")), script.Sleep(50*time.Millisecond), script.Alive(s.path("pid")))
		s.says("", script.Kill("KILL", s.path("pid")))
	},
	"spawn-setsid": func(s shell) { s.spawns(script.Setsid, "TERM") },
	"spawn-bare":   func(s shell) { s.spawns(script.Bare, "TERM") },
	"alive": func(s shell) {
		o := s.run("", script.Alive(s.path("none")))
		if o.Stdout != "dead\n" {
			s.t.Errorf("%+v", o)
		}
	},
	"kill": func(s shell) {
		os.WriteFile(s.path("pid"), []byte("999999999\n"), 0o600)
		if o := s.run("", script.Kill("TERM", s.path("pid"))); o.Status == 0 {
			s.t.Errorf("%+v", o)
		}
	},
}

func (s shell) stdin(in, want string, steps ...script.Step) {
	s.t.Helper()
	if o := s.run(in, steps...); strings.TrimLeft(o.Stdout, " ") != want || o.Status != 0 {
		s.t.Errorf("%q: %+v", script.Line(steps...), o)
	}
}

// later runs steps that wait for the file stop, and makes that a little later.
func (s shell) later(content string, steps ...script.Step) <-chan outcome {
	s.t.Helper()
	if err := os.WriteFile(s.path("f"), []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
	done := make(chan outcome, 1)
	go func() { done <- s.run("", steps...) }()
	select {
	case o := <-done:
		s.t.Errorf("it didn't wait: %+v", o)
	case <-time.After(100 * time.Millisecond):
	}
	if err := os.WriteFile(s.path("stop"), nil, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return done
}

// spawns checks that a child outlives its shell and that kill ends it.
func (s shell) spawns(kind, signal string) {
	s.t.Helper()
	start := time.Now()
	s.says("", script.Spawn(kind, time.Minute, s.path("pid")))
	if time.Since(start) > 30*time.Second {
		s.t.Error("the shell waited for its child")
	}
	s.caughtUp()
	s.says("alive\n", script.Alive(s.path("pid")))
	s.says("", script.Kill(signal, s.path("pid")))
	s.until("dead\n", script.Alive(s.path("pid")))
}

// caughtUp waits until the child has become sleep.
func (s shell) caughtUp() {
	s.t.Helper()
	pid, err := os.ReadFile(s.path("pid"))
	if err != nil {
		s.t.Fatal(err)
	}
	if n, err := strconv.Atoi(strings.TrimSpace(string(pid))); err != nil || n < 2 {
		s.t.Fatalf("no process id: %q", pid)
	}
	s.until("sleep\n", script.CatFile("/proc/"+strings.TrimSpace(string(pid))+"/comm"))
}

func (s shell) until(want string, steps ...script.Step) {
	s.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		o := s.run("", steps...)
		if o.Stdout == want {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%q stays %+v", script.Line(steps...), o)
		}
	}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestEffects(t *testing.T) {
	// Under nohup, programs would start with the signal ignored; with a handler
	// here they start with its default.
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangup) })
	for _, tpl := range script.Templates() {
		t.Run(tpl.Name, func(t *testing.T) {
			t.Parallel()
			effect := effects[tpl.Name]
			if effect == nil || tpl.Doc == "" {
				t.Fatal("no effect is checked, or none documented")
			}
			effect(shell{t, t.TempDir()})
		})
	}
}

// samples has a step of every template, with awkward arguments.
func samples() []script.Step {
	steps := []script.Step{
		{}, script.Big(0), script.BigErr(5), script.Lines(3), script.Tick(4, 1500*time.Millisecond), script.Exit(255),
		script.Die("SIGUSR1"), script.Ignore("TERM"), script.Catch("HUP", 3), script.Sleep(time.Millisecond), script.Cat(),
		script.Count(), script.ReadLine(), script.TTYSize(), script.IsTTY(), script.Env("A_b1"), script.Pwd(), script.User(), script.Group(),
		script.Cd("/a b"), script.Export("KEPT", "it's\n$x"),
	}
	for i, text := range odd {
		other := odd[len(odd)-1-i]
		steps = append(steps, script.Emit(text), script.EmitErr(text+"\x00"), script.CatFile(text), script.WriteFile(text, other),
			script.Append(text, other), script.Stat(text), script.Watch(text, other), script.List(text), script.Fill(text, 3), script.Link(text, other),
			script.FIFO(text), script.WaitFor(text), script.Churn(text, other), script.Flip(text, other, text), script.Self(text),
			script.Spawn(script.Plain, time.Second, text), script.Spawn(script.Orphan, time.Second, text), script.Spawn(script.Holding, time.Second, text),
			script.Spawn(script.Deaf, time.Second, text), script.Spawn(script.Setsid, time.Second, text),
			script.Spawn(script.Bare, 0, text), script.Alive(text), script.Kill("KILL", text))
	}
	return steps
}

func TestParseReadsWhatLineRendered(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range samples() {
		seen[s.Name()] = true
		for _, steps := range [][]script.Step{{s}, {s, s}, {script.Cat(), s, script.Exit(1)}} {
			line := script.Line(steps...)
			got, ok := script.Parse(line)
			if !ok || script.Line(got...) != line || len(got) != len(steps) {
				t.Errorf("%q: %v, %v", line, got, ok)
				continue
			}
			for i, want := range steps {
				if got[i].Name() != want.Name() || got[i].Arg(0) != want.Arg(0) || got[i].Arg(1) != want.Arg(1) || got[i].Arg(2) != want.Arg(2) {
					t.Errorf("%q: step %d is %v, was %v", line, i, got[i], want)
				}
			}
		}
	}
	for _, tpl := range script.Templates() {
		if !seen[tpl.Name] {
			t.Errorf("no sample of %s", tpl.Name)
		}
	}
}

func TestParseRefusesOtherLines(t *testing.T) {
	for _, line := range []string{
		"", " ", "\n", "cat ", " cat", "cat\n", "\ncat", "cat;cat", "cat && cat", "exit", "exit -1", "exit 01x", "printf 'hi'", "printf '\\1'",
		"cat -- f", "cat -- 'f", "cat -- 'f'g", "cat -- 'f''g'", "sleep 1", "sleep 1.5", "kill -s sigterm $$", "printenv 1A", "true", "echo hi", "sh -c cat",
	} {
		if steps, ok := script.Parse(line); ok {
			t.Errorf("%q was taken for %v", line, steps)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range samples() {
		f.Add(script.Line(s))
		f.Add(script.Line(s, script.Exit(1)))
	}
	f.Fuzz(func(t *testing.T, line string) {
		if steps, ok := script.Parse(line); ok && script.Line(steps...) != line {
			t.Errorf("%q was parsed as %q", line, script.Line(steps...))
		}
	})
}
