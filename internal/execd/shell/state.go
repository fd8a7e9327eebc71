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
}

var shellName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)

// environ is the environment that the shell is started with.
func (s *state) environ(dir string, uid, gid *uint32) []string {
	env := []string{"PWD=" + dir}
	if s.vars == nil {
		s.strange = nil
		for _, kv := range launch.Environment(account.System, uid, gid) {
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

// with gives the state with further variables, exported. A name that no shell
// can set is an ErrVariable.
func (s state) with(env map[string]string) (state, error) {
	if len(env) == 0 {
		return s, nil
	}
	vars := slices.Clone(s.vars)
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !shellName.MatchString(name+"=") || strings.ContainsRune(env[name], 0) {
			return s, fmt.Errorf("%q is %w", name, ErrVariable)
		}
		vars = append(vars, "\nexport "+name+"="+quote(env[name])...)
	}
	s.vars = append(vars, '\n')
	return s, nil
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
// that the state is written at the end, and runs the line. dir, where it isn't
// empty, is to be gone to.
func (s *state) prologue(shell, dir, mark string) string {
	out, read, functions := outPlain, `__line=$(cat `+fdLine+`)`, ""
	if isBash(shell) {
		out, read, functions = outBash, `IFS= read -r -d "" __line <`+fdLine, "command export -pf; "
	}
	dump := `{ command pwd; command printf "\0"; command export -p; ` + functions + `command printf "\0"; } >&` + out
	var b strings.Builder
	b.WriteString("exec " + out + ">&5 5>&-; ")
	if s.vars != nil {
		b.WriteString("{ . " + fdBefore + "; } 2>/dev/null; ")
	}
	b.WriteString("export " + child.MarkVariable + "=" + mark + "; ")
	if dir != "" && s.vars != nil {
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

func (s *state) files(line string) (f files, err error) {
	for _, one := range []struct {
		to      **os.File
		content []byte
	}{{&f.line, []byte(line)}, {&f.before, s.vars}, {&f.after, nil}} {
		if *one.to, err = inMemory(one.content); err != nil {
			f.close()
			return f, err
		}
	}
	return f, nil
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
