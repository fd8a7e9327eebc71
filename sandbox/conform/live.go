package conform

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

// Live is a provider with a backend behind it, on which sandboxes can be made.
// Close destroys the one that the data-plane clauses share.
type Live struct {
	// Provider is the bound provider: the clauses hold it to what Bind left of
	// its capabilities.
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

	mu     sync.Mutex
	shared sandbox.Handle
	stage  *Stage // that made shared
}

// Installation is the installation id that everything made by the suite carries.
const Installation = "astrabox-conform"

// Cases gives the cases of LifecycleContract, and of DataContract and
// ProcessesContract on a sandbox that is made when the first of them runs.
func (l *Live) Cases() (out []Case) {
	for _, c := range LifecycleContract() {
		declared, _ := declares(l.Provider.Caps, c.Capability)
		st := &Stage{Live: l}
		out = append(out, Case{Info: c.info(), timeout: c.Timeout, declared: declared,
			check: bindTo(c.Check, st), refusal: bindTo(c.Refusal, st), after: st.clear})
	}
	return append(out, boxCases(l.box, l.Provider.Caps.ProcessSessions, "")...)
}

// box is the shared sandbox, made by the first call that can.
func (l *Live) box(ctx context.Context) (Box, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shared == nil {
		st := &Stage{Live: l}
		h, err := st.Create(ctx)
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
	l.mu.Lock()
	st := l.stage
	l.shared, l.stage = nil, nil
	l.mu.Unlock()
	if st == nil {
		return nil
	}
	return guard(ctx, 30*time.Second, 5*time.Second, st.clear)
}

// Stage is what one lifecycle clause works on: the Live, and the sandboxes that
// the clause made, which are destroyed after it. A sandbox that can't be
// destroyed fails the clause.
type Stage struct {
	*Live

	mu   sync.Mutex
	made []string
}

// NewSpec is a valid spec with ids of its own, changed by edit.
func (s *Stage) NewSpec(edit ...func(*sandbox.CreateSpec)) sandbox.CreateSpec {
	spec := s.Live.Spec()
	spec.InstallationID = Installation
	spec.OwnerID = "owner-" + rand.Text()
	spec.AssignmentID = "try-" + rand.Text()
	if spec.TTL == 0 {
		spec.TTL = 10 * time.Minute
	}
	for _, e := range edit {
		e(&spec)
	}
	return spec
}

// Create makes a sandbox from a new spec. It is destroyed after the clause.
func (s *Stage) Create(ctx context.Context, edit ...func(*sandbox.CreateSpec)) (sandbox.Handle, error) {
	return s.CreateFrom(ctx, s.NewSpec(edit...))
}

// CreateFrom makes a sandbox from a spec. It is destroyed after the clause.
func (s *Stage) CreateFrom(ctx context.Context, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	h, err := s.Provider.Create(ctx, spec)
	var e *sandbox.Error
	if errors.As(err, &e) && e.SandboxID != "" {
		s.Own(e.SandboxID)
	}
	if err != nil {
		return nil, err
	}
	s.Own(h.SandboxID())
	return h, nil
}

// Own has a sandbox destroyed after the clause.
func (s *Stage) Own(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made = append(s.made, id)
}

// clear destroys what the clause made, newest first.
func (s *Stage) clear(ctx context.Context) error {
	s.mu.Lock()
	made := s.made
	s.made = nil
	s.mu.Unlock()
	var failed error
	seen := map[string]bool{}
	for i := len(made) - 1; i >= 0; i-- {
		id := made[i]
		if seen[id] {
			continue
		}
		seen[id] = true
		if d := sandbox.ConfirmDestroyed(ctx, s.Provider, id); !d.ConfirmsGone(id) {
			failed = errors.Join(failed, fmt.Errorf("the sandbox %s is left over: %s", id, d.Detail))
		}
	}
	if failed != nil {
		return Unmet("the clause's sandboxes to be destroyed with proof", "%v", failed)
	}
	return nil
}

// LifecycleContract are the clauses that make and destroy sandboxes.
func LifecycleContract() []Clause[*Stage] {
	return []Clause[*Stage]{
		{ID: "create.id", Doc: "A created sandbox has an id of the allowed form.",
			Check: func(ctx context.Context, s *Stage) error {
				h, err := s.Create(ctx)
				if err != nil {
					return NoError("creating a sandbox", err)
				}
				if !sandbox.ValidID(h.SandboxID()) {
					return Unmet("an id of the allowed form", "%q", h.SandboxID())
				}
				return nil
			}},
	}
}
