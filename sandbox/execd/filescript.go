package execd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Files of a sandbox with a foreign execd are worked on by small shell scripts,
// since the daemon's own calls expand $ in every path, write in place, drop
// special bits and can't replace. Only contents go through its upload and
// download. A script enters the directory that it works in and then uses names
// in it, so that nothing is looked up twice. It needs POSIX sh with the programs
// of coreutils and findutils, or those of busybox; flock where there is one.

// What scripts say that is no text of the system's.
const (
	sayChanged  = "the file has changed"
	sayEscapes  = "the path leads out of its root"
	sayOther    = "the path names something that has no content"
	sayAccount  = "the sandbox has no such account or group"
	sayBits     = "the sandbox refused these bits for this owner and group"
	sayMeddled  = "the directory was interfered with while it was made"
	sayShort    = "another length arrived than was sent"
	sayNotFound = "not found" // of a program: what a shell says
)

// filePrelude begins every script. D is the directory of what is ours, R the
// root that everything is confined to ("" for none), S the script's own
// directory, t the name of an unfinished file beside a target.
//
// Directories are changed to physically. Below a root that goes name by name, so
// that neither a link nor .. leads out on the way, and where it led is asked of
// the kernel, so that no link or rename meanwhile makes it another place.
const filePrelude = `exec 2>&1
LC_ALL=C TZ=UTC0; export LC_ALL TZ; unset CDPATH IFS; umask 077; set -f
case :$PATH: in *:[!/]*) PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin;; esac
R= RS= t= links=0 undo= nl='
'
trap 'c=$?; eval "$undo"; exit $c' EXIT
trap 'exit 143' HUP INT TERM
fail() { printf '%s\n' "$1"; exit 3; }
need() { for x in "$@"; do command -v "$x" >/dev/null || fail "$x: ` + sayNotFound + `"; done; }
here() { h=$(readlink -n /proc/self/cwd && echo x) || fail 'cwd: Input/output error'; h=${h%x}; }
inside() { case $1/ in "$R"/*) ;; *) fail '` + sayEscapes + `';; esac; }
why() { stat -L -c '' -- "$1/." && fail 'cd: Permission denied'; exit 3; }
enter() { if [ -z "$R" ]; then cd -P -- "$1" 2>/dev/null || why "$1"; else walk "$1"; here; inside "$h"; fi; }
root() { enter "$1"; here; R=${h%/} RS=${1%/}; while case $RS in */) ;; *) false;; esac; do RS=${RS%/}; done; }
top() { w=; case $1/ in "$RS"/*) w=${1#"$RS"};; "$R"/*) w=${1#"$R"};; *) fail '` + sayEscapes + `';; esac; cd -P "$R" || exit 3; }
walk() { case $1 in /*) top "$1";; *) w=$1;; esac
while [ -n "$w" ]; do n=${w%%/*}
case $w in */*) w=${w#*/};; *) w=;; esac
case $n in ''|.) continue;; ..) here; [ "$h" != "$R" ] || fail '` + sayEscapes + `'; cd -P .. || exit 3; continue;; esac
if [ -L "./$n" ]; then links=$((links+1)); [ $links -le 40 ] || fail 'Too many levels of symbolic links'
x=$(readlink -n "./$n" && echo x) || fail 'No such file or directory'; x=${x%x}/$w
case $x in /*) top "$x";; *) w=$x;; esac
else cd -P "./$n" 2>/dev/null || why "./$n"; fi
done; }
go() { b=${1##*/}; case $1 in */*) enter "${1%/*}/";; esac; }
exists() { [ -e "./$b" ] || [ -L "./$b" ]; }
named() { case $b in ''|.|..) fail "$1";; esac; }
follow() { l=0; while [ -L "./$b" ]; do
l=$((l+1)); [ $l -le 40 ] || fail 'Too many levels of symbolic links'
x=$(readlink -n "./$b" && echo x) || fail 'No such file or directory'; x=${x%x}
while case $x in ?*/) ;; *) false;; esac; do x=${x%/}; done
go "$x"; case $b in ''|.|..) enter "./$b"; b=.;; esac; done; }
lock() { command -v flock >/dev/null || return 0; mkdir -p "$D" && exec 7>>"$D/lock" && flock 7 || exit 3; }
stage() { undo='rm -rf "$S"'; mkdir -p "$D" && mkdir "$S" || exit 3; }
idof() { while IFS=: read -r n x i x || [ -n "$n" ]; do [ "$n" != "$2" ] || { echo "$i"; return; }; done <"/etc/$1"
i=$(getent "$1" "$2") && { i=${i#*:*:}; echo "${i%%:*}"; return; }
case $2 in *[!0-9]*) return 1;; esac; [ "${#2}" -le 10 ] && [ "$2" -le 4294967294 ] && expr "$2" + 0; }
accounts() { [ -z "$U" ] || U=$(idof passwd "$U" 2>/dev/null) || fail '` + sayAccount + `'
[ -z "$G" ] || G=$(idof group "$G" 2>/dev/null) || fail '` + sayAccount + `'; }
over() { nm=${M:-$m} nu=${U:-$u} ng=${G:-$g}
[ -n "$M" ] || [ "$nu:$ng" = "$u:$g" ] || nm=$(printf %o $((0$m & 01777))); }
give() { x=$(stat -L -c '%a %u %g' "$1") || exit 3
[ "$x" != "$nm $nu $ng" ] || return 0
case $x in *" $nu $ng") ;; *)
chmod "$(printf 0%04o $((0${x%% *} & 0$nm & 0777)))" "$1" || exit 3
chown "+$nu:+$ng" "$1" 2>/dev/null || chown "$nu:$ng" "$1" || exit 3;; esac
chmod "$(printf 0%04o "0$nm")" "$1" || exit 3
[ "$(stat -L -c '%a %u %g' "$1")" = "$nm $nu $ng" ] || fail '` + sayBits + `'; }
`

// bytesWord makes shell commands that append s, whatever its bytes, to the
// arguments: JSON carries only what is UTF-8.
func bytesWord(s string) string {
	plain := true
	for i := range len(s) {
		plain = plain && s[i] >= ' ' && s[i] <= '~'
	}
	if plain {
		return `set -- "$@" ` + quote(s) + "\n"
	}
	var b strings.Builder
	b.WriteString(`x=$(printf '`)
	for i := range len(s) {
		fmt.Fprintf(&b, `\%03o`, s[i])
	}
	b.WriteString(`x'); set -- "$@" "${x%x}"` + "\n")
	return b.String()
}

const (
	// scriptTime bounds a script that does a bounded thing, treeTime one that
	// works on a whole tree.
	scriptTime = 20 * time.Second
	treeTime   = 10 * time.Minute
)

// fileScript is one script to run.
type fileScript struct {
	text string
	args []string
	vars map[string]string // words of the script, such as modes; quoted here
	time time.Duration     // 0: scriptTime
}

// shell gives the whole text. Paths are arguments, never part of a command.
func (f *foreignFiles) shell(s fileScript) string {
	var b strings.Builder
	b.WriteString("D=" + quote(f.c.dir))
	for k, v := range s.vars {
		b.WriteString(" " + k + "=" + quote(v))
	}
	b.WriteString("\n" + filePrelude + "set --\n")
	for _, root := range f.roots {
		b.WriteString(bytesWord(root) + "root \"$1\"; set --\n")
	}
	for _, a := range s.args {
		b.WriteString(bytesWord(a))
	}
	b.WriteString(s.text)
	return b.String()
}

// script runs a script and gives what it printed. What it refused is an error
// of the seam's classes; one that was killed or whose end isn't known is
// ErrUnreachable.
func (f *foreignFiles) script(ctx context.Context, s fileScript) (string, error) {
	if s.time == 0 {
		s.time = scriptTime
	}
	o, err := foreign{f.c}.lineFor(ctx, f.shell(s), s.time)
	switch {
	case err != nil:
		return "", err
	case o.cut:
		return "", lost(errors.New("the connection to a running script was lost"))
	case o.code == 0:
		return o.out, nil
	case o.code < 0 || o.code > 128:
		return "", lost(errors.New("a script was killed"))
	}
	return "", refusalOf(o.out)
}

// systemTexts are the system's own, as GNU, musl and Go spell them in lower case.
var systemTexts = map[string]string{
	"no such file or directory":         wire.CodeFileNotFound,
	"no such file":                      wire.CodeFileNotFound, // a small shell's, of what it can't open
	"file exists":                       wire.CodeFileExists,
	"not a directory":                   wire.CodeNotADirectory,
	"is a directory":                    wire.CodeIsADirectory,
	"directory not empty":               wire.CodeNotEmpty,
	"invalid cross-device link":         wire.CodeCrossDevice,
	"cross-device link":                 wire.CodeCrossDevice,
	"permission denied":                 wire.CodePermissionDenied,
	"operation not permitted":           wire.CodePermissionDenied,
	"read-only file system":             wire.CodePermissionDenied,
	"no space left on device":           wire.CodeNoSpace,
	"disk quota exceeded":               wire.CodeNoSpace,
	"quota exceeded":                    wire.CodeNoSpace,
	"file too large":                    wire.CodeNoSpace,
	"file name too long":                wire.CodePathInvalid,
	"filename too long":                 wire.CodePathInvalid,
	"too many levels of symbolic links": wire.CodePathInvalid,
	"symbolic link loop":                wire.CodePathInvalid,
	"invalid argument":                  wire.CodePathInvalid,
	sayEscapes:                          wire.CodePathEscapes,
	sayOther:                            wire.CodeNotRegular,
	sayAccount:                          wire.CodeUnknownAccount,
	sayBits:                             wire.CodePermissionDenied,
	sayMeddled:                          wire.CodePermissionDenied,
}

// mvPhrases are what mv says without asking the system.
var mvPhrases = []struct{ text, code string }{
	{"to a subdirectory of itself", wire.CodePathInvalid},
	{"cannot overwrite non-directory", wire.CodeNotADirectory},
	{"cannot overwrite directory", wire.CodeIsADirectory},
	{" is a directory", wire.CodeIsADirectory},
}

// refusalOf classifies the last line that a failed script printed. Names in it
// come before the last colon, so they can't pass for the reason.
func refusalOf(out string) error {
	out = strings.TrimSpace(out)
	last := out[strings.LastIndexByte(out, '\n')+1:]
	reason := strings.ToLower(strings.TrimSpace(last[strings.LastIndex(last, ": ")+1:]))
	switch reason {
	case sayChanged:
		return fmt.Errorf("%w: %w", sandbox.ErrPathRejected, sandbox.ErrChanged)
	case sayShort:
		return lost(errors.New(sayShort))
	case sayNotFound, "command not found":
		return sandbox.Errorf(sandbox.CodeUnsupported, "the sandbox lacks a program that files over its execd need: %s", last)
	}
	code, known := systemTexts[reason]
	for i := 0; !known && i < len(mvPhrases); i++ {
		if known = strings.Contains(last, mvPhrases[i].text); known {
			code = mvPhrases[i].code
		}
	}
	if code == wire.CodeFileNotFound {
		return sandbox.ErrPathNotFound
	}
	if !known {
		code = wire.CodeFileError
		if reason = last; last == "" {
			reason = "a step of its own failed without a reason"
		}
	}
	return rejected(code, reason)
}

// fileFields are what stat prints for scripts and parseStat reads.
const fileFields = `%f %s %u %g %i %d|%U|%G|%y|%z`

// fileVersion is the part of it that changes with the content.
const fileVersion = `%i-%s-%y-%z`

// parseStat reads fileFields.
func parseStat(line string) (i sandbox.FileInfo, err error) {
	bad := lost(errors.New("a file's description can't be read"))
	parts := strings.Split(line, "|")
	if len(parts) != 5 {
		return i, bad
	}
	num := strings.Fields(parts[0])
	if len(num) != 6 {
		return i, bad
	}
	raw, err1 := strconv.ParseUint(num[0], 16, 32)
	size, err2 := strconv.ParseInt(num[1], 10, 64)
	mtime, err3 := time.Parse("2006-01-02 15:04:05.999999999 -0700", parts[3])
	if errors.Join(err1, err2, err3) != nil {
		return i, bad
	}
	i = sandbox.FileInfo{
		Size: size, Mode: rawMode(uint32(raw)), Owner: parts[1], Group: parts[2], ModTime: mtime.UTC(),
		Version: num[4] + "-" + num[1] + "-" + parts[3] + "-" + parts[4],
	}
	if i.Owner == "UNKNOWN" || i.Owner == "" {
		i.Owner = num[2]
	}
	if i.Group == "UNKNOWN" || i.Group == "" {
		i.Group = num[3]
	}
	return i, nil
}
