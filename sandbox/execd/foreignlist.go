package execd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/glob"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// listLimit bounds what one listing or search is told about its tree: some
// 100 bytes for each entry, all of which is held in memory to be put in order.
const listLimit = 128 << 20

// The daemon's own listing fails when an entry vanishes, and knows neither
// special bits nor targets nor names that aren't UTF-8. Here a record ends with
// two slashes, which no path has, and a line end. Behind all of them comes a
// NUL, then each link's path and target with a NUL, then "end".
//
// What vanished is a message that is passed over; what else stat or find
// complain of fails the listing rather than leaving something out.
const listScript = `need find stat grep readlink cat tail
go "$1/"
stage
bad=$( {
find . -mindepth 1 -maxdepth "$DEPTH" -exec stat -c '` + fileFields + `|%n//' {} + >"$S/f"
if grep -q '^a' "$S/f"; then
if find . -prune -printf '' 2>/dev/null; then find . -mindepth 1 -maxdepth "$DEPTH" -type l -printf '%p\0%l\0'
else find . -mindepth 1 -maxdepth "$DEPTH" -type l -exec sh -c '
for p in "$@"; do x=$(readlink -n "$p" && echo x) && printf "%s\0%s\0" "$p" "${x%x}"; done' sh {} +; fi >"$S/l"
fi; } 2>&1 | grep -a -e ': No space left on device$' -e ': Disk quota exceeded$' -e ': Input/output error$' \
-e ': File name too long$' -e ': Filename too long$' -e ': Cannot allocate memory$' -e ': File too large$' \
-e ': Argument list too long$' -e ': Too many open files$' | tail -n 1)
[ -z "$bad" ] || fail "$bad"
{ printf '\0'; [ ! -e "$S/l" ] || cat "$S/l"; printf end; } >>"$S/f" || exit 3
undo=
`

// maxLevels is more than a tree can have whose names fit in a path.
const maxLevels = 4096

// List follows a link that dir itself is. The tree is looked at when List is
// called and again for every further range.
func (f *foreignFiles) List(ctx context.Context, dir string, depth int) (iter.Seq2[sandbox.FileInfo, error], error) {
	if depth < 0 {
		return nil, pathError(ctx, "list", dir, rejected(wire.CodePathInvalid, "a depth isn't negative"))
	}
	return f.sequence(ctx, "list", dir, depth, func(string) bool { return true })
}

// Search yields what is below root and whose base name matches.
func (f *foreignFiles) Search(ctx context.Context, root, pattern string) (iter.Seq2[sandbox.FileInfo, error], error) {
	match, err := glob.Compile(pattern)
	if err != nil {
		return nil, pathError(ctx, "search", root, rejected(wire.CodePathInvalid, err.Error()))
	}
	return f.sequence(ctx, "search", root, maxLevels, match)
}

func (f *foreignFiles) sequence(ctx context.Context, op, dir string, depth int, match func(string) bool) (iter.Seq2[sandbox.FileInfo, error], error) {
	first, err := f.tree(ctx, dir, depth)
	if err != nil {
		return nil, pathError(ctx, op, dir, err)
	}
	return func(yield func(sandbox.FileInfo, error) bool) {
		t := first
		if first = nil; t == nil {
			var err error
			if t, err = f.tree(ctx, dir, depth); err != nil {
				yield(sandbox.FileInfo{}, pathError(ctx, op, dir, err))
				return
			}
		}
		t.each(match, func(i sandbox.FileInfo, err error) bool {
			return yield(i, pathError(ctx, op, dir, err))
		})
	}, nil
}

// tree asks for what is below dir.
func (f *foreignFiles) tree(ctx context.Context, dir string, depth int) (*listing, error) {
	if err := f.check(dir); err != nil {
		return nil, err
	}
	stage := f.stageDir()
	_, err := f.script(ctx, fileScript{
		text: listScript, args: []string{strings.TrimRight(dir, "/")}, time: treeTime,
		vars: map[string]string{"S": stage, "DEPTH": strconv.Itoa(min(depth, maxLevels))},
	})
	if err != nil {
		if isUnknown(err) {
			f.drop(ctx, stage)
		}
		return nil, err
	}
	defer f.drop(ctx, stage)
	body, err := f.download(ctx, dir, stage+"/f", 0, -1)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	b, err := io.ReadAll(io.LimitReader(body, listLimit+1))
	switch {
	case err != nil:
		return nil, unreachable(ctx, err)
	case len(b) > listLimit:
		return nil, rejected(wire.CodePathInvalid, fmt.Sprintf("the tree has more entries than %d MiB describe", listLimit>>20))
	}
	return parseListing(strings.TrimRight(dir, "/"), b)
}

// listing is a tree in order.
type listing struct {
	dir     string
	records [][]byte // fileFields, "|", the path
	targets map[string]string
}

var errListing = lost(errors.New("a listing can't be read"))

// parseListing reads what the script wrote. It keeps parts of b.
func parseListing(dir string, b []byte) (*listing, error) {
	b, whole := bytes.CutSuffix(b, []byte("end"))
	records, links, ok := bytes.Cut(b, []byte{0})
	if !whole || !ok {
		return nil, lost(errors.New("a listing was cut off"))
	}
	l := &listing{dir: dir, targets: map[string]string{}}
	for len(links) > 0 {
		name, rest, ok1 := bytes.Cut(links, []byte{0})
		target, rest, ok2 := bytes.Cut(rest, []byte{0})
		if !ok1 || !ok2 {
			return nil, errListing
		}
		l.targets[string(name)], links = string(target), rest
	}
	for len(records) > 0 {
		record, rest, ok := bytes.Cut(records, []byte("//\n"))
		if !ok || bytes.Count(record, []byte{'|'}) < 5 {
			return nil, errListing
		}
		l.records, records = append(l.records, record), rest
	}
	slices.SortFunc(l.records, func(a, b []byte) int { return comparePaths(pathOf(a), pathOf(b)) })
	return l, nil
}

// pathOf gives the path of a record, "./" and what find made of it.
func pathOf(record []byte) []byte {
	for range 5 {
		_, record, _ = bytes.Cut(record, []byte{'|'})
	}
	return record
}

// comparePaths orders names byte by byte, and children behind their parent.
func comparePaths(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		switch x, y := a[i], b[i]; {
		case x == y:
		case x == '/':
			return -1
		case y == '/':
			return 1
		default:
			return int(x) - int(y)
		}
	}
	return len(a) - len(b)
}

// each yields what matches.
func (l *listing) each(match func(string) bool, yield func(sandbox.FileInfo, error) bool) {
	for _, r := range l.records {
		path := pathOf(r)
		if !match(string(path[bytes.LastIndexByte(path, '/')+1:])) {
			continue
		}
		i, err := parseStat(string(r[:len(r)-len(path)-1]))
		if err == nil && !bytes.HasPrefix(path, []byte("./")) {
			err = errListing
		}
		if err != nil {
			yield(i, err)
			return
		}
		i.Path = l.dir + string(path[1:])
		if i.Mode&fs.ModeSymlink != 0 {
			target, ok := l.targets[string(path)]
			if !ok {
				continue // it vanished before its target was read
			}
			i.Target = target
		}
		if !yield(i, nil) {
			return
		}
	}
}
