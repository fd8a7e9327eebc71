// Package launch turns a command line with a directory, an environment and an
// account into a program that package child can start. Commands, processes and
// the entrypoint of the daemon go through it, so that all of them get the same
// environment and the same account rules.
//
// Failures that are the request's fault are *Error with a code of the wire.
// Everything is safe for concurrent use.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/hang"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// maxArgument is how long one argument of a program may be (MAX_ARG_STRLEN,
// which counts the final NUL).
const maxArgument = 128<<10 - 1

// DefaultPath is the PATH of children when the daemon has none.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Error is a request that can't be launched as it is.
type Error struct {
	Code    string // of the wire
	Message string
}

func (e *Error) Error() string { return e.Message }

func refuse(code, format string, args ...any) error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// Request says what to launch.
type Request struct {
	Line string // for the shell; empty: the account's login shell, reading stdin
	// Argv is run instead, without a shell: a name with a slash is taken from
	// Dir, another one is looked for in the absolute entries of the child's PATH.
	Argv []string
	Dir  string // absolute; empty: Home's
	Home bool   // an empty Dir is the account's home rather than "/"
	Env  map[string]string
	User string // account name; empty: root, or whoever the daemon is
	// UID and GID select the account by number instead. Without an entry in
	// the account file the group defaults to the user's own number.
	UID, GID *uint32
	Terminal bool
	Mark     string // of the process tree
	// Environ, where it isn't nil, is the whole environment, the mark apart.
	Environ []string
	// File holds further variables, which Env may replace (see [EnvFile]).
	File map[string]string
}

// Plan is a program ready to start.
type Plan struct {
	child.Spec
	// Account is who it runs as.
	Account account.User
	// script is an open file that holds a line too long for an argument.
	script *os.File
}

// Close releases what the plan holds. It is called after the start.
func (p *Plan) Close() {
	if p.script != nil {
		p.script.Close()
	}
}

// Prepare checks a request and makes the plan. Descriptors 0 to 2 are still to
// be put into Files by [Plan.SetFiles]. A file system that doesn't answer is
// given up with an error of package hang, or ctx's.
func Prepare(ctx context.Context, db *account.DB, r Request) (*Plan, error) {
	return hang.Do(ctx, func() (*Plan, error) {
		p, err := prepare(db, r)
		if err == nil {
			hang.Program(p.Path, p.Dir)
		}
		return p, err
	}, (*Plan).Close)
}

func prepare(db *account.DB, r Request) (*Plan, error) {
	if strings.ContainsRune(r.Line, 0) {
		return nil, refuse(wire.CodeInvalidBody, "the command contains a NUL")
	}
	if r.Argv != nil && (len(r.Argv) == 0 || r.Argv[0] == "") {
		return nil, refuse(wire.CodeInvalidBody, "argv names no program")
	}
	for _, arg := range r.Argv {
		if strings.ContainsRune(arg, 0) {
			return nil, refuse(wire.CodeInvalidBody, "an argument contains a NUL")
		}
	}
	for k, v := range r.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return nil, refuse(wire.CodeInvalidBody, "%q is not the name and value of a variable", k)
		}
	}
	user, switched, err := who(db, r)
	if err != nil {
		return nil, err
	}
	dir, err := directory(r, user)
	if err != nil {
		return nil, err
	}
	p := &Plan{Account: user, Spec: child.Spec{
		Dir: dir, Terminal: r.Terminal, Env: environment(r, user),
	}}
	if switched {
		p.Credential = &syscall.Credential{Uid: user.UID, Gid: user.GID, Groups: user.Groups}
	}
	switch {
	case r.Argv != nil:
		p.Args = r.Argv
		if p.Path, err = lookPath(r.Argv[0], dir, p.Env); err != nil {
			return nil, err
		}
	case r.Line == "":
		p.Path = user.Shell
		p.Args = []string{"-" + filepath.Base(user.Shell)}
	case len(r.Line) <= maxArgument:
		p.Path = Shell()
		p.Args = []string{filepath.Base(p.Path), "-c", r.Line}
	default:
		if p.script, err = scriptFile(r.Line); err != nil {
			return nil, fmt.Errorf("launch: %w", err)
		}
		p.Path = Shell()
		p.Args = []string{filepath.Base(p.Path), "-c", `eval "$(cat <&3)" 3<&-`}
	}
	return p, nil
}

// SetFiles gives the program its descriptors 0, 1 and 2.
func (p *Plan) SetFiles(stdin, stdout, stderr int) {
	p.Files = []int{stdin, stdout, stderr}
	if p.script != nil {
		p.Files = append(p.Files, int(p.script.Fd()))
	}
}

// who finds the account, and whether the daemon has to become it.
func who(db *account.DB, r Request) (u account.User, switched bool, err error) {
	self := uint32(os.Geteuid())
	switch {
	case r.User != "":
		u, err = db.User(r.User)
		if errors.Is(err, account.ErrUnknown) {
			return u, false, refuse(wire.CodeUnknownAccount, "the sandbox has no account %q", r.User)
		}
		if err != nil {
			return u, false, fmt.Errorf("launch: %w", err)
		}
		switched = true
	case r.UID != nil:
		const unchanged = 1<<32 - 1 // what system calls read as "leave it"
		if *r.UID == unchanged || r.GID != nil && *r.GID == unchanged {
			return u, false, refuse(wire.CodeUnknownAccount, "%d is not the number of an account or group", uint32(unchanged))
		}
		if u, err = db.UserID(*r.UID); err != nil {
			u = account.User{Name: fmt.Sprint(*r.UID), UID: *r.UID, GID: *r.UID}
		}
		if r.GID != nil {
			u.GID = *r.GID
		}
		switched = true
	default:
		if u, err = db.UserID(self); err != nil {
			u = account.User{Name: "root", UID: self, GID: uint32(os.Getegid()), Home: "/root"}
		}
	}
	if switched && self != 0 {
		if u.UID != self {
			return u, false, refuse(wire.CodeUnknownAccount, "the daemon can't become account %q", u.Name)
		}
		switched = false
	}
	if u.Home == "" {
		u.Home = "/"
	}
	if u.Shell == "" || !executable(u.Shell) {
		u.Shell = Shell()
	}
	return u, switched, nil
}

// directory refuses one that doesn't exist, so that this is told apart from a
// program that doesn't.
func directory(r Request, u account.User) (string, error) {
	dir := r.Dir
	switch {
	case strings.ContainsRune(dir, 0):
		return "", refuse(wire.CodeBadDirectory, "the working directory contains a NUL")
	case dir == "" && r.Home && isDir(u.Home):
		return u.Home, nil
	case dir == "":
		return "/", nil
	case !filepath.IsAbs(dir):
		return "", refuse(wire.CodeBadDirectory, "the working directory %q is not absolute", dir)
	}
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", refuse(wire.CodeBadDirectory, "the working directory %q doesn't exist", dir)
	case err != nil:
		return "", refuse(wire.CodeBadDirectory, "the working directory %q can't be used: %v", dir, errors.Unwrap(err))
	case !fi.IsDir():
		return "", refuse(wire.CodeBadDirectory, "the working directory %q is not a directory", dir)
	}
	return dir, nil
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// private reports the variables that children don't inherit from the daemon.
func private(name string) bool {
	return strings.HasPrefix(name, "EXECD_") && name != EnvFileVariable || name == "JUPYTER_TOKEN" || name == child.MarkVariable
}

// Environment gives the environment of a program that runs as the account of
// uid and gid; nil: the daemon's own. File is as in [Request].
func Environment(db *account.DB, uid, gid *uint32, file map[string]string) []string {
	u, _, err := who(db, Request{UID: uid, GID: gid})
	if err != nil {
		u = account.User{Name: "root", Home: "/root", Shell: Shell()}
	}
	return environment(Request{File: file}, u)
}

func environment(r Request, u account.User) []string {
	if r.Environ != nil {
		return append([]string{child.MarkVariable + "=" + r.Mark}, r.Environ...)
	}
	set := make(map[string]string, len(r.Env)+8)
	set["HOME"], set["USER"], set["LOGNAME"], set["SHELL"] = u.Home, u.Name, u.Name, u.Shell
	if r.Terminal {
		set["TERM"] = "xterm-256color"
	}
	maps.Copy(set, r.File)
	maps.Copy(set, r.Env)
	inherited := os.Environ()
	env := make([]string, 0, len(inherited)+len(set)+2)
	if r.Mark != "" {
		env = append(env, child.MarkVariable+"="+r.Mark)
	}
	hasPath := false
	for _, kv := range inherited {
		name, _, _ := strings.Cut(kv, "=")
		if _, replaced := set[name]; replaced || private(name) {
			continue
		}
		hasPath = hasPath || name == "PATH"
		env = append(env, kv)
	}
	if _, given := set["PATH"]; !given && !hasPath {
		env = append(env, "PATH="+DefaultPath)
	}
	for k, v := range set {
		if k != child.MarkVariable {
			env = append(env, k+"="+v)
		}
	}
	return env
}

// lastShell is where the shell was found last.
var lastShell atomic.Pointer[string]

// Shell gives the path of bash where the sandbox has it, else of sh.
func Shell() string {
	if p := lastShell.Load(); p != nil && executable(*p) {
		return *p
	}
	for _, name := range []string{"bash", "sh"} {
		for _, dir := range []string{"/bin", "/usr/bin", "/usr/local/bin"} {
			if path := dir + "/" + name; executable(path) {
				lastShell.Store(&path)
				return path
			}
		}
	}
	return "/bin/sh"
}

func executable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o111 != 0
}
