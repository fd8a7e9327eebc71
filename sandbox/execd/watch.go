package execd

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	// watchSilence is how long a daemon may say nothing: it gives a sign of life
	// every 15 s.
	watchSilence = 45 * time.Second
	// watchStart bounds the reading of the tree before the first line.
	watchStart = 90 * time.Second
	// watchPatience is how long a lost connection is tried again.
	watchPatience = time.Minute
	watchBackoff  = 100 * time.Millisecond
	maxBackoff    = 5 * time.Second
)

// Watch implements sandbox.Watcher. A connection that was lost is made again
// for up to a minute.
func (f *files) Watch(ctx context.Context, dir string, o sandbox.WatchOptions) (iter.Seq2[sandbox.Change, error], error) {
	ours, err := f.has(ctx, wire.FeatureWatch)
	if err == nil && !ours {
		return sandbox.Watch(ctx, base{f}, dir, o)
	}
	if err == nil {
		err = f.check(dir)
	}
	if o.Interval <= 0 {
		o.Interval = sandbox.DefaultWatchInterval
	}
	var w *watching
	if err == nil {
		w, err = f.watch(ctx, dir, o)
	}
	if err != nil {
		return nil, pathError(ctx, "watch", dir, err)
	}
	return func(yield func(sandbox.Change, error) bool) {
		for {
			err := w.changes(ctx, yield)
			w.close()
			if err == nil {
				return
			}
			if ctx.Err() == nil && errors.Is(err, sandbox.ErrUnreachable) {
				if w, err = f.watchAgain(ctx, dir, o); err == nil {
					if !yield(sandbox.Change{Kind: sandbox.ChangeResync, Path: dir, Dir: true}, nil) {
						w.close()
						return
					}
					continue
				}
			}
			yield(sandbox.Change{}, pathError(ctx, "watch", dir, err))
			return
		}
	}, nil
}

// watchAgain makes a lost watch anew.
func (f *files) watchAgain(ctx context.Context, dir string, o sandbox.WatchOptions) (*watching, error) {
	began, wait := time.Now(), watchBackoff
	for {
		// Also the first time: a daemon may cut off each watch as soon as it is made.
		if err := pause(ctx, wait); err != nil {
			return nil, err
		}
		w, err := f.watch(ctx, dir, o)
		if err == nil || !errors.Is(err, sandbox.ErrUnreachable) || ctx.Err() != nil || time.Since(began) > watchPatience {
			return w, err
		}
		wait = min(2*wait, maxBackoff)
	}
}

// pause waits, or gives ctx's error.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// watching is one connection of a watch.
type watching struct {
	body   io.ReadCloser
	lines  *bufio.Scanner
	cancel context.CancelFunc
	silent *time.Timer // ends a connection on which nothing comes any more
	limit  time.Duration
}

func (w *watching) close() {
	w.silent.Stop()
	w.cancel()
	w.body.Close()
}

// watch returns once the daemon says that all that happens is told.
func (f *files) watch(ctx context.Context, dir string, o sandbox.WatchOptions) (*watching, error) {
	inner, cancel := context.WithCancel(ctx)
	silent := time.AfterFunc(watchStart, cancel)
	resp, err := f.ask(inner, request{ //nolint:bodyclose // by close
		method: http.MethodGet, path: wire.PathWatch,
		query: f.query(dir, "interval_ms", strconv.FormatInt(max(1, o.Interval.Milliseconds()), 10)),
	})
	if err != nil {
		silent.Stop()
		cancel()
		if ctx.Err() == nil && errors.Is(err, context.Canceled) {
			err = fmt.Errorf("%w: the daemon doesn't answer", sandbox.ErrUnreachable)
		}
		return nil, err
	}
	limit := watchSilence
	if f.c.silence > 0 {
		limit = f.c.silence
	}
	w := &watching{body: resp.Body, lines: bufio.NewScanner(resp.Body), cancel: cancel, silent: silent, limit: limit}
	w.lines.Buffer(make([]byte, 0, 16<<10), maxLine)
	line, err := w.next(ctx)
	if err == nil && !line.Ready {
		err = fmt.Errorf("%w: the daemon's answer can't be read", sandbox.ErrUnreachable)
	}
	if err != nil {
		w.close()
		return nil, err
	}
	return w, nil
}

func (w *watching) next(ctx context.Context) (line wire.WatchLine, err error) {
	if !w.lines.Scan() {
		if err = w.lines.Err(); err == nil {
			err = io.ErrUnexpectedEOF
		}
		return line, unreachable(ctx, fmt.Errorf("the watch was cut off: %w", err))
	}
	w.silent.Reset(w.limit)
	if err := json.Unmarshal(w.lines.Bytes(), &line); err != nil {
		return line, unreachable(ctx, fmt.Errorf("the daemon's answer can't be read: %w", err))
	}
	if line.Error != nil {
		return line, causeOf(line.Error)
	}
	return line, nil
}

// changes yields what comes; nil says that the caller wants no more.
func (w *watching) changes(ctx context.Context, yield func(sandbox.Change, error) bool) error {
	for {
		line, err := w.next(ctx)
		if err != nil {
			return err
		}
		if line.Kind == "" {
			continue
		}
		c := sandbox.Change{
			Kind: sandbox.ChangeKind(line.Kind), Dir: line.Dir,
			Path: wire.JoinText(line.Path, line.PathB64), From: wire.JoinText(line.From, line.FromB64),
		}
		w.silent.Stop() // while the caller is busy
		if !yield(c, nil) {
			return nil
		}
		w.silent.Reset(w.limit)
	}
}
