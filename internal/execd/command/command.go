// Package command runs single commands of a sandbox and hands on their output
// as it comes. The daemon's HTTP handlers call it.
//
// A command's exit is told only after all that it wrote. A command that runs
// out of time or whose caller goes away is killed with everything that it
// started; one that ends by itself leaves what it put into the background alone.
//
// A Runner is safe for concurrent use. Failures to start are the errors of
// packages launch and child, ErrTooMany, or the system's.
package command

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/launch"
	"github.com/astrabox/astrabox/internal/execd/pump"
)

// MaxCommands bounds how many commands run at a time; more are refused.
const MaxCommands = 512

// killTime bounds the wait for killed processes to be gone.
const killTime = 5 * time.Second

// ErrTooMany: MaxCommands are running.
var ErrTooMany = errors.New("too many commands are running")

// Channels of output.
const (
	Stdout byte = 1
	Stderr byte = 2
)

// Runner runs commands.
type Runner struct {
	accounts *account.DB
	reaper   *child.Reaper
	null     int
	discard  pump.Discarder

	mu      sync.Mutex
	running map[*child.Child]struct{}
	active  int // running, starting or handing on their last output
	wg      sync.WaitGroup
	stopped bool
	killing chan struct{} // closed when all are to be killed
	kill    sync.Once
}

// NewRunner makes a Runner. [Runner.Close] ends it.
func NewRunner(accounts *account.DB, reaper *child.Reaper) (*Runner, error) {
	null, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("command: %s: %w", os.DevNull, err)
	}
	return &Runner{accounts: accounts, reaper: reaper, null: null, running: map[*child.Child]struct{}{}, killing: make(chan struct{})}, nil
}

// Run is one command.
type Run struct {
	Launch  launch.Request
	Timeout time.Duration // zero: none
	// Merge sends stderr where stdout goes.
	Merge bool
	// Files are the command's descriptors from 3 on. The caller closes them.
	Files []*os.File
	// Started is called once when the command was started, before any output.
	Started func(*child.Child)
	// Output gets what the command writes, valid during the call, from one
	// goroutine for each channel. false: no more is wanted.
	Output func(channel byte, b []byte) bool
	// Stopping is called before the command is killed. It should see to it
	// that Output doesn't block for long any more.
	Stopping func()
}

// Result is how a command ended.
type Result struct {
	child.Exit
	TimedOut bool
}

// Run runs a command and returns when it has ended and its output was handed
// on. An error means that it wasn't started. When ctx ends first the command is
// killed; that isn't an error.
func (r *Runner) Run(ctx context.Context, c Run) (Result, error) {
	if c.Launch.Mark == "" {
		c.Launch.Mark = rand.Text()
	}
	mark := c.Launch.Mark
	plan, err := launch.Prepare(ctx, r.accounts, c.Launch)
	if err != nil {
		return Result{}, err
	}
	defer plan.Close()
	if err := r.enter(); err != nil {
		return Result{}, err
	}
	defer r.leave()

	pumps, theirs, err := pipes(c.Merge)
	if err == nil {
		plan.SetFiles(r.null, theirs[0], theirs[len(theirs)-1])
		for _, f := range c.Files {
			plan.Files = append(plan.Files, int(f.Fd()))
		}
	}
	var ch *child.Child
	if err == nil {
		ch, err = r.reaper.Start(plan.Spec)
	}
	for _, fd := range theirs {
		syscall.Close(fd)
	}
	r.started(ch)
	if err != nil {
		for _, p := range pumps {
			p.file.Close()
		}
		return Result{}, err
	}
	defer r.ended(ch)
	if c.Started != nil {
		c.Started(ch)
	}

	var reading sync.WaitGroup
	for i := range pumps {
		p := &pumps[i]
		p.pump = pump.New(p.file)
		reading.Go(func() {
			p.open = p.pump.Run(func(b []byte) bool { return c.Output(p.channel, b) })
		})
	}
	timedOut := r.await(ctx, ch, c, mark)
	for i := range pumps { // the rest of each belongs to its reader
		pumps[i].pump.Exited()
	}
	reading.Wait()
	for _, p := range pumps {
		if p.open {
			r.discard.Take(p.file)
		} else {
			p.file.Close()
		}
	}
	return Result{Exit: ch.Exit(), TimedOut: timedOut}, nil
}

// await waits for the end of the child, and brings it about where it has to.
func (r *Runner) await(ctx context.Context, ch *child.Child, c Run, mark string) (timedOut bool) {
	var expired <-chan time.Time
	if c.Timeout > 0 {
		t := time.NewTimer(c.Timeout)
		defer t.Stop()
		expired = t.C
	}
	select {
	case <-ch.Done():
		return false
	case <-expired:
		timedOut = true
	case <-ctx.Done():
	case <-r.killing:
	}
	if c.Stopping != nil {
		c.Stopping()
	}
	killing, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	if err := (child.Tree{Leader: ch.PID, Mark: mark}).Kill(killing); err != nil {
		// Its group can be reached in any case. What is left is in an
		// uninterruptible wait, which ends when the kernel lets it.
		_ = ch.Signal(syscall.SIGKILL)
	}
	<-ch.Done()
	return timedOut
}

type outputPipe struct {
	channel byte
	file    *os.File
	pump    *pump.Pump
	open    bool
}

func pipes(merge bool) (ours []outputPipe, theirs []int, err error) {
	channels := []byte{Stdout, Stderr}
	if merge {
		channels = channels[:1]
	}
	for _, channel := range channels {
		f, fd, err := pump.Pipe(false)
		if err != nil {
			return ours, theirs, err
		}
		ours, theirs = append(ours, outputPipe{channel: channel, file: f}), append(theirs, fd)
	}
	return ours, theirs, nil
}

func (r *Runner) enter() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return child.ErrClosed
	}
	if r.active >= MaxCommands {
		return ErrTooMany
	}
	r.active++
	r.wg.Add(1)
	return nil
}

func (r *Runner) leave() {
	r.mu.Lock()
	r.active--
	r.mu.Unlock()
	r.wg.Done()
}

// Active is how many commands run.
func (r *Runner) Active() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.active
}

func (r *Runner) started(c *child.Child) {
	if c == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[c] = struct{}{}
	if r.stopped { // Stop came just before
		_ = c.Signal(syscall.SIGTERM)
	}
}

func (r *Runner) ended(c *child.Child) {
	r.mu.Lock()
	delete(r.running, c)
	r.mu.Unlock()
}

// Refuse refuses new commands. One that is just being started gets SIGTERM.
func (r *Runner) Refuse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
}

// Stop refuses new commands and sends SIGTERM to the process groups of those
// that run.
func (r *Runner) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	r.stopped = true
	for c := range r.running {
		_ = c.Signal(syscall.SIGTERM)
	}
}

// Kill kills all commands; their Runs return soon after.
func (r *Runner) Kill() {
	r.Stop()
	r.kill.Do(func() { close(r.killing) })
}

// Close kills all commands and waits for their Runs, unless ctx ends first: a
// process in an uninterruptible wait must not keep the daemon.
func (r *Runner) Close(ctx context.Context) {
	r.Kill()
	ended := make(chan struct{})
	go func() {
		r.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		r.discard.Close()
		syscall.Close(r.null)
	case <-ctx.Done():
	}
}
