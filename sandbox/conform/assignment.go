package conform

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/astrabox/astrabox/sandbox"
)

func assignmentClauses() []Clause[*Stage] {
	const flag = "CorrelatedCreate"
	clauses := []Clause[*Stage]{
		{ID: "assignment.found", Doc: "The sandbox of an assignment is found, and its metadata says whose it is.",
			Check: func(ctx context.Context, s *Stage) error {
				spec := s.NewSpec()
				h, err := s.CreateFrom(ctx, spec)
				if err != nil {
					return NoError("creating a sandbox", err)
				}
				info, err := s.find(ctx, spec)
				if err != nil {
					return err
				}
				if info.ID != h.SandboxID() {
					return Unmet("the sandbox "+h.SandboxID(), "%s", info.ID)
				}
				if c := sandbox.ClaimOf(info.Metadata, spec.InstallationID, ""); c != sandbox.ClaimMine {
					return Unmet("metadata that claims the sandbox for its installation", "%v", info.Metadata)
				}
				return nil
			}},
		{ID: "assignment.unknown", Doc: "An assignment without a sandbox isn't found, which is no error.",
			Check: func(ctx context.Context, s *Stage) error {
				spec := s.NewSpec()
				info, found, err := s.Finder.FindSandboxByAssignment(ctx, spec.InstallationID, spec.AssignmentID)
				if err != nil || found {
					return Unmet("nothing found, and no error", "%s", foundText(info, found, err))
				}
				return nil
			}},
		{ID: "assignment.blank", Doc: "A blank installation or assignment is refused with SANDBOX_CONFIG_INVALID: it would match what isn't meant.",
			Check: func(ctx context.Context, s *Stage) error {
				for _, q := range [][2]string{{"", "a"}, {Installation, ""}, {"", ""}} {
					_, _, err := s.Finder.FindSandboxByAssignment(ctx, q[0], q[1])
					if err := Refused("a search with a blank part", err, sandbox.CodeInvalid); err != nil {
						return err
					}
				}
				return nil
			}},
		{ID: "assignment.same", Doc: "Creating again under an assignment that has a sandbox gives that sandbox.",
			Check: func(ctx context.Context, s *Stage) error {
				spec := s.NewSpec()
				h, err := s.CreateFrom(ctx, spec)
				if err != nil {
					return NoError("creating a sandbox", err)
				}
				still, err := s.kept(ctx, h)
				if err != nil {
					return err
				}
				again, err := s.CreateFrom(ctx, spec)
				if err != nil {
					return NoError("creating again under the same assignment", err)
				}
				if again.SandboxID() != h.SandboxID() {
					return Unmet("the sandbox "+h.SandboxID()+" again", "%s", again.SandboxID())
				}
				return still(ctx, again)
			}},
		{ID: "assignment.race", Doc: "Creates at once under one assignment never make two sandboxes.",
			Check: func(ctx context.Context, s *Stage) error {
				spec := s.NewSpec()
				ids := make([]string, 3)
				refused := make([]error, len(ids))
				if err := together(len(ids), func(i int) error {
					var h sandbox.Handle
					if h, refused[i] = s.CreateFrom(ctx, spec); refused[i] == nil {
						ids[i] = h.SandboxID()
					}
					return nil
				}); err != nil {
					return err
				}
				slices.Sort(ids)
				made := slices.DeleteFunc(slices.Compact(ids), func(id string) bool { return id == "" })
				if len(made) > 1 {
					return Unmet("one sandbox", "%v", made)
				}
				if len(made) == 0 {
					return Unmet("one of the creates to succeed", "%v", errors.Join(refused...))
				}
				info, err := s.find(ctx, spec)
				if err != nil {
					return err
				}
				if info.ID != made[0] {
					return Unmet("the sandbox "+made[0]+" to be the assignment's", "%s", info.ID)
				}
				return nil
			}},
		{ID: "assignment.owner", Doc: "Another owner's create under an assignment that has a sandbox is SANDBOX_ASSIGNMENT_CONFLICT, and the sandbox stays.",
			Check: func(ctx context.Context, s *Stage) error {
				spec := s.NewSpec()
				h, err := s.CreateFrom(ctx, spec)
				if err != nil {
					return NoError("creating a sandbox", err)
				}
				other := spec
				other.OwnerID = "another-" + spec.OwnerID
				_, err = s.CreateFrom(ctx, other)
				if err := Refused("another owner's create under the same assignment", err, sandbox.CodeAssignmentConflict); err != nil {
					return err
				}
				return works(ctx, h)
			}},
		{ID: "assignment.installation", Doc: "Installations don't see each other's assignments.",
			Check: func(ctx context.Context, s *Stage) error {
				spec := s.NewSpec()
				h, err := s.CreateFrom(ctx, spec)
				if err != nil {
					return NoError("creating a sandbox", err)
				}
				other := spec
				other.InstallationID = spec.InstallationID + "-other"
				if info, found, err := s.Finder.FindSandboxByAssignment(ctx, other.InstallationID, other.AssignmentID); err != nil || found {
					return Unmet("another installation to find nothing", "%s", foundText(info, found, err))
				}
				b, err := s.CreateFrom(ctx, other)
				if err != nil {
					return NoError("creating under the same assignment of another installation", err)
				}
				if b.SandboxID() == h.SandboxID() {
					return Unmet("a sandbox for each installation", "%s for both", h.SandboxID())
				}
				return nil
			}},
		{ID: "assignment.destroyed", Doc: "An assignment whose sandbox was destroyed has none, and can have a new one.",
			Check: func(ctx context.Context, s *Stage) error {
				spec := s.NewSpec()
				h, err := s.CreateFrom(ctx, spec)
				if err != nil {
					return NoError("creating a sandbox", err)
				}
				if err := s.destroyed(ctx, h.SandboxID()); err != nil {
					return err
				}
				if info, found, err := s.Finder.FindSandboxByAssignment(ctx, spec.InstallationID, spec.AssignmentID); err != nil || found {
					return Unmet("nothing to be found after the destruction", "%s", foundText(info, found, err))
				}
				again, err := s.CreateFrom(ctx, spec)
				if err != nil {
					return NoError("creating again after the destruction", err)
				}
				return works(ctx, again)
			}},
		{ID: "assignment.paused", Doc: "A paused sandbox is still its assignment's.",
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
				info, err := s.find(ctx, spec)
				if err != nil {
					return err
				}
				if info.ID != h.SandboxID() {
					return Unmet("the sandbox "+h.SandboxID(), "%s", info.ID)
				}
				return nil
			}},
		{ID: "assignment.ambiguous", Doc: "Two sandboxes of one assignment are refused with SANDBOX_ASSIGNMENT_AMBIGUOUS, not chosen from.",
			Check: func(ctx context.Context, s *Stage) error {
				if s.Twin == nil {
					return Skip("the harness can't make a second sandbox behind the provider's back")
				}
				spec := s.NewSpec()
				if _, err := s.CreateFrom(ctx, spec); err != nil {
					return NoError("creating a sandbox", err)
				}
				id, err := s.Twin(ctx, spec)
				if err != nil {
					return NoError("making a second sandbox of the assignment", err)
				}
				s.Own(id)
				_, _, err = s.Finder.FindSandboxByAssignment(ctx, spec.InstallationID, spec.AssignmentID)
				if err := Refused("the search for an assignment with two sandboxes", err, sandbox.CodeAssignmentAmbiguous); err != nil {
					return err
				}
				_, err = s.CreateFrom(ctx, spec)
				return Refused("creating under an assignment with two sandboxes", err, sandbox.CodeAssignmentAmbiguous)
			}},
	}
	for i := range clauses {
		clauses[i].Capability, clauses[i].Refusal, clauses[i].Timeout = flag, stageUnbound(flag), time.Minute
	}
	return clauses
}

// find wants the spec's assignment to have a sandbox.
func (s *Stage) find(ctx context.Context, spec sandbox.CreateSpec) (sandbox.Info, error) {
	info, found, err := s.Finder.FindSandboxByAssignment(ctx, spec.InstallationID, spec.AssignmentID)
	if err != nil {
		return info, NoError("looking for an assignment's sandbox", err)
	}
	if !found {
		return info, Unmet("the assignment's sandbox to be found", "nothing")
	}
	return info, nil
}

func foundText(info sandbox.Info, found bool, err error) string {
	if !found {
		return say("nothing found, %v", err)
	}
	return say("the sandbox %s, state %q, %v", info.ID, info.State, err)
}
