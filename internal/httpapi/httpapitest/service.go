// Package httpapitest is a platform for tests of what stands before it: an
// httpapi.Service whose conversations live in memory, whose workspaces are
// directories of the machine, and whose terminals are driven by the test.
//
// Tests of the HTTP API and of the command line use it. Everything is safe for
// concurrent use.
package httpapitest

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/conversation"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

// Service keeps conversations in memory. Its zero value is not usable: see New.
type Service struct {
	// OnSend is called after a message was accepted; a test lets it emit the
	// events of the turn. Nil: the turn stays queued.
	OnSend func(s *Service, t model.Turn)
	// Fail, when it gives an error for a method's name, is that method's answer.
	Fail func(method string) error
	// Unconfirmed makes Delete answer without a proof.
	Unconfirmed bool

	dir string

	mu    sync.Mutex
	conv  map[string]*state
	order []string
}

type state struct {
	c       model.Conversation
	key     string
	events  []model.Event
	changed chan struct{} // closed and replaced with every event
	turns   map[string]model.Turn
	files   *Files
	terms   []*Terminal
}

// New makes a service whose workspaces lie below dir.
func New(dir string) *Service {
	return &Service{dir: dir, conv: map[string]*state{}}
}

func (s *Service) fail(method string) error {
	if s.Fail == nil {
		return nil
	}
	return s.Fail(method)
}

func (s *Service) find(id string) (*state, error) {
	st, ok := s.conv[id]
	switch {
	case !ok:
		return nil, fault.New(fault.ConversationNotFound, "")
	case st.c.State == model.Deleted:
		return nil, fault.New(fault.ConversationDeleted, "")
	}
	return st, nil
}

// CreateConversation knows the Agent "shell" only.
func (s *Service) CreateConversation(_ context.Context, r conversation.CreateRequest) (model.Conversation, error) {
	if err := s.fail("CreateConversation"); err != nil {
		return model.Conversation{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Agent != "" && r.Agent != "shell" {
		return model.Conversation{}, fault.New(fault.AgentNotFound, "There is no Agent %q.", r.Agent)
	}
	for _, st := range s.conv {
		if r.IdempotencyKey != "" && st.key == r.IdempotencyKey {
			return st.c, nil
		}
	}
	files, err := newFiles(s.dir)
	if err != nil {
		return model.Conversation{}, err
	}
	now := time.Now().UTC()
	st := &state{key: r.IdempotencyKey, changed: make(chan struct{}), turns: map[string]model.Turn{}, files: files}
	st.c = model.Conversation{ID: model.NewID(model.PrefixConversation), Title: r.Title, Agent: "shell", Environment: "local", State: model.Active,
		Runtime: model.Runtime{State: model.RuntimeNone, Since: now}, CreatedAt: now, UpdatedAt: now}
	s.conv[st.c.ID] = st
	s.order = append(s.order, st.c.ID)
	s.emit(st, model.EventCreated, "", map[string]any{})
	return st.c, nil
}

// Get also gives a deleted conversation.
func (s *Service) Get(_ context.Context, id string) (model.Conversation, error) {
	if err := s.fail("Get"); err != nil {
		return model.Conversation{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.conv[id]
	if !ok {
		return model.Conversation{}, fault.New(fault.ConversationNotFound, "")
	}
	return st.c, nil
}

// List pages by position.
func (s *Service) List(_ context.Context, cursor string, limit int) (items []model.Conversation, next string, err error) {
	if err := s.fail("List"); err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.order)
	slices.Reverse(all)
	at := 0
	if cursor != "" {
		if at = slices.Index(all, cursor); at < 0 {
			return nil, "", fault.New(fault.CursorInvalid, "")
		}
	}
	for ; at < len(all); at++ {
		if len(items) == limit {
			return items, all[at], nil
		}
		if c := s.conv[all[at]].c; c.State != model.Deleted {
			items = append(items, c)
		}
	}
	return items, "", nil
}

// Rename sets the title.
func (s *Service) Rename(_ context.Context, id, title string) (model.Conversation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.find(id)
	if err != nil {
		return model.Conversation{}, err
	}
	st.c.Title = title
	return st.c, nil
}

// Delete confirms at once, unless Unconfirmed is set.
func (s *Service) Delete(_ context.Context, id string) (model.Conversation, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.conv[id]
	if !ok {
		return model.Conversation{}, fault.New(fault.ConversationNotFound, "")
	}
	st.c.State = model.Deleted
	st.c.Destruction = &model.Destruction{SandboxID: "sbx", Outcome: string(sandbox.Gone), Detail: "a separate check found no such sandbox"}
	if s.Unconfirmed {
		st.c.State, st.c.Destruction.Outcome = model.Deleting, string(sandbox.Unconfirmed)
	}
	close(st.changed)
	st.changed = make(chan struct{})
	return st.c, nil
}

// Send accepts a message and calls OnSend.
func (s *Service) Send(_ context.Context, id, clientMessageID, text string) (model.Turn, error) {
	if err := s.fail("Send"); err != nil {
		return model.Turn{}, err
	}
	s.mu.Lock()
	st, err := s.find(id)
	if err != nil {
		s.mu.Unlock()
		return model.Turn{}, err
	}
	if t, ok := st.turns[clientMessageID]; ok {
		defer s.mu.Unlock()
		if t.Text != text {
			return model.Turn{}, fault.New(fault.IdempotencyConflict, "")
		}
		return t, nil
	}
	t := model.Turn{ID: model.NewID(model.PrefixTurn), ConversationID: id, ClientMessageID: clientMessageID, Text: text, State: model.TurnQueued, CreatedAt: time.Now().UTC()}
	st.turns[clientMessageID] = t
	s.emit(st, model.EventAccepted, t.ID, map[string]any{"text": text, "client_message_id": clientMessageID})
	s.mu.Unlock()
	if s.OnSend != nil {
		s.OnSend(s, t)
	}
	return t, nil
}

// Interrupt ends the newest turn.
func (s *Service) Interrupt(_ context.Context, id string) (model.Turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.find(id)
	if err != nil {
		return model.Turn{}, err
	}
	for key, t := range st.turns {
		if t.State == model.TurnRunning || t.State == model.TurnQueued {
			t.State = model.TurnInterrupted
			st.turns[key] = t
			s.emit(st, model.EventTurnEnded, t.ID, map[string]any{"reason": "interrupted"})
			return t, nil
		}
	}
	return model.Turn{}, fault.New(fault.TurnNotRunning, "")
}

// Turn gives a turn.
func (s *Service) Turn(_ context.Context, id, turnID string) (model.Turn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.find(id)
	if err != nil {
		return model.Turn{}, err
	}
	for _, t := range st.turns {
		if t.ID == turnID {
			return t, nil
		}
	}
	return model.Turn{}, fault.New(fault.TurnNotFound, "")
}

// Emit adds an event to a conversation's journal. A turn.ended event ends its turn.
func (s *Service) Emit(id, kind, turnID string, data any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.conv[id]
	if kind == model.EventTurnEnded {
		for key, t := range st.turns {
			if t.ID == turnID {
				t.State = model.TurnDone
				st.turns[key] = t
			}
		}
	}
	s.emit(st, kind, turnID, data)
}

func (s *Service) emit(st *state, kind, turnID string, data any) {
	raw, err := json.Marshal(data)
	if err != nil {
		panic(fmt.Sprintf("httpapitest: the data of %s: %v", kind, err)) // the test is wrong
	}
	st.c.LastSeq++
	st.events = append(st.events, model.Event{Seq: st.c.LastSeq, Type: kind, TurnID: turnID, At: time.Now().UTC(), Data: raw})
	close(st.changed)
	st.changed = make(chan struct{})
}

// Events gives a piece of the journal.
func (s *Service) Events(_ context.Context, id string, after int64, limit int) (items []model.Event, lastSeq int64, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, ok := s.conv[id]
	if !ok {
		return nil, 0, fault.New(fault.ConversationNotFound, "")
	}
	for _, e := range st.events {
		if e.Seq > after && len(items) < limit {
			items = append(items, e)
		}
	}
	return items, st.c.LastSeq, nil
}

// Stream follows the journal until ctx ends or the conversation is deleted.
func (s *Service) Stream(ctx context.Context, id string, after int64) iter.Seq2[model.Event, error] {
	return func(yield func(model.Event, error) bool) {
		for {
			if err := s.fail("Stream"); err != nil {
				yield(model.Event{}, err)
				return
			}
			s.mu.Lock()
			st, ok := s.conv[id]
			if !ok {
				s.mu.Unlock()
				yield(model.Event{}, fault.New(fault.ConversationNotFound, ""))
				return
			}
			rest := slices.Clone(st.events[min(after, int64(len(st.events))):])
			changed, over := st.changed, st.c.State == model.Deleted
			s.mu.Unlock()
			for _, e := range rest {
				if !yield(e, nil) {
					return
				}
				after = e.Seq
			}
			if over {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

// Workspace gives the conversation's files; the account is "agent".
func (s *Service) Workspace(_ context.Context, id string) (sandbox.Files, string, error) {
	if err := s.fail("Workspace"); err != nil {
		return nil, "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.find(id)
	if err != nil {
		return nil, "", err
	}
	return st.files, "agent", nil
}

// Files gives a conversation's files, for the test to look at.
func (s *Service) Files(id string) *Files {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conv[id].files
}

// Environments gives one.
func (s *Service) Environments(context.Context) ([]model.Environment, error) {
	return []model.Environment{{ID: "env_1", Name: "local", Program: "shell", Backend: "open_sandbox", Image: "astrabox:host", Account: "agent",
		Limits: map[string]string{"memory": "4Gi"}, Requests: map[string]string{"memory": "768Mi"}, Idle: model.IdlePause}}, s.fail("Environments")
}

// Agents gives one.
func (s *Service) Agents(context.Context) ([]model.Agent, error) {
	return []model.Agent{{ID: "agent_1", Name: "shell", Environment: "local", Description: "Runs each message as a command."}}, s.fail("Agents")
}
