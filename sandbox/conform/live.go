package conform

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// Live is a provider with a backend behind it, on which sandboxes can be made.
// Close destroys the one that the data-plane clauses share.
type Live struct {
	// Provider is the bound provider: the clauses hold it to what Bind left of
	// its capabilities. They call what is bound, not the Bound, which would
	// guard it; only the sandbox of the data-plane clauses is made through it.
	Provider *sandbox.Bound
	// Spec gives a valid spec each time: an image with a POSIX sh, resources.
	// The suite sets the ids, and a TTL where there is none.
	Spec func() sandbox.CreateSpec
	// Account names an account of the image, with a group of the same name,
	// other than root; see Box. Empty: clauses about owners are skipped.
	Account string
	// Scratch is as in Box.
	Scratch string
	// ShortTTL is the shortest lease that the backend takes; zero: clauses
	// that would wait for a sandbox to expire are skipped.
	ShortTTL time.Duration
	// PageSize is how many sandboxes a page of the inventory holds, where that
	// is few enough to make more of them; zero: unknown.
	PageSize int
	// Twin makes a second sandbox with the metadata of a spec, behind the
	// provider's back, and gives its id; nil: it can't be done, and the clause
	// on ambiguous assignments is skipped.
	Twin func(ctx context.Context, spec sandbox.CreateSpec) (sandboxID string, err error)

	once   sync.Once
	gate   chan struct{} // holds one while shared is made; a create may hang
	shared sandbox.Handle
	stage  *Stage // that made shared

	mu     sync.Mutex
	able   bool              // a sandbox was made
	unable string            // the clause that makes or couldn't make the first one; empty when able
	proved bool              // a sandbox was destroyed with proof
	leaky  string            // the clause whose sandbox couldn't be, while none was
	turned map[string]string // why clauses were turned away
}

// creates refuses to make a sandbox for a clause when another one couldn't make
// or destroy one, and none ever did. plain: its spec is one with which a create
// has to succeed, so that a failure of it, a panic or a hang too, is one for all.
func (l *Live) creates(clause string, plain bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	why := l.without(clause)
	if l.leaky != "" && l.leaky != clause {
		why = "a sandbox couldn't be destroyed with proof, and no more are made, see " + l.leaky
	}
	if why != "" {
		if l.turned == nil {
			l.turned = map[string]string{}
		}
		l.turned[clause] = why
		return errors.New(why)
	}
	if plain && !l.able {
		l.unable = clause // until it has one
	}
	return nil
}

// without says that a clause is to do without sandboxes. l.mu is held.
func (l *Live) without(clause string) string {
	if l.unable == "" || l.unable == clause {
		return ""
	}
	return "no sandbox could be made, see " + l.unable
}

// created says that a sandbox was made.
func (l *Live) created() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.able, l.unable = true, ""
}

// cleared says whether a clause's sandboxes were destroyed with proof.
func (l *Live) cleared(clause string, proved bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case proved:
		l.proved = true
	case !l.proved && l.leaky == "":
		l.leaky = clause
	}
}

// stuck is Case.stuck of a clause. A backend that makes no sandbox is likely to
// do nothing else, so that no further clause is tried on it. One that destroys
// none is asked what needs no sandbox.
func (l *Live) stuck(clause string) func() (away, keeps string) {
	return func() (away, keeps string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case l.unable == clause:
			keeps = "no sandbox could be made, so the rest is not run"
		case l.leaky == clause:
			keeps = "a sandbox couldn't be destroyed with proof, so no more are made"
		}
		return firstNonEmpty(l.turned[clause], l.without(clause)), keeps
	}
}

// enter waits for its turn at shared.
func (l *Live) enter(ctx context.Context) (leave func(), err error) {
	l.once.Do(func() { l.gate = make(chan struct{}, 1) })
	select {
	case l.gate <- struct{}{}:
		return func() { <-l.gate }, nil
	case <-ctx.Done():
		return nil, Unmet("an end of the create of the sandbox that clauses share", "none so far")
	}
}

// Installation is the installation id that everything made by the suite carries.
const Installation = "astrabox-conform"

// Cases gives the cases of LifecycleContract, and of DataContract and
// ProcessesContract on a sandbox that is made when the first of them runs.
// When the first sandbox can't be made, or not be destroyed with proof, that
// clause fails, and the rest is not run.
func (l *Live) Cases() (out []Case) {
	for _, c := range LifecycleContract() {
		declared, _ := declares(l.Provider.Caps, c.Capability)
		st := &Stage{Live: l, clause: c.ID}
		out = append(out, Case{Info: c.info(), timeout: c.Timeout, declared: declared,
			check: st.resolved(c.Check), refusal: st.resolved(c.Refusal), after: st.clear})
	}
	out = append(out, boxCases(l.box, l.Provider.Caps.ProcessSessions, "")...)
	for i, c := range out {
		out[i].stuck, out[i].masked = l.stuck(c.ID), l.masks(c.Capability)
	}
	return out
}

// masks reports whether a flag is declared, and taken as if it weren't.
func (l *Live) masks(flag string) bool {
	return slices.ContainsFunc(l.Provider.Features(), func(f sandbox.Feature) bool { return f.Name == flag && f.Masked })
}

// box is the shared sandbox, made by the first call that can, of a clause.
func (l *Live) box(ctx context.Context, clause string) (Box, error) {
	if err := l.creates(clause, false); err != nil { // at once, also while the create of another hangs
		return Box{}, err
	}
	leave, err := l.enter(ctx)
	if err != nil {
		return Box{}, err
	}
	defer leave()
	if l.shared == nil {
		st := &Stage{Live: l, clause: clause}
		st.resolve()
		h, err := st.createWith(ctx, l.Provider, st.NewSpec())
		if err != nil {
			return Box{}, errors.Join(err, st.clear(context.WithoutCancel(ctx)))
		}
		l.shared, l.stage = h, st
	}
	return Box{Files: l.shared.Files(), Commands: l.shared.Commands(), Processes: l.shared.Processes(),
		Scratch: l.Scratch, Account: l.Account}, nil
}

// Close destroys the shared sandbox, with proof, within 30 s.
func (l *Live) Close(ctx context.Context) error {
	return guard(ctx, 30*time.Second, 5*time.Second, func(ctx context.Context) error {
		leave, err := l.enter(ctx)
		if err != nil {
			return err
		}
		defer leave()
		st := l.stage
		l.shared, l.stage = nil, nil
		if st == nil {
			return nil
		}
		return st.clear(ctx)
	})
}

// Unbound gives the cases of a provider that can't be bound: none is run, for
// that reason. What is wrong fails clauses of [StructuralContract].
func Unbound(err error) (out []Case) {
	left := "the provider can't be bound: " + err.Error()
	for _, i := range slices.Concat(infos(LifecycleContract()), infos(DataContract()), infos(ProcessesContract())) {
		out = append(out, Case{Info: i, left: left})
	}
	return out
}
