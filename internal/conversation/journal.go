package conversation

import (
	"context"
	"iter"
	"sync"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/internal/model"
	"github.com/astrabox/astrabox/internal/store"
)

// hub tells streams what was committed. It keeps a bounded number of events for
// each; a stream that falls behind reads the journal instead, so that a slow
// reader costs no memory and misses nothing.
type hub struct {
	mu     sync.Mutex
	subs   map[string]map[*subscription]struct{}
	closed bool
}

// What is kept for one stream that is behind: so many events, with so many bytes
// of data together.
const (
	maxBacklog      = 256
	maxBacklogBytes = 1 << 20
)

type subscription struct {
	conversation string
	wake         chan struct{} // capacity 1

	mu     sync.Mutex
	events []model.Event
	size   int  // of the events' data
	behind bool // events were dropped: read the journal
	closed bool
}

func newHub() *hub { return &hub{subs: map[string]map[*subscription]struct{}{}} }

// subscribe adds a stream. Only those that a client holds open are bounded.
func (h *hub) subscribe(conversationID string, bounded bool) (*subscription, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, fault.New(fault.Stopping, "")
	}
	subs := h.subs[conversationID]
	if bounded && len(subs) >= MaxStreams {
		return nil, fault.New(fault.TooManyRequests, "The conversation has %d streams already.", MaxStreams)
	}
	if subs == nil {
		subs = map[*subscription]struct{}{}
		h.subs[conversationID] = subs
	}
	sub := &subscription{conversation: conversationID, wake: make(chan struct{}, 1)}
	subs[sub] = struct{}{}
	return sub, nil
}

func (h *hub) unsubscribe(sub *subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	subs := h.subs[sub.conversation]
	delete(subs, sub)
	if len(subs) == 0 {
		delete(h.subs, sub.conversation)
	}
}

// publish is called by the store after each commit, in order.
func (h *hub) publish(made []store.Committed) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range made {
		for sub := range h.subs[c.ConversationID] {
			sub.add(c.Events)
		}
	}
}

// closeAll ends all streams, for the end of the service.
func (h *hub) closeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, subs := range h.subs {
		for sub := range subs {
			sub.mu.Lock()
			sub.closed = true
			sub.mu.Unlock()
			sub.notify()
		}
	}
}

func (s *subscription) add(events []model.Event) {
	s.mu.Lock()
	for _, e := range events {
		s.size += len(e.Data)
	}
	if s.behind || len(s.events)+len(events) > maxBacklog || len(s.events) > 0 && s.size > maxBacklogBytes {
		s.behind, s.events = true, nil
	} else {
		s.events = append(s.events, events...)
	}
	s.mu.Unlock()
	s.notify()
}

func (s *subscription) notify() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscription) take() (events []model.Event, behind, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	events, behind, closed = s.events, s.behind, s.closed
	s.events, s.size, s.behind = nil, 0, false
	return events, behind, closed
}

// Events gives up to limit events (1 to 1000, 0: 200) with seq > after, fewer
// when they are large, and the newest seq: there are more when the last one's
// number is below it.
func (s *Service) Events(ctx context.Context, id string, after int64, limit int) (items []model.Event, lastSeq int64, err error) {
	r, err := s.store.Record(ctx, id)
	if err != nil {
		return nil, 0, err
	}
	items, err = s.store.Events(ctx, id, after, clampLimit(limit, 200), listBytes)
	if n := len(items); n > 0 {
		r.LastSeq = max(r.LastSeq, items[n-1].Seq)
	}
	return items, r.LastSeq, err
}

// A stream reads the journal in pieces of so many events and bytes; a list has at
// most so many bytes, one event's more at the end.
const (
	journalPage  = 200
	journalBytes = 256 << 10
	listBytes    = 4 << 20
)

// Stream yields the events with seq > after, first those of the journal, then
// live ones, each once, in order and without a gap, until ctx ends, the service
// stops (SERVER_STOPPING) or the conversation is deleted. An after beyond the
// newest event is CURSOR_INVALID.
func (s *Service) Stream(ctx context.Context, id string, after int64) iter.Seq2[model.Event, error] {
	return func(yield func(model.Event, error) bool) {
		fail := func(err error) {
			if ctx.Err() == nil {
				yield(model.Event{}, err)
			}
		}
		// Subscribed before the journal is read: what is committed meanwhile comes
		// twice at most, and is known by its number.
		sub, err := s.hub.subscribe(id, true)
		if err != nil {
			fail(err)
			return
		}
		defer s.hub.unsubscribe(sub)
		r, err := s.store.Record(ctx, id)
		if err != nil {
			fail(err)
			return
		}
		if after < 0 || after > r.LastSeq {
			fail(fault.New(fault.CursorInvalid, "The conversation has %d events; there is nothing after %d.", r.LastSeq, after))
			return
		}
		if r.State == model.Deleted && after == r.LastSeq {
			return
		}
		last, ended := after, false
		// give yields one event and reports whether the stream goes on.
		give := func(e model.Event) bool {
			last, ended = e.Seq, e.Type == model.EventDeleted
			return yield(e, nil) && !ended
		}
		read := true // from the journal
		for {
			for read {
				events, err := s.store.Events(ctx, id, last, journalPage, journalBytes)
				if err != nil {
					fail(err)
					return
				}
				for _, e := range events {
					if !give(e) {
						return
					}
				}
				read = len(events) > 0
			}
			select {
			case <-ctx.Done():
				return
			case <-sub.wake:
			}
			events, behind, closed := sub.take()
			for _, e := range events {
				if e.Seq <= last {
					continue
				}
				if e.Seq > last+1 {
					behind = true
					break
				}
				if !give(e) {
					return
				}
			}
			read = behind
			if closed && !behind {
				fail(fault.New(fault.Stopping, ""))
				return
			}
		}
	}
}
