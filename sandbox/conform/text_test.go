package conform

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func TestReadable(t *testing.T) {
	at := time.Date(2026, 5, 4, 3, 2, 1, 987_654_321, time.FixedZone("X", 3600))
	for _, tt := range []struct {
		value any
		want  string
	}{
		{nil, "no error"},
		{error(nil), "no error"},
		{errors.New("broken"), "broken"},
		{fs.FileMode(0o644), "0644"},
		{fs.FileMode(0), "0000"},
		{fs.ModeSetuid | 0o755, "4755"},
		{fs.ModeDir | fs.ModeSticky | fs.ModeSetgid | 0o770, "directory 3770"},
		{fs.ModeSymlink | 0o777, "symlink 0777"},
		{fs.ModeNamedPipe | 0o600, "named pipe 0600"},
		{fs.ModeDevice | fs.ModeCharDevice | 0o666, "special file 0666"},
		{1234567890 * time.Nanosecond, "1.235s"},
		{90 * time.Minute, "1h30m0s"},
		{-123456 * time.Microsecond, "-123ms"},
		{321 * time.Nanosecond, "321ns"},
		{at, "2026-05-04T02:02:01.987Z"},
		{time.Time{}, "none"},
		{[]byte("text"), "text"},
		{[]string{"a", "b"}, "a, b"},
		{[]string(nil), "none"},
		{[]int{3, 6}, "3, 6"},
		{map[string]string{"b": "2", "a": "1"}, "a=1, b=2"},
		{sandbox.FileInfo{Path: "/f", Mode: 0o640, Owner: "root", Group: "adm", Size: 5, ModTime: at, Version: "v"},
			`"/f", 0640 root:adm, 5 bytes, changed at 2026-05-04T02:02:01.987Z, version "v"`},
		{sandbox.FileInfo{Path: "/l", Mode: fs.ModeSymlink | 0o777, Owner: "root", Group: "root", Target: "f"},
			`"/l", symlink 0777 root:root, 0 bytes, changed at none, target "f", version ""`},
		{sandbox.CommandResult{ExitCode: 9, Stdout: []byte("a\n")}, `status 9, stdout "a\n", stderr none`},
		{sandbox.Exit{Code: 137, Signal: "SIGKILL"}, "status 137 with SIGKILL"},
		{sandbox.Exit{Code: 3}, "status 3 without a signal"},
		{sandbox.ProcessStatus{Run: 2, State: sandbox.ProcessExited, Exit: &sandbox.Exit{Code: 1}, Oldest: 4, Next: 9, Stdin: 6},
			"exited, run 2, status 1 without a signal, output held from byte 4 to 9, 6 bytes of stdin"},
		{17, "17"},
	} {
		if got := say("%v", tt.value); got != tt.want {
			t.Errorf("%#v: %q, not %q", tt.value, got, tt.want)
		}
	}
	if got := say("%q", []byte("a\x00")); got != `"a\x00"` {
		t.Errorf("bytes: %s", got)
	}
}

func TestTypeName(t *testing.T) {
	for want, v := range map[string]any{
		"nil":                    nil,
		"a nil *sandbox.Error":   (*sandbox.Error)(nil),
		"*sandbox.Error":         &sandbox.Error{},
		"sandbox.ObservedStatus": sandbox.ObservedOK,
	} {
		if got := typeName(v); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// What stat(1) writes in hexadecimal is shown as people write it.
func TestLookText(t *testing.T) {
	for stat, want := range map[string]string{
		"81a4 5 root root":   "0644 root:root, 5 bytes",
		"89ed 0 root daemon": "4755 root:daemon, 0 bytes",
		"43f8 40 root root":  "directory 1770 root:root, 40 bytes",
		"a1ff 3 root root":   "symlink 0777 root:root, 3 bytes",
		"1180 0 a b":         "named pipe 0600 a:b, 0 bytes",
		"":                   `""`,
		"no such file":       `"no such file"`,
		"zz 5 root root":     `"zz 5 root root"`,
	} {
		if got := lookText(stat, true); got != want {
			t.Errorf("%q: %q, not %q", stat, got, want)
		}
	}
	if got := lookText("41ed 4096 root root", false); got != "directory 0755 root:root" {
		t.Errorf("%q", got)
	}
}

func TestRawText(t *testing.T) {
	for m, want := range map[fs.FileMode]string{
		0o4755: "04755", fs.ModeDir | 0o755: "fs.ModeDir|0755", fs.ModeSymlink | 0o777: "fs.ModeSymlink|0777",
	} {
		if got := rawText(m); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
}

// Of long texts the report shows where they differ.
func TestUnlike(t *testing.T) {
	long := strings.Repeat("0123456789", 30)
	for _, tt := range []struct{ got, want, says string }{
		{"a", "b", `"a"`},
		{long[:200] + "x" + long[201:], long, `300 bytes of 300, and "x12345678901234567890123" where byte 200 should be followed by "012345678901234567890123"`},
		{long[:200], long, `200 bytes of 300, and "" where byte 200 should be followed by "012345678901234567890123"`},
	} {
		if got := unlike(tt.got, tt.want); got != tt.says {
			t.Errorf("%s, not %s", got, tt.says)
		}
	}
}
