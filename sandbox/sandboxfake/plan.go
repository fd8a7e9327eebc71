package sandboxfake

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// Effect is how an operation goes wrong.
type Effect int

// The effects. After Slow and Vanish the operation is then done for real.
const (
	// Refuse does nothing and fails at once.
	Refuse Effect = iota + 1
	// Hang does nothing and fails when the caller's context ends, with its error.
	Hang
	// LoseAnswer does it, and then fails as if the connection had been lost.
	LoseAnswer
	// Slow waits for the fault's Delay, or until the context ends, which is then
	// the error.
	Slow
	// Vanish destroys the sandbox concerned beforehand, behind the caller's back.
	Vanish
	// Lie does nothing and reports success.
	Lie
)

// Fault makes calls of an operation go wrong.
type Fault struct {
	// Op is a path.Match pattern for operations: "Create", "Connect", "Kill",
	// "Probe", "Renew", "ExpiresAt", "Pause", "Resume",
	// "FindSandboxByAssignment", "ListSandboxes", "DescribeSandbox",
	// "Files.Stat" and so on for the methods of Files, Commands, Processes and
	// Attachment (not Close; Run counts as Commands.Stream too). "*" hits all,
	// "Files.*" those of a face.
	Op     string
	Effect Effect
	// Sandbox limits the fault to one sandbox; empty: any.
	Sandbox string
	// Skip lets so many matching calls go well first.
	Skip int
	// Times is how many calls are hit after that; 0: all.
	Times int
	// Delay is for Slow.
	Delay time.Duration
	// Err is the error of Refuse and LoseAnswer; nil: SANDBOX_NOT_AVAILABLE for
	// the provider's operations, sandbox.ErrUnreachable for the faces'.
	Err error
}

// Faults is the plan of what goes wrong in a provider. It starts empty.
type Faults struct {
	mu     sync.Mutex
	faults []*planned
	calls  map[string]int
}

type planned struct {
	Fault
	seen int
}

// Add adds a fault, after those added before; the first that hits a call is
// the one that happens. The function takes it away again.
func (f *Faults) Add(fault Fault) (remove func()) {
	p := &planned{Fault: fault}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, p)
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.faults = slices.DeleteFunc(f.faults, func(o *planned) bool { return o == p })
	}
}

// Clear takes all faults away.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = nil
}

// Calls is how often an operation was called.
func (f *Faults) Calls(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// next counts a call and gives the fault that hits it; nil: none.
func (f *Faults) next(op, id string) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = map[string]int{}
	}
	f.calls[op]++
	for _, p := range f.faults {
		if ok, _ := path.Match(p.Op, op); !ok || p.Sandbox != "" && p.Sandbox != id {
			continue
		}
		p.seen++
		if n := p.seen - p.Skip; n > 0 && (p.Times == 0 || n <= p.Times) {
			hit := p.Fault
			return &hit
		}
	}
	return nil
}

// operation does one call under the plan. lie is what a lying backend answers.
func operation[T any](ctx context.Context, p *Provider, op, id string, lie T, do func() (T, error)) (T, error) {
	var none T
	f := p.faults.next(op, id)
	if f == nil {
		return do()
	}
	lost := f.Err
	if lost == nil {
		lost = sandbox.Errorf(sandbox.CodeUnavailable, "%s was made to fail", op)
		if strings.Contains(op, ".") {
			lost = fmt.Errorf("%w: %s was made to fail", sandbox.ErrUnreachable, op)
		}
	}
	switch f.Effect {
	case Refuse:
		return none, lost
	case Hang:
		<-ctx.Done()
		return none, ctx.Err()
	case LoseAnswer:
		if _, err := do(); err != nil {
			return none, err
		}
		return none, lost
	case Slow:
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return none, ctx.Err()
		}
	case Vanish:
		p.vanish(id)
	case Lie:
		return lie, nil
	}
	return do()
}

// step is operation for what gives only an error.
func step(ctx context.Context, p *Provider, op, id string, do func() error) error {
	_, err := operation(ctx, p, op, id, struct{}{}, func() (struct{}, error) { return struct{}{}, do() })
	return err
}
