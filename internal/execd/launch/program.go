package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// LookupError: there is no such program.
type LookupError struct{ Name string }

func (e *LookupError) Error() string {
	if strings.Contains(e.Name, "/") {
		return fmt.Sprintf("exec: %q: no such executable file", e.Name)
	}
	return fmt.Sprintf("exec: %q: executable file not found in $PATH", e.Name)
}

// lookPath finds the program that name is for a child with this directory and
// environment. Relative entries of PATH don't count: what a directory happens
// to hold must not decide what a bare name means.
func lookPath(name, dir string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if !executable(path) {
			return "", &LookupError{name}
		}
		return path, nil
	}
	list := ""
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, "PATH="); ok {
			list = v
		}
	}
	for _, entry := range filepath.SplitList(list) {
		if path := filepath.Join(entry, name); filepath.IsAbs(entry) && executable(path) {
			return path, nil
		}
	}
	return "", &LookupError{name}
}

// scriptFile holds text in memory.
func scriptFile(text string) (*os.File, error) {
	fd, err := unix.MemfdCreate("command", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "command")
	if _, err := f.WriteString(text); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := f.Seek(0, 0); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// ExpandDir gives the directory that a client of the older protocol names: as
// it is when it exists, else with a leading ~ and with $VAR and ${VAR}
// replaced, from env or the daemon's own variables. A variable that nobody set
// is an *Error.
func ExpandDir(dir string, env map[string]string) (string, error) {
	if !strings.ContainsAny(dir, "$~") || isDir(dir) {
		return dir, nil
	}
	missing := ""
	get := func(name string) string {
		if v, ok := env[name]; ok {
			return v
		}
		v, ok := os.LookupEnv(name)
		if !ok || private(name) {
			missing = name
		}
		return v
	}
	if dir == "~" || strings.HasPrefix(dir, "~/") {
		dir = get("HOME") + dir[1:]
	}
	if dir = os.Expand(dir, get); missing != "" {
		return "", refuse(wire.CodeInvalidBody, "the working directory names the variable %q, which is not set", missing)
	}
	return dir, nil
}
