package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd"
	"github.com/astrabox/astrabox/internal/execd/confine"
	"github.com/astrabox/astrabox/internal/execd/isolated"
	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
	"github.com/astrabox/astrabox/test/machine"
)

const (
	token    = "a-token-for-tests"
	patience = 20 * time.Second
	// runMain makes the test binary be the program: "main", or "pid1" when it
	// is the first process of its PID namespace; "rude" leaves it every signal
	// that can be ignored and blocked so; "noproc" has no /proc
	// and "nobash" no bash; "ownrun" has the directory of runAt as its /run.
	runMain = "EXECD_TEST_RUN"
	runAt   = "EXECD_TEST_RUN_AT"
)

func TestMain(m *testing.M) {
	if isolated.Inside() {
		os.Exit(execd.SessionMain(true))
	}
	switch how := os.Getenv(runMain); how {
	case "":
		os.Exit(m.Run())
	case "bare":
		fmt.Fprintln(os.Stderr, bare())
		os.Exit(1)
	case "rude":
		fmt.Fprintln(os.Stderr, rude())
		os.Exit(1)
	case "noproc", "nobash", "ownrun":
		if err := map[string]func() error{"noproc": noProc, "nobash": noBash, "ownrun": ownRun}[how](); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Unsetenv(runMain)
		main()
	case "pid1":
		if err := ownProc(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fallthrough
	default:
		os.Unsetenv(runMain)
		if path := os.Getenv(countFile); path != "" {
			go countGoroutines(path)
		}
		main()
	}
}

// bare becomes the program without the capabilities that mounts take.
func bare() error {
	runtime.LockOSThread()
	if err := confine.Thread(^confine.Mounting, confine.Filter{}); err != nil {
		return err
	}
	os.Setenv(runMain, "main")
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}

// rude becomes the program with all signals ignored and blocked, whatever the
// runtime would do about it.
func rude() error {
	runtime.LockOSThread()
	ignore := [4]uintptr{1} // SIG_IGN in the kernel's structure
	for n := 1; n <= 64; n++ {
		if n == int(unix.SIGKILL) || n == int(unix.SIGSTOP) {
			continue
		}
		if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(n), uintptr(unsafe.Pointer(&ignore)), 0, 8, 0, 0); e != 0 {
			return fmt.Errorf("ignore signal %d: %w", n, e)
		}
	}
	all := unix.Sigset_t{}
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, nil); err != nil {
		return err
	}
	os.Setenv(runMain, "main")
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}

// ownProc shows the PID namespace in /proc.
func ownProc() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// ownRun shows a directory of the test at /run.
func ownRun() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("mount /: %w", err)
	}
	return unix.Mount(os.Getenv(runAt), "/run", "", unix.MS_BIND, "")
}

// daemon is a running program.
type daemon struct {
	t    *testing.T
	cmd  *exec.Cmd
	base string
	conn *client.Conn
}

type setup struct {
	pid1    bool
	rude    bool     // its parent left it all signals ignored and blocked
	args    []string // besides --listen, --token-fd and --ready-fd
	inherit bool     // leave an open descriptor behind
	// noProc has no /proc, foreignProc that of another PID namespace.
	noProc, foreignProc bool
	noBash              bool
	run                 string // a directory to have as /run
	descriptors         uint64 // that it may have open; 0: as many as the test
	socket              bool   // it inherits the socket that it listens on
	dir                 string // it starts in
	env                 []string
}

// start starts the program and waits until it says that it is ready.
func start(t *testing.T, s setup) *daemon {
	t.Helper()
	if s.pid1 || s.noProc || s.foreignProc || s.noBash {
		machine.NeedRoot(t)
	}
	addr := freePort(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := append([]string{self, "--listen", addr, "--token-fd", "3", "--ready-fd", "4"}, s.args...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stderr = t.Output()
	cmd.Env = append(os.Environ(), runMain+"=main")
	if s.rude {
		cmd.Env = append(os.Environ(), runMain+"=rude")
	}
	if s.pid1 {
		cmd.Env = append(os.Environ(), runMain+"=pid1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	}
	switch {
	case s.noProc:
		cmd.Env = append(os.Environ(), runMain+"=noproc")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	case s.run != "":
		cmd.Env = append(os.Environ(), runMain+"=ownrun", runAt+"="+s.run)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	case s.noBash:
		cmd.Env = append(os.Environ(), runMain+"=nobash")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	case s.foreignProc:
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	}
	cmd.Dir, cmd.Env = s.dir, append(cmd.Env, s.env...)
	tokenR, tokenW := pipe(t)
	readyR, readyW := pipe(t)
	cmd.ExtraFiles = []*os.File{tokenR, readyW}
	if s.inherit {
		cmd.ExtraFiles = append(cmd.ExtraFiles, tokenR, tokenR, tokenR)
	}
	if s.socket {
		cmd.ExtraFiles = append(cmd.ExtraFiles, listening(t, addr))
		cmd.Args = append(cmd.Args, "--listen-fd", "5")
	}
	if err := startWith(cmd, s.descriptors); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	tokenR.Close()
	readyW.Close()
	if _, err := tokenW.WriteString(token + "\n"); err != nil {
		t.Fatal(err)
	}
	tokenW.Close()
	if b, err := io.ReadAll(readyR); err != nil || string(b) != wire.ReadyLine {
		t.Fatalf("the daemon isn't ready: %q, %v", b, err)
	}
	u := &url.URL{Scheme: "http", Host: addr}
	return &daemon{t, cmd, u.String(), client.Dial(client.Fixed(sandbox.Endpoint{URL: u, Headers: map[string]string{wire.HeaderToken: token}}), nil)}
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return c
}

func (d *daemon) run(line string) sandbox.CommandResult {
	d.t.Helper()
	res, err := client.Commands(d.conn).Run(ctx(d.t), sandbox.Command{Line: line})
	if err != nil {
		d.t.Fatalf("%s: %v", line, err)
	}
	return res
}

// out is the trimmed output of a command that has to succeed.
func (d *daemon) out(line string) string {
	d.t.Helper()
	res := d.run(line)
	if res.ExitCode != 0 {
		d.t.Fatalf("%s: %+v", line, res)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// exit waits for the program's exit code.
func (d *daemon) exit(within time.Duration) int {
	d.t.Helper()
	done := make(chan error, 1)
	go func() { done <- d.cmd.Wait() }()
	select {
	case err := <-done:
		var e *exec.ExitError
		if err != nil && !errors.As(err, &e) {
			d.t.Fatal(err)
		}
		return d.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		d.t.Fatalf("still running after %v", within)
		return 0
	}
}

func (d *daemon) signal(sig syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(sig); err != nil {
		d.t.Fatal(err)
	}
}

// Orphans are reaped, and no command loses its exit status to that.
func TestOrphansAreReaped(t *testing.T) {
	d := start(t, setup{pid1: true, args: []string{"--", "sleep", "1000"}})
	if pid1 := d.out("cat /proc/1/comm"); pid1 != "execd.test" && !strings.HasPrefix("execd.test", pid1) {
		t.Fatalf("PID 1 is %q", pid1)
	}
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 40 {
				want := (w*40 + i) % 120
				res, err := client.Commands(d.conn).Run(ctx(t), sandbox.Command{Line: fmt.Sprintf(
					"for i in 1 2 3; do (setsid sh -c 'exit 9' &); done; exit %d", want)})
				if err != nil || res.ExitCode != want {
					t.Errorf("exit %d, %v, want %d", res.ExitCode, err, want)
					return
				}
			}
		})
	}
	wg.Wait()
	end := time.Now().Add(patience)
	for d.out("grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l") != "0" {
		if time.Now().After(end) {
			t.Fatal("zombies stay")
		}
	}
}

func TestTokenStaysWithTheDaemon(t *testing.T) {
	d := start(t, setup{pid1: true, args: []string{"--", "sleep", "1000"}})
	for _, line := range []string{"env", "tr '\\0' '\\n' < /proc/1/environ", "tr '\\0' ' ' < /proc/1/cmdline", "ls -l /proc/self/fd"} {
		if res := d.run(line); strings.Contains(string(res.Stdout), token) {
			t.Errorf("%s shows the token", line)
		}
	}
	// Not even an account's programs get at the daemon's memory or files.
	p := client.Processes(d.conn)
	id, err := p.Start(ctx(t), sandbox.ProcessSpec{Key: "k", User: "nobody", Line: "cat /proc/1/environ /proc/1/maps; ls /proc/1/fd; exit 0"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := p.Attach(ctx(t), id, sandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for {
		f, err := a.Recv(ctx(t))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if f.Channel == sandbox.Stdout && len(f.Data) > 0 {
			t.Errorf("readable: %q", f.Data)
		}
	}
}

func TestEndOfTheEntrypoint(t *testing.T) {
	for name, c := range map[string]struct {
		entrypoint []string
		want       int
	}{
		"status":  {[]string{"sh", "-c", "exit 7"}, 7},
		"success": {[]string{"true"}, 0},
		"signal":  {[]string{"sh", "-c", "kill -TERM $$"}, 128 + 15},
	} {
		t.Run(name, func(t *testing.T) {
			d := start(t, setup{pid1: true, args: append([]string{"--"}, c.entrypoint...)})
			if got := d.exit(patience); got != c.want {
				t.Errorf("exit %d, want %d", got, c.want)
			}
		})
	}
}

func TestSignalsReachTheEntrypoint(t *testing.T) {
	dir := t.TempDir()
	d := start(t, setup{pid1: true, args: []string{"--", "sh", "-c", fmt.Sprintf(
		`cd %s; trap 'echo usr1 > usr1' USR1; trap 'exit 42' TERM; echo up > up; while :; do sleep 0.01; done`, dir)}})
	has := func(name string) {
		t.Helper()
		if res := d.run("for i in $(seq 1000); do test -s " + dir + "/" + name + " && exit 0; sleep 0.01; done; exit 1"); res.ExitCode != 0 {
			t.Fatalf("no %s", name)
		}
	}
	has("up")
	d.signal(syscall.SIGUSR1)
	has("usr1")
	d.signal(syscall.SIGTERM)
	if got := d.exit(patience); got != 42 {
		t.Errorf("exit %d, want 42", got)
	}
}

// SIGTERM ends the daemon in the time that it is given, whatever runs, and
// clients get to know how it ended.
func TestGracefulEnd(t *testing.T) {
	d := start(t, setup{args: []string{"--graceful-shutdown-timeout", "500ms"}})
	results := make(chan string, 2)
	ready := t.TempDir()
	for _, line := range []string{
		"trap 'echo bye; exit 3' TERM; touch $F.polite; while :; do sleep 0.01; done",
		"trap '' TERM; touch $F.deaf; while :; do sleep 0.01; done",
	} {
		go func() {
			res, err := client.Commands(d.conn).Run(ctx(t), sandbox.Command{Line: line, Env: map[string]string{"F": ready + "/f"}})
			results <- fmt.Sprintf("%q %d %v", res.Stdout, res.ExitCode, err)
		}()
	}
	p := client.Processes(d.conn)
	id, err := p.Start(ctx(t), sandbox.ProcessSpec{Key: "k", TTY: &sandbox.Size{Cols: 80, Rows: 24}, Line: "exec bash --norc -i"})
	if err != nil {
		t.Fatal(err)
	}
	a, err := p.Attach(ctx(t), id, sandbox.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Recv(ctx(t)); err != nil { // the prompt: the shell is ready
		t.Fatal(err)
	}
	if res := d.run("cd " + ready + "; for i in $(seq 1000); do test -e f.polite && test -e f.deaf && exit 0; sleep 0.01; done; exit 1"); res.ExitCode != 0 {
		t.Fatal("the commands don't run")
	}
	begun := time.Now()
	d.signal(syscall.SIGTERM)
	for {
		f, err := a.Recv(ctx(t))
		if err != nil {
			t.Errorf("the terminal ended without an exit: %v", err)
			break
		}
		if f.Exit != nil {
			break
		}
	}
	got := map[string]bool{<-results: true, <-results: true}
	if !got[`"bye\n" 3 <nil>`] || !got[`"" 137 <nil>`] {
		t.Errorf("%v", got)
	}
	if code := d.exit(patience); code != 0 {
		t.Errorf("exit %d", code)
	}
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("took %v", took)
	}
}

// What the daemon inherited doesn't reach its children.
func TestChildrenStartClean(t *testing.T) {
	d := start(t, setup{rude: true, inherit: true})
	for what, field := range map[string]string{"ignored": "SigIgn", "blocked": "SigBlk"} {
		if got := d.out("sed -n 's/^" + field + ":\t//p' /proc/self/status"); strings.Trim(got, "0") != "" || got == "" {
			t.Errorf("%s signals: %q", what, got)
		}
	}
	if got := d.out("ls /proc/self/fd | wc -l"); got != "4" {
		t.Errorf("%s descriptors, want 4", got)
	}
	if got := d.out("cat /proc/self/oom_score_adj"); got != "500" {
		t.Errorf("oom_score_adj %s, want 500", got)
	}
	own, err := os.ReadFile("/proc/" + strconv.Itoa(d.cmd.Process.Pid) + "/oom_score_adj")
	if err != nil || strings.TrimSpace(string(own)) == "500" {
		t.Errorf("the daemon's own score is %q, %v", own, err)
	}
	d.signal(syscall.SIGTERM)
	if code := d.exit(patience); code != 0 {
		t.Errorf("exit %d", code)
	}
}

func TestOptions(t *testing.T) {
	t.Setenv("EXECD_ACCESS_TOKEN", "")
	for _, args := range [][]string{
		{}, {"--token-fd", "999"}, {"--nope"}, {"--no-token", "--graceful-shutdown-timeout", "-1s"},
	} {
		if o, err := options(args); err == nil {
			t.Errorf("%v is accepted: %+v", args, o.Listen)
		}
	}
	t.Setenv("EXECD_ACCESS_TOKEN", token)
	o, err := options([]string{"--port", "1234", "--", "a", "--b"})
	if err != nil || o.Token != token || o.Listen != "0.0.0.0:1234" || len(o.Entrypoint) != 2 {
		t.Errorf("%v, %v", o.Entrypoint, err)
	}
	if v, ok := os.LookupEnv("EXECD_ACCESS_TOKEN"); ok {
		t.Errorf("the token stays in the environment: %v", v != "")
	}
}
