package execd

import (
	"crypto/rand"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/astrabox/astrabox/sandbox"
)

// job is what a script runs in a sandbox with a foreign execd.
type job struct {
	nonce   string // also names its directory
	dir     string // of the script
	line    string // empty: the account's login shell
	cwd     string
	env     map[string]string
	user    *account // nil: whom the daemon runs as
	tty     *sandbox.Size
	command bool // one run with no input, whose process group is its own
	seconds int  // of a command, after which it is killed; 0: never
}

// newNonce is 26 characters of [A-Z2-7].
func newNonce() string { return rand.Text() }

// variable is a name that a shell can export.
var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// check refuses what a script can't carry.
func (j *job) check() error {
	if strings.ContainsRune(j.line+j.cwd, 0) {
		return sandbox.Errorf(sandbox.CodeInvalid, "the command or its directory contains a NUL")
	}
	if j.cwd != "" && j.cwd[0] != '/' {
		return sandbox.Errorf(sandbox.CodeInvalid, "the directory isn't absolute")
	}
	for k, v := range j.env {
		if !variable.MatchString(k) || strings.ContainsRune(v, 0) {
			return sandbox.Errorf(sandbox.CodeInvalid, "%q is not the name and value of a variable that a shell can export", k)
		}
	}
	return nil
}

// quote makes one word of a shell's.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// runMark is the variable that every process of a run carries.
const runMark = "ASTRABOX_RUN"

// sweepLine is a shell function that kills every process that carries the mark
// of $n, again until there is none.
const sweepLine = `sweep() { i=0; while [ $i -lt 60 ]; do
p=$(grep -lsF "` + runMark + `=$n" /proc/[0-9]*/environ); [ -n "$p" ] || return 0
for f in $p; do f=${f#/proc/}; kill -9 "${f%/environ}"; done
i=$((i+1)); [ $i -lt 3 ] || sleep 0.05; done; return 1; } 2>/dev/null
`

// text is the whole script. The shell reads it to the end before it runs any
// of it (it is one group), and it removes itself first, since it holds the
// environment.
func (j *job) text() []byte {
	var b strings.Builder
	line := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	line("{ d=%s n=%s r=0", quote(j.dir), j.nonce)
	if j.command {
		line(`rm -rf "$d"`)
	} else {
		line(`rm -f "$d/run"; mkfifo -m 600 "$d/go"`)
	}
	line(`unset EXECD_ACCESS_TOKEN`)
	line(`exec 8>&2 2>/dev/null`) // a shell remarks on children that were killed
	b.WriteString(sweepLine)
	line(`state() { printf '%%s\n' "$r $1 $2 $$" >"$d/state.new" && mv -f "$d/state.new" "$d/state"; }`)
	line(`sh=$(command -v bash || command -v sh)`)
	line(`e=; env --default-signal=INT,QUIT true && e='env --default-signal=INT,QUIT'`)
	j.function(&b)
	line(`trap : HUP INT QUIT TERM`)
	if j.seconds > 0 {
		line(`(sleep %d; sweep) </dev/null >/dev/null 8>&- &`, j.seconds)
	}
	mark := func(channel, to string) {
		line(`printf '\036%%s %s %%d %%d\036' "$n" "$r" "$c"%s`, channel, to)
	}
	line("while :; do r=$((r+1))")
	if !j.command {
		line("state running 0")
	}
	line("(job); c=$?")
	// With what the pipes hold out of the way, a marker is read in one piece.
	line("sleep 0.02")
	mark("o", "")
	if j.tty == nil {
		mark("e", " >&8")
	}
	if j.command {
		line("sleep 30 >/dev/null 8>&-; exit; done; exit; }")
	} else {
		line("sleep 0.05; state exited $c")
		line(`until read -r x <"$d/go"; do [ -p "$d/go" ] || exit; done; done; exit; }`)
	}
	return []byte(b.String())
}

// function writes job(), which replaces its subshell by the program.
func (j *job) function(b *strings.Builder) {
	line := func(format string, a ...any) { fmt.Fprintf(b, format+"\n", a...) }
	line("job() {")
	if j.tty != nil {
		line("stty rows %d cols %d", j.tty.Rows, j.tty.Cols)
		line("export TERM=xterm-256color")
	}
	if u := j.user; u != nil {
		for _, kv := range [][2]string{{"HOME", u.home}, {"USER", u.name}, {"LOGNAME", u.name}, {"SHELL", u.shell}} {
			line("export %s=%s", kv[0], quote(kv[1]))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(j.env)) {
		line("export %s=%s", k, quote(j.env[k]))
	}
	line("export %s=%s", runMark, j.nonce)
	cwd := quote(j.cwd)
	switch {
	case j.cwd != "":
	case j.command:
		cwd = "/"
	default:
		cwd = `"${HOME:-/}"`
	}
	line(`cd -- %s || { printf 'the directory is not there\n' >&8; exit 126; }`, cwd)
	var program, su string
	if j.line == "" {
		program, su = `"${SHELL:-$sh}" -l`, "" // su starts the login shell itself
	} else {
		program, su = `"$sh" -c `+quote(j.line), ` -s "$sh" -c `+quote(j.line)
	}
	how, fds := "exec $e ", " 2>&8 8>&-"
	if j.command {
		how, fds = `s=; command -v setsid >/dev/null && s=setsid; exec $e $s `, " </dev/null"+fds
	}
	if u := j.user; u == nil || u.uid == 0 {
		line("%s%s%s", how, program, fds)
	} else {
		ids := fmt.Sprintf("setpriv --reuid=%d --regid=%d", u.uid, u.gid)
		line("if %s --clear-groups true; then %s%s --groups=%s %s%s; fi", ids, how, ids, u.groupList(), program, fds)
		line("exec $e su%s %s%s", su, u.name, fds) // a small image has no such setpriv
	}
	line("exit 126; }")
}

// groupList gives the numbers of the groups.
func (u *account) groupList() string {
	var s []string
	for _, g := range u.groups {
		s = append(s, strconv.FormatUint(uint64(g), 10))
	}
	return strings.Join(s, ",")
}

// killLine removes a run's directory, without which its shell can't start any
// more, and kills the shell, which is known by its argument, and then every
// process of the run. (Its own arguments and grep's don't have that text.)
func killLine(nonce, dir string) string {
	return "n=" + nonce + "; rm -rf -- " + quote(dir) + `
i=0; while [ $i -lt 60 ]; do
p=$(echo "$n/run" | grep -lsF -f - /proc/[0-9]*/cmdline); [ -n "$p" ] || break
for f in $p; do f=${f#/proc/}; kill -9 "${f%/cmdline}" 2>/dev/null; done
i=$((i+1)); [ $i -lt 3 ] || sleep 0.05; done
` + sweepLine + "sweep"
}

// The process of a key is the last of a chain of links: each names a process,
// and the next is named for the nonce of the one before, which is known to be
// gone. So nothing is ever removed, and of several starts one makes a link.

// lastLine prints the last process of a key, or nothing.
func lastLine(dir, key string) string {
	return fmt.Sprintf(`f=%s; while [ -e "$f" ]; do id=$(cat "$f"); f=%s.${id##*-[pt]}; done; echo "$id"`,
		quote(dir+"/"+key), quote(dir+"/"+key))
}

// claimLine makes id the process of a key that follows last, unless there is
// one, and prints which it is.
func claimLine(dir, key, id, last string) string {
	if last != "" {
		key += "." + last
	}
	return fmt.Sprintf(`mkdir -p -m 700 %[1]s && cd %[1]s || exit 1
printf '%%s\n' %[3]s >.%[3]s && { ln .%[3]s %[2]s 2>/dev/null; rm -f .%[3]s; cat %[2]s; }`, quote(dir), key, id)
}
