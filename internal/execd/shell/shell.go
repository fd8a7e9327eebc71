// Package shell keeps shell sessions: commands that run one after another and
// share a working directory and exported variables. The daemon's /session
// handlers call it.
//
// Each run is a shell of its own. What it exported (variables with all their
// attributes, in bash functions too) and where it was when it ended is written
// by the shell itself in a form that it can read again, over a descriptor that
// isn't part of its output. So values are carried byte for byte, and nothing
// that a command prints can be mistaken for state. A run that is killed, or
// replaces itself with exec, or ends through exit after it set an EXIT trap of
// its own, leaves the state as it was.
//
// The runs of a session wait for each other in the order they came. At most
// MaxSessions exist; the state of each is at most MaxState. Everything is safe
// for concurrent use. Errors are ErrNotFound, ErrTooMany, ErrState, ctx's, and
// those of package command.
package shell

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/command"
	"github.com/astrabox/astrabox/internal/execd/hang"
	"github.com/astrabox/astrabox/internal/execd/launch"
)

const (
	// MaxSessions bounds how many sessions exist; more are refused.
	MaxSessions = 256
	// MaxState bounds what one session carries from run to run.
	MaxState = 8 << 20
	// maxLeaders bounds how many runs a deletion can find processes of that
	// have thrown their environment away; those that haven't are always found.
	maxLeaders = 256
)

// Errors of sessions.
var (
	ErrNotFound = errors.New("no such session")
	ErrTooMany  = errors.New("too many sessions")
	// ErrState: the run has ended and its Result is valid, but its state
	// couldn't be kept, so the next run begins where this one did.
	// ErrVariable is about a run's own variables. The run wasn't started.
	ErrVariable = errors.New("not the name of a variable that a shell can set, or its value has a NUL")
	ErrState    = errors.New("the state of the session is larger than 8 MiB and was not kept")
)

// Manager keeps the sessions of one sandbox.
type Manager struct {
	commands *command.Runner
	shell    func() string
	uid, gid *uint32 // who runs; nil: the daemon's own account

	mu    sync.Mutex
	byID  map[string]*session
	dying map[string]*session // being deleted, or survivors of it: nobody finds them
}

// NewManager makes a Manager whose runs are commands of r.
func NewManager(r *command.Runner) *Manager {
	return &Manager{commands: r, shell: launch.Shell, byID: map[string]*session{}, dying: map[string]*session{}}
}

// As makes all runs run as an account, in a daemon that serves one only. It is
// called before the first run.
func (m *Manager) As(uid, gid uint32) { m.uid, m.gid = &uid, &gid }

// session is one session.
type session struct {
	id   string
	home string          // where it began
	gone context.Context // ends with the session
	end  context.CancelFunc
	turn chan struct{} // holds one token: the right to run

	mu      sync.Mutex
	state   state // changed by who has the turn
	runs    int
	leaders []int // of the newest runs
}

// Create makes a session that begins in dir, which exists, with the variables
// of file beside the daemon's own.
func (m *Manager) Create(dir string, file map[string]string) (id string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.byID)+len(m.dying) >= MaxSessions {
		return "", ErrTooMany
	}
	s := &session{id: rand.Text(), home: dir, turn: make(chan struct{}, 1), state: state{dir: dir, file: file}}
	s.gone, s.end = context.WithCancel(context.Background())
	s.turn <- struct{}{}
	m.byID[s.id] = s
	return s.id, nil
}

// Has reports whether there is something to delete.
func (m *Manager) Has(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byID[id] != nil || m.dying[id] != nil
}

// Delete forgets a session and kills everything that its runs started, also
// what they left in the background. ErrNotFound says that nothing of it is left:
// while another call is at it, and after one that failed, it is done again.
func (m *Manager) Delete(ctx context.Context, id string) error {
	m.mu.Lock()
	s := m.byID[id]
	if s == nil {
		s = m.dying[id]
	}
	if s == nil {
		m.mu.Unlock()
		return ErrNotFound
	}
	delete(m.byID, id)
	m.dying[id] = s
	m.mu.Unlock()
	s.end()
	select { // the run that has the turn ends
	case <-s.turn:
		defer func() { s.turn <- struct{}{} }()
	case <-ctx.Done():
		return ctx.Err()
	}
	s.mu.Lock()
	former := slices.Clone(s.leaders)
	s.mu.Unlock()
	if err := (child.Tree{Mark: s.id + ".", Several: true, Former: former}).Kill(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	delete(m.dying, id)
	m.mu.Unlock()
	return nil
}

// Close forgets all sessions, and ends their runs.
func (m *Manager) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, s := range m.byID {
		s.end()
		delete(m.byID, id)
	}
}

// Run is one run of a session.
type Run struct {
	Line string
	// Dir, where it isn't empty, is where the session goes first, and stays.
	Dir string
	// Env are variables of the run's own; it takes Leave.
	Env map[string]string
	// Leave lets the session's state be as it was before the run.
	Leave bool
	// Aside lets the run begin at once, beside others. It takes Leave.
	Aside   bool
	Timeout time.Duration
	// Split tells stderr from stdout; otherwise both come as stdout, in the
	// order they were written.
	Split bool
	// Started, Output and Stopping are as in command.Run.
	Started  func()
	Output   func(channel byte, b []byte) bool
	Stopping func()
}

// Run runs a line in a session, after the runs that came before. It is killed
// with all that it started when ctx or the session ends or its time is over.
func (m *Manager) Run(ctx context.Context, id string, r Run) (command.Result, error) {
	m.mu.Lock()
	s := m.byID[id]
	m.mu.Unlock()
	if s == nil {
		return command.Result{}, ErrNotFound
	}
	if !r.Aside {
		select {
		case <-s.turn:
		case <-ctx.Done():
			return command.Result{}, ctx.Err()
		case <-s.gone.Done():
			return command.Result{}, ErrNotFound
		}
		defer func() { s.turn <- struct{}{} }()
	}
	if s.gone.Err() != nil {
		return command.Result{}, ErrNotFound
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.gone, cancel)()
	return s.run(ctx, m, r)
}

func (s *session) run(ctx context.Context, m *Manager, r Run) (command.Result, error) {
	s.mu.Lock()
	s.runs++
	mark := fmt.Sprintf("%s.%d", s.id, s.runs)
	was := s.state
	s.mu.Unlock()
	if err := checkVariables(r.Env); err != nil {
		return command.Result{}, err
	}
	dir := was.dir
	fi, err := hang.Do(ctx, func() (os.FileInfo, error) { return os.Stat(dir) }, nil)
	switch {
	case errors.Is(err, hang.ErrMany), errors.Is(err, hang.ErrSilent), err != nil && ctx.Err() != nil:
		return command.Result{}, err
	case err != nil || !fi.IsDir():
		dir = s.home // it was removed
	}
	if r.Dir != "" {
		dir = r.Dir
	}
	sh := m.shell()
	environ, before := was.start(sh, dir, r.Env, m.uid, m.gid)
	files, err := newFiles(r.Line, before)
	if err != nil {
		return command.Result{}, err
	}
	defer files.close()
	result, err := m.commands.Run(ctx, command.Run{
		Launch: launch.Request{
			Argv: shellArgs(sh, prologue(sh, r.Dir, mark, before != nil)),
			Dir:  dir, Environ: environ, Mark: mark, UID: m.uid, GID: m.gid,
		},
		Timeout: r.Timeout, Merge: !r.Split, Files: files.list(),
		Started: func(c *child.Child) {
			s.mu.Lock()
			if len(s.leaders) == maxLeaders {
				s.leaders = s.leaders[1:]
			}
			s.leaders = append(s.leaders, c.PID)
			s.mu.Unlock()
			r.Started()
		},
		Output:   r.Output,
		Stopping: r.Stopping,
	})
	if err != nil || r.Leave {
		return result, err
	}
	if r.Dir != "" {
		was.dir = r.Dir // also when the shell was killed
	}
	err = was.take(files.after)
	s.mu.Lock()
	s.state = was
	s.mu.Unlock()
	return result, err
}
