package lifecycle

import (
	"context"
	"log/slog"
	"maps"
	goruntime "runtime"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/astrabox/astrabox/internal/sandboxd/runtime"
	"github.com/astrabox/astrabox/internal/sandboxd/state"
	"github.com/astrabox/astrabox/provider/opensandbox/wire"
)

// Config says how a Service works. The zero value of a duration or number is
// its default.
type Config struct {
	Store   *state.Store
	Runtime runtime.Runtime
	Log     *slog.Logger
	// BootID is the machine's since its last start: a sandbox that ran under
	// another one was ended by the machine, not by itself.
	BootID string

	Parallel      int64         // starts at a time: 2 × cores; the others queue in order
	Queue         int           // starts that may wait: 512; past it they are refused
	CreateTimeout time.Duration // for one start, its wait apart: 120 s
	QueueTimeout  time.Duration // for that wait: 10 min
	StopTimeout   time.Duration // for one pause or destruction: 60 s
	Keep          time.Duration // how long rows of gone sandboxes stay: 7 days
	KeepRows      int           // and how many: 10,000
}

func (c *Config) defaults() {
	def(&c.Parallel, int64(2*goruntime.NumCPU()))
	def(&c.Queue, 512)
	def(&c.CreateTimeout, 120*time.Second)
	def(&c.QueueTimeout, 10*time.Minute)
	def(&c.StopTimeout, 60*time.Second)
	def(&c.Keep, 7*24*time.Hour)
	def(&c.KeepRows, 10_000)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Service is the lifecycle of this machine's sandboxes. Start it before use
// and Close it afterwards.
type Service struct {
	cfg   Config
	store *state.Store
	rt    runtime.Runtime
	log   *slog.Logger

	tasks tasks
	locks locks
	admit *semaphore.Weighted // starts, served in order
	stops *semaphore.Weighted // destructions

	wake chan struct{} // the schedule has changed

	mu       sync.Mutex
	waiting  int                // starts in the queue
	creating map[string]*create // by sandbox id
	resuming map[string]context.CancelFunc
	repairs  map[string]repairAt // sandboxes to look after again
}

// New makes a Service. It does nothing until Start.
func New(c Config) *Service {
	c.defaults()
	return &Service{
		cfg: c, store: c.Store, rt: c.Runtime, log: c.Log,
		admit:    semaphore.NewWeighted(c.Parallel),
		stops:    semaphore.NewWeighted(max(4, c.Parallel)),
		wake:     make(chan struct{}, 1),
		creating: map[string]*create{},
		resuming: map[string]context.CancelFunc{},
		repairs:  map[string]repairAt{},
	}
}

// Close lets pauses, resumes and destructions that are under way finish until
// ctx ends, looks once more after what failed or waits to be removed, cancels
// creates (each cleans up after itself), and returns when nothing runs any
// more. Other sandboxes stay as they are.
func (s *Service) Close(ctx context.Context) {
	s.runRepairs(time.Now().Add(repairMax)) // those that wait for their next try, too
	s.tasks.close(ctx)
}

// Get describes a sandbox.
func (s *Service) Get(ctx context.Context, id string) (state.Record, error) {
	r, err := s.store.Get(ctx, id)
	return r, fail(err)
}

// Past describes a sandbox that is gone, while that is remembered.
func (s *Service) Past(ctx context.Context, id string) (state.Record, bool) {
	r, err := s.store.Past(ctx, id)
	return r, err == nil
}

// List gives one page of the sandboxes and how many match in all.
func (s *Service) List(ctx context.Context, f state.Filter) ([]state.Record, int, error) {
	rows, total, err := s.store.List(ctx, f)
	return rows, total, fail(err)
}

// Empty reports whether no sandbox is left.
func (s *Service) Empty(ctx context.Context) (bool, error) {
	_, n, err := s.store.List(ctx, state.Filter{Limit: 1})
	return n == 0, fail(err)
}

// Renew moves the scheduled end to at, which must lie in the future. It never
// shortens: an end before the current one is refused, the current one again is
// a repetition. A sandbox without a scheduled end is refused, for any end
// would shorten it.
func (s *Service) Renew(ctx context.Context, id string, at time.Time) (time.Time, error) {
	if !at.After(time.Now()) {
		return time.Time{}, Errorf(CodeInvalid, "expiresAt %s is not in the future", at.UTC().Format(time.RFC3339Nano))
	}
	at = at.Add(time.Millisecond - 1).Truncate(time.Millisecond) // what a row holds, never earlier than asked
	r, err := s.store.Renew(ctx, id, at)
	switch {
	case err != nil:
		return time.Time{}, fail(err)
	case r.ExpiresAt.IsZero():
		return time.Time{}, Errorf(CodeState, "the sandbox has no scheduled end")
	case r.ExpiresAt.After(at):
		return time.Time{}, Errorf(CodeInvalid, "expiresAt %s is before the current end %s", at.UTC().Format(time.RFC3339Nano), r.ExpiresAt.Format(time.RFC3339Nano))
	}
	s.reschedule()
	return r.ExpiresAt, nil
}

// PatchMetadata merges patch into the metadata; a nil value removes its key.
// check may refuse the result with an *Error.
func (s *Service) PatchMetadata(ctx context.Context, id string, patch map[string]*string, check func(map[string]string) error) (state.Record, error) {
	r, err := s.store.PatchMetadata(ctx, id, maps.Clone(patch), check)
	return r, fail(err)
}

func (s *Service) spec(r state.Record) runtime.Spec {
	return runtime.Spec{
		ID: r.ID, Image: r.Spec.Image, Entrypoint: r.Spec.Entrypoint, Env: r.Spec.Env,
		CPUs: r.Spec.CPUs, MemoryBytes: r.Spec.MemoryBytes, PIDs: r.Spec.PIDs, DiskBytes: r.Spec.DiskBytes,
	}
}

func (s *Service) run(r runtime.Running) state.Run {
	return state.Run{PID: r.PID, Address: r.Addr.String(), Token: r.Token, BootID: s.cfg.BootID}
}

// move is store.Apply with the time; it is not cancelled by the request, since
// an outcome that isn't stored is an outcome lost.
func (s *Service) move(ctx context.Context, m state.Move) (state.Record, error) {
	m.At = time.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	r, err := s.store.Apply(ctx, m)
	if err == nil {
		s.log.Info("sandbox "+m.To, "sandbox", m.ID, "reason", m.Reason, "message", m.Message)
		if m.To == wire.Running {
			s.reschedule()
		}
	}
	return r, err
}

// admission takes a place among the starts, in the order of asking.
func (s *Service) admission(ctx context.Context) (release func(), err error) {
	if s.admit.TryAcquire(1) { // fails while others wait, so it jumps no queue
		return func() { s.admit.Release(1) }, nil
	}
	s.mu.Lock()
	if s.waiting >= s.cfg.Queue {
		s.mu.Unlock()
		return nil, Errorf(CodeCapacity, "%d sandboxes are waiting to start already", s.cfg.Queue)
	}
	s.waiting++
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.waiting--
		s.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueueTimeout)
	defer cancel()
	if err := s.admit.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return func() { s.admit.Release(1) }, nil
}
