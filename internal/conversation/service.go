// Package conversation is the platform's heart: conversations, their queues of
// messages, the turns that those cause, the durable journal of events, and the
// sandboxes that all of it runs in.
//
// The HTTP API calls [Service]; its methods write rows and wake the
// conversation's keeper, a goroutine that looks at the rows, decides what is
// needed ([model.Decide]) and does it, one step after the other, each between
// two transactions. Nothing that matters is only in memory: a keeper that ends
// at any moment is followed by another one that goes on from the rows, with a
// higher fencing token. All methods are safe for concurrent use. Errors are
// *[fault.Error] or become one with [fault.From].
package conversation

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/fleet"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
	"github.com/astrabox/astrabox/sandbox"
)

// Config is what a Service is made of. Zero values take the defaults named.
type Config struct {
	InstallationID string
	DatabasePath   string           // the SQLite file; its directory must exist
	Backends       []*sandbox.Bound // the enabled ones, at least one
	DefaultBackend string           // of the seeded Environment: the first of Backends
	Installed      []string         // names of all installed backends, enabled or not
	Image          string           // of the seeded Environment: astrabox:host
	Log            *slog.Logger
	// AgentBinary finds the local file of an Agent program's binary.
	AgentBinary func(agentprogram.Binary) (path string, err error)

	IdleAfter time.Duration // 30 minutes; negative: an unused sandbox is never paused
	Retention time.Duration // of a paused sandbox: 7 days
	Lease     time.Duration // of a running one, renewed below a quarter: 4 hours
	// SweepEvery and SweepGrace are those of [fleet.Config].
	SweepEvery, SweepGrace time.Duration
}

// Limits of the service.
const (
	MaxText      = 1 << 20 // bytes of a message
	MaxTitle     = 200     // characters
	MaxMessageID = 200     // bytes of a client_message_id or an idempotency key
	MaxQueue     = 100     // messages that wait in one conversation
	MaxTerminals = 16      // live ones of one conversation
	MaxStreams   = 64      // of one conversation
	maxLimit     = 1000    // of a page
)

// Names of the seeded resources.
const (
	DefaultEnvironment = "local"
	DefaultAgent       = "shell"
)

// Workspace is the conversation's working directory in its sandbox.
const Workspace = "/workspace"

// Service is what the HTTP API calls.
type Service struct {
	cfg    Config
	log    *slog.Logger
	store  *store.Store
	fleet  *fleet.Fleet
	hub    *hub
	starts chan struct{} // bounds the sandboxes that start at once
	spawn  chan struct{} // there are conversations in wanted
	files  binaries

	mu        sync.Mutex
	rooms     map[string]*room
	wanted    map[string]struct{} // conversations that need a keeper
	suspended bool
}

// New opens the database, makes the default Environment and Agent where they
// are missing, and returns the service. Nothing moves before Run.
func New(ctx context.Context, c Config) (*Service, error) {
	if len(c.Backends) == 0 {
		return nil, fault.New(fault.SettingInvalid, "No sandbox backend is enabled.")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.DefaultBackend = cmp.Or(c.DefaultBackend, c.Backends[0].Name())
	c.Image = cmp.Or(c.Image, "astrabox:host")
	c.IdleAfter = cmp.Or(c.IdleAfter, 30*time.Minute)
	c.Retention = cmp.Or(c.Retention, 7*24*time.Hour)
	c.Lease = cmp.Or(c.Lease, 4*time.Hour)
	s := &Service{cfg: c, log: c.Log, hub: newHub(), starts: make(chan struct{}, 16), spawn: make(chan struct{}, 1),
		rooms: map[string]*room{}, wanted: map[string]struct{}{}}
	st, err := store.Open(ctx, c.DatabasePath, s.hub.publish)
	if err != nil {
		return nil, err
	}
	s.store = st
	s.fleet = fleet.New(fleet.Config{InstallationID: c.InstallationID, Backends: c.Backends, Installed: c.Installed, Store: st, Log: c.Log,
		Lease: c.Lease, SweepEvery: c.SweepEvery, SweepGrace: c.SweepGrace, OnDestroyed: s.wake})
	if err := s.seed(ctx); err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return s, nil
}

// seed makes the default Environment and Agent. The Environment is AstraBox's
// own and not one that a person saves, so sandbox.CheckEnvironment isn't asked.
// On a backend without network rules its sandboxes have the network that the
// backend gives them; the bundled service gives none.
func (s *Service) seed(ctx context.Context) error {
	idle := model.IdlePause
	if !s.fleet.Caps(s.cfg.DefaultBackend).Pause {
		idle = model.IdleTerminate
	}
	return s.store.Update(ctx, func(t *store.Tx) error {
		if err := t.SeedEnvironment(model.Environment{
			ID: model.NewID(model.PrefixEnvironment), Name: DefaultEnvironment, Program: agentprogram.ShellID,
			Backend: s.cfg.DefaultBackend, Image: s.cfg.Image, Account: "agent",
			Limits:   map[string]string{"cpu": fmt.Sprint(min(4, runtime.NumCPU())), "memory": "4Gi", "pids": "4096", "disk": "10Gi"},
			Requests: map[string]string{"cpu": "200m", "memory": "768Mi"},
			Idle:     idle, RetentionSeconds: int64(s.cfg.Retention / time.Second),
		}); err != nil {
			return err
		}
		return t.SeedAgent(model.Agent{ID: model.NewID(model.PrefixAgent), Name: DefaultAgent,
			Environment: DefaultEnvironment, Description: "Runs what you type. There is no model behind it."})
	})
}

// Close closes the database. Call it after Run has returned.
func (s *Service) Close() error { return s.store.Close() }

// Unconfirmed is the number of sandboxes that were to be destroyed and whose
// end isn't proven yet.
func (s *Service) Unconfirmed(ctx context.Context) (int64, error) { return s.fleet.Unconfirmed(ctx) }

// Finish, for a clean stop, tries once more to destroy the sandboxes whose end
// isn't proven yet. Call it while Run runs, after Suspend.
func (s *Service) Finish(ctx context.Context) error { return s.fleet.Finish(ctx) }

// Run works until ctx ends: it recovers what an earlier process left, and runs
// the keepers, the due times, the ledger and the sweep. It returns when all of
// them have ended. Turns that are running go on in their sandboxes.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.fleet.Run(ctx) })
	g.Go(func() error { s.dueLoop(ctx); return nil })
	ids, err := s.store.Unsettled(ctx)
	if err != nil && ctx.Err() == nil {
		g.Go(func() error { return err })
		return g.Wait()
	}
	for _, id := range ids {
		s.wake(id)
	}
	for {
		for _, k := range s.newKeepers() {
			g.Go(func() error { k.run(ctx); return nil })
		}
		select {
		case <-ctx.Done():
			err := g.Wait()
			s.hub.closeAll()
			if errors.Is(err, context.Canceled) {
				err = nil
			}
			return err
		case <-s.spawn:
		}
	}
}

// dueLoop wakes conversations whose due time has come.
func (s *Service) dueLoop(ctx context.Context) {
	const most = 30 * time.Second // rows of other writers are seen by then
	for ctx.Err() == nil {
		wait := most
		ids, next, err := s.store.Due(ctx, time.Now())
		if err != nil && ctx.Err() == nil {
			s.log.Error("the due times can't be read", "err", err)
		}
		for _, id := range ids {
			s.wake(id)
		}
		if !next.IsZero() {
			wait = min(wait, max(time.Until(next), 10*time.Millisecond))
		}
		if len(ids) > 0 {
			wait = max(wait, time.Second) // their keepers are about to move the times
		}
		sleep(ctx, wait)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// CreateRequest asks for a conversation. Agent is a name or id; empty means the
// default Agent. The same IdempotencyKey gives the same conversation.
type CreateRequest struct {
	Agent          string
	Title          string
	IdempotencyKey string
}

// CreateConversation makes a conversation; its sandbox starts with the first
// message, file or terminal.
func (s *Service) CreateConversation(ctx context.Context, r CreateRequest) (model.Conversation, error) {
	title, err := checkTitle(r.Title)
	if err != nil {
		return model.Conversation{}, err
	}
	if len(r.IdempotencyKey) > MaxMessageID || !utf8.ValidString(r.IdempotencyKey) {
		return model.Conversation{}, fault.New(fault.RequestInvalid, "The idempotency key is longer than %d bytes or not UTF-8.", MaxMessageID)
	}
	agent, err := s.store.Agent(ctx, cmp.Or(r.Agent, DefaultAgent))
	if err != nil {
		return model.Conversation{}, err
	}
	sum := sha256.Sum256([]byte(agent.Name + "\x00" + title))
	digest := hex.EncodeToString(sum[:])
	var out *model.Record
	err = s.store.Update(ctx, func(t *store.Tx) error {
		if r.IdempotencyKey != "" {
			id, before, err := t.ByIdempotencyKey(r.IdempotencyKey)
			switch {
			case err == nil && before != digest:
				return fault.New(fault.IdempotencyConflict, "")
			case err == nil:
				out, err = t.Load(id)
				return err
			case !errors.Is(err, store.ErrNotFound):
				return err
			}
		}
		out = &model.Record{Conversation: model.Conversation{ID: model.NewID(model.PrefixConversation), Title: title,
			Agent: agent.Name, Environment: agent.Environment, State: model.Active, Runtime: model.Runtime{State: model.RuntimeNone}}}
		ok, err := t.Insert(out, r.IdempotencyKey, digest)
		if err != nil {
			return err
		}
		if !ok {
			return fault.New(fault.IdempotencyConflict, "")
		}
		if err := t.Event(out, "", model.EventCreated, map[string]string{"title": title, "agent": agent.Name}); err != nil {
			return err
		}
		return t.Save(out)
	})
	if err != nil {
		return model.Conversation{}, err
	}
	return out.Conversation, nil
}

func checkTitle(title string) (string, error) {
	title = strings.TrimSpace(title)
	if !utf8.ValidString(title) || strings.ContainsFunc(title, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", fault.New(fault.RequestInvalid, "The title must be UTF-8 without control characters.")
	}
	if utf8.RuneCountInString(title) > MaxTitle {
		return "", fault.New(fault.RequestInvalid, "The title is longer than %d characters.", MaxTitle)
	}
	return title, nil
}

// Get gives one conversation; CONVERSATION_NOT_FOUND for an unknown id.
func (s *Service) Get(ctx context.Context, id string) (model.Conversation, error) {
	r, err := s.store.Record(ctx, id)
	if err != nil {
		return model.Conversation{}, err
	}
	return r.Conversation, nil
}

// List gives conversations that aren't deleted, newest first, at most limit
// (1 to 1000, 0: 50). next is empty on the last page; a cursor that List didn't
// give is CURSOR_INVALID.
func (s *Service) List(ctx context.Context, cursor string, limit int) (items []model.Conversation, next string, err error) {
	if cursor != "" && !model.IsID(model.PrefixConversation, cursor) {
		return nil, "", fault.New(fault.CursorInvalid, "")
	}
	limit = clampLimit(limit, 50)
	records, err := s.store.Page(ctx, cursor, limit+1)
	if err != nil {
		return nil, "", err
	}
	if len(records) > limit {
		records = records[:limit]
		next = records[limit-1].ID
	}
	items = make([]model.Conversation, len(records))
	for i, r := range records {
		items[i] = r.Conversation
	}
	return items, next, nil
}

func clampLimit(limit, def int) int {
	if limit <= 0 {
		return def
	}
	return min(limit, maxLimit)
}

// Rename sets the title.
func (s *Service) Rename(ctx context.Context, id, title string) (model.Conversation, error) {
	title, err := checkTitle(title)
	if err != nil {
		return model.Conversation{}, err
	}
	r, err := s.change(ctx, id, func(t *store.Tx, r *model.Record) error {
		if r.State == model.Deleting || r.State == model.Deleted {
			return fault.New(fault.ConversationDeleted, "")
		}
		r.Title = title
		return nil
	})
	if err != nil {
		return model.Conversation{}, err
	}
	return r.Conversation, nil
}

// change loads a conversation, lets f change it, and saves it, in one
// transaction; for requests, which need no fence.
func (s *Service) change(ctx context.Context, id string, f func(*store.Tx, *model.Record) error) (r *model.Record, err error) {
	err = s.store.Update(ctx, func(t *store.Tx) error {
		if r, err = t.Load(id); err != nil {
			return err
		}
		if err := f(t, r); err != nil {
			return err
		}
		return t.Save(r)
	})
	return r, err
}

// deleteWait is how long Delete waits for the proof.
const deleteWait = 30 * time.Second

// Delete deletes the conversation and its sandbox. It waits up to 30 s for the
// proof that the sandbox is gone; without it the conversation that it returns
// is still deleting, with an unconfirmed Destruction where a verdict was
// reached, and the ledger goes on. Deleting again waits again.
func (s *Service) Delete(ctx context.Context, id string) (model.Conversation, error) {
	news, err := s.hub.subscribe(id, false)
	if err != nil {
		return model.Conversation{}, err
	}
	defer s.hub.unsubscribe(news)
	_, err = s.change(ctx, id, func(t *store.Tx, r *model.Record) error {
		if r.State == model.Deleting || r.State == model.Deleted {
			return nil
		}
		if err := t.SetState(r, model.Deleting); err != nil {
			return err
		}
		return settleTurns(t, r, deletedTurns)
	})
	if err != nil {
		return model.Conversation{}, err
	}
	killDeleteStored.Hit()
	s.wake(id)
	timeout := time.NewTimer(deleteWait)
	defer timeout.Stop()
	for {
		r, err := s.store.Record(ctx, id)
		if err != nil {
			return model.Conversation{}, err
		}
		unproven := r.Destruction != nil && r.Destruction.SandboxID == r.Runtime.SandboxID && r.Destruction.Outcome != string(sandbox.Gone)
		if r.State == model.Deleted || unproven {
			return r.Conversation, nil
		}
		select {
		case <-ctx.Done():
			return model.Conversation{}, ctx.Err()
		case <-timeout.C:
			return r.Conversation, nil
		case <-news.wake:
			news.take()
		}
	}
}

// Environments lists the Environments by name.
func (s *Service) Environments(ctx context.Context) ([]model.Environment, error) {
	return s.store.Environments(ctx)
}

// Agents lists the Agents by name.
func (s *Service) Agents(ctx context.Context) ([]model.Agent, error) { return s.store.Agents(ctx) }
