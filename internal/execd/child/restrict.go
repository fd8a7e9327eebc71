package child

import "runtime"

// Restrict makes the Reaper fork children from threads of their own, each of
// which has called give before: what the thread gives up there (capabilities,
// system calls), its children never have, and the rest of the daemon keeps.
// give is called with its goroutine locked to the thread. Restrict is called
// once, before the first Start; an error of give is returned, and a later one
// fails the Start that needed another thread.
func (r *Reaper) Restrict(give func() error) error {
	r.give = give
	return r.onRestricted(func() {})
}

// onRestricted runs f on a restricted thread. An error means that f didn't run.
// At most maxForks run at a time, so there is always a thread that is free, or
// room for another.
func (r *Reaper) onRestricted(f func()) (err error) {
	done := make(chan struct{})
	job := func(given error) {
		defer close(done)
		if err = given; given == nil {
			f()
		}
	}
	select {
	case r.jobs <- job:
	default:
		if r.workers.Add(1) <= maxForks {
			r.wg.Go(r.work)
		} else {
			r.workers.Add(-1)
		}
		select {
		case r.jobs <- job:
		case <-r.quit:
			return ErrClosed
		}
	}
	<-done
	return err
}

// work is the life of a restricted thread. It ends with the goroutine, since
// the two are never unlocked.
func (r *Reaper) work() {
	defer r.workers.Add(-1)
	runtime.LockOSThread()
	given := r.give()
	for {
		select {
		case job := <-r.jobs:
			job(given)
			if given != nil {
				return
			}
		case <-r.quit:
			return
		}
	}
}
