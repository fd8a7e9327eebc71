package lifecycle

import (
	"context"
	"time"
)

const (
	// scheduleMax is how long the schedule sleeps at most, so that a change of
	// the machine's clock is noticed.
	scheduleMax = 30 * time.Second
	repairMax   = time.Minute
)

// repairAt says when a sandbox is looked after again, and how often it was.
type repairAt struct {
	at    time.Time
	tries int
	busy  bool
}

// repair has the sandbox looked after, after the delay at the earliest; each
// further time without success in between waits longer, up to a minute.
func (s *Service) repair(id string, delay time.Duration) {
	s.mu.Lock()
	r := s.repairs[id]
	if r.tries > 0 {
		delay = max(delay, min(time.Second<<min(r.tries-1, 10), repairMax))
	}
	s.repairs[id] = repairAt{at: time.Now().Add(delay), tries: r.tries, busy: r.busy}
	s.mu.Unlock()
	s.reschedule()
}

func (s *Service) reschedule() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// schedule ends sandboxes at their scheduled end, and looks after those that
// something failed for, until ctx ends. It keeps no deadline in memory: each
// time it asks the rows.
func (s *Service) schedule(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var pruned time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-s.wake:
		}
		now := time.Now()
		if now.Sub(pruned) > time.Hour {
			pruned = now
			if err := s.store.Prune(ctx, now.Add(-s.cfg.Keep), s.cfg.KeepRows); err != nil {
				s.log.Error("forgetting old rows", "error", err)
			}
		}
		next := now.Add(scheduleMax)
		if at := s.expire(ctx, now); !at.IsZero() && at.Before(next) {
			next = at
		}
		if at := s.runRepairs(now); !at.IsZero() && at.Before(next) {
			next = at
		}
		timer.Reset(max(time.Until(next), 0))
	}
}

// expire begins the destruction of what is due and gives the next end.
func (s *Service) expire(ctx context.Context, now time.Time) (next time.Time) {
	due, err := s.store.Due(ctx, now)
	if err != nil {
		s.log.Error("reading scheduled ends", "error", err)
		return now.Add(time.Second)
	}
	for _, id := range due {
		// Decided by the row at this moment: a renewal since Due wins.
		ok, err := s.store.Expire(ctx, id, now)
		if err != nil {
			s.log.Error("a scheduled end", "sandbox", id, "error", err)
			return now.Add(time.Second)
		}
		if ok {
			s.log.Info("sandbox expired", "sandbox", id)
			s.cancelStart(id)
			s.repair(id, 0)
		}
	}
	next, ok, err := s.store.NextExpiry(ctx)
	if err != nil {
		s.log.Error("reading scheduled ends", "error", err)
		return now.Add(time.Second)
	}
	if !ok {
		return time.Time{}
	}
	return next
}

// runRepairs starts the repairs that are due and gives the time of the next.
func (s *Service) runRepairs(now time.Time) (next time.Time) {
	var due []string
	s.mu.Lock()
	for id, r := range s.repairs {
		switch {
		case r.busy:
		case !r.at.After(now):
			r.busy, r.at = true, time.Time{}
			r.tries++
			s.repairs[id] = r
			due = append(due, id)
		case next.IsZero() || r.at.Before(next):
			next = r.at
		}
	}
	s.mu.Unlock()
	for _, id := range due {
		s.tasks.start(s.cfg.StopTimeout, true, func(ctx context.Context) {
			err := s.reconcile(ctx, id, true)
			s.mu.Lock()
			r := s.repairs[id]
			r.busy = false
			again := !r.at.IsZero() // asked for meanwhile
			if err == nil && !again {
				delete(s.repairs, id)
			} else {
				s.repairs[id] = r
			}
			s.mu.Unlock()
			switch {
			case err != nil && !again:
				s.log.Error("looking after a sandbox", "sandbox", id, "error", err)
				s.repair(id, 0)
			case again:
				s.reschedule()
			}
		})
	}
	return next
}
