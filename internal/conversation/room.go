package conversation

import (
	"context"
	"time"

	"github.com/astrabox/astrabox/internal/fault"
	"github.com/astrabox/astrabox/sandbox"
)

// room is what is known in memory about a conversation that somebody uses or
// whose keeper runs. It is guarded by Service.mu and forgotten when neither
// holds. Losing it costs nothing: rows say everything that must be kept.
type room struct {
	keeper  *keeper
	handle  sandbox.Handle // set while the sandbox is ready
	waiters []chan waited  // each has capacity 1 and is sent to once
	uses    int            // file transfers and the like under way
	active  time.Time      // newest activity; the row's is up to activityGrain older
}

type waited struct {
	handle sandbox.Handle
	err    error
}

// activityGrain is how far the stored time of the last activity may lag behind.
const activityGrain = 5 * time.Second

// room finds or makes a room. Service.mu is held.
func (s *Service) room(id string) *room {
	r, ok := s.rooms[id]
	if !ok {
		r = &room{}
		s.rooms[id] = r
	}
	return r
}

// tidy forgets a room that has no use any more. Service.mu is held.
func (s *Service) tidy(id string) {
	if r, ok := s.rooms[id]; ok && r.keeper == nil && len(r.waiters) == 0 && r.uses == 0 {
		delete(s.rooms, id)
	}
}

// wake makes the conversation's keeper look at the rows; it starts one where
// none runs. It never blocks.
func (s *Service) wake(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.rooms[id]; ok && r.keeper != nil {
		r.keeper.kick()
		return
	}
	s.wanted[id] = struct{}{}
	select {
	case s.spawn <- struct{}{}:
	default:
	}
}

// newKeepers makes the keepers that were asked for.
func (s *Service) newKeepers() []*keeper {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]*keeper, 0, len(s.wanted))
	for id := range s.wanted {
		delete(s.wanted, id)
		r := s.room(id)
		if r.keeper != nil {
			r.keeper.kick()
			continue
		}
		r.keeper = &keeper{s: s, id: id, wake: make(chan struct{}, 1), log: s.log.With("conversation", id)}
		out = append(out, r.keeper)
	}
	return out
}

// retire ends a keeper that has nothing to do; false when it was woken meanwhile.
func (s *Service) retire(k *keeper, force bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.rooms[k.id]
	if !ok || r.keeper != k {
		return true
	}
	if !force && (len(k.wake) > 0 || len(r.waiters) > 0) {
		return false
	}
	r.keeper, r.handle = nil, nil
	s.tidy(k.id)
	return true
}

// setHandle publishes the ready sandbox to those who wait, or takes it back (nil).
func (s *Service) setHandle(id string, h sandbox.Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.room(id)
	r.handle = h
	if h != nil {
		s.answer(r, waited{handle: h})
	}
}

// failWaiters tells those who wait for the sandbox that it won't come.
func (s *Service) failWaiters(id string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.rooms[id]; ok {
		s.answer(r, waited{err: err})
		s.tidy(id)
	}
}

// answer sends to all waiters. Service.mu is held.
func (s *Service) answer(r *room, w waited) {
	for _, c := range r.waiters {
		c <- w
	}
	r.waiters = nil
}

// sandboxOf gives the conversation's sandbox, started or resumed where that is
// needed, and notes the use as activity. It waits as long as ctx allows.
func (s *Service) sandboxOf(ctx context.Context, id string) (sandbox.Handle, error) {
	rec, err := s.store.Record(ctx, id)
	if err != nil {
		return nil, err
	}
	if err := usable(rec); err != nil {
		return nil, err
	}
	s.mu.Lock()
	r := s.room(id)
	r.active = time.Now()
	if r.handle != nil {
		h := r.handle
		s.mu.Unlock()
		return h, nil
	}
	c := make(chan waited, 1)
	r.waiters = append(r.waiters, c)
	s.mu.Unlock()
	s.wake(id)
	select {
	case w := <-c:
		return w.handle, w.err
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		if r, ok := s.rooms[id]; ok {
			for i, o := range r.waiters {
				if o == c {
					r.waiters = append(r.waiters[:i:i], r.waiters[i+1:]...)
					break
				}
			}
			s.tidy(id)
		}
		return nil, fault.From(ctx.Err())
	}
}

// use notes that the sandbox is at work for somebody until done is called; it
// is not paused meanwhile.
func (s *Service) use(id string) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.room(id)
	r.uses++
	r.active = time.Now()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		r := s.room(id)
		r.uses--
		r.active = time.Now()
		if r.uses == 0 && r.keeper != nil {
			r.keeper.kick() // its idle time begins now
		}
		s.tidy(id)
	}
}

// touch notes activity.
func (s *Service) touch(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.rooms[id]; ok {
		r.active = time.Now()
	}
}
