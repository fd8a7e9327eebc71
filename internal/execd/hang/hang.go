// Package hang lets the daemon do what may never come back: look at files, or
// open them, on a file system whose server is dead (FUSE, NFS), or whose watcher
// doesn't answer. What starts programs goes through it first.
//
// A start itself must not hang: the runtime's fork holds a part of the scheduler
// until the program has been executed, so that a few that hang, or one and the
// next garbage collection, stop the whole daemon. So all that the kernel will
// look at is looked at beforehand, by a thread that nobody else needs.
//
// At most [Max] such threads hang at a time. Everything is safe for concurrent use.
package hang

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Max bounds how many looks are under way, those included that hang for ever.
	Max = 64
	// Patience is how long a look may take.
	Patience = 10 * time.Second
	// beginTime is how long one waits for those before it.
	beginTime = 5 * time.Second
)

var (
	// ErrMany: Max looks hang, so that no other can begin.
	ErrMany = fmt.Errorf("%d starts of programs hang, because a file system doesn't answer; end what they wait for, and try again", Max)
	// ErrSilent: a look took longer than Patience.
	ErrSilent = fmt.Errorf("the program, or its directory, lies on a file system that has not answered for %v", Patience)
)

// places has an entry for each look that is under way. It is one for the whole
// process, since what is bounded is the process's threads.
var places = make(chan struct{}, Max)

// Do calls f, and gives what f gives: at once, or when ctx ends, or Patience is
// over. What f gives after that is given to drop (nil: nobody needs to know).
func Do[T any](ctx context.Context, f func() (T, error), drop func(T)) (T, error) {
	return do(ctx, Patience, f, drop)
}

func do[T any](ctx context.Context, patience time.Duration, f func() (T, error), drop func(T)) (none T, _ error) {
	type result struct {
		value T
		err   error
	}
	room := places
	turn := time.NewTimer(min(patience, beginTime))
	defer turn.Stop()
	select {
	case room <- struct{}{}:
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-turn.C:
		return none, ErrMany
	}
	over := time.NewTimer(patience)
	defer over.Stop()
	got, abandoned := make(chan result), make(chan struct{})
	go func() { // it may never end, and the process doesn't wait for it
		defer func() { <-room }()
		v, err := f()
		select {
		case got <- result{v, err}:
		case <-abandoned:
			if err == nil && drop != nil {
				drop(v)
			}
		}
	}()
	defer close(abandoned)
	select {
	case r := <-got:
		return r.value, r.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-over.C:
		return none, ErrSilent
	}
}

// maxFiles is how many files the kernel opens for one start: a program, and the
// interpreters of scripts one after the other, the last of which it refuses to run.
const maxFiles = 7

// Program looks at a program as the kernel does when it executes it, also at the
// interpreters of scripts, and at the loader that a program asks for. It is for use
// in Do. Whether the program can be executed it doesn't say: that is for the start
// to find out.
func Program(path, dir string) {
	program := path
	if a := answered.Load(); a != nil && a.program == program && a.dir == dir && time.Since(a.at) < fresh {
		return
	}
	for range maxFiles {
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		if path = look(path); path == "" {
			break
		}
	}
	answered.Store(&answer{program, dir, time.Now()})
}

// fresh is how long a program that answered isn't looked at again from the same
// directory: what many commands start at a time is mostly one shell. Between a
// look and a start there is always some time in which a file system may stop
// answering.
const fresh = 50 * time.Millisecond

// answered is the program that was last looked at to the end.
var answered atomic.Pointer[answer]

type answer struct {
	program, dir string // the interpreter of a script may be found from there
	at           time.Time
}

// look opens a file and gives which one the kernel opens next; "": none. What
// fails at once doesn't hang.
func look(path string) (next string) {
	// Opening a device may do something, whoever named it as an interpreter.
	place, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(place) //nolint:errcheck // an O_PATH descriptor
	var st unix.Stat_t
	if err := unix.Fstat(place, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return ""
	}
	// Not O_NONBLOCK: with it, a file with a lease is refused at once, where the
	// start would wait for whoever has the lease.
	f, err := os.Open("/proc/self/fd/" + strconv.Itoa(place))
	if err != nil {
		return ""
	}
	defer f.Close()
	return nextOf(f)
}
