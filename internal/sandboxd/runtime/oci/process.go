package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"golang.org/x/sys/unix"
)

// process is a hold on one process that stays right when its number is reused.
type process struct {
	pid  int
	file *os.File // a pidfd that the poller watches, so waiting takes no thread
}

// openProcess takes hold of pid. ESRCH when there is none.
func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return &process{pid, os.NewFile(uintptr(fd), "pidfd")}, nil
}

func (p *process) close() { p.file.Close() }

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
	// The kernel tells the status once the process is reaped. Who does that is
	// process 1 of this machine, usually at once.
	if err := p.poll(ctx, unix.POLLHUP); err != nil {
		return runtime.Exit{}
	}
	info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
	err := p.control(func(fd int) error { return unix.IoctlPidfdInfo(fd, &info) })
	if err != nil || info.Mask&unix.PIDFD_INFO_EXIT == 0 {
		return runtime.Exit{}
	}
	status := unix.WaitStatus(info.Exit_code)
	if status.Signaled() {
		return runtime.Exit{Known: true, Code: 128 + int(status.Signal()), Signal: unix.SignalName(status.Signal())}
	}
	return runtime.Exit{Known: true, Code: status.ExitStatus()}
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
	if !r.groups.Contains(b.id, pid) || p.ended() {
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
	seen := func(pid int) bool {
		for _, k := range killed {
			if k == pid {
				return true
			}
		}
		return false
	}
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
			if !seen(pid) {
				killed = append(killed, pid)
			}
			err = p.kill()
			if err == nil {
				err = p.wait(ctx)
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
