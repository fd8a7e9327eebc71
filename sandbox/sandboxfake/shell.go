package sandboxfake

import (
	"bytes"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

// notFound is the status of a line that isn't of the script templates.
const notFound = 127

// poll is how often a step that waits for a file looks.
const poll = 5 * time.Millisecond

// shell runs the steps of one line.
type shell struct {
	m    *machine
	t    *task
	user string
	dir  string
	env  map[string]string
	// read gives what stdin has, at most n bytes, and waits for it; ok is false
	// at its end, or when stop was closed. Nil: there is no input.
	read func(n int, stop <-chan struct{}) (b []byte, ok bool)
	// write hands output on; it waits for room unless stop is closed. False:
	// nobody takes it any more.
	write func(c sandbox.Channel, b []byte, stop <-chan struct{}) bool
	size  func() (s sandbox.Size, ok bool) // of the terminal
	sess  *session                         // that it runs in; nil: none
	// exports are the variables that export set; nil: nobody asks.
	exports map[string]string
}

// run does a line and says how it ended. The task is gone afterwards.
func (s *shell) run(line string) sandbox.Exit {
	defer s.m.kernel.ended(s.t)
	if line == "" {
		return s.end(s.interactive())
	}
	status, _ := s.line(line)
	return s.end(status)
}

// line does the steps; exited says that one of them ended the shell.
func (s *shell) line(line string) (status int, exited bool) {
	steps, ok := script.Parse(line)
	if !ok {
		s.err("sh: not one of the lines that this sandbox knows")
		return notFound, false
	}
	for _, step := range steps {
		if step.Name() == "exit" {
			return step.Int(0) & 0xff, true
		}
		if do := stepsByName[step.Name()]; do != nil {
			status = do(s, step)
		}
		if closed(s.t.stop) {
			break
		}
	}
	return status, false
}

// interactive runs a line of input after the other, as a shell without a line does.
func (s *shell) interactive() (status int) {
	for exited := false; !exited && !closed(s.t.stop); {
		line, ok := s.readLine()
		if !ok {
			break
		}
		if line != "" {
			status, exited = s.line(line)
		}
	}
	return status
}

// end turns what the line returned into an exit, with what signals did to it.
func (s *shell) end(status int) sandbox.Exit {
	k := s.m.kernel
	k.mu.Lock()
	signal, caught := s.t.signal, closed(s.t.stop)
	if caught {
		status = s.t.status
	}
	k.mu.Unlock()
	if signal == "" && caught {
		if s.write(sandbox.Stdout, []byte("caught\n"), s.t.killed); !closed(s.t.killed) {
			return sandbox.Exit{Code: status}
		}
		k.mu.Lock()
		signal = s.t.signal
		k.mu.Unlock()
	}
	if signal != "" {
		return sandbox.Exit{Code: 128 + signalNumbers[signal], Signal: "SIG" + signal}
	}
	return sandbox.Exit{Code: status}
}

func (s *shell) out(b []byte) int { return s.put(sandbox.Stdout, b) }

func (s *shell) put(c sandbox.Channel, b []byte) int {
	const step = 32 << 10
	for len(b) > 0 {
		n := min(len(b), step)
		if !s.write(c, b[:n], s.t.stop) {
			return 1
		}
		b = b[n:]
	}
	return 0
}

func (s *shell) say(format string, args ...any) int { return s.out(fmt.Appendf(nil, format, args...)) }

func (s *shell) err(text string) int {
	s.put(sandbox.Stderr, []byte(text+"\n"))
	return 1
}

// rest waits; false: what it waited for has been cut short.
func (s *shell) rest(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.t.stop:
		return false
	}
}

func (s *shell) readLine() (line string, ok bool) {
	var b []byte
	for {
		c, more := s.take(1)
		if !more {
			return string(b), false
		}
		if c[0] == '\n' {
			return string(b), true
		}
		b = append(b, c[0])
	}
}

func (s *shell) take(n int) ([]byte, bool) {
	if s.read == nil {
		return nil, false
	}
	return s.read(n, s.t.stop)
}

// abs makes a path of a step absolute, as the working directory does.
func (s *shell) abs(path string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	return strings.TrimRight(s.dir, "/") + "/" + path
}

// file looks a path up; nil: nothing is there.
func (s *shell) file(path string, follow bool) *node {
	if s.sess != nil && s.sess.denied(s.m.tree, s.abs(path), false) {
		return nil
	}
	at, err := s.m.tree.existing(nil, s.abs(path), follow)
	if err != nil {
		return nil
	}
	return at.n
}

func (s *shell) exists(path string) bool {
	s.m.tree.mu.Lock()
	defer s.m.tree.mu.Unlock()
	return s.file(path, true) != nil
}

func (s *shell) content(path string) ([]byte, bool) {
	s.m.tree.mu.Lock()
	defer s.m.tree.mu.Unlock()
	n := s.file(path, true)
	if n == nil || !n.mode.IsRegular() {
		return nil, false
	}
	return n.content, true
}

// save writes a file as a program does, in place.
func (s *shell) save(path string, b []byte, add bool) int {
	t := s.m.tree
	t.mu.Lock()
	at, err := t.named(nil, s.abs(path), true)
	if err == nil && s.sess != nil && s.sess.denied(t, s.abs(path), true) {
		err = fs.ErrPermission
	}
	if err != nil || at.n != nil && !at.n.mode.IsRegular() {
		t.mu.Unlock()
		return s.err("the file can't be written")
	}
	if at.n == nil {
		at.n = t.node(0o644, s.user)
		t.add(at.dir, at.name, at.n)
	}
	if add {
		b = append(bytes.Clone(at.n.content), b...)
	}
	at.n.content = bytes.Clone(b)
	t.touch(at.n)
	t.mu.Unlock()
	return 0
}

// make puts something new at a path.
func (s *shell) make(path string, n func(*tree) *node) int {
	t := s.m.tree
	t.mu.Lock()
	at, err := t.named(nil, s.abs(path), false)
	if err == nil && at.n == nil {
		t.add(at.dir, at.name, n(t))
	}
	t.mu.Unlock()
	if err != nil || at.n != nil {
		return s.err("the path can't be made")
	}
	return 0
}

func (s *shell) remove(path string) {
	s.m.tree.mu.Lock()
	defer s.m.tree.mu.Unlock()
	_ = s.m.tree.remove(nil, s.abs(path), true) // as rm -f
}

// until does something over and over until a path exists.
func (s *shell) until(path string, do ...func()) int {
	for !s.exists(path) {
		for _, f := range do {
			f()
			if !s.rest(poll / 5) {
				return 1
			}
		}
	}
	return 0
}

// sees reports whether a process is to be seen from here: a session has its own.
func (s *shell) sees(pid int) bool {
	return s.sess == nil || s.sess.shares || s.sess.has(s.m.kernel.jobOf(pid))
}

func (s *shell) pid(path string) int {
	b, _ := s.content(path)
	pid, _ := strconv.Atoi(string(bytes.TrimSpace(b)))
	return pid
}
