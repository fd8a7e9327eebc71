package execd_test

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd"
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

// leased makes whoever opens a file wait until this process, which is told,
// lets go of it.
func leased(t testing.TB, path string) (release func()) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { f.Close() })
	t.Cleanup(release)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		machine.Missing(t, "leases: %v", err)
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

// loadedBy makes a program with a loader of its own, a copy of the machine's.
func loadedBy(t testing.TB, path string) (program, loader string) {
	t.Helper()
	b, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	if at < 0 || f.Class != elf.ELFCLASS64 {
		machine.Missing(t, "a /bin/true of 64 bits with a loader")
	}
	name := make([]byte, f.Progs[at].Filesz)
	if _, err := f.Progs[at].ReadAt(name, 0); err != nil {
		t.Fatal(err)
	}
	loader = copyOf(t, strings.TrimRight(string(name), "\x00"), path+".loader")
	segment := b[f.ByteOrder.Uint64(b[32:])+56*uint64(at):]
	f.ByteOrder.PutUint64(segment[8:], uint64(len(b)))
	f.ByteOrder.PutUint64(segment[32:], uint64(len(loader)+1))
	if err := os.WriteFile(path, append(b, loader+"\x00"...), 0o755); err != nil {
		t.Fatal(err)
	}
	return path, loader
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
	deep := program // the last of as many scripts as there can be
	for i := range 5 {
		next := fmt.Sprintf("%s/script%d", dir, i)
		if err := os.WriteFile(next, []byte("#!"+deep+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		deep = next
	}
	loading, loader := loadedBy(t, dir+"/loading")
	loaderAnswers := silent(t, loader)
	answers := silent(t, program)
	taken := copyOf(t, "/bin/true", dir+"/taken")
	takenAnswers := leased(t, taken)
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
	for _, program := range []string{program, script, deep, loading, taken} {
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
	loaderAnswers()
	takenAnswers()
	works("afterwards")
	for _, program := range []string{program, script, deep, loading, taken} {
		if answer, err := execute(ctx(t), d, program); err != nil || !strings.Contains(answer, `{"code":0`) {
			t.Errorf("%s afterwards: %q, %v", program, answer, err)
		}
	}
	if err := a.CloseStdin(ctx(t)); err != nil && !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// A file of variables that doesn't answer holds up no start for long.
func TestHangingVariables(t *testing.T) {
	file := t.TempDir() + "/variables"
	if err := os.WriteFile(file, []byte("A=1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	d := startWith(t, execd.Config{Log: slog.New(slog.NewTextHandler(&log, nil)), EnvFile: file})
	answers := silent(t, file)
	defer answers()
	begun := time.Now()
	if answer, err := execute(ctx(t), d, "/bin/true"); err != nil || !strings.Contains(answer, `{"code":0`) || time.Since(begun) > 2*hang.Patience {
		t.Errorf("after %v: %q, %v", time.Since(begun), answer, err)
	}
	if !strings.Contains(log.String(), file+" has not answered") {
		t.Errorf("said %q", log.String())
	}
}
