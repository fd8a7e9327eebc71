package execd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// snapshotLimit bounds a file without a size, such as those of /proc: it is
// copied before it is downloaded.
const snapshotLimit = 16 << 20

// The daemon hangs on a FIFO, says that a directory has all sizes and can't
// send a file of /proc, so what a path names is looked at first. LINK is set
// for a path that the daemon can't be given: it gets a link to it.
const openScript = `need stat readlink
go "$1"; follow; case $b in ..) enter ..; b=;; esac
x=$(stat -c '%f %s' "./$b") || exit 3
case $x in 8*) ;; 4*) fail 'Is a directory';; *) fail '` + sayOther + `';; esac
x=${x#* }; p=
[ "$x" != 0 ] || p=y
case $p$(stat -f -c %t "./$b") in y*|9fa0|62656572|27e0eb|63677270|64626720|74726163|73636673) need head; stage
head -c "$LIMIT" <"./$b" >"$S/f" || exit 3
x=$(stat -c %s "$S/f")
[ "$x" != "$LIMIT" ] || fail 'File too large'
[ "$x" = 0 ] || undo=
echo "$x copy"; exit 0;; esac
[ -n "$LINK" ] || { echo "$x plain"; exit 0; }
stage; here; ln -s "${h%/}/$b" "$S/f" || exit 3
undo=; echo "$x link"
`

// Open follows links and reads from offset; one at or past the end gives nothing.
func (f *foreignFiles) Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error) {
	r, err := f.open(ctx, path, offset, length)
	if err != nil {
		return nil, pathError(ctx, "open", path, err)
	}
	return r, nil
}

func (f *foreignFiles) open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, error) {
	if offset < 0 {
		return nil, rejected(wire.CodePathInvalid, "an offset isn't negative")
	}
	if err := f.check(path); err != nil {
		return nil, err
	}
	link := ""
	if strings.ContainsRune(path, '$') || !utf8.ValidString(path) || len(f.roots) > 0 {
		link = "1"
	}
	dir := f.stageDir()
	out, err := f.script(ctx, fileScript{
		text: openScript, args: []string{path},
		vars: map[string]string{"S": dir, "LINK": link, "LIMIT": strconv.Itoa(snapshotLimit)},
	})
	if err != nil {
		if isUnknown(err) {
			f.drop(ctx, dir)
		}
		return nil, err
	}
	number, how, _ := strings.Cut(strings.TrimSpace(out), " ")
	size, err := strconv.ParseInt(number, 10, 64)
	if err != nil || size < 0 {
		return nil, lost(errors.New("a file's size can't be read"))
	}
	staged := how == "link" || how == "copy" && size > 0
	var r io.ReadCloser
	if offset >= size || length == 0 {
		r = io.NopCloser(strings.NewReader(""))
	} else {
		from := path
		if staged {
			from = dir + "/f"
		}
		r, err = f.download(ctx, path, from, offset, length)
	}
	if staged { // the daemon has opened the file before it answers
		f.drop(ctx, dir)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// download asks for a regular file. A body that is too short is a failed Read.
func (f *foreignFiles) download(ctx context.Context, path, from string, offset, length int64) (io.ReadCloser, error) {
	r := request{method: http.MethodGet, path: "/files/download", query: url.Values{"path": {from}}.Encode()}
	switch last := offset + length - 1; {
	case length > 0 && last >= offset:
		r.header = http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", offset, last)}}
	case offset > 0:
		r.header = http.Header{"Range": {fmt.Sprintf("bytes=%d-", offset)}}
	}
	resp, err := f.c.do(ctx, r)
	var no *refusal
	switch {
	case errors.As(err, &no) && no.status == http.StatusRequestedRangeNotSatisfiable: // it became shorter
		return io.NopCloser(strings.NewReader("")), nil
	case err != nil:
		return nil, daemonError(err)
	}
	switch partial := resp.StatusCode == http.StatusPartialContent; {
	case partial && !isRange(resp.Header.Get("Content-Range"), offset, length):
		err = lost(errors.New("the daemon sent another range than was asked for"))
	case resp.ContentLength < 0 || resp.ContentLength > 1<<62: // a directory is said to have every length
		err = lost(errors.New("the daemon didn't say how much it sends"))
	case !partial && offset > 0: // it is empty now
		if _, err = io.CopyN(io.Discard, resp.Body, offset); errors.Is(err, io.EOF) {
			err = nil
		}
		err = unreachable(ctx, err)
	}
	if err != nil {
		resp.Body.Close()
		return nil, err
	}
	return &content{ctx: ctx, path: path, body: resp.Body, left: length}, nil
}

// daemonError translates a refusal of the daemon's own file calls.
func daemonError(err error) error {
	var no *refusal
	switch {
	case !errors.As(err, &no):
		return err
	case no.missing():
		return sandbox.ErrPathNotFound
	case no.unknownPath():
		return sandbox.Errorf(sandbox.CodeUnsupported, "the execd of this sandbox lacks a file call that is needed")
	}
	return refusalOf(no.message)
}
