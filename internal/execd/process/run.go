package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/launch"
	"github.com/astrabox/astrabox/internal/execd/pump"
)

// endOfFile is what a terminal's line discipline takes as the end of input.
const endOfFile = 4

// maxStdin bounds what a run's stdin queue holds.
const maxStdin = 1 << 20

// stdinStep is how much is written, and then reported, at a time.
const stdinStep = 64 << 10

// run is one run of a process. Its fields belong to the process's lock, apart
// from the files, which are set at the start.
type run struct {
	n     int
	p     *Process
	child *child.Child

	stdin   *os.File // the terminal's master, or a pipe
	outputs []output
	tty     bool

	queue    []byte // stdin, accepted and not yet written
	accepted int64
	written  int64
	eof      bool // stdin ends after the queue
	broken   bool // stdin is closed or has no reader: the rest is dropped
	ended    bool

	over chan struct{} // closed after everything about the run is done
}

type output struct {
	channel byte
	file    *os.File
}

// start starts the next run. The process's lock is held.
func (p *Process) start() error {
	req := p.spec.Launch
	req.Mark, req.Terminal = p.mark, p.spec.TTY != nil
	plan, err := launch.Prepare(p.m.ending, p.m.cfg.Accounts, req)
	if err != nil && p.m.isStopping() {
		err = ErrStopping
	}
	if err != nil {
		return err
	}
	defer plan.Close()
	r := &run{n: p.runs + 1, p: p, tty: p.spec.TTY != nil, over: make(chan struct{})}
	var theirs []int
	if r.tty {
		theirs, err = r.openTerminal(p.size, plan)
	} else {
		theirs, err = r.openPipes(plan)
	}
	defer func() {
		for _, fd := range theirs {
			syscall.Close(fd)
		}
	}()
	if err == nil {
		r.child, err = p.m.cfg.Reaper.Start(plan.Spec)
	}
	if err != nil {
		r.close()
		return err
	}
	p.runs, p.now, p.leader, p.last = r.n, r, r.child.PID, nil
	p.m.running.Add(1)
	go func() {
		defer p.m.running.Done()
		r.watch()
	}()
	p.wake()
	return nil
}

func (r *run) openPipes(plan *launch.Plan) (theirs []int, err error) {
	in, fd0, err := pump.Pipe(true)
	if err != nil {
		return nil, err
	}
	r.stdin, theirs = in, append(theirs, fd0)
	for _, channel := range []byte{Stdout, Stderr} {
		f, fd, err := pump.Pipe(false)
		if err != nil {
			return theirs, err
		}
		r.outputs, theirs = append(r.outputs, output{channel, f}), append(theirs, fd)
	}
	plan.SetFiles(theirs[0], theirs[1], theirs[2])
	return theirs, nil
}

func (r *run) openTerminal(size Size, plan *launch.Plan) (theirs []int, err error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("no terminal: %w", err)
	}
	defer slave.Close()
	r.stdin, r.outputs = master, []output{{Stdout, master}}
	r.resize(size)
	if plan.Credential != nil {
		// The account may open its terminal by name, as after a login.
		if err := slave.Chown(int(plan.Credential.Uid), -1); err != nil && !errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
	}
	fd, err := unix.FcntlInt(slave.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	plan.SetFiles(fd, fd, fd)
	return []int{fd}, nil
}

func (r *run) close() {
	if r.stdin != nil {
		r.stdin.Close()
	}
	for _, o := range r.outputs {
		o.file.Close()
	}
}

// watch carries output and input until the run is over, and notes its end only
// when all of its output is in the buffer.
func (r *run) watch() {
	defer close(r.over)
	pumps := make([]*pump.Pump, len(r.outputs))
	open := make([]bool, len(r.outputs))
	var reading, writing sync.WaitGroup
	for i, o := range r.outputs {
		pumps[i] = pump.NewCollecting(o.file)
		reading.Go(func() {
			open[i] = pumps[i].Run(func(b []byte) bool { return r.p.write(r.n, o.channel, b) })
		})
	}
	writing.Go(r.feed)
	<-r.child.Done()
	for _, p := range pumps {
		p.Exited()
	}
	reading.Wait()

	r.p.mu.Lock()
	exit := r.child.Exit()
	r.ended = true
	r.p.now, r.p.last, r.p.taken = nil, &exit, r.accepted
	r.p.buf.ended(r.n, exit)
	r.p.wake()
	r.p.mu.Unlock()

	r.stdin.Close()
	writing.Wait()
	for i, o := range r.outputs {
		switch {
		case r.tty: // it is the same file as stdin
		case open[i]:
			r.p.m.discard.Take(o.file)
		default:
			o.file.Close()
		}
	}
}

// feed writes the queue to stdin.
func (r *run) feed() {
	mu := &r.p.mu
	mu.Lock()
	defer mu.Unlock()
	for {
		switch {
		case r.ended:
			return
		case len(r.queue) > 0:
			chunk := r.queue[:min(len(r.queue), stdinStep)]
			if !r.broken {
				mu.Unlock()
				_, err := r.stdin.Write(chunk)
				mu.Lock()
				r.broken = r.broken || err != nil
			}
			r.written += int64(len(chunk))
			if r.queue = r.queue[len(chunk):]; len(r.queue) == 0 {
				r.queue = nil
			}
			r.p.output.Broadcast() // how much was written
			r.p.input.Broadcast()
		case r.eof && !r.broken && r.tty:
			mu.Unlock()
			_, _ = r.stdin.Write([]byte{endOfFile})
			mu.Lock()
			r.eof = false // a terminal's reader may go on after an end of file
		case r.eof && !r.broken:
			r.broken = true
			r.stdin.Close()
		default:
			r.p.input.Wait()
		}
	}
}

// accept queues stdin. The process's lock is held.
func (r *run) accept(b []byte) error {
	if len(r.queue)+len(b) > maxStdin {
		return ErrStdinWindow
	}
	if r.eof && !r.tty {
		return nil // after the end of input
	}
	r.queue = append(r.queue, b...)
	r.accepted += int64(len(b))
	r.p.input.Broadcast()
	return nil
}

func (r *run) resize(s Size) {
	if r.tty {
		_ = pty.Setsize(r.stdin, &pty.Winsize{Rows: s.Rows, Cols: s.Cols}) // gone: nothing to resize
	}
}

func (r *run) signal(sig syscall.Signal) {
	front := 0
	if r.tty {
		front = r.foreground()
	}
	if front > 0 && (sig == syscall.SIGINT || sig == syscall.SIGQUIT) {
		_ = syscall.Kill(-front, sig)
		return
	}
	_ = r.child.Signal(sig)
	if front > 0 && front != r.child.PID {
		_ = syscall.Kill(-front, sig)
	}
}

// foreground gives the terminal's foreground process group; 0: none.
func (r *run) foreground() int {
	rc, err := r.stdin.SyscallConn()
	if err != nil {
		return 0
	}
	var group int32
	_ = rc.Control(func(fd uintptr) {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, fd, unix.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
		if e != 0 {
			group = 0
		}
	})
	return int(group)
}
