package shellagent

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// proc is one process; pid and start together name it for ever.
type proc struct {
	pid, ppid, group int
	start            uint64 // clock ticks since boot
}

// descendants are the living processes below root, those below a process in
// except left out.
func descendants(root int, except map[proc]bool) []proc {
	children := map[int][]proc{}
	for _, p := range processes() {
		children[p.ppid] = append(children[p.ppid], p)
	}
	var found []proc
	for todo := []int{root}; len(todo) > 0; {
		parent := todo[0]
		todo = todo[1:]
		for _, p := range children[parent] {
			if !except[p.name()] {
				found = append(found, p)
				todo = append(todo, p.pid)
			}
		}
	}
	return found
}

// name is p without what may change while it lives.
func (p proc) name() proc { return proc{pid: p.pid, start: p.start} }

func names(procs []proc) map[proc]bool {
	set := make(map[proc]bool, len(procs))
	for _, p := range procs {
		set[p.name()] = true
	}
	return set
}

// offspring are all living descendants of this process.
func offspring() map[proc]bool {
	// Mostly there are none, and the kernel says so faster than /proc.
	if err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil); err == unix.ECHILD {
		return nil
	}
	return names(descendants(os.Getpid(), nil))
}

// processes are all processes that /proc shows, without the dead ones that wait
// to be collected.
func processes() []proc {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	entries, err := dir.Readdirnames(-1)
	if err != nil {
		return nil
	}
	var found []proc
	for _, name := range entries {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // it ended meanwhile
		}
		if p, alive := parseStat(pid, stat); alive {
			found = append(found, p)
		}
	}
	return found
}

// parseStat reads a line of /proc/PID/stat. The program's name in parentheses
// may hold anything, so the fields are counted from its end.
func parseStat(pid int, stat []byte) (p proc, alive bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return proc{}, false
	}
	f := strings.Fields(string(stat[i+1:]))
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return proc{}, false
	}
	ppid, err := strconv.Atoi(f[1])
	if err != nil {
		return proc{}, false
	}
	group, err := strconv.Atoi(f[2])
	if err != nil {
		return proc{}, false
	}
	start, err := strconv.ParseUint(f[19], 10, 64)
	if err != nil {
		return proc{}, false
	}
	return proc{pid, ppid, group, start}, true
}
