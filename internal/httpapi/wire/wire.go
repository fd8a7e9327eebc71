// Package wire holds the shapes of the HTTP API that are not resources of
// package model, and the limits that both sides keep. The server, its Go
// client and the command line share it, so that each shape is written once.
package wire

import (
	"encoding/json"
	"time"

	"github.com/astrabox/astrabox/internal/model"
)

// Limits of requests. A JSON body may be as long as JSONLimit, a message's
// text as long as TextLimit; uploads have no limit.
const (
	JSONLimit = 1 << 20   // bytes
	TextLimit = 256 << 10 // bytes of UTF-8
)

// TerminalProtocol is the WebSocket subprotocol of a terminal's attachment.
const TerminalProtocol = "astrabox.terminal.v1"

// Close codes of a terminal's attachment, beside the standard ones.
const (
	CloseRefused   = 4000 // any refusal; the error frame before it says which
	CloseDisplaced = 4001 // another attachment took the terminal over
	CloseNotFound  = 4004 // no such conversation or terminal
	CloseHeld      = 4009 // somebody else writes to it
)

// Problem is a failed request's body, application/problem+json (RFC 9457).
type Problem struct {
	Type      string   `json:"type" doc:"Always about:blank; the code says what happened."`
	Title     string   `json:"title" doc:"The HTTP status in words."`
	Status    int      `json:"status" doc:"The HTTP status."`
	Detail    string   `json:"detail" doc:"A sentence for people."`
	Code      string   `json:"code" doc:"The stable name of the failure, in UPPER_SNAKE."`
	Retryable bool     `json:"retryable" doc:"Whether the identical request may succeed later."`
	RequestID string   `json:"request_id" doc:"Names the request in the server's log."`
	Errors    []Detail `json:"errors,omitempty" doc:"What is wrong with which part of the request."`
}

// Detail points at one wrong part of a request.
type Detail struct {
	Location string `json:"location" doc:"For example body.text or query.limit."`
	Message  string `json:"message"`
}

// CreateConversation is the body of POST conversations.
type CreateConversation struct {
	Agent string `json:"agent,omitempty" maxLength:"200" doc:"Name or id of an Agent; empty: the default one."`
	Title string `json:"title,omitempty" maxLength:"200"`
}

// ChangeConversation is the body of PATCH conversations/{id}.
type ChangeConversation struct {
	Title string `json:"title" maxLength:"200"`
}

// SendMessage is the body of POST …/messages. Repeating it with the same
// client_message_id gives the same turn.
type SendMessage struct {
	ClientMessageID string `json:"client_message_id" minLength:"1" maxLength:"200" doc:"The sender's own id of this message, unique within the conversation."`
	Text            string `json:"text" doc:"At most 262144 bytes of UTF-8."`
}

// Conversations is a page of conversations, newest first.
type Conversations struct {
	Items      []model.Conversation `json:"items"`
	NextCursor string               `json:"next_cursor" doc:"Empty on the last page."`
}

// Events is a piece of a conversation's journal.
type Events struct {
	Items   []model.Event `json:"items"`
	LastSeq int64         `json:"last_seq" doc:"Number of the newest event of the conversation."`
}

// Items is a list that has one page.
type Items[T any] struct {
	Items []T `json:"items"`
}

// The kinds of a FileEntry.
const (
	TypeFile      = "file"
	TypeDirectory = "directory"
	TypeSymlink   = "symlink"
	TypeOther     = "other"
)

// FileEntry describes a file of a workspace.
type FileEntry struct {
	Name       string    `json:"name"`
	Path       string    `json:"path"`
	PathB64    string    `json:"path_b64,omitempty" doc:"The path's bytes in base64, when they are not UTF-8."`
	Type       string    `json:"type" enum:"file,directory,symlink,other"`
	Size       int64     `json:"size" doc:"In bytes."`
	Mode       string    `json:"mode" doc:"Permission bits in octal, four digits: the first one holds setuid, setgid and sticky." example:"0640"`
	Owner      string    `json:"owner"`
	Group      string    `json:"group"`
	ModifiedAt time.Time `json:"modified_at"`
	Target     string    `json:"target,omitempty" doc:"Of a symlink."`
	Version    string    `json:"version" doc:"Changes with the content; the ETag of the content, for If-Match."`
}

// FileList is what lies below a directory, in lexical order, children after
// their parent.
type FileList struct {
	Path    string      `json:"path"`
	Entries []FileEntry `json:"entries"`
}

// MakeDir is the body of POST …/files/mkdir.
type MakeDir struct {
	Path    string `json:"path"`
	Parents bool   `json:"parents,omitempty" doc:"Make missing parents; a folder that exists is success."`
}

// MoveFile is the body of POST …/files/move.
type MoveFile struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Replace bool   `json:"replace,omitempty" doc:"Replace what is at the target; otherwise that is FILE_EXISTS."`
}

// DeleteFiles is the body of POST …/files/delete. Folders go with all that is
// in them; what isn't there is success.
type DeleteFiles struct {
	Paths []string `json:"paths" minItems:"1" maxItems:"1000"`
}

// CreateTerminal is the body of POST …/terminals.
type CreateTerminal struct {
	Cols uint16 `json:"cols" minimum:"1" maximum:"1000"`
	Rows uint16 `json:"rows" minimum:"1" maximum:"1000"`
}

// Finding is one thing that was checked about the machine.
type Finding struct {
	ID       string `json:"id"`
	OK       bool   `json:"ok"`
	Severity string `json:"severity" doc:"info, warning or error."`
	Summary  string `json:"summary"`
	Fix      string `json:"fix" doc:"What to do about it; empty when all is well."`
}

// Health is the answer of /healthz and /readyz.
type Health struct {
	Status  string `json:"status"`
	Version string `json:"version"`
	Detail  string `json:"detail,omitempty"`
}

// ServerFrame is a text frame that a terminal's attachment gets. Output comes
// in binary frames: an 8-byte big-endian offset, then the bytes.
type ServerFrame struct {
	Type    string `json:"type"`             // ready, exit, displaced, gap, error, pong
	Mode    string `json:"mode,omitempty"`   // ready: write or watch
	Offset  *int64 `json:"offset,omitempty"` // ready: of the next byte
	Code    any    `json:"code,omitempty"`   // exit: the status; error: the code
	Signal  string `json:"signal,omitempty"` // exit: that ended it
	Oldest  *int64 `json:"oldest,omitempty"` // gap: where the output goes on
	Message string `json:"message,omitempty"`
}

// ClientFrame is a text frame that a terminal's attachment sends. Stdin goes
// in binary frames.
type ClientFrame struct {
	Type string `json:"type"` // resize, signal, ping
	Cols uint16 `json:"cols,omitempty"`
	Rows uint16 `json:"rows,omitempty"`
	Name string `json:"name,omitempty"` // signal: SIGINT, SIGTERM, SIGKILL, SIGQUIT or SIGHUP
}

// Data gives the members of an event's data.
func Data[T any](e model.Event) (v T, err error) {
	err = json.Unmarshal(e.Data, &v)
	return v, err
}
