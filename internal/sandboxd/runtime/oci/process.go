package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
)

// process is a hold on one process that stays right when its number is reused.
type process struct {
	pid  int
	file *os.File    // a pidfd that the poller watches, so waiting takes no thread
	proc *os.Process // the same process, for reaping
}

// openProcess takes hold of pid. ESRCH when there is none.
func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	p := &process{pid: pid, file: os.NewFile(uintptr(fd), "pidfd")}
	// Found after the pidfd was opened: whoever sees that still alive knows that
	// both mean the same process.
	if p.proc, err = os.FindProcess(pid); err != nil {
		p.close()
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return p, nil
}

func (p *process) close() {
	p.file.Close()
	if p.proc != nil {
		_ = p.proc.Release()
	}
}

// adopt makes this process the parent of what the OCI runtime leaves behind,
// thus of every sandbox's process 1. The machine's own process 1 would be it
// otherwise: not every one reaps soon, and it tells nobody how a process ended.
func adopt() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	return nil
}

// reap takes the status of a process that has ended, if it's our child and
// nobody took it before.
func (p *process) reap() (runtime.Exit, bool) {
	st, err := p.proc.Wait()
	if err != nil {
		return runtime.Exit{}, false
	}
	ws, ok := st.Sys().(syscall.WaitStatus)
	return exitOf(unix.WaitStatus(ws)), ok
}

func exitOf(ws unix.WaitStatus) runtime.Exit {
	if ws.Signaled() {
		return runtime.Exit{Known: true, Code: 128 + int(ws.Signal()), Signal: unix.SignalName(ws.Signal())}
	}
	return runtime.Exit{Known: true, Code: ws.ExitStatus()}
}

// kill sends SIGKILL. A process that has ended is no error.
func (p *process) kill() error {
	return p.control(func(fd int) error {
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", p.pid, err)
		}
		return nil
	})
}

func (p *process) control(f func(fd int) error) error {
	c, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := c.Control(func(fd uintptr) { inner = f(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// wait returns when the process has ended, for process 1 of a pid namespace
// after everything else in there.
func (p *process) wait(ctx context.Context) error { return p.poll(ctx, unix.POLLIN) }

// poll waits for events of the pidfd: POLLIN when the process ended, POLLHUP
// when it was reaped.
func (p *process) poll(ctx context.Context, events int16) error {
	c, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	_ = p.file.SetReadDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = c.Read(func(fd uintptr) bool {
		pfd := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(pfd, 0)
		return err == nil && n > 0 && pfd[0].Revents&events != 0
	})
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// exit tells how the process ended, when it does within d and the kernel knows.
func (p *process) exit(ctx context.Context, d time.Duration) runtime.Exit {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if err := p.wait(ctx); err != nil {
		return runtime.Exit{}
	}
	if e, ok := p.reap(); ok {
		return e
	}
	// Somebody else's child: the kernel tells the status once that one reaped it.
	if err := p.poll(ctx, unix.POLLHUP); err != nil {
		return runtime.Exit{}
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err := p.control(func(fd int) error { return unix.IoctlPidfdInfo(fd, &info) })
	if err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return runtime.Exit{}
	}
	return exitOf(unix.WaitStatus(info.Exit_code))
}

// reapStages reaps what a cut-off call of the OCI runtime left among our
// children: stages of a sandbox's start that ended when the program did. Living
// ones belong to starts under way. Nobody else waits for them; isStage tells them.
func reapStages() {
	for range 2 { // one may be ending right now
		procs, err := os.ReadDir("/proc")
		if err != nil {
			return
		}
		for _, e := range procs {
			pid, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
			if err != nil {
				continue
			}
			// PID (NAME) STATE PPID …, and NAME may hold anything.
			name, rest, ok := strings.Cut(string(b), ") ")
			_, name, _ = strings.Cut(name, " (")
			f := strings.Fields(rest)
			if !ok || len(f) < 2 || f[0] != "Z" || f[1] != strconv.Itoa(os.Getpid()) || !isStage(name) {
				continue
			}
			if p, err := os.FindProcess(pid); err == nil {
				_, _ = p.Wait()
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// isStage says whether a child of this name is a stage of a sandbox's start. The
// runtime names its stages, and executes them from an open copy of itself: until
// they come to name themselves the kernel calls them by its descriptor.
func isStage(name string) bool {
	return strings.HasPrefix(name, "runc:[") || name != "" && strings.Trim(name, "0123456789") == ""
}

// init gives the process number of b's process 1, zero when it has none.
func (r *Runtime) init(b box) (int, error) {
	p, err := r.openInit(b)
	if p == nil {
		return 0, err
	}
	p.close()
	return p.pid, nil
}

// openInit takes hold of b's process 1; nil when it doesn't run.
func (r *Runtime) openInit(b box) (*process, error) {
	pid, err := readPID(b.run + "/pid")
	if err != nil {
		return nil, ignoreMissing(err)
	}
	return r.openMember(b, pid)
}

// openMember takes hold of pid if it lives in b's control group.
func (r *Runtime) openMember(b box, pid int) (*process, error) {
	p, err := openProcess(pid)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // gone, or a thread by now
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	// Asked after taking hold: the answer is about the process that we hold.
	member := r.groups.Contains(b.id, pid)
	if ended := p.ended(); ended || !member {
		if ended && member {
			_, _ = p.reap()
		}
		p.close()
		return nil, nil
	}
	return p, nil
}

func (p *process) ended() bool {
	var ended bool
	_ = p.control(func(fd int) error {
		pfd := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(pfd, 0)
		ended = err == nil && n > 0
		return err
	})
	return ended
}

// killAll ends every process of b and returns those that it killed.
func (r *Runtime) killAll(ctx context.Context, b box) ([]int, error) {
	var killed []int
	// Process 1 takes all others of its pid namespace along, and it has ended
	// only after they have.
	first, err := r.openInit(b)
	if err != nil {
		return nil, err
	}
	if first != nil {
		defer first.close()
		if err := first.kill(); err != nil {
			return nil, err
		}
		killed = append(killed, first.pid)
		if err := first.wait(ctx); err != nil {
			return killed, fmt.Errorf("process %d doesn't end: %w", first.pid, err)
		}
		_, _ = first.reap()
	}
	// What is left are stages of a start that was cut off.
	for {
		pids, err := r.groups.Procs(b.id)
		if err != nil {
			return killed, err
		}
		left := 0
		for _, pid := range pids {
			p, err := r.openMember(b, pid)
			if err != nil {
				return killed, err
			}
			if p == nil { // ended, not reaped yet
				continue
			}
			left++
			if !slices.Contains(killed, pid) {
				killed = append(killed, pid)
			}
			err = p.kill()
			if err == nil {
				err = p.wait(ctx)
			}
			if err == nil {
				_, _ = p.reap()
			}
			p.close()
			if err != nil {
				return killed, fmt.Errorf("process %d doesn't end: %w", pid, err)
			}
		}
		if left == 0 {
			return killed, nil
		}
	}
}
