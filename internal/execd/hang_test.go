package execd_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/hang"
	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
	"github.com/astrabox/astrabox/test/machine"
)

// silent makes whoever opens a file wait until release is called: the kernel asks
// this process, which doesn't answer.
func silent(t testing.TB, path string) (release func()) {
	t.Helper()
	machine.NeedRoot(t)
	fd, err := unix.FanotifyInit(unix.FAN_CLASS_CONTENT|unix.FAN_CLOEXEC, unix.O_RDONLY|unix.O_CLOEXEC)
	if err != nil {
		machine.Missing(t, "fanotify: %v", err)
	}
	release = sync.OnceFunc(func() { unix.Close(fd) })
	t.Cleanup(release)
	if err := unix.FanotifyMark(fd, unix.FAN_MARK_ADD, unix.FAN_OPEN_PERM, unix.AT_FDCWD, path); err != nil {
		machine.Missing(t, "fanotify's questions: %v", err)
	}
	return release
}

// copyOf copies a program.
func copyOf(t testing.TB, program, to string) string {
	t.Helper()
	b, err := os.ReadFile(program)
	if err == nil {
		err = os.WriteFile(to, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// execute has a program executed without a shell, and gives status and answer.
func execute(ctx context.Context, d *daemon, program string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.base+"/command", strings.NewReader(`{"argv":["`+program+`"]}`))
	if err != nil {
		return "", err
	}
	req.Header.Set(wire.HeaderToken, token)
	req.Header.Set("Accept", wire.OutputType)
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.Status + " " + string(b), err
}

// Programs whose file system doesn't answer hold up nothing else, however many
// are started; each start is given up by its client, or after a time, and
// too many at a time are refused. Afterwards all is as before.
func TestHangingStarts(t *testing.T) {
	d := start(t)
	dir := t.TempDir()
	program := copyOf(t, "/bin/true", dir+"/program")
	script := dir + "/script"
	if err := os.WriteFile(script, []byte("#! "+program+" -x\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	answers := silent(t, program)
	works := func(when string) {
		t.Helper()
		begun := time.Now()
		runtime.GC() // it stops the world, which a start that hangs must not keep from stopping
		if got := run(t, d, "/bin/true && echo on"); string(got.Stdout) != "on\n" {
			t.Errorf("%s: %+v", when, got)
		}
		if took := time.Since(begun); took > hang.Patience/2 {
			t.Errorf("%s a command took %v", when, took)
		}
	}
	hanging, giveUp := context.WithCancel(t.Context())
	var all sync.WaitGroup
	begin := func(n int, program string) {
		for range n {
			all.Go(func() {
				begun := time.Now()
				answer, err := execute(hanging, d, program)
				if hanging.Err() == nil && (err != nil || !strings.Contains(answer, "has not answered") && !strings.Contains(answer, "starts of programs hang") || time.Since(begun) > 2*hang.Patience) {
					t.Errorf("%s after %v: %q, %v", filepath.Base(program), time.Since(begun), answer, err)
				}
			})
		}
	}
	for _, program := range []string{program, script} {
		begin(4, program)
		works("with some that hang")
	}
	p := process(t, d, sandbox.ProcessSpec{Key: "k", Line: "exec cat"})
	a := p.attach(sandbox.AttachOptions{})
	if err := a.Send(ctx(t), []byte("x\n")); err != nil {
		t.Error(err)
	}
	until(t, a, "x\n")
	all.Wait() // each was told

	begin(hang.Max, program)
	eventually(t, "too many are refused", func() bool {
		answer, err := execute(ctx(t), d, program)
		return err == nil && strings.Contains(answer, "429") && strings.Contains(answer, "starts of programs hang")
	})
	giveUp()
	all.Wait()
	answers()
	works("afterwards")
	for _, program := range []string{program, script} {
		if answer, err := execute(ctx(t), d, program); err != nil || !strings.Contains(answer, `{"code":0`) {
			t.Errorf("%s afterwards: %q, %v", program, answer, err)
		}
	}
	if err := a.CloseStdin(ctx(t)); err != nil && !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
