// Package conversation is the platform's heart: conversations, their queues of
// messages, the turns that those cause, the durable journal of events, and the
// sandboxes that all of it runs in.
package conversation

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

// Config is what a Service is made of. Zero durations and limits take the
// defaults that the fields name.
type Config struct {
	InstallationID string
	Log            *slog.Logger
	// AgentBinary opens the local file of an Agent program's binary, by the
	// binary's name; see agentprogram.Binary.
	AgentBinary func(name string) (path string, err error)
	IdleAfter   time.Duration // default 30 minutes; negative: never
}

// Service is what the HTTP API calls. All methods are safe for concurrent use.
// Errors are *[fault.Error] or convert to one with [fault.From].
type Service struct{}

// CreateRequest asks for a conversation. Agent is a name or id; empty means the
// default Agent. The same IdempotencyKey gives the same conversation.
type CreateRequest struct {
	Agent          string
	Title          string
	IdempotencyKey string
}

var errNotBuilt = fault.New(fault.Internal, "")

// Run works until ctx ends: it recovers what an earlier process left, and runs
// the conversations, the idle and lease loops, the ledger and the sweep.
func (s *Service) Run(ctx context.Context) error { return errNotBuilt }

// CreateConversation makes a conversation; its sandbox starts with the first
// message, file or terminal.
func (s *Service) CreateConversation(ctx context.Context, r CreateRequest) (model.Conversation, error) {
	return model.Conversation{}, errNotBuilt
}

// Get gives one conversation; CONVERSATION_NOT_FOUND for an unknown id.
func (s *Service) Get(ctx context.Context, id string) (model.Conversation, error) {
	return model.Conversation{}, errNotBuilt
}

// List gives conversations that aren't deleted, newest first. next is empty on
// the last page; a cursor that List didn't give is CURSOR_INVALID.
func (s *Service) List(ctx context.Context, cursor string, limit int) (items []model.Conversation, next string, err error) {
	return nil, "", errNotBuilt
}

// Rename sets the title.
func (s *Service) Rename(ctx context.Context, id, title string) (model.Conversation, error) {
	return model.Conversation{}, errNotBuilt
}

// Delete deletes the conversation and its sandbox. It waits up to 30 s for the
// proof that the sandbox is gone; without it the conversation that it returns
// is still deleting, with an unconfirmed Destruction, and the ledger goes on.
func (s *Service) Delete(ctx context.Context, id string) (model.Conversation, error) {
	return model.Conversation{}, errNotBuilt
}

// Send accepts a message. The same clientMessageID gives the same turn, with
// its present state; with another text it is IDEMPOTENCY_CONFLICT.
func (s *Service) Send(ctx context.Context, id, clientMessageID, text string) (model.Turn, error) {
	return model.Turn{}, errNotBuilt
}

// Interrupt stops the turn in progress, or the messages that wait for a
// sandbox; TURN_NOT_RUNNING when there is nothing to stop.
func (s *Service) Interrupt(ctx context.Context, id string) (model.Turn, error) {
	return model.Turn{}, errNotBuilt
}

// Turn gives one turn of the conversation; TURN_NOT_FOUND for an unknown one.
func (s *Service) Turn(ctx context.Context, id, turnID string) (model.Turn, error) {
	return model.Turn{}, errNotBuilt
}

// Events gives up to limit events with seq > after, and the newest seq.
func (s *Service) Events(ctx context.Context, id string, after int64, limit int) (items []model.Event, lastSeq int64, err error) {
	return nil, 0, errNotBuilt
}

// Stream yields the events with seq > after, first those of the journal, then
// live ones, without a gap, until ctx ends or the conversation is deleted.
func (s *Service) Stream(ctx context.Context, id string, after int64) iter.Seq2[model.Event, error] {
	return func(yield func(model.Event, error) bool) { yield(model.Event{}, errNotBuilt) }
}

// Workspace gives the conversation's files, confined to /workspace, and the
// account that what is written should belong to. It starts or resumes the
// sandbox, and using the files counts as activity.
func (s *Service) Workspace(ctx context.Context, id string) (files sandbox.Files, account string, err error) {
	return nil, "", errNotBuilt
}

// CreateTerminal opens a shell of the conversation's account on a TTY. It
// starts or resumes the sandbox.
func (s *Service) CreateTerminal(ctx context.Context, id string, size sandbox.Size) (model.Terminal, error) {
	return model.Terminal{}, errNotBuilt
}

// Terminals lists the conversation's terminals, oldest first, gone ones too.
func (s *Service) Terminals(ctx context.Context, id string) ([]model.Terminal, error) {
	return nil, errNotBuilt
}

// DeleteTerminal ends the terminal and everything that its shell started.
func (s *Service) DeleteTerminal(ctx context.Context, id, terminalID string) error {
	return errNotBuilt
}

// AttachTerminal attaches to a terminal. One that ended with its sandbox is
// TERMINAL_NOT_FOUND, with the reason. ctx bounds the handshake only.
func (s *Service) AttachTerminal(ctx context.Context, id, terminalID string, o sandbox.AttachOptions) (sandbox.Attachment, error) {
	return nil, errNotBuilt
}

// Environments lists the Environments by name.
func (s *Service) Environments(ctx context.Context) ([]model.Environment, error) {
	return nil, errNotBuilt
}

// Agents lists the Agents by name.
func (s *Service) Agents(ctx context.Context) ([]model.Agent, error) { return nil, errNotBuilt }
