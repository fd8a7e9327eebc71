package conversation

import (
	"context"
	"errors"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/killpoint"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
	"github.com/astrabox/astrabox/sandbox"
)

var killTerminal = killpoint.New("terminal.stored")

// terminalLine starts the account's shell as a login does.
const terminalLine = `exec "${SHELL:-/bin/sh}" -l`

// terminalBuffer is the output of a terminal that a new attachment can replay.
const terminalBuffer = 1 << 20

// CreateTerminal opens a shell of the conversation's account on a TTY. It
// starts or resumes the sandbox. TERMINAL_LIMIT: there are MaxTerminals.
func (s *Service) CreateTerminal(ctx context.Context, id string, size sandbox.Size) (model.Terminal, error) {
	if size.Cols == 0 || size.Rows == 0 {
		return model.Terminal{}, fault.New(fault.RequestInvalid, "A terminal needs columns and rows.")
	}
	h, err := s.sandboxOf(ctx, id)
	if err != nil {
		return model.Terminal{}, err
	}
	defer s.use(id)()
	var env model.Environment
	rec := &model.TerminalRecord{Terminal: model.Terminal{ID: model.NewID(model.PrefixTerminal), ConversationID: id}, SandboxID: h.SandboxID()}
	if env, err = s.environmentOf(ctx, id); err != nil {
		return model.Terminal{}, err
	}
	err = s.store.Update(ctx, func(t *store.Tx) error {
		r, err := t.Load(id)
		if err != nil {
			return err
		}
		if err := usable(r); err != nil {
			return err
		}
		if r.Runtime.State != model.RuntimeReady || r.Runtime.SandboxID != h.SandboxID() {
			return fault.New(fault.ConversationConflict, "The sandbox was paused or replaced meanwhile.")
		}
		n, err := t.LiveTerminals(id)
		if err != nil {
			return err
		}
		if n >= MaxTerminals {
			return fault.New(fault.TerminalLimit, "")
		}
		return t.AddTerminal(rec)
	})
	if err != nil {
		return model.Terminal{}, err
	}
	killTerminal.Hit()
	processID, err := h.Processes().Start(ctx, sandbox.ProcessSpec{Key: rec.ID, Line: terminalLine, Dir: Workspace,
		Env: env.Env, User: env.Account, TTY: &size, Buffer: terminalBuffer, Full: sandbox.DropOldest})
	if err == nil {
		err = s.store.Update(context.WithoutCancel(ctx), func(t *store.Tx) error { return t.SetTerminalProcess(rec.ID, processID) })
	}
	if err != nil {
		// A row without a process is one that nobody can attach to.
		dropErr := s.store.Update(context.WithoutCancel(ctx), func(t *store.Tx) error { return t.DropTerminal(rec.ID) })
		return model.Terminal{}, errors.Join(err, dropErr)
	}
	return rec.Terminal, nil
}

func (s *Service) environmentOf(ctx context.Context, id string) (model.Environment, error) {
	r, err := s.store.Record(ctx, id)
	if err != nil {
		return model.Environment{}, err
	}
	return s.store.Environment(ctx, r.Environment)
}

// Terminals lists the conversation's terminals, oldest first, gone ones too.
func (s *Service) Terminals(ctx context.Context, id string) ([]model.Terminal, error) {
	if _, err := s.store.Record(ctx, id); err != nil {
		return nil, err
	}
	records, err := s.store.Terminals(ctx, id)
	if err != nil {
		return nil, err
	}
	out := make([]model.Terminal, len(records))
	for i, r := range records {
		out[i] = r.Terminal
	}
	return out, nil
}

// terminal finds a terminal's row; what is unknown, the conversation or the
// terminal, is said.
func (s *Service) terminal(ctx context.Context, id, terminalID string) (*model.TerminalRecord, error) {
	if _, err := s.store.Record(ctx, id); err != nil {
		return nil, err
	}
	return s.store.Terminal(ctx, id, terminalID)
}

// DeleteTerminal ends the terminal and everything that its shell started. It
// wakes no sandbox: the terminals of one that is paused are gone already.
func (s *Service) DeleteTerminal(ctx context.Context, id, terminalID string) error {
	rec, err := s.terminal(ctx, id, terminalID)
	if err != nil {
		return err
	}
	if rec.State == model.TerminalLive && rec.ProcessID != "" {
		h, err := s.sandboxOf(ctx, id)
		if err != nil {
			return err
		}
		if h.SandboxID() == rec.SandboxID {
			if err := h.Processes().Delete(ctx, rec.ProcessID); err != nil {
				return err
			}
		}
	}
	return s.store.Update(ctx, func(t *store.Tx) error { return t.DropTerminal(terminalID) })
}

// AttachTerminal attaches to a terminal. One that ended with its sandbox or by
// a pause is TERMINAL_NOT_FOUND, with the reason. ctx bounds the handshake
// only. Input and output count as activity; a terminal that is only open doesn't.
func (s *Service) AttachTerminal(ctx context.Context, id, terminalID string, o sandbox.AttachOptions) (sandbox.Attachment, error) {
	rec, err := s.terminal(ctx, id, terminalID)
	if err != nil {
		return nil, err
	}
	if rec.State == model.TerminalGone || rec.ProcessID == "" {
		return nil, terminalGone(rec)
	}
	h, err := s.sandboxOf(ctx, id)
	if err != nil {
		return nil, err
	}
	if h.SandboxID() != rec.SandboxID {
		return nil, terminalGone(rec)
	}
	a, err := h.Processes().Attach(ctx, rec.ProcessID, o)
	if errors.Is(err, sandbox.ErrProcessNotFound) {
		const reason = "The terminal's shell is gone from the sandbox."
		if err := s.store.Update(ctx, func(t *store.Tx) error { return t.EndTerminal(terminalID, reason) }); err != nil {
			return nil, err
		}
		return nil, fault.New(fault.TerminalNotFound, reason)
	}
	if sandbox.CodeOf(err) == sandbox.CodeInvalid && o.From > 0 {
		if st, lookErr := processStatus(ctx, h, rec.ProcessID); lookErr == nil && o.From > st.Next {
			return nil, fault.Wrap(fault.TerminalOffset, err, "")
		}
	}
	if err != nil {
		return nil, err
	}
	return &usedAttachment{Attachment: a, touch: func() { s.touch(id) }}, nil
}

func terminalGone(r *model.TerminalRecord) error {
	reason := r.Reason
	if reason == "" {
		reason = "The terminal ended with its sandbox."
	}
	return fault.New(fault.TerminalNotFound, "%s", reason)
}

// usedAttachment notes input and output as activity, output at most once a
// second.
type usedAttachment struct {
	sandbox.Attachment
	touch func()
	recvd time.Time // of Recv only, which is for one goroutine
}

func (a *usedAttachment) Recv(ctx context.Context) (sandbox.Frame, error) {
	f, err := a.Attachment.Recv(ctx)
	if now := time.Now(); err == nil && now.Sub(a.recvd) > time.Second {
		a.recvd = now
		a.touch()
	}
	return f, err
}

func (a *usedAttachment) Send(ctx context.Context, stdin []byte) error {
	a.touch()
	return a.Attachment.Send(ctx, stdin)
}
