package process

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"sync"
	"syscall"

	"github.com/astrabox/astrabox/internal/execd/account"
	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/pump"
)

// MaxProcesses bounds how many processes may be registered; more are refused
// with ErrTooMany.
const MaxProcesses = 256

// Config is what a Manager needs.
type Config struct {
	Reaper   *child.Reaper
	Accounts *account.DB
	Log      *slog.Logger
}

// Manager keeps the processes of one sandbox.
type Manager struct {
	cfg     Config
	discard pump.Discarder
	running sync.WaitGroup

	ending context.Context // ends with Stop
	stop   context.CancelFunc

	mu          sync.Mutex
	byID        map[string]*Process
	dying       map[string]*Process // being deleted, or survivors of it: nobody finds them
	byKey       map[string]*Process
	attachments map[*Attachment]struct{}
}

// NewManager makes a Manager. [Manager.Close] ends it.
func NewManager(cfg Config) *Manager {
	m := &Manager{cfg: cfg, byID: map[string]*Process{}, dying: map[string]*Process{}, byKey: map[string]*Process{}, attachments: map[*Attachment]struct{}{}}
	m.ending, m.stop = context.WithCancel(context.Background())
	return m
}

// Register makes a process without starting it. A key that is known gives the
// process that has it, as it is.
func (m *Manager) Register(s Spec) (p *Process, isNew bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.isStopping() {
		return nil, false, ErrStopping
	}
	if s.Key != "" {
		if p := m.byKey[s.Key]; p != nil {
			return p, false, nil
		}
	}
	if len(m.byID)+len(m.dying) >= MaxProcesses {
		return nil, false, ErrTooMany
	}
	if s.ID == "" {
		s.ID = m.NewID()
	}
	p = &Process{ID: s.ID, m: m, spec: s, mark: randomID(), buf: buffer{max: s.Buffer}}
	if s.TTY != nil {
		p.size = *s.TTY
	}
	p.output.L, p.room.L, p.input.L = &p.mu, &p.mu, &p.mu
	m.byID[p.ID] = p
	if s.Key != "" {
		m.byKey[s.Key] = p
	}
	return p, true, nil
}

// NewID gives an id for a Spec, for who has to know it before the process exists.
func (m *Manager) NewID() string { return randomID() }

// Get finds a process.
func (m *Manager) Get(id string) (*Process, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.byID[id]; p != nil {
		return p, nil
	}
	return nil, ErrNotFound
}

// Delete forgets a process and kills everything that it started. Who is
// attached gets the rest of the output and the end of the run. ErrNotFound says
// that nothing of it is left: while another call is at it, and after one that
// failed, it is done again.
func (m *Manager) Delete(ctx context.Context, id string) error {
	m.mu.Lock()
	p := m.byID[id]
	if p == nil {
		p = m.dying[id]
	}
	if p == nil {
		m.mu.Unlock()
		return ErrNotFound
	}
	delete(m.byID, id)
	m.dying[id] = p
	if m.byKey[p.spec.Key] == p {
		delete(m.byKey, p.spec.Key)
	}
	m.mu.Unlock()
	if err := p.delete(ctx); err != nil {
		return err
	}
	m.mu.Lock()
	delete(m.dying, id)
	m.mu.Unlock()
	return nil
}

// Signal sends sig to the process groups of all runs.
func (m *Manager) Signal(sig syscall.Signal) {
	for _, p := range m.all() {
		p.signal(sig)
	}
}

// HangUp sends SIGHUP to all runs in terminals: a shell in one ignores SIGTERM.
func (m *Manager) HangUp() {
	for _, p := range m.all() {
		if p.TTY() {
			p.signal(syscall.SIGHUP)
		}
	}
}

// Active is how many processes have a run.
func (m *Manager) Active() (n int) {
	for _, p := range m.all() {
		if p.Status().State == Running {
			n++
		}
	}
	return n
}

// Stop refuses new processes, attachments and runs.
func (m *Manager) Stop() { m.stop() }

// Detach ends all attachments with ErrStopping at once.
func (m *Manager) Detach() {
	m.mu.Lock()
	list := make([]*Attachment, 0, len(m.attachments))
	for a := range m.attachments {
		list = append(list, a)
	}
	m.mu.Unlock()
	for _, a := range list {
		a.p.mu.Lock()
		a.detach(ErrStopping)
		a.p.mu.Unlock()
	}
}

// Close kills everything that the processes started and waits for it, unless
// ctx ends first: a process in an uninterruptible wait must not keep the daemon.
func (m *Manager) Close(ctx context.Context) {
	m.Stop()
	for _, p := range m.all() {
		if err := m.Delete(ctx, p.ID); err != nil {
			p.log().Warn("a process could not be ended", "error", err)
		}
	}
	m.Detach()
	ended := make(chan struct{})
	go func() {
		m.running.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		m.discard.Close()
	case <-ctx.Done():
	}
}

func (m *Manager) all() []*Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*Process, 0, len(m.byID))
	for _, p := range m.byID {
		list = append(list, p)
	}
	return list
}

func (m *Manager) isStopping() bool { return m.ending.Err() != nil }

func (m *Manager) attached(a *Attachment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attachments[a] = struct{}{}
}

func (m *Manager) detached(a *Attachment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.attachments, a)
}

func randomID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
