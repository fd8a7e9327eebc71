package execd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// prepareTime bounds the making of a workspace.
const prepareTime = 30 * time.Second

// Isolation gives a provider its isolated sessions, by embedding: the operations
// of [sandbox.IsolatedSessions] and [sandbox.IsolatedSessionRecovery] over the
// execd of each sandbox. The zero value must not be used; make it with [Isolated].
type Isolation struct {
	dial func(ctx context.Context, sandboxID string) (*Conn, error)
}

var (
	_ sandbox.IsolatedSessions        = Isolation{}
	_ sandbox.IsolatedSessionRecovery = Isolation{}
)

// Isolated makes an Isolation. dial reaches the execd of a running sandbox, and
// asks the backend whether there is one: its errors for which errors.Is finds
// sandbox.ErrNotFound, ErrGone or ErrNotRunning say that no session is left.
func Isolated(dial func(ctx context.Context, sandboxID string) (*Conn, error)) Isolation {
	return Isolation{dial}
}

func (i Isolation) conn(ctx context.Context, sandboxID string) (*Conn, error) {
	if err := sandbox.CheckID(sandboxID); err != nil {
		return nil, err
	}
	return i.dial(ctx, sandboxID)
}

// ReadIsolationCapability implements [sandbox.IsolatedSessions].
func (i Isolation) ReadIsolationCapability(ctx context.Context, sandboxID string) (sandbox.IsolationCapability, error) {
	c, err := i.conn(ctx, sandboxID)
	if err != nil {
		return sandbox.IsolationCapability{}, err
	}
	if _, err := c.speaks(ctx, wire.FeatureIsolated); err != nil {
		if errors.Is(err, sandbox.ErrUnsupported) {
			return sandbox.IsolationCapability{Detail: err.Error()}, nil
		}
		return sandbox.IsolationCapability{}, err
	}
	var a wire.IsolatedCapabilities
	err = c.json(ctx, http.MethodGet, wire.PathIsolated+"/capabilities", "", nil, &a)
	var no *refusal
	switch {
	case errors.As(err, &no) && no.unknownPath():
		return sandbox.IsolationCapability{Detail: "the execd of this sandbox has no isolated sessions"}, nil
	case errors.As(err, &no) && no.status == http.StatusServiceUnavailable:
		return sandbox.IsolationCapability{Detail: no.message}, nil
	case err != nil:
		return sandbox.IsolationCapability{}, isolatedError(err)
	}
	return sandbox.IsolationCapability{
		Available: a.Available, Isolator: a.Isolator, Version: a.Version, SwitchAccount: a.SetPriv, UserNamespaces: a.UserNS,
		Commit: a.Commit, Diff: a.Diff, Detail: a.Message,
	}, nil
}

// PrepareIsolatedWorkspace implements [sandbox.IsolatedSessions]. No part of
// its path is a link, and it stays the directory that it was while its owner is set.
func (i Isolation) PrepareIsolatedWorkspace(ctx context.Context, sandboxID, dir string, uid, gid uint32) error {
	if err := (sandbox.IsolatedSessionSpec{Workspace: dir}).Check(); err != nil {
		return err
	}
	const unchanged = 1<<32 - 1 // what system calls read as "leave it"
	if uid == unchanged || gid == unchanged {
		return sandbox.Errorf(sandbox.CodeInvalid, "%d is not the number of an account or group", uint32(unchanged))
	}
	c, err := i.conn(ctx, sandboxID)
	if err != nil {
		return err
	}
	dir = path.Clean(dir)
	line := "set -e; umask 022; mkdir -p -- " + quote(dir) + "; cd -P -- " + quote(dir) + "\n" +
		"[ \"$(pwd -P)\" = " + quote(dir) + " ] || { echo 'there is a link in its path' >&2; exit 1; }\n" +
		fmt.Sprintf("chown %d:%d . && chmod 0700 .", uid, gid)
	res, err := Commands(c).Run(ctx, sandbox.Command{Line: line, Timeout: prepareTime})
	switch {
	case err != nil:
		return fmt.Errorf("prepare the workspace %s: %w", dir, err)
	case res.ExitCode != 0:
		return sandbox.Errorf(sandbox.CodeUnavailable, "the workspace %s can't be prepared: %.500s", dir, string(res.Stderr))
	}
	return nil
}

// isolatedRequest is the body of a request for a session.
type isolatedRequest struct {
	Profile   string            `json:"profile"`
	Workspace isolatedWorkspace `json:"workspace"`
	Writable  []string          `json:"extra_writable,omitempty"`
	Binds     []isolatedBind    `json:"binds,omitempty"`
	ShareNet  bool              `json:"share_net"`
	UID       uint32            `json:"uid"`
	GID       uint32            `json:"gid"`
	Idle      int64             `json:"idle_timeout_seconds"`
}

type isolatedWorkspace struct {
	Path   string `json:"path"`
	Mode   string `json:"mode"`
	Source string `json:"source,omitempty"`
}

type isolatedBind struct {
	Source   string `json:"source"`
	Dest     string `json:"dest,omitempty"`
	ReadOnly bool   `json:"readonly,omitempty"`
}

// OpenIsolatedSession implements [sandbox.IsolatedSessions].
func (i Isolation) OpenIsolatedSession(ctx context.Context, sandboxID string, s sandbox.IsolatedSessionSpec) (sandbox.IsolatedSession, error) {
	if err := errors.Join(s.Check(), textPaths(s)); err != nil {
		return nil, err
	}
	c, err := i.conn(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	ours, err := c.speaks(ctx, wire.FeatureIsolated)
	if err != nil {
		return nil, isolatedError(err)
	}
	if s.Source == "" {
		s.Source = s.Workspace
	}
	if s.Workspace, s.Source = path.Clean(s.Workspace), path.Clean(s.Source); !ours && s.Source != s.Workspace {
		return nil, sandbox.Errorf(sandbox.CodeIsolationUnsupported, "the execd of this sandbox isn't AstraBox's: it shows a workspace at its own path only")
	}
	req := isolatedRequest{
		Profile: "strict", Workspace: isolatedWorkspace{Path: s.Workspace, Mode: "rw"}, Writable: s.Writable,
		ShareNet: s.ShareNet, UID: s.UID, GID: s.GID, Idle: int64(s.IdleTimeout / time.Second),
	}
	if ours {
		req.Workspace.Source = s.Source
	}
	for _, b := range s.Binds {
		req.Binds = append(req.Binds, isolatedBind{b.Source, b.Path, b.ReadOnly})
	}
	var made struct {
		ID string `json:"session_id"`
	}
	if err := c.json(ctx, http.MethodPost, wire.PathIsolated+"/session", "", req, &made); err != nil {
		return nil, isolatedError(err)
	}
	if !processID.MatchString(made.ID) {
		return nil, sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox made an isolated session but doesn't say which")
	}
	return newIsolated(c, ours, made.ID, s.Workspace), nil
}

// textPaths refuses paths that JSON can't carry unchanged: the session would get
// another directory.
func textPaths(s sandbox.IsolatedSessionSpec) error {
	paths := append([]string{s.Workspace, s.Source}, s.Writable...)
	for _, b := range s.Binds {
		paths = append(paths, b.Source, b.Path)
	}
	for _, p := range paths {
		if !utf8.ValidString(p) {
			return sandbox.Errorf(sandbox.CodeInvalid, "%q isn't UTF-8; an isolated session takes no such path", p)
		}
	}
	return nil
}

// isolatedState is what is read of a session.
type isolatedState struct {
	Status    string            `json:"status"`
	Workspace isolatedWorkspace `json:"workspace"`
}

func (st isolatedState) source() string {
	if st.Workspace.Source != "" {
		return path.Clean(st.Workspace.Source)
	}
	if st.Workspace.Path == "" {
		return ""
	}
	return path.Clean(st.Workspace.Path)
}

func (c *Conn) isolatedState(ctx context.Context, id string) (st isolatedState, err error) {
	if !processID.MatchString(id) {
		return st, sandbox.Errorf(sandbox.CodeIsolatedSessionNotFound, "%.100q is not the id of an isolated session", id)
	}
	err = isolatedError(c.json(ctx, http.MethodGet, wire.PathIsolated+"/session/"+id, "", nil, &st))
	if err == nil && st.Status != "active" {
		err = sandbox.Errorf(sandbox.CodeIsolatedSessionNotFound, "the isolated session has ended (%.20q)", st.Status)
	}
	return st, err
}

// ConnectIsolatedSession implements [sandbox.IsolatedSessions].
func (i Isolation) ConnectIsolatedSession(ctx context.Context, sandboxID, sessionID string) (sandbox.IsolatedSession, error) {
	c, err := i.conn(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	ours, err := c.speaks(ctx, wire.FeatureIsolated)
	if err != nil {
		return nil, isolatedError(err)
	}
	st, err := c.isolatedState(ctx, sessionID)
	if err != nil {
		return nil, err
	}
	if st.source() == "" {
		return nil, sandbox.Errorf(sandbox.CodeUnsupported, "the execd of this sandbox doesn't say which workspace an isolated session has")
	}
	return newIsolated(c, ours, sessionID, path.Clean(st.Workspace.Path)), nil
}

// RunInIsolatedSession implements [sandbox.IsolatedSessions].
func (i Isolation) RunInIsolatedSession(ctx context.Context, sandboxID, sessionID string, cmd sandbox.Command) (sandbox.CommandResult, error) {
	s, err := i.grip(ctx, sandboxID, sessionID)
	if err != nil {
		return sandbox.CommandResult{}, err
	}
	return s.Run(ctx, cmd)
}

// StreamInIsolatedSession implements [sandbox.IsolatedSessions].
func (i Isolation) StreamInIsolatedSession(ctx context.Context, sandboxID, sessionID string, cmd sandbox.Command, stdout, stderr io.Writer) (sandbox.CommandResult, error) {
	s, err := i.grip(ctx, sandboxID, sessionID)
	if err != nil {
		return sandbox.CommandResult{}, err
	}
	return s.Stream(ctx, cmd, stdout, stderr)
}

// grip reaches the runs of a session without asking about it first.
func (i Isolation) grip(ctx context.Context, sandboxID, sessionID string) (isolatedCommands, error) {
	c, err := i.conn(ctx, sandboxID)
	if err != nil {
		return isolatedCommands{}, err
	}
	ours, err := c.speaks(ctx, wire.FeatureIsolated)
	if err != nil {
		return isolatedCommands{}, isolatedError(err)
	}
	if !processID.MatchString(sessionID) {
		return isolatedCommands{}, sandbox.Errorf(sandbox.CodeIsolatedSessionNotFound, "%.100q is not the id of an isolated session", sessionID)
	}
	return isolatedCommands{c, ours, sessionID}, nil
}

// CloseIsolatedSession implements [sandbox.IsolatedSessions].
func (i Isolation) CloseIsolatedSession(ctx context.Context, sandboxID, sessionID string) error {
	if !processID.MatchString(sessionID) {
		return nil // no session has such an id
	}
	c, err := i.conn(ctx, sandboxID)
	ours := false
	if err == nil { // what a daemon answers means depends on which one it is
		ours, err = c.speaks(ctx, wire.FeatureIsolated)
		err = isolatedError(err)
	}
	if err == nil {
		err = isolatedError(c.json(ctx, http.MethodDelete, wire.PathIsolated+"/session/"+sessionID, "", nil, nil))
	}
	var no *refusal
	switch {
	case errors.Is(err, sandbox.ErrNotFound), errors.Is(err, sandbox.ErrGone), errors.Is(err, sandbox.ErrNotRunning):
		return nil // and with the sandbox, or its processes, the session
	case errors.Is(err, sandbox.ErrIsolatedSessionNotFound):
		return nil
	case !ours && errors.As(err, &no) && no.status == http.StatusInternalServerError:
		// A foreign execd may say so of a session that is gone. Ours says it of one
		// whose processes survive, which isn't to be found any more either.
		if _, again := c.isolatedState(ctx, sessionID); errors.Is(again, sandbox.ErrIsolatedSessionNotFound) {
			return nil
		}
	case err != nil && ctx.Err() == nil:
		// The sandbox may have gone just now.
		if _, again := i.conn(ctx, sandboxID); errors.Is(again, sandbox.ErrNotFound) || errors.Is(again, sandbox.ErrGone) || errors.Is(again, sandbox.ErrNotRunning) {
			return nil
		}
	}
	return err
}

// sessions gives the ids of the open sessions.
func (c *Conn) sessions(ctx context.Context) ([]string, error) {
	if _, err := c.speaks(ctx, wire.FeatureIsolated); err != nil {
		return nil, isolatedError(err)
	}
	var list struct {
		Sessions *[]struct {
			ID     string `json:"session_id"`
			Status string `json:"status"`
		} `json:"sessions"`
	}
	if err := c.json(ctx, http.MethodGet, wire.PathIsolated+"/sessions", "", nil, &list); err != nil {
		return nil, isolatedError(err)
	}
	if list.Sessions == nil {
		return nil, fmt.Errorf("%w: the daemon's answer has no list of isolated sessions", sandbox.ErrUnreachable)
	}
	ids := []string{}
	for _, s := range *list.Sessions {
		if s.Status == "active" {
			ids = append(ids, s.ID)
		}
	}
	return ids, nil
}

// CountActiveIsolatedSessions implements [sandbox.IsolatedSessions].
func (i Isolation) CountActiveIsolatedSessions(ctx context.Context, sandboxID string) (int, error) {
	c, err := i.conn(ctx, sandboxID)
	if err != nil {
		return 0, err
	}
	ids, err := c.sessions(ctx)
	return len(ids), err
}

// FindIsolatedSessionsByWorkspace implements [sandbox.IsolatedSessionRecovery].
func (i Isolation) FindIsolatedSessionsByWorkspace(ctx context.Context, sandboxID, source string) ([]string, error) {
	if err := (sandbox.IsolatedSessionSpec{Workspace: source}).Check(); err != nil {
		return nil, err
	}
	c, err := i.conn(ctx, sandboxID)
	if err != nil {
		return nil, err
	}
	ids, err := c.sessions(ctx)
	if err != nil {
		return nil, err
	}
	found := []string{}
	for _, id := range ids {
		st, err := c.isolatedState(ctx, id)
		switch {
		case errors.Is(err, sandbox.ErrIsolatedSessionNotFound):
			continue // it has ended meanwhile
		case err != nil:
			return nil, err
		case st.source() == "":
			return nil, sandbox.Errorf(sandbox.CodeUnsupported, "an open isolated session doesn't say which workspace it has, so it isn't known whose it is")
		case st.source() == path.Clean(source):
			found = append(found, id)
		}
	}
	return found, nil
}

// isolatedError translates a refusal about sessions.
func isolatedError(err error) error {
	var no *refusal
	var known *sandbox.Error
	switch {
	case errors.As(err, &known) && known.Code == sandbox.CodeUnsupported:
		return sandbox.Errorf(sandbox.CodeIsolationUnsupported, "%s", known.Message)
	case err == nil || !errors.As(err, &no):
		return err
	case no.status == http.StatusServiceUnavailable, no.unknownPath():
		return sandbox.Errorf(sandbox.CodeIsolationUnsupported, "the sandbox can't hold isolated sessions: %s", textOr(no.message, "its execd doesn't know them"))
	case no.status == http.StatusTooManyRequests:
		return sandbox.Errorf(sandbox.CodeCapacity, "%s", no.message)
	case no.status >= 500:
		return fmt.Errorf("%w (%w)", sandbox.Errorf(sandbox.CodeUnavailable, "the sandbox failed at an isolated session: %s", no.message), no)
	}
	return sandbox.Errorf(sandbox.CodeInvalid, "%s", textOr(no.message, "status "+strconv.Itoa(no.status)))
}

func textOr(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// isolatedSession reaches one session.
type isolatedSession struct {
	isolatedCommands
	inside    *Conn // requests of files and processes go to the session
	workspace string
}

func newIsolated(c *Conn, ours bool, id, workspace string) *isolatedSession {
	s := &isolatedSession{isolatedCommands: isolatedCommands{c, ours, id}, workspace: workspace}
	c.mu.Lock()
	s.inside = &Conn{
		resolve: c.resolve, client: c.client, apart: c.apart, dir: c.dir, stall: c.stall,
		endpoint: c.endpoint, features: c.features, foreign: c.foreign,
	}
	c.mu.Unlock()
	if ours {
		s.inside.session = wire.PathIsolated + "/session/" + id
	}
	return s
}

// SessionID implements [sandbox.IsolatedSession].
func (s *isolatedSession) SessionID() string { return s.id }

// Files implements [sandbox.IsolatedSession].
func (s *isolatedSession) Files() sandbox.Files { return Files(s.inside).Beneath(s.workspace) }

// Commands implements [sandbox.IsolatedSession].
func (s *isolatedSession) Commands() sandbox.Commands { return s.isolatedCommands }

// Processes implements [sandbox.IsolatedSession].
func (s *isolatedSession) Processes() sandbox.Processes {
	if !s.ours {
		return sandbox.UnsupportedProcesses("execd that isn't AstraBox's, in an isolated session,")
	}
	return Processes(s.inside)
}

// isolatedCommands are the runs of one session.
type isolatedCommands struct {
	c    *Conn
	ours bool
	id   string
}

func (k isolatedCommands) Run(ctx context.Context, c sandbox.Command) (sandbox.CommandResult, error) {
	var stdout, stderr capped
	res, err := k.Stream(ctx, c, &stdout, &stderr)
	res.Stdout, res.Stderr = stdout.b, stderr.b
	res.Truncated = stdout.truncated || stderr.truncated
	return res, err
}

func (k isolatedCommands) Stream(ctx context.Context, c sandbox.Command, stdout, stderr io.Writer) (sandbox.CommandResult, error) {
	var none sandbox.CommandResult
	if c.Line == "" {
		return none, sandbox.Errorf(sandbox.CodeInvalid, "the command line is empty")
	}
	timeout, err := timeoutOf(ctx, c.Timeout)
	if err != nil {
		return none, err
	}
	if err := textOnly(c.Line, c.Dir, c.Env); err != nil {
		return none, err
	}
	if !k.ours {
		return k.foreign(ctx, c, timeout, stdout, stderr)
	}
	body, err := json.Marshal(wire.IsolatedRun{Code: c.Line, Cwd: c.Dir, Envs: c.Env, TimeoutMillis: timeout})
	if err != nil {
		return none, fmt.Errorf("execd: %w", err)
	}
	return k.c.framed(ctx, k.path(), body, stdout, stderr)
}

func (k isolatedCommands) path() string { return wire.PathIsolated + "/session/" + k.id + "/run" }
