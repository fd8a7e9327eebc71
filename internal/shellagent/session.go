package shellagent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"unicode/utf8"
)

// The bounds of a session's file. When it is longer than maxFile it is written
// anew with its newest entries, at most keepFile of them.
const (
	maxFile     = 1 << 20
	keepFile    = 256 << 10
	maxKeptCmd  = 16 << 10 // of a command's text
	maxKeptTail = 4 << 10  // of its output
)

var errNoSession = errors.New("no such session")

// validID keeps a client's id from naming any other file.
func validID(id string) bool {
	for _, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return 0 < len(id) && len(id) <= 64
}

// session is what carries over from command to command. Its file has one JSON
// object a line: the first names the session, and each command has one when it
// starts and one when it has ended.
type session struct {
	id     string
	root   string // the directory that the client named
	cwd    string
	env    delta
	number int // of the newest command
	dir    string
	size   int64 // of the file
	torn   bool  // its last line was cut off by a failed write
}

// entry is a line of the file.
type entry struct {
	Session string `json:"session,omitempty"` // first line
	Root    string `json:"root,omitempty"`
	N       int    `json:"n,omitempty"` // number of the command
	Cmd     string `json:"cmd,omitempty"`
	Ended   bool   `json:"ended,omitempty"`
	Exit    int    `json:"exit,omitempty"`
	MS      int64  `json:"ms,omitempty"`
	Cwd     string `json:"cwd,omitempty"`
	Env     *delta `json:"env,omitempty"` // when it has changed
	Output  string `json:"output,omitempty"`
}

// newSession makes a session and its file in dir.
func newSession(dir, cwd string) (*session, error) {
	s := &session{id: fmt.Sprintf("sh_%016x", rand.Uint64()), root: cwd, cwd: cwd, dir: dir}
	return s, s.append(entry{Session: s.id, Root: cwd, Cwd: cwd})
}

// openSession reads the session of that id, with its newest entries.
// errNoSession when there is none.
func openSession(dir, id, cwd string, base []string) (*session, []entry, error) {
	if !validID(id) {
		return nil, nil, errNoSession
	}
	s := &session{id: id, root: cwd, cwd: cwd, dir: dir}
	b, err := readState(s.path("jsonl"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotRegular) {
		return nil, nil, errNoSession
	}
	if err != nil {
		return nil, nil, err
	}
	s.size = int64(len(b))
	var entries []entry
	for l := range bytes.Lines(b) {
		var e entry
		if l[len(l)-1] != '\n' || json.Unmarshal(l, &e) != nil {
			continue // a write that was cut off
		}
		s.number = max(s.number, e.N)
		if e.Cwd != "" {
			s.cwd = e.Cwd
		}
		if e.Env != nil {
			s.env = *e.Env
		}
		entries = append(entries, e)
	}
	if len(entries) == 0 || entries[0].Session != id {
		return nil, nil, errNoSession
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		s.torn = true
	}
	// A command that had saved its state, and the agent ended before it saw it.
	if _, changed := s.adopt(base); changed {
		e := s.env
		if err := s.append(entry{Cwd: s.cwd, Env: &e}); err != nil {
			return nil, nil, err
		}
	}
	return s, entries[1:], nil
}

// adopt takes over what the newest command's shell saved at its end. It gives
// the number of variables that were too big to keep.
func (s *session) adopt(base []string) (dropped int, changed bool) {
	dir, env, ok := readSaved(s.path("next"))
	if !ok {
		return 0, false
	}
	was, wasDir := s.env, s.cwd
	if filepath.IsAbs(dir) && utf8.ValidString(dir) {
		s.cwd = dir
	}
	s.env, dropped = diff(base, env)
	return dropped, wasDir != s.cwd || !was.equal(s.env)
}

func (d delta) equal(o delta) bool {
	a, errA := json.Marshal(d)
	b, errB := json.Marshal(o)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// begin stores that a command starts: its number is never given again.
func (s *session) begin(cmd string) error {
	s.number++
	return s.append(entry{N: s.number, Cmd: clip(cmd, maxKeptCmd)})
}

// end stores how the newest command ended.
func (s *session) end(e entry, envChanged bool) error {
	e.N, e.Ended, e.Cwd, e.Output = s.number, true, s.cwd, clipFront(e.Output, maxKeptTail)
	if envChanged {
		d := s.env
		e.Env = &d
	}
	if err := s.append(e); err != nil {
		return err
	}
	if s.size > maxFile {
		return s.compact()
	}
	return nil
}

// compact writes the file anew with its newest entries.
func (s *session) compact() error {
	b, err := readState(s.path("jsonl"))
	if err != nil {
		return err
	}
	if i := bytes.IndexByte(b[max(0, len(b)-keepFile):], '\n'); i >= 0 {
		b = b[max(0, len(b)-keepFile)+i+1:]
	}
	d := s.env
	head, err := json.Marshal(entry{Session: s.id, Root: s.root, N: s.number, Cwd: s.cwd, Env: &d})
	if err != nil {
		return err
	}
	// The kept entries repeat older directories and variables; the last line
	// has what holds now.
	last, err := json.Marshal(entry{Cwd: s.cwd, Env: &d})
	if err != nil {
		return err
	}
	content := bytes.Join([][]byte{head, bytes.TrimSuffix(b, []byte("\n")), last}, []byte("\n"))
	content = append(content, '\n')
	if err := replaceFile(s.path("jsonl"), content); err != nil {
		return err
	}
	s.size = int64(len(content))
	return nil
}

func (s *session) append(e entry) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return s.write(append(b, '\n'))
}

func (s *session) write(b []byte) error {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return err
	}
	f, err := openState(s.path("jsonl"), os.O_WRONLY|os.O_APPEND|os.O_CREATE)
	if err != nil {
		return err
	}
	if s.torn {
		b = append([]byte("\n"), b...) // so that this line is whole
	}
	n, err := f.Write(b)
	s.size += int64(n)
	if err == nil || n > 0 {
		s.torn = err != nil
	}
	return errors.Join(err, f.Close())
}

// path is the session's file of a kind: jsonl, next (saved by a shell), cmd (a
// long command's text).
func (s *session) path(kind string) string { return filepath.Join(s.dir, s.id+"."+kind) }

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

func clipFront(s string, n int) string {
	if len(s) <= n {
		return s
	}
	i := len(s) - n
	for i < len(s) && !utf8.RuneStart(s[i]) {
		i++
	}
	return "…" + s[i:]
}
