package sandboxfake

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/astrabox/astrabox/sandbox/conform/script"
)

// kernel has the processes of one sandbox: shells, and the sleeping children
// that they start.
type kernel struct {
	mu    sync.Mutex
	last  int // pid given last
	tasks map[int]*task
}

// job is all that one command, or one long-lived process, has started. It isn't
// empty: pointers to what is empty don't differ.
type job struct{ _ byte }

// task is a process. Its fields belong to the kernel's lock, the channels apart.
type task struct {
	pid, group int
	job        *job
	kind       string    // of a child, as package script names them
	until      time.Time // a child sleeps so long; zero: a shell
	deaf       map[string]bool
	catches    map[string]int // signal → status
	status     int            // of the signal that was caught
	signal     string         // that killed it
	stop       chan struct{}  // closed when what it does must end
	killed     chan struct{}  // closed when it may do nothing more
}

var signalNumbers = map[string]int{"HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "PIPE": 13, "TERM": 15}

func newKernel() *kernel { return &kernel{last: 100, tasks: map[int]*task{}} }

// shell adds a shell, the leader of its process group.
func (k *kernel) shell(j *job) *task {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.add(j)
	t.group = t.pid
	return t
}

func (k *kernel) add(j *job) *task {
	k.last++
	t := &task{
		pid: k.last, job: j, deaf: map[string]bool{}, catches: map[string]int{},
		stop: make(chan struct{}), killed: make(chan struct{}),
	}
	k.tasks[t.pid] = t
	return t
}

// spawn adds a child of a shell.
func (k *kernel) spawn(parent *task, kind string, d time.Duration) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.add(parent.job)
	t.kind, t.until, t.group = kind, time.Now().Add(d), parent.group
	for s := range parent.deaf {
		t.deaf[s] = true
	}
	switch kind {
	case script.Setsid, script.Bare:
		t.group = t.pid
	case script.Deaf:
		for _, s := range []string{"HUP", "INT", "QUIT", "TERM"} {
			t.deaf[s] = true
		}
	}
	return t.pid
}

// ended takes a shell off.
func (k *kernel) ended(t *task) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.tasks, t.pid)
}

// alive finds a process that runs. The lock is held.
func (k *kernel) alive(pid int) *task {
	t := k.tasks[pid]
	if t != nil && !t.until.IsZero() && !time.Now().Before(t.until) {
		delete(k.tasks, pid)
		return nil
	}
	return t
}

// deliver sends a signal. The lock is held.
func (k *kernel) deliver(t *task, signal string) {
	status, caught := t.catches[signal]
	switch {
	case t.signal != "", t.deaf[signal] && signal != "KILL":
	case !t.until.IsZero():
		delete(k.tasks, t.pid)
	case caught && signal != "KILL":
		if !closed(t.stop) {
			t.status = status
		}
		shut(t.stop)
	default:
		t.signal = signal
		shut(t.stop)
		shut(t.killed)
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func shut(c chan struct{}) {
	if !closed(c) {
		close(c)
	}
}

// signal sends a signal to one process; false: there is none.
func (k *kernel) signal(pid int, signal string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.alive(pid)
	if t != nil {
		k.deliver(t, signal)
	}
	return t != nil
}

// signalGroup sends a signal to a process group.
func (k *kernel) signalGroup(group int, signal string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.tasks {
		if t.group == group {
			k.deliver(t, signal)
		}
	}
}

// kill ends every process of a job, or with nil every process there is.
// spare keeps some of a job's; only lying variants have one.
func (k *kernel) kill(j *job, spare func(*task) bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, t := range k.tasks {
		if j != nil && (t.job != j || spare != nil && spare(t)) {
			continue
		}
		k.deliver(t, "KILL")
	}
}

// jobOf gives what a process belongs to; nil: there is none.
func (k *kernel) jobOf(pid int) *job {
	k.mu.Lock()
	defer k.mu.Unlock()
	if t := k.alive(pid); t != nil {
		return t.job
	}
	return nil
}

// isAlive reports whether the process whose id a file holds runs.
func (k *kernel) isAlive(pidFile string) bool {
	pid, err := strconv.Atoi(strings.TrimSpace(pidFile))
	k.mu.Lock()
	defer k.mu.Unlock()
	return err == nil && k.alive(pid) != nil
}
