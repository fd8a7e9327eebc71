package sandboxfake

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/astrabox/astrabox/sandbox"
)

// undeclared refuses what the options' capabilities leave out.
func undeclared(declared bool, code sandbox.Code, what string) error {
	if declared {
		return nil
	}
	return sandbox.Errorf(code, "this backend can't %s", what)
}

// Pause implements sandbox.Pauser: processes end and files stay.
func (p *Provider) Pause(ctx context.Context, id string) (bool, error) {
	return operation(ctx, p, "Pause", id, true, func() (bool, error) {
		if err := undeclared(p.Capabilities().Pause, sandbox.CodePauseUnsupported, "pause"); err != nil {
			return false, err
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
		m, err := p.find(id, sandbox.CodeNotFound)
		if err != nil {
			return false, err
		}
		m.pause()
		return true, nil
	})
}

// Resume implements sandbox.Pauser.
func (p *Provider) Resume(ctx context.Context, id string) (bool, error) {
	return operation(ctx, p, "Resume", id, true, func() (bool, error) {
		if err := undeclared(p.Capabilities().Pause, sandbox.CodePauseUnsupported, "pause"); err != nil {
			return false, err
		}
		if err := ctx.Err(); err != nil {
			return false, err
		}
		m, err := p.find(id, sandbox.CodeNotFound)
		if err != nil {
			return false, err
		}
		m.resume()
		return true, nil
	})
}

// matching gives the sandboxes that carry all of the metadata, by id. The lock is held.
func (p *Provider) matching(metadata map[string]string) (out []*machine) {
	for _, id := range slices.Sorted(maps.Keys(p.machines)) {
		m := p.machines[id]
		all := true
		for k, v := range metadata {
			got, ok := m.metadata[k]
			all = all && ok && got == v
		}
		if all {
			out = append(out, m)
		}
	}
	return out
}

type found struct {
	info sandbox.Info
	ok   bool
}

// FindSandboxByAssignment implements sandbox.AssignmentFinder.
func (p *Provider) FindSandboxByAssignment(ctx context.Context, installation, assignment string) (sandbox.Info, bool, error) {
	f, err := operation(ctx, p, "FindSandboxByAssignment", "", found{}, func() (found, error) {
		if err := undeclared(p.Capabilities().CorrelatedCreate, sandbox.CodeUnsupported, "find a sandbox by its assignment"); err != nil {
			return found{}, err
		}
		if installation == "" || assignment == "" {
			return found{}, sandbox.Errorf(sandbox.CodeInvalid, "no installation or no assignment was named")
		}
		if err := ctx.Err(); err != nil {
			return found{}, err
		}
		p.sweep()
		p.mu.Lock()
		defer p.mu.Unlock()
		all := p.matching(map[string]string{sandbox.KeyInstallation: installation, sandbox.KeyAssignmentID: assignment})
		switch len(all) {
		case 0:
			return found{}, nil
		case 1:
			return found{all[0].info(), true}, nil
		default:
			return found{}, ambiguous(assignment)
		}
	})
	return f.info, f.ok, err
}

type page struct {
	infos []sandbox.Info
	next  string
}

// ListSandboxes implements sandbox.Inventory. Pages go by id, so that one that
// is made or killed between two pages neither doubles nor hides another.
func (p *Provider) ListSandboxes(ctx context.Context, metadata map[string]string, after string) ([]sandbox.Info, string, error) {
	out, err := operation(ctx, p, "ListSandboxes", "", page{}, func() (page, error) {
		if err := undeclared(p.Capabilities().InventoryListing, sandbox.CodeListingUnsupported, "list sandboxes"); err != nil {
			return page{}, err
		}
		if after != "" && !sandbox.ValidID(after) {
			return page{}, sandbox.Errorf(sandbox.CodeInvalid, "%q is no page of this listing", after)
		}
		if err := ctx.Err(); err != nil {
			return page{}, err
		}
		p.sweep()
		p.mu.Lock()
		defer p.mu.Unlock()
		var out page
		for _, m := range p.matching(metadata) {
			if strings.Compare(m.id, after) <= 0 {
				continue
			}
			if len(out.infos) == p.options.PageSize {
				out.next = out.infos[len(out.infos)-1].ID
				break
			}
			out.infos = append(out.infos, m.info())
		}
		return out, nil
	})
	return out.infos, out.next, err
}

// DescribeSandbox implements sandbox.Inventory.
func (p *Provider) DescribeSandbox(ctx context.Context, id string) (sandbox.Info, error) {
	return operation(ctx, p, "DescribeSandbox", id, sandbox.Info{ID: id, State: stateRunning}, func() (sandbox.Info, error) {
		if err := undeclared(p.Capabilities().InventoryListing, sandbox.CodeListingUnsupported, "describe a sandbox"); err != nil {
			return sandbox.Info{}, err
		}
		if err := ctx.Err(); err != nil {
			return sandbox.Info{}, err
		}
		m, err := p.find(id, sandbox.CodeNotFound)
		if err != nil {
			return sandbox.Info{}, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return m.info(), nil
	})
}
