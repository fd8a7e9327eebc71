package execd

import (
	"errors"
	"io/fs"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
)

// A script's last line is its reason; a name in it, whatever it says, isn't.
func TestRefusalOf(t *testing.T) {
	for out, want := range map[string]error{
		"stat: cannot statx './x': No such file or directory\n":                         fs.ErrNotExist,
		"mv: can't rename '/x: File exists': No such file or directory":                 fs.ErrNotExist,
		"sh: 3: cannot open ./No such file or directory: Permission denied":             fs.ErrPermission,
		"a\nb\nln: failed to create hard link './b': File exists\n\n":                   fs.ErrExist,
		"mv: cannot move './new' to a subdirectory of itself, './new/new'":              syscall.EINVAL,
		"mv: cannot overwrite non-directory './b' with directory './a'":                 syscall.ENOTDIR,
		"mv: './empty' is a directory":                                                  syscall.EISDIR,
		"open /run/x/f: no space left on device":                                        syscall.ENOSPC,
		"rm: cannot remove './x\n: No such file or directory': Device or resource busy": syscall.EIO,
		"rmdir: './x': Filename too long":                                               syscall.EINVAL,
		"the file has changed":                                                          sandbox.ErrChanged,
		"mkdir: not found":                                                              sandbox.ErrUnsupported,
		"bash: line 7: find: command not found":                                         sandbox.ErrUnsupported,
		"another length arrived than was sent":                                          sandbox.ErrUnreachable,
		"":                                                                              syscall.EIO,
	} {
		if err := refusalOf(out); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", out, err, want)
		}
	}
}

// Every byte of an argument arrives, and nothing of it is a command.
func TestBytesWord(t *testing.T) {
	all := ""
	for c := 1; c < 256; c++ {
		all += string([]byte{byte(c)})
	}
	for _, shell := range []string{"bash", "dash"} {
		for _, arg := range []string{"", "plain", "it's $HOME `id` \"x\"", "\n", "ends\n\n", "x\\n%s%d", all, strings.Repeat(all, 16), "-n", "\x81\x82\x88"} {
			cmd := exec.Command(shell, "-c", "set --\n"+bytesWord(arg)+bytesWord("next")+`printf '%s\0%s' "$1" "$2"`)
			cmd.Env = []string{"PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8"}
			if out, err := cmd.Output(); err != nil || string(out) != arg+"\x00next" {
				t.Errorf("%s: %.40q became %.60q, %v", shell, arg, out, err)
			}
		}
	}
}

// A listing that was cut off, or isn't one, is never taken for a shorter one.
func TestParseListing(t *testing.T) {
	const stat = "81a4 3 0 0 7 1|root|root|2026-01-02 03:04:05.678900000 +0000|2026-01-02 03:04:05.000000000 +0000|"
	const link = "a1ff 3 0 0 8 1|UNKNOWN||2026-01-02 03:04:05 +0000|z|"
	whole := stat + "./a.d//\n" + stat + "./a/x\n//\n" + stat + "./a//\n" + link + "./a/l|//\n\x00./a/l|\x00to\n\x00end"
	l, err := parseListing("/d", []byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	l.each(func(string) bool { return true }, func(i sandbox.FileInfo, err error) bool {
		if err != nil {
			t.Error(err)
		}
		got = append(got, i.Path+" "+i.Owner+" "+i.Group+" "+i.Target)
		return true
	})
	if diff := cmp.Diff([]string{"/d/a root root ", "/d/a/l| 0 0 to\n", "/d/a/x\n root root ", "/d/a.d root root "}, got); diff != "" {
		t.Error(diff)
	}
	for n := range len(whole) {
		if _, err := parseListing("/d", []byte(whole[:n])); !errors.Is(err, sandbox.ErrUnreachable) {
			t.Errorf("the first %d bytes were taken: %v", n, err)
		}
	}
	for _, bad := range []string{"\x00x\x00end", "x//\n\x00end", "a|b|c|d|e//\n\x00end", "\x00./a\x00to\x00./b\x00end"} {
		if _, err := parseListing("/d", []byte(bad)); !errors.Is(err, sandbox.ErrUnreachable) {
			t.Errorf("%q was taken: %v", bad, err)
		}
	}
}

func FuzzParseListing(f *testing.F) {
	f.Add([]byte("81a4 3 0 0 7 1|r|r|2026-01-02 03:04:05 +0000|z|./a//\n\x00./a\x00t\x00end"))
	f.Add([]byte("\x00end"))
	f.Fuzz(func(_ *testing.T, b []byte) {
		if l, err := parseListing("/d", b); err == nil {
			l.each(func(string) bool { return true }, func(sandbox.FileInfo, error) bool { return true })
		}
	})
}
