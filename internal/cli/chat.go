package cli

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/astrabox/astrabox/internal/agentprogram"
	"github.com/astrabox/astrabox/internal/httpapi/client"
	"github.com/astrabox/astrabox/internal/httpapi/wire"
	"github.com/astrabox/astrabox/internal/model"
)

func (c *command) chatCommand() *cobra.Command {
	ch := &chat{command: c}
	cmd := &cobra.Command{
		Use:   "chat [MESSAGE]",
		Short: "Talk with an Agent in a sandbox",
		Long: `Send MESSAGE and print what comes of it, live, until the turn ends. Without
MESSAGE, each line of standard input is a message, one after the other; on a
terminal there is a prompt.

A message with words that begin with "-" goes in quotes, or after "--".
Ctrl-C interrupts the turn; a second one leaves at once, and the turn goes on.
A new conversation is made unless -c names one. Its id is printed to the error
stream. With --json each event is a line of JSON.

Exit codes: 5 the turn failed, 130 it was interrupted.`,
		Args: nArgs(0, 1000),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			text := strings.Join(args, " ")
			if len(args) > 0 && strings.TrimSpace(text) == "" { // no conversation is made for it
				return usage("the message is empty")
			}
			if ch.api, err = c.client(); err != nil {
				return err
			}
			ch.view = newView(c)
			interrupts, stop := c.Interrupts()
			defer stop()
			ch.interrupts = interrupts
			if len(args) > 0 {
				return ch.say(cmd.Context(), text)
			}
			return ch.lines(cmd.Context())
		},
	}
	cmd.Flags().StringVarP(&ch.id, "conversation", "c", "", "go on in this conversation")
	cmd.Flags().StringVar(&ch.agent, "agent", "", "Agent of a new conversation")
	cmd.Flags().StringVar(&ch.title, "title", "", "title of a new conversation")
	return cmd
}

// doubleSignal is how close two interrupts are that count as one.
const doubleSignal = 300 * time.Millisecond

// chat is a series of turns in one conversation.
type chat struct {
	*command
	api          *client.Client
	id           string
	agent, title string
	opened       bool  // the conversation is known to exist
	after        int64 // number of the last event that was seen
	view         *view
	interrupts   <-chan os.Signal
}

// open makes the conversation for its first message, or looks at the one that
// was named.
func (c *chat) open(ctx context.Context) error {
	if c.opened {
		return nil
	}
	var v model.Conversation
	var err error
	if c.id != "" {
		v, err = c.api.Conversation(ctx, c.id)
	} else {
		v, err = c.api.CreateConversation(ctx, wire.CreateConversation{Agent: c.agent, Title: c.title}, "cli-"+rand.Text())
		if err == nil {
			c.note("conversation %s", v.ID)
		}
	}
	if err != nil {
		return err
	}
	c.id, c.after, c.opened = v.ID, v.LastSeq, true
	return nil
}

// lines sends each line of standard input, until its end or a turn that
// doesn't end well; a person at a prompt may go on after one.
func (c *chat) lines(ctx context.Context) error {
	person := c.Terminal(c.Stdin)
	if c.id != "" { // a wrong id is told before anything is typed
		if err := c.open(ctx); err != nil {
			return err
		}
	}
	input := make(chan string)
	ended := make(chan error, 1)
	over := make(chan struct{})
	defer close(over)
	// Not waited for: a read of a terminal can't be called off. It ends with
	// its read after the talk is over.
	go func() {
		r := bufio.NewReader(c.Stdin)
		for {
			line, err := readLine(r)
			line = strings.TrimRight(line, "\r\n")
			if line != "" || err == nil {
				select {
				case input <- line:
				case <-over:
					return
				}
			}
			if err != nil {
				ended <- err
				return
			}
		}
	}()
	for {
		if person {
			fmt.Fprint(c.Stderr, "> ")
		}
		select {
		case line := <-input:
			if strings.TrimSpace(line) == "" {
				continue
			}
			err := c.say(ctx, line)
			var failed exitError
			if person && errors.As(err, &failed) {
				continue
			}
			if err != nil {
				return err
			}
		case err := <-ended:
			if person {
				c.note("")
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-c.interrupts:
			c.note("")
			return exitError(ExitInterrupted)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readLine reads a line as long as a message may be.
func readLine(r *bufio.Reader) (string, error) {
	var line []byte
	for {
		piece, err := r.ReadSlice('\n')
		line = append(line, piece...)
		if len(line) > wire.TextLimit+2 {
			return "", fmt.Errorf("a line is longer than %d bytes, the limit of a message", wire.TextLimit)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return string(line), err
		}
	}
}

// say sends one message and shows its turn to the end.
func (c *chat) say(ctx context.Context, text string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := c.open(ctx); err != nil {
		return err
	}
	turn, err := c.send(ctx, text)
	if err != nil {
		return err
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		c.onInterrupt(ctx, cancel)
	}()
	defer func() { cancel(); <-stopped }()
	for e, err := range c.api.Stream(ctx, c.id, c.after) {
		if err != nil {
			_ = c.view.rest() // the talk is over
			if errors.Is(err, context.Canceled) {
				c.note("left; the turn goes on in %s", c.id)
				return exitError(ExitInterrupted)
			}
			return err
		}
		c.after = e.Seq
		if e.TurnID != "" && e.TurnID != turn.ID {
			continue
		}
		if c.json {
			if err := json.NewEncoder(c.Stdout).Encode(e); err != nil {
				return err
			}
		} else if err := c.view.show(e); err != nil {
			return err
		}
		if e.Type == model.EventTurnEnded && e.TurnID == turn.ID {
			return c.ended(e)
		}
	}
	_ = c.view.rest() // the talk is over
	return errors.New("the conversation was deleted")
}

// send sends the message, again when the connection was lost: its id makes
// that harmless.
func (c *chat) send(ctx context.Context, text string) (turn model.Turn, err error) {
	in := wire.SendMessage{ClientMessageID: "cli-" + rand.Text(), Text: text}
	for wait := 100 * time.Millisecond; ; wait *= 2 {
		turn, err = c.api.Send(ctx, c.id, in)
		var lost *client.Unreachable
		if !errors.As(err, &lost) || wait > 2*time.Second {
			return turn, err
		}
		select {
		case <-ctx.Done():
			return turn, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// onInterrupt asks the server to stop the turn at the first Ctrl-C, and leaves
// at the second.
func (c *chat) onInterrupt(ctx context.Context, leave func()) {
	select {
	case <-ctx.Done():
		return
	case <-c.interrupts:
	}
	c.note("\ninterrupting; Ctrl-C once more leaves without waiting")
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if _, err := c.api.Interrupt(ctx, c.id); err != nil && ctx.Err() == nil {
			c.note("astrabox: the turn could not be interrupted: %v", err)
		}
	}()
	// A wrapper that passes the signal on to the whole group makes two of one.
	select {
	case <-time.After(doubleSignal):
	case <-ctx.Done():
	}
	for len(c.interrupts) > 0 {
		<-c.interrupts
	}
	select {
	case <-c.interrupts:
		leave()
	case <-ctx.Done():
	}
	<-asked
}

// ended turns the end of a turn into an exit code.
func (c *chat) ended(e model.Event) error {
	if err := c.view.rest(); err != nil {
		return err
	}
	end, err := wire.Data[agentprogram.TurnEnd](e)
	if err != nil {
		return fmt.Errorf("the end of the turn can't be read: %w", err)
	}
	switch end.Reason {
	case string(model.TurnDone):
		return nil
	case string(model.TurnInterrupted):
		c.note("the turn was interrupted")
		return exitError(ExitInterrupted)
	}
	why := "the turn ended: " + end.Reason
	if end.Error != nil {
		why += ": " + harmless(end.Error.Message) + " (" + end.Error.Code + ")"
	}
	c.note("astrabox: %s", why)
	return exitError(ExitTurn)
}
