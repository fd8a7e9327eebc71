package shellagent

import (
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// reaper starts processes and collects every child that ends. The agent is a
// child subreaper, so that what a command leaves behind comes to it and can be
// found; hence it must also wait for children that it never started.
type reaper struct {
	// Held over fork and registration, so that no exit is collected before
	// somebody waits for it, and over kills, so that no pid is reused meanwhile.
	mu      sync.Mutex
	waiting map[int]chan<- syscall.WaitStatus
	signals chan os.Signal
	done    chan struct{}
}

func startReaper() (*reaper, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl PR_SET_CHILD_SUBREAPER", err)
	}
	r := &reaper{
		waiting: map[int]chan<- syscall.WaitStatus{},
		signals: make(chan os.Signal, 1), // one pending signal says "look again"
		done:    make(chan struct{}),
	}
	signal.Notify(r.signals, syscall.SIGCHLD)
	go func() {
		defer close(r.done)
		for range r.signals {
			r.collect()
		}
	}()
	return r, nil
}

// stop ends the goroutine. No process may be waited for any more.
func (r *reaper) stop() {
	signal.Stop(r.signals)
	close(r.signals)
	<-r.done
}

func (r *reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return // none left, or none that ended
		}
		if c := r.waiting[pid]; c != nil {
			delete(r.waiting, pid)
			c <- status
		}
	}
}

// start runs a program in a process group of its own; its status comes through
// the channel.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr) (pid int, exited <-chan syscall.WaitStatus, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	attr.Sys = &syscall.SysProcAttr{Setpgid: true}
	pid, err = syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	c := make(chan syscall.WaitStatus, 1)
	r.waiting[pid] = c
	return pid, c, nil
}

// signal sends s to each process. One that is gone is no error: that is what is
// wanted.
func (r *reaper) signal(procs []proc, s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range procs {
		_ = syscall.Kill(p.pid, s)
	}
}
