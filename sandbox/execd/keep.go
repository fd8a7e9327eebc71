package execd

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// Pauses between attempts to attach again.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = 2 * time.Second
)

// Keep attaches and stays attached: when the connection is lost, Recv attaches
// again from the next byte that it hasn't given, with pauses that grow from
// 20 ms to 2 s, for as long as its ctx lasts. Every byte and every end of a run
// comes once. It works over any [sandbox.Processes].
//
// An attachment that isn't ReadOnly takes the process over when it comes back,
// since its own lost connection may hold it; it starts nothing then. What can't
// be mended ends it: a gap, a process that is gone, another that took over, and a
// sandbox of which the backend says that it is gone or doesn't run, which ends
// its processes.
// Only output is mended: Send and the like fail with ErrUnreachable while there
// is no connection, since only the caller knows what to send again.
func Keep(ctx context.Context, p sandbox.Processes, id string, o sandbox.AttachOptions) (sandbox.Attachment, error) {
	a, err := p.Attach(ctx, id, o)
	if err != nil {
		return nil, err
	}
	k := &kept{p: p, id: id, o: o, a: a}
	k.o.NoStart, k.o.Takeover = true, !o.ReadOnly
	return k, nil
}

type kept struct {
	p  sandbox.Processes
	id string

	// Of Recv's goroutine.
	o     sandbox.AttachOptions // From is the next byte
	exits int                   // runs whose end was given

	mu     sync.Mutex
	a      sandbox.Attachment
	closed bool
}

func (k *kept) now() sandbox.Attachment {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.a
}

func (k *kept) Recv(ctx context.Context) (sandbox.Frame, error) {
	for {
		f, err := k.now().Recv(ctx)
		switch {
		case errors.Is(err, sandbox.ErrUnreachable):
			if err := k.again(ctx, err); err != nil {
				return sandbox.Frame{}, err
			}
			continue
		case err != nil:
			return f, err
		case f.Exit == nil:
			k.o.From = f.Offset + int64(len(f.Data))
		case f.Run <= k.exits:
			continue // given before the connection was lost
		default:
			k.exits, k.o.From = f.Run, f.Offset
		}
		return f, nil
	}
}

// again attaches anew; lost is why.
func (k *kept) again(ctx context.Context, lost error) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		k.now().Close()
		if k.isClosed() {
			return lost
		}
		a, err := k.p.Attach(ctx, k.id, k.o)
		if err == nil {
			return k.change(a, lost)
		}
		over := errors.Is(err, sandbox.ErrNotFound) || errors.Is(err, sandbox.ErrGone) || errors.Is(err, sandbox.ErrNotRunning)
		if over || !errors.Is(err, sandbox.ErrUnreachable) && !errors.Is(err, sandbox.ErrProcessHeld) {
			return err
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (k *kept) isClosed() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.closed
}

func (k *kept) change(a sandbox.Attachment, lost error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		a.Close()
		return lost
	}
	k.a = a
	return nil
}

func (k *kept) Send(ctx context.Context, b []byte) error         { return k.now().Send(ctx, b) }
func (k *kept) CloseStdin(ctx context.Context) error             { return k.now().CloseStdin(ctx) }
func (k *kept) Ack(ctx context.Context, offset int64) error      { return k.now().Ack(ctx, offset) }
func (k *kept) Resize(ctx context.Context, s sandbox.Size) error { return k.now().Resize(ctx, s) }
func (k *kept) Signal(ctx context.Context, name string) error    { return k.now().Signal(ctx, name) }

func (k *kept) Close() error {
	k.mu.Lock()
	k.closed = true
	a := k.a
	k.mu.Unlock()
	return a.Close()
}
