package child

import "runtime"

// Children are forked from threads that do nothing else. The kernel tells the end
// of a child to the thread that forked it, as long as there is that thread. Were it
// to hang in a system call that no signal interrupts (a file system that doesn't
// answer), nobody would learn of the end.

// onOwnThread runs f on a thread that ends with it. Its children fall to the first
// thread then, on which nothing runs either.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		f()
	}()
	<-done
}

// Restrict makes the threads that fork children call give before: what such a
// thread gives up there (capabilities, system calls), its children never have, and
// the rest of the daemon keeps. give is called with its goroutine locked to the
// thread. Restrict is called once, before the first Start; an error of give is
// returned, and a later one fails the Start that needed another thread.
func (r *Reaper) Restrict(give func() error) error {
	r.give = give
	return r.onForker(func() {})
}

// onForker runs f on a thread that forks. An error means that f didn't run.
// At most maxForks run at a time, so there is always a thread that is free, or
// room for another.
func (r *Reaper) onForker(f func()) (err error) {
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

// work is the life of a thread that forks. It ends with the goroutine, since
// the two are never unlocked.
func (r *Reaper) work() {
	defer r.workers.Add(-1)
	runtime.LockOSThread()
	var given error
	if r.give != nil {
		given = r.give()
	}
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
