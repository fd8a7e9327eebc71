package sandboxfake

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

// stepsByName does what each template of package script documents and gives
// the exit status.
var stepsByName = map[string]func(*shell, script.Step) int{
	"nothing":  func(*shell, script.Step) int { return 0 },
	"emit":     func(s *shell, a script.Step) int { return s.out([]byte(a.Arg(0))) },
	"emit-err": func(s *shell, a script.Step) int { return s.put(sandbox.Stderr, []byte(a.Arg(0))) },
	"big":      func(s *shell, a script.Step) int { return s.big(sandbox.Stdout, int64(a.Int(0))) },
	"big-err":  func(s *shell, a script.Step) int { return s.big(sandbox.Stderr, int64(a.Int(0))) },
	"lines":    func(s *shell, a script.Step) int { return s.out(script.LinesOutput(a.Int(0))) },
	"tick": func(s *shell, a script.Step) int {
		for i := range a.Int(0) {
			if s.say("%d\n", i+1) != 0 || !s.rest(a.Duration(1)) {
				return 1
			}
		}
		return 0
	},
	"die": func(s *shell, a script.Step) int {
		s.m.kernel.signal(s.t.pid, a.Arg(0))
		return 0
	},
	"ignore": func(s *shell, a script.Step) int {
		s.m.kernel.mu.Lock()
		defer s.m.kernel.mu.Unlock()
		s.t.deaf[a.Arg(0)] = true
		return 0
	},
	"catch": func(s *shell, a script.Step) int {
		s.m.kernel.mu.Lock()
		defer s.m.kernel.mu.Unlock()
		s.t.catches[a.Arg(1)] = a.Int(0)
		return 0
	},
	"sleep": func(s *shell, a script.Step) int {
		if !s.rest(a.Duration(0)) {
			return 1
		}
		return 0
	},
	"cat": func(s *shell, _ script.Step) int {
		for {
			b, ok := s.take(32 << 10)
			if !ok || s.out(b) != 0 {
				return 0
			}
		}
	},
	"count": func(s *shell, _ script.Step) int {
		n := 0
		for {
			b, ok := s.take(32 << 10)
			if n += len(b); !ok {
				return s.say("%d\n", n)
			}
		}
	},
	"read-line": func(s *shell, _ script.Step) int {
		line, _ := s.readLine()
		return s.say("<%s>\n", line)
	},
	"tty-size": func(s *shell, _ script.Step) int {
		size, ok := s.size()
		if !ok {
			return s.err("stty: not a terminal")
		}
		return s.say("%d %d\n", size.Rows, size.Cols)
	},
	"is-tty": func(s *shell, _ script.Step) int {
		if _, ok := s.size(); ok {
			return s.say("tty\n")
		}
		return s.say("none\n")
	},
	"env": func(s *shell, a script.Step) int {
		v, ok := s.env[a.Arg(0)]
		if !ok {
			return 1
		}
		return s.say("%s\n", v)
	},
	"export": func(s *shell, a script.Step) int {
		s.env[a.Arg(0)] = a.Arg(1)
		if s.exports != nil {
			s.exports[a.Arg(0)] = a.Arg(1)
		}
		return 0
	},
	"cd": func(s *shell, a script.Step) int {
		s.m.tree.mu.Lock()
		n := s.file(a.Arg(0), true)
		s.m.tree.mu.Unlock()
		if n == nil || !n.mode.IsDir() {
			return s.err("cd: no such directory")
		}
		s.dir = path.Clean(s.abs(a.Arg(0)))
		return 0
	},
	"pwd":   func(s *shell, _ script.Step) int { return s.say("%s\n", s.dir) },
	"user":  func(s *shell, _ script.Step) int { return s.say("%s\n", s.user) },
	"group": func(s *shell, _ script.Step) int { return s.say("%s\n", s.user) },
	"cat-file": func(s *shell, a script.Step) int {
		b, ok := s.content(a.Arg(0))
		if !ok {
			return s.err("cat: no such file")
		}
		return s.out(b)
	},
	"write":  func(s *shell, a script.Step) int { return s.save(a.Arg(1), []byte(a.Arg(0)), false) },
	"append": func(s *shell, a script.Step) int { return s.save(a.Arg(1), []byte(a.Arg(0)), true) },
	"stat":   func(s *shell, a script.Step) int { return s.stat(a.Arg(0)) },
	"watch":  func(s *shell, a script.Step) int { return s.until(a.Arg(0), func() { s.stat(a.Arg(1)) }) },
	"list": func(s *shell, a script.Step) int {
		s.m.tree.mu.Lock()
		n := s.file(a.Arg(0), true)
		var b bytes.Buffer
		if n != nil {
			for _, name := range n.sorted() {
				b.WriteString(name + "\n")
			}
		}
		s.m.tree.mu.Unlock()
		if n == nil || !n.mode.IsDir() {
			return s.err("ls: not a directory")
		}
		return s.out(b.Bytes())
	},
	"fill": func(s *shell, a script.Step) int {
		for i := range a.Int(1) {
			if s.save(fmt.Sprintf("%s/%d", a.Arg(0), i+1), nil, false) != 0 {
				return 1
			}
		}
		return 0
	},
	"link": func(s *shell, a script.Step) int { return s.link(a.Arg(0), a.Arg(1)) },
	"fifo": func(s *shell, a script.Step) int {
		return s.make(a.Arg(0), func(t *tree) *node { return t.node(fs.ModeNamedPipe|0o644, s.user) })
	},
	"wait-for": func(s *shell, a script.Step) int {
		return s.until(a.Arg(0), func() { s.rest(poll) })
	},
	"churn": func(s *shell, a script.Step) int {
		return s.until(a.Arg(1), func() { s.save(a.Arg(0), nil, false) }, func() { s.remove(a.Arg(0)) })
	},
	"flip": func(s *shell, a script.Step) int {
		p := a.Arg(0)
		return s.until(a.Arg(2),
			func() { s.remove(p); s.link(a.Arg(1), p) },
			func() { s.remove(p); s.make(p, func(t *tree) *node { return t.node(fs.ModeDir|0o755, s.user) }) })
	},
	"self":         func(s *shell, a script.Step) int { return s.save(a.Arg(0), fmt.Appendf(nil, "%d\n", s.t.pid), false) },
	script.Plain:   (*shell).spawn,
	script.Holding: (*shell).spawn,
	script.Orphan:  (*shell).spawn,
	script.Deaf:    (*shell).spawn,
	script.Setsid:  (*shell).spawn,
	script.Bare:    (*shell).spawn,
	"alive": func(s *shell, a script.Step) int {
		b, _ := s.content(a.Arg(0))
		if s.m.kernel.isAlive(string(b)) && s.sees(s.pid(a.Arg(0))) {
			return s.say("alive\n")
		}
		return s.say("dead\n")
	},
	"kill": func(s *shell, a script.Step) int {
		if pid := s.pid(a.Arg(1)); !s.sees(pid) || !s.m.kernel.signal(pid, a.Arg(0)) {
			return s.err("kill: no such process")
		}
		return 0
	},
}

func (s *shell) spawn(a script.Step) int {
	pid := s.m.kernel.spawn(s.t, a.Name(), a.Duration(0))
	return s.save(a.Arg(1), fmt.Appendf(nil, "%d\n", pid), false)
}

func (s *shell) big(c sandbox.Channel, n int64) int {
	const step = 32 << 10
	for from := int64(0); from < n; from += step {
		if s.put(c, script.BigOutput(from, min(from+step, n))) != 0 {
			return 1
		}
	}
	return 0
}

func (s *shell) stat(path string) int {
	s.m.tree.mu.Lock()
	n := s.file(path, false)
	text := ""
	if n != nil {
		text = n.stat()
	}
	s.m.tree.mu.Unlock()
	if n == nil {
		return s.err("stat: no such file")
	}
	return s.say("%s", text)
}

func (s *shell) link(target, path string) int {
	return s.make(path, func(t *tree) *node {
		n := t.node(fs.ModeSymlink|fs.ModePerm, s.user)
		n.target = target
		return n
	})
}
