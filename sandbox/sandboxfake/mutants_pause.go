package sandboxfake

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func init() {
	mutantTables = append(mutantTables, pauseMutants, assignmentMutants, inventoryMutants)
}

// pausing replaces Pause by f and then, where it gives nil, the honest one.
func pausing(f func(p *Provider, m *machine) error) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return twisting(func(t *twisted, p *Provider) {
		t.pause = func(ctx context.Context, id string) (bool, error) {
			m, err := p.find(id, sandbox.CodeNotFound)
			if err != nil {
				return false, err
			}
			if err := f(p, m); err != nil {
				return false, err
			}
			return p.Pause(ctx, id)
		}
	})
}

// forgetful finds processes that it doesn't have any more.
type forgetful struct{ sandbox.Processes }

func (f forgetful) Status(ctx context.Context, id string) (sandbox.ProcessStatus, error) {
	s, err := f.Processes.Status(ctx, id)
	if errors.Is(err, sandbox.ErrProcessNotFound) {
		return sandbox.ProcessStatus{State: sandbox.ProcessExited, Exit: &sandbox.Exit{}}, nil
	}
	return s, err
}

func pauseMutants() []Mutant {
	return []Mutant{
		{"pause-only-says-so", "pause.evidence", "Nothing is paused, nothing is saved, and it is paid for.",
			twisting(func(t *twisted, _ *Provider) {
				t.pause = func(context.Context, string) (bool, error) { return true, nil }
			})},
		{"resume-only-says-so", "pause.evidence", "The next turn finds a sandbox that isn't there.",
			twisting(func(t *twisted, _ *Provider) {
				t.resume = func(context.Context, string) (bool, error) { return true, nil }
			})},
		{"paused-is-gone", "pause.evidence", "A paused conversation gets a new sandbox, and its files are lost.",
			twisting(func(t *twisted, p *Provider) {
				t.connect = func(ctx context.Context, id string) (sandbox.Handle, error) {
					h, err := p.Connect(ctx, id)
					if errors.Is(err, sandbox.ErrNotRunning) {
						return nil, sandbox.Errorf(sandbox.CodeGone, "there is no sandbox %s", id)
					}
					return h, err
				}
			})},
		{"pause-never-has-evidence", "pause.evidence", "A platform looks again until its time is up.",
			twisting(func(t *twisted, p *Provider) {
				t.pause = func(ctx context.Context, id string) (bool, error) {
					_, err := p.Pause(ctx, id)
					return false, err
				}
			})},
		{"connect-wakes", "pause.asleep", "A sweep that only looks starts every paused sandbox.",
			twisting(func(t *twisted, p *Provider) {
				t.connect = func(ctx context.Context, id string) (sandbox.Handle, error) {
					_, _ = p.Resume(ctx, id)
					return p.Connect(ctx, id)
				}
			})},
		{"probe-wakes", "pause.asleep", "Asking how it is starts it.",
			twisting(func(t *twisted, p *Provider) {
				t.probe = func(ctx context.Context, id string) (sandbox.Observation, error) {
					_, _ = p.Resume(ctx, id)
					return p.Probe(ctx, id)
				}
			})},
		{"paused-is-terminated", "pause.probe", "A paused sandbox is not lost; this one is replaced.",
			seeing(func(_ *Provider, _ string, o sandbox.Observation) sandbox.Observation {
				if o.State == statePaused {
					o.State = "terminated"
				}
				return o
			})},
		{"paused-looks-running", "pause.probe", "Nobody can tell, and nobody resumes it.",
			seeing(func(_ *Provider, _ string, o sandbox.Observation) sandbox.Observation {
				if o.State == statePaused {
					o.State = stateRunning
				}
				return o
			})},
		{"pause-loses-files", "pause.files", "A container made anew from its image has nothing of the work.",
			pausing(func(p *Provider, m *machine) error {
				m.tree = newTree(append([]string{"root"}, p.options.Accounts...))
				return nil
			})},
		{"resumed-under-another-id", "pause.files", "A sandbox restored from a snapshot is a new one.",
			twisting(func(t *twisted, p *Provider) {
				t.resume = func(ctx context.Context, id string) (bool, error) {
					m, err := p.find(id, sandbox.CodeNotFound)
					if err != nil {
						return false, err
					}
					if m.isPaused() {
						t.handle = func(h handle) sandbox.Handle {
							return &twistedHandle{handle: h, id: func() string { return "restored-" + h.m.id }}
						}
					}
					return p.Resume(ctx, id)
				}
			})},
		{"processes-outlive-a-pause", "pause.processes", "A terminal attaches to a shell that isn't there.",
			bending(func(b *bent) {
				b.processes = func(_ *machine, ps sandbox.Processes) sandbox.Processes { return forgetful{ps} }
			})},
		{"paused-commands-exit", "pause.commands", "A command that the pause killed is taken for one that ended.",
			bending(func(b *bent) {
				b.commands = func(_ *machine, c sandbox.Commands) sandbox.Commands { return exitWhenGone{c} }
			})},
		{"second-pause-conflicts", "pause.again", "An idle sweep of two replicas reports a failure each time.",
			pausing(func(_ *Provider, m *machine) error {
				if m.isPaused() {
					return sandbox.Errorf(sandbox.CodeNotRunning, "it is paused already")
				}
				return nil
			})},
		{"second-resume-resets", "pause.again", "A recovered container is made again, and its changes are lost.",
			twisting(func(t *twisted, p *Provider) {
				t.resume = func(ctx context.Context, id string) (bool, error) {
					if m, err := p.find(id, sandbox.CodeNotFound); err == nil && !m.isPaused() {
						m.tree = newTree(append([]string{"root"}, p.options.Accounts...))
					}
					return p.Resume(ctx, id)
				}
			})},
		{"pause-takes-the-neighbours", "pause.own", "One idle conversation stops all others.",
			pausing(func(p *Provider, _ *machine) error {
				p.mu.Lock()
				all := slices.Collect(maps.Values(p.machines))
				p.mu.Unlock()
				for _, m := range all {
					m.pause()
				}
				return nil
			})},
		{"pause-shortens-the-lease", "pause.lease", "What was parked for a week is reaped within the hour.",
			pausing(func(p *Provider, m *machine) error {
				p.set(m, time.Minute)
				return nil
			})},
		{"paused-cannot-be-renewed", "pause.lease", "A parked conversation ends however often it is renewed.",
			twisting(func(t *twisted, p *Provider) {
				t.renew = func(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
					if m, err := p.find(id, sandbox.CodeNotFound); err == nil && m.isPaused() {
						return time.Time{}, sandbox.Errorf(sandbox.CodeNotRunning, "it is paused")
					}
					return p.Renew(ctx, id, ttl)
				}
			})},
		{"renewal-wakes", "pause.lease", "Keeping a lease starts what was parked.",
			twisting(func(t *twisted, p *Provider) {
				t.renew = func(ctx context.Context, id string, ttl time.Duration) (time.Time, error) {
					_, _ = p.Resume(ctx, id)
					return p.Renew(ctx, id, ttl)
				}
			})},
		{"paused-cannot-be-killed", "pause.destroy", "Deleted conversations that were idle stay on the bill.",
			killing(func(p *Provider, id string) (bool, error) {
				if m, err := p.find(id, sandbox.CodeNotFound); err == nil && m.isPaused() {
					return false, sandbox.Errorf(sandbox.CodeNotRunning, "it is paused")
				}
				p.vanish(id)
				return true, nil
			})},
	}
}

// finding replaces FindSandboxByAssignment.
func finding(f func(ctx context.Context, p *Provider, installation, assignment string) (sandbox.Info, bool, error)) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return twisting(func(t *twisted, p *Provider) {
		t.find = func(ctx context.Context, installation, assignment string) (sandbox.Info, bool, error) {
			return f(ctx, p, installation, assignment)
		}
	})
}

// first gives the first sandbox with the metadata, without looking further.
func (p *Provider) first(metadata map[string]string) (sandbox.Info, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := p.matching(metadata)
	if len(all) == 0 {
		return sandbox.Info{}, false
	}
	return all[0].info(), true
}

func assignmentMutants() []Mutant {
	none := sandbox.Info{}
	return []Mutant{
		{"finds-nothing", "assignment.found", "An interrupted start makes a second sandbox.",
			finding(func(context.Context, *Provider, string, string) (sandbox.Info, bool, error) { return none, false, nil })},
		{"finds-without-metadata", "assignment.found", "Nobody can tell whose it is, so it is neither used nor destroyed.",
			finding(func(ctx context.Context, p *Provider, i, a string) (sandbox.Info, bool, error) {
				info, ok, err := p.FindSandboxByAssignment(ctx, i, a)
				info.Metadata = nil
				return info, ok, err
			})},
		{"nothing-found-is-an-error", "assignment.unknown", "A first start looks like a broken backend.",
			finding(func(ctx context.Context, p *Provider, i, a string) (sandbox.Info, bool, error) {
				info, ok, err := p.FindSandboxByAssignment(ctx, i, a)
				if err == nil && !ok {
					err = sandbox.Errorf(sandbox.CodeNotFound, "there is none")
				}
				return info, ok, err
			})},
		{"blank-matches-anything", "assignment.blank", "A missing id finds somebody's sandbox.",
			finding(func(ctx context.Context, p *Provider, i, a string) (sandbox.Info, bool, error) {
				if i != "" && a != "" {
					return p.FindSandboxByAssignment(ctx, i, a)
				}
				info, ok := p.first(nil)
				return info, ok, nil
			})},
		{"every-create-makes-one", "assignment.same", "A repeated request leaves two sandboxes, and one is forgotten.",
			creating(func(ctx context.Context, s sandbox.CreateSpec, p *Provider) (sandbox.Handle, error) {
				if err := errors.Join(ctx.Err(), s.Validate(), p.accept(s)); err != nil {
					return nil, err
				}
				id, err := p.Twin(ctx, s)
				if err != nil {
					return nil, err
				}
				return p.Connect(ctx, id)
			})},
		{"looks-then-makes", "assignment.race", "Between the look and the create another request made one.",
			creating(func(ctx context.Context, s sandbox.CreateSpec, p *Provider) (sandbox.Handle, error) {
				if err := errors.Join(ctx.Err(), s.Validate(), p.accept(s)); err != nil {
					return nil, err
				}
				info, ok, err := p.FindSandboxByAssignment(ctx, s.InstallationID, s.AssignmentID)
				if err != nil {
					return nil, err
				}
				time.Sleep(time.Millisecond)
				if !ok {
					if info.ID, err = p.Twin(ctx, s); err != nil {
						return nil, err
					}
				}
				return p.Connect(ctx, info.ID)
			})},
		{"gives-another-owner's-sandbox", "assignment.owner", "Somebody else's work is handed out.",
			creating(func(ctx context.Context, s sandbox.CreateSpec, p *Provider) (sandbox.Handle, error) {
				if i, ok := p.first(map[string]string{sandbox.KeyInstallation: s.InstallationID, sandbox.KeyAssignmentID: s.AssignmentID}); ok {
					return p.Connect(ctx, i.ID)
				}
				return p.Create(ctx, s)
			})},
		{"conflict-destroys", "assignment.owner", "The one that was there first is cleaned up after the refusal.",
			creating(func(ctx context.Context, s sandbox.CreateSpec, p *Provider) (sandbox.Handle, error) {
				h, err := p.Create(ctx, s)
				if sandbox.CodeOf(err) == sandbox.CodeAssignmentConflict {
					if i, ok := p.first(map[string]string{sandbox.KeyAssignmentID: s.AssignmentID}); ok {
						p.vanish(i.ID)
					}
				}
				return h, err
			})},
		{"installations-are-one", "assignment.installation", "Two servers on one backend take each other's sandboxes.",
			finding(func(_ context.Context, p *Provider, _, a string) (sandbox.Info, bool, error) {
				info, ok := p.first(map[string]string{sandbox.KeyAssignmentID: a})
				return info, ok, nil
			})},
		{"remembers-the-destroyed", "assignment.destroyed", "A start continues with a sandbox that is gone.",
			twisting(func(t *twisted, p *Provider) {
				var mu sync.Mutex
				known := map[string]sandbox.Info{}
				t.find = func(ctx context.Context, i, a string) (sandbox.Info, bool, error) {
					info, ok, err := p.FindSandboxByAssignment(ctx, i, a)
					mu.Lock()
					defer mu.Unlock()
					if old, had := known[i+a]; err == nil && !ok && had {
						return old, true, nil
					}
					return info, ok, err
				}
				t.create = func(ctx context.Context, s sandbox.CreateSpec) (sandbox.Handle, error) {
					h, err := p.Create(ctx, s)
					if err == nil {
						mu.Lock()
						known[s.InstallationID+s.AssignmentID] = sandbox.Info{ID: h.SandboxID(), State: "terminated", Metadata: s.OwnershipMetadata()}
						mu.Unlock()
					}
					return h, err
				}
			})},
		{"an-assignment-is-spent", "assignment.destroyed", "The same attempt can never be made again.",
			twisting(func(t *twisted, p *Provider) {
				var spent sync.Map
				t.create = func(ctx context.Context, s sandbox.CreateSpec) (sandbox.Handle, error) {
					key := s.InstallationID + "/" + s.AssignmentID
					if _, ok := p.first(map[string]string{sandbox.KeyInstallation: s.InstallationID, sandbox.KeyAssignmentID: s.AssignmentID}); !ok {
						if _, had := spent.LoadOrStore(key, true); had {
							return nil, sandbox.Errorf(sandbox.CodeAssignmentConflict, "the assignment is spent")
						}
					}
					return p.Create(ctx, s)
				}
			})},
		{"paused-is-not-found", "assignment.paused", "A listing of what runs misses what is parked: a second sandbox is made.",
			finding(func(ctx context.Context, p *Provider, i, a string) (sandbox.Info, bool, error) {
				info, ok, err := p.FindSandboxByAssignment(ctx, i, a)
				if info.State == statePaused {
					return none, false, nil
				}
				return info, ok, err
			})},
		{"chooses-of-two", "assignment.ambiguous", "Which of the two has the work?",
			finding(func(ctx context.Context, p *Provider, i, a string) (sandbox.Info, bool, error) {
				info, ok, err := p.FindSandboxByAssignment(ctx, i, a)
				if sandbox.CodeOf(err) == sandbox.CodeAssignmentAmbiguous {
					info, ok = p.first(map[string]string{sandbox.KeyInstallation: i, sandbox.KeyAssignmentID: a})
					return info, ok, nil
				}
				return info, ok, err
			})},
	}
}

// describing replaces DescribeSandbox by what f makes of the honest one.
func describing(f func(i *sandbox.Info)) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return twisting(func(t *twisted, p *Provider) {
		t.describe = func(ctx context.Context, id string) (sandbox.Info, error) {
			i, err := p.DescribeSandbox(ctx, id)
			if err == nil {
				f(&i)
			}
			return i, err
		}
	})
}

// listing replaces ListSandboxes.
func listing(f func(ctx context.Context, p *Provider, metadata map[string]string, page string) ([]sandbox.Info, string, error)) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return twisting(func(t *twisted, p *Provider) {
		t.list = func(ctx context.Context, metadata map[string]string, page string) ([]sandbox.Info, string, error) {
			return f(ctx, p, metadata, page)
		}
	})
}

// small gives listings pages of two.
func small(apply func(*Provider, *sandbox.Driver) sandbox.Provider) func(*Provider, *sandbox.Driver) sandbox.Provider {
	return func(p *Provider, d *sandbox.Driver) sandbox.Provider {
		p.options.PageSize = 2
		return apply(p, d)
	}
}

func inventoryMutants() []Mutant {
	return []Mutant{
		{"owner-is-not-kept", "inventory.owned", "Nobody's sandbox is destroyed by nobody.",
			creating(func(ctx context.Context, s sandbox.CreateSpec, p *Provider) (sandbox.Handle, error) {
				h, err := p.Create(ctx, s)
				if err == nil {
					p.mu.Lock()
					delete(h.(handle).m.metadata, sandbox.KeySessionID)
					p.mu.Unlock()
				}
				return h, err
			})},
		{"callers-metadata-is-dropped", "inventory.owned", "What a caller marked can't be found.", forgetting(func(s *sandbox.CreateSpec) { s.Metadata = nil })},
		{"describes-without-metadata", "inventory.owned", "Its claim is unknown, so it is never cleaned up.", describing(func(i *sandbox.Info) { i.Metadata = nil })},
		{"describes-with-capitals", "inventory.describe", "Running isn't running.", describing(func(i *sandbox.Info) { i.State = strings.ToUpper(i.State) })},
		{"describes-another-image", "inventory.describe", "A digest in the place of the name that was asked for matches no Environment.",
			describing(func(i *sandbox.Info) { i.Image = "sha256:" + i.Image })},
		{"describes-no-creation", "inventory.describe", "A create in flight can't be told from a leftover.", describing(func(i *sandbox.Info) { i.CreatedAt = time.Time{} })},
		{"describes-another-end", "inventory.describe", "Two answers to one question.", describing(func(i *sandbox.Info) { i.ExpiresAt = i.ExpiresAt.Add(time.Hour) })},
		{"filter-takes-any-pair", "inventory.filter", "A sweep of one installation gets the sandboxes of another.",
			listing(func(ctx context.Context, p *Provider, metadata map[string]string, page string) ([]sandbox.Info, string, error) {
				var all []sandbox.Info
				seen := map[string]bool{}
				for k, v := range metadata {
					infos, _, err := p.ListSandboxes(ctx, map[string]string{k: v}, page)
					if err != nil {
						return nil, "", err
					}
					for _, i := range infos {
						if !seen[i.ID] {
							seen[i.ID] = true
							all = append(all, i)
						}
					}
				}
				return all, "", nil
			})},
		{"filter-takes-a-key-for-a-pair", "inventory.filter", "A label with another value matches.",
			listing(func(ctx context.Context, p *Provider, metadata map[string]string, page string) ([]sandbox.Info, string, error) {
				metadata = maps.Clone(metadata)
				delete(metadata, "conform-color")
				return p.ListSandboxes(ctx, metadata, page)
			})},
		{"page-loses-its-last", "inventory.pages", "One in each page is never swept.",
			small(listing(func(ctx context.Context, p *Provider, metadata map[string]string, page string) ([]sandbox.Info, string, error) {
				infos, next, err := p.ListSandboxes(ctx, metadata, page)
				if next != "" {
					infos = infos[:len(infos)-1]
				}
				return infos, next, err
			}))},
		{"only-the-first-page", "inventory.pages", "A pool of a hundred and one has a sandbox that nobody sees.",
			small(listing(func(ctx context.Context, p *Provider, metadata map[string]string, page string) ([]sandbox.Info, string, error) {
				infos, _, err := p.ListSandboxes(ctx, metadata, page)
				return infos, "", err
			}))},
		{"pages-never-end", "inventory.pages", "A sweep runs for ever.",
			small(listing(func(ctx context.Context, p *Provider, metadata map[string]string, page string) ([]sandbox.Info, string, error) {
				infos, next, err := p.ListSandboxes(ctx, metadata, page)
				if next == "" {
					next = "a" // before all
				}
				return infos, next, err
			}))},
		{"unknown-page-is-empty", "inventory.nonsense", "An empty page reads as: there is nothing more to clean up.",
			listing(func(ctx context.Context, p *Provider, metadata map[string]string, page string) ([]sandbox.Info, string, error) {
				infos, next, err := p.ListSandboxes(ctx, metadata, page)
				if sandbox.CodeOf(err) == sandbox.CodeInvalid {
					return nil, "", nil
				}
				return infos, next, err
			})},
		{"lists-the-destroyed", "inventory.destroyed", "Every sweep destroys again what is gone.",
			twisting(func(t *twisted, p *Provider) {
				var mu sync.Mutex
				var dead []sandbox.Info
				t.kill = func(ctx context.Context, id string) (bool, error) {
					if i, err := p.DescribeSandbox(ctx, id); err == nil {
						mu.Lock()
						dead = append(dead, i)
						mu.Unlock()
					}
					return p.Kill(ctx, id)
				}
				t.list = func(ctx context.Context, metadata map[string]string, page string) ([]sandbox.Info, string, error) {
					infos, next, err := p.ListSandboxes(ctx, metadata, page)
					mu.Lock()
					defer mu.Unlock()
					for _, i := range dead {
						if next == "" && i.Metadata[sandbox.KeyAssignmentID] == metadata[sandbox.KeyAssignmentID] {
							infos = append(infos, i)
						}
					}
					return infos, next, err
				}
			})},
		{"lists-only-what-runs", "inventory.paused", "Parked sandboxes that nobody names are never found.",
			listing(func(ctx context.Context, p *Provider, metadata map[string]string, page string) ([]sandbox.Info, string, error) {
				infos, next, err := p.ListSandboxes(ctx, metadata, page)
				return slices.DeleteFunc(infos, func(i sandbox.Info) bool { return i.State == statePaused }), next, err
			})},
	}
}
