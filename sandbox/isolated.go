package sandbox

import (
	"context"
	"io"
	"strings"
	"time"
)

// IsolatedSessions goes with Capabilities.IsolatedSessions: sandboxes within a
// sandbox, for conversations that share one. A session has its own processes,
// its own account and its own view of the files: everything is read-only but
// its workspace, what its spec adds, and a /tmp of its own. It sees and signals
// no process outside, and no other session's workspace that its account may not
// read. All sessions share the sandbox's limits and its kernel.
//
// Every operation takes the sandbox's id and, where one is concerned, the
// session's; both alone are enough after a restart of AstraBox. A sandbox that
// can't be reached or isn't there fails as everywhere (SANDBOX_NOT_FOUND,
// SANDBOX_NOT_RUNNING, ErrUnreachable); a session that ended or never was is
// SANDBOX_ISOLATED_SESSION_NOT_FOUND. A pause ends all sessions; workspaces stay.
type IsolatedSessions interface {
	// ReadIsolationCapability asks the sandbox whether it can hold sessions.
	// "No" is an answer (Available false, with the reason in Detail), not an
	// error; an error means that the sandbox couldn't be asked.
	ReadIsolationCapability(ctx context.Context, sandboxID string) (IsolationCapability, error)
	// PrepareIsolatedWorkspace makes the directory dir (absolute) where it is
	// missing, its parents too, and sees to it that it belongs to uid and gid
	// with mode 0700. It holds for a directory that exists as well; what lies in
	// it stays as it is. A session is opened on a prepared directory only:
	// otherwise the sandbox may make it as root, or refuse.
	PrepareIsolatedWorkspace(ctx context.Context, sandboxID, dir string, uid, gid uint32) error
	// OpenIsolatedSession makes a session. A spec that [IsolatedSessionSpec.Check]
	// refuses is refused before any request. A sandbox that can't hold
	// sessions: SANDBOX_ISOLATION_UNSUPPORTED. An answer without a session id is
	// an error. A call whose answer was lost may have made one, which
	// [IsolatedSessionRecovery] finds by its workspace.
	OpenIsolatedSession(ctx context.Context, sandboxID string, s IsolatedSessionSpec) (IsolatedSession, error)
	// ConnectIsolatedSession reaches an open session by its id.
	ConnectIsolatedSession(ctx context.Context, sandboxID, sessionID string) (IsolatedSession, error)
	// RunInIsolatedSession is Commands.Run of the session: see [IsolatedSession].
	RunInIsolatedSession(ctx context.Context, sandboxID, sessionID string, c Command) (CommandResult, error)
	// StreamInIsolatedSession is Commands.Stream of the session.
	StreamInIsolatedSession(ctx context.Context, sandboxID, sessionID string, c Command, stdout, stderr io.Writer) (CommandResult, error)
	// CloseIsolatedSession ends a session with every process in it, and returns
	// when they are gone. It is idempotent, also when the sandbox is gone: nil
	// means that the session isn't there now. The workspace stays.
	CloseIsolatedSession(ctx context.Context, sandboxID, sessionID string) error
	// CountActiveIsolatedSessions counts the sessions that are open. A sandbox
	// that can't be asked is an error, never 0.
	CountActiveIsolatedSessions(ctx context.Context, sandboxID string) (int, error)
}

// IsolatedSessionRecovery goes with Capabilities.IsolatedSessionRecovery, which
// needs IsolatedSessions.
type IsolatedSessionRecovery interface {
	// FindIsolatedSessionsByWorkspace gives the ids of the open sessions whose
	// workspace has this source (absolute, in the sandbox), so that one whose id
	// was lost can be closed or used. An open session that doesn't name its
	// workspace makes the answer unknown: that is an error, not "none".
	FindIsolatedSessionsByWorkspace(ctx context.Context, sandboxID, source string) (sessionIDs []string, err error)
}

// IsolationCapability is what a sandbox says about its sessions.
type IsolationCapability struct {
	Available bool
	Isolator  string // what makes them, such as "bwrap"; may be empty
	Version   string // of the isolator
	// SwitchAccount: a session may run as another account than the daemon's.
	SwitchAccount bool
	// UserNamespaces: a session may have a user namespace of its own.
	UserNamespaces bool
	// Commit and Diff: the changes of a workspace that is a copy can be looked
	// at, and taken over.
	Commit, Diff bool
	Detail       string // plain text for people: why not, or what is weaker
}

// IsolatedSessionSpec describes a session to open.
type IsolatedSessionSpec struct {
	// Workspace is the absolute path at which the session sees its workspace,
	// and where it begins. Source is the directory in the sandbox that it is;
	// empty: the same path. The source exists (PrepareIsolatedWorkspace).
	Workspace, Source string
	UID, GID          uint32
	// ShareNet gives the session the sandbox's network. Without it the session
	// has a loopback of its own and nothing else.
	ShareNet bool
	// Writable are further directories (absolute, same path inside and outside)
	// that the session may write to as far as its account may.
	Writable []string
	Binds    []IsolatedBind
	// IdleTimeout ends the session when nothing ran in it for that long, in
	// whole seconds; zero: it stays until it is closed.
	IdleTimeout time.Duration
}

// IsolatedBind shows a directory or file of the sandbox at another place of a session.
type IsolatedBind struct {
	Source, Path string // absolute; an empty Path is Source
	ReadOnly     bool
}

// maxIsolatedPaths bounds Writable and Binds together.
const maxIsolatedPaths = 64

// Check refuses a spec that no sandbox should be asked for, naming the field.
func (s IsolatedSessionSpec) Check() error {
	if err := checkIsolatedPath("Workspace", s.Workspace); err != nil {
		return err
	}
	if s.Source != "" {
		if err := checkIsolatedPath("Source", s.Source); err != nil {
			return err
		}
	}
	if len(s.Writable)+len(s.Binds) > maxIsolatedPaths {
		return Errorf(CodeInvalid, "an isolated session takes at most %d entries of Writable and Binds together", maxIsolatedPaths)
	}
	for _, path := range s.Writable {
		if err := checkIsolatedPath("Writable", path); err != nil {
			return err
		}
	}
	for _, b := range s.Binds {
		if err := checkIsolatedPath("Binds.Source", b.Source); err != nil {
			return err
		}
		if b.Path != "" {
			if err := checkIsolatedPath("Binds.Path", b.Path); err != nil {
				return err
			}
		}
	}
	if s.IdleTimeout < 0 || s.IdleTimeout%time.Second != 0 {
		return Errorf(CodeInvalid, "IdleTimeout of an isolated session is %v; it takes whole seconds", s.IdleTimeout)
	}
	return nil
}

// checkIsolatedPath refuses what isn't an absolute path without "." and "..",
// and the root, which no session may write to.
func checkIsolatedPath(field, path string) error {
	switch {
	case !strings.HasPrefix(path, "/"), strings.ContainsRune(path, 0):
		return Errorf(CodeInvalid, "%s of an isolated session is %q; it takes an absolute path", field, path)
	case strings.Trim(path, "/") == "":
		return Errorf(CodeInvalid, "%s of an isolated session is the root directory", field)
	}
	for part := range strings.SplitSeq(path, "/") {
		if part == "." || part == ".." {
			return Errorf(CodeInvalid, "%s of an isolated session is %q; it takes a path without . and ..", field, path)
		}
	}
	return nil
}

// IsolatedSession reaches one session. It is cheap and safe for concurrent use.
//
// Files are confined to the workspace: paths are the ones that the session
// sees, and what lies elsewhere, /tmp too, is ErrPathRejected. What a call makes
// without naming an owner belongs to the session's account.
//
// Commands run as the session's account and one after another, in the order
// they came. A command without Dir and Env begins where the one before stood,
// at first in the workspace, with the variables that it exported, and carries
// both on; one with Dir or Env leaves them as they were. A child that a command
// leaves behind outlives the command and dies with the session. A deadline or a
// cancelled ctx ends the command with what it started, and not the session.
//
// Processes run in the session as its account (ProcessSpec.User is empty), with
// the contract of every other process; an empty Dir is the workspace. They live
// as long as the session at most, whose end also forgets them.
type IsolatedSession interface {
	SessionID() string // never empty
	Files() Files
	Commands() Commands
	Processes() Processes
}
