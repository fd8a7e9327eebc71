package child

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
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
	all, err := processes()
	if err != nil {
		return nil, false, err
	}
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
	var env []byte
	for _, p := range all {
		switch {
		case p.pid == self || p.pid == 1:
		case known[p.process], t.All && p.ppid == self:
			in[p.pid] = true
		case leader != 0 && (p.pid == leader || p.session == leader):
			in[p.pid] = true
		case t.Mark != "" && !p.ended && p.flags&(flagExiting|flagKernel) == 0:
			env, err = environ(p.pid, env)
			switch {
			case exhausted(err):
				return nil, false, err
			case err != nil: // gone, or not to be asked
			case t.marked(env):
				in[p.pid] = true
			case former[p.session] && !marked(env, "", true):
				in[p.pid] = true
			case len(env) == 0 && executing(p.pid):
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

// executing reports whether a process without an environment is between two
// programs: then it has no arguments either.
func executing(pid int) bool {
	b := make([]byte, 1)
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		return false
	}
	defer f.Close()
	n, _ := f.Read(b)
	return n == 0
}

func (t Tree) marked(env []byte) bool { return marked(env, t.Mark, t.Several) }

// marked reports whether an environment has this mark, or with several one
// that begins so.
func marked(env []byte, mark string, several bool) bool {
	want := []byte(MarkVariable + "=" + mark)
	for {
		entry, rest, more := bytes.Cut(env, []byte{0})
		if bytes.Equal(entry, want) || several && bytes.HasPrefix(entry, want) {
			return true
		}
		if !more {
			return false
		}
		env = rest
	}
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

// processes reads all of /proc. One that vanishes meanwhile is left out.
func processes() ([]stat, error) {
	self, err := os.Readlink("/proc/self")
	if err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil, ErrNoProcesses // numbers of another namespace would name the wrong ones
	}
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var all []stat
	buf := make([]byte, 1024)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		f, err := os.Open("/proc/" + name + "/stat")
		if exhausted(err) {
			return nil, err
		}
		if err != nil {
			continue
		}
		n, err := f.Read(buf)
		f.Close()
		if err != nil {
			continue
		}
		if s, ok := parseStat(pid, buf[:n]); ok {
			all = append(all, s)
		}
	}
	return all, nil
}

// parseStat starts after the last ")", since a process chooses its own name.
func parseStat(pid int, b []byte) (stat, bool) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, false
	}
	f := bytes.Fields(b[i+1:])
	if len(f) < 20 {
		return stat{}, false
	}
	ppid, err1 := strconv.Atoi(string(f[1]))
	session, err2 := strconv.Atoi(string(f[3]))
	// A process whose first thread has ended shows as a zombie while others run.
	ended := bytes.ContainsAny(f[0][:1], "ZXx") && len(f[17]) == 1 && f[17][0] <= '1'
	flags, err3 := strconv.ParseUint(string(f[6]), 10, 64)
	start, err4 := strconv.ParseUint(string(f[19]), 10, 64)
	return stat{process: process{pid, start}, ppid: ppid, session: session, flags: flags, ended: ended},
		err1 == nil && err2 == nil && err3 == nil && err4 == nil
}
