package shellagent

import (
	"errors"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// How a command's output is told and how a command is stopped.
const (
	interval    = 50 * time.Millisecond  // between updates; the first comes at once
	maxUpdate   = 64 << 10               // bytes of output in one update
	maxTitle    = 2 << 10                // bytes of a command in its title
	window      = 16 << 10               // of output, for clients that replace what they show
	silence     = 50 * time.Millisecond  // after the shell ended and a background process holds its output
	maxDrain    = 500 * time.Millisecond // in all, when such a process goes on writing
	grace       = 1500 * time.Millisecond
	maxPipe     = 1 << 20         // bytes that a pipe can hold
	maxKill     = 5 * time.Second // after which a process that can't be killed is given up
	killPoll    = 10 * time.Millisecond
	maxLeftover = 64 // background processes whose output is thrown away rather than refused
)

// report is what one command tells the client.
type report struct {
	a       *Agent
	streams bool // the client shows terminal_output
	call    string
	out     output
	last    time.Time // of the newest update
	shown   string    // the end of what was told
}

// answer runs one command and tells all about it. It returns the stop reason.
func (a *Agent) answer(cmd string, streams bool, cancel <-chan struct{}) string {
	s := a.session
	r := &report{a: a, streams: streams}
	saveErr := s.begin(cmd)
	r.call = s.call(s.number)
	dir, gone := usableDir(s.cwd, s.root)
	a.update(toolUpdate{
		SessionUpdate: "tool_call", ToolCallID: r.call, Name: "shell", Kind: "execute", Status: "in_progress",
		Title:    clip(cmd, maxTitle),
		RawInput: commandInput{cmd, dir},
		Meta:     &toolMeta{TerminalInfo: &terminalInfo{r.call, dir}},
	})
	if gone {
		r.out.notice("[%s is gone; running in %s]", s.cwd, dir)
		s.cwd = dir
	}
	began := time.Now()
	code, signal, cancelled := 127, "", false
	if c, err := a.run(s, dir, cmd); err != nil {
		r.out.notice("[the command can't be started: %v]", err)
	} else {
		var status syscall.WaitStatus
		status, cancelled = r.follow(c, cancel)
		code, signal = exitCode(status)
	}
	e := entry{Exit: code, MS: time.Since(began).Milliseconds()}
	dropped, changed := s.adopt(a.env)
	r.out.finish()
	if dropped > 0 {
		r.out.notice("[%d exported variables are too big to be kept for the next command]", dropped)
	}
	r.flushAll()
	e.Output = r.shown
	if err := s.end(e, changed); saveErr == nil {
		saveErr = err
	}
	if saveErr != nil {
		r.out.notice("[the state of this shell can't be saved: %v]", saveErr)
		r.flushAll()
	}
	r.end(code, signal, e.MS)
	if cancelled {
		return "cancelled"
	}
	return "end_turn"
}

// usableDir is the directory to run in; gone says that cwd isn't one any more.
func usableDir(cwd, root string) (dir string, gone bool) {
	for _, d := range []string{cwd, root, "/"} {
		if info, err := os.Stat(d); err == nil && info.IsDir() {
			return d, d != cwd
		}
	}
	return "/", cwd != "/"
}

// follow tells a command's output until the shell has ended and its output is
// read; with cancel, until nothing is left of what it started.
func (r *report) follow(c *command, cancel <-chan struct{}) (status syscall.WaitStatus, cancelled bool) {
	pieces, next := make(chan []byte), make(chan struct{})
	var held bool // a background process holds the pipe
	var reading sync.WaitGroup
	reading.Go(func() {
		held = read(c.out, pieces, next)
		close(pieces)
	})
	var killed chan struct{}
	exited, drainUntil := c.exited, time.Time{}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for pieces != nil || exited != nil || killed != nil {
		select {
		case p, ok := <-pieces:
			if !ok {
				pieces = nil
				break
			}
			r.out.write(p)
			if !drainUntil.IsZero() {
				setDrain(c.out, drainUntil)
			}
			next <- struct{}{}
			if wait := r.flush(); wait > 0 {
				timer.Reset(wait)
			}
		case <-timer.C:
			if wait := r.flush(); wait > 0 {
				timer.Reset(wait)
			}
		case status = <-exited:
			exited = nil
			drainUntil = time.Now().Add(maxDrain)
			setDrain(c.out, drainUntil)
		case <-cancel:
			cancel, cancelled = nil, true
			killed = make(chan struct{})
			go func() {
				defer close(killed)
				r.a.reaper.killAll(c)
			}()
		case <-killed:
			killed = nil
		}
	}
	reading.Wait()
	if held {
		r.a.left.add(c.out)
	} else {
		_ = c.out.Close()
	}
	return status, cancelled
}

// setDrain lets the reader wait for a little silence, and no longer than until.
func setDrain(f *os.File, until time.Time) {
	d := time.Now().Add(silence)
	if d.After(until) {
		d = until
	}
	_ = f.SetReadDeadline(d) // a pipe of ours has deadlines
}

// read gives what comes from f to pieces, and goes on when next says that the
// piece was used. It returns at the end, or at the deadline when somebody still
// holds the other end; what was in the pipe then is given too.
func read(f *os.File, pieces chan<- []byte, next <-chan struct{}) (held bool) {
	buf := make([]byte, 32<<10)
	give := func(n int) {
		if n > 0 {
			pieces <- buf[:n]
			<-next
		}
	}
	for {
		n, err := f.Read(buf)
		give(n)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if err != nil {
			return false
		}
	}
	_ = f.SetReadDeadline(time.Time{})
	for range maxPipe / len(buf) {
		n, err := readNow(f, buf)
		give(n)
		if err != nil {
			return true
		}
		if n == 0 {
			return false
		}
	}
	return true
}

// readNow reads without waiting: EAGAIN when the pipe is empty.
func readNow(f *os.File, buf []byte) (n int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	if rerr := conn.Read(func(fd uintptr) bool {
		n, err = syscall.Read(int(fd), buf)
		return true
	}); rerr != nil {
		return 0, rerr
	}
	return max(n, 0), err
}

// flush tells what there is to tell, if it is time to, and returns how long to
// wait for the rest; 0: there is no rest.
func (r *report) flush() time.Duration {
	if wait := interval - time.Since(r.last); wait > 0 && !r.last.IsZero() {
		return wait
	}
	if r.tell(false) && len(r.out.text.out) > 0 {
		return interval
	}
	return 0
}

func (r *report) flushAll() {
	for r.tell(true) {
	}
}

// tell sends one update, if there is anything to tell.
func (r *report) tell(last bool) bool {
	piece := r.out.take(maxUpdate, last)
	if piece == "" {
		return false
	}
	r.last = time.Now()
	r.shown = clipFront(r.shown+piece, window)
	u := toolUpdate{SessionUpdate: "tool_call_update", ToolCallID: r.call}
	if r.streams {
		u.Meta = &toolMeta{TerminalOutput: &terminalOutput{r.call, piece}}
	} else {
		u.Content = []toolContent{{"content", content{"text", r.shown}}}
	}
	r.a.update(u)
	return true
}

func (r *report) end(code int, signal string, ms int64) {
	u := toolUpdate{
		SessionUpdate: "tool_call_update", ToolCallID: r.call, Status: "completed",
		RawOutput: commandOutput{code, r.a.session.cwd, ms},
		Meta:      &toolMeta{TerminalExit: &terminalExit{TerminalID: r.call, ExitCode: code}},
	}
	if code != 0 {
		u.Status = "failed"
	}
	if signal != "" {
		u.Meta.TerminalExit.Signal = &signal
	}
	r.a.update(u)
}

// killAll stops a command with everything it started: TERM, and KILL for what
// is left after the grace. It returns when nothing is left.
func (r *reaper) killAll(c *command) {
	started := descendants(os.Getpid(), c.before)
	r.signalGroup(c.pid, syscall.SIGTERM)
	told := map[proc]bool{}
	for began := time.Now(); time.Since(began) < maxKill; time.Sleep(killPoll) {
		if time.Since(began) >= grace {
			r.signal(started, syscall.SIGKILL)
		} else {
			// Once for each, since a second TERM means something else to some.
			// The group has had it, and what the shell starts now saves its state.
			started = slices.DeleteFunc(started, func(p proc) bool { return p.group == c.pid || told[p.name()] })
			r.signal(started, syscall.SIGTERM)
			for _, p := range started {
				told[p.name()] = true
			}
		}
		if started = descendants(os.Getpid(), c.before); len(started) == 0 {
			return
		}
	}
}

// signalGroup signals the process group of a shell that hasn't been collected:
// its members all get the signal in one moment, whatever they fork.
func (r *reaper) signalGroup(pid int, s syscall.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.waiting[pid] != nil {
		_ = syscall.Kill(-pid, s)
	}
}

// leftovers are the outputs of processes that commands left in the background.
// Somebody must read them: a server that logs would be killed by SIGPIPE
// otherwise. When there are too many the oldest is closed.
type leftovers struct {
	mu    sync.Mutex
	files []*os.File
	wait  sync.WaitGroup
}

func (l *leftovers) add(f *os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.files) >= maxLeftover {
		_ = l.files[0].Close()
		l.files = l.files[1:]
	}
	l.files = append(l.files, f)
	_ = f.SetReadDeadline(time.Time{})
	l.wait.Go(func() {
		_, _ = io.Copy(io.Discard, f)
		l.mu.Lock()
		defer l.mu.Unlock()
		_ = f.Close()
		l.files = slices.DeleteFunc(l.files, func(o *os.File) bool { return o == f })
	})
}

func (l *leftovers) close() {
	l.mu.Lock()
	for _, f := range l.files {
		_ = f.Close()
	}
	l.mu.Unlock()
	l.wait.Wait()
}
