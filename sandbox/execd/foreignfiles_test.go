package execd_test

import (
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/internal/quirk"
	"github.com/astrabox/astrabox/test/machine"
)

// Some of the paths of these tests are hostile, and they run as root.
func TestMain(m *testing.M) {
	machine.ReadOnly()
	os.Exit(m.Run())
}

// An account with a group of the same name that every machine has.
const (
	someone  = "daemon"
	someones = 1
)

// box.files is a files face over a foreign execd, with a directory to work in.
func (b *box) files() (sandbox.Files, string) {
	b.t.Helper()
	dir := filepath.Join(b.tmp, "work")
	must(b.t, os.Mkdir(dir, 0o755))
	b.t.Cleanup(func() {
		if left, _ := filepath.Glob(b.dir + "/files-*"); len(left) > 0 {
			b.t.Errorf("left behind: %v, the first with %v", left, names(b.t, left[0]))
		}
	})
	return execd.Files(b.conn), dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o644))
}

func get(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

func names(t testing.TB, dir string) (out []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

func read(t testing.TB, f sandbox.Files, path string, offset, length int64) string {
	t.Helper()
	r, err := f.Open(ctx(t), path, offset, length)
	must(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	must(t, err)
	return string(b)
}

func write(t testing.TB, f sandbox.Files, path, content string, o sandbox.WriteOptions) error {
	t.Helper()
	return f.Write(ctx(t), path, strings.NewReader(content), o)
}

// paths lists a sequence below dir.
func paths(t testing.TB, dir string, seq iter.Seq2[sandbox.FileInfo, error], err error) []string {
	t.Helper()
	must(t, err)
	out := []string{}
	for i, err := range seq {
		must(t, err)
		out = append(out, strings.TrimPrefix(i.Path, dir))
	}
	return out
}

// isRefused checks an error's class, and its cause where one is given.
func isRefused(t testing.TB, what string, err error, targets ...error) {
	t.Helper()
	var pe *sandbox.PathError
	if !errors.As(err, &pe) || errors.Is(err, sandbox.ErrUnreachable) {
		t.Errorf("%s: %v is no refusal", what, err)
		return
	}
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("%s: %v isn't %v", what, err, target)
		}
	}
}

// shells are those that the scripts must run under: with GNU's programs or with busybox.
func shells(t *testing.T, run func(t *testing.T, shell, path string)) {
	t.Helper()
	for _, name := range []string{"bash", "dash"} {
		shell, err := exec.LookPath(name)
		if err != nil {
			machine.Missing(t, "no %s: %v", name, err)
		}
		t.Run(name, func(t *testing.T) { run(t, shell, "") })
	}
	t.Run("busybox", func(t *testing.T) {
		busybox, err := exec.LookPath("busybox")
		if err != nil {
			machine.Missing(t, "no busybox: %v", err)
		}
		dir := t.TempDir()
		must(t, os.Chmod(filepath.Dir(dir), 0o755))
		list, err := exec.Command(busybox, "--list").Output()
		must(t, err)
		for name := range strings.FieldsSeq(string(list)) {
			must(t, os.Symlink(busybox, filepath.Join(dir, name)))
		}
		run(t, filepath.Join(dir, "sh"), dir)
	})
}

// allBytes is a name with every byte that a name can have.
func allBytes() string {
	b := []byte("-")
	for c := 1; c < 256; c++ {
		if c != '/' {
			b = append(b, byte(c))
		}
	}
	return string(b)
}

var awkward = []string{
	"plain", "a b", "$HOME", "k$1", "pr$1ce", "${}", "$$", "~", "~root", "p%41%2e", "q?x=1&path=%2Fetc#f;y", "new\nline", "ends\n", "-rf", `back\slash`,
	"ünï", "bad\xff\xfe.bin", "*", "\"'`", "...", "\nx", "a|b", "x\n", strings.Repeat("n", 255), allBytes()[:250],
}

// few are the kinds of name that take different ways.
var few = []string{"plain", "k$1", "bad\xff\n"}

// tour is every operation, with names of every kind.
func tour(t *testing.T, f sandbox.Files, dir string, used ...string) {
	t.Helper()
	for _, name := range used {
		path, content := dir+"/"+name, "content of "+name+"\r\n\x00\xff"
		mode := fs.FileMode(0o751) | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky
		must(t, write(t, f, path, content, sandbox.WriteOptions{Attr: sandbox.Attr{Mode: &mode, Owner: someone, Group: someone}}))
		if got := get(t, path); got != content {
			t.Errorf("%q holds %q", name, got)
		}
		i, err := f.Stat(ctx(t), path)
		must(t, err)
		if i.Version == "" || time.Since(i.ModTime) > time.Hour || time.Since(i.ModTime) < -time.Minute {
			t.Errorf("version %q, time %v", i.Version, i.ModTime)
		}
		i.Version, i.ModTime = "", time.Time{}
		if diff := cmp.Diff(sandbox.FileInfo{Path: path, Size: int64(len(content)), Mode: mode, Owner: someone, Group: someone}, i); diff != "" {
			t.Errorf("%q: %s", name, diff)
		}
		if got := read(t, f, path, 0, -1); got != content {
			t.Errorf("%q: read %q", name, got)
		}
		must(t, f.Rename(ctx(t), path, dir+"/moved $x"))
		must(t, sandbox.Move(ctx(t), f, dir+"/moved $x", path))
		must(t, f.SetAttr(ctx(t), path, sandbox.Attr{Mode: sandbox.Mode(0)}))
	}
	seq, err := f.List(ctx(t), dir, 1)
	got := paths(t, dir+"/", seq, err)
	if diff := cmp.Diff(slices.Sorted(slices.Values(used)), got); diff != "" {
		t.Error(diff)
	}
	for i := range used {
		got[i] = dir + "/" + used[i]
	}
	must(t, f.Remove(ctx(t), got...))
	must(t, f.MakeDir(ctx(t), dir+"/d$1/e\xff/f", sandbox.DirOptions{Parents: true, Attr: sandbox.Attr{Mode: sandbox.Mode(0o2750&^0o2000 | fs.ModeSetgid), Owner: someone}}))
	must(t, os.Symlink("e\xff/\n", dir+"/d$1/link"))
	seq, err = f.Search(ctx(t), dir, "{e,l}*")
	for i, err := range seq {
		must(t, err)
		if i.Name() == "link" && i.Target != "e\xff/\n" || i.Name() != "link" && (i.Mode != fs.ModeDir|fs.ModeSetgid|0o750 || i.Owner != someone || i.Group != "root") {
			t.Errorf("found %+v", i)
		}
	}
	if got := paths(t, dir, seq, err); !slices.Equal(got, []string{"/d$1/e\xff", "/d$1/link"}) {
		t.Errorf("found %q", got)
	}
	if i, err := f.Stat(ctx(t), dir+"/d$1/link"); err != nil || i.Target != "e\xff/\n" || i.Mode.Type() != fs.ModeSymlink {
		t.Errorf("the link: %+v, %v", i, err)
	}
	must(t, f.RemoveAll(ctx(t), dir+"/d$1"))
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

func TestForeignFilesTour(t *testing.T) {
	shells(t, func(t *testing.T, shell, path string) {
		b := foreign(t, quirk.Harmless...)
		b.s.Shell, b.s.Path = shell, path
		f, dir := b.files()
		tour(t, f, dir, awkward...)
		must(t, os.Mkdir(dir+"/$root\xff", 0o755))
		tour(t, f.Beneath(dir).Beneath(dir+"/$root\xff/"), dir+"/$root\xff", few...)
	})
}

// With each fault of files and of the scripts' streams alone, and with none,
// everything works.
func TestForeignFilesEveryFaultAlone(t *testing.T) {
	for _, fault := range []quirk.Fault{
		0, quirk.DataLines, quirk.LateEnd, quirk.NoInit, quirk.KeepRunning, quirk.LossyLines, quirk.OddErrors, quirk.Expands, quirk.PlainBits,
		quirk.KeepsDest, quirk.InPlace, quirk.OddBodies, quirk.LinkLies, quirk.ListFails, quirk.NamesOnly, quirk.BothNames,
	} {
		t.Run(quirk.Faults[fault], func(t *testing.T) {
			f, dir := foreign(t, fault).files()
			tour(t, f, dir, few[1:]...)
		})
	}
}

// The bits and owners that a write gives, as our own daemon gives them.
func TestForeignWriteAttr(t *testing.T) {
	mode := sandbox.Mode
	b := foreign(t, quirk.Harmless...)
	f, dir := b.files()
	for _, tt := range []struct {
		name         string
		bits         uint32 // of an existing file of someone; 0: none
		o            sandbox.Attr
		mode         fs.FileMode
		owner, group string
	}{
		{name: "new", mode: 0o644, owner: "root", group: "root"},
		{name: "new secret", o: sandbox.Attr{Mode: mode(0o600), Owner: someone}, mode: 0o600, owner: someone, group: "root"},
		{name: "mode 0", o: sandbox.Attr{Mode: mode(0)}, mode: 0, owner: "root", group: "root"},
		{name: "special", o: sandbox.Attr{Mode: mode(0o755 | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky), Owner: someone, Group: someone},
			mode: 0o755 | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky, owner: someone, group: someone},
		{name: "kept", bits: 0o2640, mode: 0o640 | fs.ModeSetgid, owner: someone, group: someone},
		{name: "mode only", bits: 0o640, o: sandbox.Attr{Mode: mode(0o600)}, mode: 0o600, owner: someone, group: someone},
		{name: "owner drops setuid", bits: 0o4755, o: sandbox.Attr{Owner: "root"}, mode: 0o755, owner: "root", group: someone},
		{name: "number without a name", o: sandbox.Attr{Owner: "42424242", Group: "42424243"}, mode: 0o644, owner: "42424242", group: "42424243"},
	} {
		for what, set := range map[string]func(path string) error{
			"write": func(path string) error { return write(t, f, path, "new", sandbox.WriteOptions{Attr: tt.o}) },
			"setattr": func(path string) error {
				if tt.bits == 0 {
					put(t, path, "new")
				}
				return f.SetAttr(ctx(t), path, tt.o)
			},
		} {
			path := dir + "/" + what + tt.name
			if tt.bits != 0 {
				put(t, path, "new")
				must(t, os.Chown(path, someones, someones))
				must(t, unix.Chmod(path, tt.bits))
			}
			must(t, set(path))
			i, err := f.Stat(ctx(t), path)
			must(t, err)
			if i.Mode != tt.mode || i.Owner != tt.owner || i.Group != tt.group || get(t, path) != "new" {
				t.Errorf("%s, %s: got %v %s:%s, want %v %s:%s", what, tt.name, i.Mode, i.Owner, i.Group, tt.mode, tt.owner, tt.group)
			}
		}
	}
}

// What is refused changes nothing and leaves nothing.
func TestForeignRefusals(t *testing.T) {
	shells(t, func(t *testing.T, shell, searched string) {
		b := foreign(t, quirk.Harmless...)
		b.s.Shell, b.s.Path = shell, searched
		f, dir := b.files()
		path := dir + "/f"
		put(t, path, "old")
		must(t, os.MkdirAll(dir+"/full/x", 0o755))
		must(t, os.Mkdir(dir+"/empty", 0o755))
		must(t, unix.Mkfifo(dir+"/fifo", 0o600))
		must(t, os.Symlink("fifo", dir+"/tofifo"))
		must(t, os.Symlink("loop", dir+"/loop"))
		must(t, os.Symlink("missing/x", dir+"/dangling"))
		before, err := f.Stat(ctx(t), path)
		must(t, err)
		change := func(path string, o sandbox.WriteOptions) error { return write(t, f, path, "new", o) }
		no, missing := sandbox.ErrPathRejected, sandbox.ErrPathNotFound
		for what, c := range map[string]struct {
			err     error
			targets []error
		}{
			"unknown owner":         {change(path, sandbox.WriteOptions{Attr: sandbox.Attr{Owner: "nobody-here"}}), []error{no, syscall.EINVAL}},
			"unknown group":         {change(path, sandbox.WriteOptions{Attr: sandbox.Attr{Group: "nobody:here\n"}}), []error{no, syscall.EINVAL}},
			"too large an id":       {change(path, sandbox.WriteOptions{Attr: sandbox.Attr{Owner: "4294967295"}}), []error{no}},
			"raw bits":              {change(path, sandbox.WriteOptions{Attr: sandbox.Attr{Mode: sandbox.Mode(0o4755)}}), []error{no}},
			"exists":                {change(path, sandbox.WriteOptions{NoReplace: true}), []error{no, fs.ErrExist}},
			"a link exists":         {change(dir+"/dangling", sandbox.WriteOptions{NoReplace: true}), []error{no, fs.ErrExist}},
			"changed":               {change(path, sandbox.WriteOptions{IfUnchanged: "another"}), []error{no, sandbox.ErrChanged}},
			"gone":                  {change(dir+"/gone", sandbox.WriteOptions{IfUnchanged: before.Version}), []error{no, sandbox.ErrChanged}},
			"no directory":          {change(dir+"/missing/f", sandbox.WriteOptions{}), []error{missing, fs.ErrNotExist}},
			"a link to nowhere":     {change(dir+"/dangling", sandbox.WriteOptions{}), []error{missing}},
			"below a file":          {change(path+"/f", sandbox.WriteOptions{}), []error{no, syscall.ENOTDIR}},
			"a directory":           {change(dir+"/full", sandbox.WriteOptions{}), []error{no, syscall.EISDIR}},
			"a slash":               {change(path+"/", sandbox.WriteOptions{}), []error{no, syscall.EISDIR}},
			"a FIFO":                {change(dir+"/fifo", sandbox.WriteOptions{}), []error{no, syscall.ENODEV}},
			"a loop":                {change(dir+"/loop", sandbox.WriteOptions{}), []error{no, syscall.EINVAL}},
			"a long name":           {change(dir+"/"+strings.Repeat("n", 256), sandbox.WriteOptions{}), []error{no}},
			"a device":              {change("/dev/null", sandbox.WriteOptions{}), []error{no, syscall.ENODEV}},
			"setattr of an unknown": {f.SetAttr(ctx(t), path, sandbox.Attr{Mode: sandbox.Mode(0), Owner: "nobody-here"}), []error{no}},
			"setattr of nothing":    {f.SetAttr(ctx(t), dir+"/dangling", sandbox.Attr{Mode: sandbox.Mode(0)}), []error{missing}},
			"mkdir of a file":       {f.MakeDir(ctx(t), path, sandbox.DirOptions{}), []error{no, fs.ErrExist}},
			"mkdir again":           {f.MakeDir(ctx(t), dir+"/empty/", sandbox.DirOptions{}), []error{no, fs.ErrExist}},
			"mkdir in nothing":      {f.MakeDir(ctx(t), dir+"/x/y", sandbox.DirOptions{}), []error{missing}},
			"mkdir below a file":    {f.MakeDir(ctx(t), path+"/x/y", sandbox.DirOptions{Parents: true}), []error{no, syscall.ENOTDIR}},
			"rename of nothing":     {f.Rename(ctx(t), dir+"/missing", path), []error{missing}},
			"rename to a full one":  {f.Rename(ctx(t), dir+"/empty", dir+"/full"), []error{no, syscall.ENOTEMPTY}},
			"rename into itself":    {f.Rename(ctx(t), dir+"/full", dir+"/full/x/y"), []error{no, syscall.EINVAL}},
			"rename over a file":    {f.Rename(ctx(t), dir+"/empty", path), []error{no, syscall.ENOTDIR}},
			"rename of a file":      {f.Rename(ctx(t), path, dir+"/empty"), []error{no, syscall.EISDIR}},
			"rename to a slash":     {f.Rename(ctx(t), path, dir+"/c/"), []error{no, syscall.ENOTDIR}},
			"rename into nothing":   {f.Rename(ctx(t), path, dir+"/missing/x"), []error{missing}},
			"rename to a mount":     {f.Rename(ctx(t), path, tmpfs(t)+"/x"), []error{no, syscall.EXDEV}},
			"move to what is there": {sandbox.Move(ctx(t), f, path, dir+"/empty"), []error{no, fs.ErrExist}},
			"move to itself":        {sandbox.Move(ctx(t), f, path, path), []error{no, fs.ErrExist}},
			"remove of a full one":  {f.Remove(ctx(t), dir+"/missing", dir+"/missing/too", path+"/x", dir+"/full", path), []error{no, syscall.ENOTEMPTY}},
			"remove of a dot":       {f.RemoveAll(ctx(t), dir+"/."), []error{no, syscall.EINVAL}},
			"remove of dots":        {f.RemoveAll(ctx(t), dir+"/full/.."), []error{no, syscall.EINVAL}},
			"remove with a slash":   {f.RemoveAll(ctx(t), path+"/"), []error{no, syscall.ENOTDIR}},
			"list of a file":        {second(f.List(ctx(t), path, 1)), []error{no, syscall.ENOTDIR}},
			"list of nothing":       {second(f.List(ctx(t), dir+"/missing", 1)), []error{missing}},
			"list of minus one":     {second(f.List(ctx(t), dir, -1)), []error{no}},
			"a bad pattern":         {second(f.Search(ctx(t), dir, "[")), []error{no}},
			"many patterns":         {second(f.Search(ctx(t), dir, strings.Repeat("{a,b}", 20))), []error{no}},
			"open of a directory":   {second(f.Open(ctx(t), dir, 0, -1)), []error{no, syscall.EISDIR}},
			"open of a FIFO":        {second(f.Open(ctx(t), dir+"/tofifo", 0, -1)), []error{no, syscall.ENODEV}},
			"open of a device":      {second(f.Open(ctx(t), "/dev/zero", 0, -1)), []error{no, syscall.ENODEV}},
			"open of nothing":       {second(f.Open(ctx(t), dir+"/dangling", 0, 0)), []error{missing}},
			"open from before":      {second(f.Open(ctx(t), path, -1, 5)), []error{no}},
			"open of a loop":        {second(f.Open(ctx(t), dir+"/loop", 0, -1)), []error{no, syscall.EINVAL}},
			"stat below a file":     {second(f.Stat(ctx(t), path+"/x")), []error{no, syscall.ENOTDIR}},
			"stat of nothing":       {second(f.Stat(ctx(t), dir+"/missing: Not a directory")), []error{missing}},
		} {
			isRefused(t, what, c.err, c.targets...)
			if what == "remove of a full one" {
				var pe *sandbox.PathError
				if !errors.As(c.err, &pe) || pe.Path != dir+"/full" {
					t.Errorf("it doesn't name the path: %v", c.err)
				}
			}
		}
		for _, bad := range []string{"", "relative", "./x", "~/x", "$HOME/x", "/nul\x00x", "/" + strings.Repeat("x/", 2048)} {
			isRefused(t, bad, change(bad, sandbox.WriteOptions{}), no)
			isRefused(t, bad, second(f.Stat(ctx(t), bad)), no)
			isRefused(t, bad, f.Remove(ctx(t), path, bad), no)
		}
		after, err := f.Stat(ctx(t), path)
		must(t, err)
		if diff := cmp.Diff(before, after); diff != "" {
			t.Error(diff)
		}
		if got := names(t, dir); !slices.Equal(got, []string{"dangling", "empty", "f", "fifo", "full", "loop", "tofifo"}) {
			t.Errorf("left: %v", got)
		}
		must(t, change(path, sandbox.WriteOptions{IfUnchanged: before.Version}))
		isRefused(t, "changed meanwhile", change(path, sandbox.WriteOptions{IfUnchanged: before.Version}), sandbox.ErrChanged)
		must(t, change(dir+"/new", sandbox.WriteOptions{NoReplace: true}))
		must(t, f.Rename(ctx(t), path, path))
		must(t, f.Remove(ctx(t)))
		must(t, f.RemoveAll(ctx(t), dir+"/full/"))
		must(t, f.Remove(ctx(t), dir+"/dangling", dir+"/loop", dir+"/tofifo", dir+"/empty/"))
		if got := names(t, dir); !slices.Equal(got, []string{"f", "fifo", "new"}) {
			t.Errorf("left: %v", got)
		}
	})
}

func second[T any](_ T, err error) error { return err }

// tmpfs mounts a file system for the test.
func tmpfs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		machine.Missing(t, "no tmpfs can be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestForeignOpen(t *testing.T) {
	shells(t, func(t *testing.T, shell, searched string) {
		b := foreign(t, quirk.Harmless...)
		b.s.Shell, b.s.Path = shell, searched
		f, dir := b.files()
		put(t, dir+"/f", "0123456789")
		put(t, dir+"/$1", "0123456789")
		put(t, dir+"/empty", "")
		must(t, os.Symlink("$1", dir+"/link"))
		for _, name := range []string{"/f", "/$1", "/link"} {
			for _, tt := range []struct {
				offset, length int64
				want           string
			}{
				{0, -1, "0123456789"}, {3, -1, "3456789"}, {3, 4, "3456"}, {8, 100, "89"},
				{10, -1, ""}, {11, 5, ""}, {0, 0, ""}, {1, 1<<63 - 1, "123456789"}, {9, 1, "9"},
			} {
				if got := read(t, f, dir+name, tt.offset, tt.length); got != tt.want {
					t.Errorf("%s %d %d: %q", name, tt.offset, tt.length, got)
				}
			}
		}
		if got := read(t, f, dir+"/empty", 0, -1) + read(t, f, dir+"/empty", 5, 1); got != "" {
			t.Errorf("an empty file has %q", got)
		}
		whole := get(t, "/proc/version")
		if got := read(t, f, "/proc/version", 0, -1); got != whole {
			t.Errorf("/proc/version: %q", got)
		}
		if got := read(t, f, "/proc/version", 6, 7); got != whole[6:13] {
			t.Errorf("part of /proc/version: %q", got)
		}
		if got := read(t, f, "/sys/kernel/mm/transparent_hugepage/enabled", 0, -1); got != get(t, "/sys/kernel/mm/transparent_hugepage/enabled") {
			t.Errorf("a file of /sys: %q", got)
		}
	})
}
