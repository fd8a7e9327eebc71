package agentprogram

import (
	"fmt"
	"os"
	"path/filepath"
)

// Program is one Agent program: data, not code.
type Program struct {
	ID   string // as stored in Environments
	Name string // for people
	// Description is one sentence for people.
	Description string
	// Binary is the file that the platform puts into the sandbox before the
	// program starts; nil: the image brings the program.
	Binary *Binary

	argv       string // the program and its arguments, as sh words
	stateDir   string // relative to the account's home
	newMachine func() Machine
	restore    func(state []byte) (Machine, error)
}

// Binary is an executable that the platform brings along.
type Binary struct {
	Path    string // absolute path in the sandbox; mode 0755, owner root
	Name    string // file name beside the platform's own executable
	Setting string // environment variable of the platform that names the file instead
}

// Find returns the binary's path on this host: what the setting names, else the
// file beside the platform's executable. getenv is os.Getenv outside tests,
// executable is what os.Executable gives. The error names what was looked for
// and how to set it.
func (b Binary) Find(getenv func(string) string, executable string) (string, error) {
	path, from := getenv(b.Setting), b.Setting
	if path == "" {
		path, from = filepath.Join(filepath.Dir(executable), b.Name), "the directory of the astrabox program"
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("%s not found (from %s; set %s to its path): %w", b.Name, from, b.Setting, err)
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return "", fmt.Errorf("%s is not an executable file (from %s; set %s to its path)", path, from, b.Setting)
	}
	return path, nil
}

// Command is the POSIX sh line that starts the program, for ProcessSpec.Line.
// The process must run as the conversation's account, with HOME set. stderr
// goes to a file below HOME, since only protocol lines may be in the process's
// output; the file of the process before is kept beside it as ".old". Where the
// file can't be made the program runs all the same, with its stderr dropped.
func (p Program) Command() string {
	// true and not ":", whose failed redirection would end the shell.
	const line = `d="$HOME/%s"; l="$d/%s.err"; ` +
		`if { mkdir -p -m 0700 "$d" && { [ ! -e "$l" ] || mv -f "$l" "$l.old"; } && true >"$l"; } 2>/dev/null; ` +
		`then exec 2>>"$l"; else exec 2>/dev/null; fi; exec %s`
	return fmt.Sprintf(line, p.stateDir, p.ID, p.argv)
}

// All returns the programs, the default first.
func All() []Program { return append([]Program(nil), programs...) }

// ByID returns the program of that id.
func ByID(id string) (Program, bool) {
	for _, p := range programs {
		if p.ID == id {
			return p, true
		}
	}
	return Program{}, false
}

// ShellID is the id of the built-in program.
const ShellID = "shell"

// ShellAgentPath is where the built-in program lives in a sandbox.
const ShellAgentPath = "/opt/astrabox/bin/shellagent"

var programs = []Program{{
	ID:          ShellID,
	Name:        "Shell",
	Description: "Runs what you type. There is no model behind it.",
	Binary:      &Binary{Path: ShellAgentPath, Name: "shellagent", Setting: "ASTRABOX_SHELLAGENT_PATH"},
	argv:        ShellAgentPath,
	stateDir:    ".local/state/astrabox-shell",
	newMachine:  newACP,
	restore:     restoreACP,
}}
