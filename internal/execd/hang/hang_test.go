package hang

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// What comes in time is given, what comes later is dropped, and so many at a
// time may not come.
func TestDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer func(was chan struct{}) { places = was }(places)
		places = make(chan struct{}, Max) // of the test's own time
		boom := errors.New("boom")
		if v, err := Do(t.Context(), func() (int, error) { return 7, boom }, nil); v != 7 || !errors.Is(err, boom) {
			t.Errorf("%d, %v", v, err)
		}
		release := make(chan struct{})
		var dropped []int
		late := func() (int, error) { <-release; return 8, nil }
		drop := func(v int) { dropped = append(dropped, v) }
		begun := time.Now()
		if _, err := do(t.Context(), time.Second, late, drop); !errors.Is(err, ErrSilent) || time.Since(begun) != time.Second {
			t.Errorf("%v after %v", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := do(ctx, time.Second, late, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("given up: %v", err)
		}
		for range Max - 2 {
			go do(t.Context(), time.Hour, late, nil) //nolint:errcheck // it hangs
		}
		synctest.Wait()
		begun = time.Now()
		if _, err := Do(t.Context(), late, nil); !errors.Is(err, ErrMany) || time.Since(begun) != beginTime {
			t.Errorf("one more: %v after %v", err, time.Since(begun))
		}
		close(release)
		synctest.Wait()
		if len(dropped) != 1 || dropped[0] != 8 {
			t.Errorf("dropped %v", dropped)
		}
		if _, err := Do(t.Context(), late, nil); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

// Whatever is named as a program, looking at it ends, and executes nothing.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"loop": "#!loop\n", "empty": "", "nothing": "#!\n", "long": "#!" + string(make([]byte, 1000)), "real": "#!/bin/sh\nexit 1\n"} {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		Program(name, dir)
	}
	for _, path := range []string{"/bin/true", "/none", dir, "/dev/zero", "/proc/self/exe"} {
		Program(path, dir)
	}
}

// A program that has just answered isn't looked at again, unless the interpreter
// that it names from another directory is another one.
func TestFreshAnswers(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir()}
	script := dirs[0] + "/script"
	if err := os.WriteFile(script, []byte("#!real\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for _, dir := range dirs {
		if err := os.WriteFile(dir+"/real", nil, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.InotifyAddWatch(fd, dir+"/real", unix.IN_OPEN); err != nil {
			t.Fatal(err)
		}
	}
	opens := func() int { // alike and unread ones are told as one
		n, _ := unix.Read(fd, make([]byte, 4096))
		return max(n, 0) / unix.SizeofInotifyEvent
	}
	begun := time.Now()
	for i, want := range []int{1, 0, 1} {
		Program(script, dirs[i/2])
		if got := opens(); got != want && time.Since(begun) < fresh {
			t.Errorf("look %d opened %d interpreters, want %d", i, got, want)
		}
	}
	answered.Store(&answer{script, dirs[1], time.Now().Add(-fresh)})
	if Program(script, dirs[1]); opens() != 1 {
		t.Error("an old answer is taken for one of now")
	}
}

// What the kernel opens next is read as the kernel reads it.
func TestNext(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "#": "", "#!": "", "#!\n/x": "", "#!/x": "/x", "#! \t/x y\n": "/x", "#!/x\ty": "/x", "#!/x\r\n": "/x\r", "#!/x\v\u00a0y\n": "/x\v\u00a0y",
		"#!/x\x00y\n": "/x", "#!\x00/x\n": "", "#!x": "x", "\x7fELF": "", "\x7fELF" + strings.Repeat("\xff", 300): "", "\x7fELF\x02" + strings.Repeat("\xff", 300): "",
		"\x7fELF\x01" + strings.Repeat("\x01", 1<<16): "", "\x7fELF\x02" + strings.Repeat("\x00", 300): "",
	} {
		if got := nextOf(strings.NewReader(text)); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	program, err := elf.Open("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	b, err := program.Section(".interp").Data()
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := nextOf(f); got == "" || got+"\x00" != string(b) {
		t.Errorf("%q instead of %q", got, b)
	}
}

func TestNextOf32Bits(t *testing.T) {
	b := make([]byte, 128)
	copy(b, "\x7fELF\x01")
	order := binary.NativeEndian
	order.PutUint32(b[28:], 64) // the table
	order.PutUint16(b[44:], 1)
	order.PutUint32(b[64:], loader)
	order.PutUint32(b[68:], 100)
	order.PutUint32(b[80:], 3)
	copy(b[100:], "/x")
	if got := nextOf(bytes.NewReader(b)); got != "/x" {
		t.Errorf("%q", got)
	}
}

func FuzzNext(f *testing.F) {
	f.Add([]byte("#!/bin/sh\n"))
	f.Fuzz(func(_ *testing.T, b []byte) { nextOf(bytes.NewReader(b)) })
}
