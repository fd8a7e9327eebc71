// Package killpoint names the moments at which a crash is worth testing: right
// before and after each durable step.
//
// The points are compiled into the program and do nothing there. A crash test
// arms them with a function, which then decides at each point that is hit
// whether the world ends here. All of it is safe for concurrent use.
package killpoint

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Point is one named moment.
type Point struct{ name string }

var (
	mu    sync.Mutex
	all   []string
	armed atomic.Pointer[func(name string)]
)

// New declares a point. It is for package variables; a name is declared once.
func New(name string) Point {
	mu.Lock()
	defer mu.Unlock()
	if slices.Contains(all, name) {
		panic("killpoint: " + name + " is declared twice")
	}
	all = append(all, name)
	return Point{name}
}

// Hit passes the point. Unarmed it costs one atomic load.
func (p Point) Hit() {
	if f := armed.Load(); f != nil {
		(*f)(p.name)
	}
}

// Names lists the points of the program, sorted.
func Names() []string {
	mu.Lock()
	defer mu.Unlock()
	out := slices.Clone(all)
	slices.Sort(out)
	return out
}

// Arm makes every point call f until disarm is called. f may end the calling
// goroutine (runtime.Goexit). Only one function is armed at a time: tests that
// arm don't run in parallel.
func Arm(f func(name string)) (disarm func()) {
	armed.Store(&f)
	return func() { armed.Store(nil) }
}
