package httpapitest

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/sandbox"
)

// Terminal is a process without a program: the test emits its output and sees
// what was sent to it.
type Terminal struct {
	model.Terminal

	mu      sync.Mutex
	wake    chan struct{}
	out     []byte
	oldest  int64
	exit    *sandbox.Exit
	holder  *attachment
	stdin   []byte
	sizes   []sandbox.Size
	signals []string
	closed  int
}

// CreateTerminal makes one.
func (s *Service) CreateTerminal(_ context.Context, id string, size sandbox.Size) (model.Terminal, error) {
	if err := s.fail("CreateTerminal"); err != nil {
		return model.Terminal{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.find(id)
	if err != nil {
		return model.Terminal{}, err
	}
	t := &Terminal{wake: make(chan struct{}), sizes: []sandbox.Size{size}}
	t.Terminal = model.Terminal{ID: model.NewID(model.PrefixTerminal), ConversationID: id, State: model.TerminalLive, CreatedAt: time.Now().UTC()}
	st.terms = append(st.terms, t)
	return t.Terminal, nil
}

// Terminals lists them.
func (s *Service) Terminals(_ context.Context, id string) ([]model.Terminal, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.find(id)
	if err != nil {
		return nil, err
	}
	var out []model.Terminal
	for _, t := range st.terms {
		out = append(out, t.Terminal)
	}
	return out, nil
}

// Terminal gives one for the test to drive; nil when there is none.
func (s *Service) Terminal(id, terminalID string) *Terminal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st := s.conv[id]; st != nil {
		for _, t := range st.terms {
			if t.ID == terminalID {
				return t
			}
		}
	}
	return nil
}

// DeleteTerminal ends one.
func (s *Service) DeleteTerminal(_ context.Context, id, terminalID string) error {
	t := s.Terminal(id, terminalID)
	if t == nil {
		return fault.New(fault.TerminalNotFound, "")
	}
	t.End(sandbox.Exit{Code: 129, Signal: "SIGHUP"})
	return nil
}

// AttachTerminal attaches as execd would.
func (s *Service) AttachTerminal(_ context.Context, id, terminalID string, o sandbox.AttachOptions) (sandbox.Attachment, error) {
	if err := s.fail("AttachTerminal"); err != nil {
		return nil, err
	}
	if _, err := s.Get(context.Background(), id); err != nil {
		return nil, err
	}
	t := s.Terminal(id, terminalID)
	if t == nil {
		return nil, sandbox.ErrProcessNotFound
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if o.From < t.oldest {
		return nil, &sandbox.ReplayGapError{From: o.From, Oldest: t.oldest}
	}
	a := &attachment{t: t, at: o.From, watch: o.ReadOnly}
	if !o.ReadOnly {
		if t.holder != nil && !o.Takeover {
			return nil, sandbox.ErrProcessHeld
		}
		if t.holder != nil {
			t.holder.displaced = true
		}
		t.holder = a
	}
	t.signal()
	return a, nil
}

// signal wakes everybody who waits on t; t.mu is held.
func (t *Terminal) signal() {
	close(t.wake)
	t.wake = make(chan struct{})
}

// Emit is output of the terminal.
func (t *Terminal) Emit(data string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.out = append(t.out, data...)
	t.signal()
}

// Forget drops output before offset.
func (t *Terminal) Forget(offset int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.oldest = offset
}

// End is the end of the terminal's shell.
func (t *Terminal) End(e sandbox.Exit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.exit = &e
	t.signal()
}

// Wait returns when done holds for what the terminal got.
func (t *Terminal) Wait(ctx context.Context, done func(stdin string, sizes []sandbox.Size, signals []string, closed int) bool) error {
	for {
		t.mu.Lock()
		ok, wake := done(string(t.stdin), t.sizes, t.signals, t.closed), t.wake
		t.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type attachment struct {
	t         *Terminal
	at        int64
	watch     bool
	displaced bool
	ended     bool
	buf       []byte
}

func (a *attachment) Recv(ctx context.Context) (sandbox.Frame, error) {
	for {
		a.t.mu.Lock()
		wake := a.t.wake
		next := int64(len(a.t.out))
		switch {
		case a.displaced:
			a.t.mu.Unlock()
			return sandbox.Frame{}, sandbox.ErrDisplaced
		case a.at < next:
			a.buf = append(a.buf[:0], a.t.out[a.at:]...)
			f := sandbox.Frame{Run: 1, Offset: a.at, Channel: sandbox.Stdout, Data: a.buf}
			a.at = next
			a.t.mu.Unlock()
			return f, nil
		case a.t.exit != nil && !a.ended:
			a.ended = true
			f := sandbox.Frame{Run: 1, Exit: a.t.exit}
			a.t.mu.Unlock()
			return f, nil
		case a.t.exit != nil:
			a.t.mu.Unlock()
			return sandbox.Frame{}, io.EOF
		}
		a.t.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return sandbox.Frame{}, ctx.Err()
		}
	}
}

func (a *attachment) Send(_ context.Context, stdin []byte) error {
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	a.t.stdin = append(a.t.stdin, stdin...)
	a.t.signal()
	return nil
}

func (a *attachment) CloseStdin(context.Context) error { return nil }

func (a *attachment) Ack(context.Context, int64) error { return nil }

func (a *attachment) Resize(_ context.Context, size sandbox.Size) error {
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	a.t.sizes = append(a.t.sizes, size)
	a.t.signal()
	return nil
}

func (a *attachment) Signal(_ context.Context, name string) error {
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	a.t.signals = append(a.t.signals, name)
	a.t.signal()
	return nil
}

func (a *attachment) Close() error {
	a.t.mu.Lock()
	defer a.t.mu.Unlock()
	a.t.closed++
	if a.t.holder == a {
		a.t.holder = nil
	}
	a.t.signal()
	return nil
}
