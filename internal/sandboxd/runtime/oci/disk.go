package oci

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// diskWatch measures what running sandboxes with a disk limit use. Few file
// systems can keep a limit per directory, so one that is passed is answered
// afterwards: processes that went on writing since the look before are killed.
// Those that read or remove files go on, so a person can make room. What execd
// writes for the platform isn't stopped.
//
// A sandbox is measured again after a while that grows with the time that
// measuring takes, and at once when the disk lost much of its free space.
type diskWatch struct {
	r *Runtime

	mu   sync.Mutex
	used map[string]int64 // bytes, as last measured

	seen map[string]*diskSeen // by the goroutine only
	stop context.CancelFunc
	done chan struct{}
}

// diskSeen is what the last look at a sandbox saw.
type diskSeen struct {
	next    time.Time
	free    uint64        // of the file system
	written map[int]int64 // by process, once the limit was near
}

const (
	diskTick = time.Second      // between looks at the free space
	diskRest = 10 * time.Second // between measurements, at least
	// diskCost is how many times longer than a measurement the rest after it is.
	diskCost = 30
	// diskDrop of free space is a reason to measure at once.
	diskDrop = 256 << 20
	// diskWriter is how much a process wrote between two looks to be one that writes.
	diskWriter = 64 << 10
	// diskEntries bounds how many files one measurement looks at; what is beyond
	// doesn't count.
	diskEntries = 2_000_000
)

func newDiskWatch(r *Runtime) *diskWatch {
	ctx, stop := context.WithCancel(context.Background())
	w := &diskWatch{r: r, used: map[string]int64{}, seen: map[string]*diskSeen{}, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		tick := time.NewTicker(diskTick)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.look(ctx, time.Now())
			case <-ctx.Done():
				return
			}
		}
	}()
	return w
}

func (w *diskWatch) close() {
	w.stop()
	<-w.done
}

// last is what the sandbox used when it was last measured.
func (w *diskWatch) last(id string) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.used[id]
}

// look measures the sandboxes whose turn it is.
func (w *diskWatch) look(ctx context.Context, now time.Time) {
	boxes, err := os.ReadDir(filepath.Join(w.r.cfg.RunDir, "box"))
	if err != nil {
		return
	}
	free := freeSpace(w.r.cfg.StateDir)
	running := map[string]bool{}
	for _, e := range boxes {
		b := w.r.box(e.Name())
		limit := readIntent(b).Disk
		if limit <= 0 || !exists(b.run+"/up") {
			continue
		}
		running[b.id] = true
		s := w.seen[b.id]
		if s == nil {
			s = &diskSeen{}
			w.seen[b.id] = s
		}
		if now.Before(s.next) && free+diskDrop > s.free {
			continue
		}
		start := time.Now()
		used, err := diskUsage(ctx, b.made)
		if ctx.Err() != nil {
			return
		}
		if err != nil { // it's being destroyed, or the disk is broken
			w.r.log.DebugContext(ctx, "disk use not measured", "sandbox", b.id, "error", err)
			continue
		}
		s.next, s.free = now.Add(max(diskRest, diskCost*time.Since(start))), free
		w.mu.Lock()
		w.used[b.id] = used
		w.mu.Unlock()
		w.judge(ctx, b, s, used, limit)
	}
	for id := range w.seen {
		if !running[id] {
			delete(w.seen, id)
			w.mu.Lock()
			delete(w.used, id)
			w.mu.Unlock()
		}
	}
}

// judge kills who writes in a sandbox that is past its limit.
func (w *diskWatch) judge(ctx context.Context, b box, s *diskSeen, used, limit int64) {
	if used < limit-limit/4 {
		s.written = nil
		return
	}
	before := s.written
	s.written = map[int]int64{}
	init, _ := w.r.init(b)
	pids, err := w.r.groups.Procs(b.id)
	if err != nil {
		return
	}
	var killed []int
	for _, pid := range pids {
		n, err := bytesWritten(pid)
		if err != nil {
			continue
		}
		s.written[pid] = n
		if used <= limit || pid == init || n-before[pid] < diskWriter {
			continue
		}
		p, err := w.r.openMember(b, pid)
		if err != nil || p == nil {
			continue
		}
		if p.kill() == nil {
			killed = append(killed, pid)
		}
		p.close()
	}
	if used > limit {
		s.next = time.Now().Add(diskTick) // look closely
		w.r.log.WarnContext(ctx, "sandbox is past its disk limit", "sandbox", b.id, "used_bytes", used, "limit_bytes", limit, "killed", killed)
	}
}

// bytesWritten is what a process gave to file systems to store.
func bytesWritten(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte("write_bytes: ")); ok {
			return strconv.ParseInt(string(bytes.TrimSpace(v)), 10, 64)
		}
	}
	return 0, fmt.Errorf("process %d: no count of bytes written", pid)
}

func freeSpace(dir string) uint64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0
	}
	return st.Bavail * uint64(st.Bsize)
}

// diskUsage is what the files below dir take, a file with several names once.
func diskUsage(ctx context.Context, dir string) (int64, error) {
	type inode struct{ dev, ino uint64 }
	links := map[inode]bool{}
	var total int64
	entries := 0
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if entries++; entries > diskEntries {
			return fs.SkipAll
		}
		if err != nil {
			return ignoreMissing(err) // files come and go
		}
		fi, err := d.Info()
		if err != nil {
			return ignoreMissing(err)
		}
		st := fi.Sys().(*syscall.Stat_t)
		if st.Nlink > 1 && !fi.IsDir() {
			k := inode{st.Dev, st.Ino}
			if links[k] {
				return nil
			}
			links[k] = true
		}
		total += st.Blocks * 512
		return nil
	})
	return total, err
}
