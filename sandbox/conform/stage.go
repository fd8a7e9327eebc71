package conform

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

// LifecycleContract are the clauses that make and destroy sandboxes.
func LifecycleContract() []Clause[*Stage] {
	return slices.Concat(createClauses(), connectClauses(), unknownClauses(), endpointClauses(), leaseClauses(),
		destroyClauses(), pauseClauses(), assignmentClauses(), inventoryClauses(), isolatedClauses())
}

// Stage is what one lifecycle clause works on: the Live, and the sandboxes that
// the clause made, which are destroyed after it. A sandbox that can't be
// destroyed fails the clause.
type Stage struct {
	*Live
	backend
	clause string // its id

	mu    sync.Mutex
	made  []string
	plain map[string]bool // assignments of specs with which a create has to succeed
}

// resolve finds the provider's operations, which calls the provider: that is
// for the clause's own goroutine.
func (s *Stage) resolve() {
	b := backendOf(s.Live.Provider.Provider, s.Live.Provider.Caps)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backend = b
}

func (s *Stage) resolved(f func(context.Context, *Stage) error) func(context.Context) error {
	if f == nil {
		return nil
	}
	return func(ctx context.Context) error {
		s.resolve()
		return f(ctx, s)
	}
}

// NewSpec is a valid spec with ids of its own, changed by edit.
func (s *Stage) NewSpec(edit ...func(*sandbox.CreateSpec)) sandbox.CreateSpec {
	spec := s.Spec()
	spec.InstallationID = Installation
	spec.OwnerID = "owner-" + rand.Text()
	spec.AssignmentID = "try-" + rand.Text()
	if spec.TTL == 0 {
		spec.TTL = 10 * time.Minute
	}
	for _, e := range edit {
		e(&spec)
	}
	if len(edit) == 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.plain == nil {
			s.plain = map[string]bool{}
		}
		s.plain[spec.AssignmentID] = true
	}
	return spec
}

// Create makes a sandbox from a new spec. It is destroyed after the clause.
func (s *Stage) Create(ctx context.Context, edit ...func(*sandbox.CreateSpec)) (sandbox.Handle, error) {
	return s.CreateFrom(ctx, s.NewSpec(edit...))
}

// CreateFrom makes a sandbox from a spec. It is destroyed after the clause.
func (s *Stage) CreateFrom(ctx context.Context, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	return s.createWith(ctx, s.backend.Provider, spec)
}

// createWith creates through p: the provider itself, or bound.
func (s *Stage) createWith(ctx context.Context, p sandbox.Provider, spec sandbox.CreateSpec) (sandbox.Handle, error) {
	s.mu.Lock()
	plain := s.plain[spec.AssignmentID]
	s.mu.Unlock()
	if err := s.creates(s.clause, plain); err != nil {
		return nil, err
	}
	h, err := p.Create(ctx, spec)
	var e *sandbox.Error
	if errors.As(err, &e) && e.Code == sandbox.CodeCleanupUnconfirmed {
		s.Own(e.SandboxID)
	}
	switch {
	case err != nil:
		return nil, err
	case missing(h):
		return nil, Unmet("Create to give a handle or an error", "neither")
	}
	s.created()
	s.Own(h.SandboxID())
	return h, nil
}

// connect connects to a sandbox that is expected to run.
func (s *Stage) connect(ctx context.Context, id string) (sandbox.Handle, error) {
	h, err := s.Connect(ctx, id)
	if err == nil && missing(h) {
		return nil, Unmet("Connect to give a handle or an error", "neither")
	}
	return h, err
}

// Own has a sandbox destroyed after the clause.
func (s *Stage) Own(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id != "" {
		s.made = append(s.made, id)
	}
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
		if err := s.mine(ctx, id); err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		if d := sandbox.ConfirmDestroyed(ctx, s.backend.Provider, id); !d.ConfirmsGone(id) {
			failed = errors.Join(failed, fmt.Errorf("the sandbox %s is left over: %s", id, d.Detail))
		}
	}
	if len(seen) > 0 {
		s.cleared(s.clause, failed == nil)
	}
	if failed != nil {
		return Unmet("the clause's sandboxes to be destroyed with proof", "%s", strings.ReplaceAll(failed.Error(), "\n", "; "))
	}
	return nil
}

// kept writes a file of its own into the sandbox and gives what checks, through
// any handle, that it is still there as it was.
func (s *Stage) kept(ctx context.Context, h sandbox.Handle) (still func(context.Context, sandbox.Handle) error, err error) {
	dir := firstNonEmpty(s.Scratch, DefaultScratch)
	if err := h.Files().MakeDir(ctx, dir, sandbox.DirOptions{Parents: true}); err != nil {
		return nil, NoError("making a directory in the sandbox", err)
	}
	path, text := dir+"/kept-"+rand.Text(), rand.Text()
	attr := sandbox.Attr{Mode: sandbox.Mode(0o640), Owner: s.Account}
	if err := h.Files().Write(ctx, path, strings.NewReader(text), sandbox.WriteOptions{Attr: attr}); err != nil {
		return nil, NoError("writing a file in the sandbox", err)
	}
	return func(ctx context.Context, h sandbox.Handle) error {
		r, err := h.Files().Open(ctx, path, 0, -1)
		if err != nil {
			return NoError("reading the file that was written before", err)
		}
		defer r.Close()
		got, err := io.ReadAll(r)
		if err != nil {
			return NoError("reading the file that was written before", err)
		}
		if string(got) != text {
			return Unmet("the file that was written before, "+text, "%q", got)
		}
		info, err := h.Files().Stat(ctx, path)
		if err != nil {
			return NoError("looking at the file that was written before", err)
		}
		if info.Mode != fs.FileMode(0o640) || s.Account != "" && info.Owner != s.Account {
			return Unmet("the file's bits and owner as they were, 0640 "+firstNonEmpty(s.Account, "root"), "%v %s", info.Mode, info.Owner)
		}
		return nil
	}, nil
}

// works runs a command in the sandbox.
func works(ctx context.Context, h sandbox.Handle) error {
	r, err := runWord(ctx, h)
	if err != nil {
		return NoError("running a command in sandbox "+h.SandboxID(), err)
	}
	if string(r.Stdout) != word || r.ExitCode != 0 {
		return Unmet("the command's output "+word, "%q, exit status %d", r.Stdout, r.ExitCode)
	}
	return nil
}

const word = "a-word-from-the-sandbox"

// runWord runs a command that says word.
func runWord(ctx context.Context, h sandbox.Handle) (sandbox.CommandResult, error) {
	return h.Commands().Run(ctx, sandbox.Command{Line: script.Line(script.Emit(word)), Timeout: 20 * time.Second})
}

// mine refuses a sandbox that is listed as somebody else's: a provider whose
// ids lie would have the suite destroy another's work.
func (s *Stage) mine(ctx context.Context, id string) error {
	if s.Inventory == nil {
		return nil
	}
	info, err := s.Inventory.DescribeSandbox(ctx, id)
	if err == nil && info.Metadata[sandbox.KeyInstallation] != "" && !strings.HasPrefix(info.Metadata[sandbox.KeyInstallation], Installation) {
		return Unmet("sandboxes of the suite", "the sandbox %s, which belongs to the installation %s and is left alone", id, info.Metadata[sandbox.KeyInstallation])
	}
	return nil // what can't be described is found out by destroying it
}

// destroyed destroys a sandbox with proof.
func (s *Stage) destroyed(ctx context.Context, id string) error {
	if err := s.mine(ctx, id); err != nil {
		return err
	}
	if d := sandbox.ConfirmDestroyed(ctx, s.backend.Provider, id); !d.ConfirmsGone(id) {
		return Unmet("the sandbox to be destroyed with proof", "%s: %s", d.Outcome, d.Detail)
	}
	return nil
}

// exists is nil when the probe sees the sandbox, or can't be asked.
func (s *Stage) exists(ctx context.Context, id string) error {
	o, err := s.Probe(ctx, id)
	switch {
	case errors.Is(err, sandbox.ErrProbeUnsupported):
		return nil
	case err != nil:
		return NoError("probing sandbox "+id, err)
	case o.Status != sandbox.ObservedOK || o.Lost():
		return Unmet("sandbox "+id+" to exist", "%s %q %s", statusWord(o.Status), o.State, o.Detail)
	}
	return nil
}

// eventually asks again, ever more rarely, until f says yes or fails or the budget is spent.
func eventually(ctx context.Context, budget time.Duration, f func() (bool, error)) (bool, error) {
	start := time.Now()
	for wait := 20 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		ok, err := f()
		if ok || err != nil || time.Since(start) >= budget {
			return ok, err
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return false, ctx.Err()
		case <-t.C:
		}
	}
}

// together runs n functions at once and gives their errors joined.
func together(n int, f func(i int) error) error {
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if p := panicOf(func() { errs[i] = f(i) }); p != "" {
				errs[i] = Unmet("no panic", "a panic: %s", p)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// withHandle makes a sandbox for a clause that needs one.
func withHandle(check func(ctx context.Context, s *Stage, h sandbox.Handle) error) func(context.Context, *Stage) error {
	return func(ctx context.Context, s *Stage) error {
		h, err := s.Create(ctx)
		if err != nil {
			return NoError("creating a sandbox", err)
		}
		return check(ctx, s, h)
	}
}

// stageUnbound is the refusal of clauses whose flag carries operations.
func stageUnbound(flag string) func(context.Context, *Stage) error {
	return func(_ context.Context, s *Stage) error { return unbound(s.Live.Provider, flag) }
}

// list walks all pages of a listing.
func (s *Stage) list(ctx context.Context, metadata map[string]string) (all []sandbox.Info, err error) {
	seen := map[string]bool{}
	for page := ""; ; {
		infos, next, err := s.Inventory.ListSandboxes(ctx, metadata, page)
		if err != nil {
			return nil, NoError("listing sandboxes", err)
		}
		all = append(all, infos...)
		if next == "" {
			return all, nil
		}
		if seen[next] {
			return nil, Unmet("the pages of a listing to end", "page %q a second time", next)
		}
		seen[next] = true
		page = next
	}
}

func idsOf(infos []sandbox.Info) (ids []string) {
	for _, i := range infos {
		ids = append(ids, i.ID)
	}
	slices.Sort(ids)
	return ids
}
