package conform

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func writeClauses() []Clause[Box] {
	return []Clause[Box]{
		{ID: "files.write.new", Check: try(writeNew),
			Doc: "A new file is root's with 0644 unless bits or owner are given."},
		{ID: "files.write.bytes", Check: try(writeBytes),
			Doc: "A file gets just the bytes of the reader, whatever they are and however many."},
		{ID: "files.write.keeps", Check: try(writeKeeps),
			Doc: "A file that exists keeps its bits and owner when none are given."},
		{ID: "files.write.bits", Check: try(writeBits),
			Doc: "A file gets just the bits that are given, special ones and none at all too."},
		{ID: "files.write.owner", Check: try(writeOwner),
			Doc: "A file gets the owner and group that are given by name."},
		{ID: "files.write.rawmode", Check: try(rawMode),
			Doc: "A mode with bits that a file can't be given, such as 0o4755, is refused and never trimmed."},
		{ID: "files.write.together", Check: try(writeTogether),
			Doc: "No program ever sees the new content under other bits or another owner than the ones it was written with."},
		{ID: "files.write.atomic", Check: try(writeAtomic),
			Doc: "Whoever reads during a write gets the old content or the new one, whole."},
		{ID: "files.write.cutoff", Check: try(writeCutOff),
			Doc: "A write whose reader fails leaves the old file as it was and nothing beside it, and says why."},
		{ID: "files.write.cancelled", Check: try(writeCancelled),
			Doc: "A write whose context ends leaves the old file as it was and nothing beside it."},
		{ID: "files.write.noreplace", Check: try(writeNoReplace),
			Doc: "With NoReplace whatever has the name stays, a dangling link too, and the error is fs.ErrExist."},
		{ID: "files.write.noreplace.race", Check: try(writeNoReplaceRace),
			Doc: "Of several writers with NoReplace to one name, one succeeds."},
		{ID: "files.write.ifunchanged", Check: try(writeIfUnchanged),
			Doc: "With IfUnchanged a file is written only while it has that version; else nothing happens and the error is ErrChanged."},
		{ID: "files.write.ifunchanged.race", Check: try(writeIfUnchangedRace),
			Doc: "Of several writers with the same version, one succeeds."},
		{ID: "files.write.link", Check: try(writeLink),
			Doc: "A write through a symlink changes the file that it names; the link stays."},
	}
}

func writeNew(t *trial) {
	t.looks(t.put("f", "12345"), 0o644, 5, "root:root")
	t.looks(t.put("empty", ""), 0o644, 0, "root:root")
}

// everyByte is text with each value of a byte, and line ends of all kinds.
func everyByte(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + i/256)
	}
	return string(b)
}

func writeBytes(t *trial) {
	for _, content := range []string{everyByte(1 << 12), "\n", "\r\n\n", "no line end", "\xef\xbb\xbfa", "\x00"} {
		p := t.put("f", content)
		t.same("the content", t.read(p), content)
		t.holds(p, content)
	}
	const size = 3<<20 + 17
	big := everyByte(size)
	from := strings.NewReader(big)
	// A reader without a length, which gives odd pieces.
	t.must("writing 3 MiB", t.Files.Write(t.ctx, t.path("f"), reader(func(p []byte) (int, error) {
		return from.Read(p[:min(len(p), 7001)])
	}), sandbox.WriteOptions{}))
	t.want(t.stat(t.path("f")).Size == size, fmt.Sprintf("%d bytes", size), "%d", t.stat(t.path("f")).Size)
	t.want(t.read(t.path("f")) == big, "the very bytes of 3 MiB", "others")
}

func writeKeeps(t *trial) {
	p := t.put("f", "one", sandbox.Attr{Mode: sandbox.Mode(fs.ModeSetgid | 0o751)})
	t.put("f", "three")
	t.looks(p, fs.ModeSetgid|0o751, 5, "root:root")
	account := t.account()
	t.must("giving it away", t.Files.SetAttr(t.ctx, p, sandbox.Attr{Mode: sandbox.Mode(0o600), Owner: account, Group: account}))
	t.put("f", "four")
	t.looks(p, 0o600, 4, account+":"+account)
}

func writeBits(t *trial) {
	for _, m := range []fs.FileMode{
		0o600, 0o640, 0o777, 0o400, 0, 0o004, fs.ModeSetuid | 0o755, fs.ModeSetgid | 0o755, fs.ModeSticky | 0o644,
		fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky | 0o777,
	} {
		p := t.put("f", "12345", sandbox.Attr{Mode: sandbox.Mode(m)})
		t.looks(p, m, 5, "root:root")
		p = t.put(fmt.Sprintf("new-%d", uint32(m)), "12", sandbox.Attr{Mode: sandbox.Mode(m)})
		t.looks(p, m, 2, "root:root")
	}
}

func writeOwner(t *trial) {
	a := t.account()
	for owned, attr := range map[string]sandbox.Attr{
		a + ":" + a:       {Owner: a, Group: a},
		a + ":root":       {Owner: a},
		"root:" + a:       {Group: a},
		"root:root":       {Owner: "root", Group: "root"},
		a + ":" + a + " ": {Mode: sandbox.Mode(0o644), Owner: a, Group: a},
	} {
		p := t.put("new", "123", attr)
		t.looks(p, 0o644, 3, strings.TrimSpace(owned))
		t.must("removing", t.Files.Remove(t.ctx, p))
	}
	p := t.put("f", "x", sandbox.Attr{Mode: sandbox.Mode(fs.ModeSetuid | 0o755)})
	t.put("f", "xy", sandbox.Attr{Owner: a})
	t.looks(p, 0o755, 2, a+":root") // as chown does
}

// rawText writes a mode that no file can have as its bits are in Go.
func rawText(m fs.FileMode) string {
	text := fmt.Sprintf("%#o", uint32(m&^fs.ModeType))
	switch m.Type() {
	case fs.ModeDir:
		text = "fs.ModeDir|" + text
	case fs.ModeSymlink:
		text = "fs.ModeSymlink|" + text
	}
	return text
}

func rawMode(t *trial) {
	p := t.put("f", "old", sandbox.Attr{Mode: sandbox.Mode(0o640)})
	for _, m := range []fs.FileMode{0o4755, 0o2755, 0o1777, 0o10644, fs.ModeDir | 0o755, fs.ModeSymlink | 0o777} {
		attr := sandbox.Attr{Mode: sandbox.Mode(m)}
		what := " with mode " + rawText(m)
		t.fails("writing"+what, t.Files.Write(t.ctx, p, strings.NewReader("new"), sandbox.WriteOptions{Attr: attr}), sandbox.ErrPathRejected)
		t.fails("making a file"+what, t.Files.Write(t.ctx, t.path("g"), strings.NewReader("new"), sandbox.WriteOptions{Attr: attr}), sandbox.ErrPathRejected)
		t.fails("making a directory"+what, t.Files.MakeDir(t.ctx, t.path("d"), sandbox.DirOptions{Attr: attr}), sandbox.ErrPathRejected)
		t.fails("setting attributes"+what, t.Files.SetAttr(t.ctx, p, attr), sandbox.ErrPathRejected)
	}
	t.names(t.Scratch, "f")
	t.looks(p, 0o640, 3, "root:root")
}

func writeTogether(t *trial) {
	a := t.account()
	states := []struct {
		content string
		attr    sandbox.Attr
		seen    string
	}{
		{"12345", sandbox.Attr{Mode: sandbox.Mode(0o600), Owner: "root", Group: "root"}, "0600 root:root, 5 bytes"},
		{"123456789", sandbox.Attr{Mode: sandbox.Mode(fs.ModeSetuid | 0o640), Owner: a, Group: a}, "4640 " + a + ":" + a + ", 9 bytes"},
	}
	p := t.put("f", states[0].content, states[0].attr)
	stop := t.beside(t.path("stop"), &output{}, script.Watch(p, t.path("stop")))
	for i := range 16 {
		s := states[(i+1)%2]
		t.put("f", s.content, s.attr)
		t.pause(time.Millisecond)
	}
	seen := strings.FieldsFunc(stop(), func(r rune) bool { return r == '\n' })
	t.want(len(seen) > 0, "a program to see the file", "nothing")
	for _, line := range seen {
		line = lookText(line, true)
		t.want(line == states[0].seen || line == states[1].seen,
			fmt.Sprintf("a program to see %s or %s only", states[0].seen, states[1].seen), "%s", line)
	}
}

func writeAtomic(t *trial) {
	contents := []string{strings.Repeat("a", 40_000), strings.Repeat("b", 70_000)}
	p := t.put("f", contents[0])
	var mu sync.Mutex
	var wrong error
	reads := 0
	stop := t.path("stop")
	wait := t.behind(func(ctx context.Context) {
		for ctx.Err() == nil {
			b, err := readAll(ctx, t.Files, p, 0, -1)
			mu.Lock()
			reads++
			if err != nil {
				wrong = fmt.Errorf("reading failed: %w", err)
			} else if s := string(b); s != contents[0] && s != contents[1] {
				wrong = fmt.Errorf("%d bytes, of which %d are a and %d are b", len(b), bytes.Count(b, []byte("a")), bytes.Count(b, []byte("b")))
			}
			over := wrong != nil
			mu.Unlock()
			if _, err := t.Files.Stat(ctx, stop); err == nil || over || !t.pause(300*time.Microsecond) {
				return
			}
		}
	})
	for i := range 16 {
		t.put("f", contents[(i+1)%2])
		t.pause(time.Millisecond)
	}
	t.put("stop", "")
	wait()
	t.want(wrong == nil, "the old content or the new one, whole", "%v", wrong)
	t.want(reads > 1, "several reads during the writes", "%d", reads)
}

var errCutOff = errors.New("the source of the content broke")

// cut gives some of a content and then calls last, which says how it ends.
func cut(last func() error) io.Reader {
	pieces := 0
	return reader(func(p []byte) (int, error) {
		if pieces++; pieces > 3 {
			return 0, last()
		}
		return copy(p, strings.Repeat("new", 40_000)), nil
	})
}

// untouched checks that a file f with the content old is all that there is.
func (t *trial) untouched(when string) {
	t.names(t.Scratch, "f")
	t.holds(t.path("f"), "old")
	t.looks(t.path("f"), 0o640, 3, "root:root")
	t.want(len(t.entries(t.Scratch, 1)) == 1, "nothing beside the file "+when, "%s", pathsOf(t.entries(t.Scratch, 1)))
}

func writeCutOff(t *trial) {
	p := t.put("f", "old", sandbox.Attr{Mode: sandbox.Mode(0o640)})
	wider := sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o666)}}
	err := t.Files.Write(t.ctx, p, cut(func() error { return errCutOff }), wider)
	t.fails("a write whose reader fails", err, sandbox.ErrPathRejected, errCutOff)
	t.untouched("after a write that was cut off")
	err = t.Files.Write(t.ctx, t.path("new"), cut(func() error { return errCutOff }), wider)
	t.fails("making a file from a reader that fails", err, sandbox.ErrPathRejected, errCutOff)
	t.untouched("after a new file's write was cut off")
	err = t.Files.Write(t.ctx, p, cut(func() error { return io.ErrUnexpectedEOF }), wider)
	t.fails("a write whose reader ends too early", err, sandbox.ErrPathRejected, io.ErrUnexpectedEOF)
	t.untouched("after a write that ended too early")
}

func writeCancelled(t *trial) {
	p := t.put("f", "old", sandbox.Attr{Mode: sandbox.Mode(0o640)})
	for _, path := range []string{p, t.path("new")} {
		ctx, cancel := context.WithCancel(t.ctx)
		err := t.Files.Write(ctx, path, cut(func() error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}), sandbox.WriteOptions{})
		cancel()
		t.want(errors.Is(err, context.Canceled), "the context's error", "%v", err)
		// The sandbox notices a little later than the caller.
		t.eventually(5*time.Second, "nothing beside the file", func() (bool, string) {
			seen := pathsOf(t.entries(t.Scratch, 1))
			return seen == "f", seen
		})
		t.untouched("after a cancelled write")
	}
}

func writeNoReplace(t *trial) {
	no := sandbox.WriteOptions{NoReplace: true}
	write := func(name string) error { return t.Files.Write(t.ctx, t.path(name), strings.NewReader("new"), no) }
	t.put("f", "old")
	t.mkdir("d")
	t.must("making a link", t.linked("f", "l"))
	t.must("making a link", t.linked("none", "dangling"))
	for _, name := range []string{"f", "l", "dangling", "d"} {
		t.fails("writing to "+name+" with NoReplace", write(name), sandbox.ErrPathRejected, fs.ErrExist)
	}
	t.holds(t.path("f"), "old")
	t.names(t.Scratch, "d", "dangling", "f", "l")
	t.must("writing a new file with NoReplace", write("new"))
	t.holds(t.path("new"), "new")
}

// race has several writers write to f at once and gives how many succeeded,
// and the content of one that did.
func (t *trial) race(o sandbox.WriteOptions, loses func(error) bool) (won int, content string) {
	const writers = 6
	var mu sync.Mutex
	var odd error
	var wg sync.WaitGroup
	for i := range writers {
		mine := strings.Repeat(fmt.Sprint(i), 5000+i)
		wg.Go(func() {
			err := t.Files.Write(t.ctx, t.path("f"), strings.NewReader(mine), o)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				won++
				content = mine
			case !loses(err):
				odd = err
			}
		})
	}
	wg.Wait()
	t.want(odd == nil, "the losers to be refused", "%v", odd)
	return won, content
}

func writeNoReplaceRace(t *trial) {
	for range 3 {
		won, content := t.race(sandbox.WriteOptions{NoReplace: true}, func(err error) bool { return errors.Is(err, fs.ErrExist) })
		t.want(won == 1, "one of six writers to succeed", "%d", won)
		t.want(t.read(t.path("f")) == content, "the content of the one that succeeded", "another")
		t.names(t.Scratch, "f")
		t.must("removing", t.Files.Remove(t.ctx, t.path("f")))
	}
}

func writeIfUnchanged(t *trial) {
	p := t.put("f", "one")
	write := func(content, version string) error {
		return t.Files.Write(t.ctx, p, strings.NewReader(content), sandbox.WriteOptions{IfUnchanged: version})
	}
	v := t.stat(p).Version
	t.must("writing with the present version", write("two", v))
	t.fails("writing with an old version", write("three", v), sandbox.ErrPathRejected, sandbox.ErrChanged)
	t.holds(p, "two")
	v = t.stat(p).Version
	t.does(script.WriteFile(p, "by a program"))
	t.fails("writing after a program has written", write("four", v), sandbox.ErrPathRejected, sandbox.ErrChanged)
	t.holds(p, "by a program")
	v = t.stat(p).Version
	t.must("removing", t.Files.Remove(t.ctx, p))
	t.fails("writing a file that was removed", write("five", v), sandbox.ErrPathRejected, sandbox.ErrChanged)
	t.names(t.Scratch)
}

func writeIfUnchangedRace(t *trial) {
	p := t.put("f", "start")
	for range 3 {
		v := t.stat(p).Version
		won, content := t.race(sandbox.WriteOptions{IfUnchanged: v}, func(err error) bool { return errors.Is(err, sandbox.ErrChanged) })
		t.want(won == 1, "one of six writers to succeed", "%d", won)
		t.want(t.read(p) == content, "the content of the one that succeeded", "another")
	}
	t.names(t.Scratch, "f")
}

func writeLink(t *trial) {
	t.mkdir("d")
	t.put("d/f", "old", sandbox.Attr{Mode: sandbox.Mode(0o640)})
	t.must("making a link", t.linked("d/f", "l"))
	t.put("l", "new")
	t.holds(t.path("d/f"), "new")
	t.looks(t.path("d/f"), 0o640, 3, "root:root")
	t.want(t.stat(t.path("l")).Mode.Type() == fs.ModeSymlink, "the link to stay", "%v", t.stat(t.path("l")).Mode)
	t.must("making a link", t.linked("d/made", "l2"))
	t.put("l2", "made")
	t.holds(t.path("d/made"), "made")
}
