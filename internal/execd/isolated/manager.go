package isolated

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/confine"
	"github.com/astrabox/astrabox/internal/execd/files"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	// MaxSessions bounds how many sessions are open; more are refused.
	MaxSessions = 64
	// maxStarting bounds how many come up at a time; others wait.
	maxStarting = 4
	// maxDead bounds how many ended sessions are remembered, for deadTime, so
	// that who asks learns that they ended.
	maxDead  = 64
	deadTime = 10 * time.Minute
	// probeTime is how long a "no" stands before it is tried again.
	probeTime = 10 * time.Second
	killTime  = 10 * time.Second
	// flushTime is how long the last answers of sessions that stopped get.
	flushTime = 100 * time.Millisecond
	// tmpBytes is the most that /tmp and /dev/shm of a session hold, each; it is
	// less where the sandbox's memory is limited.
	tmpBytes    = 256 << 20
	minTmpBytes = 4 << 20
)

// ErrNotFound: there is no such session, or it has ended.
var ErrNotFound = refuse(http.StatusNotFound, CodeNotFound, "no such isolated session")

// Config is what a Manager needs.
type Config struct {
	Reaper   *child.Reaper
	Accounts *account.DB
	Log      *slog.Logger
	Version  string
	// MemoryLimit gives the sandbox's memory in bytes; 0 or nil: unknown.
	MemoryLimit func() int64
	// Notes are the daemon's own; each session has some beside them, for what it
	// leaves unfinished when it is killed.
	Notes *files.Notes
}

// Manager keeps the sessions of one sandbox. [Manager.Close] ends it.
type Manager struct {
	cfg      Config
	starting chan struct{}
	wg       sync.WaitGroup // sessions whose first process lives
	stops    sync.WaitGroup // sessions that were asked to stop and haven't
	stopping context.Context
	giveUp   context.CancelFunc // of the question to stop

	mu      sync.Mutex
	byID    map[string]*Open
	ending  map[string]*Open // being deleted: nobody finds them, but who deletes them waits too
	order   []*Open          // oldest first
	live    int              // sessions that live or are starting
	stopped bool

	probing sync.Mutex
	probed  Capability
	asked   time.Time // zero: never
}

// NewManager makes a Manager without sessions.
func NewManager(cfg Config) *Manager {
	m := &Manager{cfg: cfg, starting: make(chan struct{}, maxStarting), byID: map[string]*Open{}, ending: map[string]*Open{}}
	m.stopping, m.giveUp = context.WithCancel(context.Background())
	return m
}

// Capability says whether sessions can be made here.
type Capability struct {
	Available bool
	Message   string // why not
}

// Capability tries to make a session, unless that worked before or failed just now.
func (m *Manager) Capability(ctx context.Context) Capability {
	m.probing.Lock()
	defer m.probing.Unlock()
	if m.probed.Available || !m.asked.IsZero() && time.Since(m.asked) < probeTime {
		return m.probed
	}
	err := m.probe(ctx)
	if ctx.Err() != nil {
		return Capability{Message: "it was not tried to the end"}
	}
	m.asked, m.probed = time.Now(), Capability{Available: err == nil}
	if err != nil {
		m.probed.Message = "sessions can't be made here: " + err.Error()
	}
	return m.probed
}

func (m *Manager) probe(ctx context.Context) error {
	switch {
	case !asked.Load():
		return errors.New("this program can't be the first process of a session")
	case os.Geteuid() != 0:
		return errors.New("the daemon is not root")
	}
	have, err := confine.Effective()
	if err != nil {
		return err
	}
	if have&confine.Mounting != confine.Mounting {
		return errors.New("the daemon lacks the capabilities that mounts and namespaces take")
	}
	o, err := m.start(ctx, setup{View: View{TmpBytes: minTmpBytes, OwnNet: true}, Probe: true, Version: m.cfg.Version}, nil)
	if err != nil {
		return err
	}
	<-o.child.Done()
	return nil
}

// Open makes a session and returns when it serves requests.
func (m *Manager) Open(ctx context.Context, r Request) (*Open, error) {
	if err := r.check(m.groupOf); err != nil {
		return nil, err
	}
	if c := m.Capability(ctx); !c.Available {
		return nil, refuse(http.StatusServiceUnavailable, CodeUnavailable, "%s", c.Message)
	}
	if err := m.enter(); err != nil {
		return nil, err
	}
	id := newID()
	o, err := m.start(ctx, setup{
		ID: id, View: r.view(m.tmpBytes()), UID: *r.UID, GID: *r.GID, Version: m.cfg.Version,
	}, r.environ(os.Environ()))
	if err != nil {
		m.leave()
		return nil, err
	}
	o.Request, o.ID, o.Created = r, id, time.Now()
	o.last = o.Created
	m.mu.Lock()
	m.byID[o.ID] = o
	m.order = append(m.order, o)
	m.prune()
	stopped := m.stopped
	m.wg.Add(1)
	m.mu.Unlock()
	go m.watch(o)
	o.rest()
	if stopped { // Close came meanwhile and doesn't know of it
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
		defer cancel()
		_ = m.Delete(ending, o.ID)
		return nil, child.ErrClosed
	}
	return o, nil
}

func (m *Manager) groupOf(uid uint32) uint32 {
	if u, err := m.cfg.Accounts.UserID(uid); err == nil {
		return u.GID
	}
	return uid
}

func (m *Manager) tmpBytes() int64 {
	n := int64(tmpBytes)
	if m.cfg.MemoryLimit != nil {
		if limit := m.cfg.MemoryLimit(); limit > 0 {
			n = max(min(n, limit/8), minTmpBytes)
		}
	}
	return n
}

func (m *Manager) enter() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.stopped:
		return child.ErrClosed
	case m.live >= MaxSessions:
		return refuse(http.StatusTooManyRequests, wire.CodeTooMany, "there are %d isolated sessions already", MaxSessions)
	}
	m.live++
	return nil
}

func (m *Manager) leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.live--
}

// watch notes the end of a session's first process, and with it of the session.
func (m *Manager) watch(o *Open) {
	defer m.wg.Done()
	<-o.child.Done()
	o.ended()
	m.mu.Lock()
	m.live--
	delete(m.ending, o.ID)
	m.prune()
	m.mu.Unlock()
	close(o.over)
}

// prune forgets sessions that ended long ago, and the oldest of too many.
func (m *Manager) prune() {
	dead := 0
	for _, o := range m.order {
		if o.Dead() {
			dead++
		}
	}
	m.order = slices.DeleteFunc(m.order, func(o *Open) bool {
		forget := o.Dead() && (dead > maxDead || time.Since(o.deadSince()) > deadTime)
		if forget {
			dead--
			delete(m.byID, o.ID)
		}
		return forget
	})
}

// Get finds a session, also one that has ended by itself lately.
func (m *Manager) Get(id string) (*Open, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.byID[id]; o != nil {
		return o, nil
	}
	return nil, ErrNotFound
}

// List gives the sessions, oldest first.
func (m *Manager) List() []*Open {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.prune()
	return slices.Clone(m.order)
}

// Delete ends a session with everything in it and forgets it, and returns when
// nothing of it runs, also when another call is ending it already. Runs get a
// moment to tell their clients of their end.
func (m *Manager) Delete(ctx context.Context, id string) error {
	m.mu.Lock()
	o := m.byID[id]
	if o == nil {
		o = m.ending[id]
	}
	if o == nil {
		m.mu.Unlock()
		return ErrNotFound
	}
	delete(m.byID, id)
	m.ending[id] = o
	m.order = slices.DeleteFunc(m.order, func(other *Open) bool { return other == o })
	m.mu.Unlock()
	if err := o.end(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	delete(m.ending, id)
	m.mu.Unlock()
	return nil
}

// expire ends a session that was idle for too long.
func (m *Manager) expire(o *Open) {
	ctx, cancel := context.WithTimeout(context.Background(), killTime)
	defer cancel()
	if err := m.Delete(ctx, o.ID); err != nil && !errors.Is(err, ErrNotFound) {
		m.cfg.Log.Warn("an idle session could not be ended", "session", o.ID, "error", err)
	}
}

// Stop refuses new sessions, and sends SIGTERM to all that runs in those that
// there are.
func (m *Manager) Stop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stopped {
		return
	}
	m.stopped = true
	for _, o := range m.order {
		if !o.Dead() {
			m.stops.Go(func() { _ = o.ask(m.stopping, http.MethodPost, PathStop, nil) }) // what doesn't stop is killed
		}
	}
}

// Quiet waits, after Stop, until nothing runs in any session, or ctx ends.
func (m *Manager) Quiet(ctx context.Context) {
	quiet := make(chan struct{})
	go func() { // ends with Close at the latest
		m.stops.Wait()
		close(quiet)
	}()
	select {
	case <-quiet:
	case <-ctx.Done():
		return
	}
	// The last answers are on their way. Who is attached to a process stays.
	ctx, cancel := context.WithTimeout(ctx, flushTime)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for slices.ContainsFunc(m.List(), (*Open).busy) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Close ends all sessions and waits for it, unless ctx ends first.
func (m *Manager) Close(ctx context.Context) {
	m.Stop()
	m.giveUp()
	var all sync.WaitGroup
	for _, o := range m.List() {
		all.Go(func() {
			if err := m.Delete(ctx, o.ID); err != nil && !errors.Is(err, ErrNotFound) {
				m.cfg.Log.Warn("a session could not be ended", "session", o.ID, "error", err)
			}
		})
	}
	all.Wait()
	ended := make(chan struct{})
	go func() {
		m.stops.Wait()
		m.wg.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// newID gives a random UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
