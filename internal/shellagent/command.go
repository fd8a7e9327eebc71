package shellagent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxScript is the longest script that goes through the shell's arguments: the
// kernel allows 128 KiB for one. A longer one goes through a file.
const maxScript = 96 << 10

// shell is the program that runs commands.
type shell struct {
	path string
	args []string // argv[0] and what comes before the script
}

// findShell prefers bash, without its start files: a command should do the same
// whoever runs it. It looks in PATH, then where shells usually are.
func findShell(path string) (shell, error) {
	for _, s := range []shell{{"bash", []string{"bash", "--noprofile", "--norc"}}, {"sh", []string{"sh"}}} {
		for _, dir := range append(filepath.SplitList(path), "/bin", "/usr/bin", "/usr/local/bin") {
			file := filepath.Join(dir, s.path)
			if !filepath.IsAbs(file) {
				continue
			}
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return shell{file, s.args}, nil
			}
		}
	}
	return shell{}, errors.New("neither bash nor sh was found in PATH, /bin, /usr/bin and /usr/local/bin")
}

// script is the text that the shell runs: the person's command, and a trap that
// saves what carries over. eval keeps a syntax error from being told with our
// own text around it, and one line keeps its line numbers right. The braces hide
// the trap from set -x.
func script(self, saveTo, cmd string) string {
	trap := fmt.Sprintf("{ %s %s %s; } 2>/dev/null", quote(self), SaveArg, quote(saveTo))
	return "trap " + quote(trap) + " EXIT; eval " + quote(cmd)
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// command is one run of the shell.
type command struct {
	pid    int
	exited <-chan syscall.WaitStatus
	out    *os.File // stdout and stderr, in the order in which they were written
	before map[proc]bool
}

// run starts a command in dir. What is left of it after its end is found as the
// descendants that weren't there before.
func (a *Agent) run(s *session, dir, cmd string) (*command, error) {
	sh, err := findShell(os.Getenv("PATH"))
	if err != nil {
		return nil, err
	}
	_ = os.Remove(s.path("next")) // so that nobody takes an older one for this command's
	text := script(a.self, s.path("next"), cmd)
	argv := slices.Concat(sh.args, []string{"-c", text, sh.args[0]})
	if len(text) > maxScript {
		file := s.path("cmd")
		if err := replaceFile(file, []byte(text)); err != nil {
			return nil, err
		}
		argv = slices.Concat(sh.args, []string{file})
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if err := syscall.SetNonblock(int(w.Fd()), false); err != nil { // commands don't expect EAGAIN
		_ = r.Close()
		return nil, err
	}
	env := s.env.apply(a.env)
	env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "PWD=") })
	c := &command{out: r, before: offspring()}
	c.pid, c.exited, err = a.reaper.start(sh.path, argv, &syscall.ProcAttr{
		Dir:   dir,
		Env:   append(env, "PWD="+dir),
		Files: []uintptr{null.Fd(), w.Fd(), w.Fd()},
	})
	if err != nil {
		_ = r.Close()
		return nil, err
	}
	return c, nil
}

// exitCode is a status as a shell tells it: 128+n for a signal, whose name is
// given too.
func exitCode(w syscall.WaitStatus) (code int, signal string) {
	if w.Signaled() {
		return 128 + int(w.Signal()), unix.SignalName(w.Signal())
	}
	return w.ExitStatus(), ""
}
