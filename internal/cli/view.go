package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

// view prints the events of a turn: what the Agent says and what its commands
// print goes to the output, everything else to the error stream. It is for one
// goroutine.
type view struct {
	out, err io.Writer
	person   bool // somebody looks at the error stream
	tools    map[string]*tool
	midLine  bool // the output's last line isn't ended
	message  string
}

type tool struct {
	title   string
	printed string // of an output that is replaced as a whole
}

func newView(c *command) *view {
	v := &view{out: c.Stdout, err: c.Stderr, person: c.Terminal(c.Stderr), tools: map[string]*tool{}}
	if c.Terminal(c.Stdout) {
		v.out = newTame(c.Stdout)
	}
	return v
}

// show prints one event; the error is the output's.
func (v *view) show(e model.Event) error {
	switch e.Type {
	case model.EventAccepted:
		d, _ := wire.Data[agentprogram.Text](e) // a broken one is shown as empty
		v.message = d.Text
	case agentprogram.EventTextDelta:
		d, _ := wire.Data[agentprogram.Text](e)
		return v.print(d.Text)
	case agentprogram.EventTextDone:
		return v.rest()
	case agentprogram.EventToolStarted:
		d, _ := wire.Data[agentprogram.ToolStarted](e)
		return v.toolStarted(d)
	case agentprogram.EventToolOutput:
		d, _ := wire.Data[agentprogram.ToolOutput](e)
		return v.toolOutput(d)
	case agentprogram.EventToolEnded:
		d, _ := wire.Data[agentprogram.ToolEnded](e)
		return v.toolEnded(d)
	case agentprogram.EventNotice:
		d, _ := wire.Data[agentprogram.Notice](e)
		v.say("%s: %s", d.Level, harmless(d.Text))
	default:
		v.sandbox(e)
	}
	return nil
}

// print writes text as it is: it is the Agent's, and escape sequences are part
// of a command's output. Only a terminal is kept from most of them.
func (v *view) print(text string) error {
	if text == "" {
		return nil
	}
	v.midLine = !strings.HasSuffix(text, "\n")
	_, err := io.WriteString(v.out, text)
	return err
}

// rest ends a line that was begun.
func (v *view) rest() error {
	if !v.midLine {
		return nil
	}
	return v.print("\n")
}

func (v *view) say(format string, args ...any) {
	_ = v.rest() // an output that is gone is told by the next write
	fmt.Fprintf(v.err, format+"\n", args...)
}

func (v *view) tool(call string) *tool {
	t := v.tools[call]
	if t == nil {
		t = &tool{}
		v.tools[call] = t
	}
	return t
}

func (v *view) toolStarted(d agentprogram.ToolStarted) error {
	t := v.tool(d.Call)
	// The shell's only command is the message itself: it needs no repetition.
	if d.Title != "" && d.Title != t.title && strings.TrimSpace(d.Title) != strings.TrimSpace(v.message) {
		v.say("[%s] %s", harmless(d.Name), harmless(d.Title))
	}
	t.title = d.Title
	return nil
}

func (v *view) toolOutput(d agentprogram.ToolOutput) error {
	t := v.tool(d.Call)
	if d.Mode == agentprogram.OutputAppend {
		return v.print(d.Text)
	}
	more, grown := strings.CutPrefix(d.Text, t.printed)
	if !grown {
		if err := v.rest(); err != nil {
			return err
		}
		more = d.Text
	}
	t.printed = d.Text
	return v.print(more)
}

func (v *view) toolEnded(d agentprogram.ToolEnded) error {
	delete(v.tools, d.Call)
	if err := v.rest(); err != nil {
		return err
	}
	switch {
	case d.ExitCode != nil && *d.ExitCode != 0:
		v.say("[exit code %d]", *d.ExitCode)
	case d.Status == agentprogram.ToolFailed && d.ExitCode == nil:
		v.say("[failed]")
	}
	return nil
}

// sandbox tells what happens to the sandbox: trouble always, the rest to a
// person who waits.
func (v *view) sandbox(e model.Event) {
	type data struct {
		Step   string `json:"step"`
		MS     int64  `json:"ms"`
		Reason string `json:"reason"`
	}
	d, _ := wire.Data[data](e) // what can't be read is shown as empty
	switch e.Type {
	case model.EventStartFailed:
		v.say("[the sandbox could not be started: %s]", harmless(d.Reason))
	case model.EventLost:
		v.say("[the sandbox was lost: %s]", harmless(d.Reason))
	}
	if !v.person {
		return
	}
	switch e.Type {
	case model.EventStarting:
		v.say("[sandbox: %s]", harmless(d.Step))
	case model.EventResuming:
		v.say("[resuming the sandbox]")
	case model.EventReady, model.EventResumed:
		v.say("[sandbox ready after %d ms]", d.MS)
	}
}
