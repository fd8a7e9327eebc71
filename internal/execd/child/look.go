package child

import (
	"bytes"
	"os"
	"strconv"
	"sync"
)

// look is what a look at all processes has shown. Trees that are killed at the
// same time share it: each would otherwise read all of /proc for itself, several
// times, and a few hundred commands that run out of time together would keep the
// machine busy for many seconds.
type look struct {
	done chan struct{} // closed when the rest is there
	all  []stat
	err  error

	mu      sync.Mutex
	origins map[int]origin
	buf     []byte
}

// origin is what the environment that a process was started with says.
type origin struct {
	err   error    // it can't be read
	marks []string // usually one
	dark  bool     // it is between two programs, so it can't be told
}

var looking struct {
	turn sync.Mutex // held by who looks

	mu   sync.Mutex
	next *look // not begun yet; nil: none
}

// see looks at all processes. What it gives was begun after the call, so a
// process that was there before it is in it.
func see() *look {
	looking.mu.Lock()
	l := looking.next
	first := l == nil
	if first {
		l = &look{done: make(chan struct{}), origins: map[int]origin{}}
		looking.next = l
	}
	looking.mu.Unlock()
	if !first {
		<-l.done
		return l
	}
	looking.turn.Lock()
	defer looking.turn.Unlock()
	looking.mu.Lock()
	looking.next = nil // who comes now needs a later one
	looking.mu.Unlock()
	l.all, l.err = processes()
	close(l.done)
	return l
}

// origin tells where a process comes from.
func (l *look) origin(pid int) origin {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o, ok := l.origins[pid]; ok {
		return o
	}
	var o origin
	if l.buf, o.err = environ(pid, l.buf); o.err == nil {
		o.marks = marks(l.buf)
		o.dark = len(l.buf) == 0 && executing(pid)
	}
	l.origins[pid] = o
	return o
}

// marks gives the values of the mark in an environment.
func marks(env []byte) (found []string) {
	for more := true; more; {
		var entry []byte
		entry, env, more = bytes.Cut(env, []byte{0})
		if m, ok := bytes.CutPrefix(entry, []byte(MarkVariable+"=")); ok {
			found = append(found, string(m))
		}
	}
	return found
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
