package execd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/internal/execd/child"
	"github.com/astrabox/astrabox/internal/execd/command"
)

const (
	// maxRecords and recordTime bound what is remembered of commands that have ended.
	maxRecords = 1024
	recordTime = 24 * time.Hour
	// maxContent bounds what is remembered of one command line.
	maxContent = 16 << 10
)

// record is what the older protocol remembers of a command.
type record struct {
	id      string
	content string
	started time.Time
	kill    context.CancelFunc
	log     *spool // nil: in the foreground

	mu       sync.Mutex
	child    *child.Child // nil: not started
	finished time.Time
	result   command.Result
	problem  string
	done     chan struct{}
}

func (r *record) setChild(c *child.Child) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.child = c
}

func (r *record) end(result command.Result, problem string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result, r.problem, r.finished = result, problem, time.Now()
	close(r.done)
}

// active reports whether the command hasn't ended.
func (r *record) active() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.finished.IsZero()
}

// notStarted ends the record of a command that couldn't be started.
func (r *record) notStarted(err error) {
	r.end(command.Result{Exit: child.Exit{Code: notStarted}}, err.Error())
}

// records keeps the newest records.
type records struct {
	mu    sync.Mutex
	byID  map[string]*record
	order []*record
	logs  budget
}

// add makes the record of a command. content is shortened where it is long.
func (rs *records) add(content string, kill context.CancelFunc, log *spool) *record {
	if len(content) > maxContent {
		content = strings.ToValidUTF8(content[:maxContent], "") + "…"
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	r := &record{id: hex.EncodeToString(b[:]), content: content, started: time.Now(), kill: kill, log: log, done: make(chan struct{})}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byID == nil {
		rs.byID = map[string]*record{}
	}
	rs.byID[r.id] = r
	rs.order = append(rs.order, r)
	rs.prune()
	return r
}

// prune forgets ended commands that are too old or too many, oldest first, and
// those whose logs take the room that others need. It looks no further than the
// newest that it may have to forget.
func (rs *records) prune() {
	over := len(rs.order) - maxRecords
	kept := 0
	for i, r := range rs.order {
		crowded := rs.logs.crowded()
		if over <= 0 && !crowded && time.Since(r.started) <= recordTime {
			kept += copy(rs.order[kept:], rs.order[i:])
			break
		}
		r.mu.Lock()
		ended := !r.finished.IsZero() && (over > 0 || crowded && r.log.length() > 0 || time.Since(r.finished) > recordTime)
		r.mu.Unlock()
		if !ended {
			rs.order[kept] = r
			kept++
			continue
		}
		over--
		delete(rs.byID, r.id)
		r.log.close()
	}
	clear(rs.order[kept:])
	rs.order = rs.order[:kept]
}

// forget drops the record of a command that wasn't started.
func (rs *records) forget(r *record) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.byID, r.id)
	for i, o := range rs.order {
		if o == r {
			rs.order = append(rs.order[:i], rs.order[i+1:]...)
			break
		}
	}
	r.log.close()
}

func (rs *records) get(id string) *record {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.byID[id]
}

func (rs *records) close() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for _, r := range rs.order {
		r.log.close()
	}
	rs.byID, rs.order = nil, nil
}
