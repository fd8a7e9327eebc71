package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"slices"
	"strings"
	"time"
)

// ErrLimit: something is larger than the sandbox or its provider takes, such
// as a tree with too many directories to watch. The message says which limit.
var ErrLimit error = &sentinel{"sandbox: a limit was reached", ErrPathRejected}

// ChangeKind says what happened to a file.
type ChangeKind string

// The kinds of [Change].
const (
	// ChangeCreated: Path names a new file, also when a complete file replaced
	// another one.
	ChangeCreated ChangeKind = "created"
	// ChangeModified: content or attributes of the file changed.
	ChangeModified ChangeKind = "modified"
	// ChangeRemoved: Path names nothing any more, or moved out of the tree.
	ChangeRemoved ChangeKind = "removed"
	// ChangeMoved: what was at From is at Path, with all below it; what was at
	// Path before is gone.
	ChangeMoved ChangeKind = "moved"
	// ChangeResync: more happened at or below Path than could be told. What is
	// known of it must be read again.
	ChangeResync ChangeKind = "resync"
)

// Change is something that happened below a watched directory. A directory
// that was created comes with a Change for everything that it holds by then.
type Change struct {
	Kind ChangeKind
	Path string // absolute, spelled as the watched directory was
	From string // of ChangeMoved
	Dir  bool   // Path is (or was) a directory
}

// WatchOptions are the options of [Watch].
type WatchOptions struct {
	// Interval is how long changes are gathered before they are told: several
	// of one file become one, and a file that came and went may be told as
	// removed alone. 0 means 100 ms; at most 10 s. [Watch] over base operations
	// alone looks every 2 s at the most often.
	Interval time.Duration
}

// DefaultWatchInterval is what WatchOptions.Interval 0 means.
const DefaultWatchInterval = 100 * time.Millisecond

// MaxWatchInterval bounds WatchOptions.Interval.
const MaxWatchInterval = 10 * time.Second

// Watcher is what a Files may have beside its methods; use the function [Watch].
type Watcher interface {
	// Watch has the contract of the function Watch.
	Watch(ctx context.Context, dir string, o WatchOptions) (iter.Seq2[Change, error], error)
}

// Watch tells what changes below dir, links not followed. Whatever happens
// after Watch returned is told, or covered by a [ChangeResync]: what was read
// of the tree before may be older, so read it after. The sequence can be ranged
// over once and holds resources until it was, or ctx ended.
//
// It goes on until the caller stops ranging, or ends with an error: the
// context's; ErrPathNotFound when dir itself is gone or moved; [ErrLimit] for a
// tree that is too large to be watched; ErrUnreachable when the sandbox could
// not be asked for some time. A lost connection that came back is a
// ChangeResync.
//
// A caller that is slow gets fewer, coarser changes, in the end a ChangeResync.
// Where f isn't a [Watcher], the tree is listed again and again: at most
// 10,000 files of it (more is ErrLimit) down to 64 levels, moves are a removal
// and a creation, and a change that leaves size, time, mode and version as they
// were isn't seen.
func Watch(ctx context.Context, f Files, dir string, o WatchOptions) (iter.Seq2[Change, error], error) {
	if o.Interval < 0 || o.Interval > MaxWatchInterval {
		return nil, &PathError{Op: "watch", Path: dir, Err: fmt.Errorf("%w: an interval is from 0 to %s", ErrPathRejected, MaxWatchInterval)}
	}
	if o.Interval == 0 {
		o.Interval = DefaultWatchInterval
	}
	if w, ok := f.(Watcher); ok {
		return w.Watch(ctx, dir, o)
	}
	p := &poller{files: f, dir: dir, every: max(o.Interval, pollInterval)}
	first, err := p.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return func(yield func(Change, error) bool) { p.run(ctx, first, yield) }, nil
}

const (
	pollInterval = 2 * time.Second
	pollLimit    = 10_000
	pollDepth    = 64
	// pollPatience is how long a sandbox may stay out of reach.
	pollPatience = time.Minute
)

// poller watches by listing.
type poller struct {
	files Files
	dir   string
	every time.Duration
}

// state is what tells a file from another, or from what it was.
type state struct {
	version string
	mode    fs.FileMode
	size    int64
	time    int64
	owner   string
}

// snapshot lists the tree.
func (p *poller) snapshot(ctx context.Context) (map[string]state, error) {
	list, err := p.files.List(ctx, p.dir, pollDepth)
	if err != nil {
		return nil, err
	}
	all := map[string]state{}
	for info, err := range list {
		if err != nil {
			return nil, err
		}
		if len(all) == pollLimit {
			return nil, &PathError{Op: "watch", Path: p.dir, Err: fmt.Errorf("%w: more than %d files", ErrLimit, pollLimit)}
		}
		s := state{info.Version, info.Mode, info.Size, info.ModTime.UnixNano(), info.Owner + ":" + info.Group}
		if info.IsDir() {
			// What happens inside a directory is told by what it holds.
			s.version, s.size, s.time = "", 0, 0
		}
		all[info.Path] = s
	}
	return all, nil
}

func (p *poller) run(ctx context.Context, old map[string]state, yield func(Change, error) bool) {
	timer := time.NewTimer(p.every)
	defer timer.Stop()
	asked, lost := time.Now(), false
	for {
		select {
		case <-ctx.Done():
			yield(Change{}, &PathError{Op: "watch", Path: p.dir, Err: ctx.Err()})
			return
		case <-timer.C:
		}
		now, err := p.snapshot(ctx)
		switch {
		case err == nil:
			asked = time.Now()
		case errors.Is(err, ErrUnreachable) && ctx.Err() == nil && time.Since(asked) < pollPatience:
			now, lost = old, true
		default:
			yield(Change{}, err)
			return
		}
		if err == nil && lost {
			lost = false
			if !yield(Change{Kind: ChangeResync, Path: p.dir, Dir: true}, nil) {
				return
			}
		}
		for _, c := range changes(old, now) {
			if !yield(c, nil) {
				return
			}
		}
		old = now
		timer.Reset(p.every)
	}
}

// changes compares two states of a tree: removals first, deepest first, then
// the rest, parents first.
func changes(old, now map[string]state) []Change {
	var gone, rest []Change
	for path, was := range old {
		if is, ok := now[path]; !ok || is.mode.Type() != was.mode.Type() {
			gone = append(gone, Change{Kind: ChangeRemoved, Path: path, Dir: was.mode.IsDir()})
		}
	}
	for path, is := range now {
		was, ok := old[path]
		switch {
		case !ok || is.mode.Type() != was.mode.Type():
			rest = append(rest, Change{Kind: ChangeCreated, Path: path, Dir: is.mode.IsDir()})
		case is != was:
			rest = append(rest, Change{Kind: ChangeModified, Path: path, Dir: is.mode.IsDir()})
		}
	}
	slices.SortFunc(gone, func(a, b Change) int { return strings.Compare(b.Path, a.Path) })
	slices.SortFunc(rest, func(a, b Change) int { return strings.Compare(a.Path, b.Path) })
	return append(gone, rest...)
}
