package execd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// A write has three steps. A script looks at what is there and makes a
// directory that only root can enter. The daemon stores the content in it,
// where nobody sees it under the daemon's own bits. A second script gives it
// bits and owner, links it into the target's directory (where it can't, such as
// on another mount, it copies) and renames it into place. Bits and owner are
// never given by a name in that directory, which its owner could have swapped.
//
// With STEP the second ends after its look. V is the version that the file must have.
const writeScript = `[ -n "$STEP" ] || undo='rm -rf "$S"; [ -z "$t" ] || rm -f "./$t"'
need stat readlink mkdir rm ln mv chmod chown expr dd find
accounts; go "$1"; [ -n "$KEEP" ] || follow; named 'Is a directory'
look() {
m=644 u=0 g=0
if exists; then
[ -z "$KEEP" ] || fail 'File exists'
x=$(stat -c '%f %a %u %g ` + fileVersion + `' "./$b") || exit 3
set -- $x
case $1 in 8*) m=$2 u=$3 g=$4; x=${x#* * * * }; [ -z "$V" ] || [ "$x" = "$V" ] || fail '` + sayChanged + `';;
a*) [ -z "$V" ] || fail '` + sayChanged + `';;
4*) fail 'Is a directory';; *) fail '` + sayOther + `';; esac
else [ -z "$V" ] || fail '` + sayChanged + `'; fi; }
look
if [ -n "$STEP" ]; then
[ ! -d "$D" ] || find "$D" -maxdepth 1 -name 'files-*' -mmin +10080 -exec rm -rf {} + 2>/dev/null
stage; undo=; exit 0; fi
[ "$(stat -c %s "$S/f")" = "$SIZE" ] || fail '` + sayShort + `'
over; give "$S/f"
t=.astrabox-$N.tmp
if ln -T "$S/f" "./$t" 2>/dev/null; then new=$S/f
else set -C; exec 9>"./$t" || exit 3; set +C; new=/proc/self/fd/9
x=$(dd if="$S/f" bs=131072 conv=fsync 2>&1 >&9) || fail "${x%%"$nl"*}"
[ "$(stat -L -c %s $new)" = "$SIZE" ] || fail '` + sayShort + `'; fi
lock; look; over; give "$new"; rm -f "$S/f"
if [ -z "$KEEP" ]; then mv -fT "./$t" "./$b" || exit 3; t=; exit 0; fi
ln -T "./$t" "./$b" 2>/dev/null && exit 0
exists && fail 'File exists'
mv -nT "./$t" "./$b" || exit 3
if [ -e "./$t" ]; then fail 'File exists'; fi
t=
`

// clearScript removes what a second script that was killed has left.
const clearScript = `undo='rm -rf "$S"'
go "$1"; [ -n "$KEEP" ] || follow; rm -f "./.astrabox-$N.tmp"
`

// Write replaces the content in one step, with its bits and owner.
func (f *foreignFiles) Write(ctx context.Context, path string, r io.Reader, o sandbox.WriteOptions) error {
	return pathError(ctx, "write", path, f.write(ctx, path, r, o))
}

func (f *foreignFiles) write(ctx context.Context, path string, r io.Reader, o sandbox.WriteOptions) error {
	vars, err := attrVars(o.Attr)
	if err = errors.Join(err, f.check(path)); err != nil {
		return err
	}
	switch {
	case strings.HasSuffix(path, "/"):
		return rejected(wire.CodeIsADirectory, "a path that ends with a slash names a directory")
	case o.NoReplace && o.IfUnchanged != "":
		return rejected(wire.CodePathInvalid, "NoReplace and IfUnchanged exclude each other")
	case strings.ContainsRune(o.IfUnchanged, 0):
		return fmt.Errorf("%w: %w", sandbox.ErrPathRejected, sandbox.ErrChanged)
	}
	dir := f.stageDir()
	vars["S"], vars["N"], vars["V"], vars["KEEP"], vars["STEP"], vars["SIZE"] = dir, newNonce(), o.IfUnchanged, "", "1", ""
	if o.NoReplace {
		vars["KEEP"] = "1"
	}
	s := fileScript{text: writeScript, args: []string{path}, vars: vars}
	if _, err := f.script(ctx, s); err != nil {
		if isUnknown(err) {
			f.drop(ctx, dir)
		}
		return err
	}
	size, err := f.upload(ctx, dir+"/f", r)
	if err != nil {
		f.drop(ctx, dir)
		return err
	}
	vars["STEP"], vars["SIZE"] = "", strconv.FormatInt(size, 10)
	s.time = scriptTime + time.Duration(size>>20)*time.Second/4 // it may have to copy
	_, err = f.script(ctx, s)
	if isUnknown(err) {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
		defer cancel()
		s.text, s.time = clearScript, 0
		_, _ = f.script(end, s) // what is left otherwise is swept by a later write
	}
	return err
}

// isUnknown reports whether a script may not have come to its own end.
func isUnknown(err error) bool {
	return err != nil && !errors.Is(err, sandbox.ErrPathRejected) && !errors.Is(err, sandbox.ErrPathNotFound)
}

// upload stores a content and gives its length. The body is cut off when ctx
// ends, and then nothing is stored; one that was sent whole is waited for.
func (f *foreignFiles) upload(ctx context.Context, path string, r io.Reader) (int64, error) {
	meta, err := json.Marshal(map[string]any{"path": path, "mode": 600})
	if err != nil {
		return 0, fmt.Errorf("execd: %w", err)
	}
	var head bytes.Buffer
	form := multipart.NewWriter(&head)
	w, err := form.CreateFormFile("metadata", "metadata") // without a file name a part isn't seen
	if err == nil {
		if _, err = w.Write(meta); err == nil {
			_, err = form.CreateFormFile("file", "file")
		}
	}
	if err != nil {
		return 0, fmt.Errorf("execd: %w", err)
	}
	foot := "\r\n--" + form.Boundary() + "--\r\n"

	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	c := contentOf(r)
	var sent atomic.Pointer[source]
	defer context.AfterFunc(ctx, func() {
		if src := sent.Load(); src != nil && src.ended.Load() {
			t := time.NewTimer(setupTime)
			defer t.Stop()
			select {
			case <-t.C:
			case <-run.Done():
			}
		}
		stop()
	})()
	resp, err := f.c.do(run, request{
		method: http.MethodPost, path: "/files/upload", once: c.once,
		header: http.Header{"Content-Type": {form.FormDataContentType()}},
		body: func() (io.Reader, error) {
			body, err := c.counted()
			if err != nil {
				return nil, err
			}
			sent.Store(c.src)
			return &whileWanted{ctx, io.MultiReader(bytes.NewReader(head.Bytes()), body, strings.NewReader(foot))}, nil
		},
	})
	failed := c.stop()
	switch {
	case err != nil && ctx.Err() != nil:
		return 0, ctx.Err()
	case failed != nil:
		if resp != nil {
			resp.Body.Close()
		}
		return 0, fmt.Errorf("%w: the content can't be read: %w", sandbox.ErrPathRejected, failed)
	case err != nil:
		return 0, daemonError(err)
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, errorBodyLimit))
	return c.src.n.Load(), unreachable(ctx, err)
}

// whileWanted fails once ctx has ended, so that a body that nobody wants any
// more doesn't get its end.
type whileWanted struct {
	ctx context.Context // of the one write that this value serves
	r   io.Reader
}

func (w *whileWanted) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if w.ctx.Err() != nil {
		return 0, w.ctx.Err()
	}
	return n, err
}
