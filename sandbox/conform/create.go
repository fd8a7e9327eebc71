package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/astrabox/astrabox/sandbox"
	"github.com/astrabox/astrabox/sandbox/conform/script"
)

func createClauses() []Clause[*Stage] {
	return []Clause[*Stage]{
		{ID: "create.id", Doc: "A created sandbox has an id of the allowed form, and its handle says the same each time.",
			Check: withHandle(func(_ context.Context, _ *Stage, h sandbox.Handle) error {
				id := h.SandboxID()
				if !sandbox.ValidID(id) {
					return Unmet("an id that sandbox.CheckID takes: at most 253 of A-Z a-z 0-9 . _ -, a letter or digit first, no two dots in a row", "%q", id)
				}
				return constant(h.SandboxID)
			})},
		{ID: "create.distinct", Doc: "Sandboxes of different assignments have different ids and nothing in common.",
			Check: withHandle(func(ctx context.Context, s *Stage, a sandbox.Handle) error {
				b, err := s.Create(ctx)
				if err != nil {
					return NoError("creating a second sandbox", err)
				}
				if a.SandboxID() == b.SandboxID() {
					return Unmet("two ids", "%s twice", a.SandboxID())
				}
				still, err := s.kept(ctx, a)
				if err != nil {
					return err
				}
				if still(ctx, b) == nil {
					return Unmet("a file of one sandbox to be in that one only", "the other has it too")
				}
				return nil
			})},
		{ID: "create.together", Doc: "Sandboxes can be created at once and each works.",
			Timeout: time.Minute,
			Check: func(ctx context.Context, s *Stage) error {
				const n = 4
				ids := make([]string, n)
				err := together(n, func(i int) error {
					h, err := s.Create(ctx)
					if err != nil {
						return NoError("creating one of four sandboxes at once", err)
					}
					ids[i] = h.SandboxID()
					return works(ctx, h)
				})
				if err != nil {
					return err
				}
				slices.Sort(ids)
				if u := slices.Compact(slices.Clone(ids)); len(u) != n {
					return Unmet("four ids", "%v", ids)
				}
				return nil
			}},
		{ID: "create.channel", Doc: "With RequireCommandChannel the sandbox runs commands when Create returns.",
			Check: func(ctx context.Context, s *Stage) error {
				h, err := s.Create(ctx, func(c *sandbox.CreateSpec) { c.RequireCommandChannel = true })
				if err != nil {
					return NoError("creating a sandbox with RequireCommandChannel", err)
				}
				return works(ctx, h)
			}},
		{ID: "create.dir", Doc: "Create makes Dir, with its parents.",
			Check: func(ctx context.Context, s *Stage) error {
				const dir = "/astrabox-conform-dir/a b/c"
				h, err := s.Create(ctx, func(c *sandbox.CreateSpec) { c.Dir = dir })
				if err != nil {
					return NoError("creating a sandbox with a Dir", err)
				}
				info, err := h.Files().Stat(ctx, dir)
				if err != nil {
					return NoError("looking at Dir", err)
				}
				if !info.IsDir() {
					return Unmet("Dir to be a directory", "%v", info.Mode)
				}
				return nil
			}},
		{ID: "create.env", Doc: "The spec's environment reaches every command, byte for byte.",
			Check: func(ctx context.Context, s *Stage) error {
				const value = `a "quoted" $HOME 'value' \n ü=1`
				h, err := s.Create(ctx, func(c *sandbox.CreateSpec) {
					c.Env = maps.Clone(c.Env)
					if c.Env == nil {
						c.Env = map[string]string{}
					}
					c.Env["CONFORM_VALUE"] = value
				})
				if err != nil {
					return NoError("creating a sandbox with an environment", err)
				}
				r, err := h.Commands().Run(ctx, sandbox.Command{Line: script.Line(script.Env("CONFORM_VALUE"))})
				if err != nil {
					return NoError("reading a variable", err)
				}
				if got := string(r.Stdout); got != value && got != value+"\n" {
					return Unmet("the value "+value, "%q", got)
				}
				return nil
			}},
		{ID: "create.spec", Doc: "Create leaves the maps and lists of its spec as they were.",
			Check: func(ctx context.Context, s *Stage) error {
				spec := s.NewSpec(func(c *sandbox.CreateSpec) {
					c.Env = map[string]string{"CONFORM": "1"}
					c.Metadata = map[string]string{"conform": "spec"}
				})
				before, err := json.Marshal(spec)
				if err != nil {
					return err
				}
				if _, err := s.CreateFrom(ctx, spec); err != nil {
					return NoError("creating a sandbox", err)
				}
				after, err := json.Marshal(spec)
				if err == nil && !bytes.Equal(after, before) {
					return Unmet("the spec as it was", "%s", unlike(string(after), string(before)))
				}
				return err
			}},
		{ID: "create.image", Doc: "An image that there isn't is refused, and nothing is left of the attempt.",
			Check: func(ctx context.Context, s *Stage) error {
				return s.refusedCreate(ctx, "an image that there isn't", "", func(c *sandbox.CreateSpec) { c.Image = "astrabox-conform.invalid/none:none" })
			}},
		{ID: "create.quantities", Doc: "A resource limit that is no quantity, zero or negative is refused with SANDBOX_CONFIG_INVALID.",
			Check: func(ctx context.Context, s *Stage) error {
				for _, q := range []string{"plenty", "0", "-1"} {
					err := s.refusedCreate(ctx, "a memory limit of "+q, sandbox.CodeInvalid, func(c *sandbox.CreateSpec) {
						c.ResourceLimits = maps.Clone(c.ResourceLimits)
						c.ResourceLimits["memory"] = q
					})
					if err != nil {
						return err
					}
				}
				return nil
			}},
		{ID: "create.unsupported", Doc: "What a spec asks for and the provider hasn't declared is refused, not left out: network rules, credentials, a permission level.",
			Check: func(ctx context.Context, s *Stage) error {
				for _, q := range []struct {
					what     string
					declared bool
					ask      func(*sandbox.CreateSpec)
				}{
					{"network rules", s.Caps.CreateNetworkPolicy, func(c *sandbox.CreateSpec) { c.NetworkPolicy = &sandbox.NetworkPolicy{} }},
					{"a proxy for credentials", s.Caps.EgressCredentialInjection, func(c *sandbox.CreateSpec) { c.CredentialProxy = true }},
					{"the permission level advanced", s.Caps.Allows(sandbox.PermissionAdvanced), func(c *sandbox.CreateSpec) { c.PermissionLevel = sandbox.PermissionAdvanced }},
					{"the permission level privileged", false, func(c *sandbox.CreateSpec) { c.PermissionLevel = sandbox.PermissionPrivileged }},
				} {
					if q.declared {
						continue
					}
					if err := s.refusedCreate(ctx, q.what+", which isn't declared,", "", q.ask); err != nil {
						return err
					}
				}
				return nil
			}},
		{ID: "create.port", Doc: "A create that waits in vain for a port fails when its context ends, and leaves nothing.",
			Check: func(ctx context.Context, s *Stage) error {
				short, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				spec := s.NewSpec(func(c *sandbox.CreateSpec) { c.WaitForPort = somePort })
				h, err := s.CreateFrom(short, spec)
				if err == nil {
					return Unmet("Create to wait for a port on which nothing listens", "the sandbox %s", h.SandboxID())
				}
				return s.nothingLeft(ctx, spec, err)
			}},
		{ID: "create.cancelled", Doc: "A create whose context ends leaves no sandbox behind, or names it in its error.",
			Capability: "CorrelatedCreate", Timeout: 2 * time.Minute,
			Check: cancelledCreates, Refusal: stageUnbound("CorrelatedCreate")},
		{ID: "create.processes", Doc: "A sandbox has long-lived processes when ProcessSessions is declared, and else says so in every operation.",
			Capability: "ProcessSessions",
			Check: withHandle(func(_ context.Context, _ *Stage, h sandbox.Handle) error {
				if p := h.Processes(); missing(p) || sandbox.IsUnsupportedProcesses(p) {
					return Unmet("Processes that work", "%s", typeName(p))
				}
				return nil
			}),
			Refusal: func(ctx context.Context, s *Stage) error {
				h, err := s.createWith(ctx, s.Live.Provider, s.NewSpec()) // bound: the flag may be masked
				if err != nil {
					return NoError("creating a sandbox", err)
				}
				p := h.Processes()
				if missing(p) {
					return Unmet("Processes that refuse", "none")
				}
				_, start := p.Start(ctx, sandbox.ProcessSpec{Key: "conform", Line: script.Line(script.Cat())})
				_, status := p.Status(ctx, "conform")
				_, attach := p.Attach(ctx, "conform", sandbox.AttachOptions{})
				for doing, err := range map[string]error{"Start": start, "Status": status, "Attach": attach, "Delete": p.Delete(ctx, "conform")} {
					if err := Refused(doing+" without ProcessSessions", err, sandbox.CodeProcessUnsupported); err != nil {
						return err
					}
				}
				return nil
			}},
	}
}

// refusedCreate wants a create to fail, with the code where one is given, and
// to leave nothing that the backend can list.
func (s *Stage) refusedCreate(ctx context.Context, what string, code sandbox.Code, edit func(*sandbox.CreateSpec)) error {
	spec := s.NewSpec(edit)
	h, err := s.CreateFrom(ctx, spec)
	if err == nil {
		return Unmet(what+" to be refused", "the sandbox %s", h.SandboxID())
	}
	if code != "" {
		if err := Refused("a create with "+what, err, code); err != nil {
			return err
		}
	}
	return s.nothingLeft(ctx, spec, err)
}

// nothingLeft wants no sandbox of the spec's attempt, except one that the error
// of the create names. Without a way to ask it is nil.
func (s *Stage) nothingLeft(ctx context.Context, spec sandbox.CreateSpec, createErr error) error {
	info, found, err := s.leftOf(ctx, spec)
	if err != nil {
		return NoError("looking for what a failed create left", err)
	}
	if !found {
		return nil
	}
	s.Own(info.ID)
	var e *sandbox.Error
	if errors.As(createErr, &e) && e.Code == sandbox.CodeCleanupUnconfirmed && e.SandboxID == info.ID {
		return nil
	}
	return Unmet("a create that failed to leave nothing", "it failed with %v, and the sandbox %s is %s", createErr, info.ID, info.State)
}

// leftOf looks for a sandbox of a spec's attempt; a backend that can't be asked
// gives none.
func (s *Stage) leftOf(ctx context.Context, spec sandbox.CreateSpec) (info sandbox.Info, found bool, err error) {
	switch {
	case s.Finder != nil:
		return s.Finder.FindSandboxByAssignment(ctx, spec.InstallationID, spec.AssignmentID)
	case s.Inventory != nil:
		left, err := s.list(ctx, map[string]string{sandbox.KeyInstallation: spec.InstallationID, sandbox.KeyAssignmentID: spec.AssignmentID})
		if err != nil || len(left) == 0 {
			return info, false, err
		}
		return left[0], true, nil
	}
	return info, false, nil
}

// cancelledCreates gives up creates at different moments.
func cancelledCreates(ctx context.Context, s *Stage) error {
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond, 60 * time.Millisecond, 150 * time.Millisecond} {
		spec := s.NewSpec(func(*sandbox.CreateSpec) {}) // not one that has to succeed
		short, cancel := context.WithTimeout(ctx, after)
		h, err := s.CreateFrom(short, spec)
		cancel()
		if err == nil {
			if err := works(ctx, h); err != nil { // it was quicker, and is as good as any
				return err
			}
			continue
		}
		if err := s.nothingLeft(ctx, spec, err); err != nil {
			return err
		}
	}
	return nil
}
