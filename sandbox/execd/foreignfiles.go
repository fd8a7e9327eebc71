package execd

import (
	"context"
	"encoding/hex"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// foreignFiles is the files face over an execd that isn't AstraBox's: see the
// comment on scripts. [Deviations] lists what it can't promise.
type foreignFiles struct {
	c     *Conn
	roots []string
}

// elsewhere gives the face over a foreign execd, or nil when the daemon is
// AstraBox's or can't be asked (which the caller's own request then tells).
func (f *files) elsewhere(ctx context.Context) *foreignFiles {
	if ours, err := f.c.speaks(ctx, wire.FeatureFiles); err != nil || ours {
		return nil
	}
	return &foreignFiles{f.c, f.roots}
}

// check refuses what can't be asked for, before any request.
func (f *foreignFiles) check(paths ...string) error {
	if err := (&files{f.c, f.roots}).check(paths...); err != nil {
		return err
	}
	root := ""
	for _, next := range f.roots {
		if _, ok := beneath(root, next); !ok {
			return rejected(wire.CodePathEscapes, sayEscapes)
		}
		root = strings.TrimRight(next, "/")
	}
	for _, path := range paths {
		if _, ok := beneath(root, path); !ok {
			return rejected(wire.CodePathEscapes, sayEscapes)
		}
	}
	return nil
}

// beneath cuts root, which has no final slash, off path as both are spelled.
func beneath(root, path string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(path, root)
	return strings.Trim(rest, "/"), ok && (rest == "" || rest[0] == '/')
}

// root gives the innermost root, "" without one.
func (f *foreignFiles) root() string {
	if len(f.roots) == 0 {
		return ""
	}
	return strings.TrimRight(f.roots[len(f.roots)-1], "/")
}

// rawMode translates st_mode.
func rawMode(raw uint32) fs.FileMode {
	mode := fs.FileMode(raw) & fs.ModePerm
	for _, b := range specialBits {
		if uint64(raw)&b.bit != 0 {
			mode |= b.mode
		}
	}
	switch raw >> 12 {
	case 0o10:
	case 0o04:
		mode |= fs.ModeDir
	case 0o12:
		mode |= fs.ModeSymlink
	case 0o01:
		mode |= fs.ModeNamedPipe
	case 0o14:
		mode |= fs.ModeSocket
	case 0o02:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case 0o06:
		mode |= fs.ModeDevice
	default:
		mode |= fs.ModeIrregular
	}
	return mode
}

// attrVars gives bits and owner to a script: M as stat prints it, U and G.
func attrVars(a sandbox.Attr) (map[string]string, error) {
	w, err := attrOf(a)
	return map[string]string{"M": w.Mode, "U": w.Owner, "G": w.Group}, err
}

const statScript = `need stat readlink od
go "$1"; case $b in ..) enter ..; b=;; esac
x=$(stat -c '` + fileFields + `' "./$b") || exit 3
printf '%s\n' "$x"
case $x in a*) readlink -n "./$b" | od -An -v -tx1;; esac
exit 0
`

// Stat doesn't follow a final link.
func (f *foreignFiles) Stat(ctx context.Context, path string) (sandbox.FileInfo, error) {
	i, err := f.stat(ctx, path)
	return i, pathError(ctx, "stat", path, err)
}

func (f *foreignFiles) stat(ctx context.Context, path string) (i sandbox.FileInfo, err error) {
	if err := f.check(path); err != nil {
		return i, err
	}
	out, err := f.script(ctx, fileScript{text: statScript, args: []string{path}})
	if err != nil {
		return i, err
	}
	first, rest, _ := strings.Cut(out, "\n")
	if i, err = parseStat(first); err != nil {
		return i, err
	}
	target, err := hex.DecodeString(strings.Join(strings.Fields(rest), ""))
	if err != nil {
		return i, lost(errors.New("a link's target can't be read"))
	}
	i.Path, i.Target = path, string(target)
	return i, nil
}

// A file or directory is held open. What else there is below a root is given a
// second name where nobody can swap it, which needs the mount of our directory.
const attrScript = `need stat chmod chown readlink expr
accounts; go "$1"; follow; case $b in ..) enter ..; b=;; esac
x=$(stat -c '%f %a %u %g' "./$b") || exit 3
case $x in
8*|4*) exec 9<"./$b" || exit 3; f=/proc/self/fd/9
[ -z "$R" ] || { h=$(readlink -n /proc/$$/fd/9 && echo x); inside "${h%x}"; }
x=$(stat -L -c '%f %a %u %g' $f) || exit 3;;
*) f=./$b
[ -z "$R" ] || { stage; f=$S/f; ln -P "./$b" "$f" || exit 3; [ ! -L "$f" ] || fail '` + sayEscapes + `'; };;
esac
set -- $x; m=$2 u=$3 g=$4; over; give "$f"
`

// SetAttr follows a final link.
func (f *foreignFiles) SetAttr(ctx context.Context, path string, a sandbox.Attr) error {
	vars, err := attrVars(a)
	vars["S"] = f.stageDir()
	if err = errors.Join(err, f.check(path)); err == nil {
		_, err = f.script(ctx, fileScript{text: attrScript, args: []string{path}, vars: vars})
	}
	return pathError(ctx, "setattr", path, err)
}

// A directory is made inside a private one and moved, since whoever may write
// to its parent could swap it for another before its owner is set. The private
// one is known by its bits and by what lies above it.
const mkdirFunction = `need mkdir rmdir mv stat chmod chown expr
k=0
make() { exists && fail 'mkdir: File exists'
at=$(stat -c %d:%i .) && k=$((k+1)) t=.astrabox-$N$k.tmp || exit 3
undo='rmdir "./$t" 2>/dev/null'
mkdir "./$t" || exit 3
cd -P "./$t" 2>/dev/null || fail '` + sayMeddled + `'
undo=
case $(stat -c %a:%u .):$(stat -c %d:%i ..) in 700:0:$at|2700:0:$at) ;; *) fail '` + sayMeddled + `';; esac
undo='rmdir ./new 2>/dev/null; cd ..; rmdir "./$t"'
mkdir ./new || exit 3
m=755 u=0 g=0; over; give ./new
if [ -e "../$b" ] || [ -L "../$b" ]; then fail 'mkdir: File exists'; fi
mv -fT ./new "../$b" || exit 3
cd .. && rmdir "./$t" && undo=; }
accounts; lock
`

const mkdirScript = mkdirFunction + `go "$1"; named 'mkdir: File exists'; make
`

// The path of the other script is relative to the root or to /.
const mkdirAllScript = mkdirFunction + `[ -n "$R" ] || enter /
rest=$1
while [ -n "$rest" ]; do
b=${rest%%/*}
case $rest in */*) rest=${rest#*/};; *) rest=;; esac
case $b in ''|.) ;; ..) enter ..;; *)
[ -L "./$b" ] || [ -d "./$b" ] || { exists && why "./$b"; make; }
enter "./$b";; esac
done
`

// MakeDir gives what it makes its bits and owner before it has its name.
func (f *foreignFiles) MakeDir(ctx context.Context, path string, o sandbox.DirOptions) error {
	return pathError(ctx, "mkdir", path, f.mkdir(ctx, path, o))
}

func (f *foreignFiles) mkdir(ctx context.Context, path string, o sandbox.DirOptions) error {
	vars, err := attrVars(o.Attr)
	if err = errors.Join(err, f.check(path)); err != nil {
		return err
	}
	vars["N"] = newNonce()
	s := fileScript{text: mkdirScript, args: []string{strings.TrimRight(path, "/")}, vars: vars}
	if o.Parents {
		rest, _ := beneath(f.root(), path)
		s.text, s.args = mkdirAllScript, []string{rest}
	}
	_, err = f.script(ctx, s)
	return err
}

// Both directories are held open. mv(1) would copy what it can't rename, so a
// move between mounts is refused before it.
const renameScript = `need mv stat
mnt() { while read -r k v; do [ "$k" != mnt_id: ] || echo "$v"; done </proc/self/fdinfo/$1; stat -L -c %d /proc/self/fd/$1; }
go "$1"; named 'Invalid argument'; s=$b; exec 8<.
go "$2"; named 'Invalid argument'; exec 9<.
from=/proc/self/fd/8/$s
lock
[ -e "$from" ] || [ -L "$from" ] || fail 'No such file or directory'
if [ -n "$SLASH" ]; then [ -d "$from" ] && [ ! -L "$from" ] || fail 'Not a directory'; fi
[ "$(mnt 8)" = "$(mnt 9)" ] || fail 'Invalid cross-device link'
if [ -n "$KEEP" ]; then exists && fail 'File exists'
mv -nT -- "$from" "./$b" || exit 3
if [ -e "$from" ] || [ -L "$from" ]; then fail 'File exists'; fi; exit 0; fi
[ "$s" != "$b" ] || [ "$(stat -c %d:%i /proc/self/fd/8/.)" != "$(stat -c %d:%i .)" ] || exit 0
mv -fT -- "$from" "./$b" || exit 3
`

// Rename replaces what is at to in one step.
func (f *foreignFiles) Rename(ctx context.Context, from, to string) error {
	return pathError(ctx, "rename", from, f.rename(ctx, from, to, ""))
}

// Move implements sandbox.Mover.
func (f *foreignFiles) Move(ctx context.Context, from, to string) error {
	return pathError(ctx, "move", from, f.rename(ctx, from, to, "1"))
}

func (f *foreignFiles) rename(ctx context.Context, from, to, keep string) error {
	if err := f.check(from, to); err != nil {
		return err
	}
	a, b := strings.TrimRight(from, "/"), strings.TrimRight(to, "/")
	vars := map[string]string{"KEEP": keep, "SLASH": ""}
	if a != from || b != to {
		vars["SLASH"] = "1"
	}
	_, err := f.script(ctx, fileScript{text: renameScript, args: []string{a, b}, vars: vars})
	return err
}

// A failure ends with the number of its path.
const removeScript = `need rm rmdir stat
k=0; undo='[ "$c" = 0 ] || echo "@$k"'
for p in "$@"; do k=$((k+1)); s=
case $p in */) s=1; while case $p in */) ;; *) false;; esac; do p=${p%/}; done;; esac
b=${p##*/}
x=$( (enter "${p%/*}/") 2>&1 ) || case $x in *': No such file or directory'|*': Not a directory') continue;; *) printf '%s\n' "$x"; exit 3;; esac
enter "${p%/*}/"
named 'Invalid argument'
exists || continue
if [ -d "./$b" ] && [ ! -L "./$b" ]; then
if [ -n "$ALL" ]; then rm -rf "./$b" || exit 3
else rmdir "./$b" || { exists && exit 3; }; fi
elif [ -n "$s" ]; then fail 'Not a directory'
else rm -f "./$b" || exit 3; fi
done
exit 0
`

func (f *foreignFiles) Remove(ctx context.Context, paths ...string) error {
	return f.remove(ctx, "remove", "", scriptTime, paths)
}

func (f *foreignFiles) RemoveAll(ctx context.Context, path string) error {
	return f.remove(ctx, "removeall", "1", treeTime, []string{path})
}

// scriptBytes bounds the paths of one script, which is one argument of a
// program: 128 KiB, of which an escaped byte takes four.
const scriptBytes = 16 << 10

func (f *foreignFiles) remove(ctx context.Context, op, all string, limit time.Duration, paths []string) error {
	for _, path := range paths { // nothing is removed when one can't be asked for
		if err := f.check(path); err != nil {
			return pathError(ctx, op, path, err)
		}
	}
	for len(paths) > 0 {
		n, size := 1, len(paths[0])
		for n < len(paths) && size+len(paths[n])+32 < scriptBytes {
			size += len(paths[n]) + 32
			n++
		}
		batch := paths[:n]
		paths = paths[n:]
		out, err := foreign{f.c}.lineFor(ctx, f.shell(fileScript{text: removeScript, args: batch, vars: map[string]string{"ALL": all}}), limit)
		at := batch[0]
		switch {
		case err != nil:
		case out.cut || out.code < 0 || out.code > 128:
			err = lost(errors.New("a script didn't come to its end"))
		case out.code != 0:
			text, number, _ := cutLast(strings.TrimSpace(out.out), "@")
			if k, bad := strconv.Atoi(number); bad == nil && k >= 1 && k <= n {
				at = batch[k-1]
			}
			err = refusalOf(text)
		}
		if err != nil {
			return pathError(ctx, op, at, err)
		}
	}
	return nil
}

// cutLast cuts s around the last sep.
func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// Beneath keeps the roots so far; each must lie in the one before.
func (f *foreignFiles) Beneath(root string) sandbox.Files {
	return &foreignFiles{f.c, append(f.roots[:len(f.roots):len(f.roots)], root)}
}

// stageDir is the directory of one script, which only root can enter.
func (f *foreignFiles) stageDir() string { return f.c.dir + "/files-" + newNonce() }

// drop removes such a directory, also when ctx has ended. What can't be removed
// now is swept by a later write.
func (f *foreignFiles) drop(ctx context.Context, dir string) {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceTime)
	defer cancel()
	_ = f.c.json(end, http.MethodDelete, "/directories", url.Values{"path": {dir}}.Encode(), nil, nil)
}
