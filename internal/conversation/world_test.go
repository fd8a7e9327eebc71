package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/fleet/fleettest"
	"github.com/astrabox/astrabox/internal/killpoint"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a backend, a database, and the platform process that runs now.
type world struct {
	t       *testing.T
	backend *fleettest.Backend
	caps    sandbox.Capabilities
	config  func(*Config)
	dir     string

	s       *Service
	client  *fleettest.Client
	stop    context.CancelFunc
	done    chan error
	crashed atomic.Bool
	boots   int
}

// inWorld runs f in a synctest bubble with a running platform.
func inWorld(t *testing.T, setup func(*world), f func(t *testing.T, w *world)) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "shellagent"), []byte("not a real program"), 0o755); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, backend: fleettest.New(), caps: fleettest.Caps, dir: dir}
		if setup != nil {
			setup(w)
		}
		w.boot()
		defer func() {
			w.halt()
			w.backend.Close()
			synctest.Wait()
		}()
		f(t, w)
	})
}

func (w *world) boot() {
	w.t.Helper()
	bound, client := w.backend.Bound(w.caps)
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(w.t.Output(), nil))
	}
	c := Config{InstallationID: "inst", DatabasePath: filepath.Join(w.dir, "x.db"), Backends: []*sandbox.Bound{bound}, Log: log,
		AgentBinary: func(agentprogram.Binary) (string, error) { return filepath.Join(w.dir, "shellagent"), nil }}
	if w.config != nil {
		w.config(&c)
	}
	s, err := New(context.Background(), c)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	w.s, w.client, w.stop, w.done = s, client, stop, make(chan error, 1)
	w.crashed.Store(false)
	w.boots++
	go func() { w.done <- s.Run(ctx) }()
}

// halt stops the platform as a clean stop does.
func (w *world) halt() {
	w.t.Helper()
	w.stop()
	if err := <-w.done; err != nil && !w.crashed.Load() {
		w.t.Errorf("Run: %v", err)
	}
	if err := w.s.Close(); err != nil {
		w.t.Errorf("Close: %v", err)
	}
}

// crash ends the platform's process: nothing is stored and nobody is reached
// from here on.
func (w *world) crash() {
	if w.crashed.Swap(true) {
		return
	}
	w.client.Crash()
	_ = w.s.store.Close()
	w.stop()
}

// reboot waits for what is left of a crashed process and starts the next one.
func (w *world) reboot() {
	w.t.Helper()
	w.crash()
	<-w.done
	w.boot()
}

// do runs a client's operation until it succeeds, over crashes.
func (w *world) do(f func(ctx context.Context, s *Service) error) {
	w.t.Helper()
	for try := 0; ; try++ {
		if try == 20 {
			w.t.Fatal("an operation never succeeded")
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		err := errors.New("no answer")
		var wg sync.WaitGroup
		wg.Go(func() { err = f(ctx, w.s) })
		wg.Wait()
		cancel()
		if w.crashed.Load() {
			w.reboot()
			continue
		}
		if err != nil {
			w.t.Fatalf("operation: %v", err)
		}
		return
	}
}

// until waits until cond holds, over crashes.
func (w *world) until(what string, cond func(ctx context.Context, s *Service) (bool, error)) {
	w.t.Helper()
	deadline := time.Now().Add(2 * time.Hour)
	for wait := 20 * time.Millisecond; ; wait = min(wait*5/4, time.Minute) {
		if w.crashed.Load() {
			w.reboot()
		}
		ok, err := cond(context.Background(), w.s)
		if ok && err == nil {
			return
		}
		if err != nil && !w.crashed.Load() {
			w.t.Fatalf("%s: %v", what, err)
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: never", what)
		}
		time.Sleep(wait)
	}
}

func (w *world) create() string {
	w.t.Helper()
	var id string
	key := fmt.Sprintf("create-%p", &id)
	w.do(func(ctx context.Context, s *Service) error {
		c, err := s.CreateConversation(ctx, CreateRequest{Title: "test", IdempotencyKey: key})
		id = c.ID
		return err
	})
	return id
}

func (w *world) send(id, key, text string) model.Turn {
	w.t.Helper()
	var turn model.Turn
	w.do(func(ctx context.Context, s *Service) (err error) {
		turn, err = s.Send(ctx, id, key, text)
		return err
	})
	return turn
}

// settled waits for the end of a turn.
func (w *world) settled(id string, turn model.Turn) model.Turn {
	w.t.Helper()
	w.until("turn "+turn.Text, func(ctx context.Context, s *Service) (bool, error) {
		now, err := s.Turn(ctx, id, turn.ID)
		if err == nil {
			turn = now
		}
		return model.Turns.Final(turn.State), err
	})
	return turn
}

func (w *world) runtimeIs(id string, state model.RuntimeState) model.Conversation {
	w.t.Helper()
	var c model.Conversation
	w.until("runtime "+string(state), func(ctx context.Context, s *Service) (bool, error) {
		var err error
		c, err = s.Get(ctx, id)
		return c.Runtime.State == state, err
	})
	return c
}

func (w *world) events(id string) []model.Event {
	w.t.Helper()
	var all []model.Event
	for {
		page, last, err := w.s.Events(context.Background(), id, int64(len(all)), 1000)
		if err != nil {
			w.t.Fatal(err)
		}
		all = append(all, page...)
		if int64(len(all)) >= last || len(page) == 0 {
			return all
		}
	}
}

// said joins the text (or the output) that a turn showed.
func said(events []model.Event, turnID string) (text string) {
	for _, e := range events {
		if e.TurnID == turnID && (e.Type == agentprogram.EventTextDelta || e.Type == agentprogram.EventToolOutput) {
			var d struct{ Text string }
			_ = json.Unmarshal(e.Data, &d)
			text += d.Text
		}
	}
	return text
}

func chunks(n int) (s string) {
	for i := range n {
		s += fmt.Sprintf("<%d>", i)
	}
	return s
}

// checkJournal checks what holds for every journal: dense numbers, and for each
// turn one acceptance, at most one start and one end, in this order.
func checkJournal(t *testing.T, events []model.Event, turns ...model.Turn) {
	t.Helper()
	counts := map[string]map[string]int{}
	for i, e := range events {
		if e.Seq != int64(i+1) {
			t.Errorf("event %d has number %d", i+1, e.Seq)
		}
		if e.TurnID == "" {
			continue
		}
		c := counts[e.TurnID]
		if c == nil {
			c = map[string]int{}
			counts[e.TurnID] = c
		}
		if c[model.EventTurnEnded] > 0 {
			t.Errorf("%s follows the end of %s", e.Type, e.TurnID)
		}
		c[e.Type]++
	}
	for _, turn := range turns {
		c := counts[turn.ID]
		if c[model.EventAccepted] != 1 || c[model.EventTurnEnded] != 1 || c[model.EventTurnStarted] > 1 {
			t.Errorf("turn %q (%s): accepted %d, started %d, ended %d times", turn.Text, turn.State,
				c[model.EventAccepted], c[model.EventTurnStarted], c[model.EventTurnEnded])
		}
		if turn.State == model.TurnDone && c[model.EventTurnStarted] != 1 {
			t.Errorf("turn %q is done and never started", turn.Text)
		}
	}
}

// killAt makes the platform crash at the nth hit of a point.
func (w *world) killAt(point string, nth int) (hits *int, disarm func()) {
	var mu sync.Mutex
	n := 0
	return &n, killpoint.Arm(func(name string) {
		mu.Lock()
		hit := name == point
		if hit {
			n++
		}
		now := hit && n == nth
		mu.Unlock()
		if w.crashed.Load() {
			runtime.Goexit()
		}
		if now {
			w.crash()
			runtime.Goexit()
		}
	})
}
