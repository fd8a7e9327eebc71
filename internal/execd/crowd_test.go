package execd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	client "github.com/astrabox/astrabox/sandbox/execd"
)

// crowdTime is how long a crowd does what it likes.
const crowdTime = 2 * time.Second

// Whatever many clients do to the same few processes and sessions at once, each
// gets an answer of its own kind, and nothing is left (which start checks).
func TestCrowd(t *testing.T) {
	d := start(t)
	end, cancel := context.WithTimeout(t.Context(), crowdTime)
	defer cancel()
	var ids sync.Map // key to id
	p := client.Processes(d.conn)
	expected := []error{
		sandbox.ErrProcessHeld, sandbox.ErrProcessNotFound, sandbox.ErrDisplaced, sandbox.ErrUnreachable, context.DeadlineExceeded,
	}
	check := func(what string, err error) {
		for _, e := range expected {
			if err == nil || errors.Is(err, e) || sandbox.CodeOf(err) != "" {
				return
			}
		}
		t.Errorf("%s: %v", what, err)
	}
	process := func() {
		key := fmt.Sprint("process ", rand.IntN(3))
		var tty *sandbox.Size
		if rand.IntN(2) == 0 {
			tty = &sandbox.Size{Cols: 80, Rows: 24}
		}
		id, err := p.Start(end, sandbox.ProcessSpec{Key: key, Line: "trap 'exit 3' TERM; while read -r x; do echo $x; echo e >&2; done", TTY: tty, Buffer: 4 << 10})
		if check("Start", err); err != nil {
			return
		}
		ids.Store(key, id)
		if rand.IntN(6) == 0 {
			check("Delete", p.Delete(end, id))
			return
		}
		a, err := p.Attach(end, id, sandbox.AttachOptions{Takeover: rand.IntN(2) == 0, NoStart: rand.IntN(4) == 0, ReadOnly: rand.IntN(4) == 0})
		if check("Attach", err); err != nil {
			return
		}
		var both sync.WaitGroup
		both.Go(func() {
			for range rand.IntN(20) {
				if _, err := a.Recv(end); err != nil {
					return
				}
			}
			a.Close()
		})
		for range rand.IntN(10) {
			switch rand.IntN(5) {
			case 0:
				_ = a.Signal(end, []string{"SIGINT", "SIGTERM", "SIGKILL"}[rand.IntN(3)])
			case 1:
				_ = a.Resize(end, sandbox.Size{Cols: 100, Rows: 30})
			case 2:
				_ = a.CloseStdin(end)
			default:
				_ = a.Send(end, []byte("some words\n"))
			}
		}
		if rand.IntN(2) == 0 {
			a.Close()
		}
		both.Wait()
		a.Close() // again
	}
	session := func() {
		resp := post(t, d, "/session", "", nil)
		resp.Body.Close()
		id := newSession(t, d, "")
		var both sync.WaitGroup
		for range 3 {
			both.Go(func() {
				resp := post(t, d, "/session/"+id+"/run", `{"command":"sleep 0.01; exit 3","timeout":1000}`, nil)
				if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNotFound {
					t.Errorf("a run: %d", resp.StatusCode)
				}
			})
		}
		both.Go(func() {
			if resp, body := get(t, d, "DELETE", "/session/"+id); resp.StatusCode != http.StatusOK {
				t.Errorf("DELETE: %d %s", resp.StatusCode, body)
			}
		})
		both.Wait()
	}
	var crowd sync.WaitGroup
	for range 6 {
		crowd.Go(func() {
			for end.Err() == nil {
				process()
			}
		})
	}
	crowd.Go(func() {
		for end.Err() == nil {
			session()
		}
	})
	crowd.Wait()
	// Nobody is stuck: each process is still to be had, or gone.
	ids.Range(func(_, id any) bool {
		a, err := p.Attach(ctx(t), id.(string), sandbox.AttachOptions{Takeover: true})
		if err == nil {
			a.Close()
		} else if !errors.Is(err, sandbox.ErrProcessNotFound) {
			t.Errorf("afterwards: %v", err)
		}
		if err := p.Delete(ctx(t), id.(string)); err != nil {
			t.Errorf("Delete: %v", err)
		}
		return true
	})
}
