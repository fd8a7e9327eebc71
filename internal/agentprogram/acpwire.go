package agentprogram

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"
)

// message is a JSON-RPC 2.0 message of either direction.
type message struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

type rpcError struct {
	Code    int64           `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data,omitempty"`
}

// failure is the error in words: programs put the real cause into data as often
// as into the message.
func (e *rpcError) failure() Failure {
	text := strings.TrimSpace(e.Message)
	var data struct {
		Details string `json:"details"`
		Message string `json:"message"`
	}
	var plain string
	if decode(e.Data, &data); data.Details+data.Message != "" {
		plain = first(data.Details, data.Message)
	} else {
		decode(e.Data, &plain) // data of any other shape says nothing to a person
	}
	if plain = strings.TrimSpace(plain); plain != "" && plain != text {
		text = strings.TrimPrefix(text+": "+plain, ": ")
	}
	if text == "" {
		text = "The Agent program reported an error without saying which."
	}
	return Failure{CodeAgentError, clip(text, 2048)}
}

type initializeParams struct {
	ProtocolVersion    int                `json:"protocolVersion"`
	ClientCapabilities clientCapabilities `json:"clientCapabilities"`
	ClientInfo         clientInfo         `json:"clientInfo"`
}

type clientCapabilities struct {
	FS struct {
		ReadTextFile  bool `json:"readTextFile"`
		WriteTextFile bool `json:"writeTextFile"`
	} `json:"fs"`
	Terminal bool            `json:"terminal"`
	Meta     map[string]bool `json:"_meta"`
}

type clientInfo struct {
	Name    string `json:"name"`
	Title   string `json:"title"`
	Version string `json:"version"`
}

type initializeResult struct {
	ProtocolVersion   int `json:"protocolVersion"`
	AgentCapabilities struct {
		LoadSession         bool `json:"loadSession"`
		SessionCapabilities struct {
			Resume json.RawMessage `json:"resume"`
		} `json:"sessionCapabilities"`
	} `json:"agentCapabilities"`
}

type sessionParams struct {
	SessionID  string      `json:"sessionId,omitempty"`
	Cwd        string      `json:"cwd,omitempty"`
	McpServers *[]struct{} `json:"mcpServers,omitempty"` // an empty list, where the method wants one
}

type promptParams struct {
	SessionID string         `json:"sessionId"`
	Prompt    []contentBlock `json:"prompt"`
}

type contentBlock struct {
	Type string `json:"type"`
	Text string `json:"text,omitempty"`
	Name string `json:"name,omitempty"`
	URI  string `json:"uri,omitempty"`
}

type permissionParams struct {
	SessionID string                 `json:"sessionId"`
	ToolCall  toolUpdate             `json:"toolCall"`
	Options   list[permissionOption] `json:"options"`
}

type permissionOption struct {
	OptionID string `json:"optionId"`
	Kind     string `json:"kind"`
}

type permissionAnswer struct {
	Outcome struct {
		Outcome  string `json:"outcome"`
		OptionID string `json:"optionId,omitempty"`
	} `json:"outcome"`
}

type updateParams struct {
	SessionID string          `json:"sessionId"`
	Update    json.RawMessage `json:"update"`
}

type chunkUpdate struct {
	MessageID string       `json:"messageId"`
	Content   contentBlock `json:"content"`
}

// toolUpdate is a tool_call, a tool_call_update, or the tool call of a request
// for permission: what is absent hasn't changed.
type toolUpdate struct {
	ToolCallID string             `json:"toolCallId"`
	Title      string             `json:"title"`
	Name       string             `json:"name"`
	Kind       string             `json:"kind"`
	Status     string             `json:"status"`
	Content    *list[toolContent] `json:"content"`
	RawInput   json.RawMessage    `json:"rawInput"`
	RawOutput  json.RawMessage    `json:"rawOutput"`
	Meta       json.RawMessage    `json:"_meta"`
}

type toolContent struct {
	Type    string       `json:"type"` // content, diff, terminal
	Content contentBlock `json:"content"`
	Path    string       `json:"path"`
	OldText string       `json:"oldText"`
	NewText string       `json:"newText"`
}

// toolMeta is what programs put beside the protocol's own fields.
type toolMeta struct {
	TerminalOutput      *metaOutput `json:"terminal_output"`
	TerminalOutputDelta *metaOutput `json:"terminal_output_delta"`
	TerminalExit        *struct {
		ExitCode *int `json:"exit_code"`
	} `json:"terminal_exit"`
	ClaudeCode struct {
		ToolName string `json:"toolName"`
	} `json:"claudeCode"`
}

type metaOutput struct {
	Data string `json:"data"`
}

// commandOutput is the part of rawOutput that is told about a command.
type commandOutput struct {
	ExitCode   *int   `json:"exit_code"`
	Cwd        string `json:"cwd"`
	DurationMS *int64 `json:"duration_ms"`
}

// maxItems bounds the lists of a message.
const maxItems = 1000

// list is a list of which the first maxItems are read. An entry takes three
// bytes on the line and a hundred in memory, so without a bound one line of a
// hostile program would take gigabytes, again after each restart.
type list[T any] []T

func (l *list[T]) UnmarshalJSON(b []byte) error {
	*l = nil
	d := json.NewDecoder(bytes.NewReader(b)) // b is valid JSON
	if start, err := d.Token(); err != nil || start != json.Delim('[') {
		return nil //nolint:nilerr // another type than expected is forgiven, as decode does
	}
	for len(*l) < maxItems && d.More() {
		var item json.RawMessage
		if err := d.Decode(&item); err != nil {
			return err
		}
		var v T
		decode(item, &v)
		*l = append(*l, v)
	}
	return nil
}

// decode reads JSON and forgives a field of an unexpected type, which then has
// its zero value: programs differ in fields that don't matter here. It reports
// false for what isn't JSON.
func decode(data []byte, v any) bool {
	err := json.Unmarshal(data, v)
	var mistyped *json.UnmarshalTypeError
	return err == nil || errors.As(err, &mistyped)
}

// raw encodes a value of this package's own types, which can't fail.
func raw(v any) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return json.RawMessage("null")
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// line renders a message with its LF.
func line(m message) []byte {
	m.JSONRPC = "2.0"
	return append(raw(m), '\n')
}

// present says whether an optional capability was declared: an object, however
// empty, is a yes.
func present(v json.RawMessage) bool {
	return len(v) > 0 && string(v) != "null" && string(v) != "false"
}

// clip cuts s to at most n bytes at a character, and says that it did.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	cut := n - len("…")
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}
