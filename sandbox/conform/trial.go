package conform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

// trial is one run of a data-plane clause. Its methods give up the clause when
// something fails that should have worked, so that a clause reads as what it
// tries; they are for the clause's own goroutine.
type trial struct {
	Box
	ctx   context.Context // of the one clause that this value serves
	ended []func(ctx context.Context)
}

// givenUp carries a clause's error to its end.
type givenUp struct{ err error }

// try makes a clause's function from one that works with a trial.
func try(f func(t *trial)) func(context.Context, Box) error {
	return func(ctx context.Context, b Box) (err error) {
		t := &trial{Box: b, ctx: ctx}
		defer t.end()
		defer func() {
			switch p := recover().(type) {
			case nil:
			case givenUp:
				err = p.err
			default:
				panic(p)
			}
		}()
		f(t)
		return nil
	}
}

// end undoes what the clause left, newest first, within 10 s.
func (t *trial) end() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), 10*time.Second)
	defer cancel()
	for i := len(t.ended) - 1; i >= 0; i-- {
		t.ended[i](ctx)
	}
}

// later has something undone after the clause, whatever became of it.
func (t *trial) later(f func(ctx context.Context)) { t.ended = append(t.ended, f) }

// give ends the clause with err, unless it is nil.
func (t *trial) give(err error) {
	if err != nil {
		panic(givenUp{err})
	}
}

// must ends the clause unless doing succeeded.
func (t *trial) must(doing string, err error) { t.give(NoError(doing, err)) }

// want ends the clause unless what was seen is right.
func (t *trial) want(right bool, expected, seen string, args ...any) {
	if !right {
		t.give(Unmet(expected, seen, args...))
	}
}

// same is want for texts; of long ones is shown where they differ.
func (t *trial) same(what string, got, want string) {
	t.want(got == want, what+" to be "+short(want), "%s", unlike(got, want))
}

// fails ends the clause unless err is a file error of that class, and of
// everything in also; doing says what was tried.
func (t *trial) fails(doing string, err, class error, also ...error) {
	want := doing + " to fail with " + errorName(class)
	if err == nil {
		t.give(Unmet(want, "it succeeded"))
	}
	var named *sandbox.PathError
	t.want(errors.As(err, &named), want+" in a *sandbox.PathError", "%s: %v", typeName(err), err)
	t.want(errors.Is(err, class), want, "%v", err)
	classes := 0
	for _, c := range []error{sandbox.ErrPathNotFound, sandbox.ErrPathRejected, sandbox.ErrUnreachable, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, c) {
			classes++
		}
	}
	t.want(classes == 1, want+", and no other class", "%v", err)
	for _, c := range also {
		t.want(errors.Is(err, c), want+" and "+errorName(c), "%v", err)
	}
}

// path is a name in the clause's directory.
func (t *trial) path(name string) string { return t.Scratch + "/" + name }

// account gives the box's account, or skips the clause.
func (t *trial) account() string {
	if t.Account == "" {
		t.give(Skip("the box names no account"))
	}
	return t.Account
}

// put writes a file in the clause's directory and gives its path.
func (t *trial) put(name, content string, a ...sandbox.Attr) string {
	o := sandbox.WriteOptions{}
	for _, attr := range a {
		o.Attr = attr
	}
	p := t.path(name)
	t.must(fmt.Sprintf("writing %q", p), t.Files.Write(t.ctx, p, strings.NewReader(content), o))
	return p
}

func (t *trial) mkdir(name string) string {
	p := t.path(name)
	t.must(fmt.Sprintf("making the directory %q", p), t.Files.MakeDir(t.ctx, p, sandbox.DirOptions{}))
	return p
}

func (t *trial) stat(path string) sandbox.FileInfo {
	i, err := t.Files.Stat(t.ctx, path)
	t.must(fmt.Sprintf("stat of %q", path), err)
	return i
}

// read gives a file's content as Files sees it.
func (t *trial) read(path string) string {
	b, err := readAll(t.ctx, t.Files, path, 0, -1)
	t.must(fmt.Sprintf("reading %q", path), err)
	return string(b)
}

func readAll(ctx context.Context, f sandbox.Files, path string, offset, length int64) ([]byte, error) {
	r, err := f.Open(ctx, path, offset, length)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(r)
	return b, errors.Join(err, r.Close())
}

// holds checks a file's content as a program of the sandbox sees it.
func (t *trial) holds(path, want string) {
	r := t.run(script.CatFile(path))
	t.want(r.ExitCode == 0, fmt.Sprintf("a program to read %q", path), "status %d, %q", r.ExitCode, r.Stderr)
	t.same(fmt.Sprintf("the content of %q for a program", path), string(r.Stdout), want)
}

// looks checks what a program sees of a file; owned is "owner:group".
func (t *trial) looks(path string, m fs.FileMode, size int, owned string) {
	t.looked(path, fmt.Sprintf("%s %s, %d bytes", modeText(m), owned, size), true)
}

// looksDir is looks without the size, which file systems choose for directories.
func (t *trial) looksDir(path string, m fs.FileMode, owned string) {
	t.looked(path, modeText(fs.ModeDir|m)+" "+owned, false)
}

func (t *trial) looked(path, want string, sized bool) {
	r := t.run(script.Stat(path))
	t.want(r.ExitCode == 0, fmt.Sprintf("%q to exist", path), "status %d, %q", r.ExitCode, r.Stderr)
	got := lookText(strings.TrimSuffix(string(r.Stdout), "\n"), sized)
	t.want(got == want, fmt.Sprintf("%q to be %s", path, want), "%s", got)
}

// absent checks that nothing is at a path.
func (t *trial) absent(path string) {
	_, err := t.Files.Stat(t.ctx, path)
	t.fails(fmt.Sprintf("stat of %q, which must not be there,", path), err, sandbox.ErrPathNotFound)
}

// names checks what a directory has in it, as a program sees it.
func (t *trial) names(dir string, want ...string) {
	r := t.run(script.List(dir))
	t.want(r.ExitCode == 0, fmt.Sprintf("a program to list %q", dir), "status %d, %q", r.ExitCode, r.Stderr)
	text := ""
	for _, n := range want {
		text += n + "\n"
	}
	t.same(fmt.Sprintf("the names in %q", dir), string(r.Stdout), text)
}

// entries lists a directory; in what is given paths are relative to it.
func (t *trial) entries(dir string, depth int) (all []sandbox.FileInfo) {
	seq, err := t.Files.List(t.ctx, dir, depth)
	t.must(fmt.Sprintf("listing %q", dir), err)
	for i, err := range seq {
		t.must(fmt.Sprintf("listing %q", dir), err)
		i.Path = strings.TrimPrefix(i.Path, strings.TrimRight(dir, "/")+"/")
		all = append(all, i)
	}
	return all
}

// pathsOf joins the paths of entries with blanks.
func pathsOf(all []sandbox.FileInfo) string {
	var b strings.Builder
	for i, e := range all {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(e.Path)
	}
	return b.String()
}

// run does steps and gives the result whatever the status.
func (t *trial) run(steps ...script.Step) sandbox.CommandResult {
	r, err := t.Commands.Run(t.ctx, sandbox.Command{Line: script.Line(steps...)})
	t.must("running a command", err)
	return r
}

// does runs steps that must succeed.
func (t *trial) does(steps ...script.Step) {
	r := t.run(steps...)
	t.want(r.ExitCode == 0, "a command to succeed", "status %d, %q", r.ExitCode, r.Stderr)
}

// says runs steps that must succeed and print just that.
func (t *trial) says(want string, steps ...script.Step) {
	r := t.run(steps...)
	t.same("stdout of "+headOf(script.Line(steps...)), string(r.Stdout), want)
	t.want(r.ExitCode == 0, "status 0", "status %d, %q", r.ExitCode, r.Stderr)
}

// pause waits a moment; false: the clause's time is up.
func (t *trial) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.ctx.Done():
		return false
	}
}

// eventually waits until f holds, for at most so long.
func (t *trial) eventually(within time.Duration, expected string, f func() (ok bool, seen string)) {
	pause := 2 * time.Millisecond
	for end := time.Now().Add(within); ; {
		ok, seen := f()
		if ok {
			return
		}
		t.want(time.Now().Before(end) && t.pause(pause), expected, "%s, for %v", seen, within)
		pause = min(pause*3/2, 100*time.Millisecond)
	}
}

// behind does something beside the clause, which waits for it in the end and
// can wait before with the function.
func (t *trial) behind(f func(ctx context.Context)) (wait func()) {
	ctx, cancel := context.WithCancel(t.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	t.later(func(context.Context) {
		cancel()
		<-done
	})
	return func() {
		select {
		case <-done:
		case <-t.ctx.Done():
			t.give(t.ctx.Err())
		}
	}
}

// beside runs steps while the clause goes on, until stop is called, which makes
// the file that they wait for. It returns once they have written something.
func (t *trial) beside(stopFile string, out *output, steps ...script.Step) (stop func() string) {
	var r sandbox.CommandResult
	var failed error
	started := t.path(".started")
	wait := t.behind(func(ctx context.Context) {
		line := script.Line(append([]script.Step{script.WriteFile(started, "")}, steps...)...)
		r, failed = t.Commands.Stream(ctx, sandbox.Command{Line: line}, out, nil)
	})
	t.eventually(10*time.Second, "a command to begin", func() (bool, string) {
		_, err := t.Files.Stat(t.ctx, started)
		return err == nil, fmt.Sprint(err)
	})
	t.must("removing a file", t.Files.Remove(t.ctx, started))
	return func() string {
		t.must("making a file", t.Files.Write(t.ctx, stopFile, strings.NewReader(""), sandbox.WriteOptions{}))
		wait()
		t.must("a command beside", failed)
		t.want(r.ExitCode == 0, "a command beside to succeed", "status %d", r.ExitCode)
		t.must("removing a file", t.Files.Remove(t.ctx, stopFile))
		return out.String()
	}
}

// output collects what a command writes, for several goroutines.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// reader makes an io.Reader of a function.
type reader func(p []byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }
