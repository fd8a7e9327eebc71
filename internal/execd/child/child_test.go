package child

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/test/machine"
)

// Children that end while others are being started are all reaped, each with
// its own status, whether or not orphans are reaped beside them.
func TestStartsBesideEachOther(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, all := range []bool{false, true} {
		t.Run(fmt.Sprintf("all=%v", all), func(t *testing.T) {
			null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer syscall.Close(null)
			r := NewReaper(all)
			defer r.Close()
			var starters sync.WaitGroup
			for i := range 16 {
				starters.Go(func() {
					for n := range 25 {
						want := (i + n) % 100
						c, err := r.Start(Spec{
							Path: "/bin/sh", Args: []string{"sh", "-c", fmt.Sprintf("exit %d", want)},
							Dir: "/", Files: []int{null, null, null},
						})
						if err != nil {
							t.Error(err)
							return
						}
						select {
						case <-c.Done():
						case <-time.After(20 * time.Second):
							t.Errorf("process %d was never reaped", c.PID)
							return
						}
						if got := c.Exit(); got != (Exit{Code: want}) {
							t.Errorf("process %d ended with %+v, want code %d", c.PID, got, want)
						}
					}
				})
			}
			starters.Wait()
			if len(r.children) != 0 || r.starting != 0 {
				t.Errorf("%d children are registered and %d starting", len(r.children), r.starting)
			}
		})
	}
}

func TestStartAfterStop(t *testing.T) {
	r := NewReaper(false)
	defer r.Close()
	r.Stop()
	if c, err := r.Start(Spec{Path: "/bin/true", Args: []string{"true"}, Dir: "/"}); !errors.Is(err, ErrClosed) {
		t.Errorf("Start: %v, %v, want ErrClosed", c, err)
	}
}

// A child that has ended before it was registered, with no other ending after
// it, is reaped and told all the same.
func TestEndBeforeRegistration(t *testing.T) {
	for _, all := range []bool{false, true} {
		// Without its goroutine, which could come to look later by chance.
		r := &Reaper{all: all, children: map[int]*Child{}, sigs: make(chan os.Signal, 1)}
		if err := r.beginStart(); err != nil {
			t.Fatal(err)
		}
		pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", "exit 7"}, &syscall.ProcAttr{Dir: "/"})
		if err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(20 * time.Second); waiting() != pid; {
			if time.Now().After(end) {
				t.Fatal("it doesn't end")
			}
			<-time.After(time.Millisecond)
		}
		r.reap() // what its signal asks for
		if got := waiting(); got != pid {
			t.Fatalf("all=%v: process %d was reaped before anybody knew whose it is", all, pid)
		}
		c := &Child{PID: pid, r: r, done: make(chan struct{})}
		r.endStart(c, true)
		select {
		case <-r.sigs:
			r.reap()
		default:
			t.Errorf("all=%v: nobody will look", all)
			_, _, _ = wait(pid)
			continue
		}
		if _, ended := <-c.Done(); ended || c.Exit() != (Exit{Code: 7}) {
			t.Errorf("all=%v: %+v", all, c.Exit())
		}
	}
}

// Whatever the daemon does, it does it on other threads than the first and those
// that forked a child, all of which have to be there for signals.
func TestThreadsForSignalsAreFree(t *testing.T) {
	machine.NeedRoot(t)
	null, err := syscall.Open("/dev/null", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(null) })
	r := NewReaper(false)
	t.Cleanup(r.Close)
	var starts sync.WaitGroup
	for i := range 12 {
		starts.Go(func() {
			s := Spec{Path: "/bin/sleep", Args: []string{"sleep", "1000"}, Dir: "/", Files: []int{null, null, null}}
			if i%3 == 0 {
				s.Apart = syscall.CLONE_NEWNS
			}
			c, err := r.Start(s)
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = syscall.Kill(c.PID, syscall.SIGKILL) })
		})
	}
	starts.Wait()
	release := make(chan struct{})
	tids := make(chan int)
	const many = 200
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			runtime.LockOSThread() // so many at a time need as many threads
			defer runtime.UnlockOSThread()
			tids <- unix.Gettid()
			<-release
		})
	}
	for range many {
		tid := <-tids
		if tid == os.Getpid() {
			t.Error("something runs on the first thread")
		}
		if b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", tid)); err != nil || len(b) > 0 {
			t.Errorf("something runs on a thread with the children %q, %v", b, err)
		}
	}
	close(release)
	all.Wait()
}
