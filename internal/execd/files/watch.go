package files

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/execd/wire"
)

const (
	maxWatchers  = 32
	maxWatchDirs = 16 << 10 // of one watcher
	// maxWatchLevels is how deep a watched tree is; reading it holds descriptors
	// per level.
	maxWatchLevels = 128

	maxPending   = 4 << 10 // changes gathered at a time; more become a resync
	maxHalves    = 256     // moves of which the other half is awaited
	beatTime     = 15 * time.Second
	watchWrite   = 10 * time.Second // for a client that doesn't read
	rebuildPause = time.Second      // between two readings of the whole tree
)

// watch tells what changes below a directory for as long as the client stays.
// It costs nothing while nobody watches.
func (s *service) watch(w http.ResponseWriter, r *http.Request) error {
	q, err := s.query(r, "interval_ms")
	if err != nil {
		return err
	}
	interval := sandbox.DefaultWatchInterval
	if text := q.Get("interval_ms"); text != "" {
		ms, err := strconv.Atoi(text)
		if interval = time.Duration(ms) * time.Millisecond; err != nil || ms < 1 || interval > sandbox.MaxWatchInterval {
			return failf(wire.CodePathInvalid, "interval_ms %s isn't a number from 1 to %d", strconv.QuoteToASCII(text), sandbox.MaxWatchInterval.Milliseconds())
		}
	}
	if s.watchers.Add(1) > maxWatchers {
		s.watchers.Add(-1)
		return failf(wire.CodeFileLimit, "%d watchers are at work already", maxWatchers)
	}
	defer s.watchers.Add(-1)
	t, err := s.newWatchTree(q["root"], q.Get("path"))
	if err != nil {
		return err
	}
	defer t.close()
	v := &watcher{
		t: t, interval: interval, changes: gathered{root: t.path(nil, "")},
		rc: http.NewResponseController(w), enc: newEncoder(w),
	}
	if err := t.build(); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if !v.say(wire.WatchLine{Ready: true}) {
		return nil
	}
	if err := v.run(r.Context()); err != nil {
		v.flush()
		v.say(wire.WatchLine{Error: failureOf(err).wire()})
	}
	return nil
}

// newEncoder writes JSON as it is.
func newEncoder(w io.Writer) *json.Encoder {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc
}

// watcher is one client's watch.
type watcher struct {
	t        *watchTree
	interval time.Duration
	changes  gathered
	rc       *http.ResponseController
	enc      *json.Encoder
	lost     bool // the client doesn't take any more

	due      time.Time // when what is gathered is told; zero: nothing is
	beat     time.Time // when the next sign of life is due
	broken   time.Time // when the tree is to be read anew; zero: it is known
	lastRead time.Time
}

var errWatchGone = failf(wire.CodeFileNotFound, "the watched directory is gone or moved")

// say writes one line at once.
func (v *watcher) say(line wire.WatchLine) bool {
	if v.lost {
		return false
	}
	v.rc.SetWriteDeadline(time.Now().Add(watchWrite)) //nolint:errcheck // the write tells
	err := v.enc.Encode(line)
	if err == nil {
		err = v.rc.Flush()
	}
	v.lost = err != nil
	v.beat = time.Now().Add(beatTime)
	return !v.lost
}

// run ends with an error when there is nothing to watch any more, and without
// one when the client has gone.
func (v *watcher) run(ctx context.Context) error {
	in := v.t.events
	stop := context.AfterFunc(ctx, func() { in.SetReadDeadline(time.Unix(1, 0)) }) //nolint:errcheck // it can
	defer stop()
	buf := make([]byte, 64<<10)
	for !v.lost {
		next := v.beat
		for _, at := range []time.Time{v.due, v.broken} {
			if !at.IsZero() && at.Before(next) {
				next = at
			}
		}
		if err := in.SetReadDeadline(next); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		n, err := in.Read(buf)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if err := v.events(buf[:n]); err != nil {
			return err
		}
		if err := v.tick(time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// tick does what is due.
func (v *watcher) tick(now time.Time) error {
	if !v.broken.IsZero() && !now.Before(v.broken) {
		v.broken, v.lastRead = time.Time{}, now
		v.changes.reset()
		if err := v.t.build(); err != nil {
			return err
		}
		v.changes.add(string(sandbox.ChangeResync), v.changes.root, true)
	}
	if v.due.IsZero() && !v.changes.empty() {
		v.due = now.Add(v.interval)
	}
	if !v.due.IsZero() && !now.Before(v.due) {
		v.t.settle()
		v.flush()
	}
	if !now.Before(v.beat) {
		if !v.t.rootStays() {
			return errWatchGone
		}
		v.say(wire.WatchLine{Beat: true})
	}
	return nil
}

// flush tells what was gathered.
func (v *watcher) flush() {
	v.due = time.Time{}
	if v.lost || v.changes.empty() {
		return
	}
	v.rc.SetWriteDeadline(time.Now().Add(watchWrite)) //nolint:errcheck // the write tells
	for _, c := range v.changes.take() {
		if err := v.enc.Encode(wire.WatchLine{Change: c}); err != nil {
			v.lost = true
			return
		}
	}
	v.lost = v.rc.Flush() != nil
	v.beat = time.Now().Add(beatTime)
}

// reread makes the tree be read anew, not too often.
func (v *watcher) reread() {
	if v.broken.IsZero() {
		v.broken = v.lastRead.Add(rebuildPause)
	}
}

// events takes what the kernel wrote.
func (v *watcher) events(b []byte) error {
	above := false
	for len(b) >= unix.SizeofInotifyEvent {
		e, rest, ok := parseEvent(b)
		if !ok {
			return nil
		}
		b = rest
		if e.mask&unix.IN_Q_OVERFLOW != 0 {
			v.reread()
			continue
		}
		if e.wd == v.t.parent {
			above = true
			continue
		}
		if !v.broken.IsZero() && e.wd != v.t.rootWD() {
			continue // the whole tree will be read again
		}
		switch err := v.t.event(e, &v.changes); {
		case errors.Is(err, errConfused):
			v.reread()
		case err != nil:
			return err
		}
	}
	if above && v.t.removed() {
		return errWatchGone
	}
	return nil
}

// gathered are changes in the order in which they are told: the later ones of
// a file are merged into earlier ones where that loses nothing.
type gathered struct {
	root string // path of the tree
	list []wire.Change
	last map[string]int // the latest change of a path since the last move
	cut  map[string]int // the latest removal of a directory since then
	gone int            // how many of list were dropped again
	full bool
}

func (g *gathered) empty() bool { return len(g.list) == g.gone }

func (g *gathered) reset() { *g = gathered{root: g.root} }

// take gives the changes and begins anew.
func (g *gathered) take() []wire.Change {
	out := g.list[:0]
	for _, c := range g.list {
		if c.Kind != "" {
			out = append(out, c)
		}
	}
	g.reset()
	return out
}

func (g *gathered) push(c wire.Change) int {
	if g.full {
		return -1
	}
	if len(g.list) == maxPending {
		g.reset()
		g.full = true
		c = wire.Change{Kind: string(sandbox.ChangeResync), Dir: true}
		c.Path, c.PathB64 = wire.SplitText(g.root)
	}
	g.list = append(g.list, c)
	return len(g.list) - 1
}

// drop takes a change back.
func (g *gathered) drop(i int) {
	if i >= 0 && i < len(g.list) && !g.full && g.list[i].Kind != "" {
		g.list[i].Kind = ""
		g.gone++
	}
}

// add gathers a change of one path and gives its place, or -1.
func (g *gathered) add(kind, path string, dir bool) int {
	if g.full {
		return -1
	}
	if i, ok := g.last[path]; ok && !g.cutOff(path, i) {
		before := g.list[i].Kind
		switch {
		case kind == string(sandbox.ChangeModified) && before != string(sandbox.ChangeRemoved), kind == before:
			return i // that file is to be looked at in any case
		case before != string(sandbox.ChangeRemoved):
			g.drop(i)
		}
	}
	c := wire.Change{Kind: kind, Dir: dir}
	c.Path, c.PathB64 = wire.SplitText(path)
	i := g.push(c)
	if !g.full {
		if g.last == nil {
			g.last, g.cut = map[string]int{}, map[string]int{}
		}
		g.last[path] = i
		if dir && kind == string(sandbox.ChangeRemoved) {
			g.cut[path] = i
		}
	}
	return i
}

// cutOff reports whether a directory above path was removed after change i: that
// took everything below along, so what follows tells of something new.
func (g *gathered) cutOff(path string, i int) bool {
	for at := strings.LastIndexByte(path, '/'); at > 0; at = strings.LastIndexByte(path[:at], '/') {
		if j, ok := g.cut[path[:at]]; ok && j > i {
			return true
		}
	}
	return false
}

// move gathers a move. What came before can't be merged with what follows.
func (g *gathered) move(from, to string, dir bool) {
	c := wire.Change{Kind: string(sandbox.ChangeMoved), Dir: dir}
	c.Path, c.PathB64 = wire.SplitText(to)
	c.From, c.FromB64 = wire.SplitText(from)
	g.push(c)
	clear(g.last)
	clear(g.cut)
}

// hiddenName reports the names that the daemon gives to what isn't finished.
func hiddenName(name string) bool {
	const inner = 26 // of rand.Text
	return len(name) == len(".astrabox-")+inner+len(".tmp") && strings.HasPrefix(name, ".astrabox-") && strings.HasSuffix(name, ".tmp")
}
