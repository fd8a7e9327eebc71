package child

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/internal/execd/confine"
	"github.com/astrabox/astrabox/test/machine"
)

// Every child of a restricted Reaper lacks what was given up, however many
// start at a time; one with namespaces of its own has it, and so has the process.
func TestRestrict(t *testing.T) {
	machine.NeedRoot(t)
	defer goleak.VerifyNone(t)
	r := NewReaper(false)
	defer r.Close()
	if err := r.Restrict(func() error { return confine.Thread(^confine.Mounting, confine.NoMounting()) }); err != nil {
		t.Fatal(err)
	}
	bounding := func(apart uintptr) string {
		in, out, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		c, err := r.Start(Spec{
			Path: "/bin/sh", Args: []string{"sh", "-c", "grep -E '^(CapBnd|Seccomp:)' /proc/self/status; exit 7"},
			Dir: "/", Files: []int{int(in.Fd()), int(out.Fd()), int(out.Fd())}, Apart: apart,
		})
		out.Close()
		if err != nil {
			t.Error(err)
			return ""
		}
		b := make([]byte, 1000)
		n := 0
		for {
			m, err := in.Read(b[n:])
			n += m
			if err != nil {
				break
			}
		}
		<-c.Done()
		if c.Exit().Code != 7 {
			t.Errorf("exit %+v", c.Exit())
		}
		return strings.Join(strings.Fields(string(b[:n])), " ")
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 5 {
				got := strings.Fields(bounding(0))
				if len(got) != 4 || got[3] != "2" {
					t.Errorf("a child has %q", got)
					continue
				}
				if caps := parseHex(got[1]); caps&confine.Mounting != 0 || caps == 0 {
					t.Errorf("a child has capabilities %x", caps)
				}
			}
		})
	}
	all.Wait()
	if got := strings.Fields(bounding(unix.CLONE_NEWUTS)); len(got) != 4 || parseHex(got[1])&confine.Mounting != confine.Mounting {
		t.Errorf("one with namespaces has %q", got)
	}
	if n := r.workers.Load(); n < 1 || n > maxForks {
		t.Errorf("%d threads", n)
	}
}

func parseHex(s string) (c confine.Caps) {
	for _, d := range s {
		c = c<<4 | confine.Caps(strings.IndexRune("0123456789abcdef", d))
	}
	return c
}

func TestRestrictThatFails(t *testing.T) {
	defer goleak.VerifyNone(t)
	r := NewReaper(false)
	defer r.Close()
	no := errors.New("no")
	if err := r.Restrict(func() error { return no }); !errors.Is(err, no) {
		t.Errorf("Restrict: %v", err)
	}
	c, err := r.Start(Spec{Path: "/bin/true", Args: []string{"true"}, Dir: "/", Files: []int{0, 1, 2}})
	if !errors.Is(err, no) {
		t.Errorf("Start: %v, %v", c, err)
	}
}
