package shell

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/launch"
)

// state is what a session carries from run to run.
type state struct {
	dir string
	// vars is what the shell wrote of its exported variables, to be read by
	// the next; nil: nothing ran yet, and the daemon's environment counts.
	vars []byte
	// strange are the inherited variables whose names no shell can set. They
	// are handed through.
	strange []string
	// file are variables that the session began with, beside the daemon's.
	file map[string]string
}

var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)

// environ is the environment that the shell is started with.
func (s *state) environ(dir string, uid, gid *uint32) []string {
	env := []string{"PWD=" + dir}
	if s.vars == nil {
		s.strange = nil
		for _, kv := range launch.Environment(account.System, uid, gid, s.file) {
			switch {
			case !shellName.MatchString(kv):
				s.strange = append(s.strange, kv)
			case !strings.HasPrefix(kv, "PWD="):
				env = append(env, kv)
			}
		}
	}
	return append(env, s.strange...)
}

// plainLine is a line of bash's own that sets an exported variable to a value
// without control characters. Bytes that aren't UTF-8, attributes and functions
// look different.
var plainLine = regexp.MustCompile(`^declare -x ([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\$` + "`" + `]|\\["\\$` + "`" + `])*)"$`)

// special are variables that mean something to a shell as it starts, so that
// having them in its environment isn't the same as setting them.
var special = regexp.MustCompile(`^(BASH.*|ENV|IFS|SHELLOPTS|POSIXLY_CORRECT)$`)

// maxPlain keeps what is handed over far below what one variable, and all
// together, may take.
const maxPlain = 64 << 10

// plain gives what the shell wrote of its variables as an environment, which is
// much quicker to hand over than to have it read; nil: it can't be.
func (s *state) plain() map[string]string {
	if len(s.vars) > maxPlain {
		return nil
	}
	env := map[string]string{}
	for line := range strings.Lines(string(s.vars)) {
		if line = strings.TrimSuffix(line, "\n"); line == "declare -x OLDPWD" {
			continue
		}
		m := plainLine.FindStringSubmatch(line)
		if m == nil || special.MatchString(m[1]) {
			return nil
		}
		name, value := m[1], unescape.Replace(m[2])
		switch name {
		case "PWD", child.MarkVariable:
			continue
		case "SHLVL": // a shell adds one as it starts
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > 999 {
				return nil
			}
			value = strconv.Itoa(n - 1)
		}
		env[name] = value
	}
	return env
}

var unescape = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\$`, `$`, "\\`", "`")

// checkVariables refuses names that no shell can set, and values with a NUL.
func checkVariables(env map[string]string) error {
	for name, value := range env {
		if !shellName.MatchString(name+"=") || strings.ContainsRune(value, 0) {
			return fmt.Errorf("%q is %w", name, ErrVariable)
		}
	}
	return nil
}

// exports is what a shell reads to have further variables.
func exports(env map[string]string) (b []byte) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		b = append(b, "\nexport "+name+"="+quote(env[name])...)
	}
	return append(b, '\n')
}

// start is how a run's shell gets the session's state: its environment, and
// what it is to read besides; nil: nothing.
func (s *state) start(shell, dir string, env map[string]string, uid, gid *uint32) (environ []string, before []byte) {
	environ = s.environ(dir, uid, gid)
	if s.vars != nil {
		plain := map[string]string(nil)
		if isBash(shell) {
			plain = s.plain()
		}
		if plain == nil {
			return environ, append(slices.Clone(s.vars), exports(env)...)
		}
		for name, value := range plain {
			if _, replaced := env[name]; !replaced {
				environ = append(environ, name+"="+value)
			}
		}
	}
	environ = slices.DeleteFunc(environ, func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		_, replaced := env[name]
		return replaced
	})
	for name, value := range env {
		environ = append(environ, name+"="+value)
	}
	return environ, nil
}

// Descriptors that the shell gets its line and state from and writes its new
// state to. A run's own programs see none but the last, at a number that
// nobody uses (where the shell can't do better than one digit: 9).
const (
	fdLine   = "/proc/self/fd/3"
	fdBefore = "/proc/self/fd/4"
	outBash  = "250"
	outPlain = "9"
)

// prologue is the program of the shell at this path: it takes the state over, sees to it
// that the state is written at the end, and runs the line. source says that the
// variables are to be read, rather than in the environment, and then dir, where
// it isn't empty, is to be gone to.
func prologue(shell, dir, mark string, source bool) string {
	out, read, functions := outPlain, `__line=$(cat `+fdLine+`)`, ""
	if isBash(shell) {
		out, read, functions = outBash, `IFS= read -r -d "" __line <`+fdLine, "command export -pf; "
	}
	dump := `{ command pwd; command printf "\0"; command export -p; ` + functions + `command printf "\0"; } >&` + out
	var b strings.Builder
	b.WriteString("exec " + out + ">&5 5>&-; ")
	if source {
		b.WriteString("{ . " + fdBefore + "; } 2>/dev/null; ")
	}
	b.WriteString("export " + child.MarkVariable + "=" + mark + "; ")
	if dir != "" && source {
		b.WriteString("cd -- " + quote(dir) + " || exit; ")
	}
	b.WriteString("trap '{ set +xv; " + dump + "; } 2>/dev/null' EXIT; ")
	b.WriteString(read + "; exec 3<&- 4<&-; ") // all in one line, so that the shell counts the run's lines
	// What follows the line belongs to the same group, so that it was read before:
	// an open quote in the line confuses bash about what it reads next. The line may
	// have put a trap of its own in the place of ours, hence the second dump.
	b.WriteString(`{ eval "unset __line; $__line"; { set -- $?; set +xve; ` + dump + "; } 2>/dev/null; exit $1; }")
	return b.String()
}

func isBash(path string) bool { return filepath.Base(path) == "bash" }

func shellArgs(path, program string) []string {
	if isBash(path) {
		return []string{path, "--noprofile", "--norc", "-c", program, "bash"}
	}
	return []string{path, "-c", program, "sh"}
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// files are the descriptors of one run.
type files struct{ line, before, after *os.File }

func newFiles(line string, before []byte) (f files, err error) {
	for _, one := range []struct {
		to      **os.File
		content []byte
	}{{&f.line, []byte(line)}, {&f.before, before}, {&f.after, nil}} {
		if one.to == &f.before && before == nil {
			continue
		}
		if *one.to, err = inMemory(one.content); err != nil {
			f.close()
			return f, err
		}
	}
	return f, nil
}

// list is in the order of the descriptors. Where there is nothing to be read,
// the line stands in its place.
func (f files) list() []*os.File {
	if f.before == nil {
		return []*os.File{f.line, f.line, f.after}
	}
	return []*os.File{f.line, f.before, f.after}
}

func (f files) close() {
	for _, file := range []*os.File{f.line, f.before, f.after} {
		if file != nil {
			file.Close()
		}
	}
}

func inMemory(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("session", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "session")
	if _, err = f.Write(content); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// take reads the newest whole state that the shell wrote. There is none when it
// didn't get to it, which leaves the state as it was.
func (s *state) take(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.Size() == 0 {
		return nil
	}
	if fi.Size() > 2*MaxState {
		return ErrState
	}
	b := make([]byte, fi.Size())
	if _, err := f.ReadAt(b, 0); err != nil {
		return err
	}
	parts := bytes.Split(b, []byte{0}) // dir, vars, …, what came after the last NUL
	if len(parts) < 3 || len(parts)%2 == 0 {
		return nil
	}
	dir, vars := parts[len(parts)-3], parts[len(parts)-2]
	if len(vars) > MaxState {
		return ErrState
	}
	s.vars = vars
	if d := strings.TrimSuffix(string(dir), "\n"); filepath.IsAbs(d) {
		s.dir = d
	}
	return nil
}
