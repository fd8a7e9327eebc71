package agentprogram

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"unicode/utf8"
)

// The bounds of what one turn may put into the journal and into the state. Past
// maxTools running calls a new one isn't shown; a longer input, title or output
// is cut and says so.
const (
	maxPiece      = 256 << 10 // text of one delta or appended output; longer text becomes several events
	maxReplace    = 1 << 20   // text of one replacing output
	maxInput      = 256 << 10
	maxTitle      = 4 << 10
	maxCallID     = 1 << 10
	maxTools      = 256
	maxEndedTools = 256
)

// tool is a running tool call. Hashes stand for what was shown, so that the
// state stays small and nothing is shown twice.
type tool struct {
	Call    string `json:"call"`
	Name    string `json:"name"`
	Kind    string `json:"kind"`
	Title   string `json:"title,omitempty"`
	Input   uint64 `json:"input,omitempty"`
	Output  uint64 `json:"output,omitempty"`
	Appends bool   `json:"appends,omitempty"` // its output came in pieces: content repeats it
}

// call is the id of a tool call.
type call = string

func (m *acp) onNotification(r *Result, msg message) {
	var p updateParams
	if msg.Method != "session/update" || !decode(msg.Params, &p) {
		r.Skipped = true
		return
	}
	// Outside a turn an update is a replay of what the journal has already, or
	// came after its turn's end.
	if m.s.Phase != phaseTurn || !m.ours(p.SessionID) {
		return
	}
	var kind struct {
		SessionUpdate string `json:"sessionUpdate"`
	}
	if !decode(p.Update, &kind) {
		r.Skipped = true
		return
	}
	switch kind.SessionUpdate {
	case "agent_message_chunk", "agent_thought_chunk":
		var u chunkUpdate
		if !decode(p.Update, &u) {
			r.Skipped = true
			return
		}
		if kind.SessionUpdate == "agent_message_chunk" {
			m.onText(r, u)
		} else {
			m.onThinking(r, u)
		}
	case "tool_call", "tool_call_update":
		var u toolUpdate
		if !decode(p.Update, &u) {
			r.Skipped = true
			return
		}
		m.onTool(r, u)
	}
	// Every other update is about things that the journal doesn't have yet:
	// plans, usage, modes, commands, and what later versions add.
}

func (m *acp) onText(r *Result, u chunkUpdate) {
	if m.s.TextOpen && u.MessageID != m.s.TextID {
		m.endText(r)
	}
	text := u.Content.text()
	if text == "" {
		return
	}
	m.s.Said, m.s.TextOpen, m.s.TextID = true, true, clip(u.MessageID, maxCallID)
	for piece := range pieces(text) {
		r.add(EventTextDelta, Text{piece})
	}
}

func (m *acp) onThinking(r *Result, u chunkUpdate) {
	text := u.Content.text()
	if text == "" {
		return
	}
	m.endText(r)
	m.s.Said = true
	for piece := range pieces(text) {
		r.add(EventThinkingDelta, Text{piece})
	}
}

// endText marks the end of a message: the protocol has no sign for it, so it is
// what comes after.
func (m *acp) endText(r *Result) {
	if m.s.TextOpen {
		r.add(EventTextDone, None{})
	}
	m.s.TextOpen, m.s.TextID = false, ""
}

func (m *acp) onTool(r *Result, u toolUpdate) {
	if u.ToolCallID == "" || len(u.ToolCallID) > maxCallID || m.toolEnded(u.ToolCallID) {
		r.Skipped = true
		return
	}
	t := m.tool(u.ToolCallID)
	if t == nil {
		r.Skipped = true
		return
	}
	var meta toolMeta
	decode(u.Meta, &meta)
	m.showTool(r, t, u, meta)
	m.showOutput(r, t, u, meta)
	if u.Status != "completed" && u.Status != "failed" {
		return
	}
	end := ToolEnded{Call: t.Call, Status: ToolCompleted}
	if u.Status == "failed" {
		end.Status = ToolFailed
	}
	var out commandOutput
	if decode(u.RawOutput, &out) {
		end.ExitCode, end.Cwd, end.DurationMS = out.ExitCode, clip(out.Cwd, maxTitle), out.DurationMS
	}
	if meta.TerminalExit != nil && meta.TerminalExit.ExitCode != nil {
		end.ExitCode = meta.TerminalExit.ExitCode
	}
	r.add(EventToolEnded, end)
	m.forget(t.Call)
}

// showTool emits tool.started when the call is new or its header changed.
func (m *acp) showTool(r *Result, t *tool, u toolUpdate, meta toolMeta) {
	was := *t
	if name := first(u.Name, meta.ClaudeCode.ToolName); name != "" {
		t.Name = clip(name, 256)
	}
	if u.Kind != "" {
		t.Kind = clip(u.Kind, 64)
	}
	if u.Title != "" {
		t.Title = clip(u.Title, maxTitle)
	}
	var input json.RawMessage
	if present(u.RawInput) {
		input = boundedInput(u.RawInput)
		t.Input = hash(string(input))
	}
	if t.Kind == "" {
		t.Kind = "other"
	}
	if t.Name == "" {
		t.Name = t.Kind
	}
	if *t == was {
		return
	}
	m.endText(r)
	m.s.Said = true
	r.add(EventToolStarted, ToolStarted{t.Call, t.Name, t.Kind, t.Title, input})
}

func (m *acp) showOutput(r *Result, t *tool, u toolUpdate, meta toolMeta) {
	for _, o := range []*metaOutput{meta.TerminalOutput, meta.TerminalOutputDelta} {
		if o == nil || o.Data == "" {
			continue
		}
		t.Appends = true
		for piece := range pieces(o.Data) {
			r.add(EventToolOutput, ToolOutput{t.Call, OutputAppend, piece})
		}
	}
	if u.Content == nil || t.Appends {
		return
	}
	text := clipOutput(contentText(*u.Content))
	if h := hash(text); h != t.Output {
		t.Output = h
		r.add(EventToolOutput, ToolOutput{t.Call, OutputReplace, text})
	}
}

// tool finds a running call, or makes it; nil when too many run.
func (m *acp) tool(id call) *tool {
	for i := range m.s.Tools {
		if m.s.Tools[i].Call == id {
			return &m.s.Tools[i]
		}
	}
	if len(m.s.Tools) >= maxTools {
		return nil
	}
	// The hash of no output, so that empty content isn't shown.
	m.s.Tools = append(m.s.Tools, tool{Call: id, Output: hash("")})
	return &m.s.Tools[len(m.s.Tools)-1]
}

func (m *acp) toolEnded(id call) bool { return slices.Contains(m.s.EndedTools, id) }

func (m *acp) forget(id call) {
	for i, t := range m.s.Tools {
		if t.Call == id {
			m.s.Tools = append(m.s.Tools[:i:i], m.s.Tools[i+1:]...)
			break
		}
	}
	if m.s.EndedTools = append(m.s.EndedTools, id); len(m.s.EndedTools) > maxEndedTools {
		m.s.EndedTools = append([]call(nil), m.s.EndedTools[len(m.s.EndedTools)-maxEndedTools:]...)
	}
}

// text is a content block in words; empty for a kind that has none.
func (c contentBlock) text() string {
	switch c.Type {
	case "", "text":
		return c.Text
	case "resource_link":
		return fmt.Sprintf("[%s](%s)", clip(first(c.Name, c.URI), maxTitle), clip(c.URI, maxTitle))
	case "image", "audio":
		return fmt.Sprintf("[%s, not shown]", c.Type)
	}
	return ""
}

func contentText(content []toolContent) string {
	var b strings.Builder
	for _, c := range content {
		text := c.Content.text()
		if c.Type == "diff" {
			text = diffText(c)
		}
		if text == "" {
			continue
		}
		if b.Len() > 0 && !strings.HasSuffix(b.String(), "\n") {
			b.WriteByte('\n')
		}
		b.WriteString(text)
	}
	return b.String()
}

// diffText shows a change as all old lines and all new ones, which is what the
// program gave: finding the smallest change is for who draws it.
func diffText(c toolContent) string {
	var b strings.Builder
	fmt.Fprintf(&b, "--- %s\n+++ %s\n", c.Path, c.Path)
	for _, part := range []struct{ sign, text string }{{"-", c.OldText}, {"+", c.NewText}} {
		for l := range strings.Lines(part.text) {
			b.WriteString(part.sign + strings.TrimSuffix(l, "\n") + "\n")
		}
	}
	return b.String()
}

// pieces cuts text into parts of at most maxPiece bytes, at characters.
func pieces(text string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for text != "" {
			cut := min(len(text), maxPiece)
			for cut < len(text) && !utf8.RuneStart(text[cut]) {
				cut--
			}
			if !yield(text[:cut]) {
				return
			}
			text = text[cut:]
		}
	}
}

func clipOutput(s string) string {
	if len(s) <= maxReplace {
		return s
	}
	cut := maxReplace
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return fmt.Sprintf("%s\n[%d more bytes are not shown]", s[:cut], len(s)-cut)
}

// boundedInput gives a tool's input as valid UTF-8; one that is too long
// becomes a string with its beginning.
func boundedInput(v json.RawMessage) json.RawMessage {
	if len(v) > maxInput {
		return raw(clip(strings.ToValidUTF8(string(v), "\uFFFD"), maxInput/8))
	}
	return json.RawMessage(strings.ToValidUTF8(string(v), "\uFFFD"))
}

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

func first(ss ...string) string {
	for _, s := range ss {
		if s != "" {
			return s
		}
	}
	return ""
}
