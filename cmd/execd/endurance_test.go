package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// countFile makes the program write its number of goroutines there at each SIGUSR2.
const countFile = "EXECD_TEST_GOROUTINES"

// longRun makes the test run a day's worth of commands instead of some.
const longRun = "ASTRABOX_ENDURANCE"

func countGoroutines(path string) {
	os.Unsetenv(countFile)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGUSR2)
	for range asked {
		tmp := path + ".new"
		if err := os.WriteFile(tmp, []byte(strconv.Itoa(runtime.NumGoroutine())), 0o600); err == nil {
			_ = os.Rename(tmp, path)
		}
	}
}

// held is what a daemon holds on to.
type held struct{ RSS, Threads, FDs, Goroutines, Files int }

// TestEndurance runs commands in every form and finds that nothing piles up. In
// the long run the daemon's records of commands, which are bounded, are full
// before the first look. How many of them hold a descriptor, because they were
// in the background, differs a little from time to time.
func TestEndurance(t *testing.T) {
	warm, rest := 300, 900
	slack := held{RSS: 256 << 20, Threads: 8, Goroutines: 8, FDs: 8} // the race detector has memory of its own
	long := os.Getenv(longRun) != ""
	if long {
		warm, rest = 10_000, 100_000
		// The Go runtime keeps a thread for each system call that ever blocked at
		// the same time as others, and a busy machine makes that more of them.
		slack.RSS, slack.FDs, slack.Threads = 4<<20, 160, 24
	}
	tmp, counted := t.TempDir(), filepath.Join(t.TempDir(), "goroutines")
	t.Setenv("TMPDIR", tmp)
	t.Setenv(countFile, counted)
	d := start(t, setup{})
	const clients = 16
	work := func(n int) {
		var next atomic.Int64
		var wg sync.WaitGroup
		for range clients {
			wg.Go(func() {
				for i := next.Add(1); i <= int64(n); i = next.Add(1) {
					if err := d.oneOf(t, int(i), long); err != nil {
						t.Errorf("command %d: %v", i, err)
						return
					}
				}
			})
		}
		wg.Wait()
		client.CloseIdleConnections()
		http.DefaultClient.CloseIdleConnections()
	}
	look := func() held {
		h := held{RSS: d.status("VmRSS") << 10, Threads: d.status("Threads")}
		for path, n := range map[string]*int{fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid): &h.FDs, tmp: &h.Files} {
			entries, err := os.ReadDir(path)
			if err != nil {
				t.Fatal(err)
			}
			*n = len(entries)
		}
		os.Remove(counted)
		d.signal(syscall.SIGUSR2)
		d.until(func() bool {
			b, err := os.ReadFile(counted)
			if err == nil {
				h.Goroutines, err = strconv.Atoi(string(b))
			}
			return err == nil
		})
		return h
	}
	work(warm)
	before := look()
	work(rest)
	var after held
	d.until(func() bool { // connections take a moment to go
		after = look()
		return !t.Failed() && after.FDs <= before.FDs+slack.FDs && after.Goroutines <= before.Goroutines+slack.Goroutines
	})
	t.Logf("before %+v\nafter  %+v", before, after)
	if after.RSS > before.RSS+slack.RSS || after.Threads > before.Threads+slack.Threads || after.Files != before.Files {
		t.Errorf("something piles up (-before +after):\n%s", cmp.Diff(before, after))
	}
}

// oneOf runs one command, in one of the forms.
func (d *daemon) oneOf(t *testing.T, i int, background bool) error {
	want := fmt.Sprintf("out %d\n", i)
	line := fmt.Sprintf("echo out %d", i)
	switch form := i % 8; {
	case form == 0:
		return d.process(t, line, want)
	case form == 1, form == 2 && background:
		return d.oldCommand(t, line, form == 2)
	default:
		res, err := client.Commands(d.conn).Run(t.Context(), sandbox.Command{Line: line})
		if err == nil && (res.ExitCode != 0 || string(res.Stdout) != want) {
			err = fmt.Errorf("%+v", res)
		}
		return err
	}
}

func (d *daemon) process(t *testing.T, line, want string) error {
	p := client.Processes(d.conn)
	id, err := p.Start(t.Context(), sandbox.ProcessSpec{Key: rand.Text(), Line: line})
	if err != nil {
		return err
	}
	a, err := p.Attach(t.Context(), id, sandbox.AttachOptions{})
	if err != nil {
		return err
	}
	defer a.Close()
	var got strings.Builder
	for {
		f, err := a.Recv(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		got.Write(f.Data)
	}
	if got.String() != want {
		return fmt.Errorf("process printed %q", got.String())
	}
	return p.Delete(t.Context(), id)
}

func (d *daemon) oldCommand(t *testing.T, line string, background bool) error {
	body := fmt.Sprintf(`{"command":%q,"background":%t}`, line, background)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.base+"/command", strings.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set(wire.HeaderToken, token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && !strings.Contains(string(b), `{"type":"execution_complete"`) {
		err = fmt.Errorf("%s: %s", resp.Status, b)
	}
	return err
}

// status gives a number of /proc/PID/status.
func (d *daemon) status(name string) int {
	d.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				d.t.Fatal(err)
			}
			return n
		}
	}
	d.t.Fatalf("no %s in the status", name)
	return 0
}

// until waits until f holds.
func (d *daemon) until(f func() bool) {
	d.t.Helper()
	end := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(end) {
			d.t.Fatal("it never came to be")
		}
		<-tick.C
	}
}
