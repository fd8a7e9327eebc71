package execd

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"unicode/utf8"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

// Processes gives the Processes face of the sandbox that c reaches.
func Processes(c *Conn) sandbox.Processes { return processes{c} }

type processes struct{ c *Conn }

// processID is what an id must look like to be put into a path.
var processID = regexp.MustCompile(`^[A-Za-z0-9-]{1,64}$`)

func (k processes) Start(ctx context.Context, s sandbox.ProcessSpec) (string, error) {
	if s.Key == "" {
		return "", sandbox.Errorf(sandbox.CodeInvalid, "the process has no key")
	}
	if ours, err := k.c.speaks(ctx, wire.FeatureProcess); err != nil {
		return "", err
	} else if !ours {
		return foreign(k).start(ctx, s)
	}
	if err := textOnly(s.Line, s.Dir, s.Env); err != nil {
		return "", err
	}
	if !utf8.ValidString(s.Key) {
		return "", sandbox.Errorf(sandbox.CodeInvalid, "the process's key isn't UTF-8")
	}
	req := wire.ProcessRequest{
		Key: s.Key, Command: s.Line, Cwd: s.Dir, Env: s.Env, User: s.User, Buffer: s.Buffer, Full: wire.FullDropOldest,
	}
	if s.Full == sandbox.Block {
		req.Full = wire.FullBlock
	}
	if s.TTY != nil {
		req.TTY = &wire.Size{Cols: s.TTY.Cols, Rows: s.TTY.Rows}
	}
	var made wire.ProcessCreated
	if err := k.c.json(ctx, http.MethodPost, "/pty", "", req, &made); err != nil {
		return "", startError(err)
	}
	return made.SessionID, nil
}

func (k processes) Status(ctx context.Context, id string) (sandbox.ProcessStatus, error) {
	if !processID.MatchString(id) {
		return sandbox.ProcessStatus{}, sandbox.ErrProcessNotFound
	}
	if ours, err := k.c.speaks(ctx, wire.FeatureProcess); err != nil {
		return sandbox.ProcessStatus{}, err
	} else if !ours {
		return foreign(k).status(ctx, id)
	}
	var st wire.ProcessStatus
	if err := k.c.json(ctx, http.MethodGet, "/pty/"+id, "", nil, &st); err != nil {
		return sandbox.ProcessStatus{}, processError(err)
	}
	out := sandbox.ProcessStatus{
		Run: st.Run, State: sandbox.ProcessState(st.State), Oldest: st.Oldest, Next: st.Next, Stdin: st.Stdin,
	}
	if st.Exit != nil {
		out.Exit = &sandbox.Exit{Code: st.Exit.Code, Signal: st.Exit.Signal}
	}
	return out, nil
}

func (k processes) Delete(ctx context.Context, id string) error {
	if !processID.MatchString(id) {
		return nil
	}
	if ours, err := k.c.speaks(ctx, wire.FeatureProcess); err != nil {
		return err
	} else if !ours {
		if err := foreign(k).delete(ctx, id); !errors.Is(err, sandbox.ErrProcessNotFound) {
			return err
		}
		return nil
	}
	err := processError(k.c.json(ctx, http.MethodDelete, "/pty/"+id, "", nil, nil))
	if errors.Is(err, sandbox.ErrProcessNotFound) {
		return nil
	}
	return err
}

func (k processes) Attach(ctx context.Context, id string, o sandbox.AttachOptions) (sandbox.Attachment, error) {
	if !processID.MatchString(id) {
		return nil, sandbox.ErrProcessNotFound
	}
	if o.From < 0 {
		return nil, sandbox.Errorf(sandbox.CodeInvalid, "the offset is negative")
	}
	if ours, err := k.c.speaks(ctx, wire.FeatureProcess); err != nil {
		return nil, err
	} else if !ours {
		return foreign(k).attach(ctx, id, o)
	}
	q := url.Values{"since": {strconv.FormatInt(o.From, 10)}}
	if o.Takeover {
		q.Set("takeover", "1")
	}
	if o.NoStart {
		q.Set("nostart", "1")
	}
	if o.ReadOnly {
		q.Set("mode", "viewer")
	}
	ws, err := k.c.socket(ctx, "/pty/"+id+"/ws", q.Encode(), wire.ProcessProtocol)
	if err != nil {
		return nil, attachError(err, o.From)
	}
	return attachOurs(ctx, ws, o)
}

// processError translates the refusal of an operation on a known process.
func processError(err error) error {
	var no *refusal
	switch {
	case err == nil || !errors.As(err, &no):
		return err
	case no.missing():
		return sandbox.ErrProcessNotFound
	default:
		return startError(err)
	}
}

func attachError(err error, from int64) error {
	var no *refusal
	if errors.As(err, &no) {
		switch no.code {
		case wire.CodeHeld:
			return sandbox.ErrProcessHeld
		case wire.CodeReplayGap:
			var gap wire.GapError
			if json.Unmarshal(no.body, &gap) == nil {
				return &sandbox.ReplayGapError{From: from, Oldest: gap.Oldest}
			}
		}
	}
	return processError(err)
}
