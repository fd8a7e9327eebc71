package sandboxfake

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// session is an isolated session. Its workspace is shown at its own path, and
// nothing is bound to another place: both are refused otherwise, as some real
// daemons do.
type session struct {
	m        *machine
	id       string
	account  string
	group    string
	dir      string // the workspace
	writable []string
	turn     chan struct{} // holds one while a command runs
	over     chan struct{} // closed when the session ends
	idle     *time.Timer   // nil: it stays
	idleFor  time.Duration
	shares   bool // it sees the sandbox's processes; only lying variants do

	// Where the next command begins, and what it finds in its environment. They
	// are of who has the turn.
	now     string
	exports map[string]string

	mu           sync.Mutex
	jobs         []*job
	processes    map[string]bool
	endedAlready bool
}

// withMachine gives a running sandbox to an operation on sessions.
func withMachine[T any](ctx context.Context, p *Provider, op, id string, lie T, do func(m *machine) (T, error)) (T, error) {
	return operation(ctx, p, op, id, lie, func() (T, error) {
		var none T
		if !p.Capabilities().IsolatedSessions {
			return none, sandbox.Missing("IsolatedSessions", p.Name())
		}
		if err := errors.Join(sandbox.CheckID(id), ctx.Err()); err != nil {
			return none, err
		}
		m, err := p.find(id, sandbox.CodeNotFound)
		switch {
		case err != nil:
			return none, err
		case m.isPaused():
			return none, sandbox.Errorf(sandbox.CodeNotRunning, "the sandbox %s is paused", id)
		}
		return do(m)
	})
}

func noSession(id string) error {
	return sandbox.Errorf(sandbox.CodeIsolatedSessionNotFound, "there is no isolated session %q", id)
}

// session finds an open one.
func (m *machine) session(id string) (*session, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s := m.sessions[id]; s != nil {
		return s, nil
	}
	return nil, noSession(id)
}

// accountName is what the sandbox calls a number; digits where it has no name.
func (m *machine) accountName(id uint32) string {
	if id == 0 {
		return "root"
	}
	if i := int(id) - firstID; i >= 0 && i < len(m.p.options.Accounts) {
		return m.p.options.Accounts[i]
	}
	return strconv.FormatUint(uint64(id), 10)
}

// firstID is the number of the first account beside root.
const firstID = 1000

// ReadIsolationCapability implements sandbox.IsolatedSessions.
func (p *Provider) ReadIsolationCapability(ctx context.Context, id string) (sandbox.IsolationCapability, error) {
	yes := sandbox.IsolationCapability{Available: true, Isolator: "memory", SwitchAccount: true, Detail: "a workspace is at its own path; no binds"}
	return withMachine(ctx, p, "ReadIsolationCapability", id, yes, func(*machine) (sandbox.IsolationCapability, error) { return yes, nil })
}

// PrepareIsolatedWorkspace implements sandbox.IsolatedSessions.
func (p *Provider) PrepareIsolatedWorkspace(ctx context.Context, id, dir string, uid, gid uint32) error {
	if err := (sandbox.IsolatedSessionSpec{Workspace: dir}).Check(); err != nil {
		return err
	}
	_, err := withMachine(ctx, p, "PrepareIsolatedWorkspace", id, struct{}{}, func(m *machine) (struct{}, error) {
		m.tree.mu.Lock()
		defer m.tree.mu.Unlock()
		err := m.tree.makeAll(nil, dir, sandbox.Attr{})
		if err == nil {
			var at place
			if at, err = m.tree.existing(nil, dir, false); err == nil && !at.n.mode.IsDir() {
				err = errors.New("it is no directory")
			}
			if err == nil {
				at.n.mode, at.n.owner, at.n.group = fs.ModeDir|0o700, m.accountName(uid), m.accountName(gid)
			}
		}
		if err != nil {
			return struct{}{}, sandbox.Errorf(sandbox.CodeInvalid, "the workspace %s can't be prepared: %w", dir, err)
		}
		return struct{}{}, nil
	})
	return err
}

// OpenIsolatedSession implements sandbox.IsolatedSessions.
func (p *Provider) OpenIsolatedSession(ctx context.Context, id string, spec sandbox.IsolatedSessionSpec) (sandbox.IsolatedSession, error) {
	if err := spec.Check(); err != nil {
		return nil, err
	}
	dir := path.Clean(spec.Workspace)
	return withMachine[sandbox.IsolatedSession](ctx, p, "OpenIsolatedSession", id, nil, func(m *machine) (sandbox.IsolatedSession, error) {
		if spec.Source != "" && path.Clean(spec.Source) != dir || len(spec.Binds) > 0 {
			return nil, sandbox.Errorf(sandbox.CodeIsolationUnsupported, "this backend shows directories at their own path only")
		}
		if err := m.checkLaunch("", dir, nil); err != nil {
			return nil, err
		}
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		s := &session{
			m: m, id: "iso-" + hex.EncodeToString(b[:]), account: m.accountName(spec.UID), group: m.accountName(spec.GID), dir: dir,
			writable: append(slices.Clone(spec.Writable), dir), now: dir, exports: map[string]string{}, turn: make(chan struct{}, 1), over: make(chan struct{}), processes: map[string]bool{},
		}
		if spec.IdleTimeout > 0 {
			s.idleFor = spec.IdleTimeout
			s.idle = time.AfterFunc(spec.IdleTimeout, func() { s.end() })
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.sessions[s.id] = s
		return s, nil
	})
}

// ConnectIsolatedSession implements sandbox.IsolatedSessions.
func (p *Provider) ConnectIsolatedSession(ctx context.Context, id, session string) (sandbox.IsolatedSession, error) {
	return withMachine[sandbox.IsolatedSession](ctx, p, "ConnectIsolatedSession", id, nil, func(m *machine) (sandbox.IsolatedSession, error) {
		s, err := m.session(session)
		if err != nil {
			return nil, err
		}
		return s, nil
	})
}

// RunInIsolatedSession implements sandbox.IsolatedSessions.
func (p *Provider) RunInIsolatedSession(ctx context.Context, id, session string, c sandbox.Command) (sandbox.CommandResult, error) {
	s, err := p.ConnectIsolatedSession(ctx, id, session)
	if err != nil {
		return sandbox.CommandResult{}, err
	}
	return s.Commands().Run(ctx, c)
}

// StreamInIsolatedSession implements sandbox.IsolatedSessions.
func (p *Provider) StreamInIsolatedSession(ctx context.Context, id, session string, c sandbox.Command, stdout, stderr io.Writer) (sandbox.CommandResult, error) {
	s, err := p.ConnectIsolatedSession(ctx, id, session)
	if err != nil {
		return sandbox.CommandResult{}, err
	}
	return s.Commands().Stream(ctx, c, stdout, stderr)
}

// CloseIsolatedSession implements sandbox.IsolatedSessions.
func (p *Provider) CloseIsolatedSession(ctx context.Context, id, session string) error {
	_, err := withMachine(ctx, p, "CloseIsolatedSession", id, struct{}{}, func(m *machine) (struct{}, error) {
		if s, err := m.session(session); err == nil {
			s.end()
		}
		return struct{}{}, nil
	})
	switch sandbox.CodeOf(err) {
	case sandbox.CodeNotFound, sandbox.CodeNotRunning:
		return nil // nothing of it is left
	}
	return err
}

// CountActiveIsolatedSessions implements sandbox.IsolatedSessions.
func (p *Provider) CountActiveIsolatedSessions(ctx context.Context, id string) (int, error) {
	return withMachine(ctx, p, "CountActiveIsolatedSessions", id, 0, func(m *machine) (int, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.sessions), nil
	})
}

// FindIsolatedSessionsByWorkspace implements sandbox.IsolatedSessionRecovery.
func (p *Provider) FindIsolatedSessionsByWorkspace(ctx context.Context, id, source string) ([]string, error) {
	return withMachine(ctx, p, "FindIsolatedSessionsByWorkspace", id, nil, func(m *machine) (ids []string, err error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, s := range m.sessions {
			if s.dir == path.Clean(source) {
				ids = append(ids, s.id)
			}
		}
		slices.Sort(ids)
		return ids, nil
	})
}

// end ends the session and returns when nothing of it runs.
func (s *session) end() {
	s.m.mu.Lock()
	delete(s.m.sessions, s.id)
	s.m.mu.Unlock()
	s.mu.Lock()
	jobs, ids, again := s.jobs, s.processes, s.endedAlready
	s.endedAlready = true
	s.mu.Unlock()
	if again {
		return
	}
	if s.idle != nil {
		s.idle.Stop()
	}
	close(s.over)
	for id := range ids {
		_ = processes{s.m}.Delete(context.Background(), id) // gone with its sandbox, or gone
	}
	for _, j := range jobs {
		s.m.kernel.kill(j, nil)
	}
	s.turn <- struct{}{} // what ran has ended
	<-s.turn
}

func (s *session) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.endedAlready
}

// has reports whether a job is one of the session's commands.
func (s *session) has(j *job) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return j != nil && slices.Contains(s.jobs, j)
}

// denied says that the session's account may not do this with a path.
func (s *session) denied(t *tree, p string, write bool) bool {
	p = path.Clean(p)
	if write && !slices.ContainsFunc(s.writable, func(w string) bool { return p == w || strings.HasPrefix(p, w+"/") }) {
		return true
	}
	if s.account == "root" {
		return false
	}
	n := t.root
	for part := range strings.SplitSeq(strings.Trim(p, "/"), "/") {
		if n.mode.IsDir() && n.mode.Perm()&0o077 == 0 && n.owner != s.account {
			return true
		}
		if n = n.names[part]; n == nil {
			return false
		}
	}
	return false
}

// SessionID implements sandbox.IsolatedSession.
func (s *session) SessionID() string { return s.id }

// Files implements sandbox.IsolatedSession.
func (s *session) Files() sandbox.Files {
	return &sessionFiles{Files: handle{s.m}.Files().Beneath(s.dir), s: s}
}

// Commands implements sandbox.IsolatedSession.
func (s *session) Commands() sandbox.Commands { return sessionCommands{s} }

// Processes implements sandbox.IsolatedSession.
func (s *session) Processes() sandbox.Processes { return sessionProcesses{processes{s.m}, s} }

// sessionFiles gives what it makes to the session's account.
type sessionFiles struct {
	sandbox.Files
	s *session
}

func (f *sessionFiles) own(a sandbox.Attr) sandbox.Attr {
	if a.Owner == "" && a.Group == "" {
		a.Owner, a.Group = f.s.account, f.s.group
	}
	return a
}

func (f *sessionFiles) open(op, p string) error {
	if f.s.ended() {
		return fail(op, p, errors.Join(sandbox.ErrUnreachable, noSession(f.s.id)))
	}
	return nil
}

func (f *sessionFiles) Stat(ctx context.Context, p string) (sandbox.FileInfo, error) {
	if err := f.open("stat", p); err != nil {
		return sandbox.FileInfo{}, err
	}
	return f.Files.Stat(ctx, p)
}

func (f *sessionFiles) Write(ctx context.Context, p string, r io.Reader, o sandbox.WriteOptions) error {
	if err := f.open("write", p); err != nil {
		return err
	}
	if _, err := f.Files.Stat(ctx, p); errors.Is(err, fs.ErrNotExist) {
		o.Attr = f.own(o.Attr)
	}
	return f.Files.Write(ctx, p, r, o)
}

func (f *sessionFiles) MakeDir(ctx context.Context, p string, o sandbox.DirOptions) error {
	if err := f.open("mkdir", p); err != nil {
		return err
	}
	o.Attr = f.own(o.Attr)
	return f.Files.MakeDir(ctx, p, o)
}

// sessionCommands runs one command after another.
type sessionCommands struct{ s *session }

func (c sessionCommands) Run(ctx context.Context, cmd sandbox.Command) (sandbox.CommandResult, error) {
	var stdout, stderr capped
	r, err := c.Stream(ctx, cmd, &stdout, &stderr)
	r.Stdout, r.Stderr = stdout.b, stderr.b
	r.Truncated = stdout.truncated || stderr.truncated
	return r, err
}

func (c sessionCommands) Stream(ctx context.Context, cmd sandbox.Command, stdout, stderr io.Writer) (sandbox.CommandResult, error) {
	s := c.s
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-s.over:
		return sandbox.CommandResult{}, noSession(s.id)
	case <-ctx.Done():
		return sandbox.CommandResult{}, ctx.Err()
	}
	if s.ended() {
		return sandbox.CommandResult{}, noSession(s.id)
	}
	if s.idle != nil {
		s.idle.Stop()
		defer s.idle.Reset(s.idleFor)
	}
	in := commands{m: s.m, as: s, carries: cmd.Dir == "" && len(cmd.Env) == 0}
	if cmd.Dir == "" {
		cmd.Dir = s.now
	}
	env := maps.Clone(s.exports)
	maps.Copy(env, cmd.Env)
	cmd.Env = env
	r, err := in.Stream(ctx, cmd, stdout, stderr)
	if err == nil && s.ended() {
		return sandbox.CommandResult{}, noSession(s.id)
	}
	return r, err
}

// sessionProcesses are the processes of one session.
type sessionProcesses struct {
	processes
	s *session
}

func (ps sessionProcesses) Start(ctx context.Context, spec sandbox.ProcessSpec) (string, error) {
	if ps.s.ended() {
		return "", noSession(ps.s.id)
	}
	if spec.User != "" {
		return "", sandbox.Errorf(sandbox.CodeInvalid, "a process of an isolated session runs as the session's account")
	}
	spec.User, spec.Key = ps.s.account, ps.s.id+"/"+spec.Key
	if spec.Dir == "" {
		spec.Dir = ps.s.dir
	}
	id, err := ps.processes.Start(ctx, spec)
	if err == nil {
		ps.s.mu.Lock()
		ps.s.processes[id] = true
		ps.s.mu.Unlock()
	}
	return id, err
}

func (ps sessionProcesses) has(id string) bool {
	ps.s.mu.Lock()
	defer ps.s.mu.Unlock()
	return ps.s.processes[id]
}

func (ps sessionProcesses) Status(ctx context.Context, id string) (sandbox.ProcessStatus, error) {
	if !ps.has(id) {
		return sandbox.ProcessStatus{}, sandbox.ErrProcessNotFound
	}
	return ps.processes.Status(ctx, id)
}

func (ps sessionProcesses) Attach(ctx context.Context, id string, o sandbox.AttachOptions) (sandbox.Attachment, error) {
	if !ps.has(id) {
		return nil, sandbox.ErrProcessNotFound
	}
	return ps.processes.Attach(ctx, id, o)
}

func (ps sessionProcesses) Delete(ctx context.Context, id string) error {
	if !ps.has(id) {
		return nil
	}
	return ps.processes.Delete(ctx, id)
}
