package oci

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// runner calls the OCI runtime's program.
type runner struct {
	path string // of the program
	root string // where it keeps its state
	fifo bool   // it starts sandboxes by a FIFO that we know
}

// newRunner asks the program what it is.
func newRunner(ctx context.Context, path, root string) runner {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "--version")
	cmd.Env = []string{}
	out, _ := cmd.Output()
	return runner{path, root, bytes.HasPrefix(out, []byte("runc version 1."))}
}

// start lets process 1 of a created sandbox go on. With runc that process waits
// until it could write a byte to the file exec.fifo; reading it here saves a
// tenth of a sandbox's start against running "runc start", which does the same.
// Others are asked to do it.
func (r runner) start(ctx context.Context, logFile, id string, init *process) error {
	name := filepath.Join(r.root, id, "exec.fifo")
	if !r.fifo {
		return r.run(ctx, logFile, nil, "start", id)
	}
	// Opened for writing too: so neither side waits for the other to open it.
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return r.run(ctx, logFile, nil, "start", id)
	}
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		_ = init.wait(ctx) // or ctx has ended
		_ = f.SetReadDeadline(time.Unix(1, 0))
	}()
	_, err = f.Read(make([]byte, 1))
	cause := context.Cause(ctx)
	cancel()
	<-watched
	switch {
	case err != nil && cause != nil:
		return cause
	case err != nil:
		return errors.New("start: process 1 ended before it began")
	}
	// The file says "not started yet".
	if err := os.Remove(name); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}

// run runs "runc --root … args". What it and the processes that it leaves
// behind get as standard input and output is the null device: they keep it, so
// a pipe would never end. extra become descriptors 3 and up. When ctx ends the
// program and everything in its process group is killed. The error carries
// what the program logged.
func (r runner) run(ctx context.Context, logFile string, extra []*os.File, args ...string) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	args = append([]string{"--root", r.root, "--log", logFile, "--log-format", "json"}, args...)
	cmd := exec.CommandContext(ctx, r.path, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = null, null, null
	cmd.ExtraFiles = extra
	// The environment may hold secrets of this process and is nobody's business.
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	// Should this process be killed, the half-made sandbox must not be completed
	// behind the back of its successor.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second

	goruntime.LockOSThread() // the parent-death signal is about the thread
	defer goruntime.UnlockOSThread()
	err = cmd.Run()
	if err == nil {
		return nil
	}
	// The first stage of a start that was cut off may be in no control group yet,
	// but it's in the program's process group, and our child by now.
	if cmd.Process != nil {
		reapGroup(cmd.Process.Pid)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("%s: %w", filepath.Base(r.path), err)
	}
	msg := lastLogged(logFile)
	if msg == "" {
		msg = exit.Error()
	}
	return fmt.Errorf("%s %s: %s", filepath.Base(r.path), verb(args), msg)
}

// reapGroup reaps the children of ours in a process group whose leader has been
// reaped. They were killed, so they end at once; one that doesn't within a
// second is left.
func reapGroup(pgid int) {
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); {
		pid, err := unix.Wait4(-pgid, nil, unix.WNOHANG, nil)
		if err != nil && !errors.Is(err, unix.EINTR) { // no such children
			return
		}
		if pid == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

// verb is the command among the arguments, for messages.
func verb(args []string) string {
	for _, a := range args {
		switch a {
		case "create", "start":
			return a
		}
	}
	return ""
}

// lastLogged gives the last error message in a JSON log, at most 2,000 bytes of it.
func lastLogged(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	var msg string
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		var l struct{ Level, Msg string }
		if json.Unmarshal(s.Bytes(), &l) == nil && (l.Level == "error" || l.Level == "fatal") {
			msg = l.Msg
		}
	}
	return msg[:min(len(msg), 2000)]
}

// orphans finds calls of the OCI runtime for our state directory that an
// earlier process of ours left running.
func (r runner) orphans() ([]int, error) {
	procs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	mark := []byte("\x00--root\x00" + r.root + "\x00")
	var pids []int
	for _, p := range procs {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		b, err := os.ReadFile("/proc/" + p.Name() + "/cmdline")
		if err == nil && bytes.Contains(b, mark) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// readPID reads a file in which the OCI runtime wrote a process id.
func readPID(file string) (int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("%s holds no process id", file)
	}
	return pid, nil
}
