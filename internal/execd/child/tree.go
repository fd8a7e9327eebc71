package child

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// MarkVariable is the environment variable that marks the processes of a Tree.
const MarkVariable = "ASTRABOX_RUN"

// Tree names processes that belong together: a child and everything that it
// started, also what left its process group and session and whose parents have
// ended. Members are found by descent, by session and by the mark that they
// inherited in their environment, so only a process that dropped all three
// (a new session, a cleaned environment, every ancestor dead) is missed.
type Tree struct {
	Leader int // session leader; 0: none
	// Reaped says that the leader was reaped, so that its number may by now
	// belong to another process.
	Reaped bool
	Mark   string // random; "": none
	// Several says that Mark is how the marks of several trees begin, all of
	// which are meant.
	Several bool
	// Former are leaders of earlier such trees, all reaped. What is left of
	// their sessions counts where it has no mark at all; a mark that isn't
	// Mark means that the number was given to another session since.
	Former []int
	// All means every process that descends from this one, whatever its marks.
	All bool
}

const (
	// killRound is the pause between looks at processes that were told to die.
	killRound = 2 * time.Millisecond
	// unreadableTime bounds the wait for processes whose environment can't be
	// seen because they are just executing a program. One that has wiped its
	// arguments and environment looks the same for ever.
	unreadableTime = time.Second
)

// ErrNoProcesses: /proc isn't there, or shows another PID namespace than the
// daemon's, so nobody can tell which processes there are.
var ErrNoProcesses = errors.New("child: /proc doesn't show the processes of this PID namespace")

// Kill ends every member with SIGKILL and returns when none is left. All are
// stopped first, until a look finds no new one: a stopped process can't fork,
// so the tree can't outrun its killer. While the daemon is out of descriptors
// it keeps trying. The error is ErrNoProcesses, or ctx's, naming how many are
// left (a process in an uninterruptible wait); the caller then still has to see
// to the leader (see [Child.Signal]).
func (t Tree) Kill(ctx context.Context) error {
	stopped := map[process]bool{}
	begun := time.Now()
	for {
		members, unreadable, err := t.members(stopped)
		if err != nil && !exhausted(err) {
			return err
		}
		if err != nil {
			select {
			case <-ctx.Done():
				return fmt.Errorf("child: %w: %w", err, context.Cause(ctx))
			case <-time.After(killRound):
				continue
			}
		}
		if len(members) == 0 && (!unreadable || time.Since(begun) > unreadableTime) {
			return nil
		}
		found := false
		for _, p := range members {
			if !stopped[p] {
				found, stopped[p] = true, true
				_ = syscall.Kill(p.pid, syscall.SIGSTOP) // it may have ended meanwhile
			}
		}
		if found {
			continue
		}
		for _, p := range members {
			_ = syscall.Kill(p.pid, syscall.SIGKILL)
		}
		select {
		case <-ctx.Done():
			if len(members) == 0 {
				return nil
			}
			return fmt.Errorf("child: %d processes survive SIGKILL: %w", len(members), context.Cause(ctx))
		case <-time.After(killRound):
		}
	}
}

// exhausted reports whether something failed for want of descriptors or memory,
// which says nothing about what was looked for.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOMEM)
}

// process is one process for ever, though its number may be given out again.
type process struct {
	pid   int
	start uint64 // ticks since boot
}

// stat is the part of /proc/PID/stat that says where a process belongs.
type stat struct {
	process
	ppid, session int
	flags         uint64
	ended         bool // a zombie without threads
}

// Process flags of the kernel.
const (
	flagExiting = 0x4
	flagKernel  = 0x200000
)

// members gives the living members, those known as such before included: one
// that is ending can't be told by its environment any more. unreadable says
// that there are processes that can't be told yet.
func (t Tree) members(known map[process]bool) (members []process, unreadable bool, err error) {
	now := see()
	if now.err != nil {
		return nil, false, now.err
	}
	all := now.all
	self := os.Getpid()
	leader := t.Leader
	if t.Reaped {
		for _, p := range all {
			if p.pid == leader {
				leader = 0 // the number was given away, so its session had ended
			}
		}
	}
	former := t.former(all)
	in := map[int]bool{}
	var dark []int
	for _, p := range all {
		switch {
		case p.pid == self || p.pid == 1:
		case known[p.process], t.All && p.ppid == self:
			in[p.pid] = true
		case leader != 0 && (p.pid == leader || p.session == leader):
			in[p.pid] = true
		case t.Mark != "" && !p.ended && p.flags&(flagExiting|flagKernel) == 0:
			switch o := now.origin(p.pid); {
			case exhausted(o.err):
				return nil, false, o.err
			case o.err != nil: // gone, or not to be asked
			case t.marked(o.marks), former[p.session] && len(o.marks) == 0:
				in[p.pid] = true
			case o.dark:
				dark = append(dark, p.pid)
			}
		}
	}
	for grew := true; grew; {
		grew = false
		for _, p := range all {
			if in[p.ppid] && !in[p.pid] && p.pid != self && p.ppid != self {
				in[p.pid], grew = true, true
			}
		}
	}
	for _, p := range all {
		if in[p.pid] && !p.ended {
			members = append(members, p.process)
		}
	}
	for _, pid := range dark {
		unreadable = unreadable || !in[pid]
	}
	return members, unreadable, nil
}

// marked reports whether one of the marks is meant.
func (t Tree) marked(marks []string) bool {
	for _, m := range marks {
		if m == t.Mark || t.Several && strings.HasPrefix(m, t.Mark) {
			return true
		}
	}
	return false
}

// former gives the sessions of former leaders whose numbers weren't given away.
func (t Tree) former(all []stat) map[int]bool {
	if len(t.Former) == 0 {
		return nil
	}
	sessions := make(map[int]bool, len(t.Former))
	for _, pid := range t.Former {
		sessions[pid] = true
	}
	for _, p := range all {
		delete(sessions, p.pid)
	}
	return sessions
}
