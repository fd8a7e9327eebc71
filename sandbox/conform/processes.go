package conform

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func processClauses() []Clause[Box] {
	return []Clause[Box]{
		{ID: "processes.key", Check: try(processKey),
			Doc: "The same Key gives the same process, another Key another one."},
		{ID: "processes.start", Check: try(processStart),
			Doc: "Start registers: nothing runs until the first attachment, which starts it."},
		{ID: "processes.refused", Check: try(processRefused),
			Doc: "A process without a key, of an unknown account or in a missing directory is refused."},
		{ID: "processes.unknown", Check: try(processUnknown),
			Doc: "An id that isn't known is ErrProcessNotFound."},
		{ID: "processes.status", Check: try(processStatus),
			Doc: "Status says which run it is, whether it runs, how it ended and which output is held."},
		{ID: "processes.exit.code", Check: try(processExitCode),
			Doc: "Exit and Status give the status that a run ended with."},
		{ID: "processes.exit.signal", Check: try(processExitSignal),
			Doc: "A run that a signal killed ends with its name and 128 plus its number."},
		{ID: "processes.exit.last", Check: try(processExitLast),
			Doc: "A run's Exit comes after all of its output, and io.EOF after that."},
		{ID: "processes.env", Check: try(processEnv),
			Doc: "A process finds the variables of Env, with their values unchanged."},
		{ID: "processes.dir", Check: try(processDir),
			Doc: "A process runs in Dir, and in its account's home where none is given."},
		{ID: "processes.user", Check: try(processUser),
			Doc: "A process runs as User with that account's group, and as root where none is given."},
		{ID: "processes.pipes", Check: try(processPipes),
			Doc: "Without TTY a process has pipes, and its stdout and stderr are told apart."},
		{ID: "processes.tty", Check: try(processTTY),
			Doc: "With TTY a process has a terminal of that size, whose output is all of Stdout."},
		{ID: "processes.delete", Check: try(func(t *trial) { deleted(t, script.Plain, script.Orphan) }),
			Doc: "Delete kills the process with what it started, and forgets it."},
		{ID: "processes.delete.deaf", Check: try(func(t *trial) { deleted(t, script.Deaf) }),
			Doc: "Delete kills processes that ignore the signals that ask."},
		{ID: "processes.delete.setsid", Check: try(func(t *trial) { deleted(t, script.Setsid) }),
			Doc: "Delete kills processes that have left for a session of their own."},
		{ID: "processes.delete.earlier", Check: try(deletedEarlier),
			Doc: "Delete kills what an earlier run has left behind."},
		{ID: "processes.delete.again", Check: try(deletedAgain),
			Doc: "Delete is idempotent, and the key of a deleted process is free again."},
		{ID: "processes.delete.attached", Check: try(deletedAttached),
			Doc: "Whoever is attached to a process that is deleted learns its end."},
	}
}

func processKey(t *trial) {
	mark := t.path("mark")
	steps := []script.Step{script.Append(mark, "x"), script.Emit("up"), script.Cat()}
	id := t.start(sandbox.ProcessSpec{Key: "one"}, steps...)
	t.same("the id for the same key", t.start(sandbox.ProcessSpec{Key: "one"}, steps...), id)
	other := t.start(sandbox.ProcessSpec{Key: "two"}, script.Cat())
	t.want(other != id, "another id for another key", "%q for both", id)
	t.attach(id, sandbox.AttachOptions{}).has("up")
	t.same("the id while it runs", t.start(sandbox.ProcessSpec{Key: "one"}, steps...), id)
	t.want(t.status(id).Run == 1, "one run", "%d", t.status(id).Run)
	t.holds(mark, "x")
}

func processStart(t *trial) {
	mark := t.path("mark")
	id := t.start(sandbox.ProcessSpec{}, script.Append(mark, "x"), script.Emit("out"))
	s := t.status(id)
	t.want(s.State == sandbox.ProcessRegistered && s.Run == 0 && s.Exit == nil && s.Oldest == 0 && s.Next == 0,
		"a process that is registered, with run 0 and no output", "%+v", s)
	t.pause(50 * time.Millisecond)
	t.absent(mark)
	a := t.attach(id, sandbox.AttachOptions{}).toEOF()
	t.same("the output", a.all.String(), "out")
	t.holds(mark, "x")
}

func processRefused(t *trial) {
	line := script.Line(script.Cat())
	for what, s := range map[string]sandbox.ProcessSpec{
		"without a key":          {Line: line},
		"of an unknown account":  {Key: t.path("a"), Line: line, User: "no-such-account"},
		"in a missing directory": {Key: t.path("b"), Line: line, Dir: t.path("none")},
	} {
		id, err := t.Processes.Start(t.ctx, s)
		if err == nil { // a sandbox may find out only when it starts the process
			var a sandbox.Attachment
			if a, err = t.Processes.Attach(t.ctx, id, sandbox.AttachOptions{}); err == nil {
				a.Close()
			}
			_ = t.Processes.Delete(t.ctx, id)
		}
		t.give(Refused("a process "+what, err, sandbox.CodeInvalid))
	}
}

func processUnknown(t *trial) {
	id := t.start(sandbox.ProcessSpec{}, script.Cat())
	t.must("deleting", t.Processes.Delete(t.ctx, id))
	for _, id := range []string{id, "no-such-process", "", "../x", "a b"} {
		_, err := t.Processes.Status(t.ctx, id)
		t.want(errors.Is(err, sandbox.ErrProcessNotFound), fmt.Sprintf("ErrProcessNotFound from Status of %q", id), "%v", err)
		_, err = t.Processes.Attach(t.ctx, id, sandbox.AttachOptions{})
		t.want(errors.Is(err, sandbox.ErrProcessNotFound), fmt.Sprintf("ErrProcessNotFound from Attach to %q", id), "%v", err)
	}
}

func processStatus(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("12345"), script.ReadLine(), script.Exit(3))
	a.has("12345")
	s := t.status(id)
	t.want(s.State == sandbox.ProcessRunning && s.Run == 1 && s.Exit == nil && s.Oldest == 0 && s.Next == 5,
		"a process that runs for the first time, with output from 0 to 5", "%+v", s)
	a.send("x\n").toEOF()
	s = t.exited(id)
	t.want(s.Run == 1 && s.Exit != nil && s.Exit.Code == 3 && s.Oldest == 0 && s.Next == 9,
		"a process that exited with status 3, with output from 0 to 9", "%+v", s)
}

func processExitCode(t *trial) {
	for _, code := range []int{0, 1, 7, 255} {
		id, a := t.launch(sandbox.ProcessSpec{Key: fmt.Sprint(code)}, script.Exit(code))
		e := a.toEOF().exit(0)
		t.want(e.Code == code && e.Signal == "", fmt.Sprintf("an Exit with status %d", code), "%+v", e)
		s := t.exited(id)
		t.want(s.Exit != nil && *s.Exit == e, "the same in Status", "%+v", s)
	}
}

func processExitSignal(t *trial) {
	for signal, number := range map[string]int{"SIGKILL": 9, "SIGTERM": 15, "SIGHUP": 1} {
		id, a := t.launch(sandbox.ProcessSpec{Key: signal}, script.Emit("x"), script.Die(signal))
		e := a.toEOF().exit(0)
		t.want(e.Code == 128+number && e.Signal == signal, fmt.Sprintf("an Exit with %s and %d", signal, 128+number), "%+v", e)
		s := t.exited(id)
		t.want(s.Exit != nil && *s.Exit == e, "the same in Status", "%+v", s)
	}
}

func processExitLast(t *trial) {
	for i := range 15 {
		for _, tty := range []*sandbox.Size{nil, {Cols: 80, Rows: 24}} {
			_, a := t.launch(sandbox.ProcessSpec{Key: fmt.Sprint(i, tty != nil), TTY: tty}, script.Emit("hi"), script.EmitErr("!"))
			a.toEOF()
			t.want(len(a.exits) == 1, "one Exit", "%d", len(a.exits))
			t.want(a.before[0] == 3, "3 bytes before the Exit", "%d", a.before[0])
		}
	}
	_, a := t.launch(sandbox.ProcessSpec{Key: "big"}, script.Big(300_000), script.BigErr(200_000))
	a.toEOF()
	t.want(len(a.exits) == 1 && a.before[0] == 500_000, "500000 bytes before the one Exit", "%v", a.before)
	_, err := a.Recv(t.ctx)
	t.want(err != nil, "nothing after io.EOF", "another frame")
}

func processEnv(t *trial) {
	for i, v := range []string{"", "a=b", "two\nlines", "$HOME", "it's", `"`, " x ", "ünï", strings.Repeat("long", 3000)} {
		_, a := t.launch(sandbox.ProcessSpec{Key: fmt.Sprint(i), Env: map[string]string{"A_VARIABLE": v, "OTHER": "x"}}, script.Env("A_VARIABLE"))
		t.same("the variable", a.toEOF().all.String(), v+"\n")
	}
}

func processDir(t *trial) {
	dir := t.mkdir("a $HOME b")
	_, a := t.launch(sandbox.ProcessSpec{Key: "dir", Dir: dir}, script.Pwd())
	t.same("the working directory", a.toEOF().all.String(), dir+"\n")
	_, a = t.launch(sandbox.ProcessSpec{Key: "home"}, script.Pwd(), script.Env("HOME"))
	pwd, home, _ := strings.Cut(a.toEOF().all.String(), "\n")
	t.same("the working directory where none is given", pwd+"\n", home)
}

func processUser(t *trial) {
	_, a := t.launch(sandbox.ProcessSpec{Key: "root"}, script.User(), script.Group())
	t.same("the account where none is given", a.toEOF().all.String(), "root\nroot\n")
	account := t.account()
	dir := t.path("d")
	t.must("making a directory", t.Files.MakeDir(t.ctx, dir, sandbox.DirOptions{Attr: sandbox.Attr{Owner: account, Group: account}}))
	_, a = t.launch(sandbox.ProcessSpec{Key: "user", User: account, Dir: dir},
		script.User(), script.Group(), script.Env("USER"), script.WriteFile(dir+"/f", "x"))
	t.same("account, group and USER", a.toEOF().all.String(), account+"\n"+account+"\n"+account+"\n")
	i := t.stat(dir + "/f")
	t.want(i.Owner == account && i.Group == account, "its files to be of "+account, "%s:%s", i.Owner, i.Group)
}

func processPipes(t *trial) {
	_, a := t.launch(sandbox.ProcessSpec{}, script.IsTTY(), script.EmitErr("warning\n"), script.Emit(everyByte(256)), script.EmitErr("\xff"))
	a.toEOF()
	t.same("stdout", a.out.String(), "none\n"+everyByte(256))
	t.same("stderr", a.err.String(), "warning\n\xff")
}

func processTTY(t *trial) {
	_, a := t.launch(sandbox.ProcessSpec{TTY: &sandbox.Size{Cols: 101, Rows: 33}}, script.IsTTY(), script.TTYSize(), script.EmitErr("warning\n"))
	a.toEOF()
	t.same("the output", strings.ReplaceAll(a.out.String(), "\r\n", "\n"), "tty\n33 101\nwarning\n")
	t.same("stderr", a.err.String(), "")
}

// spawning starts a process that starts children of some kinds and waits, and
// gives the files with their process ids.
func (t *trial) spawning(kinds ...string) (id string, files []string) {
	files = []string{t.path("pid.shell")}
	steps := []script.Step{script.Self(files[0])}
	for _, kind := range kinds {
		f := t.path("pid." + kind)
		files = append(files, f)
		steps = append(steps, script.Spawn(kind, long, f))
	}
	ready := t.path("ready")
	id, _ = t.launch(sandbox.ProcessSpec{}, append(steps, script.WriteFile(ready, ""), script.Sleep(long))...)
	t.later(func(ctx context.Context) {
		for _, f := range files {
			_, _ = t.Commands.Run(ctx, sandbox.Command{Line: script.Line(script.Kill("KILL", f))})
		}
	})
	t.exists(ready)
	return id, files
}

func deleted(t *trial, kinds ...string) {
	livesOn := t.bystander()
	id, files := t.spawning(kinds...)
	start := time.Now()
	t.must("deleting the process", t.Processes.Delete(t.ctx, id))
	t.want(time.Since(start) < soon, "the end of Delete soon", "after %v", time.Since(start))
	for _, f := range files {
		t.gone(f)
	}
	livesOn()
	_, err := t.Processes.Status(t.ctx, id)
	t.want(errors.Is(err, sandbox.ErrProcessNotFound), "ErrProcessNotFound from Status", "%v", err)
}

func deletedEarlier(t *trial) {
	pid := t.path("pid")
	id, a := t.launch(sandbox.ProcessSpec{}, script.Spawn(script.Orphan, long, pid))
	t.later(func(ctx context.Context) {
		_, _ = t.Commands.Run(ctx, sandbox.Command{Line: script.Line(script.Kill("KILL", pid))})
	})
	a.toEOF()
	t.says("alive\n", script.Alive(pid))
	t.must("deleting the process", t.Processes.Delete(t.ctx, id))
	t.gone(pid)
}

func deletedAgain(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("one"), script.Sleep(long))
	a.has("one")
	for range 3 {
		t.must("deleting a process", t.Processes.Delete(t.ctx, id))
	}
	t.must("deleting what never was", t.Processes.Delete(t.ctx, "no-such-process"))
	again := t.start(sandbox.ProcessSpec{}, script.Emit("two"))
	t.want(again != id, "another process under the key of the deleted one", "the same id")
	t.same("its output", t.attach(again, sandbox.AttachOptions{}).toEOF().all.String(), "two")
}

func deletedAttached(t *trial) {
	id, a := t.launch(sandbox.ProcessSpec{}, script.Emit("out"), script.Sleep(long))
	a.has("out")
	t.must("deleting the process", t.Processes.Delete(t.ctx, id))
	for a.recv() {
	}
	t.want(t.ctx.Err() == nil, "the attachment to end", "it didn't")
	if len(a.exits) > 0 {
		t.want(a.exit(0).Signal == "SIGKILL", "an Exit with SIGKILL", "%+v", a.exit(0))
	}
}
