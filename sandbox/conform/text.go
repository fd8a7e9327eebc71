package conform

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// say is fmt.Sprintf for reports: values are written as people write them, see
// [readable].
func say(format string, args ...any) string {
	shown := make([]any, len(args))
	for i, a := range args {
		shown[i] = readable(a)
	}
	return fmt.Sprintf(format, shown...)
}

// readable gives what a report shows of a value. What it doesn't know stays as
// it is. A nil is taken for an error that there wasn't.
func readable(v any) any {
	switch v := v.(type) {
	case nil:
		return "no error"
	case fs.FileMode:
		return modeText(v)
	case time.Duration:
		return spanText(v)
	case time.Time:
		return timeText(v)
	case []byte:
		return headOf(string(v))
	case []string:
		return listText(v)
	case []int:
		words := make([]string, len(v))
		for i, n := range v {
			words[i] = strconv.Itoa(n)
		}
		return listText(words)
	case map[string]string:
		words := make([]string, 0, len(v))
		for _, k := range slices.Sorted(maps.Keys(v)) {
			words = append(words, k+"="+v[k])
		}
		return listText(words)
	case sandbox.FileInfo:
		return infoText(v)
	case sandbox.CommandResult:
		return resultText(v)
	case sandbox.Exit:
		return exitText(v)
	case sandbox.ProcessStatus:
		return statusText(v)
	}
	return v
}

// modeText writes a mode as chmod(1) takes it, after the kind of a file that
// isn't a regular one: "0644", "4755", "directory 0755".
func modeText(m fs.FileMode) string {
	bits := uint32(m.Perm())
	for _, s := range []struct {
		is  fs.FileMode
		bit uint32
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if m&s.is != 0 {
			bits |= s.bit
		}
	}
	text := fmt.Sprintf("%04o", bits)
	switch m.Type() {
	case 0:
		return text
	case fs.ModeDir:
		return "directory " + text
	case fs.ModeSymlink:
		return "symlink " + text
	case fs.ModeNamedPipe:
		return "named pipe " + text
	case fs.ModeSocket:
		return "socket " + text
	}
	return "special file " + text
}

// unixMode reads a mode as stat(1) writes it in hexadecimal.
func unixMode(hex string) (m fs.FileMode, ok bool) {
	raw, err := strconv.ParseUint(hex, 16, 32)
	if err != nil {
		return 0, false
	}
	m = fs.FileMode(raw & 0o777)
	for bit, is := range map[uint64]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if raw&bit != 0 {
			m |= is
		}
	}
	kinds := map[uint64]fs.FileMode{
		0o100000: 0, 0o040000: fs.ModeDir, 0o120000: fs.ModeSymlink, 0o010000: fs.ModeNamedPipe, 0o140000: fs.ModeSocket,
		0o060000: fs.ModeDevice, 0o020000: fs.ModeDevice | fs.ModeCharDevice,
	}
	kind, ok := kinds[raw&0o170000]
	return m | kind, ok
}

// lookText is what stat(1) says of a file, for people; sized: with its size.
// stat is "81a4 5 root root": mode, size, owner and group.
func lookText(stat string, sized bool) string {
	f := strings.Fields(stat)
	if len(f) != 4 {
		return fmt.Sprintf("%q", stat)
	}
	m, ok := unixMode(f[0])
	if !ok {
		return fmt.Sprintf("%q", stat)
	}
	if !sized {
		return modeText(m) + " " + f[2] + ":" + f[3]
	}
	return modeText(m) + " " + f[2] + ":" + f[3] + ", " + f[1] + " bytes"
}

// spanText leaves out what is below a millisecond, where there is more.
func spanText(d time.Duration) string {
	if d >= time.Millisecond || d <= -time.Millisecond {
		d = d.Round(time.Millisecond)
	}
	return d.String()
}

// timeText is a time in UTC, to the millisecond; "none" is the zero time.
func timeText(t time.Time) string {
	if t.IsZero() {
		return "none"
	}
	return t.UTC().Format("2006-01-02T15:04:05.999Z07:00")
}

func listText(words []string) string {
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

func infoText(i sandbox.FileInfo) string {
	text := fmt.Sprintf("%q, %s %s:%s, %d bytes, changed at %s", i.Path, modeText(i.Mode), i.Owner, i.Group, i.Size, timeText(i.ModTime))
	if i.Target != "" {
		text += fmt.Sprintf(", target %q", i.Target)
	}
	return text + fmt.Sprintf(", version %q", i.Version)
}

func resultText(r sandbox.CommandResult) string {
	text := fmt.Sprintf("status %d, stdout %s, stderr %s", r.ExitCode, bytesText(r.Stdout), bytesText(r.Stderr))
	if r.Truncated {
		text += ", truncated"
	}
	return text
}

func bytesText(b []byte) string {
	if b == nil {
		return "none"
	}
	return short(string(b))
}

func exitText(e sandbox.Exit) string {
	if e.Signal == "" {
		return fmt.Sprintf("status %d without a signal", e.Code)
	}
	return fmt.Sprintf("status %d with %s", e.Code, e.Signal)
}

func statusText(s sandbox.ProcessStatus) string {
	text := fmt.Sprintf("%s, run %d", firstNonEmpty(string(s.State), "no state"), s.Run)
	if s.Exit != nil {
		text += ", " + exitText(*s.Exit)
	}
	return text + fmt.Sprintf(", output held from byte %d to %d, %d bytes of stdin", s.Oldest, s.Next, s.Stdin)
}

// unlike shows a text, and where it differs from the one that was wanted when
// that can't be seen from their beginnings.
func unlike(got, want string) string {
	n := 0
	for n < min(len(got), len(want)) && got[n] == want[n] {
		n++
	}
	if n < shortest {
		return short(got)
	}
	const some = 24
	return fmt.Sprintf("%d bytes of %d, and %q where byte %d should be followed by %q",
		len(got), len(want), got[n:min(n+some, len(got))], n, want[n:min(n+some, len(want))])
}

// endText says when a sandbox ends.
func endText(at time.Time) string {
	if at.IsZero() {
		return "no scheduled end"
	}
	return "an end at " + timeText(at)
}

// errorName adds to the text of a sentinel the name that a provider's author knows it by.
func errorName(err error) string {
	for name, known := range map[string]error{
		"sandbox.ErrPathNotFound": sandbox.ErrPathNotFound, "sandbox.ErrPathRejected": sandbox.ErrPathRejected,
		"sandbox.ErrUnreachable": sandbox.ErrUnreachable, "sandbox.ErrChanged": sandbox.ErrChanged, "fs.ErrExist": fs.ErrExist,
		"context.Canceled": context.Canceled, "context.DeadlineExceeded": context.DeadlineExceeded,
	} {
		if errors.Is(err, known) && errors.Is(known, err) { // just this one, and not what wraps it
			return name
		}
	}
	return fmt.Sprintf("%q", err)
}

// typeName names v's type, and says where v is nil.
func typeName(v any) string {
	switch {
	case v == nil:
		return "nil"
	case missing(v):
		return fmt.Sprintf("a nil %T", v)
	}
	return fmt.Sprintf("%T", v)
}

// shortest is how much of a text is shown whole.
const shortest = 160

// headOf is the beginning of a text.
func headOf(s string) string {
	if len(s) <= shortest {
		return s
	}
	return s[:shortest] + "…"
}

// short shows text so that every byte can be told; of a long one the beginning.
func short(s string) string {
	if len(s) <= shortest {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q… (%d bytes)", s[:shortest], len(s))
}
