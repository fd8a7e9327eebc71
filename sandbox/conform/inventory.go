package conform

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func inventoryClauses() []Clause[*Stage] {
	const flag = "InventoryListing"
	clauses := []Clause[*Stage]{
		{ID: "inventory.owned", Doc: "A sandbox carries the ownership metadata of its spec and the caller's own.",
			Check: func(ctx context.Context, s *Stage) error {
				spec := s.NewSpec(func(c *sandbox.CreateSpec) { c.Metadata = map[string]string{"conform": "owned"} })
				h, err := s.CreateFrom(ctx, spec)
				if err != nil {
					return NoError("creating a sandbox", err)
				}
				listed, err := s.list(ctx, spec.OwnershipMetadata())
				if err != nil {
					return err
				}
				if len(listed) != 1 || listed[0].ID != h.SandboxID() {
					return Unmet("exactly "+h.SandboxID()+" to carry the spec's metadata", "%v", idsOf(listed))
				}
				info, err := s.Inventory.DescribeSandbox(ctx, h.SandboxID())
				if err != nil {
					return NoError("describing a sandbox", err)
				}
				for k := range spec.OwnershipMetadata() {
					if _, ok := info.Metadata[k]; !ok {
						return Unmet("the metadata "+k, "%v", slices.Sorted(maps.Keys(info.Metadata)))
					}
				}
				return nil
			}},
		{ID: "inventory.describe", Doc: "DescribeSandbox tells id, state in lower case, image, creation and end as they are.",
			Check: func(ctx context.Context, s *Stage) error {
				before := time.Now()
				spec := s.NewSpec()
				h, err := s.CreateFrom(ctx, spec)
				if err != nil {
					return NoError("creating a sandbox", err)
				}
				after := time.Now()
				info, err := s.Inventory.DescribeSandbox(ctx, h.SandboxID())
				if err != nil {
					return NoError("describing a sandbox", err)
				}
				switch {
				case info.ID != h.SandboxID():
					return Unmet("the id "+h.SandboxID(), "%q", info.ID)
				case !lowerWord(info.State):
					return Unmet("a state in lower case", "%q", info.State)
				case info.Image != spec.Image:
					return Unmet("the image "+spec.Image, "%q", info.Image)
				case info.CreatedAt.Before(before.Add(-slack)) || info.CreatedAt.After(after.Add(slack)):
					return Unmet("a creation between "+timeText(before)+" and now", "%v", info.CreatedAt)
				}
				at, err := s.ExpiresAt(ctx, h.SandboxID())
				if err == nil && !at.Equal(info.ExpiresAt) {
					return Unmet("the end that ExpiresAt gives, "+timeText(at), "%v", info.ExpiresAt)
				}
				return nil
			}},
		{ID: "inventory.filter", Doc: "A listing has every sandbox that carries all of the asked metadata, and no other.",
			Check: func(ctx context.Context, s *Stage) error {
				mark := s.NewSpec().AssignmentID // a word of its own
				create := func(color string) (string, error) {
					h, err := s.Create(ctx, func(c *sandbox.CreateSpec) { c.Metadata = map[string]string{"conform": mark, "conform-color": color} })
					if err != nil {
						return "", NoError("creating a sandbox", err)
					}
					return h.SandboxID(), nil
				}
				red, err := create("red")
				if err != nil {
					return err
				}
				blue, err := create("blue")
				if err != nil {
					return err
				}
				for _, q := range []struct {
					metadata map[string]string
					want     []string
				}{
					{map[string]string{"conform": mark}, []string{red, blue}},
					{map[string]string{"conform": mark, "conform-color": "red"}, []string{red}},
					{map[string]string{"conform": mark, "conform-color": "green"}, nil},
					{map[string]string{"conform": mark, "conform-shape": "round"}, nil},
					{map[string]string{"conform": mark, sandbox.KeyInstallation: Installation + "-other"}, nil},
				} {
					got, err := s.list(ctx, q.metadata)
					if err != nil {
						return err
					}
					slices.Sort(q.want)
					if ids := idsOf(got); !slices.Equal(ids, q.want) {
						return Unmet(say("a listing of %v with %v", q.metadata, q.want), "%v", ids)
					}
				}
				return nil
			}},
		{ID: "inventory.pages", Doc: "The pages of a listing end, and have each sandbox once.",
			Timeout: 2 * time.Minute,
			Check: func(ctx context.Context, s *Stage) error {
				mark := s.NewSpec().AssignmentID
				want := make([]string, max(3, s.PageSize+2))
				for i := range want {
					h, err := s.Create(ctx, func(c *sandbox.CreateSpec) { c.Metadata = map[string]string{"conform": mark} })
					if err != nil {
						return NoError("creating a sandbox", err)
					}
					want[i] = h.SandboxID()
				}
				got, err := s.list(ctx, map[string]string{"conform": mark})
				if err != nil {
					return err
				}
				slices.Sort(want)
				if ids := idsOf(got); !slices.Equal(ids, want) {
					return Unmet(say("each of %v once", want), "%v", ids)
				}
				return nil
			}},
		{ID: "inventory.nonsense", Doc: "A page that there isn't is an error, never an empty page.",
			Check: func(ctx context.Context, s *Stage) error {
				for _, page := range []string{"no such page", "-1", "\x00"} {
					infos, next, err := s.Inventory.ListSandboxes(ctx, nil, page)
					if err == nil {
						return Unmet(say("the page %q to be refused", page), "%d sandboxes, and then %q", len(infos), next)
					}
				}
				return nil
			}},
		{ID: "inventory.destroyed", Doc: "A destroyed sandbox isn't listed.",
			Check: func(ctx context.Context, s *Stage) error {
				spec := s.NewSpec()
				h, err := s.CreateFrom(ctx, spec)
				if err != nil {
					return NoError("creating a sandbox", err)
				}
				if err := s.destroyed(ctx, h.SandboxID()); err != nil {
					return err
				}
				got, err := s.list(ctx, spec.OwnershipMetadata())
				if err != nil {
					return err
				}
				if len(got) > 0 {
					return Unmet("nothing to be listed after the destruction", "%s %s", got[0].ID, got[0].State)
				}
				return nil
			}},
		{ID: "inventory.paused", Doc: "A paused sandbox is listed like any other.",
			Check: func(ctx context.Context, s *Stage) error {
				if s.Pauser == nil {
					return Skip("the backend can't pause")
				}
				spec := s.NewSpec()
				h, err := s.CreateFrom(ctx, spec)
				if err != nil {
					return NoError("creating a sandbox", err)
				}
				if err := s.pause(ctx, h.SandboxID()); err != nil {
					return err
				}
				got, err := s.list(ctx, spec.OwnershipMetadata())
				if err != nil {
					return err
				}
				if ids := idsOf(got); !slices.Equal(ids, []string{h.SandboxID()}) {
					return Unmet("the paused sandbox "+h.SandboxID(), "%v", ids)
				}
				return nil
			}},
	}
	for i := range clauses {
		clauses[i].Capability, clauses[i].Refusal = flag, stageUnbound(flag)
		if clauses[i].Timeout == 0 {
			clauses[i].Timeout = time.Minute
		}
	}
	return clauses
}
