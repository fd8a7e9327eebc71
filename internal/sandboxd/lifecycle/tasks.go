package lifecycle

import (
	"context"
	"sync"
	"time"
)

// tasks are the service's goroutines. Each has a context of its own, since the
// work goes on when the request that began it ends, and each is waited for.
type tasks struct {
	mu      sync.Mutex
	closed  bool
	wg      sync.WaitGroup
	next    int
	cancels map[int]task
}

type task struct {
	cancel context.CancelFunc
	finish bool // let it end by itself when the service stops
}

// start runs f in a goroutine with a context that ends after the timeout
// (zero: never), when cancel is called, or when the service stops; with finish
// set only when stopping takes too long. false: the service has stopped.
func (t *tasks) start(timeout time.Duration, finish bool, f func(context.Context)) (cancel context.CancelFunc, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, false
	}
	ctx, cancel := context.WithCancel(context.Background())
	end := cancel
	if timeout > 0 {
		ctx, end = context.WithTimeout(ctx, timeout)
	}
	id := t.next
	t.next++
	if t.cancels == nil {
		t.cancels = map[int]task{}
	}
	t.cancels[id] = task{cancel, finish}
	t.wg.Add(1)
	go func() {
		defer t.wg.Done()
		defer func() {
			end()
			cancel()
			t.mu.Lock()
			delete(t.cancels, id)
			t.mu.Unlock()
		}()
		f(ctx)
	}()
	return cancel, true
}

// close cancels what may be cancelled, waits for the rest until ctx ends, then
// cancels that too. It returns when every goroutine has ended.
func (t *tasks) close(ctx context.Context) {
	t.mu.Lock()
	t.closed = true
	for _, k := range t.cancels {
		if !k.finish {
			k.cancel()
		}
	}
	t.mu.Unlock()
	stop := context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		for _, k := range t.cancels {
			k.cancel()
		}
	})
	defer stop()
	t.wg.Wait()
}

// locks has one lock for each sandbox that is being worked on.
type locks struct {
	mu sync.Mutex
	m  map[string]*lock
}

type lock struct {
	held chan struct{} // full while held
	refs int
}

// lock takes the lock of id, or fails when ctx ends first.
func (l *locks) lock(ctx context.Context, id string) (unlock func(), err error) {
	l.mu.Lock()
	if l.m == nil {
		l.m = map[string]*lock{}
	}
	k := l.m[id]
	if k == nil {
		k = &lock{held: make(chan struct{}, 1)}
		l.m[id] = k
	}
	k.refs++
	l.mu.Unlock()
	drop := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.refs--; k.refs == 0 {
			delete(l.m, id)
		}
	}
	select {
	case k.held <- struct{}{}:
		return func() { <-k.held; drop() }, nil
	case <-ctx.Done():
		drop()
		return nil, ctx.Err()
	}
}
