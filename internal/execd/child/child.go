// Package child starts and reaps the daemon's child processes, and kills what
// they started. The command and process code of the daemon call it.
//
// All children go through one [Reaper], which owns every wait of the process.
// That is what lets the daemon be PID 1: it also reaps orphans, and it can't
// take an exit status away from the one who waits for it, because nobody else
// waits. For the same reason nothing in the daemon may use os/exec.
//
// A Reaper and its children are safe for concurrent use.
package child

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrClosed: the reaper doesn't start anything any more.
var ErrClosed = errors.New("child: the daemon is stopping")

// OOMScore is the oom_score_adj of children: when memory runs out a command
// dies, not the daemon that reports it.
const OOMScore = 500

// maxForks bounds how many forks run at a time. More make nothing faster, and
// each needs a thread, which the runtime then keeps.
const maxForks = 4

// Spec is a program to start. It leads its own session, so that a signal to
// its process group reaches what it started.
type Spec struct {
	Path string   // absolute
	Args []string // from argv[0]
	Env  []string
	Dir  string // exists
	// Files are the descriptors 0, 1, 2, … of the child. They have to be in
	// blocking mode; the caller closes its own copies.
	Files []int
	// Terminal makes descriptor 0 the controlling terminal.
	Terminal   bool
	Credential *syscall.Credential // nil: the daemon's own
	// Apart are the clone flags of namespaces that the child is the first
	// process of. Such a child keeps what [Reaper.Restrict] takes from others.
	Apart uintptr
}

// Exit is how a child ended.
type Exit struct {
	Code   int    // 128+n for a signal
	Signal string // "SIGKILL", or empty
}

// Child is a started process.
type Child struct {
	PID int

	r    *Reaper
	done chan struct{}
	exit Exit // set before done is closed
}

// Done is closed when the child has ended and was reaped.
func (c *Child) Done() <-chan struct{} { return c.done }

// Exit says how the child ended. It is valid once Done is closed.
func (c *Child) Exit() Exit { return c.exit }

// Signal sends sig to the child's process group. It does nothing once the
// child was reaped, since the number may then belong to another.
func (c *Child) Signal(sig syscall.Signal) error {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if c.r.children[c.PID] != c {
		return nil
	}
	return syscall.Kill(-c.PID, sig)
}

// Reaper starts children and waits for all of them.
type Reaper struct {
	all bool // reap orphans too

	forks chan struct{} // one entry for each fork; full: others wait

	mu       sync.Mutex
	children map[int]*Child
	starting int  // forks whose pids aren't registered yet
	unknown  bool // a child that may be of one of them waits to be reaped
	oom      *oomScore
	closed   bool

	give    func() error // of Restrict; nil: nothing is given up
	jobs    chan func(given error)
	workers atomic.Int32

	sigs chan os.Signal
	quit chan struct{}
	wg   sync.WaitGroup
}

// NewReaper makes a running Reaper. With all it reaps every child of the
// process, orphans that fell to it included, and there may be only one; without,
// only those that it started (for use inside a larger program).
func NewReaper(all bool) *Reaper {
	r := &Reaper{
		all:      all,
		forks:    make(chan struct{}, maxForks),
		children: map[int]*Child{},
		jobs:     make(chan func(error)),
		sigs:     make(chan os.Signal, 1),
		quit:     make(chan struct{}),
	}
	if all {
		r.oom = openOOMScore()
	}
	signal.Notify(r.sigs, syscall.SIGCHLD)
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		for {
			r.reap()
			select {
			case <-r.sigs:
			case <-r.quit:
				return
			}
		}
	}()
	return r
}

// Stop refuses new children from now on; those that run are still reaped.
func (r *Reaper) Stop() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
}

// Close stops reaping. Children that still run are left alone.
func (r *Reaper) Close() {
	r.Stop()
	signal.Stop(r.sigs)
	close(r.quit)
	r.wg.Wait()
	if r.oom != nil {
		r.oom.close()
	}
}

// Start starts a program. The error is the system's (E2BIG, EACCES, ENOENT,
// EAGAIN, …) or ErrClosed.
func (r *Reaper) Start(s Spec) (*Child, error) {
	files := make([]uintptr, len(s.Files))
	for i, fd := range s.Files {
		files[i] = uintptr(fd)
	}
	attr := &syscall.ProcAttr{
		Dir: s.Dir, Env: s.Env, Files: files,
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: s.Terminal, Credential: s.Credential, Cloneflags: s.Apart},
	}
	c := &Child{r: r, done: make(chan struct{})}

	// The parent only continues when the child has exec'd, which takes its
	// time on a busy machine. So forks run beside each other, without the lock.
	r.forks <- struct{}{}
	defer func() { <-r.forks }()
	if err := r.beginStart(); err != nil {
		return nil, err
	}
	var pid int
	var err error
	fork := func() { pid, err = forkUnblocked(s.Path, s.Args, attr) }
	if s.Apart != 0 {
		onOwnThread(fork)
	} else if given := r.onForker(fork); given != nil {
		err = given
	}
	c.PID = pid
	r.endStart(c, err == nil)
	if err != nil {
		return nil, &os.PathError{Op: "fork/exec", Path: s.Path, Err: err}
	}
	return c, nil
}

func (r *Reaper) beginStart() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return ErrClosed
	}
	if r.starting == 0 && r.oom != nil {
		// The child inherits the score, so there is no moment at which it
		// runs with the daemon's.
		r.oom.set(OOMScore)
	}
	r.starting++
	return nil
}

func (r *Reaper) endStart(c *Child, started bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if started {
		r.children[c.PID] = c
	}
	if r.starting--; r.starting == 0 && r.oom != nil {
		r.oom.restore()
	}
	if r.unknown {
		r.unknown = false
		select {
		case r.sigs <- syscall.SIGCHLD:
		default: // it will look anyway
		}
	}
}

// forkUnblocked starts a program that has no signal blocked: a child inherits
// the mask of the thread that forks it, and that may be what the daemon's parent
// left blocked.
func forkUnblocked(path string, args []string, attr *syscall.ProcAttr) (pid int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var none, inherited unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &none, &inherited); err != nil {
		return 0, os.NewSyscallError("sigprocmask", err)
	}
	// The call can't fail: it is the one above with a mask that was valid.
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &inherited, nil) }()
	return syscall.ForkExec(path, args, attr)
}

func (r *Reaper) reap() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.all {
		which := -1
		if r.starting > 0 {
			if which = waiting(); which == 0 {
				return
			}
			if r.children[which] == nil {
				// Perhaps the child of a Start that hasn't registered it yet.
				// It stays, and its number with it, until then.
				r.unknown = true
				break
			}
		}
		pid, status, ok := wait(which)
		if !ok {
			return
		}
		if c := r.children[pid]; c != nil {
			r.ended(c, status)
		}
	}
	if !r.all && r.starting > 0 {
		r.unknown = true // what the signal is about
	}
	for pid, c := range r.children {
		if _, status, ok := wait(pid); ok {
			r.ended(c, status)
		}
	}
}

func (r *Reaper) ended(c *Child, status syscall.WaitStatus) {
	delete(r.children, c.PID)
	c.exit = exitOf(status)
	close(c.done)
}

// wait reaps pid (-1: any child) if it has ended.
func wait(pid int) (int, syscall.WaitStatus, bool) {
	var status syscall.WaitStatus
	for {
		got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		return got, status, err == nil && got > 0
	}
}

// waiting gives a child that has ended and can be reaped; 0: there is none.
func waiting() int {
	var info struct {
		_   [3]int32
		_   [unsafe.Sizeof(uintptr(0)) / 8]int32 // what follows is aligned like a pointer
		pid int32
		_   [128]byte
	}
	const how = syscall.WEXITED | syscall.WNOHANG | syscall.WNOWAIT
	for {
		_, _, err := syscall.Syscall6(syscall.SYS_WAITID, unix.P_ALL, 0, uintptr(unsafe.Pointer(&info)), how, 0, 0)
		if err != syscall.EINTR {
			return int(info.pid)
		}
	}
}

func exitOf(s syscall.WaitStatus) Exit {
	if s.Signaled() {
		return Exit{Code: 128 + int(s.Signal()), Signal: unix.SignalName(s.Signal())}
	}
	return Exit{Code: s.ExitStatus()}
}
