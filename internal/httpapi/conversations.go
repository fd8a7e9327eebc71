package httpapi

import (
	"context"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/astrabox/astrabox/internal/conversation"
	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

// Conv is the part of an input that names a conversation. It is exported
// because huma fills embedded parts only then.
type Conv struct {
	ID string `path:"id" doc:"Id of the conversation."`
}

type createInput struct {
	Key  string `header:"Idempotency-Key" maxLength:"200" doc:"Repeating a create with the same key gives the same conversation."`
	Body wire.CreateConversation
}

type listInput struct {
	Limit  int    `query:"limit" default:"50" minimum:"1" maximum:"200"`
	Cursor string `query:"cursor" maxLength:"500" doc:"next_cursor of the page before."`
}

type renameInput struct {
	Conv
	Body wire.ChangeConversation
}

type deleteOutput struct {
	Status int
	Body   model.Conversation
}

func (s *Server) conversationRoutes() {
	const tag = "conversations"
	register(s, operation{method: "POST", path: base + "/conversations", id: "create-conversation", tag: tag, status: http.StatusCreated,
		summary: "Create a conversation", description: "Its sandbox starts with the first message, file or terminal."},
		func(ctx context.Context, in *createInput) (*body[model.Conversation], error) {
			title, err := cleanTitle(in.Body.Title)
			if err != nil {
				return nil, err
			}
			c, err := s.service.CreateConversation(ctx, conversation.CreateRequest{Agent: in.Body.Agent, Title: title, IdempotencyKey: in.Key})
			return &body[model.Conversation]{c}, err
		})
	register(s, operation{method: "GET", path: base + "/conversations", id: "list-conversations", tag: tag, summary: "List conversations, newest first"},
		func(ctx context.Context, in *listInput) (*body[wire.Conversations], error) {
			items, next, err := s.service.List(ctx, in.Cursor, in.Limit)
			return &body[wire.Conversations]{wire.Conversations{Items: notNil(items), NextCursor: next}}, err
		})
	register(s, operation{method: "GET", path: oneConversation, id: "get-conversation", tag: tag, summary: "Read a conversation"},
		func(ctx context.Context, in *Conv) (*body[model.Conversation], error) {
			c, err := s.service.Get(ctx, in.ID)
			return &body[model.Conversation]{c}, err
		})
	register(s, operation{method: "PATCH", path: oneConversation, id: "rename-conversation", tag: tag, summary: "Rename a conversation"},
		func(ctx context.Context, in *renameInput) (*body[model.Conversation], error) {
			title, err := cleanTitle(in.Body.Title)
			if err != nil {
				return nil, err
			}
			c, err := s.service.Rename(ctx, in.ID, title)
			return &body[model.Conversation]{c}, err
		})
	register(s, operation{method: "DELETE", path: oneConversation, id: "delete-conversation", tag: tag, summary: "Delete a conversation and its sandbox",
		description: "200: a second observation found the sandbox gone. 202: that isn't confirmed yet, and is tried until it is."},
		func(ctx context.Context, in *Conv) (*deleteOutput, error) {
			c, err := s.service.Delete(ctx, in.ID)
			status := http.StatusOK
			if c.State != model.Deleted {
				status = http.StatusAccepted
			}
			return &deleteOutput{status, c}, err
		})
}

// cleanTitle trims a title and refuses control characters, which would break
// tables and terminals.
func cleanTitle(title string) (string, error) {
	title = strings.TrimSpace(title)
	if strings.ContainsFunc(title, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", fault.New(fault.RequestInvalid, "A title is one line without control characters.")
	}
	return title, nil
}

type sendInput struct {
	Conv
	Body wire.SendMessage
}

type eventsInput struct {
	Conv
	After int64 `query:"after" default:"0" minimum:"0" doc:"Only events with a greater number."`
	Limit int   `query:"limit" default:"500" minimum:"1" maximum:"1000"`
}

func (s *Server) messageRoutes() {
	register(s, operation{method: "POST", path: oneConversation + "/messages", id: "send-message", tag: "messages", status: http.StatusAccepted,
		summary: "Send a message", description: "It is queued behind the turn in progress; the events tell what becomes of it."},
		func(ctx context.Context, in *sendInput) (*body[model.Turn], error) {
			switch text := in.Body.Text; {
			case strings.TrimSpace(text) == "":
				return nil, fault.New(fault.RequestInvalid, "The message is empty.")
			case len(text) > wire.TextLimit:
				return nil, fault.New(fault.MessageTooLarge, "The message is %d bytes long; %d is the limit. Put longer text into a file.", len(text), wire.TextLimit)
			case strings.ContainsRune(text, 0) || !utf8.ValidString(text):
				return nil, fault.New(fault.RequestInvalid, "The message is not plain text: it holds a NUL.")
			}
			t, err := s.service.Send(ctx, in.ID, in.Body.ClientMessageID, in.Body.Text)
			return &body[model.Turn]{t}, err
		})
	register(s, operation{method: "POST", path: oneConversation + "/interrupt", id: "interrupt", tag: "messages", status: http.StatusAccepted,
		summary: "Stop the turn in progress"},
		func(ctx context.Context, in *Conv) (*body[model.Turn], error) {
			t, err := s.service.Interrupt(ctx, in.ID)
			return &body[model.Turn]{t}, err
		})
	type turnInput struct {
		Conv
		TurnID string `path:"turn_id"`
	}
	register(s, operation{method: "GET", path: oneConversation + "/turns/{turn_id}", id: "get-turn", tag: "messages", summary: "Read a turn"},
		func(ctx context.Context, in *turnInput) (*body[model.Turn], error) {
			t, err := s.service.Turn(ctx, in.ID, in.TurnID)
			return &body[model.Turn]{t}, err
		})
	register(s, operation{method: "GET", path: oneConversation + "/events", id: "list-events", tag: "events", summary: "Read the journal",
		description: "Fewer events than limit are given when they are large: there are more while the last one's seq is below last_seq."},
		func(ctx context.Context, in *eventsInput) (*body[wire.Events], error) {
			items, last, err := s.service.Events(ctx, in.ID, in.After, in.Limit)
			return &body[wire.Events]{wire.Events{Items: notNil(items), LastSeq: last}}, err
		})
}

func (s *Server) serverRoutes() {
	const tag = "configuration"
	register(s, operation{method: "GET", path: base + "/environments", id: "list-environments", tag: tag, summary: "List Environments"},
		func(ctx context.Context, _ *struct{}) (*body[wire.Items[model.Environment]], error) {
			items, err := s.service.Environments(ctx)
			return &body[wire.Items[model.Environment]]{wire.Items[model.Environment]{Items: notNil(items)}}, err
		})
	register(s, operation{method: "GET", path: base + "/agents", id: "list-agents", tag: tag, summary: "List Agents"},
		func(ctx context.Context, _ *struct{}) (*body[wire.Items[model.Agent]], error) {
			items, err := s.service.Agents(ctx)
			return &body[wire.Items[model.Agent]]{wire.Items[model.Agent]{Items: notNil(items)}}, err
		})
	register(s, operation{method: "GET", path: base + "/doctor", id: "doctor", tag: "server", summary: "Check the machine that runs sandboxes"},
		func(ctx context.Context, _ *struct{}) (*body[wire.Items[wire.Finding]], error) {
			var items []wire.Finding
			if s.Doctor != nil {
				items = s.Doctor(ctx)
			}
			return &body[wire.Items[wire.Finding]]{wire.Items[wire.Finding]{Items: notNil(items)}}, nil
		})
}

// notNil makes a list without entries [] in JSON.
func notNil[T any](items []T) []T {
	if items == nil {
		return []T{}
	}
	return items
}
