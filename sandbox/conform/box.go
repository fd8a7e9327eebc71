package conform

import (
	"context"
	"path"
	"strings"
	"sync/atomic"

	"github.com/astrabox/astrabox/sandbox"
)

// DefaultScratch is where clauses work when a Box names no place.
const DefaultScratch = "/tmp/astrabox-conform"

// Box is the faces of one running sandbox, for the data-plane clauses. They
// take no provider, so that a face can be checked before there is one.
type Box struct {
	Files    sandbox.Files
	Commands sandbox.Commands
	// Processes may be nil: the clauses of ProcessesContract are then left out.
	// With what sandbox.UnsupportedProcesses gives, their refusal is checked.
	Processes sandbox.Processes
	// Scratch is an absolute directory of the sandbox that the suite makes and
	// removes; empty: DefaultScratch. A clause gets a directory of its own
	// below it, already made, root's with 0755.
	Scratch string
	// Account names an account of the sandbox, with a group of the same name,
	// as which the Files themselves don't run. Empty: clauses about owners are
	// skipped.
	Account string
}

// DataPlane gives the cases of DataContract and ProcessesContract on one box.
func DataPlane(b Box) []Case {
	left := ""
	if b.Processes == nil {
		left = "the box has no Processes"
	}
	return boxCases(func(context.Context, string) (Box, error) { return b, nil },
		b.Processes != nil && !sandbox.IsUnsupportedProcesses(b.Processes), left)
}

// boxCases ties the data-plane clauses to a box that is made when the first
// clause needs it. noProcesses says why those of ProcessesContract can't run.
func boxCases(box func(ctx context.Context, clause string) (Box, error), processes bool, noProcesses string) (out []Case) {
	caps := sandbox.Capabilities{ProcessSessions: processes}
	for _, c := range DataContract() {
		out = append(out, boxCase(c, box, caps, ""))
	}
	for _, c := range ProcessesContract() {
		out = append(out, boxCase(c, box, caps, noProcesses))
	}
	return out
}

func boxCase(c Clause[Box], get func(ctx context.Context, clause string) (Box, error), caps sandbox.Capabilities, left string) Case {
	var made atomic.Pointer[Box] // by run, for the clean-up; a clause left behind may still be at it
	run := func(do func(context.Context, Box) error) func(context.Context) error {
		if do == nil {
			return nil
		}
		return func(ctx context.Context) error {
			b, err := get(ctx, c.ID)
			if err != nil {
				return NoError("getting a sandbox to try it on", err)
			}
			if b.Scratch == "" {
				b.Scratch = DefaultScratch
			}
			base := path.Clean(b.Scratch)
			if !path.IsAbs(base) || base == "/" {
				return Unmet("Box.Scratch to be an absolute directory", "%q", b.Scratch)
			}
			if b.Files == nil || b.Commands == nil {
				return Unmet("a sandbox to have Files and Commands", "Files %v, Commands %v", b.Files != nil, b.Commands != nil)
			}
			b.Scratch = base + "/" + strings.ReplaceAll(c.ID, "/", "-")
			made.Store(&b)
			if err := b.Files.MakeDir(ctx, b.Scratch, sandbox.DirOptions{Parents: true}); err != nil {
				return NoError("making the scratch directory", err)
			}
			return do(ctx, b)
		}
	}
	declared, _ := declares(caps, c.Capability)
	if left != "" {
		skip := func(context.Context) error { return Skip("%s", left) }
		return Case{Info: c.info(), declared: declared, check: skip, refusal: skip}
	}
	return Case{Info: c.info(), timeout: c.Timeout, declared: declared,
		check: run(c.Check), refusal: run(c.Refusal),
		after: func(ctx context.Context) error {
			b := made.Load()
			if b == nil {
				return nil
			}
			// What can't be removed shows in the clause on RemoveAll.
			_ = b.Files.RemoveAll(ctx, b.Scratch)
			_ = b.Files.Remove(ctx, path.Dir(b.Scratch)) // only when it is empty
			return nil
		}}
}
