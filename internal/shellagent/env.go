package shellagent

import (
	"bytes"
	"cmp"
	"os"
	"slices"
	"strings"
	"unicode/utf8"
)

// maxEnv bounds what is kept of the exported variables, names and values
// together, so that the state stays small and a command can still be started
// with them. A command that exports more keeps what fits, the short ones first.
const maxEnv = 64 << 10

// delta is how the exported variables of a session differ from the environment
// that the agent was started with.
type delta struct {
	Set   map[string]string `json:"set,omitempty"`
	Bytes map[string][]byte `json:"bytes,omitempty"` // values that aren't valid UTF-8
	Unset []string          `json:"unset,omitempty"`
}

// private says that a variable isn't the person's: what the shell sets by
// itself, and what the platform gives to every process.
func private(name string) bool {
	switch name {
	case "_", "PWD", "SHLVL", "SHELLOPTS", "BASHOPTS":
		return true
	}
	return strings.HasPrefix(name, "ASTRABOX_")
}

// diff gives the delta that leads from base to env, and how many variables
// didn't fit.
func diff(base, env []string) (d delta, dropped int) {
	was, is := vars(base), vars(env)
	var changed []string
	for name, value := range is {
		if old, ok := was[name]; !private(name) && (!ok || old != value) {
			changed = append(changed, name)
		}
	}
	slices.SortFunc(changed, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(is[a]), len(is[b])), cmp.Compare(a, b))
	})
	size := 0
	for _, name := range changed {
		value := is[name]
		if size += len(name) + len(value) + 2; size > maxEnv || !utf8.ValidString(name) {
			dropped++
			continue
		}
		if utf8.ValidString(value) {
			d.put(name, value)
		} else {
			d.putBytes(name, []byte(value))
		}
	}
	for name := range was {
		if _, ok := is[name]; !ok && !private(name) {
			d.Unset = append(d.Unset, name)
		}
	}
	slices.Sort(d.Unset)
	return d, dropped
}

func (d *delta) put(name, value string) {
	if d.Set == nil {
		d.Set = map[string]string{}
	}
	d.Set[name] = value
}

func (d *delta) putBytes(name string, value []byte) {
	if d.Bytes == nil {
		d.Bytes = map[string][]byte{}
	}
	d.Bytes[name] = value
}

// apply gives base with the delta, in the order of names.
func (d delta) apply(base []string) []string {
	all := vars(base)
	for _, name := range d.Unset {
		delete(all, name)
	}
	for name, value := range d.Set {
		all[name] = value
	}
	for name, value := range d.Bytes {
		all[name] = string(value)
	}
	env := make([]string, 0, len(all))
	for name, value := range all {
		env = append(env, name+"="+value)
	}
	slices.Sort(env)
	return env
}

func vars(env []string) map[string]string {
	m := make(map[string]string, len(env))
	for _, kv := range env {
		// A name may not be empty, so an "=" at the start belongs to it.
		if name, value, ok := strings.Cut(kv, "="); ok && name != "" {
			m[name] = value
		}
	}
	return m
}

// SaveArg is the first argument of the agent when a command's shell calls it at
// its end, to save what carries over; the second is the file. The shell calls
// the agent, rather than its own export -p, because a child process gets exactly
// the working directory and the variables that matter, whatever shell it is and
// whatever PATH has become.
const SaveArg = "--save-state"

// Save writes the working directory and the environment of this process to
// path, complete or not at all.
func Save(path string) error {
	dir, err := os.Getwd() // PWD, where it is right: a path through a link stays
	if err != nil {
		dir = "" // it was removed; the reader keeps the directory of before
	}
	var b bytes.Buffer
	b.WriteString(dir)
	b.WriteByte(0)
	for _, kv := range os.Environ() {
		b.WriteString(kv)
		b.WriteByte(0)
	}
	return replaceFile(path, b.Bytes())
}

// readSaved reads and removes what Save wrote; ok is false when it wrote nothing.
func readSaved(path string) (dir string, env []string, ok bool) {
	b, err := readState(path)
	if err != nil {
		return "", nil, false
	}
	_ = os.Remove(path) // the next Save replaces it anyway
	parts := strings.Split(string(b), "\x00")
	if len(parts) < 2 || parts[len(parts)-1] != "" {
		return "", nil, false // not what Save writes
	}
	return parts[0], parts[1 : len(parts)-1], true
}
